// SPDX-License-Identifier: MIT OR Apache-2.0
//! An index of hosts by their largest free ranges: which hosts have room for a VM, and which can
//! serve it from their k largest ranges.

use nestwalk_mem::PageCount;

use super::Preference;
use super::index::{ByVcpus, Wanted};
use super::treap::Treap;
use crate::host::{Host, HostId};

/// Seven sums of largest free ranges, and the room.
const LANES: usize = 8;

/// What is looked up: number k for the `k + 1` largest free ranges together, or [`Lane::ROOM`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lane(pub usize);

impl Lane {
    /// How many lanes are sums of largest free ranges.
    pub const SUMS: usize = LANES - 1;
    /// The largest VM that fits.
    pub const ROOM: Self = Self(LANES - 1);
}

/// All hosts; each subtree of a tree knows the largest values of its hosts' lanes.
#[derive(Clone, Debug)]
pub(super) struct ByRanges {
    preference: Preference,
    by_vcpus: ByVcpus,
    treap: Treap<LANES>,
    /// Each host's tree.
    at: Vec<u32>,
    /// Whether sums of largest ranges are kept.
    sums: bool,
}

impl ByRanges {
    /// An index of `hosts` for requests of up to `most_vcpus`.
    pub fn new(preference: Preference, hosts: &[Host], most_vcpus: u32, sums: bool) -> Self {
        let (by_vcpus, treap) = (ByVcpus::new(most_vcpus), Treap::new(hosts.len()));
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

    /// `host` has changed.
    pub fn update(&mut self, id: HostId, host: &Host) {
        let root = self.by_vcpus.root(self.at[id.0 as usize] as usize);
        *root = self.treap.remove(*root, id.0);
        self.insert(id.0, host);
    }

    fn insert(&mut self, id: u32, host: &Host) {
        // A host's memory has less than 2^32 pages.
        let room = host.room().0 as u32;
        let mut lanes = [0; LANES];
        if self.sums {
            let sums = host.largest_sums();
            lanes.iter_mut().zip(sums).for_each(|(lane, sum)| *lane = sum.min(room));
        }
        lanes[Lane::ROOM.0] = room;
        let at = self.by_vcpus.at(host.free_vcpus());
        self.at[id as usize] = at as u32;
        let root = self.by_vcpus.root(at);
        *root = self.treap.insert(*root, id, self.preference.key(host.free_ram().0), lanes);
    }

    /// At most `limit` hosts with `vcpus` free CPUs and `lane` not less than `memory`, the
    /// preferred first.
    pub fn best(&mut self, vcpus: u32, memory: PageCount, lane: Lane, limit: usize) -> Vec<u32> {
        let Ok(pages) = u32::try_from(memory.0) else { return Vec::new() };
        let wanted = Wanted { preference: self.preference, vcpus, lane: lane.0, least: pages, limit };
        self.by_vcpus.best(&mut self.treap, wanted)
    }
}
