// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data caches of a core, over a last-level cache that cores share.
//!
//! A reference looks in L1-D, L2 and last-level cache in turn and comes into the private caches
//! whatever served it. Its latency is that of the level which served it (the papers' numbers are
//! load-to-use), not a sum on the way. Stores allocate like loads; write-backs are not modelled.
//! The L2 neither includes nor excludes the L1-D.
//!
//! An inclusive last level takes a line that it evicts out of the private caches, too: those of the
//! core whose reference it was at once, those of the others when they run next.

use crate::cache::{Cache, Level, Victim};
use crate::config::{LlcPolicy, MmuConfig, cache_sets};
use crate::error::MmuError;
use crate::events::Served;
use crate::evictions::Evictions;
use crate::llc::{Lines, Llc};
use crate::simd::{LongTags, Simd};

nestwalk_mem::counters! {
    /// References to the caches that belong to no walk.
    pub struct CacheCounters {
        /// The program's data accesses, by what served them.
        data: [u64; 4] ["accesses" by Served::NAMES],
        /// Cycles of all of them.
        data_cycles: u64 ["cycles"],
        /// The co-runner's accesses, by what served them.
        corunner: [u64; 4] ["accesses" by Served::NAMES],
    }
}

/// The caches that a core's references go through.
#[derive(Debug)]
pub(crate) struct Hierarchy<'a, A, B, C> {
    pub l1d: A,
    pub l2: B,
    pub llc: C,
    pub policy: LlcPolicy,
    pub evictions: &'a mut Evictions,
}

impl<A: Level, B: Level, C: Level> Hierarchy<'_, A, B, C> {
    /// Prefetches the rows of `line` from the simulation's own memory. Changes no simulated state.
    #[inline(always)]
    pub fn hint(&mut self, line: u64) {
        self.llc.hint(line);
    }

    /// Refers to `line` (address / 64). What served it.
    #[inline(always)]
    pub fn access<S: Simd>(&mut self, simd: S, line: u64) -> Served {
        if self.l1d.touch(simd, line) != 0 {
            return Served::L1d;
        }
        let there = match self.policy {
            LlcPolicy::NonInclusive => {
                if self.l2.touch(simd, line) != 0 {
                    return Served::L2;
                }
                self.llc.touch(simd, line) != 0
            }
            LlcPolicy::Exclusive => {
                let (in_l2, victim) = self.l2.touch_for(simd, line);
                if in_l2 != 0 {
                    return Served::L2;
                }
                let there = self.llc.take(simd, line);
                if victim.is_real() {
                    self.llc.touch(simd, victim.line());
                }
                there
            }
            LlcPolicy::Inclusive => {
                if self.l2.touch(simd, line) != 0 {
                    return Served::L2;
                }
                let (there, gone) = self.llc.touch_for(simd, line);
                // Unconditional: the branch on an eviction is unpredictable.
                self.evictions.announce(gone);
                self.l1d.drop(simd, gone);
                self.l2.drop(simd, gone);
                there != 0
            }
        };
        if there { Served::Llc } else { Served::Memory }
    }
}

/// A private cache: its tags are long.
pub(crate) trait Private: Level<Tags = LongTags> {}

impl<L: Level<Tags = LongTags>> Private for L {}

/// Work that goes through the caches: compiled for each common shape of them, if it is
/// [`Task::SHAPED`].
pub(crate) trait Task {
    type Output;

    /// Whether it gains from being compiled for a shape. Scalar code does not.
    const SHAPED: bool;

    fn run<A: Private, B: Private, C: Level>(self, caches: Hierarchy<'_, A, B, C>) -> Self::Output;
}

/// L1-D and L2 of one core.
#[derive(Clone, Debug)]
pub struct PrivateCaches {
    l1d: Cache,
    l2: Cache,
    /// By [`Served`].
    latency_cycles: [u64; 4],
    /// How many of the inclusive last level's evictions this core has heard of.
    heard: u64,
}

impl PrivateCaches {
    /// Empty ones.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(config: &MmuConfig) -> Result<Self, MmuError> {
        config.validate()?;
        let latencies = [
            config.l1d.latency_cycles,
            config.l2.latency_cycles,
            config.llc.latency_cycles,
            config.memory_latency_cycles,
        ];
        Ok(Self {
            l1d: Cache::new(cache_sets("l1d", config.l1d.bytes, config.l1d.ways)?, config.l1d.ways),
            l2: Cache::new(cache_sets("l2", config.l2.bytes, config.l2.ways)?, config.l2.ways),
            latency_cycles: latencies.map(u64::from),
            heard: 0,
        })
    }

    /// Cycles of a reference, by [`Served`].
    #[inline(always)]
    pub fn latencies(&self) -> [u64; 4] {
        self.latency_cycles
    }

    /// Cycles of so many references, by [`Served`].
    pub fn cycles_of(&self, references: [u64; 4]) -> u64 {
        references.into_iter().zip(self.latencies()).map(|(count, latency)| count * latency).sum()
    }

    /// Has `task` done on these caches over `llc`. It refers to no line above `highest`.
    #[inline(always)]
    pub(crate) fn with<T: Task>(&mut self, llc: &mut Llc, highest: u64, task: T) -> T::Output {
        llc.fit(highest);
        let Self { l1d, l2, heard, .. } = self;
        let Llc { lines, policy, evictions } = llc;
        let policy = *policy;
        macro_rules! run {
            ($l1d:expr, $l2:expr, $llc:expr) => {
                task.run(Hierarchy { l1d: $l1d, l2: $l2, llc: $llc, policy, evictions: &mut *evictions })
            };
        }
        let rows = (l1d.stride_of_power_of_two(), l2.stride_of_power_of_two());
        let output = if T::SHAPED {
            match lines {
                // Private caches of up to 8, 16 and 24 ways: Broadwell and Zen 4; Skylake; Sapphire
                // Rapids; Ice Lake.
                Lines::Short(llc) => match (rows, llc.stride()) {
                    ((1, 1), 1) if llc.stride_of_power_of_two() == 1 => {
                        run!(l1d.shaped::<1, true>(), l2.shaped::<1, true>(), llc.shaped::<1, true>())
                    }
                    ((1, 1), 1) => run!(l1d.shaped::<1, true>(), l2.shaped::<1, true>(), llc.shaped::<1, false>()),
                    ((1, 2), 1) => run!(l1d.shaped::<1, true>(), l2.shaped::<2, true>(), llc.shaped::<1, false>()),
                    ((2, 2), 1) => run!(l1d.shaped::<2, true>(), l2.shaped::<2, true>(), llc.shaped::<1, false>()),
                    ((2, 3), 1) => run!(l1d.shaped::<2, true>(), l2.shaped::<3, true>(), llc.shaped::<1, false>()),
                    _ => run!(l1d, l2, llc),
                },
                Lines::Long(llc) => match (rows, llc.stride()) {
                    ((1, 1), 2) => run!(l1d.shaped::<1, true>(), l2.shaped::<1, true>(), llc.shaped::<2, false>()),
                    ((1, 1), 3) => run!(l1d.shaped::<1, true>(), l2.shaped::<1, true>(), llc.shaped::<3, false>()),
                    ((1, 2), 2) => run!(l1d.shaped::<1, true>(), l2.shaped::<2, true>(), llc.shaped::<2, false>()),
                    ((2, 2), 2) => run!(l1d.shaped::<2, true>(), l2.shaped::<2, true>(), llc.shaped::<2, false>()),
                    ((2, 3), 2) => run!(l1d.shaped::<2, true>(), l2.shaped::<3, true>(), llc.shaped::<2, false>()),
                    _ => run!(l1d, l2, llc),
                },
            }
        } else {
            match lines {
                Lines::Short(llc) => run!(l1d, l2, llc),
                Lines::Long(llc) => run!(l1d, l2, llc),
            }
        };
        // These caches have heard of each eviction at once.
        *heard = evictions.count();
        output
    }

    /// How many references are worth what it costs to play them level by level: a copy of the
    /// private caches under an inclusive `llc`, and a few lists.
    #[inline(always)]
    pub(crate) fn least_level_by_level(&self, llc: &Llc) -> usize {
        let copied = if llc.policy == LlcPolicy::Inclusive { self.l1d.set_count() + self.l2.set_count() } else { 0 };
        copied / 4 + 32
    }

    /// Hears of what an inclusive last level evicted since this core ran last.
    #[inline(always)]
    pub(crate) fn synchronise<S: Simd>(&mut self, simd: S, llc: &Llc) {
        match llc.evictions.since(self.heard) {
            // A line may have come back for another core meanwhile; our copy went all the same.
            Some(lines) => lines.for_each(|line| {
                let gone = Victim::of(line);
                (&mut self.l1d).drop(simd, gone);
                (&mut self.l2).drop(simd, gone);
            }),
            None => {
                self.l1d.retain(|line| llc.contains(line));
                self.l2.retain(|line| llc.contains(line));
            }
        }
        self.heard = llc.evictions.count();
    }

    /// First-level data cache.
    pub fn l1d(&self) -> &Cache {
        &self.l1d
    }

    /// Second-level cache.
    pub fn l2(&self) -> &Cache {
        &self.l2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CacheConfig;
    use crate::simd::Plain;
    use proptest::prelude::*;

    struct Access(u64);

    impl Task for Access {
        type Output = Served;

        const SHAPED: bool = true;

        fn run<A: Private, B: Private, C: Level>(self, mut caches: Hierarchy<'_, A, B, C>) -> Served {
            caches.access(Plain, self.0)
        }
    }

    fn config(policy: LlcPolicy) -> MmuConfig {
        let mut config: MmuConfig = toml::from_str(include_str!("../tests/machine.toml")).unwrap();
        config.l1d = CacheConfig { bytes: 4 * 64, ways: 2, latency_cycles: 4 };
        config.l2 = CacheConfig { bytes: 9 * 64, ways: 3, latency_cycles: 12 };
        (config.llc.bytes, config.llc.ways, config.llc.policy) = (20 * 64, 4, policy);
        config
    }

    /// A level: sets of lines, the latest first.
    struct NaiveLevel(Vec<Vec<u64>>, usize);

    impl NaiveLevel {
        fn take(&mut self, line: u64) -> bool {
            let index = (line % self.0.len() as u64) as usize;
            let before = self.0[index].len();
            self.0[index].retain(|&there| there != line);
            self.0[index].len() < before
        }

        fn put(&mut self, line: u64) -> Option<u64> {
            let index = (line % self.0.len() as u64) as usize;
            let set = &mut self.0[index];
            set.insert(0, line);
            (set.len() > self.1).then(|| set.pop().unwrap())
        }
    }

    /// Two cores over one last level, step by step as the policies' definitions read.
    struct Naive {
        policy: LlcPolicy,
        cores: Vec<(NaiveLevel, NaiveLevel)>,
        llc: NaiveLevel,
    }

    impl Naive {
        fn access(&mut self, core: usize, line: u64) -> Served {
            let (l1d, l2) = &mut self.cores[core];
            let in_l1d = l1d.take(line);
            l1d.put(line);
            if in_l1d {
                return Served::L1d;
            }
            let in_l2 = l2.take(line);
            let victim = l2.put(line);
            if in_l2 {
                return Served::L2;
            }
            let in_llc = self.llc.take(line);
            let comes = if self.policy == LlcPolicy::Exclusive { victim } else { Some(line) };
            if let Some(comes) = comes {
                self.llc.take(comes);
                let gone = self.llc.put(comes);
                if self.policy == LlcPolicy::Inclusive
                    && let Some(gone) = gone
                {
                    for (l1d, l2) in &mut self.cores {
                        l1d.take(gone);
                        l2.take(gone);
                    }
                }
            }
            if in_llc { Served::Llc } else { Served::Memory }
        }
    }

    proptest! {
        #[test]
        fn caches_of_every_policy_are_as_defined(
            policy in prop::sample::select(vec![LlcPolicy::NonInclusive, LlcPolicy::Inclusive, LlcPolicy::Exclusive]),
            uses in prop::collection::vec((0_usize..2, 0_u64..60), 1..2000),
            // From there on lines lie where the last level's tags stop to be short.
            near in 0_usize..2000,
        ) {
            let config = config(policy);
            let level = |sets: usize, ways| NaiveLevel(vec![Vec::new(); sets], ways);
            let cores = vec![(level(2, 2), level(3, 3)), (level(2, 2), level(3, 3))];
            let mut naive = Naive { policy, cores, llc: level(5, 4) };
            let mut llc = Llc::new(&config).unwrap();
            let mut cores = [PrivateCaches::new(&config).unwrap(), PrivateCaches::new(&config).unwrap()];
            for (number, (core, line)) in uses.into_iter().enumerate() {
                let line = if number < near { line } else { line + 5 * 0xffff - 40 };
                cores[core].synchronise(Plain, &llc);
                prop_assert_eq!(cores[core].with(&mut llc, line, Access(line)), naive.access(core, line));
            }
            match &llc.lines {
                Lines::Short(cache) => cache.check_invariants(),
                Lines::Long(cache) => cache.check_invariants(),
            }
            for core in &mut cores {
                core.synchronise(Plain, &llc);
                core.l1d.check_invariants();
                core.l2.check_invariants();
                if policy == LlcPolicy::Inclusive {
                    for cache in [&core.l1d, &core.l2] {
                        (0..cache.set_count()).flat_map(|set| cache.lines_of(set)).for_each(|line| {
                            assert!(llc.contains(line), "line {line} is not in the last level");
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn a_core_that_slept_long_hears_of_every_eviction() {
        let mut config = config(LlcPolicy::Inclusive);
        config.l2.bytes = 64 * 3 * 64;
        let mut llc = Llc::new(&config).unwrap();
        let mut sleeper = PrivateCaches::new(&config).unwrap();
        let mut busy = PrivateCaches::new(&config).unwrap();
        sleeper.with(&mut llc, 1, Access(1));
        sleeper.with(&mut llc, 2, Access(2));
        for line in 100..100 + 3 * Evictions::KEPT as u64 {
            busy.with(&mut llc, line, Access(line));
            // Line 2 stays in use.
            busy.l1d.clear();
            busy.l2.clear();
            busy.with(&mut llc, 2, Access(2));
        }
        sleeper.synchronise(Plain, &llc);
        assert!(!sleeper.l1d.contains(1) && !sleeper.l2.contains(1));
        assert!(sleeper.l1d.contains(2) && sleeper.l2.contains(2));
    }
}
