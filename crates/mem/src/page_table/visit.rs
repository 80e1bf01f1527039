// SPDX-License-Identifier: MIT OR Apache-2.0
//! Going through a whole table, or a range of it, and checking it.

use super::PageTable;
use super::entry::Entry;
use super::found::{Leaf, NodeView};
use super::node_id::NodeId;
use crate::addr::{Vpn, VpnRange};
use crate::geometry::Level;

impl PageTable {
    /// Visits every leaf that covers part of `range`, in order of address, swapped pages' notes
    /// included.
    pub fn for_each_leaf(&self, range: VpnRange, mut visit: impl FnMut(Leaf)) {
        self.visit_leaves(self.root(), self.geometry().root(), Vpn(0), range, &mut visit);
    }

    fn visit_leaves(&self, node: NodeId, level: Level, first: Vpn, range: VpnRange, visit: &mut impl FnMut(Leaf)) {
        for (index, page) in self.entries_over(level, first, range) {
            let entry = self.entry(node, index);
            if entry.is_none() {
                continue;
            }
            if entry.is_present() && !entry.is_leaf() {
                self.visit_leaves(entry.node(), level.down(), page, range, visit);
            } else {
                visit(Leaf { entry, level, page });
            }
        }
    }

    /// Visits every node, parents before children, in order of address.
    pub fn for_each_node(&self, mut visit: impl FnMut(NodeView)) {
        self.visit_nodes(self.root(), self.geometry().root(), Vpn(0), &mut visit);
    }

    fn visit_nodes(&self, node: NodeId, level: Level, first_page: Vpn, visit: &mut impl FnMut(NodeView)) {
        visit(NodeView { node, level, frame: self.node_frame(node), first_page });
        if level == Level::PTE {
            return;
        }
        for index in 0..self.geometry().entries() {
            let entry = self.entry(node, index);
            if entry.is_present() && !entry.is_leaf() {
                let child = first_page + ((index as u64) << self.geometry().entry_order(level));
                self.visit_nodes(entry.node(), level.down(), child, visit);
            }
        }
    }

    /// The entries of a node of `level` whose first page is `first` that cover part of `range`:
    /// index and first page.
    pub(super) fn entries_over(
        &self,
        level: Level,
        first: Vpn,
        range: VpnRange,
    ) -> impl Iterator<Item = (usize, Vpn)> + use<> {
        let order = self.geometry().entry_order(level);
        let count = self.geometry().entries() as u64;
        let from = range.start.0.saturating_sub(first.0) >> order;
        let to = range.end.0.saturating_sub(first.0).div_ceil(1 << order).min(count);
        (from..to).map(move |index| (index as usize, first + (index << order)))
    }

    /// Checks what must always hold: every node is reached once, and from its parent, its count of
    /// used entries is right, leaves are aligned, contiguous blocks are whole, and free nodes are
    /// empty.
    ///
    /// # Panics
    /// With a message that names the node, if something does not hold.
    pub fn check_invariants(&self) {
        let (known, free) = self.nodes.known_and_free();
        let mut seen = vec![false; known];
        self.for_each_node(|view| {
            let id = view.node.0 as usize;
            assert!(!std::mem::replace(&mut seen[id], true), "{view:?} is reached twice");
            let used = (0..self.geometry().entries()).filter(|&i| !self.entry(view.node, i).is_none()).count();
            assert_eq!(used, usize::from(self.nodes.used(view.node)), "the count of used entries of {view:?}");
            for index in 0..self.geometry().entries() {
                let entry = self.entry(view.node, index);
                if entry.is_leaf() {
                    assert!(view.level <= Level::PUD, "{view:?} holds a leaf");
                    let order = self.geometry().entry_order(view.level);
                    assert!(entry.frame().is_aligned(order), "{view:?}, entry {index}: {entry:?} is not aligned");
                    if entry.has(Entry::CONTIGUOUS) {
                        self.check_block(view, index);
                    }
                } else if entry.is_present() {
                    assert!(!entry.has(Entry::CONTIGUOUS), "{view:?}, entry {index} is no leaf");
                    assert!(view.level > Level::PTE, "{view:?} points below the PTEs");
                    assert_eq!(self.parent(entry.node()), view.node, "the parent of {:?}", entry.node());
                }
            }
        });
        self.pte_nodes.check_invariants(|block| self.descend(Vpn(block << self.geometry().index_bits())));
        for &node in free {
            assert!(!std::mem::replace(&mut seen[node.0 as usize], true), "{node:?} is free and in use");
            assert_eq!(self.nodes.used(node), 0, "{node:?} is free and not empty");
        }
        assert!(seen.iter().all(|&seen| seen), "a node is neither in the table nor free");
    }
}
