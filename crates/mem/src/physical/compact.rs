// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compaction: one scanner finds pages to move from the low end of memory upwards, another free
//! frames to move them to from the high end downwards, until a block of the wanted order is free or
//! the scanners meet (`compact_zone`).
//!
//! This is the direct, asynchronous compaction that a huge page fault does: movable pageblocks
//! only, at most 32 pages at a time, and an aligned block of the wanted order is given up as soon
//! as something in it cannot be moved (`isolate_migratepages_block` with `skip_on_failure`).
//! Scanners go on where the last call stopped and pass over pageblocks that had nothing for them,
//! until a pass over the whole memory has ended; in kernels that
//! [keep these hints](PhysicalMemory::keep_skip_hints), until the daemon that reclaims goes to
//! sleep. Left out are the two searches that start from the
//! free lists (`fast_find_migrateblock`, `fast_isolate_freepages`), which find the same blocks
//! sooner, and the deferral after failures, which is the caller's. Per-CPU lists are emptied first
//! rather than in between.
//!
//! Proactive compaction ([`PhysicalMemory::compact_proactively`]) wants no block of an order: it
//! goes over the whole memory until less of what is free lies outside of blocks of 2 MiB.

use crate::addr::{Frame, PageCount};

use super::table::{Kind, MAX_ORDER, PAGEBLOCK, PAGEBLOCK_ORDER, Pfn32, State};
use super::{COSTLY_ORDER, Compaction, Cpu, Migrate, Order, PhysicalMemory};

/// Pages isolated at a time (`COMPACT_CLUSTER_MAX`).
const CLUSTER_MAX: usize = 32;
/// At a fragmentation index up to this, memory is short rather than fragmented
/// (`sysctl_extfrag_threshold`).
const EXTFRAG_THRESHOLD: i64 = 500;

/// The scanners' positions between calls (`compact_cached_migrate_pfn`,
/// `compact_cached_free_pfn`), and their room.
pub(super) struct Scanners {
    migrate: Pfn32,
    free: Pfn32,
    /// Pages about to be moved.
    pages: Vec<Pfn32>,
    /// Frames to move them to; the next one is the last.
    targets: Vec<Pfn32>,
    /// Whether which pageblocks to pass over is known until kswapd sleeps.
    keep_hints: bool,
    /// Whether the scanners have met since (`compact_blockskip_flush`).
    flush: bool,
}

impl Scanners {
    pub(super) fn new(frames: u32) -> Self {
        let (pages, targets) = (Vec::new(), Vec::new());
        Self { migrate: 0, free: frames - PAGEBLOCK, pages, targets, keep_hints: false, flush: false }
    }

    /// Their positions: the migration scanner, the scanner for free frames.
    pub(super) fn positions(&self) -> (Pfn32, Pfn32) {
        (self.migrate, self.free)
    }

    /// Puts them there.
    pub(super) fn set_positions(&mut self, migrate: Pfn32, free: Pfn32) {
        (self.migrate, self.free) = (migrate, free);
    }

    fn met(&self) -> bool {
        self.free >> PAGEBLOCK_ORDER <= self.migrate >> PAGEBLOCK_ORDER
    }
}

/// What a run of compaction is for.
#[derive(Clone, Copy)]
enum Aim {
    /// A block of this order, for a request that waits (`MIGRATE_ASYNC`, `direct_compaction`).
    Block(Order),
    /// Less fragmentation of the whole memory, by a daemon on this processor (`MIGRATE_SYNC_LIGHT`,
    /// `whole_zone`, `ignore_skip_hint`).
    Whole(Cpu),
}

impl PhysicalMemory {
    /// Moves movable pages until a block of `order` is free for a movable allocation, or the
    /// scanners have met (Linux's `compact_zone`). Does nothing if such a block is free already, or
    /// too little is free to succeed (`compaction_suitable`).
    ///
    /// # Panics
    /// If the order is above [`Order::MAX`].
    pub fn compact(&mut self, order: Order, migrate: &mut dyn Migrate) -> Compaction {
        assert!(order <= Order::MAX, "no blocks of order {}", order.0);
        self.drain();
        let mut done = Compaction { succeeded: self.is_available(order), ..Compaction::default() };
        done.skipped = !done.succeeded && !self.is_suitable(order);
        if done.succeeded || done.skipped {
            return done;
        }
        if self.scanners.migrate == 0 && !self.scanners.keep_hints {
            self.forget_skip_hints();
        }
        loop {
            if self.scanners.met() {
                self.scanners.flush = true;
                (self.scanners.migrate, self.scanners.free) = (0, self.zone.table.len() - PAGEBLOCK);
                break;
            }
            if self.scanners.migrate.is_multiple_of(PAGEBLOCK) && self.is_available(order) {
                break;
            }
            self.isolate_pages(Aim::Block(order), &mut done);
            if !self.move_cluster(Aim::Block(order), migrate, &mut done) {
                break;
            }
        }
        self.release_targets();
        done.succeeded = self.is_available(order);
        done
    }

    /// From now on, pageblocks in which a scanner has found nothing are passed over by both until
    /// [`PhysicalMemory::kswapd_sleeps`], as by Linux 4.3, in which asynchronous compaction, that
    /// of a huge page fault, fails as often as it is asked for without starting anew: it is not
    /// deferred (`try_to_compact_pages`), and only what has been deferred clears the bits
    /// (`compact_zone`). To pass over a pageblock counts as looking at two frames, its first and
    /// last one (`pageblock_pfn_to_page`).
    pub fn keep_skip_hints(&mut self) {
        self.scanners.keep_hints = true;
    }

    /// Whether it keeps them.
    pub fn keeps_skip_hints(&self) -> bool {
        self.scanners.keep_hints
    }

    /// kswapd has nothing to do any more: if the scanners have met since, hints are void
    /// (`reset_isolation_suitable`).
    pub fn kswapd_sleeps(&mut self) {
        if std::mem::take(&mut self.scanners.flush) && self.scanners.keep_hints {
            self.forget_skip_hints();
        }
    }

    fn forget_skip_hints(&mut self) {
        self.zone.table.blocks.iter_mut().for_each(|block| block.skip = false);
    }

    /// How much of the free memory lies outside of blocks of 2 MiB, per cent
    /// (`fragmentation_score_zone`, `extfrag_for_order`). What is in per-CPU lists does not count.
    pub fn fragmentation_score(&self) -> u64 {
        let free = self.zone.free;
        let counts = self.free_blocks();
        let suitable: u64 = (PAGEBLOCK_ORDER..=MAX_ORDER).map(|order| counts[usize::from(order)] << order).sum();
        (free - suitable) * 100 / free.max(1)
    }

    /// Moves movable pages from the low end of the memory to its high end until the
    /// [score](PhysicalMemory::fragmentation_score) is down to `score`, or the scanners have met
    /// (`compact_zone` as `proactive_compact_node` calls it). It begins at the ends of the memory,
    /// takes pages of any pageblock, and does not give a block up for a page that stays.
    ///
    /// Pages that were moved away are freed by `cpu` as any page is, so that they reach the buddy
    /// lists only once its per-CPU list is full: nothing empties it for the daemon.
    ///
    /// # Panics
    /// If the memory has no such processor.
    pub fn compact_proactively(&mut self, score: u64, cpu: Cpu, migrate: &mut dyn Migrate) -> Compaction {
        let cached = self.scanners.positions();
        let ends = (0, self.zone.table.len() - PAGEBLOCK);
        self.scanners.set_positions(ends.0, ends.1);
        let mut done = Compaction::default();
        let mut next = cached;
        loop {
            if self.scanners.met() {
                next = ends;
                break;
            }
            done.succeeded = self.fragmentation_score() <= score;
            if done.succeeded {
                break;
            }
            self.isolate_pages(Aim::Whole(cpu), &mut done);
            if !self.move_cluster(Aim::Whole(cpu), migrate, &mut done) {
                break;
            }
        }
        self.release_targets();
        self.scanners.set_positions(next.0, next.1);
        done
    }

    /// Whether a movable allocation of `order` would succeed without compaction (the end of
    /// `__compact_finished`).
    fn is_available(&self, order: Order) -> bool {
        let zone = &self.zone;
        (order.0..=MAX_ORDER).any(|o| !zone.lists.is_empty(o, Kind::Movable) || zone.would_steal(o, Kind::Movable))
    }

    /// Frames that have to become free for a request of `order`, above those of order 3, before
    /// compaction may try again (`shrink_zones` with `compaction_ready`,
    /// `should_continue_reclaim`): none where it would find a margin already.
    pub fn reclaim_for_compaction(&self, order: Order) -> Option<PageCount> {
        let gap = 2 << order.0;
        let (marks, free) = (self.watermarks(), self.zone.free);
        let suitable = self.is_suitable(order);
        (!suitable || free <= marks.high.0 + gap).then(|| {
            let short = (marks.low.0 + gap + 1).saturating_sub(free);
            PageCount(if suitable { 0 } else { short }.max(CLUSTER_MAX as u64))
        })
    }

    /// Whether there is enough free memory for compaction to work with, and its lack of contiguity
    /// is what ails (`compaction_suitable`).
    fn is_suitable(&self, order: Order) -> bool {
        let gap = 2 << order.0;
        let marks = self.watermarks();
        let mark = if order.0 > COSTLY_ORDER { marks.low } else { marks.min };
        self.zone.free > mark.0 + gap
            && (order.0 <= COSTLY_ORDER || self.fragmentation_index(order) > EXTFRAG_THRESHOLD)
    }

    /// In thousandths: towards 0, an allocation of `order` fails for lack of memory; towards 1000,
    /// for fragmentation (`__fragmentation_index`). Only meaningful while no such block is free.
    pub fn fragmentation_index(&self, order: Order) -> i64 {
        let counts = self.free_blocks();
        let blocks: i64 = counts.iter().map(|&count| count as i64).sum();
        if blocks == 0 {
            return 0;
        }
        if counts[usize::from(order.0)..].iter().any(|&count| count > 0) {
            return -1000;
        }
        1000 - (1000 + self.zone.free as i64 * 1000 / (1 << order.0)) / blocks
    }

    /// Finds the next pages to move (`isolate_migratepages`): goes to the next suitable pageblock,
    /// then through it until a cluster is full.
    fn isolate_pages(&mut self, aim: Aim, done: &mut Compaction) {
        self.scanners.pages.clear();
        while !self.scanners.met() {
            let at = self.scanners.migrate;
            let block = self.zone.table.block(at);
            let suits = block.kind == Kind::Movable && !(at.is_multiple_of(PAGEBLOCK) && block.skip);
            if suits || matches!(aim, Aim::Whole(_)) {
                return self.isolate_pages_of_block(aim, done);
            }
            self.scanners.migrate = (at / PAGEBLOCK + 1) * PAGEBLOCK;
            done.scanned.0 += 2 * u64::from(self.scanners.keep_hints);
        }
    }

    /// Linux's `isolate_migratepages_block`.
    fn isolate_pages_of_block(&mut self, aim: Aim, done: &mut Compaction) {
        let from = self.scanners.migrate;
        let end = (from / PAGEBLOCK + 1) * PAGEBLOCK;
        let mut at = from;
        while at < end && self.scanners.pages.len() < CLUSTER_MAX {
            done.scanned.0 += 1;
            let (start, head) = self.zone.table.find_head(at);
            if head.state() == State::Free {
                at = start + (1 << head.order());
            } else if head.state() == State::Allocated && self.can_move(at) {
                self.scanners.pages.push(at);
                at += 1;
            } else if let Aim::Block(order) = aim {
                // The rest of the aligned block of the wanted order is not worth the trouble.
                self.scanners.pages.retain(|&page| page >> order.0 != at >> order.0);
                at = ((at >> order.0) + 1) << order.0;
            } else {
                at = if self.is_in_compound(at) { end } else { at + 1 };
            }
        }
        if at >= end && self.scanners.pages.is_empty() && from.is_multiple_of(PAGEBLOCK) {
            self.zone.table.block_mut(from).skip = true;
        }
        self.scanners.migrate = at;
    }

    /// Moves the isolated pages (`migrate_pages`). `false` if there is nowhere to move them.
    fn move_cluster(&mut self, aim: Aim, migrate: &mut dyn Migrate, done: &mut Compaction) -> bool {
        for index in 0..self.scanners.pages.len() {
            let from = self.scanners.pages[index];
            let Some(to) = self.next_target(aim, self.scanners.pages.len() - index, done) else {
                // The scanners have met, as far as room goes.
                return self.scanners.met();
            };
            let moved = self.move_page(from, to, migrate);
            done.migrated.0 += u64::from(moved);
            match aim {
                Aim::Block(_) if moved => self.free_to_buddy(from, 0),
                Aim::Whole(cpu) if moved => self.free(Frame(from.into()), Order::PAGE, cpu),
                Aim::Block(order) => {
                    self.scanners.targets.push(to);
                    self.scanners.migrate = self.scanners.migrate.max(((from >> order.0) + 1) << order.0);
                }
                Aim::Whole(_) => self.scanners.targets.push(to),
            }
        }
        true
    }

    /// A frame to move a page to (`compaction_alloc`).
    fn next_target(&mut self, aim: Aim, wanted: usize, done: &mut Compaction) -> Option<Pfn32> {
        if self.scanners.targets.is_empty() {
            self.isolate_targets(aim, wanted, done);
        }
        self.scanners.targets.pop()
    }

    /// Takes free frames until there are as many as pages to move (`isolate_freepages`): out of
    /// movable pageblocks that are not free as a whole, from the high end, handed out highest first
    /// (`split_map_pages`).
    fn isolate_targets(&mut self, aim: Aim, wanted: usize, done: &mut Compaction) {
        while !self.scanners.met() && self.scanners.targets.len() < wanted {
            let start = self.scanners.free / PAGEBLOCK * PAGEBLOCK;
            let end = start + PAGEBLOCK;
            let block = self.zone.table.block(start);
            let head = self.zone.table.find_head(start).1;
            let whole = head.state() == State::Free && head.order() >= PAGEBLOCK_ORDER;
            let mut at = self.scanners.free;
            let skip = block.skip && matches!(aim, Aim::Block(_));
            if block.kind == Kind::Movable && !skip && !whole {
                at = self.isolate_targets_of_block(at, end, wanted, done);
                if at >= end && start == self.scanners.free && self.scanners.targets.is_empty() {
                    self.zone.table.block_mut(start).skip = true;
                }
            } else {
                at = end;
                done.scanned.0 += 2 * u64::from(self.scanners.keep_hints);
            }
            self.scanners.free = if at < end { at } else { start.saturating_sub(PAGEBLOCK) };
        }
    }

    /// Linux's `isolate_freepages_block`; says where it stopped.
    fn isolate_targets_of_block(&mut self, from: Pfn32, end: Pfn32, wanted: usize, done: &mut Compaction) -> Pfn32 {
        let mut at = from;
        while at < end && self.scanners.targets.len() < wanted {
            done.scanned.0 += 1;
            let (start, head) = self.zone.table.find_head(at);
            let next = start + (1 << head.order());
            if head.state() == State::Free {
                if self.zone.free <= self.watermarks().min.0 + (1 << head.order()) {
                    return end;
                }
                self.take_block(start, head.order());
                self.scanners.targets.extend(start..next);
            }
            at = next;
        }
        at
    }

    /// Frees the frames that were not needed (`release_freepages`).
    fn release_targets(&mut self) {
        while let Some(pfn) = self.scanners.targets.pop() {
            // The free scanner goes back, so that the next call finds them.
            if pfn >> PAGEBLOCK_ORDER > self.scanners.free >> PAGEBLOCK_ORDER {
                self.scanners.free = pfn / PAGEBLOCK * PAGEBLOCK;
            }
            self.free_to_buddy(pfn, 0);
        }
    }
}

/// Sums up several calls.
impl std::ops::AddAssign for Compaction {
    fn add_assign(&mut self, other: Self) {
        self.migrated = PageCount(self.migrated.0 + other.migrated.0);
        self.scanned = PageCount(self.scanned.0 + other.scanned.0);
        self.succeeded |= other.succeeded;
        self.skipped &= other.skipped;
    }
}
