// SPDX-License-Identifier: MIT OR Apache-2.0
//! A memory in the state of another one, of which it is known which frames are free.
//!
//! A running Linux says so of each frame (`/proc/kpageflags`). It does not say in which order its
//! free lists are, nor which frames wait in per-CPU lists: here lists are in random order, and
//! per-CPU lists empty.

use std::ops::Range;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::age::shuffle;
use super::table::{MAX_ORDER, PAGEBLOCK_ORDER, Pfn32, Table};
use super::zone::Zone;
use super::{FrameUse, MemoryConfig, MemoryError, MigrateType, PhysicalMemory};

impl PhysicalMemory {
    /// A memory whose frames are used as `uses` says: runs, the lowest frame first. What is beyond
    /// the runs is free, and what is beyond the memory is ignored. Free frames form the largest
    /// blocks that they can, as buddies that are both free are one block.
    ///
    /// `kinds` are the pageblocks' migrate types, the lowest first; those that are missing are
    /// movable. `seed` chooses the order of the free lists.
    ///
    /// # Errors
    /// On a size or a number of processors that cannot be.
    pub fn occupied(
        config: &MemoryConfig,
        uses: &[(FrameUse, u64)],
        kinds: &[MigrateType],
        seed: u64,
    ) -> Result<Self, MemoryError> {
        let mut memory = Self::new(config)?;
        let all = memory.zone.table.len();
        let mut table = Table::new(all);
        for (block, &kind) in table.blocks.iter_mut().zip(kinds) {
            block.kind = kind.into();
        }
        let mut free = Vec::new();
        let mut in_use = 0;
        // Of the last run of free frames, which may go on.
        let mut free_from = 0;
        let mut at = 0;
        for &(frame_use, length) in uses {
            let end = length.saturating_add(at.into()).min(all.into()) as Pfn32;
            if let Some(owner) = frame_use.owner().filter(|_| end > at) {
                blocks(free_from..at, &mut free);
                table.occupy(at..end, owner);
                in_use += u64::from(end - at);
                free_from = end;
            }
            at = end;
        }
        blocks(free_from..all, &mut free);
        shuffle(&mut free, &mut Xoshiro256PlusPlus::seed_from_u64(seed));
        memory.zone = Zone::of_blocks(table, &free, memory.zone.nofragment);
        memory.allocated = in_use;
        Ok(memory)
    }
}

/// The largest blocks that `frames`, whose neighbours are in use, fall into.
fn blocks(frames: Range<Pfn32>, out: &mut Vec<(Pfn32, u8)>) {
    let mut at = frames.start;
    while at < frames.end {
        let fits = (frames.end - at).ilog2() as u8;
        let order = (at.trailing_zeros() as u8).min(fits).min(MAX_ORDER);
        out.push((at, order));
        at += 1 << order;
    }
}

impl Zone {
    /// A zone whose free blocks are `free`, in the order of their lists; `table` says of the frames
    /// that are in use, and of none of these.
    pub(super) fn of_blocks(mut table: Table, free: &[(Pfn32, u8)], nofragment: bool) -> Self {
        let mut lists = super::lists::FreeLists::new();
        for &(pfn, order) in free {
            if order < PAGEBLOCK_ORDER {
                table.block_mut(pfn).detailed = true;
            }
            let kind = table.block(pfn).kind;
            lists.push_back(&mut table, pfn, order, kind);
        }
        let free = free.iter().map(|&(_, order)| 1 << order).sum();
        Self { table, lists, free, nofragment }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::table::PAGEBLOCK;
    use super::super::{Cpu, Order, Owner};
    use super::*;
    use crate::addr::{Frame, PageCount};

    const FRAMES: u64 = 1 << 13;

    fn config() -> MemoryConfig {
        MemoryConfig::new(PageCount(FRAMES), 2)
    }

    fn frame_use() -> impl Strategy<Value = FrameUse> {
        prop_oneof![Just(FrameUse::Free), Just(FrameUse::Free), Just(FrameUse::Cache), Just(FrameUse::Kernel)]
    }

    proptest! {
        #[test]
        fn each_frame_is_what_was_said_of_it(
            uses in prop::collection::vec((frame_use(), prop_oneof![0..9_u64, 0..1500_u64]), 0..60),
            unmovable in prop::collection::vec(any::<bool>(), 0..20),
            seed: u64,
        ) {
            let kind = |&unmovable: &bool| if unmovable { MigrateType::Unmovable } else { MigrateType::Movable };
            let kinds: Vec<_> = unmovable.iter().map(kind).collect();
            let mut memory = PhysicalMemory::occupied(&config(), &uses, &kinds, seed).unwrap();
            memory.check_invariants();
            let said = uses.iter().flat_map(|&(frame_use, length)| std::iter::repeat_n(frame_use, length as usize));
            let said = said.chain(std::iter::repeat(FrameUse::Free)).take(FRAMES as usize);
            let mut free = 0;
            for (frame, frame_use) in (0..).map(Frame).zip(said) {
                let expected = match frame_use {
                    FrameUse::Free => Owner::Unknown,
                    FrameUse::Cache => Owner::Cache,
                    FrameUse::Kernel => Owner::Kernel,
                };
                prop_assert_eq!((memory.is_free(frame), memory.owner(frame)), (frame_use == FrameUse::Free, expected));
                free += u64::from(frame_use == FrameUse::Free);
                let place = (frame.0 / u64::from(PAGEBLOCK)) as usize;
                let kind = kinds.get(place).copied().unwrap_or(MigrateType::Movable);
                prop_assert_eq!(memory.pageblock_type(frame), kind);
            }
            prop_assert_eq!(memory.free_frames(), PageCount(free));
            // All of it can be had, and nothing else.
            let taken = std::iter::from_fn(|| memory.alloc(Order::PAGE, MigrateType::Movable, Cpu(1))).count();
            prop_assert_eq!(taken as u64, free);
            memory.check_invariants();
        }
    }

    #[test]
    fn free_frames_form_the_largest_blocks_and_another_seed_lists_them_in_another_order() {
        let uses = [(FrameUse::Kernel, 1), (FrameUse::Free, 3), (FrameUse::Free, 1020), (FrameUse::Cache, 1)];
        let made = |seed| PhysicalMemory::occupied(&config(), &uses, &[], seed).unwrap();
        let one = made(1);
        // Frames 1 to 1023 are a block of each order 0 to 9, 1025 to 2047 likewise.
        assert_eq!(one.free_blocks(), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 6]);
        assert_eq!(one.free_block_of(Frame(700)), Some((Frame(512), Order(9))));
        let order = |memory: &PhysicalMemory| memory.free_list(Order(10), MigrateType::Movable).collect::<Vec<_>>();
        assert_eq!(order(&one), order(&made(1)));
        assert!((2..9).any(|seed| order(&made(seed)) != order(&one)));
    }
}
