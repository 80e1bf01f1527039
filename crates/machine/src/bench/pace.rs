// SPDX-License-Identifier: MIT OR Apache-2.0
//! The speed that a processor has in practice, given its power supply, its core's other thread and
//! the neighbours of a virtual machine.

use std::hint::black_box;
use std::time::Instant;

use super::median;

/// Additions of one turn of a loop: more than any processor that is known here does at once.
const TURN: usize = 8;

/// Pairs of measurements, and turns of the loop of each: some tenths of a millisecond. What is
/// shorter than a scheduler's time slice is mostly not interrupted.
const PAIRS: usize = 31;
const TURNS: u64 = 1 << 17;

/// How fast a processor is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Pace {
    /// Its clock, in GHz, from additions that each need the result of the one before: all
    /// processors known here do one a cycle. (Additions of registers: some processors add constants
    /// without a cycle.)
    pub clock_ghz: f64,
    /// Independent additions a cycle: about as many as the core has units for, if no other thread
    /// uses the core. If one does, it is about half as many at the same clock.
    pub width: f64,
}

impl Pace {
    /// Between this and `other`.
    pub fn middle(self, other: Self) -> Self {
        let middle = |this, other| (this + other) / 2.0;
        Self { clock_ghz: middle(self.clock_ghz, other.clock_ghz), width: middle(self.width, other.width) }
    }
}

/// The pace now: medians of short pairs, of which each is mostly at one clock, and whatever else
/// wants the processor disturbs the fewest. `None` on processors for which it is not known how to
/// measure it.
pub(super) fn in_effect() -> Option<Pace> {
    let pair = || {
        let chained = speed(TURNS, |sums, one| add_in_a_row(&mut sums[0], one))?;
        Some((chained, speed(TURNS, add_at_once)?))
    };
    let pairs: Vec<(f64, f64)> = (0..PAIRS).map(|_| pair()).collect::<Option<_>>()?;
    Some(Pace {
        clock_ghz: median(pairs.iter().map(|(chained, _)| chained / 1e9))?,
        width: median(pairs.iter().map(|(chained, free)| free / chained))?,
    })
}

/// The clock, in GHz: the best of attempts that are shorter than a scheduler's time slice, so that
/// a busy machine does not make the clock look slow.
pub(super) fn clock_ghz() -> Option<f64> {
    const ATTEMPTS: usize = 64;
    let attempts = (0..ATTEMPTS).map(|_| speed(TURNS / 8, |sums, one| add_in_a_row(&mut sums[0], one)));
    attempts.collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::max).map(|best| best / 1e9)
}

/// Additions a second, of which `turn` does [`TURN`], `turns` times.
fn speed(turns: u64, turn: impl Fn(&mut [u64; TURN], u64) -> Option<()>) -> Option<f64> {
    let (mut sums, one) = (black_box([1; TURN]), black_box(1));
    let start = Instant::now();
    for _ in 0..turns {
        turn(&mut sums, one)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    black_box(sums);
    Some(turns as f64 * TURN as f64 / seconds)
}

/// One addition of registers: to the first one named the second.
#[cfg(target_arch = "x86_64")]
macro_rules! add {
    ($sum:literal, $one:literal) => {
        concat!("add {", $sum, "}, {", $one, "}")
    };
}

/// One addition of registers: to the first one named the second.
#[cfg(target_arch = "aarch64")]
macro_rules! add {
    ($sum:literal, $one:literal) => {
        concat!("add {", $sum, "}, {", $sum, "}, {", $one, "}")
    };
}

/// [`TURN`] additions to one number.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn add_in_a_row(sum: &mut u64, one: u64) -> Option<()> {
    // SAFETY: it changes one register, and the flags.
    unsafe {
        std::arch::asm!(
            add!(0, 1), add!(0, 1), add!(0, 1), add!(0, 1), add!(0, 1), add!(0, 1), add!(0, 1), add!(0, 1),
            inout(reg) *sum, in(reg) one, options(pure, nomem, nostack)
        );
    }
    Some(())
}

/// One addition to each of [`TURN`] numbers.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn add_at_once(sums: &mut [u64; TURN], one: u64) -> Option<()> {
    let [a, b, c, d, e, f, g, h] = sums;
    // SAFETY: it changes these registers, and the flags.
    unsafe {
        std::arch::asm!(
            add!(0, 8), add!(1, 8), add!(2, 8), add!(3, 8), add!(4, 8), add!(5, 8), add!(6, 8), add!(7, 8),
            inout(reg) *a, inout(reg) *b, inout(reg) *c, inout(reg) *d,
            inout(reg) *e, inout(reg) *f, inout(reg) *g, inout(reg) *h,
            in(reg) one, options(pure, nomem, nostack)
        );
    }
    Some(())
}

/// Not known how.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn add_in_a_row(_: &mut u64, _: u64) -> Option<()> {
    None
}

/// Not known how.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn add_at_once(_: &mut [u64; TURN], _: u64) -> Option<()> {
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_turn_adds_eight_in_all() {
        let (mut sum, mut sums) = (34, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(add_in_a_row(&mut sum, 1).is_none() || sum == 42);
        assert!(add_at_once(&mut sums, 10).is_none() || sums == [11, 12, 13, 14, 15, 16, 17, 18]);
    }

    #[test]
    fn the_pace_of_a_busy_machine_is_that_of_an_idle_one() {
        // Threads that leave each processor to others for half of the time.
        let (stop, count) = (AtomicBool::new(false), std::thread::available_parallelism().map_or(2, usize::from));
        let widths: Option<Vec<f64>> = std::thread::scope(|scope| {
            for _ in 0..2 * count {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        black_box((0..1000_u64).sum::<u64>());
                    }
                });
            }
            let widths = (0..9).map(|_| in_effect().map(|pace| pace.width)).collect();
            stop.store(true, Ordering::Relaxed);
            widths
        });
        let Some(widths) = widths else { return };
        assert!(widths.iter().all(|width| (0.5..16.0).contains(width)), "{widths:?}");
    }

    #[test]
    fn a_pace_is_more_than_nothing_and_has_a_middle() {
        assert!(in_effect().is_none_or(|pace| pace.clock_ghz > 0.0 && pace.width > 0.0));
        let (slow, fast) = (Pace { clock_ghz: 2.0, width: 2.0 }, Pace { clock_ghz: 3.0, width: 5.0 });
        assert_eq!(slow.middle(fast), Pace { clock_ghz: 2.5, width: 3.5 });
    }
}
