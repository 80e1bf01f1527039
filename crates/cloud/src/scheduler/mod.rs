// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which host a VM is put on.
//!
//! The base is a model of OpenStack Nova's filter scheduler: hosts that lack processors or memory are filtered out, the rest is
//! weighed by free memory, and one of the best `host_subset_size` is taken. ImprovPlacement is one more filter, after
//! those: it simulates the VM's allocation on a copy of each candidate's free list and keeps the hosts that need the fewest
//! segments. Capacity is untouched, as the candidates are the scheduler's own.

use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::error::CloudError;
use crate::extent::CountingRule;
use crate::host::{Host, HostId};
use crate::request::{VmRequest, below};

/// In which order hosts that pass the filters are preferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Nova's filter scheduler: by weight.
    #[default]
    FilterScheduler,
    /// The first host of the fleet.
    FirstFit,
    /// The host with the least free memory.
    BestFit,
    /// The host with the most free memory.
    WorstFit,
}

/// How hosts are chosen.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerOptions {
    /// The order of preference.
    pub policy: Policy,
    /// Whether ImprovPlacement filters after the scheduler's own filters.
    pub improv_placement: bool,
    /// Nova's `cpu_allocation_ratio`: virtual CPUs for each processor.
    pub cpu_allocation_ratio: f64,
    /// Nova's `ram_allocation_ratio`. Memory must be there in fact, too: more than 1 helps nobody here.
    pub ram_allocation_ratio: f64,
    /// Nova's `host_subset_size`: one of so many best hosts is taken at random.
    pub host_subset_size: u32,
    /// Nova's `ram_weight_multiplier`: positive spreads VMs, negative stacks them. For policy `filter-scheduler` only.
    pub ram_weight_multiplier: f64,
    /// Nova's `cpu_weight_multiplier`. For policy `filter-scheduler` only. 0, as Novas of the paper's time had no such weigher.
    pub cpu_weight_multiplier: f64,
    /// Whether an index answers instead of a look at every host. The choices are the same.
    pub index: bool,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            policy: Policy::FilterScheduler,
            improv_placement: false,
            cpu_allocation_ratio: 16.0,
            ram_allocation_ratio: 1.0,
            host_subset_size: 1,
            ram_weight_multiplier: 1.0,
            cpu_weight_multiplier: 0.0,
            index: true,
        }
    }
}

impl SchedulerOptions {
    /// Whether each option is in its range.
    ///
    /// # Errors
    /// One that names the option.
    pub fn check(&self) -> Result<(), CloudError> {
        let ratio = |option, value: f64| match value.is_finite() && (0.001..=1000.0).contains(&value) {
            true => Ok(()),
            false => Err(CloudError::option(option, format!("{value}: give 0.001 to 1000"))),
        };
        let weight = |option, value: f64| match value.is_finite() && value.abs() <= 1e6 {
            true => Ok(()),
            false => Err(CloudError::option(option, format!("{value}: give -1000000 to 1000000"))),
        };
        ratio("cpu_allocation_ratio", self.cpu_allocation_ratio)?;
        ratio("ram_allocation_ratio", self.ram_allocation_ratio)?;
        weight("ram_weight_multiplier", self.ram_weight_multiplier)?;
        weight("cpu_weight_multiplier", self.cpu_weight_multiplier)?;
        match self.host_subset_size {
            0 => Err(CloudError::option("host_subset_size", "0: give at least 1")),
            _ => Ok(()),
        }
    }
}

/// Chooses among all hosts, one by one.
#[derive(Clone, Debug)]
pub struct Scheduler {
    options: SchedulerOptions,
    rule: CountingRule,
    examined: u64,
}

impl Scheduler {
    /// A scheduler.
    pub fn new(options: SchedulerOptions, rule: CountingRule) -> Self {
        Self { options, rule, examined: 0 }
    }

    /// Candidates that were looked at, since the beginning.
    pub const fn examined(&self) -> u64 {
        self.examined
    }

    /// The host for `request`, or `None` if none passes the filters.
    pub fn choose(&mut self, hosts: &[Host], request: &VmRequest, rng: &mut Xoshiro256PlusPlus) -> Option<HostId> {
        let memory = request.memory();
        let mut candidates: Vec<u32> =
            (0..hosts.len() as u32).filter(|&at| hosts[at as usize].passes(request.vcpus, memory)).collect();
        self.examined += candidates.len() as u64;
        if self.options.improv_placement {
            let counts: Vec<_> =
                candidates.iter().map(|&at| hosts[at as usize].segments_for(memory, self.rule)).collect();
            let fewest = counts.iter().flatten().min().copied()?;
            let mut counts = counts.into_iter();
            candidates.retain(|_| counts.next() == Some(Some(fewest)));
        }
        let ram = |at: u32| hosts[at as usize].free_ram();
        match self.options.policy {
            Policy::FirstFit => {}
            Policy::BestFit => candidates.sort_by_key(|&at| ram(at)),
            Policy::WorstFit | Policy::FilterScheduler => candidates.sort_by_key(|&at| std::cmp::Reverse(ram(at))),
        }
        candidates.truncate(self.options.host_subset_size as usize);
        let drawn = if candidates.len() > 1 { below(rng, candidates.len() as u64) } else { 0 };
        candidates.get(drawn as usize).map(|&at| HostId(at))
    }
}
