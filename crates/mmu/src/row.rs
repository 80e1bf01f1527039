// SPDX-License-Identifier: MIT OR Apache-2.0
//! One set of a cache: tags in the order of their last use, and the one operation that they need.
//!
//! "Use this tag" looks it up, moves it to the front if it is there and pushes it in at the front if not. Both are the same
//! movement: everything before the place where the tag was (or before the last place) moves back by one. So there is no
//! branch on what was found, which the processor could only guess.

/// No tag.
pub(crate) const EMPTY: u32 = u32::MAX;

/// Tags that are handled at once.
pub(crate) type Quad = [u32; 4];

/// Quads that hold `ways` tags. The places beyond stay [`EMPTY`].
pub(crate) const fn quads(ways: usize) -> usize {
    ways.div_ceil(4)
}

/// Uses `tag` in `row`, which holds `ways` (1 to 64) tags. Whether it was there, and which tag stood last before.
#[inline(always)]
pub(crate) fn use_tag(row: &mut [Quad], ways: usize, tag: u32) -> (bool, u32) {
    // Rows of a known length become straight code.
    match row.len() {
        2 => use_tag_in(<&mut [Quad; 2]>::try_from(row).expect("two"), ways, tag),
        3 => use_tag_in(<&mut [Quad; 3]>::try_from(row).expect("three"), ways, tag),
        4 => use_tag_in(<&mut [Quad; 4]>::try_from(row).expect("four"), ways, tag),
        5 => use_tag_in(<&mut [Quad; 5]>::try_from(row).expect("five"), ways, tag),
        _ => use_tag_in(row, ways, tag),
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn use_tag_in<R: AsMut<[Quad]> + ?Sized>(row: &mut R, ways: usize, tag: u32) -> (bool, u32) {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi32, _mm_and_si128, _mm_andnot_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_cmpgt_epi32,
        _mm_cvtsi32_si128, _mm_loadu_si128, _mm_movemask_ps, _mm_or_si128, _mm_set_epi32, _mm_set1_epi32,
        _mm_slli_si128, _mm_srli_si128, _mm_storeu_si128,
    };
    let row = row.as_mut();
    let last = ways - 1;
    let evicted = row[last / 4][last % 4];
    // SAFETY: SSE2 is part of x86-64. Each load and store covers one quad, sixteen bytes behind a live reference, and
    // asks for no alignment.
    unsafe {
        let wanted = _mm_set1_epi32(tag as i32);
        let mut there = 0_u64;
        for (index, quad) in row.iter().enumerate() {
            let equal = _mm_cmpeq_epi32(_mm_loadu_si128(quad.as_ptr().cast::<__m128i>()), wanted);
            there |= (_mm_movemask_ps(_mm_castsi128_ps(equal)) as u64) << (index * 4);
        }
        let end = _mm_set1_epi32((there | 1 << last).trailing_zeros() as i32);
        let mut place = _mm_set_epi32(3, 2, 1, 0);
        let mut carry = _mm_cvtsi32_si128(tag as i32);
        for quad in row {
            let old = _mm_loadu_si128(quad.as_ptr().cast::<__m128i>());
            let moved = _mm_or_si128(_mm_slli_si128::<4>(old), carry);
            carry = _mm_srli_si128::<12>(old);
            let stays = _mm_cmpgt_epi32(place, end);
            let new = _mm_or_si128(_mm_and_si128(stays, old), _mm_andnot_si128(stays, moved));
            _mm_storeu_si128(quad.as_mut_ptr().cast::<__m128i>(), new);
            place = _mm_add_epi32(place, _mm_set1_epi32(4));
        }
        (there != 0, evicted)
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn use_tag_in<R: AsMut<[Quad]> + ?Sized>(row: &mut R, ways: usize, tag: u32) -> (bool, u32) {
    use_tag_slowly(row.as_mut(), ways, tag)
}

/// The same, one tag after the other.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn use_tag_slowly(row: &mut [Quad], ways: usize, tag: u32) -> (bool, u32) {
    let row = &mut row.as_flattened_mut()[..ways];
    let evicted = row[ways - 1];
    let found = row.iter().position(|&there| there == tag);
    row[..=found.unwrap_or(ways - 1)].rotate_right(1);
    row[0] = tag;
    (found.is_some(), evicted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn using_tags_at_once_and_one_by_one_is_the_same(
            ways in 1_usize..=64,
            tags in prop::collection::vec(0_u32..80, 1..400),
        ) {
            let mut fast = vec![[EMPTY; 4]; quads(ways)];
            let mut slow = fast.clone();
            for tag in tags {
                prop_assert_eq!(use_tag(&mut fast, ways, tag), use_tag_slowly(&mut slow, ways, tag));
                prop_assert_eq!(&fast, &slow);
            }
        }
    }
}
