// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a replay is run.

use serde::{Deserialize, Serialize};

use crate::allocator::hugetlb::HugetlbOptions;
use crate::allocator::xen::XenOptions;
use crate::allocator::{AllocatorKind, AllocatorOptions, MAX_DS};
use crate::error::CloudError;
use crate::extent::CountingRule;
use crate::host::HostOptions;
use crate::scheduler::SchedulerOptions;

/// How a replay is run. Everything has a default.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// For drawn deletions, `host_subset_size` and the VMs whose memory is unplugged.
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
    /// VMs that arrive before this time are placed, but not counted in shares: those that ran already.
    pub measure_from_s: Option<i64>,
    /// Points of the series over time, equally far apart.
    pub samples: u32,
    /// The host whose memory map is kept.
    pub map_host: u32,
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
            samples: 200,
            map_host: 0,
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
    pub fn check(&self) -> Result<(), CloudError> {
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
        Ok(())
    }
}
