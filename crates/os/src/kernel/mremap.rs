// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving and resizing mappings (`move_page_tables`).

use nestwalk_mem::{Entry, Leaf, Level, Owner, PageCount, Vpn, VpnRange};

use crate::below::Below;
use crate::context::Context;
use crate::context::contiguous::blocks_of;
use crate::context::placement::TableContext;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::ProcessId;
use crate::state::vma::Vma;

impl Kernel {
    /// Maps at `to` what is mapped at `from`. The ranges either begin at the same page (the mapping
    /// grows or shrinks in place), or do not overlap (it moves, its pages with it, and what was at
    /// `to` goes).
    ///
    /// # Errors
    /// When a range is impossible or not mapped, and those of [`Kernel::munmap`].
    pub fn mremap(
        &mut self,
        process: ProcessId,
        from: VpnRange,
        to: VpnRange,
        below: &mut dyn Below,
    ) -> Result<(), OsError> {
        self.check_range(from)?;
        self.check_range(to)?;
        if !self.state.processes.get(process)?.vmas.cover(from) {
            return Err(OsError::Segfault { process, page: from.start });
        }
        self.state.counters.other_calls += 1;
        if from.start == to.start {
            return self.resize(process, from, to, below);
        }
        if from.overlaps(to) {
            return Err(OsError::BadRange(to));
        }
        self.unmap_range(process, to, below)?;
        let kept = from.len().min(to.len());
        let moved = VpnRange::new(from.start, PageCount(kept));
        self.unmap_range(process, VpnRange { start: moved.end, end: from.end }, below)?;
        self.relocate(process, moved, to.start, below)?;
        let grown = VpnRange { start: to.start + kept, end: to.end };
        self.grow(process, grown, below)
    }

    fn resize(
        &mut self,
        process: ProcessId,
        from: VpnRange,
        to: VpnRange,
        below: &mut dyn Below,
    ) -> Result<(), OsError> {
        if to.end <= from.end {
            return self.unmap_range(process, VpnRange { start: to.end, end: from.end }, below);
        }
        let grown = VpnRange { start: from.end, end: to.end };
        if self.state.processes.get(process)?.vmas.within(grown).next().is_some() {
            return Err(OsError::BadRange(to));
        }
        self.grow(process, grown, below)
    }

    /// Maps `grown` like the page before it.
    fn grow(&mut self, process: ProcessId, grown: VpnRange, below: &mut dyn Below) -> Result<(), OsError> {
        if grown.is_empty() {
            return Ok(());
        }
        let before = self.vma(process, Vpn(grown.start.0 - 1)).expect("a mapping grows from its end");
        self.add_vma(process, Vma { range: grown, flags: before.flags }, below)
    }

    /// Moves all of `from` to the free pages from `to` on.
    fn relocate(&mut self, process: ProcessId, from: VpnRange, to: Vpn, below: &mut dyn Below) -> Result<(), OsError> {
        let cpu = self.state.processes.get(process)?.cpu;
        let target = VpnRange::new(to, PageCount(from.len()));
        let (mut cx, manager) = self.context(cpu, below);
        manager.moving(&mut cx, process, from, target);
        self.retrying(cpu, below, |cx, _| cx.split_at_ends(process, from))?;
        let vmas = self.state.processes.get_mut(process)?.vmas.remove(from);
        for vma in vmas {
            let start = to + (vma.range.start.0 - from.start.0);
            let range = VpnRange::new(start, PageCount(vma.range.len()));
            self.add_vma(process, Vma { range, flags: vma.flags.moved(vma.range.start, start) }, below)?;
        }
        self.retrying(cpu, below, |cx, _| cx.move_leaves(process, from, to))?;
        let (mut cx, manager) = self.context(cpu, below);
        cx.prune(process, from)?;
        cx.invalidate(process, from, true);
        let mut inner = TableContext { state: cx.state, below: cx.below, cpu };
        cx.tables.vma_removed(&mut inner, process, from);
        manager.unmapped(&mut cx, process, from);
        Ok(())
    }
}

impl Context<'_> {
    /// Moves leaves one by one; may be called again if it fails. Large ones stay large if they come
    /// to lie on a multiple of their size, and so do contiguous blocks.
    fn move_leaves(&mut self, process: ProcessId, from: VpnRange, to: Vpn) -> Result<(), OsError> {
        let shift = to.0.wrapping_sub(from.start.0);
        let mut at = from.start;
        while let Some(leaves) = self.next_leaves(process, &mut at, from.end)? {
            let blocks = blocks_of(&leaves, from);
            for leaf in leaves {
                if leaf.level > Level::PTE && shift & (leaf.size().pages() - 1) != 0 {
                    self.split(process, leaf.page)?;
                    at = leaf.page;
                    break;
                }
                let target = Vpn(leaf.page.0.wrapping_add(shift));
                self.write_leaf_node(process, leaf.page)?;
                self.map_entry(process, target, leaf.level, leaf.entry.without(Entry::CONTIGUOUS))?;
                self.state.processes.get_mut(process)?.table.unmap(leaf.page);
                self.state.counters.entries_moved += 1;
                if leaf.entry.is_present() {
                    self.own_moved(process, leaf, target);
                }
            }
            let moved: Vec<Vpn> = blocks.iter().map(|block| Vpn(block.0.wrapping_add(shift))).collect();
            self.join_again(process, &moved)?;
        }
        Ok(())
    }

    fn own_moved(&mut self, process: ProcessId, leaf: Leaf, target: Vpn) {
        let frame = leaf.entry.frame();
        if !self.state.memory.is_shared(frame) {
            self.state.own(frame, process, target);
        } else if self.state.memory.owner(frame) == (Owner::Page { process: process.0, page: leaf.page }) {
            self.state.memory.set_owner(frame, Owner::Unknown);
        }
    }
}
