// SPDX-License-Identifier: MIT OR Apache-2.0
//! Only a VMM itself can ask KVM for its binary statistics (`KVM_GET_STATS_FD`). One that has done
//! so holds a file, of which we can get a copy of our own (`pidfd_getfd`, Linux 5.6; it takes the
//! right to trace the VMM).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use crate::stats_fd::parse;

/// What the link of such a file says.
const LINK: &str = "anon_inode:kvm-vm-stats";
/// More than any kernel has.
const FILE_MAX: usize = 1 << 20;

/// The statistics of the VM whose VMM is `pid`, by name; of its first VM, if it has several.
///
/// # Errors
/// Why they cannot be had, to continue "unavailable, because".
pub fn of_vm(pid: u32) -> Result<BTreeMap<String, u64>, String> {
    let held = held(pid).map_err(|error| format!("the open files of process {pid} cannot be listed ({error})"))?;
    let number = held
        .ok_or("the VMM holds no file of KVM's statistics (KVM_GET_STATS_FD), and no other process can ask for it")?;
    let copy =
        copy(pid, number).map_err(|error| format!("the VMM's file of KVM's statistics cannot be copied ({error})"))?;
    let mut bytes = vec![0; FILE_MAX];
    let got = File::from(copy)
        .read_at(&mut bytes, 0)
        .map_err(|error| format!("KVM's statistics cannot be read ({error})"))?;
    parse(&bytes[..got]).ok_or_else(|| "KVM's statistics have another format than documented".into())
}

fn held(pid: u32) -> io::Result<Option<RawFd>> {
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        if link.as_os_str() == LINK {
            return Ok(entry.file_name().to_str().and_then(|name| name.parse().ok()));
        }
    }
    Ok(None)
}

/// A copy of the file `number` of the process `pid`.
fn copy(pid: u32, number: RawFd) -> io::Result<OwnedFd> {
    let owned = |result: libc::c_long| {
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(result as RawFd) })
    };
    // SAFETY: takes numbers only.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: takes numbers only; `process` is open until after the call.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}
