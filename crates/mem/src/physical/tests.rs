// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order in which frames come and go, and the mistakes that are caught.

use super::*;

const CPU: Cpu = Cpu(0);

fn memory(mib: u64, cpus: u16) -> PhysicalMemory {
    PhysicalMemory::new(&MemoryConfig::new(PageCount(mib << 8), cpus)).unwrap()
}

fn pages(memory: &mut PhysicalMemory, count: usize, cpu: Cpu) -> Vec<u64> {
    (0..count).map(|_| memory.alloc(Order::PAGE, MigrateType::Movable, cpu).unwrap().0).collect()
}

#[test]
fn a_fresh_memory_is_all_free_in_the_largest_blocks() {
    let memory = memory(4096 + 3, 2);
    assert_eq!(memory.frames(), PageCount(4096 << 8), "rounded down to 4 MiB");
    assert_eq!(memory.free_frames(), memory.frames());
    assert_eq!(memory.free_blocks()[10], 1024);
    memory.check_invariants();
}

#[test]
fn impossible_memories_are_refused() {
    let new = |frames, cpus| PhysicalMemory::new(&MemoryConfig::new(PageCount(frames), cpus)).map(|_| ());
    assert_eq!(new(1023, 1), Err(MemoryError::Size { frames: 1023 }));
    assert_eq!(new(1 << 32, 1), Err(MemoryError::Size { frames: 1 << 32 }));
    assert_eq!(new(1024, 0), Err(MemoryError::NoCpu));
}

#[test]
fn one_process_alone_gets_ascending_frames() {
    // Blocks are split from their start, batches filled at the tail and taken from the head.
    let mut memory = memory(1024, 1);
    assert_eq!(pages(&mut memory, 5000, CPU), (0..5000).collect::<Vec<_>>());
    memory.check_invariants();
}

#[test]
fn two_processors_interleave_by_batches_of_63() {
    let mut memory = memory(1024, 2);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..126 {
        a.extend(pages(&mut memory, 1, Cpu(0)));
        b.extend(pages(&mut memory, 1, Cpu(1)));
    }
    assert_eq!(a, (0..63).chain(126..189).collect::<Vec<_>>());
    assert_eq!(b, (63..126).chain(189..252).collect::<Vec<_>>());
    memory.check_invariants();
}

#[test]
fn the_last_page_freed_is_the_first_one_allocated() {
    let mut memory = memory(1024, 1);
    let got = pages(&mut memory, 10, CPU);
    for frame in &got[..4] {
        memory.free(Frame(*frame), Order::PAGE, CPU);
    }
    assert_eq!(pages(&mut memory, 5, CPU), [3, 2, 1, 0, 10]);
}

#[test]
fn a_block_whose_next_merge_is_near_goes_to_the_tail() {
    // buddy_merge_likely. Block of 16 at 0: frames 0 to 7 in use, 8 to 15 free as one block of
    // order 3.
    let mut memory = memory(64, 1);
    let a = memory.alloc(Order(4), MigrateType::Movable, CPU).unwrap();
    assert_eq!(a, Frame(0));
    let far = memory.alloc(Order(4), MigrateType::Movable, CPU).unwrap();
    assert_eq!(far, Frame(16));
    memory.free(Frame(8), Order(3), CPU);
    memory.free(Frame(20), Order(2), CPU);
    memory.drain();
    // Freeing 0..4 (order 2): its buddy 4..8 is in use, and the block of order 3 beyond, 8..16, is
    // free: to the tail.
    memory.free(Frame(0), Order(2), CPU);
    memory.drain();
    assert_eq!(memory.free_list(Order(2), MigrateType::Movable).collect::<Vec<_>>(), [Frame(20), Frame(0)]);
    // Freeing 28..32: its buddy 24..28 is in use, and 16..24 is not free as a whole: to the head.
    memory.free(Frame(28), Order(2), CPU);
    memory.drain();
    let list: Vec<_> = memory.free_list(Order(2), MigrateType::Movable).collect();
    assert_eq!(list, [Frame(28), Frame(20), Frame(0)]);
    memory.check_invariants();
}

#[test]
fn freed_neighbours_merge_back_to_the_largest_block() {
    let mut memory = memory(64, 1);
    let got = pages(&mut memory, 3000, CPU);
    got.iter().for_each(|&frame| memory.free(Frame(frame), Order::PAGE, CPU));
    memory.drain();
    assert_eq!(memory.free_blocks(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16]);
    memory.check_invariants();
}

#[test]
fn unmovable_allocations_take_whole_pageblocks_of_their_own() {
    let mut memory = memory(1024, 1);
    let user = pages(&mut memory, 1, CPU)[0];
    let kernel = memory.alloc(Order::PAGE, MigrateType::Unmovable, CPU).unwrap();
    // The largest movable block is stolen, both of its pageblocks change type
    // (steal_suitable_fallback).
    assert_eq!(kernel, Frame(1024));
    assert_eq!(memory.pageblock_type(Frame(user)), MigrateType::Movable);
    assert_eq!(memory.pageblock_type(kernel), MigrateType::Unmovable);
    assert_eq!(memory.pageblock_type(kernel + 512), MigrateType::Unmovable);
    memory.check_invariants();
}

#[test]
fn an_unmovable_allocation_claims_a_half_free_movable_pageblock() {
    let mut memory = memory(4, 1);
    let user = pages(&mut memory, 500, CPU);
    user.iter().for_each(|&f| memory.set_owner(Frame(f), Owner::Page { process: 1, page: crate::Vpn(f) }));
    memory.drain();
    // Pageblock 1 is wholly free and goes first, then pageblock 0, of which only 12 frames are
    // free.
    for expected in [512, 513] {
        let kernel = memory.alloc(Order::PAGE, MigrateType::Unmovable, CPU).unwrap();
        assert_eq!(kernel, Frame(expected));
    }
    assert_eq!(memory.pageblock_type(Frame(0)), MigrateType::Movable);
    while memory.free_frames().0 > 0 {
        memory.alloc(Order::PAGE, MigrateType::Unmovable, CPU).unwrap();
    }
    assert_eq!(memory.pageblock_type(Frame(0)), MigrateType::Movable, "movable pages are the majority");
    memory.check_invariants();
}

#[test]
fn a_huge_block_can_be_freed_in_parts_and_parts_as_a_whole() {
    let mut memory = memory(64, 1);
    let huge = memory.alloc(Order::HUGE, MigrateType::Movable, CPU).unwrap();
    memory.set_owner(huge + 100, Owner::Page { process: 1, page: crate::Vpn(5) });
    memory.free(huge + 8, Order(3), CPU);
    memory.check_invariants();
    assert_eq!(memory.owner(huge + 100), Owner::Page { process: 1, page: crate::Vpn(5) });
    assert!(memory.is_free(huge + 8) && memory.is_free(huge + 15) && !memory.is_free(huge + 16));
    memory.free(huge, Order(3), CPU);
    for start in (16..512).step_by(16) {
        memory.free(huge + start, Order(4), CPU);
    }
    memory.drain();
    assert_eq!(memory.free_blocks()[10], 16);
    // Now 512 single pages, freed as one.
    let got = pages(&mut memory, 512, CPU);
    assert_eq!(got, (got[0]..got[0] + 512).collect::<Vec<_>>());
    memory.free(Frame(got[0]), Order::HUGE, CPU);
    memory.check_invariants();
    memory.drain();
    assert_eq!(memory.free_frames(), memory.frames());
    assert_eq!(memory.owner(huge + 100), Owner::Unknown, "the frame's past is forgotten");
}

#[test]
fn the_last_frames_come_from_the_other_processors_lists() {
    let mut memory = memory(4, 2);
    let first = pages(&mut memory, 1, Cpu(1));
    let rest = pages(&mut memory, 1023, Cpu(0));
    assert_eq!(memory.alloc(Order::PAGE, MigrateType::Movable, Cpu(0)), None);
    assert_eq!(memory.free_frames(), PageCount(0));
    let mut all: Vec<_> = first.into_iter().chain(rest).collect();
    all.sort_unstable();
    assert_eq!(all, (0..1024).collect::<Vec<_>>());
}

#[test]
fn sharing_counts_further_mappings() {
    let mut memory = memory(64, 1);
    let frame = memory.alloc(Order::PAGE, MigrateType::Movable, CPU).unwrap();
    memory.set_owner(frame, Owner::Page { process: 3, page: crate::Vpn(9) });
    memory.share(frame);
    memory.share(frame);
    assert!(memory.is_shared(frame));
    assert_eq!([memory.unshare(frame), memory.unshare(frame), memory.unshare(frame)], [true, true, false]);
    assert_eq!(memory.owner(frame), Owner::Page { process: 3, page: crate::Vpn(9) });
    memory.free(frame, Order::PAGE, CPU);
}

#[test]
fn a_page_of_a_file_moves_with_all_its_mappings() {
    struct Files(Vec<(Frame, Frame)>);
    impl Migrate for Files {
        fn migrate(&mut self, from: Frame, to: Frame, owner: Owner) -> bool {
            self.0.push((from, to));
            owner == Owner::File { file: 2, page: 40 }
        }
    }
    let mut memory = memory(64, 1);
    let frame = memory.alloc(Order::PAGE, MigrateType::Movable, CPU).unwrap();
    let wanted = crate::FrameRange::new(frame, PageCount(1));
    let owners = [(Owner::Page { process: 1, page: crate::Vpn(1) }, false), (Owner::File { file: 2, page: 40 }, true)];
    for (owner, moves) in owners {
        memory.set_owner(frame, owner);
        memory.share(frame);
        let mut files = Files(Vec::new());
        assert_eq!(memory.alloc_at(wanted, &mut files), [moves], "{owner:?}");
        assert_eq!(files.0.len(), usize::from(moves), "a shared page of a process is not asked for");
        if moves {
            let to = files.0[0].1;
            assert_eq!((memory.owner(to), memory.owner(frame)), (owner, Owner::Unknown));
            assert!(!memory.is_shared(frame));
            assert_eq!([memory.unshare(to), memory.unshare(to), memory.unshare(to)], [true, true, false]);
        }
    }
    memory.check_invariants();
}

#[test]
#[should_panic(expected = "freed but not allocated (PerCpu)")]
fn a_double_free_is_caught() {
    let mut memory = memory(64, 1);
    let frame = memory.alloc(Order::PAGE, MigrateType::Movable, CPU).unwrap();
    memory.free(frame, Order::PAGE, CPU);
    memory.free(frame, Order::PAGE, CPU);
}

#[test]
#[should_panic(expected = "freed but not allocated (Free)")]
fn freeing_what_was_never_allocated_is_caught() {
    memory(64, 1).free(Frame(777), Order::PAGE, CPU);
}

#[test]
#[should_panic(expected = "still shared")]
fn freeing_a_shared_frame_is_caught() {
    let mut memory = memory(64, 1);
    let frame = memory.alloc(Order::PAGE, MigrateType::Movable, CPU).unwrap();
    memory.share(frame);
    memory.free(frame, Order::PAGE, CPU);
}

#[test]
#[should_panic(expected = "is not allocated")]
fn owning_a_free_frame_is_caught() {
    memory(64, 1).set_owner(Frame(5), Owner::Kernel);
}

#[test]
#[should_panic(expected = "lies beyond the memory")]
fn a_frame_beyond_the_memory_is_caught() {
    memory(64, 1).free(Frame(1 << 32), Order::PAGE, CPU);
}

#[test]
fn a_frame_can_be_taken_where_it_is_and_only_once() {
    let mut memory = memory(64, 2);
    let held = memory.alloc(Order::PAGE, MigrateType::Movable, Cpu(1)).unwrap();
    let all = memory.free_frames();
    for frame in [Frame(512), Frame(777), Frame(778), Frame(memory.frames().0 - 1)] {
        assert!(memory.take(frame) && !memory.take(frame) && !memory.is_free(frame), "{frame:?}");
    }
    assert!(!memory.take(held), "{held:?} is in use");
    // One that lies in a per-CPU list is free as well.
    memory.free(held, Order::PAGE, Cpu(1));
    assert!(memory.take(held));
    assert_eq!(memory.free_frames(), PageCount(all.0 - 4));
    memory.check_invariants();
    memory.free(Frame(777), Order::PAGE, Cpu(0));
    memory.check_invariants();
}

#[test]
fn all_frames_of_a_range_get_an_owner_whatever_blocks_they_lie_in() {
    let mut memory = memory(64, 1);
    let take = |memory: &mut PhysicalMemory, order| memory.alloc(order, MigrateType::Unmovable, CPU).unwrap();
    for order in [Order(0), Order(3), Order::HUGE, Order::MAX] {
        let frames = FrameRange::new(take(&mut memory, order), PageCount(order.frames()));
        memory.set_owners(frames, Owner::Reserved { process: 7 });
        assert!(frames.iter().all(|frame| memory.owner(frame) == Owner::Reserved { process: 7 }), "{order:?}");
        memory.check_invariants();
        // In parts, of which the first is owned by another now.
        memory.free(frames.start, Order::PAGE, CPU);
        memory.check_invariants();
        let rest = FrameRange::new(frames.start + 1, PageCount(order.frames() - 1));
        memory.set_owners(rest, Owner::Kernel);
        assert!(rest.iter().all(|frame| memory.owner(frame) == Owner::Kernel), "{order:?}");
        rest.iter().for_each(|frame| memory.free(frame, Order::PAGE, CPU));
        memory.drain();
        memory.check_invariants();
    }
    assert_eq!(memory.free_frames(), memory.frames());
}

#[test]
#[should_panic(expected = "is not allocated")]
fn a_free_frame_in_a_range_cannot_be_owned() {
    let mut memory = memory(64, 1);
    let frame = memory.alloc(Order(3), MigrateType::Movable, CPU).unwrap();
    memory.set_owners(FrameRange::new(frame, PageCount(9)), Owner::Kernel);
}

#[test]
fn every_frame_finds_the_block_that_it_lies_in() {
    let mut memory = memory(64, 1);
    for order in [3, 0, 2, 9, 1, 10, 5] {
        memory.alloc(Order(order), MigrateType::Movable, CPU).unwrap();
    }
    let heads: Vec<(Pfn32, Head)> = memory.heads().collect();
    for (start, head) in heads {
        for pfn in start..start + (1 << head.order()) {
            assert_eq!(memory.zone.table.find_head(pfn), (start, head), "frame {pfn:#x}");
        }
    }
}

#[test]
fn the_fragmentation_index_of_a_known_map() {
    let mut memory =
        PhysicalMemory::new(&MemoryConfig { frames: PageCount(4096), cpus: 1, min_free: PageCount(0) }).unwrap();
    assert_eq!(memory.fragmentation_index(Order::HUGE), -1000, "a request succeeds");
    let how = Fragmentation { blocks_permille: 1000, frames_per_block: 1, unmovable_permille: 0, seed: 1 };
    assert_eq!(memory.fragment(&how), 8);
    // A 2 MiB block without one frame, wherever that is, is a free block of each order from 0 to 8.
    assert_eq!(memory.free_blocks(), [8, 8, 8, 8, 8, 8, 8, 8, 8, 0, 0]);
    // 1000 - (1000 + 4088 * 1000 / 512) / 72, as `__fragmentation_index` has it.
    assert_eq!(memory.fragmentation_index(Order::HUGE), 876);
    while memory.alloc(Order::PAGE, MigrateType::Movable, Cpu(0)).is_some() {}
    assert_eq!(memory.fragmentation_index(Order::HUGE), 0, "nothing is free");
}

#[test]
fn nothing_beyond_the_memory_is_fetched_ahead_of_frees() {
    // 20 MiB: the last 4 MiB have no buddy of their size.
    let memory = memory(20, 1);
    let frames = memory.frames().0 as u32;
    for order in (0..=table::PAGEBLOCK_ORDER).filter(|&order| has_lists(order)) {
        let blocks = vec![frames - 1024; 64].into();
        memory.zone.prefetch_free_one(&blocks, order);
        let blocks = vec![frames - (1 << order); 64].into();
        memory.zone.prefetch_free_one(&blocks, order);
    }
}
