// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keys of the entries of TLBs: page, size and process in one word.

use nestwalk_mem::{Gvn, PageSize};

/// Tells the entries of processes (or of VMs) apart, so that a switch needs no flush (PCID, VPID).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Asid(pub u16);

impl Asid {
    /// The bits of a key that are not the process.
    pub(crate) const MASK: u64 = (1 << Self::SHIFT) - 1;
    pub(crate) const SHIFT: u32 = 48;

    pub(crate) const fn key(self) -> u64 {
        (self.0 as u64) << Self::SHIFT
    }

    pub(crate) const fn part(key: u64) -> u64 {
        key & !Self::MASK
    }
}

/// The key of the entry of `size` for `page`; `asid` is the [key](Asid::key) of its process.
#[inline(always)]
pub(crate) fn key(page: Gvn, size: PageSize, asid: u64) -> u64 {
    (page.0 >> size.order()) << 2 | size as u64 | asid
}

/// The page size of the entry with `key`, as a number, or [`clustered::KIND`].
#[inline(always)]
pub(crate) fn size_of_key(key: u64) -> usize {
    (key & 3) as usize
}
