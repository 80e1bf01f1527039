// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which frames hold zeroes because a daemon filled them with zeroes while they were free
//! (HawkEye's `PG_zeroed`).
//!
//! A bit for each frame, and none where no daemon does that. It is set while the frame is free, and
//! cleared when the frame is freed again: so it says something of a free frame, and of one that has
//! just been allocated.

use crate::addr::{Frame, FrameRange, PageCount};

use super::PhysicalMemory;
use super::table::{Kind, MAX_ORDER, Pfn32};

/// See the [module](self).
pub(super) struct Zeroed(Vec<u64>);

impl Zeroed {
    fn new(frames: u32) -> Self {
        Self(vec![0; frames.div_ceil(64) as usize])
    }

    fn has(&self, pfn: Pfn32) -> bool {
        self.0[pfn as usize / 64] >> (pfn % 64) & 1 == 1
    }

    /// The words of a block of the largest order.
    fn block(&mut self, pfn: Pfn32) -> &mut [u64] {
        let first = pfn as usize / 64;
        &mut self.0[first..first + (1 << MAX_ORDER) / 64]
    }

    /// A block of `2^order` frames is free again.
    #[cold]
    #[inline(never)]
    pub(super) fn forget(&mut self, pfn: Pfn32, order: u8) {
        for at in pfn..pfn + (1 << order) {
            self.0[at as usize / 64] &= !(1 << (at % 64));
        }
    }
}

impl PhysicalMemory {
    /// Whether `frame`, which is free or has just been allocated, holds zeroes.
    #[inline]
    pub fn is_zeroed(&self, frame: Frame) -> bool {
        self.zeroed.as_ref().is_some_and(|zeroed| zeroed.has(frame.0 as Pfn32))
    }

    /// The free 4 MiB that a daemon should fill with zeroes next: the first block of the list from
    /// which movable pages come, of which some frame may hold something else. Blocks that are full
    /// of zeroes go to the list's end, at most `passed` of them (`zero_fill_zone_pages`).
    pub fn next_to_zero(&mut self, passed: usize) -> Option<FrameRange> {
        for _ in 0..passed {
            let pfn = self.zone.lists.first(MAX_ORDER, Kind::Movable)?;
            let zeroed =
                self.zeroed.as_mut().is_some_and(|zeroed| zeroed.block(pfn).iter().all(|&word| word == u64::MAX));
            if !zeroed {
                return Some(FrameRange::new(Frame(pfn.into()), PageCount(1 << MAX_ORDER)));
            }
            self.move_last(pfn);
        }
        None
    }

    /// The free 4 MiB from `frame` on hold zeroes: the block goes to the end of its list.
    ///
    /// # Panics
    /// If there is no such free block.
    pub fn set_zeroed(&mut self, frame: Frame) {
        let pfn = self.checked(frame);
        assert_eq!(self.zone.buddy_of(pfn), Some((pfn, MAX_ORDER)), "{frame:?} starts no free 4 MiB");
        let frames = self.zone.table.len();
        self.zeroed.get_or_insert_with(|| Zeroed::new(frames)).block(pfn).fill(u64::MAX);
        self.move_last(pfn);
    }

    fn move_last(&mut self, pfn: Pfn32) {
        let kind = self.zone.table.head(pfn, MAX_ORDER).kind();
        self.zone.lists.remove(&mut self.zone.table, pfn, MAX_ORDER);
        self.zone.lists.push_back(&mut self.zone.table, pfn, MAX_ORDER, kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::physical::{Cpu, MemoryConfig, MigrateType, Order};

    const BLOCK: u64 = 1 << MAX_ORDER;

    fn memory() -> PhysicalMemory {
        let config = MemoryConfig { frames: PageCount(4 * BLOCK), cpus: 1, min_free: PageCount(0) };
        PhysicalMemory::new(&config).unwrap()
    }

    fn zero(memory: &mut PhysicalMemory) -> Option<u64> {
        let frames = memory.next_to_zero(100)?;
        memory.set_zeroed(frames.start);
        Some(frames.start.0 / BLOCK)
    }

    #[test]
    fn each_free_block_is_zeroed_once() {
        let mut memory = memory();
        assert!(!memory.is_zeroed(Frame(5)));
        let zeroed: Vec<_> = std::iter::from_fn(|| zero(&mut memory)).collect();
        assert_eq!(zeroed, [0, 1, 2, 3]);
        assert!((0..4 * BLOCK).all(|frame| memory.is_zeroed(Frame(frame))));
        memory.check_invariants();
    }

    #[test]
    fn a_frame_that_was_in_use_holds_something_else_and_its_neighbours_zeroes() {
        let mut memory = memory();
        while zero(&mut memory).is_some() {}
        let block = memory.alloc(Order::HUGE, MigrateType::Movable, Cpu(0)).unwrap();
        assert!(memory.is_zeroed(block) && memory.is_zeroed(block + 511));
        memory.free(block + 7, Order::PAGE, Cpu(0));
        memory.free(block + 8, Order(3), Cpu(0));
        let zeroed = |memory: &PhysicalMemory, frame| memory.is_zeroed(block + frame);
        assert_eq!([6, 7, 8, 15, 16].map(|frame| zeroed(&memory, frame)), [true, false, false, false, true]);
        memory.free_range(FrameRange::new(block, PageCount(7)), Cpu(0));
        (1..32).for_each(|at| memory.free(block + at * 16, Order(4), Cpu(0)));
        memory.drain();
        memory.check_invariants();
        assert_eq!(memory.free_frames(), memory.frames());
        assert!((0..512).all(|frame| !zeroed(&memory, frame)));
        assert_eq!(zero(&mut memory), Some(block.0 / BLOCK), "its other half does not make up for it");
    }

    #[test]
    fn what_is_zeroed_is_taken_last() {
        let mut memory = memory();
        zero(&mut memory);
        let taken: Vec<_> = (0..4).map(|_| memory.alloc(Order::MAX, MigrateType::Movable, Cpu(0)).unwrap()).collect();
        assert_eq!(taken.iter().map(|frame| frame.0 / BLOCK).collect::<Vec<_>>(), [1, 2, 3, 0]);
        assert_eq!(zero(&mut memory), None);
    }
}
