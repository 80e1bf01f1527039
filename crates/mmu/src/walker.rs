// SPDX-License-Identifier: MIT OR Apache-2.0
//! The seam between a core and a way to translate.

use nestwalk_mem::addr::ENTRY_BYTES;
use nestwalk_mem::{Gpa, Gva, Level, NodeId, Pa, PageTable, Vpn};

use crate::accelerator::Accelerator;
use crate::accelerator::tables::Tables;
use crate::clustered::Group;
use crate::events::Table;
use crate::leaf::{Found, INDEX_BITS, index_of};
use crate::mapping::Mapping;
use crate::memo::{Memo, Prepared, Sources};
use crate::simd::Simd;
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

    /// What walks are prepared from, and how many numbers of nodes the program's own table uses; if
    /// they can be done in [stages](crate::stages).
    fn prepares(&self) -> Option<(Sources, usize)> {
        None
    }

    /// Whether its walks are [flat](crate::memo).
    #[inline(always)]
    fn is_flat(&self) -> bool {
        false
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

    /// Whether the 64 KiB around `gva`, which was just walked for and is a 4 KiB page, are a
    /// contiguous block in every table that was walked ([`contiguous`](crate::contiguous)).
    fn is_in_block(&self, gva: Gva) -> bool;

    /// Sets the dirty bits of the leaves behind `gva`, a page that is mapped and writable: a store
    /// hit a TLB entry that a load had brought. Costs no time.
    fn set_dirty(&mut self, gva: Gva);

    /// First stage of a hint for `gva`: prefetches what is found without waiting for memory.
    /// Changes no state.
    fn hint_first(&self, gva: Gva, memo: Option<&Memo>) -> Self::Hint;

    /// Second stage: uses what the first brought. What a load would find, if `memo` knows that the
    /// walk changes nothing; until a kernel runs it stays so.
    #[inline(always)]
    fn hint_second(&self, hint: Self::Hint, memo: Option<&Memo>) -> Option<Prepared> {
        let _ = (hint, memo);
        None
    }
}
