// SPDX-License-Identifier: MIT OR Apache-2.0
//! What used memory, compaction and contiguous ranges do to the frames that a program gets.

use super::*;
use crate::Vpn;

const CPU: Cpu = Cpu(0);

fn memory(mib: u64, cpus: u16) -> PhysicalMemory {
    PhysicalMemory::new(&MemoryConfig::new(PageCount(mib << 8), cpus)).unwrap()
}

fn take(memory: &mut PhysicalMemory, page: u64, cpu: Cpu) -> Frame {
    let frame = memory.alloc(Order::PAGE, MigrateType::Movable, cpu).unwrap();
    memory.set_owner(frame, Owner::Page { process: 1, page: Vpn(page) });
    frame
}

/// Host PT fragmentation in hundredths: lines of eight frames that eight neighbouring pages lie on,
/// on average.
fn fragmentation(frames: &[Frame]) -> usize {
    let lines =
        |group: &[Frame]| group.iter().map(|frame| frame.0 >> 3).collect::<std::collections::BTreeSet<_>>().len();
    frames.chunks_exact(8).map(lines).sum::<usize>() * 100 / (frames.len() / 8)
}

#[test]
fn alone_on_a_fresh_memory_neighbours_share_a_line() {
    // The real 6.1: 1.0 to 2.0.
    let mut memory = memory(1024, 2);
    let frames: Vec<_> = (0..32_768).map(|page| take(&mut memory, page, CPU)).collect();
    assert_eq!(fragmentation(&frames), 100);
}

#[test]
fn aged_memory_scatters_even_a_program_alone() {
    // The real 6.1 after co-runners: 3.0 to 7.0. Frames kept by the past set the place in that
    // range.
    let of = |kept_permille| {
        let mut memory = memory(1024, 2);
        memory.age(&Aging { used_permille: 900, kept_permille, seed: 7, ..Aging::default() });
        memory.check_invariants();
        fragmentation(&(0..32_768).map(|page| take(&mut memory, page, CPU)).collect::<Vec<_>>())
    };
    let (little, much) = (of(10), of(100));
    assert!((300..400).contains(&little), "{little}");
    assert!((600..700).contains(&much), "{much}");
}

#[test]
fn what_the_kernel_keeps_is_its_own_and_the_next_tables_lie_between() {
    let runs = |kernel_permille| {
        let mut memory = memory(1024, 2);
        let how = Aging { used_permille: 900, kept_permille: 10, kernel_permille, kernel_kept_permille: 300, seed: 7 };
        let in_use = memory.age(&how);
        memory.check_invariants();
        let owned = |owner| (0..memory.frames().0).filter(|&pfn| memory.owner(Frame(pfn)) == owner).count() as u64;
        assert_eq!((owned(Owner::Cache), owned(Owner::Kernel)), (in_use.cache.0, in_use.kernel.0));
        assert_eq!(in_use.kernel.0, (1 << 18) * u64::from(kernel_permille) / 1000 * 300 / 1000);
        let mut tables: Vec<u64> =
            (0..500).map(|_| memory.alloc(Order::PAGE, MigrateType::Unmovable, CPU).unwrap().0).collect();
        tables.sort_unstable();
        1 + tables.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count()
    };
    assert!(runs(0) < 20 && runs(30) > 400, "{} {}", runs(0), runs(30));
}

#[test]
fn fragment_leaves_the_stated_share_of_blocks_whole() {
    for permille in [0, 500, 1000] {
        let mut memory = memory(256, 1);
        let how = Fragmentation { blocks_permille: permille, frames_per_block: 2, unmovable_permille: 0, seed: 3 };
        assert_eq!(memory.fragment(&how), 128 * u64::from(permille) / 1000);
        assert_eq!(memory.broken_blocks_permille(), permille);
        assert_eq!(memory.free_frames().0, 65_536 - 2 * 128 * u64::from(permille) / 1000);
        memory.check_invariants();
        let huge = memory.alloc(Order::HUGE, MigrateType::Movable, CPU);
        assert_eq!(huge.is_none(), permille == 1000);
    }
}

/// Moves everything and counts.
struct Willing(u64);

impl Migrate for Willing {
    fn migrate(&mut self, _: Frame, _: Frame, owner: Owner) -> bool {
        assert!(matches!(owner, Owner::Page { .. }), "{owner:?} moves without being asked");
        self.0 += 1;
        true
    }
}

/// Moves nothing.
struct Unwilling;

impl Migrate for Unwilling {
    fn migrate(&mut self, _: Frame, _: Frame, _: Owner) -> bool {
        false
    }
}

fn broken(unmovable_permille: u16) -> PhysicalMemory {
    let mut memory = memory(256, 1);
    memory.fragment(&Fragmentation { blocks_permille: 1000, frames_per_block: 4, unmovable_permille, seed: 3 });
    memory
}

#[test]
fn compaction_makes_huge_blocks_where_pages_move() {
    let mut memory = broken(0);
    let done = memory.compact(Order::HUGE, &mut Willing(0));
    assert!(done.succeeded && done.migrated >= PageCount(4), "{done:?}");
    memory.check_invariants();
    assert!(memory.alloc(Order::HUGE, MigrateType::Movable, CPU).is_some());
    // One block was enough: most pages stayed.
    assert!(done.migrated < PageCount(64), "{done:?}");
}

#[test]
fn compaction_gives_up_on_unmovable_frames_without_moving_anything() {
    let mut memory = broken(1000);
    let done = memory.compact(Order::HUGE, &mut Willing(0));
    assert!(!done.succeeded && done.migrated == PageCount(0) && done.scanned > PageCount(0), "{done:?}");
    memory.check_invariants();
}

#[test]
fn the_fragmentation_score_is_the_share_of_what_is_free_outside_of_huge_blocks() {
    let mut memory = memory(256, 1);
    assert_eq!(memory.fragmentation_score(), 0);
    memory.fragment(&Fragmentation { blocks_permille: 500, frames_per_block: 128, unmovable_permille: 0, seed: 3 });
    // Half of the blocks with three quarters of them free.
    assert_eq!(memory.fragmentation_score(), 42);
    assert_eq!(broken(0).fragmentation_score(), 100);
}

#[test]
fn proactive_compaction_goes_on_until_the_score_is_low_enough() {
    // More pages than the processor's list has room for.
    let full = || {
        let mut memory = memory(256, 1);
        memory.fragment(&Fragmentation { blocks_permille: 1000, frames_per_block: 64, unmovable_permille: 0, seed: 3 });
        memory
    };
    let blocks = |score| {
        let mut memory = full();
        let done = memory.compact_proactively(score, CPU, &mut Willing(0));
        memory.check_invariants();
        assert!(done.succeeded && memory.fragmentation_score() <= score, "{done:?}");
        done.migrated
    };
    assert!(blocks(50) > blocks(80) && blocks(80) > PageCount(0));
    // It does not begin where direct compaction stopped, and leaves its place alone.
    let mut memory = full();
    memory.compact(Order::HUGE, &mut Willing(0));
    let place = memory.scanners.positions();
    memory.compact_proactively(80, CPU, &mut Willing(0));
    assert_eq!(memory.scanners.positions(), place);
}

#[test]
fn proactive_compaction_ends_when_its_scanners_meet() {
    for (unmovable, moves) in [(1000, false), (0, true)] {
        let mut memory = broken(unmovable);
        let done = memory.compact_proactively(0, CPU, &mut Willing(0));
        assert_eq!((done.succeeded, done.migrated > PageCount(0)), (false, moves));
        memory.check_invariants();
        assert_eq!(memory.free_frames(), PageCount(65_536 - 4 * 128), "what is moved is neither lost nor freed");
    }
}

#[test]
fn what_proactive_compaction_moves_away_goes_to_the_processors_list() {
    let mut memory = broken(0);
    memory.drain();
    let buddy = |memory: &PhysicalMemory| (0..).zip(memory.free_blocks()).map(|(o, n)| n << o).sum::<u64>();
    let before = buddy(&memory);
    let done = memory.compact_proactively(0, CPU, &mut Unwilling);
    assert!(done.migrated.0 > 4 * 120, "all but where the scanners met: {done:?}");
    assert_eq!(buddy(&memory), before - done.migrated.0, "the list has room for all of them");
}

#[test]
fn so_much_is_reclaimed_as_compaction_needs() {
    let mut memory = memory(256, 1);
    let marks = memory.watermarks();
    assert!(memory.reclaim_for_compaction(Order::HUGE).is_some(), "a whole memory is not fragmented");
    memory = broken(1000);
    assert_eq!(memory.reclaim_for_compaction(Order::HUGE), None);
    let mut free_of = |free: u64| {
        while memory.free_frames().0 > free {
            memory.alloc(Order::PAGE, MigrateType::Movable, CPU).unwrap();
        }
        memory.drain();
        memory.reclaim_for_compaction(Order::HUGE)
    };
    assert_eq!(free_of(marks.high.0 + 1024), Some(PageCount(32)), "a margin");
    assert_eq!(free_of(marks.low.0 + 1024), Some(PageCount(32)), "one page is missing");
    assert_eq!(free_of(marks.low.0 + 900), Some(PageCount(125)));
}

#[test]
fn compaction_does_nothing_where_a_block_is_free_or_memory_is_short() {
    let mut whole = memory(256, 1);
    assert_eq!(whole.compact(Order::HUGE, &mut Willing(0)), Compaction { succeeded: true, ..Compaction::default() });
    let mut full = memory(4, 1);
    let taken: Vec<_> = (0..1000).map(|page| take(&mut full, page, CPU)).collect();
    assert_eq!(taken.len(), 1000);
    assert_eq!(full.compact(Order::HUGE, &mut Willing(0)), Compaction { skipped: true, ..Compaction::default() });
}

#[test]
fn a_range_is_emptied_by_moving_its_pages() {
    let mut memory = memory(64, 1);
    let frames: Vec<_> = (0..4096).map(|page| take(&mut memory, page, CPU)).collect();
    for frame in frames.iter().step_by(2) {
        memory.free(*frame, Order::PAGE, CPU);
    }
    let mut migrate = Willing(0);
    let range = memory.alloc_range(PageCount(2000), Order(5), &mut migrate).unwrap();
    assert_eq!(range, FrameRange::new(Frame(0), PageCount(2000)));
    assert_eq!(migrate.0, 1000, "every second frame of the range was in use");
    memory.check_invariants();
    memory.free_range(range, CPU);
    memory.drain();
    memory.check_invariants();
    assert_eq!(memory.free_frames(), PageCount(16_384 - 2048));
}

#[test]
fn a_range_is_searched_beyond_what_does_not_move() {
    let mut memory = memory(64, 1);
    let frames: Vec<_> = (0..3000).map(|page| take(&mut memory, page, CPU)).collect();
    memory.set_owner(frames[100], Owner::Kernel);
    assert_eq!(memory.alloc_range(PageCount(512), Order(9), &mut Willing(0)).unwrap().start, Frame(512));
    // Pages 1024 to 2999 refuse, and so do those that were just moved to frames up to 3511.
    assert_eq!(memory.alloc_range(PageCount(512), Order(9), &mut Unwilling).unwrap().start, Frame(3584));
    memory.check_invariants();
    assert_eq!(memory.alloc_range(PageCount(1 << 14), Order::PAGE, &mut Willing(0)), None);
    memory.check_invariants();
}

#[test]
fn dropping_the_cache_makes_memory_whole_again() {
    let mut memory = broken(0);
    assert_eq!(memory.drop_cache(PageCount(100), CPU), PageCount(100));
    assert_eq!(memory.drop_cache(PageCount(u64::MAX), CPU), PageCount(4 * 128 - 100));
    assert_eq!(memory.drop_cache(PageCount(1), CPU), PageCount(0));
    memory.drain();
    assert_eq!(memory.broken_blocks_permille(), 0);
    memory.check_invariants();
}
