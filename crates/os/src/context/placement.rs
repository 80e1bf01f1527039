// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a table placement is, and what it works with.
//!
//! A [`TablePlacement`] picks the frame of each new node and takes back those of nodes that are
//! gone. It hears of mappings that are made, grow and go, may set frames aside, may move nodes, and
//! may talk to the kernel below.

use std::fmt;

use nestwalk_mem::counters::Counter;
use nestwalk_mem::{Cpu, Frame, FrameRange, Level, Owner, PageCount, Vpn, VpnRange};

use super::migrate;
use crate::below::{Below, Hypercall, HypercallReply};
use crate::error::OsError;
use crate::state::KernelState;
use crate::state::process::ProcessId;
use crate::state::vma::Vma;

/// Which node of which table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeKey {
    /// Whose table.
    pub process: ProcessId,
    /// The node's level.
    pub level: Level,
    /// The first page that it covers.
    pub first: Vpn,
}

/// Nodes of one level that lie in order in contiguous frames: node `i` over `pages`, which are
/// whole nodes' pages, is at `base + i` if it is not in a hole (ASAP's descriptors).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableRegion {
    /// The pages whose nodes lie there.
    pub pages: VpnRange,
    /// The nodes' level.
    pub level: Level,
    /// The first node's frame.
    pub base: Frame,
    /// Where that frame lies in the memory below, if the kernel there has made all of the region
    /// contiguous.
    pub below: Option<Frame>,
}

/// Picks frames for page-table nodes. Called when a node is made or freed, never on an access.
pub trait TablePlacement: fmt::Debug + Send {
    /// Its name in tables of results.
    fn name(&self) -> &'static str;

    /// A frame for a new node; `None` if there is none. The caller zeroes it and says who owns it.
    fn place(&mut self, cx: &mut TableContext<'_>, node: NodeKey) -> Option<Frame>;

    /// Takes back the frame of a node that is gone.
    fn release(&mut self, cx: &mut TableContext<'_>, node: NodeKey, frame: Frame);

    /// Process `process` has a new mapping `vma`, which is among its mappings now.
    fn vma_created(&mut self, cx: &mut TableContext<'_>, process: ProcessId, vma: Vma) {
        let _ = (cx, process, vma);
    }

    /// A mapping grew from `before` to `after` (its flags and one end at least are the same).
    fn vma_grown(&mut self, cx: &mut TableContext<'_>, process: ProcessId, before: Vma, after: Vma) {
        let _ = (cx, process, before, after);
    }

    /// These pages are no longer mapped, and their nodes are gone if nothing else needs them.
    fn vma_removed(&mut self, cx: &mut TableContext<'_>, process: ProcessId, pages: VpnRange) {
        let _ = (cx, process, pages);
    }

    /// The process is gone with all its nodes.
    fn exited(&mut self, cx: &mut TableContext<'_>, process: ProcessId) {
        let _ = (cx, process);
    }

    /// Time has passed.
    ///
    /// # Errors
    /// When nothing below backs a frame.
    fn tick(&mut self, cx: &mut TableContext<'_>) -> Result<(), OsError> {
        let _ = cx;
        Ok(())
    }

    /// Whether its daemon has work that does not wait for any time to pass: the next tick should
    /// come soon.
    fn has_work(&self) -> bool {
        false
    }

    /// Memory is short: gives back up to `want` frames that no node uses, and returns how many.
    fn pressure(&mut self, cx: &mut TableContext<'_>, want: PageCount) -> PageCount {
        let _ = (cx, want);
        PageCount(0)
    }

    /// Frames that it has set aside and in which no node lies.
    fn reserved(&self) -> PageCount {
        PageCount(0)
    }

    /// Where nodes of `process` lie in order, for the hardware that makes use of it.
    fn regions(&self, process: ProcessId) -> &[TableRegion] {
        let _ = process;
        &[]
    }

    /// A number that changes whenever [`TablePlacement::regions`] of some process do.
    fn regions_generation(&self) -> u64 {
        0
    }

    /// Counters of its own, which its file [declares](nestwalk_mem::counters). All of them, whatever
    /// it has done.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    /// Checks what must always hold.
    ///
    /// # Panics
    /// With a message that names the place, if something does not hold.
    fn check_invariants(&self, state: &KernelState) {
        let _ = state;
    }
}

/// What a placement works with: a [`Context`](crate::context::Context) without placements.
pub struct TableContext<'a> {
    /// Memory, processes, counters, clock.
    pub state: &'a mut KernelState,
    /// What lies under this kernel's memory.
    pub below: &'a mut dyn Below,
    /// The processor that works.
    pub cpu: Cpu,
}

impl TableContext<'_> {
    /// Gets a frame for a node, zeroes it, and says whose it is.
    ///
    /// # Errors
    /// When there is none, or nothing below backs it.
    pub fn place_node(
        &mut self,
        tables: &mut dyn TablePlacement,
        process: ProcessId,
        level: Level,
        first: Vpn,
    ) -> Result<Frame, OsError> {
        let node = NodeKey { process, level, first };
        let Some(frame) = tables.place(self, node) else {
            let memory = &self.state.memory;
            return Err(OsError::OutOfMemory { free: memory.free_frames(), all: memory.frames() });
        };
        if let Err(error) = self.below.zero(FrameRange::single(frame)) {
            tables.release(self, node, frame);
            return Err(error);
        }
        self.state.counters.zeroed_4k += 1;
        self.state.counters.nodes_made += 1;
        self.state.memory.set_owner(frame, Owner::TableNode { process: process.0 });
        Ok(frame)
    }

    /// `count` contiguous frames, aligned to `2^align`, moving what lies there if need be
    /// (`alloc_contig_pages`).
    pub fn alloc_range(&mut self, count: PageCount, align: nestwalk_mem::Order) -> Option<FrameRange> {
        migrate::alloc_range(self.state, self.below, count, align)
    }

    /// As many of `frames` as are free or can be made so by moving what lies there: for each
    /// whether it could be had.
    pub fn alloc_at(&mut self, frames: FrameRange) -> Vec<bool> {
        migrate::alloc_at(self.state, self.below, frames)
    }

    /// Asks the kernel below for something.
    pub fn hypercall(&mut self, call: Hypercall) -> HypercallReply {
        self.state.counters.hypercalls += 1;
        self.below.hypercall(call)
    }
}
