// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ingens (Kwon et al., OSDI 2016; the code of Linux 4.3): faults take single pages; when 90 % of
//! an aligned 2 MiB are in use, the fault asks a daemon for a huge page, and the daemon copies the
//! pages into one.
//!
//! Requests are served in order, as soon as the daemon runs. Besides, it scans address spaces with
//! the same threshold, since 4 KiB pages may have stayed behind for want of a block. It neither
//! compacts nor reclaims memory.
//!
//! Left out: fairness among processes and the sampling of accessed bits (both are off in the runs
//! of the Quicksilver paper). A request that finds no block is dropped, which is an assumption: the
//! scan finds the pages again. The authors' kernel counts only pages that were touched when the
//! mapping reached over all of the 2 MiB (`do_anonymous_page`, `khugepaged_scan_pmd`); here a block
//! has all its pages, so that the scan may promote some of a heap that grew.

use std::collections::VecDeque;

use nestwalk_mem::counters::{Counter, list};
use nestwalk_mem::{FrameRange, Level, Nanoseconds, PageCount, PageSize, Vpn};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::context::collapse::{Candidate, CollapseLimits, examine};
use crate::context::event::Fault;
use crate::error::OsError;
use crate::manager::contract::{Deallocation, Facts, MemoryManager, Preparation, Promotion, When};
use crate::manager::linux4k::map_one_page;
use crate::manager::scan::Cursor;
use crate::state::process::ProcessId;
use crate::state::vma::{HugeAdvice, Vma, VmaKind};

/// Its choices at the five events.
pub const FACTS: Facts = Facts {
    name: "ingens",
    source: "Kwon et al., Ingens, OSDI 2016; Zhu, Cox and Rixner (ATC 2020), section 2",
    block: PageCount(512),
    allocation: When::Daemon,
    preparation: Preparation::Full,
    mapping: When::Daemon,
    promotion: Promotion::OutOfPlace,
    deallocation: Deallocation::OnUnmap,
};

/// Its parameters, with the values of the authors' kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IngensConfig {
    /// Pages of the 512 in use from which on they become a huge page: 460 are 90 %.
    pub utilized_pages: u16,
    /// Time between scans.
    pub scan_sleep_ms: u64,
    /// Time that the scan sleeps when there is no block.
    pub alloc_sleep_ms: u64,
    /// Pages that it looks at in a scan.
    pub pages_to_scan: u64,
}

impl Default for IngensConfig {
    fn default() -> Self {
        Self { utilized_pages: 460, scan_sleep_ms: 10_000, alloc_sleep_ms: 60_000, pages_to_scan: 4096 }
    }
}

impl IngensConfig {
    pub(crate) fn check(&self) -> Result<(), OsError> {
        if (1..=512).contains(&self.utilized_pages) {
            return Ok(());
        }
        let what = format!("{}: a 2 MiB block has 512 pages, give 1 to 512", self.utilized_pages);
        Err(OsError::Config { key: "manager.utilized_pages", what })
    }
}

nestwalk_mem::counters! {
    /// What Ingens counts.
    pub numbers IngensCounters {
        /// Regions of 2 MiB that faults asked the daemon to promote.
        requests ["requests"],
        /// Requested regions that the daemon promoted.
        promoted_on_request ["2 MiB pages"],
        /// Regions promoted because its scan found them.
        promoted_by_scan ["2 MiB pages"],
        /// Promotions that found no free block.
        promotions_without_block ["promotions"],
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Ingens {
    config: IngensConfig,
    /// What faults have asked for.
    requests: VecDeque<(ProcessId, Vpn)>,
    cursor: Cursor,
    wakes_at: Nanoseconds,
    counters: IngensCounters,
}

/// What became of 2 MiB that might be promoted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Promoted,
    Unsuitable,
    NoBlock,
}

fn allows(vma: &Vma) -> bool {
    vma.flags.kind == VmaKind::Anonymous && vma.flags.advice != HugeAdvice::NoHuge
}

impl Ingens {
    /// With nothing to do yet.
    pub fn new(config: IngensConfig) -> Self {
        Self {
            config,
            requests: VecDeque::new(),
            cursor: Cursor::default(),
            wakes_at: Nanoseconds::from_ms(config.scan_sleep_ms),
            counters: IngensCounters::default(),
        }
    }

    /// Copies the pages of the 2 MiB from `first` on into a huge page, if enough of them are in
    /// use.
    fn promote(&mut self, cx: &mut Context<'_>, process: ProcessId, first: Vpn) -> Result<Outcome, OsError> {
        let none_max = PageSize::Huge.pages() as u16 - self.config.utilized_pages;
        // Linux 4.3 collapses neither shared pages nor such as are in swap.
        let limits = CollapseLimits { none_max, swap_max: 0, shared_max: 0, referenced: true };
        cx.state.counters.pages_scanned += PageSize::Huge.pages();
        if examine(cx.state, process, first, &limits)? != Candidate::Suitable {
            return Ok(Outcome::Unsuitable);
        }
        let Some(huge) = cx.huge_frame(false) else {
            self.counters.promotions_without_block += 1;
            return Ok(Outcome::NoBlock);
        };
        cx.collapse(process, first, huge, &mut |cx, _, frame, _| cx.free(FrameRange::single(frame)))?;
        Ok(Outcome::Promoted)
    }

    /// All that faults have asked for, in order.
    fn serve(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        while let Some((process, first)) = self.requests.pop_front() {
            if cx.state.processes.get(process).is_ok() {
                self.counters.promoted_on_request += u64::from(self.promote(cx, process, first)? == Outcome::Promoted);
            }
        }
        Ok(())
    }

    /// Looks at up to `pages_to_scan` pages. Returns how long to sleep, in ms.
    fn scan(&mut self, cx: &mut Context<'_>) -> Result<u64, OsError> {
        let (mut progress, mut rounds) = (0, 0);
        while progress < self.config.pages_to_scan {
            let Some((process, first)) = self.cursor.next(cx, &mut rounds, allows)? else { break };
            progress += PageSize::Huge.pages();
            match self.promote(cx, process, first)? {
                Outcome::Promoted => self.counters.promoted_by_scan += 1,
                Outcome::Unsuitable => {}
                Outcome::NoBlock => return Ok(self.config.alloc_sleep_ms),
            }
        }
        Ok(self.config.scan_sleep_ms)
    }
}

impl MemoryManager for Ingens {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn keeps_for_huge_pages(&self) -> bool {
        true
    }

    fn fault(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError> {
        let table = &cx.state.processes.get(fault.process)?.table;
        let before = if fault.slot.level == Level::PTE { table.used_at(fault.slot) } else { 0 };
        let size = map_one_page(cx, fault)?;
        let order = PageSize::Huge.order();
        if before + 1 == self.config.utilized_pages && allows(&fault.vma) && fault.vma.holds_block(fault.page, order) {
            self.requests.push_back((fault.process, fault.page.align_down(order)));
            self.counters.requests += 1;
        }
        Ok(size)
    }

    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        self.serve(cx)?;
        while self.wakes_at <= cx.state.now {
            let sleep_ms = self.scan(cx)?;
            self.wakes_at += Nanoseconds::from_ms(sleep_ms.max(1));
        }
        Ok(())
    }

    fn counters(&self) -> Vec<Counter> {
        list(&self.counters)
    }
}

#[cfg(test)]
mod tests;
