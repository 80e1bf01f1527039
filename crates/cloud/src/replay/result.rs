// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a replay found. [`ReplayResult`] is the same for each run; [`Timing`] is what was measured on the way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Replay {
    /// The deterministic part.
    pub result: ReplayResult,
    /// The measured part.
    pub timing: Timing,
    /// What became of each request, in their order. Not in the JSON form.
    #[serde(skip)]
    pub vms: Vec<VmOutcome>,
}

/// What became of a VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Larger than any host of the fleet.
    #[default]
    Refused,
    /// No host had room when it arrived.
    Unplaced,
    /// It ran.
    Placed,
}

/// What became of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VmOutcome {
    /// Placed or not.
    pub outcome: Outcome,
    /// The host, if placed.
    pub host: u32,
    /// Its segments when it was placed, by the rule of the options; 0 if it was not placed.
    pub segments: u32,
}

/// VMs by what became of them. The first is the sum of the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Outcomes {
    /// All.
    pub requests: u64,
    /// Those that ran.
    pub placed: u64,
    /// Those for which no host had room when they arrived.
    pub unplaced: u64,
    /// Those larger than any host.
    pub refused: u64,
}

impl Outcomes {
    pub(crate) fn count(&mut self, outcome: Outcome) {
        self.requests += 1;
        match outcome {
            Outcome::Refused => self.refused += 1,
            Outcome::Unplaced => self.unplaced += 1,
            Outcome::Placed => self.placed += 1,
        }
    }
}

/// VMs by their number of segments.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Segments {
    /// Shares of the placed VMs with 1, 2, 3 and more segments: keys `1`, `2`, `3`, `more`. Empty if there are none.
    pub shares: BTreeMap<String, f64>,
    /// VMs by their exact number of segments.
    pub histogram: BTreeMap<u64, u64>,
}

/// The deterministic part.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReplayResult {
    /// VMs that arrived at or after `measure_from_s`.
    pub vms: Outcomes,
    /// Those that arrived before.
    pub warm_up: Outcomes,
    /// Of the VMs counted in `vms`.
    pub segments: Segments,
}

/// Times of one kind of work, in nanoseconds of wall time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// How often.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Standard deviation.
    pub stdev_ns: f64,
    /// Median.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
}

/// What was measured: differs from run to run.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Timing {
    /// Choosing a host.
    pub placement: Latency,
    /// Allocating on the chosen host.
    pub allocation: Latency,
    /// The whole replay.
    pub wall_s: f64,
    /// Creations and deletions in a second of it.
    pub events_per_s: f64,
}

impl Segments {
    /// Works the shares out.
    pub(crate) fn finish(&mut self) {
        let all: u64 = self.histogram.values().sum();
        if all == 0 {
            return;
        }
        let exact = |n: u64| self.histogram.get(&n).copied().unwrap_or(0);
        let few = [exact(1), exact(2), exact(3)];
        let more = all - few.iter().sum::<u64>();
        let share = |vms: u64| vms as f64 / all as f64;
        let keys = ["1", "2", "3", "more"].map(str::to_owned);
        self.shares = keys.into_iter().zip(few.into_iter().chain([more]).map(share)).collect();
    }
}
