// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clustered TLB entries (Pham, Bhattacharjee, Eckert, Loh, HPCA 2014; compared and combined with
//! ASAP in section 5.4.1 of that paper): one entry holds up to 8 pages of an aligned group whose
//! frames lie in one aligned group of 8 frames, in any order.
//!
//! The entries are in an array of the second level, one entry a way. A group of pages whose frames
//! are in several groups of frames takes one entry for each of these, all in the same set. A walk
//! fills an entry from the cache lines of the leaf entries that it has read: it adds the neighbours
//! that have the same rights and the same accessed and dirty bits. The level may also have an
//! ordinary array for 4 KiB pages, as in the paper. A page that would be alone in its entry then
//! goes to that array, so scattered pages of one group do not evict each other from the group's
//! only set.

use nestwalk_mem::{Gvn, PageSize, Pfn};

use crate::lru::Lru;
use crate::mapping::Mapping;
use crate::simd::Simd;

/// Pages of a group, and frames of one.
pub(crate) const GROUP: usize = 8;
const ORDER: u32 = 3;

/// The lowest bits of a key that stands for a cluster.
pub(crate) const KIND: u64 = 3;

/// The most frames of a memory in which entries can tell all groups apart.
pub(crate) const FRAMES_MAX: u64 = 1 << (Cluster::BASE_BITS + ORDER);

/// The pages of a group that may share one entry, and the frame of each within one group of frames.
/// Four bits a page, from the lowest bits on: one that says whether the page is in the entry, and 3
/// for the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group(u64);

impl Group {
    const SLOT_BITS: usize = 4;
    const SLOT: u64 = (1 << Self::SLOT_BITS) - 1;
    /// For each page the bit that says that it may.
    const THERE: u64 = 0x1111_1111;

    /// The lowest bit of the page at `place`.
    const fn slot(place: usize) -> u32 {
        (Self::SLOT_BITS * place) as u32
    }

    /// The pages of the 8 whose frames are in the same group as the frame `own` and that may share
    /// its entry. `frames` gives the frame of each page that may.
    #[inline(always)]
    pub(crate) fn of(own: u64, frames: impl Fn(usize) -> (u64, bool)) -> Self {
        let mut slots = 0;
        // No branches: the compiler makes vectors of it.
        for place in 0..GROUP {
            let (frame, may) = frames(place);
            let fits = may & (frame >> ORDER == own >> ORDER);
            let slot = 1 | (frame & (GROUP as u64 - 1)) << 1;
            slots |= (slot & u64::from(fits).wrapping_neg()) << Self::slot(place);
        }
        Self(slots)
    }

    /// `page` alone, which is in `frame`.
    pub(crate) fn alone(page: Gvn, frame: Pfn) -> Self {
        Self::of(frame.0, |place| (frame.0, place == page.0 as usize % GROUP))
    }

    /// Where these pages lie at last, if their frames are the pages of `below`.
    #[inline(always)]
    pub(crate) fn through(self, below: Self) -> Self {
        let mut slots = 0;
        for place in 0..GROUP {
            let slot = self.0 >> Self::slot(place);
            let at = (slot >> 1 & (GROUP as u64 - 1)) * Self::SLOT_BITS as u64;
            let there = (slot & 1).wrapping_neg();
            slots |= (below.0 >> at & Self::SLOT & there) << Self::slot(place);
        }
        Self(slots)
    }
}

/// The contents of an entry. From the lowest bit of its value: the pages that are there, as in
/// [`Group`]; dirty; writable; the number of the group of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cluster(u64);

impl Cluster {
    const SLOTS_BITS: u32 = Group::slot(GROUP);
    const DIRTY: u64 = 1 << Self::SLOTS_BITS;
    const WRITABLE: u64 = 2 << Self::SLOTS_BITS;
    const BASE: u32 = Self::SLOTS_BITS + 2;
    const BASE_BITS: u32 = 64 - Self::BASE;

    /// An empty one for pages like `mapping`.
    fn for_pages_like(mapping: Mapping) -> Self {
        let dirty = if mapping.is_dirty() { Self::DIRTY } else { 0 };
        let writable = if mapping.is_writable() { Self::WRITABLE } else { 0 };
        Self((mapping.frame().0 >> ORDER) << Self::BASE | writable | dirty)
    }

    /// Whether pages of the other could share this entry.
    fn is_like(self, other: Self) -> bool {
        self.0 >> Self::SLOTS_BITS == other.0 >> Self::SLOTS_BITS
    }

    /// The same with the pages of `group`, where they are not in an entry already: those have their
    /// bit in `held`.
    #[must_use]
    fn filled(self, group: Group, held: u64) -> Self {
        Self(self.0 | group.0 & !((held & Group::THERE) * Group::SLOT))
    }

    #[must_use]
    fn without(self, place: usize) -> Self {
        Self(self.0 & !(Group::SLOT << Group::slot(place)))
    }

    fn is_empty(self) -> bool {
        self.0 & ((1 << Self::SLOTS_BITS) - 1) == 0
    }

    /// The translation of the page at `place`, if it is there.
    fn mapping(self, place: usize) -> Option<Mapping> {
        let slot = self.0 >> Group::slot(place);
        (slot & 1 != 0).then(|| {
            let frame = Pfn((self.0 >> Self::BASE) << ORDER | slot >> 1 & (GROUP as u64 - 1));
            Mapping::new(frame, PageSize::Small, self.0 & Self::WRITABLE != 0, self.0 & Self::DIRTY != 0)
        })
    }
}

/// What became of a page that was to be taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inserted {
    /// An entry that was there holds it now.
    Joined,
    /// An entry more does; with the key of the one that had to go for it.
    New(Option<u64>),
    /// No entry holds it: too few pages would share the entry.
    TooFew,
}

/// What an array that holds clusters does with them. `asid` is part of each key.
#[derive(Clone, Copy)]
pub(crate) struct Clusters {
    group: u64,
    place: usize,
    asid: u64,
}

impl Clusters {
    /// Those that may hold `page`.
    pub fn of(page: Gvn, asid: u64) -> Self {
        Self { group: page.0 >> ORDER, place: page.0 as usize % GROUP, asid }
    }

    /// Entries of one group differ in a number, so that each has a key of its own.
    fn key(self, number: u64) -> u64 {
        (self.group << ORDER | number) << 2 | KIND | self.asid
    }

    /// What of a key is the group's.
    const MASK: u64 = !((GROUP as u64 - 1) << 2);

    fn number_of_key(key: u64) -> u64 {
        key >> 2 & (GROUP as u64 - 1)
    }

    /// The pages that the entry with `key`, less what is not the page, holds: the first of the
    /// group.
    pub fn first_page(key: u64) -> u64 {
        key >> 2 & !(GROUP as u64 - 1)
    }

    /// The set of the entry with `key`, less what is not the page.
    pub fn set_of_key(array: &Lru, key: u64) -> usize {
        array.set_of(key >> (2 + ORDER))
    }

    /// The entry that holds the page: its key, and what it holds.
    fn holder(self, array: &Lru) -> Option<(u64, Cluster)> {
        let set = array.set_of(self.group);
        let (key, bits) = array.peek_where(set, self.key(0), Self::MASK, Group::slot(self.place))?;
        Some((key, Cluster(bits)))
    }

    /// The translation of the page. Changes nothing.
    pub fn peek(self, array: &Lru) -> Option<Mapping> {
        self.holder(array)?.1.mapping(self.place)
    }

    /// The same; its entry becomes the latest of the set.
    #[inline(always)]
    pub fn find<S: Simd>(self, array: &mut Lru, simd: S) -> Option<Mapping> {
        let set = array.set_of(self.group);
        let bits = array.find_where(simd, set, self.key(0), Self::MASK, Group::slot(self.place))?;
        Cluster(bits).mapping(self.place)
    }

    /// Takes in the page, which no entry holds, with its `neighbours` (it is one of them) that none
    /// holds. A new entry begins with `least` pages at least.
    #[inline(always)]
    pub fn insert<S: Simd>(
        self,
        array: &mut Lru,
        simd: S,
        mapping: Mapping,
        neighbours: Group,
        least: u32,
    ) -> Inserted {
        debug_assert!(
            Cluster(neighbours.0).mapping(self.place).is_some_and(|own| own.frame().0 == mapping.frame().0 & 7)
        );
        let set = array.set_of(self.group);
        let empty = Cluster::for_pages_like(mapping);
        // The same steps for each key, whether it matches or not (an empty one does not): no
        // branch.
        let (mut held, mut numbers, mut like) = (0, 0_u64, usize::MAX);
        let wanted = self.key(0);
        for (index, pairs) in array.row(set).iter().enumerate() {
            for lane in 0..4 {
                let (key, bits) = (pairs.keys[lane], pairs.values[lane]);
                let ours = (key ^ wanted) & Self::MASK == 0;
                let mask = u64::from(ours).wrapping_neg();
                held |= bits & mask;
                numbers |= 1 << Self::number_of_key(key) & mask;
                like = if ours & Cluster(bits).is_like(empty) { index * 4 + lane } else { like };
            }
        }
        if like != usize::MAX {
            let there = Cluster(array.row(set)[like / 4].values[like % 4]);
            array.renew(simd, set, like, there.filled(neighbours, held).0);
            return Inserted::Joined;
        }
        let cluster = empty.filled(neighbours, held);
        if least > 1 && (cluster.0 & Group::THERE).count_ones() < least {
            return Inserted::TooFew;
        }
        // Eight entries of one group would hold eight pages, and this page is in none: so there are
        // fewer.
        let free = u64::from(numbers.trailing_ones());
        Inserted::New(array.insert(simd, set, self.key(free), cluster.0))
    }

    /// Takes the page out. Whether its entry went with it.
    pub fn remove(self, array: &mut Lru) -> bool {
        let Some((key, cluster)) = self.holder(array) else { return false };
        let (set, left) = (array.set_of(self.group), cluster.without(self.place));
        array.update(set, key, |_| left.0);
        left.is_empty() && array.remove(set, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Plain;
    use proptest::prelude::*;

    const GROUP_OF_FRAMES: u64 = 0x1_2345 << 3;

    fn mapping(frame: u64, dirty: bool) -> Mapping {
        Mapping::new(Pfn(frame), PageSize::Small, true, dirty)
    }

    fn alone(place: usize, frame: u64) -> Group {
        Group::alone(Gvn(place as u64), Pfn(frame))
    }

    fn clusters(page: u64) -> Clusters {
        Clusters::of(Gvn(page), 5 << 48)
    }

    proptest! {
        /// Two tables on the way, against the frames one by one.
        #[test]
        fn a_group_through_another_lies_where_each_of_its_pages_does(
            above in prop::array::uniform8((0_u64..24, any::<bool>())),
            below in prop::array::uniform8((0_u64..24, any::<bool>())),
            own in 0_usize..8,
        ) {
            let at = above[own].0;
            let last = below[at as usize % 8].0;
            let combined = Group::of(at, |place| above[place]).through(Group::of(last, |place| below[place]));
            for (place, &(page, may)) in above.iter().enumerate() {
                let (frame, may_below) = below[page as usize % 8];
                let fits = may && may_below && page / 8 == at / 8 && frame / 8 == last / 8;
                let found = Cluster(combined.0).mapping(place).map(|mapping| mapping.frame().0);
                prop_assert_eq!(found, fits.then_some(frame % 8));
            }
        }
    }

    #[test]
    fn one_entry_holds_a_group_in_any_order() {
        let mut array = Lru::new(4, 2);
        let frame = |page: u64| GROUP_OF_FRAMES + (page * 3 + 1) % 8;
        let neighbours = Group::of(frame(2), |place| (frame(place as u64), true));
        assert_eq!(
            clusters(0x82).insert(&mut array, Plain, mapping(frame(2), true), neighbours, 1),
            Inserted::New(None)
        );
        for page in 0..8 {
            assert_eq!(clusters(0x80 + page).find(&mut array, Plain), Some(mapping(frame(page), true)));
        }
        assert_eq!(clusters(0x88).find(&mut array, Plain), None);
        assert_eq!(Clusters::of(Gvn(0x82), 6 << 48).find(&mut array, Plain), None, "another process");
    }

    #[test]
    fn frames_of_several_groups_take_several_entries() {
        let mut array = Lru::new(1, 4);
        let far = GROUP_OF_FRAMES + 64;
        let beside = |own| Group::of(own, |place| (if place < 4 { GROUP_OF_FRAMES } else { far } + place as u64, true));
        let (first, frame) = (mapping(GROUP_OF_FRAMES, false), GROUP_OF_FRAMES);
        assert_eq!(clusters(0).insert(&mut array, Plain, first, beside(frame), 1), Inserted::New(None));
        assert_eq!(clusters(3).peek(&array).unwrap().frame(), Pfn(GROUP_OF_FRAMES + 3));
        assert_eq!(clusters(4).peek(&array), None);
        let second = mapping(far + 5, false);
        assert_eq!(clusters(5).insert(&mut array, Plain, second, beside(far + 5), 1), Inserted::New(None));
        assert_eq!((0..8).filter(|&page| clusters(page).peek(&array).is_some()).count(), 8);
        // A dirty page does not share an entry with clean ones.
        assert!(!clusters(6).remove(&mut array));
        assert_eq!(
            clusters(6).insert(&mut array, Plain, mapping(far + 6, true), alone(6, far + 6), 1),
            Inserted::New(None)
        );
        assert_eq!(clusters(6).find(&mut array, Plain), Some(mapping(far + 6, true)));
        assert!(clusters(6).remove(&mut array), "it was alone");
        assert_eq!(clusters(7).peek(&array).unwrap().frame(), Pfn(far + 7));
    }

    #[test]
    fn pages_that_come_one_by_one_fill_the_entry_that_is_there() {
        let mut array = Lru::new(1, 1);
        assert_eq!(
            clusters(1).insert(&mut array, Plain, mapping(GROUP_OF_FRAMES + 1, true), alone(1, GROUP_OF_FRAMES + 1), 1),
            Inserted::New(None)
        );
        assert_eq!(
            clusters(2).insert(&mut array, Plain, mapping(GROUP_OF_FRAMES + 7, true), alone(2, GROUP_OF_FRAMES + 7), 1),
            Inserted::Joined
        );
        assert_eq!(clusters(1).peek(&array).unwrap().frame(), Pfn(GROUP_OF_FRAMES + 1));
        // Another group of pages pushes both out.
        let pushed = clusters(9).insert(&mut array, Plain, mapping(0x40, true), alone(1, 0x40), 1);
        assert!(matches!(pushed, Inserted::New(Some(_))));
        assert_eq!(clusters(1).peek(&array), None);
    }

    #[test]
    fn a_page_alone_makes_no_entry_where_two_are_asked_for_but_joins_one() {
        let mut array = Lru::new(1, 4);
        let insert = |array: &mut Lru, page: u64, neighbours: Group| {
            clusters(page).insert(array, Plain, mapping(GROUP_OF_FRAMES + page, true), neighbours, 2)
        };
        assert_eq!(insert(&mut array, 1, alone(1, GROUP_OF_FRAMES + 1)), Inserted::TooFew);
        assert_eq!(clusters(1).peek(&array), None);
        let pair = Group::of(GROUP_OF_FRAMES, |place| (GROUP_OF_FRAMES + place as u64, (1..=2).contains(&place)));
        assert_eq!(insert(&mut array, 2, pair), Inserted::New(None));
        assert_eq!(insert(&mut array, 5, alone(5, GROUP_OF_FRAMES + 5)), Inserted::Joined);
        assert_eq!((0..8).filter(|&page| clusters(page).peek(&array).is_some()).count(), 3);
    }
}
