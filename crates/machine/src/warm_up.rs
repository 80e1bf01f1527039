// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether TLBs and caches are warm: judged by what would be measured, and by the last-level cache.
//!
//! The warm-up is checked each time its length has doubled, so that most compared runs end it at
//! the same access and measure the same accesses. A check compares its third quarter with its
//! fourth: cycles an access, walks an access and cycles a walk must agree within [`TOLERANCE`], or
//! within the scatter of so few walks. That alone is not enough: a cache that fills slowly drifts
//! slowly, too. So the last-level cache must have stopped filling: it is full (under LRU it then
//! holds what any longer history would have left there), or the lines that filled empty places
//! since the last check cost next to nothing. An exclusive one is judged together with the L2s
//! whose victims are all it gets. (`docs/model.md`, "Warm-up")

use serde::Serialize;

use crate::hardware::Fill;
use crate::scenario::Sampling;
use crate::windows::Window;

/// Change between the two quarters that is no drift.
const TOLERANCE: f64 = 0.01;

/// Cycles for lines that fill empty places, as a share of the walk cycles, from which on the cache
/// is still filling.
const FILLING_OF_WALKS: f64 = 0.01;

/// The same as a share of all cycles: below it, a program that hardly walks is warm all the same.
const FILLING_OF_ALL: f64 = 0.001;

/// Places of the last-level cache that may be empty when it is called full, one in so many.
const EMPTY_ONE_IN: u64 = 50;

/// Accesses of a step.
pub(crate) const STEP: u64 = 1 << 14;

/// Steps before the first check, so that a quarter has several.
const STEPS_MIN: usize = 16;

/// Between how many accesses a warm-up ends that has no length of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    /// It goes on until so many, though it may be warm before.
    min: u64,
    /// It ends after so many, warm or not.
    pub max: u64,
}

impl Bounds {
    /// As the scenario has them.
    pub fn of(sampling: &Sampling) -> Self {
        Self { min: sampling.warm_accesses_min, max: sampling.warm_accesses_most() }
    }

    /// Whether it ends after so many `accesses`, if it has been warm or not.
    pub fn end(self, accesses: u64, was_warm: bool) -> bool {
        accesses >= self.max || was_warm && accesses >= self.min
    }
}

/// Why nothing is known of the warm-up of such a trace.
pub(crate) const WINDOWS: &str = "unavailable, because each window of the trace warms up by itself";

/// How a run warmed up.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct WarmUp {
    /// Accesses of the program that warmed up.
    pub accesses: u64,
    /// After how many it would have ended without being warm; `None` where the scenario gives its
    /// length.
    pub accesses_max: Option<u64>,
    /// Whether it was warm at the end. `None` where [`WarmUp::unavailable`] says why that is not
    /// known.
    pub reached: Option<bool>,
    /// Why it is not known: a sentence.
    pub unavailable: Option<&'static str>,
    /// By how much what is measured still changed; `None` if the warm-up was too short to tell.
    pub drift: Option<Drift>,
}

/// Changes from the third to the fourth quarter of the warm-up, as a share: 0.02 is 2 % more.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Drift {
    /// Of cycles an access.
    pub cycles_per_access: f64,
    /// Of walks an access; `None` where there were none.
    pub walks_per_access: Option<f64>,
    /// Of cycles a walk; `None` where there were none.
    pub cycles_per_walk: Option<f64>,
    /// Cycles for lines that came into empty places of the last-level cache (an exclusive one: of
    /// it and of the L2s of the program's cores) since the check before, as a share of all cycles.
    pub llc_filling: f64,
    /// Lines that the last-level cache held, an exclusive one and those L2s, as a share of their
    /// places.
    pub llc_held: f64,
}

/// Judges one warm-up.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    /// Cycles that a line from memory costs more than one from the last-level cache.
    miss_cycles: u64,
    /// What was counted from the beginning to each step's end; the first is the beginning.
    steps: Vec<Window>,
    /// The step at which it was checked last, and the last-level cache then.
    checked: (usize, Fill),
}

impl Judge {
    /// Nothing has happened yet.
    pub fn new(miss_cycles: u64) -> Self {
        Self { miss_cycles, steps: vec![Window::default()], checked: (0, Fill::default()) }
    }

    /// A step has ended; `counted` is everything since the beginning. Whether a check is due.
    pub fn step(&mut self, counted: Window) -> bool {
        self.steps.push(counted);
        let count = self.steps.len() - 1;
        count >= STEPS_MIN && count.is_power_of_two()
    }

    /// Whether it is warm now, and how things changed; `None` if it is too early to tell.
    pub fn check(&mut self, llc: Fill) -> Option<(bool, Drift)> {
        let count = self.steps.len() - 1;
        if count < STEPS_MIN {
            return None;
        }
        let (third, fourth) = (self.between(count / 2, count * 3 / 4), self.between(count * 3 / 4, count));
        let recent = self.between(self.checked.0, count);
        let filled = (llc.held.saturating_sub(self.checked.1.held) * self.miss_cycles) as f64;
        self.checked = (count, llc);
        let is_filling = filled > FILLING_OF_WALKS * recent.walk_cycles as f64
            && filled > FILLING_OF_ALL * cycles(&recent)
            && (llc.places - llc.held) * EMPTY_ONE_IN > llc.places;
        let walked = third.walks > 0 && fourth.walks > 0;
        let cycles_a_walk = |part: &Window| part.walk_cycles as f64 / part.walks as f64;
        let drift = Drift {
            cycles_per_access: change(cycles(&third) / per(&third), cycles(&fourth) / per(&fourth)),
            walks_per_access: walked
                .then(|| change(third.walks as f64 / per(&third), fourth.walks as f64 / per(&fourth))),
            cycles_per_walk: walked.then(|| change(cycles_a_walk(&third), cycles_a_walk(&fourth))),
            llc_filling: if recent.accesses > 0 { filled / cycles(&recent) } else { 0.0 },
            llc_held: llc.held as f64 / llc.places as f64,
        };
        // So many walks scatter by this much, if one of them says nothing about the next.
        let scatter = 2.0 * (1.0 / third.walks.max(1) as f64 + 1.0 / fourth.walks.max(1) as f64).sqrt();
        let stays = |change: Option<f64>| change.is_none_or(|change| change.abs() <= TOLERANCE + scatter);
        let drifts = drift.cycles_per_access.abs() > TOLERANCE
            || !stays(drift.walks_per_access)
            || !stays(drift.cycles_per_walk);
        Some((!drifts && !is_filling, drift))
    }

    fn between(&self, from: usize, to: usize) -> Window {
        let (a, b) = (&self.steps[from], &self.steps[to]);
        Window {
            accesses: b.accesses - a.accesses,
            walks: b.walks - a.walks,
            walk_cycles: b.walk_cycles - a.walk_cycles,
            cycles: crate::windows::CyclesByPart {
                work: b.cycles.work - a.cycles.work,
                data: b.cycles.data - a.cycles.data,
                walk: b.cycles.walk - a.cycles.walk,
                os: 0,
            },
            ..Window::default()
        }
    }
}

/// Cycles of the program, without what the kernels do for it: that comes in bursts.
fn cycles(part: &Window) -> f64 {
    (part.cycles.work + part.cycles.data + part.cycles.walk) as f64
}

fn per(part: &Window) -> f64 {
    part.accesses as f64
}

fn change(before: f64, after: f64) -> f64 {
    if before > 0.0 { after / before - 1.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::windows::CyclesByPart;

    const FULL: Fill = Fill { held: 1000, places: 1000 };

    /// Runs steps whose walks take `latency(step)` cycles over a cache that holds `held(step)` of 1
    /// 000 000 lines, until it is warm. Returns the number of steps.
    fn steps_until_warm(most: usize, latency: impl Fn(usize) -> u64, held: impl Fn(usize) -> u64) -> Option<usize> {
        let mut judge = Judge::new(200);
        let mut sum = Window::default();
        for step in 0..most {
            let walks = STEP / 10;
            sum.accesses += STEP;
            sum.walks += walks;
            sum.walk_cycles += walks * latency(step);
            sum.cycles = CyclesByPart { work: sum.accesses, data: sum.accesses, walk: sum.walk_cycles, os: 0 };
            let llc = Fill { held: held(step), places: 1_000_000 };
            if judge.step(sum) && judge.check(llc).is_some_and(|(warm, _)| warm) {
                return Some(step + 1);
            }
        }
        None
    }

    #[test]
    fn what_is_steady_is_warm_at_the_first_check() {
        assert_eq!(steps_until_warm(1000, |_| 100, |_| 1_000_000), Some(STEPS_MIN));
    }

    #[test]
    fn what_settles_is_warm_when_it_has_settled() {
        // A quarter of the way is left every 20 steps.
        let latency = |step: usize| 100_000 + (100_000.0 * 0.25_f64.powf(step as f64 / 20.0)) as u64;
        let steps = steps_until_warm(1000, latency, |_| 1_000_000).unwrap();
        assert_eq!(steps, 128, "at 64 steps there are still 4 % between the quarters");
        let left = latency(steps) as f64 / 100_000.0 - 1.0;
        assert!(left < 0.01, "what is left is less than the tolerance: {left}");
    }

    #[test]
    fn what_goes_on_changing_is_never_warm() {
        assert_eq!(steps_until_warm(2000, |step| 1000 + 10 * step as u64, |_| 1_000_000), None);
    }

    #[test]
    fn a_cache_that_fills_slowly_is_not_warm_though_nothing_seems_to_change() {
        assert_eq!(steps_until_warm(4000, |_| 100, |step| (step as u64 * 1000).min(1_000_000)), Some(1024));
        // A cache that stays half full because the program has no more lines is warm when no line
        // has come for a while.
        assert_eq!(steps_until_warm(4000, |_| 100, |step| (step as u64 * 1000).min(500_000)), Some(1024));
        assert_eq!(steps_until_warm(4000, |_| 100, |step| (step as u64 * 1000).min(200_000)), Some(512));
    }

    #[test]
    fn a_few_steps_say_nothing() {
        let mut judge = Judge::new(200);
        for _ in 1..STEPS_MIN {
            judge.step(Window { accesses: STEP, ..Window::default() });
            assert_eq!(judge.check(FULL), None);
        }
    }
}
