// SPDX-License-Identifier: MIT OR Apache-2.0
use nestwalk_mem::{Cpu, Nanoseconds, VpnRange};

use crate::below::Bare;
use crate::config::KernelConfig;
use crate::kernel::Kernel;
use crate::manager::ManagerConfig;
use crate::state::process::WalkTime;
use crate::state::vma::VmaFlags;

use super::*;

const FIRST: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;

fn kernel(processes: usize) -> (Kernel, Vec<ProcessId>) {
    kernel_with(HawkEyeConfig::default(), processes)
}

fn kernel_with(hawkeye: HawkEyeConfig, processes: usize) -> (Kernel, Vec<ProcessId>) {
    let mut config = KernelConfig::new(PageCount(65_536));
    config.manager = ManagerConfig::HawkEye(hawkeye);
    let mut kernel = Kernel::new(&config).unwrap();
    let processes = (0..processes).map(|_| {
        let process = kernel.spawn(&mut Bare).unwrap();
        let range = VpnRange::new(Vpn(FIRST), PageCount(24 * 512));
        kernel.mmap(process, range, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
        process
    });
    let processes = processes.collect();
    (kernel, processes)
}

/// Uses `count` pages of a 2 MiB.
fn touch(kernel: &mut Kernel, process: ProcessId, block: u64, count: u64) {
    for page in (0..count).map(|n| Vpn(FIRST + block * 512 + n)) {
        kernel.touch(process, page, true, Cpu(0), &mut Bare).unwrap();
    }
}

fn is_huge(kernel: &Kernel, process: ProcessId, block: u64) -> bool {
    kernel.table(process).unwrap().leaf(Vpn(FIRST + block * 512)).unwrap().size() == PageSize::Huge
}

/// Lets `seconds` pass in which the program goes on as `using` does.
fn pass(kernel: &mut Kernel, seconds: std::ops::RangeInclusive<u64>, using: impl Fn(&mut Kernel)) {
    for second in seconds {
        using(kernel);
        kernel.tick(Nanoseconds(second * SECOND_NS), &mut Bare).unwrap();
    }
    kernel.check_invariants();
}

#[test]
fn bins_are_powers_of_two() {
    let pages = [0, 1, 2, 3, 4, 5, 256, 257, 512];
    assert_eq!(pages.map(|pages| bin_of(pages * UNIT)), [0, 1, 2, 3, 3, 4, 9, 10, 10]);
    assert_eq!((bin_of(1), bin_of(UNIT + 1), bin_of(512 * UNIT) + 1), (1, 2, BINS));
}

#[test]
fn the_densest_are_promoted_first_eight_in_ten_seconds() {
    let (mut kernel, processes) = kernel(1);
    let process = processes[0];
    // All are touched once; then ten are used densely and ten sparsely, in turn.
    (0..20).for_each(|block| touch(&mut kernel, process, block, 512));
    let using = |kernel: &mut Kernel| {
        (0..20).for_each(|block| touch(kernel, process, block, if block % 2 == 1 { 500 } else { 3 }));
    };
    pass(&mut kernel, 1..=10, using);
    let huge = |kernel: &Kernel| (0..20).filter(|&block| is_huge(kernel, process, block)).collect::<Vec<_>>();
    assert_eq!(huge(&kernel), [5, 7, 9, 11, 13, 15, 17, 19], "the last ones that came into the bin first");
    pass(&mut kernel, 11..=20, using);
    assert_eq!(kernel.counters().collapses, 16);
    assert!(is_huge(&kernel, process, 1) && is_huge(&kernel, process, 3), "{:?}", huge(&kernel));
    pass(&mut kernel, 21..=30, using);
    assert_eq!(kernel.counters().collapses, 20);
    assert_eq!((kernel.counters().faults_2m, kernel.counters().compactions_direct), (0, 0));
}

#[test]
fn what_is_not_used_is_not_promoted() {
    let (mut kernel, processes) = kernel(1);
    touch(&mut kernel, processes[0], 0, 512);
    pass(&mut kernel, 1..=60, |_| ());
    assert_eq!(kernel.counters().collapses, 0);
    assert!(nestwalk_mem::counters::value(&kernel.manager().counters(), "samples") == 10);
}

#[test]
fn processes_take_turns_in_a_bin() {
    let (mut kernel, processes) = kernel(2);
    let using = |kernel: &mut Kernel| {
        for &process in &processes {
            (0..10).for_each(|block| touch(kernel, process, block, 512));
        }
    };
    pass(&mut kernel, 1..=10, using);
    for &process in &processes {
        assert_eq!((0..10).filter(|&block| is_huge(&kernel, process, block)).count(), 4);
    }
    kernel.exit(processes[0], &mut Bare).unwrap();
    let rest = processes[1];
    pass(&mut kernel, 11..=20, |kernel| (0..10).for_each(|block| touch(kernel, rest, block, 512)));
    assert!((0..10).all(|block| is_huge(&kernel, rest, block)));
}

/// Of two processes that use as much of their memory, the second walks. How many huge pages each
/// has after each round.
fn promoted_where_the_second_walks(hawkeye: HawkEyeConfig) -> Vec<[usize; 2]> {
    let (mut kernel, processes) = kernel_with(hawkeye, 2);
    let mut rounds = Vec::new();
    for round in 0..3 {
        let using = |kernel: &mut Kernel| {
            for (&process, walk_cycles) in processes.iter().zip([10_000, 400_000]) {
                (0..20).for_each(|block| touch(kernel, process, block, 512));
                kernel.add_walk_time(process, WalkTime { walk_cycles, cycles: 1_000_000 });
            }
        };
        pass(&mut kernel, 10 * round + 1..=10 * round + 10, using);
        let huge = |&process: &ProcessId| (0..20).filter(|&block| is_huge(&kernel, process, block)).count();
        rounds.push([huge(&processes[0]), huge(&processes[1])]);
    }
    rounds
}

#[test]
fn who_walks_goes_first() {
    let small = HawkEyeConfig { measured_min: PageCount(0), ..HawkEyeConfig::default() };
    // Its last four are too few to have a claim on a round of their own.
    assert_eq!(promoted_where_the_second_walks(small), [[0, 8], [0, 16], [4, 20]]);
    let by_coverage = HawkEyeConfig { metric: Metric::Coverage, ..small };
    assert_eq!(promoted_where_the_second_walks(by_coverage), [[4, 4], [8, 8], [12, 12]]);
}

#[test]
fn little_memory_is_not_measured() {
    // 20 x 2 MiB each.
    let at_least = |mib: u64| HawkEyeConfig { measured_min: PageCount(mib << 8), ..HawkEyeConfig::default() };
    assert_eq!(promoted_where_the_second_walks(at_least(39))[0], [0, 8]);
    assert_eq!(promoted_where_the_second_walks(at_least(40))[0], [4, 4]);
}

#[test]
fn one_process_alone_is_promoted_alike_whether_it_walks_or_not() {
    let huge = |walk_cycles| {
        let (mut kernel, processes) =
            kernel_with(HawkEyeConfig { measured_min: PageCount(0), ..HawkEyeConfig::default() }, 1);
        let process = processes[0];
        let using = |kernel: &mut Kernel| {
            (0..20).for_each(|block| touch(kernel, process, block, if block % 2 == 1 { 500 } else { 30 }));
            kernel.add_walk_time(process, WalkTime { walk_cycles, cycles: 1_000_000 });
        };
        let mut seen = Vec::new();
        for round in 0..2 {
            pass(&mut kernel, 10 * round + 1..=10 * round + 10, using);
            seen.push((0..20).filter(|&block| is_huge(&kernel, process, block)).collect::<Vec<_>>());
        }
        let rounds = nestwalk_mem::counters::value(&kernel.manager().counters(), "rounds_by_overhead");
        (seen, rounds)
    };
    let (walking, without) = (huge(500_000), huge(0));
    assert_eq!(walking.0, without.0);
    assert_eq!((walking.1, without.1), (2, 0));
}
