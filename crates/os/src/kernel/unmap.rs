// SPDX-License-Identifier: MIT OR Apache-2.0
//! Giving memory back: munmap and exit, and the walk over leaves that other calls use too
//! (`unmap_page_range`).

use nestwalk_mem::{Frame, FrameRange, Leaf, Owner, Vpn, VpnRange};

use crate::below::Below;
use crate::context::Context;
use crate::context::event::Cause;
use crate::context::placement::TableContext;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::manager::contract::MemoryManager;
use crate::state::KernelState;
use crate::state::files::FileId;
use crate::state::process::ProcessId;
use crate::state::vma::VmaKind;

/// Pages that are looked at in one go, so that the leaves of the largest process need little room.
const WINDOW: u64 = 1 << 14;

impl Kernel {
    /// Unmaps what is mapped in `range`, and frees pages that are not shared and table nodes that
    /// nothing needs.
    ///
    /// # Errors
    /// When the range is impossible, or there is no memory to split a large page.
    pub fn munmap(&mut self, process: ProcessId, range: VpnRange, below: &mut dyn Below) -> Result<(), OsError> {
        self.check_range(range)?;
        self.state.counters.munmaps += 1;
        self.unmap_range(process, range, below)
    }

    /// The process is no more: all that it alone had is free.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn exit(&mut self, process: ProcessId, below: &mut dyn Below) -> Result<(), OsError> {
        let whole = VpnRange { start: Vpn(0), end: self.config.geometry.end() };
        self.unmap_untold(process, whole, below)?;
        self.state.counters.exits += 1;
        let space = self.state.processes.get(process)?;
        let (cpu, root) = (space.cpu, space.table.node_frame(space.table.root()));
        let (mut cx, manager) = self.context(cpu, below);
        cx.state.invalidations.all(&mut cx.state.counters, process);
        cx.release_node(process, cx.state.processes.get(process)?.table.geometry().root(), Vpn(0), root);
        if let Some(mut space) = cx.state.processes.remove(process).filter(|space| space.table.is_watched()) {
            cx.state.last_writes.push((process, space.table.take_writes()));
        }
        let mut inner = TableContext { state: cx.state, below: cx.below, cpu };
        cx.tables.exited(&mut inner, process);
        manager.exited(&mut cx, process);
        self.drop_frozen_regions(process);
        Ok(())
    }

    /// [`Kernel::munmap`] of a range that has been checked, and not counted.
    pub(crate) fn unmap_range(
        &mut self,
        process: ProcessId,
        range: VpnRange,
        below: &mut dyn Below,
    ) -> Result<(), OsError> {
        let result = self.unmap_untold(process, range, below);
        // If it failed, some of the pages went all the same.
        let &(pages, nodes) = result.as_ref().unwrap_or(&(true, true));
        if pages || nodes {
            self.state.invalidations.pages(&mut self.state.counters, process, range, nodes);
        }
        result.map(|_| ())
    }

    /// The same without telling cores. Returns whether pages went that hardware may know, and
    /// whether nodes did.
    fn unmap_untold(
        &mut self,
        process: ProcessId,
        range: VpnRange,
        below: &mut dyn Below,
    ) -> Result<(bool, bool), OsError> {
        let space = self.state.processes.get(process)?;
        let cpu = space.cpu;
        let parts: Vec<VpnRange> = space.vmas.within(range).map(|vma| vma.range).collect();
        if parts.is_empty() {
            return Ok((false, false));
        }
        self.retrying(cpu, below, |cx, _| cx.split_at_ends(process, range))?;
        let mut present = false;
        for &part in &parts {
            self.retrying(cpu, below, |cx, manager| cx.zap(manager, process, part, &mut present))?;
        }
        self.state.processes.get_mut(process)?.vmas.remove(range);
        let (mut cx, manager) = self.context(cpu, below);
        let last = parts.len() - 1;
        let freed = cx.prune(process, VpnRange { start: parts[0].start, end: parts[last].end })?;
        for part in parts {
            let mut inner = TableContext { state: cx.state, below: cx.below, cpu };
            cx.tables.vma_removed(&mut inner, process, part);
            manager.unmapped(&mut cx, process, part);
        }
        Ok((present, freed))
    }
}

impl Context<'_> {
    /// The leaves of `process` in the next stretch from `at` (which goes on to where that stretch
    /// ends) up to `end`; `None` at the end.
    pub(crate) fn next_leaves(&self, process: ProcessId, at: &mut Vpn, end: Vpn) -> Result<Option<Vec<Leaf>>, OsError> {
        if *at >= end {
            return Ok(None);
        }
        let stop = Vpn((at.0 / WINDOW + 1) * WINDOW).min(end);
        let mut leaves = Vec::new();
        let table = &self.state.processes.get(process)?.table;
        table.for_each_leaf(VpnRange { start: *at, end: stop }, |leaf| {
            // A larger leaf than the window is seen in each: only the first counts.
            if leaf.page >= *at {
                leaves.push(leaf);
            }
        });
        *at = stop;
        Ok(Some(leaves))
    }

    /// Takes away all leaves in `range`, which no large leaf crosses, and releases what no other
    /// process has (`zap_page_range`). Says in `present` if the hardware may know any of them. May
    /// be called again if it fails.
    pub(crate) fn zap(
        &mut self,
        manager: &mut dyn MemoryManager,
        process: ProcessId,
        range: VpnRange,
        present: &mut bool,
    ) -> Result<(), OsError> {
        let kind =
            self.state.processes.get(process)?.vmas.get(range.start).map_or(VmaKind::Anonymous, |vma| vma.flags.kind);
        self.state.gather.begin(kind);
        let result = self.zap_leaves(manager, process, range, present);
        let KernelState { gather, memory, .. } = &mut *self.state;
        gather.end(memory, self.cpu);
        result
    }

    fn zap_leaves(
        &mut self,
        manager: &mut dyn MemoryManager,
        process: ProcessId,
        range: VpnRange,
        present: &mut bool,
    ) -> Result<(), OsError> {
        let mut at = range.start;
        while let Some(leaves) = self.next_leaves(process, &mut at, range.end)? {
            for leaf in leaves {
                self.write_leaf_node(process, leaf.page)?;
                self.state.processes.get_mut(process)?.table.unmap(leaf.page);
                *present |= leaf.entry.is_present();
                self.drop_leaf(manager, process, leaf, Cause::Program);
            }
        }
        Ok(())
    }

    /// `leaf`, in or out of the table, no longer maps the shared `frame` at `page`.
    pub(crate) fn leave(
        &mut self,
        manager: &mut dyn MemoryManager,
        process: ProcessId,
        page: Vpn,
        frame: Frame,
        leaf: Leaf,
    ) {
        if let Owner::File { file, page } = self.state.memory.owner(frame) {
            return self.drop_file_frame(frame, FileId(file), page, leaf);
        }
        self.state.leave_shared(frame, process, page);
        manager.left(self, process, page, frame);
    }

    /// The leaf is no longer in the table: releases what it mapped, unless it is shared.
    pub(crate) fn drop_leaf(&mut self, manager: &mut dyn MemoryManager, process: ProcessId, leaf: Leaf, cause: Cause) {
        if !leaf.entry.is_present() {
            self.state.swap.used.0 -= 1;
            return;
        }
        let frames = FrameRange::new(leaf.entry.frame(), nestwalk_mem::PageCount(leaf.size().pages()));
        if !frames.iter().any(|frame| self.state.memory.is_shared(frame)) {
            manager.release(self, process, leaf.page, frames, cause);
            return;
        }
        for (i, frame) in frames.iter().enumerate() {
            let page = leaf.page + i as u64;
            if self.state.memory.is_shared(frame) {
                self.leave(manager, process, page, frame, leaf);
            } else {
                manager.release(self, process, page, FrameRange::single(frame), cause);
            }
        }
    }
}
