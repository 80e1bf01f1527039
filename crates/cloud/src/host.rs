// SPDX-License-Identifier: MIT OR Apache-2.0
//! One host: what it has left, and which of its memory a VM gets.

use nestwalk_mem::{Frame, FrameRange, PageCount};

use crate::allocator::{Allocator, AllocatorKind, AllocatorOptions, MAX_DS, Rule, SegmentAllocator};
use crate::error::CloudError;
use crate::extent::{CountingRule, Extent, count_segments, cut, total};
use crate::fleet::{Fleet, HostGroup, NumaPolicy};

/// A host's position in its fleet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub u32);

/// What is the same for all hosts of a replay.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HostOptions {
    /// How they allocate.
    pub allocator: AllocatorKind,
    /// What allocators are told.
    pub allocators: AllocatorOptions,
    /// Nova's `cpu_allocation_ratio`.
    pub cpu_ratio: f64,
    /// Nova's `ram_allocation_ratio`.
    pub ram_ratio: f64,
}

impl HostOptions {
    /// Hosts that allocate by `allocator`, without overcommitment.
    pub fn new(allocator: AllocatorKind) -> Self {
        Self { allocator, allocators: AllocatorOptions::default(), cpu_ratio: 1.0, ram_ratio: 1.0 }
    }
}

/// From which free memory a VM is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serve {
    /// As the allocator's rule says.
    ByRule,
    /// From the smallest free segments: the VM does not care how many it gets.
    Smallest,
}

/// One host.
#[derive(Clone, Debug)]
pub struct Host {
    group: u32,
    /// Free virtual CPUs as the scheduler counts them.
    free_vcpus: u32,
    /// Free memory as the scheduler counts it, in pages.
    free_ram: u64,
    numa: NumaPolicy,
    nodes: Box<[Node]>,
}

/// A NUMA node.
#[derive(Clone, Debug)]
struct Node {
    /// One past its last frame.
    end: Frame,
    allocator: Allocator,
}

impl Host {
    /// A host of `group`, which is its fleet's `at`-th, with nothing on it.
    ///
    /// # Errors
    /// As [`Fleet::check`].
    pub fn new(group: &HostGroup, at: u32, options: &HostOptions) -> Result<Self, CloudError> {
        let map = group.memory_map()?;
        let lost = group.memory_pages - map.usable().0;
        let ram = (group.memory_pages as f64 * options.ram_ratio) as u64;
        let node = |ranges: &Vec<FrameRange>| Node {
            end: ranges.last().map_or(Frame(0), |range| range.end()),
            allocator: options.allocator.build(ranges, &options.allocators),
        };
        Ok(Self {
            group: at,
            free_vcpus: (f64::from(group.vcpus) * options.cpu_ratio) as u32,
            free_ram: ram.saturating_sub(group.nova_reserved_pages.unwrap_or(lost)),
            numa: group.numa,
            nodes: map.nodes().iter().map(node).collect(),
        })
    }

    /// All hosts of `fleet`.
    ///
    /// # Errors
    /// As [`Fleet::check`].
    pub fn all(fleet: &Fleet, options: &HostOptions) -> Result<Vec<Self>, CloudError> {
        fleet.check()?;
        let mut hosts = Vec::with_capacity(fleet.hosts() as usize);
        for (group, at) in fleet.groups.iter().zip(0..) {
            let host = Self::new(group, at, options)?;
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
        PageCount(self.nodes.iter().map(|node| node.allocator.free_pages().0).sum())
    }

    /// The largest VM that could be allocated here now.
    pub fn room(&self) -> PageCount {
        let free = self.nodes.iter().map(|node| node.allocator.free_pages().0);
        let physical = match self.numa {
            NumaPolicy::Preferred => free.sum(),
            NumaPolicy::Strict => free.max().unwrap_or(0),
        };
        PageCount(physical.min(self.free_ram))
    }

    /// Whether the scheduler's own filters let a VM pass: enough CPUs, enough RAM, and the memory
    /// is there in fact.
    pub fn passes(&self, vcpus: u32, memory: PageCount) -> bool {
        self.free_vcpus >= vcpus && self.room() >= memory
    }

    /// Whether the number of segments that a VM gets follows from the sizes of the largest free
    /// ranges alone, as [`AllocatorKind::largest_first`] says: not where it may lie on several
    /// nodes.
    pub const fn one_node(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Puts a VM on the host at time `now_s`: appends its memory to `out`. False, and nothing is
    /// changed, if it does not pass.
    pub fn place(&mut self, vcpus: u32, memory: PageCount, now_s: i64, serve: Serve, out: &mut Vec<Extent>) -> bool {
        if !self.passes(vcpus, memory) {
            return false;
        }
        self.allocate(memory, now_s, serve, out);
        self.free_vcpus -= vcpus;
        self.free_ram -= memory.0;
        true
    }

    /// Takes a VM of `memory` with these `extents` off the host.
    pub fn remove(&mut self, vcpus: u32, memory: PageCount, extents: &[Extent]) {
        self.free_vcpus += vcpus;
        self.free_ram += memory.0;
        extents.iter().for_each(|&extent| self.free(extent));
    }

    /// Adds `memory` to the end of a VM's: directly behind its last segment if that is free, so
    /// that it needs no more segments. False, and nothing is changed, if there is not enough
    /// memory.
    pub fn grow(&mut self, memory: PageCount, now_s: i64, extents: &mut Vec<Extent>) -> bool {
        if self.room() < memory {
            return false;
        }
        self.free_ram -= memory.0;
        if let Some(last) = extents.last_mut().filter(|last| last.descending.is_none()) {
            let behind = FrameRange::new(last.range().end(), memory);
            if self.node_of(last.start).allocate_at(behind, now_s) {
                last.count.0 += memory.0;
                return true;
            }
        }
        self.allocate(memory, now_s, Serve::ByRule, extents);
        true
    }

    /// Takes `memory` from the end of a VM's memory. Returns how much: less where the end cannot be
    /// split (1 GiB pages).
    pub fn shrink(&mut self, memory: PageCount, extents: &mut Vec<Extent>) -> PageCount {
        let all = total(extents);
        self.unplug(PageCount(all.0.saturating_sub(memory.0)), memory, extents)
    }

    /// Takes the guest's pages `from..from + memory` away from a VM, as memory hot-unplug does in
    /// blocks of 2 MiB. What is left on both sides are segments of their own, as a register maps no
    /// gap. Returns how much was taken: pieces that cannot be split (1 GiB pages) stay.
    pub fn unplug(&mut self, from: PageCount, memory: PageCount, extents: &mut Vec<Extent>) -> PageCount {
        self.unplug_all(&[(from.0, from.0 + memory.0)], extents)
    }

    /// As [`Host::unplug`], for several ranges of guest pages, which are ascending and apart.
    pub fn unplug_all(&mut self, ranges: &[(u64, u64)], extents: &mut Vec<Extent>) -> PageCount {
        let freed = self.take_away(ranges, extents);
        self.free_ram += freed.0;
        freed
    }

    /// As [`Host::unplug_all`], but the scheduler does not know: a balloon changes no flavour.
    pub fn balloon(&mut self, ranges: &[(u64, u64)], extents: &mut Vec<Extent>) -> PageCount {
        self.take_away(ranges, extents)
    }

    fn take_away(&mut self, ranges: &[(u64, u64)], extents: &mut Vec<Extent>) -> PageCount {
        let mut rest = Vec::with_capacity(extents.len() + ranges.len());
        let (mut at, mut freed) = (0, 0);
        for &extent in extents.iter() {
            let end = at + extent.count.0;
            let splits = self.node_of(extent.start).splits(extent);
            let touching = ranges.partition_point(|range| range.1 <= at);
            let mut kept = at;
            for &(from, to) in ranges[touching..].iter().take_while(|range| range.0 < end) {
                let (from, to) = (from.max(at), to.min(end));
                if !splits && (from, to) != (at, end) {
                    continue;
                }
                cut(extent, kept - at, from - at, &mut rest);
                let mut taken = Vec::new();
                cut(extent, from - at, to - at, &mut taken);
                taken.into_iter().for_each(|part| self.free(part));
                freed += to - from;
                kept = to;
            }
            cut(extent, kept - at, extent.count.0, &mut rest);
            at = end;
        }
        *extents = rest;
        PageCount(freed)
    }

    /// Gives a VM memory that its balloon had taken; it is seen at the end of the VM's memory.
    /// False, and nothing is changed, if it is not free any more.
    pub fn deflate(&mut self, memory: PageCount, now_s: i64, extents: &mut Vec<Extent>) -> bool {
        let enough = self.free_pages() >= memory;
        if enough {
            self.allocate(memory, now_s, Serve::ByRule, extents);
        }
        enough
    }

    fn node_of(&mut self, frame: Frame) -> &mut Allocator {
        let at = self.nodes.iter().position(|node| frame < node.end).expect("the frame is the host's");
        &mut self.nodes[at].allocator
    }

    fn free(&mut self, extent: Extent) {
        match &mut *self.nodes {
            [node] => node.allocator.free(extent),
            _ => self.node_of(extent.start).free(extent),
        }
    }

    /// Allocates `memory`, which is free.
    fn allocate(&mut self, memory: PageCount, now_s: i64, serve: Serve, out: &mut Vec<Extent>) {
        let mut missing = memory.0;
        for (at, pages) in self.shares(memory) {
            let allocator = &mut self.nodes[at].allocator;
            let done = match serve {
                Serve::ByRule => allocator.allocate(PageCount(pages), now_s, out),
                Serve::Smallest => allocator.allocate_smallest(PageCount(pages), now_s, out),
            };
            assert!(done, "node {at} has {pages} free pages");
            missing -= pages;
        }
        assert_eq!(missing, 0, "the nodes together have enough");
    }

    /// How many pages of `memory` come from which node. All from one where it fits: the one that
    /// needs the fewest segments, of those the one with the most free memory, of those the first.
    /// Else from the nodes with the most free memory.
    fn shares(&self, memory: PageCount) -> Vec<(usize, u64)> {
        if self.nodes.len() == 1 {
            return vec![(0, memory.0)];
        }
        let free = |at: usize| self.nodes[at].allocator.free_pages().0;
        let segments = |at: usize| self.nodes[at].allocator.segments_for(memory, CountingRule::InOrder);
        let fitting = (0..self.nodes.len()).filter_map(|at| Some((segments(at)?, std::cmp::Reverse(free(at)), at)));
        if let Some((_, _, at)) = fitting.min() {
            return vec![(at, memory.0)];
        }
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(free(at)));
        let mut missing = memory.0;
        let share = |at| {
            let pages = free(at).min(missing);
            missing -= pages;
            (at, pages)
        };
        order.into_iter().map(share).filter(|&(_, pages)| pages > 0).collect()
    }

    /// How many segments a VM of `memory` would get now, counted by `rule`; `None` if it does not
    /// fit.
    pub fn segments_for(&self, memory: PageCount, rule: CountingRule) -> Option<u64> {
        if let [node] = &*self.nodes {
            return node.allocator.segments_for(memory, rule);
        }
        if self.room() < memory {
            return None;
        }
        let shares = self.shares(memory);
        if let [(at, _)] = shares[..] {
            return self.nodes[at].allocator.segments_for(memory, rule);
        }
        let mut extents = Vec::new();
        let mut served = |(at, pages): (usize, u64)| self.nodes[at].allocator.trial(PageCount(pages), &mut extents);
        assert!(shares.into_iter().all(&mut served), "the nodes together have enough");
        Some(count_segments(&extents, rule))
    }

    /// Allocates by `rule` from now on, if its allocator has rules.
    pub fn set_rule(&mut self, rule: Rule) {
        self.nodes.iter_mut().for_each(|node| node.allocator.set_rule(rule));
    }

    /// Free memory as maximal ranges, ascending in address; ranges of different nodes are apart.
    pub fn free_segments(&self) -> Vec<FrameRange> {
        self.nodes.iter().flat_map(|node| node.allocator.free_segments()).collect()
    }

    /// Pages of the one, two, ... eight largest free ranges together, of a host of one NUMA node.
    /// No VM gets fewer segments than these sums say.
    pub fn largest_sums(&self) -> [u32; MAX_DS] {
        let mut sums = [0; MAX_DS];
        self.nodes[0].allocator.largest_sums(&mut sums);
        sums
    }

    /// Free lists and segments that its allocators looked at.
    pub fn steps(&self) -> u64 {
        self.nodes.iter().map(|node| node.allocator.steps()).sum()
    }

    /// Panics if its allocators contradict themselves.
    pub fn check_invariants(&self) {
        self.nodes.iter().for_each(|node| node.allocator.check_invariants());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_map::{Hole, HoleKind};

    fn group(memory: u64) -> HostGroup {
        HostGroup::plain("h", 1, 16, PageCount(memory))
    }

    fn host(group: &HostGroup) -> Host {
        Host::new(group, 0, &HostOptions::new(AllocatorKind::CompromisOpt2)).unwrap()
    }

    fn place(host: &mut Host, memory: u64) -> Vec<Extent> {
        let mut extents = Vec::new();
        assert!(host.place(1, PageCount(memory), 0, Serve::ByRule, &mut extents));
        extents
    }

    fn segments(extents: &[Extent]) -> u64 {
        count_segments(extents, CountingRule::InOrder)
    }

    #[test]
    fn a_vm_grows_in_place_where_the_memory_behind_it_is_free() {
        let mut host = host(&group(1000));
        let mut first = place(&mut host, 100);
        assert!(host.grow(PageCount(50), 1, &mut first));
        assert_eq!((segments(&first), total(&first)), (1, PageCount(150)));
        let _behind = place(&mut host, 100);
        assert!(host.grow(PageCount(50), 2, &mut first));
        assert_eq!(segments(&first), 2);
        assert!(!host.grow(PageCount(701), 2, &mut first), "only 700 are left");
        assert_eq!(host.free_ram(), host.free_pages());
    }

    #[test]
    fn unplugged_blocks_split_a_segment_and_come_back_elsewhere() {
        let mut host = host(&group(4096));
        let mut vm = place(&mut host, 2048);
        assert_eq!(host.unplug(PageCount(512), PageCount(512), &mut vm), PageCount(512));
        assert_eq!((segments(&vm), total(&vm), host.free_pages()), (2, PageCount(1536), PageCount(2560)));
        assert_eq!(host.shrink(PageCount(256), &mut vm), PageCount(256));
        assert_eq!((segments(&vm), total(&vm)), (2, PageCount(1280)));
        assert!(host.grow(PageCount(768), 1, &mut vm));
        assert_eq!(total(&vm), PageCount(2048));
        host.remove(1, PageCount(2048), &vm);
        assert_eq!((host.free_ram(), host.free_pages(), host.free_vcpus()), (PageCount(4096), PageCount(4096), 16));
        host.check_invariants();
    }

    #[test]
    fn a_balloon_frees_memory_that_the_scheduler_does_not_know_of() {
        let mut host = host(&group(1000));
        let mut vm = place(&mut host, 600);
        host.balloon(&[(0, 100)], &mut vm);
        assert_eq!((host.free_pages(), host.free_ram(), host.room()), (PageCount(500), PageCount(400), PageCount(400)));
        assert!(host.deflate(PageCount(100), 0, &mut vm));
        assert_eq!((host.free_pages(), segments(&vm)), (PageCount(400), 2), "it is the VM's last memory now");
    }

    #[test]
    fn parts_of_descending_extents_are_unplugged_block_by_block() {
        let options = HostOptions::new(AllocatorKind::Xen);
        let mut host = Host::new(&group(8 << 18), 0, &options).unwrap();
        let mut vm = place(&mut host, 3 << 18);
        let before = (segments(&vm), total(&vm));
        let from = PageCount(total(&vm).0 - (1 << 18) - 700);
        assert_eq!(host.unplug(from, PageCount(512), &mut vm), PageCount(512));
        assert_eq!((segments(&vm), total(&vm).0), (before.0 + 1, before.1.0 - 512));
        host.check_invariants();
        host.remove(1, PageCount((3 << 18) - 512), &vm);
        assert_eq!(host.free_pages(), PageCount(8 << 18));
        host.check_invariants();
    }

    #[test]
    fn a_page_of_1_gib_is_not_split() {
        let options = HostOptions::new(AllocatorKind::LinuxHugetlb);
        let mut host = Host::new(&group(8 << 18), 0, &options).unwrap();
        let mut vm = place(&mut host, 3 << 18);
        assert_eq!(host.unplug(PageCount(512), PageCount(512), &mut vm), PageCount(0));
        assert_eq!(host.unplug(PageCount(512), PageCount(1 << 19), &mut vm), PageCount(1 << 18), "one whole page");
        host.check_invariants();
    }

    #[test]
    fn a_vm_lies_on_one_node_where_it_fits_and_strictly_so_if_asked() {
        let nodes = HostGroup { numa_nodes: 2, ..group(1000) };
        let mut preferred = host(&nodes);
        assert_eq!(place(&mut preferred, 300)[0].start, Frame(0));
        assert_eq!(place(&mut preferred, 300)[0].start, Frame(500), "the other has more left");
        let both = place(&mut preferred, 400);
        assert_eq!(both.iter().map(|extent| extent.start.0).collect::<Vec<_>>(), [300, 800]);
        let mut strict = host(&HostGroup { numa: NumaPolicy::Strict, ..nodes });
        place(&mut strict, 300);
        place(&mut strict, 300);
        assert_eq!(strict.room(), PageCount(200));
        assert!(!strict.place(1, PageCount(400), 0, Serve::ByRule, &mut Vec::new()));
        assert_eq!(strict.segments_for(PageCount(400), CountingRule::InOrder), None);
    }

    #[test]
    fn nova_knows_what_holes_and_the_hypervisor_take_unless_told_otherwise() {
        let holes = vec![Hole { start_page: 500, pages: 10, kind: HoleKind::Bad }];
        let group = HostGroup { holes, reserved_pages: 100, ..group(1000) };
        assert_eq!((host(&group).free_ram(), host(&group).room()), (PageCount(890), PageCount(890)));
        let told = HostGroup { nova_reserved_pages: Some(50), ..group };
        assert_eq!((host(&told).free_ram(), host(&told).room()), (PageCount(950), PageCount(890)));
    }
}
