// SPDX-License-Identifier: MIT OR Apache-2.0
//! Freeing nodes that have become empty.

use super::PageTable;
use super::cursor::Cursor;
use crate::addr::{Frame, Vpn, VpnRange};
use crate::geometry::Level;

impl PageTable {
    /// Frees every node that covers part of `range` and has become empty (Linux's `free_pgtables`).
    /// The root stays. `released(level, first page, frame)` gets each frame.
    pub fn prune(&mut self, range: VpnRange, mut released: impl FnMut(Level, Vpn, Frame)) {
        self.prune_below(Cursor::at_root(&self.nodes, Vpn(0)), range, &mut released);
    }

    /// Prunes below the node at `node`, whose page is the first that it covers.
    fn prune_below(&mut self, node: Cursor, range: VpnRange, released: &mut impl FnMut(Level, Vpn, Frame)) {
        if node.level == Level::PTE {
            return;
        }
        for (_, page) in self.entries_over(node.level, node.page, range) {
            let at = Cursor { page, ..node };
            let entry = at.entry(&self.nodes);
            if !entry.is_present() || entry.is_leaf() {
                continue;
            }
            let child = at.down(entry.node());
            self.prune_below(child, range, released);
            if self.nodes.used(child.node) == 0 {
                let slot = at.slot(&self.nodes);
                self.nodes.clear(at.node, slot);
                self.writes.add(&self.nodes, at);
                if child.level == Level::PTE {
                    self.pte_nodes.remove(self.block(page));
                }
                released(child.level, page, self.nodes.remove(child.node));
            }
        }
    }
}
