// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state in which a kernel's memory begins: what a process has to make, and what was saved.

use nestwalk_mem::physical::Fragmentation;
use nestwalk_mem::{Cpu, Nanoseconds, PageCount, PageSize, PhysicalMemory, VpnRange};

use crate::below::Below;
use crate::config::StartState;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::ProcessId;
use crate::state::vma::VmaFlags;

/// Pages of a 2 MiB block.
const BLOCK: u64 = PageSize::Huge.pages();

/// Daemons are woken this often while nothing else happens, as the machine does.
const TICK: Nanoseconds = Nanoseconds::from_ms(10);

/// Free 2 MiB blocks, those in larger ones included.
pub(crate) fn free_huge_blocks(memory: &PhysicalMemory) -> u64 {
    let order = usize::from(nestwalk_mem::Order::HUGE.0);
    memory.free_blocks().iter().enumerate().skip(order).map(|(at, count)| count << (at - order)).sum()
}

impl Kernel {
    /// The state of its memory as bytes; what processes have there is page cache in them
    /// ([`PhysicalMemory::save`]).
    pub fn save_memory(&self) -> Vec<u8> {
        self.state.memory.save()
    }

    /// Its memory begins in the state that `saved` was made of. There must be no process yet.
    ///
    /// # Errors
    /// When there is a process, or `saved` is not a saved memory of this size with as many
    /// processors.
    pub fn restore_memory(&mut self, saved: &[u8]) -> Result<(), OsError> {
        if !self.state.processes.is_empty() {
            return Err(OsError::MemoryInUse);
        }
        let in_use = self.state.memory.restore(saved)?;
        (self.state.cache, self.state.pinned) = (in_use.cache, in_use.kernel);
        Ok(())
    }

    /// What has to happen before the first program, as the configuration asks for: with
    /// [`StartState::Frag`] a process writes all memory, keeps the last pages of each 2 MiB, and
    /// stays.
    ///
    /// The paper's recipe (all memory touched, compaction provoked, some 29 of 32 GiB written, all
    /// but the last 64 KiB of each 2 MiB unmapped, a minute's wait) ends when the free 2 MiB blocks
    /// are what the workload may have. Here the process gives back whole stretches of 2 MiB until
    /// there are as many. Blocks that are left beyond that, since the kernel keeps some memory
    /// free, get pages of the page cache.
    ///
    /// # Errors
    /// When nothing below backs a frame.
    pub fn inhabit(&mut self, below: &mut dyn Below) -> Result<(), OsError> {
        let StartState::Frag { percent, need, kept_pages, wait_ms } = self.config.start else { return Ok(()) };
        let wanted = need.0 * (100 - u64::from(percent.min(100))) / 100 / BLOCK;
        let process = self.spawn(below)?;
        let blocks = self.state.memory.frames().0 / BLOCK;
        let first = self.find_free(process, PageCount(blocks * BLOCK), PageSize::Huge.order())?;
        let range = |block: u64, pages: u64| VpnRange::new(first + block * BLOCK, PageCount(pages));
        self.mmap(process, range(0, blocks * BLOCK), VmaFlags::ANONYMOUS, below)?;
        let written = self.write_all(process, range(0, blocks * BLOCK), below)? / BLOCK;
        for block in 0..written {
            let give =
                if free_huge_blocks(&self.state.memory) < wanted { BLOCK } else { BLOCK - u64::from(kept_pages) };
            self.munmap(process, range(block, give), below)?;
        }
        let end = VpnRange { start: first + written * BLOCK, end: first + blocks * BLOCK };
        if end.start < end.end {
            self.munmap(process, end, below)?;
        }
        self.take_invalidations();
        self.break_blocks_beyond(wanted, kept_pages);
        let until = self.state.now + Nanoseconds::from_ms(wait_ms);
        while self.state.now < until {
            self.tick((self.state.now + TICK).min(until), below)?;
        }
        self.take_invalidations();
        Ok(())
    }

    /// Stores to all pages of `range` in order until the kernel would have to reclaim. Says how
    /// many are written.
    fn write_all(&mut self, process: ProcessId, range: VpnRange, below: &mut dyn Below) -> Result<u64, OsError> {
        // A fault takes 2 MiB at most, and nodes on the way to them.
        let least = self.state.watermarks.high.0 + 2 * BLOCK;
        for done in 0..range.len() {
            if self.state.memory.free_frames().0 <= least {
                return Ok(done);
            }
            self.touch(process, range.start + done, true, Cpu(0), below)?;
        }
        Ok(range.len())
    }

    /// Leaves so many free 2 MiB blocks: each of the others gets so many pages of the page cache.
    fn break_blocks_beyond(&mut self, wanted: u64, kept_pages: u16) {
        self.state.memory.drain();
        let free = free_huge_blocks(&self.state.memory);
        if free <= wanted {
            return;
        }
        let blocks_permille = ((free - wanted) * 1000).div_ceil(free) as u16;
        let how = Fragmentation {
            blocks_permille,
            frames_per_block: kept_pages,
            unmovable_permille: 0,
            seed: self.config.seed,
        };
        let broken = self.state.memory.fragment(&how);
        self.state.cache.0 += broken * u64::from(kept_pages);
    }
}

#[cfg(test)]
mod tests;
