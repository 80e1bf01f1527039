// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated time: by a clock, and by a processor's cycles.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

/// A time or a duration in nanoseconds. A time counts from the start of what keeps it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Nanoseconds(pub u64);

impl Nanoseconds {
    /// `ms` milliseconds, or the most that there is.
    #[inline]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// This much later than `earlier`; 0 if it is not later.
    #[inline]
    #[must_use]
    pub const fn saturating_sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// How many times `period` fits.
    #[inline]
    pub const fn periods(self, period: Self) -> u64 {
        self.0 / period.0
    }
}

impl Add for Nanoseconds {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Nanoseconds {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Nanoseconds {
    type Output = Self;

    #[inline]
    fn sub(self, earlier: Self) -> Self {
        Self(self.0 - earlier.0)
    }
}

/// Cycles of a processor: a duration, or a time since the start of what keeps it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Cycles(pub u64);

impl Cycles {
    /// Those of `us` microseconds at `mhz` MHz.
    #[inline]
    pub const fn of_us(us: u64, mhz: u64) -> Self {
        Self(us * mhz)
    }
}

impl Add for Cycles {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Cycles {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Cycles {
    type Output = Self;

    #[inline]
    fn sub(self, earlier: Self) -> Self {
        Self(self.0 - earlier.0)
    }
}

impl Sum for Cycles {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self(0), Add::add)
    }
}
