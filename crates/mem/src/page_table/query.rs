// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is mapped, and where the hardware would find it.

use super::PageTable;
use super::cursor::Cursor;
use super::entry::Entry;
use super::found::{EntrySlot, Leaf};
use super::node_id::NodeId;
use super::version::Version;
use crate::addr::{ENTRY_BYTES, Frame, Pa, Vpn};
use crate::geometry::{Geometry, Level};

impl PageTable {
    /// Its shape.
    #[inline]
    pub const fn geometry(&self) -> Geometry {
        self.nodes.geometry
    }

    /// The top node, where every walk begins.
    #[inline]
    pub const fn root(&self) -> NodeId {
        NodeId::ROOT
    }

    /// Which table this is, and how often something that was true of it ceased to be.
    #[inline]
    pub const fn version(&self) -> Version {
        Version { table: self.identity.number(), node_changes: self.nodes.changes, leaf_changes: self.leaf_changes }
    }

    /// One more than the largest number that a node has, or had.
    #[inline]
    pub fn node_slots(&self) -> usize {
        self.nodes.known_and_free().0
    }

    /// The number of nodes, the root included.
    pub fn node_count(&self) -> u64 {
        self.nodes.count()
    }

    /// The frame of `node`.
    #[inline]
    pub fn node_frame(&self, node: NodeId) -> Frame {
        self.nodes.place(node).frame()
    }

    /// The node that points to `node`; of the root, the root.
    #[inline]
    pub fn parent(&self, node: NodeId) -> NodeId {
        self.nodes.place(node).parent()
    }

    /// [`PageTable::node_frame`] and [`PageTable::parent`].
    #[inline]
    pub fn frame_and_parent(&self, node: NodeId) -> (Frame, NodeId) {
        let place = self.nodes.place(node);
        (place.frame(), place.parent())
    }

    /// Entry `index` of `node`.
    #[inline]
    pub fn entry(&self, node: NodeId, index: usize) -> Entry {
        self.nodes.entry(self.nodes.slot(node, index))
    }

    /// The 8 entries that share a cache line with entry `index` of `node`.
    ///
    /// # Panics
    /// When nodes of this geometry are smaller than a line.
    #[inline]
    pub fn line(&self, node: NodeId, index: usize) -> &[Entry; 8] {
        assert!(self.geometry().index_bits() >= 3, "a node of less than 8 entries");
        self.nodes.line(self.nodes.slot(node, index))
    }

    /// The entry for `page` in `node`, a node of `level` that covers it.
    #[inline]
    pub fn entry_for(&self, node: NodeId, level: Level, page: Vpn) -> Entry {
        self.entry(node, self.geometry().index(page, level))
    }

    /// The physical address of entry `index` of `node`.
    #[inline]
    pub fn entry_address(&self, node: NodeId, index: usize) -> Pa {
        self.node_frame(node).address() + index as u64 * ENTRY_BYTES
    }

    /// Prefetches entry `index` of `node`, and the node's frame and parent, into this processor's
    /// caches. Changes nothing.
    #[inline]
    pub fn prefetch(&self, node: NodeId, index: usize) {
        self.nodes.prefetch(node, index);
    }

    /// The same of the entry only.
    #[inline]
    pub fn prefetch_entry(&self, node: NodeId, index: usize) {
        self.nodes.prefetch_entry(node, index);
    }

    /// The PTE node that covers `page`, if one look finds it, as it nearly always does.
    #[inline(always)]
    pub fn known_pte_node(&self, page: Vpn) -> Option<NodeId> {
        self.pte_nodes.find(self.block(page))
    }

    /// A cursor in the lowest node that covers `page`.
    #[inline(always)]
    pub(super) fn cursor(&self, page: Vpn) -> Cursor {
        let (node, level) = self.lowest_node(page);
        Cursor { page, node, level }
    }

    /// The lowest node that covers `page`, with its level.
    #[inline]
    pub fn lowest_node(&self, page: Vpn) -> (NodeId, Level) {
        match self.known_pte_node(page) {
            Some(node) => (node, Level::PTE),
            None => self.descend(page),
        }
    }

    /// The same, from the root down.
    #[inline(never)]
    pub(super) fn descend(&self, page: Vpn) -> (NodeId, Level) {
        let mut cursor = Cursor::at_root(&self.nodes, page);
        while cursor.level > Level::PTE {
            let entry = cursor.entry(&self.nodes);
            if !entry.is_present() || entry.is_leaf() {
                break;
            }
            cursor = cursor.down(entry.node());
        }
        (cursor.node, cursor.level)
    }

    /// The slot of the entry for `page`, and the entry, which may be none.
    #[inline(always)]
    pub fn find(&self, page: Vpn) -> (EntrySlot, Entry) {
        // Two calls, so that in the first the level is a constant.
        match self.known_pte_node(page) {
            Some(node) => self.find_at(Cursor { page, node, level: Level::PTE }),
            None => {
                let (node, level) = self.descend(page);
                self.find_at(Cursor { page, node, level })
            }
        }
    }

    #[inline(always)]
    fn find_at(&self, cursor: Cursor) -> (EntrySlot, Entry) {
        let slot = cursor.slot(&self.nodes);
        (EntrySlot { node: cursor.node, level: cursor.level, slot }, self.nodes.entry(slot))
    }

    /// How many entries of the slot's node are in use.
    #[inline]
    pub fn used_at(&self, slot: EntrySlot) -> u16 {
        self.nodes.used(slot.node)
    }

    /// Whether no page of the aligned 2^`order` block around `page` has an entry.
    #[inline]
    pub fn is_bare(&self, page: Vpn, order: u32) -> bool {
        let first = page.align_down(order);
        let (at, entry) = self.find(first);
        if order > self.geometry().index_bits() || at.level > Level::PTE {
            let whole = entry.is_none() && self.geometry().entry_order(at.level) >= order;
            return whole || (0..1 << order).all(|place| self.leaf(first + place).is_none());
        }
        self.nodes.entries_from(at.slot)[..1 << order].iter().fold(0, |any, entry| any | entry.0) == 0
    }

    /// The leaf for `page`, present or swapped; `None` if nothing is mapped.
    #[inline]
    pub fn leaf(&self, page: Vpn) -> Option<Leaf> {
        let cursor = self.cursor(page);
        let entry = cursor.entry(&self.nodes);
        (!entry.is_none()).then(|| cursor.leaf(&self.nodes, entry))
    }

    /// The frame behind `page`, if it is present.
    #[inline]
    pub fn translate(&self, page: Vpn) -> Option<Frame> {
        self.leaf(page).filter(|leaf| leaf.entry.is_present()).map(|leaf| leaf.frame_of(page))
    }

    /// The block of pages around `page` that one PTE node covers.
    #[inline(always)]
    pub(super) fn block(&self, page: Vpn) -> u64 {
        page.0 >> self.geometry().index_bits()
    }
}
