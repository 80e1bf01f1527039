// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store of a table's nodes: their entries in one flat array, and beside it what is known of
//! each node.

use super::entries::Entries;
use super::entry::Entry;
use super::node_id::NodeId;
use super::place::Place;
use crate::addr::Frame;
use crate::geometry::Geometry;

/// All nodes of a table. A *slot* is the index of an entry among those of all nodes.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    pub(super) geometry: Geometry,
    /// Node `n` is `entries[n << index_bits ..][.. 1 << index_bits]`.
    entries: Entries,
    /// Frame and parent of each node.
    places: Vec<Place>,
    /// How many entries of each node are not [`Entry::NONE`].
    used: Vec<u16>,
    /// Nodes that may be used again.
    free: Vec<NodeId>,
    /// How often a node was removed or moved.
    pub(super) changes: u64,
}

impl Nodes {
    /// A store with the root only, in frame `root`.
    pub(super) fn new(geometry: Geometry, root: Frame) -> Self {
        let (entries, places, used, free) = Default::default();
        let mut nodes = Self { geometry, entries, places, used, free, changes: 0 };
        nodes.add(root, NodeId::ROOT);
        nodes
    }

    #[inline]
    pub(super) fn slot(&self, node: NodeId, index: usize) -> usize {
        debug_assert!(index < self.geometry.entries());
        (node.0 as usize) << self.geometry.index_bits() | index
    }

    /// The entry at `slot`.
    #[inline(always)]
    pub(super) fn entry(&self, slot: usize) -> Entry {
        self.entries[slot]
    }

    /// All entries from `slot` on.
    #[inline(always)]
    pub(super) fn entries_from(&self, slot: usize) -> &[Entry] {
        &self.entries[slot..]
    }

    /// The 8 entries that share a cache line with the one at `slot`.
    #[inline]
    pub(super) fn line(&self, slot: usize) -> &[Entry; 8] {
        self.entries.line(slot)
    }

    #[inline]
    pub(super) fn place(&self, node: NodeId) -> Place {
        self.places[node.0 as usize]
    }

    #[inline]
    pub(super) fn used(&self, node: NodeId) -> u16 {
        self.used[node.0 as usize]
    }

    /// The number of nodes in use.
    pub(super) fn count(&self) -> u64 {
        (self.places.len() - self.free.len()) as u64
    }

    /// The number of nodes that ever were, and those of them that are free.
    pub(super) fn known_and_free(&self) -> (usize, &[NodeId]) {
        (self.places.len(), &self.free)
    }

    /// Prefetches where `node` is and its entry `index`.
    #[inline]
    pub(super) fn prefetch(&self, node: NodeId, index: usize) {
        if let Some(place) = self.places.get(node.0 as usize) {
            crate::prefetch::prefetch(place);
        }
        self.prefetch_entry(node, index);
    }

    /// Prefetches entry `index` of `node`.
    #[inline]
    pub(super) fn prefetch_entry(&self, node: NodeId, index: usize) {
        if let Some(entry) = self.entries.get(self.slot(node, index)) {
            crate::prefetch::prefetch(entry);
        }
    }

    /// Puts `entry` into a slot of `node` that is empty.
    #[inline(always)]
    pub(super) fn fill(&mut self, node: NodeId, slot: usize, entry: Entry) {
        self.entries[slot] = entry;
        self.used[node.0 as usize] += 1;
    }

    /// The entry at `slot`, to change as long as that keeps it in use.
    #[inline(always)]
    pub(super) fn entry_mut(&mut self, slot: usize) -> &mut Entry {
        &mut self.entries[slot]
    }

    /// Empties a slot of `node` that is in use.
    #[inline(always)]
    pub(super) fn clear(&mut self, node: NodeId, slot: usize) {
        self.entries[slot] = Entry::NONE;
        self.used[node.0 as usize] -= 1;
    }

    /// Fills a new node: entry `i` becomes `entry_of(i)`.
    pub(super) fn fill_all(&mut self, node: NodeId, entry_of: impl Fn(usize) -> Entry) {
        for index in 0..self.geometry.entries() {
            let slot = self.slot(node, index);
            self.entries[slot] = entry_of(index);
        }
        self.used[node.0 as usize] = self.geometry.entries() as u16;
    }

    /// A new, empty node in `frame`.
    ///
    /// # Panics
    /// When there are 2^24 nodes already.
    pub(super) fn add(&mut self, frame: Frame, parent: NodeId) -> NodeId {
        let place = Place::new(frame, parent);
        if let Some(node) = self.free.pop() {
            self.places[node.0 as usize] = place;
            return node;
        }
        assert!(self.places.len() < 1 << NodeId::BITS, "a table of 2^{} nodes", NodeId::BITS);
        let node = NodeId(self.places.len() as u32);
        self.entries.grow(self.geometry.entries());
        self.places.push(place);
        self.used.push(0);
        node
    }

    /// Empties `node`, makes it free, and returns its frame.
    pub(super) fn remove(&mut self, node: NodeId) -> Frame {
        let first = self.slot(node, 0);
        self.entries[first..first + self.geometry.entries()].fill(Entry::NONE);
        self.used[node.0 as usize] = 0;
        self.free.push(node);
        self.changes += 1;
        self.place(node).frame()
    }

    /// Moves `node` to `frame` and returns the frame that it had.
    pub(super) fn relocate(&mut self, node: NodeId, frame: Frame) -> Frame {
        self.changes += 1;
        let moved = Place::new(frame, self.place(node).parent());
        std::mem::replace(&mut self.places[node.0 as usize], moved).frame()
    }
}
