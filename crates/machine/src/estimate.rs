// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ratios over sampled windows, with their confidence intervals. Floats are allowed here because
//! these numbers are only reported.

/// A ratio of two totals over all windows, such as walk cycles a walk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The ratio of the totals.
    pub value: f64,
    /// Half the width of its 95 % confidence interval; `None` where fewer than three windows with a
    /// share in it leave it unknown.
    pub ci95: Option<f64>,
}

/// Batches that are enough to take windows together.
const BATCHES_MIN: usize = 4;

/// The ratio of the sums of `(numerator, denominator)` over windows, in the order of the program:
/// the classical ratio estimator, whose variance is that of the residuals `y - R x` (Cochran,
/// Sampling Techniques, section 6.4), with Student's t for few windows. `None` where the
/// denominators sum to nothing, since then the ratio is not known.
///
/// Consecutive windows are not independent: a phase of the program is longer than a window. So the
/// interval is also computed over batches of 2, 4, 8 ... neighbouring windows, as long as there are
/// [`BATCHES_MIN`] of them (batch means: Law and Kelton, Simulation Modeling and Analysis, section
/// 9.5.3), and the widest is taken.
///
/// For the ratio of two runs of the same program, windows are pairs: numerators come from one run,
/// denominators from the other.
pub fn ratio(windows: &[(u64, u64)]) -> Option<Estimate> {
    let (y, x) = sum(windows);
    if x == 0 {
        return None;
    }
    let value = y as f64 / x as f64;
    let mut batches = windows.to_vec();
    let mut ci95 = half_width(&batches, value);
    while batches.len() >= 2 * BATCHES_MIN {
        batches = batches.chunks(2).map(sum).collect();
        ci95 = match (ci95, half_width(&batches, value)) {
            (Some(narrow), Some(wide)) => Some(narrow.max(wide)),
            (known, _) => known,
        };
    }
    Some(Estimate { value, ci95 })
}

fn sum(windows: &[(u64, u64)]) -> (u64, u64) {
    windows.iter().fold((0, 0), |(y, x), window| (y + window.0, x + window.1))
}

/// Half the width of the interval of a ratio of that `value`; `None` for fewer than three windows.
/// One without a share in either sum (of the latency of walks, one without a walk) says nothing of
/// the ratio: it does not count. A hundred windows of which one has all walks know nothing of their
/// scatter.
fn half_width(windows: &[(u64, u64)], value: f64) -> Option<f64> {
    let n = windows.iter().filter(|&&window| window != (0, 0)).count();
    (n >= 3).then(|| {
        let residuals: f64 = windows.iter().map(|&(y, x)| (y as f64 - value * x as f64).powi(2)).sum();
        let mean_x = sum(windows).1 as f64 / n as f64;
        student_t95(n - 1) * (residuals / (n as f64 - 1.0) / n as f64).sqrt() / mean_x
    })
}

/// The two-sided 95 % quantile of Student's t.
fn student_t95(degrees_of_freedom: usize) -> f64 {
    const T95: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    // Beyond the table: the normal quantile with its first correction in 1/df, right to 0.001.
    T95.get(degrees_of_freedom - 1).copied().unwrap_or(1.96 + 2.372 / degrees_of_freedom as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    #[test]
    fn equal_windows_leave_no_doubt() {
        let estimate = ratio(&[(3, 2); 5]).unwrap();
        assert_eq!((estimate.value, estimate.ci95), (1.5, Some(0.0)));
    }

    #[test]
    fn a_hand_worked_interval() {
        // Residuals -1, 0, 1 around R = 2; s^2 = 1; se = sqrt(1/3); t(2) = 4.303.
        let estimate = ratio(&[(1, 1), (2, 1), (3, 1)]).unwrap();
        assert_eq!(estimate.value, 2.0);
        assert!((estimate.ci95.unwrap() - 4.303 / 3f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn windows_that_go_together_count_as_one() {
        // Ten phases of four windows each, all different: only the phases are independent.
        let phases: Vec<(u64, u64)> = (0..10).map(|phase| (100 + phase * phase, 50)).collect();
        let windows: Vec<_> = phases.iter().flat_map(|&phase| [phase; 4]).collect();
        let (long, short) = (ratio(&phases).unwrap(), ratio(&windows).unwrap());
        assert!((long.ci95.unwrap() - short.ci95.unwrap()).abs() < 1e-12);
        assert!(half_width(&windows, short.value) < short.ci95, "windows alone claim too much");
    }

    #[test]
    fn the_interval_covers_the_mean_of_a_process_with_memory() {
        // An autoregressive process (0.8 a window) around 1000, 64 windows a run: a 95 % interval
        // that ignores the memory covers the mean in about half of all runs.
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut noise = move || (random.next_u64() >> 40) as f64 / f64::from(1 << 24) - 0.5;
        let (mut covered, mut covered_alone) = (0, 0);
        for _ in 0..400 {
            let mut state = 0.0;
            let windows: Vec<(u64, u64)> = (0..164)
                .map(|_| {
                    state = 0.8 * state + 300.0 * noise();
                    ((1000.0 + state) as u64, 1)
                })
                .skip(100)
                .collect();
            let estimate = ratio(&windows).unwrap();
            let off = (estimate.value - 999.5).abs();
            covered += u32::from(off <= estimate.ci95.unwrap());
            covered_alone += u32::from(off <= half_width(&windows, estimate.value).unwrap());
        }
        assert!(covered >= 400 * 9 / 10 && covered_alone < 400 * 7 / 10, "{covered}, {covered_alone} of 400");
    }

    #[test]
    fn what_cannot_be_known_is_not_zero() {
        assert_eq!(ratio(&[(0, 0)]), None);
        assert_eq!(ratio(&[(1, 2), (1, 2)]).unwrap().ci95, None);
    }

    #[test]
    fn windows_without_a_share_say_nothing() {
        let mut one = vec![(0, 0); 80];
        one[0] = (9251, 128);
        assert_eq!(ratio(&one).unwrap(), Estimate { value: 9251.0 / 128.0, ci95: None });
        let three = [(1, 1), (0, 0), (2, 1), (0, 0), (3, 1)];
        assert_eq!(ratio(&three), ratio(&[(1, 1), (2, 1), (3, 1)]));
        // No walks in a window is knowledge where its accesses are what counts.
        assert!(ratio(&[(0, 10), (0, 10), (5, 10)]).unwrap().ci95.unwrap() > 0.0);
    }

    #[test]
    fn the_quantile_goes_on_smoothly_beyond_its_table() {
        assert!((student_t95(30) - student_t95(31)).abs() < 0.01);
        assert!((student_t95(1000) - 1.962).abs() < 0.002);
    }
}
