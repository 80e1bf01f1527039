// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plays a [tape](crate::tape) through a core's caches: what serves each reference, and how long
//! each walk takes.

use std::ops::Range;

use crate::accelerator::Accelerator;
use crate::accelerator::prefetch::InFlight;
use crate::cache::Level;
use crate::config::MmuConfig;
use crate::counters::Counters;
use crate::error::MmuError;
use crate::events::{Served, WalkEvents};
use crate::hierarchy::{Hierarchy, Private, PrivateCaches, Task};
use crate::levels::{LevelByLevel, Levels};
use crate::llc::Llc;
use crate::simd::{Plain, Simd, Vectors};
use crate::tape::{Reference, Tape, WalkSpan};

/// References that are looked ahead.
const AHEAD: usize = 16;

/// References for each walk from which on walks are rare.
const WALK_EVERY: usize = 64;

/// The caches of a core, and what is on its way to them in the walk that is going on.
#[derive(Clone, Debug)]
pub(crate) struct Player {
    pub caches: PrivateCaches,
    pub in_flight: InFlight,
    /// The vectors to be used, if any are.
    pub vectors: Option<Vectors>,
    levels: Box<Levels>,
    /// What the references of a tape up to each took together.
    waited: Vec<Waited>,
}

impl Player {
    /// Empty caches, of which the L1-D has `miss_registers`.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(config: &MmuConfig, miss_registers: usize) -> Result<Self, MmuError> {
        Ok(Self {
            caches: PrivateCaches::new(config)?,
            in_flight: InFlight::new(miss_registers),
            vectors: Vectors::detect(),
            levels: Box::new(Levels::new()),
            waited: Vec::new(),
        })
    }

    /// Plays `tape` and clears it. If `P` never does anything there must be no prefetches on it.
    #[inline]
    pub fn play<P: Accelerator>(&mut self, llc: &mut Llc, tape: &mut Tape, counters: &mut Counters) {
        // Functions without parameters: what they do is compiled here, and once.
        if P::ACTIVE {
            self.play_prefetching(llc, tape, counters);
        } else if P::WALKS {
            self.play_parallel(llc, tape, counters);
        } else {
            self.play_serial(llc, tape, counters);
        }
        tape.clear();
    }

    #[inline(never)]
    fn play_prefetching(&mut self, llc: &mut Llc, tape: &mut Tape, counters: &mut Counters) {
        self.play_as::<PREFETCH>(llc, tape, counters);
    }

    #[inline(never)]
    fn play_parallel(&mut self, llc: &mut Llc, tape: &mut Tape, counters: &mut Counters) {
        self.play_as::<PARALLEL>(llc, tape, counters);
    }

    #[inline(never)]
    fn play_serial(&mut self, llc: &mut Llc, tape: &mut Tape, counters: &mut Counters) {
        self.play_as::<SERIAL>(llc, tape, counters);
    }

    #[inline(always)]
    fn play_as<const KIND: u8>(&mut self, llc: &mut Llc, tape: &mut Tape, counters: &mut Counters) {
        match self.vectors {
            Some(vectors) => self.play_with::<_, KIND>(vectors, llc, tape, counters),
            None => self.play_with::<_, KIND>(Plain, llc, tape, counters),
        }
    }

    #[inline(always)]
    fn play_with<S: Simd, const KIND: u8>(&mut self, simd: S, llc: &mut Llc, tape: &mut Tape, counters: &mut Counters) {
        let highest = simd.apart(
            #[inline(always)]
            || tape.highest_line(),
        );
        if self.level_by_level::<_, KIND>(simd, llc, tape, highest) {
            let Self { caches, in_flight, levels, waited, .. } = self;
            let latencies = caches.latencies();
            simd.apart(
                #[inline(always)]
                || count_served::<KIND>(tape, levels.served(), latencies, (waited, in_flight), counters),
            );
            return;
        }
        tape.pad(AHEAD);
        let Self { caches, in_flight, .. } = self;
        let latencies = caches.latencies();
        caches.with(llc, highest, Playing::<S, KIND> { simd, tape, latencies, counters, in_flight });
    }

    /// Plays a tape without an aborted walk, of which the highest line is given, level by level.
    /// False, and nothing has changed, where that cannot be done or does not pay.
    fn level_by_level<S: Simd, const KIND: u8>(&mut self, simd: S, llc: &mut Llc, tape: &Tape, highest: u64) -> bool {
        let Self { caches, in_flight, levels, .. } = self;
        let least = caches.least_level_by_level(llc);
        if tape.aborted.is_some() || tape.len() < least {
            return false;
        }
        // Which prefetches are dropped depends on how long the others take.
        let none_is_dropped =
            KIND != PREFETCH || tape.walks.iter().all(|walk| in_flight.takes_all(tape.prefetches(walk)));
        if !none_is_dropped || !levels.are_due() {
            return false;
        }
        let references = &tape.references()[..tape.len()];
        caches.with(llc, highest, LevelByLevel { simd, levels, references, least });
        true
    }
}

/// Counts the references of `tape`, whose walks are of this `KIND`; `served` says what served each.
/// `waited` is scratch space for the prefix sums of latencies.
#[inline(always)]
fn count_served<const KIND: u8>(
    tape: &Tape,
    served: &[Served],
    latencies: [u64; 4],
    (waited, in_flight): (&mut Vec<Waited>, &mut InFlight),
    counters: &mut Counters,
) {
    if KIND != SERIAL || tape.walks.len() * WALK_EVERY < served.len() {
        return count_each::<KIND>(tape, served, latencies, in_flight, counters);
    }
    if waited.len() <= served.len() {
        waited.resize((served.len() + 1).next_power_of_two(), Waited::default());
    }
    let mut sum = Waited::default();
    waited[0] = sum;
    // Sums up to each reference, so that no loop is as long as a walk, which nothing could foresee.
    for ((reference, &served), after) in tape.references().iter().zip(served).zip(&mut waited[1..]) {
        sum.add(reference, latencies[served as usize]);
        *after = sum;
        counters.walk_events.0[usize::from(reference.code()) + served as usize] += 1;
    }
    for walk in &tape.walks {
        let (before, after) = (waited[walk.begin as usize], waited[walk.end as usize]);
        let cycles = after.cycles - before.cycles;
        count_walk(walk, Waited { cycles, host_cycles: after.host_cycles - before.host_cycles }, counters);
    }
}

/// The same walk by walk.
#[inline(always)]
fn count_each<const KIND: u8>(
    tape: &Tape,
    served: &[Served],
    latencies: [u64; 4],
    in_flight: &mut InFlight,
    counters: &mut Counters,
) {
    let references = &tape.references()[..served.len()];
    let mut at = 0;
    for walk in &tape.walks {
        let (begin, end) = (walk.begin as usize, walk.end as usize);
        count_others(&references[at..begin], &served[at..begin], counters);
        let its = references[begin..end].iter().copied().zip(served[begin..end].iter().copied());
        let waited = wait_for::<KIND, _>(
            its,
            latencies,
            in_flight,
            counters,
            #[inline(always)]
            |_, served| served,
        );
        count_walk(walk, waited, counters);
        at = end;
    }
    count_others(&references[at..], &served[at..], counters);
}

/// Goes through a walk of this `KIND`, and counts its references. Of each, `serve` says what serves
/// it, from what is beside it in `walk`.
#[inline(always)]
fn wait_for<const KIND: u8, T>(
    walk: impl Iterator<Item = (Reference, T)>,
    latencies: [u64; 4],
    in_flight: &mut InFlight,
    counters: &mut Counters,
    mut serve: impl FnMut(Reference, T) -> Served,
) -> Waited {
    let mut waited = Waited::default();
    let mut now = 0;
    if KIND == PREFETCH {
        in_flight.clear();
    }
    for (reference, beside) in walk {
        let line = reference.line();
        if KIND == PREFETCH {
            now += reference.wait();
            if reference.code() == WalkEvents::PREFETCH {
                if in_flight.takes(now) {
                    let served = serve(reference, beside);
                    in_flight.add(line, served, now + latencies[served as usize]);
                }
                continue;
            }
        }
        let served = serve(reference, beside);
        let mut latency = latencies[served as usize];
        if KIND == PARALLEL && reference.wait() > 0 {
            latency = 0;
        }
        if KIND == PREFETCH
            && let Some(arrival) = in_flight.arrival(line)
        {
            latency = latency.max(arrival.saturating_sub(now));
            counters.walk_events.0[usize::from(WalkEvents::prefetch_hit_code())] += 1;
        }
        now += latency;
        waited.add(&reference, latency);
        counters.walk_events.0[usize::from(reference.code()) + served as usize] += 1;
    }
    waited
}

/// Counts references between two walks: the program's and the co-runner's. The counts of both are
/// parts of two words, so that they stay in registers.
#[inline(always)]
fn count_others(references: &[Reference], served: &[Served], counters: &mut Counters) {
    const PART: usize = u16::BITS as usize;
    // No part overflows.
    for (references, served) in references.chunks(1 << (PART - 1)).zip(served.chunks(1 << (PART - 1))) {
        let (mut data, mut all) = (0_u64, 0_u64);
        for (reference, &served) in references.iter().zip(served) {
            debug_assert!([WalkEvents::DATA, WalkEvents::CORUNNER].contains(&reference.code()));
            let one = 1 << (served as usize * PART);
            all += one;
            data += if reference.code() == WalkEvents::DATA { one } else { 0 };
        }
        for served in 0..Served::ALL.len() {
            let part = |counts: u64| u64::from((counts >> (served * PART)) as u16);
            counters.walk_events.0[usize::from(WalkEvents::DATA) + served] += part(data);
            counters.walk_events.0[usize::from(WalkEvents::CORUNNER) + served] += part(all - data);
        }
    }
}

/// Counts a walk whose references took so long.
#[inline(always)]
fn count_walk(walk: &WalkSpan, waited: Waited, counters: &mut Counters) {
    let guest = waited.cycles - waited.host_cycles + u64::from(walk.guest_lookup_cycles);
    let host = waited.host_cycles + u64::from(walk.host_lookup_cycles);
    counters.walk_cycles += guest + host;
    counters.guest_walk_cycles += guest;
    counters.host_walk_cycles += host;
    counters.latency.record(guest + host);
}

/// Cycles that the references of a walk took.
#[derive(Clone, Copy, Debug, Default)]
struct Waited {
    cycles: u64,
    /// The part spent on host entries.
    host_cycles: u64,
}

impl Waited {
    /// Adds the `latency` of `reference`.
    #[inline(always)]
    fn add(&mut self, reference: &Reference, latency: u64) {
        self.cycles += latency;
        self.host_cycles += latency & reference.host_mask();
    }
}

/// A walk waits for each of its references, for what is left of it if it was prefetched, or for
/// some of them: a reference with a wait goes on beside the walk.
const SERIAL: u8 = 0;
const PREFETCH: u8 = 1;
const PARALLEL: u8 = 2;

/// A tape that is being played, of walks of this `KIND`.
struct Playing<'a, S, const KIND: u8> {
    simd: S,
    tape: &'a Tape,
    latencies: [u64; 4],
    counters: &'a mut Counters,
    in_flight: &'a mut InFlight,
}

impl<S: Simd, const KIND: u8> Task for Playing<'_, S, KIND> {
    type Output = ();

    const SHAPED: bool = S::VECTORS;

    #[inline(always)]
    fn run<A: Private, B: Private, C: Level>(self, caches: Hierarchy<'_, A, B, C>) {
        // Apart, so that its loops have all registers.
        self.simd.apart(
            #[inline(always)]
            || self.play(caches),
        );
    }
}

impl<'a, S: Simd, const KIND: u8> Playing<'a, S, KIND> {
    #[inline(always)]
    fn play<A: Level, B: Level, C: Level>(mut self, mut caches: Hierarchy<'_, A, B, C>) {
        let tape = self.tape;
        let mut at = 0;
        for walk in &tape.walks {
            self.others(&mut caches, at..walk.begin as usize);
            at = walk.end as usize;
            let waited = self.walk(&mut caches, walk.begin as usize..at);
            count_walk(walk, waited, self.counters);
        }
        self.others(&mut caches, at..tape.done());
        if tape.aborted.is_some() {
            self.aborted(&mut caches, tape.done());
        }
    }

    /// The references in `part`, each with one further on.
    #[inline(always)]
    fn part(&self, part: Range<usize>) -> impl Iterator<Item = (Reference, Reference)> + use<'a, S, KIND> {
        let tape = self.tape;
        let ahead = &tape.references()[part.start + AHEAD..part.end + AHEAD];
        tape.references()[part].iter().copied().zip(ahead.iter().copied())
    }

    /// A part of the tape between walks: of its references only the number counts.
    #[inline(always)]
    fn others<A: Level, B: Level, C: Level>(&mut self, caches: &mut Hierarchy<'_, A, B, C>, part: Range<usize>) {
        for (reference, ahead) in self.part(part) {
            caches.hint(ahead.line());
            let served = caches.access(self.simd, reference.line());
            self.counters.walk_events.0[usize::from(reference.code()) + served as usize] += 1;
        }
    }

    /// A part of the tape that is a walk.
    #[inline(always)]
    fn walk<A: Level, B: Level, C: Level>(
        &mut self,
        caches: &mut Hierarchy<'_, A, B, C>,
        part: Range<usize>,
    ) -> Waited {
        let (simd, its) = (self.simd, self.part(part));
        wait_for::<KIND, _>(
            its,
            self.latencies,
            self.in_flight,
            self.counters,
            #[inline(always)]
            |reference, ahead| {
                caches.hint(ahead.line());
                caches.access(simd, reference.line())
            },
        )
    }

    /// References of a walk that ended in a page fault, from `begin` on: the caches see them, and
    /// their number is all that counts.
    #[cold]
    fn aborted<A: Level, B: Level, C: Level>(&mut self, caches: &mut Hierarchy<'_, A, B, C>, begin: usize) {
        let mut now = 0;
        if KIND == PREFETCH {
            self.in_flight.clear();
        }
        for reference in &self.tape.references()[begin..self.tape.len()] {
            now += reference.wait();
            let is_prefetch = KIND == PREFETCH && reference.code() == WalkEvents::PREFETCH;
            if is_prefetch && !self.in_flight.takes(now) {
                continue;
            }
            let line = reference.line();
            let served = caches.access(self.simd, line);
            let latency = self.latencies[served as usize];
            if is_prefetch {
                self.in_flight.add(line, served, now + latency);
            } else {
                now += latency;
                self.counters.aborted_references += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::Hpa;
    use nestwalk_mem::addr::LINE_SHIFT;
    use proptest::prelude::*;

    use super::*;
    use crate::config::{CacheConfig, LlcPolicy};

    /// A line, and of a walk's reference whether it is a prefetch, the host's, and its wait.
    type Step = (u64, bool, bool, u64);

    /// A reference of the program, or a walk.
    #[derive(Clone, Debug)]
    enum Item {
        Data(u64),
        Walk(Vec<Step>),
    }

    fn item() -> impl Strategy<Value = Item> {
        let step = (0_u64..600, prop::bool::weighted(0.3), any::<bool>(), 0_u64..60);
        prop_oneof![
            3 => (0_u64..600).prop_map(Item::Data),
            1 => prop::collection::vec(step, 1..14).prop_map(Item::Walk),
        ]
    }

    /// The tape of a core whose walks are of `kind`.
    fn tape_of(items: &[Item], kind: u8) -> Tape {
        let mut tape = Tape::default();
        let hpa = |line: u64| Hpa(line << LINE_SHIFT);
        for item in items {
            match item {
                Item::Data(line) => tape.data(hpa(*line)),
                Item::Walk(steps) => {
                    let begin = tape.len() as u32;
                    for &(line, is_prefetch, host, wait) in steps {
                        let wait = if kind == SERIAL { 0 } else { wait };
                        if is_prefetch && kind == PREFETCH {
                            tape.prefetch(hpa(line), wait);
                        } else {
                            tape.entry(hpa(line), WalkEvents::step_code(1, u8::from(host)), host, wait);
                        }
                    }
                    let end = tape.len() as u32;
                    tape.walks.push(WalkSpan { begin, end, guest_lookup_cycles: 3, host_lookup_cycles: 5 });
                }
            }
        }
        tape
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Tapes level by level against the same ones one reference after the other, for walks of
        /// each kind.
        #[test]
        fn whole_tapes_are_counted_as_one_reference_after_the_other(
            kind in prop::sample::select(vec![SERIAL, PREFETCH, PARALLEL]),
            policy in prop::sample::select(vec![LlcPolicy::Inclusive, LlcPolicy::NonInclusive, LlcPolicy::Exclusive]),
            miss_registers in 1_usize..12,
            tapes in prop::collection::vec(prop::collection::vec(item(), 1..80), 1..12),
        ) {
            let mut config: MmuConfig = toml::from_str(include_str!("../tests/machine.toml")).unwrap();
            config.l1d = CacheConfig { bytes: 2 * 8 * 64, ways: 8, latency_cycles: 4 };
            config.l2 = CacheConfig { bytes: 4 * 8 * 64, ways: 8, latency_cycles: 12 };
            (config.llc.bytes, config.llc.ways, config.llc.policy) = (16 * 20 * 64, 20, policy);
            let new = || (Player::new(&config, miss_registers).unwrap(), Llc::new(&config).unwrap(), Counters::default());
            let ((mut player, mut llc, mut counters), mut expected) = (new(), new());
            expected.0.levels.pause_for_good();
            for items in &tapes {
                let play = |player: &mut Player, llc: &mut Llc, counters: &mut Counters| {
                    let mut tape = tape_of(items, kind);
                    match kind {
                        SERIAL => player.play_serial(llc, &mut tape, counters),
                        PREFETCH => player.play_prefetching(llc, &mut tape, counters),
                        _ => player.play_parallel(llc, &mut tape, counters),
                    }
                };
                play(&mut player, &mut llc, &mut counters);
                play(&mut expected.0, &mut expected.1, &mut expected.2);
                prop_assert_eq!(&counters, &expected.2);
                prop_assert_eq!(player.in_flight.counters(), expected.0.in_flight.counters());
                prop_assert!(llc.lines_in_order() == expected.1.lines_in_order());
            }
        }
    }
}
