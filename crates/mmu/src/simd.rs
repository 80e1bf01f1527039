// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets in the order of their last use, and the movement that keeps them so.
//!
//! A set of a cache is a row of [`Oct`]s: 32-bit tags, the most recently used first. A set of a page-walk cache is a row of
//! [`Keys`], one of a TLB a row of [`Quad`]s, keys with values, in the same order. To use something is one movement, whether it was there or
//! not: everything before the place where it was (or before the last place) moves back by one, and it comes to the front.
//! So whole vectors are compared, moved and stored without a branch on what was found, which the processor could only
//! guess.
//!
//! [`Wide`] does that with AVX2, [`Wider`] tags with AVX-512, too, [`Plain`] all one by one; their results are the same. A
//! [`Wide`] or [`Wider`] exists only on processors that have what it needs, so whoever holds one may use it.

use std::fmt::Debug;

/// No tag.
pub(crate) const EMPTY: u32 = u32::MAX;

/// No key.
pub(crate) const NO_KEY: u64 = u64::MAX;

/// Tags that are handled at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(32))]
pub struct Oct(pub(crate) [u32; 8]);

impl Oct {
    pub(crate) const EMPTY: Self = Self([EMPTY; 8]);

    /// Octs that hold `ways` tags. The places beyond stay [`EMPTY`].
    pub(crate) const fn count(ways: usize) -> usize {
        ways.div_ceil(8)
    }
}

/// Keys with values that are handled at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct Quad {
    pub(crate) keys: [u64; 4],
    pub(crate) values: [u64; 4],
}

impl Quad {
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

/// A way to look things up in rows and to move them.
pub trait Simd: Copy + Debug {
    /// Runs `work`, which is to be inlined always, as code that is compiled for what this way needs. (Within code that is
    /// compiled so already, it does nothing: the compiler inlines it.)
    fn apart<R>(self, work: impl FnOnce() -> R) -> R;

    /// Uses `tag` in `row`, whose last place has its bit set in `last` and no other. Whether it was there.
    fn use_tag(self, row: &mut [Oct], last: u64, tag: u32) -> bool;

    /// Whether `tag` is in `row`.
    fn holds_tag(self, row: &[Oct], tag: u32) -> bool;

    /// Uses `key` in `row`, whose last place is `last`. Whether it was there.
    fn use_key(self, row: &mut [Keys], last: usize, key: u64) -> bool;

    /// The value of `key` in `row`, if it is there. It comes to the front.
    fn find(self, row: &mut [Quad], key: u64) -> Option<u64>;

    /// The first place of a key in `row` that is `key` in the bits of `mask`, and whose value has its bit `bit`.
    fn place_where(self, row: &[Quad], key: u64, mask: u64, bit: u32) -> Option<usize>;

    /// Everything before `place`, which `row` has, moves back by one; what stood there is gone, and `key` with `value`
    /// stands in front. The key that is gone.
    fn put_in_front(self, row: &mut [Quad], place: usize, key: u64, value: u64) -> u64;
}

/// Takes `tag`, which is there, out of `row`; what stands behind it moves up.
#[inline(never)]
pub(crate) fn take_tag(row: &mut [Oct], ways: usize, tag: u32) {
    let at = |way: usize| (way / 8, way % 8);
    let mut found = false;
    for way in 0..ways {
        let (oct, lane) = at(way);
        found |= row[oct].0[lane] == tag;
        if found {
            let (next_oct, next_lane) = at(way + 1);
            row[oct].0[lane] = if way + 1 < ways { row[next_oct].0[next_lane] } else { EMPTY };
        }
    }
}

/// One after the other.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

/// Uses `wanted` in a row of which `places` are all. Whether it was there.
#[inline(always)]
fn use_one<'a, T: Copy + PartialEq + 'a>(places: impl Iterator<Item = &'a mut T>, wanted: T) -> bool {
    let mut carry = wanted;
    for there in places {
        carry = std::mem::replace(there, carry);
        if carry == wanted {
            return true;
        }
    }
    false
}

impl Plain {
    /// The place of `key` in `row`.
    #[inline(always)]
    pub fn place_of(self, row: &[Quad], key: u64) -> Option<usize> {
        row.iter().flat_map(|quad| quad.keys).position(|there| there == key)
    }
}

impl Simd for Plain {
    #[inline(always)]
    fn apart<R>(self, work: impl FnOnce() -> R) -> R {
        work()
    }

    #[inline(always)]
    fn use_tag(self, row: &mut [Oct], last: u64, tag: u32) -> bool {
        use_one(row.iter_mut().flat_map(|oct| &mut oct.0).take(last.trailing_zeros() as usize + 1), tag)
    }

    #[inline(always)]
    fn holds_tag(self, row: &[Oct], tag: u32) -> bool {
        row.iter().any(|oct| oct.0.contains(&tag))
    }

    #[inline(always)]
    fn use_key(self, row: &mut [Keys], last: usize, key: u64) -> bool {
        use_one(row.iter_mut().flat_map(|keys| &mut keys.0).take(last + 1), key)
    }

    #[inline(always)]
    fn find(self, row: &mut [Quad], key: u64) -> Option<u64> {
        let place = self.place_of(row, key)?;
        let value = row[place / 4].values[place % 4];
        self.put_in_front(row, place, key, value);
        Some(value)
    }

    #[inline(always)]
    fn place_where(self, row: &[Quad], key: u64, mask: u64, bit: u32) -> Option<usize> {
        let mut pairs = row.iter().flat_map(|quad| quad.keys.into_iter().zip(quad.values));
        pairs.position(|(there, value)| (there ^ key) & mask == 0 && value >> (bit & 63) & 1 != 0)
    }

    #[inline(always)]
    fn put_in_front(self, row: &mut [Quad], place: usize, key: u64, value: u64) -> u64 {
        let mut carry = (key, value);
        let pairs = row.iter_mut().flat_map(|quad| quad.keys.iter_mut().zip(&mut quad.values));
        for (key, value) in pairs.take(place + 1) {
            carry = (std::mem::replace(key, carry.0), std::mem::replace(value, carry.1));
        }
        carry.0
    }
}

#[cfg(target_arch = "x86_64")]
pub use wide::{Wide, Wider};

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m256i, _mm_cvtsi32_si128, _mm256_add_epi32, _mm256_alignr_epi32, _mm256_and_si256, _mm256_blend_epi32,
        _mm256_blendv_epi8, _mm256_castsi256_pd, _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_cmpeq_epi32_mask,
        _mm256_cmpeq_epi64, _mm256_cmpgt_epi32, _mm256_load_si256, _mm256_mask_mov_epi32, _mm256_movemask_epi8,
        _mm256_movemask_pd, _mm256_movemask_ps, _mm256_or_si256, _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32,
        _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setr_epi32, _mm256_setzero_si256, _mm256_sll_epi64,
        _mm256_store_si256,
    };

    use super::{Keys, NO_KEY, Oct, Quad, Simd};

    /// Eight tags or four keys at once, with AVX2. Only [`Wide::detect`] makes one.
    #[derive(Clone, Copy, Debug)]
    pub struct Wide(());

    /// For a place in a vector of eight: where each lane comes from when everything before the place moves back by one.
    static OCT_ORDERS: [Oct; 8] = orders(1);
    /// The same in a vector of four pairs of lanes.
    static QUAD_ORDERS: [Oct; 4] = orders(2);

    const fn orders<const N: usize>(lanes_of_one: usize) -> [Oct; N] {
        let mut orders = [Oct::EMPTY; N];
        let mut place = 0;
        while place < N {
            let mut lane = 0;
            while lane < 8 {
                let one = lane / lanes_of_one;
                let from = if one == 0 || one > place { one } else { one - 1 };
                orders[place].0[lane] = (from * lanes_of_one + lane % lanes_of_one) as u32;
                lane += 1;
            }
            place += 1;
        }
        orders
    }

    impl Wide {
        /// One, if this processor can.
        pub(crate) fn detect() -> Option<Self> {
            let can = std::is_x86_feature_detected!("avx2")
                && std::is_x86_feature_detected!("bmi1")
                && std::is_x86_feature_detected!("bmi2");
            can.then_some(Self(()))
        }
    }

    // In all of these, each load and store covers one `Oct` or `Keys`, or one half of a `Quad`, which is 32 bytes, aligned to as
    // many, behind a live reference.

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline(never)]
    unsafe fn apart<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load<T>(from: &T) -> __m256i {
        const { assert!(size_of::<T>() == 32) }
        // SAFETY: as said above.
        unsafe { _mm256_load_si256(std::ptr::from_ref(from).cast()) }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn store<T>(to: &mut T, vector: __m256i) {
        const { assert!(size_of::<T>() == 32) }
        // SAFETY: as said above.
        unsafe { _mm256_store_si256(std::ptr::from_mut(to).cast(), vector) }
    }

    /// A row of one.
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn use_tag_in_one(oct: &mut Oct, last: u64, tag: u32) -> bool {
        // SAFETY: the caller has seen to AVX2.
        unsafe {
            let (wanted, old) = (_mm256_set1_epi32(tag as i32), load(oct));
            let there = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(old, wanted))) as u32;
            let place = (there | last as u32).trailing_zeros() as usize;
            let moved = _mm256_permutevar8x32_epi32(old, load(&OCT_ORDERS[place & 7]));
            store(oct, _mm256_blend_epi32::<1>(moved, wanted));
            there != 0
        }
    }

    /// `N` is the length of the row, or 0 if it is not known beforehand.
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn use_tag_in<const N: usize>(row: &mut [Oct], last: u64, tag: u32) -> bool {
        let row = if N == 0 { row } else { &mut row[..N] };
        // SAFETY: the caller has seen to AVX2.
        unsafe {
            let wanted = _mm256_set1_epi32(tag as i32);
            let mut there = 0_u64;
            for (index, oct) in row.iter().enumerate() {
                let equal = _mm256_cmpeq_epi32(load(oct), wanted);
                there |= (_mm256_movemask_ps(_mm256_castsi256_ps(equal)) as u64) << (index * 8);
            }
            let end = _mm256_set1_epi32((there | last).trailing_zeros() as i32);
            let back_by_one = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6);
            let mut place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            // Its first lane comes into the first place of the next oct.
            let mut carry = wanted;
            for oct in row {
                let old = load(oct);
                let turned = _mm256_permutevar8x32_epi32(old, back_by_one);
                let moved = _mm256_blend_epi32::<1>(turned, carry);
                carry = turned;
                let stays = _mm256_cmpgt_epi32(place, end);
                store(oct, _mm256_blendv_epi8(moved, old, stays));
                place = _mm256_add_epi32(place, _mm256_set1_epi32(8));
            }
            there != 0
        }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn holds_tag(row: &[Oct], tag: u32) -> bool {
        // SAFETY: the caller has seen to AVX2.
        unsafe {
            let wanted = _mm256_set1_epi32(tag as i32);
            let mut there = _mm256_setzero_si256();
            for oct in row {
                there = _mm256_or_si256(there, _mm256_cmpeq_epi32(load(oct), wanted));
            }
            _mm256_movemask_epi8(there) != 0
        }
    }

    /// A bit for each of `keys` that is `wanted`.
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn places_of(keys: &[u64; 4], wanted: __m256i) -> u32 {
        // SAFETY: the caller has seen to AVX2.
        unsafe {
            let equal = _mm256_cmpeq_epi64(load(keys), wanted);
            _mm256_movemask_pd(_mm256_castsi256_pd(equal)) as u32
        }
    }

    /// The movement in the four that have the place.
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn push_to(four: &mut [u64; 4], place: usize, first: __m256i) {
        // SAFETY: the caller has seen to AVX2.
        unsafe {
            let moved = _mm256_permutevar8x32_epi32(load(four), load(&QUAD_ORDERS[place & 3]));
            store(four, _mm256_blend_epi32::<3>(moved, first));
        }
    }

    /// The movement in four before that. What comes to the front of the next ones, in the first lanes.
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn push_through(four: &mut [u64; 4], first: __m256i) -> __m256i {
        // SAFETY: the caller has seen to AVX2.
        unsafe {
            // Turned by one, so that the last comes first.
            let turned = _mm256_permute4x64_epi64::<0b10_01_00_11>(load(four));
            store(four, _mm256_blend_epi32::<3>(turned, first));
            turned
        }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn use_key(row: &mut [Keys], last: usize, key: u64) -> bool {
        // SAFETY: the caller has seen to AVX2.
        unsafe {
            let wanted = _mm256_set1_epi64x(key as i64);
            if let [four] = row {
                let there = places_of(&four.0, wanted);
                push_to(&mut four.0, (there | 1 << last).trailing_zeros() as usize, wanted);
                return there != 0;
            }
            let (mut end, mut there) = (0, 0);
            for (index, four) in row.iter().enumerate() {
                (end, there) = (index, places_of(&four.0, wanted));
                if there != 0 {
                    break;
                }
            }
            let place = if there != 0 { there.trailing_zeros() as usize } else { last };
            let Some((four, before)) = row.get_mut(..=end).and_then(<[Keys]>::split_last_mut) else { return false };
            let mut first = wanted;
            for four in before {
                first = push_through(&mut four.0, first);
            }
            push_to(&mut four.0, place, first);
            there != 0
        }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn place_where(row: &[Quad], key: u64, mask: u64, bit: u32) -> Option<usize> {
        // SAFETY: the caller has seen to AVX2.
        unsafe {
            let (wanted, mask) = (_mm256_set1_epi64x((key & mask) as i64), _mm256_set1_epi64x(mask as i64));
            // The bit comes to where the vector's sign is.
            let up = _mm_cvtsi32_si128(63 - (bit & 63) as i32);
            for (index, quad) in row.iter().enumerate() {
                let equal = _mm256_cmpeq_epi64(_mm256_and_si256(load(&quad.keys), mask), wanted);
                let has = _mm256_and_si256(equal, _mm256_sll_epi64(load(&quad.values), up));
                let there = _mm256_movemask_pd(_mm256_castsi256_pd(has)) as u32;
                if there != 0 {
                    return Some(index * 4 + there.trailing_zeros() as usize);
                }
            }
            None
        }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn find(row: &mut [Quad], key: u64) -> Option<u64> {
        // SAFETY: the caller has seen to AVX2.
        unsafe {
            let wanted = _mm256_set1_epi64x(key as i64);
            for at in 0..row.len() {
                let there = places_of(&row[at].keys, wanted);
                if there != 0 {
                    let place = there.trailing_zeros() as usize & 3;
                    let value = row[at].values[place];
                    if at + place > 0 {
                        put_in_front(&mut row[..=at], place, key, value);
                    }
                    return Some(value);
                }
            }
            None
        }
    }

    /// `row` ends with the quad that has the place, and `place` is the place in there.
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn put_in_front(row: &mut [Quad], place: usize, key: u64, value: u64) -> u64 {
        // SAFETY: the caller has seen to AVX2.
        unsafe {
            let (mut key, mut value) = (_mm256_set1_epi64x(key as i64), _mm256_set1_epi64x(value as i64));
            let Some((end, before)) = row.split_last_mut() else { return NO_KEY };
            for quad in before {
                (key, value) = (push_through(&mut quad.keys, key), push_through(&mut quad.values, value));
            }
            let gone = end.keys[place & 3];
            push_to(&mut end.keys, place, key);
            push_to(&mut end.values, place, value);
            gone
        }
    }

    /// The movement of one oct with masks: where lanes of `old` come from the lane before, and `carry` before the first.
    #[target_feature(enable = "avx512f,avx512vl")]
    #[inline]
    unsafe fn moved(old: __m256i, carry: __m256i, lanes: u64) -> __m256i {
        _mm256_mask_mov_epi32(old, lanes as u8, _mm256_alignr_epi32::<7>(old, carry))
    }

    /// As [`use_tag_in`], with a mask for each oct.
    #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl")]
    #[inline]
    unsafe fn use_tag_masked<const N: usize>(row: &mut [Oct], last: u64, tag: u32) -> bool {
        let row = if N == 0 { row } else { &mut row[..N] };
        // SAFETY: the caller has seen to AVX-512.
        unsafe {
            let wanted = _mm256_set1_epi32(tag as i32);
            let mut there = 0_u64;
            for (index, oct) in row.iter().enumerate() {
                there |= u64::from(_mm256_cmpeq_epi32_mask(load(oct), wanted)) << (index * 8);
            }
            // All lanes up to the place.
            let end = there | last;
            let lanes = end ^ (end - 1);
            let mut carry = wanted;
            for (index, oct) in row.iter_mut().enumerate() {
                let old = load(oct);
                store(oct, moved(old, carry, lanes >> (index * 8)));
                carry = old;
            }
            there != 0
        }
    }

    /// Tags with AVX-512's masks, the rest as [`Wide`]. Only [`Wider::detect`] makes one.
    #[derive(Clone, Copy, Debug)]
    pub struct Wider(Wide);

    impl Wider {
        /// One, if this processor can.
        pub(crate) fn detect() -> Option<Self> {
            let can = std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512vl");
            Wide::detect().filter(|_| can).map(Self)
        }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl")]
    #[inline(never)]
    unsafe fn apart_wider<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    // SAFETY of all that follows: a `Wider` exists, so the processor has what these functions need.
    impl Simd for Wider {
        #[inline(always)]
        fn apart<R>(self, work: impl FnOnce() -> R) -> R {
            // SAFETY: see above.
            unsafe { apart_wider(work) }
        }

        #[inline(always)]
        fn use_tag(self, row: &mut [Oct], last: u64, tag: u32) -> bool {
            // SAFETY: see above.
            unsafe {
                match row {
                    [_] => use_tag_masked::<1>(row, last, tag),
                    [_, _] => use_tag_masked::<2>(row, last, tag),
                    [_, _, _] => use_tag_masked::<3>(row, last, tag),
                    _ => use_tag_masked::<0>(row, last, tag),
                }
            }
        }

        #[inline(always)]
        fn holds_tag(self, row: &[Oct], tag: u32) -> bool {
            self.0.holds_tag(row, tag)
        }

        #[inline(always)]
        fn use_key(self, row: &mut [Keys], last: usize, key: u64) -> bool {
            self.0.use_key(row, last, key)
        }

        #[inline(always)]
        fn find(self, row: &mut [Quad], key: u64) -> Option<u64> {
            self.0.find(row, key)
        }

        #[inline(always)]
        fn place_where(self, row: &[Quad], key: u64, mask: u64, bit: u32) -> Option<usize> {
            self.0.place_where(row, key, mask, bit)
        }

        #[inline(always)]
        fn put_in_front(self, row: &mut [Quad], place: usize, key: u64, value: u64) -> u64 {
            self.0.put_in_front(row, place, key, value)
        }
    }

    // SAFETY of all that follows: a `Wide` exists, so the processor has what these functions need.
    impl Simd for Wide {
        #[inline(always)]
        fn apart<R>(self, work: impl FnOnce() -> R) -> R {
            // SAFETY: see above.
            unsafe { apart(work) }
        }

        #[inline(always)]
        fn use_tag(self, row: &mut [Oct], last: u64, tag: u32) -> bool {
            // SAFETY: see above.
            unsafe {
                // Rows of a known length become straight code.
                match row {
                    [oct] => use_tag_in_one(oct, last, tag),
                    [_, _] => use_tag_in::<2>(row, last, tag),
                    [_, _, _] => use_tag_in::<3>(row, last, tag),
                    _ => use_tag_in::<0>(row, last, tag),
                }
            }
        }

        #[inline(always)]
        fn holds_tag(self, row: &[Oct], tag: u32) -> bool {
            // SAFETY: see above.
            unsafe { holds_tag(row, tag) }
        }

        #[inline(always)]
        fn use_key(self, row: &mut [Keys], last: usize, key: u64) -> bool {
            // SAFETY: see above.
            unsafe { use_key(row, last, key) }
        }

        #[inline(always)]
        fn find(self, row: &mut [Quad], key: u64) -> Option<u64> {
            // SAFETY: see above.
            unsafe {
                // As in `use_tag`.
                match row {
                    [quad] => find(std::slice::from_mut(quad), key),
                    [_, _] => find(&mut row[..2], key),
                    _ => find(row, key),
                }
            }
        }

        #[inline(always)]
        fn place_where(self, row: &[Quad], key: u64, mask: u64, bit: u32) -> Option<usize> {
            // SAFETY: see above.
            unsafe { place_where(row, key, mask, bit) }
        }

        #[inline(always)]
        fn put_in_front(self, row: &mut [Quad], place: usize, key: u64, value: u64) -> u64 {
            // SAFETY: see above.
            unsafe {
                match row {
                    [quad] => put_in_front(std::slice::from_mut(quad), place, key, value),
                    [_, _] if place >= 4 => put_in_front(&mut row[..2], place - 4, key, value),
                    _ => put_in_front(&mut row[..=place / 4], place % 4, key, value),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As one would say it.
    fn use_said<T: PartialEq>(row: &mut Vec<T>, wanted: T) -> bool {
        let found = row.iter().position(|there| *there == wanted);
        row.remove(found.unwrap_or(row.len() - 1));
        row.insert(0, wanted);
        found.is_some()
    }

    fn check_tags<S: Simd>(simd: S, ways: usize, tags: &[(u32, bool)]) -> Result<(), TestCaseError> {
        let mut row = vec![Oct::EMPTY; Oct::count(ways)];
        let mut said = vec![EMPTY; ways];
        for &(tag, take) in tags {
            let held = simd.holds_tag(&row, tag);
            prop_assert_eq!(held, said.contains(&tag));
            if take && held {
                take_tag(&mut row, ways, tag);
                said.retain(|&there| there != tag);
                said.push(EMPTY);
            } else {
                prop_assert_eq!(simd.use_tag(&mut row, 1 << (ways - 1), tag), use_said(&mut said, tag));
            }
            let flat: Vec<u32> = row.iter().flat_map(|oct| oct.0).collect();
            prop_assert_eq!(&flat[..ways], &said[..]);
            prop_assert!(flat[ways..].iter().all(|&tag| tag == EMPTY), "{:?}", flat);
        }
        Ok(())
    }

    fn check_keys<S: Simd>(simd: S, ways: usize, keys: &[u64]) -> Result<(), TestCaseError> {
        let mut row = vec![Keys::EMPTY; Keys::count(ways)];
        let mut said = vec![NO_KEY; ways];
        for &key in keys {
            prop_assert_eq!(simd.use_key(&mut row, ways - 1, key), use_said(&mut said, key));
            let flat: Vec<u64> = row.iter().flat_map(|keys| keys.0).collect();
            prop_assert_eq!(&flat[..ways], &said[..]);
            prop_assert!(flat[ways..].iter().all(|&key| key == NO_KEY), "{:?}", flat);
        }
        Ok(())
    }

    fn check_pairs<S: Simd>(simd: S, ways: usize, pairs: &[(u64, usize)]) -> Result<(), TestCaseError> {
        let mut row = vec![Quad::EMPTY; Quad::count(ways)];
        let mut said = vec![(NO_KEY, 0); ways];
        for &(key, place) in pairs {
            let found = said.iter().position(|pair| pair.0 == key);
            prop_assert_eq!(Plain.place_of(&row, key), found);
            // Keys that are the same but for their lowest bit, with an odd value, that is of an even key.
            let even = said.iter().position(|pair| pair.0 != NO_KEY && pair.0 >> 1 == key >> 1 && pair.1 % 2 == 1);
            prop_assert_eq!(simd.place_where(&row, key, !1, 0), even);
            let place = found.unwrap_or(place % ways);
            let (gone, _) = said.remove(place);
            said.insert(0, (key, key + 1));
            if found.is_some() {
                prop_assert_eq!(simd.find(&mut row, key), Some(key + 1));
            } else {
                prop_assert_eq!(simd.find(&mut row, key), None);
                prop_assert_eq!(simd.put_in_front(&mut row, place, key, key + 1), gone);
            }
            let flat: Vec<_> = row.iter().flat_map(|quad| quad.keys.into_iter().zip(quad.values)).collect();
            prop_assert_eq!(&flat[..ways], &said[..]);
            prop_assert!(flat[ways..].iter().all(|&pair| pair == (NO_KEY, 0)), "{:?}", flat);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn both_ways_to_use_tags_do_as_said(
            ways in 1_usize..=64,
            tags in prop::collection::vec((0_u32..80, prop::bool::weighted(0.1)), 1..400),
        ) {
            check_tags(Plain, ways, &tags)?;
            #[cfg(target_arch = "x86_64")]
            if let Some(wide) = Wide::detect() {
                check_tags(wide, ways, &tags)?;
            }
            #[cfg(target_arch = "x86_64")]
            if let Some(wider) = Wider::detect() {
                check_tags(wider, ways, &tags)?;
            }
        }

        #[test]
        fn both_ways_to_use_keys_do_as_said(
            ways in 1_usize..=70,
            keys in prop::collection::vec(0_u64..90, 1..400),
        ) {
            check_keys(Plain, ways, &keys)?;
            #[cfg(target_arch = "x86_64")]
            if let Some(wide) = Wide::detect() {
                check_keys(wide, ways, &keys)?;
            }
        }

        #[test]
        fn both_ways_to_move_pairs_do_as_said(
            ways in 1_usize..=20,
            pairs in prop::collection::vec((0_u64..40, 0_usize..20), 1..400),
        ) {
            check_pairs(Plain, ways, &pairs)?;
            #[cfg(target_arch = "x86_64")]
            if let Some(wide) = Wide::detect() {
                check_pairs(wide, ways, &pairs)?;
            }
        }
    }
}
