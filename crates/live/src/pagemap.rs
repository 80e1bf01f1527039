// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/proc/PID/pagemap` of a running process: entries by `pread`, many at a time, and where there is
//! anything to read by the ioctl `PAGEMAP_SCAN` (Linux 6.7;
//! Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::maps::PAGE_BYTES;
use crate::source::Entry;
use crate::words;

/// The page belongs to a file or to shared memory.
pub const FILE: u64 = 1 << 2;
/// The page is in memory.
pub const PRESENT: u64 = 1 << 3;
/// The page is swapped out.
pub const SWAPPED: u64 = 1 << 4;
/// The page is the kernel's page of zeros.
pub const ZEROS: u64 = 1 << 5;
/// The page is mapped by a PMD or a larger leaf.
pub const HUGE: u64 = 1 << 6;

/// Regions that one call may return.
const REGIONS: usize = 4096;
/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<ScanArguments>() as u64) << 16 | (b'f' as u64) << 8 | 16;

/// Pages in a row with the same categories (`struct page_region` in include/uapi/linux/fs.h).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// [`FILE`], [`PRESENT`], [`SWAPPED`], [`ZEROS`], [`HUGE`].
    pub categories: u64,
}

/// `struct pm_scan_arg` in include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// A process's open pagemap.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    buffer: Vec<u64>,
}

impl Pagemap {
    /// Reads from `file`, which is an open `/proc/PID/pagemap`.
    pub fn new(file: File) -> Self {
        Self { file, buffer: Vec::new() }
    }

    /// Appends the entries of `count` pages from page number `first` on to `into`. Fewer are
    /// appended if the process has ended.
    pub fn read(&mut self, first: u64, count: usize, into: &mut Vec<Entry>) -> io::Result<()> {
        self.buffer.resize(count, 0);
        let got = words::read(&self.file, first, &mut self.buffer)?;
        into.extend(self.buffer[..got].iter().map(|&word| Entry(word)));
        Ok(())
    }

    /// All pages from `start` to `end` (addresses) that are present or swapped, as regions in
    /// ascending order by the categories in `wanted`; `None` where the kernel has no
    /// `PAGEMAP_SCAN`.
    ///
    /// [`FILE`] is costly: for it the kernel reads the `struct page` of each frame
    /// (fs/proc/task_mmu.c, `pagemap_page_category`), which is a cache miss a page where frames are
    /// scattered: 11 in place of 3 ms a GiB.
    pub fn scan(&self, start: u64, end: u64, wanted: u64) -> io::Result<Option<Vec<Region>>> {
        let mut found: Vec<Region> = Vec::new();
        let mut regions = vec![Region::default(); REGIONS];
        let mut at = start;
        while at < end {
            let mut arguments = ScanArguments {
                size: size_of::<ScanArguments>() as u64,
                start: at,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                category_anyof_mask: PRESENT | SWAPPED,
                return_mask: wanted,
                ..ScanArguments::default()
            };
            // SAFETY: `arguments` is a live `struct pm_scan_arg` of the size that it states, and
            // `vec` points to `vec_len` writable regions that outlive the call. The kernel writes
            // to these two only; without flags it changes nothing.
            let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arguments) };
            if count < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::ENOTTY | libc::EINVAL) if found.is_empty() => return Ok(None),
                    _ => return Err(error),
                }
            }
            for &(mut region) in &regions[..count as usize] {
                // Memory that changes meanwhile may be reported again; the first report counts.
                region.start = region.start.max(found.last().map_or(0, |last| last.end));
                if region.start >= region.end {
                    continue;
                }
                match found.last_mut() {
                    Some(last) if last.end == region.start && last.categories == region.categories => {
                        last.end = region.end
                    }
                    _ => found.push(region),
                }
            }
            if arguments.walk_end <= at {
                break;
            }
            at = arguments.walk_end;
        }
        Ok(Some(found))
    }
}

/// The frame of the kernel's page of zeros, learnt from a page of our own that was read and never
/// written.
pub fn zero_frame() -> Option<u64> {
    let bytes = PAGE_BYTES as usize;
    // SAFETY: a new anonymous mapping, at an address that the kernel chooses.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was just mapped, is readable, and stays mapped until after this read.
    let _touched = unsafe { page.cast::<u8>().read_volatile() };
    let mut entries = Vec::new();
    let read = File::open("/proc/self/pagemap")
        .and_then(|file| Pagemap::new(file).read(page as u64 / PAGE_BYTES, 1, &mut entries));
    // SAFETY: unmaps exactly what was mapped above; nothing refers to it any more.
    unsafe { libc::munmap(page, bytes) };
    read.ok()?;
    entries.first().filter(|entry| entry.present()).map(|entry| entry.frame()).filter(|&frame| frame != 0)
}
