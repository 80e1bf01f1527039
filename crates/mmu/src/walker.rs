// SPDX-License-Identifier: MIT OR Apache-2.0
//! The seam between a core and a way to translate.

use nestwalk_mem::{Gpa, Gva, Level, Vpn};

use crate::hierarchy::Llc;
use crate::prefetcher::Prefetcher;
use crate::tlb::Mapping;
use crate::walk_unit::WalkUnit;

/// Why a walk cannot end: some kernel has to act first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A page fault of the program: its own table does not map `gva`, or does not allow the store (copy-on-write).
    Guest {
        /// The access.
        gva: Gva,
        /// Whether it is a store.
        store: bool,
    },
    /// An EPT violation: the host does not map the page of `gpa`, or does not allow the store. It is a page fault of the
    /// VM's process at the virtual address that stands for `gpa`.
    Host {
        /// What the guest's table, or the walk through its nodes, refers to.
        gpa: Gpa,
        /// Whether it needs write permission: a store of the program, or any reference to a node of the guest's table
        /// (with accessed and dirty bits in use the hardware treats those as writes: Intel SDM, vol. 3, 29.3.3.2).
        store: bool,
    },
}

/// Bits of a page number that one level of an x86-64 table indexes: the only tables that are walked here.
pub(crate) const INDEX_BITS: u32 = 9;

/// Which entry of a node at `level` stands for `page`.
#[inline(always)]
pub(crate) fn index_of(page: Vpn, level: Level) -> usize {
    (page.0 >> (INDEX_BITS * (u32::from(level.0) - 1))) as usize & ((1 << INDEX_BITS) - 1)
}

/// A way to translate the program's addresses.
pub trait Walker {
    /// Where the memory of the simulation is that the next walk will need: the state between the stages of a hint.
    type Hint: Copy + Default;

    /// Walks for `gva`: every reference goes through `unit`, which adds up the latency.
    ///
    /// # Errors
    /// The page fault that must be handled first. What the walk did to the caches up to there stays, as in hardware.
    fn walk<P: Prefetcher>(
        &mut self,
        unit: &mut WalkUnit<P>,
        llc: &mut Llc,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault>;

    /// Finds the same translation and sets the same accessed and dirty bits, without references.
    ///
    /// # Errors
    /// As [`Walker::walk`].
    fn resolve(&mut self, gva: Gva, store: bool) -> Result<Mapping, Fault>;

    /// Sets the dirty bits of the leaves behind `gva`, a page that is mapped and writable: a store hit a TLB entry that
    /// a load had brought. Costs no time.
    fn set_dirty(&mut self, gva: Gva);

    /// First stage of a hint for `gva`: brings near what can be found without waiting. Changes no state.
    fn hint_first(&self, gva: Gva) -> Self::Hint;

    /// Second stage: uses what the first brought.
    fn hint_second(&self, hint: &mut Self::Hint);

    /// Third stage: says which lines the walk and the access will refer to, as far as is known.
    fn hint_third(&self, hint: &Self::Hint, line: impl FnMut(u64));
}
