// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state in which a kernel's memory begins.

use nestwalk_mem::physical::{Aging, Fragmentation};
use nestwalk_mem::{Cpu, PageCount, PageSize, PhysicalMemory, VpnRange};

use crate::below::Below;
use crate::config::{KernelConfig, StartState};
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::process::ProcessId;
use crate::state::KernelState;
use crate::vma::VmaFlags;

/// Brings fresh memory into the state that `config`, which has been checked, asks for.
pub(crate) fn prepare(state: &mut KernelState, config: &KernelConfig) {
    let seed = config.seed;
    match config.start {
        // A process does it, when there is something below that backs its memory: [`Kernel::inhabit`].
        StartState::Fresh | StartState::Frag { .. } => {}
        StartState::Fragmented { blocks_permille, frames_per_block, unmovable_permille } => {
            let how = Fragmentation { blocks_permille, frames_per_block, unmovable_permille, seed };
            let blocks = state.memory.fragment(&how);
            let unmovable = blocks * u64::from(unmovable_permille) / 1000;
            let frames = u64::from(frames_per_block);
            state.pinned = PageCount(unmovable * frames);
            state.cache = PageCount((blocks - unmovable) * frames);
        }
        StartState::Aged { used_permille, kept_permille } => {
            state.cache = state.memory.age(&Aging { used_permille, kept_permille, seed });
        }
    }
}

/// Pages of a 2 MiB block.
const BLOCK: u64 = PageSize::Huge.pages();

/// Daemons are woken this often while nothing else happens, as the machine does.
const TICK_NS: u64 = 10_000_000;

/// Free 2 MiB blocks, those in larger ones included.
pub(crate) fn free_huge_blocks(memory: &PhysicalMemory) -> u64 {
    let order = usize::from(nestwalk_mem::Order::HUGE.0);
    memory.free_blocks().iter().enumerate().skip(order).map(|(at, count)| count << (at - order)).sum()
}

impl Kernel {
    /// The state of its memory as bytes; what processes have there is page cache in them ([`PhysicalMemory::save`]).
    pub fn save_memory(&self) -> Vec<u8> {
        self.state.memory.save()
    }

    /// Its memory begins in the state that `saved` was made of. There must be no process yet.
    ///
    /// # Errors
    /// When `saved` is not a saved memory of this size with as many processors.
    ///
    /// # Panics
    /// When there is a process.
    pub fn restore_memory(&mut self, saved: &[u8]) -> Result<(), OsError> {
        assert!(self.state.processes.iter().next().is_none(), "the memory is in use");
        let in_use = self.state.memory.restore(saved)?;
        (self.state.cache, self.state.pinned) = (in_use.cache, in_use.kernel);
        Ok(())
    }

    /// What has to happen before the first program, as the configuration asks for: with [`StartState::Frag`] a process
    /// writes all memory, keeps the last pages of each 2 MiB, and stays.
    ///
    /// The paper's recipe (all memory touched, compaction provoked, some 29 of 32 GiB
    /// written, all but the last 64 KiB of each 2 MiB unmapped, a minute's wait) ends when the free 2 MiB blocks are what
    /// the workload may have. Here the process gives back whole stretches of 2 MiB until there are as many. Blocks that
    /// are left beyond that, since the kernel keeps some memory free, get pages of the page cache.
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
        let until = self.state.now_ns + wait_ms * 1_000_000;
        while self.state.now_ns < until {
            self.tick((self.state.now_ns + TICK_NS).min(until), below)?;
        }
        self.take_invalidations();
        Ok(())
    }

    /// Stores to all pages of `range` in order until the kernel would have to reclaim. Says how many are written.
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
mod tests {
    use super::*;
    use crate::below::Bare;
    use crate::manager::{ManagerConfig, quicksilver::QuicksilverConfig};

    const NEED: u64 = 64 << 20 >> 12;

    fn fragmented(manager: ManagerConfig, percent: u16, wait_ms: u64) -> Kernel {
        let mut config = KernelConfig::new(PageCount(512 << 20 >> 12));
        config.manager = manager;
        config.start = StartState::Frag { percent, need: PageCount(NEED), kept_pages: 16, wait_ms };
        let mut kernel = Kernel::new(&config).unwrap();
        kernel.inhabit(&mut Bare).unwrap();
        kernel.check_invariants();
        kernel
    }

    #[test]
    fn of_what_the_program_needs_so_much_has_free_blocks() {
        for manager in ManagerConfig::all() {
            for (percent, wanted) in [(0, 32), (50, 16), (100, 0)] {
                let kernel = fragmented(manager.clone(), percent, 0);
                let free = free_huge_blocks(kernel.memory());
                assert_eq!(free, wanted, "{manager:?}, Frag-{percent}");
                // Most of the memory is not in use: it is in pieces, or in reservations.
                let idle = kernel.memory().free_frames().0 + kernel.manager().reserved().0;
                assert!(idle > kernel.memory().frames().0 * 9 / 10, "{manager:?}: {idle}");
            }
        }
    }

    #[test]
    fn quicksilver_empties_what_the_fragmenting_process_left_and_freebsd_does_not() {
        let quicksilver = ManagerConfig::Quicksilver(QuicksilverConfig::default());
        let free = |manager, wait_ms| free_huge_blocks(fragmented(manager, 100, wait_ms).memory());
        assert_eq!(free(ManagerConfig::FreeBsd, 20_000), 0);
        assert!(free(quicksilver.clone(), 4_000) == 0, "nothing is inactive before 5 s");
        assert!(free(quicksilver, 20_000) > 200, "most of 256 blocks go back whole");
    }

    #[test]
    fn a_state_that_cannot_be_is_refused() {
        for (percent, need, kept_pages) in [(101, 1, 1), (0, 1 << 20, 1), (0, 1, 0), (0, 1, 512)] {
            let mut config = KernelConfig::new(PageCount(1 << 14));
            config.start = StartState::Frag { percent, need: PageCount(need), kept_pages, wait_ms: 0 };
            assert!(Kernel::new(&config).is_err(), "{:?}", config.start);
        }
    }
}
