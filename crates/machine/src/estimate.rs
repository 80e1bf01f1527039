// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ratios over sampled windows, with their confidence intervals. Floats are allowed here: these numbers are only reported.

/// A ratio of two totals over all windows, such as walk cycles a walk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The ratio of the totals.
    pub value: f64,
    /// Half the width of its 95 % confidence interval; `None` where fewer than three windows leave it unknown.
    pub ci95: Option<f64>,
}

/// The ratio of the sums of `(numerator, denominator)` over windows: the classical ratio estimator, whose variance is
/// that of the residuals `y - R x` (Cochran, Sampling Techniques, section 6.4), with Student's t for few windows.
/// `None` where the denominators sum to nothing, since then the ratio is not known.
pub fn ratio(windows: &[(u64, u64)]) -> Option<Estimate> {
    let (y, x) = windows.iter().fold((0, 0), |(y, x), window| (y + window.0, x + window.1));
    if x == 0 {
        return None;
    }
    let value = y as f64 / x as f64;
    let n = windows.len();
    let ci95 = (n >= 3).then(|| {
        let residuals: f64 = windows.iter().map(|&(y, x)| (y as f64 - value * x as f64).powi(2)).sum();
        let mean_x = x as f64 / n as f64;
        student_t95(n - 1) * (residuals / (n as f64 - 1.0) / n as f64).sqrt() / mean_x
    });
    Some(Estimate { value, ci95 })
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
    fn what_cannot_be_known_is_not_zero() {
        assert_eq!(ratio(&[(0, 0)]), None);
        assert_eq!(ratio(&[(1, 2), (1, 2)]).unwrap().ci95, None);
    }

    #[test]
    fn the_quantile_goes_on_smoothly_beyond_its_table() {
        assert!((student_t95(30) - student_t95(31)).abs() < 0.01);
        assert!((student_t95(1000) - 1.962).abs() < 0.002);
    }
}
