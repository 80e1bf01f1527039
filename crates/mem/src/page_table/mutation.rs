// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mapping and unmapping, and the accessed and dirty bits.

use super::PageTable;
use super::cursor::Cursor;
use super::entry::Entry;
use super::found::{EntrySlot, Leaf};
use super::node_id::NodeId;
use crate::addr::{Frame, Vpn};
use crate::geometry::{Level, PageSize};

impl PageTable {
    /// Sets `flags` (accessed, dirty) in entry `index` of `node`, as the hardware does on a walk.
    /// Writes nothing when they are set. The flags must not be ones that give the entry its kind.
    /// Of a contiguous block all entries get them.
    #[inline]
    pub fn mark(&mut self, node: NodeId, index: usize, flags: u64) {
        self.mark_slot(self.nodes.slot(node, index), flags);
    }

    /// [`PageTable::mark`] of the entry in a slot.
    #[inline]
    pub fn mark_at(&mut self, slot: EntrySlot, flags: u64) {
        self.mark_slot(slot.slot, flags);
    }

    #[inline(always)]
    fn mark_slot(&mut self, slot: usize, flags: u64) {
        let entry = self.nodes.entry_mut(slot);
        debug_assert!(entry.is_present() && flags & (Entry::PRESENT | Entry::LEAF) == 0);
        if !entry.has(flags) {
            *entry = entry.with(flags);
            if entry.has(Entry::CONTIGUOUS) {
                self.mark_block(slot, flags);
            }
        }
    }

    /// Maps the page of `size` at `page` to `frame`, with `flags` besides present. Makes the nodes
    /// that are missing, in frames from `new_node(level, first page that the node covers)`. When
    /// that fails, the nodes made so far stay; they are empty and can be pruned.
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

    /// Puts any leaf, which may be a swapped page's, at `page` where there is none yet. See
    /// [`PageTable::map`].
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
        let order = self.geometry().entry_order(level);
        assert!(page.is_aligned(order), "{page:?} is no multiple of 2^{order} pages");
        let aligned = !entry.is_present() || entry.frame().is_aligned(order);
        assert!(aligned, "{entry:?} is no multiple of 2^{order} frames");
        let cursor = Cursor { page, node, level };
        self.set_slot(cursor, cursor.slot(&self.nodes), entry);
    }

    /// [`PageTable::set_in`] at the PTE level where the slot for `page` is known: the common case
    /// of a fault.
    ///
    /// # Panics
    /// When something else is mapped there.
    #[inline(always)]
    pub fn set_at(&mut self, at: EntrySlot, page: Vpn, entry: Entry) {
        debug_assert!(at.level == Level::PTE && self.find(page).0 == at, "{at:?} is not the slot of {page:?}");
        self.set_slot(Cursor { page, node: at.node, level: Level::PTE }, at.slot, entry);
    }

    #[inline(always)]
    fn set_slot(&mut self, cursor: Cursor, slot: usize, entry: Entry) {
        assert!(self.nodes.entry(slot).is_none(), "{:?} is mapped already", cursor.page);
        debug_assert!(!entry.has(Entry::CONTIGUOUS), "{entry:?} of {:?} is marked before its block", cursor.page);
        self.nodes.fill(cursor.node, slot, entry);
        self.writes.add(&self.nodes, cursor);
    }

    /// Makes sure that a node of `level` covers `page`, and returns it.
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
        let mut cursor = self.cursor(page);
        while cursor.level < level {
            cursor = cursor.up(&self.nodes);
        }
        while cursor.level > level {
            let entry = cursor.entry(&self.nodes);
            assert!(entry.is_none(), "{page:?} lies under a larger page: {entry:?}");
            let frame = new_node(cursor.level.down(), cursor.first_page(&self.nodes))?;
            let child = self.nodes.add(frame, cursor.node);
            let slot = cursor.slot(&self.nodes);
            self.nodes.fill(cursor.node, slot, Entry::pointer(child));
            self.point(cursor, child);
            cursor = cursor.down(child);
        }
        Ok(cursor.node)
    }

    /// The entry at `cursor` points to `child` now.
    fn point(&mut self, cursor: Cursor, child: NodeId) {
        self.writes.add(&self.nodes, cursor);
        if cursor.level.down() == Level::PTE {
            self.pte_nodes.add(self.block(cursor.page), child);
        }
    }

    /// Changes the leaf that covers `page` by `change`, which must keep it a leaf or a swapped
    /// page's entry. Returns what was there before; `None` if there is nothing to change. Of a
    /// contiguous block, all accessed bits change with one, and dirty bits are set together; any
    /// other change ends the block.
    #[inline]
    pub fn update(&mut self, page: Vpn, change: impl FnOnce(Entry) -> Entry) -> Option<Leaf> {
        let cursor = self.cursor(page);
        let slot = cursor.slot(&self.nodes);
        let there = self.nodes.entry_mut(slot);
        let entry = *there;
        if entry.is_none() {
            return None;
        }
        *there = change(entry);
        debug_assert!(!there.is_none() && (there.is_leaf() || !there.is_present()));
        if entry.has(Entry::CONTIGUOUS) {
            self.changed_in_block(slot, entry);
        }
        debug_assert!(entry.has(Entry::CONTIGUOUS) || !self.nodes.entry(slot).has(Entry::CONTIGUOUS));
        self.leaf_changes += 1;
        self.writes.add(&self.nodes, cursor);
        Some(cursor.leaf(&self.nodes, entry))
    }

    /// Removes the leaf that covers `page` and returns it. Its nodes stay until they are
    /// [pruned](PageTable::prune). A contiguous block ends with its first page that goes.
    #[inline]
    pub fn unmap(&mut self, page: Vpn) -> Option<Leaf> {
        let cursor = self.cursor(page);
        let slot = cursor.slot(&self.nodes);
        let mut entry = self.nodes.entry(slot);
        if entry.is_none() {
            return None;
        }
        if entry.has(Entry::CONTIGUOUS) {
            entry = self.end_block(slot);
        }
        self.nodes.clear(cursor.node, slot);
        self.leaf_changes += 1;
        self.writes.add(&self.nodes, cursor);
        Some(cursor.leaf(&self.nodes, entry))
    }

    /// Splits the large leaf that covers `page` into the entries of a node one level down, in
    /// `frame`. Keeps its flags. Returns the leaf that was split, or `None` (and does nothing) if
    /// there is no large one.
    pub fn split(&mut self, page: Vpn, frame: Frame) -> Option<Leaf> {
        let cursor = self.cursor(page);
        let slot = cursor.slot(&self.nodes);
        let entry = self.nodes.entry(slot);
        if cursor.level == Level::PTE || !entry.is_present() {
            return None;
        }
        let child = self.nodes.add(frame, cursor.node);
        let step = 1 << self.geometry().entry_order(cursor.level.down());
        self.nodes.fill_all(child, |index| Entry::leaf(entry.frame() + index as u64 * step, entry.flags()));
        *self.nodes.entry_mut(slot) = Entry::pointer(child);
        self.leaf_changes += 1;
        self.point(cursor, child);
        Some(cursor.leaf(&self.nodes, entry))
    }

    /// Replaces the PTE node that covers `page`, with all that it maps, by one 2 MiB leaf for
    /// `frame`. Returns the node's frame, or `None` (and does nothing) if there is no such node.
    ///
    /// # Panics
    /// When `frame` is not aligned to 2 MiB.
    pub fn collapse(&mut self, page: Vpn, frame: Frame, flags: u64) -> Option<Frame> {
        let low = self.cursor(page);
        if low.level != Level::PTE {
            return None;
        }
        assert!(frame.is_aligned(self.geometry().entry_order(Level::PMD)), "{frame:?} starts no large page");
        let cursor = low.up(&self.nodes);
        let slot = cursor.slot(&self.nodes);
        *self.nodes.entry_mut(slot) = Entry::leaf(frame, flags & !Entry::CONTIGUOUS);
        self.leaf_changes += 1;
        self.writes.add(&self.nodes, cursor);
        self.pte_nodes.remove(self.block(page));
        Some(self.nodes.remove(low.node))
    }

    /// Moves `node`, with its contents, to another frame and returns the frame that it had.
    pub fn relocate(&mut self, node: NodeId, frame: Frame) -> Frame {
        self.nodes.relocate(node, frame)
    }
}
