// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts that are known for a batch as a whole only, such as its instructions, spread evenly over
//! the accesses that it stands for.

/// See the [module's documentation](self).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    total: u64,
    accesses: u64,
}

impl Spread {
    /// `total` of something over so many accesses.
    pub const fn new(total: u64, accesses: u64) -> Self {
        Self { total, accesses }
    }

    /// The share of `count` accesses after the first `done`. It is a difference of prefix sums, so
    /// that no count is lost.
    #[inline]
    pub fn of(self, done: u64, count: u64) -> u64 {
        if self.total == 0 || self.accesses == 0 {
            return 0;
        }
        let prefix = |at: u64| (u128::from(self.total) * u128::from(at) / u128::from(self.accesses)) as u64;
        prefix(done + count) - prefix(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost() {
        let spread = Spread::new(10, 4);
        assert_eq!((0..4).map(|done| spread.of(done, 1)).collect::<Vec<_>>(), [2, 3, 2, 3]);
        assert_eq!(Spread::new(u64::MAX, 1 << 40).of(0, 1 << 40), u64::MAX);
        assert_eq!(Spread::default().of(0, 5), 0);
    }
}
