// SPDX-License-Identifier: MIT OR Apache-2.0
//! The distribution of walk latencies.

nestwalk_mem::counters! {
    /// How many walks took how long.
    pub struct LatencyHistogram {
        /// Walks of `8 * i..8 * (i + 1)` cycles at place `i`; longer ones than all of these in the
        /// last place.
        buckets: [u64; LatencyHistogram::LEN] [hidden],
    }
    computed {
        /// Half of all walks took no longer. Of this and of the other shares: the upper end of a
        /// bucket of 8 cycles; null without walks, and beyond the last bucket.
        "p50" ["cycles"] = |own| own.quantile(1, 2),
        /// 95 % of all walks took no longer.
        "p95" ["cycles"] = |own| own.quantile(95, 100),
        /// 99 % of all walks took no longer.
        "p99" ["cycles"] = |own| own.quantile(99, 100),
    }
}

impl LatencyHistogram {
    /// Cycles of a bucket.
    pub const WIDTH_CYCLES: u64 = 8;
    /// Buckets, the last one for all that is longer.
    pub const LEN: usize = 513;

    #[inline]
    pub(crate) fn record(&mut self, cycles: u64) {
        self.buckets[(cycles / Self::WIDTH_CYCLES).min(Self::LEN as u64 - 1) as usize] += 1;
    }

    /// The cycles within which the share `numerator / denominator` of all walks ended: the upper
    /// end of the bucket in which that share is reached. `None` without walks, and where it is
    /// reached in the last bucket, which has no upper end.
    pub fn quantile(&self, numerator: u64, denominator: u64) -> Option<u64> {
        let total: u64 = self.buckets.iter().sum();
        let wanted = (u128::from(total) * u128::from(numerator)).div_ceil(u128::from(denominator)).max(1);
        let mut seen = 0_u128;
        let bucket = self.buckets.iter().position(|&count| {
            seen += u128::from(count);
            seen >= wanted
        })?;
        (bucket + 1 < Self::LEN).then(|| (bucket as u64 + 1) * Self::WIDTH_CYCLES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_latencies_are_buckets() {
        let mut histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile(1, 2), None);
        (0..100).for_each(|cycles| histogram.record(cycles));
        histogram.record(1 << 40);
        assert_eq!(histogram.quantile(0, 100), Some(8));
        assert_eq!(histogram.quantile(50, 101), Some(56));
        assert_eq!(histogram.quantile(100, 101), Some(104));
        assert_eq!(histogram.quantile(1, 1), None);
    }
}
