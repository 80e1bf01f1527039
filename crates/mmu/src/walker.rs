// SPDX-License-Identifier: MIT OR Apache-2.0
//! The seam between a core and a way to translate.

use nestwalk_mem::addr::{ENTRY_BYTES, PAGE_SHIFT};
use nestwalk_mem::{Entry, Gpa, Gva, Level, NodeId, Pa, PageSize, PageTable, Pfn, Va, Vpn};

use crate::accelerator::Accelerator;
use crate::accelerator::tables::Tables;
use crate::clustered::Group;
use crate::counters::Table;
use crate::mapping::Mapping;
use crate::memo::Memo;
use crate::simd::Simd;
use crate::stages::Prepared;
use crate::walk_unit::WalkUnit;

/// Why a walk cannot end: some kernel has to act first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A page fault of the program: its own table does not map `gva`, or does not allow the store
    /// (copy-on-write).
    Guest {
        /// The access.
        gva: Gva,
        /// Whether it is a store.
        store: bool,
    },
    /// An EPT violation: the host does not map the page of `gpa`, or does not allow the store. It
    /// is a page fault of the VM's process at the virtual address that stands for `gpa`.
    Host {
        /// What the guest's table, or the walk through its nodes, refers to.
        gpa: Gpa,
        /// Whether it needs write permission: a store of the program, or any reference to a node of
        /// the guest's table (with accessed and dirty bits in use the hardware treats those as
        /// writes: Intel SDM, vol. 3, 29.3.3.2).
        store: bool,
    },
    /// A boundary violation of DS-n: an address beyond the VM's memory. Nothing that a kernel could
    /// do makes it go away; the hypervisor stops the VM.
    Boundary {
        /// The address.
        gpa: Gpa,
    },
}

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

/// Places for the entries of a way down, of which no table has as many: a power of two.
const WAY: usize = 8;

/// The way down one table for `page`, from what its page-walk caches know to the entry in the node
/// `last`, the lowest one that covers `page`, of level `leaf`. Each entry's level and address in
/// the space that the table lies in go to `refer` before it is read. The leaf, or `None` if an
/// entry is not present or `refer` says `None`. The page-walk caches are used only if `searched`.
///
/// The last node is known and each node has a link to its parent, so only the last entry is read.
#[inline(always)]
pub(crate) fn descend<P: Accelerator, S: Simd>(
    (table, which): (&PageTable, Table),
    unit: &mut WalkUnit<P>,
    simd: S,
    page: Vpn,
    (last, leaf): (NodeId, Level),
    searched: bool,
    mut refer: impl FnMut(&mut WalkUnit<P>, Level, Pa) -> Option<()>,
) -> Option<Found> {
    let mut top = table.geometry().root();
    if searched {
        // In the guest a walk can end before its time.
        let hit = unit.pwc(which).look_up(simd, page, (leaf, top), which == Table::Guest);
        unit.pwc_lookup(which, hit.map_or(0, |level| level.0));
        top = hit.map_or(top, Level::down);
    }
    let mut way = [Pa(0); WAY];
    let (mut node, mut level, mut number) = (last, leaf, page.0 >> (INDEX_BITS * leaf.index() as u32));
    let mut at = loop {
        let (frame, parent) = table.frame_and_parent(node);
        let at = frame.address() + (number & ((1 << INDEX_BITS) - 1)) * ENTRY_BYTES;
        if level == top {
            break at;
        }
        way[usize::from(level.0) % WAY] = at;
        (node, level, number) = (parent, level.up(), number >> INDEX_BITS);
    };
    while refer(unit, level, at).is_some() {
        if level == leaf {
            let entry = table.entry(last, index_of(page, leaf));
            return entry.is_present().then_some(Found { entry, node: last, level: leaf });
        }
        level = level.down();
        at = way[usize::from(level.0) % WAY];
    }
    unit.pwc(which).take_back(page, leaf, level);
    None
}

/// A way to translate the program's addresses.
pub trait Walker {
    /// Addresses in the simulation's own memory that the next walk needs: the state between the
    /// stages of a hint.
    type Hint: Copy + Default;

    /// Walks for `gva`: every reference goes to `unit`.
    ///
    /// # Errors
    /// The page fault that must be handled first. What the walk did to the caches up to there
    /// stays, as in hardware.
    fn walk<P: Accelerator, S: Simd>(
        &mut self,
        unit: &mut WalkUnit<P>,
        simd: S,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault>;

    /// The tables to prepare walks through, and where guest-physical memory begins in the host's,
    /// if walks can be done in [stages](crate::stages).
    fn prepares(&self) -> Option<(&PageTable, &PageTable, Vpn)> {
        None
    }

    /// As [`Walker::resolve`], if the walk cannot fault and `memo` has its nodes or can prepare
    /// them. Otherwise nothing changes.
    #[inline(always)]
    fn prepare(&mut self, _: &mut Memo, _: Gva, _: bool) -> Option<Prepared> {
        None
    }

    /// Sets the bits of the page of a guest's node in the host's table, which `memo` has prepared.
    fn mark_node(&mut self, _: &mut Memo, _: NodeId) {}

    /// The tables that it walks.
    fn tables(&mut self) -> Tables<'_>;

    /// Finds the same translation and sets the same accessed and dirty bits, without references.
    ///
    /// # Errors
    /// As [`Walker::walk`].
    fn resolve(&mut self, gva: Gva, store: bool) -> Result<Mapping, Fault>;

    /// The aligned group of 8 pages around `gva`, which was just walked for, as far as the lines of
    /// the leaf entries that were read say: those with the same rights, and the same accessed and
    /// dirty bits. `memo` is that of the tables, if there is one.
    fn neighbours(&self, gva: Gva, memo: Option<&Memo>) -> Group;

    /// Sets the dirty bits of the leaves behind `gva`, a page that is mapped and writable: a store
    /// hit a TLB entry that a load had brought. Costs no time.
    fn set_dirty(&mut self, gva: Gva);

    /// First stage of a hint for `gva`: prefetches what is found without waiting for memory.
    /// Changes no state.
    fn hint_first(&self, gva: Gva, memo: Option<&Memo>) -> Self::Hint;

    /// Second stage: uses what the first brought. What a load would find, if `memo` knows that the
    /// walk changes nothing; until a kernel runs it stays so.
    fn hint_second(&self, hint: Self::Hint, memo: Option<&Memo>) -> Option<Prepared>;
}
