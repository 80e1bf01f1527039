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

/// The least windows with which what a model says of them can be used.
const MODELLED_MIN: usize = 5;

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
    ratio_beside(&windows.iter().map(|&(y, x)| (y as f64, x as f64)).collect::<Vec<_>>(), None)
}

/// What a model says of the same two sums, where the windows were placed so that its ratio over all
/// of them is that of the whole program, or near it
/// ([`nestwalk_workload::trace::capture::choose`]).
#[derive(Clone, PartialEq, Debug)]
pub struct Beside {
    /// Of each window.
    pub windows: Vec<(f64, f64)>,
    /// Of all that they are a sample of.
    pub program: (f64, f64),
}

/// [`ratio`] with what a model says. What differs between windows as the model says it does is no
/// error of the sample: only what is left of the residuals after a regression on the model's
/// (Cochran, section 7.3; for balanced samples Fuller, Biometrika 96, 2009). One degree of freedom
/// goes to its slope. By what the windows are off in the model, the interval is wider: the value
/// remains the ratio of what was measured.
pub fn ratio_beside(windows: &[(f64, f64)], model: Option<&Beside>) -> Option<Estimate> {
    let total = windows.iter().fold(NOTHING, plus);
    if total.1 == 0.0 {
        return None;
    }
    let value = total.0 / total.1;
    let with_a_share = windows.iter().filter(|&&window| window != NOTHING).count();
    let model = model.filter(|model| model.windows.len() == windows.len() && with_a_share >= MODELLED_MIN);
    let mut batches: Vec<Batch> = windows.iter().map(|&sums| Batch { sums, model: 0.0 }).collect();
    let mut off = 0.0;
    if let Some(Beside { windows, program }) = model {
        let sample = windows.iter().fold(NOTHING, plus);
        if sample.1 > 0.0 && program.1 > 0.0 {
            let ratio = sample.0 / sample.1;
            batches.iter_mut().zip(windows).for_each(|(batch, window)| batch.model = window.0 - ratio * window.1);
            off = sample.0 - program.0 / program.1 * sample.1;
        }
    }
    let slope = slope(&batches, value);
    let mut ci95 = half_width(&batches, value, slope, true);
    while batches.len() >= 2 * BATCHES_MIN {
        batches = batches.chunks(2).map(Batch::of).collect();
        ci95 = match (ci95, half_width(&batches, value, slope, false)) {
            (Some(narrow), Some(wide)) => Some(narrow.max(wide)),
            (known, _) => known,
        };
    }
    let off = slope.map_or(0.0, |slope| (slope * off / total.1).abs());
    Some(Estimate { value, ci95: ci95.map(|half| half + off) })
}

const NOTHING: (f64, f64) = (0.0, 0.0);

fn plus(sum: (f64, f64), window: &(f64, f64)) -> (f64, f64) {
    (sum.0 + window.0, sum.1 + window.1)
}

/// Windows that are taken as one.
#[derive(Clone, Copy)]
struct Batch {
    /// Numerator and denominator.
    sums: (f64, f64),
    /// How far the model's numerator is from the model's ratio.
    model: f64,
}

impl Batch {
    fn of(parts: &[Self]) -> Self {
        let together =
            |sum: Self, part: &Self| Self { sums: plus(sum.sums, &part.sums), model: sum.model + part.model };
        parts.iter().fold(Self { sums: NOTHING, model: 0.0 }, together)
    }

    fn residual(&self, value: f64) -> f64 {
        self.sums.0 - value * self.sums.1
    }
}

/// The slope of the regression of residuals on the model's; `None` where that says nothing.
fn slope(windows: &[Batch], value: f64) -> Option<f64> {
    let squares: f64 = windows.iter().map(|window| window.model.powi(2)).sum();
    let products: f64 = windows.iter().map(|window| window.model * window.residual(value)).sum();
    (squares > 0.0).then(|| products / squares)
}

/// Half the width of the interval of a ratio of that `value`; `None` for fewer than three windows.
/// One without a share in either sum (of the latency of walks, one without a walk) says nothing of
/// the ratio: it does not count. A hundred windows of which one has all walks know nothing of their
/// scatter. `slope_from_these`: it has cost them a degree of freedom.
fn half_width(windows: &[Batch], value: f64, slope: Option<f64>, slope_from_these: bool) -> Option<f64> {
    let n = windows.iter().filter(|window| window.sums != NOTHING).count();
    (n >= 3).then(|| {
        let left = |window: &Batch| window.residual(value) - slope.unwrap_or(0.0) * window.model;
        let squares: f64 = windows.iter().map(|window| left(window).powi(2)).sum();
        let mean = windows.iter().map(|window| window.sums.1).sum::<f64>() / n as f64;
        let freedom = n - 1 - usize::from(slope.is_some() && slope_from_these);
        student_t95(freedom) * (squares / freedom as f64 / n as f64).sqrt() / mean
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

    /// Half of the interval that takes windows to be independent.
    fn alone(windows: &[(u64, u64)], value: f64) -> f64 {
        let windows: Vec<_> = windows.iter().map(|&(y, x)| Batch { sums: (y as f64, x as f64), model: 0.0 }).collect();
        half_width(&windows, value, None, true).unwrap()
    }

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
        assert!(alone(&windows, short.value) < short.ci95.unwrap(), "windows alone claim too much");
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
            covered_alone += u32::from(off <= alone(&windows, estimate.value));
        }
        assert!(covered >= 400 * 9 / 10 && covered_alone < 400 * 7 / 10, "{covered}, {covered_alone} of 400");
    }

    /// A program whose stages, of some thousand stretches each, walk often, now and then or hardly.
    /// The simulated machine's TLB is another than the model's: its walks are what the model counts
    /// times 0.8, give or take a third. A capture has room for eleven windows or so.
    #[test]
    fn windows_of_a_capture_know_the_program_and_their_intervals_cover_it() {
        use nestwalk_workload::Modelled;
        use nestwalk_workload::trace::capture::choose::{Wanted, choose};
        use nestwalk_workload::trace::capture::model::{UNIT_ACCESSES, Unit};
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut noise = move || (random.next_u64() >> 40) as f64 / f64::from(1 << 24) - 0.5;
        let mut stretch = |number: u64| {
            let rate = [14_000.0, 14_000.0, 13_000.0, 3000.0, 100.0][number as usize / 3000 % 5];
            let walks = (rate * (1.0 + 0.4 * noise())) as u64;
            let from = number * UNIT_ACCESSES;
            let (cycles, data_cycles) = (50 * walks, 900_000 + (rate * 100.0) as u64);
            Unit { from, accesses: UNIT_ACCESSES, kept: 8000, walks, cycles, data_cycles, touches: 0 }
        };
        let units: Vec<Unit> = (0..90_000).map(&mut stretch).collect();
        let simulated: Vec<f64> = units.iter().map(|unit| unit.walks as f64 * (0.8 + 0.5 * noise())).collect();
        let total = units.len() as u64 * UNIT_ACCESSES;
        let truth = simulated.iter().sum::<f64>() / total as f64;
        let (mut covered, mut off, mut widths, mut plain) = (0, Vec::new(), 0.0, 0.0);
        for seed in 0..100 {
            let kept = [(0, u64::MAX)];
            let choice = choose(&Wanted {
                units: &units,
                kept: &kept,
                total,
                steady: 0,
                room: 1.5e7,
                bytes_per_kept: 2.5,
                lines: u64::MAX,
                precision: 0.02,
                seed,
            });
            let windows: Vec<(f64, f64)> = choice
                .windows
                .iter()
                .map(|window| {
                    let (from, until) = (window.measure_from / UNIT_ACCESSES, window.until.div_ceil(UNIT_ACCESSES));
                    let walks: f64 = simulated[from as usize..until as usize].iter().sum();
                    (walks, ((until - from) * UNIT_ACCESSES) as f64)
                })
                .collect();
            assert!((8..20).contains(&windows.len()), "{}", windows.len());
            let model = choice.about.modelled.unwrap();
            let pair = |counted: &Modelled| (counted.walks as f64, counted.accesses as f64);
            let model = Beside { windows: model.windows.iter().map(pair).collect(), program: pair(&model.program) };
            let alone = ratio_beside(&windows, None).unwrap();
            let beside = ratio_beside(&windows, Some(&model)).unwrap();
            assert_eq!(alone.value, beside.value);
            off.push((beside.value / truth - 1.0).abs());
            covered += u32::from((beside.value - truth).abs() <= beside.ci95.unwrap());
            widths += beside.ci95.unwrap() / truth;
            plain += alone.ci95.unwrap() / truth;
        }
        off.sort_by(f64::total_cmp);
        let (half, most) = (off[49], off[94]);
        assert!(covered >= 90, "{covered} of 100 covered; off {half:.3}, {most:.3}; {widths:.1} {plain:.1}");
        assert!(most < 0.1 && widths < plain / 3.0, "off {half:.3}, {most:.3}; {widths:.1} for {plain:.1} %");
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
