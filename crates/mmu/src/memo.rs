// SPDX-License-Identifier: MIT OR Apache-2.0
//! *Prepared walks*: the results of walks, cached for later walks of the same pages.
//!
//! - The host walk to a node of a guest's table reads the same lines each time: a memo keeps them
//!   by node.
//! - All host walks to one 2 MiB block of guest-physical memory read the same lines above the
//!   PTE's, or all of them the same ones if the host has it in a page of 2 MiB: it keeps them by
//!   block.
//! - What a walk for a guest's page finds is one word: [`Leaf`]. It replaces two entries, and the
//!   two ways to them, in this machine's own memory.
//! - A *flat* walk reads one table only: natively, or with segment registers in place of the host's
//!   table. All walks through one PTE node read the same lines above it: it keeps them by node, and
//!   nothing else.
//!
//! A memo serves the simulation only, holds nothing but what the tables say, and forgets everything
//! as soon as a table's [version](PageTable::version) says that something may have ceased to be
//! true.

use nestwalk_mem::addr::{ENTRY_BYTES, LINE_SHIFT, PAGE_SHIFT};
use nestwalk_mem::aligned::Aligned;
use nestwalk_mem::{Entry, Frame, Gpa, Level, NodeId, PageTable, Pfn, Version, Vpn};

use crate::clustered::Group;
use crate::leaf::{Found, INDEX_BITS, index_of, known_leaf, leaf_of};
use crate::mapping::Mapping;
use crate::segments::Segments;

/// Levels of the tables that are prepared for.
pub(crate) const LEVELS: usize = 4;

/// log2 of the lines of a page.
const LINES_ORDER: u32 = PAGE_SHIFT - LINE_SHIFT;
/// log2 of the entries of a line.
pub(crate) const LINE_ENTRIES_ORDER: u32 = LINE_SHIFT - ENTRY_BYTES.trailing_zeros();

/// The number of the line (address / 64) with the entry at `index` of a node in `frame`, if it
/// fits.
fn line_of(frame: Frame, index: usize) -> Option<u32> {
    u32::try_from(frame.0 << LINES_ORDER | (index >> LINE_ENTRIES_ORDER) as u64).ok()
}

/// The lines of the entries that a walk through one table reads (a host walk, or a flat one), from
/// the root's down to the PTE's. If it ends at a leaf of 2 MiB, it has no PTE: then
/// [`Lines::LARGE`] is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Lines(pub [u32; LEVELS]);

impl Lines {
    /// No memory has that line.
    const LARGE: u32 = u32::MAX;
    /// They are not known: nor has it that one.
    const NONE: Self = Self([u32::MAX; LEVELS]);

    /// Those on the way down `table` to `at`, a node with leaves for `page` that has this level; of
    /// a PTE node, its first line. `None` if they are in too much memory, or if `place` does not
    /// know where a frame lies.
    fn to(
        table: &PageTable,
        (mut at, level): (NodeId, Level),
        page: Vpn,
        place: impl Fn(Frame) -> Option<Frame>,
    ) -> Option<Self> {
        let mut lines = [Self::LARGE; LEVELS];
        let mut index = if level == Level::PTE { 0 } else { index_of(page, level) };
        for (line, level) in lines.iter_mut().rev().zip(1..).skip(level.index()) {
            let (frame, parent) = table.frame_and_parent(at);
            *line = line_of(place(frame)?, index)?;
            (at, index) = (parent, index_of(page, Level(level + 1)));
        }
        Some(Self(lines))
    }

    /// Those of a walk for `page`, where these are of one through the same nodes.
    #[inline(always)]
    fn of(self, page: Vpn) -> Self {
        let Self(mut lines) = self;
        let line = (index_of(page, Level::PTE) >> LINE_ENTRIES_ORDER) as u32;
        // A large one keeps its mark.
        lines[LEVELS - 1] = lines[LEVELS - 1].saturating_add(line);
        Self(lines)
    }

    /// Whether they end at a leaf of 2 MiB.
    #[inline(always)]
    pub fn is_large(&self) -> bool {
        self.0[LEVELS - 1] == Self::LARGE
    }
}

/// A node of a guest's table.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct NodeRecord {
    /// Those of the host walk to its frame. For flat walks, those of the walks through it.
    pub host_lines: Lines,
    /// Its own first line in the host's memory.
    pub first_line: u32,
    /// Its frame in the guest's memory.
    pub gfn: u32,
    /// The node above, and [`NodeRecord::UNMARKED`].
    parent: u32,
    /// Of which time of the memo's nodes all this is.
    time: u8,
    /// Walks that found no leaves.
    walks: u16,
}

impl NodeRecord {
    const NONE: Self = Self { host_lines: Lines::NONE, first_line: 0, gfn: 0, parent: 0, time: 0, walks: 0 };
    /// Its page's accessed and dirty bits in the host's table are still to be set.
    const UNMARKED: u32 = 1 << 31;

    #[inline(always)]
    pub fn parent(self) -> NodeId {
        NodeId(self.parent & !Self::UNMARKED)
    }

    /// Whether walks to it have bits to set.
    #[inline(always)]
    pub fn is_unmarked(self) -> bool {
        self.parent & Self::UNMARKED != 0
    }
}

/// After so many walks to a node its leaves are filled in, where the frames are in order, so that
/// entries of the host's table lie together. Measured, not calculated: with 96, one in ten walks is
/// a seventh slower, see `docs/performance.md`.
const WALKS_IN_ORDER: u16 = 32;
/// The same where each entry is somewhere else. To fill them in takes 9 us then, and a walk that
/// finds its leaf takes 80 ns less.
const WALKS_SCATTERED: u16 = 100;

/// Entries of the host's table that are fetched ahead while the leaves of a node are filled in,
/// where they are scattered.
const FILL_AHEAD: usize = 16;

/// What a walk for a 4 KiB page of the guest finds, where no such walk changes anything: all
/// accessed bits are set, and either all dirty bits, too, or stores are not allowed. The guest's
/// frame (26 bits), and below it the [`Mapping`], of another 26 bits; in four bits that a mapping
/// does not use, what each of the two entries says of rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leaf(u64);

impl Leaf {
    const NONE: Self = Self(0);
    const FRAME_BITS: u32 = 26;
    const GFN_SHIFT: u32 = PAGE_SHIFT + Self::FRAME_BITS;
    const USED: u64 = Entry::PRESENT | Entry::ACCESSED;
    /// Rights of the guest's entry, and above them those of the host's.
    const RIGHTS_SHIFT: u32 = 8;
    const RIGHTS: u64 = 0xf << Self::RIGHTS_SHIFT;
    const MAPPING: u64 = ((1 << Self::GFN_SHIFT) - 1) & !Self::RIGHTS;
    /// The bits in which leaves differ whose frames are in one aligned group of 8, in guest and
    /// host.
    const PLACES: u64 = 7 << Self::GFN_SHIFT | 7 << PAGE_SHIFT;

    /// Whether `entry` is writable, and whether it is dirty.
    fn rights(entry: Entry) -> u64 {
        u64::from(entry.has(Entry::WRITABLE)) | u64::from(entry.has(Entry::DIRTY)) << 1
    }

    /// Of two leaves, the host's of which maps `page`, too. [`Leaf::NONE`] where a walk may change
    /// something.
    fn new(guest: Entry, host: Found, page: Vpn) -> Self {
        if !guest.has(Self::USED) || !host.entry.has(Self::USED) {
            return Self::NONE;
        }
        let (gfn, pfn, host) = (guest.frame().0, host.frame_of(page), host.entry);
        if (gfn | pfn) >> Self::FRAME_BITS != 0 {
            return Self::NONE;
        }
        let mapping = Mapping::of_both(guest, host, Pfn(pfn));
        if mapping.is_writable() && !mapping.is_dirty() {
            return Self::NONE;
        }
        let rights = Self::rights(guest) | Self::rights(host) << 2;
        Self(gfn << Self::GFN_SHIFT | mapping.bits() | rights << Self::RIGHTS_SHIFT)
    }

    /// The guest's frame.
    #[inline(always)]
    pub fn gfn(self) -> u32 {
        (self.0 >> Self::GFN_SHIFT) as u32
    }

    /// The translation.
    #[inline(always)]
    pub fn mapping(self) -> Mapping {
        Mapping::from_bits(self.0 & Self::MAPPING)
    }

    /// Whether a load, or a `store`, may use it.
    #[inline(always)]
    fn allows(self, store: bool) -> bool {
        self.0 & if store { Entry::WRITABLE } else { Entry::PRESENT } != 0
    }
}

/// A nested walk that is known to end well, before it was done.
#[derive(Clone, Copy, Debug)]
pub struct Prepared {
    /// What it finds.
    pub(crate) mapping: Mapping,
    /// The guest's PTE node.
    pub(crate) node: NodeId,
    /// The guest's frame of the data.
    pub(crate) gfn: u32,
}

impl Prepared {
    /// The same, if an access, a `store` or not, may use what it finds.
    #[inline(always)]
    pub(crate) fn allowing(self, store: bool) -> Option<Self> {
        (!store || self.mapping.is_writable()).then_some(self)
    }
}

/// The host walks to a 2 MiB block.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct BlockRecord {
    /// Those to its first page.
    lines: Lines,
}

impl BlockRecord {
    const NONE: Self = Self { lines: Lines::NONE };
    /// Blocks beyond are not kept: 256 GiB, as with lines.
    const COUNT_MAX: usize = 1 << (Leaf::FRAME_BITS - INDEX_BITS);
}

/// Whether most frames of a line of entries come one after the other.
fn are_in_order(line: &[Entry; 8]) -> bool {
    let in_order =
        |pair: &&[Entry]| pair.iter().all(|entry| entry.is_present()) && pair[1].frame().0 == pair[0].frame().0 + 1;
    line.windows(2).filter(in_order).count() >= 4
}

/// What walks are prepared from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sources {
    guest: Version,
    /// That of no table if walks are flat.
    host: Version,
    /// The host's page at which guest-physical memory begins.
    base: Vpn,
    segments: Option<Segments>,
}

impl Sources {
    /// The two tables of nested walks, as they are now.
    pub(crate) fn nested(guest: &PageTable, host: &PageTable, base: Vpn) -> Self {
        Self { guest: guest.version(), host: host.version(), base, segments: None }
    }

    /// The table of flat walks, as it is now, and what says where its frames lie. With it, how many
    /// numbers of nodes the table uses. `None` if it has another number of levels.
    pub(crate) fn flat(table: &PageTable, segments: Option<&Segments>) -> Option<(Self, usize)> {
        let sources = || Self { guest: table.version(), segments: segments.copied(), ..Self::default() };
        (usize::from(table.geometry().root().0) == LEVELS).then(|| (sources(), table.node_slots()))
    }
}

/// See the [module's documentation](self).
#[derive(Clone, Debug, Default)]
pub struct Memo {
    sources: Sources,
    /// How often it forgot the nodes that it knew. No record is of time 0.
    nodes_time: u8,
    /// How often it forgot the leaves that it knew.
    leaves_time: u8,
    nodes: Vec<NodeRecord>,
    /// By number of the guest's PTE node: of which time its leaves are; never 0. A list of its own,
    /// since it is asked ahead of everything else.
    leaf_times: Vec<u8>,
    /// [`Leaf`]s, by number of the guest's PTE node and index in it.
    leaves: Aligned<u64>,
    /// By block of guest-physical memory.
    blocks: Vec<BlockRecord>,
    /// Whether one of them may be in a large page of the host.
    has_large: bool,
    base: Vpn,
}

impl Memo {
    /// Whether it is about the tables of `sources`.
    pub(crate) fn is_about(&self, sources: &Sources) -> bool {
        let tables = |sources: &Sources| (sources.guest.table, sources.host.table);
        tables(&self.sources) == tables(sources)
    }

    /// From now on it is used for these tables as they are now. The guest's numbers of nodes are
    /// below `slots`.
    pub(crate) fn renew(&mut self, sources: Sources, slots: usize) {
        if sources != self.sources || self.nodes.len() < slots {
            self.renew_for(sources, slots);
        }
    }

    #[cold]
    fn renew_for(&mut self, sources: Sources, slots: usize) {
        let old = std::mem::replace(&mut self.sources, sources);
        self.base = sources.base;
        let nodes = |version: Version| (version.table, version.node_changes);
        let are_nodes_there =
            nodes(old.guest) == nodes(sources.guest) && Sources { guest: old.guest, ..sources } == old;
        if (nodes(old.host), old.base) != (nodes(sources.host), sources.base) {
            self.blocks.clear();
            self.has_large = false;
        }
        self.nodes_time = self.nodes_time.wrapping_add(u8::from(!are_nodes_there));
        self.leaves_time = self.leaves_time.wrapping_add(1);
        if self.nodes_time == 0 || self.leaves_time == 0 {
            self.nodes.fill(NodeRecord::NONE);
            self.leaf_times.fill(0);
            (self.nodes_time, self.leaves_time) = (1, 1);
        }
        if self.nodes.len() < slots {
            let count = slots.next_power_of_two();
            self.nodes.resize(count, NodeRecord::NONE);
            self.leaf_times = vec![0; count];
            self.leaves = Aligned::zeroes(count << INDEX_BITS);
        }
    }

    /// Fetches ahead what is known of a guest's node.
    #[inline(always)]
    pub(crate) fn fetch_node(&self, node: NodeId) {
        if let Some(record) = self.nodes.get(node.0 as usize) {
            nestwalk_mem::prefetch::prefetch(record);
        }
    }

    /// The same of the way to a page of the guest, if it is known.
    #[inline(always)]
    pub(crate) fn fetch_block(&self, gfn: u32) {
        if let Some(record) = self.blocks.get(self.block(self.host_page(gfn.into()))) {
            nestwalk_mem::prefetch::prefetch(record);
        }
    }

    /// Fetches ahead the leaf at `index` of `node`. Whether leaves of that node are filled in.
    #[inline(always)]
    pub(crate) fn fetch_leaf(&self, node: NodeId, index: usize) -> bool {
        let filled = self.leaf_times.get(node.0 as usize) == Some(&self.leaves_time);
        if filled && let Some(leaf) = self.leaves.get(Self::place(node, index)) {
            nestwalk_mem::prefetch::prefetch(leaf);
        }
        filled
    }

    /// Whether the leaves of a PTE node of the guest are filled in.
    #[inline(always)]
    fn has_leaves(&self, node: NodeId) -> bool {
        self.leaf_times[node.0 as usize] == self.leaves_time
    }

    /// What a walk that ends at `index` of `node` finds, if that is known and it changes nothing.
    #[inline(always)]
    pub(crate) fn leaf(&self, node: NodeId, index: usize, store: bool) -> Option<Leaf> {
        let known = self.has_leaves(node).then(|| self.leaves.get(Self::place(node, index)));
        known.flatten().map(|&leaf| Leaf(leaf)).filter(|leaf| leaf.allows(store))
    }

    /// Where the leaf at `index` of `node` is.
    #[inline(always)]
    fn place(node: NodeId, index: usize) -> usize {
        (node.0 as usize) << INDEX_BITS | index
    }

    /// The pages of the aligned group of 8 around the one at `index` of `node` that may share an
    /// entry of a Clustered TLB with it, if all of the group are known: those of which both entries
    /// say the same of rights, and whose frames are in one group in guest and host.
    #[inline(always)]
    pub(crate) fn neighbours(&self, node: NodeId, index: usize) -> Option<Group> {
        if !self.has_leaves(node) {
            return None;
        }
        let leaves = self.leaves.as_chunks::<8>().0[Self::place(node, index) / 8];
        // What is not known may have become alike since.
        if leaves.contains(&Leaf::NONE.0) {
            return None;
        }
        let own = leaves[index % 8];
        let frame = |leaf: u64| Leaf(leaf).mapping().frame().0;
        Some(Group::of(frame(own), |place| (frame(leaves[place]), (leaves[place] ^ own) & !Leaf::PLACES == 0)))
    }

    /// The block of guest-physical memory that has the host's `page`.
    #[inline(always)]
    fn block(&self, page: Vpn) -> usize {
        ((page.0 >> INDEX_BITS) - (self.base.0 >> INDEX_BITS)) as usize
    }

    /// Whether a host walk that it has prepared may end at a leaf of 2 MiB.
    #[inline(always)]
    pub(crate) fn has_large(&self) -> bool {
        self.has_large
    }

    /// The record of a guest's node for which [`Memo::prepare_node`] returned `true` in this run.
    #[inline(always)]
    pub(crate) fn node(&self, node: NodeId) -> NodeRecord {
        self.nodes[node.0 as usize]
    }

    /// The lines of a host walk to `page`. [`Memo::prepare_block`] must have returned `true` for
    /// its block in this run.
    #[inline(always)]
    pub(crate) fn host_lines(&self, page: Vpn) -> Lines {
        self.blocks[self.block(page)].lines.of(page)
    }

    /// The lines of a flat walk for `page`. [`Memo::prepare_flat`] must have found its leaf, in
    /// `node`, in this run.
    #[inline(always)]
    pub(crate) fn flat_lines(&self, node: NodeId, page: Vpn) -> Lines {
        self.nodes[node.0 as usize].host_lines.of(page)
    }

    /// The leaf that a flat walk of `table` for `page` ends at, if it is a PTE, is present and
    /// allows a `write`, and walks through its node are prepared now.
    #[inline(always)]
    pub(crate) fn prepare_flat(&mut self, table: &PageTable, page: Vpn, write: bool) -> Option<Found> {
        let found = known_leaf(table, page, write)?;
        let is_known = self.nodes[found.node.0 as usize].time == self.nodes_time;
        (is_known || self.fill_flat(table, found.node, page)).then_some(found)
    }

    #[cold]
    fn fill_flat(&mut self, table: &PageTable, node: NodeId, page: Vpn) -> bool {
        let place = |frame: Frame| match &self.sources.segments {
            None => Some(frame),
            Some(segments) => segments.translate(Gpa::from(frame.address())).map(|hpa| Frame(hpa.page().0)),
        };
        let Some(host_lines) = Lines::to(table, (node, Level::PTE), page, place) else { return false };
        self.nodes[node.0 as usize] = NodeRecord { host_lines, time: self.nodes_time, ..NodeRecord::NONE };
        true
    }

    /// Cycles of a translation by segment registers, of which there is one for each reference of a
    /// flat walk and one for its data.
    #[inline(always)]
    pub(crate) fn segment_cycles(&self) -> Option<u32> {
        self.sources.segments.as_ref().map(|segments| segments.latency_cycles)
    }

    /// The host's page that is the guest's frame `gfn`.
    #[inline(always)]
    pub(crate) fn host_page(&self, gfn: u64) -> Vpn {
        self.base + gfn
    }

    /// Whether walks to `node`, a PTE node of the guest, and to all above it are prepared now.
    #[inline(always)]
    pub(crate) fn prepare_node(&mut self, guest: &PageTable, host: &PageTable, node: NodeId) -> bool {
        self.nodes[node.0 as usize].time == self.nodes_time || self.fill_node(guest, host, node)
    }

    /// Whether walks to `found`, the host's leaf for `page`, are prepared now.
    #[inline(always)]
    pub(crate) fn prepare_block(&mut self, host: &PageTable, found: Found, page: Vpn) -> bool {
        let is_known =
            |record: &BlockRecord| record.lines != Lines::NONE && record.lines.is_large() == (found.level > Level::PTE);
        self.blocks.get(self.block(page)).is_some_and(is_known) || self.fill_block(host, found, page)
    }

    #[cold]
    fn fill_node(&mut self, guest: &PageTable, host: &PageTable, node: NodeId) -> bool {
        let (frame, parent) = guest.frame_and_parent(node);
        let page = self.host_page(frame.0);
        if parent != node && !self.prepare_node(guest, host, parent) {
            return false;
        }
        let Some(found) = leaf_of(host, page, true) else { return false };
        let Ok(gfn) = u32::try_from(frame.0) else { return false };
        if !self.prepare_block(host, found, page) {
            return false;
        }
        let Some(first_line) = line_of(Frame(found.frame_of(page)), 0) else { return false };
        let marked = found.entry.has(Entry::ACCESSED | Entry::DIRTY);
        self.nodes[node.0 as usize] = NodeRecord {
            host_lines: self.host_lines(page),
            first_line,
            gfn,
            parent: parent.0 | if marked { 0 } else { NodeRecord::UNMARKED },
            time: self.nodes_time,
            walks: 0,
        };
        true
    }

    #[cold]
    fn fill_block(&mut self, host: &PageTable, found: Found, page: Vpn) -> bool {
        let block = self.block(page);
        if block >= BlockRecord::COUNT_MAX || found.level > Level::PMD {
            return false;
        }
        let Some(lines) = Lines::to(host, (found.node, found.level), page, Some) else { return false };
        if self.blocks.len() <= block {
            self.blocks.resize((block + 1).next_power_of_two(), BlockRecord::NONE);
        }
        self.blocks[block].lines = lines;
        self.has_large |= lines.is_large();
        true
    }

    /// A walk ended at `index` of `node`, which is prepared, and what it found was not known here:
    /// the entry there and the host's leaf `below`, as it was. Where the leaves of `node` are
    /// filled in, this one is now. Where not, they are as soon as walks were so many that it pays.
    pub(crate) fn learn(
        &mut self,
        guest: &PageTable,
        (host, below): (&PageTable, Found),
        (node, index): (NodeId, usize),
    ) {
        if self.has_leaves(node) {
            let entry = guest.entry(node, index);
            let page = self.host_page(entry.frame().0);
            let leaf = Leaf::new(entry, below.again(host, page), page);
            self.leaves[Self::place(node, index)] = leaf.0;
            return;
        }
        let record = &mut self.nodes[node.0 as usize];
        record.walks = record.walks.saturating_add(1);
        let walks = record.walks;
        if walks == WALKS_SCATTERED || walks == WALKS_IN_ORDER && are_in_order(guest.line(node, index)) {
            self.fill_leaves(guest, host, node, walks == WALKS_SCATTERED);
        }
    }

    #[cold]
    fn fill_leaves(&mut self, guest: &PageTable, host: &PageTable, node: NodeId, scattered: bool) {
        let (mut present, mut known) = (0, 0);
        // The block that the host's page before was in, and a leaf of it.
        let (mut block, mut below) = (usize::MAX, None);
        let base = self.base;
        let fetch = |index: usize| {
            let entry = guest.entry(node, index);
            if !entry.is_present() {
                return;
            }
            let page = base + entry.frame().0;
            if let Some(below) = host.known_pte_node(page) {
                host.prefetch_entry(below, index_of(page, Level::PTE));
            }
        };
        if scattered {
            (0..FILL_AHEAD).for_each(fetch);
        }
        for index in 0..1 << INDEX_BITS {
            if scattered && index + FILL_AHEAD < 1 << INDEX_BITS {
                fetch(index + FILL_AHEAD);
            }
            let entry = guest.entry(node, index);
            let mut leaf = Leaf::NONE;
            if entry.is_present() {
                let page = self.host_page(entry.frame().0);
                if self.block(page) != block {
                    block = self.block(page);
                    let (node, level) = host.lowest_node(page);
                    let found = Found { entry: host.entry(node, index_of(page, level)), node, level };
                    let is_there = level == Level::PTE || found.entry.is_present();
                    below = (is_there && self.prepare_block(host, found, page)).then_some(found);
                }
                leaf = below.map_or(leaf, |found| Leaf::new(entry, found.again(host, page), page));
                present += 1;
            }
            known += usize::from(leaf != Leaf::NONE);
            self.leaves[Self::place(node, index)] = leaf.0;
        }
        let record = &mut self.nodes[node.0 as usize];
        // Where walks often find none, they are better off as if there were none at all.
        if known >= present - present / 8 {
            record.walks = 0;
            self.leaf_times[node.0 as usize] = self.leaves_time;
        } else {
            record.walks = u16::MAX;
        }
    }

    /// The accessed and dirty bits of the page of `node` in the host's table are set now.
    #[cold]
    pub(crate) fn set_marked(&mut self, node: NodeId) {
        self.nodes[node.0 as usize].parent &= !NodeRecord::UNMARKED;
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::{Geometry, PageSize};

    use super::*;

    fn table(root: u64, page: u64, frame: u64, size: PageSize) -> PageTable {
        let mut table = PageTable::new(Geometry::X86_4, Frame(root));
        let mut next = root;
        let nodes = |_: Level, _: Vpn| {
            next += 1;
            Ok::<_, ()>(Frame(next))
        };
        let flags = Entry::WRITABLE | Entry::ACCESSED | Entry::DIRTY;
        table.map(Vpn(page), Frame(frame), size, flags, nodes).unwrap();
        table
    }

    #[test]
    fn a_node_in_a_large_page_of_the_host_is_one_line_nearer_until_that_page_is_split() {
        let guest = table(1, 0x1234, 100, PageSize::Small);
        let mut host = table(10_000, 0, 512, PageSize::Huge);
        let node = guest.known_pte_node(Vpn(0x1234)).unwrap();
        let (frame, _) = guest.frame_and_parent(node);
        let mut memo = Memo::default();
        memo.renew(Sources::nested(&guest, &host, Vpn(0)), guest.node_slots());
        assert!(memo.prepare_node(&guest, &host, node));
        let large = memo.node(node);
        assert!(large.host_lines.is_large() && memo.host_lines(Vpn(frame.0)).is_large());
        host.split(Vpn(0), Frame(20_000)).unwrap();
        memo.renew(Sources::nested(&guest, &host, Vpn(0)), guest.node_slots());
        assert!(memo.prepare_node(&guest, &host, node));
        let small = memo.node(node);
        assert!(!small.host_lines.is_large());
        assert_eq!(small.host_lines.0[..LEVELS - 1], large.host_lines.0[..LEVELS - 1]);
        assert_eq!(small.host_lines.0[LEVELS - 1], line_of(Frame(20_000), frame.0 as usize).unwrap());
        assert_eq!([small, large].map(|record| record.first_line), [line_of(Frame(512 + frame.0), 0).unwrap(); 2]);
    }
}
