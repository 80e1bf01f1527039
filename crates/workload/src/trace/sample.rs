// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which accesses of a program a sampled trace keeps.
//!
//! The steady phase is cut into stretches of equal length (strata), and each has one window at a
//! random place: accesses that warm up, then accesses that are measured. Everything between is
//! skipped, except for first touches and memory events.

use rand::RngExt;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::metadata::Sampling;
use crate::stream::Phase;

/// Where the steady phase begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SteadyFrom {
    /// At this access of the program.
    Access(u64),
    /// At the mark with this number in the capture.
    Mark(u64),
}

/// How long a stretch is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strata {
    /// So many windows over the whole steady phase. The length of the capture has to be known.
    Windows(u64),
    /// One window in every so many accesses, and at most `windows_max` of them.
    Period {
        /// Accesses of a stretch.
        accesses: u64,
        /// The most windows, if there is a bound.
        windows_max: Option<u64>,
    },
}

/// How to sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleOptions {
    /// Where the steady phase begins.
    pub steady_from: SteadyFrom,
    /// How the windows are spread.
    pub strata: Strata,
    /// Accesses before a window of which only the last one to each line is kept
    /// ([`super::collapse`]); needs a filter.
    pub collapse: u64,
    /// Accesses of a window that warm up.
    pub warm: u64,
    /// Accesses of a window that are measured.
    pub window: u64,
    /// What the random places come from.
    pub seed: u64,
    /// About how large the file may become, in bytes: windows that would not fit are left out,
    /// evenly if the number of all windows is known, otherwise the last ones.
    pub budget: Option<u64>,
}

/// What to do with the accesses up to `until`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Populate means that they are skipped.
    pub phase: Phase,
    /// Whether of those that warm up only the last one to each line is kept.
    pub collapsed: bool,
    /// One past the last of them.
    pub until: u64,
}

/// Where the windows of a program lie, one after another.
#[derive(Clone, Debug)]
pub struct Plan {
    options: SampleOptions,
    /// Accesses of the whole program, if known.
    total: Option<u64>,
    rng: Xoshiro256PlusPlus,
    /// Where the steady phase begins, once known.
    first: Option<u64>,
    stratum: u64,
    /// The next stretch.
    next: u64,
    windows: u64,
    over_budget: u64,
    /// Where the current window begins.
    window_at: u64,
}

impl Plan {
    /// A plan for a program of `total` accesses.
    ///
    /// # Errors
    /// Says which option is impossible.
    pub fn new(options: SampleOptions, total: Option<u64>) -> Result<Self, String> {
        if options.window == 0 {
            return Err("a window of no accesses: give --window at least 1".into());
        }
        if matches!(options.strata, Strata::Windows(_)) && total.is_none() {
            return Err("the length of this input is not known in advance: give --total ACCESSES, or --period ACCESSES instead of --sample-windows".into());
        }
        let mut plan = Self {
            options,
            total,
            rng: Xoshiro256PlusPlus::seed_from_u64(options.seed),
            first: None,
            stratum: 0,
            next: 0,
            windows: 0,
            over_budget: 0,
            window_at: u64::MAX,
        };
        if let SteadyFrom::Access(access) = options.steady_from {
            plan.begin(access)?;
        }
        Ok(plan)
    }

    /// The capture's mark `number` is before access `at`.
    ///
    /// # Errors
    /// When what follows is too short for the windows asked for.
    pub fn mark(&mut self, number: u64, at: u64) -> Result<(), String> {
        if self.first.is_none() && self.options.steady_from == SteadyFrom::Mark(number) {
            self.begin(at)?;
        }
        Ok(())
    }

    fn begin(&mut self, first: u64) -> Result<(), String> {
        self.stratum = match self.options.strata {
            Strata::Period { accesses, .. } => accesses,
            Strata::Windows(0) => return Err("no windows: give --sample-windows at least 1".into()),
            Strata::Windows(windows) => self.total.unwrap_or(0).saturating_sub(first) / windows,
        };
        let needed = self.options.collapse.saturating_add(self.options.warm).saturating_add(self.options.window);
        if self.stratum < needed {
            return Err(format!(
                "one window is {needed} accesses, and there is one in every {} of them: take fewer or shorter windows, or a longer capture",
                self.stratum
            ));
        }
        self.first = Some(first);
        self.place();
        Ok(())
    }

    /// Chooses where the window of the next stretch lies.
    fn place(&mut self) {
        let (Some(first), true) = (self.first, self.next < self.windows_max()) else {
            self.window_at = u64::MAX;
            return;
        };
        let room = self.stratum - self.options.collapse - self.options.warm - self.options.window;
        let start = first.saturating_add(self.stratum.saturating_mul(self.next));
        self.window_at = start.saturating_add(self.rng.random_range(0..=room));
        self.next += 1;
    }

    fn windows_max(&self) -> u64 {
        match self.options.strata {
            Strata::Windows(windows) => windows,
            Strata::Period { windows_max, .. } => windows_max.unwrap_or(u64::MAX),
        }
    }

    /// The segment that access `at` begins or goes on with. `fits` says whether a window of the
    /// share `(part, whole)` of all windows still fits the budget; it is asked when a window
    /// begins.
    pub fn segment(&mut self, at: u64, fits: impl Fn(u64, Option<u64>) -> bool) -> Segment {
        let warm_from = self.window_at.saturating_add(self.options.collapse);
        let warm_until = warm_from.saturating_add(self.options.warm);
        let until = warm_until.saturating_add(self.options.window);
        if at >= until {
            self.place();
            return self.segment(at, fits);
        }
        if at == self.window_at {
            let whole = Some(self.windows_max()).filter(|&windows| windows != u64::MAX);
            if !fits(self.next, whole) {
                self.over_budget += 1;
                self.place();
                return self.segment(at, fits);
            }
            self.windows += 1;
        }
        if at < self.window_at {
            Segment { phase: Phase::Populate, collapsed: false, until: self.window_at }
        } else if at < warm_from {
            Segment { phase: Phase::Warm, collapsed: true, until: warm_from }
        } else if at < warm_until {
            Segment { phase: Phase::Warm, collapsed: false, until: warm_until }
        } else {
            Segment { phase: Phase::Measure, collapsed: false, until }
        }
    }

    /// What became of it, for the metadata.
    pub fn sampling(&self) -> Sampling {
        Sampling {
            windows: self.windows,
            windows_over_budget: self.over_budget,
            window_accesses: self.options.window,
            collapsed_accesses: self.options.collapse,
            warm_accesses: self.options.warm,
            stratum_accesses: self.stratum,
            first_access: self.first.unwrap_or(0),
            seed: self.options.seed,
            ..Sampling::default()
        }
    }

    /// Why there is no window at all, if there is none.
    pub fn complaint(&self) -> Option<String> {
        if self.windows > 0 {
            return None;
        }
        Some(match (self.first, self.options.steady_from) {
            (None, SteadyFrom::Mark(number)) => {
                format!("the capture has no mark {number}: give --skip-start ACCESSES instead of --steady-from")
            }
            _ => "the capture ended before the first window: take a smaller --skip-start or --period".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segments(plan: &mut Plan, total: u64) -> Vec<(Phase, u64, u64)> {
        let (mut at, mut all) = (0, Vec::new());
        while at < total {
            let segment = plan.segment(at, |_, _| true);
            let until = segment.until.min(total);
            assert!(until > at, "a segment without accesses at {at}");
            all.push((segment.phase, at, until));
            at = until;
        }
        all
    }

    proptest! {
        #[test]
        fn each_stretch_has_one_window(first in 0u64..1000, warm in 0u64..100, window in 1u64..100, slack in 0u64..50, windows in 1u64..20, seed: u64) {
            let stratum = warm + window + slack;
            let total = first + stratum * windows;
            let options = SampleOptions {
                steady_from: SteadyFrom::Access(first), strata: Strata::Windows(windows), collapse: 0, warm, window, seed, budget: None,
            };
            let mut plan = Plan::new(options, Some(total)).unwrap();
            let all = segments(&mut plan, total);
            let measured: Vec<_> = all.iter().filter(|s| s.0 == Phase::Measure).collect();
            prop_assert_eq!(measured.len() as u64, windows);
            for (i, (_, from, until)) in measured.iter().enumerate() {
                let start = first + stratum * i as u64;
                prop_assert!(*from >= start + warm && *until <= start + stratum && until - from == window);
            }
            let warmed: u64 = all.iter().filter(|s| s.0 == Phase::Warm).map(|s| s.2 - s.1).sum();
            prop_assert_eq!(warmed, warm * windows);
            prop_assert_eq!(plan.sampling().windows, windows);
            // A period and the same stretch is the same plan, without a known length.
            let period = Strata::Period { accesses: plan.stratum, windows_max: Some(windows) };
            let mut same = Plan::new(SampleOptions { strata: period, ..options }, None).unwrap();
            prop_assert_eq!(segments(&mut same, total), all);
        }
    }

    fn options() -> SampleOptions {
        SampleOptions {
            steady_from: SteadyFrom::Mark(2),
            strata: Strata::Windows(10),
            collapse: 0,
            warm: 10,
            window: 10,
            seed: 1,
            budget: None,
        }
    }

    #[test]
    fn a_mark_begins_the_steady_phase() {
        let mut plan = Plan::new(options(), Some(1000)).unwrap();
        plan.mark(1, 100).unwrap();
        assert_eq!(
            plan.segment(100, |_, _| true),
            Segment { phase: Phase::Populate, collapsed: false, until: u64::MAX }
        );
        plan.mark(2, 500).unwrap();
        assert!((500..=530).contains(&plan.segment(500, |_, _| true).until));
        assert!(plan.complaint().is_some_and(|why| why.contains("ended before")));
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_remedy() {
        assert!(Plan::new(options(), None).unwrap_err().contains("--total"));
        let steady_from = SteadyFrom::Access(0);
        assert!(Plan::new(SampleOptions { steady_from, ..options() }, Some(199)).unwrap_err().contains("fewer"));
        assert!(Plan::new(SampleOptions { window: 0, ..options() }, Some(1000)).is_err());
        assert!(Plan::new(options(), Some(1000)).unwrap().complaint().unwrap().contains("mark 2"));
    }
}
