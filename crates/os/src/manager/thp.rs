// SPDX-License-Identifier: MIT OR Apache-2.0
//! Linux's transparent huge pages for anonymous memory: 2 MiB at the first touch
//! (`do_huge_pmd_anonymous_page`), and khugepaged, which makes huge pages of small ones later.
//!
//! A huge page of which a part is unmapped is split when memory is short, and not before
//! (`deferred`); on 4.3 ([`Release`]) at once. A load of memory that was never stored to may map a
//! huge page of zeroes (`zero`).
//!
//! Left out: the synchronous compaction that follows an asynchronous one which has failed, and
//! direct reclaim by khugepaged and for `MADV_COLLAPSE`.

mod deferred;
mod shrinker;
mod zero;

use nestwalk_mem::counters::Counter;
use nestwalk_mem::{Frame, FrameRange, Level, Nanoseconds, Order, PageCount, PageSize, Vpn};
use serde::{Deserialize, Serialize};

use crate::context::collapse::{Candidate, CollapseLimits, examine};
use crate::context::event::{Cause, Fault};
use crate::context::{Context, Outcome};
use crate::error::OsError;
use crate::manager::contract::{Deallocation, Facts, MemoryManager, Preparation, Promotion, When};
use crate::manager::linux4k::map_one_page;
use crate::manager::scan::Cursor;
use crate::state::KernelState;
use crate::state::process::ProcessId;
use crate::state::vma::{HugeAdvice, Vma, VmaKind};
use deferred::DeferredSplits;
use zero::ZeroPage;

/// Its choices at the five events.
pub const FACTS: Facts = Facts {
    name: "thp",
    source: "Linux 6.1, mm/huge_memory.c and mm/khugepaged.c; Zhu, Cox and Rixner (ATC 2020), section 2",
    block: PageCount(512),
    allocation: When::FaultOrDaemon,
    preparation: Preparation::Full,
    mapping: When::FaultOrDaemon,
    promotion: Promotion::OutOfPlace,
    deallocation: Deallocation::Deferred,
};

/// Where huge pages are used (`/sys/kernel/mm/transparent_hugepage/enabled`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Enabled {
    /// Everywhere but where the program has advised `MADV_NOHUGEPAGE`.
    #[default]
    Always,
    /// Where the program has advised `MADV_HUGEPAGE`.
    Madvise,
    /// Nowhere.
    Never,
}

/// What a fault does when no 2 MiB block is free (`.../defrag`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Defrag {
    /// It compacts memory, and reclaims some where that fails.
    Always,
    /// It takes a small page, and wakes the daemons that reclaim and compact.
    Defer,
    /// It compacts and reclaims where the program has advised `MADV_HUGEPAGE`, and defers
    /// elsewhere.
    #[serde(rename = "defer+madvise")]
    DeferMadvise,
    /// It compacts and reclaims where the program has advised `MADV_HUGEPAGE`, and takes a small
    /// page elsewhere.
    #[default]
    Madvise,
    /// It takes a small page.
    Never,
}

/// Whose code paths it follows where releases differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub enum Release {
    /// Linux 4.3: a huge page of which a part is unmapped is split at once (its
    /// `__split_huge_page_pmd` ends in `split_huge_page`; since 4.5 that is deferred). Pageblocks
    /// in which compaction found nothing are passed over until kswapd sleeps, and a fault whose
    /// compaction fails tries once more (`__alloc_pages_slowpath`).
    #[serde(rename = "4.3")]
    V4_3,
    /// Linux 6.1.
    #[default]
    #[serde(rename = "6.1")]
    V6_1,
}

/// Its parameters, with Linux's defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ThpConfig {
    /// Whose code paths it follows where releases differ.
    pub release: Release,
    /// Where huge pages are used.
    pub enabled: Enabled,
    /// What a fault does when no block is free.
    pub defrag: Defrag,
    /// Whether a load of memory that was never stored to maps the huge page of zeroes
    /// (`.../use_zero_page`). Linux's default is yes; here it is no, since a first load in a trace
    /// is mostly of memory that the kernel has filled (a file, a `read`).
    pub use_zero_page: bool,
    /// The daemon.
    pub khugepaged: KhugepagedConfig,
}

/// khugepaged's parameters (`.../khugepaged/`), with Linux's defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KhugepagedConfig {
    /// Whether it may compact memory.
    pub defrag: bool,
    /// Time between scans.
    pub scan_sleep_ms: u64,
    /// Time that it sleeps when there is no block.
    pub alloc_sleep_ms: u64,
    /// Pages that it looks at in a scan.
    pub pages_to_scan: u64,
    /// Pages of the 512 that may be missing.
    pub max_ptes_none: u16,
    /// Pages of the 512 that may be in swap.
    pub max_ptes_swap: u16,
    /// Pages of the 512 that may be shared.
    pub max_ptes_shared: u16,
}

impl Default for KhugepagedConfig {
    fn default() -> Self {
        Self {
            defrag: true,
            scan_sleep_ms: 10_000,
            alloc_sleep_ms: 60_000,
            pages_to_scan: 4096,
            max_ptes_none: 511,
            max_ptes_swap: 64,
            max_ptes_shared: 256,
        }
    }
}

/// How hard a fault tries to get a block (`vma_thp_gfp_mask`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effort {
    /// What is free.
    Light,
    /// What is free, and wake the daemons.
    Wake,
    /// Compact; reclaim if compaction was tried and failed (`__GFP_NORETRY`).
    Direct,
    /// Compact, and reclaim.
    Hard,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Thp {
    config: ThpConfig,
    /// khugepaged goes on here.
    cursor: Cursor,
    /// And not before this time, in ns.
    wakes_at: Nanoseconds,
    /// Huge pages that are unmapped in part.
    deferred: DeferredSplits,
    zero: ZeroPage,
    /// The fault for which the kernel is reclaiming memory, so that there may be a block.
    reclaimed_for: Option<(ProcessId, Vpn)>,
}

impl Thp {
    /// With its daemon at the beginning.
    pub fn new(config: ThpConfig) -> Self {
        Self {
            config,
            cursor: Cursor::default(),
            wakes_at: Nanoseconds::from_ms(config.khugepaged.scan_sleep_ms),
            deferred: DeferredSplits::default(),
            zero: ZeroPage::default(),
            reclaimed_for: None,
        }
    }

    /// `hugepage_vma_check`.
    fn allows(&self, vma: &Vma) -> bool {
        let advised = match self.config.enabled {
            Enabled::Always => vma.flags.advice != HugeAdvice::NoHuge,
            Enabled::Madvise => vma.flags.advice == HugeAdvice::Huge,
            Enabled::Never => false,
        };
        advised && vma.flags.kind == VmaKind::Anonymous
    }

    /// `vma_thp_gfp_mask`.
    fn effort(&self, vma: &Vma) -> Effort {
        let advised = vma.flags.advice == HugeAdvice::Huge;
        match self.config.defrag {
            Defrag::Always | Defrag::DeferMadvise | Defrag::Madvise if advised => Effort::Hard,
            Defrag::Always => Effort::Direct,
            Defrag::Defer | Defrag::DeferMadvise => Effort::Wake,
            Defrag::Madvise | Defrag::Never => Effort::Light,
        }
    }

    /// Whether a huge page may serve the fault: the mapping allows it and holds all of it, and
    /// there are no PTEs yet.
    fn suits(&self, cx: &Context<'_>, fault: &Fault) -> Result<bool, OsError> {
        let order = PageSize::Huge.order();
        let table = &cx.state.processes.get(fault.process)?.table;
        let geometry = table.geometry();
        Ok(self.allows(&fault.vma)
            && fault.vma.holds_block(fault.page, order)
            && geometry.levels() > Level::PMD.0
            && geometry.entry_order(Level::PMD) == order
            && table.lowest_node(fault.page).1 > Level::PTE)
    }

    /// `do_huge_pmd_anonymous_page`; `None` when there is no block.
    fn map_huge(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<Option<PageSize>, OsError> {
        if !fault.store && self.config.use_zero_page {
            return self.zero.map(cx, fault);
        }
        let Some(frame) = (match cx.state.alloc(Order::HUGE, cx.cpu) {
            Some(frame) => Some(frame),
            None => self.block_by_work(cx, fault)?,
        }) else {
            return Ok(None);
        };
        self.reclaimed_for = None;
        let frames = FrameRange::new(frame, PageCount(PageSize::Huge.pages()));
        let first = fault.page.align_down(PageSize::Huge.order());
        let mapped =
            cx.zero(frames).and_then(|()| cx.map(fault.process, first, frame, PageSize::Huge, fault.leaf_flags()));
        match mapped {
            Ok(()) => Ok(Some(PageSize::Huge)),
            Err(error) => {
                cx.free(frames);
                Err(error)
            }
        }
    }

    /// A block where none is free, by what `defrag` allows (`__alloc_pages_slowpath`).
    ///
    /// # Errors
    /// Want of memory, when the kernel is to reclaim some for a block and call again: once a fault.
    #[cold]
    #[inline(never)]
    fn block_by_work(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<Option<Frame>, OsError> {
        let again = self.reclaimed_for.take() == Some((fault.process, fault.page));
        let effort = self.effort(&fault.vma);
        match effort {
            Effort::Light => return Ok(None),
            Effort::Wake => {
                cx.state.wake_background();
                cx.compact_later(Order::HUGE);
                return Ok(None);
            }
            Effort::Direct | Effort::Hard => {}
        }
        let outcome = cx.compact(Order::HUGE);
        if outcome == Outcome::Done
            && let Some(frame) = cx.state.alloc(Order::HUGE, cx.cpu)
        {
            return Ok(Some(frame));
        }
        let worth_it = effort == Effort::Hard || outcome == Outcome::Failed;
        match cx.state.memory.reclaim_for_compaction(Order::HUGE) {
            None if self.config.release == Release::V4_3 && outcome == Outcome::Failed => {
                // Direct reclaim finds memory enough (`compaction_ready`) and frees none.
                let outcome = cx.compact(Order::HUGE);
                Ok(if outcome == Outcome::Done { cx.state.alloc(Order::HUGE, cx.cpu) } else { None })
            }
            Some(want) if worth_it && !again => {
                self.reclaimed_for = Some((fault.process, fault.page));
                cx.state.ask_for_block(want);
                Err(cx.out_of_memory())
            }
            _ => Ok(None),
        }
    }

    /// `khugepaged_do_scan`: looks at up to `pages_to_scan` pages. Returns how long to sleep, in
    /// ms.
    fn scan(&mut self, cx: &mut Context<'_>) -> Result<u64, OsError> {
        let config = self.config.khugepaged;
        let (mut progress, mut rounds) = (0, 0);
        while progress < config.pages_to_scan {
            let mut cursor = self.cursor;
            let next = cursor.next(cx, &mut rounds, |vma| self.allows(vma))?;
            self.cursor = cursor;
            let Some((process, first)) = next else { break };
            progress += PageSize::Huge.pages();
            cx.state.counters.pages_scanned += PageSize::Huge.pages();
            if examine(cx.state, process, first, &self.limits())? != Candidate::Suitable {
                continue;
            }
            let Some(frame) = cx.huge_frame(config.defrag) else { return Ok(config.alloc_sleep_ms) };
            cx.collapse(process, first, frame, &mut |cx, page, frame, shared| {
                if !shared {
                    self.release(cx, process, page, FrameRange::single(frame), Cause::Replaced);
                }
            })?;
        }
        Ok(config.scan_sleep_ms)
    }

    fn limits(&self) -> CollapseLimits {
        let config = self.config.khugepaged;
        CollapseLimits {
            none_max: config.max_ptes_none,
            swap_max: config.max_ptes_swap,
            shared_max: config.max_ptes_shared,
            referenced: true,
        }
    }
}

impl MemoryManager for Thp {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn keeps_for_huge_pages(&self) -> bool {
        !matches!(self.config.enabled, Enabled::Never)
    }

    fn keeps_compounds(&self) -> bool {
        true
    }

    fn keeps_skip_hints(&self) -> bool {
        self.config.release == Release::V4_3
    }

    fn fault(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError> {
        if self.suits(cx, fault)? {
            if let Some(size) = self.map_huge(cx, fault)? {
                return Ok(size);
            }
            let size = map_one_page(cx, fault)?;
            cx.state.counters.huge_fallbacks += 1;
            return Ok(size);
        }
        map_one_page(cx, fault)
    }

    fn release(&mut self, cx: &mut Context<'_>, process: ProcessId, page: Vpn, frames: FrameRange, cause: Cause) {
        if frames.count.0 == 1 && cx.state.memory.is_compound(frames.start) {
            if cause != Cause::Reclaimed && self.config.release == Release::V6_1 {
                return self.deferred.unmapped(cx, process, page, frames.start);
            }
            // Reclaim splits a huge page before it takes pages of it (`shrink_folio_list`).
            self.deferred.split(cx, frames.start);
        }
        cx.free(frames);
    }

    fn shrink(&mut self, cx: &mut Context<'_>, priority: u32) -> PageCount {
        PageCount(self.deferred.shrink(cx, priority).0 + self.zero.shrink(cx, priority).0)
    }

    fn can_shrink(&self) -> bool {
        !self.deferred.is_empty() || self.zero.is_made()
    }

    fn counters(&self) -> Vec<Counter> {
        self.zero.counters()
    }

    fn reserved(&self) -> PageCount {
        self.deferred.held()
    }

    fn check_invariants(&self, state: &KernelState) {
        self.deferred.check_invariants(state);
    }

    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        if self.config.enabled == Enabled::Never {
            return Ok(());
        }
        while self.wakes_at <= cx.state.now {
            let sleep_ms = self.scan(cx)?;
            self.wakes_at += Nanoseconds::from_ms(sleep_ms.max(1));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
