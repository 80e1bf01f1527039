// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hosts by free CPUs, order of preference and largest free ranges.
//!
//! Hosts with equally many free CPUs are in one [`Treap`], in order of preference; each subtree knows the largest values of
//! its hosts' lanes. The preferred host with enough CPUs and a lane that is large enough is found by one descent in each
//! treap that may have a better one. CPUs beyond what any request asks for count as equal, so there are few treaps.

use nestwalk_mem::PageCount;

use super::treap::{LANES, Treap};
use super::{Preference, Ranges, Weighed};
use crate::host::{Host, HostId};

/// What is looked up: number k for the `k + 1` largest free ranges together, or [`Lane::ROOM`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lane(pub usize);

impl Lane {
    /// How many lanes are sums of largest free ranges.
    pub const SUMS: usize = LANES - 1;
    /// The largest VM that fits.
    pub const ROOM: Self = Self(LANES - 1);
}

/// The hosts.
#[derive(Clone, Debug)]
pub(super) struct Index {
    preference: Preference,
    /// Hosts with so many free CPUs, or more in the last one.
    by_vcpus: Vec<u32>,
    treap: Treap,
    /// Each host's position in `by_vcpus`.
    at: Vec<u32>,
    /// Whether sums of largest ranges are kept.
    sums: bool,
}

impl Index {
    pub fn new(preference: Preference, hosts: &[Host], most_vcpus: u32, sums: bool) -> Self {
        let most = hosts.iter().map(Host::free_vcpus).max().unwrap_or(0).min(most_vcpus);
        let (by_vcpus, treap) = (vec![Treap::EMPTY; most as usize + 1], Treap::new(hosts.len()));
        let mut index = Self { preference, by_vcpus, treap, at: vec![0; hosts.len()], sums };
        for (host, id) in hosts.iter().zip(0..) {
            index.insert(id, host);
        }
        index
    }

    /// Nodes that were looked at since the beginning.
    pub fn examined(&self) -> u64 {
        self.treap.examined()
    }

    pub fn update(&mut self, id: HostId, host: &Host) {
        let root = &mut self.by_vcpus[self.at[id.0 as usize] as usize];
        *root = self.treap.remove(*root, id.0);
        self.insert(id.0, host);
    }

    fn insert(&mut self, id: u32, host: &Host) {
        let at = (host.free_vcpus() as usize).min(self.by_vcpus.len() - 1);
        // A host's memory has less than 2^32 pages.
        let room = host.room().0 as u32;
        let mut lanes = [0; LANES];
        if self.sums {
            let sums = host.largest_sums();
            lanes.iter_mut().zip(sums).for_each(|(lane, sum)| *lane = sum.min(room));
        }
        lanes[Lane::ROOM.0] = room;
        self.at[id as usize] = at as u32;
        let root = &mut self.by_vcpus[at];
        *root = self.treap.insert(*root, id, self.preference.key(host.free_ram().0), lanes);
    }

    /// At most `limit` hosts with `vcpus` free CPUs and `lane` not less than `memory`, the preferred first.
    pub fn best(&mut self, vcpus: u32, memory: PageCount, lane: Lane, limit: usize) -> Vec<u32> {
        let Ok(pages) = u32::try_from(memory.0) else { return Vec::new() };
        let roots = self.by_vcpus.get(vcpus as usize..).unwrap_or_default();
        match self.preference {
            Preference::Weighed { ram, cpu } => self.heaviest(vcpus, pages, lane, limit, (ram, cpu)),
            _ if limit == 1 => {
                let mut best = None;
                for &root in roots.iter().rev() {
                    best = self.treap.first_before(root, lane.0, pages, best).or(best);
                }
                best.map(|(_, host)| host).into_iter().collect()
            }
            _ => {
                let mut hosts = Vec::new();
                roots.iter().for_each(|&root| self.treap.collect(root, lane.0, pages, limit, &mut hosts));
                hosts.sort_unstable();
                hosts.truncate(limit);
                hosts.into_iter().map(|(_, host)| host).collect()
            }
        }
    }

    /// The preferred host with `vcpus` free CPUs, `lane` not less than `memory`, and that `accept` accepts. Not for weights.
    pub fn first_accepted(
        &mut self,
        vcpus: u32,
        memory: PageCount,
        lane: Lane,
        accept: &mut impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        let pages = u32::try_from(memory.0).ok()?;
        let mut best = None;
        for &root in self.by_vcpus.get(vcpus as usize..).unwrap_or_default().iter().rev() {
            best = self.treap.first_accepted(root, lane.0, pages, best, accept).or(best);
        }
        best.map(|(_, host)| host)
    }

    /// As [`Index::best`] by Nova's weights. Among hosts with equally many free CPUs, the order is that of their treap.
    fn heaviest(&mut self, vcpus: u32, pages: u32, lane: Lane, limit: usize, weights: (i64, i64)) -> Vec<u32> {
        let (mut candidates, mut ends, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
        for (&root, free) in self.by_vcpus.iter().zip(0..).skip(vcpus as usize) {
            hosts.clear();
            self.treap.collect(root, lane.0, pages, limit, &mut hosts);
            let weighed = |(key, host): (u64, u32)| Weighed { host, ram: self.preference.ram(key), vcpus: free };
            candidates.extend(hosts.iter().copied().map(weighed));
            // First and last have the most and the least free memory.
            ends.extend(hosts.first().copied().map(weighed));
            ends.extend(self.treap.last(root, lane.0, pages).map(weighed));
        }
        Ranges::of(ends.into_iter()).sort(&mut candidates, weights.0, weights.1);
        candidates.truncate(limit);
        candidates.into_iter().map(|candidate| candidate.host).collect()
    }

    /// All hosts with `vcpus` free CPUs and room for `memory`, ascending.
    pub fn all(&mut self, vcpus: u32, memory: PageCount) -> Vec<u32> {
        let Ok(pages) = u32::try_from(memory.0) else { return Vec::new() };
        let mut hosts = Vec::new();
        for &root in self.by_vcpus.iter().skip(vcpus as usize) {
            self.treap.collect(root, Lane::ROOM.0, pages, usize::MAX, &mut hosts);
        }
        let mut hosts: Vec<u32> = hosts.into_iter().map(|(_, host)| host).collect();
        hosts.sort_unstable();
        hosts
    }
}
