// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contiguous blocks in a TLB: one entry for an aligned 64 KiB, 16 4 KiB pages in order whose
//! leaves have the contiguous bit (Arm ARM, D8, "Contiguous bit"; the bit is
//! [`Entry::CONTIGUOUS`](nestwalk_mem::Entry::CONTIGUOUS)).
//!
//! - The hardware takes the kernel's word: a walk that ends at a leaf with the bit fills one entry
//!   for the block, and reads nothing besides.
//! - A leaf of 2 MiB or 1 GiB covers the 64 KiB around a page, too. In a VM an entry covers 64 KiB
//!   if both leaves do, the guest's and the host's; if only one has the bit, the entry is of 4 KiB.
//! - An invalidation of one page takes the whole entry out, and the first store to a block that is
//!   clean makes all of it dirty, as the table's own bits are.

use nestwalk_mem::{CONTIGUOUS_ORDER, Entry, Gvn, Level, PageTable, Vpn};

use crate::clustered::KIND;
use crate::key::Asid;
use crate::leaf::leaf_of;
use crate::lru::Lru;

nestwalk_mem::counters! {
    /// What is counted where a TLB holds contiguous blocks.
    pub struct ContiguousCounters {
        /// Walks after which the TLBs took in 64 KiB, of all accesses, those that only the TLBs saw
        /// included.
        fills: u64 ["walks"],
    }
}

/// A contiguous block of a process.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    number: u64,
    asid: u64,
}

impl Block {
    /// That of `page`; `asid` is the [key](Asid::key) of its process.
    pub fn of(page: Gvn, asid: u64) -> Self {
        Self { number: page.0 >> CONTIGUOUS_ORDER, asid }
    }

    /// The key of its entry: of the kind of clusters, which no TLB has beside blocks.
    pub fn key(self) -> u64 {
        self.number << 2 | KIND | self.asid
    }

    /// Its set.
    pub fn set(self, array: &Lru) -> usize {
        array.set_of(self.number)
    }

    /// The set of the entry with `key`, less what is not the page.
    pub fn set_of_key(array: &Lru, key: u64) -> usize {
        array.set_of(key >> 2)
    }

    /// The first page of the entry with `key`, less what is not the page.
    pub fn first_page(key: u64) -> u64 {
        debug_assert_eq!(key & !Asid::MASK, 0);
        (key >> 2) << CONTIGUOUS_ORDER
    }
}

/// Whether the 64 KiB around `page`, which is mapped, lie in an aligned 64 KiB, all with the same
/// rights: it is large, or its leaf says so.
pub(crate) fn is_in_block(table: &PageTable, page: Vpn) -> bool {
    leaf_of(table, page, false).is_some_and(|leaf| leaf.level > Level::PTE || leaf.entry.has(Entry::CONTIGUOUS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_pages_have_one_key_and_one_set_and_processes_their_own() {
        let array = Lru::new(6, 2);
        let block = |page: u64, asid: u64| Block::of(Gvn(page), asid << Asid::SHIFT);
        let keys: Vec<u64> = (0x120..0x130).map(|page| block(page, 7).key()).collect();
        assert!(keys.iter().all(|&key| key == keys[0]));
        assert!(![0x11f, 0x130].iter().any(|&page| block(page, 7).key() == keys[0]));
        assert_ne!(block(0x120, 8).key(), keys[0]);
        let page_part = keys[0] & Asid::MASK;
        assert_eq!(Block::first_page(page_part), 0x120);
        assert_eq!(Block::set_of_key(&array, page_part), block(0x12f, 7).set(&array));
    }
}
