// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each of Linux's conditions, with a case on both of its sides.

use nestwalk_mem::{Cpu, Entry, Nanoseconds, Vpn, VpnRange};

use crate::below::Bare;
use crate::config::{KernelConfig, StartState};
use crate::counters::OsCounters;
use crate::kernel::Kernel;
use crate::kernel::madvise::Advice;
use crate::manager::ManagerConfig;
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

#[test]
fn unmapping_a_part_splits_the_page_and_frees_the_part() {
    let (mut kernel, process) = kernel(ThpConfig::default(), FREE);
    kernel.mmap(process, pages(1024, 512), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    fault(&mut kernel, process, 1024);
    let free = kernel.memory().free_frames().0;
    kernel.munmap(process, pages(1100, 10), &mut Bare).unwrap();
    // Ten pages come back, and one goes to the node that the split takes.
    assert_eq!(kernel.memory().free_frames().0, free + 10 - 1);
    assert_eq!((kernel.counters().splits, size(&kernel, process, 1024)), (1, PageSize::Small));
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
    let config = ThpConfig { enabled: Enabled::Never, defrag: Defrag::Never, khugepaged };
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
