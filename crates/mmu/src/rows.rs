// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of tags with AVX-512, for loops that do little else: [`levels`](crate::levels). A row is
//! the tags of a set, the most recently used first, as in [`simd`](crate::simd).
//!
//! Masked moves are in assembly: the compiler would make one masked store of such a move and the
//! store behind it, and the processor does not forward what that writes to the next load of the
//! row.

use std::arch::asm;
use std::arch::x86_64::{
    __m256i, __m512i, _mm256_load_si256, _mm256_set1_epi32, _mm256_store_si256, _mm512_alignr_epi8,
    _mm512_alignr_epi64, _mm512_cmpeq_epi16_mask, _mm512_load_si512, _mm512_set1_epi16, _mm512_store_si512,
};

use crate::simd::{LongTags, ShortTags, Tags};

/// What it takes to take a use of a row back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Undo {
    /// The tag that was last in the row.
    pub last: u32,
    /// Where the tag that was used came from.
    pub place: u8,
    pub missed: bool,
}

/// What a use of a row found.
pub(crate) struct Used {
    /// The tag that was last.
    pub next_to_go: u32,
    /// A bit for the place of the tag that was used; none if it was not there.
    pub there: u32,
}

/// A row whose tags are used and taken out. All functions: `row` points to a row that is there, of
/// which `last` is one of the places, and the processor has AVX-512.
pub(crate) trait Row {
    /// No tag.
    const NO_TAG: u32;

    /// Moves `tag` to the front, in place of the one at `last` if it is not there.
    unsafe fn use_tag(row: *mut Self, last: usize, tag: u64) -> Used;

    /// Takes `tag` out: those behind it move up. Whether it was there.
    unsafe fn take_tag(row: *mut Self, tag: u64) -> bool;

    /// The use that `undo` tells of never was.
    fn take_back(&mut self, undo: Undo);
}

/// The lanes in which both are the same. The compiler would make one comparison of two parts of a
/// row, and so one load of two stores, which the processor does not forward to it.
#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
#[inline]
fn equal_lanes(row: __m256i, wanted: __m256i) -> u8 {
    let lanes: u8;
    // SAFETY: changes nothing but a register that it is given.
    unsafe {
        asm!("vpcmpeqd {lanes}, {row}, {wanted}", lanes = out(kreg) lanes, row = in(ymm_reg) row,
            wanted = in(ymm_reg) wanted, options(pure, nomem, nostack, preserves_flags));
    }
    lanes
}

#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
#[inline]
unsafe fn use_long<const N: usize>(row: *mut [LongTags; N], last: usize, tag: u32) -> Used {
    debug_assert!(last < N * LongTags::COUNT);
    // SAFETY: see `Row`. A row is `N` times 32 bytes, aligned to as many.
    unsafe {
        let next_to_go = row.cast::<u32>().add(last).read();
        let row = row.cast::<__m256i>();
        let wanted = _mm256_set1_epi32(tag.cast_signed());
        let mut there = 0;
        for part in 0..N {
            there |= u32::from(equal_lanes(_mm256_load_si256(row.add(part)), wanted)) << (8 * part);
        }
        // All lanes up to the place of the tag; all up to the last place if it is not there.
        let end = there | 1 << last;
        let lanes = end ^ end.wrapping_sub(1);
        // The last lane of it comes into the first one of the part.
        let mut before = wanted;
        for part in 0..N {
            let old = _mm256_load_si256(row.add(part));
            let mut after = old;
            // A whole store, see above.
            asm!("valignd {row}{{{lanes}}}, {row}, {before}, 7", row = inout(ymm_reg) after,
                before = in(ymm_reg) before, lanes = in(kreg) (lanes >> (8 * part)) as u8,
                options(pure, nomem, nostack, preserves_flags));
            _mm256_store_si256(row.add(part), after);
            before = old;
        }
        Used { next_to_go, there }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
#[inline]
unsafe fn take_long<const N: usize>(row: *mut [LongTags; N], tag: u32) -> bool {
    let row = row.cast::<__m256i>();
    // SAFETY: as in `use_long`.
    unsafe {
        let wanted = _mm256_set1_epi32(tag.cast_signed());
        let mut there = 0;
        for part in 0..N {
            there |= u32::from(equal_lanes(_mm256_load_si256(row.add(part)), wanted)) << (8 * part);
        }
        // The lanes before its place stay; all of them if it is not there.
        let lanes = !there.wrapping_sub(1);
        for part in 0..N {
            let old = _mm256_load_si256(row.add(part));
            let none = _mm256_set1_epi32(LongTags::NONE.cast_signed());
            let behind = if part + 1 < N { _mm256_load_si256(row.add(part + 1)) } else { none };
            let mut after = old;
            // A whole store, see above.
            asm!("valignd {row}{{{lanes}}}, {behind}, {row}, 1", row = inout(ymm_reg) after,
                behind = in(ymm_reg) behind, lanes = in(kreg) (lanes >> (8 * part)) as u8,
                options(pure, nomem, nostack, preserves_flags));
            _mm256_store_si256(row.add(part), after);
        }
        there != 0
    }
}

impl<const N: usize> Row for [LongTags; N] {
    const NO_TAG: u32 = LongTags::NONE;

    #[inline(always)]
    unsafe fn use_tag(row: *mut Self, last: usize, tag: u64) -> Used {
        // SAFETY: see `Row`.
        unsafe { use_long(row, last, tag as u32) }
    }

    #[inline(always)]
    unsafe fn take_tag(row: *mut Self, tag: u64) -> bool {
        // SAFETY: see `Row`.
        unsafe { take_long(row, tag as u32) }
    }

    fn take_back(&mut self, undo: Undo) {
        let place = usize::from(undo.place);
        let tag = self[0].0[0];
        for at in 0..place {
            self[at / 8].0[at % 8] = self[(at + 1) / 8].0[(at + 1) % 8];
        }
        self[place / 8].0[place % 8] = if undo.missed { undo.last } else { tag };
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
#[inline]
unsafe fn use_short(row: *mut ShortTags, last: usize, tag: u16) -> Used {
    debug_assert!(last < ShortTags::COUNT);
    // SAFETY: see `Row`. A row is 64 bytes, aligned to as many.
    unsafe {
        let next_to_go = row.cast::<u16>().add(last).read();
        let row = row.cast::<__m512i>();
        let wanted = _mm512_set1_epi16(tag.cast_signed());
        let old = _mm512_load_si512(row);
        let there = _mm512_cmpeq_epi16_mask(old, wanted);
        let end = there | 1 << last;
        let lanes = end ^ end.wrapping_sub(1);
        // What comes before each quarter: the last quarter of `wanted`, and three of `old`.
        let quarters = _mm512_alignr_epi64::<6>(old, wanted);
        let moved = _mm512_alignr_epi8::<14>(old, quarters);
        let mut after = old;
        // A whole store, see above.
        asm!("vmovdqu16 {row}{{{lanes}}}, {moved}", row = inout(zmm_reg) after, moved = in(zmm_reg) moved,
            lanes = in(kreg) lanes, options(pure, nomem, nostack, preserves_flags));
        _mm512_store_si512(row, after);
        Used { next_to_go: next_to_go.into(), there }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
#[inline]
unsafe fn take_short(row: *mut ShortTags, tag: u16) -> bool {
    let row = row.cast::<__m512i>();
    // SAFETY: as in `use_short`.
    unsafe {
        let old = _mm512_load_si512(row);
        let there = _mm512_cmpeq_epi16_mask(old, _mm512_set1_epi16(tag.cast_signed()));
        // The lanes before its place stay; all of them if it is not there.
        let lanes = !there.wrapping_sub(1);
        // What comes behind each quarter.
        let none = _mm512_set1_epi16(ShortTags::NONE.cast_signed());
        let quarters = _mm512_alignr_epi64::<2>(none, old);
        let moved = _mm512_alignr_epi8::<2>(quarters, old);
        let mut after = old;
        asm!("vmovdqu16 {row}{{{lanes}}}, {moved}", row = inout(zmm_reg) after, moved = in(zmm_reg) moved,
            lanes = in(kreg) lanes, options(pure, nomem, nostack, preserves_flags));
        _mm512_store_si512(row, after);
        there != 0
    }
}

impl Row for ShortTags {
    const NO_TAG: u32 = Self::NONE as u32;

    #[inline(always)]
    unsafe fn use_tag(row: *mut Self, last: usize, tag: u64) -> Used {
        // SAFETY: see `Row`.
        unsafe { use_short(row, last, tag as u16) }
    }

    #[inline(always)]
    unsafe fn take_tag(row: *mut Self, tag: u64) -> bool {
        // SAFETY: see `Row`.
        unsafe { take_short(row, tag as u16) }
    }

    fn take_back(&mut self, undo: Undo) {
        let (tag, place) = (self.0[0], usize::from(undo.place));
        self.0.copy_within(1..=place, 0);
        self.0[place] = if undo.missed { undo.last as u16 } else { tag };
    }
}
