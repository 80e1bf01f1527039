// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the processor, where there are any: `perf_event_open` of the events that the kernel
//! itself translates for its model of processor, and of those that the caller knows for it. No
//! encoding is written down here. What opens is counted.

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

/// An event of one model of processor.
#[derive(Clone, PartialEq, Eq, Debug, serde::Deserialize)]
pub struct Event {
    /// What it is called.
    pub name: String,
    /// `perf_event_attr.type`: the number of its PMU.
    pub kind: u32,
    /// `perf_event_attr.config`: its encoding.
    pub config: u64,
}

/// `PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING`.
const TIMES: u64 = 1 | 2;

/// `exclude_kernel | exclude_hv`.
const USER_ONLY: u64 = 1 << 5 | 1 << 6;

/// One counter's value.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Counted {
    /// The event.
    pub name: String,
    /// What it counted in this thread, in user mode, since it was opened; `None` if it did not
    /// open.
    pub count: Option<u64>,
    /// The share of the time in which it counted. Below 1 there are more events than counters, the
    /// kernel gave them turns, and `count` is extrapolated.
    pub counted_share: Option<f64>,
    /// Why not.
    pub unavailable: Option<String>,
}

/// Counters of this thread, counting.
pub struct Counters {
    open: Vec<(String, io::Result<OwnedFd>)>,
}

impl Counters {
    /// Opens what can be opened: the events that every kernel names, and `more`.
    #[must_use]
    pub fn open(more: &[Event]) -> Self {
        let named = EVENTS.iter().map(|&(name, kind, config)| (name.to_owned(), open(kind, config)));
        let known = more.iter().map(|event| (event.name.clone(), open(event.kind, event.config)));
        Self { open: named.chain(known).collect() }
    }

    /// What they counted.
    #[must_use]
    pub fn read(&self) -> Vec<Counted> {
        let counted = |(name, file): &(String, io::Result<OwnedFd>)| {
            let name = name.clone();
            match file.as_ref().map_err(why).and_then(|file| read(file).map_err(|error| why(&error))).and_then(scaled) {
                Ok((count, share)) => {
                    Counted { name, count: Some(count), counted_share: Some(share), unavailable: None }
                }
                Err(why) => Counted { name, count: None, counted_share: None, unavailable: Some(why) },
            }
        };
        self.open.iter().map(counted).collect()
    }
}

/// The count over the whole time and the share of it in which the event counted, of its count, the
/// time in which it was wanted, and the time in which it had a counter.
fn scaled([count, wanted, counted]: [u64; 3]) -> Result<(u64, f64), String> {
    if counted == 0 {
        return Err("unavailable, because no counter was free for it".into());
    }
    let share = counted as f64 / wanted.max(counted) as f64;
    Ok(((count as f64 / share).round() as u64, share))
}

fn why(error: &io::Error) -> String {
    let reason = match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "this machine shows no such counter (in a VM, the hypervisor has to pass a PMU on)".into()
        }
        Some(libc::EACCES | libc::EPERM) => "the kernel allows it to root only (kernel.perf_event_paranoid)".into(),
        Some(libc::ENOSYS) => "this kernel has no perf_event_open".into(),
        _ => error.to_string(),
    };
    format!("unavailable, because {reason}")
}

fn open(kind: u32, config: u64) -> io::Result<OwnedFd> {
    let size = size_of::<Attributes>() as u32;
    let attributes = Attributes { kind, size, config, read_format: TIMES, flags: USER_ONLY, ..Attributes::default() };
    // SAFETY: the kernel reads `size` bytes of the structure, which lives until the call returns.
    let file = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, 0u64) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(file as i32) })
}

/// The count, the time in which it was wanted, and that in which it counted (ns).
fn read(file: &OwnedFd) -> io::Result<[u64; 3]> {
    let mut words = [0u64; 3];
    let bytes = size_of_val(&words);
    // SAFETY: as many bytes as there is room for.
    let got = unsafe { libc::read(file.as_raw_fd(), words.as_mut_ptr().cast(), bytes) };
    if got == bytes as isize { Ok(words) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_counts_or_says_why_not() {
        let more = Event { name: "of_no_pmu".into(), kind: u32::MAX, config: 1 };
        let counted = Counters::open(&[more]).read();
        assert_eq!(counted.len(), EVENTS.len() + 1);
        assert!(counted[EVENTS.len()].unavailable.is_some());
        for one in counted {
            assert!(one.count.is_some() != one.unavailable.is_some(), "{one:?}");
            assert!(one.unavailable.is_none_or(|why| why.starts_with("unavailable, because ")));
        }
    }

    #[test]
    fn counts_of_a_part_of_the_time_are_extrapolated() {
        assert_eq!(scaled([50, 100, 100]), Ok((50, 1.0)));
        assert_eq!(scaled([50, 100, 25]), Ok((200, 0.25)));
        assert!(scaled([0, 100, 0]).is_err());
    }

    #[test]
    fn the_attributes_are_as_long_as_the_first_version() {
        assert_eq!(size_of::<Attributes>(), 64);
    }
}
