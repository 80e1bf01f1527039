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

fn counter(kernel: &Kernel, name: &str) -> u64 {
    nestwalk_mem::counters::value(&kernel.manager().counters(), name)
}

/// 4 KiB pages that `act` zeroes, those of table nodes left out.
fn zeroed_by(kernel: &mut Kernel, act: impl FnOnce(&mut Kernel)) -> u64 {
    let before = *kernel.counters();
    act(kernel);
    let done = kernel.counters().since(&before);
    done.zeroed_4k - done.nodes_made
}

#[test]
fn free_memory_is_zeroed_ahead_at_its_pace_and_faults_do_without() {
    let zeroing = HawkEyeConfig { zeroed_pages_per_s: 10_240, ..HawkEyeConfig::default() };
    let (mut kernel, processes) = kernel_with(zeroing, 1);
    pass(&mut kernel, 1..=1, |_| ());
    assert_eq!((counter(&kernel, "zeroed_ahead"), kernel.counters().zeroed_2m), (10_240, 20));
    // What is taken first is not what was zeroed first.
    assert_eq!(zeroed_by(&mut kernel, |kernel| touch(kernel, processes[0], 0, 512)), 512);
    pass(&mut kernel, 2..=60, |_| ());
    let all = counter(&kernel, "zeroed_ahead");
    assert!((60_000..=65_536).contains(&all), "each free block once: {all}");
    let cached = counter(&kernel, "faults_zeroed_ahead");
    assert_eq!(zeroed_by(&mut kernel, |kernel| touch(kernel, processes[0], 2, 5 * 512)), {
        5 * 512 - (counter(&kernel, "faults_zeroed_ahead") - cached)
    });
    assert!(counter(&kernel, "faults_zeroed_ahead") > 3 * 512, "all but what is left of a block that was in use");
    let (mut without, processes) = kernel_with(HawkEyeConfig::default(), 1);
    pass(&mut without, 1..=60, |_| ());
    assert_eq!(zeroed_by(&mut without, |kernel| touch(kernel, processes[0], 0, 5 * 512)), 5 * 512);
    assert_eq!((without.counters().zeroed_2m, counter(&without, "zeroed_ahead")), (0, 0));
}

#[test]
fn memory_that_was_used_is_zeroed_again() {
    let zeroing = HawkEyeConfig { zeroed_pages_per_s: 1 << 20, ..HawkEyeConfig::default() };
    let (mut kernel, processes) = kernel_with(zeroing, 1);
    pass(&mut kernel, 1..=1, |_| ());
    let first = counter(&kernel, "zeroed_ahead");
    pass(&mut kernel, 2..=3, |_| ());
    assert_eq!(counter(&kernel, "zeroed_ahead"), first, "nothing was used meanwhile");
    touch(&mut kernel, processes[0], 0, 24 * 512);
    kernel.exit(processes[0], &mut Bare).unwrap();
    pass(&mut kernel, 4..=5, |_| ());
    let again = counter(&kernel, "zeroed_ahead") - first;
    assert!((4 * 1024..=13 * 1024).contains(&again), "but for what is in per-CPU lists: {again}");
}

/// Eight huge pages of which 64 pages were touched each, in a memory that another program fills.
fn bloated(recovery_sleep_ms: u64) -> (Kernel, ProcessId) {
    let hawkeye = HawkEyeConfig { recovery_sleep_ms, ..HawkEyeConfig::default() };
    let mut config = KernelConfig::new(PageCount(16_384));
    (config.manager, config.min_free) = (ManagerConfig::HawkEye(hawkeye), Some(PageCount(128)));
    let mut kernel = Kernel::new(&config).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    let range = VpnRange::new(Vpn(FIRST), PageCount(8 * 512));
    kernel.mmap(process, range, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    pass(&mut kernel, 1..=20, |kernel| (0..8).for_each(|block| touch(kernel, process, block, 64)));
    assert!((0..8).all(|block| is_huge(&kernel, process, block)));
    let hog = kernel.spawn(&mut Bare).unwrap();
    let flags = VmaFlags { advice: HugeAdvice::NoHuge, ..VmaFlags::ANONYMOUS };
    kernel.mmap(hog, VpnRange::new(Vpn(1 << 20), PageCount(16_384)), flags, &mut Bare).unwrap();
    fill(&mut kernel, hog);
    (kernel, process)
}

/// The other program takes memory until less than 15 % are free.
fn fill(kernel: &mut Kernel, hog: ProcessId) {
    let mut next = Vpn(1 << 20);
    while kernel.memory().free_frames().0 >= 16_384 * 150 / 1000 {
        kernel.touch(hog, next, true, Cpu(0), &mut Bare).unwrap();
        next += 1;
    }
}

fn is_mapped(kernel: &Kernel, process: ProcessId, block: u64, page: u64) -> bool {
    kernel.table(process).unwrap().translate(Vpn(FIRST + block * 512 + page)).is_some()
}

#[test]
fn pages_of_zeroes_come_back_when_memory_is_nearly_full() {
    let (mut kernel, process) = bloated(30_000);
    assert!(kernel.watches_stores());
    // Two stores and a load to pages that were missing.
    kernel.touch(process, Vpn(FIRST + 100), true, Cpu(0), &mut Bare).unwrap();
    kernel.note_store(process, Vpn(FIRST + 102));
    kernel.touch(process, Vpn(FIRST + 101), false, Cpu(0), &mut Bare).unwrap();
    let free = kernel.memory().free_frames().0;
    pass(&mut kernel, 30..=30, |_| ());
    let taken = counter(&kernel, "recovered_pages");
    // From 15 % free up to 30 %: 448 pages of each huge page, and 2 fewer of the first.
    let goal = 16_384 * 300 / 1000 - free;
    assert_eq!(taken, goal / 448 * 448 + 446, "until it is more than {goal}");
    assert_eq!(counter(&kernel, "recovered_superpages"), goal / 448 + 1);
    assert_eq!(kernel.memory().free_frames().0 + counter(&kernel, "recovered_superpages"), free + taken, "and nodes");
    let mapped = |page| is_mapped(&kernel, process, 0, page);
    assert_eq!([63, 64, 99, 100, 101, 102, 511].map(mapped), [true, false, false, true, false, true, false]);
    assert!(is_huge(&kernel, process, 7), "there is enough");
    assert!(!is_huge(&kernel, process, 0));
    pass(&mut kernel, 31..=90, |kernel| touch(kernel, process, 0, 64));
    assert!(!is_huge(&kernel, process, 0), "it is not promoted again");
    let range = VpnRange::new(Vpn(FIRST), PageCount(512));
    kernel.munmap(process, range, &mut Bare).unwrap();
    kernel.mmap(process, range, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    pass(&mut kernel, 91..=120, |kernel| touch(kernel, process, 0, 64));
    assert!(is_huge(&kernel, process, 0), "unless it begins anew");
}

#[test]
fn without_recovery_huge_pages_stay() {
    let (mut kernel, process) = bloated(0);
    assert!(!kernel.watches_stores());
    pass(&mut kernel, 21..=400, |_| ());
    assert_eq!(counter(&kernel, "recovered_pages"), 0);
    assert!((0..8).all(|block| is_huge(&kernel, process, block)));
}

#[test]
fn with_memory_to_spare_nothing_is_recovered() {
    let (mut kernel, process) = bloated(30_000);
    let hog = kernel.processes().find(|&other| other != process).unwrap();
    kernel.exit(hog, &mut Bare).unwrap();
    pass(&mut kernel, 30..=400, |_| ());
    assert_eq!(counter(&kernel, "recovered_pages"), 0);
}

#[test]
fn a_huge_page_that_is_shared_or_gone_is_left_alone() {
    let (mut kernel, process) = bloated(30_000);
    let child = kernel.fork(process, &mut Bare).unwrap();
    kernel.munmap(process, VpnRange::new(Vpn(FIRST), PageCount(512)), &mut Bare).unwrap();
    pass(&mut kernel, 30..=30, |_| ());
    assert_eq!(counter(&kernel, "recovered_pages"), 0);
    kernel.exit(child, &mut Bare).unwrap();
    let hog = kernel.processes().find(|&other| other != process).unwrap();
    fill(&mut kernel, hog);
    pass(&mut kernel, 60..=60, |_| ());
    assert_eq!(counter(&kernel, "recovered_pages") % 448, 0);
    assert!(counter(&kernel, "recovered_pages") > 0 && kernel.table(process).unwrap().leaf(Vpn(FIRST)).is_none());
}
