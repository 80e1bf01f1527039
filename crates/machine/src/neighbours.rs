// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the programs beside the measured one get their kernels, processors and cores.
//!
//! Processors are handed out in order: the measured program's threads have the first ones, then come those of the programs
//! on its kernel, then those of other VMs. Where a kernel has been given fewer processors than that, programs of one thread
//! move among all of them, and others wrap around: they take turns.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestwalk_mem::{Cpu, PageCount, size};
use nestwalk_os::{KernelConfig, OsError};

use crate::build::{add_kernel, add_process, kernel_config, open, roomy};
use crate::chain::{Floor, KernelChain};
use crate::colocated::{ColocatedConfig, CoresConfig, VmConfig};
use crate::crowd::Crowd;
use crate::error::MachineError;
use crate::hardware::{Hardware, Tenant};
use crate::member::{Joining, Source};
use crate::program::Program;
use crate::scenario::Configuration;
use crate::stack::Stack;

/// A program beside the measured one that has not yet a place.
struct Neighbour {
    /// Which of the scenario's entries it is.
    entry: usize,
    name: String,
    threads: u16,
    footprint: PageCount,
    /// Processors and memory of its VM, if it has one of its own.
    vm: Option<(u16, PageCount)>,
    source: Source,
}

/// All programs beside the measured one, about to begin.
pub(crate) struct Neighbours<'a> {
    configuration: &'a Configuration,
    all: Vec<Neighbour>,
}

impl<'a> Neighbours<'a> {
    /// Looks at all of them.
    ///
    /// # Errors
    /// When the stream of one cannot be opened.
    pub fn open(configuration: &'a Configuration, measured_threads: u16, traces: &Path) -> Result<Self, MachineError> {
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
                all.push(Neighbour { entry, name: facts.name, threads, footprint, vm, source });
            }
        }
        check_threads(configuration, &all, measured_threads)?;
        Ok(Self { configuration, all })
    }

    /// The programs' names, by entry of the scenario.
    pub fn names(&self) -> Vec<String> {
        let entries = 0..self.configuration.scenario.colocated.len();
        let of = |entry| self.all.iter().find(|one| one.entry == entry).map(|one| one.name.clone());
        entries.map(|entry| of(entry).unwrap_or_default()).collect()
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Threads beside the measured program's on its kernel.
    pub fn threads(&self) -> u16 {
        self.all.iter().filter(|one| one.vm.is_none()).map(|one| one.threads).sum()
    }

    /// Memory that those on the measured program's kernel need.
    pub fn footprint(&self) -> PageCount {
        PageCount(self.all.iter().filter(|one| one.vm.is_none()).map(|one| one.footprint.0).sum())
    }

    /// Processors of the VMs beside the measured program's.
    pub fn vm_cpus(&self) -> u16 {
        self.all.iter().filter_map(|one| one.vm).map(|(cpus, _)| cpus).sum()
    }

    /// Memory of the VMs beside the measured program's.
    pub fn vm_memory(&self) -> PageCount {
        PageCount(self.all.iter().filter_map(|one| one.vm).map(|(_, memory)| memory.0).sum())
    }

    /// Gives each of them its processes, kernel, processors and cores, and lets it join the crowd. Returns, for each entry of
    /// the scenario, the numbers of its members.
    ///
    /// # Errors
    /// When a kernel or a core cannot be made, or a kernel has no room.
    pub fn settle(
        self,
        measured: &KernelChain,
        measured_threads: u16,
        stack: &mut Stack,
        hardware: &mut Hardware,
        crowd: &mut Crowd,
    ) -> Result<Vec<Vec<usize>>, MachineError> {
        let entries = &self.configuration.scenario.colocated;
        let mut members = vec![Vec::new(); entries.len()];
        let mut next = Next { same: measured_threads, vm: measured_threads + self.threads() };
        for (index, one) in self.all.into_iter().enumerate() {
            let entry = &entries[one.entry];
            let placed = place(self.configuration, entry, &one, index as u64, measured, stack, &mut next);
            let (place, among) = placed?;
            let tenant = tenant(self.configuration, entry, &one, &place, hardware)?;
            let program = Program::new(self.configuration.scenario.name.clone(), place);
            let program = program.limited(entry.cgroup_limit, stack)?;
            let joining = Joining { program, tenant, among, again: true, source: one.source };
            members[one.entry].push(crowd.join(stack, joining)?);
        }
        Ok(members)
    }
}

/// Whether the measured program's cores have hardware threads for all that share them.
fn check_threads(configuration: &Configuration, all: &[Neighbour], measured: u16) -> Result<(), MachineError> {
    let shares = |one: &&Neighbour| configuration.scenario.colocated[one.entry].cores() == CoresConfig::Smt;
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

/// The next processor of the measured program's kernel, and of the machine for VMs, that nobody has.
struct Next {
    same: u16,
    vm: u16,
}

/// Its kernels and processes, and the processors among which it moves, if there are too few.
fn place(
    configuration: &Configuration,
    entry: &ColocatedConfig,
    one: &Neighbour,
    index: u64,
    measured: &KernelChain,
    stack: &mut Stack,
    next: &mut Next,
) -> Result<(KernelChain, Option<Range<usize>>), MachineError> {
    let failed = |source| MachineError::Os {
        place: configuration.file(),
        kernel: format!("colocated program {}: its", one.entry + 1),
        source,
    };
    let (place, last) = match one.vm {
        None => {
            let place = beside(stack, measured, Cpu(next.same)).map_err(failed)?;
            next.same += one.threads;
            (place, next.same)
        }
        Some((cpus, memory)) => {
            let kernel = entry.kernel.clone().unwrap_or_default();
            // Apart from the seeds of the measured program's kernels.
            let seed = configuration.scenario.seed.wrapping_add(1000 + index);
            let config = kernel_config(&kernel, memory, cpus, seed);
            let config = config.map_err(|what| configuration.scenario_error(what))?;
            let place = in_vm(stack, measured, &config, Cpu(next.vm)).map_err(failed)?;
            next.vm += cpus;
            (place, one.threads)
        }
    };
    let cpus = stack.kernel(&place.floors()[place.top()]).config().cpus;
    let moves = one.threads == 1 && last > cpus;
    let among = moves.then(|| {
        let first = usize::from(stack.machine_cpu(&place, Cpu(0)).0);
        first..first + usize::from(cpus)
    });
    Ok((place, among))
}

/// A further process of the measured program's kernel.
fn beside(stack: &mut Stack, measured: &KernelChain, first_cpu: Cpu) -> Result<KernelChain, OsError> {
    let mut floors = measured.floors().to_vec();
    let top = measured.top();
    floors[top].first_cpu = first_cpu;
    floors[top] = add_process(stack, &floors, None)?;
    Ok(KernelChain::new(&floors))
}

/// A VM on the measured program's bottom kernel, with a process.
fn in_vm(
    stack: &mut Stack,
    measured: &KernelChain,
    config: &KernelConfig,
    first_cpu: Cpu,
) -> Result<KernelChain, OsError> {
    let host = Floor { first_cpu, ..measured.floors()[0] };
    let host = add_process(stack, &[host], Some(config.memory))?;
    let guest = add_kernel(stack, &[host], config, None, Cpu(0))?;
    Ok(KernelChain::new(&[host, guest]))
}

fn tenant(
    configuration: &Configuration,
    entry: &ColocatedConfig,
    one: &Neighbour,
    place: &KernelChain,
    hardware: &mut Hardware,
) -> Result<Option<Tenant>, MachineError> {
    Ok(match entry.cores() {
        CoresConfig::None => None,
        CoresConfig::Smt => Some(hardware.add_sharing(place, one.threads)),
        CoresConfig::Own => {
            let tenant = hardware.add(place, one.threads);
            let name = || configuration.machine.name.clone();
            Some(tenant.map_err(|source| MachineError::Mmu { name: name(), source })?)
        }
    })
}
