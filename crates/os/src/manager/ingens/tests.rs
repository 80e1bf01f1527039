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
    kernel_with(IngensConfig::default())
}

fn kernel_with(ingens: IngensConfig) -> (Kernel, ProcessId) {
    let mut config = KernelConfig::new(PageCount(32_768));
    config.manager = ManagerConfig::Ingens(ingens);
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
    tick(&mut kernel, 10);
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
    tick(&mut kernel, 111);
    assert_eq!((size(&kernel, 1), statistic(&kernel, "promoted_on_request")), (PageSize::Huge, 2));
}

#[test]
fn no_request_wakes_the_daemon_and_once_awake_it_serves_all_that_come() {
    let (mut kernel, process) = kernel();
    let done = |kernel: &Kernel| (statistic(kernel, "requests"), statistic(kernel, "promoted_on_request"));
    (0..12).for_each(|block| touch(&mut kernel, process, block, 512));
    tick(&mut kernel, 9);
    assert_eq!(done(&kernel), (12, 0));
    // In so many ms it makes four, and then serves what has come meanwhile.
    kernel.tick(Nanoseconds(10 * SECOND_NS + 3 * PROMOTION.0), &mut Bare).unwrap();
    assert_eq!(done(&kernel), (12, 4));
    (12..16).for_each(|block| touch(&mut kernel, process, block, 512));
    tick(&mut kernel, 11);
    assert_eq!(done(&kernel), (16, 16));
    (16..20).for_each(|block| touch(&mut kernel, process, block, 512));
    tick(&mut kernel, 20);
    assert_eq!(done(&kernel), (20, 16), "it sleeps for ten seconds from its last promotion on");
    tick(&mut kernel, 21);
    assert_eq!(done(&kernel), (20, 20));
}

/// Another program that leaves so many frames: a block would take the last of them.
fn hog(kernel: &mut Kernel, left: u64) -> ProcessId {
    let hog = kernel.spawn(&mut Bare).unwrap();
    let pages = VpnRange::new(Vpn(1 << 20), PageCount(32_768));
    kernel.mmap(hog, pages, VmaFlags { advice: HugeAdvice::NoHuge, ..VmaFlags::ANONYMOUS }, &mut Bare).unwrap();
    let mut next = pages.start;
    while kernel.memory().free_frames().0 > kernel.memory().watermarks().high.0 + left {
        kernel.fault(hog, next, true, Cpu(0), &mut Bare).unwrap();
        next += 1;
    }
    hog
}

#[test]
fn without_a_block_nothing_is_compacted_and_the_scan_finds_the_pages_later() {
    let (mut kernel, process) = kernel();
    let hog = hog(&mut kernel, 512 + 200);
    touch(&mut kernel, process, 0, 512);
    tick(&mut kernel, 10);
    assert_eq!((kernel.counters().collapses, kernel.counters().compactions_direct), (0, 0));
    // The scan that comes after the request finds none either, and sleeps for a minute.
    assert_eq!((statistic(&kernel, "requests"), statistic(&kernel, "promotions_without_block")), (1, 2));
    kernel.exit(hog, &mut Bare).unwrap();
    tick(&mut kernel, 69);
    assert_eq!(kernel.counters().collapses, 0, "the request is gone");
    // Three scans of eight blocks come by the rest of the twenty.
    tick(&mut kernel, 100);
    assert_eq!(statistic(&kernel, "promoted_by_scan"), 1);
}

fn is_huge(kernel: &Kernel, process: ProcessId, block: u64) -> bool {
    kernel.table(process).unwrap().leaf(Vpn(FIRST + block * 512)).unwrap().size() == PageSize::Huge
}

#[test]
fn pages_touched_before_the_mapping_had_all_of_the_block_do_not_count() {
    let (mut kernel, process) = kernel();
    let heap = FIRST + 64 * 512;
    let map = |kernel: &mut Kernel, start: u64, count: u64| {
        kernel.mmap(process, VpnRange::new(Vpn(start), PageCount(count)), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    };
    map(&mut kernel, heap, 511);
    touch(&mut kernel, process, 64, 511);
    map(&mut kernel, heap + 511, 1);
    touch(&mut kernel, process, 64, 512);
    tick(&mut kernel, 100);
    assert!(!is_huge(&kernel, process, 64));
}

#[test]
fn a_child_s_memory_counts_from_its_own_faults() {
    let (mut kernel, process) = kernel();
    touch(&mut kernel, process, 0, 459);
    let child = kernel.fork(process, &mut Bare).unwrap();
    kernel.exit(process, &mut Bare).unwrap();
    (459..512).for_each(|page| drop(kernel.touch(child, Vpn(FIRST + page), true, Cpu(0), &mut Bare)));
    tick(&mut kernel, 100);
    assert!(!is_huge(&kernel, child, 0), "53 of its 512 pages count");
}

#[test]
fn samples_tell_hot_pages_from_idle_ones_and_promotions_still_know_what_was_used() {
    let (mut kernel, process) = kernel_with(IngensConfig { access_sleep_ms: 4000, ..IngensConfig::default() });
    touch(&mut kernel, process, 0, 100);
    for second in 1..=60 {
        touch(&mut kernel, process, 0, 30);
        tick(&mut kernel, second);
    }
    let counted = ["samples", "hot_pages", "idle_pages"].map(|name| statistic(&kernel, name));
    assert_eq!(counted, [15, 30, 70]);
    // A sample between the faults and the scan takes the accessed bits away.
    let hog = hog(&mut kernel, 512 + 500);
    touch(&mut kernel, process, 1, 512);
    (64..=70).for_each(|second| tick(&mut kernel, second));
    assert_eq!(statistic(&kernel, "promotions_without_block"), 2);
    kernel.exit(hog, &mut Bare).unwrap();
    tick(&mut kernel, 160);
    assert!(is_huge(&kernel, process, 1), "{:?}", kernel.manager().counters());
    let (mut kernel, process) = self::kernel();
    touch(&mut kernel, process, 0, 100);
    tick(&mut kernel, 60);
    assert_eq!(statistic(&kernel, "samples"), 0);
}

#[test]
fn the_scan_serves_the_process_with_the_most_memory_for_each_huge_page() {
    let huge_after_each_scan = |fairness| {
        let sleeps = IngensConfig { scan_sleep_ms: 3000, alloc_sleep_ms: 7000, ..IngensConfig::default() };
        let ingens = IngensConfig { access_sleep_ms: 4000, fairness, ..sleeps };
        let (mut kernel, small) = kernel_with(ingens);
        let large = kernel.spawn(&mut Bare).unwrap();
        let range = VpnRange::new(Vpn(FIRST), PageCount(20 * 512));
        kernel.mmap(large, range, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
        (0..10).for_each(|block| touch(&mut kernel, small, block, 512));
        (0..20).for_each(|block| touch(&mut kernel, large, block, 512));
        let hog = hog(&mut kernel, 300);
        // No request finds a block, and the next scan comes at 10 s.
        tick(&mut kernel, 3);
        kernel.exit(hog, &mut Bare).unwrap();
        let mut huge = Vec::new();
        for second in 4..=17 {
            touch(&mut kernel, small, 0, 10 * 512);
            touch(&mut kernel, large, 0, 20 * 512);
            tick(&mut kernel, second);
            if [11, 14, 17].contains(&second) {
                let count = |process, blocks| (0..blocks).filter(|&block| is_huge(&kernel, process, block)).count();
                huge.push((count(small, 10), count(large, 20)));
            }
        }
        huge
    };
    assert_eq!(huge_after_each_scan(true), [(0, 8), (8, 8), (8, 16)]);
    // In turn, eight blocks a scan, after the one that found none; the first process has ten more
    // that it has not touched.
    assert_eq!(huge_after_each_scan(false), [(8, 0), (9, 0), (9, 5)]);
}

#[test]
fn fairness_without_samples_is_refused() {
    let mut config = KernelConfig::new(PageCount(32_768));
    config.manager = ManagerConfig::Ingens(IngensConfig { fairness: true, ..IngensConfig::default() });
    let error = Kernel::new(&config).unwrap_err().to_string();
    assert!(error.contains("manager.fairness") && error.contains("access_sleep_ms"), "{error}");
}
