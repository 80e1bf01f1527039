// SPDX-License-Identifier: MIT OR Apache-2.0
//! One set of a cache: tags in the order of their last use, and the few operations that they need.
//!
//! "Use this tag" looks it up, moves it to the front if it is there and pushes it in at the front if not. Both are the
//! same movement: everything before the place where the tag was (or before the last place) moves back by one. So eight
//! tags at a time are compared, moved and stored without a branch on what was found, which the processor could only
//! guess.
//!
//! [`Wide`] does that on processors with AVX2, [`Plain`] anywhere; their results are the same.

/// No tag.
pub(crate) const EMPTY: u32 = u32::MAX;

/// Tags that are handled at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(32))]
pub(crate) struct Oct(pub [u32; 8]);

impl Oct {
    pub const EMPTY: Self = Self([EMPTY; 8]);

    /// Octs that hold `ways` tags. The places beyond stay [`EMPTY`].
    pub const fn count(ways: usize) -> usize {
        ways.div_ceil(8)
    }
}

/// A way to do it.
pub(crate) trait RowOps {
    /// Uses `tag` in `row`, which holds `ways` (1 to 64) tags. Whether it was there.
    ///
    /// # Safety
    /// The processor has what the implementation needs.
    unsafe fn use_tag(row: &mut [Oct], ways: usize, tag: u32) -> bool;

    /// Whether `tag` is in `row`. Changes nothing.
    ///
    /// # Safety
    /// As for `use_tag`.
    unsafe fn holds_tag(row: &[Oct], tag: u32) -> bool;
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

/// One tag after the other.
pub(crate) struct Plain;

impl RowOps for Plain {
    #[inline(always)]
    unsafe fn use_tag(row: &mut [Oct], ways: usize, tag: u32) -> bool {
        let mut carry = tag;
        let mut left = ways;
        for oct in row {
            for there in oct.0.iter_mut().take(left) {
                let before = std::mem::replace(there, carry);
                if before == tag {
                    return true;
                }
                carry = before;
            }
            left = left.saturating_sub(8);
        }
        false
    }

    #[inline(always)]
    unsafe fn holds_tag(row: &[Oct], tag: u32) -> bool {
        row.iter().any(|oct| oct.0.contains(&tag))
    }
}

/// Eight tags at once, with AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Wide;

#[cfg(target_arch = "x86_64")]
impl Wide {
    /// Whether this processor can.
    pub fn is_available() -> bool {
        std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("bmi1")
            && std::is_x86_feature_detected!("bmi2")
    }

    /// `N` is the length of the row, or 0 if it is not known beforehand.
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn use_tag_in<const N: usize>(row: &mut [Oct], ways: usize, tag: u32) -> bool {
        use std::arch::x86_64::{
            __m256i, _mm256_add_epi32, _mm256_blend_epi32, _mm256_blendv_epi8, _mm256_castsi256_ps, _mm256_cmpeq_epi32,
            _mm256_cmpgt_epi32, _mm256_load_si256, _mm256_movemask_ps, _mm256_permutevar8x32_epi32, _mm256_set1_epi32,
            _mm256_setr_epi32, _mm256_store_si256,
        };
        let row = if N == 0 { row } else { &mut row[..N] };
        let last = ways - 1;
        // SAFETY: the caller has seen to AVX2. Each load and store covers one `Oct`, which is 32 bytes, aligned to as many,
        // behind a live reference.
        unsafe {
            let wanted = _mm256_set1_epi32(tag as i32);
            let mut there = 0_u64;
            for (index, oct) in row.iter().enumerate() {
                let equal = _mm256_cmpeq_epi32(_mm256_load_si256(oct.0.as_ptr().cast::<__m256i>()), wanted);
                there |= (_mm256_movemask_ps(_mm256_castsi256_ps(equal)) as u64) << (index * 8);
            }
            let end = _mm256_set1_epi32((there | 1 << last).trailing_zeros() as i32);
            let back_by_one = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6);
            let mut place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            // Its first lane comes into the first place of the next oct.
            let mut carry = wanted;
            for oct in row {
                let old = _mm256_load_si256(oct.0.as_ptr().cast::<__m256i>());
                let turned = _mm256_permutevar8x32_epi32(old, back_by_one);
                let moved = _mm256_blend_epi32::<1>(turned, carry);
                carry = turned;
                let stays = _mm256_cmpgt_epi32(place, end);
                _mm256_store_si256(oct.0.as_mut_ptr().cast::<__m256i>(), _mm256_blendv_epi8(moved, old, stays));
                place = _mm256_add_epi32(place, _mm256_set1_epi32(8));
            }
            there != 0
        }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    unsafe fn holds_tag_in(row: &[Oct], tag: u32) -> bool {
        use std::arch::x86_64::{
            __m256i, _mm256_cmpeq_epi32, _mm256_load_si256, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi32,
            _mm256_setzero_si256,
        };
        // SAFETY: as in `use_tag_in`.
        unsafe {
            let wanted = _mm256_set1_epi32(tag as i32);
            let mut there = _mm256_setzero_si256();
            for oct in row {
                let old = _mm256_load_si256(oct.0.as_ptr().cast::<__m256i>());
                there = _mm256_or_si256(there, _mm256_cmpeq_epi32(old, wanted));
            }
            _mm256_movemask_epi8(there) != 0
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl RowOps for Wide {
    #[inline(always)]
    unsafe fn use_tag(row: &mut [Oct], ways: usize, tag: u32) -> bool {
        // SAFETY: the caller has seen to AVX2.
        unsafe {
            // Rows of a known length become straight code.
            match row.len() {
                1 => Self::use_tag_in::<1>(row, ways, tag),
                2 => Self::use_tag_in::<2>(row, ways, tag),
                3 => Self::use_tag_in::<3>(row, ways, tag),
                _ => Self::use_tag_in::<0>(row, ways, tag),
            }
        }
    }

    #[inline(always)]
    unsafe fn holds_tag(row: &[Oct], tag: u32) -> bool {
        // SAFETY: the caller has seen to AVX2.
        unsafe { Self::holds_tag_in(row, tag) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As one would say it.
    fn use_tag_said(row: &mut Vec<u32>, tag: u32) -> bool {
        let found = row.iter().position(|&there| there == tag);
        row.remove(found.unwrap_or(row.len() - 1));
        row.insert(0, tag);
        found.is_some()
    }

    fn check<R: RowOps>(ways: usize, tags: &[(u32, bool)]) -> Result<(), TestCaseError> {
        let mut row = vec![Oct::EMPTY; Oct::count(ways)];
        let mut said = vec![EMPTY; ways];
        for &(tag, take) in tags {
            // SAFETY: the tests below ask for `Wide` only where it is available.
            let held = unsafe { R::holds_tag(&row, tag) };
            prop_assert_eq!(held, said.contains(&tag));
            if take && held {
                take_tag(&mut row, ways, tag);
                said.retain(|&there| there != tag);
                said.push(EMPTY);
            } else {
                // SAFETY: as above.
                let hit = unsafe { R::use_tag(&mut row, ways, tag) };
                prop_assert_eq!(hit, use_tag_said(&mut said, tag));
            }
            let flat: Vec<u32> = row.iter().flat_map(|oct| oct.0).collect();
            prop_assert_eq!(&flat[..ways], &said[..]);
            prop_assert!(flat[ways..].iter().all(|&tag| tag == EMPTY), "{:?}", flat);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn both_ways_to_use_tags_do_as_said(
            ways in 1_usize..=64,
            tags in prop::collection::vec((0_u32..80, prop::bool::weighted(0.1)), 1..400),
        ) {
            check::<Plain>(ways, &tags)?;
            #[cfg(target_arch = "x86_64")]
            if Wide::is_available() {
                check::<Wide>(ways, &tags)?;
            }
        }
    }
}
