// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows as vectors of AVX2.

use std::arch::x86_64::{
    __m256i, _mm_alignr_epi8, _mm_and_si128, _mm_andnot_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_cvtsi32_si128,
    _mm_load_si128, _mm_movemask_ps, _mm_or_si128, _mm_set1_epi32, _mm_slli_si128, _mm_store_si128, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_alignr_epi8, _mm256_and_si256, _mm256_blend_epi32, _mm256_blendv_epi8,
    _mm256_castsi256_pd, _mm256_castsi256_ps, _mm256_cmpeq_epi16, _mm256_cmpeq_epi32, _mm256_cmpeq_epi64,
    _mm256_cmpgt_epi16, _mm256_cmpgt_epi32, _mm256_load_si256, _mm256_movemask_epi8, _mm256_movemask_pd,
    _mm256_movemask_ps, _mm256_or_si256, _mm256_packs_epi16, _mm256_permute2x128_si256, _mm256_permute4x64_epi64,
    _mm256_permutevar8x32_epi32, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setr_epi16,
    _mm256_setr_epi32, _mm256_setzero_si256, _mm256_sll_epi64, _mm256_store_si256,
};

use super::{Keys, LongTags, NO_KEY, Pairs, ShortKeys, ShortTags, Simd, Tags};

/// Eight tags or four keys at once, with AVX2. Only [`Avx2::detect`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// For a place in a vector of eight: where each lane comes from when everything before the place
/// moves back by one.
static LONG_TAG_ORDERS: [LongTags; 8] = orders(1);
/// The same in a vector of four pairs of lanes.
static PAIR_ORDERS: [LongTags; 4] = orders(2);

const fn orders<const N: usize>(lanes_of_one: usize) -> [LongTags; N] {
    let mut orders = [LongTags::EMPTY; N];
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

impl Avx2 {
    /// One, if this processor can.
    pub(crate) fn detect() -> Option<Self> {
        let can = std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("bmi1");
        can.then_some(Self(()))
    }
}

// BMI2 is left out on purpose. With it LLVM takes long masks as BZHI, whose count it puts into the
// lowest byte of a register; that waits for the register's other bytes, in a loop for those of the
// iteration before (docs/performance.md, "Faster without BMI2").

// In all of these, each load and store covers one `LongTags` or `Keys`, or one half of a `Pairs`,
// which is 32 bytes, aligned to as many, behind a live reference.

#[target_feature(enable = "avx2,bmi1")]
#[inline(never)]
unsafe fn apart<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[target_feature(enable = "avx2")]
#[inline]
unsafe fn load<T>(from: &T) -> __m256i {
    const { assert!(size_of::<T>() == 32) }
    // SAFETY: as stated above.
    unsafe { _mm256_load_si256(std::ptr::from_ref(from).cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
unsafe fn store<T>(to: &mut T, vector: __m256i) {
    const { assert!(size_of::<T>() == 32) }
    // SAFETY: as stated above.
    unsafe { _mm256_store_si256(std::ptr::from_mut(to).cast(), vector) }
}

/// A row of one.
#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn use_tag_in_one(tags: &mut LongTags, last: u64, tag: u32) -> u64 {
    // SAFETY: the caller has seen to AVX2.
    unsafe {
        let (wanted, old) = (_mm256_set1_epi32(tag as i32), load(tags));
        let there = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(old, wanted))) as u32;
        let place = (there | last as u32).trailing_zeros() as usize;
        let moved = _mm256_permutevar8x32_epi32(old, load(&LONG_TAG_ORDERS[place & 7]));
        store(tags, _mm256_blend_epi32::<1>(moved, wanted));
        u64::from(there)
    }
}

/// A bit for each of the tags that is `wanted`.
#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn long_places(tags: &LongTags, wanted: __m256i) -> u32 {
    // SAFETY: the caller has seen to AVX2.
    unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(load(tags), wanted))) as u32 }
}

/// The same of a row. No function: it would be called in places.
macro_rules! places_in {
    ($row:expr, $wanted:expr, $places:ident, $count:expr) => {{
        let mut there = 0_u64;
        for (index, tags) in $row.iter().enumerate() {
            there |= u64::from($places(tags, $wanted)) << (index * $count);
        }
        there
    }};
}

/// `N` is the length of the row, or 0 if it is not known beforehand.
#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn use_tag_in<const N: usize>(row: &mut [LongTags], last: u64, tag: u32) -> u64 {
    let row = if N == 0 { row } else { &mut row[..N] };
    // SAFETY: the caller has seen to AVX2.
    unsafe {
        let wanted = _mm256_set1_epi32(tag as i32);
        let there = places_in!(row, wanted, long_places, LongTags::COUNT);
        let end = _mm256_set1_epi32((there | last).trailing_zeros() as i32);
        let back_by_one = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6);
        let mut place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        // Its first lane comes into the first place of the next vector.
        let mut carry = wanted;
        for tags in row {
            let old = load(tags);
            let turned = _mm256_permutevar8x32_epi32(old, back_by_one);
            let moved = _mm256_blend_epi32::<1>(turned, carry);
            carry = turned;
            let stays = _mm256_cmpgt_epi32(place, end);
            store(tags, _mm256_blendv_epi8(moved, old, stays));
            place = _mm256_add_epi32(place, _mm256_set1_epi32(8));
        }
        there
    }
}

/// `N` as in [`use_tag_in`]. No branch on a hit.
#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn take_tag<const N: usize>(row: &mut [LongTags], tag: u32) -> bool {
    let row = if N == 0 { row } else { &mut row[..N] };
    // SAFETY: the caller has seen to AVX2.
    unsafe {
        let wanted = _mm256_set1_epi32(tag as i32);
        let there = places_in!(row, wanted, long_places, LongTags::COUNT);
        // One beyond all places if it is not there.
        let from = _mm256_set1_epi32(there.trailing_zeros() as i32);
        let up_by_one = _mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 0);
        let mut place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        for index in 0..row.len() {
            let old = load(&row[index]);
            // Its first lane comes into the last place.
            let behind = row.get(index + 1).map_or(_mm256_set1_epi32(-1), |tags| load(tags));
            let moved = _mm256_permutevar8x32_epi32(_mm256_blend_epi32::<1>(old, behind), up_by_one);
            let stays = _mm256_cmpgt_epi32(from, place);
            store(&mut row[index], _mm256_blendv_epi8(moved, old, stays));
            place = _mm256_add_epi32(place, _mm256_set1_epi32(8));
        }
        there != 0
    }
}

#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn holds_tag(row: &[LongTags], tag: u32) -> bool {
    // SAFETY: the caller has seen to AVX2.
    unsafe {
        let wanted = _mm256_set1_epi32(tag as i32);
        let mut there = _mm256_setzero_si256();
        for tags in row {
            there = _mm256_or_si256(there, _mm256_cmpeq_epi32(load(tags), wanted));
        }
        _mm256_movemask_epi8(there) != 0
    }
}

/// The halves of short tags.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn halves(shorts: &ShortTags) -> (__m256i, __m256i) {
    // SAFETY: each is 32 bytes of 64, which are aligned to as many.
    unsafe {
        let start = std::ptr::from_ref(shorts).cast::<__m256i>();
        (_mm256_load_si256(start), _mm256_load_si256(start.add(1)))
    }
}

/// A bit for each of the short tags that is `wanted`.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn short_places(shorts: &ShortTags, wanted: __m256i) -> u32 {
    // SAFETY: the caller has seen to AVX2.
    unsafe {
        let (low, high) = halves(shorts);
        // Packed, each quarter of the one is beside a quarter of the other.
        let equal = _mm256_packs_epi16(_mm256_cmpeq_epi16(low, wanted), _mm256_cmpeq_epi16(high, wanted));
        _mm256_movemask_epi8(_mm256_permute4x64_epi64::<0b11_01_10_00>(equal)) as u32
    }
}

/// `half` moved back by one place; the last one of `before` comes to the front.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn shorts_moved(half: __m256i, before: __m256i) -> __m256i {
    // The lane before each quarter: the last quarter of `before`, and the first of `half`.
    let quarters = _mm256_permute2x128_si256::<0x21>(before, half);
    _mm256_alignr_epi8::<14>(half, quarters)
}

#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn use_short(row: &mut [ShortTags], last: u64, tag: u16) -> u64 {
    // SAFETY: the caller has seen to AVX2; the stores are to where `halves` loads from.
    unsafe {
        let wanted = _mm256_set1_epi16(tag.cast_signed());
        let there = places_in!(row, wanted, short_places, ShortTags::COUNT);
        let end = _mm256_set1_epi16((there | last).trailing_zeros() as i16);
        let mut place = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let mut before = wanted;
        for shorts in row {
            let (low, high) = halves(shorts);
            let start = std::ptr::from_mut(shorts).cast::<__m256i>();
            for (index, half, moved) in [(0, low, shorts_moved(low, before)), (1, high, shorts_moved(high, low))] {
                let stays = _mm256_cmpgt_epi16(place, end);
                _mm256_store_si256(start.add(index), _mm256_blendv_epi8(moved, half, stays));
                place = _mm256_add_epi16(place, _mm256_set1_epi16(16));
            }
            before = high;
        }
        there
    }
}

/// `half` moved up by one place; the first one of `behind` comes to the end.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn shorts_moved_up(half: __m256i, behind: __m256i) -> __m256i {
    // The lane behind each quarter: the last quarter of `half`, and the first of `behind`.
    let quarters = _mm256_permute2x128_si256::<0x21>(half, behind);
    _mm256_alignr_epi8::<2>(quarters, half)
}

/// As [`take_tag`].
#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn take_short(row: &mut [ShortTags], tag: u16) -> bool {
    // SAFETY: the caller has seen to AVX2; the stores are to where `halves` loads from.
    unsafe {
        let wanted = _mm256_set1_epi16(tag.cast_signed());
        let there = places_in!(row, wanted, short_places, ShortTags::COUNT);
        let from = _mm256_set1_epi16(there.trailing_zeros() as i16);
        let mut place = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for index in 0..row.len() {
            let (low, high) = halves(&row[index]);
            let behind = row.get(index + 1).map_or(_mm256_set1_epi16(-1), |shorts| halves(shorts).0);
            let start = std::ptr::from_mut(&mut row[index]).cast::<__m256i>();
            for (part, half, moved) in [(0, low, shorts_moved_up(low, high)), (1, high, shorts_moved_up(high, behind))]
            {
                let stays = _mm256_cmpgt_epi16(from, place);
                _mm256_store_si256(start.add(part), _mm256_blendv_epi8(moved, half, stays));
                place = _mm256_add_epi16(place, _mm256_set1_epi16(16));
            }
        }
        there != 0
    }
}

#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn holds_short(row: &[ShortTags], tag: u16) -> bool {
    // SAFETY: the caller has seen to AVX2.
    unsafe {
        let wanted = _mm256_set1_epi16(tag.cast_signed());
        row.iter().fold(0, |any, shorts| any | short_places(shorts, wanted)) != 0
    }
}

/// A bit for each of `keys` that is `wanted`.
#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn places_of(keys: &[u64; 4], wanted: __m256i) -> u32 {
    // SAFETY: the caller has seen to AVX2.
    unsafe {
        let equal = _mm256_cmpeq_epi64(load(keys), wanted);
        _mm256_movemask_pd(_mm256_castsi256_pd(equal)) as u32
    }
}

/// The movement in the four that have the place.
#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn push_to(four: &mut [u64; 4], place: usize, first: __m256i) {
    // SAFETY: the caller has seen to AVX2.
    unsafe {
        let moved = _mm256_permutevar8x32_epi32(load(four), load(&PAIR_ORDERS[place & 3]));
        store(four, _mm256_blend_epi32::<3>(moved, first));
    }
}

/// The movement in four before that. What comes to the front of the next ones, in the first lanes.
#[target_feature(enable = "avx2,bmi1")]
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

#[target_feature(enable = "avx2,bmi1")]
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

#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn place_where(row: &[Pairs], key: u64, mask: u64, bit: u32) -> Option<usize> {
    // SAFETY: the caller has seen to AVX2.
    unsafe {
        let (wanted, mask) = (_mm256_set1_epi64x((key & mask) as i64), _mm256_set1_epi64x(mask as i64));
        // The bit comes to where the vector's sign is.
        let up = _mm_cvtsi32_si128(63 - (bit & 63) as i32);
        for (index, pairs) in row.iter().enumerate() {
            let equal = _mm256_cmpeq_epi64(_mm256_and_si256(load(&pairs.keys), mask), wanted);
            let has = _mm256_and_si256(equal, _mm256_sll_epi64(load(&pairs.values), up));
            let there = _mm256_movemask_pd(_mm256_castsi256_pd(has)) as u32;
            if there != 0 {
                return Some(index * 4 + there.trailing_zeros() as usize);
            }
        }
        None
    }
}

#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn find(row: &mut [Pairs], key: u64) -> Option<u64> {
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

/// `row` ends with the pairs that has the place, and `place` is the place in there.
#[target_feature(enable = "avx2,bmi1")]
#[inline]
unsafe fn put_in_front(row: &mut [Pairs], place: usize, key: u64, value: u64) -> u64 {
    // SAFETY: the caller has seen to AVX2.
    unsafe {
        let (mut key, mut value) = (_mm256_set1_epi64x(key as i64), _mm256_set1_epi64x(value as i64));
        let Some((end, before)) = row.split_last_mut() else { return NO_KEY };
        for pairs in before {
            (key, value) = (push_through(&mut pairs.keys, key), push_through(&mut pairs.values, value));
        }
        let gone = end.keys[place & 3];
        push_to(&mut end.keys, place, key);
        push_to(&mut end.values, place, value);
        gone
    }
}

/// For a last place, or 4 where nothing is to move: all ones in what stays in any case.
static KEPT: [ShortKeys; 5] = [
    ShortKeys([0, u32::MAX, u32::MAX, u32::MAX]),
    ShortKeys([0, 0, u32::MAX, u32::MAX]),
    ShortKeys([0, 0, 0, u32::MAX]),
    ShortKeys([0; 4]),
    ShortKeys([u32::MAX; 4]),
];

/// The carry stays in a vector register from one row to the next: look-ups of the same row form a
/// long dependency chain.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn use_short_key(row: &mut ShortKeys, last: usize, key: u32, allowed: bool) -> bool {
    // SAFETY: the caller has seen to AVX2; a `ShortKeys` is 16 bytes, aligned to as many.
    unsafe {
        let load = |from: &ShortKeys| _mm_load_si128(std::ptr::from_ref(from).cast());
        let (wanted, old) = (_mm_set1_epi32(key as i32), load(row));
        let equal = _mm_cmpeq_epi32(old, wanted);
        let near = _mm_or_si128(_mm_slli_si128::<4>(equal), _mm_slli_si128::<8>(equal));
        let kept = _mm_or_si128(_mm_slli_si128::<12>(equal), load(&KEPT[if allowed { last & 3 } else { 4 }]));
        let stays = _mm_or_si128(near, kept);
        let moved = _mm_alignr_epi8::<12>(old, wanted);
        let new = _mm_or_si128(_mm_and_si128(stays, old), _mm_andnot_si128(stays, moved));
        _mm_store_si128(std::ptr::from_mut(row).cast(), new);
        _mm_movemask_ps(_mm_castsi128_ps(equal)) != 0
    }
}

// SAFETY of all that follows: a `Avx2` exists, so the processor has what these functions need.
impl Simd for Avx2 {
    const VECTORS: bool = true;

    #[inline(always)]
    fn apart<R>(self, work: impl FnOnce() -> R) -> R {
        // SAFETY: see above.
        unsafe { apart(work) }
    }

    #[inline(always)]
    fn use_tag(self, row: &mut [LongTags], last: u64, tag: u32) -> u64 {
        // SAFETY: see above.
        unsafe {
            // Rows of a known length become straight code.
            match row {
                [tags] => use_tag_in_one(tags, last, tag),
                [_, _] => use_tag_in::<2>(row, last, tag),
                [_, _, _] => use_tag_in::<3>(row, last, tag),
                _ => use_tag_in::<0>(row, last, tag),
            }
        }
    }

    #[inline(always)]
    fn holds_tag(self, row: &[LongTags], tag: u32) -> bool {
        // SAFETY: see above.
        unsafe { holds_tag(row, tag) }
    }

    #[inline(always)]
    fn take_tag(self, row: &mut [LongTags], tag: u32) -> bool {
        // SAFETY: see above.
        unsafe {
            // As in `use_tag`.
            match row {
                [_] => take_tag::<1>(row, tag),
                [_, _] => take_tag::<2>(row, tag),
                [_, _, _] => take_tag::<3>(row, tag),
                _ => take_tag::<0>(row, tag),
            }
        }
    }

    #[inline(always)]
    fn use_short(self, row: &mut [ShortTags], last: u64, tag: u16) -> u64 {
        // SAFETY: see above.
        unsafe {
            match row {
                [shorts] => use_short(std::slice::from_mut(shorts), last, tag),
                _ => use_short(row, last, tag),
            }
        }
    }

    #[inline(always)]
    fn holds_short(self, row: &[ShortTags], tag: u16) -> bool {
        // SAFETY: see above.
        unsafe { holds_short(row, tag) }
    }

    #[inline(always)]
    fn take_short(self, row: &mut [ShortTags], tag: u16) -> bool {
        // SAFETY: see above.
        unsafe {
            match row {
                [shorts] => take_short(std::slice::from_mut(shorts), tag),
                _ => take_short(row, tag),
            }
        }
    }

    #[inline(always)]
    fn use_key(self, row: &mut [Keys], last: usize, key: u64) -> bool {
        // SAFETY: see above.
        unsafe { use_key(row, last, key) }
    }

    #[inline(always)]
    fn use_short_key_if(self, row: &mut ShortKeys, last: usize, key: u32, allowed: bool) -> bool {
        // SAFETY: see above.
        unsafe { use_short_key(row, last, key, allowed) }
    }

    #[inline(always)]
    fn find(self, row: &mut [Pairs], key: u64) -> Option<u64> {
        // SAFETY: see above.
        unsafe {
            // As in `use_tag`.
            match row {
                [pairs] => find(std::slice::from_mut(pairs), key),
                [_, _] => find(&mut row[..2], key),
                _ => find(row, key),
            }
        }
    }

    #[inline(always)]
    fn place_where(self, row: &[Pairs], key: u64, mask: u64, bit: u32) -> Option<usize> {
        // SAFETY: see above.
        unsafe { place_where(row, key, mask, bit) }
    }

    #[inline(always)]
    fn put_in_front(self, row: &mut [Pairs], place: usize, key: u64, value: u64) -> u64 {
        // SAFETY: see above.
        unsafe {
            match row {
                [pairs] => put_in_front(std::slice::from_mut(pairs), place, key, value),
                [_, _] if place >= 4 => put_in_front(&mut row[..2], place - 4, key, value),
                _ => put_in_front(&mut row[..=place / 4], place % 4, key, value),
            }
        }
    }
}
