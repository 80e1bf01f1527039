// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making and changing mappings: mmap, brk, mprotect.

use nestwalk_mem::{Entry, Level, PageCount, Va, Vpn, VpnRange};

use crate::below::Below;
use crate::context::Context;
use crate::context::contiguous::blocks_of;
use crate::context::placement::TableContext;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::ProcessId;
use crate::state::vma::{Vma, VmaFlags};

/// The lowest page that [`Kernel::find_free`] hands out (`mmap_min_addr`, 64 KiB).
const BOTTOM: Vpn = Vpn(16);

impl Kernel {
    /// Maps `range` of `process`. What was mapped there goes first (`MAP_FIXED`). Pages are made
    /// when they are touched.
    ///
    /// # Errors
    /// When the range is empty or lies outside of the address space or its file, and those of
    /// [`Kernel::munmap`].
    pub fn mmap(
        &mut self,
        process: ProcessId,
        range: VpnRange,
        flags: VmaFlags,
        below: &mut dyn Below,
    ) -> Result<(), OsError> {
        self.check_range(range)?;
        if let Some(view) = flags.view() {
            let (files, first) = (&self.state.files, view.page(range.start));
            let fits = files.has(view.file)
                && first.checked_add(range.len()).is_some_and(|end| end <= files.get(view.file).size.0);
            if !fits {
                return Err(OsError::BadRange(range));
            }
        }
        self.unmap_range(process, range, below)?;
        self.state.counters.mmaps += 1;
        self.add_vma(process, Vma { range, flags }, below)
    }

    /// The highest gap of `count` pages whose start is a multiple of 2^`align` pages, in the lower
    /// half of the address space.
    ///
    /// # Errors
    /// When there is none.
    pub fn find_free(&self, process: ProcessId, count: PageCount, align: u32) -> Result<Vpn, OsError> {
        let top = Vpn(self.config.geometry.end().0 / 2);
        let vmas = &self.state.processes.get(process)?.vmas;
        vmas.find_free(count, align, BOTTOM, top).ok_or(OsError::NoAddressSpace(count))
    }

    /// Moves the end of the heap to `end`, rounded up to a page. The first call says where the heap
    /// begins.
    ///
    /// # Errors
    /// When the end is below the beginning or the heap would run into another mapping, and those of
    /// [`Kernel::munmap`].
    pub fn brk(&mut self, process: ProcessId, end: Va, below: &mut dyn Below) -> Result<(), OsError> {
        let end = Vpn(PageCount::covering(end.0).0);
        let space = self.state.processes.get_mut(process)?;
        let (start, old) = *space.heap.get_or_insert((end, end));
        let grown = VpnRange { start: old, end };
        if end < start || space.vmas.within(grown).next().is_some() || end > self.config.geometry.end() {
            return Err(OsError::BadRange(VpnRange { start, end }));
        }
        space.heap = Some((start, end));
        self.state.counters.other_calls += 1;
        if end > old {
            self.add_vma(process, Vma { range: grown, flags: VmaFlags::ANONYMOUS }, below)
        } else {
            self.unmap_range(process, VpnRange { start: end, end: old }, below)
        }
    }

    /// Allows or forbids stores to the mapped pages of `range`.
    ///
    /// # Errors
    /// When the range is impossible, or there is no memory to split a large page.
    pub fn mprotect(
        &mut self,
        process: ProcessId,
        range: VpnRange,
        writable: bool,
        below: &mut dyn Below,
    ) -> Result<(), OsError> {
        self.check_range(range)?;
        let cpu = self.state.processes.get(process)?.cpu;
        self.retrying(cpu, below, |cx, _| cx.split_at_ends(process, range))?;
        self.state.counters.other_calls += 1;
        let space = self.state.processes.get_mut(process)?;
        let changed = space.vmas.change(range, |flags| flags.writable = writable);
        if writable {
            // As in Linux, pages become writable again one by one when they are stored to: some may
            // be shared.
            return Ok(());
        }
        let (mut cx, _) = self.context(cpu, below);
        for vma in changed.iter().filter(|vma| vma.flags.writable) {
            cx.write_protect(process, vma.range)?;
        }
        Ok(())
    }

    /// Adds a mapping where there is none, and tells the table placement.
    pub(crate) fn add_vma(&mut self, process: ProcessId, vma: Vma, below: &mut dyn Below) -> Result<(), OsError> {
        let space = self.state.processes.get_mut(process)?;
        let cpu = space.cpu;
        space.vmas.insert(vma);
        let merged = space.vmas.get(vma.range.start).expect("it was inserted just now");
        let (cx, _) = self.context(cpu, below);
        let mut inner = TableContext { state: cx.state, below: cx.below, cpu };
        let before = [
            VpnRange { start: merged.range.start, end: vma.range.start },
            VpnRange { start: vma.range.end, end: merged.range.end },
        ];
        match before.into_iter().find(|range| !range.is_empty()) {
            None => cx.tables.vma_created(&mut inner, process, merged),
            Some(range) => cx.tables.vma_grown(&mut inner, process, Vma { range, ..vma }, merged),
        }
        self.settle(cpu, below);
        Ok(())
    }

    pub(crate) fn check_range(&self, range: VpnRange) -> Result<(), OsError> {
        if range.is_empty() || range.end > self.config.geometry.end() {
            return Err(OsError::BadRange(range));
        }
        Ok(())
    }
}

impl Context<'_> {
    /// Splits large leaves that `range` covers in part (`vma_adjust_trans_huge`).
    pub(crate) fn split_at_ends(&mut self, process: ProcessId, range: VpnRange) -> Result<(), OsError> {
        for edge in [range.start, range.end] {
            let large = |table: &nestwalk_mem::PageTable| {
                table.leaf(edge).is_some_and(|leaf| leaf.level > Level::PTE && leaf.page != edge)
            };
            while edge < self.geometry_end(process)? && large(&self.state.processes.get(process)?.table) {
                self.split(process, edge)?;
            }
        }
        Ok(())
    }

    fn geometry_end(&self, process: ProcessId) -> Result<Vpn, OsError> {
        Ok(self.state.processes.get(process)?.table.geometry().end())
    }

    /// Takes the right to store from every page of `range`, which large leaves cover wholly or not
    /// at all.
    fn write_protect(&mut self, process: ProcessId, range: VpnRange) -> Result<(), OsError> {
        let mut changed = false;
        let mut at = range.start;
        while let Some(leaves) = self.next_leaves(process, &mut at, range.end)? {
            for leaf in leaves.iter().filter(|leaf| leaf.entry.has(Entry::WRITABLE)) {
                let table = &mut self.state.processes.get_mut(process)?.table;
                table.update(leaf.page, |entry| entry.without(Entry::WRITABLE));
                changed = true;
            }
            self.join_again(process, &blocks_of(&leaves, range))?;
        }
        if changed {
            self.invalidate(process, range, false);
        }
        Ok(())
    }
}
