// SPDX-License-Identifier: MIT OR Apache-2.0
//! What holds of every allocator, against a naive list of frames.

use std::collections::BTreeSet;

use nestwalk_mem::{Frame, FrameRange, PageCount};
use proptest::prelude::*;

use super::*;
use crate::extent::total;

/// The segments that the naive allocators below hand out.
fn naive(kind: AllocatorKind, free: &BTreeSet<u64>, memory: u64) -> Option<Vec<FrameRange>> {
    let mut free = free.clone();
    if memory > free.len() as u64 {
        return None;
    }
    let (mut chosen, mut missing) = (Vec::new(), memory);
    while missing > 0 {
        let segments = runs(&free);
        let smallest = |least: u64| segments.iter().copied().filter(|s| s.count.0 >= least).min_by_key(|s| s.count.0);
        let largest = segments.iter().copied().rev().max_by_key(|s| s.count.0);
        let exact = segments.iter().copied().find(|s| s.count.0 == missing);
        let greater = largest.filter(|s| s.count.0 > missing);
        let first = chosen.is_empty();
        let next = match kind {
            AllocatorKind::CompromisOpt1 => exact.or(greater.filter(|_| first)).or_else(|| smallest(1)),
            AllocatorKind::CompromisOpt2 => exact.or(greater).or(largest),
            AllocatorKind::BestFit => smallest(missing).or(largest),
            AllocatorKind::FirstFit => segments.iter().copied().find(|s| s.count.0 >= missing).or(Some(segments[0])),
            _ => unreachable!("has rules of its own"),
        };
        let next = next.expect("enough is free");
        let taken = FrameRange::new(next.start, PageCount(next.count.0.min(missing)));
        (taken.start.0..taken.end().0).for_each(|frame| assert!(free.remove(&frame)));
        missing -= taken.count.0;
        chosen.push(taken);
    }
    Some(chosen)
}

/// Maximal runs of frames, ascending.
fn runs(free: &BTreeSet<u64>) -> Vec<FrameRange> {
    let mut runs: Vec<FrameRange> = Vec::new();
    for &frame in free {
        match runs.last_mut() {
            Some(run) if run.end().0 == frame => run.count.0 += 1,
            _ => runs.push(FrameRange::new(Frame(frame), PageCount(1))),
        }
    }
    runs
}

fn frames(extents: &[Extent]) -> impl Iterator<Item = u64> + '_ {
    extents.iter().flat_map(|extent| extent.start.0..extent.range().end().0)
}

/// One VM comes (with so many pages), or one of those that are there goes.
#[derive(Clone, Debug)]
enum Op {
    Come(u64),
    Go(prop::sample::Index),
}

fn ops(most: u64) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![3 => (1..most).prop_map(Op::Come), 2 => any::<prop::sample::Index>().prop_map(Op::Go)];
    prop::collection::vec(op, 1..60)
}

/// Memory with a hole, small enough to list its frames.
const MEMORY: [(u64, u64); 2] = [(3, 2000), (2048, 1000)];

fn memory() -> Vec<FrameRange> {
    MEMORY.iter().map(|&(start, count)| FrameRange::new(Frame(start), PageCount(count))).collect()
}

/// Runs `ops`, and holds the allocator against the set of free frames after each.
fn hold(kind: AllocatorKind, ops: Vec<Op>, unit: u64) -> Result<(), TestCaseError> {
    let ranges: Vec<FrameRange> =
        memory().iter().map(|r| FrameRange::new(Frame(r.start.0 * unit), PageCount(r.count.0 * unit))).collect();
    let mut allocator = kind.build(&ranges, &AllocatorOptions::default());
    let mut free: BTreeSet<u64> = ranges.iter().flat_map(|r| (r.start.0..r.end().0).step_by(unit as usize)).collect();
    let mut vms: Vec<Vec<Extent>> = Vec::new();
    for (op, now_s) in ops.into_iter().zip(0..) {
        match op {
            Op::Come(pages) => {
                let memory = PageCount(pages * unit);
                let predicted = allocator.segments_for(memory, CountingRule::InOrder);
                let before = allocator.free_pages();
                let (mut extents, mut tried) = (Vec::new(), Vec::new());
                let would = allocator.trial(memory, &mut tried);
                let done = allocator.allocate(memory, now_s, &mut extents);
                prop_assert_eq!((would, tried), (done, extents.clone()));
                prop_assert_eq!(done, memory <= before);
                prop_assert_eq!(predicted, done.then(|| count_segments(&extents, CountingRule::InOrder)));
                if kind.keeps_whole() {
                    let expected = naive(kind, &free, pages * unit);
                    prop_assert_eq!(done.then(|| extents.iter().map(|e| e.range()).collect()), expected);
                }
                prop_assert_eq!(before.0 - allocator.free_pages().0, total(&extents).0, "conservation");
                for frame in frames(&extents).step_by(unit as usize) {
                    prop_assert!(free.remove(&(frame / unit * unit)), "frame {} was free", frame);
                }
                vms.push(extents);
            }
            Op::Go(which) if !vms.is_empty() => {
                let extents = vms.swap_remove(which.index(vms.len()));
                free.extend(frames(&extents).step_by(unit as usize).map(|frame| frame / unit * unit));
                extents.iter().for_each(|&extent| allocator.free(extent));
            }
            Op::Go(_) => {}
        }
        allocator.check_invariants();
        let segments = allocator.free_segments();
        prop_assert_eq!(segments.iter().map(|s| s.count.0).sum::<u64>(), allocator.free_pages().0);
        if unit == 1 {
            prop_assert_eq!(&segments, &runs(&free), "merging is maximal");
        } else {
            prop_assert!(segments.windows(2).all(|pair| pair[0].end() < pair[1].start), "merging is maximal");
        }
        let mut sums = [0; MAX_DS];
        allocator.largest_sums(&mut sums);
        let mut sizes: Vec<u64> = segments.iter().map(|s| s.count.0).collect();
        sizes.sort_unstable_by_key(|&size| std::cmp::Reverse(size));
        for (at, sum) in sums.into_iter().enumerate() {
            prop_assert_eq!(u64::from(sum), sizes.iter().take(at + 1).sum::<u64>());
        }
    }
    vms.iter().flatten().for_each(|&extent| allocator.free(extent));
    prop_assert_eq!(allocator.free_segments(), ranges, "all is free again, in as few pieces as at first");
    allocator.check_invariants();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_overlap_conservation_and_maximal_merging(ops in ops(900), kind in prop::sample::select(&AllocatorKind::ALL)) {
        hold(kind, ops, 1)?;
    }

    #[test]
    fn memory_of_whole_gibs(ops in ops(9), kind in prop::sample::select(&[AllocatorKind::Xen, AllocatorKind::LinuxHugetlb])) {
        let gib = 1 << 18;
        let memory = [FrameRange::new(Frame(777), PageCount(20 * gib))];
        let mut allocator = kind.build(&memory, &AllocatorOptions::default());
        let mut vms: Vec<Vec<Extent>> = Vec::new();
        for op in ops {
            match op {
                Op::Come(size) => {
                    let mut extents = Vec::new();
                    let before = allocator.free_pages();
                    let memory = PageCount(size * gib / 2 + size * 77);
                    prop_assert_eq!(allocator.allocate(memory, 0, &mut extents), memory <= before);
                    prop_assert_eq!(before.0 - allocator.free_pages().0, total(&extents).0);
                    vms.push(extents);
                }
                Op::Go(which) if !vms.is_empty() => {
                    vms.swap_remove(which.index(vms.len())).into_iter().for_each(|extent| allocator.free(extent));
                }
                Op::Go(_) => {}
            }
            allocator.check_invariants();
            let mut held: Vec<FrameRange> = vms.iter().flatten().map(|e| e.range()).collect();
            held.extend(allocator.free_segments());
            held.sort_unstable_by_key(|range| range.start);
            prop_assert!(held.windows(2).all(|pair| pair[0].end() == pair[1].start), "every frame is in one place");
            prop_assert_eq!((held[0].start, held.last().unwrap().end()), (Frame(777), Frame(777 + 20 * gib)));
        }
    }
}

#[test]
fn an_exact_fit_is_preferred_to_a_larger_and_a_lower_segment() {
    for kind in [AllocatorKind::CompromisOpt1, AllocatorKind::CompromisOpt2, AllocatorKind::BestFit] {
        let free = [(0, 50), (100, 20), (200, 20), (300, 80)];
        let free: Vec<_> = free.iter().map(|&(at, count)| FrameRange::new(Frame(at), PageCount(count))).collect();
        let mut allocator = kind.build(&free, &AllocatorOptions::default());
        let mut out = Vec::new();
        assert!(allocator.allocate(PageCount(20), 0, &mut out));
        assert_eq!(out, [Extent::ascending(free[1])], "{kind:?}: the lower one of two");
    }
}

#[test]
fn the_options_differ_where_no_segment_is_large_enough() {
    let free = [(0, 50), (100, 20), (200, 30), (300, 80)];
    let free: Vec<_> = free.iter().map(|&(at, count)| FrameRange::new(Frame(at), PageCount(count))).collect();
    let segments = |kind: AllocatorKind, memory| {
        let mut out = Vec::new();
        assert!(kind.build(&free, &AllocatorOptions::default()).allocate(PageCount(memory), 0, &mut out));
        out.iter().map(|extent| (extent.start.0, extent.count.0)).collect::<Vec<_>>()
    };
    assert_eq!(segments(AllocatorKind::CompromisOpt1, 90), [(100, 20), (200, 30), (0, 40)]);
    assert_eq!(segments(AllocatorKind::CompromisOpt2, 90), [(300, 80), (0, 10)]);
    assert_eq!(segments(AllocatorKind::CompromisOpt1, 100), [(100, 20), (300, 80)], "an exact fit for the rest");
    assert_eq!(segments(AllocatorKind::CompromisOpt2, 100), [(300, 80), (100, 20)], "an exact fit for the rest");
    assert_eq!(segments(AllocatorKind::BestFit, 90), [(300, 80), (100, 10)]);
    assert_eq!(segments(AllocatorKind::FirstFit, 90), [(0, 50), (300, 40)]);
}

#[test]
fn a_free_segment_knows_when_the_one_before_it_was_allocated() {
    let memory = [FrameRange::new(Frame(0), PageCount(100))];
    let mut list = FreeList::new(&memory);
    let dates =
        |list: &FreeList| list.descriptors().map(|free| (free.range.start.0, free.before_s)).collect::<Vec<_>>();
    assert_eq!(dates(&list), [(0, None)]);
    list.take(Frame(0), 30, 5);
    list.take(Frame(30), 30, 9);
    assert_eq!(dates(&list), [(60, Some(9))]);
    list.free(FrameRange::new(Frame(0), PageCount(30)));
    assert_eq!(dates(&list), [(0, None), (60, Some(9))]);
    list.take(Frame(0), 10, 12);
    assert_eq!(dates(&list), [(10, Some(12)), (60, Some(9))]);
    list.free(FrameRange::new(Frame(30), PageCount(30)));
    assert_eq!(dates(&list), [(10, Some(12))]);
}

#[test]
#[should_panic(expected = "freed but not allocated")]
fn freeing_twice_is_an_error_of_the_caller() {
    let mut list = FreeList::new(&[FrameRange::new(Frame(0), PageCount(100))]);
    list.take(Frame(0), 30, 0);
    list.free(FrameRange::new(Frame(0), PageCount(40)));
}
