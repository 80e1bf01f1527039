// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine whose program is about to make its first access: all memory that it touches before is
//! populated.
//!
//! Until then there were only first touches and memory events, which kernels see and cores do not.
//! So machines with the same kernels, program and clock are alike at that point, whatever their
//! hardware ([`Configuration::populated_by`]): one of them can be made, copied (`fork`) and run
//! with the hardware of each.

use std::path::Path;

use nestwalk_mem::Cycles;
use nestwalk_workload::trace::FilterOptions;
use nestwalk_workload::{FilteredWorkload, Phase, Step, Workload, WorkloadFacts};
use serde::Serialize;

use crate::assembly;
use crate::configuration::Configuration;
use crate::contiguity::{self, FreeMemory};
use crate::error::MachineError;
use crate::kernel_scenario::KernelScenario;
use crate::machine::Machine;
use crate::meter::Work;
use crate::plans::TenantPlans;
use crate::progress::{OnProgress, Progress};
use crate::timing::{Costs, Timing};
use crate::waiting::Waiting;
use crate::whole::snapshot;
use crate::workload_config::WorkloadConfig;
use crate::workloads;

/// Steps between two looks at the clock before the measured program begins.
const LEAD_STEPS: usize = 1 << 12;

/// See the [module](self).
pub struct Populated {
    pub(crate) machine: Machine,
    pub(crate) facts: WorkloadFacts,
    /// The last phase that the program has announced.
    pub(crate) phase: Phase,
    /// What the kernels had done before the program began.
    pub(crate) boot: Work,
    /// The kernels' free memory when the program began, and now.
    pub(crate) started: Vec<FreeMemory>,
    pub(crate) ready: Vec<FreeMemory>,
    populated_by: String,
}

impl std::fmt::Debug for Populated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Populated").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Populated {
    /// The machine of `configuration`, up to its program's first access. Bundled traces lie in the
    /// folder `traces`.
    ///
    /// # Errors
    /// When the parts of the configuration do not fit together, the workload cannot be read, a
    /// kernel is out of memory, or `on_progress` breaks.
    pub fn new(
        configuration: &Configuration,
        traces: &Path,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, MachineError> {
        Self::of(workloads::workload(configuration, traces)?, configuration, traces, on_progress)
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
        let plans = TenantPlans::open(configuration, facts.threads.max(1), traces)?;
        let mut machine = assembly::machine(configuration, workload, &facts, plans)?;
        let chain = machine.tenant(Machine::FIRST).family.chain();
        let boot = snapshot(&machine.platform.stack, chain);
        let started = contiguity::look(&machine.platform.stack, chain);
        lead(&mut machine, configuration, on_progress)?;
        let (phase, populated_by) = (Phase::Measure, configuration.populated_by());
        let mut populated = Self { machine, facts, phase, boot, started, ready: Vec::new(), populated_by };
        populated.populate(on_progress)?;
        let machine = &populated.machine;
        let chain = machine.tenant(Machine::FIRST).family.chain();
        populated.ready = contiguity::look(&machine.platform.stack, chain);
        Ok(populated)
    }

    fn populate(&mut self, on_progress: &mut OnProgress<'_>) -> Result<(), MachineError> {
        let machine = &mut self.machine;
        loop {
            match machine.peek(Machine::FIRST)? {
                Step::Event(_) | Step::Touches => machine.finish_step(Machine::FIRST)?,
                Step::Phase(Phase::Populate) => {
                    machine.tenant_mut(Machine::FIRST).stream.finish();
                    self.phase = Phase::Populate;
                }
                Step::Phase(_) | Step::Accesses | Step::End => return Ok(()),
            }
            machine.tick(Machine::FIRST)?;
            let populated_pages = machine.tenant(Machine::FIRST).tally.touches;
            if on_progress(Progress { accesses: 0, accesses_total: self.facts.accesses, populated_pages }).is_break() {
                return Err(MachineError::Interrupted { accesses: 0 });
            }
        }
    }

    /// Gets ready for a run of `configuration`: with its hardware, where no tenant has used the
    /// cores yet.
    ///
    /// # Errors
    /// When this machine was not populated as that of `configuration` is.
    pub(crate) fn prepare(&mut self, configuration: &Configuration) -> Result<(), MachineError> {
        if configuration.populated_by() != self.populated_by {
            let what = "its memory is populated in another way than that of the run whose machine it was to share";
            return Err(configuration.scenario_error(what.into()));
        }
        if !self.machine.is_shared() {
            let chain = self.machine.tenant(Machine::FIRST).family.chain();
            let threads = self.facts.threads.max(1);
            let hardware = assembly::hardware(configuration, &self.machine.platform.stack, chain, threads)?;
            self.machine.platform.hardware = Some(hardware);
            self.machine.tenant_mut(Machine::FIRST).family.rename(&configuration.scenario.name);
        }
        let waiting = Waiting::on(&configuration.machine, configuration.scenario.seed);
        let waiting = waiting.filter(|_| self.facts.tells_dependences);
        self.machine.tenant_mut(Machine::FIRST).look_at_waiting(waiting);
        Ok(())
    }
}

/// Lets the tenants beside the measured one run for a while before it.
fn lead(
    machine: &mut Machine,
    configuration: &Configuration,
    on_progress: &mut OnProgress<'_>,
) -> Result<(), MachineError> {
    if !machine.is_shared() {
        return Ok(());
    }
    // No tenant is charged for building the machine.
    machine.read_work(Machine::FIRST);
    let lead = Cycles::of_us(configuration.scenario.colocated_lead_ms * 1000, configuration.machine.frequency_mhz);
    while machine.lead(lead, LEAD_STEPS)? {
        let progress = Progress { accesses: 0, accesses_total: None, populated_pages: 0 };
        if on_progress(progress).is_break() {
            return Err(MachineError::Interrupted { accesses: 0 });
        }
    }
    machine.seat(Machine::FIRST, None);
    Ok(())
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
    /// Whether kernels set the contiguous bit.
    contiguous: bool,
    /// The whole configuration, where programs beside it run meanwhile: they change the state of
    /// the cores, which depends on the hardware.
    with_company: Option<&'a Configuration>,
}

impl Configuration {
    /// A text that two configurations share if and only if a machine populated for one serves the
    /// other.
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
            contiguous: machine.mmu.holds_contiguous(),
            with_company: (!scenario.colocated.is_empty()).then_some(self),
        };
        serde_json::to_string(&all).expect("what is read from TOML can be written")
    }
}
