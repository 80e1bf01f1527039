// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the parts of a scenario go together: each refusal names the key and the remedy.

use nestwalk_mmu::{AcceleratorConfig, AsapHardware, Segments};
use nestwalk_os::{FrozenTable, ManagerConfig, TablesConfig};

use crate::colocated::{ColocatedConfig, CoresConfig, UntilConfig, VmConfig};
use crate::kernel_scenario::KernelScenario;
use crate::paging::PagingConfig;
use crate::scenario::{CoRunnerConfig, MachineConfig, Scenario};
use crate::workload_config::WorkloadConfig;

/// Whether kernels that promote 64 KiB run on a `machine` whose leaves have the bit for it.
///
/// # Errors
/// Which key does nothing there.
pub(crate) fn promotes_64k(scenario: &Scenario, machine: &MachineConfig) -> Result<(), String> {
    let promotes = |manager: &ManagerConfig| matches!(manager, ManagerConfig::FreeBsd(config) if config.promote_64k);
    let colocated = scenario.colocated.iter().filter_map(|colocated| colocated.kernel.as_ref());
    if !machine.mmu.holds_contiguous()
        && scenario.kernels.iter().chain(colocated).any(|kernel| promotes(&kernel.manager))
    {
        return Err(
            "manager: promote_64k sets the contiguous bit, which this machine has not; give contiguous_tlb = true"
                .into(),
        );
    }
    Ok(())
}

/// Whether `asap` goes together with the rest of the scenario, on `machine`.
///
/// # Errors
/// What does not fit, and what would.
pub(crate) fn asap(asap: &AsapHardware, scenario: &Scenario, machine: &MachineConfig) -> Result<(), String> {
    asap.build()?;
    if scenario.accelerator.is_some() {
        return Err("asap and accelerator: give one of the two, a core has one such structure".into());
    }
    if asap.guest_levels.is_empty() && asap.host_levels.is_empty() {
        return Err("asap: there is nothing to prefetch; give guest_levels = [1, 2], for example".into());
    }
    if machine.mmu.l1d_miss_registers.is_none_or(|count| count == 0) {
        return Err("asap: the machine file does not say l1d_miss_registers, by which prefetches are limited".into());
    }
    let kernels = &scenario.kernels;
    if kernels.len() > 2 {
        return Err(
            "asap: with a VM on a VM the hardware walks a table that no kernel sorts; give two kernels at most".into(),
        );
    }
    if kernels.len() < 2 && !asap.host_levels.is_empty() {
        return Err("asap: host_levels in a native run, which has no host; leave the key out".into());
    }
    let (host, guest) = (&kernels[0], &kernels[kernels.len() - 1]);
    check_kernel("guest_levels", &asap.guest_levels, guest)?;
    check_kernel("host_levels", &asap.host_levels, host)
}

fn check_kernel(key: &str, levels: &[u8], kernel: &KernelScenario) -> Result<(), String> {
    let Some(&highest) = levels.iter().max() else { return Ok(()) };
    let root = kernel.geometry()?.levels();
    if highest >= root {
        return Err(format!("asap: {key} = {levels:?}: level {root} is the root, which no region holds"));
    }
    match kernel.tables {
        TablesConfig::Asap(tables) if tables.levels >= highest => Ok(()),
        TablesConfig::Asap(tables) => Err(format!(
            "asap: {key} = {levels:?}, but that kernel sorts {} levels: give it tables = {{ kind = \"asap\", levels = {highest} }}",
            tables.levels
        )),
        // Whether the dump says where tables lie in order, `sorted_by_dump` checks once it is read.
        _ if kernel.dump.is_some() => Ok(()),
        _ => Err(format!(
            "asap: {key} = {levels:?}, but that kernel's table nodes are not sorted: give it tables = {{ kind = \"asap\" }}"
        )),
    }
}

/// Whether ASAP's prefetches of the table of the topmost kernel have something to go by: regions of
/// the dump `found`, or of a kernel that sorts the tables that it makes itself.
///
/// # Errors
/// What does not fit, and what would.
pub(crate) fn sorted_by_dump(scenario: &Scenario, found: &FrozenTable) -> Result<(), String> {
    let levels = scenario.asap.as_ref().map_or(&[][..], |asap| &asap.guest_levels);
    let sorts = scenario.kernels.last().is_some_and(|kernel| matches!(kernel.tables, TablesConfig::Asap(_)));
    if levels.is_empty() || sorts || !found.regions.is_empty() {
        return Ok(());
    }
    Err(format!(
        "asap: guest_levels = {levels:?}, but the dump does not say where its kernel keeps page tables in order: dump them \
         with nestwalk vm tables --regions FILE, from a guest that sorts them"
    ))
}

/// Whether `accelerator` goes together with the rest of the scenario.
///
/// # Errors
/// What does not fit, and what would.
pub(crate) fn accelerator(accelerator: &AcceleratorConfig, scenario: &Scenario) -> Result<(), String> {
    match accelerator {
        AcceleratorConfig::PomTlb(_) => Ok(()),
        AcceleratorConfig::ElasticCuckoo(_) if scenario.kernels.len() > 2 => Err(
            "accelerator: with a VM on a VM the hardware walks a table that no kernel keeps; give two kernels at most"
                .into(),
        ),
        AcceleratorConfig::ElasticCuckoo(_)
            if scenario.kernels.iter().any(|kernel| kernel.paging != PagingConfig::Ept) =>
        {
            Err("accelerator: hashed page tables are those of a kernel; use paging = { kind = \"ept\" }".into())
        }
        AcceleratorConfig::ElasticCuckoo(_) => Ok(()),
    }
}

/// Whether `paging`, that of the kernel at `layer`, goes together with the rest of the scenario, on
/// `machine`.
///
/// # Errors
/// What does not fit, and what would.
pub(crate) fn paging(
    paging: PagingConfig,
    scenario: &Scenario,
    machine: &MachineConfig,
    layer: usize,
) -> Result<(), String> {
    let depth = scenario.kernels.len();
    if paging == PagingConfig::Ept {
        return Ok(());
    }
    if layer + 1 == depth {
        return Err("paging: the topmost kernel hosts no VM; give the key to the kernel below".into());
    }
    if depth > 2 {
        return Err("paging: a VM on a VM is modelled with EPT at both levels only; leave the key out".into());
    }
    if scenario.asap.is_some() {
        return Err(
            "asap: its registers describe tables that the hardware walks in two dimensions; use paging = { kind = \"ept\" }"
                .into(),
        );
    }
    if let PagingConfig::Segments { max, allocator, .. } = paging {
        if !(1..=Segments::MAX).contains(&max) {
            return Err(format!("paging: max = {max} segments: there are registers for 1 to {}", Segments::MAX));
        }
        if !allocator.keeps_whole() {
            return Err("paging: allocator: give one of compromis-opt1, compromis-opt2, best-fit, first-fit".into());
        }
        if machine.mmu.segment_latency_cycles.is_none() {
            return Err("paging: the machine file does not say segment_latency_cycles, the time of a translation \
                        by segment registers"
                .into());
        }
    }
    Ok(())
}

/// What is wrong with the programs beside the measured one, in a line that names the remedy.
pub(crate) fn colocated(scenario: &Scenario) -> Result<(), String> {
    if matches!(scenario.workload, WorkloadConfig::Churn(_)) {
        return Err(
            "workload = churn makes no accesses and never ends: give it as [[colocated]], beside a program".into()
        );
    }
    scenario.colocated.iter().enumerate().try_for_each(|(number, config)| {
        colocated_program(scenario, config).map_err(|what| format!("colocated: program {}: {what}", number + 1))
    })
}

fn colocated_program(scenario: &Scenario, config: &ColocatedConfig) -> Result<(), String> {
    let is_churn = matches!(config.workload, WorkloadConfig::Churn(_));
    if config.vm == VmConfig::Same && config.kernel.is_some() {
        return Err("it has a kernel but no VM of its own: give vm = \"own\", or leave the kernel out".into());
    }
    if is_churn && config.cores.is_some_and(|cores| cores != CoresConfig::None) {
        return Err("churn makes no accesses that could run on cores: leave `cores` out".into());
    }
    if config.cores() == CoresConfig::Smt && scenario.corunner != CoRunnerConfig::None {
        return Err("cores = \"smt\": corunner has the second threads already; leave one of the two out".into());
    }
    if config.until == UntilConfig::Populated && matches!(scenario.workload, WorkloadConfig::Trace(_)) {
        return Err("until = \"populated\": a trace touches memory to its end; give until = \"end\"".into());
    }
    if let Some(kernel) = &config.kernel {
        kernel.geometry()?;
    }
    Ok(())
}
