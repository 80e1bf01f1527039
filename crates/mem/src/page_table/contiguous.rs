// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contiguous blocks: 16 aligned PTEs that map an aligned 64 KiB of memory in order, all with the
//! same rights, and that say so in a bit of their own (arm64's contiguous bit, with 4 KiB pages).
//! One TLB entry may then stand for all of them.
//!
//! Software sets the bit, and is responsible for it: a table never joins pages by itself. It ends a
//! block by itself, as Linux does (`mm/contpte.c`, `contpte_try_unfold`), when one of its pages
//! goes, moves or changes its rights.
//!
//! A block has one accessed and one dirty bit. Hardware may set those of any of its entries, and
//! software has to take the 16 together (`contpte_ptep_get`). Here all 16 always have the same.

use super::PageTable;
use super::entry::Entry;
use super::found::NodeView;
use crate::addr::Vpn;
use crate::geometry::{CONTIGUOUS_ORDER, CONTIGUOUS_PAGES, Level};

const PAGES: usize = CONTIGUOUS_PAGES as usize;

/// What entries of a block may differ in before it is made.
const USE: u64 = Entry::ACCESSED | Entry::DIRTY;

/// Whether `entry` is what the entry at `place` of a block must be that begins with `first`.
fn continues(entry: Entry, first: Entry, place: usize) -> bool {
    entry.is_present()
        && entry.is_leaf()
        && entry.frame() == first.frame() + place as u64
        && (entry.flags() ^ first.flags()) & !USE == 0
}

impl PageTable {
    /// Makes a contiguous block of the 16 aligned pages around `page`, if they are mapped by PTEs
    /// to an aligned 64 KiB in order and with the same rights (`contpte_try_fold`). Accessed and
    /// dirty bits are then those of any of them. Returns whether it did: a block that is there
    /// already is not made again.
    pub fn join(&mut self, page: Vpn) -> bool {
        let cursor = self.cursor(page.align_down(CONTIGUOUS_ORDER));
        if cursor.level > Level::PTE || self.geometry().index_bits() < CONTIGUOUS_ORDER {
            return false;
        }
        let slot = cursor.slot(&self.nodes);
        let block = &self.nodes.entries_from(slot)[..PAGES];
        let first = block[0];
        let whole = first.is_present()
            && first.frame().is_aligned(CONTIGUOUS_ORDER)
            && !first.has(Entry::CONTIGUOUS)
            && block.iter().enumerate().all(|(place, &entry)| continues(entry, first, place));
        if !whole {
            return false;
        }
        let used = block.iter().fold(0, |any, entry| any | entry.flags()) & USE;
        self.change_block(slot, |entry| entry.with(used | Entry::CONTIGUOUS));
        self.leaf_changes += 1;
        self.writes.add(&self.nodes, cursor);
        true
    }

    /// Whether `page` is mapped as part of a contiguous block.
    pub fn is_contiguous(&self, page: Vpn) -> bool {
        self.leaf(page).is_some_and(|leaf| leaf.entry.has(Entry::CONTIGUOUS))
    }

    /// Hardware has set `flags` in the entry at `slot`, which is one of a block.
    #[cold]
    pub(super) fn mark_block(&mut self, slot: usize, flags: u64) {
        self.change_block(slot, |entry| entry.with(flags));
    }

    /// The entry at `slot`, which is or was one of a block, is no longer as it was `before`. The
    /// block goes on if the pages are only used in another way now.
    #[cold]
    pub(super) fn changed_in_block(&mut self, slot: usize, before: Entry) {
        let after = self.nodes.entry(slot);
        // A dirty bit that is cleared says of this page alone that its contents may be lost.
        let cleaned = before.has(Entry::DIRTY) && !after.has(Entry::DIRTY);
        if (before.0 ^ after.0) & !USE != 0 || cleaned {
            self.end_block(slot);
        } else {
            self.change_block(slot, |entry| entry.without(USE).with(after.flags() & USE));
        }
    }

    /// The block of the entry at `slot` is no more. The entry as it is now.
    #[cold]
    pub(super) fn end_block(&mut self, slot: usize) -> Entry {
        self.change_block(slot, |entry| entry.without(Entry::CONTIGUOUS));
        self.nodes.entry(slot)
    }

    /// Changes all entries of the block that the one at `slot` is in. A node's first slot is a
    /// multiple of its entries, so that blocks are aligned among slots, too.
    fn change_block(&mut self, slot: usize, change: impl Fn(Entry) -> Entry) {
        let first = slot & !(PAGES - 1);
        for slot in first..first + PAGES {
            let entry = self.nodes.entry_mut(slot);
            *entry = change(*entry);
        }
    }

    /// Checks the block that entry `index` of a node says it is in.
    pub(super) fn check_block(&self, view: NodeView, index: usize) {
        assert_eq!(view.level, Level::PTE, "{view:?}, entry {index} is marked contiguous");
        let begin = index & !(PAGES - 1);
        let first = self.entry(view.node, begin);
        assert!(first.is_leaf() && first.frame().is_aligned(CONTIGUOUS_ORDER), "{view:?}, entry {begin}: {first:?}");
        for place in 0..PAGES {
            let entry = self.entry(view.node, begin + place);
            let same = continues(entry, first, place) && entry.flags() == first.flags();
            assert!(same, "{view:?}, entry {}: {entry:?} in a block that begins with {first:?}", begin + place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Frame, PageCount, VpnRange};
    use crate::geometry::{Geometry, PageSize};
    use crate::page_table::Leaf;

    const FIRST: u64 = 1024 + 32;

    type Place = fn(u64) -> u64;
    type Change = fn(&mut PageTable);

    /// 32 pages from [`FIRST`] on, each at the frame that `frame` gives by its place.
    fn table(frame: impl Fn(u64) -> u64) -> PageTable {
        let mut table = PageTable::new(Geometry::X86_4, Frame(1 << 20));
        for place in 0..32 {
            let node = |_, _| -> Result<_, ()> { Ok(Frame(1 << 21)) };
            table.map(Vpn(FIRST + place), Frame(frame(place)), PageSize::Small, Entry::WRITABLE, node).unwrap();
        }
        table
    }

    fn marked(table: &PageTable) -> Vec<u64> {
        (0..32).filter(|&place| table.is_contiguous(Vpn(FIRST + place))).collect()
    }

    fn entry(table: &PageTable, place: u64) -> Entry {
        table.leaf(Vpn(FIRST + place)).unwrap().entry
    }

    fn changed(leaf: Option<Leaf>) {
        assert!(leaf.is_some(), "there was a page to change");
    }

    #[test]
    fn sixteen_pages_in_order_on_an_aligned_64_kib_are_joined() {
        let mut table = table(|place| 4096 + place);
        assert!(table.join(Vpn(FIRST + 5)));
        assert_eq!(marked(&table), (0..16).collect::<Vec<_>>());
        assert!(!table.join(Vpn(FIRST)), "it is a block already");
        table.check_invariants();
    }

    #[test]
    fn no_block_is_made_of_pages_that_are_off_missing_or_of_other_rights() {
        let cases: [(&str, Place); 3] = [
            ("one frame is off", |place| if place == 9 { 9000 } else { 4096 + place }),
            ("in order, and the frames are not aligned", |place| 4096 + 8 + place),
            ("in another order", |place| 4096 + (place ^ 1)),
        ];
        for (what, frame) in cases {
            assert!(!table(frame).join(Vpn(FIRST)), "{what}");
        }
        let changes: [(&str, Change); 4] = [
            ("a hole", |table| changed(table.unmap(Vpn(FIRST + 15)))),
            ("swapped", |table| changed(table.update(Vpn(FIRST + 3), |_| Entry::swapped()))),
            ("read-only", |table| changed(table.update(Vpn(FIRST + 3), |entry| entry.without(Entry::WRITABLE)))),
            ("shared", |table| changed(table.update(Vpn(FIRST), |entry| entry.with(Entry::COPY_ON_WRITE)))),
        ];
        for (what, change) in changes {
            let mut table = table(|place| 4096 + place);
            change(&mut table);
            assert!(!table.join(Vpn(FIRST)) && marked(&table).is_empty(), "{what}");
            assert!(table.join(Vpn(FIRST + 16)), "its neighbour is not concerned");
            table.check_invariants();
        }
        let mut huge = PageTable::new(Geometry::X86_4, Frame(0));
        huge.map(Vpn(512), Frame(512), PageSize::Huge, 0, |_, _| -> Result<_, ()> { Ok(Frame(1)) }).unwrap();
        assert!(!huge.join(Vpn(512)), "2 MiB are no PTEs");
        let mut narrow = PageTable::new(Geometry::new(4, 3).unwrap(), Frame(0));
        for page in 0..16 {
            narrow.map(Vpn(page), Frame(page), PageSize::Small, 0, |_, _| -> Result<_, ()> { Ok(Frame(99)) }).unwrap();
        }
        assert!(!narrow.join(Vpn(0)), "no node has 16 entries");
    }

    #[test]
    fn a_block_has_one_accessed_and_one_dirty_bit() {
        let mut table = table(|place| 4096 + place);
        let (slot, _) = table.find(Vpn(FIRST + 3));
        table.mark_at(slot, Entry::ACCESSED | Entry::DIRTY);
        assert!(table.join(Vpn(FIRST)));
        assert!((0..16).all(|place| entry(&table, place).has(Entry::ACCESSED | Entry::DIRTY)), "those of any");
        table.update(Vpn(FIRST + 9), |entry| entry.without(Entry::ACCESSED)).unwrap();
        assert!(
            (0..16).all(|place| !entry(&table, place).has(Entry::ACCESSED) && table.is_contiguous(Vpn(FIRST + place)))
        );
        let (slot, _) = table.find(Vpn(FIRST + 15));
        table.mark_at(slot, Entry::ACCESSED);
        assert!((0..16).all(|place| entry(&table, place).has(Entry::ACCESSED)));
        assert!(!entry(&table, 16).has(Entry::ACCESSED));
        table.check_invariants();
        // Only this page's contents may be lost: its neighbours stay dirty.
        table.update(Vpn(FIRST), |entry| entry.without(Entry::DIRTY)).unwrap();
        assert!(marked(&table).is_empty() && (1..16).all(|place| entry(&table, place).has(Entry::DIRTY)));
        table.check_invariants();
    }

    #[test]
    fn a_block_ends_with_one_page_that_goes_moves_or_changes_its_rights() {
        let changes: [Change; 4] = [
            |table| assert!(!table.unmap(Vpn(FIRST + 4)).unwrap().entry.has(Entry::CONTIGUOUS)),
            |table| changed(table.update(Vpn(FIRST + 4), |entry| Entry::leaf(Frame(77), entry.flags()))),
            |table| changed(table.update(Vpn(FIRST + 4), |entry| entry.without(Entry::WRITABLE))),
            |table| changed(table.update(Vpn(FIRST + 4), |_| Entry::swapped())),
        ];
        for change in changes {
            let mut table = table(|place| 4096 + place);
            let version = table.version();
            assert!(table.join(Vpn(FIRST)) && table.join(Vpn(FIRST + 16)));
            assert_ne!(table.version(), version, "what was read of its leaves no longer holds");
            change(&mut table);
            assert_eq!(marked(&table), (16..32).collect::<Vec<_>>(), "the other block goes on");
            table.check_invariants();
        }
    }

    #[test]
    fn a_huge_page_is_made_of_blocks_and_may_become_blocks_again() {
        let mut table = PageTable::new(Geometry::X86_4, Frame(0));
        for place in 0..512 {
            table
                .map(Vpn(512 + place), Frame(512 + place), PageSize::Small, 0, |_, _| -> Result<_, ()> { Ok(Frame(1)) })
                .unwrap();
        }
        assert!((0..32).all(|block| table.join(Vpn(512 + block * 16))));
        let flags = table.leaf(Vpn(512)).unwrap().entry.flags();
        table.collapse(Vpn(512), Frame(512), flags).unwrap();
        assert!(!table.is_contiguous(Vpn(600)));
        table.split(Vpn(600), Frame(9)).unwrap();
        assert!((0..512).all(|place| !table.is_contiguous(Vpn(512 + place))), "software says so, or nothing does");
        assert!((0..32).all(|block| table.join(Vpn(512 + block * 16))));
        table.check_invariants();
        table.prune(VpnRange::new(Vpn(512), PageCount(512)), |_, _, _| ());
        table.check_invariants();
    }
}
