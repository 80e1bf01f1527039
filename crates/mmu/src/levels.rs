// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole tape through the caches level by level: the L1-D serves all references, then the L2 what
//! the L1-D missed, then the last level what the L2 missed. Each level is one small loop without
//! unpredictable branches.
//!
//! What a level does depends only on the references that reach it, so for a last level that feeds
//! nothing back this is the same as one reference after the other. An inclusive last level takes
//! the lines that it evicts out of the private caches. That changes nothing unless such a line is
//! in the core when it goes, and it can only be there in two cases:
//! - It was there before the tape began. The rows are copied first, and each evicted line is looked
//!   up in the copies.
//! - It came in meanwhile. Then it was the latest of its last-level set at that time, so that set
//!   was used at least as often as it has ways before the line could go. The uses of each set are
//!   counted.
//!
//! If either may be the case, the tape is undone and [replayed](crate::play) one reference after
//! the other.
//!
//! Only with AVX-512, for the common shapes: see [`Levels::play`].

use std::arch::asm;
use std::arch::x86_64::{
    __m256i, __m512i, _mm256_cmpeq_epi32_mask, _mm256_load_si256, _mm256_set1_epi32, _mm256_store_si256,
    _mm512_alignr_epi8, _mm512_alignr_epi64, _mm512_cmpeq_epi16_mask, _mm512_load_si512, _mm512_set1_epi16,
    _mm512_store_si512,
};

use nestwalk_mem::prefetch::prefetch;

use crate::cache::Cache;
use crate::config::LlcPolicy;
use crate::events::Served;
use crate::evictions::Evictions;
use crate::sets::Sets;
use crate::simd::{Avx512, LongTags, ShortTags};
use crate::tape::Reference;

/// Rows of the last level that are fetched ahead.
const AHEAD: usize = 24;

/// Places in which uses of last-level sets are counted, each of them for several sets.
const USE_COUNTS: usize = 1024;

/// After a tape that was taken back, at most so many are played one reference after the other.
const PAUSE_MAX: u32 = 63;

/// A reference that goes on to the next level: its line, and above that its place on the tape.
#[derive(Clone, Copy, Debug, Default)]
struct Passed(u64);

impl Passed {
    const LINE_BITS: u32 = 32;

    #[inline(always)]
    fn new(line: u64, index: usize) -> Self {
        Self(line | (index as u64) << Self::LINE_BITS)
    }

    #[inline(always)]
    fn line(self) -> u64 {
        u64::from(self.0 as u32)
    }

    #[inline(always)]
    fn index(self) -> usize {
        (self.0 >> Self::LINE_BITS) as usize
    }
}

/// What it takes to take a use of a last-level row back.
#[derive(Clone, Copy, Debug, Default)]
struct Undo {
    /// The tag that was last in the row.
    last: u16,
    /// Where the tag that was used came from.
    place: u8,
    missed: bool,
}

/// The lists between the levels, kept from tape to tape.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    /// Says that the processor has what all this needs.
    _avx512: Avx512,
    l1d_misses: Vec<Passed>,
    l2_misses: Vec<Passed>,
    /// By place in `l2_misses`.
    undo: Vec<Undo>,
    /// Lines that the last level evicted, or would have if its way had not been empty.
    evicted: Vec<(u64, bool)>,
    served: Vec<Served>,
    l1d_before: Vec<LongTags>,
    l2_before: Vec<LongTags>,
    uses: Box<[u16; USE_COUNTS]>,
    /// Tapes to play one reference after the other, and how many it was last time.
    pause: u32,
    paused: u32,
}

/// A private cache whose rows are one [`LongTags`] each, all of it used, and a power of two of
/// them.
struct Rows<'a> {
    rows: &'a mut [LongTags],
    shift: u32,
}

impl<'a> Rows<'a> {
    fn of(cache: &'a mut Cache) -> Option<Self> {
        let fits = cache.stride_of_power_of_two() == 1 && cache.ways() == 8;
        let shift = cache.set_count().trailing_zeros();
        fits.then(|| Self { rows: cache.rows_mut(), shift })
    }

    /// Uses `line`. Whether it missed.
    #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
    #[inline]
    fn misses(&mut self, line: u64) -> bool {
        let set = line as usize & (self.rows.len() - 1);
        // SAFETY: the number of rows is a power of two, so `set` is one of them. A row is 32 bytes,
        // aligned to as many.
        unsafe {
            let row = std::ptr::from_mut(self.rows.get_unchecked_mut(set)).cast::<__m256i>();
            let wanted = _mm256_set1_epi32((line >> self.shift) as i32);
            let mut row_after = _mm256_load_si256(row);
            let there = u32::from(_mm256_cmpeq_epi32_mask(row_after, wanted));
            // All lanes up to the place of the tag; all eight if it is not there.
            let lanes = there ^ there.wrapping_sub(1);
            // The compiler would make a masked store of this and the store, and the processor does
            // not forward what such a store writes to the next load of the row.
            asm!("valignd {row}{{{lanes}}}, {row}, {wanted}, 7", row = inout(ymm_reg) row_after,
                wanted = in(ymm_reg) wanted, lanes = in(kreg) lanes as u8, options(pure, nomem, nostack, preserves_flags));
            _mm256_store_si256(row, row_after);
            there == 0
        }
    }
}

/// Uses in the L1-D.
#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
#[inline(never)]
fn use_l1d(l1d: &mut Rows<'_>, references: &[Reference], misses: &mut [Passed]) -> usize {
    let misses = &mut misses[..references.len()];
    let mut count = 0;
    for (index, reference) in references.iter().enumerate() {
        let line = reference.line();
        // SAFETY: at most one for each reference before.
        unsafe { *misses.get_unchecked_mut(count) = Passed::new(line, index) };
        count += usize::from(l1d.misses(line));
    }
    count
}

/// Uses in the L2.
#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
#[inline(never)]
fn use_l2(l2: &mut Rows<'_>, passed: &[Passed], misses: &mut [Passed], served: &mut [Served]) -> usize {
    let misses = &mut misses[..passed.len()];
    let mut count = 0;
    for &reference in passed {
        // SAFETY: `misses` as in `use_l1d`; the index is that of a reference, of which `served` has
        // as many.
        unsafe {
            *misses.get_unchecked_mut(count) = reference;
            *served.get_unchecked_mut(reference.index()) = Served::L2;
        }
        count += usize::from(l2.misses(reference.line()));
    }
    count
}

/// The last level: rows of one [`ShortTags`].
struct LastLevel<'a, const POWER: bool> {
    rows: &'a mut [ShortTags],
    sets: Sets,
    ways: usize,
}

impl<const POWER: bool> LastLevel<'_, POWER> {
    #[inline(always)]
    fn place(&self, line: u64) -> (usize, u64) {
        if POWER { self.sets.split_power_of_two(line) } else { self.sets.split(line) }
    }

    #[inline(always)]
    fn fetch(&self, reference: Passed) {
        // SAFETY: there is a row for each set that a split gives.
        prefetch(unsafe { self.rows.get_unchecked(self.place(reference.line()).0) });
    }

    /// Uses the lines of `passed`, behind which there are [`AHEAD`] more to fetch ahead.
    #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
    #[inline(never)]
    fn use_all(&mut self, passed: &[Passed], lists: Lists<'_>) -> usize {
        let Lists { undo, evicted, served, uses } = lists;
        let count = passed.len() - AHEAD;
        let (undo, evicted) = (&mut undo[..count], &mut evicted[..count]);
        let last = self.ways - 1;
        assert!(last < 32, "a row has 32 places");
        passed[..AHEAD].iter().for_each(|&reference| self.fetch(reference));
        let mut missed = 0;
        for (index, (undo, pair)) in undo.iter_mut().zip(passed.windows(AHEAD + 1)).enumerate() {
            debug_assert!(missed <= index);
            self.fetch(pair[AHEAD]);
            let reference = pair[0];
            let (set, tag) = self.place(reference.line());
            // SAFETY: there is a row for each set that a split gives; it is 64 bytes, aligned to as
            // many, which are 32 places. Lists are as long as there are references, `served` as the
            // tape.
            unsafe {
                let row = std::ptr::from_mut(self.rows.get_unchecked_mut(set)).cast::<__m512i>();
                let wanted = _mm512_set1_epi16(tag as i16);
                let next_to_go = row.cast::<u16>().add(last).read();
                let old = _mm512_load_si512(row);
                let there = _mm512_cmpeq_epi16_mask(old, wanted);
                let end = there | 1 << last;
                let lanes = end ^ end.wrapping_sub(1);
                // What comes before each quarter: the last quarter of `wanted`, and three of `old`.
                let quarters = _mm512_alignr_epi64::<6>(old, wanted);
                let moved = _mm512_alignr_epi8::<14>(old, quarters);
                let mut row_after = old;
                // A whole store, as in `Rows::misses`.
                asm!("vmovdqu16 {row}{{{lanes}}}, {moved}", row = inout(zmm_reg) row_after, moved = in(zmm_reg) moved,
                    lanes = in(kreg) lanes, options(pure, nomem, nostack, preserves_flags));
                _mm512_store_si512(row, row_after);
                *undo = Undo { last: next_to_go, place: end.trailing_zeros() as u8, missed: there == 0 };
                *served.get_unchecked_mut(reference.index()) = if there == 0 { Served::Memory } else { Served::Llc };
                uses[set % USE_COUNTS] += 1;
                *evicted.get_unchecked_mut(missed) =
                    (self.sets.join(set, u64::from(next_to_go)), next_to_go != u16::MAX);
                missed += usize::from(there == 0);
            }
        }
        missed
    }

    /// Takes all uses back, the latest first.
    #[cold]
    fn take_back(&mut self, passed: &[Passed], undo: &[Undo]) {
        for (reference, undo) in passed.iter().zip(undo).rev() {
            let row = &mut self.rows[self.place(reference.line()).0].0;
            let (tag, place) = (row[0], usize::from(undo.place));
            row.copy_within(1..=place, 0);
            row[place] = if undo.missed { undo.last } else { tag };
        }
    }
}

/// What the last level fills.
struct Lists<'a> {
    undo: &'a mut [Undo],
    evicted: &'a mut [(u64, bool)],
    served: &'a mut [Served],
    uses: &'a mut [u16; USE_COUNTS],
}

/// Whether an evicted line may have been in a private cache: before the tape began, or since.
#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
#[inline(never)]
fn may_have_been_held(evicted: &[(u64, bool)], l1d: &Rows<'_>, l2: &Rows<'_>, uses: &[u16], ways: usize) -> bool {
    let mut held = 0;
    for &(line, _) in evicted {
        for Rows { rows, shift } in [l1d, l2] {
            // SAFETY: as in `Rows::misses`.
            let row = unsafe {
                let row = rows.get_unchecked(line as usize & (rows.len() - 1));
                _mm256_load_si256(std::ptr::from_ref(row).cast())
            };
            held |= _mm256_cmpeq_epi32_mask(_mm256_set1_epi32((line >> shift) as i32), row);
        }
    }
    let most = uses.iter().fold(0, |most, &count| most.max(count));
    held != 0 || usize::from(most) >= ways
}

impl Levels {
    pub fn new() -> Option<Self> {
        Some(Self {
            _avx512: Avx512::detect()?,
            l1d_misses: Vec::new(),
            l2_misses: Vec::new(),
            undo: Vec::new(),
            evicted: Vec::new(),
            served: Vec::new(),
            l1d_before: Vec::new(),
            l2_before: Vec::new(),
            uses: Box::new([0; USE_COUNTS]),
            pause: 0,
            paused: 0,
        })
    }

    /// What served each reference of the tape that was played last.
    pub fn served(&self) -> &[Served] {
        &self.served
    }

    /// Plays `references`, of which the highest line is `highest`. False, and nothing has changed,
    /// where that cannot be done: other shapes than 8 ways and a power of two of sets in the
    /// private caches, an exclusive last level, memories of more than 256 GiB, or lines that may
    /// have been in the core when they were evicted.
    pub fn play(
        &mut self,
        (l1d, l2): (&mut Cache, &mut Cache),
        (llc, policy): (&mut Cache<ShortTags>, LlcPolicy),
        evictions: &mut Evictions,
        references: &[Reference],
        highest: u64,
    ) -> bool {
        if llc.sets().is_power_of_two() {
            self.play_with::<true>((l1d, l2), (llc, policy), evictions, references, highest)
        } else {
            self.play_with::<false>((l1d, l2), (llc, policy), evictions, references, highest)
        }
    }

    fn play_with<const POWER: bool>(
        &mut self,
        (l1d, l2): (&mut Cache, &mut Cache),
        (llc, policy): (&mut Cache<ShortTags>, LlcPolicy),
        evictions: &mut Evictions,
        references: &[Reference],
        highest: u64,
    ) -> bool {
        let (Some(mut l1d), Some(mut l2)) = (Rows::of(l1d), Rows::of(l2)) else { return false };
        if policy == LlcPolicy::Exclusive || llc.stride() != 1 || highest >> Passed::LINE_BITS != 0 {
            return false;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        let (sets, ways) = (*llc.sets(), llc.ways());
        let mut last_level = LastLevel::<POWER> { rows: llc.rows_mut(), sets, ways };
        let len = references.len();
        if self.l1d_misses.len() < len {
            self.l1d_misses.resize(len, Passed::default());
            self.l2_misses.resize(len + AHEAD, Passed::default());
            self.undo.resize(len, Undo::default());
            self.evicted.resize(len, (0, false));
        }
        self.served.clear();
        self.served.resize(len, Served::L1d);
        let inclusive = policy == LlcPolicy::Inclusive;
        self.l1d_before.clear();
        self.l2_before.clear();
        if inclusive {
            self.l1d_before.extend_from_slice(l1d.rows);
            self.l2_before.extend_from_slice(l2.rows);
        }
        // SAFETY: there is a `Avx512`, so the processor has what these functions need.
        unsafe {
            let count = use_l1d(&mut l1d, references, &mut self.l1d_misses);
            let count = use_l2(&mut l2, &self.l1d_misses[..count], &mut self.l2_misses, &mut self.served);
            self.l2_misses[count..count + AHEAD].fill(Passed::default());
            let Self { undo, evicted, served, uses, .. } = self;
            let lists = Lists { undo, evicted, served, uses };
            let missed = last_level.use_all(&self.l2_misses[..count + AHEAD], lists);
            if inclusive {
                let l1d_before = Rows { rows: &mut self.l1d_before, shift: l1d.shift };
                let l2_before = Rows { rows: &mut self.l2_before, shift: l2.shift };
                let held = may_have_been_held(&self.evicted[..missed], &l1d_before, &l2_before, &self.uses[..], ways);
                self.uses.fill(0);
                if held {
                    last_level.take_back(&self.l2_misses[..count], &self.undo[..count]);
                    l1d.rows.copy_from_slice(&self.l1d_before);
                    l2.rows.copy_from_slice(&self.l2_before);
                    self.pause = (2 * self.paused + 1).min(PAUSE_MAX);
                    self.paused = self.pause;
                    return false;
                }
                self.evicted[..missed].iter().for_each(|&gone| evictions.announce(gone));
            } else {
                self.uses.fill(0);
            }
        }
        self.paused = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::Hpa;
    use nestwalk_mem::addr::LINE_SHIFT;
    use proptest::prelude::*;

    use super::*;
    use crate::cache::Level;
    use crate::config::{CacheConfig, MmuConfig};
    use crate::hierarchy::{Hierarchy, Llc, PrivateCaches, Task};
    use crate::simd::Plain;
    use crate::tape::Tape;

    struct OneByOne<'a>(&'a [Reference]);

    impl Task for OneByOne<'_> {
        type Output = Vec<Served>;

        fn run<A: Level, B: Level, C: Level>(self, mut caches: Hierarchy<'_, A, B, C>) -> Vec<Served> {
            self.0.iter().map(|reference| caches.access(Plain, reference.line())).collect()
        }
    }

    /// Private caches of 16 and 32 lines over so many sets of so many ways.
    fn config(policy: LlcPolicy, sets: u64, ways: u32) -> MmuConfig {
        let mut config: MmuConfig = toml::from_str(include_str!("../tests/machine.toml")).unwrap();
        config.l1d = CacheConfig { bytes: 16 * 64, ways: 8, latency_cycles: 4 };
        config.l2 = CacheConfig { bytes: 32 * 64, ways: 8, latency_cycles: 12 };
        (config.llc.bytes, config.llc.ways, config.llc.policy) = (sets * u64::from(ways) * 64, ways, policy);
        config
    }

    fn tape(lines: &[u64]) -> Tape {
        let mut tape = Tape::default();
        lines.iter().for_each(|&line| tape.data(Hpa(line << LINE_SHIFT)));
        tape
    }

    proptest! {
        /// Two cores over one last level, tape by tape by turns, against the same one reference
        /// after the other.
        #[test]
        fn level_by_level_is_one_by_one(
            policy in prop::sample::select(vec![LlcPolicy::Inclusive, LlcPolicy::NonInclusive]),
            sets in prop::sample::select(vec![8_u64, 16, 24]), ways in 2_u32..33,
            tapes in prop::collection::vec((0_usize..2, prop::collection::vec(0_u64..900, 2..80)), 1..60),
        ) {
            let Some(levels) = Levels::new() else { return Ok(()) };
            let config = config(policy, sets, ways);
            let core = || PrivateCaches::new(&config).unwrap();
            let (mut llc, mut expected_llc) = (Llc::new(&config).unwrap(), Llc::new(&config).unwrap());
            let mut cores = [(core(), levels.clone()), (core(), levels)];
            let mut expected_cores = [core(), core()];
            for (at, lines) in tapes {
                let tape = tape(&lines);
                let references = &tape.references()[..tape.len()];
                let expected_core = &mut expected_cores[at];
                expected_core.synchronise(&expected_llc);
                let expected = expected_core.with(&mut expected_llc, 900, OneByOne(references));
                let (core, levels) = &mut cores[at];
                core.synchronise(&llc);
                if core.level_by_level(&mut llc, levels, references, 900) {
                    prop_assert_eq!(levels.served(), &expected);
                } else {
                    let served = core.with(&mut llc, 900, OneByOne(references));
                    prop_assert_eq!(&served, &expected);
                }
                for (cache, expected) in [(core.l1d(), expected_core.l1d()), (core.l2(), expected_core.l2())] {
                    for set in 0..cache.set_count() {
                        prop_assert!(cache.lines_of(set).eq(expected.lines_of(set)), "set {}", set);
                    }
                }
            }
        }
    }

    #[test]
    fn most_tapes_can_be_played_level_by_level_and_a_line_that_goes_while_it_is_held_is_noticed() {
        let Some(mut levels) = Levels::new() else { return };
        let config = config(LlcPolicy::Inclusive, 8, 4);
        let (mut core, mut llc) = (PrivateCaches::new(&config).unwrap(), Llc::new(&config).unwrap());
        let mut play = |lines: &[u64]| {
            let tape = tape(lines);
            core.level_by_level(&mut llc, &mut levels, &tape.references()[..tape.len()], 1000)
        };
        assert!(play(&[0, 8, 16, 1, 9]));
        assert!(play(&[24, 2]), "four lines fill a set");
        assert!(!play(&[32, 3]), "the line 0 is in the L1-D");
        assert!(!play(&[32, 3]), "a pause");
        assert!(play(&[5, 13]));
        assert!(!play(&[6, 14, 22, 30, 6]), "as many uses as ways");
    }
}
