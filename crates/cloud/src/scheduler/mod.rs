// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which host a VM is put on.
//!
//! The base is a model of OpenStack Nova's filter scheduler: hosts that lack processors or memory
//! are filtered out, the rest is weighed by free memory, and one of the best `host_subset_size` is
//! taken. ImprovPlacement is one more filter, after those: it simulates the VM's allocation on a
//! copy of each candidate's free list and keeps the hosts that need the fewest segments. Capacity
//! is untouched, as the candidates are the scheduler's own.
//!
//! Simulating on every candidate takes time linear in hosts. Indices answer instead, and make the
//! same choices (a property test holds them to that):
//! - [`by_ranges`]: a host gives a VM one segment exactly if its largest free range is large
//!   enough, and with Compromis' option 2 and best fit k segments if its k largest are. So a host
//!   with the fewest is one descent in a tree.
//! - [`by_segments`], wherever that does not tell (Xen's and Linux' allocators; hosts of several
//!   NUMA nodes; option 1 and first fit where no one range is large enough; more than seven
//!   segments): hosts are simulated on, but each only when it has changed since the last VM of the
//!   same size came.

mod by_ranges;
mod by_segments;
mod index;
#[cfg(test)]
mod tests;
mod treap;

use nestwalk_mem::PageCount;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::allocator::{AllocatorKind, Rule};
use crate::error::CloudError;
use crate::extent::CountingRule;
use crate::host::{Host, HostId};
use crate::request::{VmRequest, below};

use by_ranges::{ByRanges, Lane};
use by_segments::BySegments;

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
    /// Nova's `ram_allocation_ratio`. Memory must be there in fact, too: more than 1 does not help
    /// here.
    pub ram_allocation_ratio: f64,
    /// Nova's `host_subset_size`: one of so many best hosts is taken at random.
    pub host_subset_size: u32,
    /// Nova's `ram_weight_multiplier`: positive spreads VMs, negative stacks them. For policy
    /// `filter-scheduler` only.
    pub ram_weight_multiplier: f64,
    /// Nova's `cpu_weight_multiplier`. For policy `filter-scheduler` only. 0, as Novas of the
    /// paper's time had no such weigher.
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

/// In which order hosts are preferred; of equal ones, the first of the fleet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Preference {
    /// The first of the fleet.
    First,
    /// The one with the least free memory.
    LeastRam,
    /// The one with the most free memory.
    MostRam,
    /// By Nova's sum of normalised weights; multipliers in thousandths.
    Weighed { ram: i64, cpu: i64 },
}

impl Preference {
    fn of(options: &SchedulerOptions) -> Self {
        let thousandths = |multiplier: f64| (multiplier * 1000.0).round() as i64;
        let (ram, cpu) = (thousandths(options.ram_weight_multiplier), thousandths(options.cpu_weight_multiplier));
        match options.policy {
            Policy::FirstFit => Self::First,
            Policy::BestFit => Self::LeastRam,
            Policy::WorstFit => Self::MostRam,
            Policy::FilterScheduler if cpu != 0 => Self::Weighed { ram, cpu },
            Policy::FilterScheduler => match ram {
                0 => Self::First,
                1.. => Self::MostRam,
                _ => Self::LeastRam,
            },
        }
    }

    /// The order of hosts with equally many free CPUs: the smallest key first.
    fn key(self, free_ram: u64) -> u64 {
        match self {
            Self::First | Self::Weighed { ram: 0, .. } => 0,
            Self::MostRam | Self::Weighed { ram: 1.., .. } => !free_ram,
            Self::LeastRam | Self::Weighed { .. } => free_ram,
        }
    }

    /// The free memory of which `key` was made. 0 where memory has no weight.
    fn ram(self, key: u64) -> u64 {
        match self {
            Self::MostRam | Self::Weighed { ram: 1.., .. } => !key,
            _ => key,
        }
    }
}

/// What weighing looks at: a host's free memory and CPUs.
#[derive(Clone, Copy, Debug)]
struct Weighed {
    host: u32,
    ram: u64,
    vcpus: u32,
}

/// The ranges of weights among candidates, to normalise by (`nova.weights.normalize`).
#[derive(Clone, Copy, Debug)]
struct Ranges {
    ram: (u64, u64),
    vcpus: (u32, u32),
}

impl Ranges {
    fn of(candidates: impl Iterator<Item = Weighed>) -> Self {
        let empty = Self { ram: (u64::MAX, 0), vcpus: (u32::MAX, 0) };
        candidates.fold(empty, |ranges, candidate| Self {
            ram: (ranges.ram.0.min(candidate.ram), ranges.ram.1.max(candidate.ram)),
            vcpus: (ranges.vcpus.0.min(candidate.vcpus), ranges.vcpus.1.max(candidate.vcpus)),
        })
    }

    /// Sorts `candidates`: the heaviest first, of equal ones the first of the fleet. Nova adds
    /// `multiplier x (value - least) / (most - least)` for each weigher; here that is multiplied by
    /// both denominators, so that it is exact.
    fn sort(self, candidates: &mut [Weighed], ram: i64, cpu: i64) {
        let ram_range = i128::from(self.ram.1.saturating_sub(self.ram.0).max(1));
        let cpu_range = i128::from(self.vcpus.1.saturating_sub(self.vcpus.0).max(1));
        let weight = |candidate: &Weighed| {
            i128::from(ram) * i128::from(candidate.ram - self.ram.0) * cpu_range
                + i128::from(cpu) * i128::from(candidate.vcpus - self.vcpus.0) * ram_range
        };
        candidates.sort_unstable_by_key(|candidate| (std::cmp::Reverse(weight(candidate)), candidate.host));
    }
}

/// Chooses hosts.
#[derive(Clone, Debug)]
pub struct Scheduler {
    options: SchedulerOptions,
    preference: Preference,
    rule: CountingRule,
    allocator: AllocatorKind,
    /// Whether each host has one NUMA node.
    one_node: bool,
    index: Option<(ByRanges, BySegments)>,
    examined: u64,
}

impl Scheduler {
    /// A scheduler for `hosts`, whose memory is allocated by `allocator` and whose segments are
    /// counted by `rule`. No request will ask for more than `most_vcpus`.
    pub fn new(
        options: SchedulerOptions,
        rule: CountingRule,
        allocator: AllocatorKind,
        hosts: &[Host],
        most_vcpus: u32,
    ) -> Self {
        let preference = Preference::of(&options);
        let most_vcpus = match preference {
            // The weight depends on how many CPUs are free.
            Preference::Weighed { .. } => u32::MAX,
            _ => most_vcpus,
        };
        let most_vcpus = hosts.iter().map(Host::free_vcpus).max().unwrap_or(0).min(most_vcpus);
        let one_node = hosts.iter().all(Host::one_node);
        let sums = options.improv_placement && one_node && allocator.keeps_whole();
        let by_ranges = || ByRanges::new(preference, hosts, most_vcpus, sums);
        let index = options.index.then(|| (by_ranges(), BySegments::new(preference, rule, most_vcpus)));
        Self { options, preference, rule, allocator, one_node, index, examined: 0 }
    }

    /// How segments are counted.
    pub const fn rule(&self) -> CountingRule {
        self.rule
    }

    /// The hosts allocate by `rule` from now on.
    pub fn set_rule(&mut self, rule: Rule) {
        self.allocator = match rule {
            Rule::Opt1 => AllocatorKind::CompromisOpt1,
            Rule::Opt2 => AllocatorKind::CompromisOpt2,
            Rule::BestFit => AllocatorKind::BestFit,
            Rule::FirstFit => AllocatorKind::FirstFit,
        };
        if let Some((_, by_segments)) = &mut self.index {
            by_segments.forget();
        }
    }

    /// Candidates that were looked at since the beginning: hosts, or nodes of the indices.
    pub fn examined(&self) -> u64 {
        let of = |(by_ranges, by_segments): &(ByRanges, BySegments)| by_ranges.examined() + by_segments.examined();
        self.examined + self.index.as_ref().map_or(0, of)
    }

    /// `host` has changed.
    pub fn update(&mut self, id: HostId, host: &Host) {
        if let Some((by_ranges, by_segments)) = &mut self.index {
            by_ranges.update(id, host);
            by_segments.update(id);
        }
    }

    /// The host for `request`, or `None` if none passes the filters.
    pub fn choose(&mut self, hosts: &[Host], request: &VmRequest, rng: &mut Xoshiro256PlusPlus) -> Option<HostId> {
        let best = self.best(hosts, request, self.options.host_subset_size as usize, self.options.improv_placement);
        let drawn = if best.len() > 1 { below(rng, best.len() as u64) } else { 0 };
        best.get(drawn as usize).map(|&at| HostId(at))
    }

    /// The hosts that pass the scheduler's own filters, at most `limit`, the preferred first.
    pub fn candidates(&mut self, hosts: &[Host], request: &VmRequest, limit: usize) -> Vec<HostId> {
        self.best(hosts, request, limit, false).into_iter().map(HostId).collect()
    }

    /// At most `limit` hosts that pass all filters, the preferred first.
    fn best(&mut self, hosts: &[Host], request: &VmRequest, limit: usize, improv: bool) -> Vec<u32> {
        let memory = request.memory();
        let Some((by_ranges, by_segments)) = &mut self.index else {
            let passing =
                (0..hosts.len() as u32).filter(|&at| hosts[at as usize].passes(request.vcpus, memory)).collect();
            self.examined += hosts.len() as u64;
            return self.weigh(hosts, passing, memory, limit, improv);
        };
        if !improv {
            return by_ranges.best(request.vcpus, memory, Lane::ROOM, limit);
        }
        // Where segments follow from sizes, the hosts that need k are those whose k largest free
        // ranges suffice, if there are none that need fewer.
        let known = match (self.one_node, self.allocator.largest_first(), self.allocator.keeps_whole()) {
            (true, true, _) => Lane::SUMS,
            (true, false, true) => 1,
            _ => 0,
        };
        let by_size = (0..known).map(|lane| by_ranges.best(request.vcpus, memory, Lane(lane), limit));
        let best = by_size.into_iter().find(|best| !best.is_empty());
        best.unwrap_or_else(|| by_segments.best(hosts, request.vcpus, memory, limit))
    }

    /// At most `limit` of the hosts `passing` (ascending), after ImprovPlacement's filter with
    /// `improv`, the preferred first.
    fn weigh(
        &mut self,
        hosts: &[Host],
        mut passing: Vec<u32>,
        memory: PageCount,
        limit: usize,
        improv: bool,
    ) -> Vec<u32> {
        if improv {
            self.examined += passing.len() as u64;
            let segments = |&at: &u32| hosts[at as usize].segments_for(memory, self.rule).unwrap_or(u64::MAX);
            let counts: Vec<u64> = passing.iter().map(segments).collect();
            let fewest = counts.iter().min().copied();
            let mut counts = counts.into_iter();
            passing.retain(|_| counts.next() == fewest);
        }
        if let Preference::Weighed { ram, cpu } = self.preference {
            let weighed = |&at: &u32| {
                let host = &hosts[at as usize];
                Weighed { host: at, ram: host.free_ram().0, vcpus: host.free_vcpus() }
            };
            let mut candidates: Vec<Weighed> = passing.iter().map(weighed).collect();
            Ranges::of(candidates.iter().copied()).sort(&mut candidates, ram, cpu);
            passing = candidates.into_iter().map(|candidate| candidate.host).collect();
        } else {
            passing.sort_by_key(|&at| self.preference.key(hosts[at as usize].free_ram().0));
        }
        passing.truncate(limit);
        passing
    }
}
