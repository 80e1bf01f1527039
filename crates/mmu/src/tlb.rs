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
use nestwalk_mem::{CONTIGUOUS_PAGES, Gva, Gvn, PageSize, VpnRange};

use crate::clustered::{self, Clusters, Group, Inserted};
use crate::config::{MmuConfig, TlbConfig, TlbReplacement, entry_sets};
use crate::contiguous::Block;
use crate::error::MmuError;
use crate::frequency::LeastUsed;
use crate::key::Asid;
use crate::key::{key, size_of_key};
use crate::lru::{Lru, Narrow};
use crate::mapping::Mapping;
use crate::simd::{Plain, Simd};

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

/// The arrays of one level.
#[derive(Clone, Debug)]
struct TlbLevel {
    arrays: Box<[Lru]>,
    /// By page size: which array; [`TlbLevel::NO_ARRAY`] if none.
    array_of: [u8; 3],
    /// By a translation's page size: the size of the piece of it that this level takes in, if it
    /// takes any.
    piece_of: [Option<PageSize>; 3],
    /// By page size, and at last of groups (clusters or contiguous blocks): entries that are there.
    /// A size of which there are none need not be searched.
    resident: [u32; 4],
    /// Which array holds [clusters](crate::clustered); [`TlbLevel::NO_ARRAY`] if none.
    cluster_array: u8,
    /// Which array holds [contiguous blocks](crate::contiguous); [`TlbLevel::NO_ARRAY`] if none.
    block_array: u8,
    /// Whether more than a page may come in with a walk for a 4 KiB page: clusters here, or
    /// contiguous blocks in either level.
    takes_groups: bool,
    /// Pages that a new cluster has at least: 2 where single ones have an array of their own.
    cluster_least: u32,
    /// The arrays, if they evict what was used least often. Then there are no others.
    least_used: Option<Box<LeastUsed>>,
}

/// Entries of several 4 KiB pages among the kinds of entries.
const GROUPS: usize = clustered::KIND as usize;

impl TlbLevel {
    const NO_ARRAY: u8 = u8::MAX;

    fn new(place: &str, arrays: &[TlbConfig], replacement: TlbReplacement) -> Result<Self, MmuError> {
        let mut array_of = [Self::NO_ARRAY; 3];
        let mut built = Vec::new();
        for (index, array) in arrays.iter().enumerate() {
            built.push(Lru::new(entry_sets(place, array.entries, array.ways)?, array.ways));
            for &size in &array.sizes {
                // Of 4 KiB pages, the ordinary array if there are two.
                if array_of[size as usize] == Self::NO_ARRAY || !array.clustered {
                    array_of[size as usize] = index as u8;
                }
            }
        }
        let held = |size: &PageSize| array_of[*size as usize] != Self::NO_ARRAY;
        let piece_of = PageSize::ALL.map(|size| PageSize::ALL[..=size as usize].iter().copied().rfind(held));
        let array_with =
            |has: fn(&TlbConfig) -> bool| arrays.iter().position(has).map_or(Self::NO_ARRAY, |at| at as u8);
        let (cluster_array, block_array) =
            (array_with(|array| array.clustered), array_with(|array| array.contiguous.is_some()));
        let apart = cluster_array != array_of[PageSize::Small as usize];
        let cluster_least = if apart { 2 } else { 1 };
        let mut level = Self {
            arrays: built.into(),
            array_of,
            piece_of,
            resident: [0; 4],
            cluster_array,
            block_array,
            takes_groups: cluster_array != Self::NO_ARRAY,
            cluster_least,
            least_used: None,
        };
        if replacement == TlbReplacement::Lfu {
            level.least_used = Some(Box::new(LeastUsed::new(place, arrays)?));
            (level.arrays, level.array_of) = (Box::default(), [Self::NO_ARRAY; 3]);
        }
        Ok(level)
    }

    #[inline(always)]
    fn is_clustered(&self) -> bool {
        self.cluster_array != Self::NO_ARRAY
    }

    /// The array that holds clusters, if there is one.
    #[inline(always)]
    fn clusters_mut(&mut self) -> Option<&mut Lru> {
        self.arrays.get_mut(usize::from(self.cluster_array))
    }

    /// The array that holds contiguous blocks, if there is one.
    fn blocks_mut(&mut self) -> Option<&mut Lru> {
        self.arrays.get_mut(usize::from(self.block_array))
    }

    /// The array that holds `size`, if there is one.
    #[inline(always)]
    fn array(&self, size: PageSize) -> Option<&Lru> {
        self.arrays.get(usize::from(self.array_of[size as usize]))
    }

    /// The same, to be changed.
    #[inline(always)]
    fn array_mut(&mut self, size: PageSize) -> Option<&mut Lru> {
        self.arrays.get_mut(usize::from(self.array_of[size as usize]))
    }

    /// The translation of `page`, which becomes the latest. With `not_small` it is known to be no 4
    /// KiB page.
    #[inline(always)]
    fn find<S: Simd>(&mut self, simd: S, page: Gvn, asid: u64, not_small: bool) -> Option<Mapping> {
        if self.resident[GROUPS] != 0 {
            let found = match self.clusters_mut() {
                Some(array) => Clusters::of(page, asid).find(array, simd),
                None => self.find_in_block(simd, page, asid),
            };
            if found.is_some() {
                return found;
            }
        }
        for size in PageSize::ALL {
            if self.resident[size as usize] == 0 || not_small && size == PageSize::Small {
                continue;
            }
            if let Some(array) = self.array_mut(size)
                && let Some(bits) = array.find(simd, array.set_of(page.0 >> size.order()), key(page, size, asid))
            {
                return Some(Mapping::from_bits_of(bits, size));
            }
        }
        self.least_used.as_mut()?.find(page, asid)
    }

    /// The translation of `page`, if it is one of a contiguous block that is here, which becomes
    /// the latest.
    #[inline(never)]
    fn find_in_block<S: Simd>(&mut self, simd: S, page: Gvn, asid: u64) -> Option<Mapping> {
        let array = self.blocks_mut()?;
        let block = Block::of(page, asid);
        let bits = simd.apart(
            #[inline(always)]
            || array.find(simd, block.set(array), block.key()),
        )?;
        Some(Mapping::from_bits(bits).in_block_at(page))
    }

    /// Takes in the contiguous block of which `mapping` is `page`; a level without such entries
    /// takes in the page.
    #[cold]
    #[inline(never)]
    fn insert_block<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping, asid: u64) -> Option<Mapping> {
        let block = Block::of(page, asid);
        let Some(array) = self.blocks_mut() else {
            return self.insert_piece(simd, page, mapping.alone(), PageSize::Small, asid);
        };
        let gone = array.insert(simd, block.set(array), block.key(), mapping.bits());
        self.resident[GROUPS] += 1;
        if let Some(gone) = gone {
            self.resident[size_of_key(gone)] -= 1;
        }
        Some(mapping)
    }

    /// What [`TlbLevel::find`] would find. Changes nothing.
    fn peek(&self, page: Gvn, asid: u64) -> Option<Mapping> {
        let in_block = self.arrays.get(usize::from(self.block_array)).and_then(|array| {
            let block = Block::of(page, asid);
            let bits = array.peek(block.set(array), block.key())?;
            Some(Mapping::from_bits(bits).in_block_at(page).alone())
        });
        if in_block.is_some() {
            return in_block;
        }
        let clusters = self.arrays.get(usize::from(self.cluster_array));
        let in_cluster = clusters.and_then(|array| Clusters::of(page, asid).peek(array));
        let in_other = self.least_used.as_ref().and_then(|arrays| arrays.peek(page, asid));
        in_cluster.or(in_other).or_else(|| {
            PageSize::ALL.into_iter().find_map(|size| {
                let array = self.array(size)?;
                let bits = array.peek(array.set_of(page.0 >> size.order()), key(page, size, asid))?;
                Some(Mapping::from_bits(bits))
            })
        })
    }

    /// Takes in the largest piece of `mapping` around `page` that this level can hold, and returns
    /// it.
    #[inline(always)]
    fn insert<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping, asid: u64) -> Option<Mapping> {
        if mapping.is_single() {
            return self.insert_piece(simd, page, mapping, PageSize::Small, asid);
        }
        if mapping.is_contiguous() {
            return self.insert_block(simd, page, mapping, asid);
        }
        let size = self.piece_of[mapping.size() as usize]?;
        self.insert_piece(simd, page, mapping.piece(page, size), size, asid)
    }

    /// Takes in `piece`, which is of `size` and holds `page`, if there is an array for it.
    #[inline(always)]
    fn insert_piece<S: Simd>(
        &mut self,
        simd: S,
        page: Gvn,
        piece: Mapping,
        size: PageSize,
        asid: u64,
    ) -> Option<Mapping> {
        let Some(array) = self.array_mut(size) else { return self.insert_least_used(page, piece, asid) };
        let gone = array.insert(simd, array.set_of(page.0 >> size.order()), key(page, size, asid), piece.bits());
        match gone {
            Some(gone) if size_of_key(gone) == size as usize => {}
            Some(gone) => {
                self.resident[size as usize] += 1;
                self.resident[size_of_key(gone)] -= 1;
            }
            None => self.resident[size as usize] += 1,
        }
        Some(piece)
    }

    #[cold]
    fn insert_least_used(&mut self, page: Gvn, piece: Mapping, asid: u64) -> Option<Mapping> {
        self.least_used.as_mut()?.insert(page, piece, asid)
    }

    /// Takes in a 4 KiB page with those of its neighbours that one entry can hold.
    #[inline(always)]
    fn insert_cluster<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping, neighbours: Group, asid: u64) {
        let least = self.cluster_least;
        let Some(array) = self.clusters_mut() else { return };
        match Clusters::of(page, asid).insert(array, simd, mapping, neighbours, least) {
            Inserted::Joined => {}
            Inserted::New(gone) => {
                self.resident[GROUPS] += 1;
                if let Some(gone) = gone {
                    self.resident[size_of_key(gone)] -= 1;
                }
            }
            Inserted::TooFew => {
                self.insert(simd, page, mapping, asid);
            }
        }
    }

    /// Takes `page` out of the cluster that holds it, if one does, and says what it was.
    fn take_from_cluster(&mut self, page: Gvn, asid: u64) -> Option<Mapping> {
        let array = self.clusters_mut()?;
        let clusters = Clusters::of(page, asid);
        let mapping = clusters.peek(array)?;
        self.resident[GROUPS] -= u32::from(clusters.remove(array));
        Some(mapping)
    }

    /// Every entry that covers `page`, but for clusters.
    fn for_each_covering(&mut self, page: Gvn, asid: u64, mut act: impl FnMut(&mut Lru, usize, u64) -> bool) {
        for size in PageSize::ALL {
            if self.resident[size as usize] == 0 {
                continue;
            }
            if let Some(array) = self.array_mut(size) {
                let set = array.set_of(page.0 >> size.order());
                self.resident[size as usize] -= u32::from(act(array, set, key(page, size, asid)));
            }
        }
        if let Some(array) = self.blocks_mut() {
            let block = Block::of(page, asid);
            let gone = act(array, block.set(array), block.key());
            self.resident[GROUPS] -= u32::from(gone);
        }
    }

    fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        if let Some(arrays) = &mut self.least_used {
            arrays.retain(&mut keep);
        }
        for array in &mut self.arrays {
            array.retain(&mut keep, |gone| self.resident[size_of_key(gone)] -= 1);
        }
    }

    fn check_invariants(&self) {
        let mut counted = [0; 4];
        for (index, array) in self.arrays.iter().enumerate() {
            array.check_invariants();
            array.for_each(|set, key| {
                let (size, page) = (size_of_key(key), key & Asid::MASK);
                let (held, at) = match size {
                    GROUPS if self.block_array != Self::NO_ARRAY => (self.block_array, Block::set_of_key(array, page)),
                    GROUPS => (self.cluster_array, Clusters::set_of_key(array, page)),
                    _ => (self.array_of[size], array.set_of(page >> 2)),
                };
                assert_eq!(held, index as u8, "{key:#x} is in an array of other sizes");
                assert_eq!(at, set, "{key:#x} is in a wrong set");
                counted[size] += 1;
            });
        }
        assert_eq!(counted, self.resident, "entries by size");
        if let Some(arrays) = &self.least_used {
            arrays.check_invariants();
        }
    }
}

/// Both levels' 4 KiB pages of the process in use, for a loop that does little else than look them
/// up.
pub(crate) struct SmallPages<'a, const N: usize> {
    first: Narrow<'a, N>,
    /// What the first level holds, by kind: see [`TlbLevel`].
    first_resident: &'a mut [u32; 4],
    second: &'a mut TlbLevel,
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
        others(self.first_resident) | others(&self.second.resident) == 0
            && !self.second.takes_groups
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
        let (l1, mut l2) = (level("l1_tlb", &config.l1_tlb)?, level("l2_tlb", &config.l2_tlb)?);
        l2.takes_groups |= config.holds_contiguous();
        let served = |size: PageSize| {
            let handed = l2.piece_of[size as usize].unwrap_or(size);
            l1.piece_of[handed as usize].unwrap_or(handed).min(size)
        };
        let served_shift = PageSize::ALL.map(|size| served(size).order() + PAGE_SHIFT);
        let uncounted = if config.tlb_replacement == TlbReplacement::Lfu { Self::NO_ADDRESS } else { 0 };
        Ok(Self { l1, l2, asid: 0, served_shift, uncounted })
    }

    /// A bit that no address has.
    pub(crate) const NO_ADDRESS: u64 = 1 << 62;

    /// Set in the address of the access before, where the arrays must hear of every hit: then it
    /// differs from that of any access.
    #[inline(always)]
    pub(crate) fn uncounted(&self) -> u64 {
        self.uncounted
    }

    /// log2 of the bytes around an access that the first level's entry of `size`, which served it,
    /// certainly serves next: of its page, or of what the first level keeps of the piece of such a
    /// page that the second hands back to it. If that is smaller, the first level may hold both, and
    /// finds the smaller one first.
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
        let Self { l1, l2, asid, .. } = self;
        let array = usize::from(l1.array_of[PageSize::Small as usize]);
        let first = l1.arrays.get_mut(array)?.narrow()?;
        Some(SmallPages { first, first_resident: &mut l1.resident, second: l2, asid: *asid })
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
        self.l2.takes_groups
    }

    /// Whether there are clusters.
    #[inline(always)]
    pub(crate) fn is_clustered(&self) -> bool {
        self.l2.is_clustered()
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
        for level in [&mut self.l1, &mut self.l2] {
            level.for_each_covering(page, self.asid, |array, set, key| {
                array.update(set, key, |bits| Mapping::from_bits(bits).used(true).bits());
                false
            });
            if let Some(arrays) = &mut level.least_used {
                arrays.change(page, self.asid, |mapping| Some(mapping.used(true)));
            }
        }
        if self.l2.is_clustered()
            && let Some(mapping) = self.l2.take_from_cluster(page, self.asid)
            && self.l2.peek(page, self.asid).is_none()
        {
            // Reinsert the page into a cluster with D set. (If the ordinary array holds it, too,
            // that entry stays.)
            let alone = Group::alone(page, mapping.frame());
            self.l2.insert_cluster(Plain, page, mapping.used(true), alone, self.asid);
        }
    }

    #[cold]
    fn drop_page(&mut self, page: Gvn) {
        for level in [&mut self.l1, &mut self.l2] {
            level.for_each_covering(page, self.asid, |array, set, key| array.remove(set, key));
            if let Some(arrays) = &mut level.least_used {
                arrays.change(page, self.asid, |_| None);
            }
        }
        if self.l2.is_clustered() {
            self.l2.take_from_cluster(page, self.asid);
        }
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
        let holds_blocks = self.l2.block_array != TlbLevel::NO_ARRAY || self.l1.block_array != TlbLevel::NO_ARRAY;
        let overlaps = |key: u64| {
            let page = key & Asid::MASK;
            let (first, count) = match size_of_key(key) {
                GROUPS if holds_blocks => (Block::first_page(page), CONTIGUOUS_PAGES),
                GROUPS => (Clusters::first_page(page), clustered::GROUP as u64),
                size => ((page >> 2) << PageSize::ALL[size].order(), PageSize::ALL[size].pages()),
            };
            first < pages.end.0 && pages.start.0 < first + count
        };
        self.l1.retain(|key| Asid::part(key) != asid || !overlaps(key));
        self.l2.retain(|key| Asid::part(key) != asid || !overlaps(key));
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
