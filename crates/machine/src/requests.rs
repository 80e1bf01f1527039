// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a server takes for each of its requests, where the program tells them apart
//! ([`Batch::requests`](nestwalk_workload::Batch::requests)).
//!
//! The time of a request is that of its instructions and of the kernels' work in it, and what it
//! waits for data and walks. Of a request whose pages are only touched, the last is not known: it
//! takes the mean of the last requests in a row that were simulated in full. What daemons do
//! meanwhile is in no request, as they run on other processors.

use nestwalk_mem::Cycles;
use nestwalk_mmu::{Counters, MmuConfig};
use schemars::JsonSchema;
use serde::Serialize;

use crate::scenario::MachineConfig;

/// Requests in an element of [`Requests::series_cycles`].
const SERIES: usize = 128;

/// The requests of a server: how long it took for each, waiting in a queue not included.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Requests {
    /// All that were measured.
    pub count: u64,
    /// Those of them that were simulated in full. The others' pages were touched, and they waited
    /// for data and walks as the last of these did on average.
    pub detailed: u64,
    /// Their time together.
    pub cycles: u64,
    /// The time that half of them do not exceed.
    pub cycles_p50: u64,
    /// The time that 95 % of them do not exceed.
    pub cycles_p95: u64,
    /// The time that 99 % of them do not exceed.
    pub cycles_p99: u64,
    /// The longest time of one.
    pub cycles_max: u64,
    /// How many requests each element of `series_cycles` has; the last one may have fewer.
    pub series_requests: u64,
    /// The time of so many requests in a row, from the first to the last.
    pub series_cycles: Vec<u64>,
}

/// What a thread has done of a request that is under way.
#[derive(Clone, Copy, Default)]
struct Open {
    cycles: u64,
    /// Of these, those of waiting for data and walks.
    waits: u64,
    /// Whether its beginning was not measured.
    is_cut: bool,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Recorder {
    cycles: Vec<u64>,
    detailed: u64,
    /// By thread.
    open: Vec<Open>,
    /// Whether requests may be under way of threads that are not in `open`.
    is_cut: bool,
    /// Waits of the last requests in a row that were simulated in full, and their number.
    waits: (u64, u64),
    /// Whether requests whose pages are only touched have come since.
    touched: bool,
}

impl Recorder {
    /// Forgets what is under way: its beginning was not measured.
    pub fn restart(&mut self) {
        self.open.clear();
        self.is_cut = true;
    }

    /// A thread has gone on with a request: its instructions and kernel work took `cycles`, and it
    /// waited for what was `counted` meanwhile.
    pub fn go_on(&mut self, thread: u16, machine: &MachineConfig, cycles: Cycles, counted: &Waits) {
        let thread = usize::from(thread);
        if self.open.len() <= thread {
            self.open.resize(thread + 1, Open { is_cut: self.is_cut, ..Open::default() });
        }
        let waits = counted.cycles(machine);
        self.open[thread].cycles += cycles.0 + waits;
        self.open[thread].waits += waits;
    }

    /// The request of that thread has ended.
    pub fn end(&mut self, thread: u16) {
        let Some(open) = self.open.get_mut(usize::from(thread)) else { return };
        let Open { cycles, waits, is_cut } = std::mem::take(open);
        if is_cut {
            return;
        }
        if std::mem::take(&mut self.touched) {
            self.waits = (0, 0);
        }
        self.waits = (self.waits.0 + waits, self.waits.1 + 1);
        self.cycles.push(cycles);
        self.detailed += 1;
    }

    /// A request whose pages were touched, with instructions and kernel work of so many cycles.
    pub fn touched(&mut self, cycles: Cycles) {
        self.touched = true;
        self.cycles.push(cycles.0 + self.waits.0 / self.waits.1.max(1));
    }

    /// All of them; `None` if no request was told apart.
    pub fn finish(self) -> Option<Requests> {
        let Self { mut cycles, detailed, .. } = self;
        let series_cycles = cycles.chunks(SERIES).map(|some| some.iter().sum()).collect();
        cycles.sort_unstable();
        let longest = *cycles.last()?;
        let quantile = |percent: usize| cycles[(cycles.len() * percent).div_ceil(100).max(1) - 1];
        Some(Requests {
            count: cycles.len() as u64,
            detailed,
            cycles: cycles.iter().sum(),
            cycles_p50: quantile(50),
            cycles_p95: quantile(95),
            cycles_p99: quantile(99),
            cycles_max: longest,
            series_requests: SERIES as u64,
            series_cycles,
        })
    }
}

/// What a program has waited for until some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Waits {
    /// For data ([`Counters::data_waits`]).
    data_cycles: u64,
    walk_cycles: u64,
}

impl Waits {
    /// What these counters, of a core of `config`, have of it.
    pub fn of(counters: &Counters, config: &MmuConfig) -> Self {
        Self { data_cycles: counters.data_waits(config).0, walk_cycles: counters.walk_cycles }
    }

    /// What has come since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            data_cycles: self.data_cycles - earlier.data_cycles,
            walk_cycles: self.walk_cycles - earlier.walk_cycles,
        }
    }

    fn cycles(&self, machine: &MachineConfig) -> u64 {
        let timing = &machine.timing;
        timing.data(Cycles(self.data_cycles)).0 + timing.walk(Cycles(self.walk_cycles)).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine_config;

    fn waits(walk_cycles: u64) -> Waits {
        Waits { data_cycles: 0, walk_cycles }
    }

    #[test]
    fn quantiles_and_series_are_those_of_all_requests() {
        let mut recorder = Recorder::default();
        (1..=300).for_each(|cycles| recorder.touched(Cycles(cycles)));
        let found = recorder.finish().unwrap();
        assert_eq!((found.count, found.detailed, found.cycles), (300, 0, 300 * 301 / 2));
        assert_eq!((found.cycles_p50, found.cycles_p95, found.cycles_p99, found.cycles_max), (150, 285, 297, 300));
        let sum = |range: std::ops::RangeInclusive<u64>| range.sum::<u64>();
        assert_eq!(found.series_cycles, [sum(1..=128), sum(129..=256), sum(257..=300)]);
        assert_eq!(Recorder::default().finish(), None);
    }

    #[test]
    fn what_is_touched_waits_as_the_last_that_were_simulated() {
        let (machine, mut recorder) = (machine_config(), Recorder::default());
        let walk = |cycles| machine.timing.walk(Cycles(cycles)).0;
        for (walks, touched) in [([1000, 3000], 1), ([50_000, 70_000], 2)] {
            for cycles in walks {
                // In two parts, with another thread between them.
                recorder.go_on(0, &machine, Cycles(30), &waits(cycles));
                recorder.go_on(1, &machine, Cycles(9), &waits(0));
                recorder.go_on(0, &machine, Cycles(70), &waits(0));
                recorder.end(0);
            }
            (0..touched).for_each(|_| recorder.touched(Cycles(5)));
        }
        let expected = [100 + walk(1000), 100 + walk(3000), 5 + walk(2000)];
        assert_eq!(recorder.cycles[..3], expected);
        assert_eq!(recorder.cycles[5..], [5 + walk(60_000); 2], "not of those before");
        recorder.restart();
        for expected in [7, 8] {
            recorder.go_on(1, &machine, Cycles(70), &waits(0));
            recorder.end(1);
            assert_eq!(recorder.cycles.len(), expected, "a request whose beginning was not measured is none");
        }
    }
}
