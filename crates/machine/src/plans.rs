// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tenants beside the measured one, before a machine is built for them: what they are, and what
//! they need of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestwalk_mem::{PageCount, size};

use crate::build::{Needs, roomy};
use crate::colocated::{ColocatedConfig, CoresConfig, VmConfig};
use crate::configuration::Configuration;
use crate::error::MachineError;
use crate::tenant::Source;
use crate::workloads::open;

/// A tenant that is not there yet.
pub(crate) struct TenantPlan {
    /// Which of the scenario's entries it is.
    pub entry: usize,
    pub threads: u16,
    pub footprint: PageCount,
    /// Processors and memory of its VM, if it has one of its own.
    pub vm: Option<(u16, PageCount)>,
    pub source: Source,
}

/// All tenants beside the measured one.
pub(crate) struct TenantPlans {
    pub all: Vec<TenantPlan>,
}

impl TenantPlans {
    /// Looks at all of them.
    ///
    /// # Errors
    /// When the stream of one cannot be opened.
    pub fn open(configuration: &Configuration, measured_threads: u16, traces: &Path) -> Result<Self, MachineError> {
        let scenario = &configuration.scenario;
        let paths: Arc<(PathBuf, PathBuf)> = Arc::new((configuration.base.clone(), traces.to_owned()));
        let mut all = Vec::new();
        for (entry, config) in scenario.colocated.iter().enumerate() {
            for _ in 0..config.count {
                let (workload, paths) = (config.workload.clone(), Arc::clone(&paths));
                // Two of the same kind must not go in step, nor one with the measured program.
                let seed = scenario.seed.wrapping_add(1 + all.len() as u64);
                let source: Source = Box::new(move || open(&workload, seed, &paths.0, &paths.1));
                let facts = source()?.facts();
                let (threads, footprint) = (facts.threads.max(1), facts.footprint);
                check_limit(configuration, config.cgroup_limit, footprint)?;
                let vm = (config.vm == VmConfig::Own).then(|| vm_size(config, threads, footprint));
                all.push(TenantPlan { entry, threads, footprint, vm, source });
            }
        }
        check_threads(configuration, &all, measured_threads)?;
        Ok(Self { all })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// What they need of the machine.
    pub fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        for plan in &self.all {
            match plan.vm {
                None => {
                    needs.threads += plan.threads;
                    needs.footprint.0 += plan.footprint.0;
                }
                Some((cpus, memory)) => {
                    needs.vm_cpus += cpus;
                    needs.vm_memory.0 += memory.0;
                }
            }
        }
        needs
    }
}

/// Whether the measured program's cores have hardware threads for all that share them.
fn check_threads(configuration: &Configuration, all: &[TenantPlan], measured: u16) -> Result<(), MachineError> {
    let shares = |one: &&TenantPlan| configuration.scenario.colocated[one.entry].cores() == CoresConfig::Smt;
    let threads: u32 = all.iter().filter(shares).map(|one| u32::from(one.threads)).sum();
    if threads <= u32::from(measured) {
        return Ok(());
    }
    Err(configuration.scenario_error(format!(
        "cores = \"smt\" for {threads} threads: the program's {measured} have one core each, of two hardware threads; \
         give the others cores = \"own\""
    )))
}

/// Whether a program fits into its cgroup.
///
/// # Errors
/// When it does not.
pub(crate) fn check_limit(
    configuration: &Configuration,
    limit: Option<PageCount>,
    footprint: PageCount,
) -> Result<(), MachineError> {
    match limit {
        Some(limit) if limit < footprint => Err(configuration.scenario_error(format!(
            "cgroup_limit = \"{}\" is less than the program's {} MiB: give more, as nothing enforces the limit",
            size::format(limit.bytes()),
            footprint.bytes().div_ceil(1 << 20)
        ))),
        _ => Ok(()),
    }
}

/// Processors and memory of the VM of `config`'s program.
fn vm_size(config: &ColocatedConfig, threads: u16, footprint: PageCount) -> (u16, PageCount) {
    let kernel = config.kernel.as_ref();
    let cpus = kernel.and_then(|kernel| kernel.cpus).unwrap_or(threads);
    let memory = kernel.and_then(|kernel| kernel.memory).unwrap_or(roomy(footprint));
    (cpus, memory)
}
