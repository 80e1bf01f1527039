// SPDX-License-Identifier: MIT OR Apache-2.0
//! A radix page table, whose pages are allocated from simulated physical memory.
//!
//! One type serves guest and host, 4 and 5 levels and the odd shapes of tests: its [`Geometry`] says
//! which. A page of the table is a *node*. All nodes lie in one flat array, so a step of a walk is one
//! load. Each node has a parent and a [`Frame`]: the caches see the physical addresses of entries.
//! Entries look like x86-64's, but a pointer to a lower node holds its [`NodeId`], not its frame.
//!
//! The table neither allocates nor frees frames: the caller of [`PageTable::map`] passes a source of
//! node frames, and [`PageTable::prune`] hands them back. That is the seam for table placement
//! (HugeGPT's pool, ASAP's sorted regions).
//!
//! A file has one job: `node` stores nodes, `cursor` navigates, `query` reads, `mutation` maps and
//! unmaps, `prune` frees nodes, `write_log` records writes, `version` says what still holds, `visit` goes through a whole table.

mod cursor;
mod entries;
mod entry;
mod lookaside;
mod mutation;
mod node;
mod place;
mod prune;
mod query;
#[cfg(test)]
mod tests;
mod version;
mod visit;
mod write_log;

use crate::addr::{Frame, Vpn};
use crate::geometry::{Geometry, Level, PageSize};

pub use self::entry::Entry;
use self::lookaside::Lookaside;
pub use self::node::NodeId;
use self::node::Nodes;
use self::place::Place;
use self::version::Identity;
pub use self::version::Version;
pub use self::visit::NodeView;
pub use self::write_log::Write;
use self::write_log::WriteLog;

/// The slot of a page's entry, in the lowest node that covers it. Valid until that node is pruned or
/// collapsed, or a lower one is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntrySlot {
    /// The node.
    pub node: NodeId,
    /// Its level.
    pub level: Level,
    /// The entry's index among those of all nodes.
    slot: usize,
}

/// A leaf found for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// The entry, which may be a swapped page's.
    pub entry: Entry,
    /// The level of its node.
    pub level: Level,
    /// The first page that it covers.
    pub page: Vpn,
}

impl Leaf {
    /// The size of its page.
    ///
    /// # Panics
    /// On a leaf above the PUD, which [`PageTable::map`] never makes.
    #[inline]
    pub const fn size(self) -> PageSize {
        match PageSize::of_level(self.level) {
            Some(size) => size,
            None => panic!("a leaf above the PUD"),
        }
    }

    /// The 4 KiB frame behind `page`, which must be one of those that this leaf covers.
    #[inline]
    pub const fn frame_of(self, page: Vpn) -> Frame {
        Frame(self.entry.frame().0 + (page.0 - self.page.0))
    }
}

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
}
