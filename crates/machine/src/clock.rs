// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated time, in which daemons of the kernels are woken.

/// The daemons of the kernels are woken when the clock has gone on by this much: a hundredth of khugepaged's shortest useful
/// period, so that nothing depends on it.
const TICK_NS: u64 = 10_000_000;

/// The time since the program began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// What the kernels' clocks said when the program began.
    base_ns: u64,
    now_ns: u64,
    ticked_ns: u64,
    /// Cycles that are not yet a whole ns, times 1000.
    rest: u64,
}

impl Clock {
    /// A clock that begins where the kernels' clocks are already.
    pub fn from(base_ns: u64) -> Self {
        Self { base_ns, ..Self::default() }
    }

    /// The time, ns.
    pub fn now_ns(&self) -> u64 {
        self.base_ns + self.now_ns
    }

    /// Goes on by a time in which the program's accesses are not simulated.
    pub fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    /// Goes on by `cycles` of a processor of `mhz` MHz.
    pub fn advance(&mut self, cycles: u64, mhz: u64) {
        let thousandths = cycles * 1000 + self.rest;
        self.now_ns += thousandths / mhz;
        self.rest = thousandths % mhz;
    }

    /// Goes on to the cycle of that number, counted from the beginning.
    pub fn advance_to(&mut self, cycle: u64, mhz: u64) {
        self.now_ns = (u128::from(cycle) * 1000 / u128::from(mhz)) as u64;
    }

    /// Whether the daemons are due.
    pub fn is_tick_due(&self) -> bool {
        self.now_ns - self.ticked_ns >= TICK_NS
    }

    /// They have been woken now.
    pub fn ticked(&mut self) {
        self.ticked_ns = self.now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_nanosecond_are_not_lost() {
        let mut clock = Clock::default();
        (0..3000).for_each(|_| clock.advance(1, 3000));
        assert_eq!(clock.now_ns(), 1000);
    }

    #[test]
    fn daemons_are_due_a_tick_after_they_were_woken() {
        let mut clock = Clock::default();
        clock.advance_to(TICK_NS - 1, 1000);
        assert!(!clock.is_tick_due());
        clock.advance(1, 1000);
        assert!(clock.is_tick_due());
        clock.ticked();
        assert!(!clock.is_tick_due());
    }
}
