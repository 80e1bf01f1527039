// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a processor's counters say of a program's walks and cycles while it runs, for kernels that
//! go by them (HawkEye's measured MMU overhead).
//!
//! Where only the TLBs see accesses, their walks are taken to last as long as the program's walks
//! did where all was simulated, and their data to come as fast; before any was, as long as a
//! reference that the last-level cache serves. Cycles are those in user mode.

use nestwalk_mem::Cycles;
use nestwalk_mmu::{Counters, MmuConfig};
use nestwalk_os::WalkTime;

use crate::timing::Timing;

/// What had been counted of a program when its kernels were told last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counted {
    instructions: u64,
    accesses: u64,
    walks: u64,
    walk_cycles: u64,
    /// Of data ([`Counters::data_waits`]).
    data_cycles: u64,
    /// The same of accesses that only the TLBs saw.
    functional_accesses: u64,
    functional_walks: u64,
}

impl Counted {
    /// Of `instructions`, and accesses that counted so much on a core of `config`.
    pub fn new(instructions: u64, counters: &Counters, config: &MmuConfig) -> Self {
        Self {
            instructions,
            accesses: counters.tlb.accesses,
            walks: counters.tlb.walks(),
            walk_cycles: counters.walk_cycles,
            data_cycles: counters.data_waits(config).0,
            functional_accesses: counters.functional.accesses,
            functional_walks: counters.functional.walks(),
        }
    }

    /// What happened since `earlier`, in cycles of the walks and of the program.
    pub fn since(&self, earlier: &Self, config: &MmuConfig, timing: &Timing) -> WalkTime {
        let each = |sum: u64, of: u64, count: u64, unknown: u64| match of {
            0 => count * unknown,
            _ => (u128::from(sum) * u128::from(count) / u128::from(of)) as u64,
        };
        let unseen = self.functional_walks - earlier.functional_walks;
        let walk_cycles = self.walk_cycles - earlier.walk_cycles
            + each(self.walk_cycles, self.walks, unseen, config.llc.latency_cycles.into());
        let unseen = self.functional_accesses - earlier.functional_accesses;
        let data_cycles = self.data_cycles - earlier.data_cycles + each(self.data_cycles, self.accesses, unseen, 0);
        let work = timing.work(self.instructions - earlier.instructions);
        let cycles = work + timing.data(Cycles(data_cycles)) + timing.walk(Cycles(walk_cycles));
        WalkTime { walk_cycles, cycles: cycles.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine_config;

    #[test]
    fn walks_that_were_not_simulated_last_as_long_as_those_that_were() {
        let machine = machine_config();
        let timing = Timing { data_overlap_permille: 0, walk_critical_permille: 1000, ..machine.timing };
        let begun = Counted::default();
        let simulated = Counted { accesses: 100, walks: 10, walk_cycles: 700, data_cycles: 400, ..begun };
        let seen = |now: &Counted, earlier: &Counted| now.since(earlier, &machine.mmu, &timing);
        assert_eq!(seen(&simulated, &begun), WalkTime { walk_cycles: 700, cycles: 1100 });
        let later = Counted { functional_accesses: 50, functional_walks: 5, ..simulated };
        assert_eq!(seen(&later, &simulated), WalkTime { walk_cycles: 350, cycles: 550 });
        let unknown = Counted { functional_accesses: 50, functional_walks: 5, ..begun };
        let llc = u64::from(machine.mmu.llc.latency_cycles);
        assert_eq!(seen(&unknown, &begun), WalkTime { walk_cycles: 5 * llc, cycles: 5 * llc });
        assert_eq!(seen(&later, &later), WalkTime::default());
    }

    #[test]
    fn instructions_take_their_time_though_nothing_walks() {
        let machine = machine_config();
        let now = Counted { instructions: 1_000_000, ..Counted::default() };
        let time = now.since(&Counted::default(), &machine.mmu, &machine.timing);
        assert_eq!(time.walk_cycles, 0);
        assert_eq!(time.cycles, machine.timing.work(1_000_000).0);
    }
}
