// SPDX-License-Identifier: MIT OR Apache-2.0
//! What makes a tenant the measured one: it says which of its accesses are looked at closely, and
//! keeps what was counted meanwhile.

use nestwalk_mem::{Cycles, Nanoseconds};
use nestwalk_mmu::Counters;
use nestwalk_workload::{Phase, WorkloadFacts};

use crate::accesses::Detail;
use crate::configuration::Configuration;
use crate::machine::{Machine, TenantId};
use crate::pieces::{Measured, Pieces, window};
use crate::sampler::{Sampler, Stretch};
use crate::stream::Share;
use crate::warm_up::{self, Bounds, Drift, Judge, WarmUp};

/// See the [module's documentation](self).
pub(crate) struct Observer<'a> {
    configuration: &'a Configuration,
    id: TenantId,
    sampler: Sampler,
    pieces: Pieces,
    phase: Phase,
    warm_accesses: u64,
    warming: Option<Warming>,
    warm_up: WarmUp,
    /// What is left of the time that passes for daemons in the warm-up.
    lapse: Lapse,
    /// Between how many accesses a warm-up ends that has no length of its own.
    bounds: Option<Bounds>,
}

/// What an observer has seen.
pub(crate) struct Observed {
    pub measured: Measured,
    pub warm_accesses: u64,
    pub warm_up: WarmUp,
}

/// Accesses of the warm-up over which [`Sampling::lapse_ms`](crate::scenario::Sampling::lapse_ms)
/// is spread: four for each page of 1 GiB, so that daemons that sample accessed bits see what the
/// program uses.
const LAPSE_ACCESSES: u64 = 1 << 20;

/// Time that is still to pass, and the accesses over which it is spread.
struct Lapse {
    time: Nanoseconds,
    accesses: u64,
}

impl Lapse {
    /// The part of it that passes with so many accesses.
    fn take(&mut self, accesses: u64) -> Nanoseconds {
        let done = accesses.min(self.accesses);
        if self.time == Nanoseconds(0) || done == 0 {
            return Nanoseconds(0);
        }
        let ns = u128::from(self.time.0) * u128::from(done) / u128::from(self.accesses);
        let passed = Nanoseconds(ns as u64);
        self.time = self.time - passed;
        self.accesses -= done;
        passed
    }
}

/// A warm-up that is under way.
struct Warming {
    judge: Judge,
    /// What had been counted when it began.
    start: Counters,
    instructions: u64,
    accesses: u64,
    /// Those at the end of the last step.
    stepped: u64,
    /// What the last check found.
    found: Option<(bool, Drift)>,
    /// Whether it could have ended: a check has found it warm, and no time is left that is to pass.
    was_warm: bool,
}

impl<'a> Observer<'a> {
    /// Of tenant `id`, which is in `phase`, and of whose workload these `facts` are known.
    pub fn new(configuration: &'a Configuration, id: TenantId, facts: &WorkloadFacts, phase: Phase) -> Self {
        let scenario = &configuration.scenario;
        Self {
            configuration,
            id,
            sampler: Sampler::new(scenario.sampling, scenario.seed),
            pieces: Pieces::new(configuration, facts),
            phase,
            warm_accesses: 0,
            warming: None,
            warm_up: WarmUp { reached: Some(false), ..WarmUp::default() },
            lapse: Lapse { time: Nanoseconds::from_ms(scenario.sampling.lapse_ms), accesses: LAPSE_ACCESSES },
            bounds: facts.warms_until_told.then(|| Bounds::of(&scenario.sampling)),
        }
    }

    /// Whether as much was measured as the scenario allows.
    pub fn is_done(&self) -> bool {
        self.sampler.is_done()
    }

    /// Accesses that the program makes besides those that it has been known to make: those of a
    /// warm-up without a length of its own.
    pub fn unplanned_accesses(&self) -> u64 {
        self.bounds.map_or(0, |_| self.warm_accesses)
    }

    /// The tenant enters a phase. Whether it has touched all its memory.
    pub fn enter(&mut self, phase: Phase, machine: &Machine) -> bool {
        self.end_piece(machine);
        self.end_warm_up(machine);
        if phase == Phase::Warm {
            self.begin_warm_up(machine);
        }
        let populated = self.phase == Phase::Populate && phase != Phase::Populate;
        self.phase = phase;
        if phase == Phase::Measure {
            self.pieces.begin_window();
        }
        populated
    }

    /// How the next accesses are looked at, and how many of them.
    pub fn next(&self) -> (Stretch, u64) {
        let (stretch, wanted) = self.sampler.next(self.phase);
        (stretch, wanted.min(self.pieces.room()))
    }

    /// A stretch of accesses begins, which stands for so many.
    pub fn begin(&mut self, stretch: Stretch, accesses: u64, machine: &Machine) -> Detail {
        self.sampler.advance(self.phase, stretch, accesses);
        if stretch == Stretch::Measure {
            self.pieces.begin(machine, self.id);
        } else {
            self.end_piece(machine);
        }
        match stretch {
            Stretch::Measure => Detail::Timed,
            Stretch::Warm => Detail::Full,
            Stretch::Skip => Detail::TlbOnly,
        }
    }

    /// That stretch is done.
    pub fn end(&mut self, stretch: Stretch, share: Share, machine: &mut Machine) {
        match stretch {
            Stretch::Measure => {
                if self.pieces.count(share.represented, share.instructions) {
                    self.end_piece(machine);
                }
            }
            Stretch::Warm => {
                self.warm_accesses += share.represented;
                machine.pass(self.lapse.take(share.represented));
                self.go_on_warming(share, machine);
            }
            Stretch::Skip => {}
        }
    }

    /// What comes is not measured as accesses are.
    pub fn pause(&mut self, machine: &Machine) {
        self.end_piece(machine);
    }

    /// The run has ended.
    pub fn finish(mut self, machine: &Machine) -> Observed {
        self.end_piece(machine);
        self.end_warm_up(machine);
        let warm_up = WarmUp { accesses: self.warm_accesses, ..self.warm_up };
        Observed { measured: self.pieces.finish(), warm_accesses: self.warm_accesses, warm_up }
    }

    fn begin_warm_up(&mut self, machine: &Machine) {
        if self.warm_up.accesses > 0 {
            // The windows of a sampled trace warm up one by one, from the state that skipped
            // stretches have left.
            self.warm_up = WarmUp { reached: None, unavailable: Some(warm_up::WINDOWS), drift: None, ..self.warm_up };
            return;
        }
        let mmu = &self.configuration.machine.mmu;
        let miss_cycles = u64::from(mmu.memory_latency_cycles.saturating_sub(mmu.llc.latency_cycles));
        self.warming = Some(Warming {
            judge: Judge::new(miss_cycles),
            start: machine.counters(self.id).unwrap_or_default(),
            instructions: 0,
            accesses: 0,
            stepped: 0,
            found: None,
            was_warm: false,
        });
    }

    /// A part of the warm-up is done. It ends if it has no length of its own, and is warm or too
    /// long.
    fn go_on_warming(&mut self, part: Share, machine: &mut Machine) {
        let Some(warming) = &mut self.warming else { return };
        warming.accesses += part.represented;
        warming.instructions += part.instructions;
        if warming.accesses - warming.stepped >= warm_up::STEP {
            warming.stepped = warming.accesses;
            let counted = machine.counters(self.id).unwrap_or_default().minus(&warming.start);
            let counted = window(&self.configuration.machine, &counted, warming.instructions, Cycles(0));
            if warming.judge.step(counted) {
                warming.found = warming.judge.check(machine.llc_fill());
            }
        }
        let is_warm = warming.found.is_some_and(|(warm, _)| warm);
        warming.was_warm |= is_warm && self.lapse.time == Nanoseconds(0);
        if self.bounds.is_some_and(|bounds| bounds.end(warming.accesses, warming.was_warm)) {
            machine.tenant_mut(self.id).stream.end_warm_up();
        }
    }

    /// Another phase begins, or none: how warm it has become.
    fn end_warm_up(&mut self, machine: &Machine) {
        let Some(mut warming) = self.warming.take() else { return };
        let found = match (self.bounds, warming.found) {
            (Some(_), Some(found)) => Some(found),
            // It has a length of its own, or was too short for a check.
            _ => warming.judge.check(machine.llc_fill()),
        };
        self.warm_up = WarmUp {
            accesses: warming.accesses,
            accesses_max: self.bounds.map(|bounds| bounds.max),
            reached: Some(found.is_some_and(|(warm, _)| warm || warming.was_warm)),
            unavailable: None,
            drift: found.map(|(_, drift)| drift),
        };
    }

    fn end_piece(&mut self, machine: &Machine) {
        self.pieces.end(machine, self.id, &self.configuration.machine);
    }
}
