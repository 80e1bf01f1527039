// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run: the workload is pulled, its faults and events go to the kernels, its accesses to the cores, and the clock goes on.

use std::ops::ControlFlow;

use nestwalk_mmu::Counters;
use nestwalk_workload::{Batch, Phase, Step, ThreadId, Workload};

use crate::beside::Companion;
use crate::contiguity::{self, Contiguity, FreeMemory};
use crate::error::MachineError;
use crate::hardware::{Accesses, Detail, Hardware, Tenant};
use crate::member::STEP_ACCESSES;
use crate::meter::Work;
use crate::pieces::{Pieces, window};
use crate::populated::Populated;
use crate::program::Program;
use crate::reserved::Reserved;
use crate::result::Window;
use crate::sampler::{Sampler, Stretch};
use crate::scenario::Configuration;
use crate::spread::Spread;
use crate::stack::Stack;
use crate::system::{Finished, System};
use crate::warm_up::{self, Drift, Judge, WarmUp};
use crate::whole::{Extent, Parts, WholeRun, whole_run};

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Accesses simulated.
    pub accesses: u64,
    /// Accesses that there will be, if known.
    pub accesses_total: Option<u64>,
    /// Pages that first touches of skipped stretches brought in.
    pub populated_pages: u64,
}

/// Told from time to time how far a run is; `Break` ends it.
pub type OnProgress<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// A machine in the middle of a run.
pub(crate) struct Run<'a> {
    configuration: &'a Configuration,
    system: System,
    hardware: Hardware,
    workload: Box<dyn Workload>,
    /// The step that comes next, with what belongs to it.
    next: Step,
    batch: Batch,
    accesses_total: Option<u64>,
    sampler: Sampler,
    phase: Phase,
    pieces: Pieces,
    /// Accesses of the whole program before its first window, and those of them that were simulated.
    first_window: Option<(u64, u64)>,
    warm_accesses: u64,
    warming: Option<Warming>,
    warm_up: WarmUp,
    /// What is left of the time that passes for daemons in the warm-up.
    lapse: Lapse,
    /// After how many accesses a warm-up that has no length of its own ends.
    warm_accesses_max: Option<u64>,
    accesses: u64,
    /// What the kernels had done before the program began.
    boot: Work,
    /// The kernels' free memory when it began, and before its first access.
    free_memory: [Vec<FreeMemory>; 2],
}

/// Accesses of the warm-up over which [`Sampling::lapse_ms`](crate::scenario::Sampling::lapse_ms) is spread: four for each
/// page of 1 GiB, so that daemons that sample accessed bits see what the program uses.
const LAPSE_ACCESSES: u64 = 1 << 20;

/// Time that is still to pass, and the accesses over which it is spread.
struct Lapse {
    ns: u64,
    accesses: u64,
}

impl Lapse {
    /// The part of it that passes with so many accesses.
    fn take(&mut self, accesses: u64) -> u64 {
        let done = accesses.min(self.accesses);
        if self.ns == 0 || done == 0 {
            return 0;
        }
        let ns = (u128::from(self.ns) * u128::from(done) / u128::from(self.accesses)) as u64;
        self.ns -= ns;
        self.accesses -= done;
        ns
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
}

/// Accesses of a batch that are treated alike.
struct Part<'a> {
    accesses: Accesses<'a>,
    /// Accesses of the program that they stand for.
    represented: u64,
    instructions: u64,
    /// Stores among the absorbed accesses.
    absorbed_stores: u64,
}

/// Everything that the counters of a run say when it has ended.
pub(crate) struct Outcome {
    pub stack: Stack,
    pub program: Program,
    /// The programs beside it, by entry of the scenario.
    pub companions: Vec<Companion>,
    pub reserved: Reserved,
    pub measured: Counters,
    pub windows: Vec<Window>,
    pub warm_accesses: u64,
    pub warm_up: WarmUp,
    pub populated_pages: u64,
    pub whole_run: WholeRun,
    pub contiguity: Vec<Contiguity>,
}

impl<'a> Run<'a> {
    /// A run of `configuration` that goes on from `populated`.
    pub fn new(configuration: &'a Configuration, populated: Populated) -> Self {
        let Populated { system, hardware, workload, facts, phase, next, batch, boot, started, ready, .. } = populated;
        let scenario = &configuration.scenario;
        Self {
            configuration,
            system,
            hardware,
            workload,
            next,
            batch,
            accesses_total: facts.accesses,
            sampler: Sampler::new(scenario.sampling, scenario.seed),
            phase,
            pieces: Pieces::new(configuration, facts.accesses),
            first_window: None,
            warm_accesses: 0,
            warming: None,
            warm_up: WarmUp { reached: Some(false), ..WarmUp::default() },
            lapse: Lapse { ns: scenario.sampling.lapse_ms * 1_000_000, accesses: LAPSE_ACCESSES },
            warm_accesses_max: facts
                .warms_until_told
                .then(|| scenario.sampling.warm_accesses_max.unwrap_or(warm_up::ACCESSES_MAX)),
            accesses: 0,
            boot,
            free_memory: [started, ready],
        }
    }

    /// Runs the program to its end.
    ///
    /// # Errors
    /// When the workload cannot be read on, a kernel is out of memory, or `on_progress` breaks.
    pub fn run(mut self, on_progress: &mut OnProgress<'_>) -> Result<Outcome, MachineError> {
        while self.next != Step::End {
            self.step()?;
            self.system.tick(&mut self.hardware)?;
            let progress = Progress {
                accesses: self.accesses,
                accesses_total: self
                    .accesses_total
                    .map(|total| total + self.warm_accesses_max.map_or(0, |_| self.warm_accesses)),
                populated_pages: self.system.populated_pages(),
            };
            if on_progress(progress).is_break() {
                return Err(MachineError::Interrupted { accesses: self.accesses });
            }
            if self.sampler.is_done() {
                break;
            }
            self.next = self.workload.next(&mut self.batch)?;
        }
        self.end_piece();
        self.end_warm_up();
        Ok(self.finish())
    }

    fn step(&mut self) -> Result<(), MachineError> {
        match self.next {
            Step::Phase(phase) => self.enter(phase),
            Step::Event(ref event) => self.system.event(&mut self.hardware, event),
            Step::Touches => self.system.touch(&mut self.hardware, &self.batch),
            Step::Accesses => {
                let batch = std::mem::take(&mut self.batch);
                let done = self.access(&batch);
                self.batch = batch;
                done
            }
            Step::End => Ok(()),
        }
    }

    fn finish(mut self) -> Outcome {
        let measured = self.pieces.finish();
        self.system.program.read(&mut self.system.meter, &self.system.stack);
        let frozen = self.configuration.scenario.kernels.last().is_some_and(|kernel| kernel.dump.is_some());
        let accesses = self.workload.program_accesses();
        let (before, simulated_before) = self.first_window.unwrap_or_default();
        let after = accesses.unwrap_or_default().saturating_sub(before);
        let skipped = after.saturating_sub(self.accesses - simulated_before);
        let extent = Extent { accesses, skipped, measured: measured.counters.tlb.accesses, frozen };
        let parts = Parts { boot: &self.boot, windows: &measured.work, extent };
        let System { stack, program, meter, .. } = &self.system;
        let whole_run = whole_run(stack, program.place(), meter, program.work(), parts);
        let [started, ready] = &self.free_memory;
        let contiguity = contiguity::course(started, ready, &contiguity::look(stack, program.place()));
        let Finished { stack, program, companions, reserved, populated_pages } = self.system.finish(&self.hardware);
        Outcome {
            stack,
            program,
            companions,
            reserved,
            measured: measured.counters,
            windows: measured.windows,
            warm_accesses: self.warm_accesses,
            warm_up: WarmUp { accesses: self.warm_accesses, ..self.warm_up },
            populated_pages,
            whole_run,
            contiguity,
        }
    }

    fn enter(&mut self, phase: Phase) -> Result<(), MachineError> {
        self.end_piece();
        self.end_warm_up();
        if phase == Phase::Warm {
            self.begin_warm_up();
        }
        if phase != Phase::Populate && self.first_window.is_none() {
            self.first_window = self.workload.program_accesses().map(|before| (before, self.accesses));
        }
        let populated = self.phase == Phase::Populate && phase != Phase::Populate;
        self.phase = phase;
        if phase == Phase::Measure {
            self.pieces.begin_window();
        }
        if populated { self.system.populated(&mut self.hardware) } else { Ok(()) }
    }

    fn access(&mut self, batch: &Batch) -> Result<(), MachineError> {
        let all = batch.represented();
        let instructions = Spread::new(batch.instructions, all);
        let absorbed_stores = Spread::new(batch.absorbed_stores, all);
        self.accesses += all;
        let (mut from, mut done) = (0, 0);
        while from < batch.accesses.len() && !self.sampler.is_done() {
            let (stretch, wanted) = self.sampler.next(self.phase);
            let accesses = Accesses::of(batch, from..batch.accesses.len());
            let (count, represented) = accesses.standing_for(wanted.min(self.pieces.room()));
            self.sampler.advance(self.phase, stretch, represented);
            let part = Part {
                accesses: accesses.first(count),
                represented,
                instructions: instructions.of(done, represented),
                absorbed_stores: absorbed_stores.of(done, represented),
            };
            self.stretch(batch.thread, &part, stretch)?;
            from += count;
            done += represented;
        }
        Ok(())
    }

    fn stretch(&mut self, thread: ThreadId, part: &Part<'_>, stretch: Stretch) -> Result<(), MachineError> {
        if stretch == Stretch::Measure {
            self.pieces.begin(&self.system, &self.hardware);
        } else {
            self.end_piece();
        }
        let detail = if stretch == Stretch::Skip { Detail::TlbOnly } else { Detail::Full };
        self.run_accesses(thread, part, detail)?;
        match stretch {
            Stretch::Measure => {
                if self.pieces.count(part.represented, part.instructions) {
                    self.end_piece();
                }
            }
            Stretch::Warm => {
                self.warm_accesses += part.represented;
                let passed = self.lapse.take(part.represented);
                self.system.pass(passed);
                self.go_on_warming(part);
            }
            Stretch::Skip => {}
        }
        Ok(())
    }

    /// Runs accesses on the core of their thread: in one go, or step by step where others run meanwhile.
    fn run_accesses(&mut self, thread: ThreadId, part: &Part<'_>, detail: Detail) -> Result<(), MachineError> {
        let step = if self.system.has_company() { STEP_ACCESSES } else { u64::MAX };
        let instructions = Spread::new(part.instructions, part.represented);
        let (mut rest, mut done) = (part.accesses, 0);
        while !rest.all.is_empty() {
            let (count, represented) = rest.standing_for(step);
            let instructions = instructions.of(done, represented);
            self.system.access(&mut self.hardware, thread, rest.first(count), instructions, detail)?;
            rest = rest.from(count);
            done += represented;
        }
        if part.absorbed_stores > 0 {
            self.hardware.count_absorbed_stores(Tenant::MEASURED, thread.0, part.absorbed_stores, detail);
        }
        Ok(())
    }

    fn begin_warm_up(&mut self) {
        if self.warm_up.accesses > 0 {
            // The windows of a sampled trace warm up one by one, over what skipped stretches have left.
            self.warm_up = WarmUp { reached: None, unavailable: Some(warm_up::WINDOWS), drift: None, ..self.warm_up };
            return;
        }
        let mmu = &self.configuration.machine.mmu;
        let miss_cycles = u64::from(mmu.memory_latency_cycles.saturating_sub(mmu.llc.latency_cycles));
        self.warming = Some(Warming {
            judge: Judge::new(miss_cycles),
            start: self.hardware.counters(Tenant::MEASURED),
            instructions: 0,
            accesses: 0,
            stepped: 0,
            found: None,
        });
    }

    /// A part of the warm-up is done. It ends if it has no length of its own, and is warm or too long.
    fn go_on_warming(&mut self, part: &Part<'_>) {
        let Some(warming) = &mut self.warming else { return };
        warming.accesses += part.represented;
        warming.instructions += part.instructions;
        if warming.accesses - warming.stepped >= warm_up::STEP {
            warming.stepped = warming.accesses;
            let counted = self.hardware.counters(Tenant::MEASURED).minus(&warming.start);
            let machine = &self.configuration.machine;
            let counted = window(&self.system, machine, &counted, warming.instructions, &Work::default());
            if warming.judge.step(counted) {
                warming.found = warming.judge.check(self.hardware.llc_fill());
            }
        }
        let is_warm = warming.found.is_some_and(|(warm, _)| warm);
        let is_warm = is_warm && self.lapse.ns == 0;
        if self.warm_accesses_max.is_some_and(|most| is_warm || warming.accesses >= most) {
            self.workload.end_warm_up();
        }
    }

    /// Another phase begins, or none: how warm it has become.
    fn end_warm_up(&mut self) {
        let Some(mut warming) = self.warming.take() else { return };
        let found = match (self.warm_accesses_max, warming.found) {
            (Some(_), Some(found)) => Some(found),
            // It has a length of its own, or was too short for a check.
            _ => warming.judge.check(self.hardware.llc_fill()),
        };
        self.warm_up = WarmUp {
            accesses: warming.accesses,
            accesses_max: self.warm_accesses_max,
            reached: Some(found.is_some_and(|(warm, _)| warm)),
            unavailable: None,
            drift: found.map(|(_, drift)| drift),
        };
    }

    fn end_piece(&mut self) {
        self.pieces.end(&self.system, &self.hardware, &self.configuration.machine);
    }
}
