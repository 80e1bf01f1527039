// SPDX-License-Identifier: MIT OR Apache-2.0
//! A random permutation that is computed, not stored, a hash, and dice.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

/// Random numbers of one thread.
#[derive(Clone, Debug)]
pub(super) struct Dice(pub(super) Xoshiro256PlusPlus);

impl Dice {
    /// A number from 0 to `bound`, exclusive.
    #[inline]
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        scale(self.0.next_u64(), bound)
    }

    /// True in `permille` of a thousand cases.
    #[inline]
    pub(super) fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// The dice of each of `threads` threads.
    pub(super) fn of_threads(seed: u64, threads: u16) -> Vec<Self> {
        use rand_xoshiro::rand_core::SeedableRng;
        (0..threads).map(|thread| Self(Xoshiro256PlusPlus::seed_from_u64(mix(seed) ^ u64::from(thread)))).collect()
    }
}

/// Scrambles 64 bits (the finaliser of splitmix64).
#[inline]
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// `value`, uniform in 64 bits, scaled to 0..`bound`.
#[inline]
pub(super) const fn scale(value: u64, bound: u64) -> u64 {
    ((value as u128 * bound as u128) >> 64) as u64
}

/// A permutation of `0..len`: a Feistel network over the next even number of bits, walked along its
/// cycle until it is back in range (at most four times as many values as needed, so few steps).
#[derive(Clone, Debug)]
pub(crate) struct Bijection {
    len: u64,
    half_bits: u32,
    keys: [u64; Self::ROUNDS],
}

impl Bijection {
    const ROUNDS: usize = 4;

    /// The permutation of `0..len` that belongs to `seed`. `len` is 1 to 2^62.
    pub(crate) fn new(len: u64, seed: u64) -> Self {
        assert!((1..=1 << 62).contains(&len), "no permutation of {len} numbers");
        let bits = (len - 1).checked_ilog2().map_or(1, |top| top + 1);
        let keys = std::array::from_fn(|round| mix(seed.wrapping_add(mix(round as u64 + 1))));
        Self { len, half_bits: bits.div_ceil(2), keys }
    }

    /// Where `index` goes.
    #[inline]
    pub(crate) fn apply(&self, index: u64) -> u64 {
        debug_assert!(index < self.len);
        let mut value = self.network(index);
        while value >= self.len {
            value = self.network(value);
        }
        value
    }

    /// What [`Self::apply`] takes to `image`.
    pub(crate) fn invert(&self, image: u64) -> u64 {
        debug_assert!(image < self.len);
        let mut value = self.network_back(image);
        while value >= self.len {
            value = self.network_back(value);
        }
        value
    }

    fn network_back(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys.iter().rev() {
            let round = (left ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (left, right) = (right ^ (round >> 32 ^ round >> 17) & mask, left);
        }
        left << self.half_bits | right
    }

    #[inline]
    fn network(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            let round = (right ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (left, right) = (right, left ^ (round >> 32 ^ round >> 17) & mask);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_hit_once() {
        for len in [1, 2, 3, 5, 64, 1000, 4097, 65_536] {
            let bijection = Bijection::new(len, 42);
            let mut images: Vec<u64> = (0..len).map(|index| bijection.apply(index)).collect();
            images.sort_unstable();
            assert!(images.into_iter().eq(0..len), "{len}");
            assert!((0..len).all(|index| bijection.invert(bijection.apply(index)) == index), "{len}");
        }
    }

    #[test]
    fn neighbours_part_and_seeds_differ() {
        let (a, b) = (Bijection::new(1 << 20, 1), Bijection::new(1 << 20, 2));
        let near = (0..10_000).filter(|&i| a.apply(i).abs_diff(a.apply(i + 1)) < 512).count();
        // By chance, 1023 in 2^20 differences are that small: 10 of 10,000.
        assert!(near < 40, "{near} neighbours stay within 512");
        let same = (0..10_000).filter(|&i| a.apply(i) == b.apply(i)).count();
        assert!(same < 5, "{same}");
        let mean = (0..10_000).map(|i| a.apply(i)).sum::<u64>() / 10_000;
        assert!(mean.abs_diff(1 << 19) < 15_000, "{mean}");
    }
}
