// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine whose program is about to make its first access: all memory that it touches before has been populated.
//!
//! Until then only first touches and memory events have come, which the kernels see and the cores do not. So machines of any
//! hardware are alike there whose kernels, program and clock are ([`Configuration::populated_by`]), and one of them can be
//! made, copied (`fork`) and run with the hardware of each.

use std::path::Path;

use nestwalk_workload::trace::FilterOptions;
use nestwalk_workload::{Batch, FilteredWorkload, Phase, Step, Workload, WorkloadFacts};
use serde::Serialize;

use crate::build;
use crate::contiguity::{self, FreeMemory};
use crate::error::MachineError;
use crate::hardware::Hardware;
use crate::meter::Work;
use crate::neighbours::Neighbours;
use crate::result::RunResult;
use crate::run::{OnProgress, Progress, Run};
use crate::scenario::{Configuration, KernelScenario, WorkloadConfig};
use crate::summary;
use crate::system::System;
use crate::timing::{Costs, Timing};
use crate::whole::snapshot;

/// See the [module](self).
pub struct Populated {
    pub(crate) system: System,
    pub(crate) hardware: Hardware,
    pub(crate) workload: Box<dyn Workload>,
    pub(crate) facts: WorkloadFacts,
    /// The program's phase, as far as it has said.
    pub(crate) phase: Phase,
    /// The first step that was not taken, with what belongs to it.
    pub(crate) next: Step,
    pub(crate) batch: Batch,
    /// What the kernels had done before the program began.
    pub(crate) boot: Work,
    /// The kernels' free memory when the program began, and now.
    pub(crate) started: Vec<FreeMemory>,
    pub(crate) ready: Vec<FreeMemory>,
    populated_by: String,
}

impl std::fmt::Debug for Populated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Populated").field("facts", &self.facts).field("next", &self.next).finish_non_exhaustive()
    }
}

impl Populated {
    /// The machine of `configuration`, up to its program's first access. Bundled traces lie in the folder `traces`.
    ///
    /// # Errors
    /// When the parts of the configuration do not fit together, the workload cannot be read, a kernel is out of memory, or
    /// `on_progress` breaks.
    pub fn new(
        configuration: &Configuration,
        traces: &Path,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, MachineError> {
        Self::of(build::workload(configuration, traces)?, configuration, traces, on_progress)
    }

    /// The same with `workload` in the place of the one that the scenario names.
    ///
    /// # Errors
    /// As for [`Populated::new`].
    pub fn of(
        mut workload: Box<dyn Workload>,
        configuration: &Configuration,
        traces: &Path,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, MachineError> {
        if let Some(filter) = configuration.scenario.sampling.filter {
            workload = Box::new(FilteredWorkload::new(workload, filter));
        }
        let facts = workload.facts();
        let neighbours = Neighbours::open(configuration, facts.threads.max(1), traces)?;
        let (mut system, mut hardware) = System::new(configuration, &facts, neighbours)?;
        let boot = snapshot(&system.stack, system.program.place());
        let started = contiguity::look(&system.stack, system.program.place());
        system.begin(&mut hardware, configuration.scenario.colocated_lead_ms, on_progress)?;
        let mut populated = Self {
            system,
            hardware,
            workload,
            facts,
            phase: Phase::Measure,
            next: Step::End,
            batch: Batch::default(),
            boot,
            started,
            ready: Vec::new(),
            populated_by: configuration.populated_by(),
        };
        populated.populate(on_progress)?;
        populated.ready = contiguity::look(&populated.system.stack, populated.system.program.place());
        Ok(populated)
    }

    fn populate(&mut self, on_progress: &mut OnProgress<'_>) -> Result<(), MachineError> {
        loop {
            self.next = self.workload.next(&mut self.batch)?;
            match &self.next {
                Step::Event(event) => self.system.event(&mut self.hardware, event)?,
                Step::Touches => self.system.touch(&mut self.hardware, &self.batch)?,
                Step::Phase(Phase::Populate) => self.phase = Phase::Populate,
                Step::Phase(_) | Step::Accesses | Step::End => return Ok(()),
            }
            self.system.tick(&mut self.hardware)?;
            let populated_pages = self.system.populated_pages();
            if on_progress(Progress { accesses: 0, accesses_total: self.facts.accesses, populated_pages }).is_break() {
                return Err(MachineError::Interrupted { accesses: 0 });
            }
        }
    }

    /// Runs the program to its end on the hardware of `configuration`.
    ///
    /// # Errors
    /// When this machine was not populated as that of `configuration` is; otherwise as [`Populated::new`].
    pub fn run(
        mut self,
        configuration: Configuration,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<RunResult, MachineError> {
        if configuration.populated_by() != self.populated_by {
            let what = "its memory is populated in another way than that of the run whose machine it was to share";
            return Err(configuration.scenario_error(what.into()));
        }
        if !self.system.has_company() {
            let (stack, place) = (&self.system.stack, self.system.program.place());
            self.hardware = Hardware::of(&configuration, stack, place, self.facts.threads.max(1))?;
            self.system.program.rename(&configuration.scenario.name);
        }
        let outcome = Run::new(&configuration, self).run(on_progress)?;
        summary::summarise(configuration, outcome)
    }
}

/// All that decides what memory is like when the program makes its first access.
#[derive(Serialize)]
struct PopulatedBy<'a> {
    seed: u64,
    workload: &'a WorkloadConfig,
    filter: Option<FilterOptions>,
    cgroup_limit: Option<u64>,
    kernels: &'a [KernelScenario],
    base: &'a Path,
    /// The clock wakes daemons.
    timing: &'a Timing,
    frequency_mhz: u64,
    costs: &'a Costs,
    /// What the segment registers of a VM were built with.
    segment_latency_cycles: Option<u32>,
    /// Where programs beside it make accesses meanwhile: all of it, as they leave the cores as the hardware has it.
    with_company: Option<&'a Configuration>,
}

impl Configuration {
    /// A text that two configurations share if, and only if, a machine that was populated for one of them serves the other.
    ///
    /// # Panics
    /// Never: what is read from TOML can be written.
    pub fn populated_by(&self) -> String {
        let Self { scenario, machine, costs, base, .. } = self;
        let all = PopulatedBy {
            seed: scenario.seed,
            workload: &scenario.workload,
            filter: scenario.sampling.filter,
            cgroup_limit: scenario.cgroup_limit.map(|limit| limit.0),
            kernels: &scenario.kernels,
            base,
            timing: &machine.timing,
            frequency_mhz: machine.frequency_mhz,
            costs,
            segment_latency_cycles: machine.mmu.segment_latency_cycles,
            with_company: (!scenario.colocated.is_empty()).then_some(self),
        };
        serde_json::to_string(&all).expect("what is read from TOML can be written")
    }
}
