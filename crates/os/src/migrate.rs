// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving pages: what compaction and contiguous allocation need of this room.

use nestwalk_mem::physical::Migrate;
use nestwalk_mem::{Entry, Frame, FrameRange, Level, Order, Owner, PageCount, Vpn, VpnRange};

use crate::below::Below;
use crate::context::Context;
use crate::counters::OsCounters;
use crate::error::OsError;
use crate::invalidation::Invalidations;
use crate::kernel::Kernel;
use crate::madvise::Advice;
use crate::manager::{Cause, MemoryManager};
use crate::process::{ProcessId, Processes};
use crate::state::{KernelState, Moved};

/// Moves mapped 4 KiB pages that nobody shares (`migrate_pages` of anonymous memory).
struct Mover<'a> {
    processes: &'a mut Processes,
    counters: &'a mut OsCounters,
    invalidations: &'a mut Invalidations,
    moved: &'a mut Vec<Moved>,
    below: &'a mut dyn Below,
    /// Pages moved.
    count: u64,
}

impl Migrate for Mover<'_> {
    fn migrate(&mut self, from: Frame, to: Frame, owner: Owner) -> bool {
        let Owner::Page { process, page } = owner else { return false };
        let process = ProcessId(process);
        let Ok(space) = self.processes.get_mut(process) else { return false };
        let maps_it = |entry: Entry| entry.is_present() && entry.frame() == from;
        let Some(leaf) = space.table.leaf(page).filter(|leaf| leaf.level == Level::PTE && maps_it(leaf.entry)) else {
            return false;
        };
        let node = space.table.node_frame(space.table.lowest_node(page).0);
        if self.below.touch(FrameRange::single(node), true).is_err() || self.below.copy(from, to).is_err() {
            return false;
        }
        space.table.update(page, |_| Entry::leaf(to, leaf.entry.flags()));
        self.invalidations.pages(self.counters, process, VpnRange::new(page, PageCount(1)), false);
        self.counters.migrated += 1;
        self.count += 1;
        self.moved.push(Moved { process, page, from, to });
        true
    }
}

fn split<'a>(
    state: &'a mut KernelState,
    below: &'a mut dyn Below,
) -> (&'a mut nestwalk_mem::PhysicalMemory, Mover<'a>) {
    let KernelState { memory, processes, counters, invalidations, moved, .. } = state;
    (memory, Mover { processes, counters, invalidations, moved, below, count: 0 })
}

/// Runs compaction until a block of `order` is free; returns whether one is.
pub(crate) fn compact(state: &mut KernelState, below: &mut dyn Below, order: Order) -> bool {
    let (memory, mut mover) = split(state, below);
    let done = memory.compact(order, &mut mover);
    let of_processes = mover.count;
    // The others are pages of the cache, which memory moves by itself.
    state.counters.migrated += done.migrated.0 - of_processes;
    state.counters.compaction_scanned += done.scanned.0;
    state.counters.compactions_failed += u64::from(!done.succeeded);
    done.succeeded
}

/// See [`TableContext::alloc_range`](crate::tables::TableContext::alloc_range).
pub(crate) fn alloc_range(
    state: &mut KernelState,
    below: &mut dyn Below,
    count: PageCount,
    align: Order,
) -> Option<FrameRange> {
    let (memory, mut mover) = split(state, below);
    memory.alloc_range(count, align, &mut mover)
}

/// See [`TableContext::alloc_at`](crate::tables::TableContext::alloc_at).
pub(crate) fn alloc_at(state: &mut KernelState, below: &mut dyn Below, frames: FrameRange) -> Vec<bool> {
    let (memory, mut mover) = split(state, below);
    memory.alloc_at(frames, &mut mover)
}

impl Kernel {
    /// Moves the pages of `range` (mapping those that are not mapped yet) to frames that follow each other as the pages
    /// do, unless they lie so already, and pins them there: who asked for it goes by where they lie. Returns the first frame.
    ///
    /// # Errors
    /// When there is no such stretch of memory; some pages may have been mapped then.
    pub fn make_contiguous(
        &mut self,
        process: ProcessId,
        range: VpnRange,
        below: &mut dyn Below,
    ) -> Result<Frame, OsError> {
        let cpu = self.state.processes.get(process)?.cpu;
        self.madvise(process, range, Advice::PopulateWrite, below)?;
        let table = &self.state.processes.get(process)?.table;
        if let Some(first) = table.translate(range.start)
            && (1..range.len()).all(|i| table.translate(range.start + i) == Some(first + i))
        {
            self.pin(FrameRange::new(first, PageCount(range.len())));
            return Ok(first);
        }
        self.retrying(cpu, below, |cx, _| cx.split_all(process, range))?;
        let (mut cx, manager) = self.context(cpu, below);
        let Some(frames) = alloc_range(cx.state, cx.below, PageCount(range.len()), Order::PAGE) else {
            return Err(cx.out_of_memory());
        };
        let result = cx.move_to(manager, process, range, frames.start);
        self.settle(cpu, below);
        result?;
        self.pin(frames);
        Ok(frames.start)
    }

    /// Neither reclaim nor compaction nor khugepaged moves these from now on, until they are freed.
    fn pin(&mut self, frames: FrameRange) {
        frames.iter().for_each(|frame| self.state.memory.set_owner(frame, Owner::Kernel));
    }
}

impl Context<'_> {
    fn split_all(&mut self, process: ProcessId, range: VpnRange) -> Result<(), OsError> {
        for page in range.start.0..range.end.0 {
            let large = |state: &KernelState| {
                let table = &state.processes.get(process)?.table;
                Ok::<_, OsError>(table.leaf(Vpn(page)).is_some_and(|leaf| leaf.level > Level::PTE))
            };
            while large(self.state)? {
                self.split(process, Vpn(page))?;
            }
        }
        Ok(())
    }

    /// Moves the mapped 4 KiB pages of `range`, which may be stored to, to the frames from `to` on.
    fn move_to(
        &mut self,
        manager: &mut dyn MemoryManager,
        process: ProcessId,
        range: VpnRange,
        to: Frame,
    ) -> Result<(), OsError> {
        for i in 0..range.len() {
            let (page, to) = (range.start + i, to + i);
            let moved = self.move_one(process, page, to);
            match moved {
                Ok(from) => manager.release(self, process, page, FrameRange::single(from), Cause::Replaced),
                Err(error) => {
                    self.free(FrameRange::new(to, PageCount(range.len() - i)));
                    return Err(error);
                }
            }
        }
        self.invalidate(process, range, false);
        Ok(())
    }

    fn move_one(&mut self, process: ProcessId, page: Vpn, to: Frame) -> Result<Frame, OsError> {
        let table = &self.state.processes.get(process)?.table;
        let leaf = table.leaf(page).filter(|leaf| leaf.entry.has(Entry::PRESENT | Entry::WRITABLE));
        let Some(leaf) = leaf else { return Err(OsError::Segfault { process, page }) };
        self.below.copy(leaf.entry.frame(), to)?;
        self.write_leaf_node(process, page)?;
        let table = &mut self.state.processes.get_mut(process)?.table;
        table.update(page, |_| Entry::leaf(to, leaf.entry.flags()));
        self.state.own(to, process, page);
        self.state.counters.migrated += 1;
        Ok(leaf.entry.frame())
    }
}
