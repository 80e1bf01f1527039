// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::below::Bare;
use crate::config::KernelConfig;
use crate::manager::ManagerConfig;
use crate::manager::freebsd::FreeBsdConfig;
use crate::manager::quicksilver::QuicksilverConfig;
use crate::manager::thp::{Defrag, Enabled, Release, ThpConfig};

const NEED: u64 = 64 << 20 >> 12;

fn fragmented(manager: ManagerConfig, percent: u16, wait_ms: u64) -> Kernel {
    fragmented_by(FragSteps::Last, manager, percent, wait_ms)
}

fn fragmented_by(steps: FragSteps, manager: ManagerConfig, percent: u16, wait_ms: u64) -> Kernel {
    // In less memory what the kernel keeps free is more than the steps leave.
    let mebibytes = if steps == FragSteps::All { 4096 } else { 512 };
    let mut config = KernelConfig::new(PageCount(mebibytes << 20 >> 12));
    config.manager = manager;
    config.start = StartState::Frag { percent, need: PageCount(NEED), kept_pages: 16, wait_ms, steps };
    let mut kernel = Kernel::new(&config).unwrap();
    kernel.inhabit(&mut Bare).unwrap();
    kernel.check_invariants();
    kernel
}

#[test]
fn of_what_the_program_needs_so_much_has_free_blocks() {
    for manager in ManagerConfig::all() {
        for (percent, wanted) in [(0, 32), (50, 16), (100, 0)] {
            let kernel = fragmented(manager.clone(), percent, 0);
            let free = free_huge_blocks(kernel.memory());
            assert_eq!(free, wanted, "{manager:?}, Frag-{percent}");
            // Most of the memory is not in use: it is in pieces, or in reservations.
            let idle = kernel.memory().free_frames().0 + kernel.manager().reserved().0;
            assert!(idle > kernel.memory().frames().0 * 9 / 10, "{manager:?}: {idle}");
        }
    }
}

#[test]
fn quicksilver_empties_what_the_fragmenting_process_left_and_freebsd_does_not() {
    let quicksilver = ManagerConfig::Quicksilver(QuicksilverConfig::default());
    let free = |manager, wait_ms| free_huge_blocks(fragmented(manager, 100, wait_ms).memory());
    assert_eq!(free(ManagerConfig::FreeBsd(FreeBsdConfig::default()), 20_000), 0);
    assert!(free(quicksilver.clone(), 4_000) == 0, "nothing is inactive before 5 s");
    assert!(free(quicksilver, 20_000) > 200, "most of 256 blocks go back whole");
}

/// Huge pages that a program gets of the memory that it needs, and the kernel after that.
fn huge_pages(steps: FragSteps, release: Release, percent: u16) -> (u64, Kernel) {
    let thp = ThpConfig { release, enabled: Enabled::Always, defrag: Defrag::Always, ..ThpConfig::default() };
    let mut kernel = fragmented_by(steps, ManagerConfig::Thp(thp), percent, 100);
    let before = kernel.counters().faults_2m;
    let (process, first) = kernel.mapped(NEED / BLOCK, &mut Bare).unwrap();
    for page in 0..NEED {
        kernel.touch(process, first + page, true, Cpu(0), &mut Bare).unwrap();
    }
    kernel.check_invariants();
    (kernel.counters().faults_2m - before, kernel)
}

#[test]
fn after_all_steps_a_fault_of_4_3_finds_free_blocks_and_makes_none() {
    for (percent, least, most) in [(0, 32, 32), (50, 16, 18), (100, 0, 2)] {
        let (huge, kernel) = huge_pages(FragSteps::All, Release::V4_3, percent);
        assert!((least..=most).contains(&huge), "Frag-{percent}: {huge}");
        let failed = kernel.counters().compactions_failed;
        assert!(failed >= 2 * (32 - huge), "each of the others compacts twice: {failed}");
    }
    // It is what compaction remembers: after the last step alone each fault makes its block.
    assert_eq!(huge_pages(FragSteps::Last, Release::V4_3, 100).0, 32);
}

#[test]
fn what_compaction_remembers_is_void_when_kswapd_has_slept() {
    let (huge, mut kernel) = huge_pages(FragSteps::All, Release::V4_3, 100);
    assert!(huge <= 2);
    kernel.state.wake_background();
    kernel.tick(kernel.state.now + TICK, &mut Bare).unwrap();
    let before = kernel.counters().faults_2m;
    let (process, first) = kernel.mapped(8, &mut Bare).unwrap();
    for block in 0..8 {
        kernel.touch(process, first + block * BLOCK, true, Cpu(0), &mut Bare).unwrap();
    }
    assert_eq!(kernel.counters().faults_2m - before, 8);
}

#[test]
fn a_state_that_cannot_be_is_refused() {
    for (percent, need, kept_pages) in [(101, 1, 1), (0, 1 << 20, 1), (0, 1, 0), (0, 1, 512)] {
        let mut config = KernelConfig::new(PageCount(1 << 14));
        config.start =
            StartState::Frag { percent, need: PageCount(need), kept_pages, wait_ms: 0, steps: FragSteps::Last };
        assert!(Kernel::new(&config).is_err(), "{:?}", config.start);
    }
}

#[test]
fn memory_in_use_is_not_exchanged() {
    let mut kernel = Kernel::new(&KernelConfig::new(PageCount(1 << 14))).unwrap();
    let saved = kernel.memory().save();
    let process = kernel.spawn(&mut Bare).unwrap();
    assert_eq!(kernel.restore_memory(&saved), Err(OsError::MemoryInUse));
    kernel.exit(process, &mut Bare).unwrap();
    assert_eq!(kernel.restore_memory(&saved), Ok(()));
    assert_eq!(kernel.backed_span(process, nestwalk_mem::Vpn(7), false), Err(OsError::NoProcess(process)));
}
