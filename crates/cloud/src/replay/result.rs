// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a replay found. [`ReplayResult`] is the same for each run; [`Timing`] is what was measured
//! on the way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::request::Assumed;

/// All of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Replay {
    /// The deterministic part.
    pub result: ReplayResult,
    /// How much work it was. Deterministic too, but another index does other work.
    pub work: Work,
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
    /// Shares of the VMs with 1, 2, 3 and more segments: keys `1`, `2`, `3`, `more`. Empty if there
    /// are no VMs.
    pub shares: BTreeMap<String, f64>,
    /// VMs by their exact number of segments.
    pub histogram: BTreeMap<u64, u64>,
}

impl Segments {
    pub(crate) fn count(&mut self, segments: u64) {
        *self.histogram.entry(segments).or_default() += 1;
    }

    /// VMs with at most `n` segments, and the others.
    pub fn at_most(&self, n: u64) -> (u64, u64) {
        let few = self.histogram.range(..=n).map(|(_, vms)| vms).sum();
        (few, self.histogram.values().sum::<u64>() - few)
    }

    /// VMs with 1, 2, 3 and more segments.
    pub fn few(&self) -> [u64; 4] {
        let exact = |n: u64| self.histogram.get(&n).copied().unwrap_or(0);
        [exact(1), exact(2), exact(3), self.at_most(3).1]
    }

    /// Works the shares out.
    pub(crate) fn finish(&mut self) {
        let all: u64 = self.histogram.values().sum();
        if all > 0 {
            let shares = self.few().map(|vms| vms as f64 / all as f64);
            self.shares = KEYS.into_iter().map(str::to_owned).zip(shares).collect();
        }
    }
}

const KEYS: [&str; 4] = ["1", "2", "3", "more"];

/// VMs of one size.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct BySize {
    /// The size in pages of 4 KiB.
    pub memory_pages: u64,
    /// What became of them.
    pub vms: Outcomes,
    /// Segments of those that were placed.
    pub segments: Segments,
}

/// VMs on the hosts of one group.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ByGroup {
    /// The group's name.
    pub name: String,
    /// Its hosts.
    pub hosts: u32,
    /// VMs that were placed on them.
    pub placed: u64,
    /// Their segments.
    pub segments: Segments,
}

/// Modes of the placed VMs on a processor with `n` segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Modes {
    /// Segments that the processor has.
    pub n: u32,
    /// VMs with at most so many: DS-n.
    pub ds_vms: u64,
    /// The others: EPT.
    pub ept_vms: u64,
}

/// The fleet at one time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// When, in seconds of the trace's clock.
    pub time_s: i64,
    /// VMs that run.
    pub running: u64,
    /// Memory in use, in pages.
    pub used_pages: u64,
    /// Virtual CPUs in use.
    pub used_vcpus: u64,
    /// Memory in use as a share of the fleet's.
    pub memory_share: f64,
    /// Virtual CPUs in use as a share of what the scheduler may give away.
    pub vcpu_share: f64,
    /// For n = 1 to 8: see [`ReplayResult::unusable`]. `None` where it was not worked out at this
    /// time.
    pub unusable_share: Option<[f64; 8]>,
    /// VMs placed since the sample before, with 1, 2, 3 and more segments.
    pub placed: [u64; 4],
    /// VMs for which no host had room since the sample before.
    pub unplaced: u64,
    /// VMs that were moved since the sample before.
    pub migrations: u64,
}

/// What a range of a host's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellKind {
    /// Free for VMs.
    Free,
    /// A VM's.
    Vm,
    /// The hypervisor's.
    Hypervisor,
    /// RAM that firmware keeps.
    Firmware,
    /// Faulty RAM.
    Bad,
    /// Addresses of devices.
    Mmio,
}

/// A range of a host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// First frame.
    pub start_page: u64,
    /// Size in pages.
    pub pages: u64,
    /// What it is.
    pub kind: CellKind,
    /// Whose: the request's position. `None` if it is no VM's.
    pub vm: Option<u32>,
}

/// A host's memory at one time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HostMap {
    /// When.
    pub time_s: i64,
    /// Which host.
    pub host: u32,
    /// Its memory, ascending in address.
    pub cells: Vec<Cell>,
}

/// One decision of DynamicOptionSelec.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// When.
    pub time_s: i64,
    /// The option of all hypervisors from now on: `compromis-opt1` or `compromis-opt2`.
    pub option: crate::AllocatorKind,
    /// DS-n VMs of the period that ended, had option 1 been in force.
    pub ds_vms_opt1: u64,
    /// The same with option 2.
    pub ds_vms_opt2: u64,
}

/// What live migration did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Migrations {
    /// VMs that were moved.
    pub moves: u64,
    /// Their memory.
    pub bytes_copied: u64,
    /// Placements for which no move was found that helps.
    pub failed: u64,
}

/// What resizing VMs did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Resizes {
    /// VMs that were resized.
    pub vms: u64,
    /// Pages that they were given, or that were taken away.
    pub pages: u64,
    /// VMs that could not be resized: their host has no room, or what is to be taken cannot be
    /// split.
    pub not_done: u64,
    /// VMs that had their first size again.
    pub undone: u64,
    /// VMs that could not have it again.
    pub not_undone: u64,
}

/// The deterministic part.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReplayResult {
    /// VMs that arrived at or after `measure_from_s`.
    pub vms: Outcomes,
    /// Those that arrived before.
    pub warm_up: Outcomes,
    /// Segments of the VMs counted in `vms` when they were placed, by the rule of the options.
    pub segments: Segments,
    /// The same by the other rule of counting.
    pub segments_other_rule: Segments,
    /// The most segments that each of them ever had: other than `segments` only where VMs are
    /// resized or move.
    pub segments_most: Segments,
    /// By size of VM, ascending.
    pub by_size: Vec<BySize>,
    /// By group of hosts.
    pub by_group: Vec<ByGroup>,
    /// For processors with n = 1 to 8 segments: how many VMs run in which mode, by `segments_most`.
    pub modes: Vec<Modes>,
    /// What the trace left open.
    pub assumed: Assumed,
    /// First and last event, in seconds of the trace's clock.
    pub span_s: Option<(i64, i64)>,
    /// The fleet over time.
    pub series: Vec<Sample>,
    /// For n = 1 to 8: the mean, over samples from `measure_from_s` on, of the share of free memory
    /// that segments make unusable. A host's free memory counts by the chance that a VM, its size
    /// drawn from the trace's requests, would fit into the host's free memory but not into its n
    /// largest free ranges. `None` without samples.
    pub unusable: Option<[f64; 8]>,
    /// The chosen host's memory, early and late.
    pub maps: Vec<HostMap>,
    /// Decisions of DynamicOptionSelec.
    pub dynamic: Vec<Decision>,
    /// Live migration.
    pub migration: Migrations,
    /// VMs that were resized.
    pub resize: Resizes,
    /// Free lists and segments that were looked at for one allocation: its length, without what
    /// else the machine did.
    pub allocation_steps: Spread,
}

/// How much work a replay was: counted, not measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Work {
    /// Hosts (or groups of hosts in an index) that the scheduler looked at.
    pub candidates: u64,
    /// Free lists and segments that allocators looked at on the hosts.
    pub list_steps: u64,
}

/// How some counts or times lie.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Spread {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub stdev: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Spread {
    /// Of some values; percentiles by rank.
    pub(crate) fn of(mut values: Vec<u32>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_unstable();
        let count = values.len();
        let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / count as f64;
        let square = values.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / count as f64;
        let rank = |percent: usize| f64::from(values[(count * percent).div_ceil(100).max(1) - 1]);
        Self { count: count as u64, mean, stdev: square.sqrt(), p50: rank(50), p99: rank(99) }
    }
}

/// What was measured: differs from run to run.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Timing {
    /// Choosing a host, in nanoseconds of wall time.
    pub placement_ns: Spread,
    /// Allocating on the chosen host, in nanoseconds of wall time.
    pub allocation_ns: Spread,
    /// The whole replay.
    pub wall_s: f64,
    /// Creations and deletions in a second of it.
    pub events_per_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_by_rank() {
        let spread = Spread::of((1..=100).rev().collect());
        assert_eq!((spread.count, spread.mean, spread.p50, spread.p99), (100, 50.5, 50.0, 99.0));
        assert!((spread.stdev - 28.866).abs() < 0.001);
        assert_eq!(Spread::of(Vec::new()), Spread::default());
        assert_eq!(Spread::of(vec![7]).p99, 7.0);
    }

    #[test]
    fn shares_are_of_all_vms() {
        let mut segments =
            Segments { histogram: [(1, 5), (2, 1), (3, 1), (4, 2), (90, 1)].into(), ..Segments::default() };
        segments.finish();
        let shares: Vec<_> = segments.shares.iter().map(|(key, &share)| (key.as_str(), share)).collect();
        assert_eq!(shares, [("1", 0.5), ("2", 0.1), ("3", 0.1), ("more", 0.3)]);
        assert_eq!(segments.at_most(4), (9, 1));
    }
}
