// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run: the workload is pulled, its faults and events go to the kernels, its accesses to the cores, and the clock goes on.

use std::ops::{ControlFlow, Range};
use std::path::Path;

use nestwalk_mem::{Cpu, Frame, Hpa};
use nestwalk_mmu::Counters;
use nestwalk_workload::{Batch, MemoryEvent, Phase, Step, Workload, WorkloadFacts};

use crate::asap::AsapScenario;
use crate::beside::{Beside, Companion};
use crate::build;
use crate::error::MachineError;
use crate::hardware::{Detail, Hardware, Tenant};
use crate::member::{STEP_ACCESSES, Workshop};
use crate::meter::{Meter, Work, since};
use crate::neighbours::{Neighbours, check_limit};
use crate::program::{Program, shoot_down};
use crate::reserved::{Reserved, ReservedSeries};
use crate::result::{Cycles, Window};
use crate::sampler::{Sampler, Stretch};
use crate::scenario::Configuration;
use crate::stack::Stack;
use crate::whole::{Extent, Parts, WholeRun, snapshot, whole_run};
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
    stack: Stack,
    program: Program,
    hardware: Hardware,
    tenant: Tenant,
    meter: Meter,
    /// The programs beside it, if there are any.
    beside: Option<Beside>,
    sampler: Sampler,
    phase: Phase,
    windows: Windows,
    /// What the cores had counted when the present piece began.
    piece_start: Option<PieceStart>,
    /// Accesses since it began.
    piece_accesses: u64,
    /// The measured pieces added up.
    measured: Counters,
    measured_instructions: u64,
    /// What the kernels did meanwhile.
    measured_work: Work,
    /// Accesses of the whole program before its first window, and those of them that were simulated.
    first_window: Option<(u64, u64)>,
    warm_accesses: u64,
    populated_pages: u64,
    accesses: u64,
    clock: Clock,
    reserved: ReservedSeries,
}

/// A snapshot at the beginning of a piece.
struct PieceStart {
    cores: Counters,
    work: Work,
    instructions: u64,
}

/// Simulated time.
#[derive(Default)]
struct Clock {
    now_ns: u64,
    ticked_ns: u64,
    /// Cycles that are not yet a whole ns, times 1000.
    rest: u64,
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
    pub populated_pages: u64,
    pub whole_run: WholeRun,
}

impl<'a> Run<'a> {
    /// A machine that is ready to run `workload`, beside what the scenario puts there. Bundled traces lie in the folder
    /// `traces`.
    ///
    /// # Errors
    /// When the parts of the configuration do not fit together.
    pub fn new(configuration: &'a Configuration, workload: &dyn Workload, traces: &Path) -> Result<Self, MachineError> {
        let facts = workload.facts();
        let threads = facts.threads.max(1);
        let neighbours = Neighbours::open(configuration, threads, traces)?;
        check_limit(configuration, configuration.scenario.cgroup_limit, facts.footprint)?;
        let (mut stack, place) = build::stack(configuration, &facts, &neighbours)?;
        let memory_end: Hpa = Frame(stack.kernels()[0].memory().frames().0).address().into();
        let scenario = &configuration.scenario;
        let mmu_error = |source| MachineError::Mmu { name: configuration.machine.name.clone(), source };
        let asap = scenario.asap.as_ref().map(AsapScenario::build).transpose();
        let asap = asap.map_err(|what| configuration.scenario_error(what))?;
        let mmu = &configuration.machine.mmu;
        let mut hardware = Hardware::new(mmu, asap, scenario.corunner, memory_end, scenario.seed).map_err(mmu_error)?;
        let tenant = hardware.add(&place, threads).map_err(mmu_error)?;
        let beside = if neighbours.is_empty() {
            None
        } else {
            Some(Beside::new(configuration, neighbours, &place, threads, &mut stack, &mut hardware)?)
        };
        let equal = || facts.accesses.map_or(PIECE_ACCESSES_UNKNOWN, |total| total.div_ceil(PIECES));
        let piece = scenario.sampling.window.unwrap_or_else(equal);
        Ok(Self {
            program: Program::new(scenario.name.clone(), place)
                .limited(scenario.cgroup_limit, &mut stack)
                .frozen(scenario.kernels.last().is_some_and(|kernel| kernel.dump.is_some())),
            stack,
            hardware,
            tenant,
            meter: Meter::new(configuration.costs.weights()?),
            beside,
            sampler: Sampler::new(scenario.sampling, scenario.seed),
            phase: Phase::Measure,
            windows: Windows::new(piece),
            piece_start: None,
            piece_accesses: 0,
            measured: Counters::default(),
            measured_instructions: 0,
            measured_work: Work::default(),
            first_window: None,
            warm_accesses: 0,
            populated_pages: 0,
            accesses: 0,
            clock: Clock::default(),
            reserved: ReservedSeries::default(),
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
        let boot = snapshot(&self.stack, self.program.place());
        self.begin(on_progress)?;
        loop {
            match workload.next(&mut batch)? {
                Step::Phase(phase) => {
                    if phase != Phase::Populate && self.first_window.is_none() {
                        self.first_window = workload.program_accesses().map(|before| (before, self.accesses));
                    }
                    self.enter(phase)?;
                }
                Step::Event(event) => self.event(&event)?,
                Step::Touches => self.touch(&batch)?,
                Step::Accesses => self.access(&batch)?,
                Step::End => break,
            }
            self.tick()?;
            self.reserved.sample(self.clock.now_ns, self.stack.top_kernel(self.program.place()));
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
        let whole_run = self.whole_run(&boot, workload.program_accesses());
        let companions = match self.beside {
            Some(beside) => beside.finish(&self.hardware),
            None => Vec::new(),
        };
        Ok(Outcome {
            stack: self.stack,
            program: self.program,
            companions,
            reserved: self.reserved.finish(),
            measured: self.measured,
            windows: self.windows.finish(),
            warm_accesses: self.warm_accesses,
            populated_pages: self.populated_pages,
            whole_run,
        })
    }

    /// What the kernels did for the program until now, of which `boot` before it began.
    fn whole_run(&mut self, boot: &Work, accesses: Option<u64>) -> WholeRun {
        self.program.read(&mut self.meter, &self.stack);
        let frozen = self.configuration.scenario.kernels.last().is_some_and(|kernel| kernel.dump.is_some());
        let (before, simulated_before) = self.first_window.unwrap_or_default();
        let after = accesses.unwrap_or_default().saturating_sub(before);
        let skipped = after.saturating_sub(self.accesses - simulated_before);
        let extent = Extent { accesses, skipped, measured: self.measured.tlb.accesses, frozen };
        let parts = Parts { boot, windows: &self.measured_work, extent };
        whole_run(&self.stack, self.program.place(), &self.meter, self.program.work(), parts)
    }

    /// Lets those beside the program run as long as they are to run before it.
    fn begin(&mut self, on_progress: &mut OnProgress<'_>) -> Result<(), MachineError> {
        let Some(beside) = &mut self.beside else { return Ok(()) };
        // What building the machine took is nobody's.
        self.program.read(&mut self.meter, &self.stack);
        let lead_ms = self.configuration.scenario.colocated_lead_ms;
        let lead_cycles = lead_ms * 1000 * self.configuration.machine.frequency_mhz;
        let mut shop = Workshop::new(&mut self.stack, Some(&mut self.hardware), &mut self.meter);
        while beside.lead(lead_cycles, &mut shop)? {
            let progress = Progress { accesses: 0, accesses_total: self.facts.accesses, populated_pages: 0 };
            if on_progress(progress).is_break() {
                return Err(MachineError::Interrupted { accesses: 0 });
            }
        }
        let cpu = self.stack.cpu(self.program.place(), 0);
        beside.seat(self.stack.machine_cpu(self.program.place(), cpu));
        Ok(())
    }

    /// Lets those beside the program go on until it is the turn of its processor `cpu`.
    #[inline]
    fn turn(&mut self, cpu: Cpu, detail: Detail) -> Result<(), MachineError> {
        let Some(beside) = &mut self.beside else { return Ok(()) };
        let cpu = self.stack.machine_cpu(self.program.place(), cpu);
        let mut shop = Workshop::new(&mut self.stack, Some(&mut self.hardware), &mut self.meter);
        beside.until_turn(cpu, detail, &mut shop)
    }

    fn enter(&mut self, phase: Phase) -> Result<(), MachineError> {
        self.end_piece();
        let populated = self.phase == Phase::Populate && phase != Phase::Populate;
        self.phase = phase;
        if phase == Phase::Measure {
            self.windows.begin();
        }
        if let Some(beside) = self.beside.as_mut().filter(|_| populated) {
            let mut shop = Workshop::new(&mut self.stack, Some(&mut self.hardware), &mut self.meter);
            beside.populated(&mut shop)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &MemoryEvent) -> Result<(), MachineError> {
        let cpu = self.stack.cpu(self.program.place(), 0);
        self.turn(cpu, Detail::TlbOnly)?;
        self.program.event(&mut self.stack, event, cpu)?;
        shoot_down(&mut self.stack, &mut self.hardware);
        if matches!(event, MemoryEvent::ForkAndWait | MemoryEvent::ChildExit) {
            self.hardware.replace(self.tenant, self.program.place());
        }
        if self.beside.is_some() {
            self.advance(0);
        }
        Ok(())
    }

    /// First touches of a stretch whose accesses are not known: only the kernels see them.
    fn touch(&mut self, batch: &Batch) -> Result<(), MachineError> {
        let cpu = self.cpu(batch);
        for &(page, store) in &batch.touches {
            self.turn(cpu, Detail::TlbOnly)?;
            self.program.touch(&mut self.stack, page, store, cpu)?;
            if self.beside.is_some() {
                shoot_down(&mut self.stack, &mut self.hardware);
                self.advance(0);
            }
        }
        self.populated_pages += batch.touches.len() as u64;
        shoot_down(&mut self.stack, &mut self.hardware);
        let work = self.configuration.machine.timing.work(batch.instructions);
        self.advance(work);
        Ok(())
    }

    fn access(&mut self, batch: &Batch) -> Result<(), MachineError> {
        self.accesses += batch.accesses.len() as u64;
        let mut from = 0;
        while from < batch.accesses.len() && !self.sampler.is_done() {
            let left = (batch.accesses.len() - from) as u64;
            let (stretch, length) = self.sampler.next(self.phase, left.min(self.room()));
            let to = from + length as usize;
            // The batch's instructions, spread evenly; differences of prefixes, so that none is lost.
            let prefix = |at: usize| batch.instructions * at as u64 / batch.accesses.len() as u64;
            self.stretch(batch, from..to, stretch, prefix(to) - prefix(from))?;
            from = to;
        }
        Ok(())
    }

    /// Accesses that the present piece has room for. Only a length that the scenario names is kept to the access: else a batch
    /// would be cut for nothing.
    fn room(&self) -> u64 {
        let all = self.windows.piece_accesses_max();
        match (self.configuration.scenario.sampling.window, &self.piece_start) {
            (Some(_), Some(_)) => all - self.piece_accesses,
            _ => all,
        }
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
        let detail = if stretch == Stretch::Skip { Detail::TlbOnly } else { Detail::Full };
        let count = part.len() as u64;
        self.run_accesses(batch, part, detail, instructions)?;
        match stretch {
            Stretch::Measure => {
                self.measured_instructions += instructions;
                self.piece_accesses += count;
                self.close_full_piece();
            }
            Stretch::Warm => self.warm_accesses += count,
            Stretch::Skip => {}
        }
        Ok(())
    }

    /// Runs accesses on the core of their thread: in one go, or step by step where others run meanwhile.
    fn run_accesses(
        &mut self,
        batch: &Batch,
        part: Range<usize>,
        detail: Detail,
        instructions: u64,
    ) -> Result<(), MachineError> {
        let cpu = self.cpu(batch);
        let accesses = &batch.accesses[part];
        let step = if self.beside.is_some() { STEP_ACCESSES } else { accesses.len().max(1) };
        let mut done = 0;
        for accesses_of_step in accesses.chunks(step) {
            self.turn(cpu, detail)?;
            let Self { program, stack, hardware, .. } = self;
            program.run(stack, hardware, self.tenant, batch.thread, accesses_of_step, detail)?;
            let prefix = |at: usize| instructions * at as u64 / accesses.len() as u64;
            let to = done + accesses_of_step.len();
            let work = self.configuration.machine.timing.work(prefix(to) - prefix(done));
            self.advance(work);
            done = to;
        }
        Ok(())
    }

    fn cpu(&self, batch: &Batch) -> Cpu {
        self.stack.cpu(self.program.place(), batch.thread.0)
    }

    fn begin_piece(&mut self) {
        if self.piece_start.is_none() {
            self.piece_accesses = 0;
            self.piece_start = Some(PieceStart {
                cores: self.hardware.counters(self.tenant),
                work: *self.program.work(),
                instructions: self.measured_instructions,
            });
        }
    }

    fn end_piece(&mut self) {
        let Some(start) = self.piece_start.take() else { return };
        let counted = self.hardware.counters(self.tenant).minus(&start.cores);
        let instructions = self.measured_instructions - start.instructions;
        self.windows.add(self.window(&counted, instructions, &start.work));
        let done = since(self.program.work(), &start.work);
        self.measured_work.iter_mut().zip(&done).for_each(|(sum, done)| sum.add(done));
        self.measured = self.measured.plus(&counted);
    }

    fn close_full_piece(&mut self) {
        if self.piece_accesses >= self.windows.piece_accesses_max() {
            self.end_piece();
        }
    }

    fn window(&self, counted: &Counters, instructions: u64, work_before: &Work) -> Window {
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
                os: self.meter.cycles(&self.stack, self.program.place(), &since(self.program.work(), work_before)),
            },
        }
    }

    /// The clock goes on by `work` cycles of the program and by all kernel work for it since it last did. Waiting for memory
    /// is left out: it would make the daemons' pace, and who faults when, depend on the very latencies that are compared.
    fn advance(&mut self, work: u64) {
        let cycles = work + self.program.read(&mut self.meter, &self.stack);
        let mhz = self.configuration.machine.frequency_mhz;
        if let Some(beside) = &mut self.beside {
            beside.charge(cycles);
            self.clock.now_ns = (u128::from(beside.now()) * 1000 / u128::from(mhz)) as u64;
            return;
        }
        let thousandths = cycles * 1000 + self.clock.rest;
        self.clock.now_ns += thousandths / mhz;
        self.clock.rest = thousandths % mhz;
    }

    fn tick(&mut self) -> Result<(), MachineError> {
        let due = self.clock.now_ns - self.clock.ticked_ns >= TICK_NS;
        if !due && !self.stack.has_background_work() {
            return Ok(());
        }
        self.clock.ticked_ns = self.clock.now_ns;
        self.program.tick(&mut self.stack, self.clock.now_ns)?;
        shoot_down(&mut self.stack, &mut self.hardware);
        if let Some(beside) = &mut self.beside {
            // What the daemons did for the program's kernels is the program's; what they do for other VMs is theirs.
            beside.charge(self.program.read(&mut self.meter, &self.stack));
            let mut shop = Workshop::new(&mut self.stack, Some(&mut self.hardware), &mut self.meter);
            beside.tick(self.clock.now_ns, &mut shop)?;
        }
        Ok(())
    }
}
