// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds what a scenario describes: its workload and its kernels.

use std::path::{Path, PathBuf};

use nestwalk_mem::{Cpu, FrameRange, PageCount, Pfn, Vpn, size};
use nestwalk_mmu::Segments;
use nestwalk_os::{Below, Kernel, KernelConfig, OsError, ProcessId, Shadow};
use nestwalk_workload::trace::{PlayOptions, TraceWorkload};
use nestwalk_workload::{Workload, WorkloadFacts};

use crate::error::MachineError;
use crate::paging::{PagingConfig, VmPaging};
use crate::scenario::{Configuration, KernelScenario, WorkloadConfig};
use crate::stack::{Layer, Stack, with_below};

const GIB: u64 = 1 << 18;

/// The program of `configuration`. Bundled traces lie in the folder `traces`.
///
/// # Errors
/// When there is no such trace, it cannot be read, or a generator's parameters are impossible.
pub fn workload(configuration: &Configuration, traces: &Path) -> Result<Box<dyn Workload>, MachineError> {
    match &configuration.scenario.workload {
        WorkloadConfig::Generator(generator) => Ok(generator.clone().reseeded(configuration.scenario.seed).build()?),
        WorkloadConfig::Preset(choice) => {
            let generator = choice.resolve(&configuration.base)?;
            Ok(generator.reseeded(configuration.scenario.seed).build()?)
        }
        WorkloadConfig::Trace(name) => {
            let path = trace_path(name, &configuration.base, traces)?;
            Ok(Box::new(TraceWorkload::open(&path, PlayOptions::default())?))
        }
    }
}

/// The file of the trace `name`: a bundled one, or a path (relative to `base`), which is what has a folder or an extension.
///
/// # Errors
/// When it is neither.
pub fn trace_path(name: &str, base: &Path, traces: &Path) -> Result<PathBuf, MachineError> {
    if name.contains('/') || Path::new(name).extension().is_some() {
        return Ok(base.join(name));
    }
    [traces.join(name).with_extension("nwt"), base.join(name)]
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| MachineError::unknown("trace", name, bundled_traces(traces)))
}

/// The names of the bundled traces, in order.
pub fn bundled_traces(traces: &Path) -> Vec<String> {
    let files = std::fs::read_dir(traces).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "nwt"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort_unstable();
    names
}

/// The kernels of `configuration`, stacked, with a process for the program on top.
///
/// # Errors
/// When a kernel cannot be made, or does not have room for what runs on it.
pub(crate) fn stack(configuration: &Configuration, facts: &WorkloadFacts) -> Result<Stack, MachineError> {
    let sizes = memory_sizes(configuration, facts)?;
    let scenario = &configuration.scenario;
    let mut layers = Vec::new();
    for (layer, (kernel, &frames)) in scenario.kernels.iter().zip(&sizes).enumerate() {
        let config = kernel_config(kernel, frames, facts.threads, scenario.seed + layer as u64);
        let config = config.map_err(|what| configuration.scenario_error(what))?;
        let os_error = |source| MachineError::Os {
            name: scenario.name.clone(),
            kernel: role(layer, scenario.kernels.len()).into(),
            source,
        };
        let mut kernel = Kernel::new(&config).map_err(os_error)?;
        let paging = scenario.kernels[layer].paging;
        let vm = match sizes.get(layer + 1) {
            Some(&above) => with_below(&mut layers, Cpu(0), |below| host_vm(&mut kernel, above, paging, below)),
            None => with_below(&mut layers, Cpu(0), |below| kernel.spawn(below))
                .map(|process| Vm { process, ..Vm::default() }),
        };
        let Vm { process, base, segments } = vm.map_err(os_error)?;
        let paging = match segments {
            Some(segments) => VmPaging::Segments(registers(configuration, &segments)?),
            None => VmPaging::Ept,
        };
        layers.push(Layer { kernel, process, base, paging });
    }
    let host = scenario.kernels[0].paging;
    let shadowed = layers.len() == Stack::LAYERS_MAX || host == PagingConfig::Shadow || host.falls_back_to_shadow();
    if shadowed && matches!(layers[0].paging, VmPaging::Ept) {
        let shadow = make_shadow(&mut layers).map_err(|source| MachineError::Os {
            name: scenario.name.clone(),
            kernel: role(0, scenario.kernels.len()).into(),
            source,
        })?;
        layers[0].paging = VmPaging::Shadow(Box::new(shadow));
    }
    Ok(Stack::new(layers))
}

/// A VM, or the program, in a kernel.
#[derive(Default)]
struct Vm {
    process: ProcessId,
    base: Vpn,
    /// Its memory, if it lies in segments.
    segments: Option<Vec<FrameRange>>,
}

fn host_vm(kernel: &mut Kernel, memory: PageCount, paging: PagingConfig, below: &mut dyn Below) -> Result<Vm, OsError> {
    if let PagingConfig::Segments { max, .. } = paging {
        let (process, base, segments) = kernel.host_vm_in_segments(memory, max, below)?;
        return Ok(Vm { process, base, segments });
    }
    let (process, base) = kernel.host_vm(memory, below)?;
    Ok(Vm { process, base, segments: None })
}

/// The registers of a VM in `segments`.
fn registers(configuration: &Configuration, segments: &[FrameRange]) -> Result<Segments, MachineError> {
    let latency = configuration.machine.mmu.segment_latency_cycles.unwrap_or_default();
    let segments: Vec<_> = segments.iter().map(|segment| (Pfn::from(segment.start), segment.count.0)).collect();
    Segments::new(&segments, latency).map_err(|error| configuration.scenario_error(error.to_string()))
}

/// The shadow that the lowest kernel keeps of the table of the process on the next one.
fn make_shadow(layers: &mut [Layer]) -> Result<Shadow, OsError> {
    let (host, above) = layers.split_at_mut(1);
    let next = &mut above[0];
    let geometry = next.kernel.config().geometry;
    let upper = next.kernel.table_mut(next.process)?;
    host[0].kernel.make_shadow(upper, geometry, Cpu(0))
}

/// What the kernel of `layer` is called in results and messages.
pub(crate) fn role(layer: usize, depth: usize) -> &'static str {
    match (layer, depth) {
        (0, 1) => "native",
        (0, _) => "host",
        (layer, depth) if layer + 1 == depth => "guest",
        _ => "middle",
    }
}

/// The memory of each kernel, bottom first. Where the scenario says nothing, half as much again as what runs there (huge pages may
/// need more than the program touches), in whole GiB.
fn memory_sizes(configuration: &Configuration, facts: &WorkloadFacts) -> Result<Vec<PageCount>, MachineError> {
    let mut needed = facts.footprint;
    let mut sizes = Vec::new();
    for kernel in configuration.scenario.kernels.iter().rev() {
        let frames = kernel.memory.unwrap_or(PageCount((needed.0 * 3 / 2 + GIB).div_ceil(GIB) * GIB));
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

fn kernel_config(kernel: &KernelScenario, memory: PageCount, threads: u16, seed: u64) -> Result<KernelConfig, String> {
    Ok(KernelConfig {
        cpus: kernel.cpus.unwrap_or(threads.max(1)),
        geometry: kernel.geometry()?,
        manager: kernel.manager.clone(),
        tables: kernel.tables.clone(),
        start: kernel.start,
        swap: kernel.swap.unwrap_or_default(),
        seed,
        ..KernelConfig::new(memory)
    })
}
