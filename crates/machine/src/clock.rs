// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated time, in which daemons of the kernels are woken.

use nestwalk_mem::{Cycles, Nanoseconds};

/// The kernels' daemons are woken each time the clock has advanced by this much: a hundredth of
/// khugepaged's shortest useful period, so that results do not depend on it.
const TICK: Nanoseconds = Nanoseconds::from_ms(10);

/// The time since the program began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// What the kernels' clocks read when the program began.
    base: Nanoseconds,
    now: Nanoseconds,
    ticked: Nanoseconds,
    /// Cycles that are not yet a whole ns, times 1000.
    rest: u64,
}

impl Clock {
    /// A clock that begins where the kernels' clocks are already.
    pub fn from(base: Nanoseconds) -> Self {
        Self { base, ..Self::default() }
    }

    /// The time.
    pub fn now(&self) -> Nanoseconds {
        self.base + self.now
    }

    /// Advances by a time in which the program's accesses are not simulated.
    pub fn pass(&mut self, time: Nanoseconds) {
        self.now += time;
    }

    /// Advances by `cycles` of a processor of `mhz` MHz.
    pub fn advance(&mut self, cycles: Cycles, mhz: u64) {
        let thousandths = cycles.0 * 1000 + self.rest;
        self.now += Nanoseconds(thousandths / mhz);
        self.rest = thousandths % mhz;
    }

    /// Advances to that cycle, counted from the beginning.
    pub fn advance_to(&mut self, cycle: Cycles, mhz: u64) {
        self.now = Nanoseconds((u128::from(cycle.0) * 1000 / u128::from(mhz)) as u64);
    }

    /// Whether the daemons are due.
    pub fn is_tick_due(&self) -> bool {
        self.now - self.ticked >= TICK
    }

    /// They have been woken now.
    pub fn ticked(&mut self) {
        self.ticked = self.now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_nanosecond_are_not_lost() {
        let mut clock = Clock::default();
        (0..3000).for_each(|_| clock.advance(Cycles(1), 3000));
        assert_eq!(clock.now(), Nanoseconds(1000));
    }

    #[test]
    fn daemons_are_due_a_tick_after_they_were_woken() {
        let mut clock = Clock::default();
        clock.advance_to(Cycles(TICK.0 - 1), 1000);
        assert!(!clock.is_tick_due());
        clock.advance(Cycles(1), 1000);
        assert!(clock.is_tick_due());
        clock.ticked();
        assert!(!clock.is_tick_due());
    }
}
