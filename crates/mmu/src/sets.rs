// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which set a line or page belongs to, for any number of sets.

/// Splits a number into set and tag: remainder and quotient by the number of sets.
///
/// A division by a constant that is only known at run time: a mask and a shift for powers of two,
/// else a multiplication by the reciprocal, which is exact because number x sets stays below 2^64
/// (see [`Sets::new`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sets {
    count: u64,
    /// `ceil(2^64 / count)`, or 0 for a power of two.
    reciprocal: u64,
    /// Of a power of two.
    mask: u64,
    /// log2 of a power of two.
    shift: u32,
}

impl Sets {
    /// The largest number that [`Sets::split`] takes where the count is no power of two: `number *
    /// count < 2^64` needs no more than 2^38 lines (16 TiB) x 2^26 sets, or 2^45 pages x 2^19 sets.
    pub fn new(count: u32) -> Self {
        assert!(count > 0, "a structure has at least one set");
        let count = u64::from(count);
        Self {
            count,
            reciprocal: if count.is_power_of_two() { 0 } else { u64::MAX / count + 1 },
            mask: count - 1,
            shift: count.trailing_zeros(),
        }
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Set and tag of `number`.
    #[inline(always)]
    pub fn split(&self, number: u64) -> (usize, u64) {
        if self.reciprocal == 0 {
            ((number & self.mask) as usize, number >> (self.shift & 63))
        } else {
            debug_assert!(u128::from(number) * u128::from(self.count) < 1 << 64);
            let quotient = ((u128::from(number) * u128::from(self.reciprocal)) >> 64) as u64;
            ((number - quotient * self.count) as usize, quotient)
        }
    }

    /// The same where the count is known to be a power of two.
    #[inline(always)]
    pub fn split_power_of_two(&self, number: u64) -> (usize, u64) {
        debug_assert!(self.reciprocal == 0);
        ((number & self.mask) as usize, number >> (self.shift & 63))
    }

    /// Whether it is one.
    #[inline]
    pub fn is_power_of_two(&self) -> bool {
        self.reciprocal == 0
    }

    /// The number that [`Sets::split`] split.
    #[inline]
    pub fn join(&self, set: usize, tag: u64) -> u64 {
        tag * self.count + set as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_split_is_a_division(count in 1_u32..1 << 26, number in 0_u64..1 << 38) {
            let sets = Sets::new(count);
            prop_assert_eq!(sets.split(number), ((number % u64::from(count)) as usize, number / u64::from(count)));
            let (set, tag) = sets.split(number);
            prop_assert_eq!(sets.join(set, tag), number);
        }
    }

    #[test]
    fn an_llc_of_36_mb_has_49152_sets() {
        let sets = Sets::new(49152);
        for line in [0, 1, 49151, 49152, (1 << 38) - 1] {
            assert_eq!(sets.split(line), ((line % 49152) as usize, line / 49152));
        }
    }
}
