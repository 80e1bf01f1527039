// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hosts by free CPUs and order of preference, so that the best one is found without a look at
//! every host.

use super::treap::{EMPTY, Treap};
use super::{Preference, Ranges, Weighed};

/// What hosts are looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub preference: Preference,
    /// Free CPUs at least.
    pub vcpus: u32,
    /// The lane that is looked at, and what it is at least.
    pub lane: usize,
    pub least: u32,
    /// Hosts at most.
    pub limit: usize,
}

/// Trees of hosts: one for each number of free CPUs, each in order of preference. CPUs beyond what
/// any request asks for count as equal, so there are few.
#[derive(Clone, Debug)]
pub(super) struct ByVcpus {
    roots: Vec<u32>,
}

impl ByVcpus {
    /// For up to `most` free CPUs.
    pub fn new(most: u32) -> Self {
        Self { roots: vec![EMPTY; most as usize + 1] }
    }

    /// The tree of hosts with `free_vcpus`.
    pub fn at(&self, free_vcpus: u32) -> usize {
        (free_vcpus as usize).min(self.roots.len() - 1)
    }

    /// The root of tree `at`.
    pub fn root(&mut self, at: usize) -> &mut u32 {
        &mut self.roots[at]
    }

    /// The hosts that are `wanted`, the preferred first.
    pub fn best<const LANES: usize>(&self, treap: &mut Treap<LANES>, wanted: Wanted) -> Vec<u32> {
        let Wanted { preference, vcpus, lane, least, limit } = wanted;
        if let Preference::Weighed { ram, cpu } = preference {
            return self.heaviest(treap, wanted, (ram, cpu));
        }
        let roots = self.roots.get(vcpus as usize..).unwrap_or_default();
        if limit == 1 {
            let mut best = None;
            for &root in roots.iter().rev() {
                best = treap.first_before(root, lane, least, best).or(best);
            }
            return best.map(|(_, host)| host).into_iter().collect();
        }
        let mut hosts = Vec::new();
        roots.iter().for_each(|&root| treap.collect(root, lane, least, limit, &mut hosts));
        hosts.sort_unstable();
        hosts.truncate(limit);
        hosts.into_iter().map(|(_, host)| host).collect()
    }

    /// By Nova's weights. Among hosts with equally many free CPUs, the order is that of their tree.
    fn heaviest<const LANES: usize>(&self, treap: &mut Treap<LANES>, wanted: Wanted, weights: (i64, i64)) -> Vec<u32> {
        let Wanted { preference, vcpus, lane, least, limit } = wanted;
        let (mut candidates, mut ends, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
        for (&root, free) in self.roots.iter().zip(0..).skip(vcpus as usize) {
            hosts.clear();
            treap.collect(root, lane, least, limit, &mut hosts);
            let weighed = |(key, host): (u64, u32)| Weighed { host, ram: preference.ram(key), vcpus: free };
            candidates.extend(hosts.iter().copied().map(weighed));
            // First and last have the most and the least free memory.
            ends.extend(hosts.first().copied().map(weighed));
            ends.extend(treap.last(root, lane, least).map(weighed));
        }
        Ranges::of(ends.into_iter()).sort(&mut candidates, weights.0, weights.1);
        candidates.truncate(limit);
        candidates.into_iter().map(|candidate| candidate.host).collect()
    }
}
