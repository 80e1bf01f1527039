// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prefetches of page-table lines while a walk goes on.
//!
//! Prefetched lines go through the caches like any request. What has not arrived when the walk
//! reaches it costs the walk only the rest of the wait.

use nestwalk_mem::Hpa;

use crate::events::Served;
use crate::tape::Tape;

nestwalk_mem::counters! {
    /// What became of a prefetcher's requests. Those of walks that end in a page fault are in here,
    /// too: they were made.
    pub struct PrefetchCounters {
        /// Lines that were asked for and on their way.
        issued: u64 ["lines"],
        /// References of walks that found their line in flight, or brought, by a prefetch of the
        /// same walk.
        useful: u64 ["references"],
        /// Requests for lines that were in the L1-D, or on their way to it, already.
        needless: u64 ["requests"],
        /// Requests that were dropped since all miss registers of the L1-D were busy.
        dropped: u64 ["requests"],
    }
}

impl Copy for PrefetchCounters {}

/// Lines that were asked for in the walk that is going on, with the time at which each arrives, in
/// cycles since the walk began.
#[derive(Clone, Debug)]
pub struct InFlight {
    lines: [(u64, u64); InFlight::LEN],
    used: usize,
    /// Misses of the L1-D that can be outstanding at once; further requests are dropped.
    miss_registers: usize,
    counters: PrefetchCounters,
}

impl InFlight {
    /// The most that a walk can ask for: four levels for the guest and for each of six host walks.
    const LEN: usize = 4 * 7;

    /// With this many miss registers in the L1-D, of which the walk itself is counted to need none.
    pub(crate) fn new(miss_registers: usize) -> Self {
        Self { lines: [(0, 0); Self::LEN], used: 0, miss_registers, counters: PrefetchCounters::default() }
    }

    /// Forgets all: a new walk begins.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Counts into `counters` from now on, and leaves there what it has counted into until now.
    pub(crate) fn exchange_counters(&mut self, counters: &mut PrefetchCounters) {
        std::mem::swap(&mut self.counters, counters);
    }

    /// What was done since the core was made.
    pub(crate) fn counters(&self) -> PrefetchCounters {
        self.counters
    }

    /// When `line` arrives, if it was asked for.
    #[inline]
    pub(crate) fn arrival(&self, line: u64) -> Option<u64> {
        self.lines[..self.used].iter().find(|(there, _)| *there == line).map(|(_, arrival)| *arrival)
    }

    /// Whether a request at `now` is taken. If not, it is counted as dropped.
    #[inline]
    pub(crate) fn takes(&mut self, now: u64) -> bool {
        // Nearly always there are fewer requests in a walk than miss registers.
        let takes = self.takes_all(self.used + 1)
            || self.used < Self::LEN
                && self.lines[..self.used].iter().filter(|(_, arrival)| *arrival > now).count() < self.miss_registers;
        self.counters.dropped += u64::from(!takes);
        takes
    }

    /// Whether a walk with so many requests has all of them taken, whenever they come.
    #[inline(always)]
    pub(crate) fn takes_all(&self, requests: usize) -> bool {
        requests <= self.miss_registers.min(Self::LEN)
    }

    /// `line`, whose request was taken, is served by `served` and comes at `arrival`.
    #[inline]
    pub(crate) fn add(&mut self, line: u64, served: Served, arrival: u64) {
        if served == Served::L1d {
            // There already, or asked for in this walk.
            self.counters.needless += 1;
            return;
        }
        self.lines[self.used] = (line, arrival);
        self.used += 1;
        self.counters.issued += 1;
    }
}

/// Takes the lines to prefetch.
#[derive(Debug)]
pub struct Issue<'a> {
    pub(crate) tape: &'a mut Tape,
    /// Cycles of look-ups since the walk's last reference.
    pub(crate) wait: &'a mut u64,
}

impl Issue<'_> {
    /// Asks for the line of `hpa`. Best effort: dropped when too many are under way.
    #[inline]
    pub fn prefetch(&mut self, hpa: Hpa) {
        self.tape.prefetch(hpa, std::mem::take(self.wait));
    }
}
