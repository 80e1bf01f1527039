// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which accesses of a measuring phase are simulated in detail.
//!
//! Without a period all are measured. With one, every period has a stretch that only the TLBs see
//! (so that their contents are exact), one that warms the caches and one that is measured. A seeded
//! random start keeps a program's own period from biasing the sample.

use nestwalk_workload::Phase;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::scenario::Sampling;

/// What is done with a stretch of accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stretch {
    /// Only the TLBs see it.
    Skip,
    /// All is simulated and nothing counted.
    Warm,
    /// All is simulated and counted.
    Measure,
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    /// The position in the period of the next access of a measuring phase.
    position: u64,
    measured: u64,
}

impl Sampler {
    /// A sampler that begins at a random place of its period.
    pub fn new(sampling: Sampling, seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let position = sampling.period.map_or(0, |period| random.next_u64() % period);
        Self { sampling, position, measured: 0 }
    }

    /// What to do with the next accesses of `phase`, and with how many of them, at least one.
    pub fn next(&self, phase: Phase) -> (Stretch, u64) {
        match phase {
            Phase::Populate => (Stretch::Skip, u64::MAX),
            Phase::Warm => (Stretch::Warm, u64::MAX),
            Phase::Measure => self.place(),
        }
    }

    /// Records that this was done with the next `length` accesses of `phase`. They may be more than
    /// requested, where an access stands for several.
    pub fn advance(&mut self, phase: Phase, stretch: Stretch, length: u64) {
        if phase == Phase::Measure {
            self.position += length;
            if stretch == Stretch::Measure {
                self.measured += length;
            }
        }
    }

    /// What the present position asks for, and for how many more accesses.
    fn place(&self) -> (Stretch, u64) {
        let Sampling {
            period,
            warm,
            measure,
            measured_accesses_max,
            filter: _,
            window: _,
            warm_accesses_max: _,
            warm_accesses_min: _,
            lapse_ms: _,
        } = self.sampling;
        let wanted = measured_accesses_max.map_or(u64::MAX, |max| (max - self.measured.min(max)).max(1));
        let Some(period) = period else { return (Stretch::Measure, wanted) };
        let at = self.position % period;
        let warm_from = period - measure - warm;
        let measure_from = period - measure;
        if at < warm_from {
            (Stretch::Skip, warm_from - at)
        } else if at < measure_from {
            (Stretch::Warm, measure_from - at)
        } else {
            (Stretch::Measure, wanted.min(period - at))
        }
    }

    /// Whether as many accesses were measured as the scenario allows.
    pub fn is_done(&self) -> bool {
        self.sampling.measured_accesses_max.is_some_and(|max| self.measured >= max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(sampler: &mut Sampler, accesses: u64) -> [u64; 3] {
        let mut counts = [0; 3];
        let mut left = accesses;
        while left > 0 {
            let (stretch, length) = sampler.next(Phase::Measure);
            let length = length.min(left).min(7);
            sampler.advance(Phase::Measure, stretch, length);
            counts[stretch as usize] += length;
            left -= length;
        }
        counts
    }

    #[test]
    fn each_period_has_its_three_stretches() {
        let sampling = Sampling { period: Some(100), warm: 20, measure: 5, ..Default::default() };
        assert_eq!(shares(&mut Sampler::new(sampling, 3), 1000), [750, 200, 50]);
    }

    #[test]
    fn without_a_period_all_is_measured_up_to_the_limit() {
        let sampling = Sampling { measured_accesses_max: Some(30), ..Default::default() };
        let mut sampler = Sampler::new(sampling, 3);
        assert_eq!(sampler.next(Phase::Warm), (Stretch::Warm, u64::MAX));
        sampler.advance(Phase::Warm, Stretch::Warm, 99);
        assert_eq!(sampler.next(Phase::Measure), (Stretch::Measure, 30));
        sampler.advance(Phase::Measure, Stretch::Measure, 29);
        assert!(!sampler.is_done());
        sampler.advance(Phase::Measure, Stretch::Measure, 5);
        assert!(sampler.is_done(), "one access may stand for several");
    }

    #[test]
    fn the_start_depends_on_the_seed_only() {
        let sampling = Sampling { period: Some(1 << 40), warm: 1, measure: 1, ..Default::default() };
        let start = |seed| Sampler::new(sampling, seed).position;
        assert_eq!(start(5), start(5));
        assert_ne!(start(5), start(6));
    }
}
