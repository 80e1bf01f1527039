// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a walk runs on: caches, page-walk caches, a clock that starts with each walk, and the list of what happened.
//!
//! The latency of a walk is the sum of
//! - the latency of the level that served each of its references,
//! - one page-walk-cache latency per look-up: once for the guest's table and once for each host walk, where the core has such caches,
//! - one nested-TLB latency per look-up, before each host walk, where the core has one.
//!
//! A reference to a line that a prefetcher asked for in the same walk waits for what is left of its latency, and at least
//! for an L1-D hit.
//!
//! Events are counted as they happen and listed, so that those of a walk which ends in a page fault can be taken back:
//! it leaves no trace in the counters but its own two.

use nestwalk_mem::{Gpa, Gva, Hpa, addr::LINE_SHIFT};

use crate::config::MmuConfig;
use crate::counters::{Counters, Served, Table, WalkEvents};
use crate::error::MmuError;
use crate::hierarchy::{Llc, PrivateCaches};
use crate::prefetcher::{InFlight, Issue, Prefetcher};
use crate::walk_cache::{NestedTlb, WalkCache};

/// The most events of a walk: 35 references, 7 look-ups in page-walk caches, 6 in the nested TLB, and as many prefetch
/// hits as references.
const EVENTS_MAX: usize = 128;

/// What a walk runs on: the core's caches, page-walk caches and nested TLB, and the walk's clock.
///
/// Walkers report to it each reference and each look-up; it adds up the latency and counts.
#[derive(Clone, Debug)]
pub struct WalkUnit<P> {
    pub(crate) caches: PrivateCaches,
    pub(crate) guest_pwc: WalkCache,
    pub(crate) host_pwc: WalkCache,
    pub(crate) nested_tlb: Option<NestedTlb>,
    pub(crate) prefetcher: P,
    pub(crate) counters: Counters,
    in_flight: InFlight,
    events: [u8; EVENTS_MAX],
    event_count: usize,
    cycles: u64,
    host_cycles: u64,
}

impl<P: Prefetcher> WalkUnit<P> {
    pub(crate) fn new(config: &MmuConfig, prefetcher: P) -> Result<Self, MmuError> {
        Ok(Self {
            caches: PrivateCaches::new(config)?,
            guest_pwc: WalkCache::new("guest_pwc", &config.guest_pwc)?,
            host_pwc: WalkCache::new("host_pwc", &config.host_pwc)?,
            nested_tlb: config.nested_tlb.as_ref().map(NestedTlb::new).transpose()?,
            prefetcher,
            counters: Counters::default(),
            in_flight: InFlight::default(),
            events: [0; EVENTS_MAX],
            event_count: 0,
            cycles: 0,
            host_cycles: 0,
        })
    }

    /// A walk begins: its clock stands at 0.
    #[inline(always)]
    pub(crate) fn begin(&mut self, llc: &mut Llc, gva: Gva) {
        (self.event_count, self.cycles, self.host_cycles) = (0, 0, 0);
        if P::ACTIVE {
            self.in_flight.clear();
            let mut issue = Issue { in_flight: &mut self.in_flight, caches: &mut self.caches, llc, now: self.cycles };
            self.prefetcher.walk_starts(gva, &mut issue);
        }
    }

    /// A host walk begins inside it. The time on the walk's clock, for [`WalkUnit::end_host_walk`].
    #[inline(always)]
    pub(crate) fn begin_host_walk(&mut self, llc: &mut Llc, gpa: Gpa) -> u64 {
        if P::ACTIVE {
            let mut issue = Issue { in_flight: &mut self.in_flight, caches: &mut self.caches, llc, now: self.cycles };
            self.prefetcher.host_walk_starts(gpa, &mut issue);
        }
        self.cycles
    }

    /// The host walk that began at `began` has ended: what it took was host time.
    #[inline(always)]
    pub(crate) fn end_host_walk(&mut self, began: u64) {
        self.host_cycles += self.cycles - began;
    }

    /// A reference to an entry at `hpa`; `step` is its [`WalkEvents::step_code`].
    #[inline(always)]
    pub(crate) fn reference(&mut self, llc: &mut Llc, hpa: Hpa, step: u8) {
        let line = hpa.0 >> LINE_SHIFT;
        let served = self.caches.access(llc, line);
        let mut latency = self.caches.latency(served);
        if P::ACTIVE
            && let Some(arrival) = self.in_flight.arrival(line)
        {
            latency = latency.max(arrival.saturating_sub(self.cycles));
            self.event(WalkEvents::prefetch_hit_code());
        }
        self.cycles += latency;
        self.event(step + served as u8);
    }

    /// A look-up in the page-walk caches of `table` that hit at `level` (0: missed).
    #[inline(always)]
    pub(crate) fn pwc_lookup(&mut self, table: Table, level: u8, latency_cycles: u64) {
        self.cycles += latency_cycles;
        self.event(WalkEvents::pwc_code(table, level));
    }

    /// A look-up in the nested TLB.
    #[inline(always)]
    pub(crate) fn nested_tlb_lookup(&mut self, hit: bool, latency_cycles: u64) {
        self.cycles += latency_cycles;
        self.event(WalkEvents::nested_tlb_code(hit));
    }

    #[inline(always)]
    fn event(&mut self, code: u8) {
        self.events[self.event_count % EVENTS_MAX] = code;
        self.event_count += 1;
        self.counters.walk_events.0[usize::from(code)] += 1;
    }

    /// The walk has found its translation.
    #[inline(always)]
    pub(crate) fn commit(&mut self) {
        debug_assert!(self.event_count <= EVENTS_MAX);
        self.counters.walk_cycles += self.cycles;
        self.counters.host_walk_cycles += self.host_cycles;
        self.counters.guest_walk_cycles += self.cycles - self.host_cycles;
        self.counters.latency.add(self.cycles);
    }

    /// The walk has ended in a page fault: takes its events back and counts its references apart.
    #[cold]
    pub(crate) fn abort(&mut self) {
        let events = &self.events[..self.event_count];
        events.iter().for_each(|&code| self.counters.walk_events.0[usize::from(code)] -= 1);
        let references = events.iter().filter(|&&code| WalkEvents::is_reference(code)).count();
        self.counters.aborted_walks += 1;
        self.counters.aborted_references += references as u64;
    }

    pub(crate) fn prefetches_issued(&self) -> u64 {
        self.in_flight.issued()
    }

    /// The program refers to its data at `hpa`.
    #[inline(always)]
    pub(crate) fn data(&mut self, llc: &mut Llc, hpa: Hpa) {
        let served = self.caches.access(llc, hpa.0 >> LINE_SHIFT);
        self.counters.data[served as usize] += 1;
        self.counters.data_cycles += self.caches.latency(served);
    }

    /// The program refers `count` times to the line that it referred to last.
    #[inline(always)]
    pub(crate) fn same_data(&mut self, count: u64) {
        self.counters.data[Served::L1d as usize] += count;
        self.counters.data_cycles += count * self.caches.latency(Served::L1d);
    }

    /// The co-runner refers to `hpa`.
    #[inline(always)]
    pub(crate) fn corunner(&mut self, llc: &mut Llc, hpa: Hpa) {
        let served = self.caches.access(llc, hpa.0 >> LINE_SHIFT);
        self.counters.corunner[served as usize] += 1;
    }
}
