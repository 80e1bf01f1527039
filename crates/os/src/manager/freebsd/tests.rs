// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each rule of `vm_reserv.c` and of the pmap's promotion, with a case on both of its sides.

use nestwalk_mem::{Cpu, Nanoseconds, VpnRange};

use crate::below::Bare;
use crate::config::{KernelConfig, StartState};
use crate::kernel::Kernel;
use crate::manager::ManagerConfig;
use crate::state::vma::{VmaFlags, VmaKind};

use super::*;

/// A multiple of 512.
const FIRST: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;

fn kernel(memory: u64, start: StartState) -> (Kernel, ProcessId) {
    let mut config = KernelConfig::new(PageCount(memory));
    (config.manager, config.start) = (ManagerConfig::FreeBsd(FreeBsdConfig::default()), start);
    let mut kernel = Kernel::new(&config).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    (kernel, process)
}

fn map(kernel: &mut Kernel, process: ProcessId, start: u64, count: u64) {
    let range = VpnRange::new(Vpn(start), PageCount(count));
    kernel.mmap(process, range, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
}

fn touch(kernel: &mut Kernel, process: ProcessId, page: u64, store: bool) {
    kernel.touch(process, Vpn(page), store, Cpu(0), &mut Bare).unwrap();
}

fn fill(kernel: &mut Kernel, process: ProcessId, start: u64, count: u64) {
    (start..start + count).for_each(|page| touch(kernel, process, page, true));
}

fn leaf(kernel: &Kernel, process: ProcessId, page: u64) -> (PageSize, Frame) {
    let leaf = kernel.table(process).unwrap().leaf(Vpn(page)).unwrap();
    (leaf.size(), leaf.frame_of(Vpn(page)))
}

fn statistic(kernel: &Kernel, name: &str) -> u64 {
    nestwalk_mem::counters::value(&kernel.manager().counters(), name)
}

#[test]
fn the_512th_page_makes_a_superpage_of_pages_that_stay_where_they_are() {
    let (mut kernel, process) = kernel(16_384, StartState::Fresh);
    map(&mut kernel, process, FIRST, 1024);
    // In no order: the place of a page is its own from the beginning.
    let pages: Vec<u64> = (0..512).map(|n| FIRST + n * 37 % 512).collect();
    for &page in &pages[..511] {
        touch(&mut kernel, process, page, true);
        assert_eq!(leaf(&kernel, process, page).0, PageSize::Small);
    }
    assert_eq!(kernel.manager().reserved(), PageCount(1));
    let before: Vec<Frame> = pages[..511].iter().map(|&page| leaf(&kernel, process, page).1).collect();
    touch(&mut kernel, process, pages[511], true);
    assert!(before.iter().zip(&pages).all(|(&frame, &page)| leaf(&kernel, process, page) == (PageSize::Huge, frame)));
    let done = kernel.counters();
    assert_eq!((done.faults_4k, done.promotions, done.copied_collapse), (512, 1, 0));
    assert_eq!((kernel.manager().reserved(), statistic(&kernel, "reservations")), (PageCount(0), 1));
    kernel.check_invariants();
}

#[test]
fn a_heap_grows_into_a_reservation_but_none_begins_before_the_mapping() {
    let (mut kernel, process) = kernel(16_384, StartState::Fresh);
    map(&mut kernel, process, FIRST, 100);
    fill(&mut kernel, process, FIRST, 100);
    assert_eq!(kernel.manager().reserved(), PageCount(412), "the window reaches beyond the mapping's end");
    map(&mut kernel, process, FIRST + 100, 412);
    fill(&mut kernel, process, FIRST + 100, 412);
    assert_eq!((leaf(&kernel, process, FIRST).0, statistic(&kernel, "reservations")), (PageSize::Huge, 1));
    map(&mut kernel, process, FIRST + 2049, 511);
    touch(&mut kernel, process, FIRST + 2100, true);
    assert_eq!((kernel.manager().reserved(), statistic(&kernel, "reservations")), (PageCount(0), 1));
    kernel.check_invariants();
}

#[test]
fn a_mapping_of_another_kind_gets_single_pages() {
    let (mut kernel, process) = kernel(16_384, StartState::Fresh);
    let flags = VmaFlags { kind: VmaKind::File, ..VmaFlags::ANONYMOUS };
    kernel.mmap(process, VpnRange::new(Vpn(FIRST), PageCount(512)), flags, &mut Bare).unwrap();
    fill(&mut kernel, process, FIRST, 512);
    assert_eq!((statistic(&kernel, "reservations"), kernel.counters().promotions), (0, 0));
}

#[test]
fn a_partial_unmap_demotes_and_the_frame_waits_for_the_page_to_come_back() {
    let (mut kernel, process) = kernel(16_384, StartState::Fresh);
    map(&mut kernel, process, FIRST, 512);
    fill(&mut kernel, process, FIRST, 512);
    let before = leaf(&kernel, process, FIRST + 7);
    let gone = VpnRange::new(Vpn(FIRST + 7), PageCount(1));
    kernel.munmap(process, gone, &mut Bare).unwrap();
    assert_eq!((leaf(&kernel, process, FIRST).0, kernel.counters().splits), (PageSize::Small, 1));
    assert_eq!(kernel.manager().reserved(), PageCount(1));
    kernel.check_invariants();
    map(&mut kernel, process, FIRST + 7, 1);
    touch(&mut kernel, process, FIRST + 7, true);
    assert_eq!((leaf(&kernel, process, FIRST + 7), kernel.counters().promotions), (before, 2));
    kernel.check_invariants();
}

#[test]
fn a_part_that_becomes_read_only_demotes() {
    let (mut kernel, process) = kernel(16_384, StartState::Fresh);
    map(&mut kernel, process, FIRST, 512);
    fill(&mut kernel, process, FIRST, 512);
    let part = VpnRange::new(Vpn(FIRST), PageCount(3));
    kernel.mprotect(process, part, false, &mut Bare).unwrap();
    assert_eq!(leaf(&kernel, process, FIRST + 9).0, PageSize::Small);
    kernel.mprotect(process, part, true, &mut Bare).unwrap();
    fill(&mut kernel, process, FIRST, 2);
    assert_eq!(leaf(&kernel, process, FIRST + 9).0, PageSize::Small, "one page is read-only still");
    touch(&mut kernel, process, FIRST + 2, true);
    assert_eq!(leaf(&kernel, process, FIRST + 9).0, PageSize::Huge);
    kernel.check_invariants();
}

#[test]
fn pages_that_do_not_agree_are_promoted_when_the_last_clean_one_is_stored_to() {
    let (mut kernel, process) = kernel(16_384, StartState::Fresh);
    map(&mut kernel, process, FIRST, 512);
    fill(&mut kernel, process, FIRST, 500);
    (500..512).for_each(|page| touch(&mut kernel, process, FIRST + page, false));
    assert_eq!((statistic(&kernel, "promotions_failed_mixed"), kernel.counters().promotions), (1, 0));
    for page in 500..511 {
        touch(&mut kernel, process, FIRST + page, true);
        assert_eq!(leaf(&kernel, process, FIRST).0, PageSize::Small);
    }
    touch(&mut kernel, process, FIRST + 511, true);
    assert_eq!((leaf(&kernel, process, FIRST).0, kernel.counters().faults_reused), (PageSize::Huge, 12));
    kernel.check_invariants();
}

#[test]
fn pages_that_were_only_read_agree() {
    let (mut kernel, process) = kernel(16_384, StartState::Fresh);
    map(&mut kernel, process, FIRST, 512);
    (0..512).for_each(|page| touch(&mut kernel, process, FIRST + page, false));
    let leaf = kernel.table(process).unwrap().leaf(Vpn(FIRST)).unwrap();
    assert!(leaf.size() == PageSize::Huge && !leaf.entry.has(Entry::DIRTY) && leaf.entry.has(Entry::WRITABLE));
}

#[test]
fn pressure_breaks_what_has_not_changed_for_longest_and_leaves_its_pages() {
    let (mut kernel, process) = kernel(16_384, StartState::Fresh);
    map(&mut kernel, process, FIRST, 4 * 512);
    for block in 0..4 {
        touch(&mut kernel, process, FIRST + block * 512, true);
        kernel.tick(Nanoseconds((block + 1) * SECOND_NS), &mut Bare).unwrap();
    }
    // The first one changes again, so the second is next.
    touch(&mut kernel, process, FIRST + 1, true);
    kernel.reclaim(PageCount(1), Cpu(0), &mut Bare).unwrap();
    assert_eq!((statistic(&kernel, "broken_under_pressure"), kernel.counters().reclaimed_reserved), (1, 511));
    let reserved = kernel.manager().reserved();
    touch(&mut kernel, process, FIRST + 513, true);
    assert_eq!(kernel.manager().reserved(), reserved, "the second block's pages come from elsewhere now");
    for block in [0, 2, 3] {
        let first = leaf(&kernel, process, FIRST + block * 512).1;
        touch(&mut kernel, process, FIRST + block * 512 + 5, true);
        assert_eq!(leaf(&kernel, process, FIRST + block * 512 + 5).1, first + 5);
    }
    assert_eq!(statistic(&kernel, "reservations"), 4, "none is made where pages are in use");
    kernel.check_invariants();
}

#[test]
fn without_a_free_block_pages_are_single() {
    let broken = StartState::Fragmented { blocks_permille: 1000, frames_per_block: 2, unmovable_permille: 0 };
    let (mut kernel, process) = kernel(16_384, broken);
    map(&mut kernel, process, FIRST, 512);
    fill(&mut kernel, process, FIRST, 512);
    let done = kernel.counters();
    assert_eq!((done.promotions, done.huge_fallbacks, done.compactions_direct), (0, 1, 0));
}

#[test]
fn what_a_child_shares_is_its_own_when_the_parent_has_gone() {
    let (mut kernel, parent) = kernel(16_384, StartState::Fresh);
    let free = kernel.memory().free_frames().0;
    map(&mut kernel, parent, FIRST, 1024);
    fill(&mut kernel, parent, FIRST, 600);
    let child = kernel.fork(parent, &mut Bare).unwrap();
    fill(&mut kernel, parent, FIRST + 100, 5);
    fill(&mut kernel, child, FIRST + 600, 5);
    kernel.check_invariants();
    kernel.exit(parent, &mut Bare).unwrap();
    assert_eq!(kernel.manager().reserved(), PageCount(0));
    kernel.check_invariants();
    fill(&mut kernel, child, FIRST, 1024);
    kernel.check_invariants();
    kernel.exit(child, &mut Bare).unwrap();
    assert_eq!(kernel.memory().free_frames().0, free + 1, "the root of the first table has gone, too");
}

/// A process that maps `count` pages of a file of 1124 pages from `start` on.
fn map_file(kernel: &mut Kernel, start: u64, count: u64) -> ProcessId {
    let file = kernel.open_file(crate::FileName(7), PageCount(1124));
    let process = kernel.spawn(&mut Bare).unwrap();
    let kind = VmaKind::Mapped(FileView::new(file, false, Vpn(start), 0));
    let flags = VmaFlags { kind, ..VmaFlags::ANONYMOUS };
    kernel.mmap(process, VpnRange::new(Vpn(start), PageCount(count)), flags, &mut Bare).unwrap();
    process
}

fn loads(kernel: &mut Kernel, process: ProcessId, start: u64, count: u64) {
    (start..start + count).for_each(|page| touch(kernel, process, page, false));
}

#[test]
fn two_mebibytes_of_a_file_become_a_superpage_and_the_next_process_maps_it_at_once() {
    for (manager, huge) in [(ManagerConfig::FreeBsd(FreeBsdConfig::default()), true), (ManagerConfig::Linux4k, false)] {
        let mut config = KernelConfig::new(PageCount(16_384));
        config.manager = manager;
        let mut kernel = Kernel::new(&config).unwrap();
        let one = map_file(&mut kernel, FIRST, 1124);
        // The 16 pages around each are mapped with it: the last of these faults maps up to 495.
        loads(&mut kernel, one, FIRST, 490);
        assert_eq!(leaf(&kernel, one, FIRST).0, PageSize::Small);
        loads(&mut kernel, one, FIRST + 490, 634);
        let sizes = |kernel: &Kernel, of| [0, 600, 1100].map(|page| leaf(kernel, of, FIRST + page).0 == PageSize::Huge);
        assert_eq!(sizes(&kernel, one), [huge, huge, false], "the file's end is no whole block");
        let before = *kernel.counters();
        let two = map_file(&mut kernel, FIRST, 1124);
        loads(&mut kernel, two, FIRST, 1124);
        assert_eq!(sizes(&kernel, two), [huge, huge, false]);
        let done = kernel.counters().since(&before);
        let around = 1124_u64.div_ceil(16);
        assert_eq!(done.faults_file, if huge { 2 + 100_u64.div_ceil(16) } else { around });
        kernel.check_invariants();
        if !huge {
            continue;
        }
        assert_eq!((statistic(&kernel, "file_reservations"), statistic(&kernel, "file_superpages_mapped")), (2, 2));
        // A store to a private mapping splits the leaf and copies one page.
        touch(&mut kernel, two, FIRST + 5, true);
        assert_eq!(leaf(&kernel, two, FIRST + 6), (PageSize::Small, leaf(&kernel, one, FIRST + 6).1));
        assert_eq!(leaf(&kernel, one, FIRST + 5).0, PageSize::Huge);
        kernel.check_invariants();
        kernel.exit(two, &mut Bare).unwrap();
        kernel.exit(one, &mut Bare).unwrap();
        assert_eq!(kernel.cached(), PageCount(1124));
        kernel.reclaim(PageCount(16_384), Cpu(0), &mut Bare).unwrap();
        assert_eq!((kernel.cached(), kernel.manager().reserved()), (PageCount(0), PageCount(0)));
        kernel.check_invariants();
    }
}

#[test]
fn a_file_that_is_mapped_askew_or_in_part_stays_small() {
    for (start, count) in [(FIRST + 1, 1124), (FIRST, 511)] {
        let (mut kernel, _) = kernel(16_384, StartState::Fresh);
        let process = map_file(&mut kernel, start, count);
        let file = kernel.open_file(crate::FileName(7), PageCount(1124));
        kernel.read_file(process, file, 0..1124, &mut Bare).unwrap();
        loads(&mut kernel, process, start, count);
        assert!((0..count).all(|page| leaf(&kernel, process, start + page).0 == PageSize::Small), "{start} {count}");
        assert_eq!(statistic(&kernel, "file_reservations"), 2, "the cache has its blocks all the same");
        kernel.check_invariants();
    }
}

#[test]
fn a_superpage_of_a_file_is_used_as_a_whole_and_goes_page_by_page() {
    let (mut kernel, _) = kernel(16_384, StartState::Fresh);
    let process = map_file(&mut kernel, FIRST, 1124);
    loads(&mut kernel, process, FIRST, 1124);
    // All is in use: the first time round no page goes but the second time.
    kernel.reclaim(PageCount(100), Cpu(0), &mut Bare).unwrap();
    assert_eq!(kernel.cached(), PageCount(1023), "and one for the table node of the split");
    assert_eq!(kernel.counters().splits, 1);
    kernel.check_invariants();
    // In use again, as the hardware would mark it: what is not, goes first.
    loads(&mut kernel, process, FIRST + 512, 1);
    kernel.reclaim(PageCount(400), Cpu(0), &mut Bare).unwrap();
    assert_eq!(leaf(&kernel, process, FIRST + 512).0, PageSize::Huge);
    assert_eq!(kernel.cached(), PageCount(623));
    kernel.check_invariants();
}

/// A kernel with the lower level, on a machine whose PTEs have a contiguous bit.
fn two_levels() -> (Kernel, ProcessId) {
    let mut config = KernelConfig::new(PageCount(16_384));
    (config.manager, config.contiguous) = (ManagerConfig::FreeBsd(FreeBsdConfig { promote_64k: true }), true);
    let mut kernel = Kernel::new(&config).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    map(&mut kernel, process, FIRST, 512);
    (kernel, process)
}

/// The first pages, from [`FIRST`] on, of the 64 KiB that have the contiguous bit.
fn blocks(kernel: &Kernel, process: ProcessId) -> Vec<u64> {
    kernel.check_invariants();
    let table = kernel.table(process).unwrap();
    (0..512).step_by(16).filter(|&page| table.is_contiguous(Vpn(FIRST + page))).collect()
}

#[test]
fn the_16th_page_promotes_64_kib_in_place_and_the_512th_all() {
    let (mut kernel, process) = two_levels();
    // In no order, and another 64 KiB between.
    let pages: Vec<u64> = (0..16).map(|n| 48 + n * 5 % 16).collect();
    for &page in &pages[..15] {
        touch(&mut kernel, process, FIRST + page, true);
        touch(&mut kernel, process, FIRST + 300, true);
    }
    assert!(blocks(&kernel, process).is_empty());
    let before: Vec<Frame> = pages[..15].iter().map(|&page| leaf(&kernel, process, FIRST + page).1).collect();
    touch(&mut kernel, process, FIRST + pages[15], true);
    assert_eq!(blocks(&kernel, process), [48]);
    let in_place = |(&frame, &page): (&Frame, &u64)| leaf(&kernel, process, FIRST + page) == (PageSize::Small, frame);
    assert!(before.iter().zip(&pages).all(in_place));
    assert_eq!((statistic(&kernel, "promotions_64k"), kernel.counters().shootdown_pages), (1, 16));
    fill(&mut kernel, process, FIRST, 512);
    assert_eq!((leaf(&kernel, process, FIRST).0, statistic(&kernel, "promotions_64k")), (PageSize::Huge, 32));
    assert_eq!((kernel.counters().promotions, kernel.counters().faults_4k), (1, 512));
    kernel.check_invariants();
}

#[test]
fn the_lower_level_is_off_by_default_and_a_file_has_none() {
    let mut config = KernelConfig::new(PageCount(16_384));
    (config.manager, config.contiguous) = (ManagerConfig::FreeBsd(FreeBsdConfig::default()), true);
    let mut kernel = Kernel::new(&config).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    map(&mut kernel, process, FIRST, 512);
    fill(&mut kernel, process, FIRST, 511);
    assert!(blocks(&kernel, process).is_empty());
    assert!(kernel.manager().counters().iter().all(|counter| counter.path != "promotions_64k"));
    let (mut kernel, _) = two_levels();
    let process = map_file(&mut kernel, FIRST, 1124);
    loads(&mut kernel, process, FIRST, 400);
    assert!(blocks(&kernel, process).is_empty());
}

#[test]
fn sixteen_pages_that_do_not_agree_are_promoted_when_the_last_clean_one_is_stored_to() {
    let (mut kernel, process) = two_levels();
    fill(&mut kernel, process, FIRST, 14);
    // Pages of the next 64 KiB, which are clean and stay as they are.
    (16..20).for_each(|page| touch(&mut kernel, process, FIRST + page, false));
    (14..16).for_each(|page| touch(&mut kernel, process, FIRST + page, false));
    assert_eq!((statistic(&kernel, "promotions_failed_mixed"), statistic(&kernel, "promotions_64k")), (1, 0));
    touch(&mut kernel, process, FIRST + 14, true);
    assert!(blocks(&kernel, process).is_empty());
    touch(&mut kernel, process, FIRST + 15, true);
    assert_eq!((blocks(&kernel, process), kernel.counters().faults_reused), (vec![0], 2));
    touch(&mut kernel, process, FIRST + 16, true);
    assert_eq!(kernel.counters().faults_reused, 2, "that one was not protected");
}

#[test]
fn a_page_that_goes_demotes_64_kib_and_its_return_promotes_them_again() {
    let (mut kernel, process) = two_levels();
    fill(&mut kernel, process, FIRST, 32);
    assert_eq!(blocks(&kernel, process), [0, 16]);
    kernel.munmap(process, VpnRange::new(Vpn(FIRST + 3), PageCount(1)), &mut Bare).unwrap();
    assert_eq!((blocks(&kernel, process), kernel.manager().reserved()), (vec![16], PageCount(481)));
    map(&mut kernel, process, FIRST + 3, 1);
    touch(&mut kernel, process, FIRST + 3, true);
    assert_eq!((blocks(&kernel, process), statistic(&kernel, "promotions_64k")), (vec![0, 16], 3));
    // A mapping that ends within 64 KiB has fewer.
    kernel.munmap(process, VpnRange::new(Vpn(FIRST + 40), PageCount(472)), &mut Bare).unwrap();
    fill(&mut kernel, process, FIRST + 32, 8);
    assert_eq!(blocks(&kernel, process), [0, 16]);
}
