// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plans of a capture: what goes to the spool while the program runs, and what of it becomes
//! the trace; and where one begins that keeps every access.

use super::super::metadata::Sampling;
use super::super::sample::Segment;
use crate::stream::Phase;

/// Accesses of a chunk: the spool keeps or skips as many at a time.
pub const CHUNK_ACCESSES: u64 = 1 << 26;

/// A plan that keeps everything until the spool has taken `step` bytes, then every second chunk
/// until it has taken as many again, then every fourth, and so on: the spool grows with the
/// logarithm of the program's length.
#[derive(Clone, Debug)]
pub struct Thin {
    step: u64,
    next: u64,
    every: u64,
    chunk: u64,
    kept: Vec<(u64, u64)>,
}

impl Thin {
    /// A plan whose density halves with each `step` bytes. `chunk`: accesses of a chunk.
    pub fn new(step: u64, chunk: u64) -> Self {
        Self { step: step.max(1), next: step, every: 1, chunk, kept: Vec::new() }
    }

    /// What to do from access `at` on, `bytes` of the spool being taken.
    pub fn segment(&mut self, at: u64, bytes: u64) -> Segment {
        while bytes >= self.next {
            self.every *= 2;
            self.next = self.next.saturating_add(self.step);
        }
        let number = at / self.chunk;
        // In each row of `every` chunks one at a random place: a regular one could beat with the
        // program's own rhythm.
        let chosen = mixed(number / self.every) % self.every;
        let until = (number + 1) * self.chunk;
        if number % self.every != chosen {
            return Segment { phase: Phase::Populate, collapsed: false, until };
        }
        match self.kept.last_mut() {
            Some(last) if last.1 == at => last.1 = until,
            _ => self.kept.push((at, until)),
        }
        Segment { phase: Phase::Measure, collapsed: false, until }
    }

    /// The stretches that are kept, from and until; the last one may go beyond the program's end.
    pub fn kept(&self) -> &[(u64, u64)] {
        &self.kept
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): numbers without a pattern.
const fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// A window: first a stretch that is collapsed, then one that warms up, then what is measured. Each
/// may be empty but the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// The access with which it begins to be collapsed.
    pub collapse_from: u64,
    /// The access with which it begins to warm up.
    pub warm_from: u64,
    /// The first measured access.
    pub measure_from: u64,
    /// One past the last one.
    pub until: u64,
}

/// A plan of windows that are known beforehand, in order and without overlap.
#[derive(Clone, Debug)]
pub struct Windows {
    windows: Vec<Window>,
    next: usize,
    about: Sampling,
}

impl Windows {
    /// The plan; `about` says of it what the trace is to say, but for the number of windows.
    pub fn new(windows: Vec<Window>, about: Sampling) -> Self {
        Self { windows, next: 0, about }
    }

    /// What to do from access `at` on.
    pub fn segment(&mut self, at: u64) -> Segment {
        while self.windows.get(self.next).is_some_and(|window| at >= window.until) {
            self.next += 1;
        }
        let segment = |phase, collapsed, until| Segment { phase, collapsed, until };
        match self.windows.get(self.next) {
            None => segment(Phase::Populate, false, u64::MAX),
            Some(window) if at < window.collapse_from => segment(Phase::Populate, false, window.collapse_from),
            Some(window) if at < window.warm_from => segment(Phase::Warm, true, window.warm_from),
            Some(window) if at < window.measure_from => segment(Phase::Warm, false, window.measure_from),
            Some(window) => segment(Phase::Measure, false, window.until),
        }
    }

    /// For the metadata.
    pub fn sampling(&self) -> Sampling {
        Sampling { windows: self.windows.len() as u64, ..self.about.clone() }
    }
}

/// A plan that keeps every access from where it begins.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    first: Option<u64>,
    mark: Option<u64>,
}

impl Since {
    /// From this access on; `None`: from where it is [told](Self::begin).
    pub const fn access(first: Option<u64>) -> Self {
        Self { first, mark: None }
    }

    /// From the program's mark with this number on.
    pub const fn mark(number: u64) -> Self {
        Self { first: None, mark: Some(number) }
    }

    /// It begins at access `at`, if it has not begun.
    pub fn begin(&mut self, at: u64) {
        self.first.get_or_insert(at);
    }

    /// The mark `number` is before access `at`.
    pub fn passed(&mut self, number: u64, at: u64) {
        if self.mark == Some(number) {
            self.begin(at);
        }
    }

    /// What to do from access `at` on.
    pub fn segment(&self, at: u64) -> Segment {
        let first = self.first.unwrap_or(u64::MAX);
        let (phase, until) = if at < first { (Phase::Populate, first) } else { (Phase::Measure, u64::MAX) };
        Segment { phase, collapsed: false, until }
    }

    /// For the metadata of a program of `total` accesses: one window.
    pub fn sampling(&self, total: u64) -> Sampling {
        let first = self.first.unwrap_or(total);
        let kept = total.saturating_sub(first);
        Sampling {
            windows: 1,
            window_accesses: kept,
            stratum_accesses: kept,
            first_access: first,
            ..Sampling::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spool_grows_with_the_logarithm_of_the_length() {
        let mut thin = Thin::new(10, 100);
        let (mut at, mut bytes, mut kept) = (0, 0, Vec::new());
        while at < 1_000_000 {
            let segment = thin.segment(at, bytes);
            if segment.phase == Phase::Measure {
                bytes += 1;
                kept.push(at / 100);
            }
            at = segment.until;
        }
        // 10 of the first 10 chunks, then 10 of 20, 10 of 40 ...
        assert!((90..=110).contains(&bytes), "{bytes}");
        assert_eq!(kept[..10], (0..10).collect::<Vec<_>>());
        assert!(kept.windows(2).any(|pair| pair[1] - pair[0] > 200), "{kept:?}");
        let first = 1 + kept.windows(2).take_while(|pair| pair[1] == pair[0] + 1).count() as u64;
        assert_eq!(thin.kept()[0], (0, first * 100), "neighbours are one stretch");
    }

    #[test]
    fn windows_come_one_after_another() {
        let window =
            |from| Window { collapse_from: from, warm_from: from + 10, measure_from: from + 15, until: from + 20 };
        let mut plan = Windows::new(vec![window(100), window(120)], Sampling::default());
        let mut seen = Vec::new();
        let mut at = 0;
        while at < 150 {
            let segment = plan.segment(at);
            seen.push((segment.phase, segment.collapsed, segment.until));
            // A kept access with those absorbed after it may reach over the end of its stretch.
            at = segment.until.min(150) + u64::from(segment.until == 110);
        }
        use Phase::{Measure, Populate, Warm};
        let all = [
            (Populate, false, 100),
            (Warm, true, 110),
            (Warm, false, 115),
            (Measure, false, 120),
            (Warm, true, 130),
            (Warm, false, 135),
            (Measure, false, 140),
            (Populate, false, u64::MAX),
        ];
        assert_eq!(seen, all);
        assert_eq!(plan.sampling().windows, 2);
    }
}
