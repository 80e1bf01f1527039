// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run: the measured tenant goes on to its end, under the eyes of an observer.

use nestwalk_workload::{Phase, Step};

use crate::configuration::Configuration;
use crate::contiguity;
use crate::error::MachineError;
use crate::machine::{Machine, TenantId};
use crate::observer::Observer;
use crate::populated::Populated;
use crate::progress::{OnProgress, Progress};
use crate::result::RunResult;
use crate::summary::{Outcome, summarise};
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
        let outcome = Run { populated: self, observer, accesses: 0, first_window: None }.run(on_progress)?;
        summarise(configuration, outcome)
    }
}

/// A machine in the middle of a run.
struct Run<'a> {
    populated: Populated,
    observer: Observer<'a>,
    accesses: u64,
    /// Where the program's first window began.
    first_window: Option<Position>,
}

impl Run<'_> {
    const ID: TenantId = Machine::FIRST;

    fn run(mut self, on_progress: &mut OnProgress<'_>) -> Result<Outcome, MachineError> {
        loop {
            match self.machine().peek(Self::ID)? {
                Step::End => break,
                Step::Phase(phase) => self.enter(phase)?,
                Step::Accesses => self.access()?,
                Step::Event(_) | Step::Touches => self.machine().finish_step(Self::ID)?,
            }
            self.machine().tick(Self::ID)?;
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
        self.accesses += machine.tenant(Self::ID).stream.represented();
        while machine.tenant(Self::ID).stream.has_more() && !observer.is_done() {
            let (stretch, wanted) = observer.next();
            let share = machine.tenant_mut(Self::ID).stream.cut(wanted);
            let detail = observer.begin(stretch, share.represented, machine);
            while machine.tenant(Self::ID).stream.in_stretch() {
                machine.step_measured(Self::ID, detail)?;
            }
            observer.end(stretch, share, machine);
        }
        machine.tenant_mut(Self::ID).stream.finish();
        Ok(())
    }

    fn finish(self) -> Outcome {
        let Self { populated, observer, accesses: simulated, first_window } = self;
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
        Outcome { reserved: machine.take_reserved(), machine, id: Self::ID, observed, whole_run, contiguity }
    }
}
