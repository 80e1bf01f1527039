// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long ago a program used the lines that it uses again.

use serde::{Deserialize, Serialize};

/// Times below this have a bucket each; from there on an octave has [`PARTS`].
const EXACT: u64 = 1 << EXACT_ORDER;
const EXACT_ORDER: u32 = 3;
/// Buckets of an octave.
const PARTS: u64 = 1 << PARTS_ORDER;
const PARTS_ORDER: u32 = 2;
/// Longer times count as this.
const TIME_MAX: u64 = (1 << 20) - 1;
const BUCKETS: usize = bucket(TIME_MAX) + 1;
/// More lines count as so many.
const DEPTH_MAX: usize = 15;

/// A sample of the accesses to lines that a filter holds: how long ago the thread accessed the line
/// before, and how many other lines of the filter's set it accessed since.
///
/// Alone, all of them hit the L1-D. Beside a co-runner, which brings in a line meanwhile for each
/// access that passes, some do not: which ones follows from the two numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reuse {
    /// Sets of the filter.
    pub sets: u32,
    /// The filter keeps an access to a line once its thread has made so many since it was kept
    /// last; 0 = never for this reason.
    pub renew: u64,
    /// Of accesses that it absorbed.
    pub absorbed: ReuseTimes,
    /// Of accesses that it kept to renew their line, and for no other reason.
    pub renewed: ReuseTimes,
}

/// Accesses by time and depth: by depth (other lines of the set), then by bucket of time; without
/// what is 0 at the ends.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReuseTimes(Vec<Vec<u64>>);

/// Accesses of a sample that are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReuseCell {
    /// Accesses of the thread since it accessed the line: 1 if it was the latest.
    pub time: u64,
    /// Other lines of the filter's set that it accessed since.
    pub depth: u64,
    /// How many of the sample are so.
    pub count: u64,
}

/// Where a time is counted.
const fn bucket(time: u64) -> usize {
    if time < EXACT {
        return time as usize;
    }
    let octave = time.ilog2();
    let part = (time >> (octave - PARTS_ORDER)) & (PARTS - 1);
    (EXACT + ((octave - EXACT_ORDER) as u64) * PARTS + part) as usize
}

/// The middle of what a bucket counts.
const fn time_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT {
        return bucket;
    }
    let (octave, part) = ((bucket - EXACT) / PARTS, (bucket - EXACT) % PARTS);
    // The octave that begins with EXACT has parts of this size.
    let size = (EXACT / PARTS) << octave;
    (PARTS + part) * size + (size - 1) / 2
}

impl Reuse {
    /// Takes in the sample of another filter like this one.
    pub fn add(&mut self, other: &Self) {
        self.absorbed.add(&other.absorbed);
        self.renewed.add(&other.renewed);
    }
}

impl ReuseTimes {
    /// Another access: `time` accesses of its thread after the last one to the line, and after
    /// `depth` other lines of its set.
    pub fn note(&mut self, time: u64, depth: usize) {
        let (bucket, depth) = (bucket(time.min(TIME_MAX)), depth.min(DEPTH_MAX));
        if self.0.len() <= depth {
            self.0.resize(depth + 1, Vec::new());
        }
        let row = &mut self.0[depth];
        if row.len() <= bucket {
            row.resize(bucket + 1, 0);
        }
        row[bucket] += 1;
    }

    fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), Vec::new());
        }
        for (row, others) in self.0.iter_mut().zip(&other.0) {
            if row.len() < others.len() {
                row.resize(others.len(), 0);
            }
            row.iter_mut().zip(others).for_each(|(count, more)| *count = count.saturating_add(*more));
        }
    }

    /// How many there are.
    pub fn total(&self) -> u64 {
        self.cells().fold(0, |sum, cell| sum.saturating_add(cell.count))
    }

    /// All of them.
    pub fn cells(&self) -> impl Iterator<Item = ReuseCell> {
        let rows = self.0.iter().take(DEPTH_MAX + 1).zip(0..);
        rows.flat_map(|(row, depth)| {
            let cells = row.iter().take(BUCKETS).enumerate().filter(|&(_, &count)| count > 0);
            cells.map(move |(bucket, &count)| ReuseCell { time: time_of(bucket).max(1), depth, count })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_as_one_that_is_off_by_an_eighth_at_most() {
        for time in 1..=TIME_MAX {
            let middle = time_of(bucket(time));
            assert!(middle.abs_diff(time) * 8 <= time, "{time} counts as {middle}");
            assert_eq!(bucket(middle), bucket(time));
        }
        assert_eq!((1..8).map(|time| time_of(bucket(time))).collect::<Vec<_>>(), (1..8).collect::<Vec<_>>());
    }

    #[test]
    fn samples_add_up_and_are_what_was_noted() {
        let mut first = Reuse { sets: 64, renew: 16_384, ..Reuse::default() };
        first.absorbed.note(1, 0);
        first.absorbed.note(1, 0);
        first.absorbed.note(100, 3);
        let mut second = Reuse { sets: 64, renew: 16_384, ..Reuse::default() };
        second.absorbed.note(u64::MAX, 99);
        second.renewed.note(5, 0);
        second.add(&first);
        let cells: Vec<_> = second.absorbed.cells().collect();
        assert_eq!(cells[0], ReuseCell { time: 1, depth: 0, count: 2 });
        assert_eq!(cells[1], ReuseCell { time: time_of(bucket(100)), depth: 3, count: 1 });
        assert_eq!((cells[2].depth, cells[2].count), (DEPTH_MAX as u64, 1));
        assert_eq!((second.absorbed.total(), second.renewed.total()), (4, 1));
        let endless: ReuseTimes = serde_json::from_str(&format!("[{}[1]]", "[],".repeat(DEPTH_MAX + 1))).unwrap();
        assert_eq!(endless.total(), 0, "no filter writes such a depth");
        let text = serde_json::to_string(&second).unwrap();
        assert_eq!(serde_json::from_str::<Reuse>(&text).unwrap(), second);
    }
}
