// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of free blocks of `2^order` frames, as Xen and Linux keep them.
//!
//! A batch of requests of one order takes a free block whole: the halves that a split leaves are the smallest blocks that can
//! serve the next request of the batch, and nothing is freed in between. [`Buddy::allocate`] therefore works on whole
//! blocks and yet hands out what one request after the other would (a test holds it to that).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use nestwalk_mem::{Frame, FrameRange, Order, PageCount};

use crate::extent::Extent;

/// Which half of a split block is used; the other goes onto the free list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Half {
    /// The one at lower addresses (Linux, `expand`).
    Lower,
    /// The one at higher addresses (Xen, `alloc_heap_pages`).
    Upper,
}

/// How a buddy allocator behaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// The largest order.
    pub max_order: u8,
    /// Which half is used.
    pub used: Half,
    /// Whether the lowest free block of an order is used first as long as nothing was freed.
    pub lowest_first: bool,
    /// Whether lists are kept apart by the highest bit of the frame's number, and higher ones are searched first (Xen).
    pub zones: bool,
}

/// A block's position on the lists: zone, order, and how recently it was put at the head.
type ListKey = (Reverse<u8>, u8, Reverse<u64>);

/// Free blocks.
#[derive(Clone, Debug)]
pub(super) struct Buddy {
    rules: Rules,
    /// Free blocks by zone and order, the head of each list first.
    lists: BTreeMap<ListKey, u64>,
    /// Free blocks by address: order and list position.
    blocks: BTreeMap<u64, (u8, u64)>,
    free_pages: u64,
    /// Blocks put on a list so far.
    put: u64,
    pub steps: u64,
}

impl Buddy {
    /// All of `memory` is free. Blocks come onto the lists in order of address: each at
    /// the tail with `lowest_first` (Linux, `__free_pages_core`), else at the head (Xen, `init_heap_pages`).
    pub fn new(rules: Rules, memory: &[FrameRange]) -> Self {
        let (lists, blocks) = (BTreeMap::new(), BTreeMap::new());
        let mut buddy = Self { rules, lists, blocks, free_pages: 0, put: 0, steps: 0 };
        let mut initial = Vec::new();
        for range in memory {
            let mut at = range.start.0;
            while at < range.end().0 {
                let order = buddy.largest_at(at, range.end().0 - at);
                initial.push((at, order));
                at += 1 << order;
            }
        }
        if rules.lowest_first {
            initial.reverse();
        }
        initial.into_iter().for_each(|(start, order)| buddy.free_block(start, order));
        buddy.steps = 0;
        buddy
    }

    pub const fn free_pages(&self) -> u64 {
        self.free_pages
    }

    /// Xen's `page_to_zone`: the number of the frame's highest bit.
    fn zone(&self, start: u64) -> Reverse<u8> {
        Reverse(if self.rules.zones { (u64::BITS - start.leading_zeros()) as u8 } else { 0 })
    }

    /// Allocates `blocks` blocks of `order`, or as many as there are, and appends them to `out` in the order in which they
    /// were handed out. Returns how many.
    pub fn allocate(&mut self, order: Order, blocks: u64, out: &mut Vec<Extent>) -> u64 {
        let mut missing = blocks;
        while missing > 0 {
            let Some((key, start)) = self.find(order) else { break };
            let pages = 1 << key.1;
            self.lists.remove(&key);
            self.blocks.remove(&start);
            self.free_pages -= pages;
            let taken = pages.min(missing << order.0);
            missing -= taken >> order.0;
            let (used, rest) = match self.rules.used {
                Half::Lower => ((start, taken), (start + taken, pages - taken)),
                Half::Upper => ((start + pages - taken, taken), (start, pages - taken)),
            };
            let used = FrameRange::new(Frame(used.0), PageCount(used.1));
            out.push(match self.rules.used {
                Half::Lower => Extent::ascending(used),
                Half::Upper => Extent::blocks_descending(used, order),
            });
            self.put_range(rest.0, rest.1);
        }
        blocks - missing
    }

    /// The block that a request of `order` is served from: zones from the highest down, orders from the smallest up, and
    /// the head of the list (Xen's `get_free_buddy`, Linux's `__rmqueue_smallest`).
    fn find(&mut self, order: Order) -> Option<(ListKey, u64)> {
        let mut zone = Reverse(u8::MAX);
        loop {
            let (&key, &start) = self.lists.range((zone, order.0, Reverse(u64::MAX))..).next()?;
            self.steps += 1;
            if key.1 >= order.0 {
                return Some((key, start));
            }
            // The smallest block of the next zone is too small: are there larger ones?
            zone = key.0;
        }
    }

    /// Frees `range`: each block is merged with its buddy as far as possible.
    pub fn free(&mut self, range: FrameRange) {
        let (mut at, end) = (range.start.0, range.end().0);
        while at < end {
            let order = self.largest_at(at, end - at);
            self.free_block(at, order);
            at += 1 << order;
        }
    }

    /// The largest order of a block that begins at `start` and has at most `pages`. Frame 0 is always alone, so that no block
    /// spans two zones (Xen keeps it out of its lists for the same reason, see `init_heap_pages`).
    fn largest_at(&self, start: u64, pages: u64) -> u8 {
        let alignment = match start {
            0 if self.rules.zones => 0,
            0 => u32::from(self.rules.max_order),
            _ => start.trailing_zeros(),
        };
        alignment.min(pages.ilog2()).min(u32::from(self.rules.max_order)) as u8
    }

    fn free_block(&mut self, start: u64, order: u8) {
        let (mut start, mut order) = (start, order);
        self.free_pages += 1 << order;
        while order < self.rules.max_order {
            let buddy = start ^ (1 << order);
            self.steps += 1;
            if self.rules.zones && (buddy == 0 || start == 0) {
                break;
            }
            let Some(&(its_order, at)) = self.blocks.get(&buddy) else { break };
            if its_order != order {
                break;
            }
            self.blocks.remove(&buddy);
            self.lists.remove(&(self.zone(buddy), order, Reverse(at)));
            start = start.min(buddy);
            order += 1;
        }
        self.put_block(start, order);
    }

    /// Puts free memory that cannot be merged at the heads of the lists.
    fn put_range(&mut self, start: u64, pages: u64) {
        let (mut at, end) = (start, start + pages);
        self.free_pages += pages;
        while at < end {
            let order = self.largest_at(at, end - at);
            self.put_block(at, order);
            at += 1 << order;
        }
    }

    fn put_block(&mut self, start: u64, order: u8) {
        self.put += 1;
        self.blocks.insert(start, (order, self.put));
        self.lists.insert((self.zone(start), order, Reverse(self.put)), start);
    }

    /// Free memory as maximal ranges, ascending: neighbouring blocks are joined whatever their order.
    pub fn free_segments(&self) -> Vec<FrameRange> {
        let mut ranges: Vec<FrameRange> = Vec::new();
        for (&start, &(order, _)) in &self.blocks {
            match ranges.last_mut() {
                Some(last) if last.end().0 == start => last.count.0 += 1 << order,
                _ => ranges.push(FrameRange::new(Frame(start), PageCount(1 << order))),
            }
        }
        ranges
    }

    /// Panics if the lists contradict each other or a block should have been merged.
    pub fn check_invariants(&self) {
        assert_eq!(self.lists.len(), self.blocks.len());
        let (mut end, mut pages) = (0, 0);
        for (&start, &(order, at)) in &self.blocks {
            assert!(start >= end && start.is_multiple_of(1 << order) && order <= self.rules.max_order);
            assert_eq!(self.lists.get(&(self.zone(start), order, Reverse(at))), Some(&start));
            let buddy = start ^ (1 << order);
            let alone = order == self.rules.max_order || (self.rules.zones && (buddy == 0 || start == 0));
            let free = self.blocks.get(&buddy).is_some_and(|&(its_order, _)| its_order == order);
            assert!(alone || !free, "blocks {start:#x} and {buddy:#x} of order {order} are not merged");
            (end, pages) = (start + (1 << order), pages + (1 << order));
        }
        assert_eq!(pages, self.free_pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn buddy(used: Half, zones: bool) -> Buddy {
        let memory = [(0, 3000), (4096, 8192)].map(|(start, count)| FrameRange::new(Frame(start), PageCount(count)));
        Buddy::new(Rules { max_order: 12, used, lowest_first: !zones, zones }, &memory)
    }

    /// The frames of `extents` in the order in which the guest sees them.
    fn frames(extents: &[Extent]) -> Vec<u64> {
        let blocks = |extent: &Extent| {
            let order = extent.descending.unwrap_or(Order(0));
            let blocks: Vec<u64> = (extent.start.0..extent.range().end().0).step_by(1 << order.0).collect();
            match extent.descending {
                None => blocks,
                Some(_) => blocks.into_iter().rev().flat_map(|start| start..start + order.frames()).collect(),
            }
        };
        extents.iter().flat_map(blocks).collect()
    }

    proptest! {
        #[test]
        fn a_batch_gets_what_single_requests_get(
            batches in prop::collection::vec((0..10u8, 1..300u64, any::<bool>()), 1..20),
            upper: bool, zones: bool,
        ) {
            let used = if upper { Half::Upper } else { Half::Lower };
            let (mut whole, mut single) = (buddy(used, zones), buddy(used, zones));
            for (order, blocks, freed) in batches {
                let (mut by_batch, mut by_one) = (Vec::new(), Vec::new());
                let done = whole.allocate(Order(order), blocks, &mut by_batch);
                let one_by_one = (0..blocks).map(|_| single.allocate(Order(order), 1, &mut by_one)).sum::<u64>();
                prop_assert_eq!(done, one_by_one);
                prop_assert_eq!(frames(&by_batch), frames(&by_one));
                if freed {
                    by_batch.iter().for_each(|extent| whole.free(extent.range()));
                    by_batch.iter().for_each(|extent| single.free(extent.range()));
                }
                whole.check_invariants();
                prop_assert_eq!(&whole.blocks.keys().collect::<Vec<_>>(), &single.blocks.keys().collect::<Vec<_>>());
                prop_assert_eq!(whole.lists.values().collect::<Vec<_>>(), single.lists.values().collect::<Vec<_>>());
            }
        }
    }
}
