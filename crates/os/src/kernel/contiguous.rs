// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making a stretch of a process contiguous in memory, for hardware that uses its position.

use nestwalk_mem::{Entry, Frame, FrameRange, Level, MigrateType, Owner, PageCount, Vpn, VpnRange};

use super::madvise::Advice;
use crate::below::Below;
use crate::context::Context;
use crate::context::event::Cause;
use crate::context::migrate::alloc_contiguous;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::manager::contract::MemoryManager;
use crate::state::KernelState;
use crate::state::process::ProcessId;

impl Kernel {
    /// Moves the pages of `range` (mapping those that are not mapped yet) to frames that follow
    /// each other as the pages do, unless they lie so already, and pins them there: who asked for
    /// it goes by where they lie. Returns the first frame. Only pages that were mapped before cost
    /// a copy and a shootdown: no TLB holds the others.
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

    /// Moves the mapped 4 KiB pages of `range`, which may be stored to, to the frames from `to` on.
    /// Those that were not `seen` yet are empty.
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
mod tests;
