// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the processor, where there are any: `perf_event_open` of the events that the kernel itself translates for its model of
//! processor, so that no encoding is written down here. What opens is counted.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const TYPE_HARDWARE: u32 = 0;
const TYPE_CACHE: u32 = 3;
const DTLB: u64 = 3;
const READ: u64 = 0;
const MISS: u64 = 1;

/// Name, `perf_event_attr.type`, `perf_event_attr.config`.
const EVENTS: [(&str, u32, u64); 4] = [
    ("cycles", TYPE_HARDWARE, 0),
    ("instructions", TYPE_HARDWARE, 1),
    ("dtlb_loads", TYPE_CACHE, DTLB | READ << 8),
    ("dtlb_load_misses", TYPE_CACHE, DTLB | READ << 8 | MISS << 16),
];

/// The beginning of `struct perf_event_attr`, PERF_ATTR_SIZE_VER0.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

/// `exclude_kernel | exclude_hv`.
const USER_ONLY: u64 = 1 << 5 | 1 << 6;

/// One counter's value.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Counted {
    /// The event.
    pub name: &'static str,
    /// What it counted in this thread, in user mode, since it was opened; `None` if it did not open.
    pub count: Option<u64>,
    /// Why not.
    pub unavailable: Option<String>,
}

/// Counters of this thread, counting.
pub struct Counters {
    open: Vec<(&'static str, io::Result<OwnedFd>)>,
}

impl Default for Counters {
    fn default() -> Self {
        Self::open()
    }
}

impl Counters {
    /// Opens what can be opened.
    #[must_use]
    pub fn open() -> Self {
        Self { open: EVENTS.iter().map(|&(name, kind, config)| (name, open(kind, config))).collect() }
    }

    /// What they counted.
    #[must_use]
    pub fn read(&self) -> Vec<Counted> {
        let counted = |(name, file): &(&'static str, io::Result<OwnedFd>)| {
            let value = file.as_ref().map_err(why).and_then(|file| read(file).map_err(|error| why(&error)));
            Counted { name, count: value.as_ref().ok().copied(), unavailable: value.err() }
        };
        self.open.iter().map(counted).collect()
    }
}

fn why(error: &io::Error) -> String {
    let reason = match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "this machine shows no such counter (in a VM, the hypervisor has to pass a PMU on)".into()
        }
        Some(libc::EACCES | libc::EPERM) => {
            "the kernel allows it to nobody but root (kernel.perf_event_paranoid)".into()
        }
        Some(libc::ENOSYS) => "this kernel has no perf_event_open".into(),
        _ => error.to_string(),
    };
    format!("unavailable, because {reason}")
}

fn open(kind: u32, config: u64) -> io::Result<OwnedFd> {
    let attributes =
        Attributes { kind, size: size_of::<Attributes>() as u32, config, flags: USER_ONLY, ..Attributes::default() };
    // SAFETY: the kernel reads `size` bytes of the structure, which lives until the call returns.
    let file = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, 0u64) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(file as i32) })
}

fn read(file: &OwnedFd) -> io::Result<u64> {
    let mut count = 0u64;
    // SAFETY: 8 bytes, where there is room for 8.
    let got = unsafe { libc::read(file.as_raw_fd(), (&raw mut count).cast(), 8) };
    if got == 8 { Ok(count) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_counts_or_says_why_not() {
        let counted = Counters::open().read();
        assert_eq!(counted.len(), EVENTS.len());
        for one in counted {
            assert!(one.count.is_some() != one.unavailable.is_some(), "{one:?}");
            assert!(one.unavailable.is_none_or(|why| why.starts_with("unavailable, because ")));
        }
    }

    #[test]
    fn the_attributes_are_as_long_as_the_first_version() {
        assert_eq!(size_of::<Attributes>(), 64);
    }
}
