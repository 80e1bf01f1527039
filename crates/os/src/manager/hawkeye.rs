// SPDX-License-Identifier: MIT OR Apache-2.0
//! HawkEye (Panwar, Bansal, Gopinath; ASPLOS 2019; the code of Linux 4.3): faults take single
//! pages; a daemon measures which 2 MiB are used densely, by accessed bits, and copies the densest
//! into huge pages first.
//!
//! A sample clears the accessed bits, and counts a second later how many of the 512 pages were
//! used (`kbinmanager`). The average of the counts (0.6 old + 0.4 new) puts the 2 MiB into one of
//! 11 bins, by powers of two. Of one process, promotion takes the highest bin first, and in it what
//! came there last. It never compacts memory.
//!
//! Which process goes first: the one with the highest [measured MMU overhead](overhead)
//! (HawkEye-PMU), in a round as a whole; where none has any, the highest bin of all, processes in
//! turn (HawkEye-G, the order by access coverage). A difference: the authors' daemon does nothing
//! for processes without overhead.
//!
//! Two daemons of the authors' are modules, which their kernel does without until they are loaded.
//! One fills free blocks of 4 MiB with zeroes, so many in a second (`async-zero`); a fault that
//! gets a page of such a block does not zero it. The other [gets back](recovery) pages of huge
//! pages that are all zeroes.
//!
//! Left out: the share of a processor that bounds how often it samples (19 times the busy time),
//! which is less than the five seconds between samples that are kept. Table nodes and the pages
//! that a promotion adds are zeroed whether their frames were or not.

mod overhead;
mod recovery;

use std::collections::BTreeMap;

use nestwalk_mem::counters::{Counter, list};
use nestwalk_mem::{Entry, Frame, FrameRange, Level, Nanoseconds, PageCount, PageSize, Vpn, VpnRange};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::context::collapse::{Candidate, CollapseLimits, examine};
use crate::context::event::{Cause, Fault};
use crate::error::OsError;
use crate::manager::contract::{Deallocation, Facts, MemoryManager, Preparation, Promotion, When};
use crate::manager::linux4k::map_one_page;
use crate::manager::scan::Cursor;
use crate::state::process::ProcessId;
use crate::state::vma::{HugeAdvice, Vma, VmaKind};
use overhead::Overhead;
use recovery::{Recovery, missing};

/// Its choices at the five events.
pub const FACTS: Facts = Facts {
    name: "hawkeye",
    source: "Panwar, Bansal and Gopinath, HawkEye, ASPLOS 2019; Zhu, Cox and Rixner (ATC 2020), section 2",
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
pub struct HawkEyeConfig {
    /// Time between rounds of promotion.
    pub scan_sleep_ms: u64,
    /// Pages that a round promotes at most: 4096 are 8 huge pages.
    pub pages_to_scan: u64,
    /// Time between a sample and the next.
    pub sample_sleep_ms: u64,
    /// How long a sample waits for accesses.
    pub sample_ms: u64,
    /// Which process goes first.
    pub metric: Metric,
    /// Time between a measurement of MMU overhead and the next.
    pub measure_sleep_ms: u64,
    /// How long a measurement takes.
    pub measure_ms: u64,
    /// Anonymous memory that a process must have to be measured.
    #[serde(with = "nestwalk_mem::size::pages")]
    #[schemars(with = "nestwalk_mem::schema::Pages")]
    pub measured_min: PageCount,
    /// Pages of free memory that a daemon zeroes in a second, at most: 10240 are 40 MiB, as the
    /// authors' module does it. 0: there is no such daemon.
    pub zeroed_pages_per_s: u64,
    /// Time between looks whether pages of zeroes should be taken out of huge pages: 120000 in the
    /// authors' module. 0: they never are.
    pub recovery_sleep_ms: u64,
    /// They are while more of memory than this is in use.
    pub recovery_above_permille: u64,
    /// And until only so much is.
    pub recovery_down_to_permille: u64,
}

impl HawkEyeConfig {
    pub(crate) fn check(&self) -> Result<(), OsError> {
        if self.recovery_above_permille >= self.recovery_down_to_permille {
            return Ok(());
        }
        let Self { recovery_above_permille: above, recovery_down_to_permille: down_to, .. } = self;
        let what = format!("{down_to}: give at most recovery_above_permille, which is {above}");
        Err(OsError::Config { key: "manager.recovery_down_to_permille", what })
    }
}

/// Which process goes first (`promotion_metric` of the authors' kernel, 0 to 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The one with the highest MMU overhead.
    #[default]
    Overhead,
    /// The one with the highest MMU overhead for each huge page that it may have still.
    OverheadPerHugePage,
    /// Each in turn, of those with the most densely used memory.
    Coverage,
}

impl Default for HawkEyeConfig {
    fn default() -> Self {
        Self {
            scan_sleep_ms: 10_000,
            pages_to_scan: 4096,
            sample_sleep_ms: 5000,
            sample_ms: 1000,
            metric: Metric::default(),
            measure_sleep_ms: 10_000,
            measure_ms: 1000,
            measured_min: PageCount(100 << 8),
            zeroed_pages_per_s: 0,
            recovery_sleep_ms: 0,
            recovery_above_permille: 850,
            recovery_down_to_permille: 700,
        }
    }
}

/// Bins: none used, 1, 2, 3 to 4, up to 257 to 512.
const BINS: usize = 11;
/// Regions from this bin on (3 pages used) wait for their promotion, and a process with fewer of
/// them has no claim on a round (`ohp_mm_pending_promotions`).
const PENDING_BIN: usize = 3;
/// See there.
const PENDING_MIN: u64 = 8;
/// Free memory is zeroed this often (`sleep` of `async-zero`).
const ZERO_PERIOD: Nanoseconds = Nanoseconds::from_ms(1000);
/// Blocks that hold zeroes already, and are passed over until the next time
/// (`zero_fill_zone_pages`).
const PASSED_MAX: usize = 100;
/// Averages are kept in thousandths of a page.
const UNIT: u32 = 1000;

/// What is known of 2 MiB of small pages.
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    /// Pages used in a sample, averaged, in thousandths.
    average: u32,
    bin: usize,
    /// When it came into the bin: a number that grows.
    moved: u64,
    /// The last sample that saw it.
    sample: u64,
}

impl Region {
    fn update(&mut self, used: u32, sample: u64, moves: &mut u64) {
        self.average = if self.sample == 0 { used * UNIT } else { (6 * self.average + 4 * used * UNIT) / 10 };
        self.sample = sample;
        let bin = bin_of(self.average);
        if bin != self.bin || self.moved == 0 {
            *moves += 1;
            (self.bin, self.moved) = (bin, *moves);
        }
    }
}

/// ceil(log2) of the pages used, and one more, or 0 if none were.
fn bin_of(average: u32) -> usize {
    match average.div_ceil(UNIT) {
        0 => 0,
        pages => pages.next_power_of_two().ilog2() as usize + 1,
    }
}

/// What the sampler does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Clear,
    Count,
}

nestwalk_mem::counters! {
    /// What HawkEye counts.
    pub numbers HawkEyeCounters {
        /// Samples of accessed bits taken.
        samples ["samples"],
        /// Regions of 2 MiB promoted.
        promoted ["2 MiB pages"],
        /// Promotions that found no free block.
        promotions_without_block ["promotions"],
        /// Regions of 2 MiB of small pages known at the end.
        regions ["regions"],
        /// Regions in the densest bin at the end.
        regions_densest_bin ["regions"],
        /// Measurements of MMU overhead.
        measurements ["measurements"],
        /// Rounds of promotion for the process with the highest MMU overhead.
        rounds_by_overhead ["rounds"],
        /// Pages of free memory zeroed ahead.
        zeroed_ahead ["pages"],
        /// Faults whose page was zeroed ahead.
        faults_zeroed_ahead ["faults"],
        /// Huge pages out of which pages of zeroes were taken.
        recovered_superpages ["2 MiB pages"],
        /// Pages of zeroes taken out of huge pages.
        recovered_pages ["pages"],
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct HawkEye {
    config: HawkEyeConfig,
    /// By process: 2 MiB by their first page.
    regions: BTreeMap<ProcessId, BTreeMap<Vpn, Region>>,
    phase: Phase,
    samples_at: Nanoseconds,
    promotes_at: Nanoseconds,
    moves: u64,
    overhead: Overhead,
    zeroes_at: Nanoseconds,
    recovery: Recovery,
    /// Without those of the regions, which are counted when they are asked for.
    counters: HawkEyeCounters,
}

fn allows(vma: &Vma) -> bool {
    vma.flags.kind == VmaKind::Anonymous && vma.flags.advice != HugeAdvice::NoHuge
}

/// Of the 2 MiB from `first` on, if they are mapped by small pages: how many were used, clearing
/// the accessed bits.
fn take_used(cx: &mut Context<'_>, process: ProcessId, first: Vpn, clear: bool) -> Result<Option<u32>, OsError> {
    let table = &mut cx.state.processes.get_mut(process)?.table;
    let (node, level) = table.lowest_node(first);
    if level > Level::PTE || table.geometry().entry_order(Level::PMD) != PageSize::Huge.order() {
        return Ok(None);
    }
    let mut used = 0;
    for index in 0..PageSize::Huge.pages() {
        let entry = table.entry(node, index as usize);
        if entry.has(Entry::PRESENT | Entry::ACCESSED) {
            used += 1;
            if clear {
                table.update(first + index, |entry| entry.without(Entry::ACCESSED));
            }
        }
    }
    Ok(Some(used))
}

/// What came into the bin last.
fn newest_of(regions: &BTreeMap<Vpn, Region>, bin: usize) -> Option<Vpn> {
    let of_bin = regions.iter().filter(|(_, region)| region.bin == bin);
    of_bin.max_by_key(|(_, region)| region.moved).map(|(&first, _)| first)
}

impl HawkEye {
    /// Before its first sample.
    pub fn new(config: HawkEyeConfig) -> Self {
        Self {
            config,
            regions: BTreeMap::new(),
            phase: Phase::Clear,
            samples_at: Nanoseconds::from_ms(config.sample_sleep_ms),
            promotes_at: Nanoseconds::from_ms(config.scan_sleep_ms),
            moves: 0,
            overhead: Overhead::new(&config),
            zeroes_at: ZERO_PERIOD,
            recovery: Recovery::new(&config),
            counters: HawkEyeCounters::default(),
        }
    }

    /// One half of a sample: goes over all 2 MiB of small pages.
    fn sample(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        let (mut cursor, mut rounds) = (Cursor::default(), 0);
        let clear = self.phase == Phase::Clear;
        self.counters.samples += u64::from(!clear);
        while let Some((process, first)) = cursor.next(cx, &mut rounds, allows)? {
            if self.recovery.has_recovered(process, first) {
                continue;
            }
            let Some(used) = take_used(cx, process, first, clear)? else { continue };
            cx.state.counters.pages_scanned += PageSize::Huge.pages();
            if !clear {
                let region = self.regions.entry(process).or_default().entry(first).or_default();
                region.update(used, self.counters.samples, &mut self.moves);
            }
        }
        if clear {
            cx.forget_marks();
        } else {
            // What this sample has not seen is unmapped or huge.
            let samples = self.counters.samples;
            self.regions.retain(|_, regions| {
                regions.retain(|_, region| region.sample == samples);
                !regions.is_empty()
            });
        }
        Ok(())
    }

    /// The process whose turn it is in this round, if one is told from the others.
    fn target(&mut self) -> Option<ProcessId> {
        if self.config.metric == Metric::Coverage {
            return None;
        }
        let pending = |regions: &BTreeMap<Vpn, Region>| {
            regions.values().filter(|region| region.bin >= PENDING_BIN).count() as u64
        };
        let pending = self.regions.iter().map(|(&process, regions)| (process, pending(regions)));
        let target = self.overhead.heaviest(pending.filter(|&(_, count)| count >= PENDING_MIN), self.config.metric);
        self.counters.rounds_by_overhead += u64::from(target.is_some());
        target
    }

    /// The next 2 MiB to promote: of the highest bin that is not empty, processes in turn after
    /// `last`.
    fn densest(&self, last: ProcessId) -> Option<(ProcessId, Vpn)> {
        let best = self.regions.values().flat_map(|regions| regions.values()).map(|region| region.bin).max()?;
        let newest = |(&process, regions): (&ProcessId, &BTreeMap<Vpn, Region>)| {
            newest_of(regions, best).map(|first| (process, first))
        };
        let mut turns = self.regions.range(ProcessId(last.0.saturating_add(1))..).chain(self.regions.range(..=last));
        if best == 0 { None } else { turns.find_map(newest) }
    }

    /// The next 2 MiB of `process` to promote.
    fn densest_of(&self, process: ProcessId) -> Option<(ProcessId, Vpn)> {
        let regions = self.regions.get(&process)?;
        let best = regions.values().map(|region| region.bin).max().filter(|&bin| bin > 0)?;
        newest_of(regions, best).map(|first| (process, first))
    }

    /// One round of promotion.
    fn promote(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        let limits = CollapseLimits { none_max: 511, swap_max: 0, shared_max: 0, referenced: false };
        let (mut left, mut last) = (self.config.pages_to_scan / PageSize::Huge.pages(), ProcessId(u16::MAX));
        let target = self.target();
        while left > 0
            && let Some((process, first)) =
                target.map_or_else(|| self.densest(last), |process| self.densest_of(process))
        {
            last = process;
            self.forget(process, first);
            if cx.state.processes.get(process).is_err()
                || examine(cx.state, process, first, &limits)? != Candidate::Suitable
            {
                continue;
            }
            left -= 1;
            let Some(huge) = cx.huge_frame(false) else {
                self.counters.promotions_without_block += 1;
                return Ok(());
            };
            let zeroes = self.recovery.is_on().then(|| missing(cx.state, process, first)).transpose()?;
            cx.collapse(process, first, huge, &mut |cx, _, frame, _| cx.free(FrameRange::single(frame)))?;
            if let Some(zeroes) = zeroes {
                self.recovery.promoted(cx.state, (process, first), huge, zeroes);
            }
            self.counters.promoted += 1;
        }
        Ok(())
    }

    /// Zeroes free memory, as much as the time since the last time allows.
    fn zero_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        let periods = (cx.state.now + ZERO_PERIOD).saturating_sub(self.zeroes_at).periods(ZERO_PERIOD);
        self.zeroes_at += Nanoseconds(periods * ZERO_PERIOD.0);
        let mut left = self.config.zeroed_pages_per_s.saturating_mul(periods);
        while let Some(block) = cx.state.memory.next_to_zero(PASSED_MAX)
            && left >= block.count.0
        {
            for half in [0, PageSize::Huge.pages()] {
                cx.zero(FrameRange::new(block.start + half, PageCount(PageSize::Huge.pages())))?;
            }
            cx.state.memory.set_zeroed(block.start);
            self.counters.zeroed_ahead += block.count.0;
            left -= block.count.0;
        }
        Ok(())
    }

    /// [`map_one_page`], without zeroing what was zeroed ahead (`prep_new_page`).
    fn map_prepared(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError> {
        let frame = cx.page_frame()?;
        let frames = FrameRange::single(frame);
        let is_zeroed = cx.state.memory.is_zeroed(frame);
        let prepared = if is_zeroed { Ok(()) } else { cx.zero(frames) };
        match prepared.and_then(|()| cx.map_fault(fault, frame)) {
            Ok(()) => {
                self.counters.faults_zeroed_ahead += u64::from(is_zeroed);
                Ok(PageSize::Small)
            }
            Err(error) => {
                cx.free(frames);
                Err(error)
            }
        }
    }

    fn forget(&mut self, process: ProcessId, first: Vpn) {
        if let Some(regions) = self.regions.get_mut(&process) {
            regions.remove(&first);
            if regions.is_empty() {
                self.regions.remove(&process);
            }
        }
    }
}

impl MemoryManager for HawkEye {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn keeps_for_huge_pages(&self) -> bool {
        true
    }

    fn fault(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError> {
        if self.config.zeroed_pages_per_s > 0 { self.map_prepared(cx, fault) } else { map_one_page(cx, fault) }
    }

    fn release(&mut self, cx: &mut Context<'_>, process: ProcessId, page: Vpn, frames: FrameRange, _: Cause) {
        self.recovery.changed(process, VpnRange::new(page, frames.count));
        cx.free(frames);
    }

    fn left(&mut self, _: &mut Context<'_>, process: ProcessId, page: Vpn, _: Frame) {
        self.recovery.changed(process, VpnRange::new(page, PageCount(1)));
    }

    fn moving(&mut self, _: &mut Context<'_>, process: ProcessId, from: VpnRange, to: VpnRange) {
        self.recovery.unmapped(process, from);
        self.recovery.changed(process, to);
    }

    fn unmapped(&mut self, _: &mut Context<'_>, process: ProcessId, range: VpnRange) {
        self.recovery.unmapped(process, range);
    }

    fn stored(&mut self, process: ProcessId, page: Vpn) {
        self.recovery.stored(process, page);
    }

    fn wants_walk_time(&self) -> bool {
        self.config.metric != Metric::Coverage
    }

    fn exited(&mut self, _: &mut Context<'_>, process: ProcessId) {
        self.regions.remove(&process);
        self.overhead.forget(process);
        self.recovery.unmapped(process, VpnRange { start: Vpn(0), end: Vpn(u64::MAX) });
    }

    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        // Between the halves of a sample programs must have run, so there is one half a tick at
        // most.
        if self.samples_at <= cx.state.now {
            self.sample(cx)?;
            let (next, sleep_ms) = match self.phase {
                Phase::Clear => (Phase::Count, self.config.sample_ms),
                Phase::Count => (Phase::Clear, self.config.sample_sleep_ms),
            };
            self.phase = next;
            self.samples_at = cx.state.now + Nanoseconds::from_ms(sleep_ms);
        }
        if self.wants_walk_time() {
            self.counters.measurements += u64::from(self.overhead.tick(cx)?);
        }
        while self.promotes_at <= cx.state.now {
            self.promotes_at += Nanoseconds::from_ms(self.config.scan_sleep_ms.max(1));
            self.promote(cx)?;
        }
        if self.config.zeroed_pages_per_s > 0 {
            self.zero_ahead(cx)?;
        }
        let recovered = self.recovery.tick(cx)?;
        self.counters.recovered_superpages += recovered.superpages;
        self.counters.recovered_pages += recovered.pages;
        Ok(())
    }

    fn counters(&self) -> Vec<Counter> {
        let regions = || self.regions.values().flat_map(|regions| regions.values());
        list(&HawkEyeCounters {
            regions: regions().count() as u64,
            regions_densest_bin: regions().filter(|region| region.bin == BINS - 1).count() as u64,
            ..self.counters
        })
    }
}

#[cfg(test)]
mod tests;
