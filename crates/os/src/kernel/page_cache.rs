// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings of files, and the page cache behind them (`mm/filemap.c`, `do_fault` of
//! `mm/memory.c`).
//!
//! A page of a file is in one frame, which the cache owns, and which all processes that map the
//! page share. A load maps it without the right to store, and with it those of the 16 pages around
//! that are in the cache (`do_fault_around`). A page that is not there is read, with the 32 around
//! it (`do_sync_mmap_readahead`). A store to a private mapping copies the page; one to a shared
//! mapping makes it dirty. Reclaim goes over the cache with a clock of second chances.

use nestwalk_mem::{Cpu, Entry, Frame, FrameRange, Leaf, Level, Owner, PageCount, Vpn, VpnRange};

use crate::below::Below;
use crate::context::Context;
use crate::context::event::{Cause, Fault, Fill};
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::kernel::fault::FaultKind;
use crate::manager::contract::MemoryManager;
use crate::state::files::{FileId, FileName, Files, mappings_of};
use crate::state::process::ProcessId;
use crate::state::vma::FileView;

/// Pages that a fault maps at once, at most (`fault_around_bytes`, 64 KiB).
const AROUND: u64 = 16;
/// Pages that are read at once, at most (`VM_READAHEAD_PAGES`, 128 KiB).
const READAHEAD: u64 = 32;
/// More misses than hits by this many, and a fault reads its own page only (`MMAP_LOTSAMISS`).
const MISSES_MANY: u32 = 100;

impl Kernel {
    /// The file of that name; a new one of this size if there is none. A file that is too small
    /// grows.
    pub fn open_file(&mut self, name: FileName, size: PageCount) -> FileId {
        self.state.files.open(name, size)
    }

    /// Its files, and what of them is in the page cache.
    pub fn files(&self) -> &Files {
        &self.state.files
    }

    /// Frames of the page cache: of files, and what a start state left behind.
    pub fn cached(&self) -> PageCount {
        PageCount(self.state.files.cached().0 + self.state.cache.0)
    }

    /// A process reads `pages` of the file (`filemap_read`), into memory that it touches itself.
    /// Pages that are missing are read from storage, at most 32 in one go.
    ///
    /// # Errors
    /// When the file has no such pages, or memory is short and nothing can be reclaimed.
    pub fn read_file(
        &mut self,
        process: ProcessId,
        file: FileId,
        pages: std::ops::Range<u64>,
        below: &mut dyn Below,
    ) -> Result<(), OsError> {
        let cpu = self.check_file_pages(process, file, &pages)?;
        let mut at = pages.start;
        while at < pages.end {
            let end = pages.end.min(at + READAHEAD);
            let mut waited = false;
            // What has been read is not asked for again: where memory is very short, the next page
            // takes its frame.
            let mut next = at;
            self.retrying(cpu, below, |cx, manager| {
                while next < end {
                    cx.cache_page(manager, file, next, &mut waited)?;
                    next += 1;
                }
                Ok(())
            })?;
            for page in at..end {
                if let Some(cached) = self.state.files.page_mut(file, page) {
                    cached.referenced = true;
                }
            }
            self.state.counters.file_waits += u64::from(waited);
            self.state.counters.copied_file += end - at;
            at = end;
        }
        Ok(())
    }

    /// A process writes `pages` of the file, all of each (`generic_perform_write`), out of memory
    /// that it touches itself. They are written back when
    /// they are reclaimed.
    ///
    /// # Errors
    /// As [`Kernel::read_file`].
    pub fn write_file(
        &mut self,
        process: ProcessId,
        file: FileId,
        pages: std::ops::Range<u64>,
        below: &mut dyn Below,
    ) -> Result<(), OsError> {
        let cpu = self.check_file_pages(process, file, &pages)?;
        for page in pages {
            self.retrying(cpu, below, |cx, manager| {
                let frame = match cx.state.files.page(file, page) {
                    Some(cached) => cached.frame,
                    None => cx.new_cache_page(manager, file, page, |_, _| Ok(()))?,
                };
                cx.below.touch(FrameRange::single(frame), true)
            })?;
            if let Some(cached) = self.state.files.page_mut(file, page) {
                (cached.dirty, cached.referenced) = (true, true);
            }
            self.state.counters.copied_file += 1;
        }
        Ok(())
    }

    fn check_file_pages(
        &mut self,
        process: ProcessId,
        file: FileId,
        pages: &std::ops::Range<u64>,
    ) -> Result<Cpu, OsError> {
        let cpu = self.state.processes.get(process)?.cpu;
        if !self.state.files.has(file) || pages.end > self.state.files.get(file).size.0 || pages.is_empty() {
            return Err(OsError::BadRange(VpnRange { start: Vpn(pages.start), end: Vpn(pages.end) }));
        }
        self.state.counters.file_calls += 1;
        Ok(cpu)
    }

    /// A fault on a page of a file's mapping that has no entry (`do_fault`).
    #[cold]
    #[inline(never)]
    pub(super) fn file_fault(
        &mut self,
        fault: &Fault,
        view: FileView,
        cpu: Cpu,
        below: &mut dyn Below,
    ) -> Result<FaultKind, OsError> {
        let (process, page) = (fault.process, fault.page);
        if view.page(page) >= self.state.files.get(view.file).size.0 {
            // SIGBUS.
            return Err(OsError::Segfault { process, page });
        }
        let (mut cx, manager) = self.context(cpu, below);
        match (fault.store, view.shared) {
            (false, _) => cx.load_file(manager, fault, view),
            (true, false) => cx.copy_file_page(manager, fault, view),
            (true, true) => cx.store_file(manager, fault, view),
        }
    }

    /// A store to a page of a shared mapping of a file that has the right to load only
    /// (`wp_page_shared`).
    pub(super) fn make_file_writable(
        &mut self,
        fault: &Fault,
        view: FileView,
        cpu: Cpu,
        below: &mut dyn Below,
    ) -> Result<FaultKind, OsError> {
        let (mut cx, _) = self.context(cpu, below);
        while cx.state.processes.get(fault.process)?.table.leaf(fault.page).is_some_and(|leaf| leaf.level > Level::PTE)
        {
            cx.split(fault.process, fault.page)?;
        }
        cx.write_leaf_node(fault.process, fault.page)?;
        let flags = Entry::WRITABLE | Entry::ACCESSED | Entry::DIRTY;
        cx.state.processes.get_mut(fault.process)?.table.update(fault.page, |entry| entry.with(flags));
        if let Some(cached) = cx.state.files.page_mut(view.file, view.page(fault.page)) {
            cached.dirty = true;
        }
        cx.state.counters.faults_reused += 1;
        Ok(FaultKind::Reused)
    }
}

impl Context<'_> {
    /// `do_read_fault`: what is in the cache of the pages around is mapped; if the page itself is
    /// not among it, it is read and mapped alone.
    fn load_file(
        &mut self,
        manager: &mut dyn MemoryManager,
        fault: &Fault,
        view: FileView,
    ) -> Result<FaultKind, OsError> {
        if manager.map_file_block(self, fault, view)? {
            self.state.counters.faults_file += 1;
            return Ok(FaultKind::File { read: false });
        }
        let mut read = false;
        if !self.map_around(fault, view)? {
            let frame;
            (frame, read) = self.fetch(manager, view.file, view.page(fault.page))?;
            self.map_file_page(fault.process, fault.page, frame, Entry::ACCESSED)?;
        }
        manager.file_mapped(self, fault, view)?;
        Ok(self.note_file_fault(read))
    }

    /// `do_shared_fault`.
    fn store_file(
        &mut self,
        manager: &mut dyn MemoryManager,
        fault: &Fault,
        view: FileView,
    ) -> Result<FaultKind, OsError> {
        let (frame, read) = self.fetch(manager, view.file, view.page(fault.page))?;
        self.map_file_page(fault.process, fault.page, frame, fault.leaf_flags())?;
        if let Some(cached) = self.state.files.page_mut(view.file, view.page(fault.page)) {
            cached.dirty = true;
        }
        Ok(self.note_file_fault(read))
    }

    /// `do_cow_fault`.
    fn copy_file_page(
        &mut self,
        manager: &mut dyn MemoryManager,
        fault: &Fault,
        view: FileView,
    ) -> Result<FaultKind, OsError> {
        let to = manager.frame_for(self, fault, Fill::Copy)?;
        let filled = self.fetch(manager, view.file, view.page(fault.page)).and_then(|(from, read)| {
            self.below.copy(from, to)?;
            self.map_fault(fault, to)?;
            Ok(read)
        });
        match filled {
            Err(error) => {
                manager.release(self, fault.process, fault.page, FrameRange::single(to), Cause::Replaced);
                return Err(error);
            }
            Ok(read) => self.state.counters.file_waits += u64::from(read),
        }
        self.state.counters.copied_4k += 1;
        self.state.counters.faults_copied += 1;
        manager.remapped(self, fault)?;
        Ok(FaultKind::Copied)
    }

    fn note_file_fault(&mut self, read: bool) -> FaultKind {
        let counters = &mut self.state.counters;
        counters.faults_file += u64::from(!read);
        counters.faults_file_read += u64::from(read);
        counters.file_waits += u64::from(read);
        FaultKind::File { read }
    }

    /// Maps a page of the cache, which is shared from then on.
    ///
    /// # Errors
    /// When there is no memory for a table node, or nothing below backs it.
    fn map_file_page(&mut self, process: ProcessId, page: Vpn, frame: Frame, flags: u64) -> Result<(), OsError> {
        self.map_entry(process, page, Level::PTE, Entry::leaf(frame, flags))?;
        self.state.memory.share(frame);
        Ok(())
    }

    /// Maps what is in the cache of the 16 pages around the fault (`do_fault_around`,
    /// `filemap_map_pages`). Whether the fault's page is mapped then.
    fn map_around(&mut self, fault: &Fault, view: FileView) -> Result<bool, OsError> {
        let geometry = self.state.processes.get(fault.process)?.table.geometry();
        let start = fault.page.align_down(AROUND.ilog2()).max(fault.vma.range.start);
        let node_end = start.align_down(geometry.entry_order(Level::PMD)).0 + (1 << geometry.entry_order(Level::PMD));
        let file = self.state.files.get(view.file);
        let file_end = view.place(file.size.0).0;
        let end = (start.0 + AROUND).min(node_end).min(fault.vma.range.end.0).min(file_end);
        let mut mapped = 0;
        for page in (start.0..end).map(Vpn) {
            let Some(cached) = self.state.files.page(view.file, view.page(page)) else { continue };
            if self.state.processes.get(fault.process)?.table.find(page).1.is_none() {
                self.map_file_page(fault.process, page, cached.frame, Entry::ACCESSED)?;
                mapped += 1;
                self.state.counters.pages_mapped_around += u64::from(page != fault.page);
            }
        }
        let misses = &mut self.state.files.get_mut(view.file).misses;
        *misses = misses.saturating_sub(mapped);
        Ok(self.state.processes.get(fault.process)?.table.translate(fault.page).is_some())
    }

    /// The frame of a page of a file for a fault, and whether it had to be read (`filemap_fault`).
    fn fetch(&mut self, manager: &mut dyn MemoryManager, file: FileId, page: u64) -> Result<(Frame, bool), OsError> {
        let known = self.state.files.get_mut(file);
        if let Some(cached) = known.page(page) {
            known.misses = known.misses.saturating_sub(1);
            return Ok((cached.frame, false));
        }
        known.misses = (known.misses + 1).min(10 * MISSES_MANY);
        let mut read = false;
        if known.misses <= MISSES_MANY {
            let start = page.saturating_sub(READAHEAD / 2);
            let end = (start + READAHEAD).min(known.size.0);
            for ahead in start..end {
                match self.cache_page(manager, file, ahead, &mut read) {
                    // No memory is reclaimed for what may not be needed.
                    Err(OsError::OutOfMemory { .. }) => break,
                    other => other?,
                };
            }
        }
        // What was done for the pages around may have moved this one: its frame is looked up last.
        Ok((self.cache_page(manager, file, page, &mut read)?, true))
    }

    /// The frame of a page of a file, which is read if it is not in the cache: `read` is set then.
    fn cache_page(
        &mut self,
        manager: &mut dyn MemoryManager,
        file: FileId,
        page: u64,
        read: &mut bool,
    ) -> Result<Frame, OsError> {
        if let Some(cached) = self.state.files.page(file, page) {
            return Ok(cached.frame);
        }
        let frame = self.new_cache_page(manager, file, page, |cx, frame| cx.below.read_file(file, page, frame))?;
        self.state.counters.file_pages_read += 1;
        *read = true;
        Ok(frame)
    }

    /// A frame for a page of a file that is not in the cache, filled by `fill`.
    fn new_cache_page(
        &mut self,
        manager: &mut dyn MemoryManager,
        file: FileId,
        page: u64,
        fill: impl FnOnce(&mut Self, Frame) -> Result<(), OsError>,
    ) -> Result<Frame, OsError> {
        let frame = manager.file_frame(self, file, page)?;
        if let Err(error) = fill(self, frame) {
            manager.file_released(self, frame);
            return Err(error);
        }
        self.state.memory.set_owner(frame, Owner::File { file: file.0, page });
        self.state.files.insert(file, page, frame);
        Ok(frame)
    }

    /// A leaf that mapped pages of the cache has left its table: notes what its marks say of them,
    /// and that they have one mapping fewer (`zap_present_pte`).
    pub(crate) fn drop_file_frame(&mut self, frame: Frame, file: FileId, page: u64, leaf: Leaf) {
        if let Some(cached) = self.state.files.page_mut(file, page) {
            cached.dirty |= leaf.entry.has(Entry::DIRTY);
            cached.referenced |= leaf.entry.has(Entry::ACCESSED);
        }
        let others = self.state.memory.unshare(frame);
        debug_assert!(others, "the cache maps {frame:?}, too");
    }

    /// Goes over the page cache until `goal` frames are free, or each page has been looked at
    /// twice: those that were used since the last time stay, the others go, dirty ones written
    /// back.
    pub(crate) fn shrink_page_cache(&mut self, manager: &mut dyn MemoryManager, goal: u64) -> Result<(), OsError> {
        let mut looks = 2 * self.state.files.cached().0;
        while self.state.memory.free_frames().0 < goal
            && looks > 0
            && let Some((file, page)) = self.state.files.oldest()
        {
            looks -= 1;
            self.state.counters.reclaim_scanned += 1;
            if self.is_used(file, page)? || !self.evict_file_page(manager, file, page)? {
                self.state.files.keep();
            }
        }
        Ok(())
    }

    /// Whether a page of the cache has been used since it was last asked of it.
    fn is_used(&mut self, file: FileId, page: u64) -> Result<bool, OsError> {
        let Some(cached) = self.state.files.page_mut(file, page) else { return Ok(false) };
        let mut used = std::mem::take(&mut cached.referenced);
        let frame = cached.frame;
        if !self.state.memory.is_shared(frame) {
            return Ok(used);
        }
        for (process, at, leaf) in mappings_of(&self.state.processes, file, page, frame) {
            if leaf.entry.has(Entry::ACCESSED) {
                // One bit stands for all pages of a large leaf.
                for other in (0..leaf.size().pages()).map(|i| leaf.page + i).filter(|&other| other != at) {
                    let cached = self.state.files.page_mut(file, page.wrapping_add(other.0).wrapping_sub(at.0));
                    cached.into_iter().for_each(|cached| cached.referenced = true);
                }
                let table = &mut self.state.processes.get_mut(process)?.table;
                table.update(at, |entry| entry.without(Entry::ACCESSED));
                self.state.invalidations.epoch += 1;
                used = true;
            }
        }
        Ok(used)
    }

    /// The page at the clock's hand goes: out of all page tables, back to storage if it is dirty,
    /// and out of the cache. `false` if there is no memory to split a large leaf.
    fn evict_file_page(&mut self, manager: &mut dyn MemoryManager, file: FileId, page: u64) -> Result<bool, OsError> {
        let Some(cached) = self.state.files.page(file, page) else { return Ok(false) };
        let frame = cached.frame;
        if self.state.memory.is_shared(frame) {
            for (process, at, leaf) in mappings_of(&self.state.processes, file, page, frame) {
                if leaf.level > Level::PTE && self.split(process, at).is_err() {
                    return Ok(false);
                }
                let Some(leaf) = self.state.processes.get(process)?.table.leaf(at) else { continue };
                self.write_leaf_node(process, at)?;
                self.state.processes.get_mut(process)?.table.unmap(at);
                self.drop_file_frame(frame, file, page, leaf);
                self.invalidate(process, VpnRange::new(at, PageCount(1)), false);
            }
        }
        if self.state.files.page(file, page).is_some_and(|cached| cached.dirty) {
            self.below.write_file(file, page, frame)?;
            self.state.counters.file_pages_written += 1;
        } else {
            self.state.counters.reclaimed_clean += 1;
        }
        self.state.files.remove();
        manager.file_released(self, frame);
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
