// SPDX-License-Identifier: MIT OR Apache-2.0
//! What software wrote to a table, for a hypervisor that write-protects its nodes (shadow paging).

use super::cursor::Cursor;
use super::node::Nodes;
use super::{NodeId, PageTable};
use crate::addr::{PageCount, VpnRange};

/// Something that software wrote to a table. A hypervisor that write-protects the node is trapped to.
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

impl PageTable {
    /// Records from now on what software writes (not what hardware does: [`PageTable::mark`]).
    pub fn watch(&mut self) {
        self.writes.0.get_or_insert_default();
    }

    /// Whether writes are recorded.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.writes.0.is_some()
    }

    /// Takes the writes recorded since the last call. Empty unless the table is
    /// [watched](PageTable::watch).
    pub fn take_writes(&mut self) -> Vec<Write> {
        self.writes.0.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
