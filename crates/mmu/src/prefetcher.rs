// SPDX-License-Identifier: MIT OR Apache-2.0
//! The seam for hardware that prefetches page-table lines while a walk goes on (ASAP).
//!
//! A prefetcher is told when a walk starts. The lines that it asks for go through the caches like any request; what has
//! not arrived when the walk reaches it costs the walk only the rest of the wait.

use nestwalk_mem::{Gpa, Gva, Hpa};

use crate::tape::Tape;

/// Hardware that sees walks start.
pub trait Prefetcher {
    /// Whether it ever does anything: `false` compiles it away.
    const ACTIVE: bool;

    /// A walk for `gva` begins. `issue` takes the lines to prefetch.
    fn walk_starts(&mut self, gva: Gva, issue: &mut Issue<'_>);

    /// Inside a nested walk, the host walk for `gpa` begins.
    fn host_walk_starts(&mut self, gpa: Gpa, issue: &mut Issue<'_>);
}

/// No prefetcher.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrefetch;

impl Prefetcher for NoPrefetch {
    const ACTIVE: bool = false;

    #[inline(always)]
    fn walk_starts(&mut self, _: Gva, _: &mut Issue<'_>) {}

    #[inline(always)]
    fn host_walk_starts(&mut self, _: Gpa, _: &mut Issue<'_>) {}
}

/// Lines that were asked for in the walk that is going on, with the time at which each arrives, in cycles since the walk
/// began.
#[derive(Clone, Debug, Default)]
pub struct InFlight {
    lines: [(u64, u64); InFlight::LEN],
    used: usize,
    issued: u64,
}

impl InFlight {
    /// Misses that can be outstanding at once; further requests are dropped.
    pub const LEN: usize = 16;

    /// Forgets all: a new walk begins.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Prefetches issued since the core was made.
    pub(crate) fn issued(&self) -> u64 {
        self.issued
    }

    /// When `line` arrives, if it was asked for.
    #[inline]
    pub(crate) fn arrival(&self, line: u64) -> Option<u64> {
        self.lines[..self.used].iter().find(|(there, _)| *there == line).map(|(_, arrival)| *arrival)
    }

    /// Whether a request for `line` is taken: not if it was asked for already, nor when too many are under way.
    #[inline]
    pub(crate) fn wants(&self, line: u64) -> bool {
        self.used < Self::LEN && self.arrival(line).is_none()
    }

    /// `line`, which is wanted, will come at `arrival`.
    #[inline]
    pub(crate) fn add(&mut self, line: u64, arrival: u64) {
        self.lines[self.used] = (line, arrival);
        self.used += 1;
        self.issued += 1;
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
