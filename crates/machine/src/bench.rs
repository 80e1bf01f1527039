// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast the simulator is on this machine. Each benchmark builds what it needs, runs it a few
//! times and keeps the best. The processor's own speed is measured before and after each repetition
//! ([`pace`]), because other programs on a shared machine change it.
//!
//! Benchmarks of the engine generate their accesses beforehand, so that only the simulation is
//! timed: data caches on, `broadwell-asap` where the name has no other machine, a 16 GiB guest with
//! 4 KiB pages on both sides, one core. Those of real programs ([`traces`]) time a run as a user
//! makes it, decoding included.

mod colocated;
mod generators;
pub mod imports;
mod pace;
mod sampled;
mod traces;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nestwalk_mem::{Access, Cpu, Gva, Hpa, PageCount, Vpn, VpnRange};
use nestwalk_mmu::{Accesses, AsapHardware, RunEnd};
use nestwalk_os::manager::freebsd::FreeBsdConfig;
use nestwalk_os::manager::hawkeye::HawkEyeConfig;
use nestwalk_os::manager::ingens::IngensConfig;
use nestwalk_os::manager::ptemagnet::PteMagnetConfig;
use nestwalk_os::manager::quicksilver::QuicksilverConfig;
use nestwalk_os::tables::asap::AsapConfig;
use nestwalk_os::tables::hugegpt::HugeGptConfig;
use nestwalk_os::{AllocatorKind, Kernel, KernelConfig, ManagerConfig, Shadows, StartState, TablesConfig, VmaFlags};
use nestwalk_workload::trace::{PlayOptions, TraceWorkload};
use nestwalk_workload::{Batch, Step, Workload};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use crate::accesses::Detail;
use crate::build::{add_kernel, add_vm_in_segments, registers};
use crate::catalog::Shelf;
use crate::chain::KernelChain;
use crate::error::MachineError;
use crate::hardware::{AnyAccelerator, Hardware};
use crate::paging::{Fallback, PagingConfig, VmPaging};
use crate::scenario::{CoRunnerConfig, MachineConfig};
use crate::stack::Stack;
use pace::Pace;

/// What a benchmark measured.
#[derive(Clone, Debug, Serialize)]
pub struct BenchResult {
    /// Its name.
    pub name: &'static str,
    /// The best of the repetitions.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
    /// The processor's clock in effect, in GHz: the median of measurements right before and after
    /// each repetition. `None` on processors where Nestwalk cannot measure it.
    pub clock_ghz: Option<f64>,
    /// Cycles of that clock for each counted item: the median of the repetitions. Other load on the
    /// machine changes it less than `value`, but does change it: another thread of the same core
    /// takes its share of each cycle, see `width`.
    pub cycles: Option<f64>,
    /// Independent additions that the processor did in a cycle: a median like that of the clock.
    /// Half as many as elsewhere on the same kind of processor show that another thread of the core
    /// was busy; then `cycles` are higher, too.
    pub width: Option<f64>,
    /// The most memory that this process had at the end of a repetition, in bytes. `None` where the
    /// system does not report it.
    pub memory_bytes: Option<u64>,
}

/// Who measures the repetitions of a benchmark.
pub trait Watch {
    /// The work begins now.
    fn begin(&mut self);

    /// The work has ended: it was `count` of what is counted.
    fn end(&mut self, count: u64);
}

/// Without measurements.
#[derive(Debug)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn begin(&mut self) {}

    fn end(&mut self, _: u64) {}
}

/// One repetition.
#[derive(Clone, Copy)]
struct Lap {
    /// How many a second.
    speed: f64,
    pace: Option<Pace>,
    memory_bytes: Option<u64>,
}

impl Lap {
    fn cycles(self) -> Option<f64> {
        self.pace.map(|pace| pace.clock_ghz * 1e9 / self.speed)
    }
}

/// The processor's current clock, in GHz; `None` on processors where Nestwalk cannot measure it.
#[must_use]
pub fn clock_ghz() -> Option<f64> {
    pace::clock_ghz()
}

/// Time and pace of each repetition.
struct Stopwatch {
    pace_before: Option<Pace>,
    start: Instant,
    laps: Vec<Lap>,
}

impl Watch for Stopwatch {
    fn begin(&mut self) {
        self.pace_before = pace::in_effect();
        self.start = Instant::now();
    }

    fn end(&mut self, count: u64) {
        let speed = count as f64 / self.start.elapsed().as_secs_f64();
        let pace = self.pace_before.zip(pace::in_effect()).map(|(before, after)| before.middle(after));
        self.laps.push(Lap { speed, pace, memory_bytes: memory_in_use() });
    }
}

/// Bytes of this process that lie in memory, as Linux tells them.
fn memory_in_use() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix("kB")?;
    Some(kilobytes.trim().parse::<u64>().ok()? << 10)
}

/// The middle one, or the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = |at: usize| sorted.get(at).copied();
    Some((middle(sorted.len().checked_sub(1)? / 2)? + middle(sorted.len() / 2)?) / 2.0)
}

/// All benchmarks except [`imports::NAMES`], whose instructions are not counted because two threads
/// share the work.
pub const NAMES: [&str; 31] = [
    "nested_all_walks",
    "nested_all_walks_sapphire_rapids",
    "nested_all_walks_zen4",
    "nested_all_walks_shadow",
    "nested_tenth_walks",
    "nested_sequential",
    "faults_two_level",
    "faults_colocated",
    "trace_decode",
    "trace_redis",
    "trace_redis_native",
    "trace_xz",
    "trace_xz_native",
    "trace_bfs",
    "trace_bfs_native",
    "nested_tenth_walks_asap",
    "nested_tenth_walks_clustered",
    "nested_tenth_walks_hugegpt",
    "nested_tenth_walks_segments",
    "nested_tenth_walks_shadow",
    "faults_ptemagnet",
    "faults_freebsd",
    "faults_quicksilver",
    "faults_ingens",
    "faults_hawkeye",
    "generate_graph",
    "generate_shards",
    "generate_lonestar",
    sampled::NAME,
    "aged_memory",
    LARGE,
];

/// Page faults until a guest of 400 GiB is populated. It takes gigabytes and seconds at every
/// scale, so it runs once. Its instructions are those of `faults_two_level`.
pub const LARGE: &str = "faults_400_gib";

/// How large a benchmark is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// What the program has touched.
    pub footprint: PageCount,
    /// Accesses where every one walks; the cheaper cases have 4 and 16 times as many.
    pub accesses: usize,
    /// Accesses of a bundled trace that a repetition runs; all of them if `None`.
    pub trace_stretch: Option<u64>,
}

impl Scale {
    /// The one whose speeds are reported.
    pub const FULL: Self = Self { footprint: PageCount(16 << 18), accesses: 4 << 20, trace_stretch: None };
    /// The guest of [`LARGE`].
    const LARGE: Self = Self { footprint: PageCount(400 << 18), accesses: 0, trace_stretch: None };
    /// Small enough to count instructions.
    pub const SMALL: Self = Self { footprint: PageCount(1 << 18), accesses: 1 << 16, trace_stretch: Some(1 << 18) };

    /// The guest's memory holds page tables besides.
    const fn guest(self) -> PageCount {
        PageCount(self.footprint.0 + (1 << 18))
    }

    const fn host(self) -> PageCount {
        PageCount(self.footprint.0 + (2 << 18))
    }
}

const FIRST_PAGE: Vpn = Vpn(0x10_0000);

/// Runs the benchmark `name` at full scale `repetitions` times and keeps the best. Traces lie in
/// the folder `traces`.
///
/// # Errors
/// When there is no such benchmark, or the bundled trace cannot be read.
pub fn run(name: &str, repetitions: u32, traces: &Path) -> Result<BenchResult, MachineError> {
    let all = || NAMES.into_iter().chain(imports::NAMES);
    let name = all().find(|known| *known == name).ok_or_else(|| MachineError::unknown("benchmark", name, all()))?;
    let mut watch = Stopwatch { pace_before: None, start: Instant::now(), laps: Vec::new() };
    let (_, unit) = work(name, Scale::FULL, repetitions, traces, &mut watch)?;
    let laps = watch.laps.iter();
    Ok(BenchResult {
        name,
        value: laps.clone().map(|lap| lap.speed).fold(0.0, f64::max),
        unit,
        clock_ghz: median(laps.clone().filter_map(|lap| Some(lap.pace?.clock_ghz))),
        cycles: median(laps.clone().filter_map(|lap| lap.cycles())),
        width: median(laps.clone().filter_map(|lap| Some(lap.pace?.width))),
        memory_bytes: laps.filter_map(|lap| lap.memory_bytes).max(),
    })
}

/// Does the work of the benchmark `name` `repetitions` times, at any scale, each time observed by
/// `watch`. Returns how many items one repetition does, and their unit.
///
/// # Errors
/// As [`run`].
pub fn work(
    name: &str,
    scale: Scale,
    repetitions: u32,
    traces: &Path,
    watch: &mut dyn Watch,
) -> Result<(u64, &'static str), MachineError> {
    let accesses = match name {
        "faults_two_level" | "faults_ptemagnet" | "faults_freebsd" | "faults_quicksilver" | "faults_ingens"
        | "faults_hawkeye" => {
            let technique = Technique::of(name);
            return faults(scale, &technique, repetitions, watch).map(|count| (count, "guest faults/s"));
        }
        LARGE => return faults(Scale::LARGE, &Technique::default(), 1, watch).map(|count| (count, "guest faults/s")),
        "faults_colocated" => {
            return colocated::faults(scale, repetitions, watch).map(|count| (count, "guest faults/s"));
        }
        name if imports::NAMES.contains(&name) => {
            return imports::import(name, traces, repetitions, watch).map(|count| (count, "records/s"));
        }
        "trace_decode" => return decode(traces, repetitions, watch).map(|count| (count, "accesses/s")),
        name if traces::has(name) => {
            let done = traces::simulate(name, scale.trace_stretch, traces, repetitions, watch);
            return done.map(|count| (count, "accesses/s"));
        }
        name if generators::has(name) => {
            return generators::generate(name, scale, repetitions, watch).map(|count| (count, "accesses/s"));
        }
        sampled::NAME => return sampled::pass(scale, repetitions, watch).map(|count| (count, "accesses/s")),
        "aged_memory" => return age(scale, repetitions, watch).map(|count| (count, "frames/s")),
        name if name.starts_with("nested_all_walks") => random_pages(scale),
        "nested_sequential" => sequential(scale),
        _ => one_in_ten(scale),
    };
    walks(scale, &Technique::of(name), &accesses, repetitions, watch)?;
    Ok((accesses.len() as u64, "accesses/s"))
}

/// What a benchmark has besides a plain VM.
#[derive(Default)]
struct Technique {
    /// The machine file, if it is not `broadwell-asap`.
    machine: Option<&'static str>,
    asap: Option<AsapHardware>,
    clustered_tlb: bool,
    guest_manager: ManagerConfig,
    /// Of guest and host.
    tables: [TablesConfig; 2],
    paging: PagingConfig,
}

impl Technique {
    fn of(name: &str) -> Self {
        let plain = Self::default();
        match name {
            "nested_all_walks_sapphire_rapids" => Self { machine: Some("sapphire-rapids"), ..plain },
            "nested_all_walks_zen4" => Self { machine: Some("zen4"), ..plain },
            "nested_tenth_walks_asap" => Self {
                asap: Some(AsapHardware { registers: 16, guest_levels: vec![1, 2], host_levels: vec![1, 2] }),
                tables: [TablesConfig::Asap(AsapConfig::default()), TablesConfig::Asap(AsapConfig::default())],
                ..plain
            },
            "nested_tenth_walks_clustered" => Self { clustered_tlb: true, ..plain },
            "nested_tenth_walks_hugegpt" => {
                Self { tables: [TablesConfig::HugeGpt(HugeGptConfig::default()), TablesConfig::Buddy], ..plain }
            }
            "nested_tenth_walks_segments" => {
                let (fallback, allocator) = (Fallback::Ept, AllocatorKind::default());
                Self { paging: PagingConfig::Segments { max: 1, fallback, allocator }, ..plain }
            }
            "nested_all_walks_shadow" | "nested_tenth_walks_shadow" => Self { paging: PagingConfig::Shadow, ..plain },
            "faults_ptemagnet" => Self { guest_manager: ManagerConfig::PteMagnet(PteMagnetConfig::default()), ..plain },
            "faults_freebsd" => Self { guest_manager: ManagerConfig::FreeBsd(FreeBsdConfig::default()), ..plain },
            // Each page is a fault, as with the other managers: the threshold is not reached before
            // the last page.
            "faults_quicksilver" => {
                let config = QuicksilverConfig { threshold: 512, ..QuicksilverConfig::default() };
                Self { guest_manager: ManagerConfig::Quicksilver(config), ..plain }
            }
            "faults_ingens" => Self { guest_manager: ManagerConfig::Ingens(IngensConfig::default()), ..plain },
            "faults_hawkeye" => Self { guest_manager: ManagerConfig::HawkEye(HawkEyeConfig::default()), ..plain },
            _ => plain,
        }
    }
}

fn access(offset: u64) -> Access {
    Access::load(Gva(FIRST_PAGE.address().0 + offset))
}

/// Uniformly random words of the whole footprint: practically each access walks.
fn random_pages(scale: Scale) -> Vec<Access> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    (0..scale.accesses).map(|_| access((random.next_u64() % scale.footprint.bytes()) & !7)).collect()
}

/// Nine accesses to pages that are in the TLB, then one to a random page.
fn one_in_ten(scale: Scale) -> Vec<Access> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut next = |n: usize| match n % 10 {
        0 => (random.next_u64() % scale.footprint.bytes()) & !7,
        n => (n as u64 % 8) << 12 | random.next_u64() & 0xff8,
    };
    (0..4 * scale.accesses).map(|n| access(next(n))).collect()
}

/// Word after word.
fn sequential(scale: Scale) -> Vec<Access> {
    (0..16 * scale.accesses as u64).map(|n| access(n * 8 % scale.footprint.bytes())).collect()
}

/// A VM, its program's memory mapped but not yet touched.
fn virtual_machine(scale: Scale, technique: &Technique) -> Result<(Stack, KernelChain), MachineError> {
    let failed = |source| MachineError::Os { place: "bench".into(), kernel: "bench".into(), source };
    let (mut stack, first) = (Stack::default(), Cpu(0));
    let [guest_tables, host_tables] = technique.tables.clone();
    let host_config = KernelConfig { tables: host_tables, ..KernelConfig::new(scale.host()) };
    let host = match technique.paging {
        PagingConfig::Segments { max, allocator, .. } => {
            let (host, segments) = add_vm_in_segments(
                &mut stack,
                Kernel::new(&host_config).map_err(failed)?,
                scale.guest(),
                (max, allocator),
            )
            .map_err(failed)?;
            let segments = segments.expect("fresh memory is one segment");
            stack.add_paging(&host, VmPaging::Segments(registers(&segments, 1).expect("it is one")));
            host
        }
        _ => add_kernel(&mut stack, &[], &host_config, Some(scale.guest()), first).map_err(failed)?,
    };
    if technique.paging == PagingConfig::Shadow {
        let shadows = Shadows::new((host.process, host.base), host_config.geometry, false);
        stack.add_paging(&host, VmPaging::Shadow(Box::new(shadows)));
    }
    let manager = technique.guest_manager.clone();
    let guest_config = KernelConfig { tables: guest_tables, manager, ..KernelConfig::new(scale.guest()) };
    let guest = add_kernel(&mut stack, &[host], &guest_config, None, first).map_err(failed)?;
    let chain = KernelChain::new(&[host, guest]);
    let range = VpnRange::new(FIRST_PAGE, scale.footprint);
    stack
        .with(&chain, 1, first, |kernel, process, below| kernel.mmap(process, range, VmaFlags::ANONYMOUS, below))
        .map_err(failed)?;
    Ok((stack, chain))
}

fn populate(stack: &mut Stack, chain: &KernelChain, scale: Scale) -> Result<(), MachineError> {
    let failed = |source| MachineError::Os { place: "bench".into(), kernel: "bench".into(), source };
    for page in 0..scale.footprint.0 {
        stack.fault(chain, 1, FIRST_PAGE + page, true, Cpu(0)).map_err(failed)?;
    }
    Ok(())
}

/// Does `work` `repetitions` times, each time on what `prepare` makes; `watch` sees `work` only.
/// Returns how much the last one did.
fn repeat<T>(
    repetitions: u32,
    watch: &mut dyn Watch,
    mut prepare: impl FnMut() -> Result<T, MachineError>,
    mut work: impl FnMut(&mut T) -> Result<u64, MachineError>,
) -> Result<u64, MachineError> {
    let mut count = 0;
    for _ in 0..repetitions {
        let mut state = prepare()?;
        watch.begin();
        count = work(&mut state)?;
        watch.end(count);
        black_box(&state);
    }
    Ok(count)
}

fn walks(
    scale: Scale,
    technique: &Technique,
    accesses: &[Access],
    repetitions: u32,
    watch: &mut dyn Watch,
) -> Result<u64, MachineError> {
    let machine: MachineConfig = Shelf::Machines.load(technique.machine.unwrap_or("broadwell-asap"), Path::new(""))?;
    let failed = |source| MachineError::Mmu { name: machine.name.clone(), source };
    let (mut stack, chain) = virtual_machine(scale, technique)?;
    populate(&mut stack, &chain, scale)?;
    if stack.shadows(&chain) {
        let failed = |source| MachineError::Os { place: "bench".into(), kernel: "bench".into(), source };
        for page in 0..scale.footprint.0 {
            stack.shadow_fault(&chain, FIRST_PAGE + page, true, Cpu(0)).map_err(failed)?;
        }
    }
    let memory_end = Hpa(scale.host().bytes());
    let accelerator = match &technique.asap {
        Some(asap) => AnyAccelerator::Asap(Box::new(asap.build().expect("the levels are possible"))),
        None => AnyAccelerator::None,
    };
    let mmu = if technique.clustered_tlb {
        machine.mmu.clone().with_clustered_tlb().map_err(failed)?
    } else {
        machine.mmu.clone()
    };
    let prepare = || {
        let mut hardware = Hardware::new(&mmu, accelerator.clone(), CoRunnerConfig::None, memory_end, 1)?;
        let user = hardware.add(&chain, 1)?;
        Ok((hardware, user))
    };
    let whole = Accesses::unfiltered(accesses);
    let lost = |source| MachineError::Os { place: "bench".into(), kernel: "bench".into(), source };
    repeat(
        repetitions,
        watch,
        || prepare().map_err(failed),
        |(hardware, user)| match hardware.run(*user, 0, &mut stack, whole, Detail::Full).map_err(lost)? {
            RunEnd::Done => Ok(accesses.len() as u64),
            RunEnd::Fault { index, fault } => unreachable!("access {index} of a populated guest: {fault:?}"),
        },
    )
}

fn faults(scale: Scale, technique: &Technique, repetitions: u32, watch: &mut dyn Watch) -> Result<u64, MachineError> {
    let prepare = || virtual_machine(scale, technique);
    repeat(repetitions, watch, prepare, |(stack, chain)| populate(stack, chain, scale).map(|()| scale.footprint.0))
}

/// Kernels that begin with an aged memory.
fn age(scale: Scale, repetitions: u32, watch: &mut dyn Watch) -> Result<u64, MachineError> {
    let failed = |source| MachineError::Os { place: "bench".into(), kernel: "bench".into(), source };
    let start =
        StartState::Aged { used_permille: 1000, kept_permille: 10, kernel_permille: 0, kernel_kept_permille: 0 };
    let config = KernelConfig { start, ..KernelConfig::new(scale.footprint) };
    repeat(
        repetitions,
        watch,
        || Ok(None),
        |kernel| {
            *kernel = Some(Kernel::new(&config).map_err(failed)?);
            Ok(scale.footprint.0)
        },
    )
}

fn decode(traces: &Path, repetitions: u32, watch: &mut dyn Watch) -> Result<u64, MachineError> {
    let paths = crate::bundled_traces(traces).into_iter().map(|name| crate::trace_path(&name, Path::new(""), traces));
    let paths = paths.collect::<Result<Vec<_>, _>>()?;
    let open = |path: &PathBuf| Ok(TraceWorkload::open(path, PlayOptions::default())?);
    let prepare = || paths.iter().map(open).collect::<Result<Vec<_>, MachineError>>();
    repeat(repetitions, watch, prepare, |workloads| workloads.iter_mut().map(|trace| drain(trace, u64::MAX)).sum())
}

/// Reads a workload to its end, or until it has made `most` accesses: how many it made.
fn drain(workload: &mut dyn Workload, most: u64) -> Result<u64, MachineError> {
    let (mut batch, mut accesses) = (Batch::default(), 0);
    while accesses < most {
        match workload.next(&mut batch)? {
            Step::End => break,
            Step::Accesses => accesses += black_box(&batch.accesses).len() as u64,
            _ => {}
        }
    }
    Ok(accesses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn cycles_are_clock_over_speed() {
        let pace = Some(Pace { clock_ghz: 3.0, width: 5.0 });
        let lap = Lap { speed: 4e6, pace, memory_bytes: None };
        assert_eq!(lap.cycles(), Some(750.0));
        assert_eq!(Lap { pace: None, ..lap }.cycles(), None);
    }
}
