// SPDX-License-Identifier: MIT OR Apache-2.0
//! What many frees of single frames leave, found out without doing them one after the other.
//!
//! Frames that are freed in random order each touch records all over the memory. But what the buddy
//! lists are in the end follows from when each frame reached them. A free block is the largest
//! around its frames that has reached them whole. It was put into its list when its last frame
//! came: first, or last if the block that its own would merge with was free then
//! (`buddy_merge_likely`). Blocks that were merged away leave no trace. So the frames' times are
//! written down, the blocks found from them in one pass over the memory, and put into their lists
//! in the order of their times.

use super::pcp::PerCpu;
use super::table::{Head, Kind, MAX_ORDER, PAGEBLOCK_ORDER, Pfn32, State};
use super::zone::Zone;
use super::{Cpu, Order, PhysicalMemory};
use crate::addr::Frame;

/// Frames of a block of the largest order.
const LARGEST: usize = 1 << MAX_ORDER;
/// A frame that does not reach the buddy lists: in use, or in a per-CPU list.
const NEVER: u32 = u32::MAX;
/// A frame that was in the buddy lists before.
const BEFORE: u32 = 0;
/// How many frees, or blocks, before its own a record is fetched.
const AHEAD: usize = 24;

/// Blocks that are to be put into a list, by the time of their last frame (upper half) and their
/// first frame (lower half).
#[derive(Default)]
struct Arrivals {
    first: Vec<u64>,
    last: Vec<u64>,
}

impl PhysicalMemory {
    /// Frees `frames`, which are allocated one by one and not shared, in this order, by all
    /// processors in turn.
    pub(super) fn free_in_turn(&mut self, frames: &[Pfn32]) {
        // Of the other kinds, there are other lists.
        let movable = |head: Head| head.order() == 0 && head.kind() == Kind::Movable;
        let are_alike = self.zeroed.is_none()
            && self.zone.table.blocks.iter().all(|block| block.kind == Kind::Movable)
            && self
                .cpus
                .iter()
                .flat_map(|cpu| cpu.iter())
                .all(|(pfn, order)| movable(self.zone.table.head(pfn, order)));
        if are_alike && frames.len() < NEVER as usize - 1 { self.free_at_once(frames) } else { self.free_each(frames) }
    }

    /// One after the other.
    fn free_each(&mut self, frames: &[Pfn32]) {
        let cpus = self.cpus.len();
        for (index, &pfn) in frames.iter().enumerate() {
            if let Some(&later) = frames.get(index + AHEAD) {
                self.zone.table.prefetch(later);
            }
            self.free(Frame(pfn.into()), Order::PAGE, Cpu((index % cpus) as u16));
        }
    }

    /// All at once, where all pageblocks are movable and per-CPU lists have nothing but frames of
    /// them.
    fn free_at_once(&mut self, frames: &[Pfn32]) {
        let had_free = self.zone.free > 0;
        let times = self.free_to_lists(frames);
        let mut arrivals: [Arrivals; MAX_ORDER as usize + 1] = Default::default();
        for (block, times) in (0..).step_by(LARGEST).zip(times.chunks_exact(LARGEST)) {
            let tree = Tree::of(times);
            tree.visit(1, &mut |node, order| {
                let (pfn, time) = (block + ((node as Pfn32) << order) - LARGEST as Pfn32, tree.0[node]);
                if had_free {
                    self.zone.remove_inside(pfn, order);
                }
                self.zone.table.wipe(pfn, order);
                arrivals[usize::from(order)].add(tree.merge_was_likely(node, order), time, pfn);
            });
        }
        for (order, arrivals) in (0..).zip(arrivals) {
            arrivals.put(&mut self.zone, order);
        }
        for (pfn, order) in self.cpus.iter().flat_map(PerCpu::iter) {
            self.zone.table.set_unlisted(pfn, Head::new(State::PerCpu, order, Kind::Movable));
        }
        self.allocated -= frames.len() as u64;
    }

    /// Frees `frames` to the per-CPU lists alone, and says when each frame of the memory left them
    /// for the buddy lists: from 1 on, or [`BEFORE`], or [`NEVER`].
    fn free_to_lists(&mut self, frames: &[Pfn32]) -> Vec<u32> {
        let Self { zone, cpus, limits, .. } = self;
        let mut times = vec![NEVER; zone.table.len() as usize];
        crate::huge::advise(&mut times);
        for order in 0..=MAX_ORDER {
            for pfn in zone.lists.iter(&zone.table, order, Kind::Movable) {
                times[pfn as usize..][..1 << order].fill(BEFORE);
            }
        }
        let (mut now, mut cpu) = (0, 0);
        for &pfn in frames {
            cpus[cpu].free_page(*limits, pfn, |pfn| {
                now += 1;
                times[pfn as usize] = now;
            });
            cpu = if cpu + 1 == cpus.len() { 0 } else { cpu + 1 };
        }
        zone.free += u64::from(now);
        times
    }
}

impl Zone {
    /// Takes out of the lists what lies inside of a block that is to become free as a whole.
    fn remove_inside(&mut self, pfn: Pfn32, order: u8) {
        let end = pfn + (1 << order);
        let mut at = pfn;
        while at < end {
            let (_, head) = self.head_at(at);
            let is_free = head.state() == State::Free;
            if is_free {
                self.lists.remove(&mut self.table, at, head.order());
            }
            at += if is_free { 1 << head.order() } else { 1 };
        }
    }
}

/// When the last frame of each part of a block of the largest order reached the buddy lists: node 1
/// is the block, `2 n` and `2 n + 1` are the halves of `n`.
struct Tree([u32; 2 * LARGEST]);

impl Tree {
    fn of(times: &[u32]) -> Self {
        let mut nodes = [NEVER; 2 * LARGEST];
        nodes[LARGEST..].copy_from_slice(times);
        let mut below = LARGEST;
        while below > 1 {
            let (upper, lower) = nodes.split_at_mut(below);
            for (node, halves) in upper[below / 2..].iter_mut().zip(lower.as_chunks().0) {
                let [left, right] = *halves;
                *node = left.max(right);
            }
            below /= 2;
        }
        Self(nodes)
    }

    /// Calls `found` for each block at or below `node` that has become free as a whole, with its
    /// order.
    fn visit(&self, node: usize, found: &mut impl FnMut(usize, u8)) {
        match self.0[node] {
            NEVER if node < LARGEST => {
                self.visit(2 * node, found);
                self.visit(2 * node + 1, found);
            }
            NEVER | BEFORE => {}
            _ => found(node, MAX_ORDER - node.ilog2() as u8),
        }
    }

    /// Whether, when the block at `node` became free, the one was that it and its buddy would merge
    /// with (`buddy_merge_likely`).
    fn merge_was_likely(&self, node: usize, order: u8) -> bool {
        order < PAGEBLOCK_ORDER && self.0[(node / 2) ^ 1] < self.0[node]
    }
}

impl Arrivals {
    fn add(&mut self, last: bool, time: u32, pfn: Pfn32) {
        let end = if last { &mut self.last } else { &mut self.first };
        end.push(u64::from(time) << 32 | u64::from(pfn));
    }

    /// Puts the blocks into the lists of their `order`.
    fn put(mut self, zone: &mut Zone, order: u8) {
        let pfn = |arrival: u64| arrival as Pfn32;
        for end in [&mut self.first, &mut self.last] {
            end.sort_unstable();
        }
        for (index, &arrival) in self.first.iter().enumerate() {
            self.first.get(index + AHEAD).iter().for_each(|&&later| zone.table.prefetch(pfn(later)));
            zone.lists.push_front(&mut zone.table, pfn(arrival), order, Kind::Movable);
        }
        for (index, &arrival) in self.last.iter().enumerate() {
            self.last.get(index + AHEAD).iter().for_each(|&&later| zone.table.prefetch(pfn(later)));
            zone.lists.push_back(&mut zone.table, pfn(arrival), order, Kind::Movable);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MemoryConfig, MigrateType};
    use super::*;
    use crate::addr::PageCount;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_at_once_leaves_what_one_after_the_other_does(
            cpus in 1u16..4,
            blocks in 1u64..9,
            (used, kept) in (0usize..=100, 0usize..=20),
            // Frames that are freed before, so that the lists are in no order.
            early in 0usize..3000,
            step in prop::sample::select(vec![1usize, 7, 1021, 4099]),
        ) {
            let config = MemoryConfig { frames: PageCount(blocks << MAX_ORDER), cpus, min_free: PageCount(64) };
            let memory = || {
                let mut memory = PhysicalMemory::new(&config).unwrap();
                let count = (blocks << MAX_ORDER) as usize * used / 100;
                let frames: Vec<Pfn32> = (0..count)
                    .map_while(|at| memory.alloc(Order::PAGE, MigrateType::Movable, Cpu(at as u16 % cpus)))
                    .map(|frame| frame.0 as Pfn32)
                    .collect();
                // A walk through them that is scattered, near or far.
                let mut frames: Vec<Pfn32> = (0..step).flat_map(|at| frames.iter().copied().skip(at).step_by(step)).collect();
                let rest = frames.split_off(early.min(frames.len()));
                memory.free_each(&frames);
                let kept = rest.len() * kept / 100;
                (memory, rest[kept..].to_vec())
            };
            let ((mut expected, frames), (mut found, _)) = (memory(), memory());
            expected.free_each(&frames);
            found.free_at_once(&frames);
            found.check_invariants();
            prop_assert_eq!(found.save(), expected.save());
            prop_assert_eq!(found.free_frames(), expected.free_frames());
        }
    }

    #[test]
    fn other_kinds_of_frames_are_freed_one_after_the_other() {
        let config = MemoryConfig { frames: PageCount(1 << 14), cpus: 2, min_free: PageCount(64) };
        let mut memory = PhysicalMemory::new(&config).unwrap();
        memory.alloc(Order::PAGE, MigrateType::Unmovable, Cpu(0)).unwrap();
        let frames: Vec<_> = (0..5000)
            .filter_map(|_| memory.alloc(Order::PAGE, MigrateType::Movable, Cpu(1)))
            .map(|frame| frame.0 as Pfn32)
            .collect();
        memory.free_in_turn(&frames);
        memory.check_invariants();
    }
}
