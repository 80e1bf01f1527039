// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks of 2 MiB that were allocated whole and are one page still (`PageCompound`).
//!
//! A huge page of which only a part is mapped is still one page to Linux: compaction leaves it
//! alone, and none of it is free, until it is split (`split_huge_page`) or all of it is unmapped.
//! Only kernels that [ask for it](PhysicalMemory::keep_compounds) have them.

use crate::addr::Frame;

use super::PhysicalMemory;
use super::table::{Head, PAGEBLOCK, PAGEBLOCK_ORDER, Pfn32};

impl PhysicalMemory {
    /// From now on, blocks of 2 MiB that are allocated whole stay one page until
    /// [`PhysicalMemory::split_compound`] or until they are freed.
    pub fn keep_compounds(&mut self) {
        self.compounds = true;
    }

    /// Whether `frame` is part of such a page.
    ///
    /// # Panics
    /// If the memory has no such frame.
    #[inline]
    pub fn is_compound(&self, frame: Frame) -> bool {
        self.is_in_compound(self.checked(frame))
    }

    /// The same for a frame's number.
    #[inline]
    pub(super) fn is_in_compound(&self, pfn: Pfn32) -> bool {
        self.compounds && self.zone.table.head(pfn, PAGEBLOCK_ORDER) == Head::allocated(PAGEBLOCK_ORDER)
    }

    /// Makes 512 pages of the one that `frame` is part of, if it is (`__split_huge_page`): all of
    /// them stay allocated, and keep their owners and sharers.
    ///
    /// # Panics
    /// If the memory has no such frame.
    pub fn split_compound(&mut self, frame: Frame) {
        let pfn = self.checked(frame);
        if !self.is_in_compound(pfn) {
            return;
        }
        let start = pfn / PAGEBLOCK * PAGEBLOCK;
        let table = &mut self.zone.table;
        table.clear_head(start, PAGEBLOCK_ORDER);
        table.block_mut(start).detailed = true;
        (start..start + PAGEBLOCK).for_each(|pfn| table.set_head(pfn, Head::allocated(0)));
    }
}

#[cfg(test)]
mod tests {
    use crate::addr::{PageCount, Vpn};
    use crate::physical::{Cpu, MemoryConfig, Migrate, MigrateType, Order, Owner};

    use super::*;

    struct Anything;

    impl Migrate for Anything {
        fn migrate(&mut self, _: Frame, _: Frame, _: Owner) -> bool {
            true
        }
    }

    /// A memory whose first 2 MiB are one block, each frame of which is owned as a page of its own.
    fn memory(keeps: bool) -> (PhysicalMemory, Frame) {
        let mut memory = PhysicalMemory::new(&MemoryConfig::new(PageCount(2048), 1)).unwrap();
        if keeps {
            memory.keep_compounds();
        }
        let start = memory.alloc(Order::HUGE, MigrateType::Movable, Cpu(0)).unwrap();
        (0..512).for_each(|i| memory.set_owner(start + i, Owner::Page { process: 1, page: Vpn(i) }));
        (memory, start)
    }

    #[test]
    fn a_compound_page_stays_where_it_is_until_it_is_split() {
        for keeps in [false, true] {
            let (mut memory, start) = memory(keeps);
            assert_eq!(memory.is_compound(start + 77), keeps);
            let range = crate::addr::FrameRange::new(start + 8, PageCount(8));
            assert_eq!(memory.alloc_at(range, &mut Anything), vec![!keeps; 8]);
            memory.split_compound(start + 3);
            assert!(!memory.is_compound(start));
            memory.check_invariants();
            assert_eq!(memory.owner(start + 511), Owner::Page { process: 1, page: Vpn(511) });
            assert_eq!(memory.alloc_at(range, &mut Anything), vec![keeps; 8], "once");
            memory.check_invariants();
        }
    }

    #[test]
    fn what_was_split_is_freed_page_by_page_and_merges_again() {
        let (mut memory, start) = memory(true);
        memory.share(start + 5);
        memory.split_compound(start);
        assert!(memory.is_shared(start + 5) && memory.unshare(start + 5));
        (0..512).for_each(|i| memory.free(start + i, Order::PAGE, Cpu(0)));
        memory.drain();
        memory.check_invariants();
        assert_eq!(memory.free_frames(), memory.frames());
        assert_eq!(memory.free_blocks()[10], 2);
    }
}
