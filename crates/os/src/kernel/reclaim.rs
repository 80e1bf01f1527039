// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory pressure: what is given back, and in which order.
//!
//! Under the lowest watermark an allocation reclaims (`__alloc_pages_direct_reclaim`); under
//! the low one the background daemon does at the next tick (kswapd), up to the high one. The order:
//! what the memory manager and the table placement hold in reserve, then the page cache (what a
//! start state left of it, then files' pages, by a clock: `page_cache`), then what
//! the memory manager has to work for (its shrinker, in rounds of falling priority), then mapped
//! pages by a clock over accessed bits (second chance): clean ones are dropped, dirty ones go to
//! swap while there is room. (Linux's rounds ask the shrinkers and a share of the mapped pages at
//! the same priority.)

use nestwalk_mem::{Cpu, Entry, Leaf, Level, Owner, PageCount, Vpn, VpnRange};

use crate::below::Below;
use crate::context::Context;
use crate::context::event::Cause;
use crate::context::placement::TableContext;
use crate::error::OsError;
use crate::kernel::{ClockHand, Kernel};
use crate::manager::contract::MemoryManager;
use crate::state::process::ProcessId;

/// Pages that direct reclaim aims at (`SWAP_CLUSTER_MAX`).
pub(super) const CLUSTER: u64 = 32;
/// The priority of the first round of reclaim (`DEF_PRIORITY`).
const PRIORITY_FIRST: u32 = 12;
/// Of the last one of direct reclaim (`do_try_to_free_pages`).
const PRIORITY_DIRECT: u32 = 0;
/// Of kswapd's (`balance_pgdat`).
pub(super) const PRIORITY_KSWAPD: u32 = 1;

impl Kernel {
    /// An allocation failed: reclaims some memory.
    ///
    /// # Errors
    /// `error` when nothing can be reclaimed; others when nothing below backs a frame.
    #[cold]
    pub(crate) fn reclaim_or(&mut self, error: OsError, cpu: Cpu, below: &mut dyn Below) -> Result<(), OsError> {
        self.state.counters.reclaims_direct += 1;
        if let Some(want) = self.state.block_wanted.take() {
            // Whether it helps or not: without a block the fault takes a small page.
            return self.reclaim(want, cpu, below).map(drop);
        }
        let (free, min) = (self.state.memory.free_frames().0, self.state.watermarks.min.0);
        let want = PageCount(CLUSTER.max((min + CLUSTER).saturating_sub(free)));
        if self.reclaim(want, cpu, below)?.0 == 0 {
            self.state.counters.out_of_memory += 1;
            return Err(error);
        }
        Ok(())
    }

    /// Runs `step`, which may be run again from the start, until it does not end for want of
    /// memory, reclaiming in between.
    ///
    /// # Errors
    /// Those of `step`; want of memory only when nothing more can be reclaimed.
    pub(crate) fn retrying<T>(
        &mut self,
        cpu: Cpu,
        below: &mut dyn Below,
        mut step: impl FnMut(&mut Context<'_>, &mut dyn MemoryManager) -> Result<T, OsError>,
    ) -> Result<T, OsError> {
        self.reclaiming(cpu, below, |kernel, below| {
            let (mut cx, manager) = kernel.context(cpu, below);
            let result = step(&mut cx, manager);
            kernel.settle(cpu, below);
            result
        })
    }

    /// [`Kernel::retrying`] for what needs the kernel whole.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn reclaiming<T>(
        &mut self,
        cpu: Cpu,
        below: &mut dyn Below,
        mut step: impl FnMut(&mut Self, &mut dyn Below) -> Result<T, OsError>,
    ) -> Result<T, OsError> {
        loop {
            match step(self, below) {
                Err(error @ OsError::OutOfMemory { .. }) => self.reclaim_or(error, cpu, below)?,
                other => return other,
            }
        }
    }

    /// Gives back `want` frames if it can, by what means it can. Returns by how much more is free.
    ///
    /// # Errors
    /// When nothing below backs a frame.
    pub fn reclaim(&mut self, want: PageCount, cpu: Cpu, below: &mut dyn Below) -> Result<PageCount, OsError> {
        self.reclaim_down_to(PRIORITY_DIRECT, want, cpu, below)
    }

    /// The same with the priority of the last round.
    pub(super) fn reclaim_down_to(
        &mut self,
        last_priority: u32,
        want: PageCount,
        cpu: Cpu,
        below: &mut dyn Below,
    ) -> Result<PageCount, OsError> {
        let before = self.state.memory.free_frames().0;
        let mut hand = self.clock_hand;
        let (mut cx, manager) = self.context(cpu, below);
        let reserved = manager.pressure(&mut cx, want);
        cx.state.counters.reclaimed_reserved += reserved.0;
        let left = |cx: &Context<'_>| PageCount((before + want.0).saturating_sub(cx.state.memory.free_frames().0));
        if left(&cx).0 > 0 {
            let want = left(&cx);
            let mut inner = TableContext { state: cx.state, below: cx.below, cpu };
            let nodes = cx.tables.pressure(&mut inner, want);
            cx.state.counters.reclaimed_reserved += nodes.0;
        }
        if left(&cx).0 > 0 && cx.state.cache.0 > 0 {
            let dropped = cx.state.memory.drop_cache(left(&cx), cpu);
            cx.state.cache.0 -= dropped.0;
            cx.state.counters.reclaimed_clean += dropped.0;
        }
        let goal = before + want.0;
        if left(&cx).0 > 0 && cx.state.files.cached().0 > 0 {
            cx.shrink_page_cache(manager, goal)?;
        }
        for priority in (last_priority..=PRIORITY_FIRST).rev() {
            if left(&cx).0 == 0 || !manager.can_shrink() {
                break;
            }
            let freed = manager.shrink(&mut cx, priority);
            cx.state.counters.reclaimed_reserved += freed.0;
        }
        let result = cx.turn_clock(manager, &mut hand, goal);
        self.clock_hand = hand;
        result?;
        Ok(PageCount(self.state.memory.free_frames().0.saturating_sub(before)))
    }
}

/// What became of a page under the clock's hand.
enum Verdict {
    /// It stays.
    Kept,
    /// It is gone, or a note of it is left.
    Gone,
    /// It was split: look at its parts.
    Split,
}

impl Context<'_> {
    /// Goes over mapped pages until `goal` frames are free. Stops after every page has been looked
    /// at twice.
    fn turn_clock(&mut self, manager: &mut dyn MemoryManager, hand: &mut ClockHand, goal: u64) -> Result<(), OsError> {
        let mut stretches = 2 * self.state.processes.len() + 1;
        while self.state.memory.free_frames().0 < goal && stretches > 0 {
            let Some(process) = self.state.processes.round_robin(hand.process) else { return Ok(()) };
            if process != hand.process {
                *hand = ClockHand { process, page: Vpn(0) };
            }
            let Some(vma) = self.state.processes.get(process)?.vmas.at_or_after(hand.page) else {
                *hand = ClockHand { process: ProcessId(process.0.wrapping_add(1)), page: Vpn(0) };
                stretches -= 1;
                continue;
            };
            let mut at = hand.page.max(vma.range.start);
            if let Some(leaves) = self.next_leaves(process, &mut at, vma.range.end)? {
                hand.page = at;
                self.reclaim_leaves(manager, process, &leaves, hand, goal)?;
            }
        }
        Ok(())
    }

    fn reclaim_leaves(
        &mut self,
        manager: &mut dyn MemoryManager,
        process: ProcessId,
        leaves: &[Leaf],
        hand: &mut ClockHand,
        goal: u64,
    ) -> Result<(), OsError> {
        for leaf in leaves {
            if self.state.memory.free_frames().0 >= goal {
                hand.page = leaf.page;
                return Ok(());
            }
            self.state.counters.reclaim_scanned += 1;
            if let Verdict::Split = self.reclaim_leaf(manager, process, *leaf)? {
                hand.page = leaf.page;
                return Ok(());
            }
        }
        Ok(())
    }

    fn reclaim_leaf(
        &mut self,
        manager: &mut dyn MemoryManager,
        process: ProcessId,
        leaf: Leaf,
    ) -> Result<Verdict, OsError> {
        let frame = leaf.entry.is_present().then(|| leaf.entry.frame());
        // Pinned is what the kernel itself owns (a VM in segments).
        let stays = |frame| self.state.memory.is_shared(frame) || self.state.memory.owner(frame) == Owner::Kernel;
        if frame.is_none_or(stays) {
            return Ok(Verdict::Kept);
        }
        let table = &mut self.state.processes.get_mut(process)?.table;
        if leaf.entry.has(Entry::ACCESSED) {
            table.update(leaf.page, |entry| entry.without(Entry::ACCESSED));
            self.state.invalidations.epoch += 1;
            return Ok(Verdict::Kept);
        }
        let dirty = leaf.entry.has(Entry::DIRTY);
        if dirty && self.state.swap.used >= self.state.swap.size {
            return Ok(Verdict::Kept);
        }
        if leaf.level > Level::PTE {
            return Ok(if self.split(process, leaf.page).is_ok() { Verdict::Split } else { Verdict::Kept });
        }
        if dirty {
            self.below.swap_out(process, leaf.page, leaf.entry.frame())?;
        }
        self.write_leaf_node(process, leaf.page)?;
        let table = &mut self.state.processes.get_mut(process)?.table;
        if dirty {
            table.update(leaf.page, |_| Entry::swapped());
            self.state.swap.used.0 += 1;
            self.state.counters.swapped_out += 1;
        } else {
            table.unmap(leaf.page);
            self.state.counters.reclaimed_clean += 1;
        }
        self.invalidate(process, VpnRange::new(leaf.page, PageCount(1)), false);
        self.drop_leaf(manager, process, leaf, Cause::Reclaimed);
        Ok(Verdict::Gone)
    }
}
