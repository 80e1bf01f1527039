// SPDX-License-Identifier: MIT OR Apache-2.0
//! Anonymous memory, aligned to 2 MiB.

use std::fs;
use std::io;
use std::ptr::{NonNull, null_mut};

use super::ProbeError;

pub(super) const PAGE: usize = 4096;
pub(super) const HUGE: usize = 2 << 20;

/// A private anonymous mapping, which nothing else uses.
pub(super) struct Mapping {
    /// What `mmap` returned; the mapping begins at the first multiple of 2 MiB in it.
    whole: NonNull<libc::c_void>,
    whole_bytes: usize,
    bytes: usize,
}

// SAFETY: it owns its memory, and no thread keeps anything of it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// `bytes` of memory, not touched yet; `advice` is given to `madvise`.
    pub(super) fn new(bytes: usize, advice: i32) -> Result<Self, ProbeError> {
        let refused = |source| ProbeError::Memory { mib: (bytes >> 20) as u64, source };
        let whole_bytes = bytes + HUGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let whole = unsafe { libc::mmap(null_mut(), whole_bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if whole == libc::MAP_FAILED {
            return Err(refused(io::Error::last_os_error()));
        }
        let Some(whole) = NonNull::new(whole) else { return Err(refused(io::ErrorKind::AddrNotAvailable.into())) };
        let mapping = Self { whole, whole_bytes, bytes };
        mapping.advise(advice);
        Ok(mapping)
    }

    /// Gives advice, which a kernel may not know or not follow.
    pub(super) fn advise(&self, advice: i32) {
        // SAFETY: the range is this mapping's own. MADV_HUGEPAGE and MADV_NOHUGEPAGE change no
        // contents.
        unsafe { libc::madvise(self.base().cast(), self.bytes, advice) };
    }

    /// Where it begins.
    pub(super) fn base(&self) -> *mut u8 {
        let whole = self.whole.as_ptr().cast::<u8>();
        whole.wrapping_add(whole.align_offset(HUGE))
    }

    /// The address of page number `page`.
    pub(super) fn page(&self, page: u64) -> u64 {
        self.base() as u64 + page * PAGE as u64
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Touches each page of `range` (bytes) in ascending order.
    pub(super) fn populate(&self, range: std::ops::Range<usize>) {
        assert!(range.end <= self.bytes);
        for offset in range.step_by(PAGE) {
            // SAFETY: the byte is inside this mapping, which is writable and has no other user.
            unsafe { self.base().wrapping_add(offset).write_volatile(1) };
        }
    }

    /// Bytes in transparent huge pages, as `/proc/self/smaps` has it for the areas that begin in
    /// this mapping.
    pub(super) fn huge_bytes(&self) -> u64 {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let (start, end) = (self.base() as u64, self.base() as u64 + self.bytes as u64);
        huge_bytes_in(&smaps, start..end)
    }
}

/// `AnonHugePages` of the areas of `smaps` that overlap `range`, bytes.
fn huge_bytes_in(smaps: &str, range: std::ops::Range<u64>) -> u64 {
    let mut inside = false;
    let mut sum = 0;
    for line in smaps.lines() {
        if let Some((from, to)) = area(line) {
            inside = from < range.end && to > range.start;
        } else if inside && let Some(rest) = line.strip_prefix("AnonHugePages:") {
            sum += rest.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) << 10;
        }
    }
    sum
}

/// The addresses of an area, if `line` of smaps begins one.
fn area(line: &str) -> Option<(u64, u64)> {
    let (from, rest) = line.split_once('-')?;
    let (to, _) = rest.split_once(' ')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping's own range, which nothing refers to any more.
        unsafe { libc::munmap(self.whole.as_ptr(), self.whole_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_aligned_and_its_pages_can_be_written() {
        let mapping = Mapping::new(4 << 20, libc::MADV_NOHUGEPAGE).unwrap();
        assert_eq!(mapping.base() as usize % HUGE, 0);
        mapping.populate(0..4 << 20);
        assert_eq!(mapping.huge_bytes(), 0, "as advised");
    }

    #[test]
    fn huge_pages_are_those_of_areas_in_range() {
        let smaps = "7f00000000-7f00400000 rw-p 0 0 0\nSize: 4096 kB\nAnonHugePages:      2048 kB\n\
                     7f00400000-7f00800000 rw-p 0 0 0\nAnonHugePages:      4096 kB\n";
        assert_eq!(huge_bytes_in(smaps, 0x7f_0000_0000..0x7f_0040_0000), 2 << 20);
        assert_eq!(huge_bytes_in(smaps, 0x7f_0000_0000..0x7f_0040_0001), 6 << 20);
        assert_eq!(huge_bytes_in("no smaps at all", 0..u64::MAX), 0);
    }
}
