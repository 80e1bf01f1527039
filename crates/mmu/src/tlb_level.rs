// SPDX-License-Identifier: MIT OR Apache-2.0
//! One level of TLB arrays, each of which holds translations of one or more page sizes.

use nestwalk_mem::{CONTIGUOUS_PAGES, Gvn, PageSize, VpnRange};

use crate::clustered::{self, Clusters, Group, Inserted};
use crate::config::{TlbConfig, TlbReplacement, entry_sets};
use crate::contiguous::Block;
use crate::error::MmuError;
use crate::frequency::LeastUsed;
use crate::key::{Asid, key, size_of_key};
use crate::lru::{Lru, Narrow};
use crate::mapping::Mapping;
use crate::simd::{Plain, Simd};

/// Entries of several 4 KiB pages among the kinds of entries.
const GROUPS: usize = clustered::KIND as usize;

/// By a translation's page size: the size of the piece of it that a level takes in, if it takes
/// any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces([Option<PageSize>; 3]);

impl Pieces {
    /// Those of a level with these arrays: of the largest size that it holds.
    fn new(arrays: &[TlbConfig]) -> Self {
        let held = |size: &PageSize| arrays.iter().any(|array| array.sizes.contains(size));
        Self(PageSize::ALL.map(|size| PageSize::ALL[..=size as usize].iter().copied().rfind(held)))
    }

    #[inline(always)]
    fn of(self, size: PageSize) -> Option<PageSize> {
        self.0[size as usize]
    }
}

/// Entries of several 4 KiB pages that a level holds besides those of one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Groups {
    None,
    /// [Clusters], in the array at this place; a new one has `least` pages at least: 2 where single
    /// ones have an array of their own.
    Clusters {
        array: usize,
        least: u32,
    },
    /// [Contiguous blocks](crate::contiguous), in the array at this place.
    Blocks {
        array: usize,
    },
}

/// The arrays of one level.
#[derive(Clone, Debug)]
pub(crate) enum TlbLevel {
    /// They evict what was used the longest ago, as processors' do.
    Ordered(Ordered),
    /// They evict what was used least often, as some simulators' do.
    LeastUsed(LeastUsed, Pieces),
}

impl TlbLevel {
    /// Empty ones. `place` is the part of the machine file, for messages.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(place: &str, arrays: &[TlbConfig], replacement: TlbReplacement) -> Result<Self, MmuError> {
        Ok(match replacement {
            TlbReplacement::Lru => Self::Ordered(Ordered::new(place, arrays)?),
            TlbReplacement::Lfu => Self::LeastUsed(LeastUsed::new(place, arrays)?, Pieces::new(arrays)),
        })
    }

    /// The size of what the level takes in of a translation of `size`, if it takes any.
    pub fn piece_of(&self, size: PageSize) -> Option<PageSize> {
        match self {
            Self::Ordered(level) => level.pieces.of(size),
            Self::LeastUsed(_, pieces) => pieces.of(size),
        }
    }

    /// Whether it holds clusters.
    pub fn holds_clusters(&self) -> bool {
        matches!(self, Self::Ordered(Ordered { groups: Groups::Clusters { .. }, .. }))
    }

    /// Whether it holds clusters or contiguous blocks.
    pub fn holds_groups(&self) -> bool {
        matches!(self, Self::Ordered(level) if level.groups != Groups::None)
    }

    /// The translation of `page`, which becomes the latest. With `not_small` it is known to be no 4
    /// KiB page.
    #[inline(always)]
    pub fn find<S: Simd>(&mut self, simd: S, page: Gvn, asid: u64, not_small: bool) -> Option<Mapping> {
        match self {
            Self::Ordered(level) => level.find(simd, page, asid, not_small),
            Self::LeastUsed(arrays, _) => arrays.find(page, asid),
        }
    }

    /// What [`TlbLevel::find`] would find. Changes nothing.
    pub fn peek(&self, page: Gvn, asid: u64) -> Option<Mapping> {
        match self {
            Self::Ordered(level) => level.peek(page, asid),
            Self::LeastUsed(arrays, _) => arrays.peek(page, asid),
        }
    }

    /// Takes in the largest piece of `mapping` around `page` that this level can hold, and returns
    /// it.
    #[inline(always)]
    pub fn insert<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping, asid: u64) -> Option<Mapping> {
        match self {
            Self::Ordered(level) => level.insert(simd, page, mapping, asid),
            Self::LeastUsed(arrays, pieces) => {
                arrays.insert(page, mapping.piece(page, pieces.of(mapping.size())?), asid)
            }
        }
    }

    /// Takes in a 4 KiB page with those of its neighbours that one entry can hold; a level without
    /// clusters, the page.
    #[inline(always)]
    pub fn insert_cluster<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping, neighbours: Group, asid: u64) {
        match self {
            Self::Ordered(level) => level.insert_cluster(simd, page, mapping, neighbours, asid),
            Self::LeastUsed(arrays, _) => {
                arrays.insert(page, mapping, asid);
            }
        }
    }

    /// The leaves behind `page` are dirty now.
    pub fn set_dirty(&mut self, page: Gvn, asid: u64) {
        match self {
            Self::Ordered(level) => level.set_dirty(page, asid),
            Self::LeastUsed(arrays, _) => arrays.change(page, asid, |mapping| Some(mapping.used(true))),
        }
    }

    /// Takes out every translation of `page`.
    pub fn drop_page(&mut self, page: Gvn, asid: u64) {
        match self {
            Self::Ordered(level) => level.drop_page(page, asid),
            Self::LeastUsed(arrays, _) => arrays.change(page, asid, |_| None),
        }
    }

    /// Takes out every translation of the process that covers part of `pages`.
    pub fn invalidate(&mut self, pages: VpnRange, asid: u64) {
        let groups = match self {
            Self::Ordered(level) => level.groups,
            Self::LeastUsed(..) => Groups::None,
        };
        self.retain(|key| {
            let page = key & Asid::MASK;
            let (first, count) = match (size_of_key(key), groups) {
                (GROUPS, Groups::Blocks { .. }) => (Block::first_page(page), CONTIGUOUS_PAGES),
                (GROUPS, _) => (Clusters::first_page(page), clustered::GROUP as u64),
                (size, _) => ((page >> 2) << PageSize::ALL[size].order(), PageSize::ALL[size].pages()),
            };
            let overlaps = first < pages.end.0 && pages.start.0 < first + count;
            Asid::part(key) != asid || !overlaps
        });
    }

    /// Takes out everything whose key `keep` does not want.
    pub fn retain(&mut self, keep: impl FnMut(u64) -> bool) {
        match self {
            Self::Ordered(level) => level.retain(keep),
            Self::LeastUsed(arrays, _) => arrays.retain(keep),
        }
    }

    /// Checks what must always hold: no key twice, each in a set and an array for it, counts by
    /// size right.
    pub fn check_invariants(&self) {
        match self {
            Self::Ordered(level) => level.check_invariants(),
            Self::LeastUsed(arrays, _) => arrays.check_invariants(),
        }
    }
}

/// Arrays whose sets are in the order of their last use.
#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    arrays: Box<[Lru]>,
    /// By page size: which array; [`Ordered::NO_ARRAY`] if none.
    array_of: [u8; 3],
    pieces: Pieces,
    /// By page size, and at last of groups: entries that are there. A size of which there are none
    /// need not be searched.
    resident: [u32; 4],
    groups: Groups,
}

impl Ordered {
    const NO_ARRAY: u8 = u8::MAX;

    fn new(place: &str, arrays: &[TlbConfig]) -> Result<Self, MmuError> {
        let mut array_of = [Self::NO_ARRAY; 3];
        let mut built = Vec::new();
        let mut groups = Groups::None;
        for (index, array) in arrays.iter().enumerate() {
            built.push(Lru::new(entry_sets(place, array.entries, array.ways)?, array.ways));
            for &size in &array.sizes {
                // Of 4 KiB pages, the ordinary array if there are two.
                if array_of[size as usize] == Self::NO_ARRAY || !array.clustered {
                    array_of[size as usize] = index as u8;
                }
            }
            if array.clustered {
                groups = Groups::Clusters { array: index, least: 1 };
            } else if array.contiguous.is_some() {
                groups = Groups::Blocks { array: index };
            }
        }
        if let Groups::Clusters { array, least } = &mut groups
            && *array != usize::from(array_of[PageSize::Small as usize])
        {
            *least = 2;
        }
        Ok(Self { arrays: built.into(), array_of, pieces: Pieces::new(arrays), resident: [0; 4], groups })
    }

    /// Entries that are there, by page size and at last of groups.
    pub fn resident(&self) -> &[u32; 4] {
        &self.resident
    }

    /// The array that holds `size`, if there is one.
    #[inline(always)]
    pub fn array(&self, size: PageSize) -> Option<&Lru> {
        self.arrays.get(usize::from(self.array_of[size as usize]))
    }

    /// The same, to be changed.
    #[inline(always)]
    pub fn array_mut(&mut self, size: PageSize) -> Option<&mut Lru> {
        self.arrays.get_mut(usize::from(self.array_of[size as usize]))
    }

    /// The array of 4 KiB pages, if its sets are `N` pairs, and what the level holds.
    #[inline(always)]
    pub fn narrow<const N: usize>(&mut self) -> Option<(Narrow<'_, N>, &mut [u32; 4])> {
        let array = usize::from(self.array_of[PageSize::Small as usize]);
        Some((self.arrays.get_mut(array)?.narrow()?, &mut self.resident))
    }

    #[inline(always)]
    fn find<S: Simd>(&mut self, simd: S, page: Gvn, asid: u64, not_small: bool) -> Option<Mapping> {
        if self.resident[GROUPS] != 0 {
            let found = match self.groups {
                Groups::Clusters { array, .. } => Clusters::of(page, asid).find(&mut self.arrays[array], simd),
                Groups::Blocks { array } => self.find_in_block(simd, page, asid, array),
                Groups::None => None,
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
        None
    }

    /// The translation of `page`, if it is one of a contiguous block in that `array`, which becomes
    /// the latest.
    #[inline(never)]
    fn find_in_block<S: Simd>(&mut self, simd: S, page: Gvn, asid: u64, array: usize) -> Option<Mapping> {
        let array = &mut self.arrays[array];
        let block = Block::of(page, asid);
        let bits = simd.apart(
            #[inline(always)]
            || array.find(simd, block.set(array), block.key()),
        )?;
        Some(Mapping::from_bits(bits).in_block_at(page))
    }

    fn peek(&self, page: Gvn, asid: u64) -> Option<Mapping> {
        let in_group = match self.groups {
            Groups::None => None,
            Groups::Clusters { array, .. } => Clusters::of(page, asid).peek(&self.arrays[array]),
            Groups::Blocks { array } => {
                let (array, block) = (&self.arrays[array], Block::of(page, asid));
                let bits = array.peek(block.set(array), block.key());
                bits.map(|bits| Mapping::from_bits(bits).in_block_at(page).alone())
            }
        };
        in_group.or_else(|| {
            PageSize::ALL.into_iter().find_map(|size| {
                let array = self.array(size)?;
                let bits = array.peek(array.set_of(page.0 >> size.order()), key(page, size, asid))?;
                Some(Mapping::from_bits(bits))
            })
        })
    }

    #[inline(always)]
    fn insert<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping, asid: u64) -> Option<Mapping> {
        if mapping.is_single() {
            return self.insert_piece(simd, page, mapping, PageSize::Small, asid);
        }
        if mapping.is_contiguous() {
            return self.insert_block(simd, page, mapping, asid);
        }
        let size = self.pieces.of(mapping.size())?;
        self.insert_piece(simd, page, mapping.piece(page, size), size, asid)
    }

    /// Takes in `piece`, which is of `size` and holds `page`, if there is an array for it.
    #[inline(always)]
    pub fn insert_piece<S: Simd>(
        &mut self,
        simd: S,
        page: Gvn,
        piece: Mapping,
        size: PageSize,
        asid: u64,
    ) -> Option<Mapping> {
        let array = self.array_mut(size)?;
        let gone = array.insert(simd, array.set_of(page.0 >> size.order()), key(page, size, asid), piece.bits());
        self.came_in(size as usize, gone);
        Some(piece)
    }

    /// Takes in the contiguous block of which `mapping` is `page`; a level without such entries
    /// takes in the page.
    #[cold]
    #[inline(never)]
    fn insert_block<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping, asid: u64) -> Option<Mapping> {
        let Groups::Blocks { array } = self.groups else {
            return self.insert_piece(simd, page, mapping.alone(), PageSize::Small, asid);
        };
        let (array, block) = (&mut self.arrays[array], Block::of(page, asid));
        let gone = array.insert(simd, block.set(array), block.key(), mapping.bits());
        self.came_in(GROUPS, gone);
        Some(mapping)
    }

    #[inline(always)]
    fn insert_cluster<S: Simd>(&mut self, simd: S, page: Gvn, mapping: Mapping, neighbours: Group, asid: u64) {
        let inserted = match self.groups {
            Groups::Clusters { array, least } => {
                Clusters::of(page, asid).insert(&mut self.arrays[array], simd, mapping, neighbours, least)
            }
            Groups::None | Groups::Blocks { .. } => Inserted::TooFew,
        };
        match inserted {
            Inserted::Joined => {}
            Inserted::New(gone) => self.came_in(GROUPS, gone),
            Inserted::TooFew => {
                self.insert(simd, page, mapping, asid);
            }
        }
    }

    /// Counts an entry that came in, of a size or a group, and the one with the key `gone`, which
    /// had to go for it.
    #[inline(always)]
    fn came_in(&mut self, size: usize, gone: Option<u64>) {
        match gone.map(size_of_key) {
            Some(gone) if gone == size => {}
            Some(gone) => {
                self.resident[size] += 1;
                self.resident[gone] -= 1;
            }
            None => self.resident[size] += 1,
        }
    }

    fn set_dirty(&mut self, page: Gvn, asid: u64) {
        self.for_each_covering(page, asid, |array, set, key| {
            array.update(set, key, |bits| Mapping::from_bits(bits).used(true).bits());
            false
        });
        if let Some(mapping) = self.take_from_cluster(page, asid)
            && self.peek(page, asid).is_none()
        {
            // Reinsert the page into a cluster with D set. (If the ordinary array holds it, too,
            // that entry stays.)
            let alone = Group::alone(page, mapping.frame());
            self.insert_cluster(Plain, page, mapping.used(true), alone, asid);
        }
    }

    fn drop_page(&mut self, page: Gvn, asid: u64) {
        self.for_each_covering(page, asid, |array, set, key| array.remove(set, key));
        self.take_from_cluster(page, asid);
    }

    /// Takes `page` out of the cluster that holds it, if one does, and says what it was.
    fn take_from_cluster(&mut self, page: Gvn, asid: u64) -> Option<Mapping> {
        let Groups::Clusters { array, .. } = self.groups else { return None };
        let (array, clusters) = (&mut self.arrays[array], Clusters::of(page, asid));
        let mapping = clusters.peek(array)?;
        self.resident[GROUPS] -= u32::from(clusters.remove(array));
        Some(mapping)
    }

    /// Every entry that covers `page`, but for clusters: `act` says whether it took it out.
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
        if let Groups::Blocks { array } = self.groups {
            let (array, block) = (&mut self.arrays[array], Block::of(page, asid));
            self.resident[GROUPS] -= u32::from(act(array, block.set(array), block.key()));
        }
    }

    fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
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
                let (held, at) = match (size, self.groups) {
                    (GROUPS, Groups::Blocks { array: held }) => (held, Block::set_of_key(array, page)),
                    (GROUPS, Groups::Clusters { array: held, .. }) => (held, Clusters::set_of_key(array, page)),
                    (GROUPS, Groups::None) => panic!("{key:#x} is of a group"),
                    _ => (self.array_of[size].into(), array.set_of(page >> 2)),
                };
                assert_eq!(held, index, "{key:#x} is in an array of other sizes");
                assert_eq!(at, set, "{key:#x} is in a wrong set");
                counted[size] += 1;
            });
        }
        assert_eq!(counted, self.resident, "entries by size");
    }
}
