// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole tape through the caches level by level: the L1-D serves all references, then the L2 what
//! the L1-D missed, then the last level what the L2 missed. Each level is one small loop without
//! unpredictable branches.
//!
//! What a level does depends only on the references that reach it, so for a last level that feeds
//! nothing back this is the same as one reference after the other. That is so of an exclusive one,
//! too: the L2 sends it what it evicts with each miss, and gets lines back, but does not ask
//! whether it had them. An inclusive last level takes
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
//! Only with AVX-512, for the shapes of all bundled machines: see [`Levels::play`].

use std::arch::x86_64::{__m256i, _mm256_cmpeq_epi32_mask, _mm256_load_si256, _mm256_set1_epi32};

use nestwalk_mem::prefetch::prefetch;

use crate::cache::Cache;
use crate::config::LlcPolicy;
use crate::events::Served;
use crate::evictions::Evictions;
use crate::llc::{Lines, Llc};
use crate::rows::{Row, Undo, Used};
use crate::sets::Sets;
use crate::simd::{Avx512, LongTags, Tags};
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
    const LINE_BITS: u32 = 40;

    #[inline(always)]
    fn new(line: u64, index: usize) -> Self {
        Self(line | (index as u64) << Self::LINE_BITS)
    }

    #[inline(always)]
    fn line(self) -> u64 {
        self.0 & ((1 << Self::LINE_BITS) - 1)
    }

    #[inline(always)]
    fn index(self) -> usize {
        (self.0 >> Self::LINE_BITS) as usize
    }
}

/// A line that a cache evicted; some other line if there was none.
#[derive(Clone, Copy, Debug, Default)]
struct Victim(u64);

impl Victim {
    const REAL: u32 = 63;

    /// `gone` if it is `real`, else `other`. No branch, which would be unpredictable at first.
    #[inline(always)]
    fn new(gone: u64, other: u64, real: bool) -> Self {
        let mask = u64::from(real).wrapping_neg();
        Self(gone & mask | other & !mask | u64::from(real) << Self::REAL)
    }

    #[inline(always)]
    fn line(self) -> u64 {
        self.0 & !(1 << Self::REAL)
    }

    #[inline(always)]
    fn is_real(self) -> bool {
        self.0 >> Self::REAL != 0
    }
}

/// The lists between the levels, kept from tape to tape.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    /// Says that the processor has what all this needs.
    _avx512: Avx512,
    l1d_misses: Vec<Passed>,
    l2_misses: Vec<Passed>,
    /// What the L2 evicted with each of `l2_misses`, for an exclusive last level.
    victims: Vec<Victim>,
    /// By place in `l2_misses`.
    undo: Vec<Undo>,
    /// What an inclusive last level evicted with each miss.
    evicted: Vec<Victim>,
    served: Vec<Served>,
    l1d_before: Vec<LongTags>,
    l2_before: Vec<LongTags>,
    uses: Box<[u16; USE_COUNTS]>,
    /// Tapes to play one reference after the other, and how many it was last time.
    pause: u32,
    paused: u32,
}

/// A private cache whose rows are `N` [`LongTags`], and a power of two of them.
struct Rows<'a, const N: usize> {
    rows: &'a mut [[LongTags; N]],
    shift: u32,
    /// The last place of a row.
    last: usize,
}

impl<'a, const N: usize> Rows<'a, N> {
    /// Those of `cache`, whose rows are known to have that shape.
    fn of(cache: &'a mut Cache) -> Self {
        assert!(cache.stride_of_power_of_two() == N, "the shape of a cache");
        let (shift, last) = (cache.set_count().trailing_zeros(), cache.ways() - 1);
        Self { rows: cache.rows_mut().as_chunks_mut().0, shift, last }
    }

    /// The row of `line`: their number is a power of two.
    #[inline(always)]
    fn row(&self, line: u64) -> &[LongTags; N] {
        // SAFETY: a number below that of the rows.
        unsafe { self.rows.get_unchecked(line as usize & (self.rows.len() - 1)) }
    }

    /// Uses `line`. Whether it missed, and the tag that was last in its row.
    #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
    #[inline]
    fn misses(&mut self, line: u64) -> (bool, u32) {
        let set = line as usize & (self.rows.len() - 1);
        // SAFETY: as in `row`; this function needs AVX-512, too.
        let used = unsafe { Row::use_tag(self.rows.get_unchecked_mut(set), self.last, line >> self.shift) };
        (used.there == 0, used.next_to_go)
    }

    /// The line with `tag` in the row of `line`.
    #[inline(always)]
    fn beside(&self, line: u64, tag: u32) -> u64 {
        u64::from(tag) << self.shift | line & (self.rows.len() as u64 - 1)
    }

    /// Whether a row holds `line`: not 0 if it does.
    #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
    #[inline]
    fn holds(&self, line: u64) -> u8 {
        let wanted = _mm256_set1_epi32((line >> self.shift) as i32);
        let row = std::ptr::from_ref(self.row(line)).cast::<__m256i>();
        // SAFETY: a row is `N` times 32 bytes, aligned to as many.
        (0..N).fold(0, |held, part| held | unsafe { _mm256_cmpeq_epi32_mask(_mm256_load_si256(row.add(part)), wanted) })
    }
}

/// Uses in the L1-D.
#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
#[inline(never)]
fn use_l1d<const N: usize>(l1d: &mut Rows<'_, N>, references: &[Reference], misses: &mut [Passed]) -> usize {
    let misses = &mut misses[..references.len()];
    let mut count = 0;
    for (index, reference) in references.iter().enumerate() {
        let line = reference.line();
        // SAFETY: at most one for each reference before.
        unsafe { *misses.get_unchecked_mut(count) = Passed::new(line, index) };
        count += usize::from(l1d.misses(line).0);
    }
    count
}

/// Uses in the L2. With `EXCLUSIVE`, what it evicted with each miss goes into `victims`.
#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
#[inline(never)]
fn use_l2<const N: usize, const EXCLUSIVE: bool>(
    l2: &mut Rows<'_, N>,
    passed: &[Passed],
    misses: &mut [Passed],
    victims: &mut [Victim],
    served: &mut [Served],
) -> usize {
    let misses = &mut misses[..passed.len()];
    let victims = if EXCLUSIVE { &mut victims[..passed.len()] } else { victims };
    let mut count = 0;
    for &reference in passed {
        let line = reference.line();
        let (missed, next_to_go) = l2.misses(line);
        // SAFETY: `misses` and `victims` as in `use_l1d`; the index is that of a reference, of
        // which `served` has as many.
        unsafe {
            *misses.get_unchecked_mut(count) = reference;
            if EXCLUSIVE {
                let gone = l2.beside(line, next_to_go);
                *victims.get_unchecked_mut(count) = Victim::new(gone, line, next_to_go != LongTags::NONE);
            }
            *served.get_unchecked_mut(reference.index()) = Served::L2;
        }
        count += usize::from(missed);
    }
    count
}

/// The last level.
struct LastLevel<'a, R> {
    rows: &'a mut [R],
    sets: Sets,
    /// The last place of a row.
    last: usize,
}

impl<'a, const N: usize> LastLevel<'a, [LongTags; N]> {
    /// That of `cache`, whose rows are known to have that shape.
    fn long(cache: &'a mut Cache) -> Self {
        assert!(cache.stride() == N, "the shape of a cache");
        let (sets, last) = (*cache.sets(), cache.ways() - 1);
        Self { rows: cache.rows_mut().as_chunks_mut().0, sets, last }
    }
}

impl<R: Row> LastLevel<'_, R> {
    #[inline(always)]
    fn fetch(&self, line: u64) {
        // SAFETY: there is a row for each set that a split gives.
        let row = std::ptr::from_ref(unsafe { self.rows.get_unchecked(self.sets.split(line).0) }).cast::<u8>();
        for at in (0..size_of::<R>()).step_by(64) {
            // SAFETY: within the row.
            prefetch(unsafe { &*row.add(at) });
        }
        if !size_of::<R>().is_multiple_of(64) {
            // It may begin in the middle of a line.
            // SAFETY: as above.
            prefetch(unsafe { &*row.add(size_of::<R>() - 1) });
        }
    }

    /// The row of a set that a split gave.
    #[inline(always)]
    fn row(&mut self, set: usize) -> *mut R {
        debug_assert!(set < self.rows.len());
        // SAFETY: there is a row for each.
        unsafe { self.rows.get_unchecked_mut(set) }
    }

    /// Uses the lines of `passed`, behind which there are [`AHEAD`] more to fetch ahead. How many
    /// missed; with `INCLUSIVE`, `lists` say what it takes to take them back, and what went.
    #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
    #[inline(never)]
    fn use_all<const INCLUSIVE: bool>(&mut self, passed: &[Passed], lists: Lists<'_>) -> usize {
        let Lists { undo, evicted, served, uses } = lists;
        let count = passed.len() - AHEAD;
        let (undo, evicted) = (&mut undo[..count], &mut evicted[..count]);
        passed[..AHEAD].iter().for_each(|&reference| self.fetch(reference.line()));
        let mut missed = 0;
        for (index, (undo, pair)) in undo.iter_mut().zip(passed.windows(AHEAD + 1)).enumerate() {
            debug_assert!(missed <= index);
            self.fetch(pair[AHEAD].line());
            let reference = pair[0];
            let (set, tag) = self.sets.split(reference.line());
            // SAFETY: the row is there, and this function needs AVX-512; lists are as long as there
            // are references, `served` as the tape.
            unsafe {
                let Used { next_to_go, there } = R::use_tag(self.row(set), self.last, tag);
                *served.get_unchecked_mut(reference.index()) = if there == 0 { Served::Memory } else { Served::Llc };
                if INCLUSIVE {
                    let place = (there | 1 << self.last).trailing_zeros() as u8;
                    *undo = Undo { last: next_to_go, place, missed: there == 0 };
                    uses[set % USE_COUNTS] += 1;
                    let gone = self.sets.join(set, u64::from(next_to_go));
                    // Without a tag it is a line that is nowhere.
                    *evicted.get_unchecked_mut(missed) = Victim::new(gone, gone, next_to_go != R::NO_TAG);
                }
                missed += usize::from(there == 0);
            }
        }
        missed
    }

    /// The same of an exclusive last level: each line of `passed` leaves it for the L2, and what
    /// the L2 evicted for it comes in. Behind both lists there are [`AHEAD`] more to fetch ahead.
    #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
    #[inline(never)]
    fn exchange_all(&mut self, passed: &[Passed], victims: &[Victim], served: &mut [Served]) {
        for (&reference, &victim) in passed.iter().zip(victims).take(AHEAD) {
            self.fetch(reference.line());
            self.fetch(victim.line());
        }
        for (passed, victims) in passed.windows(AHEAD + 1).zip(victims.windows(AHEAD + 1)) {
            self.fetch(passed[AHEAD].line());
            self.fetch(victims[AHEAD].line());
            let (reference, victim) = (passed[0], victims[0]);
            let (set, tag) = self.sets.split(reference.line());
            // SAFETY: the rows are there, and this function needs AVX-512; `served` is as long as
            // the tape.
            unsafe {
                let there = R::take_tag(self.row(set), tag);
                *served.get_unchecked_mut(reference.index()) = if there { Served::Llc } else { Served::Memory };
                if victim.is_real() {
                    let (set, tag) = self.sets.split(victim.line());
                    R::use_tag(self.row(set), self.last, tag);
                }
            }
        }
    }

    /// Takes all uses back, the latest first.
    #[cold]
    fn take_back(&mut self, passed: &[Passed], undo: &[Undo]) {
        for (reference, &undo) in passed.iter().zip(undo).rev() {
            self.rows[self.sets.split(reference.line()).0].take_back(undo);
        }
    }
}

/// What the last level fills.
struct Lists<'a> {
    undo: &'a mut [Undo],
    evicted: &'a mut [Victim],
    served: &'a mut [Served],
    uses: &'a mut [u16; USE_COUNTS],
}

/// Whether an evicted line may have been in a private cache: before the tape began, or since.
#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
#[inline(never)]
fn may_have_been_held<const A: usize, const B: usize>(
    evicted: &[Victim],
    l1d: &Rows<'_, A>,
    l2: &Rows<'_, B>,
    uses: &[u16],
    last: usize,
) -> bool {
    let mut held = 0;
    for victim in evicted {
        held |= l1d.holds(victim.line()) | l2.holds(victim.line());
    }
    let most = uses.iter().fold(0, |most, &count| most.max(count));
    held != 0 || usize::from(most) > last
}

impl Levels {
    pub fn new() -> Option<Self> {
        Some(Self {
            _avx512: Avx512::detect()?,
            l1d_misses: Vec::new(),
            l2_misses: Vec::new(),
            victims: Vec::new(),
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

    /// Plays `references`. False, and nothing has changed, where that cannot be done: private
    /// caches of more than 16 and 24 ways, or whose sets are no power of two; or lines that may
    /// have been in the core when they were evicted.
    pub fn play(&mut self, (l1d, l2): (&mut Cache, &mut Cache), llc: &mut Llc, references: &[Reference]) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        match (l1d.stride_of_power_of_two(), l2.stride_of_power_of_two()) {
            (1, 1) => self.play_under::<1, 1>((Rows::of(l1d), Rows::of(l2)), llc, references),
            (1, 2) => self.play_under::<1, 2>((Rows::of(l1d), Rows::of(l2)), llc, references),
            (2, 2) => self.play_under::<2, 2>((Rows::of(l1d), Rows::of(l2)), llc, references),
            (2, 3) => self.play_under::<2, 3>((Rows::of(l1d), Rows::of(l2)), llc, references),
            _ => false,
        }
    }

    fn play_under<const A: usize, const B: usize>(
        &mut self,
        private: (Rows<'_, A>, Rows<'_, B>),
        llc: &mut Llc,
        references: &[Reference],
    ) -> bool {
        self.begin(references.len());
        let Llc { lines, policy, evictions } = llc;
        let rest = (*policy, evictions, references);
        // SAFETY: there is a `Avx512`, so the processor has what these functions need.
        unsafe {
            match lines {
                Lines::Short(cache) if cache.stride() == 1 => {
                    let (sets, last) = (*cache.sets(), cache.ways() - 1);
                    self.play_over(private, LastLevel { rows: cache.rows_mut(), sets, last }, rest)
                }
                Lines::Long(cache) if cache.stride() == 2 => {
                    self.play_over(private, LastLevel::<[LongTags; 2]>::long(cache), rest)
                }
                Lines::Long(cache) if cache.stride() == 3 => {
                    self.play_over(private, LastLevel::<[LongTags; 3]>::long(cache), rest)
                }
                Lines::Long(_) | Lines::Short(_) => false,
            }
        }
    }

    /// Makes room for `count` references.
    fn begin(&mut self, count: usize) {
        if self.l1d_misses.len() < count {
            self.l1d_misses.resize(count, Passed::default());
            self.l2_misses.resize(count + AHEAD, Passed::default());
            self.victims.resize(count + AHEAD, Victim::default());
            self.undo.resize(count, Undo::default());
            self.evicted.resize(count, Victim::default());
        }
        self.served.clear();
        self.served.resize(count, Served::L1d);
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512vl,avx512bw")]
    fn play_over<const A: usize, const B: usize, R: Row>(
        &mut self,
        (mut l1d, mut l2): (Rows<'_, A>, Rows<'_, B>),
        mut llc: LastLevel<'_, R>,
        (policy, evictions, references): (LlcPolicy, &mut Evictions, &[Reference]),
    ) -> bool {
        let is_inclusive = policy == LlcPolicy::Inclusive;
        if is_inclusive {
            self.l1d_before.clear();
            self.l2_before.clear();
            self.l1d_before.extend_from_slice(l1d.rows.as_flattened());
            self.l2_before.extend_from_slice(l2.rows.as_flattened());
        }
        let Self { l1d_misses, l2_misses, victims, undo, evicted, served, uses, .. } = self;
        let count = use_l1d(&mut l1d, references, l1d_misses);
        let passed = &l1d_misses[..count];
        let count = if policy == LlcPolicy::Exclusive {
            use_l2::<B, true>(&mut l2, passed, l2_misses, victims, served)
        } else {
            use_l2::<B, false>(&mut l2, passed, l2_misses, victims, served)
        };
        l2_misses[count..count + AHEAD].fill(Passed::default());
        let passed = &l2_misses[..count + AHEAD];
        match policy {
            LlcPolicy::Exclusive => {
                victims[count..count + AHEAD].fill(Victim::default());
                llc.exchange_all(passed, &victims[..count + AHEAD], served);
            }
            LlcPolicy::NonInclusive => {
                llc.use_all::<false>(passed, Lists { undo, evicted, served, uses });
            }
            LlcPolicy::Inclusive => {
                let missed = llc.use_all::<true>(passed, Lists { undo, evicted, served, uses });
                let (shift, last) = (l1d.shift, l1d.last);
                let l1d_before = Rows { rows: self.l1d_before.as_chunks_mut().0, shift, last };
                let (shift, last) = (l2.shift, l2.last);
                let l2_before = Rows { rows: self.l2_before.as_chunks_mut().0, shift, last };
                let held = may_have_been_held(&evicted[..missed], &l1d_before, &l2_before, &uses[..], llc.last);
                uses.fill(0);
                if held {
                    llc.take_back(&l2_misses[..count], &undo[..count]);
                    l1d.rows.copy_from_slice(l1d_before.rows);
                    l2.rows.copy_from_slice(l2_before.rows);
                    self.pause = (2 * self.paused + 1).min(PAUSE_MAX);
                    self.paused = self.pause;
                    return false;
                }
                evicted[..missed].iter().for_each(|gone| evictions.announce((gone.line(), gone.is_real())));
                self.paused = 0;
            }
        }
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
    use crate::hierarchy::{Hierarchy, PrivateCaches, Task};
    use crate::simd::Plain;
    use crate::tape::Tape;

    struct OneByOne<'a>(&'a [Reference]);

    impl Task for OneByOne<'_> {
        type Output = Vec<Served>;

        fn run<A: Level, B: Level, C: Level>(self, mut caches: Hierarchy<'_, A, B, C>) -> Vec<Served> {
            self.0.iter().map(|reference| caches.access(Plain, reference.line())).collect()
        }
    }

    /// Private caches of 2 and 4 sets, of so many ways each, over a last level of so many sets and
    /// ways.
    fn config(policy: LlcPolicy, (l1d, l2): (u32, u32), (sets, ways): (u64, u32)) -> MmuConfig {
        let mut config: MmuConfig = toml::from_str(include_str!("../tests/machine.toml")).unwrap();
        config.l1d = CacheConfig { bytes: 2 * u64::from(l1d) * 64, ways: l1d, latency_cycles: 4 };
        config.l2 = CacheConfig { bytes: 4 * u64::from(l2) * 64, ways: l2, latency_cycles: 12 };
        (config.llc.bytes, config.llc.ways, config.llc.policy) = (sets * u64::from(ways) * 64, ways, policy);
        config
    }

    fn tape(lines: impl Iterator<Item = u64>) -> Tape {
        let mut tape = Tape::default();
        lines.for_each(|line| tape.data(Hpa(line << LINE_SHIFT)));
        tape
    }

    proptest! {
        /// Two cores over one last level, tape by tape by turns, against the same one reference
        /// after the other. From `first` on, which is so far that the last level needs long tags
        /// from the first such tape on.
        #[test]
        fn level_by_level_is_one_by_one(
            policy in prop::sample::select(vec![LlcPolicy::Inclusive, LlcPolicy::NonInclusive, LlcPolicy::Exclusive]),
            private in prop::sample::select(vec![(8, 8), (8, 4), (3, 7), (8, 16), (12, 16), (12, 20), (16, 9)]),
            sets in prop::sample::select(vec![8_u64, 16, 24]), ways in 2_u32..33,
            tapes in prop::collection::vec(
                (0_usize..2, prop::bool::weighted(0.05), prop::collection::vec(0_u64..900, 2..80)), 1..60),
        ) {
            let Some(levels) = Levels::new() else { return Ok(()) };
            let config = config(policy, private, (sets, ways));
            let core = || PrivateCaches::new(&config).unwrap();
            let (mut llc, mut expected_llc) = (Llc::new(&config).unwrap(), Llc::new(&config).unwrap());
            let mut cores = [(core(), levels.clone()), (core(), levels)];
            let mut expected_cores = [core(), core()];
            let mut played = 0;
            for (at, far, lines) in &tapes {
                let first = if *far { 1 << 30 } else { 0 };
                let (tape, highest) = (tape(lines.iter().map(|line| first + line)), first + 900);
                let references = &tape.references()[..tape.len()];
                let expected_core = &mut expected_cores[*at];
                expected_core.synchronise(&expected_llc);
                let expected = expected_core.with(&mut expected_llc, highest, OneByOne(references));
                let (core, levels) = &mut cores[*at];
                core.synchronise(&llc);
                if core.level_by_level(&mut llc, levels, references, highest) {
                    prop_assert_eq!(levels.served(), &expected);
                    played += 1;
                } else {
                    let served = core.with(&mut llc, highest, OneByOne(references));
                    prop_assert_eq!(&served, &expected);
                }
                for (cache, expected) in [(core.l1d(), expected_core.l1d()), (core.l2(), expected_core.l2())] {
                    for set in 0..cache.set_count() {
                        prop_assert!(cache.lines_of(set).eq(expected.lines_of(set)), "set {}", set);
                    }
                }
                for line in first..highest {
                    prop_assert_eq!(llc.contains(line), expected_llc.contains(line), "line {}", line);
                }
            }
            // Nothing but an inclusive last level makes it undo a tape, and long tags are for 9 to
            // 24 ways.
            let is_any_far = tapes.iter().any(|tape| tape.1);
            if policy != LlcPolicy::Inclusive && (!is_any_far || (9..=24).contains(&ways)) {
                prop_assert_eq!(played, tapes.len());
            }
        }
    }

    #[test]
    fn most_tapes_can_be_played_level_by_level_and_a_line_that_goes_while_it_is_held_is_noticed() {
        let Some(mut levels) = Levels::new() else { return };
        let config = config(LlcPolicy::Inclusive, (8, 8), (8, 4));
        let (mut core, mut llc) = (PrivateCaches::new(&config).unwrap(), Llc::new(&config).unwrap());
        let mut play = |lines: &[u64]| {
            let tape = tape(lines.iter().copied());
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
