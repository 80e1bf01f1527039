// SPDX-License-Identifier: MIT OR Apache-2.0
//! What inspecting costs: CPU time of one look at 1 GiB of this process, whose pages were touched
//! out of order.

use std::io;

use crate::error::InspectError;
use crate::inspection::{Options, inspect};
use crate::maps::PAGE_BYTES;
use crate::process::Process;

/// The benchmark's name.
pub const NAME: &str = "inspect_gib";
const BYTES: usize = 1 << 30;
/// Pages are touched in steps of this odd number, so that neighbours get frames far from each
/// other.
const STEP: u64 = 40_503;

/// Pages that are inspected in a second of CPU time.
///
/// # Errors
/// When there is no memory for it, or this process cannot be read.
pub fn run() -> Result<f64, InspectError> {
    let memory = Memory::scattered().map_err(|source| InspectError::Io { path: "1 GiB of memory".into(), source })?;
    let process = Process::open(std::process::id())?;
    let before = cpu_seconds();
    let found = inspect(&process, Options::default())?;
    let seconds = cpu_seconds() - before;
    drop(memory);
    Ok(found.memory.present_bytes as f64 / PAGE_BYTES as f64 / seconds)
}

/// Memory that is given back when this goes.
struct Memory(*mut libc::c_void);

impl Memory {
    fn scattered() -> io::Result<Self> {
        // SAFETY: a new anonymous mapping, at an address that the kernel chooses.
        let start = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), BYTES, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = Self(start);
        // SAFETY: advice about exactly the mapping above. A kernel without huge pages refuses it,
        // which changes nothing.
        unsafe { libc::madvise(start, BYTES, libc::MADV_NOHUGEPAGE) };
        let pages = BYTES as u64 / PAGE_BYTES;
        for index in 0..pages {
            let offset = (index * STEP % pages * PAGE_BYTES) as usize;
            // SAFETY: `offset` is below `BYTES`, and the mapping is writable and lives as long as
            // `memory`.
            unsafe { start.cast::<u8>().add(offset).write_volatile(1) };
        }
        Ok(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `scattered` mapped; nothing refers to it any more.
        unsafe { libc::munmap(self.0, BYTES) };
    }
}

/// CPU time of this process, user and kernel.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec that the kernel may write.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
