// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run: the workload is pulled, its faults and events go to the kernels, its accesses to the cores, and the clock goes on.

use std::ops::ControlFlow;

use nestwalk_mem::{Access, Cpu, Frame, Hpa, Va};
use nestwalk_mmu::{Counters, Fault, RunEnd};
use nestwalk_os::OsCounters;
use nestwalk_workload::{Batch, Phase, Step, Workload, WorkloadFacts};

use crate::build;
use crate::error::MachineError;
use crate::hardware::{Detail, Hardware};
use crate::program::Program;
use crate::result::{Cycles, Window};
use crate::sampler::{Sampler, Stretch};
use crate::scenario::Configuration;
use crate::stack::Stack;
use crate::timing::CostWeights;
use crate::windows::Windows;

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

/// The daemons of the kernels are woken when the clock has gone on by this much: a hundredth of khugepaged's shortest useful
/// period, so that nothing depends on it.
const TICK_NS: u64 = 10_000_000;

/// Windows into which a run without windows of its own is cut.
const PIECES: u64 = 20;

/// Accesses of such a window when nobody knows how many there will be.
const PIECE_ACCESSES_UNKNOWN: u64 = 1 << 20;

/// A machine in the middle of a run.
pub(crate) struct Run<'a> {
    configuration: &'a Configuration,
    facts: WorkloadFacts,
    program: Program,
    hardware: Hardware,
    weights: CostWeights,
    sampler: Sampler,
    phase: Phase,
    windows: Windows,
    /// What the cores had counted when the present piece began.
    piece_start: Option<PieceStart>,
    /// The measured pieces added up.
    measured: Counters,
    measured_instructions: u64,
    warm_accesses: u64,
    populated_pages: u64,
    accesses: u64,
    clock: Clock,
}

/// A snapshot at the beginning of a piece.
struct PieceStart {
    cores: Counters,
    kernels: Vec<OsCounters>,
    instructions: u64,
}

/// Simulated time.
#[derive(Default)]
struct Clock {
    now_ns: u64,
    ticked_ns: u64,
    /// Cycles that are not yet a whole ns, times 1000.
    rest: u64,
    /// Cycles of kernel work that are in `now_ns` already.
    os_cycles: u64,
}

/// Everything that the counters of a run say when it has ended.
pub(crate) struct Outcome {
    pub program: Program,
    pub measured: Counters,
    pub windows: Vec<Window>,
    pub warm_accesses: u64,
    pub populated_pages: u64,
}

impl<'a> Run<'a> {
    /// A machine that is ready to run `workload`.
    ///
    /// # Errors
    /// When the parts of the configuration do not fit together.
    pub fn new(configuration: &'a Configuration, workload: &dyn Workload) -> Result<Self, MachineError> {
        let facts = workload.facts();
        let stack = build::stack(configuration, &facts)?;
        let memory_end: Hpa = Frame(stack.layers()[0].kernel.memory().frames().0).address().into();
        let scenario = &configuration.scenario;
        let cores = usize::from(facts.threads.max(1));
        let mmu = &configuration.machine.mmu;
        let failed = |source| MachineError::Mmu { name: configuration.machine.name.clone(), source };
        let mut hardware = Hardware::new(mmu, cores, scenario.corunner, memory_end, scenario.seed).map_err(failed)?;
        if let Some(asap) = &scenario.asap {
            let asap = asap.build().map_err(|what| configuration.scenario_error(what))?;
            hardware = hardware.with_asap(mmu, &asap).map_err(failed)?;
        }
        let piece = facts.accesses.map_or(PIECE_ACCESSES_UNKNOWN, |total| total.div_ceil(PIECES));
        Ok(Self {
            program: Program::new(scenario.name.clone(), stack),
            hardware,
            weights: configuration.costs.weights()?,
            sampler: Sampler::new(scenario.sampling, scenario.seed),
            phase: Phase::Measure,
            windows: Windows::new(piece),
            piece_start: None,
            measured: Counters::default(),
            measured_instructions: 0,
            warm_accesses: 0,
            populated_pages: 0,
            accesses: 0,
            clock: Clock::default(),
            facts,
            configuration,
        })
    }

    /// Runs `workload` to its end.
    ///
    /// # Errors
    /// When the workload cannot be read on, a kernel is out of memory, or `on_progress` breaks.
    pub fn run(
        mut self,
        workload: &mut dyn Workload,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Outcome, MachineError> {
        let mut batch = Batch::default();
        loop {
            match workload.next(&mut batch)? {
                Step::Phase(phase) => self.enter(phase),
                Step::Event(event) => self.program.event(&mut self.hardware, &event)?,
                Step::Touches => self.touch(&batch)?,
                Step::Accesses => self.access(&batch)?,
                Step::End => break,
            }
            self.tick()?;
            let progress = Progress {
                accesses: self.accesses,
                accesses_total: self.facts.accesses,
                populated_pages: self.populated_pages,
            };
            if on_progress(progress).is_break() {
                return Err(MachineError::Interrupted { accesses: self.accesses });
            }
            if self.sampler.is_done() {
                break;
            }
        }
        self.end_piece();
        Ok(Outcome {
            program: self.program,
            measured: self.measured,
            windows: self.windows.finish(),
            warm_accesses: self.warm_accesses,
            populated_pages: self.populated_pages,
        })
    }

    fn enter(&mut self, phase: Phase) {
        self.end_piece();
        self.phase = phase;
        if phase == Phase::Measure {
            self.windows.begin();
        }
    }

    /// First touches of a stretch whose accesses are not known: only the kernels see them.
    fn touch(&mut self, batch: &Batch) -> Result<(), MachineError> {
        let cpu = self.cpu(batch);
        for &(page, store) in &batch.touches {
            self.program.touch(page, store, cpu)?;
        }
        self.populated_pages += batch.touches.len() as u64;
        self.program.shoot_down(&mut self.hardware);
        let work = self.configuration.machine.timing.work(batch.instructions);
        self.advance(work);
        Ok(())
    }

    fn access(&mut self, batch: &Batch) -> Result<(), MachineError> {
        self.accesses += batch.accesses.len() as u64;
        let mut from = 0;
        while from < batch.accesses.len() && !self.sampler.is_done() {
            let left = (batch.accesses.len() - from) as u64;
            let (stretch, length) = self.sampler.next(self.phase, left.min(self.windows.piece_accesses_max()));
            let to = from + length as usize;
            // The batch's instructions, spread evenly; differences of prefixes, so that none is lost.
            let prefix = |at: usize| batch.instructions * at as u64 / batch.accesses.len() as u64;
            self.stretch(batch, from..to, stretch, prefix(to) - prefix(from))?;
            from = to;
        }
        Ok(())
    }

    fn stretch(
        &mut self,
        batch: &Batch,
        part: std::ops::Range<usize>,
        stretch: Stretch,
        instructions: u64,
    ) -> Result<(), MachineError> {
        if stretch == Stretch::Measure {
            self.begin_piece();
        } else {
            self.end_piece();
        }
        let accesses = &batch.accesses[part];
        let detail = if stretch == Stretch::Skip { Detail::TlbOnly } else { Detail::Full };
        let core = usize::from(batch.thread.0) % self.hardware.core_count();
        self.run_accesses(core, self.cpu(batch), accesses, detail)?;
        let work = self.configuration.machine.timing.work(instructions);
        self.advance(work);
        match stretch {
            Stretch::Measure => {
                self.measured_instructions += instructions;
                self.close_full_piece();
            }
            Stretch::Warm => self.warm_accesses += accesses.len() as u64,
            Stretch::Skip => {}
        }
        Ok(())
    }

    /// Runs accesses on a core, with all the faults that they need.
    fn run_accesses(&mut self, core: usize, cpu: Cpu, accesses: &[Access], detail: Detail) -> Result<(), MachineError> {
        let mut done = 0;
        loop {
            match self.hardware.run(core, self.program.stack(), &accesses[done..], detail) {
                RunEnd::Done => return Ok(()),
                RunEnd::Fault { index, fault } => {
                    done += index;
                    match fault {
                        Fault::Guest { gva, store } => self.program.walk_fault(Va::from(gva).page(), store, cpu)?,
                        Fault::Host { gpa, store } => self.program.host_fault(gpa.page(), store, cpu)?,
                        Fault::Boundary { gpa } => {
                            let what = format!("a DS-n violation: the guest refers to {gpa:?}, beyond its memory");
                            return Err(self.configuration.scenario_error(what));
                        }
                    }
                    self.program.shoot_down(&mut self.hardware);
                }
            }
        }
    }

    fn cpu(&self, batch: &Batch) -> Cpu {
        self.program.cpu(batch.thread)
    }

    fn begin_piece(&mut self) {
        if self.piece_start.is_none() {
            self.piece_start = Some(PieceStart {
                cores: self.hardware.counters(),
                kernels: self.program.counters(),
                instructions: self.measured_instructions,
            });
        }
    }

    fn end_piece(&mut self) {
        let Some(start) = self.piece_start.take() else { return };
        let counted = self.hardware.counters().minus(&start.cores);
        let instructions = self.measured_instructions - start.instructions;
        self.windows.add(self.window(&counted, instructions, &start.kernels));
        self.measured = self.measured.plus(&counted);
    }

    fn close_full_piece(&mut self) {
        let Some(start) = &self.piece_start else { return };
        if self.hardware.accesses() - start.cores.tlb.accesses >= self.windows.piece_accesses_max() {
            self.end_piece();
        }
    }

    fn window(&self, counted: &Counters, instructions: u64, kernels_before: &[OsCounters]) -> Window {
        let timing = &self.configuration.machine.timing;
        let l1_cycles = u64::from(self.configuration.machine.mmu.l1d.latency_cycles);
        let beyond_l1 = counted.data_cycles - l1_cycles * counted.tlb.accesses;
        Window {
            accesses: counted.tlb.accesses,
            instructions,
            walks: counted.tlb.walks(),
            walk_cycles: counted.walk_cycles,
            walk_references: counted.walk_events.total_references(),
            cycles: Cycles {
                work: timing.work(instructions),
                data: timing.data(beyond_l1),
                walk: timing.walk(counted.walk_cycles),
                os: self.os_cycles(kernels_before),
            },
        }
    }

    /// Cycles of what the kernels did since they had counted `before`.
    fn os_cycles(&self, before: &[OsCounters]) -> u64 {
        let now = self.program.counters();
        let top = now.len() - 1;
        let layers = now.iter().zip(before).enumerate();
        layers.map(|(layer, (now, before))| self.weights.cycles(&now.since(before), layer < top)).sum()
    }

    /// The clock goes on by `work` cycles of the program and by all kernel work since it last did. Waiting for memory is
    /// left out: it would make the daemons' pace depend on the very latencies that are compared.
    fn advance(&mut self, work: u64) {
        let os_cycles = self.os_cycles(&[OsCounters::default(); Stack::LAYERS_MAX]);
        let cycles = work + (os_cycles - self.clock.os_cycles);
        self.clock.os_cycles = os_cycles;
        let mhz = self.configuration.machine.frequency_mhz;
        let thousandths = cycles * 1000 + self.clock.rest;
        self.clock.now_ns += thousandths / mhz;
        self.clock.rest = thousandths % mhz;
    }

    fn tick(&mut self) -> Result<(), MachineError> {
        if self.clock.now_ns - self.clock.ticked_ns < TICK_NS {
            return Ok(());
        }
        self.clock.ticked_ns = self.clock.now_ns;
        self.program.tick(self.clock.now_ns)?;
        self.program.shoot_down(&mut self.hardware);
        Ok(())
    }
}
