// SPDX-License-Identifier: MIT OR Apache-2.0
//! Navigation: a position in a table, from which one goes up or down.

use super::entry::Entry;
use super::found::Leaf;
use super::node::Nodes;
use super::node_id::NodeId;
use crate::addr::Vpn;
use crate::geometry::Level;

/// A position in a table: the entry for `page` in `node`, a node of `level` that covers it.
///
/// Query and mutation descend once, to the lowest node, and work from there. The path above needs
/// no room here: each node knows its parent.
///
/// A cursor holds no borrow. It is right until its node is pruned or collapsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) page: Vpn,
    pub(super) node: NodeId,
    pub(super) level: Level,
}

impl Cursor {
    /// In the root, at the entry for `page`.
    #[inline]
    pub(super) fn at_root(nodes: &Nodes, page: Vpn) -> Self {
        Self { page, node: NodeId::ROOT, level: nodes.geometry.root() }
    }

    /// The slot of the entry.
    #[inline(always)]
    pub(super) fn slot(self, nodes: &Nodes) -> usize {
        nodes.slot(self.node, nodes.geometry.index(self.page, self.level))
    }

    /// The entry.
    #[inline(always)]
    pub(super) fn entry(self, nodes: &Nodes) -> Entry {
        nodes.entry(self.slot(nodes))
    }

    /// In the node that the entry points to.
    #[inline(always)]
    pub(super) fn down(self, child: NodeId) -> Self {
        Self { node: child, level: self.level.down(), ..self }
    }

    /// In the node that points to this one. Of the root there is none.
    #[inline]
    pub(super) fn up(self, nodes: &Nodes) -> Self {
        debug_assert!(self.node != NodeId::ROOT, "above the root");
        Self { node: nodes.place(self.node).parent(), level: self.level.up(), ..self }
    }

    /// The first page that the entry covers.
    #[inline]
    pub(super) fn first_page(self, nodes: &Nodes) -> Vpn {
        self.page.align_down(nodes.geometry.entry_order(self.level))
    }

    /// `entry`, which is or was here, as a leaf.
    #[inline(always)]
    pub(super) fn leaf(self, nodes: &Nodes, entry: Entry) -> Leaf {
        Leaf { entry, level: self.level, page: self.first_page(nodes) }
    }
}
