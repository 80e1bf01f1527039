// SPDX-License-Identifier: MIT OR Apache-2.0
//! The MMU overhead of processes, as HawkEye's companion in user mode measures it with a
//! processor's counters (`update_translation_overhead` of x86-MMU-Profiler) and tells the kernel
//! (`update_mm_ohp_stats`): cycles of walks, of loads and stores, in 100 cycles of the program in
//! user mode, over a second in ten. Two of the 100 are taken off. A process with little anonymous
//! memory is not measured.
//!
//! The machine, which simulates the processors, tells the counters
//! ([`Process::walk_time`](crate::state::process::Process::walk_time)). A process that has not run
//! while it was measured keeps what is known of it.

use std::collections::BTreeMap;

use nestwalk_mem::{Nanoseconds, PageCount};

use super::{HawkEyeConfig, Metric};
use crate::context::Context;
use crate::error::OsError;
use crate::manager::scan::anonymous;
use crate::state::process::{ProcessId, WalkTime};

/// Overhead that is not worth a huge page, per cent.
const SMALL: u64 = 2;
/// Overheads for each huge page are kept in parts of a per cent (`mm_ohp_weight`).
const PARTS: u64 = 10_000;

/// What is known of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Its counters when the measurement that is going on began.
    began: Option<WalkTime>,
    /// Its overhead beyond what is small, per cent.
    weight: u64,
    /// The round that was its own last.
    round: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Overhead {
    sleep: Nanoseconds,
    length: Nanoseconds,
    least: PageCount,
    known: BTreeMap<ProcessId, Known>,
    is_measuring: bool,
    wakes_at: Nanoseconds,
    rounds: u64,
}

/// Per cent of the cycles of `more` that were spent on walks, less what is small; `None` if it has
/// not run.
fn weight(more: WalkTime) -> Option<u64> {
    let percent = (more.walk_cycles * 100).checked_div(more.cycles)?;
    Some(percent.min(100).saturating_sub(SMALL))
}

impl Overhead {
    pub(super) fn new(config: &HawkEyeConfig) -> Self {
        Self {
            sleep: Nanoseconds::from_ms(config.measure_sleep_ms),
            length: Nanoseconds::from_ms(config.measure_ms),
            least: config.measured_min,
            known: BTreeMap::new(),
            is_measuring: false,
            wakes_at: Nanoseconds::default(),
            rounds: 0,
        }
    }

    /// Begins or ends a measurement, if it is time to. Whether one has ended.
    pub(super) fn tick(&mut self, cx: &Context<'_>) -> Result<bool, OsError> {
        if cx.state.now < self.wakes_at {
            return Ok(false);
        }
        let ends = self.is_measuring;
        self.wakes_at = cx.state.now + if ends { self.sleep } else { self.length };
        self.is_measuring = !ends;
        if ends {
            self.end(cx)?
        } else {
            self.begin(cx)
        }
        Ok(ends)
    }

    fn begin(&mut self, cx: &Context<'_>) {
        for (process, space) in cx.state.processes.iter() {
            self.known.entry(process).or_default().began = Some(space.walk_time);
        }
    }

    fn end(&mut self, cx: &Context<'_>) -> Result<(), OsError> {
        for (&process, known) in &mut self.known {
            let (Some(began), Ok(space)) = (known.began.take(), cx.state.processes.get(process)) else { continue };
            let now = space.walk_time;
            let more = WalkTime { walk_cycles: now.walk_cycles - began.walk_cycles, cycles: now.cycles - began.cycles };
            if let Some(weight) = weight(more) {
                let large = anonymous(cx.state, process)?.pages > self.least.0;
                known.weight = if large { weight } else { 0 };
            }
        }
        Ok(())
    }

    /// The process whose overhead is the highest of those with regions that wait; of equal ones
    /// that whose turn is longest ago (`ohp_get_target_mm`).
    pub(super) fn heaviest(
        &mut self,
        pending: impl Iterator<Item = (ProcessId, u64)>,
        metric: Metric,
    ) -> Option<ProcessId> {
        let weighed = pending.filter_map(|(process, pending)| {
            let Known { weight, round, .. } = *self.known.get(&process)?;
            let weight = if metric == Metric::Overhead { weight } else { weight * PARTS / pending };
            (weight > 0).then_some((process, weight, round))
        });
        let (process, ..) =
            weighed.min_by_key(|&(process, weight, round)| (std::cmp::Reverse(weight), round, process))?;
        self.rounds += 1;
        self.known.entry(process).or_default().round = self.rounds;
        Some(process)
    }

    pub(super) fn forget(&mut self, process: ProcessId) {
        self.known.remove(&process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overhead_is_the_share_of_walk_cycles_less_two_per_cent() {
        let of = |walk_cycles, cycles| weight(WalkTime { walk_cycles, cycles });
        assert_eq!([of(30, 100), of(3, 100), of(2, 100), of(1, 200)], [28, 1, 0, 0].map(Some));
        assert_eq!(of(7, 0), None, "it has not run");
        assert_eq!(of(500, 100), Some(98), "walks may overlap");
    }

    fn known(weights: &[(u16, u64)]) -> Overhead {
        let mut overhead = Overhead::new(&HawkEyeConfig::default());
        let known = |&(process, weight)| (ProcessId(process), Known { weight, ..Known::default() });
        overhead.known = weights.iter().map(known).collect();
        overhead
    }

    #[test]
    fn equal_overheads_take_turns_and_none_has_no_turn() {
        let mut overhead = known(&[(1, 5), (2, 0), (3, 5), (4, 4)]);
        let pending = [1, 2, 3, 4].map(|process| (ProcessId(process), 10));
        let turns: Vec<_> =
            (0..4).filter_map(|_| overhead.heaviest(pending.into_iter(), Metric::Overhead)).map(|id| id.0).collect();
        assert_eq!(turns, [1, 3, 1, 3]);
        assert_eq!(overhead.heaviest([(ProcessId(2), 10)].into_iter(), Metric::Overhead), None);
    }

    #[test]
    fn for_each_huge_page_a_small_process_may_come_first() {
        let pending = [(ProcessId(1), 100), (ProcessId(2), 10)];
        let first = |metric| known(&[(1, 20), (2, 5)]).heaviest(pending.into_iter(), metric);
        assert_eq!(first(Metric::Overhead), Some(ProcessId(1)));
        assert_eq!(first(Metric::OverheadPerHugePage), Some(ProcessId(2)));
    }
}
