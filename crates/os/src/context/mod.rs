// SPDX-License-Identifier: MIT OR Apache-2.0
//! The toolbox that memory managers and the kernel's own mechanisms work with. It knows no memory
//! manager: a manager may do what is here, and nothing else.

pub mod collapse;
pub(crate) mod contiguous;
pub mod event;
pub(crate) mod migrate;
pub mod placement;

use nestwalk_mem::{Cpu, Entry, Frame, FrameRange, Level, NodeId, Order, Owner, PageCount, PageSize, Vpn, VpnRange};

use crate::below::{Below, Hypercall, HypercallReply};
use crate::context::event::Fault;
pub use crate::context::migrate::Outcome;
use crate::context::placement::{NodeKey, TableContext, TablePlacement};
use crate::error::OsError;
use crate::state::KernelState;
use crate::state::process::{Process, ProcessId};

/// One kernel at work on behalf of one processor: everything but the memory manager itself.
///
/// A method that wants memory returns [`OsError::OutOfMemory`] when none is free, and has then
/// changed nothing: the kernel reclaims some and calls the memory manager again. So a manager never
/// reclaims, and must be able to begin anew.
pub struct Context<'a> {
    /// Memory, processes, counters, clock.
    pub state: &'a mut KernelState,
    /// Where table nodes are put.
    pub tables: &'a mut dyn TablePlacement,
    /// What lies under this kernel's memory.
    pub below: &'a mut dyn Below,
    /// The processor that works.
    pub cpu: Cpu,
}

impl Context<'_> {
    /// One frame for a user page.
    ///
    /// # Errors
    /// When none is free.
    #[inline(always)]
    pub fn page_frame(&mut self) -> Result<Frame, OsError> {
        match self.state.alloc(Order::PAGE, self.cpu) {
            Some(frame) => Ok(frame),
            None => Err(self.out_of_memory()),
        }
    }

    /// The error that asks the kernel to reclaim.
    #[cold]
    pub fn out_of_memory(&self) -> OsError {
        OsError::OutOfMemory { free: self.state.memory.free_frames(), all: self.state.memory.frames() }
    }

    /// Gives `frames`, which nothing maps, back to the buddy allocator: in the largest aligned
    /// blocks.
    pub fn free(&mut self, frames: FrameRange) {
        if frames.count.0 == 1 && self.state.gather.holds_back() {
            let KernelState { gather, memory, .. } = &mut *self.state;
            return gather.add(frames.start, memory, self.cpu);
        }
        let (mut at, end) = (frames.start.0, frames.end().0);
        while at < end {
            let fit = 63 - (end - at).leading_zeros();
            let order = fit.min(at.trailing_zeros()).min(u32::from(Order::MAX.0));
            self.state.memory.free(Frame(at), Order(order as u8), self.cpu);
            at += 1 << order;
        }
    }

    /// Zeroes `frames` (one page, or one huge page at once).
    ///
    /// # Errors
    /// When nothing below backs them.
    #[inline(always)]
    pub fn zero(&mut self, frames: FrameRange) -> Result<(), OsError> {
        self.below.zero(frames)?;
        match frames.count.0 {
            512 => self.state.counters.zeroed_2m += 1,
            pages => self.state.counters.zeroed_4k += pages,
        }
        Ok(())
    }

    /// Maps `frames`' page of `size` at `page`, which must be a multiple of the size and where
    /// nothing may be mapped yet, says who owns the frames, and tells below of the table node
    /// written. Makes the nodes that are missing.
    ///
    /// # Errors
    /// When there is no frame for a node, or nothing below backs it. The page is then not mapped.
    #[inline]
    pub fn map(
        &mut self,
        process: ProcessId,
        page: Vpn,
        frame: Frame,
        size: PageSize,
        flags: u64,
    ) -> Result<(), OsError> {
        self.map_entry(process, page, size.level(), Entry::leaf(frame, flags))?;
        self.state.own(frame, process, page);
        Ok(())
    }

    /// [`Context::map`] of a small page for a fault, whose slot in the table is known already.
    ///
    /// # Errors
    /// As [`Context::map`].
    #[inline(always)]
    pub fn map_fault(&mut self, fault: &Fault, frame: Frame) -> Result<(), OsError> {
        let Fault { process, page, slot, .. } = *fault;
        let entry = Entry::leaf(frame, fault.leaf_flags());
        let space = self.state.processes.get_mut(process)?;
        if slot.level == Level::PTE && is_written(space, space.table.node_frame(slot.node), self.below) {
            space.table.set_at(slot, page, entry);
        } else {
            self.map_entry_anew(process, page, Level::PTE, entry)?;
        }
        self.state.own(frame, process, page);
        Ok(())
    }

    /// [`Context::map`] for any entry, without saying who owns the frames.
    ///
    /// # Errors
    /// As [`Context::map`].
    #[inline(always)]
    pub fn map_entry(&mut self, process: ProcessId, page: Vpn, level: Level, entry: Entry) -> Result<(), OsError> {
        let space = self.state.processes.get_mut(process)?;
        let (node, lowest) = space.table.lowest_node(page);
        if lowest == level && is_written(space, space.table.node_frame(node), self.below) {
            space.table.set_in(node, page, level, entry);
            return Ok(());
        }
        self.map_entry_anew(process, page, level, entry)
    }

    /// The same where the node was not written last, or is not there.
    #[inline(never)]
    fn map_entry_anew(&mut self, process: ProcessId, page: Vpn, level: Level, entry: Entry) -> Result<(), OsError> {
        let (node, frame) = self.make_nodes(process, page, level)?;
        self.write_node(process, frame)?;
        self.state.processes.get_mut(process)?.table.set_in(node, page, level, entry);
        Ok(())
    }

    /// Tells below that the node of `process`'s table in `frame` is written, unless it was the last
    /// one and nothing has changed.
    ///
    /// # Errors
    /// When there is no such process, or nothing below backs the frame.
    #[inline]
    pub fn write_node(&mut self, process: ProcessId, frame: Frame) -> Result<(), OsError> {
        if is_written(self.state.processes.get(process)?, frame, self.below) {
            return Ok(());
        }
        self.below.touch(FrameRange::single(frame), true)?;
        let written = self.below.epoch().map(|epoch| (frame, epoch));
        self.state.processes.get_mut(process)?.last_node = written;
        Ok(())
    }

    /// Tells below that the node which holds the leaf of `page` is written.
    pub(crate) fn write_leaf_node(&mut self, process: ProcessId, page: Vpn) -> Result<(), OsError> {
        let table = &self.state.processes.get(process)?.table;
        let frame = table.node_frame(table.lowest_node(page).0);
        self.write_node(process, frame)
    }

    /// Makes the nodes down to `level` that are missing over `page`, and returns the lowest with
    /// its frame.
    ///
    /// # Errors
    /// When there is no frame for one, or nothing below backs it.
    pub fn make_nodes(&mut self, process: ProcessId, page: Vpn, level: Level) -> Result<(NodeId, Frame), OsError> {
        let Self { state, tables, below, cpu } = self;
        loop {
            let table = &state.processes.get(process)?.table;
            let geometry = table.geometry();
            let lowest = table.lowest_node(page).1;
            if lowest <= level {
                // Leaves the node in the table's cache.
                let table = &mut state.processes.get_mut(process)?.table;
                let node =
                    table.ensure_node(page, level, |_, _| -> Result<_, OsError> { unreachable!("it exists") })?;
                return Ok((node, table.node_frame(node)));
            }
            let first = page.align_down(geometry.entry_order(lowest));
            let mut cx = TableContext { state, below: *below, cpu: *cpu };
            let frame = cx.place_node(*tables, process, lowest.down(), first)?;
            let table = &mut state.processes.get_mut(process)?.table;
            table.ensure_node(page, lowest.down(), |_, _| Ok::<_, OsError>(frame))?;
        }
    }

    /// Splits the large leaf that covers `page`, if one does, into leaves of the next smaller size
    /// (`split_huge_pmd`), each of which keeps its flags and its sharers.
    ///
    /// # Errors
    /// When there is no frame for the node, or nothing below backs it.
    pub fn split(&mut self, process: ProcessId, page: Vpn) -> Result<(), OsError> {
        let Self { state, tables, below, cpu } = self;
        let table = &state.processes.get(process)?.table;
        let Some(leaf) = table.leaf(page).filter(|leaf| leaf.level > Level::PTE) else { return Ok(()) };
        let mut cx = TableContext { state, below: *below, cpu: *cpu };
        let frame = cx.place_node(*tables, process, leaf.level.down(), leaf.page)?;
        state.processes.get_mut(process)?.table.split(page, frame);
        if state.contiguous && leaf.level == Level::PMD {
            contiguous::join_all(&mut state.processes.get_mut(process)?.table, leaf);
        }
        let step = 1 << state.processes.get(process)?.table.geometry().entry_order(leaf.level.down());
        for i in (0..leaf.size().pages()).step_by(step) {
            if !state.memory.is_shared(leaf.entry.frame() + i) {
                state.own(leaf.entry.frame() + i, process, leaf.page + i);
            }
        }
        state.counters.splits += 1;
        let range = VpnRange::new(leaf.page, PageCount(leaf.size().pages()));
        state.invalidations.pages(&mut state.counters, process, range, false);
        Ok(())
    }

    /// Frees the nodes over `range` that have become empty.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn prune(&mut self, process: ProcessId, range: VpnRange) -> Result<bool, OsError> {
        let mut freed = Vec::new();
        let table = &mut self.state.processes.get_mut(process)?.table;
        table.prune(range, |level, first, frame| freed.push((level, first, frame)));
        for &(level, first, frame) in &freed {
            self.release_node(process, level, first, frame);
        }
        Ok(!freed.is_empty())
    }

    /// Hands the frame of a node that left the table back to the table placement.
    pub fn release_node(&mut self, process: ProcessId, level: Level, first: Vpn, frame: Frame) {
        self.state.counters.nodes_freed += 1;
        let mut cx = TableContext { state: self.state, below: self.below, cpu: self.cpu };
        self.tables.release(&mut cx, NodeKey { process, level, first }, frame);
    }

    /// Moves pages until a block of `order` is free (direct compaction), unless that has failed
    /// lately.
    pub fn compact(&mut self, order: Order) -> Outcome {
        if self.state.deferral.defers(order) {
            return Outcome::Deferred;
        }
        if self.state.is_below_mark(order) {
            return Outcome::Skipped;
        }
        let outcome = migrate::compact(self.state, self.below, order);
        if outcome != Outcome::Skipped {
            // COMPACTSTALL is no other.
            self.state.counters.compactions_direct += 1;
            if outcome == Outcome::Done || !self.state.memory.keeps_skip_hints() {
                self.state.deferral.note(order, outcome == Outcome::Done);
            }
        }
        outcome
    }

    /// Moves the page in `from` to `to`, which is the caller's, if it is a mapped 4 KiB page that
    /// is not shared. `from` is the caller's then. The memory manager is not told: it asked.
    pub fn relocate(&mut self, from: Frame, to: Frame) -> bool {
        migrate::relocate(self.state, self.below, from, to)
    }

    /// Asks the background daemon for a block of `order` (kcompactd), which it will make at the
    /// next tick.
    pub fn compact_later(&mut self, order: Order) {
        self.state.compaction_wanted = Some(order);
    }

    /// Asks the kernel below for something.
    pub fn hypercall(&mut self, call: Hypercall) -> HypercallReply {
        self.state.counters.hypercalls += 1;
        self.below.hypercall(call)
    }

    /// Tells cores to forget translations of `range`.
    pub fn invalidate(&mut self, process: ProcessId, range: VpnRange, nodes: bool) {
        self.state.invalidations.pages(&mut self.state.counters, process, range, nodes);
    }

    /// Accessed bits have been cleared: invalidates what is remembered of them below.
    pub fn forget_marks(&mut self) {
        self.state.invalidations.epoch += 1;
    }

    /// Says that `frames` are set aside for `process`.
    pub fn reserve(&mut self, process: ProcessId, frames: FrameRange) {
        self.state.memory.set_owners(frames, Owner::Reserved { process: process.0 });
    }
}

/// Whether the node of the process's table in `frame` was the last one that was written, and
/// nothing has changed below since.
#[inline(always)]
fn is_written(space: &Process, frame: Frame, below: &dyn Below) -> bool {
    space.last_node.is_some_and(|(last, epoch)| last == frame && below.epoch() == Some(epoch))
}
