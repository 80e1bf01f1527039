// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each of Linux's conditions, with a case on both of its sides.

use nestwalk_mem::{Cpu, Entry, Nanoseconds, Vpn, VpnRange};

use crate::below::Bare;
use crate::config::{KernelConfig, StartState};
use crate::counters::OsCounters;
use crate::kernel::Kernel;
use crate::kernel::madvise::Advice;
use crate::manager::ManagerConfig;
use crate::manager::freebsd::FreeBsdConfig;
use crate::state::process::ProcessId;
use crate::state::vma::VmaFlags;

use super::*;

const FREE: StartState = StartState::Fresh;
/// No 2 MiB block is free, but compaction can make some.
const BROKEN: StartState = StartState::Fragmented { blocks_permille: 1000, frames_per_block: 2, unmovable_permille: 0 };

fn kernel(config: ThpConfig, start: StartState) -> (Kernel, ProcessId) {
    let mut all = KernelConfig::new(PageCount(16_384));
    (all.manager, all.start) = (ManagerConfig::Thp(config), start);
    let mut kernel = Kernel::new(&all).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    (kernel, process)
}

fn pages(start: u64, count: u64) -> VpnRange {
    VpnRange::new(Vpn(start), PageCount(count))
}

fn flags(advice: HugeAdvice) -> VmaFlags {
    VmaFlags { advice, ..VmaFlags::ANONYMOUS }
}

fn fault(kernel: &mut Kernel, process: ProcessId, page: u64) {
    kernel.fault(process, Vpn(page), true, Cpu(0), &mut Bare).unwrap();
}

fn size(kernel: &Kernel, process: ProcessId, page: u64) -> PageSize {
    kernel.table(process).unwrap().leaf(Vpn(page)).unwrap().size()
}

/// Counters after one fault in 2 MiB with this advice.
fn one_fault(config: ThpConfig, start: StartState, advice: HugeAdvice) -> OsCounters {
    let (mut kernel, process) = kernel(config, start);
    kernel.mmap(process, pages(1024, 512), flags(advice), &mut Bare).unwrap();
    fault(&mut kernel, process, 1300);
    kernel.check_invariants();
    *kernel.counters()
}

#[test]
fn a_first_touch_makes_a_huge_page_where_it_is_allowed() {
    use Enabled::{Always, Madvise, Never};
    use HugeAdvice::{Huge, NoHuge, None};
    let cases = [
        (Always, None, 1),
        (Always, Huge, 1),
        (Always, NoHuge, 0),
        (Madvise, None, 0),
        (Madvise, Huge, 1),
        (Madvise, NoHuge, 0),
        (Never, Huge, 0),
    ];
    for (enabled, advice, huge) in cases {
        let done = one_fault(ThpConfig { enabled, ..Default::default() }, FREE, advice);
        assert_eq!((done.faults_2m, done.faults_4k), (huge, 1 - huge), "{enabled:?}, {advice:?}");
        assert_eq!((done.zeroed_2m, done.huge_fallbacks), (huge, 0));
    }
}

#[test]
fn without_a_free_block_a_fault_does_what_defrag_says() {
    use Defrag::{Always, Defer, DeferMadvise, Madvise, Never};
    use HugeAdvice::{Huge, None};
    let cases = [
        (Always, None, 1),
        (Defer, Huge, 0),
        (DeferMadvise, None, 0),
        (DeferMadvise, Huge, 1),
        (Madvise, None, 0),
        (Madvise, Huge, 1),
        (Never, Huge, 0),
    ];
    for (defrag, advice, compacts) in cases {
        let done = one_fault(ThpConfig { defrag, ..Default::default() }, BROKEN, advice);
        assert_eq!((done.compactions_direct, done.faults_2m), (compacts, compacts), "{defrag:?}, {advice:?}");
        assert_eq!((done.huge_fallbacks, done.migrated > 0), (1 - compacts, compacts == 1));
    }
}

/// A heap that grows by 132 KiB up to 4 MiB, each time when it is full, in a process of its own.
fn grown_heap(manager: ManagerConfig) -> OsCounters {
    let mut config = KernelConfig::new(PageCount(16_384));
    config.manager = manager;
    let mut kernel = Kernel::new(&config).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    let mut end = Vpn(4096);
    kernel.brk(process, end.address(), &mut Bare).unwrap();
    for page in 4096..4096 + 1024 {
        if page == end.0 {
            end += 33;
            kernel.brk(process, end.address(), &mut Bare).unwrap();
        }
        fault(&mut kernel, process, page);
    }
    kernel.check_invariants();
    *kernel.counters()
}

#[test]
fn a_heap_that_grows_in_small_steps_gets_reservations_but_no_huge_page_at_first_touch() {
    let always = ThpConfig { enabled: Enabled::Always, ..Default::default() };
    let linux = grown_heap(ManagerConfig::Thp(always));
    assert_eq!((linux.faults_2m, linux.faults_4k, linux.promotions), (0, 1024, 0));
    let freebsd = grown_heap(ManagerConfig::FreeBsd(FreeBsdConfig::default()));
    assert_eq!((freebsd.faults_2m, freebsd.faults_4k, freebsd.promotions), (0, 1024, 2));
    // What decides is the step: of one that covers the block, Linux makes a huge page.
    assert_eq!(one_fault(always, FREE, HugeAdvice::None).faults_2m, 1);
}

#[test]
fn a_deferred_block_is_made_by_the_daemon() {
    let (mut kernel, process) = kernel(ThpConfig { defrag: Defrag::Defer, ..Default::default() }, BROKEN);
    kernel.mmap(process, pages(1024, 1024), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    fault(&mut kernel, process, 1024);
    kernel.tick(Nanoseconds(1), &mut Bare).unwrap();
    assert_eq!(kernel.counters().compactions_background, 1);
    fault(&mut kernel, process, 1536);
    assert_eq!((size(&kernel, process, 1024), size(&kernel, process, 1536)), (PageSize::Small, PageSize::Huge));
}

#[test]
fn a_mapping_that_is_short_by_a_page_has_small_pages() {
    let (mut kernel, process) = kernel(ThpConfig::default(), FREE);
    kernel.mmap(process, pages(1025, 1023), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    fault(&mut kernel, process, 1100);
    fault(&mut kernel, process, 1600);
    assert_eq!((size(&kernel, process, 1100), size(&kernel, process, 1600)), (PageSize::Small, PageSize::Huge));
    assert_eq!(kernel.counters().huge_fallbacks, 0);
}

#[test]
fn once_there_are_ptes_faults_stay_small() {
    let (mut kernel, process) = kernel(ThpConfig::default(), FREE);
    kernel.mmap(process, pages(1024, 512), flags(HugeAdvice::NoHuge), &mut Bare).unwrap();
    fault(&mut kernel, process, 1024);
    kernel.madvise(process, pages(1024, 512), Advice::HugePage, &mut Bare).unwrap();
    fault(&mut kernel, process, 1025);
    assert_eq!(size(&kernel, process, 1025), PageSize::Small);
}

/// A process with a huge page of which `range` has been unmapped, and what was free before that.
fn unmapped_in_part(range: VpnRange) -> (Kernel, ProcessId, u64) {
    let (mut kernel, process) = kernel(ThpConfig::default(), FREE);
    kernel.mmap(process, pages(1024, 512), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    fault(&mut kernel, process, 1024);
    let free = kernel.memory().free_frames().0;
    kernel.munmap(process, range, &mut Bare).unwrap();
    kernel.check_invariants();
    (kernel, process, free)
}

fn reclaim(kernel: &mut Kernel, pages: u64) -> u64 {
    kernel.reclaim(PageCount(pages), Cpu(0), &mut Bare).unwrap().0
}

#[test]
fn what_is_unmapped_of_a_huge_page_is_free_when_memory_is_short() {
    let (mut kernel, process, free) = unmapped_in_part(pages(1100, 10));
    // One page goes to the node that small leaves take.
    assert_eq!(kernel.memory().free_frames().0, free - 1);
    assert_eq!((kernel.manager().reserved(), size(&kernel, process, 1024)), (PageCount(10), PageSize::Small));
    let done = kernel.counters();
    assert_eq!((done.splits, done.splits_deferred, done.splits_whole), (1, 1, 0));
    kernel.take_invalidations().for_each(drop);
    assert_eq!(reclaim(&mut kernel, 5), 10);
    assert_eq!((kernel.memory().free_frames().0, kernel.manager().reserved()), (free - 1 + 10, PageCount(0)));
    assert_eq!((kernel.counters().splits_whole, kernel.counters().reclaimed_reserved), (1, 10));
    assert_eq!(kernel.take_invalidations().count(), 502, "each page that stays was unmapped for a moment");
    kernel.check_invariants();
}

#[test]
fn on_4_3_what_is_unmapped_of_a_huge_page_is_free_at_once() {
    let config = ThpConfig { release: Release::V4_3, ..ThpConfig::default() };
    let (mut kernel, process) = kernel(config, FREE);
    kernel.mmap(process, pages(1024, 512), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    fault(&mut kernel, process, 1024);
    let free = kernel.memory().free_frames().0;
    kernel.munmap(process, pages(1100, 10), &mut Bare).unwrap();
    kernel.check_invariants();
    // One page goes to the node that small leaves take.
    assert_eq!(kernel.memory().free_frames().0, free - 1 + 10);
    assert_eq!((kernel.manager().reserved(), kernel.manager().can_shrink()), (PageCount(0), false));
    assert_eq!((kernel.counters().splits, kernel.counters().splits_deferred), (1, 0));
    // What is left is pages like others, which compaction moves.
    let frame = kernel.table(process).unwrap().translate(Vpn(1024)).unwrap();
    assert!(!kernel.memory().is_compound(frame));
}

#[test]
fn a_huge_page_goes_whole_with_its_last_part() {
    let (mut kernel, process, free) = unmapped_in_part(pages(1024, 511));
    assert_eq!(kernel.memory().free_frames().0, free - 1);
    kernel.madvise(process, pages(1535, 1), Advice::DontNeed, &mut Bare).unwrap();
    assert_eq!(kernel.memory().free_frames().0, free - 1 + 512);
    assert_eq!((kernel.counters().splits_deferred, kernel.counters().splits_whole), (1, 0));
    assert!(!kernel.manager().can_shrink());
    kernel.check_invariants();
    fault(&mut kernel, process, 1535);
    kernel.exit(process, &mut Bare).unwrap();
    kernel.check_invariants();
    assert_eq!(kernel.memory().free_frames(), kernel.memory().frames());
}

#[test]
fn pages_given_back_are_not_had_again_from_the_huge_page() {
    let (mut kernel, process) = kernel(ThpConfig::default(), FREE);
    kernel.mmap(process, pages(1024, 512), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    fault(&mut kernel, process, 1024);
    let frame = |kernel: &Kernel| kernel.table(process).unwrap().translate(Vpn(1100)).unwrap();
    let before = frame(&kernel);
    for _ in 0..3 {
        kernel.madvise(process, pages(1100, 1), Advice::DontNeed, &mut Bare).unwrap();
        fault(&mut kernel, process, 1100);
        assert_ne!(frame(&kernel), before);
        kernel.check_invariants();
    }
    assert_eq!((kernel.manager().reserved(), kernel.counters().splits_deferred), (PageCount(1), 1));
}

#[test]
fn the_rest_of_a_huge_page_is_not_moved_before_it_is_split() {
    let (mut kernel, process, _) = unmapped_in_part(pages(1100, 436));
    let frame = kernel.table(process).unwrap().translate(Vpn(1024)).unwrap();
    let moved = |kernel: &mut Kernel| {
        let range = FrameRange::new(frame, PageCount(8));
        let had = crate::context::migrate::alloc_at(&mut kernel.state, &mut Bare, range);
        let moved = had.iter().filter(|&&had| had).count();
        kernel.state.memory.free_range(FrameRange::new(frame, PageCount(moved as u64)), Cpu(0));
        kernel.state.moved.clear();
        moved
    };
    assert_eq!(moved(&mut kernel), 0);
    reclaim(&mut kernel, 1);
    assert_eq!(moved(&mut kernel), 8);
    kernel.check_invariants();
}

/// Linux's arithmetic (`do_shrink_slab`): 463 pages wait, and a tenth of one per cent of them is
/// asked for at first. In the eleventh round 256 are split, as a real kernel did
/// (`linux/data/superpages-6.1.192.json`, `thp_split_page` of `frag100-huge-fill`).
#[test]
fn the_shrinker_is_asked_for_more_in_each_round() {
    let mut all = KernelConfig::new(PageCount(1 << 18));
    all.manager = ManagerConfig::Thp(ThpConfig::default());
    let mut kernel = Kernel::new(&all).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    let blocks = 463;
    kernel.mmap(process, pages(0, 512 * blocks), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    for block in 0..blocks {
        fault(&mut kernel, process, 512 * block);
        kernel.madvise(process, pages(512 * block, 496), Advice::DontNeed, &mut Bare).unwrap();
    }
    let split: Vec<u64> = (0..=12)
        .rev()
        .map(|priority| {
            let before = kernel.counters().splits_whole;
            let mut below = Bare;
            let (mut cx, manager) = kernel.context(Cpu(0), &mut below);
            let freed = manager.shrink(&mut cx, priority);
            let split = kernel.counters().splits_whole - before;
            assert_eq!(freed.0, 496 * split);
            split
        })
        .collect();
    assert_eq!(split, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 256, 207, 0]);
    kernel.check_invariants();
}

#[test]
fn kswapd_is_woken_at_once_for_pages_that_wait_to_be_split() {
    let (mut kernel, process, _) = unmapped_in_part(pages(1025, 511));
    assert!(!kernel.has_background_work(), "memory is not short");
    kernel.mmap(process, pages(4096, 16_384), flags(HugeAdvice::NoHuge), &mut Bare).unwrap();
    let short = (4096..).find(|&page| {
        fault(&mut kernel, process, page);
        kernel.has_background_work()
    });
    let free = kernel.memory().free_frames();
    assert!(free < kernel.memory().watermarks().low, "at page {short:?} {free:?} are free");
    assert_eq!(kernel.counters().splits_whole, 0);
    kernel.tick(Nanoseconds(1), &mut Bare).unwrap();
    // One page in the queue is not split before direct reclaim's last round.
    assert_eq!(kernel.counters().splits_whole, 0);
    let mut page = short.unwrap();
    while kernel.counters().reclaims_direct == 0 {
        page += 1;
        fault(&mut kernel, process, page);
    }
    assert_eq!((kernel.counters().splits_whole, kernel.counters().out_of_memory), (1, 0));
    kernel.check_invariants();
}

#[test]
fn a_page_that_reclaim_takes_splits_its_huge_page() {
    let mut all = KernelConfig::new(PageCount(16_384));
    (all.manager, all.swap) = (ManagerConfig::Thp(ThpConfig::default()), PageCount(1024));
    let mut kernel = Kernel::new(&all).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    kernel.mmap(process, pages(1024, 512), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    fault(&mut kernel, process, 1024);
    assert_eq!(reclaim(&mut kernel, 20), 20);
    let done = kernel.counters();
    // One more than wanted: a node is taken for the small leaves.
    assert_eq!((done.swapped_out, done.splits_whole, done.splits_deferred), (21, 1, 0));
    kernel.check_invariants();
}

#[test]
fn what_a_fork_still_maps_is_not_unmapped() {
    let (mut kernel, parent) = kernel(ThpConfig::default(), FREE);
    kernel.mmap(parent, pages(1024, 512), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    fault(&mut kernel, parent, 1024);
    let child = kernel.fork(parent, &mut Bare).unwrap();
    kernel.munmap(parent, pages(1024, 100), &mut Bare).unwrap();
    assert_eq!(kernel.manager().reserved(), PageCount(0));
    kernel.munmap(child, pages(1024, 50), &mut Bare).unwrap();
    assert_eq!(kernel.manager().reserved(), PageCount(50));
    kernel.exit(parent, &mut Bare).unwrap();
    assert_eq!(kernel.manager().reserved(), PageCount(50));
    reclaim(&mut kernel, 1);
    kernel.check_invariants();
    kernel.exit(child, &mut Bare).unwrap();
    kernel.check_invariants();
    assert_eq!(kernel.memory().free_frames(), kernel.memory().frames());
}

#[test]
fn a_collapse_frees_the_huge_page_that_it_copies_from() {
    let (mut kernel, process) = kernel(ThpConfig::default(), FREE);
    kernel.mmap(process, pages(1024, 512), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    fault(&mut kernel, process, 1024);
    let free = kernel.memory().free_frames();
    kernel.madvise(process, pages(1100, 10), Advice::DontNeed, &mut Bare).unwrap();
    kernel.tick(Nanoseconds(10 * SECOND_NS), &mut Bare).unwrap();
    assert_eq!((kernel.counters().collapses, size(&kernel, process, 1024)), (1, PageSize::Huge));
    assert_eq!((kernel.memory().free_frames(), kernel.manager().reserved()), (free, PageCount(0)));
    kernel.check_invariants();
}

#[test]
fn a_store_to_a_shared_huge_page_splits_it_and_copies_four_kib() {
    let (mut kernel, parent) = kernel(ThpConfig::default(), FREE);
    kernel.mmap(parent, pages(1024, 512), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    fault(&mut kernel, parent, 1024);
    let child = kernel.fork(parent, &mut Bare).unwrap();
    assert_eq!(size(&kernel, child, 1024), PageSize::Huge);
    fault(&mut kernel, child, 1200);
    assert_eq!((size(&kernel, child, 1200), size(&kernel, parent, 1200)), (PageSize::Small, PageSize::Huge));
    assert_eq!((kernel.counters().splits, kernel.counters().copied_4k), (1, 1));
    kernel.exit(child, &mut Bare).unwrap();
    fault(&mut kernel, parent, 1300);
    assert_eq!(size(&kernel, parent, 1300), PageSize::Huge, "alone with it again, the parent keeps it whole");
    assert_eq!(kernel.counters().faults_reused, 1);
    kernel.check_invariants();
}

/// A process with `mapped` of the 512 pages of each of `blocks` blocks, all small.
fn small_pages(khugepaged: KhugepagedConfig, mapped: u64, blocks: u64) -> (Kernel, ProcessId) {
    let (mut kernel, process) = kernel(ThpConfig { khugepaged, ..Default::default() }, FREE);
    let range = pages(1024, 512 * blocks);
    kernel.mmap(process, range, flags(HugeAdvice::NoHuge), &mut Bare).unwrap();
    for block in 0..blocks {
        (0..mapped).for_each(|i| fault(&mut kernel, process, 1024 + 512 * block + i));
    }
    kernel.madvise(process, range, Advice::HugePage, &mut Bare).unwrap();
    (kernel, process)
}

const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn khugepaged_collapses_up_to_max_ptes_none() {
    for (mapped, huge) in [(504, PageSize::Small), (505, PageSize::Huge)] {
        let config = KhugepagedConfig { max_ptes_none: 7, ..Default::default() };
        let (mut kernel, process) = small_pages(config, mapped, 1);
        kernel.tick(Nanoseconds(10 * SECOND_NS - 1), &mut Bare).unwrap();
        assert_eq!(size(&kernel, process, 1024), PageSize::Small, "it sleeps");
        kernel.tick(Nanoseconds(10 * SECOND_NS), &mut Bare).unwrap();
        assert_eq!(size(&kernel, process, 1024), huge, "{mapped} pages mapped");
        let done = kernel.counters();
        assert_eq!((done.pages_scanned, done.copied_collapse), (512, if huge == PageSize::Huge { mapped } else { 0 }));
        kernel.check_invariants();
    }
}

#[test]
fn khugepaged_looks_at_so_many_pages_a_scan() {
    let config = KhugepagedConfig { pages_to_scan: 1024, ..Default::default() };
    let (mut kernel, _) = small_pages(config, 1, 7);
    let collapsed: Vec<u64> = (1..=5)
        .map(|scan| {
            kernel.tick(Nanoseconds(scan * 10 * SECOND_NS), &mut Bare).unwrap();
            kernel.counters().collapses
        })
        .collect();
    assert_eq!(collapsed, [2, 4, 6, 7, 7]);
    kernel.check_invariants();
}

#[test]
fn khugepaged_leaves_pages_alone_that_nobody_uses() {
    let (mut kernel, process) = small_pages(KhugepagedConfig::default(), 512, 1);
    let table = kernel.table_mut(process).unwrap();
    for page in 1024..1536 {
        table.update(Vpn(page), |entry| entry.without(Entry::ACCESSED));
    }
    kernel.tick(Nanoseconds(10 * SECOND_NS), &mut Bare).unwrap();
    assert_eq!(kernel.counters().collapses, 0);
    kernel.table_mut(process).unwrap().update(Vpn(1400), |entry| entry.with(Entry::ACCESSED));
    kernel.tick(Nanoseconds(20 * SECOND_NS), &mut Bare).unwrap();
    assert_eq!(kernel.counters().collapses, 1);
}

#[test]
fn a_collapse_tells_cores_to_forget_pages_and_nodes() {
    let (mut kernel, process) = small_pages(KhugepagedConfig::default(), 512, 1);
    kernel.take_invalidations().for_each(drop);
    kernel.tick(Nanoseconds(10 * SECOND_NS), &mut Bare).unwrap();
    let told: Vec<_> = kernel.take_invalidations().collect();
    let scope = crate::state::invalidation::Scope::Pages(pages(1024, 512));
    assert_eq!(told, [crate::state::invalidation::Invalidation { process, scope, nodes: true }]);
}

#[test]
fn khugepaged_copies_up_to_max_ptes_shared() {
    for (shared, collapses) in [(8, 0), (7, 1)] {
        let config = KhugepagedConfig { max_ptes_shared: 7, ..Default::default() };
        let (mut kernel, parent) = small_pages(config, 512, 1);
        let child = kernel.fork(parent, &mut Bare).unwrap();
        (shared..512).for_each(|i| fault(&mut kernel, parent, 1024 + i));
        assert_eq!(kernel.counters().faults_copied, 512 - shared);
        kernel.tick(Nanoseconds(10 * SECOND_NS), &mut Bare).unwrap();
        assert_eq!(kernel.counters().collapses, collapses, "{shared} pages shared");
        let sizes = (size(&kernel, parent, 1024), size(&kernel, child, 1024));
        let huge = if collapses == 1 { PageSize::Huge } else { PageSize::Small };
        assert_eq!(sizes, (huge, PageSize::Small), "the child keeps what it shared");
        kernel.check_invariants();
    }
}

/// A process with 512 small pages of one block, of which some are in swap, and how many.
fn swapped_pages(khugepaged: KhugepagedConfig) -> (Kernel, ProcessId, u64) {
    let mut all = KernelConfig::new(PageCount(16_384));
    all.manager = ManagerConfig::Thp(ThpConfig { khugepaged, ..Default::default() });
    all.swap = PageCount(1024);
    let mut kernel = Kernel::new(&all).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    kernel.mmap(process, pages(1024, 512), flags(HugeAdvice::NoHuge), &mut Bare).unwrap();
    (1024..1536).for_each(|page| fault(&mut kernel, process, page));
    kernel.madvise(process, pages(1024, 512), Advice::HugePage, &mut Bare).unwrap();
    kernel.reclaim(PageCount(20), Cpu(0), &mut Bare).unwrap();
    // Reclaim has taken the accessed bits: one page is used again.
    let swapped = kernel.counters().swapped_out;
    kernel.table_mut(process).unwrap().update(Vpn(1535), |entry| entry.with(Entry::ACCESSED));
    (kernel, process, swapped)
}

#[test]
fn khugepaged_reads_back_up_to_max_ptes_swap() {
    let swapped = swapped_pages(KhugepagedConfig::default()).2 as u16;
    assert!((1..64).contains(&swapped), "{swapped}");
    for (max_ptes_swap, collapses) in [(swapped - 1, 0), (swapped, 1)] {
        let (mut kernel, process, _) = swapped_pages(KhugepagedConfig { max_ptes_swap, ..Default::default() });
        kernel.tick(Nanoseconds(10 * SECOND_NS), &mut Bare).unwrap();
        assert_eq!(kernel.counters().collapses, collapses, "{swapped} pages in swap, {max_ptes_swap} may be");
        let (huge, left) = if collapses == 1 { (PageSize::Huge, 0) } else { (PageSize::Small, u64::from(swapped)) };
        assert_eq!((size(&kernel, process, 1535), kernel.state.swap.used), (huge, PageCount(left)));
        kernel.check_invariants();
    }
}

#[test]
fn madv_collapse_asks_neither_for_the_setting_nor_for_limits_and_compacts() {
    let khugepaged = KhugepagedConfig { max_ptes_none: 0, ..Default::default() };
    let config = ThpConfig { enabled: Enabled::Never, defrag: Defrag::Never, khugepaged, ..Default::default() };
    let (mut kernel, process) = kernel(config, BROKEN);
    kernel.mmap(process, pages(1024, 1024), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    fault(&mut kernel, process, 1300);
    kernel.tick(Nanoseconds(100 * SECOND_NS), &mut Bare).unwrap();
    assert_eq!(size(&kernel, process, 1300), PageSize::Small, "neither the fault nor the daemon may");
    let made = kernel.collapse_range(process, pages(1024, 1024), &mut Bare).unwrap();
    assert_eq!(made, PageCount(512), "of the second block nothing is mapped");
    assert_eq!(size(&kernel, process, 1300), PageSize::Huge);
    let done = kernel.counters();
    assert_eq!((done.collapses, done.compactions_direct, done.copied_collapse), (1, 1, 1));
    assert!(kernel.table(process).unwrap().leaf(Vpn(1536)).is_none());
    kernel.check_invariants();
}

/// 64 MiB of which all but 4 MiB are page cache: so little is free that compaction is not tried.
const CACHED: StartState =
    StartState::Fragmented { blocks_permille: 1000, frames_per_block: 480, unmovable_permille: 0 };

#[test]
fn a_fault_reclaims_for_a_block_where_the_program_has_asked_for_huge_pages() {
    use Defrag::{Always, Defer, DeferMadvise, Madvise, Never};
    use HugeAdvice::{Huge, None};
    let cases = [
        // Too little is free to compact, and that is the end of it (`__GFP_NORETRY`).
        (Always, None, 0),
        (Always, Huge, 1),
        (Defer, Huge, 0),
        (DeferMadvise, None, 0),
        (DeferMadvise, Huge, 1),
        (Madvise, None, 0),
        (Madvise, Huge, 1),
        (Never, Huge, 0),
    ];
    for (defrag, advice, reclaims) in cases {
        let done = one_fault(ThpConfig { defrag, ..Default::default() }, CACHED, advice);
        assert_eq!((done.reclaims_direct, done.faults_2m), (reclaims, reclaims), "{defrag:?}, {advice:?}");
        assert_eq!((done.huge_fallbacks, done.reclaimed_clean > 0), (1 - reclaims, reclaims == 1));
        assert_eq!((done.out_of_memory, done.compactions_failed), (0, 0));
    }
}

#[test]
fn a_fault_that_reclaims_in_vain_takes_a_small_page() {
    let (mut kernel, process) = kernel(ThpConfig { defrag: Defrag::Always, ..Default::default() }, FREE);
    kernel.mmap(process, pages(0, 16_000), flags(HugeAdvice::NoHuge), &mut Bare).unwrap();
    let least = kernel.memory().watermarks().min.0 + 400;
    let mut page = 0;
    while kernel.memory().free_frames().0 > least {
        fault(&mut kernel, process, page);
        page += 1;
    }
    kernel.mmap(process, pages(16_384, 1024), flags(HugeAdvice::Huge), &mut Bare).unwrap();
    let before = *kernel.counters();
    fault(&mut kernel, process, 16_384);
    let done = kernel.counters().since(&before);
    assert_eq!((done.reclaims_direct, done.huge_fallbacks, done.faults_4k, done.out_of_memory), (1, 1, 1, 0));
    assert_eq!(size(&kernel, process, 16_384), PageSize::Small);
    kernel.check_invariants();
}

#[test]
fn where_memory_is_plenty_nothing_is_reclaimed_for_a_block() {
    let start = StartState::Fragmented { blocks_permille: 1000, frames_per_block: 2, unmovable_permille: 1000 };
    for advice in [HugeAdvice::None, HugeAdvice::Huge] {
        let done = one_fault(ThpConfig { defrag: Defrag::Always, ..Default::default() }, start, advice);
        assert_eq!((done.reclaims_direct, done.compactions_failed, done.huge_fallbacks), (0, 1, 1));
    }
}

fn load(kernel: &mut Kernel, process: ProcessId, page: u64) {
    kernel.fault(process, Vpn(page), false, Cpu(0), &mut Bare).unwrap();
}

fn counter(kernel: &Kernel, name: &str) -> u64 {
    kernel.manager().counters().iter().find(|counter| counter.path == name).and_then(|counter| counter.value).unwrap()
}

#[test]
fn a_load_of_what_was_never_stored_maps_the_huge_page_of_zeroes() {
    for use_zero_page in [false, true] {
        let (mut kernel, process) = kernel(ThpConfig { use_zero_page, ..Default::default() }, FREE);
        kernel.mmap(process, pages(1024, 1024), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
        let free = kernel.memory().free_frames().0;
        for page in [1024, 1536] {
            load(&mut kernel, process, page);
            assert_eq!(size(&kernel, process, page), PageSize::Huge);
        }
        let blocks = if use_zero_page { 1 } else { 2 };
        // Two nodes above the leaves.
        assert_eq!(kernel.memory().free_frames().0, free - 2 - 512 * blocks);
        assert_eq!((kernel.counters().faults_2m, kernel.counters().zeroed_2m), (2, blocks));
        let zero = u64::from(use_zero_page);
        assert_eq!(counter(&kernel, "zero_page_faults"), 2 * zero);
        assert_eq!(counter(&kernel, "zero_page_allocations"), zero);
        kernel.check_invariants();
    }
}

/// A process that has loaded from 2 MiB of zeroes, and then stored to one page.
fn stored_to_zeroes() -> (Kernel, ProcessId) {
    let (mut kernel, process) = kernel(ThpConfig { use_zero_page: true, ..Default::default() }, FREE);
    kernel.mmap(process, pages(1024, 512), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    load(&mut kernel, process, 1024);
    fault(&mut kernel, process, 1100);
    kernel.check_invariants();
    (kernel, process)
}

#[test]
fn a_store_to_zeroes_makes_one_small_page_and_the_rest_stay_zeroes() {
    let (mut kernel, process) = stored_to_zeroes();
    let zeroes = |kernel: &Kernel| {
        let table = kernel.table(process).unwrap();
        (1024..1536).filter(|&page| kernel.state.is_zero(table.translate(Vpn(page)).unwrap())).count()
    };
    assert_eq!((size(&kernel, process, 1100), zeroes(&kernel)), (PageSize::Small, 511));
    let done = *kernel.counters();
    // The nodes are zeroed, too.
    assert_eq!((done.splits, done.copied_4k, done.zeroed_4k - done.nodes_made), (1, 0, 1));
    fault(&mut kernel, process, 1101);
    assert_eq!(zeroes(&kernel), 510);
    kernel.exit(process, &mut Bare).unwrap();
    kernel.check_invariants();
}

#[test]
fn zeroes_are_shared_by_a_fork_and_never_written() {
    let (mut kernel, parent) = stored_to_zeroes();
    let child = kernel.fork(parent, &mut Bare).unwrap();
    kernel.exit(parent, &mut Bare).unwrap();
    (1024..1536).for_each(|page| fault(&mut kernel, child, page));
    let table = kernel.table(child).unwrap();
    assert!((1024..1536).all(|page| !kernel.state.is_zero(table.translate(Vpn(page)).unwrap())));
    kernel.check_invariants();
}

#[test]
fn khugepaged_takes_zeroes_for_missing_pages() {
    let (mut kernel, process) = stored_to_zeroes();
    kernel.tick(Nanoseconds(10 * SECOND_NS), &mut Bare).unwrap();
    let done = kernel.counters();
    assert_eq!((done.collapses, done.copied_collapse), (1, 1));
    assert_eq!(size(&kernel, process, 1100), PageSize::Huge);
    kernel.check_invariants();
}

#[test]
fn the_huge_page_of_zeroes_goes_when_memory_is_short_and_nothing_maps_it() {
    let (mut kernel, process) = stored_to_zeroes();
    reclaim(&mut kernel, 100);
    assert!(kernel.state.zero_block.is_some(), "it is mapped");
    kernel.exit(process, &mut Bare).unwrap();
    assert_eq!(reclaim(&mut kernel, 100), 512);
    assert_eq!(kernel.memory().free_frames(), kernel.memory().frames());
    let process = kernel.spawn(&mut Bare).unwrap();
    kernel.mmap(process, pages(1024, 512), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    load(&mut kernel, process, 1024);
    assert_eq!(counter(&kernel, "zero_page_allocations"), 2);
    kernel.check_invariants();
}
