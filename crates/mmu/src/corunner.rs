// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other hardware thread of the core, as ASAP's evaluation has it (section 5.1 of that paper):
//! for each access of the program it issues one access to a random address, which contends for the
//! caches but not for TLBs or page-walk caches.

use nestwalk_mem::Hpa;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::engine::SeenBy;
use crate::llc::Llc;

/// Who else uses the core's data caches.
pub trait CoRunner {
    /// Whether it ever does anything: `false` compiles it away.
    const ACTIVE: bool;

    /// Where its next access goes. Must lie above all physical memory, so that it cannot alias a
    /// real frame.
    fn next(&mut self) -> Hpa;

    /// What sees the accesses of a core with `llc`: its caches, which this uses as well.
    fn seen_by<'a>(&'a mut self, llc: &'a mut Llc) -> SeenBy<'a>;
}

/// No co-runner.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCoRunner;

impl CoRunner for NoCoRunner {
    const ACTIVE: bool = false;

    #[inline(always)]
    fn next(&mut self) -> Hpa {
        Hpa(0)
    }

    fn seen_by<'a>(&'a mut self, llc: &'a mut Llc) -> SeenBy<'a> {
        SeenBy::Caches(llc)
    }
}

/// Uniformly random lines of a space that begins where physical memory ends.
#[derive(Clone, Debug)]
pub struct RandomCoRunner {
    first_line: u64,
    lines: u64,
    random: Xoshiro256PlusPlus,
}

impl RandomCoRunner {
    /// A co-runner with a data set of `bytes` at `memory_end`, the end of physical memory.
    ///
    /// # Panics
    /// When `bytes` is less than a line.
    pub fn new(memory_end: Hpa, bytes: u64, seed: u64) -> Self {
        let lines = bytes >> nestwalk_mem::addr::LINE_SHIFT;
        assert!(lines > 0, "a co-runner's data set has at least one line");
        let first_line = memory_end.0.div_ceil(crate::config::LINE_BYTES);
        Self { first_line, lines, random: Xoshiro256PlusPlus::seed_from_u64(seed) }
    }

    /// One past the highest address that it uses: see
    /// [`MmuConfig::validate_memory`](crate::MmuConfig::validate_memory).
    pub fn end(&self) -> Hpa {
        Hpa((self.first_line + self.lines) << nestwalk_mem::addr::LINE_SHIFT)
    }
}

impl CoRunner for RandomCoRunner {
    const ACTIVE: bool = true;

    #[inline]
    fn next(&mut self) -> Hpa {
        let scaled = u128::from(self.random.next_u64()) * u128::from(self.lines);
        Hpa((self.first_line + (scaled >> 64) as u64) << nestwalk_mem::addr::LINE_SHIFT)
    }

    fn seen_by<'a>(&'a mut self, llc: &'a mut Llc) -> SeenBy<'a> {
        SeenBy::CachesBeside(llc, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_co_runner_never_touches_physical_memory() {
        let memory_end = Hpa((1 << 30) + 4096);
        let mut corunner = RandomCoRunner::new(memory_end, 1 << 20, 7);
        let end = corunner.end();
        for _ in 0..100_000 {
            let hpa = corunner.next();
            assert!(memory_end <= hpa && hpa < end, "{hpa:?} lies outside {memory_end:?}..{end:?}");
        }
    }
}
