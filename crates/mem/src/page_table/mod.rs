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

mod entries;
mod entry;
mod lookaside;
mod place;
#[cfg(test)]
mod tests;
mod version;
mod visit;

use crate::addr::{ENTRY_BYTES, Frame, Pa, PageCount, Vpn, VpnRange};
use crate::geometry::{Geometry, Level, PageSize};

use self::entries::Entries;
pub use self::entry::Entry;
use self::lookaside::Lookaside;
use self::place::Place;
use self::version::Identity;
pub use self::version::Version;
pub use self::visit::NodeView;

/// A node of one table: an index that stays valid until the node is pruned or collapsed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Bits that a node's number has at most, so that something else fits above it in a word. So many nodes are 64 GiB of entries.
    const BITS: u32 = 24;

    /// The word in which `number` stands above this; `None` if it is too large for that.
    #[inline]
    fn under(self, number: u64) -> Option<u64> {
        (number >> (64 - Self::BITS) == 0).then_some(number << Self::BITS | u64::from(self.0))
    }

    /// The number above, and the node, of a word that [`NodeId::under`] made.
    #[inline]
    const fn split(word: u64) -> (u64, Self) {
        (word >> Self::BITS, Self((word & ((1 << Self::BITS) - 1)) as u32))
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
    /// [`Version`], in its parts.
    identity: Identity,
    node_changes: u64,
    leaf_changes: u64,
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
            identity: Identity::new(),
            node_changes: 0,
            leaf_changes: 0,
        };
        table.add_node(root, NodeId(0));
        table
    }

    /// Its shape.
    #[inline]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Which table this is, and how often something that was true of it ceased to be.
    #[inline]
    pub const fn version(&self) -> Version {
        Version { table: self.identity.number(), node_changes: self.node_changes, leaf_changes: self.leaf_changes }
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

    /// One more than the largest number that a node has, or had.
    #[inline]
    pub fn node_slots(&self) -> usize {
        self.places.len()
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

    /// How many entries of the node of a spot are in use.
    #[inline]
    pub fn used_at(&self, spot: Spot) -> u16 {
        self.used[spot.node.0 as usize]
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
        self.leaf_changes += 1;
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
        self.leaf_changes += 1;
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
        self.leaf_changes += 1;
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
        self.node_changes += 1;
        let moved = Place::new(frame, self.parent(node));
        std::mem::replace(&mut self.places[node.0 as usize], moved).frame()
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
        assert!(self.places.len() < 1 << NodeId::BITS, "a table of 2^{} nodes", NodeId::BITS);
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
        self.node_changes += 1;
        self.free.push(node);
        self.node_frame(node)
    }
}
