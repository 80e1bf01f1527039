// SPDX-License-Identifier: MIT OR Apache-2.0
//! The buddy allocator proper: what Linux does under `zone->lock`.
//!
//! The whole memory is one zone. Which end of a list a block joins, and which block is split,
//! follow Linux 6.1 to the letter, since that order decides which frames neighbouring pages of a
//! program get.

use std::collections::VecDeque;

use super::lists::FreeLists;
use super::table::{Head, Kind, MAX_ORDER, NIL, PAGEBLOCK, PAGEBLOCK_ORDER, Pfn32, State, Table};

/// How many frees before its own a block and its buddies are fetched.
const FAR: usize = 16;
/// How many before it the neighbours of its buddies in the lists are.
const NEAR: usize = 10;

/// Where `kind` steals from when its own lists are empty (`fallbacks`).
const fn fallbacks(kind: Kind) -> [Kind; 2] {
    match kind {
        Kind::Unmovable => [Kind::Reclaimable, Kind::Movable],
        Kind::Movable => [Kind::Reclaimable, Kind::Unmovable],
        Kind::Reclaimable => [Kind::Unmovable, Kind::Movable],
    }
}

/// Whether to steal all free blocks of the pageblock along with one of `order`
/// (`can_steal_fallback`).
const fn can_steal(order: u8, kind: Kind) -> bool {
    order >= PAGEBLOCK_ORDER / 2 || matches!(kind, Kind::Reclaimable | Kind::Unmovable)
}

/// Blocks, their records and the lists of the free ones.
pub(super) struct Zone {
    pub(super) table: Table,
    pub(super) lists: FreeLists,
    /// Frames in the buddy lists.
    pub(super) free: u64,
    /// Whether a batch rather ends early than steal less than a pageblock (`ALLOC_NOFRAGMENT`).
    pub(super) nofragment: bool,
}

impl Zone {
    /// All free, in blocks of the largest order, lowest address first (`memblock_free_all` frees
    /// upwards and to the tail). Every pageblock starts movable (`memmap_init_range`).
    pub(super) fn new(frames: u32, nofragment: bool) -> Self {
        let mut zone = Self { table: Table::new(frames), lists: FreeLists::new(), free: u64::from(frames), nofragment };
        for pfn in (0..frames).step_by(1 << MAX_ORDER) {
            zone.lists.push_back(&mut zone.table, pfn, MAX_ORDER, Kind::Movable);
        }
        zone
    }

    /// Up to `most` blocks of `order`, neighbours, from the smallest block of `kind` that has one:
    /// its start and their number.
    ///
    /// Linux takes one at a time (`__rmqueue_smallest`) and frees the upper halves of what it
    /// splits (`expand`). The next one then comes from the lowest of these halves, and so on until
    /// the block is used up; so taking several at once leaves the same lists. The blocks are in no
    /// list and their entries blank.
    #[inline]
    fn take_smallest(&mut self, order: u8, kind: Kind, most: u32) -> Option<(Pfn32, u32)> {
        let from = self.lists.smallest(order, kind)?;
        let pfn = self.lists.first(from, kind)?;
        self.take(pfn, from);
        let end = pfn + (1 << from);
        let count = most.min(1 << (from - order));
        let mut rest = pfn + (count << order);
        while rest < end {
            let order = rest.trailing_zeros() as u8;
            self.lists.push_front(&mut self.table, rest, order, kind);
            self.free += 1 << order;
            rest += 1 << order;
        }
        if from >= PAGEBLOCK_ORDER && order < PAGEBLOCK_ORDER {
            self.mark_split(pfn, count << order);
        }
        Some((pfn, count))
    }

    /// Something smaller than a pageblock begins in the pageblocks of these frames, from the first
    /// one on.
    fn mark_split(&mut self, pfn: Pfn32, frames: u32) {
        for start in (pfn..pfn + frames).step_by(PAGEBLOCK as usize) {
            self.table.block_mut(start).detailed = true;
        }
    }

    /// Takes a free block out of its list, whole.
    #[inline]
    pub(super) fn take(&mut self, pfn: Pfn32, order: u8) {
        self.lists.remove(&mut self.table, pfn, order);
        self.free -= 1 << order;
    }

    /// Up to `most` neighbouring blocks of `order` for `kind`, by stealing if it must be
    /// (`__rmqueue`). Nothing below order `min_steal` is stolen from.
    #[inline]
    pub(super) fn rmqueue(&mut self, order: u8, kind: Kind, most: u32, min_steal: u8) -> Option<(Pfn32, u32)> {
        loop {
            if let Some(blocks) = self.take_smallest(order, kind, most) {
                return Some(blocks);
            }
            if !self.rmqueue_fallback(order, kind, min_steal) {
                return None;
            }
        }
    }

    /// The least order that a first attempt may steal from (`ALLOC_NOFRAGMENT`, as
    /// `get_page_from_freelist` sets it).
    pub(super) fn first_min_steal(&self, order: u8) -> u8 {
        if self.nofragment { order.max(PAGEBLOCK_ORDER) } else { order }
    }

    /// A block of `order`, without per-CPU lists (`rmqueue_buddy` and the retry without
    /// `ALLOC_NOFRAGMENT`).
    pub(super) fn rmqueue_buddy(&mut self, order: u8, kind: Kind) -> Option<Pfn32> {
        let first = self.first_min_steal(order);
        let blocks = self.rmqueue(order, kind, 1, first);
        let (pfn, _) = blocks.or_else(|| if first > order { self.rmqueue(order, kind, 1, order) } else { None })?;
        Some(pfn)
    }

    /// Gets free blocks of another kind into the lists of `kind` (`__rmqueue_fallback`): the
    /// largest, except for movable allocations that cannot take the whole pageblock along, which
    /// take the smallest.
    #[cold]
    fn rmqueue_fallback(&mut self, order: u8, kind: Kind, min_steal: u8) -> bool {
        let Some((largest, from)) = (min_steal..=MAX_ORDER).rev().find_map(|o| Some((o, self.fallback_kind(o, kind)?)))
        else {
            return false;
        };
        let (current, from) = if !can_steal(largest, kind) && kind == Kind::Movable && largest > order {
            (order..=MAX_ORDER)
                .find_map(|o| Some((o, self.fallback_kind(o, kind)?)))
                .expect("a fallback was found when looking from the largest order")
        } else {
            (largest, from)
        };
        let pfn = self.lists.first(current, from).expect("fallback_kind found it");
        self.steal(pfn, current, kind);
        true
    }

    /// The first kind to fall back to that has a block of exactly `order`
    /// (`find_suitable_fallback`).
    pub(super) fn fallback_kind(&self, order: u8, kind: Kind) -> Option<Kind> {
        fallbacks(kind).into_iter().find(|&from| !self.lists.is_empty(order, from))
    }

    /// Whether an allocation of `kind` would steal a block of `order` with all of its pageblock
    /// (`find_suitable_fallback` with `only_stealable`).
    pub(super) fn would_steal(&self, order: u8, kind: Kind) -> bool {
        can_steal(order, kind) && self.fallback_kind(order, kind).is_some()
    }

    /// Moves the block at `pfn` to the lists of `kind`, and with it as much of its pageblock as is
    /// right (`steal_suitable_fallback`). The pageblock changes type once half of it is free or
    /// alike.
    fn steal(&mut self, pfn: Pfn32, order: u8, kind: Kind) {
        if order >= PAGEBLOCK_ORDER {
            for start in (pfn..pfn + (1 << order)).step_by(PAGEBLOCK as usize) {
                self.table.block_mut(start).kind = kind;
            }
            return self.move_to(pfn, order, kind);
        }
        if !can_steal(order, kind) {
            return self.move_to(pfn, order, kind);
        }
        let old = self.table.block(pfn).kind;
        let (free, movable) = self.move_pageblock(pfn, kind);
        let alike = match (kind, old) {
            (Kind::Movable, _) => movable,
            (_, Kind::Movable) => PAGEBLOCK - (free + movable),
            _ => 0,
        };
        if free + alike >= PAGEBLOCK / 2 {
            self.table.block_mut(pfn).kind = kind;
        }
    }

    /// Moves one free block to the tail of another list of its order (`move_to_free_list`).
    fn move_to(&mut self, pfn: Pfn32, order: u8, kind: Kind) {
        self.lists.remove(&mut self.table, pfn, order);
        self.lists.push_back(&mut self.table, pfn, order, kind);
    }

    /// Moves all free blocks of a pageblock that is not free as a whole to the lists of `kind`, and
    /// counts the frames moved and the movable pages seen (`move_freepages_block`).
    pub(super) fn move_pageblock(&mut self, pfn: Pfn32, kind: Kind) -> (u32, u32) {
        let start = pfn >> PAGEBLOCK_ORDER << PAGEBLOCK_ORDER;
        let (mut at, mut free, mut movable) = (start, 0, 0);
        while at < start + PAGEBLOCK {
            let head = self.table.head(at, 0);
            if head.state() == State::Free {
                self.move_to(at, head.order(), kind);
                free += 1 << head.order();
                at += 1 << head.order();
            } else {
                movable += u32::from(self.table.owner(at).is_movable());
                at += 1;
            }
        }
        (free, movable)
    }

    /// Frees a block whose entries are blank: merges it with its buddies as far as it goes and puts
    /// the result first, or last if the next merge seems near (`__free_one_page`,
    /// `buddy_merge_likely`).
    #[inline]
    pub(super) fn free_one(&mut self, mut pfn: Pfn32, mut order: u8, kind: Kind) {
        self.free += 1 << order;
        while order < MAX_ORDER {
            let buddy = pfn ^ (1 << order);
            if !self.table.is_buddy(buddy, order) {
                break;
            }
            self.lists.remove(&mut self.table, buddy, order);
            pfn &= buddy;
            order += 1;
        }
        if order >= PAGEBLOCK_ORDER {
            self.settle(pfn, order);
        }
        if order < PAGEBLOCK_ORDER && self.merge_likely(pfn, order) {
            self.lists.push_back(&mut self.table, pfn, order, kind);
        } else {
            self.lists.push_front(&mut self.table, pfn, order, kind);
        }
    }

    /// A hint that the blocks of `order` in `blocks` are about to be freed, the last one first: the
    /// records of one far from the end are fetched, and of one nearer to it the buddies that it
    /// will merge with are looked up, so that their neighbours in the lists are fetched.
    #[inline]
    pub(super) fn prefetch_free_one(&self, blocks: &VecDeque<Pfn32>, order: u8) {
        if order >= PAGEBLOCK_ORDER {
            // They are few, and the buddy's buddy may lie beyond the memory.
            return;
        }
        let at = |distance| blocks.len().checked_sub(distance).map(|place| blocks[place]);
        if let Some(pfn) = at(FAR) {
            self.table.prefetch(pfn);
            self.table.prefetch(pfn ^ 1 << order);
            self.table.prefetch(pfn ^ 2 << order);
            self.table.prefetch(pfn ^ 4 << order);
        }
        let Some(mut pfn) = at(NEAR) else { return };
        for order in order..PAGEBLOCK_ORDER {
            let buddy = pfn ^ (1 << order);
            if !self.table.is_buddy(buddy, order) {
                return;
            }
            for neighbour in self.table.links(buddy, order) {
                if neighbour != NIL {
                    self.table.prefetch(neighbour);
                }
            }
            pfn &= buddy;
        }
    }

    /// Whether the buddy that the block would have after merging with its present one is free
    /// already.
    #[inline]
    fn merge_likely(&self, pfn: Pfn32, order: u8) -> bool {
        let higher = pfn & !(1 << order);
        self.table.is_buddy(higher ^ (1 << (order + 1)), order + 1)
    }

    /// A pageblock that is free as a whole has nothing recorded of its frames.
    fn settle(&mut self, pfn: Pfn32, order: u8) {
        for start in (pfn..pfn + (1 << order)).step_by(PAGEBLOCK as usize) {
            self.table.block_mut(start).detailed = false;
        }
    }

    /// Whether `pfn` lies in a block of the buddy lists: its start and order.
    pub(super) fn buddy_of(&self, pfn: Pfn32) -> Option<(Pfn32, u8)> {
        let (start, head) = self.table.find_head(pfn);
        (head.state() == State::Free).then_some((start, head.order()))
    }

    /// Marks a blank block as allocated.
    #[inline]
    pub(super) fn set_allocated(&mut self, pfn: Pfn32, order: u8) {
        self.table.set_unlisted(pfn, Head::allocated(order));
    }

    /// Makes one allocated block of `order` around `pfn` out of the larger one that it lies in
    /// (`split_page`).
    pub(super) fn split_allocated(&mut self, start: Pfn32, from: u8, pfn: Pfn32, order: u8) {
        debug_assert_eq!(self.table.head(start, from), Head::allocated(from));
        self.table.clear_head(start, from);
        if from >= PAGEBLOCK_ORDER && order < PAGEBLOCK_ORDER {
            self.table.block_mut(pfn).detailed = true;
        }
        let mut start = start;
        for half in (order..from).rev() {
            let middle = start + (1 << half);
            let (keep, other) = if pfn >= middle { (middle, start) } else { (start, middle) };
            self.table.set_head(other, Head::allocated(half));
            start = keep;
        }
        self.table.set_head(start, Head::allocated(order));
    }

    /// The block after the one at `pfn`, in address order: its start, head; `None` at the end of
    /// memory.
    pub(super) fn head_at(&self, pfn: Pfn32) -> (Pfn32, Head) {
        if pfn & (PAGEBLOCK - 1) == 0 {
            let big = self.table.head(pfn, PAGEBLOCK_ORDER);
            if big.state() != State::Inside {
                return (pfn, big);
            }
        }
        (pfn, self.table.head(pfn, 0))
    }
}
