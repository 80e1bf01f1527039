// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ingens (Kwon et al., OSDI 2016; the code of Linux 4.3): faults take single pages; when 90 % of
//! an aligned 2 MiB are in use, the fault asks a daemon for a huge page, and the daemon copies the
//! pages into one.
//!
//! Requests are served in order, when the daemon is awake. No request wakes it: it sleeps
//! `scan_sleep_ms` on a condition that a fault's wake-up does not fulfil (`khugepaged_wait_work`).
//! Then it serves what there is and what comes meanwhile, and once there is nothing, scans address
//! spaces with the same threshold, since 4 KiB pages may have stayed behind for want of a block. It
//! neither compacts nor reclaims memory.
//!
//! In use is what a [map](population) of bits says: faults set them, `MADV_DONTNEED` and munmap
//! clear them. A request that finds no block is dropped: the scan finds the pages again.
//!
//! Two parts are off by default, as in the runs of the Quicksilver paper. One [samples](sampling)
//! accessed bits. The other is fairness: the scan serves the process with the most memory for each
//! huge page that it has (`osa_khugepaged_schedule_mm_slot`), by what the sampling counted last.
//! The authors give processes weights by hand, and leave those without one alone; here all have the
//! same.

mod population;
mod sampling;

use std::collections::{BTreeMap, VecDeque};

use nestwalk_mem::counters::{Counter, list};
use nestwalk_mem::{FrameRange, Nanoseconds, PageCount, PageSize, Vpn, VpnRange};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::context::collapse::{Candidate, CollapseLimits, examine};
use crate::context::event::Fault;
use crate::error::OsError;
use crate::manager::contract::{Deallocation, Facts, MemoryManager, Preparation, Promotion, When};
use crate::manager::linux4k::map_one_page;
use crate::manager::scan::{Cursor, block_from};
use crate::state::process::ProcessId;
use crate::state::vma::{HugeAdvice, Vma, VmaKind};
use population::Population;
use sampling::Sampling;

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

/// How long a promotion takes the daemon: 500 pages are copied, by the cost table 1.35 million
/// cycles, at 2.5 GHz.
const PROMOTION: Nanoseconds = Nanoseconds(540_000);

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
    /// Time between samples of accessed bits: 4000 in the authors' kernel. 0: there are none.
    pub access_sleep_ms: u64,
    /// Whether the scan serves the process with the most memory for each huge page, rather than
    /// each in turn. Memory is counted when accessed bits are sampled.
    pub fairness: bool,
}

impl Default for IngensConfig {
    fn default() -> Self {
        Self {
            utilized_pages: 460,
            scan_sleep_ms: 10_000,
            alloc_sleep_ms: 60_000,
            pages_to_scan: 4096,
            access_sleep_ms: 0,
            fairness: false,
        }
    }
}

impl IngensConfig {
    pub(crate) fn check(&self) -> Result<(), OsError> {
        if !(1..=512).contains(&self.utilized_pages) {
            let what = format!("{}: a 2 MiB block has 512 pages, give 1 to 512", self.utilized_pages);
            return Err(OsError::Config { key: "manager.utilized_pages", what });
        }
        if self.fairness && self.access_sleep_ms == 0 {
            let what = "fairness goes by what is counted when accessed bits are sampled: give access_sleep_ms".into();
            return Err(OsError::Config { key: "manager.fairness", what });
        }
        Ok(())
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
        /// Samples of accessed bits taken.
        samples ["samples"],
        /// Pages, small and huge, that were hot in the last sample.
        hot_pages ["pages"],
        /// Pages, small and huge, that had not been used since the sample before it.
        idle_pages ["pages"],
        /// Scans that served the process with the most memory for each huge page.
        scans_by_fairness ["scans"],
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Ingens {
    config: IngensConfig,
    /// What faults have asked for.
    requests: VecDeque<(ProcessId, Vpn)>,
    cursor: Cursor,
    /// When it goes on: while it works, its own clock; else when it wakes.
    wakes_at: Nanoseconds,
    population: Population,
    sampling: Sampling,
    /// Where the scans by fairness go on, by process.
    places: BTreeMap<ProcessId, Vpn>,
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
            population: Population::default(),
            sampling: Sampling::new(config.access_sleep_ms),
            places: BTreeMap::new(),
            counters: IngensCounters::default(),
        }
    }

    /// Copies the pages of the 2 MiB from `first` on into a huge page, if enough of them are in
    /// use.
    fn promote(&mut self, cx: &mut Context<'_>, process: ProcessId, first: Vpn) -> Result<Outcome, OsError> {
        // Linux 4.3 collapses neither shared pages nor such as are in swap. A sample takes accessed
        // bits away, but keeps that they were set.
        let referenced = !self.sampling.has_used(process, first);
        let limits = CollapseLimits { none_max: 511, swap_max: 0, shared_max: 0, referenced };
        cx.state.counters.pages_scanned += PageSize::Huge.pages();
        if self.population.count(process, first) < u32::from(self.config.utilized_pages) {
            return Ok(Outcome::Unsuitable);
        }
        if examine(cx.state, process, first, &limits)? != Candidate::Suitable {
            return Ok(Outcome::Unsuitable);
        }
        let Some(huge) = cx.huge_frame(false) else {
            self.counters.promotions_without_block += 1;
            return Ok(Outcome::NoBlock);
        };
        cx.collapse(process, first, huge, &mut |cx, _, frame, _| cx.free(FrameRange::single(frame)))?;
        self.population.commit(process, first);
        self.wakes_at += PROMOTION;
        Ok(Outcome::Promoted)
    }

    /// What faults have asked for, in order, as far as time reaches.
    fn serve(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        while self.wakes_at <= cx.state.now
            && let Some((process, first)) = self.requests.pop_front()
        {
            if cx.state.processes.get(process).is_ok() && self.promote(cx, process, first)? == Outcome::Promoted {
                self.counters.promoted_on_request += 1;
            }
        }
        Ok(())
    }

    /// The next 2 MiB to look at: of `only`, if one process is to be served, up to its end.
    fn next(
        &mut self,
        cx: &Context<'_>,
        rounds: &mut usize,
        only: Option<ProcessId>,
    ) -> Result<Option<(ProcessId, Vpn)>, OsError> {
        let Some(process) = only else { return self.cursor.next(cx, rounds, allows) };
        let place = self.places.entry(process).or_default();
        let next = block_from(&cx.state.processes.get(process)?.vmas, *place, allows);
        *place = next.map_or(Vpn(0), |first| first + PageSize::Huge.pages());
        Ok(next.map(|first| (process, first)))
    }

    /// Looks at up to `pages_to_scan` pages. Returns how long to sleep, in ms.
    fn scan(&mut self, cx: &mut Context<'_>) -> Result<u64, OsError> {
        let (mut progress, mut rounds) = (0, 0);
        let only = if self.config.fairness { self.sampling.neediest() } else { None };
        self.counters.scans_by_fairness += u64::from(only.is_some());
        while progress < self.config.pages_to_scan {
            let Some((process, first)) = self.next(cx, &mut rounds, only)? else { break };
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
        let size = map_one_page(cx, fault)?;
        let order = PageSize::Huge.order();
        if allows(&fault.vma) && fault.vma.holds_block(fault.page, order) {
            let (process, utilized) = (fault.process, u32::from(self.config.utilized_pages));
            if self.population.set(process, fault.page, utilized) {
                self.requests.push_back((process, fault.page.align_down(order)));
                self.counters.requests += 1;
            }
        }
        Ok(size)
    }

    fn discarding(&mut self, _: &mut Context<'_>, process: ProcessId, range: VpnRange) {
        self.population.clear(process, range);
    }

    fn unmapped(&mut self, _: &mut Context<'_>, process: ProcessId, range: VpnRange) {
        self.population.clear(process, range);
    }

    fn moving(&mut self, _: &mut Context<'_>, process: ProcessId, from: VpnRange, _: VpnRange) {
        // The authors' kernel keeps the bits where the pages were, until that is unmapped.
        self.population.clear(process, from);
    }

    fn exited(&mut self, _: &mut Context<'_>, process: ProcessId) {
        self.population.forget(process);
        self.sampling.forget(process);
        self.places.remove(&process);
    }

    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        if let Some(sample) = self.sampling.tick(cx, allows)? {
            self.counters.samples += 1;
            (self.counters.hot_pages, self.counters.idle_pages) = (sample.hot, sample.idle);
        }
        while self.wakes_at <= cx.state.now {
            self.serve(cx)?;
            if self.requests.is_empty() {
                let sleep_ms = self.scan(cx)?;
                self.wakes_at += Nanoseconds::from_ms(sleep_ms.max(1));
            }
        }
        Ok(())
    }

    fn counters(&self) -> Vec<Counter> {
        list(&self.counters)
    }
}

#[cfg(test)]
mod tests;
