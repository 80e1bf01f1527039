// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the kernels that a scenario describes.

use nestwalk_mem::{Cpu, FrameRange, Geometry, PageCount, Pfn, Vpn, size};
use nestwalk_mmu::{Segments, SegmentsError};
use nestwalk_os::{AllocatorKind, Bare, FrozenTable, Kernel, KernelConfig, OsError, ProcessId, Shadows};
use nestwalk_workload::WorkloadFacts;

use crate::chain::{Floor, KernelChain, role};
use crate::checks;
use crate::configuration::Configuration;
use crate::dump::{self, Dumped};
use crate::error::MachineError;
use crate::kernel_scenario::KernelScenario;
use crate::paging::{PagingConfig, VmPaging};
use crate::restore::restore;
use crate::stack::Stack;

const GIB: u64 = 1 << 18;

/// What the tenants beside the measured program need of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needs {
    /// Threads on the measured program's kernel.
    pub threads: u16,
    /// Memory of those.
    pub footprint: PageCount,
    /// Processors of the VMs beside the measured program's.
    pub vm_cpus: u16,
    /// Memory of those VMs.
    pub vm_memory: PageCount,
}

/// The kernels of `configuration` under the measured program, with a process for it on top and one
/// for each program beside it.
///
/// # Errors
/// When a kernel cannot be made, or does not have room for what runs on it.
pub(crate) fn stack(
    configuration: &Configuration,
    facts: &WorkloadFacts,
    needs: &Needs,
) -> Result<(Stack, KernelChain), MachineError> {
    let found = found_table(configuration)?;
    if facts.kernel_half && found.as_ref().is_none_or(|found| found.kernel.leaves.is_empty()) {
        return Err(configuration.scenario_error(
            "the trace has accesses to the kernel's half, whose pages no simulated kernel makes: run it on the page \
             tables that nestwalk vm capture dumped with it, both halves of them (compare --tables NAME=DUMP)"
                .into(),
        ));
    }
    if let Some(found) = &found {
        checks::sorted_by_dump(&configuration.scenario, &found.user)
            .map_err(|what| configuration.scenario_error(what))?;
    }
    let sizes = memory_sizes(configuration, facts, needs, found.as_ref())?;
    let scenario = &configuration.scenario;
    let depth = scenario.kernels.len();
    let (mut stack, mut floors) = (Stack::default(), Vec::new());
    for (layer, (kernel, &frames)) in scenario.kernels.iter().zip(&sizes).enumerate() {
        let mut config = config_of(configuration, facts, needs, (layer, frames))?;
        if let Some(found) = found.as_ref().filter(|_| layer + 1 == depth && kernel.levels.is_none()) {
            config.geometry = geometry_of(&found.user);
        }
        let above = sizes.get(layer + 1).copied();
        let failed =
            |source| MachineError::Os { place: configuration.file(), kernel: role(layer, depth).into(), source };
        let mut made = Kernel::new(&config).map_err(failed)?;
        if let Some(saved) = &kernel.saved {
            restore(&mut made, &configuration.base.join(saved))?;
        }
        let floor = match (kernel.paging, above) {
            (PagingConfig::Segments { max, allocator, .. }, Some(above)) => {
                let added = add_vm_in_segments(&mut stack, made, above, (max, allocator));
                let (floor, segments) = added.map_err(failed)?;
                if let Some(segments) = segments {
                    let latency = configuration.machine.mmu.segment_latency_cycles.unwrap_or_default();
                    let registers = registers(&segments, latency);
                    let registers = registers.map_err(|error| configuration.scenario_error(error.to_string()))?;
                    stack.add_paging(&floor, VmPaging::Segments(registers));
                }
                floor
            }
            (_, Some(_)) => add_made(&mut stack, &floors, made, above, Cpu(0)).map_err(failed)?,
            (_, None) => {
                let floor = Floor { kernel: stack.add(made), ..Floor::default() };
                let place = KernelChain::new(&[&floors[..], &[floor]].concat());
                let process = stack.with(&place, layer, Cpu(0), |kernel, _, below| {
                    kernel.inhabit(below)?;
                    match &found {
                        Some(found) => kernel.spawn_frozen(&found.user, &found.kernel, below),
                        None => kernel.spawn(below),
                    }
                });
                Floor { process: process.map_err(failed)?, ..floor }
            }
        };
        floors.push(floor);
    }
    let host = scenario.kernels[0].paging;
    let composes = depth > 2 || host == PagingConfig::Shadow || host.falls_back_to_shadow();
    if composes && stack.paging(&floors[0]).is_none() {
        let above = stack.kernel(&floors[1]).config().geometry;
        let vm = (floors[0].process, floors[0].base);
        stack.add_paging(&floors[0], VmPaging::Shadow(Box::new(Shadows::new(vm, above, depth > 2))));
    }
    Ok((stack, KernelChain::new(&floors)))
}

/// The configuration of kernel `layer`, whose memory has so many frames.
fn config_of(
    configuration: &Configuration,
    facts: &WorkloadFacts,
    needs: &Needs,
    (layer, frames): (usize, PageCount),
) -> Result<KernelConfig, MachineError> {
    let scenario = &configuration.scenario;
    let threads = facts.threads.max(1) + needs.threads + if layer == 0 { needs.vm_cpus } else { 0 };
    let contiguous = configuration.machine.mmu.holds_contiguous();
    kernel_config(&scenario.kernels[layer], frames, threads, scenario.seed + layer as u64, contiguous)
        .map_err(|what| configuration.scenario_error(what))
}

/// Kernel `layer` as it begins, by itself: what its processes store to is backed by nothing.
pub(crate) fn start_of(
    configuration: &Configuration,
    facts: &WorkloadFacts,
    needs: &Needs,
    layer: usize,
) -> Result<Kernel, MachineError> {
    let kernels = &configuration.scenario.kernels;
    let frames = memory_sizes(configuration, facts, needs, None)?[layer];
    let config = config_of(configuration, facts, needs, (layer, frames))?;
    let failed =
        |source| MachineError::Os { place: configuration.file(), kernel: role(layer, kernels.len()).into(), source };
    let mut kernel = Kernel::new(&config).map_err(failed)?;
    if let Some(saved) = &kernels[layer].saved {
        restore(&mut kernel, &configuration.base.join(saved))?;
    }
    kernel.inhabit(&mut Bare).map_err(failed)?;
    Ok(kernel)
}

/// The lowest kernel, with a VM of `above` frames in at most `max` segments. `allocator` chooses
/// them; they are returned if it could.
pub(crate) fn add_vm_in_segments(
    stack: &mut Stack,
    mut kernel: Kernel,
    above: PageCount,
    (max, allocator): (usize, AllocatorKind),
) -> Result<(Floor, Option<Vec<FrameRange>>), OsError> {
    let (process, base, segments) = kernel.host_vm_in_segments(above, max, allocator, &mut Bare)?;
    let kernel = stack.add(kernel);
    Ok((Floor { kernel, process, base, first_cpu: Cpu(0) }, segments))
}

/// The registers of a VM in `segments`, whose translations take `latency_cycles`.
pub(crate) fn registers(segments: &[FrameRange], latency_cycles: u32) -> Result<Segments, SegmentsError> {
    let segments: Vec<_> = segments.iter().map(|segment| (Pfn::from(segment.start), segment.count.0)).collect();
    Segments::new(&segments, latency_cycles)
}

/// Adds a kernel above `under`, with a process for the program that runs on it, or for the VM of
/// `above` frames.
pub(crate) fn add_kernel(
    stack: &mut Stack,
    under: &[Floor],
    config: &KernelConfig,
    above: Option<PageCount>,
    first_cpu: Cpu,
) -> Result<Floor, OsError> {
    add_made(stack, under, Kernel::new(config)?, above, first_cpu)
}

/// The same with a kernel that is made already, and has no process yet.
fn add_made(
    stack: &mut Stack,
    under: &[Floor],
    kernel: Kernel,
    above: Option<PageCount>,
    first_cpu: Cpu,
) -> Result<Floor, OsError> {
    let kernel = stack.add(kernel);
    let floor = Floor { kernel, process: ProcessId::default(), base: Vpn(0), first_cpu };
    add_process(stack, &[under, &[floor]].concat(), above)
}

/// A process on the topmost of `floors`: a program, or a VM of `above` frames. Returns that floor
/// with the process.
pub(crate) fn add_process(stack: &mut Stack, floors: &[Floor], above: Option<PageCount>) -> Result<Floor, OsError> {
    let place = KernelChain::new(floors);
    let (process, base) = stack.with(&place, place.top(), Cpu(0), |kernel, _, below| {
        if kernel.processes().next().is_none() {
            kernel.inhabit(below)?;
        }
        match above {
            Some(frames) => kernel.host_vm(frames, below),
            None => kernel.spawn(below).map(|process| (process, Vpn(0))),
        }
    })?;
    let floor = floors[place.top()];
    Ok(Floor { process, base, ..floor })
}

/// The shape of the page tables that were found.
fn geometry_of(found: &FrozenTable) -> Geometry {
    if found.root() == Some(Geometry::X86_5.root()) { Geometry::X86_5 } else { Geometry::X86_4 }
}

/// The page table that the program's process is to begin with, if the scenario names a dump of one.
fn found_table(configuration: &Configuration) -> Result<Option<Dumped>, MachineError> {
    let top = configuration.scenario.kernels.last().and_then(|kernel| kernel.dump.as_ref());
    top.map(|path| dump::read_whole(&configuration.base.join(path))).transpose()
}

/// The memory of each kernel, bottom first. By default one and a half times what runs there, in
/// whole GiB, because huge pages may need more than the program touches.
fn memory_sizes(
    configuration: &Configuration,
    facts: &WorkloadFacts,
    needs: &Needs,
    found: Option<&Dumped>,
) -> Result<Vec<PageCount>, MachineError> {
    let kernels = &configuration.scenario.kernels;
    let own =
        found.map_or(facts.footprint, |found| facts.footprint.max(found.user.memory()).max(found.kernel.memory()));
    let mut needed = PageCount(own.0 + needs.footprint.0);
    let mut sizes = Vec::new();
    for (layer, kernel) in kernels.iter().enumerate().rev() {
        if layer == 0 {
            needed.0 += needs.vm_memory.0;
        }
        let frames = kernel.memory.unwrap_or(roomy(needed));
        if frames <= needed {
            return Err(configuration.scenario_error(format!(
                "memory = \"{}\" is too little for what runs on it ({} MiB): give more, or leave the key out",
                size::format(frames.bytes()),
                needed.bytes() >> 20
            )));
        }
        sizes.push(frames);
        needed = frames;
    }
    sizes.reverse();
    Ok(sizes)
}

/// The memory of a kernel on which `needed` is going to run, in whole GiB.
pub(crate) fn roomy(needed: PageCount) -> PageCount {
    PageCount((needed.0 * 3 / 2 + GIB).div_ceil(GIB) * GIB)
}

/// A kernel as the scenario describes it, for so many threads, on a machine whose leaves have a
/// `contiguous` bit or not.
pub(crate) fn kernel_config(
    kernel: &KernelScenario,
    memory: PageCount,
    threads: u16,
    seed: u64,
    contiguous: bool,
) -> Result<KernelConfig, String> {
    Ok(KernelConfig {
        cpus: kernel.cpus.unwrap_or(threads.max(1)),
        geometry: kernel.geometry()?,
        manager: kernel.manager.clone(),
        tables: kernel.tables.clone(),
        start: kernel.start,
        swap: kernel.swap.unwrap_or_default(),
        min_free: kernel.min_free,
        compaction_proactiveness: kernel.compaction_proactiveness,
        seed,
        contiguous,
        ..KernelConfig::new(memory)
    })
}
