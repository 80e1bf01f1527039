// SPDX-License-Identifier: MIT OR Apache-2.0
//! What PTEMagnet promises, one by one.

use nestwalk_mem::{Cpu, Nanoseconds, PageCount, Vpn, VpnRange};

use crate::below::Bare;
use crate::config::KernelConfig;
use crate::fragmentation::Fragmentation;
use crate::kernel::Kernel;
use crate::manager::ManagerConfig;
use crate::state::process::ProcessId;
use crate::state::vma::VmaFlags;

use super::PteMagnetConfig;

const FIRST: Vpn = Vpn(0x1000);

fn kernel(pages: u64, cpus: u16) -> Kernel {
    let mut config = KernelConfig::new(PageCount(pages));
    (config.manager, config.cpus) = (ManagerConfig::PteMagnet(PteMagnetConfig::default()), cpus);
    Kernel::new(&config).unwrap()
}

fn program(kernel: &mut Kernel, pages: u64) -> ProcessId {
    let process = kernel.spawn(&mut Bare).unwrap();
    kernel.mmap(process, VpnRange::new(FIRST, PageCount(pages)), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    process
}

fn touch(kernel: &mut Kernel, process: ProcessId, page: u64, cpu: u16) {
    kernel.fault(process, FIRST + page, true, Cpu(cpu), &mut Bare).unwrap();
}

fn statistic(kernel: &Kernel, name: &str) -> u64 {
    nestwalk_mem::counters::value(&kernel.manager().counters(), name)
}

fn fragmentation(kernel: &Kernel, process: ProcessId) -> Fragmentation {
    let whole = VpnRange { start: Vpn(0), end: Vpn(1 << 30) };
    Fragmentation::of_small(kernel.table(process).unwrap(), whole)
}

/// Twelve programs fault in turn on one processor.
fn twelve_at_once(mut kernel: Kernel) -> Fragmentation {
    let programs: Vec<_> = (0..12).map(|_| program(&mut kernel, 512)).collect();
    for page in 0..512 {
        for &process in &programs {
            touch(&mut kernel, process, page, 0);
        }
    }
    kernel.check_invariants();
    fragmentation(&kernel, programs[0])
}

#[test]
fn fragmentation_is_exactly_one_beside_any_co_runner() {
    let magnet = twelve_at_once(kernel(65_536, 1));
    assert_eq!((magnet.groups(), magnet.lines()), (64, 64));
    let stock = twelve_at_once(Kernel::new(&KernelConfig::new(PageCount(65_536))).unwrap());
    assert!(stock.lines() > 4 * stock.groups(), "the stock kernel must scatter here: {stock:?}");
}

#[test]
fn a_group_takes_one_block_and_its_pages_find_their_places_in_any_order() {
    let mut kernel = kernel(8192, 1);
    let process = program(&mut kernel, 64);
    for page in [5, 0, 7, 2] {
        touch(&mut kernel, process, page, 0);
        kernel.check_invariants();
    }
    assert_eq!((statistic(&kernel, "reservations"), statistic(&kernel, "faults_from_reservations")), (1, 3));
    assert_eq!(kernel.manager().reserved(), PageCount(4));
    let frame = |page| kernel.table(process).unwrap().translate(FIRST + page).unwrap().0;
    assert_eq!(frame(0) % 8, 0);
    assert_eq!([frame(2), frame(5), frame(7)], [frame(0) + 2, frame(0) + 5, frame(0) + 7]);
    for page in [1, 3, 4, 6] {
        touch(&mut kernel, process, page, 0);
    }
    assert_eq!((kernel.manager().reserved(), statistic(&kernel, "completed")), (PageCount(0), 1));
}

#[test]
fn pages_given_back_are_the_reservation_s_again_and_the_last_one_returns_the_block() {
    let mut kernel = kernel(8192, 1);
    let process = program(&mut kernel, 64);
    let free = kernel.memory().free_frames().0;
    (0..3).for_each(|page| touch(&mut kernel, process, page, 0));
    kernel.munmap(process, VpnRange::new(FIRST, PageCount(2)), &mut Bare).unwrap();
    assert_eq!(kernel.manager().reserved(), PageCount(7));
    kernel.check_invariants();
    kernel.munmap(process, VpnRange::new(FIRST + 2, PageCount(1)), &mut Bare).unwrap();
    assert_eq!(kernel.manager().reserved(), PageCount(0));
    kernel.check_invariants();
    let nodes = kernel.counters().nodes_made - kernel.counters().nodes_freed;
    assert_eq!(kernel.memory().free_frames().0 + nodes, free + 1, "all but the table's nodes; the root was there");
}

#[test]
fn a_child_may_take_what_its_parent_never_mapped() {
    let mut kernel = kernel(8192, 1);
    let parent = program(&mut kernel, 64);
    touch(&mut kernel, parent, 0, 0);
    let child = kernel.fork(parent, &mut Bare).unwrap();
    touch(&mut kernel, child, 1, 0);
    assert_eq!(statistic(&kernel, "faults_from_parents"), 1);
    let frame = |process, page| kernel.table(process).unwrap().translate(FIRST + page).unwrap().0;
    assert_eq!(frame(child, 1), frame(parent, 0) + 1);
    kernel.check_invariants();
    // The parent's own page 1 cannot be that frame any more.
    touch(&mut kernel, parent, 1, 0);
    kernel.check_invariants();
    kernel.exit(parent, &mut Bare).unwrap();
    kernel.exit(child, &mut Bare).unwrap();
    assert_eq!(kernel.manager().reserved(), PageCount(0));
    assert_eq!(kernel.memory().free_frames(), kernel.memory().frames());
}

#[test]
fn a_killed_process_leaves_no_reservation() {
    let mut kernel = kernel(8192, 2);
    let process = program(&mut kernel, 4096);
    (0..4096).step_by(9).for_each(|page| touch(&mut kernel, process, page, 1));
    assert!(kernel.manager().reserved() > PageCount(1000));
    kernel.exit(process, &mut Bare).unwrap();
    assert_eq!(kernel.manager().reserved(), PageCount(0));
    assert_eq!(kernel.memory().free_frames(), kernel.memory().frames());
    kernel.check_invariants();
}

#[test]
fn under_pressure_reservations_go_and_mapped_pages_stay() {
    let mut kernel = kernel(4096, 1);
    let process = program(&mut kernel, 1 << 15);
    // One page in each group: seven times as much is set aside, more than there is memory for.
    let pages: Vec<u64> = (0..3000).map(|n| n * 8 % (1 << 15)).collect();
    for &page in &pages {
        touch(&mut kernel, process, page, 0);
    }
    kernel.check_invariants();
    assert!(statistic(&kernel, "returned_under_pressure") > 0);
    assert_eq!((kernel.counters().swapped_out, kernel.counters().out_of_memory), (0, 0));
    let table = kernel.table(process).unwrap();
    assert!(pages.iter().all(|&page| table.translate(FIRST + page).is_some()));
}

#[test]
fn only_processes_with_a_large_enough_cgroup_limit_are_served() {
    let least = Some(PageCount(1000));
    let mut config = KernelConfig::new(PageCount(8192));
    config.manager =
        ManagerConfig::PteMagnet(PteMagnetConfig { cgroup_limit_min: least, ..PteMagnetConfig::default() });
    let mut kernel = Kernel::new(&config).unwrap();
    let reservations = |kernel: &Kernel| statistic(kernel, "reservations");
    for (limit, served) in [(None, 0), (Some(PageCount(999)), 0), (Some(PageCount(1000)), 1)] {
        let process = program(&mut kernel, 64);
        kernel.set_cgroup_limit(process, limit).unwrap();
        touch(&mut kernel, process, 0, 0);
        assert_eq!(reservations(&kernel), served, "{limit:?}");
        let child = kernel.fork(process, &mut Bare).unwrap();
        touch(&mut kernel, child, 32, 0);
        assert_eq!(reservations(&kernel), 2 * served, "a child is in its parent's cgroup: {limit:?}");
    }
    kernel.check_invariants();
}

/// What the program gave to each page is still there: the daemon changed no entry of a mapped page.
#[test]
fn the_daemon_under_pressure_never_touches_a_mapped_page() {
    let mut config = KernelConfig::new(PageCount(8192));
    config.manager =
        ManagerConfig::PteMagnet(PteMagnetConfig { threshold_permille: 100, ..PteMagnetConfig::default() });
    let mut kernel = Kernel::new(&config).unwrap();
    let programs: Vec<_> = (0..4).map(|_| program(&mut kernel, 2048)).collect();
    for page in (0..2048).filter(|page| page % 5 != 0 && page % 8 < 6) {
        programs.iter().for_each(|&process| touch(&mut kernel, process, page, 0));
    }
    let entries = |kernel: &Kernel| {
        let leaf = |process, page| kernel.table(process).unwrap().leaf(FIRST + page);
        programs.iter().flat_map(|&process| (0..2048).map(move |page| leaf(process, page))).collect::<Vec<_>>()
    };
    let (before, reserved) = (entries(&kernel), kernel.manager().reserved());
    assert!(reserved > PageCount(1000) && before.iter().flatten().count() > 4000);
    let (shootdowns, epoch) = (kernel.counters().shootdowns, kernel.has_invalidations());
    kernel.tick(Nanoseconds(1_000_000), &mut Bare).unwrap();
    assert_eq!(kernel.manager().reserved(), PageCount(0));
    assert_eq!(entries(&kernel), before);
    assert_eq!((kernel.counters().shootdowns, kernel.has_invalidations()), (shootdowns, epoch), "no TLB flush");
    kernel.check_invariants();
}

#[test]
fn the_daemon_keeps_use_below_the_threshold() {
    let mut config = KernelConfig::new(PageCount(8192));
    config.manager =
        ManagerConfig::PteMagnet(PteMagnetConfig { threshold_permille: 200, ..PteMagnetConfig::default() });
    let mut kernel = Kernel::new(&config).unwrap();
    let process = program(&mut kernel, 1 << 13);
    (0..400).for_each(|n| touch(&mut kernel, process, n * 8, 0));
    assert_eq!(kernel.manager().reserved(), PageCount(2800));
    kernel.tick(Nanoseconds(1_000_000), &mut Bare).unwrap();
    assert_eq!(kernel.manager().reserved(), PageCount(0));
    kernel.check_invariants();
}
