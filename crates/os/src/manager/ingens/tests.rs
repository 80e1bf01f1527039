// SPDX-License-Identifier: MIT OR Apache-2.0
use nestwalk_mem::{Cpu, Nanoseconds, VpnRange};

use crate::below::Bare;
use crate::config::KernelConfig;
use crate::kernel::Kernel;
use crate::kernel::madvise::Advice;
use crate::manager::ManagerConfig;
use crate::state::vma::VmaFlags;

use super::*;

const FIRST: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;

fn kernel() -> (Kernel, ProcessId) {
    let mut config = KernelConfig::new(PageCount(32_768));
    config.manager = ManagerConfig::Ingens(IngensConfig::default());
    config.min_free = Some(PageCount(256));
    let mut kernel = Kernel::new(&config).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    let range = VpnRange::new(Vpn(FIRST), PageCount(20 * 512));
    kernel.mmap(process, range, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    (kernel, process)
}

fn touch(kernel: &mut Kernel, process: ProcessId, block: u64, count: u64) {
    for page in (0..count).map(|n| Vpn(FIRST + block * 512 + n)) {
        kernel.touch(process, page, true, Cpu(0), &mut Bare).unwrap();
    }
}

fn statistic(kernel: &Kernel, name: &str) -> u64 {
    nestwalk_mem::counters::value(&kernel.manager().counters(), name)
}

fn tick(kernel: &mut Kernel, second: u64) {
    kernel.tick(Nanoseconds(second * SECOND_NS), &mut Bare).unwrap();
    kernel.check_invariants();
}

#[test]
fn ninety_percent_in_use_are_promoted_and_one_page_less_is_not() {
    let (mut kernel, process) = kernel();
    touch(&mut kernel, process, 0, 460);
    touch(&mut kernel, process, 1, 459);
    tick(&mut kernel, 1);
    let size =
        |kernel: &Kernel, block: u64| kernel.table(process).unwrap().leaf(Vpn(FIRST + block * 512)).unwrap().size();
    assert_eq!((size(&kernel, 0), size(&kernel, 1)), (PageSize::Huge, PageSize::Small));
    tick(&mut kernel, 100);
    assert_eq!(size(&kernel, 1), PageSize::Small, "the scan has the same threshold");
    let done = kernel.counters();
    assert_eq!((done.copied_collapse, done.faults_2m, done.faults_4k), (460, 0, 919));
    // What was given back does not count.
    kernel.madvise(process, VpnRange::new(Vpn(FIRST + 512), PageCount(9)), Advice::DontNeed, &mut Bare).unwrap();
    touch(&mut kernel, process, 1, 460);
    tick(&mut kernel, 101);
    assert_eq!((size(&kernel, 1), statistic(&kernel, "promoted_on_request")), (PageSize::Huge, 2));
}

#[test]
fn the_daemon_serves_all_requests_at_once() {
    let (mut kernel, process) = kernel();
    (0..20).for_each(|block| touch(&mut kernel, process, block, 512));
    tick(&mut kernel, 1);
    assert_eq!((statistic(&kernel, "requests"), statistic(&kernel, "promoted_on_request")), (20, 20));
}

#[test]
fn without_a_block_nothing_is_compacted_and_the_scan_finds_the_pages_later() {
    let (mut kernel, process) = kernel();
    // Another program leaves so little that a block would take the last of it.
    let hog = kernel.spawn(&mut Bare).unwrap();
    let pages = VpnRange::new(Vpn(1 << 20), PageCount(32_768));
    kernel.mmap(hog, pages, VmaFlags { advice: HugeAdvice::NoHuge, ..VmaFlags::ANONYMOUS }, &mut Bare).unwrap();
    while kernel.memory().free_frames().0 > kernel.memory().watermarks().high.0 + 512 + 200 {
        let next = pages.start + kernel.counters().faults_4k;
        kernel.fault(hog, next, true, Cpu(0), &mut Bare).unwrap();
    }
    touch(&mut kernel, process, 0, 512);
    tick(&mut kernel, 1);
    assert_eq!((kernel.counters().collapses, kernel.counters().compactions_direct), (0, 0));
    assert_eq!((statistic(&kernel, "requests"), statistic(&kernel, "promotions_without_block")), (1, 1));
    kernel.exit(hog, &mut Bare).unwrap();
    tick(&mut kernel, 9);
    assert_eq!(kernel.counters().collapses, 0, "the request is gone");
    tick(&mut kernel, 10);
    assert_eq!(statistic(&kernel, "promoted_by_scan"), 1);
}
