// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets in the order of their last use, and the movement that keeps them so.
//!
//! A set is a row of vectors, the most recently used element first. A set of a cache is a row of
//! [`Tags`]: [`LongTags`] of 32 bits or [`ShortTags`] of 16 bits. A set of a page-walk cache is a
//! row of [`Keys`]; a set of a TLB is a row of [`Pairs`] of keys and values.
//!
//! A hit and a miss are the same rotation: the elements before the hit (before the last place, on a
//! miss) move back by one, and the used element becomes the first. Whole vectors are compared,
//! moved and stored. There is no branch on a hit, which would be unpredictable.
//!
//! [`Avx2`] uses AVX2, and [`Plain`] is scalar. Both give the same results. A value of [`Avx2`]
//! exists only if the processor has the instructions, so holding one is the proof that they may be
//! used.

use std::fmt::Debug;

/// No key.
pub(crate) const NO_KEY: u64 = u64::MAX;

/// Tags that are handled at once, of which a row has one or more.
pub trait Tags: Copy + PartialEq + Debug {
    /// The type of one tag.
    type Tag: Copy + PartialEq + Debug + Into<u64>;

    /// Places.
    const COUNT: usize;
    /// No tag.
    const NONE: Self::Tag;
    /// No tags.
    const EMPTY: Self;

    /// How many hold `ways` tags. The places beyond stay [`Tags::NONE`].
    fn count(ways: usize) -> usize {
        ways.div_ceil(Self::COUNT)
    }

    /// The tag of `number`, which must be below [`Tags::NONE`].
    fn tag(number: u64) -> Self::Tag;

    /// All places.
    fn places(&self) -> &[Self::Tag];

    /// The same, to be changed.
    fn places_mut(&mut self) -> &mut [Self::Tag];

    /// Moves `tag` to the front of `row`, replacing the LRU tag on a miss. `last` has only the bit
    /// of the row's last place set. Returns a bit for the place where it was, or 0 on a miss.
    fn use_in<S: Simd>(simd: S, row: &mut [Self], last: u64, tag: Self::Tag) -> u64;

    /// Whether `tag` is in `row`.
    fn held_in<S: Simd>(simd: S, row: &[Self], tag: Self::Tag) -> bool;

    /// Takes `tag` out of `row`: the tags behind it move up. Whether it was there.
    fn take_in<S: Simd>(simd: S, row: &mut [Self], tag: Self::Tag) -> bool;
}

/// Eight long tags: enough for any memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(32))]
pub struct LongTags(pub(crate) [u32; 8]);

impl Tags for LongTags {
    type Tag = u32;

    const COUNT: usize = 8;
    const NONE: u32 = u32::MAX;
    const EMPTY: Self = Self([Self::NONE; Self::COUNT]);

    #[inline(always)]
    fn tag(number: u64) -> u32 {
        debug_assert!(number < Self::NONE.into());
        number as u32
    }

    #[inline(always)]
    fn places(&self) -> &[u32] {
        &self.0
    }

    #[inline(always)]
    fn places_mut(&mut self) -> &mut [u32] {
        &mut self.0
    }

    #[inline(always)]
    fn use_in<S: Simd>(simd: S, row: &mut [Self], last: u64, tag: u32) -> u64 {
        simd.use_tag(row, last, tag)
    }

    #[inline(always)]
    fn held_in<S: Simd>(simd: S, row: &[Self], tag: u32) -> bool {
        simd.holds_tag(row, tag)
    }

    #[inline(always)]
    fn take_in<S: Simd>(simd: S, row: &mut [Self], tag: u32) -> bool {
        simd.take_tag(row, tag)
    }
}

/// Short tags: for many ways, a line of the processor that runs the simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct ShortTags(pub(crate) [u16; 32]);

impl Tags for ShortTags {
    type Tag = u16;

    const COUNT: usize = 32;
    const NONE: u16 = u16::MAX;
    const EMPTY: Self = Self([Self::NONE; Self::COUNT]);

    #[inline(always)]
    fn tag(number: u64) -> u16 {
        debug_assert!(number < Self::NONE.into());
        number as u16
    }

    #[inline(always)]
    fn places(&self) -> &[u16] {
        &self.0
    }

    #[inline(always)]
    fn places_mut(&mut self) -> &mut [u16] {
        &mut self.0
    }

    #[inline(always)]
    fn use_in<S: Simd>(simd: S, row: &mut [Self], last: u64, tag: u16) -> u64 {
        simd.use_short(row, last, tag)
    }

    #[inline(always)]
    fn held_in<S: Simd>(simd: S, row: &[Self], tag: u16) -> bool {
        simd.holds_short(row, tag)
    }

    #[inline(always)]
    fn take_in<S: Simd>(simd: S, row: &mut [Self], tag: u16) -> bool {
        simd.take_short(row, tag)
    }
}

/// Keys with values that are handled at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct Pairs {
    pub(crate) keys: [u64; 4],
    pub(crate) values: [u64; 4],
}

impl Pairs {
    pub(crate) const EMPTY: Self = Self { keys: [NO_KEY; 4], values: [0; 4] };

    /// Quads that hold `ways` pairs. The places beyond stay empty.
    pub(crate) const fn count(ways: usize) -> usize {
        ways.div_ceil(4)
    }
}

/// Keys alone that are handled at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(32))]
pub struct Keys(pub(crate) [u64; 4]);

impl Keys {
    pub(crate) const EMPTY: Self = Self([NO_KEY; 4]);

    /// Those that hold `ways` keys. The places beyond stay empty.
    pub(crate) const fn count(ways: usize) -> usize {
        ways.div_ceil(4)
    }
}

/// Four keys of which each is half as long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(16))]
pub struct ShortKeys(pub(crate) [u32; 4]);

/// An instruction set: how rows are searched and reordered.
pub trait Simd: Copy + Debug {
    /// Whether it moves vectors, of which a row has a number that may be known beforehand.
    const VECTORS: bool;

    /// Runs `work` in a function that is compiled with the target features of this instruction set.
    /// `work` must be `#[inline(always)]`. (In code that has these features already the call is
    /// inlined.)
    fn apart<R>(self, work: impl FnOnce() -> R) -> R;

    /// Moves `tag` to the front of `row`, replacing the LRU tag on a miss. `last` has only the bit
    /// of the row's last place set. Returns a bit for the place where it was, or 0 on a miss.
    fn use_tag(self, row: &mut [LongTags], last: u64, tag: u32) -> u64;

    /// Whether `tag` is in `row`.
    fn holds_tag(self, row: &[LongTags], tag: u32) -> bool;

    /// Takes `tag` out of `row`: the tags behind it move up. Whether it was there.
    fn take_tag(self, row: &mut [LongTags], tag: u32) -> bool;

    /// [`Simd::use_tag`] of short ones.
    fn use_short(self, row: &mut [ShortTags], last: u64, tag: u16) -> u64;

    /// [`Simd::holds_tag`] of short ones.
    fn holds_short(self, row: &[ShortTags], tag: u16) -> bool;

    /// [`Simd::take_tag`] of short ones.
    fn take_short(self, row: &mut [ShortTags], tag: u16) -> bool;

    /// Uses `key` in `row`, whose last place is `last`. Whether it was there.
    fn use_key(self, row: &mut [Keys], last: usize, key: u64) -> bool;

    /// Uses the short `key` in `row`, if `allowed`. Whether it was there, in any case.
    fn use_short_key_if(self, row: &mut ShortKeys, last: usize, key: u32, allowed: bool) -> bool;

    /// The value of `key` in `row`, if it is there. It comes to the front.
    fn find(self, row: &mut [Pairs], key: u64) -> Option<u64>;

    /// The first place of a key in `row` that is `key` in the bits of `mask`, and whose value has
    /// its bit `bit`.
    fn place_where(self, row: &[Pairs], key: u64, mask: u64, bit: u32) -> Option<usize>;

    /// Replaces the pair at `place`, which must be within `row`: the pairs before it move back by
    /// one, and `key` with `value` becomes the first. Returns the replaced key.
    fn put_in_front(self, row: &mut [Pairs], place: usize, key: u64, value: u64) -> u64;
}

/// Portable scalar code: one place after the other.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

/// Uses `wanted` in a row of which `places` are all. A bit for the place where it was, or 0.
#[inline(always)]
fn use_one<'a, T: Copy + PartialEq + 'a>(places: impl Iterator<Item = &'a mut T>, wanted: T) -> u64 {
    let mut carry = wanted;
    for (place, there) in places.enumerate() {
        carry = std::mem::replace(there, carry);
        if carry == wanted {
            // Rows of keys may have more places than there are bits, and need not know which.
            return 1 << place.min(63);
        }
    }
    0
}

impl Plain {
    /// This code: every processor can run it.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn detect() -> Option<Self> {
        Some(Self)
    }

    #[inline(always)]
    fn use_any<T: Tags>(self, row: &mut [T], last: u64, tag: T::Tag) -> u64 {
        use_one(row.iter_mut().flat_map(T::places_mut).take(last.trailing_zeros() as usize + 1), tag)
    }

    #[inline(always)]
    fn holds_any<T: Tags>(self, row: &[T], tag: T::Tag) -> bool {
        row.iter().any(|tags| tags.places().contains(&tag))
    }

    #[inline(always)]
    fn take_any<T: Tags>(self, row: &mut [T], tag: T::Tag) -> bool {
        let mut behind = T::NONE;
        for there in row.iter_mut().rev().flat_map(|tags| tags.places_mut().iter_mut().rev()) {
            behind = std::mem::replace(there, behind);
            if behind == tag {
                return true;
            }
        }
        // It was not there: what has moved up moves back.
        use_one(row.iter_mut().flat_map(T::places_mut), behind);
        false
    }

    /// The place of `key` in `row`.
    #[inline(always)]
    pub fn place_of(self, row: &[Pairs], key: u64) -> Option<usize> {
        row.iter().flat_map(|pairs| pairs.keys).position(|there| there == key)
    }
}

impl Simd for Plain {
    const VECTORS: bool = false;

    #[inline(always)]
    fn apart<R>(self, work: impl FnOnce() -> R) -> R {
        work()
    }

    #[inline(always)]
    fn use_tag(self, row: &mut [LongTags], last: u64, tag: u32) -> u64 {
        self.use_any(row, last, tag)
    }

    #[inline(always)]
    fn holds_tag(self, row: &[LongTags], tag: u32) -> bool {
        self.holds_any(row, tag)
    }

    #[inline(always)]
    fn take_tag(self, row: &mut [LongTags], tag: u32) -> bool {
        self.take_any(row, tag)
    }

    #[inline(always)]
    fn use_short(self, row: &mut [ShortTags], last: u64, tag: u16) -> u64 {
        self.use_any(row, last, tag)
    }

    #[inline(always)]
    fn holds_short(self, row: &[ShortTags], tag: u16) -> bool {
        self.holds_any(row, tag)
    }

    #[inline(always)]
    fn take_short(self, row: &mut [ShortTags], tag: u16) -> bool {
        self.take_any(row, tag)
    }

    #[inline(always)]
    fn use_key(self, row: &mut [Keys], last: usize, key: u64) -> bool {
        use_one(row.iter_mut().flat_map(|keys| &mut keys.0).take(last + 1), key) != 0
    }

    #[inline(always)]
    fn use_short_key_if(self, row: &mut ShortKeys, last: usize, key: u32, allowed: bool) -> bool {
        if allowed { use_one(row.0.iter_mut().take(last + 1), key) != 0 } else { row.0.contains(&key) }
    }

    #[inline(always)]
    fn find(self, row: &mut [Pairs], key: u64) -> Option<u64> {
        let place = self.place_of(row, key)?;
        let value = row[place / 4].values[place % 4];
        self.put_in_front(row, place, key, value);
        Some(value)
    }

    #[inline(always)]
    fn place_where(self, row: &[Pairs], key: u64, mask: u64, bit: u32) -> Option<usize> {
        let mut pairs = row.iter().flat_map(|pairs| pairs.keys.into_iter().zip(pairs.values));
        pairs.position(|(there, value)| (there ^ key) & mask == 0 && value >> (bit & 63) & 1 != 0)
    }

    #[inline(always)]
    fn put_in_front(self, row: &mut [Pairs], place: usize, key: u64, value: u64) -> u64 {
        let mut carry = (key, value);
        let pairs = row.iter_mut().flat_map(|pairs| pairs.keys.iter_mut().zip(&mut pairs.values));
        for (key, value) in pairs.take(place + 1) {
            carry = (std::mem::replace(key, carry.0), std::mem::replace(value, carry.1));
        }
        carry.0
    }
}

#[cfg(target_arch = "x86_64")]
mod avx;
#[cfg(target_arch = "x86_64")]
pub use avx::Avx2;

/// The fastest code for this kind of processor, which not every one of the kind can run.
#[cfg(target_arch = "x86_64")]
pub type Vectors = Avx2;
/// The fastest code for this kind of processor.
#[cfg(not(target_arch = "x86_64"))]
pub type Vectors = Plain;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The model: a list in LRU order.
    fn use_in_model<T: PartialEq>(row: &mut Vec<T>, wanted: T) -> bool {
        let found = row.iter().position(|there| *there == wanted);
        row.remove(found.unwrap_or(row.len() - 1));
        row.insert(0, wanted);
        found.is_some()
    }

    fn check_tags<T: Tags, S: Simd>(simd: S, ways: usize, tags: &[(u16, bool)]) -> Result<(), TestCaseError> {
        let mut row = vec![T::EMPTY; T::count(ways)];
        let mut model = vec![T::NONE; ways];
        for &(tag, take) in tags {
            let tag = T::tag(tag.into());
            let held = T::held_in(simd, &row, tag);
            prop_assert_eq!(held, model.contains(&tag));
            if take {
                prop_assert_eq!(T::take_in(simd, &mut row, tag), held);
                model.retain(|&there| there != tag);
                model.resize(ways, T::NONE);
            } else {
                let place = model.iter().position(|&there| there == tag).map_or(0, |place| 1 << place);
                prop_assert_eq!(T::use_in(simd, &mut row, 1 << (ways - 1), tag), place);
                use_in_model(&mut model, tag);
            }
            let flat: Vec<T::Tag> = row.iter().flat_map(|tags| tags.places().iter().copied()).collect();
            prop_assert_eq!(&flat[..ways], &model[..]);
            prop_assert!(flat[ways..].iter().all(|&tag| tag == T::NONE), "{:?}", flat);
        }
        Ok(())
    }

    fn check_all_tags<S: Simd>(simd: S, ways: usize, tags: &[(u16, bool)]) -> Result<(), TestCaseError> {
        check_tags::<LongTags, S>(simd, ways, tags)?;
        check_tags::<ShortTags, S>(simd, ways, tags)
    }

    fn check_keys<S: Simd>(simd: S, ways: usize, keys: &[u64]) -> Result<(), TestCaseError> {
        let mut row = vec![Keys::EMPTY; Keys::count(ways)];
        let mut model = vec![NO_KEY; ways];
        for &key in keys {
            prop_assert_eq!(simd.use_key(&mut row, ways - 1, key), use_in_model(&mut model, key));
            let flat: Vec<u64> = row.iter().flat_map(|keys| keys.0).collect();
            prop_assert_eq!(&flat[..ways], &model[..]);
            prop_assert!(flat[ways..].iter().all(|&key| key == NO_KEY), "{:?}", flat);
        }
        Ok(())
    }

    fn check_short_keys<S: Simd>(simd: S, ways: usize, keys: &[(u32, bool)]) -> Result<(), TestCaseError> {
        let mut row = ShortKeys([u32::MAX; 4]);
        let mut model = vec![u32::MAX; ways];
        for &(key, allowed) in keys {
            let there = if allowed { use_in_model(&mut model, key) } else { model.contains(&key) };
            prop_assert_eq!(simd.use_short_key_if(&mut row, ways - 1, key, allowed), there);
            prop_assert_eq!(&row.0[..ways], &model[..]);
            prop_assert!(row.0[ways..].iter().all(|&key| key == u32::MAX), "{:?}", row);
        }
        Ok(())
    }

    fn check_pairs<S: Simd>(simd: S, ways: usize, pairs: &[(u64, usize)]) -> Result<(), TestCaseError> {
        let mut row = vec![Pairs::EMPTY; Pairs::count(ways)];
        let mut model = vec![(NO_KEY, 0); ways];
        for &(key, place) in pairs {
            let found = model.iter().position(|pair| pair.0 == key);
            prop_assert_eq!(Plain.place_of(&row, key), found);
            // Keys that are the same but for their lowest bit, with an odd value, that is of an
            // even key.
            let even = model.iter().position(|pair| pair.0 != NO_KEY && pair.0 >> 1 == key >> 1 && pair.1 % 2 == 1);
            prop_assert_eq!(simd.place_where(&row, key, !1, 0), even);
            let place = found.unwrap_or(place % ways);
            let (gone, _) = model.remove(place);
            model.insert(0, (key, key + 1));
            if found.is_some() {
                prop_assert_eq!(simd.find(&mut row, key), Some(key + 1));
            } else {
                prop_assert_eq!(simd.find(&mut row, key), None);
                prop_assert_eq!(simd.put_in_front(&mut row, place, key, key + 1), gone);
            }
            let flat: Vec<_> = row.iter().flat_map(|pairs| pairs.keys.into_iter().zip(pairs.values)).collect();
            prop_assert_eq!(&flat[..ways], &model[..]);
            prop_assert!(flat[ways..].iter().all(|&pair| pair == (NO_KEY, 0)), "{:?}", flat);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn both_ways_to_use_tags_match_a_model(
            ways in 1_usize..=64,
            tags in prop::collection::vec((0_u16..80, prop::bool::weighted(0.1)), 1..400),
        ) {
            check_all_tags(Plain, ways, &tags)?;
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = Avx2::detect() {
                check_all_tags(avx2, ways, &tags)?;
            }
        }

        #[test]
        fn both_ways_to_use_keys_match_a_model(
            ways in 1_usize..=70,
            keys in prop::collection::vec(0_u64..90, 1..400),
        ) {
            check_keys(Plain, ways, &keys)?;
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = Avx2::detect() {
                check_keys(avx2, ways, &keys)?;
            }
        }

        #[test]
        fn all_ways_to_use_short_keys_match_a_model(
            ways in 1_usize..=4,
            keys in prop::collection::vec((0_u32..9, any::<bool>()), 1..400),
        ) {
            check_short_keys(Plain, ways, &keys)?;
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = Avx2::detect() {
                check_short_keys(avx2, ways, &keys)?;
            }
        }

        #[test]
        fn both_ways_to_move_pairs_match_a_model(
            ways in 1_usize..=20,
            pairs in prop::collection::vec((0_u64..40, 0_usize..20), 1..400),
        ) {
            check_pairs(Plain, ways, &pairs)?;
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = Avx2::detect() {
                check_pairs(avx2, ways, &pairs)?;
            }
        }
    }
}
