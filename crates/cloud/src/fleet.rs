// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hosts of a replay: groups of equal ones.

use nestwalk_mem::PageCount;
use serde::{Deserialize, Serialize};

use crate::error::CloudError;
use crate::memory_map::{Hole, MemoryMap};

/// A host's memory may be at most this (16 TiB less one page): sizes are kept in 32 bits.
pub const MAX_HOST_PAGES: u64 = u32::MAX as u64;
/// A host may offer at most this many virtual CPUs.
pub const MAX_HOST_VCPUS: u64 = 1 << 16;

/// How a host with several NUMA nodes serves a VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NumaPolicy {
    /// A VM's memory is on one node if it fits there, else on several.
    #[default]
    Preferred,
    /// A VM that fits on no single node is not placed on the host.
    Strict,
}

/// `hosts` equal hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostGroup {
    /// Its name in results.
    pub name: String,
    /// How many.
    pub hosts: u32,
    /// Processors of one host (before the scheduler's allocation ratio).
    pub vcpus: u32,
    /// RAM of one host in pages of 4 KiB: firmware's, bad and the hypervisor's included.
    pub memory_pages: u64,
    /// What the hypervisor keeps of it.
    #[serde(default)]
    pub reserved_pages: u64,
    /// Nova's `reserved_host_memory_mb`, in pages. Without it Nova knows exactly what is left for
    /// VMs.
    #[serde(default)]
    pub nova_reserved_pages: Option<u64>,
    /// Address holes.
    #[serde(default)]
    pub holes: Vec<Hole>,
    /// NUMA nodes of one host.
    #[serde(default = "one")]
    pub numa_nodes: u32,
    /// How they are used.
    #[serde(default)]
    pub numa: NumaPolicy,
}

fn one() -> u32 {
    1
}

impl HostGroup {
    /// Hosts without holes or NUMA nodes, all of whose memory is for VMs.
    pub fn plain(name: &str, hosts: u32, vcpus: u32, memory: PageCount) -> Self {
        Self {
            name: name.to_owned(),
            hosts,
            vcpus,
            memory_pages: memory.0,
            reserved_pages: 0,
            nova_reserved_pages: None,
            holes: Vec::new(),
            numa_nodes: 1,
            numa: NumaPolicy::Preferred,
        }
    }

    /// The memory of one host.
    ///
    /// # Errors
    /// As [`Fleet::check`].
    pub fn memory_map(&self) -> Result<MemoryMap, CloudError> {
        let failed = |problem| CloudError::Fleet { place: format!("host group {:?}", self.name), problem };
        if self.vcpus == 0 || u64::from(self.vcpus) > MAX_HOST_VCPUS {
            return Err(failed(format!("vcpus is {}: give 1 to {MAX_HOST_VCPUS}", self.vcpus)));
        }
        if self.memory_pages == 0 || self.memory_pages > MAX_HOST_PAGES {
            return Err(failed(format!("memory_pages is {}: give 1 to {MAX_HOST_PAGES}", self.memory_pages)));
        }
        if self.nova_reserved_pages.is_some_and(|reserved| reserved >= self.memory_pages) {
            return Err(failed("nova_reserved_pages leaves no memory for VMs".to_owned()));
        }
        let (memory, reserved) = (PageCount(self.memory_pages), PageCount(self.reserved_pages));
        let map = MemoryMap::new(memory, reserved, &self.holes, self.numa_nodes).map_err(failed)?;
        let last = map.nodes().iter().flatten().last().map_or(0, |range| range.end().0);
        if last > MAX_HOST_PAGES {
            return Err(failed(format!("memory reaches to page {last:#x}, above 16 TiB: make the holes smaller")));
        }
        Ok(map)
    }
}

/// All hosts: those of the first group first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// The groups.
    pub groups: Vec<HostGroup>,
}

impl Fleet {
    /// The five generations of the paper's clusters, a fifth of `hosts` each (VEE'21, evaluation:
    /// HPC 128 GB and 24 cores, Gen4 192/24, Gen5 256/40, Gen6 192/48, Godzilla 512/32). What five
    /// does not divide goes to the first ones.
    pub fn paper(hosts: u32) -> Self {
        const GENERATIONS: [(&str, u64, u32); 5] =
            [("hpc", 128, 24), ("gen4", 192, 24), ("gen5", 256, 40), ("gen6", 192, 48), ("godzilla", 512, 32)];
        let groups = GENERATIONS.iter().zip(0..).map(|(&(name, gib, vcpus), at)| {
            HostGroup::plain(name, hosts / 5 + u32::from(at < hosts % 5), vcpus, PageCount(gib << 18))
        });
        Self { groups: groups.filter(|group| group.hosts > 0).collect() }
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.hosts)).sum()
    }

    /// Whether it can be built.
    ///
    /// # Errors
    /// One that names the group.
    pub fn check(&self) -> Result<(), CloudError> {
        let failed = |problem: &str| CloudError::Fleet { place: "the fleet".to_owned(), problem: problem.to_owned() };
        if self.hosts() == 0 {
            return Err(failed("it has no hosts: give at least one"));
        }
        if self.hosts() >= u64::from(u32::MAX) {
            return Err(failed("it has more than 4 billion hosts"));
        }
        self.groups.iter().try_for_each(|group| group.memory_map().map(|_| ()))
    }
}
