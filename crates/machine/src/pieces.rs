// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters of a run's measured stretches, piece by piece.
//!
//! A piece begins and ends with a snapshot of all counters; the run's counters are the sum of the
//! differences.

use nestwalk_mem::Cycles;
use nestwalk_mmu::Counters;
use nestwalk_workload::{Modelled, WorkloadFacts};

use crate::configuration::Configuration;
use crate::machine::{Machine, TenantId};
use crate::meter::{Work, since};
use crate::scenario::MachineConfig;
use crate::waiting::{Sampled, Shares};
use crate::windows::{CyclesByPart, Latency, Window, Windows};

/// Windows into which a run without windows of its own is cut: enough for batches of several
/// ([`crate::estimate`]).
const PIECES: u64 = 80;

/// Accesses of such a window when their total is not known.
const PIECE_ACCESSES_UNKNOWN: u64 = 1 << 20;

/// See the [module](self).
pub(crate) struct Pieces {
    windows: Windows,
    /// Whether the scenario gives a piece's length. Only then it is exact to the access; otherwise
    /// cutting a batch would gain nothing.
    exact: bool,
    /// What had been counted when the present piece began.
    start: Option<Start>,
    /// Accesses since it began.
    accesses: u64,
    instructions: u64,
    counters: Counters,
    work: Work,
    /// What the model of a capture counted of all that the windows are a sample of.
    program: Option<Modelled>,
}

/// A snapshot at the beginning of a piece.
struct Start {
    counters: Counters,
    work: Work,
    sampled: Sampled,
    instructions: u64,
}

/// All measured pieces.
pub(crate) struct Measured {
    pub counters: Counters,
    /// What the kernels did meanwhile.
    pub work: Work,
    pub windows: Vec<Window>,
    /// How much of its waiting the program hides, if that was sampled.
    pub waiting: Option<Shares>,
    /// What the model of a capture counted of all that they are a sample of.
    pub modelled_program: Option<Modelled>,
}

impl Pieces {
    /// Nothing measured yet of a workload of which these `facts` are known.
    pub fn new(configuration: &Configuration, facts: &WorkloadFacts) -> Self {
        let window = configuration.scenario.sampling.window;
        let equal = || facts.accesses.map_or(PIECE_ACCESSES_UNKNOWN, |total| total.div_ceil(PIECES));
        Self {
            windows: Windows::new(window.unwrap_or_else(equal), facts.modelled.clone()),
            program: facts.modelled.as_ref().map(|sample| sample.program),
            exact: window.is_some(),
            start: None,
            accesses: 0,
            instructions: 0,
            counters: Counters::default(),
            work: Work::default(),
        }
    }

    /// Another window of the program's begins.
    pub fn begin_window(&mut self) {
        self.windows.begin();
    }

    /// Accesses that the present piece has room for.
    pub fn room(&self) -> u64 {
        let all = self.windows.piece_accesses_max();
        match &self.start {
            // Where accesses stand for several, a piece may be longer than it should be.
            Some(_) if self.exact => all.saturating_sub(self.accesses).max(1),
            _ => all,
        }
    }

    /// What comes is measured: a piece begins, unless one has.
    pub fn begin(&mut self, machine: &Machine, id: TenantId) {
        if self.start.is_none() {
            self.accesses = 0;
            let counters = machine.counters(id).unwrap_or_default();
            let (work, sampled) = (*machine.tenant(id).family.work(), machine.tenant(id).sampled());
            self.start = Some(Start { counters, work, sampled, instructions: self.instructions });
        }
    }

    /// So many accesses were measured. Whether the piece is full.
    pub fn count(&mut self, accesses: u64, instructions: u64) -> bool {
        self.instructions += instructions;
        self.accesses += accesses;
        self.accesses >= self.windows.piece_accesses_max()
    }

    /// What comes is not measured, or belongs to the next piece.
    pub fn end(&mut self, machine: &Machine, id: TenantId, config: &MachineConfig) {
        let Some(start) = self.start.take() else { return };
        let counted = machine.counters(id).unwrap_or_default().minus(&start.counters);
        let work = since(machine.tenant(id).family.work(), &start.work);
        let os = machine.cycles_of(id, &work);
        let sampled = machine.tenant(id).sampled().minus(&start.sampled);
        let window = window(config, &counted, self.instructions - start.instructions, os);
        self.windows.add(Window { latency: Latency { sampled, ..window.latency }, ..window });
        self.work.iter_mut().zip(&work).for_each(|(sum, done)| sum.add(done));
        self.counters = self.counters.plus(&counted);
    }

    /// All of them.
    pub fn finish(self) -> Measured {
        let mut windows = self.windows.finish();
        let sampled = windows.iter().fold(Sampled::default(), |sum, window| sum.plus(&window.latency.sampled));
        if sampled.accesses > 0 {
            windows = windows.into_iter().map(|window| window.timed(&sampled)).collect();
        }
        Measured {
            counters: self.counters,
            work: self.work,
            windows,
            waiting: sampled.shares(),
            modelled_program: self.program,
        }
    }
}

/// What was counted, with the time that it took, `os` of it in the kernels.
pub(crate) fn window(machine: &MachineConfig, counted: &Counters, instructions: u64, os: Cycles) -> Window {
    let timing = &machine.timing;
    let data = counted.data_waits(&machine.mmu);
    Window {
        accesses: counted.tlb.accesses,
        instructions,
        walks: counted.tlb.walks(),
        walk_cycles: counted.walk_cycles,
        walk_references: counted.walk_events.total_references(),
        cycles: CyclesByPart {
            work: timing.work(instructions).0,
            data: timing.data(data).0,
            walk: timing.walk(Cycles(counted.walk_cycles)).0,
            os: os.0,
        },
        modelled: None,
        latency: Latency { data: data.0, sampled: Sampled::default() },
    }
}
