// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a look into a table finds.

use super::entry::Entry;
use super::node_id::NodeId;
use crate::addr::{Frame, Vpn};
use crate::geometry::{Level, PageSize};

/// The slot of a page's entry, in the lowest node that covers it. Valid until that node is pruned
/// or collapsed, or a lower one is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntrySlot {
    /// The node.
    pub node: NodeId,
    /// Its level.
    pub level: Level,
    /// The entry's index among those of all nodes.
    pub(super) slot: usize,
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
    /// On a leaf above the PUD, which [`PageTable::map`](super::PageTable::map) never makes.
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

/// A node seen while going through a whole table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeView {
    /// Its identity.
    pub node: NodeId,
    /// Its level.
    pub level: Level,
    /// The frame it sits in.
    pub frame: Frame,
    /// The first page that it translates.
    pub first_page: Vpn,
}
