// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leaves of page tables, as the simulation finds them without a walk.

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Entry, Gpa, Gva, Level, NodeId, PageSize, PageTable, Pfn, Va, Vpn};

use crate::clustered::Group;
use crate::mapping::Mapping;

/// Bits of a page number that one level of an x86-64 table indexes: the only tables that are walked
/// here.
pub(crate) const INDEX_BITS: u32 = 9;

/// Which entry of a node at `level` stands for `page`.
#[inline(always)]
pub(crate) fn index_of(page: Vpn, level: Level) -> usize {
    (page.0 >> (INDEX_BITS * (u32::from(level.0) - 1))) as usize & ((1 << INDEX_BITS) - 1)
}

/// A leaf that a walk ended at.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub entry: Entry,
    pub node: NodeId,
    pub level: Level,
}

impl Found {
    /// What the entry for `page` in the same node says now.
    #[inline(always)]
    pub fn again(self, table: &PageTable, page: Vpn) -> Self {
        Self { entry: table.entry(self.node, index_of(page, self.level)), ..self }
    }

    /// The 4 KiB frame behind `page`.
    #[inline(always)]
    pub fn frame_of(self, page: Vpn) -> u64 {
        self.entry.frame().0 + (page.0 & (self.size().pages() - 1))
    }

    /// The guest-physical address of `gva`, which this leaf of a guest's table maps.
    #[inline(always)]
    pub fn gpa_of(self, gva: Gva) -> Gpa {
        Gpa(self.frame_of(Va::from(gva).page()) << PAGE_SHIFT | gva.page_offset())
    }

    /// The translation of `page`, one of its 4 KiB pages, after a reference (a store, if `write`).
    /// It has the frame of that page.
    #[inline(always)]
    pub fn part(self, page: Vpn, write: bool) -> Mapping {
        Mapping::of(self.entry, Pfn(self.frame_of(page)), self.size()).used(write)
    }

    /// The size of its page.
    #[inline(always)]
    pub fn size(self) -> PageSize {
        match self.level.0 {
            1 => PageSize::Small,
            2 => PageSize::Huge,
            _ => PageSize::Giant,
        }
    }

    /// Whether a load, or a store, may use it.
    #[inline(always)]
    pub fn allows(self, store: bool) -> bool {
        !store || self.entry.has(Entry::WRITABLE)
    }

    /// What hardware sets in the leaf, which maps `page`, for this access.
    #[inline(always)]
    pub fn mark(self, table: &mut PageTable, page: Vpn, store: bool) {
        let flags = Entry::ACCESSED | if store { Entry::DIRTY } else { 0 };
        if !self.entry.has(flags) {
            table.mark(self.node, index_of(page, self.level), flags);
        }
    }
}

/// The leaf for `page`, found without references; `None` if it is not present or does not allow a
/// `write`.
#[inline]
pub(crate) fn leaf_of(table: &PageTable, page: Vpn, write: bool) -> Option<Found> {
    let (node, level) = table.lowest_node(page);
    let entry = table.entry(node, index_of(page, level));
    let found = Found { entry, node, level };
    (entry.is_present() && found.allows(write)).then_some(found)
}

/// The leaf for `page`, if it is a PTE in a node that is known without a descent, is present and
/// allows a `write`.
#[inline(always)]
pub(crate) fn known_leaf(table: &PageTable, page: Vpn, write: bool) -> Option<Found> {
    let node = table.known_pte_node(page)?;
    let entry = table.entry(node, index_of(page, Level::PTE));
    let found = Found { entry, node, level: Level::PTE };
    (entry.is_present() && found.allows(write)).then_some(found)
}

/// Sets the dirty bit of the leaf for `page`, if it is writable. The leaf.
pub(crate) fn set_dirty(table: &mut PageTable, page: Vpn) -> Option<Found> {
    let found = leaf_of(table, page, true)?;
    found.mark(table, page, true);
    Some(found)
}

/// Prefetches, from the simulation's own memory, the leaf entry of `page` in `table`. Returns its
/// node and level.
#[inline(always)]
pub(crate) fn hint_leaf(table: &PageTable, page: Vpn) -> (NodeId, Level) {
    let (node, level) = table.lowest_node(page);
    table.prefetch(node, index_of(page, level));
    (node, level)
}

/// The pages of the aligned group of 8 around `page` that the cache line of its leaf shows to be
/// alike: those of the same large page, or those whose own leaves have the same rights, accessed
/// and dirty bits. `page` must be mapped. `to` converts a frame of the table. Returns the frame of
/// `page`, too.
#[inline(always)]
pub(crate) fn group_around(table: &PageTable, page: Vpn, to: impl Fn(u64) -> u64) -> (u64, Group) {
    const FLAGS: u64 = Entry::PRESENT | Entry::LEAF | Entry::WRITABLE | Entry::ACCESSED | Entry::DIRTY;
    let own = leaf_of(table, page, false).expect("it was just walked for");
    let frame = to(own.frame_of(page));
    if own.level > Level::PTE {
        return (frame, Group::of(frame, |place| (to(own.frame_of(Vpn(page.0 & !7 | place as u64))), true)));
    }
    let line = table.line(own.node, index_of(page, own.level));
    let group = Group::of(frame, |place| {
        let alike = (own.entry.flags() ^ line[place].flags()) & FLAGS == 0;
        (to(if alike { line[place] } else { own.entry }.frame().0), alike)
    });
    (frame, group)
}
