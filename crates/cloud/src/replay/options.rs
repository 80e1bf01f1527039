// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a replay is run.

use serde::{Deserialize, Serialize};

use crate::allocator::hugetlb::HugetlbOptions;
use crate::allocator::xen::XenOptions;
use crate::allocator::{AllocatorKind, AllocatorOptions, MAX_DS};
use crate::error::CloudError;
use crate::extent::CountingRule;
use crate::fleet::Fleet;
use crate::host::HostOptions;
use crate::request::{Resize, ResizeHow};
use crate::scheduler::SchedulerOptions;

/// How a replay is run. Everything has a default.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// For drawn deletions, `host_subset_size` and the VMs that are resized.
    pub seed: u64,
    /// How hosts allocate.
    pub allocator: AllocatorKind,
    /// What of Xen is modelled.
    pub xen: XenOptions,
    /// How large the pool of `linux-hugetlb` is.
    pub hugetlb: HugetlbOptions,
    /// How hosts are chosen.
    pub scheduler: SchedulerOptions,
    /// Segments that a DS-n processor has: a VM with more runs under EPT.
    pub ds_segments: u32,
    /// When two neighbouring pieces of memory are one segment.
    pub counting: CountingRule,
    /// VMs that arrive before this time are placed, but not counted in shares: those that ran
    /// already.
    pub measure_from_s: Option<i64>,
    /// DynamicOptionSelec. For the two allocators of Compromis only, of which `allocator` is the
    /// first in force.
    pub dynamic: Option<DynamicOptions>,
    /// Live migration that makes room for VMs in at most `ds_segments` segments.
    pub migration: Option<Migration>,
    /// VMs whose memory changes while they run.
    pub resize: Option<Resize>,
    /// Whether VMs that need more than `ds_segments` segments, and so run under EPT, get the
    /// smallest free segments.
    pub ept_takes_small: bool,
    /// Points of the series over time, equally far apart.
    pub samples: u32,
    /// The host whose memory map is kept.
    pub map_host: u32,
    /// When its map is kept. Without it: at `measure_from_s` (or a tenth into the trace), and at
    /// the last creation.
    pub map_times_s: Option<Vec<i64>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            allocator: AllocatorKind::default(),
            xen: XenOptions::default(),
            hugetlb: HugetlbOptions::default(),
            scheduler: SchedulerOptions::default(),
            ds_segments: 1,
            counting: CountingRule::default(),
            measure_from_s: None,
            dynamic: None,
            migration: None,
            resize: None,
            ept_takes_small: false,
            samples: 200,
            map_host: 0,
            map_times_s: None,
        }
    }
}

impl Options {
    /// What they say about hosts.
    pub fn hosts(&self) -> HostOptions {
        HostOptions {
            allocator: self.allocator,
            allocators: AllocatorOptions { xen: self.xen, hugetlb: self.hugetlb },
            cpu_ratio: self.scheduler.cpu_allocation_ratio,
            ram_ratio: self.scheduler.ram_allocation_ratio,
        }
    }

    /// Whether each option is in its range.
    ///
    /// # Errors
    /// One that names the option.
    pub fn check(&self, fleet: &Fleet) -> Result<(), CloudError> {
        fleet.check()?;
        self.scheduler.check()?;
        if !(1..=MAX_DS as u32).contains(&self.ds_segments) {
            return Err(CloudError::option("ds_segments", format!("{}: give 1 to {MAX_DS}", self.ds_segments)));
        }
        if !(0.0..=1.0).contains(&self.hugetlb.pool_share) {
            return Err(CloudError::option("pool_share", format!("{}: give 0 to 1", self.hugetlb.pool_share)));
        }
        if self.samples > 100_000 {
            return Err(CloudError::option("samples", format!("{}: give 0 to 100000", self.samples)));
        }
        if self.map_times_s.as_ref().is_some_and(|times| times.len() > 1000) {
            return Err(CloudError::option("map_times_s", "more than 1000 times: give fewer"));
        }
        if u64::from(self.map_host) >= fleet.hosts() {
            let problem = format!("{}: the fleet's hosts are 0 to {}", self.map_host, fleet.hosts() - 1);
            return Err(CloudError::option("map_host", problem));
        }
        let compromis = matches!(self.allocator, AllocatorKind::CompromisOpt1 | AllocatorKind::CompromisOpt2);
        if self.dynamic.is_some_and(|dynamic| dynamic.period_s == 0) {
            return Err(CloudError::option("dynamic", "period_s is 0: give the period in seconds"));
        }
        if self.dynamic.is_some() && !compromis {
            return Err(CloudError::option(
                "dynamic",
                "it chooses among Compromis' options: take one as the allocator",
            ));
        }
        if self.migration.is_some_and(|migration| !(1..=10_000).contains(&migration.candidates)) {
            return Err(CloudError::option("migration", "candidates: give 1 to 10000"));
        }
        if let Some(resize) = self.resize {
            let most = if resize.how == ResizeHow::Grow { 10.0 } else { 0.999_999 };
            if !(0.0..=1.0).contains(&resize.vm_share) {
                return Err(CloudError::option("resize", format!("vm_share = {}: give 0 to 1", resize.vm_share)));
            }
            if !(0.0..=most).contains(&resize.memory_share) {
                let range = if resize.how == ResizeHow::Grow { "0 to 10" } else { "0 to less than 1" };
                return Err(CloudError::option(
                    "resize",
                    format!("memory_share = {}: give {range}", resize.memory_share),
                ));
            }
        }
        Ok(())
    }
}

/// How often it is decided which of Compromis' options is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DynamicOptions {
    /// The period, in seconds.
    pub period_s: u32,
}

impl Default for DynamicOptions {
    fn default() -> Self {
        Self { period_s: 7 * 24 * 3600 }
    }
}

/// How far to look for a migration that makes room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Migration {
    /// Hosts that are looked at for one placement, and as targets of one move.
    pub candidates: u32,
}

impl Default for Migration {
    fn default() -> Self {
        Self { candidates: 16 }
    }
}
