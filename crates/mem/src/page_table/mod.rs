// SPDX-License-Identifier: MIT OR Apache-2.0
//! A radix page table, whose pages are allocated from simulated physical memory.
//!
//! One type serves guest and host, 4 and 5 levels and the odd shapes of tests: its [`Geometry`]
//! says which. A page of the table is a *node*. All nodes lie in one flat array, so a step of a
//! walk is one load. Each node has a parent and a [`Frame`]: the caches see the physical addresses
//! of entries. Entries look like x86-64's, but a pointer to a lower node holds its [`NodeId`], not
//! its frame.
//!
//! The table neither allocates nor frees frames: the caller of [`PageTable::map`] passes a source
//! of node frames, and [`PageTable::prune`] hands them back. That is the seam for table placement
//! (HugeGPT's pool, ASAP's sorted regions).
//!
//! A file has one job: `node` stores nodes, `cursor` navigates, `query` reads, `mutation` maps and
//! unmaps, `contiguous` marks blocks of 64 KiB, `prune` frees nodes, `write_log` records writes,
//! `version` says what still holds, `visit` goes through a whole table; `found` has what look-ups
//! return.

mod contiguous;
mod cursor;
mod entries;
mod entry;
mod found;
mod lookaside;
mod mutation;
mod node;
mod node_id;
mod place;
mod prune;
mod query;
#[cfg(test)]
mod tests;
mod version;
mod visit;
mod write_log;

use crate::addr::Frame;
use crate::geometry::Geometry;

pub use self::entry::Entry;
pub use self::found::{EntrySlot, Leaf, NodeView};
use self::lookaside::Lookaside;
use self::node::Nodes;
pub use self::node_id::NodeId;
use self::version::Identity;
pub use self::version::Version;
pub use self::write_log::Write;
use self::write_log::WriteLog;

/// A radix page table. See the [module's documentation](self).
#[derive(Clone, Debug)]
pub struct PageTable {
    nodes: Nodes,
    /// The PTE nodes by address.
    pte_nodes: Lookaside,
    writes: WriteLog,
    identity: Identity,
    /// See [`Version`].
    leaf_changes: u64,
}

impl PageTable {
    /// An empty table whose root is in frame `root`.
    pub fn new(geometry: Geometry, root: Frame) -> Self {
        Self {
            nodes: Nodes::new(geometry, root),
            pte_nodes: Lookaside::new(),
            writes: WriteLog::default(),
            identity: Identity::new(),
            leaf_changes: 0,
        }
    }

    /// Records from now on what software writes (not what hardware does: [`PageTable::mark`]).
    pub fn watch(&mut self) {
        self.writes.start();
    }

    /// Whether writes are recorded.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.writes.is_started()
    }

    /// Takes the writes recorded since the last call. Empty unless the table is
    /// [watched](PageTable::watch).
    pub fn take_writes(&mut self) -> Vec<Write> {
        self.writes.take()
    }
}
