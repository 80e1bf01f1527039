// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of free blocks of `2^order` frames, as Xen and Linux keep them.
//!
//! A batch of requests of one order takes a free block whole: the halves that a split leaves are
//! the smallest blocks that can serve the next request of the batch, and nothing is freed in
//! between. [`Buddy::allocate`] therefore works on whole blocks and yet hands out what one request
//! after the other would (a test holds it to that).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;

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
    /// Whether lists are kept apart by the highest bit of the frame's number, and higher ones are
    /// searched first (Xen).
    pub zones: bool,
}

impl Rules {
    /// Xen's `page_to_zone`: the number of the frame's highest bit.
    fn zone(&self, start: u64) -> Reverse<u8> {
        Reverse(if self.zones { (u64::BITS - start.leading_zeros()) as u8 } else { 0 })
    }

    /// The largest order of a block that begins at `start` and has at most `pages`. Frame 0 is
    /// always alone, so that no block spans two zones (Xen keeps it out of its lists for the same
    /// reason, see `init_heap_pages`).
    fn largest_at(&self, start: u64, pages: u64) -> u8 {
        let alignment = match start {
            0 if self.zones => 0,
            0 => u32::from(self.max_order),
            _ => start.trailing_zeros(),
        };
        alignment.min(pages.ilog2()).min(u32::from(self.max_order)) as u8
    }
}

/// A block's position on the lists: zone, order, and how recently it was put at the head.
pub(super) type ListKey = (Reverse<u8>, u8, Reverse<u64>);

/// Free blocks by zone and order, the head of each list first.
type Lists = BTreeMap<ListKey, u64>;

/// What requests are served from: the allocator's own lists, or those of a [`Trial`].
pub(super) trait Blocks {
    fn rules(&self) -> Rules;

    /// The block that a request of `order` is served from: zones from the highest down, orders from
    /// the smallest up, and the head of the list (Xen's `get_free_buddy`, Linux's
    /// `__rmqueue_smallest`).
    fn find(&mut self, order: Order) -> Option<(ListKey, u64)>;

    /// Takes the block that [`Blocks::find`] found off its list.
    fn take(&mut self, key: ListKey, start: u64);

    /// Puts a free block at the head of its list.
    fn put(&mut self, start: u64, order: u8);

    /// Allocates `blocks` blocks of `order`, or as many as there are, and appends them to `out` in
    /// the order in which they were handed out. Returns how many.
    fn allocate(&mut self, order: Order, blocks: u64, out: &mut Vec<Extent>) -> u64 {
        let rules = self.rules();
        let mut missing = blocks;
        while missing > 0 {
            let Some((key, start)) = self.find(order) else { break };
            self.take(key, start);
            let pages = 1 << key.1;
            let taken = pages.min(missing << order.0);
            missing -= taken >> order.0;
            let (used, rest) = match rules.used {
                Half::Lower => ((start, taken), start + taken..start + pages),
                Half::Upper => ((start + pages - taken, taken), start..start + pages - taken),
            };
            let used = FrameRange::new(Frame(used.0), PageCount(used.1));
            out.push(match rules.used {
                Half::Lower => Extent::ascending(used),
                Half::Upper => Extent::blocks_descending(used, order),
            });
            let mut at = rest.start;
            while at < rest.end {
                let order = rules.largest_at(at, rest.end - at);
                self.put(at, order);
                at += 1 << order;
            }
        }
        blocks - missing
    }
}

/// Free blocks.
#[derive(Clone, Debug)]
pub(super) struct Buddy {
    rules: Rules,
    lists: Lists,
    /// Free blocks by address: order and list position.
    blocks: BTreeMap<u64, (u8, u64)>,
    free_pages: u64,
    /// Blocks put on a list so far.
    put: u64,
    pub steps: u64,
}

impl Buddy {
    /// All of `memory` is free. Blocks come onto the lists in order of address: each at the tail
    /// with `lowest_first` (Linux, `__free_pages_core`), else at the head (Xen, `init_heap_pages`).
    pub fn new(rules: Rules, memory: &[FrameRange]) -> Self {
        let (lists, blocks) = (BTreeMap::new(), BTreeMap::new());
        let mut buddy = Self { rules, lists, blocks, free_pages: 0, put: 0, steps: 0 };
        let mut initial = Vec::new();
        for range in memory {
            let mut at = range.start.0;
            while at < range.end().0 {
                let order = rules.largest_at(at, range.end().0 - at);
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

    /// Frees `range`: each block is merged with its buddy as far as possible.
    pub fn free(&mut self, range: FrameRange) {
        let (mut at, end) = (range.start.0, range.end().0);
        while at < end {
            let order = self.rules.largest_at(at, end - at);
            self.free_block(at, order);
            at += 1 << order;
        }
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
            self.lists.remove(&(self.rules.zone(buddy), order, Reverse(at)));
            start = start.min(buddy);
            order += 1;
        }
        self.free_pages -= 1 << order;
        self.put(start, order);
    }

    /// Free memory as maximal ranges, ascending: neighbouring blocks are joined whatever their
    /// order.
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
            assert_eq!(self.lists.get(&(self.rules.zone(start), order, Reverse(at))), Some(&start));
            let buddy = start ^ (1 << order);
            let alone = order == self.rules.max_order || (self.rules.zones && (buddy == 0 || start == 0));
            let free = self.blocks.get(&buddy).is_some_and(|&(its_order, _)| its_order == order);
            assert!(alone || !free, "blocks {start:#x} and {buddy:#x} of order {order} are not merged");
            (end, pages) = (start + (1 << order), pages + (1 << order));
        }
        assert_eq!(pages, self.free_pages);
    }
}

impl Blocks for Buddy {
    fn rules(&self) -> Rules {
        self.rules
    }

    fn find(&mut self, order: Order) -> Option<(ListKey, u64)> {
        first(&self.lists, |_| None, order, &mut self.steps)
    }

    fn take(&mut self, key: ListKey, start: u64) {
        self.lists.remove(&key);
        self.blocks.remove(&start);
        self.free_pages -= 1 << key.1;
    }

    fn put(&mut self, start: u64, order: u8) {
        self.put += 1;
        self.free_pages += 1 << order;
        self.blocks.insert(start, (order, self.put));
        self.lists.insert((self.rules.zone(start), order, Reverse(self.put)), start);
    }
}

/// Positions on lists, by zone and order.
type Taken = BTreeMap<(Reverse<u8>, u8), ListKey>;

/// What requests would be served with, without serving them: the lists of `base` less what was
/// taken from them, and the blocks that splits have left. Costs what is allocated, not what is
/// free.
#[derive(Debug)]
pub(super) struct Trial<'a> {
    base: &'a Buddy,
    /// The last block taken from each list of `base`: they are taken from the head.
    taken: Taken,
    /// Blocks that splits have left.
    left: Lists,
    put: u64,
}

impl<'a> Trial<'a> {
    pub fn new(base: &'a Buddy) -> Self {
        Self { base, taken: Taken::new(), left: BTreeMap::new(), put: base.put }
    }
}

/// The first block of `lists` that serves `order` and was not taken, where `taken` knows the last
/// block that was taken from a list. Each list looked at is one of `steps`.
#[inline]
fn first(
    lists: &Lists,
    taken: impl Fn(ListKey) -> Option<ListKey>,
    order: Order,
    steps: &mut u64,
) -> Option<(ListKey, u64)> {
    let mut from = Bound::Included((Reverse(u8::MAX), order.0, Reverse(u64::MAX)));
    loop {
        let (&key, &start) = lists.range((from, Bound::Unbounded)).next()?;
        *steps += 1;
        if key.1 < order.0 {
            // The smallest block of the next zone is too small: are there larger ones?
            from = Bound::Included((key.0, order.0, Reverse(u64::MAX)));
            continue;
        }
        match taken(key).filter(|&last| key <= last) {
            None => return Some((key, start)),
            Some(last) => from = Bound::Excluded(last),
        }
    }
}

impl Blocks for Trial<'_> {
    fn rules(&self) -> Rules {
        self.base.rules
    }

    fn find(&mut self, order: Order) -> Option<(ListKey, u64)> {
        // A trial serves no VM: its steps are not counted.
        let steps = &mut 0;
        let last_taken = |key: ListKey| self.taken.get(&(key.0, key.1)).copied();
        let whole = first(&self.base.lists, last_taken, order, steps);
        let left = first(&self.left, |_| None, order, steps);
        whole.into_iter().chain(left).min()
    }

    fn take(&mut self, key: ListKey, _start: u64) {
        if self.left.remove(&key).is_none() {
            self.taken.insert((key.0, key.1), key);
        }
    }

    fn put(&mut self, start: u64, order: u8) {
        self.put += 1;
        self.left.insert((self.base.rules.zone(start), order, Reverse(self.put)), start);
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
                let (mut by_batch, mut by_one, mut tried) = (Vec::new(), Vec::new(), Vec::new());
                let mut trial = Trial::new(&whole);
                // In two parts: the second is served from what the first has left.
                trial.allocate(Order(order), blocks / 2, &mut tried);
                trial.allocate(Order(order), blocks - blocks / 2, &mut tried);
                let done = whole.allocate(Order(order), blocks, &mut by_batch);
                let one_by_one = (0..blocks).map(|_| single.allocate(Order(order), 1, &mut by_one)).sum::<u64>();
                prop_assert_eq!(done, one_by_one);
                prop_assert_eq!(frames(&by_batch), frames(&by_one));
                prop_assert_eq!(frames(&tried), frames(&by_one));
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
