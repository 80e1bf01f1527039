// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving pages: what compaction and contiguous allocation need of this room.

use nestwalk_mem::physical::Migrate;
use nestwalk_mem::{Cpu, Entry, Frame, FrameRange, Level, MigrateType, Order, Owner, PageCount, VpnRange};

use crate::below::Below;
use crate::counters::OsCounters;
use crate::state::files::{FileId, Files, mappings_of};
use crate::state::invalidation::Invalidations;
use crate::state::process::{ProcessId, Processes};
use crate::state::{KernelState, Moved};

/// Moves mapped 4 KiB pages that are not shared, and pages of the page cache (`migrate_pages`).
struct Mover<'a> {
    processes: &'a mut Processes,
    counters: &'a mut OsCounters,
    invalidations: &'a mut Invalidations,
    moved: &'a mut Vec<Moved>,
    files: &'a mut Files,
    moved_files: &'a mut Vec<Frame>,
    below: &'a mut dyn Below,
    /// Pages moved.
    count: u64,
}

impl Migrate for Mover<'_> {
    fn migrate(&mut self, from: Frame, to: Frame, owner: Owner) -> bool {
        if let Owner::File { file, page } = owner {
            return self.migrate_file(from, to, FileId(file), page);
        }
        let Owner::Page { process, page } = owner else { return false };
        let process = ProcessId(process);
        let Ok(space) = self.processes.get_mut(process) else { return false };
        let maps_it = |entry: Entry| entry.is_present() && entry.frame() == from;
        let Some(leaf) = space.table.leaf(page).filter(|leaf| leaf.level == Level::PTE && maps_it(leaf.entry)) else {
            return false;
        };
        let node = space.table.node_frame(space.table.lowest_node(page).0);
        if self.below.touch(FrameRange::single(node), true).is_err() || self.below.copy(from, to).is_err() {
            return false;
        }
        space.table.update(page, |_| Entry::leaf(to, leaf.entry.flags()));
        self.invalidations.pages(self.counters, process, VpnRange::new(page, PageCount(1)), false);
        self.counters.migrated += 1;
        self.count += 1;
        self.moved.push(Moved { process, page, from, to });
        true
    }
}

impl Mover<'_> {
    /// Moves a page of the page cache, with all its mappings unless one of them is large.
    fn migrate_file(&mut self, from: Frame, to: Frame, file: FileId, page: u64) -> bool {
        let mappings = mappings_of(self.processes, file, page, from);
        if mappings.iter().any(|(_, _, leaf)| leaf.level > Level::PTE) {
            return false;
        }
        for &(process, at, _) in &mappings {
            let Ok(space) = self.processes.get(process) else { return false };
            let node = space.table.node_frame(space.table.lowest_node(at).0);
            if self.below.touch(FrameRange::single(node), true).is_err() {
                return false;
            }
        }
        if self.below.copy(from, to).is_err() {
            return false;
        }
        for (process, at, leaf) in mappings {
            if let Ok(space) = self.processes.get_mut(process) {
                space.table.update(at, |_| Entry::leaf(to, leaf.entry.flags()));
            }
            self.invalidations.pages(self.counters, process, VpnRange::new(at, PageCount(1)), false);
        }
        self.files.moved(file, page, to);
        self.counters.migrated += 1;
        self.count += 1;
        self.moved_files.push(from);
        true
    }
}

fn split<'a>(
    state: &'a mut KernelState,
    below: &'a mut dyn Below,
) -> (&'a mut nestwalk_mem::PhysicalMemory, Mover<'a>) {
    let KernelState { memory, processes, counters, invalidations, moved, files, moved_files, .. } = state;
    (memory, Mover { processes, counters, invalidations, moved, files, moved_files, below, count: 0 })
}

/// What became of a request for compaction (`enum compact_result`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It failed lately and was not tried.
    Deferred,
    /// It was not tried: too little memory is free, or memory is not fragmented.
    Skipped,
    /// It ran, and no block is free.
    Failed,
    /// A block is free.
    Done,
}

/// Runs compaction until a block of `order` is free.
pub(crate) fn compact(state: &mut KernelState, below: &mut dyn Below, order: Order) -> Outcome {
    let (memory, mut mover) = split(state, below);
    let done = memory.compact(order, &mut mover);
    let of_processes = mover.count;
    // The others are pages of the cache, which memory moves by itself.
    state.counters.migrated += done.migrated.0 - of_processes;
    state.counters.compaction_scanned += done.scanned.0;
    let failed = !done.succeeded && !done.skipped;
    state.counters.compactions_failed += u64::from(failed);
    match (done.succeeded, failed) {
        (true, _) => Outcome::Done,
        (_, true) => Outcome::Failed,
        _ => Outcome::Skipped,
    }
}

/// Runs compaction until the fragmentation score is down to `score`, or all memory has been gone
/// over.
pub(crate) fn compact_proactively(state: &mut KernelState, below: &mut dyn Below, score: u64, cpu: Cpu) {
    let (memory, mut mover) = split(state, below);
    let done = memory.compact_proactively(score, cpu, &mut mover);
    let of_processes = mover.count;
    state.counters.migrated += done.migrated.0 - of_processes;
    state.counters.compaction_scanned += done.scanned.0;
}

/// See [`TableContext::alloc_range`](super::placement::TableContext::alloc_range).
pub(crate) fn alloc_range(
    state: &mut KernelState,
    below: &mut dyn Below,
    count: PageCount,
    align: Order,
) -> Option<FrameRange> {
    let (memory, mut mover) = split(state, below);
    memory.alloc_range(count, align, &mut mover)
}

/// See [`TableContext::alloc_at`](super::placement::TableContext::alloc_at).
pub(crate) fn alloc_at(state: &mut KernelState, below: &mut dyn Below, frames: FrameRange) -> Vec<bool> {
    let (memory, mut mover) = split(state, below);
    memory.alloc_at(frames, &mut mover)
}

/// `count` contiguous frames for pages of `kind`: from the buddy allocator, if it has a block of
/// that size (`alloc_pages_exact`), else by moving what is in the way.
pub(crate) fn alloc_contiguous(
    state: &mut KernelState,
    below: &mut dyn Below,
    count: PageCount,
    kind: MigrateType,
    cpu: Cpu,
) -> Option<FrameRange> {
    let order = Order(count.0.next_power_of_two().ilog2() as u8);
    let block = if order <= Order::MAX { state.memory.alloc(order, kind, cpu) } else { None };
    let Some(start) = block else { return alloc_range(state, below, count, Order::PAGE) };
    state.memory.free_range(FrameRange::new(start + count.0, PageCount(order.frames() - count.0)), cpu);
    Some(FrameRange::new(start, count))
}

/// Moves the page in `from` to `to`; see [`Context::relocate`](super::Context::relocate).
pub(super) fn relocate(state: &mut KernelState, below: &mut dyn Below, from: Frame, to: Frame) -> bool {
    let owner = state.memory.owner(from);
    if state.memory.is_shared(from) {
        return false;
    }
    let (memory, mut mover) = split(state, below);
    let moved = mover.migrate(from, to, owner);
    if moved {
        match owner {
            Owner::File { .. } => drop(mover.moved_files.pop()),
            _ => drop(mover.moved.pop()),
        }
        memory.set_owner(to, owner);
    }
    moved
}
