// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving pages: what compaction and contiguous allocation need of this room.

use nestwalk_mem::physical::Migrate;
use nestwalk_mem::{Cpu, Entry, Frame, FrameRange, Level, MigrateType, Order, Owner, PageCount, Vpn, VpnRange};

use crate::below::Below;
use crate::context::Context;
use crate::counters::OsCounters;
use crate::error::OsError;
use crate::invalidation::Invalidations;
use crate::kernel::Kernel;
use crate::madvise::Advice;
use crate::manager::{Cause, MemoryManager};
use crate::process::{ProcessId, Processes};
use crate::state::{KernelState, Moved};

/// Moves mapped 4 KiB pages that nobody shares (`migrate_pages` of anonymous memory).
struct Mover<'a> {
    processes: &'a mut Processes,
    counters: &'a mut OsCounters,
    invalidations: &'a mut Invalidations,
    moved: &'a mut Vec<Moved>,
    below: &'a mut dyn Below,
    /// Pages moved.
    count: u64,
}

impl Migrate for Mover<'_> {
    fn migrate(&mut self, from: Frame, to: Frame, owner: Owner) -> bool {
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

fn split<'a>(
    state: &'a mut KernelState,
    below: &'a mut dyn Below,
) -> (&'a mut nestwalk_mem::PhysicalMemory, Mover<'a>) {
    let KernelState { memory, processes, counters, invalidations, moved, .. } = state;
    (memory, Mover { processes, counters, invalidations, moved, below, count: 0 })
}

/// Runs compaction until a block of `order` is free; returns whether one is.
pub(crate) fn compact(state: &mut KernelState, below: &mut dyn Below, order: Order) -> bool {
    let (memory, mut mover) = split(state, below);
    let done = memory.compact(order, &mut mover);
    let of_processes = mover.count;
    // The others are pages of the cache, which memory moves by itself.
    state.counters.migrated += done.migrated.0 - of_processes;
    state.counters.compaction_scanned += done.scanned.0;
    state.counters.compactions_failed += u64::from(!done.succeeded);
    done.succeeded
}

/// See [`TableContext::alloc_range`](crate::tables::TableContext::alloc_range).
pub(crate) fn alloc_range(
    state: &mut KernelState,
    below: &mut dyn Below,
    count: PageCount,
    align: Order,
) -> Option<FrameRange> {
    let (memory, mut mover) = split(state, below);
    memory.alloc_range(count, align, &mut mover)
}

/// See [`TableContext::alloc_at`](crate::tables::TableContext::alloc_at).
pub(crate) fn alloc_at(state: &mut KernelState, below: &mut dyn Below, frames: FrameRange) -> Vec<bool> {
    let (memory, mut mover) = split(state, below);
    memory.alloc_at(frames, &mut mover)
}

/// `count` contiguous frames for pages of `kind`: from the buddy allocator, if it has a block of that size (`alloc_pages_exact`), else by
/// moving what is in the way.
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

impl Kernel {
    /// Moves the pages of `range` (mapping those that are not mapped yet) to frames that follow each other as the pages
    /// do, unless they lie so already, and pins them there: who asked for it goes by where they lie. Returns the first frame. Only pages
    /// that were mapped before cost a copy and a shootdown: nobody has seen the others.
    ///
    /// # Errors
    /// When there is no such stretch of memory; some pages may have been mapped then.
    pub fn make_contiguous(
        &mut self,
        process: ProcessId,
        range: VpnRange,
        below: &mut dyn Below,
    ) -> Result<Frame, OsError> {
        let space = self.state.processes.get(process)?;
        let cpu = space.cpu;
        let seen: Vec<bool> = (0..range.len()).map(|i| space.table.leaf(range.start + i).is_some()).collect();
        self.madvise(process, range, Advice::PopulateWrite, below)?;
        let table = &self.state.processes.get(process)?.table;
        if let Some(first) = table.translate(range.start)
            && (1..range.len()).all(|i| table.translate(range.start + i) == Some(first + i))
        {
            self.pin(FrameRange::new(first, PageCount(range.len())));
            return Ok(first);
        }
        self.retrying(cpu, below, |cx, _| cx.split_all(process, range))?;
        let (mut cx, manager) = self.context(cpu, below);
        let count = PageCount(range.len());
        let Some(frames) = alloc_contiguous(cx.state, cx.below, count, MigrateType::Movable, cpu) else {
            return Err(cx.out_of_memory());
        };
        let result = cx.move_to(manager, process, (range, &seen), frames.start);
        self.settle(cpu, below);
        result?;
        self.pin(frames);
        Ok(frames.start)
    }

    /// Neither reclaim nor compaction nor khugepaged moves these from now on, until they are freed.
    pub(crate) fn pin(&mut self, frames: FrameRange) {
        self.state.memory.set_owners(frames, Owner::Kernel);
    }
}

impl Context<'_> {
    /// Moves the page in `from` to `to`, which is the caller's, if it is a mapped 4 KiB page that nobody shares. `from` is the
    /// caller's then. The memory manager is not told: it is the one that asks.
    pub fn relocate(&mut self, from: Frame, to: Frame) -> bool {
        let owner = self.state.memory.owner(from);
        if self.state.memory.is_shared(from) {
            return false;
        }
        let (memory, mut mover) = split(self.state, self.below);
        let moved = mover.migrate(from, to, owner);
        if moved {
            mover.moved.pop();
            memory.set_owner(to, owner);
        }
        moved
    }

    fn split_all(&mut self, process: ProcessId, range: VpnRange) -> Result<(), OsError> {
        for page in range.start.0..range.end.0 {
            let large = |state: &KernelState| {
                let table = &state.processes.get(process)?.table;
                Ok::<_, OsError>(table.leaf(Vpn(page)).is_some_and(|leaf| leaf.level > Level::PTE))
            };
            while large(self.state)? {
                self.split(process, Vpn(page))?;
            }
        }
        Ok(())
    }

    /// Moves the mapped 4 KiB pages of `range`, which may be stored to, to the frames from `to` on. Those that were not `seen` yet
    /// are empty.
    fn move_to(
        &mut self,
        manager: &mut dyn MemoryManager,
        process: ProcessId,
        (range, seen): (VpnRange, &[bool]),
        to: Frame,
    ) -> Result<(), OsError> {
        for (i, &seen) in (0..range.len()).zip(seen) {
            let (page, to) = (range.start + i, to + i);
            let moved = self.move_one(process, page, to, seen);
            match moved {
                Ok(from) => manager.release(self, process, page, FrameRange::single(from), Cause::Replaced),
                Err(error) => {
                    self.free(FrameRange::new(to, PageCount(range.len() - i)));
                    return Err(error);
                }
            }
        }
        if let (Some(first), Some(last)) = (seen.iter().position(|&seen| seen), seen.iter().rposition(|&seen| seen)) {
            let pages = VpnRange { start: range.start + first as u64, end: range.start + last as u64 + 1 };
            self.invalidate(process, pages, false);
        }
        Ok(())
    }

    fn move_one(&mut self, process: ProcessId, page: Vpn, to: Frame, seen: bool) -> Result<Frame, OsError> {
        let table = &self.state.processes.get(process)?.table;
        let leaf = table.leaf(page).filter(|leaf| leaf.entry.has(Entry::PRESENT | Entry::WRITABLE));
        let Some(leaf) = leaf else { return Err(OsError::Segfault { process, page }) };
        if seen {
            self.below.copy(leaf.entry.frame(), to)?;
        } else {
            self.below.zero(FrameRange::single(to))?;
        }
        self.write_leaf_node(process, page)?;
        let table = &mut self.state.processes.get_mut(process)?.table;
        table.update(page, |_| Entry::leaf(to, leaf.entry.flags()));
        self.state.own(to, process, page);
        self.state.counters.migrated += u64::from(seen);
        Ok(leaf.entry.frame())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bare, KernelConfig, VmaFlags};

    const OTHERS: VpnRange = VpnRange { start: Vpn(0x1000), end: Vpn(0x1100) };

    /// A host with a VM, and a process whose pages have every second frame of a stretch; the others are free, and next in line.
    fn host() -> (Kernel, ProcessId, Vpn, ProcessId) {
        let mut host = Kernel::new(&KernelConfig::new(PageCount(1 << 16))).unwrap();
        let (vm, base) = host.host_vm(PageCount(1 << 14), &mut Bare).unwrap();
        let other = host.spawn(&mut Bare).unwrap();
        host.mmap(other, OTHERS, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
        for i in 0..OTHERS.len() {
            host.fault(other, OTHERS.start + i, true, Cpu(0), &mut Bare).unwrap();
        }
        for i in (0..OTHERS.len()).step_by(2) {
            let page = VpnRange::new(OTHERS.start + i, PageCount(1));
            host.munmap(other, page, &mut Bare).unwrap();
        }
        (host, vm, base, other)
    }

    fn frames(host: &Kernel, process: ProcessId, pages: VpnRange) -> Vec<Option<Frame>> {
        let table = host.table(process).unwrap();
        (0..pages.len()).map(|i| table.translate(pages.start + i)).collect()
    }

    fn is_contiguous(host: &Kernel, vm: ProcessId, pages: VpnRange, first: Frame) -> bool {
        frames(host, vm, pages).iter().enumerate().all(|(i, &frame)| frame == Some(first + i as u64))
    }

    #[test]
    fn pages_that_nobody_has_seen_become_contiguous_without_a_shootdown() {
        let (mut host, vm, base, other) = host();
        let theirs = frames(&host, other, OTHERS);
        let before = *host.counters();
        let pages = VpnRange::new(base + 8, PageCount(9));
        let first = host.make_contiguous(vm, pages, &mut Bare).unwrap();
        assert!(is_contiguous(&host, vm, pages, first));
        let done = host.counters().since(&before);
        assert_eq!((done.shootdowns, done.migrated, done.faults_4k), (0, 0, 9));
        assert_eq!(frames(&host, other, OTHERS), theirs, "there are free blocks, so nobody has to make room");
        host.check_invariants();
    }

    #[test]
    fn of_pages_that_were_used_those_are_moved_and_told_of() {
        let (mut host, vm, base, other) = host();
        let theirs = frames(&host, other, OTHERS);
        let pages = VpnRange::new(base + 8, PageCount(9));
        for i in [3, 5] {
            host.fault(vm, pages.start + i, true, Cpu(0), &mut Bare).unwrap();
        }
        let before = *host.counters();
        let first = host.make_contiguous(vm, pages, &mut Bare).unwrap();
        assert!(is_contiguous(&host, vm, pages, first));
        let done = host.counters().since(&before);
        assert_eq!((done.shootdowns, done.shootdown_pages, done.migrated), (1, 3, 2));
        assert_eq!(frames(&host, other, OTHERS), theirs);
        // Once is enough.
        assert_eq!(host.make_contiguous(vm, pages, &mut Bare).unwrap(), first);
        assert_eq!(host.counters().since(&before).shootdowns, 1);
        host.check_invariants();
    }
}
