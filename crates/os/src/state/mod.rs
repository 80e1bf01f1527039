// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a kernel's parts share: memory, processes, counters, clock.

pub mod files;
pub(crate) mod gather;
pub mod invalidation;
pub mod process;
pub mod vma;

use nestwalk_mem::physical::Watermarks;
use nestwalk_mem::{Cpu, Frame, MigrateType, Nanoseconds, Order, Owner, PageCount, PhysicalMemory, Vpn};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::counters::OsCounters;
use crate::state::files::Files;
use crate::state::gather::Gather;
use crate::state::invalidation::Invalidations;
use crate::state::process::{ProcessId, Processes};

/// A page that compaction moved, and that the memory manager has not yet been told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Whose page.
    pub process: ProcessId,
    /// Which.
    pub page: Vpn,
    /// Where it was. Free now.
    pub from: Frame,
    /// Where it is.
    pub to: Frame,
}

/// What a kernel's parts share: all but its memory manager and its table placement.
#[derive(Debug)]
pub struct KernelState {
    /// Physical memory.
    pub memory: PhysicalMemory,
    /// Address spaces.
    pub processes: Processes,
    /// What was done.
    pub counters: OsCounters,
    /// The clock since the kernel began, as of the last tick.
    pub now: Nanoseconds,
    /// All randomness in this kernel.
    pub rng: Xoshiro256PlusPlus,
    /// When to reclaim.
    pub watermarks: Watermarks,
    pub(crate) invalidations: Invalidations,
    /// What was written to watched tables of processes that have exited since, before they did.
    pub(crate) last_writes: Vec<(ProcessId, Vec<nestwalk_mem::Write>)>,
    pub(crate) swap: Swap,
    /// An allocation found less memory free than the low watermark: the background daemon has work.
    pub(crate) background_wanted: bool,
    /// The background daemon (kcompactd) should make a block of this order.
    pub(crate) compaction_wanted: Option<Order>,
    /// When it next looks whether memory is fragmented.
    pub(crate) proactive_at: Nanoseconds,
    /// Want of memory that a fault has just told of is want of a block: so much is to be reclaimed
    /// before the fault tries once more ([`KernelState::ask_for_block`]).
    pub(crate) block_wanted: Option<PageCount>,
    /// The huge page of zeroes, if the memory manager has one: loads of memory that was never
    /// stored to share it, and one mapping of it is the kernel's.
    pub(crate) zero_block: Option<Frame>,
    /// Whether PTEs have a contiguous bit.
    pub contiguous: bool,
    /// The memory manager wants to hear of [stores](crate::MemoryManager::stored) to large pages.
    pub watches_stores: bool,
    pub(crate) deferral: Deferral,
    pub(crate) moved: Vec<Moved>,
    /// Where pages of the page cache were that have been moved, and that the memory manager has not
    /// yet been told of.
    pub(crate) moved_files: Vec<Frame>,
    /// Files, and what of them is in the page cache.
    pub files: Files,
    /// Frames on their way from a zapped range to the allocator.
    pub(crate) gather: Gather,
    /// Frames of the page cache that the start state left behind.
    pub(crate) cache: PageCount,
    /// Frames of the kernel's own that the start state left behind.
    pub(crate) pinned: PageCount,
}

/// Compaction that has failed is not tried again at once (`defer_compaction`,
/// `compaction_deferred`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deferral {
    considered: u32,
    shift: u32,
    order: Option<Order>,
}

impl Deferral {
    const SHIFT_MAX: u32 = 6;

    /// Whether to leave it this time.
    pub(crate) fn defers(&mut self, order: Order) -> bool {
        if self.order.is_none_or(|failed| order < failed) {
            return false;
        }
        self.considered += 1;
        self.considered < 1 << self.shift
    }

    /// How it went.
    pub(crate) fn note(&mut self, order: Order, succeeded: bool) {
        if succeeded {
            *self = Self::default();
            return;
        }
        self.considered = 0;
        self.shift = (self.shift + 1).min(Self::SHIFT_MAX);
        self.order = Some(self.order.map_or(order, |failed| failed.min(order)));
    }
}

/// Swap space, of which only the use is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Swap {
    pub(crate) size: PageCount,
    pub(crate) used: PageCount,
}

impl KernelState {
    /// A block for user pages, or for a memory manager's reservation: `None` if none is free, or if
    /// taking it would go below the lowest watermark (`__zone_watermark_ok`). Wakes the background
    /// daemon below the low one.
    #[inline(always)]
    pub fn alloc(&mut self, order: Order, cpu: Cpu) -> Option<Frame> {
        let free = self.memory.free_frames().0;
        if free < self.watermarks.low.0 + order.frames() {
            self.background_wanted = true;
            if free < self.watermarks.min.0 + order.frames() {
                return None;
            }
        }
        self.memory.alloc(order, MigrateType::Movable, cpu)
    }

    /// Whether taking a block of `order` would go below the lowest watermark, if there is one.
    pub(crate) fn is_below_mark(&self, order: Order) -> bool {
        self.memory.free_frames().0 < self.watermarks.min.0 + order.frames()
    }

    /// Wakes the background daemon that reclaims (kswapd), which will run at the next tick.
    pub fn wake_background(&mut self) {
        self.background_wanted = true;
    }

    /// Says that the [`OsError::OutOfMemory`](crate::OsError::OutOfMemory) with which the memory
    /// manager ends this fault asks for a block: the kernel reclaims `want` frames if it can
    /// (`__alloc_pages_direct_reclaim` of a costly order), and calls it again in any case.
    pub fn ask_for_block(&mut self, want: PageCount) {
        self.block_wanted = Some(want);
    }

    /// Whether `frame` is part of the huge page of zeroes (`is_huge_zero_page`).
    #[inline]
    pub fn is_zero(&self, frame: Frame) -> bool {
        self.zero_block.is_some_and(|head| frame.align_down(Order::HUGE.0.into()) == head)
    }

    /// A frame for a table node or for other data of the kernel's own: may use the reserve under
    /// the watermarks, so that splitting and unmapping never fail for want of memory
    /// (`PF_MEMALLOC`; Linux deposits a node with each huge page to the same end).
    #[inline]
    pub fn alloc_kernel(&mut self, cpu: Cpu) -> Option<Frame> {
        self.memory.alloc(Order::PAGE, MigrateType::Unmovable, cpu)
    }

    /// Says that `frame` is mapped at `page` of `process`. Of a large page, only the first frame is
    /// owned, so that compaction leaves the others alone.
    #[inline(always)]
    pub fn own(&mut self, frame: Frame, process: ProcessId, page: Vpn) {
        self.memory.set_owner(frame, Owner::Page { process: process.0, page });
    }

    /// One mapping of a shared frame goes: that of `page` of `process`. The last one that remains
    /// is found when it stores to it.
    pub(crate) fn leave_shared(&mut self, frame: Frame, process: ProcessId, page: Vpn) {
        let others = self.memory.unshare(frame);
        debug_assert!(others, "{frame:?} was not shared");
        if self.memory.owner(frame) == (Owner::Page { process: process.0, page }) {
            self.memory.set_owner(frame, Owner::Unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_compaction_is_left_alone_for_longer_and_longer() {
        let mut deferral = Deferral::default();
        assert!(!deferral.defers(Order::HUGE));
        deferral.note(Order::HUGE, false);
        let skipped = |deferral: &mut Deferral| (0..200).take_while(|_| deferral.defers(Order::HUGE)).count();
        assert_eq!(skipped(&mut deferral), 1);
        deferral.note(Order::HUGE, false);
        assert_eq!(skipped(&mut deferral), 3);
        (0..9).for_each(|_| deferral.note(Order::HUGE, false));
        assert_eq!(skipped(&mut deferral), 63);
        assert!(!deferral.defers(Order(3)), "a smaller block may well be had");
        deferral.note(Order::HUGE, true);
        assert!(!deferral.defers(Order::HUGE));
    }
}
