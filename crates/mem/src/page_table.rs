// SPDX-License-Identifier: MIT OR Apache-2.0
//! A radix page table whose nodes sit in frames.
//!
//! One type serves guest and host, 4 and 5 levels and the odd shapes of tests: its [`Geometry`] says which. All nodes
//! lie in one flat array, so a step of a walk is one load; beside each node stand its parent and the [`Frame`] in which the hardware
//! would find it, since the address of an entry is what the caches see. Entries look like x86-64's, but a pointer to a
//! lower node holds its [`NodeId`], not its frame.
//!
//! The table neither allocates nor frees frames: whoever maps hands in a source of node frames, and whoever prunes
//! takes them back. That is the seam for table placement (HugeGPT's pool, ASAP's sorted regions).

use std::fmt;

use crate::addr::{ENTRY_BYTES, Frame, Pa, PageCount, Vpn, VpnRange};
use crate::entries::Entries;
use crate::geometry::{Geometry, Level, PageSize};
use crate::lookaside::Lookaside;

/// A node of one table: an index that stays valid until the node is pruned or collapsed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct NodeId(pub u32);

/// An entry of a node.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Entry(u64);

impl Entry {
    /// Nothing here.
    pub const NONE: Self = Self(0);
    /// The hardware may use this entry.
    pub const PRESENT: u64 = 1 << 0;
    /// Stores are allowed.
    pub const WRITABLE: u64 = 1 << 1;
    /// The page was used since the bit was last cleared.
    pub const ACCESSED: u64 = 1 << 5;
    /// The page was stored to since the bit was last cleared.
    pub const DIRTY: u64 = 1 << 6;
    /// This entry maps a page (x86 has this bit, PS, above the PTE level only; here every leaf has it).
    pub const LEAF: u64 = 1 << 7;
    /// Software: shared with another process since a fork; a store copies the page.
    pub const COPY_ON_WRITE: u64 = 1 << 9;
    /// Software: not present, because the page was swapped out.
    pub const SWAPPED: u64 = 1 << 10;

    const TARGET_SHIFT: u32 = 12;
    const FLAGS: u64 = (1 << Self::TARGET_SHIFT) - 1;

    /// A present leaf for `frame` with `flags` besides.
    #[inline]
    pub const fn leaf(frame: Frame, flags: u64) -> Self {
        Self(frame.0 << Self::TARGET_SHIFT | flags | Self::PRESENT | Self::LEAF)
    }

    /// What stands in the table of a page that was swapped out.
    pub const fn swapped() -> Self {
        Self(Self::SWAPPED)
    }

    #[inline]
    const fn pointer(node: NodeId) -> Self {
        Self((node.0 as u64) << Self::TARGET_SHIFT | Self::PRESENT | Self::WRITABLE)
    }

    /// Whether there is nothing at all, not even a note of a swapped page.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether the hardware may use it.
    #[inline]
    pub const fn is_present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    /// Whether it maps a page.
    #[inline]
    pub const fn is_leaf(self) -> bool {
        self.0 & Self::LEAF != 0
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub const fn has(self, flags: u64) -> bool {
        self.0 & flags == flags
    }

    /// The same with `flags` set.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: u64) -> Self {
        Self(self.0 | flags & Self::FLAGS)
    }

    /// The same with `flags` cleared.
    #[inline]
    #[must_use]
    pub const fn without(self, flags: u64) -> Self {
        Self(self.0 & !(flags & Self::FLAGS))
    }

    /// The flag bits.
    #[inline]
    pub const fn flags(self) -> u64 {
        self.0 & Self::FLAGS
    }

    /// The frame that a leaf maps (the first one of a large page).
    #[inline]
    pub const fn frame(self) -> Frame {
        debug_assert!(self.is_leaf());
        Frame(self.0 >> Self::TARGET_SHIFT)
    }

    /// The node that a present entry which is no leaf points to.
    #[inline]
    pub const fn node(self) -> NodeId {
        debug_assert!(self.is_present() && !self.is_leaf());
        NodeId((self.0 >> Self::TARGET_SHIFT) as u32)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({:#x}, flags {:#x})", self.0 >> Self::TARGET_SHIFT, self.flags())
    }
}

/// Where the entry of a page stands: in the lowest node that covers it. Right as long as that node is not pruned or
/// collapsed, and no lower one is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The node.
    pub node: NodeId,
    /// Its level.
    pub level: Level,
    /// The entry, among those of all nodes.
    slot: usize,
}

/// A leaf found for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// The entry, which may be a swapped page's note.
    pub entry: Entry,
    /// Where it stands.
    pub level: Level,
    /// The first page that it covers.
    pub page: Vpn,
}

impl Leaf {
    /// The size of its page.
    ///
    /// # Panics
    /// On a leaf above the PUD, which [`PageTable::map`] never makes.
    #[inline]
    pub const fn size(self) -> PageSize {
        match PageSize::of_level(self.level) {
            Some(size) => size,
            None => panic!("a leaf stands above the PUD"),
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

/// A radix page table. See the [module's documentation](self).
#[derive(Clone, Debug)]
pub struct PageTable {
    geometry: Geometry,
    /// Node `n` is `entries[n << index_bits ..][.. 1 << index_bits]`.
    entries: Entries,
    /// Where each node is.
    places: Vec<Place>,
    /// Entries of each node that are not [`Entry::NONE`].
    used: Vec<u16>,
    /// Nodes that may be used again.
    free: Vec<NodeId>,
    /// The PTE node that was mapped into last: pages come in runs.
    last: Option<(Vpn, NodeId)>,
    /// The PTE nodes by address.
    pte_nodes: Lookaside,
    /// What software wrote since it was asked for last, while somebody watches.
    watched: Option<Vec<Write>>,
}

/// Where a node is, in one word, since a walk needs that of each of its nodes: the frame in which it sits, above the node that points
/// to it (of the root, the root; of nodes that are free, any).
#[derive(Clone, Copy, Debug)]
struct Place(u64);

impl Place {
    /// Bits of a node's number: that many nodes are 64 GiB of entries. The other 40 are all that x86 has for a frame: 4 PiB.
    const NODE_BITS: u32 = 24;

    fn new(frame: Frame, parent: NodeId) -> Self {
        assert!(frame.0 >> (64 - Self::NODE_BITS) == 0, "{frame:?} is beyond 4 PiB");
        Self(frame.0 << Self::NODE_BITS | u64::from(parent.0))
    }

    #[inline]
    const fn frame(self) -> Frame {
        Frame(self.0 >> Self::NODE_BITS)
    }

    #[inline]
    const fn parent(self) -> NodeId {
        NodeId((self.0 & ((1 << Self::NODE_BITS) - 1)) as u32)
    }
}

/// Something that software wrote to a table: where a hypervisor that write-protects its nodes would be trapped to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// The node that was written to.
    pub node: NodeId,
    /// The pages whose translation may be another one now.
    pub pages: VpnRange,
}

impl PageTable {
    /// An empty table whose root sits in `root`.
    pub fn new(geometry: Geometry, root: Frame) -> Self {
        let mut table = Self {
            geometry,
            entries: Entries::default(),
            places: Vec::new(),
            used: Vec::new(),
            free: Vec::new(),
            last: None,
            pte_nodes: Lookaside::new(),
            watched: None,
        };
        table.add_node(root, NodeId(0));
        table
    }

    /// Its shape.
    #[inline]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Notes down from now on what software writes (not what hardware does: [`PageTable::mark`]).
    pub fn watch(&mut self) {
        self.watched.get_or_insert_default();
    }

    /// Whether somebody does.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched.is_some()
    }

    /// What was written since this was asked for last. Empty if nobody [watches](PageTable::watch).
    pub fn take_writes(&mut self) -> Vec<Write> {
        self.watched.as_mut().map(std::mem::take).unwrap_or_default()
    }

    #[inline(always)]
    fn written(&mut self, node: NodeId, level: Level, page: Vpn) {
        if self.watched.is_some() {
            self.note_write(node, level, page);
        }
    }

    #[inline(never)]
    fn note_write(&mut self, node: NodeId, level: Level, page: Vpn) {
        let order = self.geometry.entry_order(level);
        let pages = VpnRange::new(page.align_down(order), PageCount(1 << order));
        self.watched.get_or_insert_default().push(Write { node, pages });
    }

    /// The top node, where every walk begins.
    #[inline]
    pub const fn root(&self) -> NodeId {
        NodeId(0)
    }

    /// The frame in which `node` sits.
    #[inline]
    pub fn node_frame(&self, node: NodeId) -> Frame {
        self.places[node.0 as usize].frame()
    }

    /// The node that points to `node`; of the root, the root.
    #[inline]
    pub fn parent(&self, node: NodeId) -> NodeId {
        self.places[node.0 as usize].parent()
    }

    /// [`PageTable::node_frame`] and [`PageTable::parent`].
    #[inline]
    pub fn frame_and_parent(&self, node: NodeId) -> (Frame, NodeId) {
        let place = self.places[node.0 as usize];
        (place.frame(), place.parent())
    }

    /// Entry `index` of `node`.
    #[inline]
    pub fn entry(&self, node: NodeId, index: usize) -> Entry {
        self.entries[self.slot(node, index)]
    }

    /// The 8 entries in whose line entry `index` of `node` lies.
    ///
    /// # Panics
    /// When nodes of this geometry are smaller than a line.
    #[inline]
    pub fn line(&self, node: NodeId, index: usize) -> &[Entry; 8] {
        assert!(self.geometry.index_bits() >= 3, "a node of less than 8 entries");
        self.entries.line(self.slot(node, index))
    }

    /// The entry for `page` in `node`, a node of `level` that covers it.
    #[inline]
    pub fn entry_for(&self, node: NodeId, level: Level, page: Vpn) -> Entry {
        self.entry(node, self.geometry.index(page, level))
    }

    /// Where the hardware finds entry `index` of `node`.
    #[inline]
    pub fn entry_address(&self, node: NodeId, index: usize) -> Pa {
        self.node_frame(node).address() + index as u64 * ENTRY_BYTES
    }

    /// Brings entry `index` of `node`, and where the node is, near to this processor, ahead of their use. Changes nothing.
    #[inline]
    pub fn prefetch(&self, node: NodeId, index: usize) {
        if let Some(place) = self.places.get(node.0 as usize) {
            crate::prefetch::prefetch(place);
        }
        if let Some(entry) = self.entries.get(self.slot(node, index)) {
            crate::prefetch::prefetch(entry);
        }
    }

    /// Sets `flags` (accessed, dirty) in entry `index` of `node`, as the hardware does on its way through the table.
    /// Writes nothing when they are set already. The flags must not be ones that say what kind of entry it is.
    #[inline]
    pub fn mark(&mut self, node: NodeId, index: usize, flags: u64) {
        self.mark_slot(self.slot(node, index), flags);
    }

    /// [`PageTable::mark`] of the entry at a spot.
    #[inline]
    pub fn mark_at(&mut self, spot: Spot, flags: u64) {
        self.mark_slot(spot.slot, flags);
    }

    #[inline(always)]
    fn mark_slot(&mut self, slot: usize, flags: u64) {
        let entry = &mut self.entries[slot];
        debug_assert!(entry.is_present() && flags & (Entry::PRESENT | Entry::LEAF) == 0);
        if !entry.has(flags) {
            *entry = entry.with(flags);
        }
    }

    /// The number of nodes, the root included.
    pub fn node_count(&self) -> u64 {
        (self.places.len() - self.free.len()) as u64
    }

    /// The PTE node that covers `page`, if there is one and it is known without a way down, as nearly all are.
    #[inline(always)]
    pub fn known_pte_node(&self, page: Vpn) -> Option<NodeId> {
        self.pte_nodes.find(self.block(page))
    }

    /// The lowest node that covers `page`, with its level.
    #[inline]
    pub fn lowest_node(&self, page: Vpn) -> (NodeId, Level) {
        match self.known_pte_node(page) {
            Some(node) => (node, Level::PTE),
            None => self.descend(page),
        }
    }

    /// Where the entry of `page` stands, and the entry, which may be none.
    #[inline(always)]
    pub fn find(&self, page: Vpn) -> (Spot, Entry) {
        let (node, level, slot) = match self.known_pte_node(page) {
            Some(node) => (node, Level::PTE, self.slot(node, self.geometry.index(page, Level::PTE))),
            None => {
                let (node, level) = self.descend(page);
                (node, level, self.slot(node, self.geometry.index(page, level)))
            }
        };
        (Spot { node, level, slot }, self.entries[slot])
    }

    /// Whether nothing stands in the table for any page of the aligned 2^`order` block around `page`.
    #[inline]
    pub fn is_bare(&self, page: Vpn, order: u32) -> bool {
        let first = page.align_down(order);
        let (spot, entry) = self.find(first);
        if order > self.geometry.index_bits() || spot.level > Level::PTE {
            let whole = entry.is_none() && self.geometry.entry_order(spot.level) >= order;
            return whole || (0..1 << order).all(|place| self.leaf(first + place).is_none());
        }
        self.entries[spot.slot..][..1 << order].iter().fold(0, |any, entry| any | entry.0) == 0
    }

    /// The same, from the root down.
    #[inline(never)]
    fn descend(&self, page: Vpn) -> (NodeId, Level) {
        let (mut node, mut level) = (self.root(), self.geometry.root());
        while level > Level::PTE {
            let entry = self.entry_for(node, level, page);
            if !entry.is_present() || entry.is_leaf() {
                break;
            }
            (node, level) = (entry.node(), level.down());
        }
        (node, level)
    }

    /// The block of pages around `page` that one PTE node covers.
    #[inline(always)]
    fn block(&self, page: Vpn) -> u64 {
        page.0 >> self.geometry.index_bits()
    }

    /// The leaf for `page`, be it present or swapped; `None` if the page was never mapped.
    #[inline]
    pub fn leaf(&self, page: Vpn) -> Option<Leaf> {
        let (node, level) = self.lowest_node(page);
        let entry = self.entry_for(node, level, page);
        (!entry.is_none()).then(|| Leaf { entry, level, page: page.align_down(self.geometry.entry_order(level)) })
    }

    /// The frame behind `page`, if it is present.
    #[inline]
    pub fn translate(&self, page: Vpn) -> Option<Frame> {
        self.leaf(page).filter(|leaf| leaf.entry.is_present()).map(|leaf| leaf.frame_of(page))
    }

    /// Maps the page of `size` at `page` to `frame`, with `flags` besides present. Nodes that are missing on the way
    /// are made in frames from `new_node(level, first page that the node covers)`; when that fails, the nodes made so far stay (they are
    /// empty and can be pruned).
    ///
    /// # Errors
    /// Whatever `new_node` returns.
    ///
    /// # Panics
    /// When something else is mapped there, or `page` or `frame` is not aligned to the size.
    #[inline]
    pub fn map<E>(
        &mut self,
        page: Vpn,
        frame: Frame,
        size: PageSize,
        flags: u64,
        new_node: impl FnMut(Level, Vpn) -> Result<Frame, E>,
    ) -> Result<(), E> {
        self.set(page, size.level(), Entry::leaf(frame, flags), new_node)
    }

    /// Puts a note of a swapped page, or any other leaf, at `page` where there is nothing yet. See [`PageTable::map`].
    ///
    /// # Errors
    /// Whatever `new_node` returns.
    ///
    /// # Panics
    /// As [`PageTable::map`].
    #[inline]
    pub fn set<E>(
        &mut self,
        page: Vpn,
        level: Level,
        entry: Entry,
        new_node: impl FnMut(Level, Vpn) -> Result<Frame, E>,
    ) -> Result<(), E> {
        let node = self.ensure_node(page, level, new_node)?;
        self.set_in(node, page, level, entry);
        Ok(())
    }

    /// [`PageTable::set`] where `node`, the node of `level` that covers `page`, is known already.
    ///
    /// # Panics
    /// As [`PageTable::map`].
    #[inline]
    pub fn set_in(&mut self, node: NodeId, page: Vpn, level: Level, entry: Entry) {
        let order = self.geometry.entry_order(level);
        assert!(page.is_aligned(order), "{page:?} is no multiple of 2^{order} pages");
        assert!(!entry.is_present() || entry.frame().is_aligned(order), "{entry:?} is no multiple of 2^{order} frames");
        let slot = self.slot(node, self.geometry.index(page, level));
        assert!(self.entries[slot].is_none(), "{page:?} is mapped already: {:?}", self.entries[slot]);
        self.entries[slot] = entry;
        self.used[node.0 as usize] += 1;
        self.written(node, level, page);
    }

    /// [`PageTable::set_in`] at the PTE level where the spot of `page` is known already: the common case of a fault.
    ///
    /// # Panics
    /// When something else is mapped there.
    #[inline(always)]
    pub fn set_at(&mut self, spot: Spot, page: Vpn, entry: Entry) {
        debug_assert!(spot.level == Level::PTE && self.find(page).0 == spot, "{spot:?} is not where {page:?} stands");
        let place = &mut self.entries[spot.slot];
        assert!(place.is_none(), "{page:?} is mapped already");
        *place = entry;
        self.used[spot.node.0 as usize] += 1;
        self.written(spot.node, Level::PTE, page);
    }

    /// Makes sure that there is a node of `level` that covers `page`, and returns it.
    ///
    /// # Errors
    /// Whatever `new_node` returns.
    ///
    /// # Panics
    /// When a larger leaf covers `page`.
    #[inline]
    pub fn ensure_node<E>(
        &mut self,
        page: Vpn,
        level: Level,
        mut new_node: impl FnMut(Level, Vpn) -> Result<Frame, E>,
    ) -> Result<NodeId, E> {
        let first = page.align_down(self.geometry.index_bits());
        if let Some((last, node)) = self.last
            && level == Level::PTE
            && last == first
        {
            return Ok(node);
        }
        let (mut node, mut at) = (self.root(), self.geometry.root());
        while at > level {
            let slot = self.slot(node, self.geometry.index(page, at));
            let entry = self.entries[slot];
            let child = if entry.is_none() {
                let frame = new_node(at.down(), page.align_down(self.geometry.entry_order(at)))?;
                let child = self.add_node(frame, node);
                self.entries[slot] = Entry::pointer(child);
                self.used[node.0 as usize] += 1;
                self.written(node, at, page);
                if at.down() == Level::PTE {
                    self.pte_nodes.add(self.block(page), child);
                }
                child
            } else {
                assert!(entry.is_present() && !entry.is_leaf(), "{page:?} lies under a larger page: {entry:?}");
                entry.node()
            };
            (node, at) = (child, at.down());
        }
        if level == Level::PTE {
            self.last = Some((first, node));
        }
        Ok(node)
    }

    /// Changes the leaf that covers `page` by `change`, which must keep it a leaf or a swapped page's note. Returns what stood
    /// there before; `None` if there is nothing to change.
    #[inline]
    pub fn update(&mut self, page: Vpn, change: impl FnOnce(Entry) -> Entry) -> Option<Leaf> {
        let (node, level) = self.lowest_node(page);
        let slot = self.slot(node, self.geometry.index(page, level));
        let entry = self.entries[slot];
        if entry.is_none() {
            return None;
        }
        let changed = change(entry);
        debug_assert!(!changed.is_none() && (changed.is_leaf() || !changed.is_present()));
        self.entries[slot] = changed;
        self.written(node, level, page);
        Some(Leaf { entry, level, page: page.align_down(self.geometry.entry_order(level)) })
    }

    /// Takes away the leaf that covers `page` and returns it. Its nodes stay until they are [pruned](PageTable::prune).
    #[inline]
    pub fn unmap(&mut self, page: Vpn) -> Option<Leaf> {
        let leaf = self.leaf(page)?;
        let (node, level) = self.lowest_node(page);
        let slot = self.slot(node, self.geometry.index(page, level));
        self.entries[slot] = Entry::NONE;
        self.used[node.0 as usize] -= 1;
        self.written(node, level, page);
        Some(leaf)
    }

    /// Frees every node that lies whole inside `range` or covers part of it, and that has become empty (Linux's
    /// `free_pgtables`). The root stays. `released(level, first page, frame)` gets each frame.
    pub fn prune(&mut self, range: VpnRange, mut released: impl FnMut(Level, Vpn, Frame)) {
        self.last = None;
        self.prune_below(self.root(), self.geometry.root(), Vpn(0), range, &mut released);
    }

    fn prune_below(
        &mut self,
        node: NodeId,
        level: Level,
        first: Vpn,
        range: VpnRange,
        released: &mut impl FnMut(Level, Vpn, Frame),
    ) {
        if level == Level::PTE {
            return;
        }
        for (index, child_first) in self.entries_over(level, first, range) {
            let slot = self.slot(node, index);
            let entry = self.entries[slot];
            if !entry.is_present() || entry.is_leaf() {
                continue;
            }
            let child = entry.node();
            self.prune_below(child, level.down(), child_first, range, released);
            if self.used[child.0 as usize] == 0 {
                self.entries[slot] = Entry::NONE;
                self.used[node.0 as usize] -= 1;
                self.written(node, level, child_first);
                if level.down() == Level::PTE {
                    self.pte_nodes.remove(self.block(child_first));
                }
                released(level.down(), child_first, self.remove_node(child));
            }
        }
    }

    /// Splits the large leaf that covers `page` into the entries of a node one level down, which sits in `frame`.
    /// Flags are kept. Returns the leaf that was split, or `None` (and does nothing) if there is no large one.
    pub fn split(&mut self, page: Vpn, frame: Frame) -> Option<Leaf> {
        let leaf = self.leaf(page).filter(|leaf| leaf.level > Level::PTE && leaf.entry.is_present())?;
        let (node, level) = self.lowest_node(page);
        let child = self.add_node(frame, node);
        let step = 1 << self.geometry.entry_order(level.down());
        for index in 0..self.geometry.entries() {
            let slot = self.slot(child, index);
            self.entries[slot] = Entry::leaf(leaf.entry.frame() + index as u64 * step, leaf.entry.flags());
        }
        self.used[child.0 as usize] = self.geometry.entries() as u16;
        let slot = self.slot(node, self.geometry.index(page, level));
        self.entries[slot] = Entry::pointer(child);
        self.written(node, level, page);
        if level.down() == Level::PTE {
            self.pte_nodes.add(self.block(page), child);
        }
        Some(leaf)
    }

    /// Replaces the PTE node that covers `page`, with all that it maps, by one 2 MiB leaf for `frame`. Returns the frame
    /// of the node that went, or `None` (and does nothing) if there is no such node.
    pub fn collapse(&mut self, page: Vpn, frame: Frame, flags: u64) -> Option<Frame> {
        let (pte_node, level) = self.lowest_node(page);
        if level != Level::PTE {
            return None;
        }
        self.last = None;
        let (mut node, mut at) = (self.root(), self.geometry.root());
        while at > Level::PMD {
            (node, at) = (self.entry_for(node, at, page).node(), at.down());
        }
        let slot = self.slot(node, self.geometry.index(page, Level::PMD));
        assert!(frame.is_aligned(self.geometry.entry_order(Level::PMD)), "{frame:?} starts no large page");
        self.entries[slot] = Entry::leaf(frame, flags);
        self.written(node, Level::PMD, page);
        self.pte_nodes.remove(self.block(page));
        Some(self.remove_node(pte_node))
    }

    /// Moves `node` to another frame (its contents move with it) and returns the frame where it was.
    pub fn relocate(&mut self, node: NodeId, frame: Frame) -> Frame {
        let moved = Place::new(frame, self.parent(node));
        std::mem::replace(&mut self.places[node.0 as usize], moved).frame()
    }

    /// Visits every leaf that covers part of `range`, in order of address, swapped pages' notes included.
    pub fn for_each_leaf(&self, range: VpnRange, mut visit: impl FnMut(Leaf)) {
        self.visit_leaves(self.root(), self.geometry.root(), Vpn(0), range, &mut visit);
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
        self.visit_nodes(self.root(), self.geometry.root(), Vpn(0), &mut visit);
    }

    fn visit_nodes(&self, node: NodeId, level: Level, first_page: Vpn, visit: &mut impl FnMut(NodeView)) {
        visit(NodeView { node, level, frame: self.node_frame(node), first_page });
        if level == Level::PTE {
            return;
        }
        for index in 0..self.geometry.entries() {
            let entry = self.entry(node, index);
            if entry.is_present() && !entry.is_leaf() {
                let child = first_page + ((index as u64) << self.geometry.entry_order(level));
                self.visit_nodes(entry.node(), level.down(), child, visit);
            }
        }
    }

    /// The entries of a node of `level` whose first page is `first` that cover part of `range`: index and first page.
    fn entries_over(&self, level: Level, first: Vpn, range: VpnRange) -> impl Iterator<Item = (usize, Vpn)> + use<> {
        let order = self.geometry.entry_order(level);
        let count = self.geometry.entries() as u64;
        let from = range.start.0.saturating_sub(first.0) >> order;
        let to = range.end.0.saturating_sub(first.0).div_ceil(1 << order).min(count);
        (from..to).map(move |index| (index as usize, first + (index << order)))
    }

    #[inline]
    fn slot(&self, node: NodeId, index: usize) -> usize {
        debug_assert!(index < self.geometry.entries());
        (node.0 as usize) << self.geometry.index_bits() | index
    }

    fn add_node(&mut self, frame: Frame, parent: NodeId) -> NodeId {
        let place = Place::new(frame, parent);
        if let Some(node) = self.free.pop() {
            self.places[node.0 as usize] = place;
            return node;
        }
        assert!(self.places.len() < 1 << Place::NODE_BITS, "a table of 2^{} nodes", Place::NODE_BITS);
        let node = NodeId(self.places.len() as u32);
        self.entries.grow(self.geometry.entries());
        self.places.push(place);
        self.used.push(0);
        node
    }

    fn remove_node(&mut self, node: NodeId) -> Frame {
        let first = self.slot(node, 0);
        self.entries[first..first + self.geometry.entries()].fill(Entry::NONE);
        self.used[node.0 as usize] = 0;
        self.free.push(node);
        self.node_frame(node)
    }

    /// Checks what must always hold: every node is reached once, and from its parent, its count of used entries is right, leaves are
    /// aligned, and nodes that are free are empty.
    ///
    /// # Panics
    /// With a message that names the node, if something does not hold.
    pub fn check_invariants(&self) {
        let mut seen = vec![false; self.places.len()];
        self.for_each_node(|view| {
            let id = view.node.0 as usize;
            assert!(!std::mem::replace(&mut seen[id], true), "{view:?} is reached twice");
            let used = (0..self.geometry.entries()).filter(|&i| !self.entry(view.node, i).is_none()).count();
            assert_eq!(used, usize::from(self.used[id]), "the count of used entries of {view:?}");
            for index in 0..self.geometry.entries() {
                let entry = self.entry(view.node, index);
                if entry.is_leaf() {
                    assert!(view.level <= Level::PUD, "{view:?} holds a leaf");
                    let order = self.geometry.entry_order(view.level);
                    assert!(entry.frame().is_aligned(order), "{view:?}, entry {index}: {entry:?} is not aligned");
                } else if entry.is_present() {
                    assert!(view.level > Level::PTE, "{view:?} points below the PTEs");
                    assert_eq!(self.parent(entry.node()), view.node, "the parent of {:?}", entry.node());
                }
            }
        });
        self.pte_nodes.check_invariants(|block| self.descend(Vpn(block << self.geometry.index_bits())));
        for &node in &self.free {
            assert!(!std::mem::replace(&mut seen[node.0 as usize], true), "{node:?} is free and in use");
            assert_eq!(self.used[node.0 as usize], 0, "{node:?} is free and not empty");
        }
        assert!(seen.iter().all(|&seen| seen), "a node is neither in the table nor free");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of `geometry` and a source of frames for its nodes, counting up from 1000.
    fn table(geometry: Geometry) -> (PageTable, impl FnMut(Level, Vpn) -> Result<Frame, ()>) {
        let mut next = 1000;
        let source = move |_: Level, _: Vpn| {
            next += 1;
            Ok(Frame(next))
        };
        (PageTable::new(geometry, Frame(1000)), source)
    }

    #[test]
    fn a_mapped_page_translates_and_its_neighbour_does_not() {
        for geometry in [Geometry::X86_4, Geometry::X86_5, Geometry::new(2, 3).unwrap(), Geometry::new(3, 1).unwrap()] {
            let (mut t, mut source) = table(geometry);
            let page = Vpn(geometry.end().0 - 2);
            t.map(page, Frame(77), PageSize::Small, Entry::WRITABLE, &mut source).unwrap();
            assert_eq!(t.translate(page), Some(Frame(77)));
            assert_eq!(t.translate(page + 1), None);
            assert_eq!(t.node_count(), u64::from(geometry.levels()));
            t.check_invariants();
        }
    }

    #[test]
    fn large_leaves_cover_all_their_pages() {
        let (mut t, mut source) = table(Geometry::X86_4);
        t.map(Vpn(512), Frame(1024), PageSize::Huge, 0, &mut source).unwrap();
        t.map(Vpn(1 << 18), Frame(1 << 18), PageSize::Giant, 0, &mut source).unwrap();
        assert_eq!(t.translate(Vpn(512 + 511)), Some(Frame(1024 + 511)));
        assert_eq!(t.translate(Vpn((1 << 18) + 70_000)), Some(Frame((1 << 18) + 70_000)));
        assert_eq!(t.leaf(Vpn(600)).unwrap().size(), PageSize::Huge);
        t.check_invariants();
    }

    #[test]
    #[should_panic(expected = "mapped already")]
    fn mapping_twice_is_caught() {
        let (mut t, mut source) = table(Geometry::X86_4);
        t.map(Vpn(5), Frame(1), PageSize::Small, 0, &mut source).unwrap();
        t.map(Vpn(5), Frame(2), PageSize::Small, 0, &mut source).unwrap();
    }

    #[test]
    fn what_stands_at_a_spot_is_the_page_s_entry() {
        let (mut t, mut source) = table(Geometry::X86_4);
        let (spot, entry) = t.find(Vpn(700));
        assert_eq!((spot.node, spot.level, entry), (t.root(), Level(4), Entry::NONE));
        t.map(Vpn(512), Frame(9), PageSize::Small, 0, &mut source).unwrap();
        let (spot, entry) = t.find(Vpn(700));
        assert_eq!((spot.level, entry), (Level::PTE, Entry::NONE));
        t.set_at(spot, Vpn(700), Entry::leaf(Frame(5), 0));
        t.mark_at(spot, Entry::ACCESSED);
        assert_eq!(t.find(Vpn(700)), (spot, Entry::leaf(Frame(5), Entry::ACCESSED)));
        assert_eq!(t.translate(Vpn(700)), Some(Frame(5)));
        t.check_invariants();
    }

    #[test]
    #[should_panic(expected = "mapped already")]
    fn setting_a_spot_twice_is_caught() {
        let (mut t, mut source) = table(Geometry::X86_4);
        t.map(Vpn(512), Frame(9), PageSize::Small, 0, &mut source).unwrap();
        t.set_at(t.find(Vpn(512)).0, Vpn(512), Entry::leaf(Frame(5), 0));
    }

    #[test]
    fn a_block_is_bare_when_none_of_its_pages_is_mapped() {
        for geometry in [Geometry::X86_4, Geometry::new(3, 3).unwrap(), Geometry::new(4, 2).unwrap()] {
            let (mut t, mut source) = table(geometry);
            assert!(t.is_bare(Vpn(0), 3) && t.is_bare(Vpn(100), 6));
            t.map(Vpn(37), Frame(9), PageSize::Small, 0, &mut source).unwrap();
            for page in 0..128 {
                for order in 0..7 {
                    let bare = page >> order != 37 >> order;
                    assert_eq!(t.is_bare(Vpn(page), order), bare, "page {page}, order {order}, {geometry:?}");
                }
            }
            t.unmap(Vpn(37)).unwrap();
            assert!(t.is_bare(Vpn(37), 6), "its node is there still");
        }
        let (mut t, mut source) = table(Geometry::X86_4);
        t.map(Vpn(512), Frame(512), PageSize::Huge, 0, &mut source).unwrap();
        assert!(!t.is_bare(Vpn(600), 3) && !t.is_bare(Vpn(3), 10) && t.is_bare(Vpn(3), 9));
    }

    #[test]
    fn pruning_frees_empty_nodes_only() {
        let (mut t, mut source) = table(Geometry::X86_4);
        for page in [Vpn(0), Vpn(512), Vpn(1 << 18)] {
            t.map(page, Frame(page.0 + 1), PageSize::Small, 0, &mut source).unwrap();
        }
        t.unmap(Vpn(0)).unwrap();
        t.unmap(Vpn(1 << 18)).unwrap();
        let mut freed = Vec::new();
        t.prune(VpnRange { start: Vpn(0), end: Vpn(1 << 20) }, |level, first, _| freed.push((level.0, first.0)));
        assert_eq!(freed, [(1, 0), (1, 1 << 18), (2, 1 << 18)]);
        assert_eq!(t.translate(Vpn(512)), Some(Frame(513)));
        t.check_invariants();
    }

    #[test]
    fn split_and_collapse_are_inverse() {
        let (mut t, mut source) = table(Geometry::X86_4);
        t.map(Vpn(1024), Frame(512), PageSize::Huge, Entry::WRITABLE, &mut source).unwrap();
        let nodes = t.node_count();
        t.split(Vpn(1030), Frame(9)).unwrap();
        assert_eq!(t.leaf(Vpn(1030)).unwrap().size(), PageSize::Small);
        assert_eq!(t.translate(Vpn(1030)), Some(Frame(518)));
        t.check_invariants();
        assert_eq!(t.collapse(Vpn(1024), Frame(512), Entry::WRITABLE), Some(Frame(9)));
        assert_eq!(t.node_count(), nodes);
        assert_eq!(t.leaf(Vpn(1030)).unwrap().size(), PageSize::Huge);
        t.check_invariants();
    }

    #[test]
    fn leaves_are_visited_in_order_and_within_the_range() {
        let (mut t, mut source) = table(Geometry::new(3, 2).unwrap());
        for page in [3, 4, 17, 40] {
            t.map(Vpn(page), Frame(page), PageSize::Small, 0, &mut source).unwrap();
        }
        let mut seen = Vec::new();
        t.for_each_leaf(VpnRange { start: Vpn(4), end: Vpn(40) }, |leaf| seen.push(leaf.page.0));
        assert_eq!(seen, [4, 17]);
    }
}
