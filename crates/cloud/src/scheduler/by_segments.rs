// SPDX-License-Identifier: MIT OR Apache-2.0
//! An index of hosts by the number of segments that a VM of some size would get, for allocators of
//! which free ranges do not tell: it has to be tried.
//!
//! Clouds sell few sizes of VMs. For each that is asked for, every host is tried once, and again
//! only after it has changed: the cost of a placement follows the hosts that changed since the last
//! VM of that size came, not the fleet. Only the [`SIZES`] that were asked for last are kept.

use std::collections::BTreeMap;

use nestwalk_mem::PageCount;

use super::Preference;
use super::index::{ByVcpus, Wanted};
use super::treap::Treap;
use crate::extent::CountingRule;
use crate::host::{Host, HostId};

/// Sizes that are kept: each takes some 55 bytes a host.
const SIZES: usize = 64;

/// The sizes that were asked for.
#[derive(Clone, Debug)]
pub(super) struct BySegments {
    preference: Preference,
    rule: CountingRule,
    most_vcpus: u32,
    /// The one asked for last is last.
    sizes: Vec<Size>,
    examined: u64,
}

/// All hosts with room for a VM of one size.
#[derive(Clone, Debug)]
struct Size {
    memory: PageCount,
    /// Hosts by the segments that it would get, and how many those are.
    by_count: BTreeMap<u64, (ByVcpus, u32)>,
    treap: Treap<1>,
    /// Where each host is: its segments and its tree.
    at: Vec<Option<(u64, u32)>>,
    /// Hosts that have changed since they were tried, each once.
    changed: Vec<u32>,
    has_changed: Vec<bool>,
}

impl BySegments {
    pub fn new(preference: Preference, rule: CountingRule, most_vcpus: u32) -> Self {
        Self { preference, rule, most_vcpus, sizes: Vec::new(), examined: 0 }
    }

    /// Hosts that were tried, and nodes that were looked at, since the beginning.
    pub fn examined(&self) -> u64 {
        self.examined + self.sizes.iter().map(|size| size.treap.examined()).sum::<u64>()
    }

    /// `host` has changed.
    pub fn update(&mut self, host: HostId) {
        self.sizes.iter_mut().for_each(|size| size.change(host.0));
    }

    /// All hosts allocate by another rule from now on.
    pub fn forget(&mut self) {
        self.sizes.drain(..).for_each(|size| self.examined += size.treap.examined());
    }

    /// At most `limit` of the hosts with `vcpus` free CPUs on which a VM of `memory` gets the
    /// fewest segments, the preferred first.
    pub fn best(&mut self, hosts: &[Host], vcpus: u32, memory: PageCount, limit: usize) -> Vec<u32> {
        let (preference, rule, most_vcpus) = (self.preference, self.rule, self.most_vcpus);
        let size = self.size(hosts.len(), memory);
        let tried = size.bring_up_to_date(hosts, preference, rule, most_vcpus);
        let trees = size.by_count.values();
        let wanted = Wanted { preference, vcpus, lane: 0, least: 1, limit };
        let mut best = trees.map(|(trees, _)| trees.best(&mut size.treap, wanted));
        let best = best.find(|best| !best.is_empty()).unwrap_or_default();
        self.examined += tried;
        best
    }

    /// What is known of VMs of `memory`.
    fn size(&mut self, hosts: usize, memory: PageCount) -> &mut Size {
        let size = match self.sizes.iter().position(|size| size.memory == memory) {
            Some(at) => self.sizes.remove(at),
            None => {
                if self.sizes.len() == SIZES {
                    self.examined += self.sizes.remove(0).treap.examined();
                }
                Size::new(hosts, memory)
            }
        };
        self.sizes.push(size);
        self.sizes.last_mut().expect("it was just pushed")
    }
}

impl Size {
    fn new(hosts: usize, memory: PageCount) -> Self {
        Self {
            memory,
            by_count: BTreeMap::new(),
            treap: Treap::new(hosts),
            at: vec![None; hosts],
            changed: (0..hosts as u32).collect(),
            has_changed: vec![true; hosts],
        }
    }

    fn change(&mut self, host: u32) {
        if !std::mem::replace(&mut self.has_changed[host as usize], true) {
            self.changed.push(host);
        }
    }

    /// Tries the hosts that have changed. Returns how many those were.
    fn bring_up_to_date(&mut self, hosts: &[Host], preference: Preference, rule: CountingRule, most_vcpus: u32) -> u64 {
        let changed = std::mem::take(&mut self.changed);
        for &id in &changed {
            self.has_changed[id as usize] = false;
            self.remove(id);
            let host = &hosts[id as usize];
            let segments = if host.room() < self.memory { None } else { host.segments_for(self.memory, rule) };
            let Some(segments) = segments else { continue };
            let (trees, in_them) = self.by_count.entry(segments).or_insert_with(|| (ByVcpus::new(most_vcpus), 0));
            let at = trees.at(host.free_vcpus());
            let root = trees.root(at);
            *root = self.treap.insert(*root, id, preference.key(host.free_ram().0), [1]);
            *in_them += 1;
            self.at[id as usize] = Some((segments, at as u32));
        }
        changed.len() as u64
    }

    fn remove(&mut self, id: u32) {
        let Some((segments, at)) = self.at[id as usize].take() else { return };
        let (trees, in_them) = self.by_count.get_mut(&segments).expect("the host is in one of its trees");
        let root = trees.root(at as usize);
        *root = self.treap.remove(*root, id);
        *in_them -= 1;
        if *in_them == 0 {
            self.by_count.remove(&segments);
        }
    }
}
