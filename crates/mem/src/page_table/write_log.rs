// SPDX-License-Identifier: MIT OR Apache-2.0
//! What software wrote to a table, for a hypervisor that write-protects its nodes (shadow paging).

use super::cursor::Cursor;
use super::node::Nodes;
use super::node_id::NodeId;
use crate::addr::{PageCount, VpnRange};

/// Something that software wrote to a table. A hypervisor that write-protects the node is trapped
/// to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// The node that was written to.
    pub node: NodeId,
    /// The pages whose translation may have changed.
    pub pages: VpnRange,
}

/// The writes since they were last taken, if the table is watched.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteLog(Option<Vec<Write>>);

impl WriteLog {
    /// Records from now on.
    pub(super) fn start(&mut self) {
        self.0.get_or_insert_default();
    }

    pub(super) const fn is_started(&self) -> bool {
        self.0.is_some()
    }

    /// Takes what was recorded.
    pub(super) fn take(&mut self) -> Vec<Write> {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The entry at `cursor` was written.
    #[inline(always)]
    pub(super) fn add(&mut self, nodes: &Nodes, cursor: Cursor) {
        if let Some(writes) = &mut self.0 {
            Self::push(writes, nodes, cursor);
        }
    }

    #[inline(never)]
    fn push(writes: &mut Vec<Write>, nodes: &Nodes, cursor: Cursor) {
        let order = nodes.geometry.entry_order(cursor.level);
        let pages = VpnRange::new(cursor.page.align_down(order), PageCount(1 << order));
        writes.push(Write { node: cursor.node, pages });
    }
}
