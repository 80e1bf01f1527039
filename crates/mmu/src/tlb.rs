// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data TLBs: two levels of arrays, each of which holds translations of one or more page sizes.
//!
//! - A look-up searches the first level, then the second. A hit in the second brings the
//!   translation into the first as well; a walk brings it into both. What an array evicts goes
//!   nowhere.
//! - A level that has no array for a translation's size takes in the piece of it around the access,
//!   of the largest size that it holds (as processors without 1 GiB entries do).
//! - The second level may hold 4 KiB pages in [clusters](crate::clustered), all of them or those
//!   that have neighbours.
//! - Either level may hold [contiguous blocks](crate::contiguous): 64 KiB in an entry. Their pages
//!   count as 4 KiB pages.
//! - A store that finds a translation without write permission is a miss, and takes the translation
//!   out: the hardware walks again before it raises a fault.

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Gva, Gvn, PageSize, VpnRange};

use crate::clustered::Group;
use crate::config::{MmuConfig, TlbConfig, TlbReplacement};
use crate::error::MmuError;
use crate::key::{Asid, key};
use crate::lru::Narrow;
use crate::mapping::Mapping;
use crate::simd::Simd;
use crate::tlb_level::{Ordered, TlbLevel};

nestwalk_mem::counters! {
    /// TLB look-ups of one mode.
    pub struct TlbCounters {
        /// Accesses of the program.
        accesses: u64 ["accesses"],
        /// Those that were stores.
        stores: u64 ["accesses"],
        /// Hits in the first level, by the entry's page size.
        l1_hits: [u64; 3] ["look-ups" at "tlb.l1_hits" by PageSize::NAMES],
        /// Hits in the second level, by the entry's page size.
        l2_hits: [u64; 3] ["look-ups" at "tlb.l2_hits" by PageSize::NAMES],
        /// Misses (each one a walk), by the size of the translation that the walk found.
        misses: [u64; 3] ["look-ups" at "tlb.misses" by PageSize::NAMES],
    }
}

impl Copy for TlbCounters {}

impl TlbCounters {
    /// Misses of all sizes: the walks.
    pub fn walks(&self) -> u64 {
        self.misses.iter().sum()
    }

    /// Misses that found a translation of `size`.
    pub fn misses_of(&self, size: PageSize) -> u64 {
        self.misses[size as usize]
    }
}

/// Where a translation was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// In the first level.
    L1(Mapping),
    /// In the second level, as an entry of `size`; now the first level has (a piece of) it, too.
    L2 { first: Mapping, size: PageSize },
    /// Nowhere.
    Miss,
}

/// Both levels' 4 KiB pages of the process in use, for a loop that does little else than look them
/// up.
pub(crate) struct SmallPages<'a, const N: usize> {
    first: Narrow<'a, N>,
    /// What the first level holds: see [`Ordered::resident`].
    first_resident: &'a mut [u32; 4],
    second: &'a mut Ordered,
    /// See [`Tlbs::takes_groups`].
    takes_groups: bool,
    asid: u64,
}

impl<const N: usize> SmallPages<'_, N> {
    /// The first level's translation of `page`, which becomes the latest.
    #[inline(always)]
    pub fn find<S: Simd>(&mut self, simd: S, page: Gvn) -> Option<Mapping> {
        let bits = self.first.find(simd, page.0, key(page, PageSize::Small, self.asid))?;
        Some(Mapping::from_bits_of(bits, PageSize::Small))
    }

    /// Whether a page that the first level does not hold can only be a 4 KiB page of the second:
    /// neither level holds anything else.
    #[inline(always)]
    pub fn are_all(&self) -> bool {
        let others = |resident: &[u32; 4]| resident[1..].iter().fold(0, |all, &count| all | count);
        others(self.first_resident) | others(self.second.resident()) == 0
            && !self.takes_groups
            && self.second.array(PageSize::Small).is_some()
    }

    /// The second level's translation of `page`, which becomes the latest there.
    #[inline(always)]
    pub fn find_second<S: Simd>(&mut self, simd: S, page: Gvn) -> Option<Mapping> {
        let array = self.second.array_mut(PageSize::Small)?;
        let bits = array.find(simd, array.set_of(page.0), key(page, PageSize::Small, self.asid))?;
        Some(Mapping::from_bits_of(bits, PageSize::Small))
    }

    /// The first level takes in a 4 KiB page that it does not hold. [`SmallPages::are_all`] holds.
    #[inline(always)]
    pub fn insert<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping) {
        let key = key(page, PageSize::Small, self.asid);
        let gone = self.first.insert(simd, page.0, key, mapping.bits());
        self.first_resident[PageSize::Small as usize] += u32::from(gone.is_none());
    }

    /// The same of the second level.
    #[inline(always)]
    pub fn insert_second<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping) {
        self.second.insert_piece(simd, page, mapping, PageSize::Small, self.asid);
    }
}

/// Both levels.
#[derive(Clone, Debug)]
pub struct Tlbs {
    l1: TlbLevel,
    l2: TlbLevel,
    takes_groups: bool,
    is_clustered: bool,
    asid: u64,
    /// See [`Tlbs::served_shift`].
    served_shift: [u32; 3],
    /// See [`Tlbs::uncounted`].
    uncounted: u64,
}

impl Tlbs {
    /// Empty ones.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(config: &MmuConfig) -> Result<Self, MmuError> {
        config.validate()?;
        let level = |place: &str, arrays: &[TlbConfig]| TlbLevel::new(place, arrays, config.tlb_replacement);
        let (l1, l2) = (level("l1_tlb", &config.l1_tlb)?, level("l2_tlb", &config.l2_tlb)?);
        let takes_groups = l1.holds_groups() || l2.holds_groups();
        let is_clustered = l2.holds_clusters();
        let served = |size: PageSize| {
            let handed = l2.piece_of(size).unwrap_or(size);
            l1.piece_of(handed).unwrap_or(handed).min(size)
        };
        let served_shift = PageSize::ALL.map(|size| served(size).order() + PAGE_SHIFT);
        let uncounted = if config.tlb_replacement == TlbReplacement::Lfu { Self::NO_ADDRESS } else { 0 };
        Ok(Self { l1, l2, takes_groups, is_clustered, asid: 0, served_shift, uncounted })
    }

    /// A bit that no address has.
    pub(crate) const NO_ADDRESS: u64 = 1 << 60;

    /// Set in the address of the access before, where the arrays must hear of every hit: then it
    /// differs from that of any access.
    #[inline(always)]
    pub(crate) fn uncounted(&self) -> u64 {
        self.uncounted
    }

    /// log2 of the bytes around an access that the first level's entry of `size`, which served it,
    /// certainly serves next: of its page, or of what the first level keeps of the piece of such a
    /// page that the second hands back to it. If that is smaller, the first level may hold both,
    /// and finds the smaller one first.
    #[inline(always)]
    pub(crate) fn served_shift(&self, size: PageSize) -> u32 {
        self.served_shift[size as usize]
    }

    /// Looks for the translation of `page` for a load or a store. With `not_small` it is known to
    /// be no 4 KiB page of the first level.
    #[inline(always)]
    pub(crate) fn find<S: Simd>(&mut self, simd: S, page: Gvn, store: bool, not_small: bool) -> Lookup {
        if let Some(mapping) = self.l1.find(simd, page, self.asid, not_small) {
            if store && !mapping.is_writable() {
                self.drop_page(page);
                return Lookup::Miss;
            }
            return Lookup::L1(mapping);
        }
        let Some(mapping) = self.l2.find(simd, page, self.asid, false) else { return Lookup::Miss };
        if store && !mapping.is_writable() {
            self.drop_page(page);
            return Lookup::Miss;
        }
        Lookup::L2 { first: self.fill_l1(simd, page, mapping), size: mapping.size() }
    }

    /// The 4 KiB pages, if the first level's sets are `N` pairs.
    #[inline(always)]
    pub(crate) fn small_pages<const N: usize>(&mut self) -> Option<SmallPages<'_, N>> {
        let (TlbLevel::Ordered(first), TlbLevel::Ordered(second)) = (&mut self.l1, &mut self.l2) else { return None };
        let (first, first_resident) = first.narrow()?;
        Some(SmallPages { first, first_resident, second, takes_groups: self.takes_groups, asid: self.asid })
    }

    #[inline(always)]
    fn fill_l1<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping) -> Mapping {
        // The first level holds 4 KiB pieces at least: that was checked when it was made.
        self.l1.insert(simd, page, mapping, self.asid).unwrap_or(mapping)
    }

    /// Whether a walk must also say what is beside the 4 KiB page that it found: its
    /// [neighbours](Tlbs::insert_cluster) where there are clusters, else whether it is one of a
    /// [contiguous block](Tlbs::insert_block).
    #[inline(always)]
    pub(crate) fn takes_groups(&self) -> bool {
        self.takes_groups
    }

    /// Whether there are clusters.
    #[inline(always)]
    pub(crate) fn is_clustered(&self) -> bool {
        self.is_clustered
    }

    /// Takes in what a walk found, a 4 KiB page of a contiguous block, with all of the block. What
    /// the first level holds of it now.
    #[cold]
    pub(crate) fn insert_block<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping) -> Mapping {
        self.insert(simd, page, mapping.in_block())
    }

    /// Takes in what a walk found, a 4 KiB page, and in the second level its neighbours. What the
    /// first level holds of it now.
    #[inline(always)]
    pub(crate) fn insert_cluster<S: Simd>(
        &mut self,
        simd: S,
        page: Gvn,
        mapping: Mapping,
        neighbours: Group,
    ) -> Mapping {
        self.l2.insert_cluster(simd, page, mapping, neighbours, self.asid);
        self.fill_l1(simd, page, mapping)
    }

    /// Takes in what a walk found. What the first level holds of it now.
    #[inline(always)]
    pub(crate) fn insert<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping) -> Mapping {
        self.l2.insert(simd, page, mapping, self.asid);
        self.fill_l1(simd, page, mapping)
    }

    /// Remembers that the leaves behind `page` are dirty now.
    #[cold]
    pub(crate) fn set_dirty(&mut self, page: Gvn) {
        self.l1.set_dirty(page, self.asid);
        self.l2.set_dirty(page, self.asid);
    }

    #[cold]
    fn drop_page(&mut self, page: Gvn) {
        self.l1.drop_page(page, self.asid);
        self.l2.drop_page(page, self.asid);
    }

    pub(crate) fn switch_to(&mut self, asid: Asid) {
        self.asid = asid.key();
    }

    /// Takes out every translation of the process in use that covers part of `pages`.
    pub fn invalidate(&mut self, pages: VpnRange) {
        let asid = self.asid;
        if pages.len() <= 8 {
            (pages.start.0..pages.end.0).for_each(|page| self.drop_page(Gvn(page)));
            return;
        }
        self.l1.invalidate(pages, asid);
        self.l2.invalidate(pages, asid);
    }

    /// Takes out every translation of the process in use.
    pub fn flush(&mut self) {
        let asid = self.asid;
        self.l1.retain(|key| Asid::part(key) != asid);
        self.l2.retain(|key| Asid::part(key) != asid);
    }

    /// Takes out everything.
    pub fn flush_all(&mut self) {
        self.l1.retain(|_| false);
        self.l2.retain(|_| false);
    }

    /// The translation held for `gva`, if any, first level first. Changes nothing.
    pub fn peek(&self, gva: Gva) -> Option<Mapping> {
        let page = gva.page();
        self.l1.peek(page, self.asid).or_else(|| self.l2.peek(page, self.asid))
    }

    /// Checks what must always hold: no entry twice, none in a wrong set or array, counts by size
    /// right.
    ///
    /// # Panics
    /// When something does not hold.
    pub fn check_invariants(&self) {
        self.l1.check_invariants();
        self.l2.check_invariants();
    }
}
