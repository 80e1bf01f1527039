// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much unused memory the program's kernel holds in reserve, over the time of a run.

use nestwalk_mem::Nanoseconds;
use nestwalk_os::Kernel;
use schemars::JsonSchema;
use serde::Serialize;

/// Points of the series that are kept, at most.
const POINTS_MAX: usize = 256;

/// The state at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
pub struct ReservedPoint {
    /// Simulated time since the run began.
    pub time_ns: u64,
    /// Frames that the memory manager has set aside and that nothing maps.
    pub reserved_frames: u64,
    /// All other frames that are in use.
    pub resident_frames: u64,
}

/// Frames held in reserve over the time of a run.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Reserved {
    /// The most at any time.
    pub maximum_frames: u64,
    /// The largest share of the resident memory at any time; `None` before anything was resident.
    pub maximum_share: Option<f64>,
    /// The mean over all moments at which it was looked at.
    pub mean_frames: f64,
    /// That as a share of the resident memory.
    pub mean_share: Option<f64>,
    /// Some of these moments, evenly spread.
    pub series: Vec<ReservedPoint>,
}

/// Collects the series.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReservedSeries {
    points: Vec<ReservedPoint>,
    /// Moments between two points that are kept, less one.
    skip: u64,
    seen: u64,
    reserved_sum: u128,
    resident_sum: u128,
    maximum: u64,
    /// Where the share was largest.
    largest: ReservedPoint,
}

impl ReservedSeries {
    /// Looks at `kernel` now.
    pub fn sample(&mut self, now: Nanoseconds, kernel: &Kernel) {
        let reserved_frames = kernel.manager().reserved().0;
        let used = kernel.memory().frames().0 - kernel.memory().free_frames().0;
        self.add(ReservedPoint { time_ns: now.0, reserved_frames, resident_frames: used - reserved_frames });
    }

    fn add(&mut self, point: ReservedPoint) {
        self.reserved_sum += u128::from(point.reserved_frames);
        self.resident_sum += u128::from(point.resident_frames);
        self.maximum = self.maximum.max(point.reserved_frames);
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        let (now, before) = (
            product(point.reserved_frames, self.largest.resident_frames),
            product(self.largest.reserved_frames, point.resident_frames),
        );
        if now > before || self.seen == 0 {
            self.largest = point;
        }
        if self.seen.is_multiple_of(self.skip + 1) {
            if self.points.len() == POINTS_MAX {
                let mut keep = false;
                self.points.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.skip = 2 * self.skip + 1;
            }
            if self.seen.is_multiple_of(self.skip + 1) {
                self.points.push(point);
            }
        }
        self.seen += 1;
    }

    /// What was collected.
    pub fn finish(self) -> Reserved {
        let share = |reserved: f64, resident: f64| (resident > 0.0).then(|| reserved / resident);
        let (reserved, resident) = (self.reserved_sum as f64, self.resident_sum as f64);
        Reserved {
            maximum_frames: self.maximum,
            maximum_share: share(self.largest.reserved_frames as f64, self.largest.resident_frames as f64),
            mean_frames: reserved / self.seen.max(1) as f64,
            mean_share: share(reserved, resident),
            series: self.points,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(points: impl Iterator<Item = (u64, u64)>) -> Reserved {
        let mut series = ReservedSeries::default();
        for (time_ns, (reserved_frames, resident_frames)) in points.enumerate() {
            series.add(ReservedPoint { time_ns: time_ns as u64, reserved_frames, resident_frames });
        }
        series.finish()
    }

    #[test]
    fn maximum_and_mean_are_those_of_all_moments() {
        let reserved = series([(7, 10), (14, 100), (0, 90)].into_iter());
        assert_eq!((reserved.maximum_frames, reserved.maximum_share), (14, Some(0.7)));
        assert_eq!((reserved.mean_frames, reserved.mean_share), (7.0, Some(21.0 / 200.0)));
        assert_eq!(reserved.series.len(), 3);
    }

    #[test]
    fn a_long_series_is_thinned_evenly() {
        let reserved = series((0..10_000).map(|n| (n, 20_000)));
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&reserved.series.len()), "{}", reserved.series.len());
        let steps: Vec<_> = reserved.series.windows(2).map(|pair| pair[1].time_ns - pair[0].time_ns).collect();
        assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
        assert_eq!(reserved.maximum_frames, 9999, "though that moment is not among those kept");
    }
}
