// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast the simulator is on this machine. Each benchmark builds what it needs, runs it a few times and keeps the best.
//!
//! The accesses are made beforehand, so that only the simulation is timed: data caches on, `broadwell-asap`, a 16 GiB guest
//! with 4 KiB pages on both sides, one core.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use nestwalk_mem::{Access, Cpu, Gva, Hpa, PageCount, Vpn, VpnRange};
use nestwalk_mmu::RunEnd;
use nestwalk_os::{Kernel, KernelConfig, VmaFlags};
use nestwalk_workload::trace::{PlayOptions, TraceWorkload};
use nestwalk_workload::{Batch, Step, Workload};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use crate::catalog::Shelf;
use crate::error::MachineError;
use crate::hardware::{Detail, Hardware};
use crate::scenario::{CoRunnerConfig, MachineConfig};
use crate::stack::{Layer, Stack, with_below};

/// What a benchmark measured.
#[derive(Clone, Debug, Serialize)]
pub struct BenchResult {
    /// Its name.
    pub name: &'static str,
    /// The best of the repetitions.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
}

/// The names of all benchmarks.
pub const NAMES: [&str; 5] =
    ["nested_all_walks", "nested_tenth_walks", "nested_sequential", "faults_two_level", "trace_decode"];

const GUEST: PageCount = PageCount(16 << 18);
/// The guest's memory holds the page tables besides.
const GUEST_MEMORY: PageCount = PageCount(17 << 18);
const HOST_MEMORY: PageCount = PageCount(18 << 18);
const FIRST_PAGE: Vpn = Vpn(0x10_0000);

/// Runs the benchmark `name` `repetitions` times. Traces lie in the folder `traces`.
///
/// # Errors
/// When there is no such benchmark, or the bundled trace cannot be read.
pub fn run(name: &str, repetitions: u32, traces: &Path) -> Result<BenchResult, MachineError> {
    let accesses_per_second = "accesses/s";
    Ok(match name {
        "nested_all_walks" => {
            let accesses = random_pages(4 << 20);
            BenchResult { name: NAMES[0], value: walks(&accesses, repetitions)?, unit: accesses_per_second }
        }
        "nested_tenth_walks" => {
            let accesses = one_in_ten(16 << 20);
            BenchResult { name: NAMES[1], value: walks(&accesses, repetitions)?, unit: accesses_per_second }
        }
        "nested_sequential" => {
            let accesses: Vec<Access> = (0..64_u64 << 20).map(|n| access(n * 8)).collect();
            BenchResult { name: NAMES[2], value: walks(&accesses, repetitions)?, unit: accesses_per_second }
        }
        "faults_two_level" => BenchResult { name: NAMES[3], value: faults(repetitions)?, unit: "guest faults/s" },
        "trace_decode" => {
            BenchResult { name: NAMES[4], value: decode(traces, repetitions)?, unit: accesses_per_second }
        }
        _ => return Err(MachineError::unknown("benchmark", name, NAMES)),
    })
}

fn access(offset: u64) -> Access {
    Access::load(Gva(FIRST_PAGE.address().0 + offset))
}

/// Uniformly random words of the whole guest: practically each access walks.
fn random_pages(count: usize) -> Vec<Access> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    (0..count).map(|_| access(random.next_u64() % GUEST.bytes() & !7)).collect()
}

/// Nine accesses to a page that is in the TLB, then one to a random page.
fn one_in_ten(count: usize) -> Vec<Access> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut next = |n: usize| match n % 10 {
        0 => random.next_u64() % GUEST.bytes() & !7,
        n => (n as u64 % 8) << 12 | random.next_u64() & 0xff8,
    };
    (0..count).map(|n| access(next(n))).collect()
}

/// A VM, its program's memory mapped but not yet touched.
fn virtual_machine() -> Result<Stack, MachineError> {
    let failed = |source| MachineError::Os { name: "bench".into(), kernel: "bench".into(), source };
    let mut layers: Vec<Layer> = Vec::new();
    let mut host = Kernel::new(&KernelConfig::new(HOST_MEMORY)).map_err(failed)?;
    let (process, base) = with_below(&mut layers, Cpu(0), |below| host.host_vm(GUEST_MEMORY, below)).map_err(failed)?;
    layers.push(Layer { kernel: host, process, base });
    let mut guest = Kernel::new(&KernelConfig::new(GUEST_MEMORY)).map_err(failed)?;
    let process = with_below(&mut layers, Cpu(0), |below| -> Result<_, _> {
        let process = guest.spawn(below)?;
        guest.mmap(process, VpnRange::new(FIRST_PAGE, GUEST), VmaFlags::ANONYMOUS, below)?;
        Ok(process)
    })
    .map_err(failed)?;
    layers.push(Layer { kernel: guest, process, base: Vpn(0) });
    Ok(Stack::new(layers))
}

fn populate(stack: &mut Stack) -> Result<(), MachineError> {
    let failed = |source| MachineError::Os { name: "bench".into(), kernel: "bench".into(), source };
    for page in 0..GUEST.0 {
        stack.fault(1, FIRST_PAGE + page, true, Cpu(0)).map_err(failed)?;
    }
    Ok(())
}

/// The best of `repetitions` of `work`, which does `count` things: things a second.
fn best<T>(
    count: u64,
    repetitions: u32,
    mut prepare: impl FnMut() -> Result<T, MachineError>,
    mut work: impl FnMut(&mut T) -> Result<(), MachineError>,
) -> Result<f64, MachineError> {
    let mut best = 0.0_f64;
    for _ in 0..repetitions {
        let mut state = prepare()?;
        let start = Instant::now();
        work(&mut state)?;
        best = best.max(count as f64 / start.elapsed().as_secs_f64());
        black_box(&state);
    }
    Ok(best)
}

fn walks(accesses: &[Access], repetitions: u32) -> Result<f64, MachineError> {
    let machine: MachineConfig = Shelf::Machines.load("broadwell-asap", Path::new(""))?;
    let failed = |source| MachineError::Mmu { name: machine.name.clone(), source };
    let mut stack = virtual_machine()?;
    populate(&mut stack)?;
    let prepare = || Hardware::new(&machine.mmu, 1, CoRunnerConfig::None, Hpa(HOST_MEMORY.bytes()), 1).map_err(failed);
    best(accesses.len() as u64, repetitions, prepare, |hardware| {
        match hardware.run(0, &mut stack, accesses, Detail::Full) {
            RunEnd::Done => Ok(()),
            RunEnd::Fault { index, fault } => unreachable!("access {index} of a populated guest: {fault:?}"),
        }
    })
}

fn faults(repetitions: u32) -> Result<f64, MachineError> {
    best(GUEST.0, repetitions, virtual_machine, populate)
}

fn decode(traces: &Path, repetitions: u32) -> Result<f64, MachineError> {
    let path = crate::trace_path("bfs", Path::new(""), traces)?;
    let count = drain(&mut TraceWorkload::open(&path, PlayOptions::default())?)?;
    best(
        count,
        repetitions,
        || Ok(TraceWorkload::open(&path, PlayOptions::default())?),
        |workload| drain(workload).map(|_| ()),
    )
}

/// Reads a workload to its end: its accesses.
fn drain(workload: &mut TraceWorkload) -> Result<u64, MachineError> {
    let (mut batch, mut accesses) = (Batch::default(), 0);
    loop {
        match workload.next(&mut batch)? {
            Step::End => return Ok(accesses),
            Step::Accesses => accesses += black_box(&batch.accesses).len() as u64,
            _ => {}
        }
    }
}
