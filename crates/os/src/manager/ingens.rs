// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ingens (Kwon et al., OSDI 2016; the code of Linux 4.3): faults take single pages; when 90 % of an aligned 2 MiB are in
//! use, the fault asks a daemon for a huge page, and the daemon copies the pages into one.
//!
//! Requests are served in order, as soon as the daemon runs. Besides, it scans address spaces with the same threshold,
//! since 4 KiB pages may have stayed behind for want of a block. It neither compacts nor reclaims memory.
//!
//! Left out: fairness among processes and the sampling of accessed bits (both are off in the runs of the Quicksilver
//! paper). A request that finds no block is dropped, which is an assumption: the scan finds the pages again.

use std::collections::VecDeque;

use nestwalk_mem::{FrameRange, Level, PageCount, PageSize, Vpn};
use serde::{Deserialize, Serialize};

use crate::collapse::{Candidate, CollapseLimits, examine};
use crate::context::Context;
use crate::error::OsError;
use crate::manager::linux4k::map_one_page;
use crate::manager::scan::Cursor;
use crate::manager::{Deallocation, Facts, Fault, MemoryManager, Preparation, Promotion, When};
use crate::process::ProcessId;
use crate::vma::{HugeAdvice, Vma, VmaKind};

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

/// See the [module](self).
#[derive(Debug)]
pub struct Ingens {
    config: IngensConfig,
    /// What faults have asked for.
    requests: VecDeque<(ProcessId, Vpn)>,
    cursor: Cursor,
    wakes_ns: u64,
    requested: u64,
    served: u64,
    found: u64,
    failed: u64,
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
            wakes_ns: config.scan_sleep_ms * 1_000_000,
            requested: 0,
            served: 0,
            found: 0,
            failed: 0,
        }
    }

    /// Copies the pages of the 2 MiB from `first` on into a huge page, if enough of them are in use.
    fn promote(&mut self, cx: &mut Context<'_>, process: ProcessId, first: Vpn) -> Result<Outcome, OsError> {
        let none_max = PageSize::Huge.pages() as u16 - self.config.utilized_pages;
        // Linux 4.3 collapses neither shared pages nor such as are in swap.
        let limits = CollapseLimits { none_max, swap_max: 0, shared_max: 0, referenced: true };
        cx.state.counters.pages_scanned += PageSize::Huge.pages();
        if examine(cx.state, process, first, &limits)? != Candidate::Suitable {
            return Ok(Outcome::Unsuitable);
        }
        let Some(huge) = cx.huge_frame(false) else {
            self.failed += 1;
            return Ok(Outcome::NoBlock);
        };
        cx.collapse(process, first, huge, &mut |cx, _, frame, _| cx.free(FrameRange::single(frame)))?;
        Ok(Outcome::Promoted)
    }

    /// All that faults have asked for, in order.
    fn serve(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        while let Some((process, first)) = self.requests.pop_front() {
            if cx.state.processes.get(process).is_ok() {
                self.served += u64::from(self.promote(cx, process, first)? == Outcome::Promoted);
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
                Outcome::Promoted => self.found += 1,
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
            self.requested += 1;
        }
        Ok(size)
    }

    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        self.serve(cx)?;
        while self.wakes_ns <= cx.state.now_ns {
            let sleep_ms = self.scan(cx)?;
            self.wakes_ns += sleep_ms.max(1) * 1_000_000;
        }
        Ok(())
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("requests", self.requested),
            ("promoted_on_request", self.served),
            ("promoted_by_scan", self.found),
            ("promotions_without_block", self.failed),
        ]
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::{Cpu, VpnRange};

    use crate::below::Bare;
    use crate::config::KernelConfig;
    use crate::kernel::Kernel;
    use crate::madvise::Advice;
    use crate::manager::ManagerConfig;
    use crate::vma::VmaFlags;

    use super::*;

    const FIRST: u64 = 4096;
    const SECOND_NS: u64 = 1_000_000_000;

    fn kernel() -> (Kernel, ProcessId) {
        let mut config = KernelConfig::new(PageCount(32_768));
        config.manager = ManagerConfig::Ingens(IngensConfig::default());
        config.min_free = Some(PageCount(256));
        let mut kernel = Kernel::new(&config).unwrap();
        let process = kernel.spawn(&mut Bare).unwrap();
        let range = VpnRange::new(Vpn(FIRST), PageCount(20 * 512));
        kernel.mmap(process, range, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
        (kernel, process)
    }

    fn touch(kernel: &mut Kernel, process: ProcessId, block: u64, count: u64) {
        for page in (0..count).map(|n| Vpn(FIRST + block * 512 + n)) {
            kernel.touch(process, page, true, Cpu(0), &mut Bare).unwrap();
        }
    }

    fn statistic(kernel: &Kernel, name: &str) -> u64 {
        kernel.manager().statistics().into_iter().find(|&(known, _)| known == name).unwrap().1
    }

    fn tick(kernel: &mut Kernel, second: u64) {
        kernel.tick(second * SECOND_NS, &mut Bare).unwrap();
        kernel.check_invariants();
    }

    #[test]
    fn ninety_percent_in_use_are_promoted_and_one_page_less_is_not() {
        let (mut kernel, process) = kernel();
        touch(&mut kernel, process, 0, 460);
        touch(&mut kernel, process, 1, 459);
        tick(&mut kernel, 1);
        let size =
            |kernel: &Kernel, block: u64| kernel.table(process).unwrap().leaf(Vpn(FIRST + block * 512)).unwrap().size();
        assert_eq!((size(&kernel, 0), size(&kernel, 1)), (PageSize::Huge, PageSize::Small));
        tick(&mut kernel, 100);
        assert_eq!(size(&kernel, 1), PageSize::Small, "the scan has the same threshold");
        let done = kernel.counters();
        assert_eq!((done.copied_collapse, done.faults_2m, done.faults_4k), (460, 0, 919));
        // What was given back does not count.
        kernel.madvise(process, VpnRange::new(Vpn(FIRST + 512), PageCount(9)), Advice::DontNeed, &mut Bare).unwrap();
        touch(&mut kernel, process, 1, 460);
        tick(&mut kernel, 101);
        assert_eq!((size(&kernel, 1), statistic(&kernel, "promoted_on_request")), (PageSize::Huge, 2));
    }

    #[test]
    fn the_daemon_serves_all_requests_at_once() {
        let (mut kernel, process) = kernel();
        (0..20).for_each(|block| touch(&mut kernel, process, block, 512));
        tick(&mut kernel, 1);
        assert_eq!((statistic(&kernel, "requests"), statistic(&kernel, "promoted_on_request")), (20, 20));
    }

    #[test]
    fn without_a_block_nothing_is_compacted_and_the_scan_finds_the_pages_later() {
        let (mut kernel, process) = kernel();
        // Another program leaves so little that a block would take the last of it.
        let hog = kernel.spawn(&mut Bare).unwrap();
        let pages = VpnRange::new(Vpn(1 << 20), PageCount(32_768));
        kernel.mmap(hog, pages, VmaFlags { advice: HugeAdvice::NoHuge, ..VmaFlags::ANONYMOUS }, &mut Bare).unwrap();
        while kernel.memory().free_frames().0 > kernel.memory().watermarks().high.0 + 512 + 200 {
            let next = pages.start + kernel.counters().faults_4k;
            kernel.fault(hog, next, true, Cpu(0), &mut Bare).unwrap();
        }
        touch(&mut kernel, process, 0, 512);
        tick(&mut kernel, 1);
        assert_eq!((kernel.counters().collapses, kernel.counters().compactions_direct), (0, 0));
        assert_eq!((statistic(&kernel, "requests"), statistic(&kernel, "promotions_without_block")), (1, 1));
        kernel.exit(hog, &mut Bare).unwrap();
        tick(&mut kernel, 9);
        assert_eq!(kernel.counters().collapses, 0, "the request is gone");
        tick(&mut kernel, 10);
        assert_eq!(statistic(&kernel, "promoted_by_scan"), 1);
    }
}
