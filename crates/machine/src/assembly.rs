// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the machine of a configuration, and gives each tenant its kernels, processors and cores.
//!
//! Processors are handed out in order: the measured program's threads have the first ones, then
//! come those of the tenants on its kernel, then those of other VMs. Where a kernel has been given
//! fewer processors than that, programs of one thread move among all of them, and others wrap
//! around: they take turns.

use std::ops::Range;

use nestwalk_mem::{Cpu, Frame, Hpa};
use nestwalk_mmu::Asid;
use nestwalk_os::{KernelConfig, OsError};
use nestwalk_workload::{Workload, WorkloadFacts};

use crate::build::{self, add_kernel, add_process, kernel_config};
use crate::chain::{Floor, KernelChain};
use crate::colocated::{ColocatedConfig, CoresConfig};
use crate::configuration::Configuration;
use crate::error::MachineError;
use crate::hardware::{AnyAccelerator, Hardware};
use crate::machine::Machine;
use crate::meter::Meter;
use crate::plans::{TenantPlan, TenantPlans, check_limit};
use crate::platform::Platform;
use crate::process_family::ProcessFamily;
use crate::schedule::Schedule;
use crate::stack::Stack;
use crate::tenant::{Company, Tenant};

/// The machine of `configuration` with the program `workload`, of which `facts` are known, as its
/// first tenant, beside the others that are planned.
///
/// # Errors
/// When the parts of the configuration do not fit together.
pub(crate) fn machine(
    configuration: &Configuration,
    workload: Box<dyn Workload>,
    facts: &WorkloadFacts,
    plans: TenantPlans,
) -> Result<Machine, MachineError> {
    let scenario = &configuration.scenario;
    check_limit(configuration, scenario.cgroup_limit, facts.footprint)?;
    let (mut stack, chain) = build::stack(configuration, facts, &plans.needs())?;
    let started = stack.clock(&chain);
    let threads = facts.threads.max(1);
    let hardware = hardware(configuration, &stack, &chain, threads)?;
    let family = ProcessFamily::new(scenario.name.clone(), chain)
        .limited(scenario.cgroup_limit, &mut stack)?
        .frozen(scenario.kernels.last().is_some_and(|kernel| kernel.dump.is_some()));
    let platform = Platform {
        stack,
        hardware: Some(hardware),
        meter: Meter::new(configuration.costs.weights()?),
        timing: configuration.machine.timing.clone(),
    };
    let mut machine = Machine::new(platform, started, configuration.machine.frequency_mhz);
    machine.add(Tenant::new(family, workload, Some(Hardware::FIRST)).measured());
    if !plans.is_empty() {
        machine.share(schedule(configuration, &machine.platform.stack, &chain)?);
        let mut next = Next { same: threads, vm: threads + plans.needs().threads };
        for (index, plan) in plans.all.into_iter().enumerate() {
            join(configuration, plan, index as u64, &chain, &mut next, &mut machine)?;
        }
    }
    Ok(machine)
}

/// The cores of `configuration` over the kernels of `stack`, for the `threads` of the program on
/// `chain`: the [first](Hardware::FIRST) one.
///
/// # Errors
/// When the machine cannot be built.
pub(crate) fn hardware(
    configuration: &Configuration,
    stack: &Stack,
    chain: &KernelChain,
    threads: u16,
) -> Result<Hardware, MachineError> {
    let memory_end: Hpa = Frame(stack.kernel(chain.bottom_floor()).memory().frames().0).address().into();
    let Configuration { scenario, machine, .. } = configuration;
    let made = AnyAccelerator::of(scenario, memory_end);
    let (accelerator, memory_end) = made.map_err(|what| configuration.scenario_error(what))?;
    let failed = |source| MachineError::Mmu { name: machine.name.clone(), source };
    let hardware = Hardware::new(&machine.mmu, accelerator, scenario.corunner, memory_end, scenario.seed);
    let mut hardware = hardware.map_err(failed)?;
    hardware.add(chain, threads).map_err(failed)?;
    Ok(hardware)
}

fn schedule(configuration: &Configuration, stack: &Stack, chain: &KernelChain) -> Result<Schedule, MachineError> {
    let Some(times) = configuration.costs.scheduler.clone() else {
        let what = format!("costs {}: no [scheduler], which programs beside each other need", configuration.costs.name);
        return Err(configuration.scenario_error(what));
    };
    let cpus = stack.kernel(chain.bottom_floor()).config().cpus;
    Ok(Schedule::new(cpus.into(), times, configuration.machine.frequency_mhz))
}

/// The next processor of the measured program's kernel, and of the machine for VMs, that is free.
struct Next {
    same: u16,
    vm: u16,
}

/// Tenant `index` of those beside the measured one, which is on the kernels `measured`, begins.
fn join(
    configuration: &Configuration,
    plan: TenantPlan,
    index: u64,
    measured: &KernelChain,
    next: &mut Next,
    machine: &mut Machine,
) -> Result<(), MachineError> {
    let config = &configuration.scenario.colocated[plan.entry];
    let stack = &mut machine.platform.stack;
    let (chain, among) = place(configuration, config, &plan, index, measured, stack, next)?;
    let family = ProcessFamily::new(configuration.scenario.name.clone(), chain).limited(config.cgroup_limit, stack)?;
    let user = match &mut machine.platform.hardware {
        Some(hardware) => cores(configuration, config, &plan, &chain, hardware)?,
        None => None,
    };
    let company = Company { entry: plan.entry, until: config.until, vm: config.vm };
    let tenant = Tenant::new(family, (plan.source)()?, user).again(plan.source).beside(company);
    machine.join(tenant, among).map(|_| ())
}

/// The tenant's kernels and processes, and the processors among which it moves, if there are too
/// few.
fn place(
    configuration: &Configuration,
    config: &ColocatedConfig,
    plan: &TenantPlan,
    index: u64,
    measured: &KernelChain,
    stack: &mut Stack,
    next: &mut Next,
) -> Result<(KernelChain, Option<Range<usize>>), MachineError> {
    let failed = |source| MachineError::Os {
        place: configuration.file(),
        kernel: format!("colocated program {}: its", plan.entry + 1),
        source,
    };
    let (chain, last) = match plan.vm {
        None => {
            let chain = in_same_kernel(stack, measured, Cpu(next.same)).map_err(failed)?;
            next.same += plan.threads;
            (chain, next.same)
        }
        Some((cpus, memory)) => {
            let kernel = config.kernel.clone().unwrap_or_default();
            // Apart from the seeds of the measured program's kernels.
            let seed = configuration.scenario.seed.wrapping_add(1000 + index);
            let contiguous = configuration.machine.mmu.holds_contiguous();
            let config = kernel_config(&kernel, memory, cpus, seed, contiguous);
            let config = config.map_err(|what| configuration.scenario_error(what))?;
            let chain = in_own_vm(stack, measured, &config, Cpu(next.vm)).map_err(failed)?;
            next.vm += cpus;
            (chain, plan.threads)
        }
    };
    let cpus = stack.top_kernel(&chain).config().cpus;
    let moves = plan.threads == 1 && last > cpus;
    let among = moves.then(|| {
        let first = usize::from(stack.machine_cpu(&chain, Cpu(0)).0);
        first..first + usize::from(cpus)
    });
    Ok((chain, among))
}

/// A further process of the measured program's kernel.
fn in_same_kernel(stack: &mut Stack, measured: &KernelChain, first_cpu: Cpu) -> Result<KernelChain, OsError> {
    let mut floors = measured.floors().to_vec();
    let top = measured.top();
    floors[top].first_cpu = first_cpu;
    floors[top] = add_process(stack, &floors, None)?;
    Ok(KernelChain::new(&floors))
}

/// A VM on the measured program's bottom kernel, with a process.
fn in_own_vm(
    stack: &mut Stack,
    measured: &KernelChain,
    config: &KernelConfig,
    first_cpu: Cpu,
) -> Result<KernelChain, OsError> {
    let host = Floor { first_cpu, ..*measured.bottom_floor() };
    let host = add_process(stack, &[host], Some(config.memory))?;
    let guest = add_kernel(stack, &[host], config, None, Cpu(0))?;
    Ok(KernelChain::new(&[host, guest]))
}

/// The cores on which the tenant's accesses run, if they do.
fn cores(
    configuration: &Configuration,
    config: &ColocatedConfig,
    plan: &TenantPlan,
    chain: &KernelChain,
    hardware: &mut Hardware,
) -> Result<Option<Asid>, MachineError> {
    let failed = |source| MachineError::Mmu { name: configuration.machine.name.clone(), source };
    match config.cores() {
        CoresConfig::None => Ok(None),
        CoresConfig::Smt => Ok(Some(hardware.add_sharing(chain, plan.threads))),
        CoresConfig::Own => hardware.add(chain, plan.threads).map(Some).map_err(failed),
    }
}
