// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a walk runs on: page-walk caches, the nested TLB, the accelerator, and the
//! [tape](crate::tape) of its references.
//!
//! The latency of a walk is the sum of
//! - the latency of the level that served each of its references,
//! - one page-walk-cache latency per look-up: once for the guest's table and once for each host
//!   walk that searches such caches,
//! - one nested-TLB latency per look-up, before each host walk, where the core has one.
//!
//! A reference to a line that was prefetched in the same walk waits for what is left of its
//! latency, and at least for an L1-D hit.
//!
//! A walk that ends in a page fault leaves no trace in the counters but its own two.

use nestwalk_mem::{Gpa, Gva, Hpa};

use crate::accelerator::Accelerator;
use crate::accelerator::prefetch::Issue;
use crate::config::MmuConfig;
use crate::counters::Counters;
use crate::error::MmuError;
use crate::events::{Served, Table, WalkEvents};
use crate::tape::{Tape, WalkSpan};
use crate::tasks::Pending;
use crate::walk_cache::{NestedTlb, WalkCache};

/// What a walk runs on. Walkers report to it each reference and each look-up.
#[derive(Clone, Debug)]
pub struct WalkUnit<P> {
    pub(crate) guest_pwc: WalkCache,
    pub(crate) host_pwc: WalkCache,
    /// Whether host walks search it: those for the guest's nodes, and those for data.
    host_pwc_for: [bool; 2],
    pub(crate) nested_tlb: Option<NestedTlb>,
    pub(crate) accelerator: P,
    pub(crate) counters: Counters,
    pub(crate) tape: Tape,
    pub(crate) pending: Pending,
    pub(crate) walk: WalkSpan,
    /// Counts of look-ups before the walk: they are restored if it ends in a page fault.
    lookups_before: [u64; WalkEvents::LOOKUPS_LEN],
    /// Cycles of look-ups since its last reference. Only kept where something prefetches.
    wait: u64,
}

impl<P: Accelerator> WalkUnit<P> {
    pub(crate) fn new(config: &MmuConfig, accelerator: P) -> Result<Self, MmuError> {
        let host_pwc = WalkCache::new("host_pwc", &config.host_pwc)?;
        Ok(Self {
            guest_pwc: WalkCache::new("guest_pwc", &config.guest_pwc)?,
            host_pwc_for: [host_pwc.exists(), host_pwc.exists() && !config.host_pwc_skips_data],
            host_pwc,
            nested_tlb: config.nested_tlb.as_ref().map(NestedTlb::new).transpose()?,
            accelerator,
            counters: Counters::default(),
            tape: Tape::default(),
            pending: Pending::default(),
            walk: WalkSpan::default(),
            lookups_before: [0; WalkEvents::LOOKUPS_LEN],
            wait: 0,
        })
    }

    /// A walk begins.
    #[inline(always)]
    pub(crate) fn begin(&mut self, gva: Gva) {
        self.walk = WalkSpan { begin: self.tape.len() as u32, ..WalkSpan::default() };
        self.lookups_before = *self.counters.walk_events.lookups();
        if P::ACTIVE {
            self.wait = 0;
            self.accelerator.walk_starts(gva, &mut Issue { tape: &mut self.tape, wait: &mut self.wait });
        }
    }

    /// A host walk begins inside it.
    #[inline(always)]
    pub(crate) fn begin_host_walk(&mut self, gpa: Gpa) {
        if P::ACTIVE {
            self.accelerator.host_walk_starts(gpa, &mut Issue { tape: &mut self.tape, wait: &mut self.wait });
        }
    }

    /// A reference to an entry of `table` at `hpa`; `step` is its [`WalkEvents::step_code`].
    #[inline(always)]
    pub(crate) fn reference(&mut self, table: Table, hpa: Hpa, step: u8) {
        let wait = if P::ACTIVE { std::mem::take(&mut self.wait) } else { 0 };
        self.tape.entry(hpa, step, table == Table::Host, wait);
    }

    /// The page-walk caches of `table`.
    #[inline(always)]
    pub(crate) fn pwc(&mut self, table: Table) -> &mut WalkCache {
        match table {
            Table::Guest => &mut self.guest_pwc,
            Table::Host => &mut self.host_pwc,
        }
    }

    /// Whether the host walk for the guest's node of `guest_level` (0: for the data page) searches
    /// the host's page-walk caches.
    #[inline(always)]
    pub(crate) fn searches_host_pwc(&self, guest_level: u8) -> bool {
        self.host_pwc_for[usize::from(guest_level == 0)]
    }

    /// A look-up in the page-walk caches of `table` that hit at `level` (0: missed).
    #[inline(always)]
    pub(crate) fn pwc_lookup(&mut self, table: Table, level: u8) {
        let cycles = self.pwc(table).latency_cycles();
        self.lookup(table, WalkEvents::pwc_code(table, level), cycles);
    }

    /// A look-up in the nested TLB.
    #[inline(always)]
    pub(crate) fn nested_tlb_lookup(&mut self, hit: bool, latency_cycles: u32) {
        self.lookup(Table::Host, WalkEvents::nested_tlb_code(hit), latency_cycles);
    }

    /// A translation by segment registers: part of the guest's walk.
    #[inline(always)]
    pub(crate) fn segment_translation(&mut self, latency_cycles: u32) {
        self.lookup(Table::Guest, WalkEvents::segments_code(), latency_cycles);
    }

    #[inline(always)]
    fn lookup(&mut self, table: Table, code: u8, cycles: u32) {
        match table {
            Table::Guest => self.walk.guest_lookup_cycles += cycles,
            Table::Host => self.walk.host_lookup_cycles += cycles,
        }
        if P::ACTIVE {
            self.wait += u64::from(cycles);
        }
        self.counters.walk_events.0[usize::from(code)] += 1;
    }

    /// The walk has found its translation.
    #[inline(always)]
    pub(crate) fn commit(&mut self) {
        self.tape.walks.push(WalkSpan { end: self.tape.len() as u32, ..self.walk });
    }

    /// The walk has ended in a page fault: restores the look-up counts and marks its references as
    /// aborted, so that they are counted separately.
    #[cold]
    pub(crate) fn abort(&mut self) {
        *self.counters.walk_events.lookups() = self.lookups_before;
        self.counters.aborted_walks += 1;
        self.tape.aborted = Some(self.walk.begin as usize);
    }

    /// The program refers `count` times to the line that it referred to last.
    #[inline(always)]
    pub(crate) fn same_data(&mut self, count: u64) {
        self.counters.walk_events.0[usize::from(WalkEvents::DATA) + Served::L1d as usize] += count;
    }

    /// The program's accesses so far, by what served them.
    pub(crate) fn data_served(&self) -> [u64; 4] {
        let data = usize::from(WalkEvents::DATA);
        [0, 1, 2, 3].map(|served| self.counters.walk_events.0[data + served])
    }

    /// So many more (or, below 0, fewer) of them are counted as served by `served`.
    pub(crate) fn more_data(&mut self, served: Served, count: i64) {
        let counter = &mut self.counters.walk_events.0[usize::from(WalkEvents::DATA) + served as usize];
        *counter = counter.wrapping_add_signed(count);
    }
}
