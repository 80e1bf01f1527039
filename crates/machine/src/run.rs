// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run: the workload is pulled, its faults and events go to the kernels, its accesses to the cores, and the clock goes on.

use std::ops::ControlFlow;
use std::path::Path;

use nestwalk_mem::{Cpu, Frame, Hpa};
use nestwalk_mmu::Counters;
use nestwalk_workload::{Batch, MemoryEvent, Phase, Step, ThreadId, Workload, WorkloadFacts};

use crate::asap::AsapScenario;
use crate::beside::{Beside, Companion};
use crate::build;
use crate::error::MachineError;
use crate::hardware::{Accesses, Detail, Hardware, Tenant};
use crate::member::{STEP_ACCESSES, Workshop};
use crate::meter::{Meter, Work, since};
use crate::neighbours::{Neighbours, check_limit};
use crate::program::{Program, shoot_down};
use crate::reserved::{Reserved, ReservedSeries};
use crate::result::{Cycles, Window};
use crate::sampler::{Sampler, Stretch};
use crate::scenario::Configuration;
use crate::spread::Spread;
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

/// Windows into which a run without windows of its own is cut: enough for batches of several ([`crate::estimate`]).
const PIECES: u64 = 80;

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

/// Accesses of a batch that are treated alike.
struct Part<'a> {
    accesses: Accesses<'a>,
    /// Accesses of the program that they stand for.
    represented: u64,
    instructions: u64,
    /// Stores among the absorbed accesses.
    absorbed_stores: u64,
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
        let cpu = self.cpu(batch.thread);
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
        let all = batch.represented();
        let instructions = Spread::new(batch.instructions, all);
        let absorbed_stores = Spread::new(batch.absorbed_stores, all);
        self.accesses += all;
        let (mut from, mut done) = (0, 0);
        while from < batch.accesses.len() && !self.sampler.is_done() {
            let (stretch, wanted) = self.sampler.next(self.phase);
            let accesses = Accesses::of(batch, from..batch.accesses.len());
            let (count, represented) = accesses.standing_for(wanted.min(self.room()));
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

    /// Accesses that the present piece has room for. Only a length that the scenario names is kept to the access: else a batch
    /// would be cut for nothing.
    fn room(&self) -> u64 {
        let all = self.windows.piece_accesses_max();
        match (self.configuration.scenario.sampling.window, &self.piece_start) {
            // Where accesses stand for several, a piece may be longer than it should be.
            (Some(_), Some(_)) => all.saturating_sub(self.piece_accesses).max(1),
            _ => all,
        }
    }

    fn stretch(&mut self, thread: ThreadId, part: &Part<'_>, stretch: Stretch) -> Result<(), MachineError> {
        if stretch == Stretch::Measure {
            self.begin_piece();
        } else {
            self.end_piece();
        }
        let detail = if stretch == Stretch::Skip { Detail::TlbOnly } else { Detail::Full };
        self.run_accesses(thread, part, detail)?;
        match stretch {
            Stretch::Measure => {
                self.measured_instructions += part.instructions;
                self.piece_accesses += part.represented;
                self.close_full_piece();
            }
            Stretch::Warm => self.warm_accesses += part.represented,
            Stretch::Skip => {}
        }
        Ok(())
    }

    /// Runs accesses on the core of their thread: in one go, or step by step where others run meanwhile.
    fn run_accesses(&mut self, thread: ThreadId, part: &Part<'_>, detail: Detail) -> Result<(), MachineError> {
        let cpu = self.cpu(thread);
        let step = if self.beside.is_some() { STEP_ACCESSES } else { u64::MAX };
        let instructions = Spread::new(part.instructions, part.represented);
        let (mut rest, mut done) = (part.accesses, 0);
        while !rest.all.is_empty() {
            let (count, represented) = rest.standing_for(step);
            self.turn(cpu, detail)?;
            let Self { program, stack, hardware, .. } = self;
            program.run(stack, hardware, self.tenant, thread, rest.first(count), detail)?;
            let work = self.configuration.machine.timing.work(instructions.of(done, represented));
            self.advance(work);
            rest = rest.from(count);
            done += represented;
        }
        if part.absorbed_stores > 0 {
            self.hardware.count_absorbed_stores(self.tenant, thread.0, part.absorbed_stores, detail);
        }
        Ok(())
    }

    fn cpu(&self, thread: ThreadId) -> Cpu {
        self.stack.cpu(self.program.place(), thread.0)
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
