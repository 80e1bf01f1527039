// SPDX-License-Identifier: MIT OR Apache-2.0
//! One host: what it has left, and the memory of the VMs on it.

use nestwalk_mem::{FrameRange, PageCount};

use crate::allocator::{Allocator, AllocatorKind, MAX_DS, SegmentAllocator};
use crate::error::CloudError;
use crate::extent::{CountingRule, Extent, count_segments};
use crate::fleet::{Fleet, HostGroup, NumaPolicy};

/// A host's position in its fleet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub u32);

/// One host.
#[derive(Clone, Debug)]
pub struct Host {
    group: u32,
    /// Free virtual CPUs as the scheduler counts them.
    free_vcpus: u32,
    /// Free memory as the scheduler counts it, in pages.
    free_ram: u64,
    numa: NumaPolicy,
    nodes: Box<[Allocator]>,
}

impl Host {
    /// A host of `group`, which is its fleet's `at`-th, with nothing on it. `ratios`: Nova's allocation ratios of CPU and RAM.
    ///
    /// # Errors
    /// As [`Fleet::check`].
    pub fn new(group: &HostGroup, at: u32, kind: AllocatorKind, ratios: (f64, f64)) -> Result<Self, CloudError> {
        let map = group.memory_map()?;
        let lost = group.memory_pages - map.usable().0;
        let ram = (group.memory_pages as f64 * ratios.1) as u64;
        Ok(Self {
            group: at,
            free_vcpus: (f64::from(group.vcpus) * ratios.0) as u32,
            free_ram: ram.saturating_sub(group.nova_reserved_pages.unwrap_or(lost)),
            numa: group.numa,
            nodes: map.nodes().iter().map(|node| kind.build(node)).collect(),
        })
    }

    /// All hosts of `fleet`.
    ///
    /// # Errors
    /// As [`Fleet::check`].
    pub fn all(fleet: &Fleet, kind: AllocatorKind, ratios: (f64, f64)) -> Result<Vec<Self>, CloudError> {
        fleet.check()?;
        let mut hosts = Vec::with_capacity(fleet.hosts() as usize);
        for (group, at) in fleet.groups.iter().zip(0..) {
            let host = Self::new(group, at, kind, ratios)?;
            hosts.extend(std::iter::repeat_n(host, group.hosts as usize));
        }
        Ok(hosts)
    }

    /// Its group's position in the fleet.
    pub const fn group(&self) -> u32 {
        self.group
    }

    /// Virtual CPUs that the scheduler may still give away.
    pub const fn free_vcpus(&self) -> u32 {
        self.free_vcpus
    }

    /// Memory that the scheduler may still give away.
    pub const fn free_ram(&self) -> PageCount {
        PageCount(self.free_ram)
    }

    /// Memory that is free in fact.
    pub fn free_pages(&self) -> PageCount {
        PageCount(self.nodes.iter().map(|node| node.free_pages().0).sum())
    }

    /// The largest VM, in pages, that could be allocated here now.
    pub fn room(&self) -> PageCount {
        let free = self.nodes.iter().map(|node| node.free_pages().0);
        let physical = match self.numa {
            NumaPolicy::Preferred => free.sum(),
            NumaPolicy::Strict => free.max().unwrap_or(0),
        };
        PageCount(physical.min(self.free_ram))
    }

    /// Whether the scheduler's own filters let a VM pass: `ComputeFilter`-like by CPU and RAM, and the memory must be there.
    pub fn passes(&self, vcpus: u32, memory: PageCount) -> bool {
        self.free_vcpus >= vcpus && self.room() >= memory
    }

    /// Puts a VM on the host at time `now_s`: appends its memory to `out`. False, and nothing is changed, if it does not pass.
    pub fn place(&mut self, vcpus: u32, memory: PageCount, now_s: i64, out: &mut Vec<Extent>) -> bool {
        if !self.passes(vcpus, memory) || !self.allocate(memory, now_s, out) {
            return false;
        }
        self.free_vcpus -= vcpus;
        self.free_ram -= memory.0;
        true
    }

    /// Takes a VM with these `extents` off the host.
    pub fn remove(&mut self, vcpus: u32, memory: PageCount, extents: &[Extent]) {
        self.free_vcpus += vcpus;
        self.free_ram += memory.0;
        extents.iter().for_each(|&extent| self.free(extent));
    }

    fn free(&mut self, extent: Extent) {
        self.nodes[0].free(extent);
    }

    fn allocate(&mut self, memory: PageCount, now_s: i64, out: &mut Vec<Extent>) -> bool {
        self.nodes[0].allocate(memory, now_s, out)
    }

    /// How many segments a VM of `memory` would get now: the allocation is made on a copy.
    pub fn simulate(&self, memory: PageCount, rule: CountingRule) -> Option<u64> {
        let mut extents = Vec::new();
        self.clone().allocate(memory, 0, &mut extents).then(|| count_segments(&extents, rule))
    }

    /// Free memory as maximal ranges, ascending in address.
    pub fn free_segments(&self) -> Vec<FrameRange> {
        self.nodes.iter().flat_map(SegmentAllocator::free_segments).collect()
    }

    /// Pages of the one, two, ... eight largest free ranges together.
    pub fn largest_sums(&self) -> [u32; MAX_DS] {
        let mut sums = [0; MAX_DS];
        self.nodes[0].largest_sums(&mut sums);
        sums
    }
}
