// SPDX-License-Identifier: MIT OR Apache-2.0
//! Per-CPU lists of free blocks in front of the buddy lists (Linux's `per_cpu_pages`).
//!
//! Orders 0 to 3 have a list for each migrate type; 2 MiB blocks have one for movable and one for
//! the rest. Lists are filled from the buddy lists at the tail, handed out from the head, freed to
//! at the head and emptied from the tail.

use std::collections::VecDeque;

use super::table::{Head, Kind, PAGEBLOCK_ORDER, Pfn32, State, Table};
use super::zone::Zone;

/// Largest order, apart from a pageblock's, that has per-CPU lists (`PAGE_ALLOC_COSTLY_ORDER`).
pub(super) const COSTLY_ORDER: u8 = 3;
/// Kinds that have lists of their own (`MIGRATE_PCPTYPES`).
const KINDS: usize = 3;
/// Lists of small blocks (`NR_LOWORDER_PCP_LISTS`).
const LOW_LISTS: usize = KINDS * (COSTLY_ORDER as usize + 1);
/// All lists (`NR_PCP_LISTS`).
const LISTS: usize = LOW_LISTS + 2;
/// How far the number of frames freed at once grows, as a shift (`CONFIG_PCP_BATCH_SCALE_MAX`).
const BATCH_SCALE_MAX: u32 = 5;

/// Whether blocks of `order` go through the per-CPU lists (`pcp_allowed_order`).
#[inline]
pub(super) const fn has_lists(order: u8) -> bool {
    order <= COSTLY_ORDER || order == PAGEBLOCK_ORDER
}

/// The list of an order and kind (`order_to_pindex`).
#[inline]
const fn list_of(order: u8, kind: Kind) -> usize {
    if order > COSTLY_ORDER {
        LOW_LISTS + matches!(kind, Kind::Movable) as usize
    } else {
        KINDS * order as usize + kind as usize
    }
}

/// The order of a list's blocks (`pindex_to_order`).
const fn order_of(list: usize) -> u8 {
    if list >= LOW_LISTS { PAGEBLOCK_ORDER } else { (list / KINDS) as u8 }
}

/// When lists are filled and emptied, the same for all processors.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Frames moved at once.
    pub(super) batch: u32,
    /// Frames at which a free empties the lists in part.
    pub(super) high: u32,
}

/// One processor's lists.
pub(super) struct PerCpu {
    lists: [VecDeque<Pfn32>; LISTS],
    /// Frames in all lists.
    count: u32,
    /// Grows with frees, shrinks with allocations: how many batches are freed at once, as a shift.
    free_factor: u32,
}

impl PerCpu {
    pub(super) fn new() -> Self {
        Self { lists: Default::default(), count: 0, free_factor: 0 }
    }

    /// Frames in all lists.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// A block of an order that has lists (`rmqueue_pcplist`). Its head still says
    /// [`State::PerCpu`].
    #[inline(always)]
    pub(super) fn alloc(&mut self, zone: &mut Zone, limits: Limits, order: u8, kind: Kind) -> Option<Pfn32> {
        self.free_factor >>= 1;
        let list = list_of(order, kind);
        let pfn = match self.lists[list].pop_front() {
            Some(pfn) => pfn,
            None => self.refill(zone, limits, order, kind)?,
        };
        self.count -= 1 << order;
        Some(pfn)
    }

    /// Fills an empty list and takes its first block (`__rmqueue_pcplist`, `rmqueue_bulk`). A first
    /// attempt ends early rather than split a pageblock between kinds.
    #[cold]
    #[inline(never)]
    fn refill(&mut self, zone: &mut Zone, limits: Limits, order: u8, kind: Kind) -> Option<Pfn32> {
        let batch = if limits.batch > 1 { (limits.batch >> order).max(2) } else { 1 };
        let first = zone.first_min_steal(order);
        if self.bulk(zone, order, kind, batch, first) == 0 && first > order {
            self.bulk(zone, order, kind, batch, order);
        }
        self.lists[list_of(order, kind)].pop_front()
    }

    fn bulk(&mut self, zone: &mut Zone, order: u8, kind: Kind, batch: u32, min_steal: u8) -> u32 {
        let list = &mut self.lists[list_of(order, kind)];
        let head = Head::new(State::PerCpu, order, kind);
        let mut got = 0;
        while got < batch {
            let Some((start, count)) = zone.rmqueue(order, kind, batch - got, min_steal) else { break };
            zone.table.set_unlisted_run(start, head, count);
            if order == 0 {
                list.extend(start..start + count);
            } else {
                list.extend((start..start + (count << order)).step_by(1 << order));
            }
            got += count;
        }
        self.count += got << order;
        got
    }

    /// Frees a blank block of an order that has lists (`free_unref_page_commit`).
    #[inline]
    pub(super) fn free(&mut self, zone: &mut Zone, limits: Limits, pfn: Pfn32, order: u8, kind: Kind) {
        zone.table.set_unlisted(pfn, Head::new(State::PerCpu, order, kind));
        let list = list_of(order, kind);
        if let Some(count) = self.put(limits, pfn, order, list) {
            self.empty(zone, count, list);
        }
    }

    /// The same of a frame of a movable pageblock, where the lists have no others: records stay as
    /// they are, and `reached` is told which frames go to the buddy lists.
    #[inline]
    pub(super) fn free_page(&mut self, limits: Limits, pfn: Pfn32, mut reached: impl FnMut(Pfn32)) {
        const LIST: usize = list_of(0, Kind::Movable);
        if let Some(count) = self.put(limits, pfn, 0, LIST) {
            let count = count.min(self.count);
            let pages = &mut self.lists[LIST];
            (0..count).filter_map(|_| pages.pop_back()).for_each(&mut reached);
            self.count -= count;
        }
    }

    /// Puts a block first in its list. How many frames are then to be freed, if the lists are full.
    #[inline(always)]
    fn put(&mut self, limits: Limits, pfn: Pfn32, order: u8, list: usize) -> Option<u32> {
        self.lists[list].push_front(pfn);
        self.count += 1 << order;
        let free_high = self.free_factor != 0 && order != 0 && order <= COSTLY_ORDER;
        let high = if free_high { 0 } else { limits.high };
        (self.count >= high).then(|| if free_high { self.count } else { self.how_many(limits) })
    }

    /// How many frames to free when the lists are full: twice as many each time that nothing was
    /// allocated meanwhile (`nr_pcp_free`).
    fn how_many(&mut self, limits: Limits) -> u32 {
        let most = limits.high - limits.batch;
        let count = limits.batch << self.free_factor;
        if count < most && self.free_factor < BATCH_SCALE_MAX {
            self.free_factor += 1;
        }
        count.clamp(limits.batch, most)
    }

    /// Returns `count` frames to the buddy lists: all of the list `first`, last block first, then
    /// the next lists round robin (`free_pcppages_bulk`).
    #[cold]
    #[inline(never)]
    fn empty(&mut self, zone: &mut Zone, count: u32, first: usize) {
        let mut left = i64::from(count.min(self.count));
        let mut list = first;
        while left > 0 {
            let order = order_of(list);
            while left > 0 {
                let Some(pfn) = self.lists[list].pop_back() else { break };
                zone.prefetch_free_one(&self.lists[list], order);
                left -= 1 << order;
                self.count -= 1 << order;
                let kind = zone.table.head(pfn, order).kind();
                zone.table.absorb(pfn, order);
                zone.free_one(pfn, order, kind);
            }
            list = if list + 1 == LISTS { 0 } else { list + 1 };
        }
    }

    /// Returns everything (`drain_pages_zone`).
    pub(super) fn drain(&mut self, zone: &mut Zone, limits: Limits) {
        while self.count > 0 {
            self.empty(zone, limits.batch << BATCH_SCALE_MAX, 0);
        }
    }

    /// How many batches are freed at once, as a shift.
    pub(super) fn free_factor(&self) -> u32 {
        self.free_factor
    }

    /// Sets that.
    pub(super) fn set_free_factor(&mut self, factor: u32) {
        self.free_factor = factor;
    }

    /// The lists, each with the order of its blocks, head to tail.
    pub(super) fn lists(&self) -> impl Iterator<Item = (u8, &VecDeque<Pfn32>)> + '_ {
        self.lists.iter().enumerate().map(|(list, blocks)| (order_of(list), blocks))
    }

    /// Puts a blank block at the tail of a list, as it was when the memory was saved.
    pub(super) fn restore(&mut self, table: &mut Table, list: usize, pfn: Pfn32) {
        let kind = match list {
            LOW_LISTS.. if list == LOW_LISTS => Kind::Unmovable,
            LOW_LISTS.. => Kind::Movable,
            _ => Kind::ALL[list % KINDS],
        };
        table.set_unlisted(pfn, Head::new(State::PerCpu, order_of(list), kind));
        self.lists[list].push_back(pfn);
        self.count += 1 << order_of(list);
    }

    /// All blocks with their orders, list by list, head to tail.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Pfn32, u8)> + '_ {
        self.lists.iter().enumerate().flat_map(|(list, blocks)| blocks.iter().map(move |&pfn| (pfn, order_of(list))))
    }

    /// Whether `count` is the sum over the lists.
    pub(super) fn count_agrees(&self) -> bool {
        u64::from(self.count) == self.iter().map(|(_, order)| 1u64 << order).sum::<u64>()
    }
}
