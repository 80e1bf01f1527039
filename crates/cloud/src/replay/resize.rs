// SPDX-License-Identifier: MIT OR Apache-2.0
//! VMs whose memory grows, shrinks, is unplugged or ballooned while they run. Beyond the paper.

use nestwalk_mem::PageCount;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::cloud::{BothRules, Cloud, Step};
use crate::extent::total;
use crate::host::HostId;
use crate::request::{Event, EventKind, Resize, ResizeHow, below};

/// Pages of a block that memory hot-unplug takes: 2 MiB.
const BLOCK_PAGES: u64 = 512;

impl Cloud {
    /// Resizes a VM, or undoes that.
    pub(super) fn resize(&mut self, event: Event, resize: &Resize) -> Step {
        let Some(slot) = self.slot_of(event.vm) else { return Step::Nothing };
        let host = HostId(self.live[slot as usize].host);
        let back = event.kind == EventKind::ResizeBack;
        let pages = match back {
            false => self.change(slot, event.time_s, resize),
            true if self.live[slot as usize].resized == 0 => return Step::Nothing,
            true => self.change_back(slot, event.time_s, resize),
        };
        self.scheduler.update(host, &self.hosts[host.0 as usize]);
        Step::Resized { segments: BothRules::of(&self.live[slot as usize].extents), pages, back }
    }

    /// Returns the pages that the VM was given or that were taken.
    fn change(&mut self, slot: u32, now_s: i64, resize: &Resize) -> u64 {
        let live = &mut self.live[slot as usize];
        let host = &mut self.hosts[live.host as usize];
        // What the scheduler knows of: a balloon changes neither this nor the VM's size.
        let free = host.free_ram();
        let blocks = total(&live.extents).0 / BLOCK_PAGES;
        let wanted = (blocks as f64 * resize.memory_share) as u64;
        let memory = PageCount(wanted * BLOCK_PAGES);
        let extents = &mut live.extents;
        live.resized = match resize.how {
            ResizeHow::Grow if wanted > 0 && host.grow(memory, now_s, extents) => memory.0,
            ResizeHow::Grow => 0,
            ResizeHow::Shrink => host.shrink(memory, extents).0,
            ResizeHow::Unplug => host.unplug_all(&some_blocks(blocks, wanted, &mut self.rng), extents).0,
            ResizeHow::Balloon => host.balloon(&some_blocks(blocks, wanted, &mut self.rng), extents).0,
        };
        live.pages = live.pages + free.0 - host.free_ram().0;
        live.resized
    }

    /// Returns the pages by which the VM's size changed, 0 if its host has no room.
    fn change_back(&mut self, slot: u32, now_s: i64, resize: &Resize) -> u64 {
        let live = &mut self.live[slot as usize];
        let host = &mut self.hosts[live.host as usize];
        let (free, memory) = (host.free_ram(), PageCount(live.resized));
        let done = match resize.how {
            ResizeHow::Grow => host.shrink(memory, &mut live.extents).0,
            ResizeHow::Balloon => memory.0 * u64::from(host.deflate(memory, now_s, &mut live.extents)),
            ResizeHow::Shrink | ResizeHow::Unplug => memory.0 * u64::from(host.grow(memory, now_s, &mut live.extents)),
        };
        live.pages = live.pages + free.0 - host.free_ram().0;
        live.resized -= done;
        done
    }
}

/// `wanted` of `blocks` blocks, as ranges of pages; neighbouring blocks are one range. Each choice
/// is equally likely (selection sampling, Knuth's algorithm S).
fn some_blocks(blocks: u64, wanted: u64, rng: &mut Xoshiro256PlusPlus) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut missing = wanted;
    for block in 0..blocks {
        if below(rng, blocks - block) >= missing {
            continue;
        }
        missing -= 1;
        let (start, end) = (block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES);
        match ranges.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => ranges.push((start, end)),
        }
    }
    ranges
}
