// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated time.

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
