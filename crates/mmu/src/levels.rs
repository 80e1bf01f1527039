// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole tape through the caches level by level: the L1-D serves all references, then the L2 what
//! the L1-D missed, then the last level what the L2 missed. Each level is one small loop without
//! unpredictable branches.
//!
//! What a level does depends only on the references that reach it, so for a last level that feeds
//! nothing back this is the same as one reference after the other. That is so of an exclusive one,
//! too: the L2 sends it what it evicts with each miss, and gets lines back, but does not ask
//! whether it had them. An inclusive last level takes the lines that it evicts out of the private
//! caches. That changes nothing unless such a line is in the core when it goes, and it can only be
//! there in two cases:
//! - It was there before the tape began. The rows are copied first, and each evicted line is looked
//!   up in the copies.
//! - It came in meanwhile. Then it was the latest of its last-level set at that time, so that set
//!   was used at least as often as it has ways before the line could go. The uses of each set are
//!   counted.
//!
//! In the first case the part up to there is right, and what comes behind it is done again: the
//! private caches play that part once more, lose the line, and the rest is a tape of its own. In
//! the second case, and where parts would be many, the rest is played one reference after the
//! other.

use crate::cache::{Level, Victim};
use crate::config::LlcPolicy;
use crate::events::Served;
use crate::hierarchy::{Hierarchy, Private, Task};
use crate::simd::{LongTags, Simd};
use crate::tape::Reference;

/// Rows of the last level that are fetched ahead.
const AHEAD: usize = 24;

/// Places in which uses of last-level sets are counted, each of them for several sets.
const USE_COUNTS: usize = 1024;

/// A tape is divided into at most so many parts.
const PARTS_MAX: usize = 8;

/// After a tape that was not played to its end, at most so many are played one reference after the
/// other.
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

/// The lists between the levels, kept from tape to tape.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    l1d_misses: Vec<Passed>,
    l2_misses: Vec<Passed>,
    /// What the L2 evicted with each of `l2_misses`, for an exclusive last level; or what an
    /// inclusive one evicted with each of its own misses.
    victims: Vec<Victim>,
    /// Where in its row the last level found each of `l2_misses`: [`MISSED`] if it did not.
    places: Vec<u8>,
    served: Vec<Served>,
    l1d_before: Vec<LongTags>,
    l2_before: Vec<LongTags>,
    uses: Box<[u16; USE_COUNTS]>,
    /// Tapes to play one reference after the other, and how many it was last time.
    pause: u32,
    paused: u32,
}

/// No place: as many trailing zeros as a number without a bit has.
const MISSED: u8 = u64::BITS as u8;

/// Uses in the L1-D. How many missed.
fn use_l1d<S: Simd>(simd: S, l1d: &mut impl Private, references: &[Reference], misses: &mut [Passed]) -> usize {
    // Each of these loops is a function of its own, which has all registers.
    simd.apart(
        #[inline(always)]
        || {
            let (mut l1d, misses) = (l1d.view(), &mut misses[..references.len()]);
            let mut count = 0;
            for (index, reference) in references.iter().enumerate() {
                let line = reference.line();
                // SAFETY: at most one for each reference before.
                unsafe { *misses.get_unchecked_mut(count) = Passed::new(line, index) };
                count += usize::from(l1d.touch(simd, line) == 0);
            }
            count
        },
    )
}

/// Uses in the L2. How many missed; with `EXCLUSIVE`, what it evicted with each miss goes into
/// `victims`.
fn use_l2<S: Simd, const EXCLUSIVE: bool>(
    simd: S,
    l2: &mut impl Private,
    passed: &[Passed],
    misses: &mut [Passed],
    victims: &mut [Victim],
    served: &mut [Served],
) -> usize {
    simd.apart(
        #[inline(always)]
        || {
            let (misses, victims) = (&mut misses[..passed.len()], &mut victims[..passed.len()]);
            let (mut l2, mut count) = (l2.view(), 0);
            for &reference in passed {
                let (there, victim) = if EXCLUSIVE {
                    l2.touch_for(simd, reference.line())
                } else {
                    (l2.touch(simd, reference.line()), Victim::default())
                };
                // SAFETY: `misses` and `victims` as in `use_l1d`; the index is that of a reference,
                // of which `served` has as many.
                unsafe {
                    *misses.get_unchecked_mut(count) = reference;
                    if EXCLUSIVE {
                        *victims.get_unchecked_mut(count) = victim;
                    }
                    *served.get_unchecked_mut(reference.index()) = Served::L2;
                }
                count += usize::from(there == 0);
            }
            count
        },
    )
}

/// Says what served a reference that the L2 missed.
#[inline(always)]
fn serve(served: &mut [Served], reference: Passed, is_there: bool) {
    debug_assert!(reference.index() < served.len());
    // SAFETY: the index is that of a reference, of which `served` has as many.
    unsafe { *served.get_unchecked_mut(reference.index()) = if is_there { Served::Llc } else { Served::Memory } };
}

/// Uses in a non-inclusive last level. Behind the list `passed` there are [`AHEAD`] more to fetch
/// ahead.
fn use_llc<S: Simd>(simd: S, llc: &mut impl Level, passed: &[Passed], served: &mut [Served]) {
    simd.apart(
        #[inline(always)]
        || {
            let mut llc = llc.view();
            passed.iter().take(AHEAD).for_each(|reference| llc.hint(reference.line()));
            for passed in passed.windows(AHEAD + 1) {
                llc.hint(passed[AHEAD].line());
                serve(served, passed[0], llc.touch(simd, passed[0].line()) != 0);
            }
        },
    );
}

/// The same of an inclusive one. How many missed; `places` say where the others were, `victims`
/// what went with each miss, and `uses` how often sets were used.
fn use_inclusive<S: Simd>(
    simd: S,
    llc: &mut impl Level,
    passed: &[Passed],
    (places, victims): (&mut [u8], &mut [Victim]),
    (served, uses): (&mut [Served], &mut [u16; USE_COUNTS]),
) -> usize {
    simd.apart(
        #[inline(always)]
        || {
            let (mut llc, count) = (llc.view(), passed.len() - AHEAD);
            let (places, victims) = (&mut places[..count], &mut victims[..count]);
            passed.iter().take(AHEAD).for_each(|reference| llc.hint(reference.line()));
            let mut missed = 0;
            for (place, passed) in places.iter_mut().zip(passed.windows(AHEAD + 1)) {
                llc.hint(passed[AHEAD].line());
                let (there, victim) = llc.touch_for(simd, passed[0].line());
                serve(served, passed[0], there != 0);
                *place = there.trailing_zeros() as u8;
                uses[llc.place(passed[0].line()).0 % USE_COUNTS] += 1;
                // SAFETY: at most one for each reference before.
                unsafe { *victims.get_unchecked_mut(missed) = victim };
                missed += usize::from(there == 0);
            }
            missed
        },
    )
}

/// The same of an exclusive one: each line of `passed` leaves it for the L2, and what the L2
/// evicted for it comes in. Behind `victims`, too, there are [`AHEAD`] more.
fn exchange<S: Simd>(simd: S, llc: &mut impl Level, passed: &[Passed], victims: &[Victim], served: &mut [Served]) {
    simd.apart(
        #[inline(always)]
        || {
            let mut llc = llc.view();
            for (reference, victim) in passed.iter().zip(victims).take(AHEAD) {
                llc.hint(reference.line());
                llc.hint(victim.line());
            }
            for (passed, victims) in passed.windows(AHEAD + 1).zip(victims.windows(AHEAD + 1)) {
                llc.hint(passed[AHEAD].line());
                llc.hint(victims[AHEAD].line());
                serve(served, passed[0], llc.take(simd, passed[0].line()));
                if victims[0].is_real() {
                    llc.touch(simd, victims[0].line());
                }
            }
        },
    );
}

/// Whether one of `victims` is in `rows` of a private cache.
fn any_held<S: Simd>(simd: S, cache: &mut impl Private, rows: &[LongTags], victims: &[Victim]) -> bool {
    simd.apart(
        #[inline(always)]
        || {
            let cache = cache.view();
            victims.iter().fold(false, |held, gone| held | cache.held_in(simd, rows, gone.line()))
        },
    )
}

/// How often the most used set was used. All begin anew.
fn most_used<S: Simd>(simd: S, uses: &mut [u16; USE_COUNTS]) -> usize {
    simd.apart(
        #[inline(always)]
        || {
            let most = uses.iter().fold(0, |most, &count| most.max(count));
            uses.fill(0);
            most.into()
        },
    )
}

/// Uses in the L2 of which only the rows are wanted.
fn use_l2_again<S: Simd>(simd: S, l2: &mut impl Private, passed: &[Passed]) {
    simd.apart(
        #[inline(always)]
        || {
            let mut l2 = l2.view();
            passed.iter().for_each(|reference| _ = l2.touch(simd, reference.line()));
        },
    );
}

/// Takes all uses of an inclusive last level back, the latest first.
#[cold]
fn take_back(llc: &mut impl Level, passed: &[Passed], places: &[u8], mut victims: &[Victim]) {
    for (reference, &place) in passed.iter().zip(places).rev() {
        let mut gone = Victim::default();
        if place == MISSED
            && let Some((&last, before)) = victims.split_last()
        {
            (gone, victims) = (last, before);
        }
        llc.take_back(reference.line(), (place != MISSED).then_some(usize::from(place)), gone);
    }
}

impl Levels {
    pub fn new() -> Self {
        Self {
            l1d_misses: Vec::new(),
            l2_misses: Vec::new(),
            victims: Vec::new(),
            places: Vec::new(),
            served: Vec::new(),
            l1d_before: Vec::new(),
            l2_before: Vec::new(),
            uses: Box::new([0; USE_COUNTS]),
            pause: 0,
            paused: 0,
        }
    }

    /// What served each reference of the tape that was played last.
    pub fn served(&self) -> &[Served] {
        &self.served
    }

    /// Whether the next tape is to be tried; if not, it counts as one that was played otherwise.
    pub fn are_due(&mut self) -> bool {
        let due = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        due
    }

    /// No tape is tried any more, as good as.
    #[cfg(test)]
    pub fn pause_for_good(&mut self) {
        self.pause = u32::MAX;
    }

    /// Makes room for `count` references.
    fn begin(&mut self, count: usize) {
        if self.l1d_misses.len() < count {
            self.l1d_misses.resize(count, Passed::default());
            self.l2_misses.resize(count + AHEAD, Passed::default());
            self.victims.resize(count + AHEAD, Victim::default());
            self.places.resize(count, MISSED);
        }
        self.served.clear();
        self.served.resize(count, Served::L1d);
    }

    /// What the private caches make of `references`, which begin at `begin` of the tape. How many
    /// they miss.
    fn private<S: Simd, const EXCLUSIVE: bool>(
        &mut self,
        simd: S,
        (l1d, l2): (&mut impl Private, &mut impl Private),
        (references, begin): (&[Reference], usize),
    ) -> usize {
        let Self { l1d_misses, l2_misses, victims, served, .. } = self;
        let count = use_l1d(simd, l1d, references, l1d_misses);
        let passed = &l1d_misses[..count];
        let count = use_l2::<S, EXCLUSIVE>(simd, l2, passed, l2_misses, victims, &mut served[begin..]);
        l2_misses[count..count + AHEAD].fill(Passed::default());
        count
    }

    /// Sends `references`, which begin at `begin` of the tape, through caches under an inclusive
    /// last level, to their end or to the one for which a line went that the core had before. How
    /// many; 0, and nothing has changed, where a line may have gone that came in meanwhile.
    fn part<S: Simd, A: Private, B: Private, C: Level>(
        &mut self,
        simd: S,
        caches: &mut Hierarchy<'_, A, B, C>,
        (references, begin): (&[Reference], usize),
    ) -> usize {
        let Hierarchy { l1d, l2, llc, evictions, .. } = caches;
        self.l1d_before.clear();
        self.l2_before.clear();
        self.l1d_before.extend_from_slice(l1d.rows());
        self.l2_before.extend_from_slice(l2.rows());
        let count = self.private::<S, false>(simd, (&mut *l1d, &mut *l2), (references, begin));
        let Self { l1d_misses, l2_misses, victims, places, served, l1d_before, l2_before, uses, .. } = self;
        let (passed, served) = (&l2_misses[..count + AHEAD], &mut served[begin..]);
        let missed = use_inclusive(simd, llc, passed, (places, victims), (served, uses));
        let (victims, places, passed) = (&victims[..missed], &places[..count], &passed[..count]);
        // Up to the reference for which a line went that was held: uses of the last level, lines
        // that went, references. Nothing, where a line may have gone that came in meanwhile.
        let (kept, gone, done) = if most_used(simd, uses) >= llc.ways() {
            (0, 0, 0)
        } else {
            let any = any_held(simd, l1d, l1d_before, victims) || any_held(simd, l2, l2_before, victims);
            // Where none went, the list has a line that stays.
            let is_held = |gone: &Victim| {
                let (real, line) = (gone.is_real(), gone.line());
                real && (l1d.held_in(simd, l1d_before, line) || l2.held_in(simd, l2_before, line))
            };
            let Some(first) = any.then(|| victims.iter().position(is_held)).flatten() else {
                victims.iter().for_each(|&gone| evictions.announce(gone));
                return references.len();
            };
            let mut misses = (0..count).filter(|&at| places[at] == MISSED);
            let last = misses.nth(first).expect("each victim went for a miss");
            (last + 1, first + 1, passed[last].index() + 1)
        };
        victims[..gone].iter().for_each(|&gone| evictions.announce(gone));
        // What came behind it is done again.
        take_back(llc, &passed[kept..], &places[kept..], &victims[gone..]);
        l1d.rows().copy_from_slice(l1d_before);
        l2.rows().copy_from_slice(l2_before);
        served[done..].fill(Served::L1d);
        let count = use_l1d(simd, l1d, &references[..done], l1d_misses);
        use_l2_again(simd, l2, &l1d_misses[..count]);
        if let Some(&held) = victims[..gone].last() {
            l1d.drop(simd, held);
            l2.drop(simd, held);
        }
        done
    }
}

/// Sends `references` through the caches level by level. How many: those behind them went one after
/// the other, as lines were in the core, or may have been, when an inclusive last level evicted
/// them.
pub(crate) struct LevelByLevel<'a, S> {
    pub simd: S,
    pub levels: &'a mut Levels,
    pub references: &'a [Reference],
    /// The fewest that are worth a copy of the private caches; at least one.
    pub least: usize,
}

impl<S: Simd> LevelByLevel<'_, S> {
    /// Under an inclusive last level.
    fn inclusive<A: Private, B: Private, C: Level>(self, mut caches: Hierarchy<'_, A, B, C>) -> usize {
        let Self { simd, levels, references, least } = self;
        let (mut done, mut parts) = (0, 0);
        while references.len() - done >= least && parts < PARTS_MAX {
            match levels.part(simd, &mut caches, (&references[done..], done)) {
                0 => parts = PARTS_MAX,
                part => (done, parts) = (done + part, parts + 1),
            }
        }
        let rest = &references[done..];
        levels.paused = if rest.len() < least { 0 } else { (2 * levels.paused + 1).min(PAUSE_MAX) };
        levels.pause = levels.paused;
        for (index, (reference, served)) in rest.iter().zip(&mut levels.served[done..]).enumerate() {
            if let Some(ahead) = rest.get(index + AHEAD) {
                caches.hint(ahead.line());
            }
            *served = caches.access(simd, reference.line());
        }
        done
    }
}

impl<S: Simd> Task for LevelByLevel<'_, S> {
    type Output = usize;

    const SHAPED: bool = S::VECTORS;

    fn run<A: Private, B: Private, C: Level>(self, mut caches: Hierarchy<'_, A, B, C>) -> usize {
        let Self { simd, references, .. } = self;
        self.levels.begin(references.len());
        match caches.policy {
            LlcPolicy::Inclusive => return self.inclusive(caches),
            LlcPolicy::NonInclusive => {
                let private = (&mut caches.l1d, &mut caches.l2);
                let count = self.levels.private::<S, false>(simd, private, (references, 0));
                let Levels { l2_misses, served, .. } = self.levels;
                use_llc(simd, &mut caches.llc, &l2_misses[..count + AHEAD], served);
            }
            LlcPolicy::Exclusive => {
                let private = (&mut caches.l1d, &mut caches.l2);
                let count = self.levels.private::<S, true>(simd, private, (references, 0));
                let Levels { l2_misses, victims, served, .. } = self.levels;
                victims[count..count + AHEAD].fill(Victim::default());
                let (passed, victims) = (&l2_misses[..count + AHEAD], &victims[..count + AHEAD]);
                exchange(simd, &mut caches.llc, passed, victims, served);
            }
        }
        references.len()
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::Hpa;
    use nestwalk_mem::addr::LINE_SHIFT;
    use proptest::prelude::*;

    use super::*;
    use crate::config::{CacheConfig, MmuConfig};
    use crate::hierarchy::PrivateCaches;
    use crate::llc::Llc;
    use crate::simd::Plain;
    use crate::tape::Tape;

    struct OneByOne<'a>(&'a [Reference]);

    impl Task for OneByOne<'_> {
        type Output = Vec<Served>;

        const SHAPED: bool = false;

        fn run<A: Private, B: Private, C: Level>(self, mut caches: Hierarchy<'_, A, B, C>) -> Vec<Served> {
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

    /// For each tape: of which of two cores, whether far, and its lines.
    type Tapes = [(usize, bool, Vec<u64>)];

    fn check<S: Simd>(simd: S, config: &MmuConfig, least: usize, tapes: &Tapes) -> Result<(), TestCaseError> {
        let core = || PrivateCaches::new(config).unwrap();
        let (mut llc, mut expected_llc) = (Llc::new(config).unwrap(), Llc::new(config).unwrap());
        let mut cores = [(core(), Levels::new()), (core(), Levels::new())];
        let mut expected_cores = [core(), core()];
        for (at, far, lines) in tapes {
            let first = if *far { 1 << 30 } else { 0 };
            let (tape, highest) = (tape(lines.iter().map(|line| first + line)), first + 900);
            let references = &tape.references()[..tape.len()];
            let expected_core = &mut expected_cores[*at];
            expected_core.synchronise(Plain, &expected_llc);
            let expected = expected_core.with(&mut expected_llc, highest, OneByOne(references));
            let (core, levels) = &mut cores[*at];
            core.synchronise(simd, &llc);
            if levels.are_due() {
                let played = core.with(&mut llc, highest, LevelByLevel { simd, levels, references, least });
                prop_assert_eq!(levels.served(), &expected);
                // Nothing but an inclusive last level leaves a rest.
                prop_assert!(played == references.len() || config.llc.policy == LlcPolicy::Inclusive);
            } else {
                prop_assert!(config.llc.policy == LlcPolicy::Inclusive);
                let served = core.with(&mut llc, highest, OneByOne(references));
                prop_assert_eq!(&served, &expected);
            }
            for (cache, expected) in [(core.l1d(), expected_core.l1d()), (core.l2(), expected_core.l2())] {
                for set in 0..cache.set_count() {
                    prop_assert!(cache.lines_of(set).eq(expected.lines_of(set)), "set {}", set);
                }
            }
            prop_assert!(llc.lines_in_order() == expected_llc.lines_in_order());
        }
        Ok(())
    }

    proptest! {
        // As many as it takes to see what a part left behind that is done again.
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Two cores over one last level, tape by tape by turns, against the same one reference
        /// after the other; rows of any length. Some tapes are so far that the last level needs
        /// long tags from the first of them on.
        #[test]
        fn level_by_level_is_one_by_one(
            policy in prop::sample::select(vec![LlcPolicy::Inclusive, LlcPolicy::NonInclusive, LlcPolicy::Exclusive]),
            private in prop::sample::select(
                vec![(8, 8), (8, 4), (3, 7), (8, 16), (12, 16), (12, 20), (16, 9), (20, 33)]),
            sets in prop::sample::select(vec![8_u64, 16, 24]), ways in 2_u32..41,
            least in prop::sample::select(vec![1_usize, 5, 40]),
            tapes in prop::collection::vec(
                (0_usize..2, prop::bool::weighted(0.05), prop::collection::vec(0_u64..900, 2..80)), 1..60),
        ) {
            let config = config(policy, private, (sets, ways));
            check(Plain, &config, least, &tapes)?;
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = crate::simd::Avx2::detect() {
                check(avx2, &config, least, &tapes)?;
            }
        }
    }

    #[test]
    fn tapes_are_divided_where_a_line_goes_while_it_is_held() {
        let mut levels = Levels::new();
        let config = config(LlcPolicy::Inclusive, (8, 8), (8, 4));
        let (mut core, mut llc) = (PrivateCaches::new(&config).unwrap(), Llc::new(&config).unwrap());
        // How many references went level by level; none if the tape was not tried.
        let mut play = |least: usize, lines: &[u64]| {
            let tape = tape(lines.iter().copied());
            let (levels, references) = (&mut levels, &tape.references()[..tape.len()]);
            if !levels.are_due() {
                return None;
            }
            Some(core.with(&mut llc, 1000, LevelByLevel { simd: Plain, levels, references, least }))
        };
        assert_eq!(play(1, &[0, 8, 16, 1, 9]), Some(5));
        assert_eq!(play(1, &[24, 2]), Some(2), "four lines fill a set");
        assert_eq!(play(2, &[5, 32, 3]), Some(2), "the line 0 is in the L1-D: a rest, which is short");
        assert_eq!(play(1, &[40, 4, 48, 7]), Some(4), "8 and 16 are: three parts");
        assert_eq!(play(1, &[6, 14, 22, 30, 6]), Some(0), "as many uses as ways");
        assert_eq!(play(1, &[5, 13]), None, "a pause");
        assert_eq!(play(1, &[5, 13]), Some(2));
    }
}
