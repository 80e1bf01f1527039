// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page faults (`handle_mm_fault`).

use nestwalk_mem::{Cpu, Entry, EntrySlot, FrameRange, Leaf, Level, PageCount, PageSize, Vpn, VpnRange};

use crate::below::Below;
use crate::context::Context;
use crate::context::event::{Cause, Fault, Fill};
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::ProcessId;

/// What a fault turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultKind {
    /// A fresh page of this size was mapped.
    Minor(PageSize),
    /// The page was mapped already, with the right to do what was tried.
    Spurious,
    /// A store to a shared page: it was copied.
    Copied,
    /// A store to a page that is not shared (any more): it was made writable.
    Reused,
    /// The page came back from swap.
    SwappedIn,
    /// A page of the page cache was mapped.
    File {
        /// Whether it had to be read.
        read: bool,
    },
}

impl Kernel {
    /// The hardware could not do a load (or store) of `process` at `page` on processor `cpu`. When
    /// this returns, it can be done.
    ///
    /// # Errors
    /// When the process may not do it, or when memory is short here or below and nothing can be
    /// reclaimed.
    #[inline]
    pub fn fault(
        &mut self,
        process: ProcessId,
        page: Vpn,
        store: bool,
        cpu: Cpu,
        below: &mut dyn Below,
    ) -> Result<FaultKind, OsError> {
        let (slot, entry) = self.state.processes.get(process)?.table.find(page);
        match self.fault_at(process, page, (slot, entry), store, cpu, below) {
            Ok(kind) => {
                self.settle(cpu, below);
                Ok(kind)
            }
            Err(error) => self.fault_failed(error, process, page, store, cpu, below),
        }
    }

    /// A load (or store) of `process` at `page` on processor `cpu`, of which only what it does to
    /// this kernel matters: sets the bits that the hardware would set, or else is a
    /// [fault](Kernel::fault).
    ///
    /// # Errors
    /// As [`Kernel::fault`].
    #[inline]
    pub fn touch(
        &mut self,
        process: ProcessId,
        page: Vpn,
        store: bool,
        cpu: Cpu,
        below: &mut dyn Below,
    ) -> Result<(), OsError> {
        let table = &mut self.state.processes.get_mut(process)?.table;
        let (slot, entry) = table.find(page);
        let (needs, marks) = hardware_bits(store);
        if entry.has(needs) {
            table.mark_at(slot, marks);
            if store && slot.level > Level::PTE && self.state.watches_stores {
                self.note_store(process, page);
            }
            return Ok(());
        }
        match self.fault_at(process, page, (slot, entry), store, cpu, below) {
            Ok(_) => {
                self.settle(cpu, below);
                Ok(())
            }
            Err(error) => self.fault_failed(error, process, page, store, cpu, below).map(drop),
        }
    }

    /// What is left to do when a first attempt at a fault has failed.
    #[cold]
    #[inline(never)]
    fn fault_failed(
        &mut self,
        error: OsError,
        process: ProcessId,
        page: Vpn,
        store: bool,
        cpu: Cpu,
        below: &mut dyn Below,
    ) -> Result<FaultKind, OsError> {
        self.settle(cpu, below);
        match error {
            OsError::OutOfMemory { .. } => self.fault_again(error, process, page, store, cpu, below),
            other => Err(other),
        }
    }

    /// The fault failed for want of memory: tries again until nothing more can be reclaimed.
    fn fault_again(
        &mut self,
        mut error: OsError,
        process: ProcessId,
        page: Vpn,
        store: bool,
        cpu: Cpu,
        below: &mut dyn Below,
    ) -> Result<FaultKind, OsError> {
        loop {
            self.reclaim_or(error, cpu, below)?;
            let found = self.state.processes.get(process)?.table.find(page);
            let result = self.fault_at(process, page, found, store, cpu, below);
            self.settle(cpu, below);
            match result {
                Err(again @ OsError::OutOfMemory { .. }) => error = again,
                other => return other,
            }
        }
    }

    /// One attempt at a fault, given the page's entry.
    #[inline(always)]
    fn fault_at(
        &mut self,
        process: ProcessId,
        page: Vpn,
        (slot, entry): (EntrySlot, Entry),
        store: bool,
        cpu: Cpu,
        below: &mut dyn Below,
    ) -> Result<FaultKind, OsError> {
        if cpu.0 >= self.config.cpus {
            return Err(OsError::NoCpu { cpu, cpus: self.config.cpus });
        }
        let space = self.state.processes.get_mut(process)?;
        space.cpu = cpu;
        let Some(vma) = space.vmas.find(page) else { return Err(OsError::Segfault { process, page }) };
        if store && !vma.flags.writable {
            return Err(OsError::ReadOnly { process, page });
        }
        // Copied once, from where it lies: a copy of a copy would wait for the first one's stores.
        let fault = Fault { process, page, store, vma: *vma, slot };
        if !entry.is_none() {
            return self.fault_mapped(&fault, cpu, below);
        }
        if let Some(view) = fault.vma.flags.view() {
            return self.file_fault(&fault, view, cpu, below);
        }
        let (mut cx, manager) = self.context(cpu, below);
        let size = manager.fault(&mut cx, &fault)?;
        let counters = &mut self.state.counters;
        match size {
            PageSize::Small => counters.faults_4k += 1,
            PageSize::Huge => counters.faults_2m += 1,
            PageSize::Giant => counters.faults_1g += 1,
        }
        debug_assert!(self.state.processes.get(process)?.table.translate(page).is_some(), "{fault:?} was not served");
        Ok(FaultKind::Minor(size))
    }

    /// The page has an entry (`handle_pte_fault` with a present or swapped entry).
    #[inline(never)]
    fn fault_mapped(&mut self, fault: &Fault, cpu: Cpu, below: &mut dyn Below) -> Result<FaultKind, OsError> {
        let leaf = self.state.processes.get(fault.process)?.table.leaf(fault.page).expect("it was found just now");
        if fault.store && self.state.watches_stores {
            self.note_store(fault.process, fault.page);
        }
        if !leaf.entry.is_present() {
            return self.swap_in(fault, cpu, below);
        }
        if fault.store && !leaf.entry.has(Entry::WRITABLE) {
            if let Some(view) = fault.vma.flags.view().filter(|view| view.shared) {
                return self.make_file_writable(fault, view, cpu, below);
            }
            return self.write_protected(fault, leaf, cpu, below);
        }
        let used = Entry::ACCESSED | if fault.store { Entry::DIRTY } else { 0 };
        self.state.processes.get_mut(fault.process)?.table.update(fault.page, |entry| entry.with(used));
        self.state.counters.faults_spurious += 1;
        Ok(FaultKind::Spurious)
    }

    /// `do_swap_page`. The page is dirty from now on, since its place in swap is given up.
    fn swap_in(&mut self, fault: &Fault, cpu: Cpu, below: &mut dyn Below) -> Result<FaultKind, OsError> {
        let (mut cx, manager) = self.context(cpu, below);
        let frame = manager.frame_for(&mut cx, fault, Fill::SwapIn)?;
        let filled = cx.below.swap_in(fault.process, fault.page, frame).and_then(|()| cx.touch_node(fault));
        if let Err(error) = filled {
            manager.release(&mut cx, fault.process, fault.page, FrameRange::single(frame), Cause::Replaced);
            return Err(error);
        }
        self.state.own(frame, fault.process, fault.page);
        let entry = Entry::leaf(frame, fault.leaf_flags() | Entry::DIRTY);
        self.state.processes.get_mut(fault.process)?.table.update(fault.page, |_| entry);
        self.state.swap.used.0 -= 1;
        self.state.counters.faults_swapped_in += 1;
        let (mut cx, manager) = self.context(cpu, below);
        manager.remapped(&mut cx, fault)?;
        Ok(FaultKind::SwappedIn)
    }

    /// `do_wp_page` and `do_huge_pmd_wp_page`: a large page that is shared in part is split first.
    fn write_protected(
        &mut self,
        fault: &Fault,
        mut leaf: Leaf,
        cpu: Cpu,
        below: &mut dyn Below,
    ) -> Result<FaultKind, OsError> {
        let shared = (0..leaf.size().pages()).any(|i| self.state.memory.is_shared(leaf.entry.frame() + i));
        if !shared {
            return self.reuse(fault, leaf, cpu, below);
        }
        while leaf.level > Level::PTE {
            let (mut cx, _) = self.context(cpu, below);
            cx.split(fault.process, fault.page)?;
            leaf = self.state.processes.get(fault.process)?.table.leaf(fault.page).expect("a split keeps its pages");
        }
        if self.state.memory.is_shared(leaf.entry.frame()) {
            self.copy(fault, cpu, below)
        } else {
            self.reuse(fault, leaf, cpu, below)
        }
    }

    /// The page is not shared (any more): it becomes writable where it is (`wp_page_reuse`).
    fn reuse(&mut self, fault: &Fault, leaf: Leaf, cpu: Cpu, below: &mut dyn Below) -> Result<FaultKind, OsError> {
        let (mut cx, manager) = self.context(cpu, below);
        cx.touch_node(fault)?;
        cx.state.own(leaf.entry.frame(), fault.process, leaf.page);
        let flags = Entry::WRITABLE | Entry::ACCESSED | Entry::DIRTY;
        let table = &mut cx.state.processes.get_mut(fault.process)?.table;
        table.update(fault.page, |entry| entry.without(Entry::COPY_ON_WRITE).with(flags));
        cx.state.counters.faults_reused += 1;
        manager.remapped(&mut cx, fault)?;
        Ok(FaultKind::Reused)
    }

    /// `wp_page_copy`.
    fn copy(&mut self, fault: &Fault, cpu: Cpu, below: &mut dyn Below) -> Result<FaultKind, OsError> {
        let (mut cx, manager) = self.context(cpu, below);
        let to = manager.frame_for(&mut cx, fault, Fill::Copy)?;
        // Compaction may have run for `to`, and pages of the page cache move.
        let leaf = cx.state.processes.get(fault.process)?.table.leaf(fault.page).expect("it stays mapped");
        let from = leaf.entry.frame();
        let zeroes = cx.state.is_zero(from);
        let filled = if zeroes { cx.zero(FrameRange::single(to)) } else { cx.below.copy(from, to) };
        let filled = filled.and_then(|()| cx.touch_node(fault));
        if let Err(error) = filled {
            manager.release(&mut cx, fault.process, fault.page, FrameRange::single(to), Cause::Replaced);
            return Err(error);
        }
        cx.leave(manager, fault.process, fault.page, from, leaf);
        cx.state.own(to, fault.process, fault.page);
        let table = &mut cx.state.processes.get_mut(fault.process)?.table;
        table.update(fault.page, |_| Entry::leaf(to, fault.leaf_flags()));
        cx.invalidate(fault.process, VpnRange::new(fault.page, PageCount(1)), false);
        cx.state.counters.copied_4k += u64::from(!zeroes);
        cx.state.counters.faults_copied += 1;
        manager.remapped(&mut cx, fault)?;
        Ok(FaultKind::Copied)
    }

    /// From `page` of `process` on, how many pages the hardware can load from (or store to) without
    /// a fault, up to the end of the leaf that covers it. Sets the bits that the hardware would
    /// set.
    ///
    /// # Errors
    /// When there is no such process.
    #[inline]
    pub fn backed_span(&mut self, process: ProcessId, page: Vpn, store: bool) -> Result<PageCount, OsError> {
        let table = &mut self.state.processes.get_mut(process)?.table;
        let (node, level) = table.lowest_node(page);
        let index = table.geometry().index(page, level);
        let entry = table.entry(node, index);
        let (needs, marks) = hardware_bits(store);
        if !entry.has(needs) {
            return Ok(PageCount(0));
        }
        table.mark(node, index, marks);
        let span = 1u64 << table.geometry().entry_order(level);
        if store && level > Level::PTE && self.state.watches_stores {
            self.note_store(process, page);
        }
        Ok(PageCount(span - (page.0 & (span - 1))))
    }
}

/// Which bits of a leaf the hardware wants to see for a load (or store), and which it then sets.
#[inline(always)]
const fn hardware_bits(store: bool) -> (u64, u64) {
    if store {
        (Entry::PRESENT | Entry::WRITABLE, Entry::ACCESSED | Entry::DIRTY)
    } else {
        (Entry::PRESENT, Entry::ACCESSED)
    }
}

impl Context<'_> {
    /// The table node that maps the fault's page is written.
    fn touch_node(&mut self, fault: &Fault) -> Result<(), OsError> {
        let table = &self.state.processes.get(fault.process)?.table;
        let frame = table.node_frame(table.lowest_node(fault.page).0);
        self.write_node(fault.process, frame)
    }
}
