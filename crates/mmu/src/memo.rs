// SPDX-License-Identifier: MIT OR Apache-2.0
//! What walks have found out about nodes, so that the next ones need not put it together again: *prepared walks*.
//!
//! The host walk to a node of a guest's table reads the same lines each time, and all host walks
//! through one PTE node the same lines above it. A memo keeps them, by node. It serves the simulation
//! only, holds nothing but what the tables say, and forgets everything as soon as a table's
//! [version](PageTable::version) says that something in it may have ceased to be true.

use nestwalk_mem::addr::{ENTRY_BYTES, LINE_SHIFT, PAGE_SHIFT};
use nestwalk_mem::{Entry, Frame, Level, NodeId, PageTable, Version, Vpn};

use crate::walker::index_of;

/// Levels of the tables that are prepared for.
pub(crate) const LEVELS: usize = 4;

/// log2 of the lines of a page.
const LINES_ORDER: u32 = PAGE_SHIFT - LINE_SHIFT;
/// log2 of the entries of a line.
pub(crate) const LINE_ENTRIES_ORDER: u32 = LINE_SHIFT - ENTRY_BYTES.trailing_zeros();

/// The number of the line (address / 64) with the entry at `index` of a node in `frame`, if it fits.
fn line_of(frame: Frame, index: usize) -> Option<u32> {
    u32::try_from(frame.0 << LINES_ORDER | (index >> LINE_ENTRIES_ORDER) as u64).ok()
}

/// A node of a guest's table.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct NodeRecord {
    /// The lines of the host's entries for its frame, from the root's down to the PTE's.
    pub host_lines: [u32; LEVELS],
    /// Its own first line in the host's memory.
    pub first_line: u32,
    /// Its frame in the guest's memory.
    pub gfn: u32,
    /// The node above, and [`NodeRecord::UNMARKED`].
    parent: u32,
    /// Of which epoch of the memo all this is.
    epoch: u32,
}

impl NodeRecord {
    const NONE: Self = Self { host_lines: [0; LEVELS], first_line: 0, gfn: 0, parent: 0, epoch: 0 };
    /// Its page's accessed and dirty bits in the host's table are still to be set.
    const UNMARKED: u32 = 1 << 31;

    #[inline(always)]
    pub fn parent(self) -> NodeId {
        NodeId(self.parent & !Self::UNMARKED)
    }

    /// All ones if walks to it have bits to set, else 0.
    #[inline(always)]
    pub fn is_unmarked(self) -> bool {
        self.parent & Self::UNMARKED != 0
    }
}

/// A PTE node of the host's table.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct HostRecord {
    /// The lines of the entries that lead to it, from the root's down, and its own first line.
    lines: [u32; LEVELS],
}

impl HostRecord {
    /// No memory has that line.
    const NONE: Self = Self { lines: [u32::MAX; LEVELS] };
}

/// What it was made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sources {
    guest: Version,
    host: Version,
    base: Vpn,
}

/// See the [module's documentation](self).
#[derive(Clone, Debug, Default)]
pub struct Memo {
    sources: Sources,
    /// Records of another epoch hold no more. No record is of epoch 0.
    epoch: u32,
    nodes: Vec<NodeRecord>,
    hosts: Vec<HostRecord>,
    base: Vpn,
}

impl Memo {
    /// Whether it is about these two tables.
    pub(crate) fn is_about(&self, guest: u64, host: u64) -> bool {
        (self.sources.guest.table, self.sources.host.table) == (guest, host)
    }

    /// From now on it is used for these tables as they are now; guest-physical memory begins at the host's page `base`.
    pub(crate) fn renew(&mut self, guest: &PageTable, host: &PageTable, base: Vpn) {
        // Leaves of the guest's table are not kept here.
        let guest_version = Version { leaf_changes: 0, ..guest.version() };
        let sources = Sources { guest: guest_version, host: host.version(), base };
        if sources != self.sources {
            let (old, new) = (self.sources.host, sources.host);
            if (old.table, old.node_changes) != (new.table, new.node_changes) {
                self.hosts.fill(HostRecord::NONE);
            }
            self.epoch = self.epoch.wrapping_add(1);
            if self.epoch == 0 {
                self.nodes.fill(NodeRecord::NONE);
                self.epoch = 1;
            }
            (self.sources, self.base) = (sources, base);
        }
        let nodes = guest.node_slots();
        if self.nodes.len() < nodes {
            self.nodes.resize(nodes.next_power_of_two(), NodeRecord::NONE);
        }
        let nodes = host.node_slots();
        if self.hosts.len() < nodes {
            self.hosts.resize(nodes.next_power_of_two(), HostRecord::NONE);
        }
    }

    /// Fetches ahead what is known of a guest's node.
    #[inline(always)]
    pub(crate) fn fetch_node(&self, node: NodeId) {
        if let Some(record) = self.nodes.get(node.0 as usize) {
            nestwalk_mem::prefetch::prefetch(record);
        }
    }

    /// The same of a host's.
    #[inline(always)]
    pub(crate) fn fetch_host(&self, node: NodeId) {
        if let Some(record) = self.hosts.get(node.0 as usize) {
            nestwalk_mem::prefetch::prefetch(record);
        }
    }

    /// What is known of a guest's node for which [`Memo::prepare_node`] said yes in this run.
    #[inline(always)]
    pub(crate) fn node(&self, node: NodeId) -> NodeRecord {
        self.nodes[node.0 as usize]
    }

    /// The lines of a host walk to `page`, for whose PTE node [`Memo::prepare_host`] said yes in this run.
    #[inline(always)]
    pub(crate) fn host_lines(&self, node: NodeId, page: Vpn) -> [u32; LEVELS] {
        let mut lines = self.hosts[node.0 as usize].lines;
        lines[LEVELS - 1] += (index_of(page, Level::PTE) >> LINE_ENTRIES_ORDER) as u32;
        lines
    }

    /// The host's page that is the guest's frame `gfn`.
    #[inline(always)]
    pub(crate) fn host_page(&self, gfn: u64) -> Vpn {
        self.base + gfn
    }

    /// Whether walks to `node`, a PTE node of the guest, and to all above it are prepared now.
    #[inline(always)]
    pub(crate) fn prepare_node(&mut self, guest: &PageTable, host: &PageTable, node: NodeId) -> bool {
        self.nodes[node.0 as usize].epoch == self.epoch || self.fill_node(guest, host, node)
    }

    /// Whether walks through `node`, a PTE node of the host that covers `page`, are prepared now.
    #[inline(always)]
    pub(crate) fn prepare_host(&mut self, host: &PageTable, node: NodeId, page: Vpn) -> bool {
        self.hosts[node.0 as usize].lines[0] != u32::MAX || self.fill_host(host, node, page)
    }

    #[cold]
    fn fill_node(&mut self, guest: &PageTable, host: &PageTable, node: NodeId) -> bool {
        let (frame, parent) = guest.frame_and_parent(node);
        if parent != node && !self.prepare_node(guest, host, parent) {
            return false;
        }
        let page = self.host_page(frame.0);
        let (Ok(gfn), Some(host_node)) = (u32::try_from(frame.0), host.known_pte_node(page)) else { return false };
        let entry = host.entry(host_node, index_of(page, Level::PTE));
        if !entry.has(Entry::PRESENT | Entry::WRITABLE) || !self.prepare_host(host, host_node, page) {
            return false;
        }
        let Some(first_line) = line_of(entry.frame(), 0) else { return false };
        let marked = entry.has(Entry::ACCESSED | Entry::DIRTY);
        self.nodes[node.0 as usize] = NodeRecord {
            host_lines: self.host_lines(host_node, page),
            first_line,
            gfn,
            parent: parent.0 | if marked { 0 } else { NodeRecord::UNMARKED },
            epoch: self.epoch,
        };
        true
    }

    #[cold]
    fn fill_host(&mut self, host: &PageTable, node: NodeId, page: Vpn) -> bool {
        let mut lines = [0; LEVELS];
        let (mut at, mut index) = (node, 0);
        for (line, level) in lines.iter_mut().rev().zip(1..) {
            let (frame, parent) = host.frame_and_parent(at);
            let Some(found) = line_of(frame, index) else { return false };
            *line = found;
            (at, index) = (parent, index_of(page, Level(level + 1)));
        }
        self.hosts[node.0 as usize].lines = lines;
        true
    }

    /// The accessed and dirty bits of the page of `node` in the host's table are set now.
    #[cold]
    pub(crate) fn set_marked(&mut self, node: NodeId) {
        self.nodes[node.0 as usize].parent &= !NodeRecord::UNMARKED;
    }
}
