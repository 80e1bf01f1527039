// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state in which a kernel's memory begins: what a process has to make, and what was saved.

use nestwalk_mem::physical::Fragmentation;
use nestwalk_mem::{Cpu, Nanoseconds, PageCount, PageSize, PhysicalMemory, Vpn, VpnRange};

use crate::below::Below;
use crate::config::{FragSteps, StartState};
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::ProcessId;
use crate::state::vma::VmaFlags;

/// Pages of a 2 MiB block.
const BLOCK: u64 = PageSize::Huge.pages();

/// Daemons are woken this often while nothing else happens, as the machine does.
const TICK: Nanoseconds = Nanoseconds::from_ms(10);

/// GiB of the machine for which the authors' scripts are made, and what they write, give back and
/// ask for on it.
const UNITS: u64 = 32;
const PRESSED: u64 = 30;
const THINNED: u64 = 1;
const ASKED_OF_PRESSED: u64 = 3;
/// 4000 blocks of 2 MiB, rounded.
const ASKED_OF_FRAGMENTED: u64 = 8;
const SHORT_WAIT_MS: u64 = 1000;
const LONG_WAIT_MS: u64 = 15_000;

/// Free 2 MiB blocks, those in larger ones included.
pub(crate) fn free_huge_blocks(memory: &PhysicalMemory) -> u64 {
    let order = usize::from(nestwalk_mem::Order::HUGE.0);
    memory.free_blocks().iter().enumerate().skip(order).map(|(at, count)| count << (at - order)).sum()
}

impl Kernel {
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
    /// stays; with [`FragSteps::All`] two others have done so before and are gone.
    ///
    /// The authors' scripts, on a machine of 32 GB: 30 GiB are written, the first of them given
    /// back but for the last page of each 2 MiB, and a page of each 2 MiB of 3 GiB is written; all
    /// ends. All memory is fragmented (29 GiB written, all but the last 64 KiB of each 2 MiB
    /// unmapped, and so with each 2 MiB block that is left free), and a page of each of 4000 blocks
    /// written; all ends after 15 s. Then memory is fragmented once more, until the free 2 MiB
    /// blocks are what the workload may have, and after a minute it begins. In other memory sizes
    /// go with it.
    ///
    /// Here the process that fragments gives back whole stretches of 2 MiB until there are as many
    /// as wanted. Blocks that are left beyond that, since the kernel keeps some memory free, get
    /// pages of the page cache.
    ///
    /// # Errors
    /// When nothing below backs a frame.
    pub fn inhabit(&mut self, below: &mut dyn Below) -> Result<(), OsError> {
        let StartState::Frag { percent, need, kept_pages, wait_ms, steps } = self.config.start else { return Ok(()) };
        if steps == FragSteps::All {
            self.press(below)?;
            let fragments = self.fragment(0, kept_pages, below)?;
            self.wait(SHORT_WAIT_MS, below)?;
            let asks = self.ask(ASKED_OF_FRAGMENTED, below)?;
            self.wait(LONG_WAIT_MS, below)?;
            self.exit(asks, below)?;
            self.exit(fragments, below)?;
        }
        let wanted = need.0 * (100 - u64::from(percent.min(100))) / 100 / BLOCK;
        self.fragment(wanted, kept_pages, below)?;
        self.break_blocks_beyond(wanted, kept_pages);
        self.wait(wait_ms, below)
    }

    /// Daemons have so much time.
    fn wait(&mut self, ms: u64, below: &mut dyn Below) -> Result<(), OsError> {
        let until = self.state.now + Nanoseconds::from_ms(ms);
        while self.state.now < until {
            self.tick((self.state.now + TICK).min(until), below)?;
        }
        self.take_invalidations();
        Ok(())
    }

    /// A process with a mapping of so many 2 MiB blocks, and its first page.
    fn mapped(&mut self, blocks: u64, below: &mut dyn Below) -> Result<(ProcessId, Vpn), OsError> {
        let process = self.spawn(below)?;
        let first = self.find_free(process, PageCount(blocks * BLOCK), PageSize::Huge.order())?;
        self.mmap(process, VpnRange::new(first, PageCount(blocks * BLOCK)), VmaFlags::ANONYMOUS, below)?;
        Ok((process, first))
    }

    /// So many 2 MiB blocks as of a machine with [`UNITS`] GiB that many GiB are.
    fn blocks_of(&self, units: u64) -> u64 {
        self.state.memory.frames().0 * units / UNITS / BLOCK
    }

    /// Most memory is written, a part of it given back but for a page of each 2 MiB, and more asked
    /// for by 2 MiB than there is. All of it is free then.
    fn press(&mut self, below: &mut dyn Below) -> Result<(), OsError> {
        let blocks = self.blocks_of(PRESSED);
        let (process, first) = self.mapped(blocks, below)?;
        self.write_all(process, VpnRange::new(first, PageCount(blocks * BLOCK)), below)?;
        for block in 0..self.blocks_of(THINNED) {
            self.munmap(process, VpnRange::new(first + block * BLOCK, PageCount(BLOCK - 1)), below)?;
        }
        let asks = self.ask(ASKED_OF_PRESSED, below)?;
        self.exit(asks, below)?;
        self.exit(process, below)
    }

    /// A process that writes a page of each 2 MiB of so many units.
    fn ask(&mut self, units: u64, below: &mut dyn Below) -> Result<ProcessId, OsError> {
        let blocks = self.blocks_of(units);
        let (process, first) = self.mapped(blocks, below)?;
        for block in 0..blocks {
            self.touch(process, first + block * BLOCK, true, Cpu(0), below)?;
        }
        self.take_invalidations();
        Ok(process)
    }

    /// A process that writes all memory and keeps the last pages of each 2 MiB, but gives back so
    /// many whole 2 MiB as are wanted free.
    fn fragment(&mut self, wanted: u64, kept_pages: u16, below: &mut dyn Below) -> Result<ProcessId, OsError> {
        let blocks = self.blocks_of(UNITS);
        let (process, first) = self.mapped(blocks, below)?;
        let range = |block: u64, pages: u64| VpnRange::new(first + block * BLOCK, PageCount(pages));
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
        Ok(process)
    }

    /// Whether the kernel would have to reclaim for the next fault: it takes 2 MiB at most, and
    /// nodes on the way to them.
    fn is_short(&self) -> bool {
        self.state.memory.free_frames().0 <= self.state.watermarks.high.0 + 2 * BLOCK
    }

    /// Stores to all pages of `range` in order until the kernel would have to reclaim. Says how
    /// many are written.
    fn write_all(&mut self, process: ProcessId, range: VpnRange, below: &mut dyn Below) -> Result<u64, OsError> {
        for done in 0..range.len() {
            if self.is_short() {
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
