// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::below::Bare;
use crate::config::KernelConfig;
use crate::manager::{ManagerConfig, quicksilver::QuicksilverConfig};

const NEED: u64 = 64 << 20 >> 12;

fn fragmented(manager: ManagerConfig, percent: u16, wait_ms: u64) -> Kernel {
    let mut config = KernelConfig::new(PageCount(512 << 20 >> 12));
    config.manager = manager;
    config.start = StartState::Frag { percent, need: PageCount(NEED), kept_pages: 16, wait_ms };
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
    assert_eq!(free(ManagerConfig::FreeBsd, 20_000), 0);
    assert!(free(quicksilver.clone(), 4_000) == 0, "nothing is inactive before 5 s");
    assert!(free(quicksilver, 20_000) > 200, "most of 256 blocks go back whole");
}

#[test]
fn a_state_that_cannot_be_is_refused() {
    for (percent, need, kept_pages) in [(101, 1, 1), (0, 1 << 20, 1), (0, 1, 0), (0, 1, 512)] {
        let mut config = KernelConfig::new(PageCount(1 << 14));
        config.start = StartState::Frag { percent, need: PageCount(need), kept_pages, wait_ms: 0 };
        assert!(Kernel::new(&config).is_err(), "{:?}", config.start);
    }
}

#[test]
fn memory_in_use_is_not_exchanged() {
    let mut kernel = Kernel::new(&KernelConfig::new(PageCount(1 << 14))).unwrap();
    let saved = kernel.save_memory();
    let process = kernel.spawn(&mut Bare).unwrap();
    assert_eq!(kernel.restore_memory(&saved), Err(OsError::MemoryInUse));
    kernel.exit(process, &mut Bare).unwrap();
    assert_eq!(kernel.restore_memory(&saved), Ok(()));
    assert_eq!(kernel.backed_span(process, nestwalk_mem::Vpn(7), false), Err(OsError::NoProcess(process)));
}
