// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges larger or other than a buddy block (Linux's `alloc_contig_pages`), and what moving pages
//! needs.
//!
//! Linux isolates the pageblocks of a candidate range so that no other processor allocates from
//! them. Here nothing else runs: the free blocks of the range are taken first, which does the same.

use crate::addr::{Frame, FrameRange, PageCount};

use super::table::{Kind, MAX_ORDER, PAGEBLOCK, PAGEBLOCK_ORDER, Pfn32, State};
use super::{Cpu, Migrate, Order, Owner, PhysicalMemory};

/// Why a candidate range could not be had.
enum Failure {
    /// This page did not move; perhaps another range has none such.
    Busy(Pfn32),
    /// No frame is free outside the range to move to.
    Full,
}

impl PhysicalMemory {
    /// `count` contiguous frames, aligned to `2^align` frames, all of them free now or made so by
    /// moving what is there (Linux's `alloc_contig_pages`). The lowest range without unmovable
    /// frames is tried first. Their owner is unknown.
    ///
    /// `None` if every range holds something that does not move; then all is as before, but for
    /// pages moved in vain. Unlike Linux, which tries ranges at multiples of `count` only, this
    /// tries each alignment after an obstacle.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn alloc_range(&mut self, count: PageCount, align: Order, migrate: &mut dyn Migrate) -> Option<FrameRange> {
        assert!(count.0 > 0, "a range has at least one frame");
        self.drain();
        let mut start = 0;
        while start + count.0 <= self.frames().0 {
            let range = start as Pfn32..(start + count.0) as Pfn32;
            let obstacle = match self.last_unmovable(range.clone()) {
                Some(pfn) => pfn,
                None => match self.claim(range, migrate) {
                    Ok(()) => return Some(FrameRange::new(Frame(start), count)),
                    Err(Failure::Busy(pfn)) => pfn,
                    Err(Failure::Full) => return None,
                },
            };
            start = (u64::from(obstacle) + 1).next_multiple_of(1 << align.0);
        }
        None
    }

    /// As many frames of `range` as are free or can be made so by moving what is there: for each
    /// frame whether it is the caller's now. The owner of those is unknown. For ranges that have to
    /// lie just there.
    pub fn alloc_at(&mut self, range: FrameRange, migrate: &mut dyn Migrate) -> Vec<bool> {
        self.drain();
        let (start, end) = (range.start.0, range.end().0.min(self.frames().0));
        let mut had: Vec<bool> = range.iter().map(|frame| frame.0 < end).collect();
        if start < end {
            for pfn in self.take_free(start as Pfn32..end as Pfn32) {
                had[(u64::from(pfn) - start) as usize] = self.can_move(pfn) && self.evacuate(pfn, migrate).is_ok();
            }
        }
        had
    }

    /// Takes this very frame if it is free, and says whether it was. Its owner is unknown then.
    ///
    /// # Panics
    /// If the memory has no such frame.
    pub fn take(&mut self, frame: Frame) -> bool {
        let pfn = self.checked(frame);
        self.drain();
        self.take_free(pfn..pfn + 1).is_empty()
    }

    /// The last allocated frame of the range that cannot be moved (`has_unmovable_pages`). No range
    /// that holds it will do.
    fn last_unmovable(&self, range: std::ops::Range<Pfn32>) -> Option<Pfn32> {
        let mut end = range.end;
        while end > range.start {
            let (start, head) = self.zone.table.find_head(end - 1);
            let start = start.max(range.start);
            if head.state() == State::Allocated {
                let fixed = (start..end).rev().find(|&pfn| !self.can_move(pfn));
                if fixed.is_some() {
                    return fixed;
                }
            }
            end = start;
        }
        None
    }

    /// Whether an allocated frame may be moved: mapped once, or page cache, and no tail of a
    /// compound page.
    #[inline]
    pub(super) fn can_move(&self, pfn: Pfn32) -> bool {
        let owner = self.zone.table.owner(pfn);
        owner.is_movable()
            && (self.zone.table.shares(pfn) == 0 || matches!(owner, Owner::File { .. }))
            && (pfn.is_multiple_of(PAGEBLOCK) || !self.is_in_compound(pfn))
    }

    /// Makes the whole range, which holds free and movable frames only, allocated, without an owner
    /// (`alloc_contig_range`).
    fn claim(&mut self, range: std::ops::Range<Pfn32>, migrate: &mut dyn Migrate) -> Result<(), Failure> {
        let moved = self.take_free(range.clone()).into_iter().try_for_each(|pfn| self.evacuate(pfn, migrate));
        if moved.is_err() {
            // Taken and emptied frames have no owner, pages left in place have one.
            let idle: Vec<_> = range.filter(|&pfn| self.zone.table.owner(pfn) == Owner::Unknown).collect();
            idle.into_iter().for_each(|pfn| self.free_to_buddy(pfn, 0));
            return moved;
        }
        // undo_isolate_page_range leaves the pageblocks movable.
        for start in range.step_by(PAGEBLOCK as usize).filter(|pfn| pfn % PAGEBLOCK == 0) {
            self.zone.table.block_mut(start).kind = Kind::Movable;
        }
        Ok(())
    }

    /// Takes what is free in the range out of the buddy lists; returns the frames that are in use.
    fn take_free(&mut self, range: std::ops::Range<Pfn32>) -> Vec<Pfn32> {
        let (mut at, mut used) = (range.start, Vec::new());
        while at < range.end {
            let (start, head) = self.zone.table.find_head(at);
            let end = start + (1 << head.order());
            if head.state() == State::Free {
                self.take_block(start, head.order());
                self.free_span(start, range.start);
                self.free_span(range.end, end);
            } else {
                used.extend(at..end.min(range.end));
            }
            at = end;
        }
        used
    }

    /// Allocates a block of the buddy lists where it is.
    pub(super) fn take_block(&mut self, pfn: Pfn32, order: u8) {
        self.zone.take(pfn, order);
        self.zone.set_allocated(pfn, order);
        self.allocated += 1 << order;
    }

    /// Frees allocated frames in the largest aligned blocks. Nothing if the span is empty or
    /// reversed.
    fn free_span(&mut self, start: Pfn32, end: Pfn32) {
        let mut at = start;
        while at < end {
            let order = at.trailing_zeros().min((end - at).ilog2()).min(u32::from(MAX_ORDER)) as u8;
            self.free_to_buddy(at, order);
            at += 1 << order;
        }
    }

    /// Frees allocated frames past the per-CPU lists (`free_one_page`).
    pub(super) fn free_to_buddy(&mut self, pfn: Pfn32, order: u8) {
        self.release(Frame(pfn.into()), Order(order));
        self.allocated -= 1 << order;
        if let Some(zeroed) = &mut self.zeroed {
            zeroed.forget(pfn, order);
        }
        let kind = self.zone.table.block(pfn).kind;
        self.zone.free_one(pfn, order, kind);
    }

    /// Moves a page to a free frame elsewhere; its old frame stays allocated, without an owner.
    fn evacuate(&mut self, from: Pfn32, migrate: &mut dyn Migrate) -> Result<(), Failure> {
        let to = self.zone.rmqueue_buddy(0, Kind::Movable).ok_or(Failure::Full)?;
        self.zone.set_allocated(to, 0);
        self.allocated += 1;
        if self.move_page(from, to, migrate) {
            self.zone.table.set_owner(from, Owner::Unknown);
            Ok(())
        } else {
            self.free_to_buddy(to, 0);
            Err(Failure::Busy(from))
        }
    }

    /// Moves a page into an allocated frame without an owner. `false` if it cannot be moved.
    pub(super) fn move_page(&mut self, from: Pfn32, to: Pfn32, migrate: &mut dyn Migrate) -> bool {
        if self.is_in_compound(from) {
            return false;
        }
        let owner = self.zone.table.owner(from);
        let moved = owner == Owner::Cache || migrate.migrate(Frame(from.into()), Frame(to.into()), owner);
        if moved {
            self.zone.table.set_owner(to, owner);
            let shares = self.zone.table.shares(from);
            if shares > 0 {
                self.zone.table.set_shares(to, shares);
                self.zone.table.set_shares(from, 0);
            }
        }
        moved
    }

    /// Frees up to `count` frames of [`Owner::Cache`], as reclaim does, and says how many. Goes
    /// round the memory by address, and on from there the next time.
    pub fn drop_cache(&mut self, count: PageCount, cpu: Cpu) -> PageCount {
        let (mut dropped, mut seen) = (0, 0);
        while dropped < count.0 && seen < self.frames().0 {
            let pfn = self.cache_hand;
            let (start, head) = self.zone.table.find_head(pfn);
            let allocated = head.state() == State::Allocated;
            if allocated && self.zone.table.owner(pfn) == Owner::Cache && self.zone.table.shares(pfn) == 0 {
                self.free(Frame(pfn.into()), Order::PAGE, cpu);
                dropped += 1;
            }
            let whole = !allocated || head.order() >= PAGEBLOCK_ORDER && !self.zone.table.block(pfn).detailed;
            let next = if whole { start + (1 << head.order()) } else { pfn + 1 };
            seen += u64::from(next - pfn);
            self.cache_hand = if next == self.zone.table.len() { 0 } else { next };
        }
        PageCount(dropped)
    }
}
