// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other hardware thread of the core, as ASAP's evaluation has it (section 5.1 of that paper):
//! for each access of the program it issues one access to a random address, which contends for the
//! caches but not for TLBs or page-walk caches.

use nestwalk_mem::Hpa;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Uniformly random lines of a space that begins where physical memory ends, so that none of them
/// aliases a real frame.
#[derive(Clone, Debug)]
pub struct CoRunner {
    first_line: u64,
    lines: u64,
    random: Xoshiro256PlusPlus,
}

impl CoRunner {
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

    /// Where its next access goes.
    #[inline]
    pub fn next_access(&mut self) -> Hpa {
        let scaled = u128::from(self.random.next_u64()) * u128::from(self.lines);
        Hpa((self.first_line + (scaled >> 64) as u64) << nestwalk_mem::addr::LINE_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_co_runner_never_touches_physical_memory() {
        let memory_end = Hpa((1 << 30) + 4096);
        let mut corunner = CoRunner::new(memory_end, 1 << 20, 7);
        let end = corunner.end();
        for _ in 0..100_000 {
            let hpa = corunner.next_access();
            assert!(memory_end <= hpa && hpa < end, "{hpa:?} lies outside {memory_end:?}..{end:?}");
        }
    }
}
