// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program runs on, its cores apart: the kernels, the programs beside it, and simulated time.
//!
//! Cores are handed in where they are needed. While nothing but first touches and memory events has happened, this does not
//! depend on them: [`crate::populated`].

use nestwalk_mem::Cpu;
use nestwalk_workload::{Batch, MemoryEvent, ThreadId, WorkloadFacts};

use crate::beside::{Beside, Companion};
use crate::build;
use crate::clock::Clock;
use crate::error::MachineError;
use crate::hardware::{Accesses, Detail, Hardware, Tenant};
use crate::member::Workshop;
use crate::meter::Meter;
use crate::neighbours::{Neighbours, check_limit};
use crate::program::{Program, shoot_down};
use crate::reserved::{Reserved, ReservedSeries};
use crate::run::{OnProgress, Progress};
use crate::scenario::Configuration;
use crate::stack::Stack;
use crate::timing::Timing;

/// See the [module](self).
pub(crate) struct System {
    pub stack: Stack,
    pub program: Program,
    pub meter: Meter,
    /// The programs beside it, if there are any.
    beside: Option<Beside>,
    clock: Clock,
    reserved: ReservedSeries,
    populated_pages: u64,
    timing: Timing,
    frequency_mhz: u64,
}

impl System {
    /// The kernels of `configuration` under a program of which `facts` are known, beside `neighbours`; and the cores of all.
    ///
    /// # Errors
    /// When the parts of the configuration do not fit together.
    pub fn new(
        configuration: &Configuration,
        facts: &WorkloadFacts,
        neighbours: Neighbours<'_>,
    ) -> Result<(Self, Hardware), MachineError> {
        let scenario = &configuration.scenario;
        check_limit(configuration, scenario.cgroup_limit, facts.footprint)?;
        let (mut stack, place) = build::stack(configuration, facts, &neighbours)?;
        let started_ns = stack.clock(&place);
        let mut hardware = Hardware::of(configuration, &stack, &place, facts.threads.max(1))?;
        let beside = if neighbours.is_empty() {
            None
        } else {
            let threads = facts.threads.max(1);
            Some(Beside::new(configuration, neighbours, &place, threads, &mut stack, &mut hardware)?)
        };
        let system = Self {
            program: Program::new(scenario.name.clone(), place)
                .limited(scenario.cgroup_limit, &mut stack)?
                .frozen(scenario.kernels.last().is_some_and(|kernel| kernel.dump.is_some())),
            stack,
            meter: Meter::new(configuration.costs.weights()?),
            beside,
            clock: Clock::from(started_ns),
            reserved: ReservedSeries::default(),
            populated_pages: 0,
            timing: configuration.machine.timing.clone(),
            frequency_mhz: configuration.machine.frequency_mhz,
        };
        Ok((system, hardware))
    }

    /// Whether other programs run meanwhile.
    pub fn has_company(&self) -> bool {
        self.beside.is_some()
    }

    /// Pages that first touches brought in.
    pub fn populated_pages(&self) -> u64 {
        self.populated_pages
    }

    /// Lets those beside the program run for `lead_ms` before it.
    ///
    /// # Errors
    /// When a stream cannot be read on, a kernel is out of memory, or `on_progress` breaks.
    pub fn begin(
        &mut self,
        hardware: &mut Hardware,
        lead_ms: u64,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<(), MachineError> {
        let Some(beside) = &mut self.beside else { return Ok(()) };
        // What building the machine took is nobody's.
        self.program.read(&mut self.meter, &self.stack);
        let lead_cycles = lead_ms * 1000 * self.frequency_mhz;
        let mut shop = Workshop::new(&mut self.stack, Some(hardware), &mut self.meter);
        while beside.lead(lead_cycles, &mut shop)? {
            let progress = Progress { accesses: 0, accesses_total: None, populated_pages: 0 };
            if on_progress(progress).is_break() {
                return Err(MachineError::Interrupted { accesses: 0 });
            }
        }
        let cpu = self.stack.cpu(self.program.place(), 0);
        beside.seat(self.stack.machine_cpu(self.program.place(), cpu));
        Ok(())
    }

    /// The program has touched all its memory.
    ///
    /// # Errors
    /// When nothing below a kernel backs a frame.
    pub fn populated(&mut self, hardware: &mut Hardware) -> Result<(), MachineError> {
        let Some(beside) = &mut self.beside else { return Ok(()) };
        beside.populated(&mut Workshop::new(&mut self.stack, Some(hardware), &mut self.meter))
    }

    /// The processor of its kernel on which a thread of the program runs.
    fn cpu(&self, thread: ThreadId) -> Cpu {
        self.stack.cpu(self.program.place(), thread.0)
    }

    /// Lets those beside the program go on until it is the turn of its processor `cpu`.
    #[inline]
    fn turn(&mut self, hardware: &mut Hardware, cpu: Cpu, detail: Detail) -> Result<(), MachineError> {
        let Some(beside) = &mut self.beside else { return Ok(()) };
        let cpu = self.stack.machine_cpu(self.program.place(), cpu);
        beside.until_turn(cpu, detail, &mut Workshop::new(&mut self.stack, Some(hardware), &mut self.meter))
    }

    /// The program asks its kernel for something.
    ///
    /// # Errors
    /// When a kernel is out of memory, or a stream beside the program cannot be read on.
    pub fn event(&mut self, hardware: &mut Hardware, event: &MemoryEvent) -> Result<(), MachineError> {
        let cpu = self.cpu(ThreadId(0));
        self.turn(hardware, cpu, Detail::TlbOnly)?;
        self.program.event(&mut self.stack, event, cpu)?;
        shoot_down(&mut self.stack, hardware);
        if matches!(event, MemoryEvent::ForkAndWait | MemoryEvent::ChildExit) {
            hardware.replace(Tenant::MEASURED, self.program.place());
        }
        if self.has_company() {
            self.advance(0);
        }
        Ok(())
    }

    /// First touches of a stretch whose accesses are not known: only the kernels see them.
    ///
    /// # Errors
    /// As [`System::event`].
    pub fn touch(&mut self, hardware: &mut Hardware, batch: &Batch) -> Result<(), MachineError> {
        let cpu = self.cpu(batch.thread);
        for &(page, store) in &batch.touches {
            self.turn(hardware, cpu, Detail::TlbOnly)?;
            self.program.touch(&mut self.stack, page, store, cpu)?;
            if self.has_company() {
                shoot_down(&mut self.stack, hardware);
                self.advance(0);
            }
        }
        self.populated_pages += batch.touches.len() as u64;
        shoot_down(&mut self.stack, hardware);
        self.advance(batch.instructions);
        Ok(())
    }

    /// Runs accesses of a thread, between which nobody else runs. They take so many instructions.
    ///
    /// # Errors
    /// As [`System::event`].
    pub fn access(
        &mut self,
        hardware: &mut Hardware,
        thread: ThreadId,
        accesses: Accesses<'_>,
        instructions: u64,
        detail: Detail,
    ) -> Result<(), MachineError> {
        let cpu = self.cpu(thread);
        self.turn(hardware, cpu, detail)?;
        self.program.run(&mut self.stack, hardware, Tenant::MEASURED, thread, accesses, detail)?;
        self.advance(instructions);
        Ok(())
    }

    /// The clock goes on by the work of `instructions` of the program and by all kernel work for it since it last did. Waiting
    /// for memory is left out: it would make the daemons' pace, and who faults when, depend on the very latencies that are
    /// compared.
    fn advance(&mut self, instructions: u64) {
        let cycles = self.timing.work(instructions) + self.program.read(&mut self.meter, &self.stack);
        match &mut self.beside {
            Some(beside) => {
                beside.charge(cycles);
                self.clock.advance_to(beside.now(), self.frequency_mhz);
            }
            None => self.clock.advance(cycles, self.frequency_mhz),
        }
    }

    /// Lets `ns` pass in which the program goes on as it does, for the daemons of the kernels: their clocks go on, and no
    /// work is charged to anybody.
    pub fn pass(&mut self, ns: u64) {
        self.clock.pass(ns);
    }

    /// Wakes the daemons that are due, and looks at the memory in reserve.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn tick(&mut self, hardware: &mut Hardware) -> Result<(), MachineError> {
        if self.clock.is_tick_due() || self.stack.has_background_work() {
            self.wake_daemons(hardware)?;
        }
        self.reserved.sample(self.clock.now_ns(), self.stack.top_kernel(self.program.place()));
        Ok(())
    }

    fn wake_daemons(&mut self, hardware: &mut Hardware) -> Result<(), MachineError> {
        self.clock.ticked();
        self.program.tick(&mut self.stack, self.clock.now_ns())?;
        shoot_down(&mut self.stack, hardware);
        if let Some(beside) = &mut self.beside {
            // What the daemons did for the program's kernels is the program's; what they do for other VMs is theirs.
            beside.charge(self.program.read(&mut self.meter, &self.stack));
            let mut shop = Workshop::new(&mut self.stack, Some(hardware), &mut self.meter);
            beside.tick(self.clock.now_ns(), &mut shop)?;
        }
        Ok(())
    }

    /// The parts that a result is made of: what those beside the program did, and memory in reserve over time.
    pub fn finish(self, hardware: &Hardware) -> Finished {
        let Self { stack, program, beside, reserved, populated_pages, .. } = self;
        let companions = beside.map_or_else(Vec::new, |beside| beside.finish(hardware));
        Finished { stack, program, companions, reserved: reserved.finish(), populated_pages }
    }
}

/// What is left of a [`System`] when its run has ended.
pub(crate) struct Finished {
    pub stack: Stack,
    pub program: Program,
    /// The programs beside it, by entry of the scenario.
    pub companions: Vec<Companion>,
    pub reserved: Reserved,
    pub populated_pages: u64,
}
