// SPDX-License-Identifier: MIT OR Apache-2.0
//! Zipf-distributed ranks: rank `k` of `1..=n` with probability proportional to `k^-s`.
//!
//! Rejection-inversion after Hörmann and Derflinger (1996): a constant expected time for any `n`
//! and nothing stored. The logarithms and exponentials come from `libm`, not from the system, so
//! the stream is the same on every machine.

use rand_xoshiro::rand_core::Rng;

/// A sampler of ranks.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    n: f64,
    s: f64,
    /// `H(1.5) - 1`, the upper end of the inverted range.
    h_low: f64,
    /// `H(n + 0.5)`, its lower end.
    h_high: f64,
    /// Where the envelope may be accepted without a further test.
    cut: f64,
}

impl Zipf {
    /// Ranks `1..=n`, with exponent `s` above 0.
    pub(super) fn new(n: u64, s: f64) -> Self {
        assert!(n > 0 && s > 0.0, "no zipf distribution with n = {n}, s = {s}");
        let mut zipf = Self { n: n as f64, s, h_low: 0.0, h_high: 0.0, cut: 0.0 };
        zipf.h_low = zipf.integral(1.5) - 1.0;
        zipf.h_high = zipf.integral(zipf.n + 0.5);
        zipf.cut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// The next rank.
    #[inline]
    pub(super) fn sample(&self, rng: &mut impl Rng) -> u64 {
        loop {
            // 53 bits, so that the product is exact enough and never 1.
            let uniform = (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
            let u = self.h_high + uniform * (self.h_low - self.h_high);
            let x = self.inverse(u);
            let rank = libm::floor(x + 0.5).clamp(1.0, self.n);
            if rank - x <= self.cut || u >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64;
            }
        }
    }

    /// `x^-s`.
    fn density(&self, x: f64) -> f64 {
        libm::exp(-self.s * libm::log(x))
    }

    /// An integral of the density: `(x^(1-s) - 1) / (1-s)`, or `ln x` where `s` is 1.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        log * expm1_over((1.0 - self.s) * log)
    }

    /// The inverse of [`Zipf::integral`].
    fn inverse(&self, y: f64) -> f64 {
        // Rounding may carry the product just below -1, where the logarithm has no value.
        let t = (y * (1.0 - self.s)).max(-1.0);
        libm::exp(y * log1p_over(t))
    }
}

/// `(e^x - 1) / x`, also near 0.
fn expm1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { libm::expm1(x) / x } else { 1.0 + x * 0.5 }
}

/// `ln(1 + x) / x`, also near 0.
fn log1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { libm::log1p(x) / x } else { 1.0 - x * 0.5 }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::SeedableRng;

    use super::*;

    #[test]
    fn ranks_come_as_often_as_they_should() {
        for s in [0.5, 0.99, 1.0, 1.4] {
            let (n, draws) = (1000u64, 400_000);
            let zipf = Zipf::new(n, s);
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
            let mut counts = vec![0u64; n as usize + 1];
            (0..draws).for_each(|_| counts[zipf.sample(&mut rng) as usize] += 1);
            let total: f64 = (1..=n).map(|k| (k as f64).powf(-s)).sum();
            for rank in [1usize, 2, 3, 10, 100] {
                let expected = draws as f64 * (rank as f64).powf(-s) / total;
                let off = (counts[rank] as f64 - expected).abs();
                assert!(off < 5.0 * expected.sqrt() + 1.0, "s {s}, rank {rank}: {} against {expected}", counts[rank]);
            }
            let tail: u64 = counts[501..].iter().sum();
            let expected = draws as f64 * (501..=n).map(|k| (k as f64).powf(-s)).sum::<f64>() / total;
            assert!((tail as f64 - expected).abs() < 5.0 * expected.sqrt(), "s {s}: tail {tail} against {expected}");
        }
    }

    #[test]
    fn one_rank_is_always_rank_one() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        assert!((0..1000).all(|_| Zipf::new(1, 0.99).sample(&mut rng) == 1));
    }

    #[test]
    fn the_first_draws_are_the_same_everywhere() {
        // A golden sequence: it changes if a platform computes differently.
        let (zipf, mut rng) = (Zipf::new(1 << 32, 0.99), Xoshiro256PlusPlus::seed_from_u64(1));
        let draws: Vec<u64> = (0..8).map(|_| zipf.sample(&mut rng)).collect();
        assert_eq!(draws, GOLDEN);
    }

    const GOLDEN: [u64; 8] = [61, 291, 546_847_403, 297, 92_849_170, 11_689, 1, 54_567];
}
