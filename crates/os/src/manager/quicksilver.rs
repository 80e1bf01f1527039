// SPDX-License-Identifier: MIT OR Apache-2.0
//! Quicksilver (Zhu, Cox and Rixner, USENIX ATC 2020): FreeBSD's reservations, of which the rest is
//! prepared at once, in the fault in which the population reaches a threshold, and mapped as a
//! superpage. Sync-1 and Sync-64 are thresholds of 1 and 64 pages. A daemon empties reservations
//! that have become inactive, so that whole blocks go back.
//!
//! Mappings are relaxed: clean and dirty pages become one superpage, which is dirty. A block of
//! which the mapping holds a part only (a heap that grows) is filled page by page until it is
//! whole.
//!
//! With `small_threshold` there is a lower level, as on arm64: 64 KiB of the reservation are
//! prepared and mapped, by PTEs, in the fault in which so many of their 16 pages are in use. Both
//! levels are on one map of 512 bits. Where PTEs have a contiguous bit, it is set in those of a
//! group. Else no TLB is told: one that holds neighbours in an entry (a Clustered TLB) finds them
//! by their frames.
//!
//! Files have FreeBSD's reservations and superpages (`freebsd`): nothing of a file is prepared
//! ahead but by read-around, and the daemon leaves reservations alone of which a page is mapped.
//!
//! Left out: the asynchronous variants (Async-64, Async-256). Gaps between pages that are in use
//! are counted as pages zeroed one by one (`zeroed_4k`), though they are zeroed by run; a whole
//! block is one of `zeroed_2m`.

use nestwalk_mem::counters::{Counter, list};
use nestwalk_mem::{Entry, Frame, FrameRange, Level, Nanoseconds, Order, PageCount, PageSize, Vpn};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::context::event::{Cause, Fault, Fill};
use crate::error::OsError;
use crate::manager::contract::{Deallocation, Facts, MemoryManager, Preparation, Promotion, When};
use crate::manager::linux4k::map_one_page;
use crate::manager::reservation::{GROUP_ORDER, GROUP_PAGES, Number, Reservations, map_zeroed};
use crate::state::files::FileId;
use crate::state::process::ProcessId;
use crate::state::vma::FileView;
use crate::state::{KernelState, Moved};

/// Its choices at the five events.
pub const FACTS: Facts = Facts {
    name: "quicksilver",
    source: "Zhu, Cox and Rixner, USENIX ATC 2020, section 5",
    block: PageCount(512),
    allocation: When::Fault,
    preparation: Preparation::IncrementalThenFull,
    mapping: When::Fault,
    promotion: Promotion::InPlace,
    deallocation: Deallocation::Evicted,
};

/// The same with a threshold of one page: Sync-1.
pub const FACTS_SYNC_1: Facts = Facts { preparation: Preparation::Full, ..FACTS };

/// Its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuicksilverConfig {
    /// Pages of the 512 in use from which on the rest is prepared at once: 1 for Sync-1, 64 for
    /// Sync-64.
    pub threshold: u16,
    /// Pages of an aligned 64 KiB of the reservation (16 pages) in use from which on the rest of it
    /// is prepared and mapped: 1 at the first touch. 0: never.
    pub small_threshold: u16,
    /// A reservation is inactive when its population has not changed for this long (5 s in the
    /// paper's runs).
    pub inactive_ms: u64,
    /// Pages of inactive reservations that the daemon moves in a second, at most: 262144 are 1 GiB,
    /// as in the paper's runs. 0: there is no daemon.
    pub evicted_pages_per_s: u64,
}

impl Default for QuicksilverConfig {
    fn default() -> Self {
        Self { threshold: 64, small_threshold: 0, inactive_ms: 5000, evicted_pages_per_s: 1 << 18 }
    }
}

impl QuicksilverConfig {
    pub(crate) fn check(&self) -> Result<(), OsError> {
        if !(1..=512).contains(&self.threshold) {
            let what = format!("{}: a 2 MiB block has 512 pages, give 1 to 512", self.threshold);
            return Err(OsError::Config { key: "manager.threshold", what });
        }
        if u64::from(self.small_threshold) > GROUP_PAGES {
            let what = format!("{}: 64 KiB have 16 pages, give 0 to 16", self.small_threshold);
            return Err(OsError::Config { key: "manager.small_threshold", what });
        }
        Ok(())
    }
}

/// The daemon looks at the queue this often.
const PERIOD: Nanoseconds = Nanoseconds::from_ms(1000);

nestwalk_mem::counters! {
    /// What Quicksilver counts, besides its reservations.
    pub numbers QuicksilverCounters {
        /// Superpages made in a fault before all their pages had been touched.
        completed ["2 MiB pages"],
        /// Groups of 64 KiB that were mapped before all their pages had been touched.
        completed_64k ["64 KiB groups"],
        /// Untouched pages prepared to complete superpages and groups.
        prepared_ahead ["pages"],
        /// Reservations that the daemon emptied.
        evicted ["reservations"],
        /// Pages that the daemon moved to empty reservations.
        evicted_pages ["pages"],
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Quicksilver {
    config: QuicksilverConfig,
    reservations: Reservations,
    wakes_at: Nanoseconds,
    counters: QuicksilverCounters,
}

impl Quicksilver {
    /// With no reservations yet.
    pub fn new(config: QuicksilverConfig) -> Self {
        Self {
            config,
            reservations: Reservations::default(),
            wakes_at: PERIOD,
            counters: QuicksilverCounters::default(),
        }
    }

    /// Whether the reservation is to become a superpage now.
    fn is_due(&self, fault: &Fault, number: Number) -> bool {
        let block = self.reservations.block(number);
        block.population >= self.config.threshold
            && !block.barred
            && fault.vma.holds_block(fault.page, PageSize::Huge.order())
    }

    /// Prepares all of a block of which only this fault's page is in use, and maps it as one page.
    fn map_whole(&mut self, cx: &mut Context<'_>, fault: &Fault, number: Number) -> Result<PageSize, OsError> {
        let (first, base) = (fault.page.align_down(PageSize::Huge.order()), number.base());
        let frames = FrameRange::new(base, PageCount(PageSize::Huge.pages()));
        cx.zero(frames)?;
        cx.map(fault.process, first, base, PageSize::Huge, fault.leaf_flags())?;
        self.counters.prepared_ahead += PageSize::Huge.pages() - 1;
        self.counters.completed += 1;
        self.reservations.fill(number);
        Ok(PageSize::Huge)
    }

    /// Prepares the pages of the block that are not in use, by run, and makes a superpage of all,
    /// if those in use lie in place, unshared, with the same rights. Returns whether it did.
    fn complete(&mut self, cx: &mut Context<'_>, fault: &Fault, number: Number) -> Result<bool, OsError> {
        let (first, base) = (fault.page.align_down(PageSize::Huge.order()), number.base());
        let population = u64::from(self.reservations.block(number).population);
        let placed = cx.placed(fault.process, first, base)?;
        let Some(placed) = placed.filter(|placed| placed.mapped == population && !placed.differ(Entry::WRITABLE))
        else {
            return Ok(false);
        };
        for (place, length) in self.reservations.block(number).gaps() {
            if cx.zero(FrameRange::new(base + place, PageCount(length))).is_err() {
                self.reservations.bar(number);
                return Ok(false);
            }
        }
        self.reservations.fill(number);
        self.counters.prepared_ahead += PageSize::Huge.pages() - population;
        self.counters.completed += 1;
        cx.promote(fault.process, first, base, placed.all | Entry::ACCESSED | placed.any & Entry::DIRTY)
    }

    /// Prepares and maps the rest of the 64 KiB of the fault, which has been mapped itself, once
    /// enough of them are in use. Where there is no memory for that, what has been done stays.
    #[inline(never)]
    fn complete_small(&mut self, cx: &mut Context<'_>, fault: &Fault, number: Number) -> Result<(), OsError> {
        let (block, first) = (self.reservations.block(number), fault.page.align_down(GROUP_ORDER));
        let used = block.group(fault.page);
        let missing: Vec<Vpn> =
            (0..GROUP_PAGES).filter(|place| used >> place & 1 == 0).map(|place| first + place).collect();
        let table = &cx.state.processes.get(fault.process)?.table;
        let due = used.count_ones() >= u32::from(self.config.small_threshold)
            && !block.barred
            && fault.vma.holds_block(fault.page, GROUP_ORDER)
            && missing.iter().all(|&page| table.is_bare(page, 0));
        if !due || missing.is_empty() {
            return Ok(());
        }
        for page in missing {
            let Some(frame) = self.reservations.frame_for_fill(cx.state.now, fault.process, page) else {
                return Ok(());
            };
            let zeroed = cx.zero(FrameRange::single(frame));
            if zeroed.and_then(|()| cx.map(fault.process, page, frame, PageSize::Small, fault.leaf_flags())).is_err() {
                self.reservations.give_back(cx, number, frame);
                self.reservations.bar(number);
                return Ok(());
            }
            self.counters.prepared_ahead += 1;
        }
        self.counters.completed_64k += 1;
        Ok(())
    }

    /// The daemon: empties inactive reservations, those that have not changed for longest first.
    /// Stops at the first active one, and when it has moved `pages`.
    fn evict(&mut self, cx: &mut Context<'_>, mut pages: u64) {
        let inactive = Nanoseconds::from_ms(self.config.inactive_ms);
        while let Some(number) = self.reservations.oldest() {
            let block = self.reservations.block(number);
            let (population, idle) = (u64::from(block.population), cx.state.now - block.changed_at);
            if idle < inactive || population > pages {
                return;
            }
            pages -= population;
            if !self.empty(cx, number) {
                self.reservations.postpone(number, cx.state.now);
            }
        }
    }

    /// Moves all pages of a reservation elsewhere. `false` if one cannot be moved, or there is
    /// nowhere to move it.
    fn empty(&mut self, cx: &mut Context<'_>, number: Number) -> bool {
        for frame in self.reservations.frames_in_use(number) {
            let Some(to) = cx.state.alloc(Order::PAGE, cx.cpu) else { return false };
            if !cx.relocate(frame, to) {
                cx.free(FrameRange::single(to));
                return false;
            }
            self.counters.evicted_pages += 1;
            self.reservations.give_back(cx, number, frame);
        }
        self.counters.evicted += 1;
        true
    }
}

impl MemoryManager for Quicksilver {
    fn facts(&self) -> &'static Facts {
        if self.config.threshold == 1 { &FACTS_SYNC_1 } else { &FACTS }
    }

    fn fault(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError> {
        let Some((number, frame)) = self.reservations.frame_for_fault(cx, fault) else {
            return map_one_page(cx, fault);
        };
        let due = self.is_due(fault, number);
        let whole = due && fault.slot.level > Level::PTE && self.reservations.block(number).population == 1;
        let mapped = if whole {
            self.map_whole(cx, fault, number)
        } else {
            map_zeroed(cx, fault, frame).map(|()| PageSize::Small)
        };
        match mapped {
            Err(error) => {
                self.reservations.give_back(cx, number, frame);
                Err(error)
            }
            Ok(PageSize::Small) => {
                let mut due = due;
                if self.config.small_threshold > 0 {
                    self.complete_small(cx, fault, number)?;
                    if self.reservations.block(number).is_group_full(fault.page) {
                        cx.join(fault.process, fault.page, false)?;
                    }
                    due = self.is_due(fault, number);
                }
                let huge = due && self.complete(cx, fault, number)?;
                Ok(if huge { PageSize::Huge } else { PageSize::Small })
            }
            mapped => mapped,
        }
    }

    fn remapped(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<(), OsError> {
        match self.reservations.find(fault.process, fault.page) {
            Some(number) if self.is_due(fault, number) => self.complete(cx, fault, number).map(drop),
            _ => Ok(()),
        }
    }

    fn frame_for(&mut self, cx: &mut Context<'_>, fault: &Fault, _: Fill) -> Result<Frame, OsError> {
        match self.reservations.frame_for_fill(cx.state.now, fault.process, fault.page) {
            Some(frame) => Ok(frame),
            None => cx.page_frame(),
        }
    }

    fn release(&mut self, cx: &mut Context<'_>, _: ProcessId, _: Vpn, frames: FrameRange, cause: Cause) {
        self.reservations.release(cx, frames, cause);
    }

    fn exited(&mut self, cx: &mut Context<'_>, process: ProcessId) {
        self.reservations.exited(cx, process);
    }

    fn moved(&mut self, cx: &mut Context<'_>, moved: Moved) {
        self.reservations.moved(cx, moved.from);
    }

    fn file_frame(&mut self, cx: &mut Context<'_>, file: FileId, page: u64) -> Result<Frame, OsError> {
        self.reservations.file_frame(cx, file, page)
    }

    fn file_released(&mut self, cx: &mut Context<'_>, frame: Frame) {
        self.reservations.release_file(cx, frame);
    }

    fn file_moved(&mut self, cx: &mut Context<'_>, from: Frame) {
        self.reservations.moved(cx, from);
    }

    fn map_file_block(&mut self, cx: &mut Context<'_>, fault: &Fault, view: FileView) -> Result<bool, OsError> {
        self.reservations.map_file_block(cx, fault, view)
    }

    fn file_mapped(&mut self, cx: &mut Context<'_>, fault: &Fault, view: FileView) -> Result<(), OsError> {
        self.reservations.promote_file(cx, fault, view)
    }

    fn pressure(&mut self, cx: &mut Context<'_>, want: PageCount) -> PageCount {
        self.reservations.pressure(cx, want)
    }

    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        let periods = (cx.state.now + PERIOD).saturating_sub(self.wakes_at).periods(PERIOD);
        if periods > 0 {
            self.wakes_at += Nanoseconds(periods * PERIOD.0);
            self.evict(cx, self.config.evicted_pages_per_s.saturating_mul(periods));
        }
        Ok(())
    }

    fn reserved(&self) -> PageCount {
        self.reservations.reserved()
    }

    fn counters(&self) -> Vec<Counter> {
        [list(&self.reservations.counters), list(&self.counters)].concat()
    }

    fn check_invariants(&self, state: &KernelState) {
        self.reservations.check_invariants(state);
    }
}

#[cfg(test)]
mod tests;
