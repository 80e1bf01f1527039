// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/proc/kpageflags`: what the kernel uses a frame for (include/uapi/linux/kernel-page-flags.h).

use std::fs::File;
use std::io;

use crate::known::Known;
use crate::words;

/// On a list of pages that reclaim goes over: a user's page, or one of the page cache.
pub const LRU: u64 = 1 << 5;
/// Of the slab allocator. Flags that share a bit with the slab's own (ANON, KSM) mean nothing then.
pub const SLAB: u64 = 1 << 7;
/// Free, in a block of the buddy allocator.
pub const BUDDY: u64 = 1 << 10;
/// Mapped by a process.
pub const MMAP: u64 = 1 << 11;
/// Of anonymous memory.
pub const ANON: u64 = 1 << 12;
/// Backed by swap or memory only: anonymous, or tmpfs.
pub const SWAPBACKED: u64 = 1 << 14;
/// First page of a compound page (a large folio, or hugetlb).
pub const COMPOUND_HEAD: u64 = 1 << 15;
/// Another page of a compound page.
pub const COMPOUND_TAIL: u64 = 1 << 16;
/// A hugetlb page.
pub const HUGETLB: u64 = 1 << 17;
/// The memory failed.
pub const HWPOISON: u64 = 1 << 19;
/// There is no memory with this number: a hole in physical memory, or a device.
pub const NOPAGE: u64 = 1 << 20;
/// Merged by KSM.
pub const KSM: u64 = 1 << 21;
/// The memory is offline.
pub const OFFLINE: u64 = 1 << 23;
/// The page of zeros.
pub const ZERO_PAGE: u64 = 1 << 24;
/// A page table.
pub const PGTABLE: u64 = 1 << 26;

const PATH: &str = "/proc/kpageflags";
/// Frames that are read at once when those wanted are so near to each other: flags cost some 100 ns
/// a frame, a call some 400.
const NEAR: u64 = 4;

/// The flags of `frames`, in their order.
pub fn read(frames: &[u64]) -> Known<Vec<u64>> {
    match File::open(PATH).and_then(|file| from(&file, frames)) {
        Ok(flags) => Known::Is(flags),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Known::not("/proc/kpageflags can be read by root only, outside containers")
        }
        Err(error) => Known::not(format!("{PATH} cannot be read ({error})")),
    }
}

fn from(file: &File, frames: &[u64]) -> io::Result<Vec<u64>> {
    let mut order: Vec<usize> = (0..frames.len()).collect();
    order.sort_unstable_by_key(|&index| frames[index]);
    let mut flags = vec![NOPAGE; frames.len()];
    let mut rest = order.as_slice();
    let mut buffer = Vec::new();
    while let Some(&first) = rest.first() {
        let base = frames[first];
        // One call for frames that are near to each other.
        let mut taken = 1;
        while taken < rest.len() && frames[rest[taken]] - frames[rest[taken - 1]] <= NEAR {
            taken += 1;
        }
        let span = frames[rest[taken - 1]] - base + 1;
        buffer.clear();
        buffer.resize(span as usize, 0);
        let got = words::read(file, base, &mut buffer)?;
        for &index in &rest[..taken] {
            if let Some(&word) = buffer[..got].get((frames[index] - base) as usize) {
                flags[index] = word;
            }
        }
        rest = &rest[taken..];
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn frames_are_answered_in_their_order_and_holes_are_no_pages() {
        let mut file = tempfile::tempfile().unwrap();
        for flags in 0..100_u64 {
            file.write_all(&(flags << 32).to_le_bytes()).unwrap();
        }
        let flags = from(&file, &[70, 3, 3, 5, 99, 100, 1 << 40]).unwrap();
        assert_eq!(flags, [70 << 32, 3 << 32, 3 << 32, 5 << 32, 99 << 32, NOPAGE, NOPAGE]);
        assert!(from(&file, &[]).unwrap().is_empty());
    }
}
