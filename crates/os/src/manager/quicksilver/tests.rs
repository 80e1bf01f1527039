// SPDX-License-Identifier: MIT OR Apache-2.0
//! Thresholds, gaps, and the daemon, each with a case on both of its sides.

use nestwalk_mem::{Cpu, Nanoseconds, VpnRange};

use crate::below::{Below, Hypercall, HypercallReply};
use crate::config::KernelConfig;
use crate::kernel::Kernel;
use crate::manager::ManagerConfig;
use crate::state::vma::VmaFlags;

use super::*;

/// A multiple of 512.
const FIRST: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;

/// Bare metal that remembers which frames were zeroed.
#[derive(Default)]
struct Metal {
    zeroed: Vec<FrameRange>,
}

impl Below for Metal {
    fn touch(&mut self, _: FrameRange, _: bool) -> Result<(), OsError> {
        Ok(())
    }

    fn hypercall(&mut self, _: Hypercall) -> HypercallReply {
        HypercallReply::Unsupported
    }

    fn zero(&mut self, frames: FrameRange) -> Result<(), OsError> {
        self.zeroed.push(frames);
        Ok(())
    }
}

struct Test {
    kernel: Kernel,
    process: ProcessId,
    metal: Metal,
}

impl Test {
    fn new(config: QuicksilverConfig, pages: u64) -> Self {
        let mut all = KernelConfig::new(PageCount(16_384));
        all.manager = ManagerConfig::Quicksilver(config);
        let mut metal = Metal::default();
        let mut kernel = Kernel::new(&all).unwrap();
        let process = kernel.spawn(&mut metal).unwrap();
        let mut test = Self { kernel, process, metal };
        test.map(FIRST, pages);
        test
    }

    fn with_threshold(threshold: u16, pages: u64) -> Self {
        Self::new(QuicksilverConfig { threshold, ..QuicksilverConfig::default() }, pages)
    }

    fn map(&mut self, start: u64, count: u64) {
        let range = VpnRange::new(Vpn(start), PageCount(count));
        self.kernel.mmap(self.process, range, VmaFlags::ANONYMOUS, &mut self.metal).unwrap();
    }

    fn touch(&mut self, page: u64, store: bool) {
        self.kernel.touch(self.process, Vpn(page), store, Cpu(0), &mut self.metal).unwrap();
    }

    fn size(&self, page: u64) -> Option<PageSize> {
        self.kernel.table(self.process).unwrap().leaf(Vpn(page)).map(|leaf| leaf.size())
    }

    fn frame(&self, page: u64) -> Frame {
        self.kernel.table(self.process).unwrap().translate(Vpn(page)).unwrap()
    }

    fn statistic(&self, name: &str) -> u64 {
        nestwalk_mem::counters::value(&self.kernel.manager().counters(), name)
    }

    fn tick(&mut self, second: u64) {
        self.kernel.tick(Nanoseconds(second * SECOND_NS), &mut self.metal).unwrap();
        self.kernel.check_invariants();
    }
}

#[test]
fn the_page_that_reaches_the_threshold_makes_the_superpage() {
    for threshold in [2, 64, 512] {
        let mut test = Test::with_threshold(threshold, 512);
        let pages: Vec<u64> = (0..512).map(|n| FIRST + n * 37 % 512).collect();
        let last = usize::from(threshold) - 1;
        pages[..last].iter().for_each(|&page| test.touch(page, true));
        assert_eq!(test.size(pages[0]), Some(PageSize::Small));
        let before = test.frame(pages[0]);
        test.touch(pages[last], true);
        assert_eq!((test.size(pages[0]), test.frame(pages[0])), (Some(PageSize::Huge), before), "in place");
        let done = *test.kernel.counters();
        assert_eq!((done.faults_4k, done.faults_2m, done.promotions), (u64::from(threshold) - 1, 1, 1));
        assert_eq!(test.statistic("prepared_ahead"), 512 - u64::from(threshold));
        test.kernel.check_invariants();
    }
}

#[test]
fn every_frame_of_a_superpage_is_prepared_once() {
    for threshold in [1, 2, 64, 512] {
        let mut test = Test::with_threshold(threshold, 512);
        (0..u64::from(threshold)).for_each(|n| test.touch(FIRST + n * 37 % 512, true));
        assert_eq!(test.size(FIRST), Some(PageSize::Huge));
        let base = test.frame(FIRST);
        let block = FrameRange::new(base, PageCount(512));
        let mut zeroed: Vec<Frame> =
            test.metal.zeroed.iter().flat_map(|frames| frames.iter()).filter(|&frame| block.contains(frame)).collect();
        zeroed.sort();
        assert_eq!(zeroed, block.iter().collect::<Vec<_>>(), "threshold {threshold}");
    }
}

#[test]
fn sync_1_prepares_a_whole_block_at_the_first_touch() {
    let mut test = Test::with_threshold(1, 512);
    test.touch(FIRST + 100, false);
    let done = *test.kernel.counters();
    assert_eq!((test.size(FIRST), done.faults_2m, done.zeroed_2m), (Some(PageSize::Huge), 1, 1));
    assert_eq!((done.promotions, test.kernel.manager().reserved()), (0, PageCount(0)));
}

#[test]
fn gaps_are_prepared_by_run() {
    let mut test = Test::with_threshold(4, 512);
    [0, 1, 100, 511].iter().for_each(|n| test.touch(FIRST + n, true));
    let base = test.frame(FIRST);
    let runs: Vec<_> = test.metal.zeroed.iter().filter(|frames| frames.count.0 > 1).collect();
    assert_eq!(runs, [&FrameRange::new(base + 2, PageCount(98)), &FrameRange::new(base + 101, PageCount(410))]);
}

#[test]
fn a_heap_that_grows_is_filled_page_by_page_until_the_block_is_whole() {
    for threshold in [1, 64] {
        let mut test = Test::with_threshold(threshold, 300);
        (0..300).for_each(|n| test.touch(FIRST + n, true));
        assert_eq!((test.size(FIRST), test.statistic("completed")), (Some(PageSize::Small), 0));
        test.map(FIRST + 300, 212);
        assert_eq!(test.size(FIRST + 300), None);
        test.touch(FIRST + 300, true);
        assert_eq!((test.size(FIRST), test.statistic("prepared_ahead")), (Some(PageSize::Huge), 211));
        test.kernel.check_invariants();
    }
}

#[test]
fn clean_and_dirty_pages_become_one_superpage() {
    let mut test = Test::with_threshold(64, 512);
    (0..64).for_each(|n| test.touch(FIRST + n, n % 2 == 0));
    let leaf = test.kernel.table(test.process).unwrap().leaf(Vpn(FIRST)).unwrap();
    assert!(leaf.size() == PageSize::Huge && leaf.entry.has(Entry::DIRTY | Entry::WRITABLE));
}

#[test]
fn pages_that_a_child_shares_are_left_alone() {
    let mut test = Test::with_threshold(64, 512);
    (0..63).for_each(|n| test.touch(FIRST + n, true));
    let child = test.kernel.fork(test.process, &mut test.metal).unwrap();
    (63..80).for_each(|n| test.touch(FIRST + n, true));
    assert_eq!(test.size(FIRST), Some(PageSize::Small));
    test.kernel.exit(child, &mut test.metal).unwrap();
    (0..62).for_each(|n| test.touch(FIRST + n, true));
    assert_eq!(test.size(FIRST), Some(PageSize::Small), "one page has no right to be stored to yet");
    test.touch(FIRST + 62, true);
    assert_eq!(test.size(FIRST), Some(PageSize::Huge));
    test.kernel.check_invariants();
}

#[test]
fn the_daemon_empties_what_is_inactive_and_stops_at_what_is_active() {
    let mut test = Test::with_threshold(64, 4 * 512);
    [0, 1, 2].iter().for_each(|block| (0..10).for_each(|n| test.touch(FIRST + block * 512 + n, true)));
    test.tick(4);
    test.touch(FIRST + 512 + 10, true);
    let (free, kept, moved) = (test.kernel.memory().free_frames().0, test.frame(FIRST + 512), test.frame(FIRST));
    test.tick(5);
    assert_eq!((test.statistic("evicted"), test.statistic("evicted_pages")), (2, 20));
    assert_eq!(test.kernel.memory().free_frames().0, free + 2 * 502, "two whole blocks came back");
    assert_eq!(test.kernel.counters().migrated, 20);
    assert!(test.frame(FIRST + 512) == kept && test.frame(FIRST) != moved);
    test.tick(10);
    assert_eq!((test.statistic("evicted"), test.kernel.manager().reserved()), (3, PageCount(0)));
    // What was emptied is no reservation any more: its pages are single ones.
    test.touch(FIRST + 20, true);
    assert_eq!(test.statistic("reservations"), 3);
}

#[test]
fn the_daemon_keeps_to_its_rate() {
    let config = QuicksilverConfig { evicted_pages_per_s: 25, ..QuicksilverConfig::default() };
    let mut test = Test::new(config, 6 * 512);
    (0..6).for_each(|block| (0..10).for_each(|n| test.touch(FIRST + block * 512 + n, true)));
    let evicted: Vec<u64> = [4, 5, 6, 7, 8]
        .map(|second| {
            test.tick(second);
            test.statistic("evicted")
        })
        .into();
    assert_eq!(evicted, [0, 2, 4, 6, 6]);
    let never = QuicksilverConfig { evicted_pages_per_s: 0, ..QuicksilverConfig::default() };
    let mut test = Test::new(never, 512);
    test.touch(FIRST, true);
    test.tick(100);
    assert_eq!((test.statistic("evicted"), test.kernel.manager().reserved()), (0, PageCount(511)));
}

#[test]
fn a_threshold_that_no_block_has_is_refused() {
    for (threshold, possible) in [(0, false), (1, true), (512, true), (513, false)] {
        let mut config = KernelConfig::new(PageCount(16_384));
        config.manager = ManagerConfig::Quicksilver(QuicksilverConfig { threshold, ..QuicksilverConfig::default() });
        assert_eq!(Kernel::new(&config).is_ok(), possible, "{threshold}");
    }
}

fn small(threshold: u16, small_threshold: u16, pages: u64) -> Test {
    Test::new(QuicksilverConfig { threshold, small_threshold, ..QuicksilverConfig::default() }, pages)
}

#[test]
fn a_group_of_64_kib_is_mapped_when_so_many_of_its_pages_are_in_use() {
    for small_threshold in [1, 4, 16] {
        let mut test = small(512, small_threshold, 512);
        let pages: Vec<u64> = (0..u64::from(small_threshold)).map(|n| FIRST + 32 + n * 5 % 16).collect();
        for &page in &pages[..pages.len() - 1] {
            test.touch(page, true);
        }
        let mapped = |test: &Test| (FIRST..FIRST + 512).filter(|&page| test.size(page).is_some()).count();
        assert_eq!(mapped(&test), pages.len() - 1);
        test.touch(pages[pages.len() - 1], true);
        assert_eq!(mapped(&test), 16, "threshold {small_threshold}");
        let base = test.frame(FIRST + 32);
        assert!((0..16).all(|place| test.frame(FIRST + 32 + place) == base + place) && base.is_aligned(4));
        let done = test.kernel.counters();
        assert_eq!(
            (done.faults_4k, done.zeroed_4k - done.nodes_made, done.promotions),
            (u64::from(small_threshold), 16, 0)
        );
        let ahead = 16 - u64::from(small_threshold);
        assert_eq!((test.statistic("completed_64k"), test.statistic("prepared_ahead")), (u64::from(ahead > 0), ahead));
        assert_eq!(test.kernel.manager().reserved(), PageCount(512 - 16));
        test.kernel.check_invariants();
    }
}

#[test]
fn both_levels_are_on_one_map() {
    let mut test = small(64, 1, 512);
    for group in 0..3 {
        test.touch(FIRST + group * 16, true);
    }
    assert_eq!((test.size(FIRST), test.statistic("completed_64k")), (Some(PageSize::Small), 3));
    test.touch(FIRST + 100, true);
    assert_eq!(test.size(FIRST), Some(PageSize::Huge), "four groups are 64 pages");
    let done = test.kernel.counters();
    assert_eq!((done.faults_4k + done.faults_2m, done.zeroed_4k - done.nodes_made), (4, 512));
    test.kernel.check_invariants();
}

#[test]
fn what_is_not_the_groups_to_map_stays_as_it_is() {
    // The mapping ends within the group; without the lower level nothing is mapped ahead.
    for (mut test, mapped) in [(small(512, 1, 24), 17), (small(512, 0, 512), 2)] {
        test.touch(FIRST, true);
        test.touch(FIRST + 20, true);
        assert_eq!((FIRST..FIRST + 512).filter(|&page| test.size(page).is_some()).count(), mapped);
        test.kernel.check_invariants();
    }
    // A page that was given back is the group's to map again with the next fault in it, and memory
    // is conserved.
    let mut test = small(512, 2, 512);
    (0..2).for_each(|page| test.touch(FIRST + page, true));
    test.kernel.munmap(test.process, VpnRange::new(Vpn(FIRST + 3), PageCount(2)), &mut test.metal).unwrap();
    test.map(FIRST + 3, 2);
    assert_eq!((test.size(FIRST + 3), test.kernel.manager().reserved()), (None, PageCount(512 - 14)));
    test.touch(FIRST + 3, true);
    assert_eq!(test.size(FIRST + 4), Some(PageSize::Small));
    test.kernel.exit(test.process, &mut test.metal).unwrap();
    test.kernel.check_invariants();
    assert_eq!(test.kernel.memory().free_frames(), test.kernel.memory().frames());
}
