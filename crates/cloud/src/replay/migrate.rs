// SPDX-License-Identifier: MIT OR Apache-2.0
//! Live migration that makes room for a VM in few segments. Beyond the paper.
//!
//! Where a VM would get more than n segments on every host, one VM that lies between free segments
//! may be in the way. Of the hosts that the scheduler prefers, the smallest such VM is moved to
//! another host, where it gets at most n segments: the first one in the scheduler's order. Its cost
//! is the memory that is copied (once: what the guest writes meanwhile is not modelled).

use nestwalk_mem::PageCount;

use super::cloud::Cloud;
use super::options::Migration;
use crate::host::HostId;
use crate::request::VmRequest;

impl Cloud {
    /// Moves one VM, so that `request` gets at most `few` segments on the host that is returned,
    /// with the bytes that are copied. `None` if no move does that.
    pub(super) fn make_room(
        &mut self,
        now_s: i64,
        request: &VmRequest,
        requests: &[VmRequest],
        few: u64,
        migration: &Migration,
    ) -> Option<(HostId, u64)> {
        let candidates = self.scheduler.candidates(&self.hosts, request, migration.candidates as usize);
        let mut moves: Vec<(u64, HostId, u32)> = Vec::new();
        for host in candidates {
            self.movable(host, request.memory(), &mut moves);
        }
        // The smallest first; of equal ones, that of the first host, then the lowest slot.
        moves.sort_unstable();
        for (_, host, slot) in moves {
            let live = &self.live[slot as usize];
            let moved = VmRequest { memory_pages: live.pages, ..requests[live.vm as usize] };
            let rule = self.scheduler.rule();
            let targets = self.scheduler.candidates(&self.hosts, &moved, migration.candidates as usize);
            let few_there = |target: &HostId| {
                let there = self.hosts[target.0 as usize].segments_for(moved.memory(), rule);
                *target != host && there.is_some_and(|segments| segments <= few)
            };
            if let Some(target) = targets.into_iter().find(few_there) {
                return Some((host, self.migrate(slot, target, now_s, requests)));
            }
        }
        None
    }

    /// Appends the VMs of `host` without which there would be a free segment of `memory`, with
    /// their sizes.
    fn movable(&self, host: HostId, memory: PageCount, moves: &mut Vec<(u64, HostId, u32)>) {
        let free = self.hosts[host.0 as usize].free_segments();
        for &slot in &self.on_host[host.0 as usize] {
            let live = &self.live[slot as usize];
            let [extent] = live.extents[..] else { continue };
            if extent.count.0 != live.pages {
                // Its balloon has some of its memory.
                continue;
            }
            let range = extent.range();
            let behind = free.partition_point(|segment| segment.start < range.end());
            let after = free.get(behind).filter(|segment| segment.start == range.end());
            let before = behind.checked_sub(1).map(|at| &free[at]).filter(|segment| segment.end() == range.start);
            let sizes = [after, before].map(|segment| segment.map_or(0, |segment| segment.count.0));
            if range.count.0 + sizes.iter().sum::<u64>() >= memory.0 {
                moves.push((range.count.0, host, slot));
            }
        }
    }
}
