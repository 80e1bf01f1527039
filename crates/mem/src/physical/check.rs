// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must always hold of a [`PhysicalMemory`].

use super::PhysicalMemory;
use super::table::{Head, Kind, MAX_ORDER, NIL, PAGEBLOCK, PAGEBLOCK_ORDER, Pfn32, State};

impl PhysicalMemory {
    /// Checks what must always hold:
    /// - blocks tile the memory, aligned to their size, and no head lies inside another block;
    /// - each free block is in the one list that its head names, each per-CPU block in one per-CPU
    ///   list, no other is;
    /// - the counts agree, and free + per-CPU + allocated is all;
    /// - no two buddies of one order are both in buddy lists;
    /// - nothing is recorded of frames inside free blocks, or inside pageblocks that were never
    ///   split.
    ///
    /// # Panics
    /// With a message that names the frame, if something does not hold.
    pub fn check_invariants(&self) {
        let (mut free_blocks, mut per_cpu_blocks, mut allocated, mut free) = (0u64, 0u64, 0u64, 0u64);
        let mut at = 0;
        for (pfn, head) in self.heads() {
            assert_eq!(pfn, at, "blocks leave a hole or overlap");
            self.check_block(pfn, head);
            match head.state() {
                State::Inside => panic!("frame {pfn:#x} lies in no block"),
                State::Free => (free_blocks, free) = (free_blocks + 1, free + (1 << head.order())),
                State::PerCpu => per_cpu_blocks += 1,
                State::Allocated => allocated += 1 << head.order(),
            }
            at = pfn + (1 << head.order());
        }
        assert_eq!(at, self.zone.table.len(), "the last block ends beyond the memory");
        assert_eq!(free, self.zone.free, "frames in the buddy lists");
        assert_eq!(allocated, self.allocated, "allocated frames");
        self.check_lists(free_blocks);
        self.check_per_cpu(per_cpu_blocks);
        let per_cpu: u64 = self.cpus.iter().map(|cpu| u64::from(cpu.count())).sum();
        assert_eq!(free + per_cpu + allocated, self.frames().0, "free + per-CPU + allocated");
    }

    fn check_block(&self, pfn: Pfn32, head: Head) {
        let (order, table) = (head.order(), &self.zone.table);
        assert!(order <= MAX_ORDER && pfn.trailing_zeros() >= u32::from(order), "frame {pfn:#x}: order {order}");
        let buddy = pfn ^ (1 << order);
        if head.state() == State::Free && order < MAX_ORDER && table.is_buddy(buddy, order) {
            panic!("buddies {pfn:#x} and {buddy:#x} of order {order} are both free");
        }
        let inside = pfn + u32::from(order < PAGEBLOCK_ORDER)..pfn + (1 << order);
        for inner in inside {
            let big = inner != pfn && inner % PAGEBLOCK == 0;
            let head_inside = table.head(inner, 0).state() != State::Inside
                || big && table.head(inner, PAGEBLOCK_ORDER).state() != State::Inside;
            assert!(!head_inside, "frame {inner:#x} is a head inside the block at {pfn:#x}");
            let may_be_recorded =
                head.state() == State::Allocated && (order < PAGEBLOCK_ORDER || table.block(inner).detailed);
            assert!(may_be_recorded || table.is_blank(inner), "frame {inner:#x} inside {pfn:#x} is not blank");
        }
        if order < PAGEBLOCK_ORDER {
            assert!(table.block(pfn).detailed, "frame {pfn:#x}: its pageblock is not marked as split");
        }
    }

    fn check_lists(&self, expected: u64) {
        let (lists, table) = (&self.zone.lists, &self.zone.table);
        let mut seen = 0;
        for order in 0..=MAX_ORDER {
            let mut of_order = 0;
            for kind in Kind::ALL {
                let mut previous = NIL;
                for pfn in lists.iter(table, order, kind) {
                    assert_eq!(table.head(pfn, order), Head::new(State::Free, order, kind), "frame {pfn:#x} in a list");
                    assert_eq!(table.links(pfn, order)[0], previous, "frame {pfn:#x}: link to the previous block");
                    previous = pfn;
                    of_order += 1;
                    assert!(of_order <= expected, "list of order {order} has a cycle");
                }
                assert_eq!(lists.last(order, kind).unwrap_or(NIL), previous, "last of order {order}");
                assert_eq!(lists.is_empty(order, kind), previous == NIL, "bitmap of order {order}");
            }
            assert_eq!(of_order, lists.counts()[usize::from(order)], "blocks of order {order}");
            seen += of_order;
        }
        assert_eq!(seen, expected, "a free block is in no list");
    }

    fn check_per_cpu(&self, expected: u64) {
        let mut seen: Vec<Pfn32> = Vec::new();
        for cpu in &self.cpus {
            assert!(cpu.count_agrees(), "per-CPU count");
            for (pfn, order) in cpu.iter() {
                let head = self.zone.table.head(pfn, order);
                assert!(
                    head.state() == State::PerCpu && head.order() == order,
                    "frame {pfn:#x} in a per-CPU list of order {order}"
                );
                seen.push(pfn);
            }
        }
        seen.sort_unstable();
        assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "a block is in two per-CPU lists");
        assert_eq!(seen.len() as u64, expected, "a per-CPU block is in no list");
    }
}
