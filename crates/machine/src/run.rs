// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run: the measured tenant goes on to its end, under the eyes of an observer.

use nestwalk_mem::Cycles;
use nestwalk_mmu::MmuConfig;
use nestwalk_workload::{Phase, Step};

use crate::accesses::Detail;
use crate::configuration::Configuration;
use crate::contiguity;
use crate::error::MachineError;
use crate::machine::{Machine, TenantId};
use crate::observer::Observer;
use crate::populated::Populated;
use crate::progress::{OnProgress, Progress};
use crate::requests::{Recorder, Waits};
use crate::result::RunResult;
use crate::sampler::Stretch;
use crate::scenario::MachineConfig;
use crate::summary::{Outcome, summarise};
use crate::tenant::Budget;
use crate::whole::{Extent, Parts, whole_run};

/// Accesses of the whole program, and those of them that were simulated, until some moment.
#[derive(Clone, Copy, Default)]
struct Position {
    program: u64,
    simulated: u64,
}

impl Populated {
    /// Runs the program to its end on the hardware of `configuration`.
    ///
    /// # Errors
    /// When this machine was not populated as that of `configuration` is; otherwise as
    /// [`Populated::new`].
    pub fn run(
        mut self,
        configuration: Configuration,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<RunResult, MachineError> {
        self.prepare(&configuration)?;
        let observer = Observer::new(&configuration, Machine::FIRST, &self.facts, self.phase);
        let run = Run {
            populated: self,
            observer,
            config: &configuration.machine,
            requests: Recorder::default(),
            tells_requests: false,
            accesses: 0,
            first_window: None,
        };
        let outcome = run.run(on_progress)?;
        summarise(configuration, outcome)
    }
}

/// A machine in the middle of a run.
struct Run<'a> {
    populated: Populated,
    observer: Observer<'a>,
    config: &'a MachineConfig,
    requests: Recorder,
    /// Whether the program is a server that tells its requests apart.
    tells_requests: bool,
    accesses: u64,
    /// Where the program's first window began.
    first_window: Option<Position>,
}

impl Run<'_> {
    const ID: TenantId = Machine::FIRST;

    fn run(mut self, on_progress: &mut OnProgress<'_>) -> Result<Outcome, MachineError> {
        loop {
            let step = self.machine().peek(Self::ID)?;
            let has_requests = !self.machine().tenant(Self::ID).stream.requests().is_empty();
            self.tells_requests |= has_requests;
            match step {
                Step::End => break,
                Step::Phase(phase) => self.enter(phase)?,
                Step::Accesses => self.access()?,
                Step::Touches if has_requests => self.touch()?,
                Step::Event(_) | Step::Touches => self.machine().finish_step(Self::ID)?,
            }
            self.machine().tick(Self::ID)?;
            if self.tells_requests && !self.machine().is_shared() {
                // What daemons did is no part of the next request.
                self.machine().read_work(Self::ID);
            }
            let progress = Progress {
                accesses: self.accesses,
                accesses_total: self.populated.facts.accesses.map(|total| total + self.observer.unplanned_accesses()),
                populated_pages: self.machine().tenant(Self::ID).tally.touches,
            };
            if on_progress(progress).is_break() {
                return Err(MachineError::Interrupted { accesses: self.accesses });
            }
            if self.observer.is_done() {
                break;
            }
        }
        Ok(self.finish())
    }

    fn machine(&mut self) -> &mut Machine {
        &mut self.populated.machine
    }

    fn enter(&mut self, phase: Phase) -> Result<(), MachineError> {
        let machine = &mut self.populated.machine;
        let stream = &mut machine.tenant_mut(Self::ID).stream;
        stream.finish();
        let program = stream.workload().program_accesses();
        let is_populated = self.observer.enter(phase, machine);
        if phase != Phase::Populate && self.first_window.is_none() {
            self.first_window = program.map(|program| Position { program, simulated: self.accesses });
        }
        if is_populated { machine.populated() } else { Ok(()) }
    }

    /// The accesses of a batch, stretch by stretch.
    fn access(&mut self) -> Result<(), MachineError> {
        let (machine, observer) = (&mut self.populated.machine, &mut self.observer);
        let stream = &machine.tenant(Self::ID).stream;
        self.accesses += stream.represented();
        let (thread, ends) = (stream.thread().0, stream.requests().to_vec());
        let mut ended = 0;
        while machine.tenant(Self::ID).stream.has_more() && !observer.is_done() {
            let (stretch, mut wanted) = observer.next();
            let end = ends.get(ended).copied();
            if let Some(end) = end {
                wanted = wanted.min((end - machine.tenant(Self::ID).stream.represented_so_far()).max(1));
            }
            let share = machine.tenant_mut(Self::ID).stream.cut(wanted);
            let detail = observer.begin(stretch, share.represented, machine);
            let before = self.tells_requests.then(|| waits(machine, &self.config.mmu));
            let mut cycles = Cycles(0);
            while machine.tenant(Self::ID).stream.in_stretch() {
                cycles += machine.step_measured_within(Self::ID, Budget::alone(detail))?.1;
            }
            if let (Some(before), Stretch::Measure) = (before, stretch) {
                self.requests.go_on(thread, self.config, cycles, &waits(machine, &self.config.mmu).since(&before));
            } else {
                self.requests.restart();
            }
            if end.is_some_and(|end| machine.tenant(Self::ID).stream.represented_so_far() >= end) {
                ended += 1;
                self.requests.end(thread);
            }
            observer.end(stretch, share, machine);
        }
        machine.tenant_mut(Self::ID).stream.finish();
        Ok(())
    }

    /// The touches of a batch, request by request.
    fn touch(&mut self) -> Result<(), MachineError> {
        let machine = &mut self.populated.machine;
        self.observer.pause(machine);
        let stream = &machine.tenant(Self::ID).stream;
        let ends = stream.requests().to_vec();
        let own = machine.platform.timing.work(stream.instructions() / ends.len() as u64);
        let mut done = 0;
        for end in ends {
            let mut kernel = Cycles(0);
            while done < end {
                let before = machine.tenant(Self::ID).tally;
                let budget = Budget { touches: (end - done) as usize, ..Budget::alone(Detail::TlbOnly) };
                let (_, cycles) = machine.step_measured_within(Self::ID, budget)?;
                let after = machine.tenant(Self::ID).tally;
                done += after.touches - before.touches;
                kernel += cycles - machine.platform.timing.work(after.instructions - before.instructions);
            }
            self.requests.touched(own + kernel);
        }
        Ok(())
    }

    fn finish(self) -> Outcome {
        let Self { populated, observer, requests, accesses: simulated, first_window, .. } = self;
        let Populated { mut machine, boot, started, ready, .. } = populated;
        let observed = observer.finish(&machine);
        machine.read_work(Self::ID);
        let tenant = machine.tenant(Self::ID);
        let accesses = tenant.stream.workload().program_accesses();
        let before = first_window.unwrap_or_default();
        let after = accesses.unwrap_or_default().saturating_sub(before.program);
        let extent = Extent {
            accesses,
            skipped: after.saturating_sub(simulated - before.simulated),
            measured: observed.measured.counters.tlb.accesses,
            frozen: tenant.family.is_frozen(),
        };
        let (stack, meter, chain) = (&machine.platform.stack, &machine.platform.meter, tenant.family.chain());
        let parts = Parts { boot: &boot, windows: &observed.measured.work, extent };
        let whole_run = whole_run(stack, chain, meter, tenant.family.work(), parts);
        let contiguity = contiguity::course(&started, &ready, &contiguity::look(stack, chain));
        let (reserved, requests) = (machine.take_reserved(), requests.finish());
        Outcome { reserved, requests, machine, id: Self::ID, observed, whole_run, contiguity }
    }
}

/// What the measured program has waited for until now.
fn waits(machine: &Machine, config: &MmuConfig) -> Waits {
    machine.counters(Machine::FIRST).map_or_else(Waits::default, |counters| Waits::of(&counters, config))
}
