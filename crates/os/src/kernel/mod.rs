// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel as the machine sees it.
//!
//! This file has its parts and what is asked of them. The mechanisms are files of their own, each
//! an `impl Kernel`: `spawn`, `fault`, `mappings` (mmap, brk, mprotect), `unmap` (munmap, exit),
//! `mremap`, `madvise`, `page_cache` (files), `fork`, `reclaim`, `daemons`, `contiguous`,
//! `hypercall`; `host_memory` makes a kernel the memory of another.

mod check;
mod contiguous;
mod daemons;
pub mod fault;
mod fork;
pub mod frozen;
pub mod host_memory;
mod hypercall;
mod inhabit;
pub mod madvise;
mod mappings;
mod mremap;
mod page_cache;
mod reclaim;
mod segments;
mod spawn;
mod start;
mod unmap;

use std::collections::BTreeMap;

use nestwalk_mem::physical::{MemoryConfig, huge_min_free, least_min_free};
use nestwalk_mem::{Cpu, Nanoseconds, PageCount, PageTable, PhysicalMemory, Vpn};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::below::Below;
use crate::config::KernelConfig;
use crate::context::Context;
use crate::context::placement::{TablePlacement, TableRegion};
use crate::counters::OsCounters;
use crate::error::OsError;
use crate::manager::contract::MemoryManager;
use crate::state::files::Files;
use crate::state::gather::Gather;
use crate::state::invalidation::{Invalidation, Invalidations};
use crate::state::process::{ProcessId, Processes, WalkTime};
use crate::state::vma::Vma;
use crate::state::{KernelState, Swap};

/// The clock's hand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockHand {
    process: ProcessId,
    page: Vpn,
}

/// One kernel. See the [crate's documentation](crate).
#[derive(Debug)]
pub struct Kernel {
    pub(crate) config: KernelConfig,
    pub(crate) state: KernelState,
    pub(crate) tables: Box<dyn TablePlacement>,
    pub(crate) manager: Box<dyn MemoryManager>,
    pub(crate) clock_hand: ClockHand,
    /// What the kernels of processes that [were found](frozen) have told of their tables.
    frozen_regions: BTreeMap<ProcessId, Vec<TableRegion>>,
    /// How often that has changed.
    frozen_generation: u64,
}

impl Kernel {
    /// A kernel without processes, its memory in the state that the configuration asks for.
    ///
    /// # Errors
    /// When the configuration is impossible.
    pub fn new(config: &KernelConfig) -> Result<Self, OsError> {
        Self::with_manager(config, config.manager.build())
    }

    /// The same with a memory manager that the configuration does not know: for experiments.
    ///
    /// # Errors
    /// When the configuration is impossible.
    pub fn with_manager(config: &KernelConfig, manager: Box<dyn MemoryManager>) -> Result<Self, OsError> {
        config.check()?;
        let usual = if manager.keeps_for_huge_pages() { huge_min_free } else { least_min_free };
        let min_free = config.min_free.unwrap_or_else(|| usual(config.memory));
        let mut memory = PhysicalMemory::new(&MemoryConfig { frames: config.memory, cpus: config.cpus, min_free })?;
        if manager.keeps_compounds() {
            memory.keep_compounds();
        }
        if manager.keeps_skip_hints() {
            memory.keep_skip_hints();
        }
        let watermarks = memory.watermarks();
        let mut state = KernelState {
            memory,
            processes: Processes::default(),
            counters: OsCounters::default(),
            now: Nanoseconds::default(),
            rng: Xoshiro256PlusPlus::seed_from_u64(config.seed),
            watermarks,
            invalidations: Invalidations::default(),
            last_writes: Vec::new(),
            swap: Swap { size: config.swap, used: PageCount(0) },
            block_wanted: None,
            zero_block: None,
            contiguous: config.contiguous,
            watches_stores: false,
            deferral: Default::default(),
            background_wanted: false,
            compaction_wanted: None,
            proactive_at: daemons::CHECK_INTERVAL,
            moved: Vec::new(),
            moved_files: Vec::new(),
            gather: Gather::default(),
            files: Files::default(),
            cache: PageCount(0),
            pinned: PageCount(0),
        };
        start::prepare(&mut state, config);
        Ok(Self {
            config: config.clone(),
            state,
            tables: config.tables.build(),
            manager,
            clock_hand: ClockHand::default(),
            frozen_regions: BTreeMap::new(),
            frozen_generation: 0,
        })
    }

    /// Whether a daemon has work that should not wait until the next tick is due (a kworker that
    /// was woken, or kswapd, where the memory manager has something for it).
    pub fn has_background_work(&self) -> bool {
        self.tables.has_work() || self.state.background_wanted && self.manager.can_shrink()
    }

    /// The page table of `process`.
    ///
    /// # Errors
    /// When there is no such process.
    #[inline]
    pub fn table(&self, process: ProcessId) -> Result<&PageTable, OsError> {
        Ok(&self.state.processes.get(process)?.table)
    }

    /// The page table of `process`, for the hardware to set accessed and dirty bits in.
    ///
    /// # Errors
    /// When there is no such process.
    #[inline]
    pub fn table_mut(&mut self, process: ProcessId) -> Result<&mut PageTable, OsError> {
        Ok(&mut self.state.processes.get_mut(process)?.table)
    }

    /// The mapping of `process` that holds `page`.
    pub fn vma(&self, process: ProcessId, page: Vpn) -> Option<Vma> {
        self.state.processes.get(process).ok()?.vmas.get(page)
    }

    /// All mappings of `process`, in order.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn vmas(&self, process: ProcessId) -> Result<impl Iterator<Item = Vma> + '_, OsError> {
        Ok(self.state.processes.get(process)?.vmas.iter().copied())
    }

    /// Puts `process` into a cgroup whose memory limit is `limit`, if it has one. Its children will
    /// be in it, too.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn set_cgroup_limit(&mut self, process: ProcessId, limit: Option<PageCount>) -> Result<(), OsError> {
        self.state.processes.get_mut(process)?.cgroup_limit = limit;
        Ok(())
    }

    /// Whether its memory manager makes use of the walk time of processes.
    pub fn wants_walk_time(&self) -> bool {
        self.manager.wants_walk_time()
    }

    /// Says that the processors' counters went on by `more` for `process`. Nothing if it is gone.
    pub fn add_walk_time(&mut self, process: ProcessId, more: WalkTime) {
        if let Ok(space) = self.state.processes.get_mut(process) {
            space.walk_time.walk_cycles += more.walk_cycles;
            space.walk_time.cycles += more.cycles;
        }
    }

    /// Whether its memory manager wants to hear of stores to large pages, those included that the
    /// hardware does without a fault.
    #[inline]
    pub fn watches_stores(&self) -> bool {
        self.state.watches_stores
    }

    /// Says that `process` has stored to `page`, or may have.
    #[cold]
    #[inline(never)]
    pub fn note_store(&mut self, process: ProcessId, page: Vpn) {
        if self.state.watches_stores {
            self.manager.stored(process, page);
        }
    }

    /// What it [has been told](Kernel::add_walk_time) of the walks of `process`.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn walk_time(&self, process: ProcessId) -> Result<WalkTime, OsError> {
        Ok(self.state.processes.get(process)?.walk_time)
    }

    /// The processes that are alive, by number.
    pub fn processes(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.state.processes.iter().map(|(id, _)| id)
    }

    /// Shootdowns that have not been taken yet, oldest first. They must be applied before the next
    /// access of any core.
    #[inline]
    pub fn take_invalidations(&mut self) -> std::vec::Drain<'_, Invalidation> {
        self.state.invalidations.pending.drain(..)
    }

    /// Whether [`Kernel::take_invalidations`] has any.
    #[inline]
    pub fn has_invalidations(&self) -> bool {
        !self.state.invalidations.pending.is_empty()
    }

    /// What was written to the table of `process`, which is no more, and
    /// [watched](PageTable::watch) was, before it exited.
    pub(crate) fn take_last_writes(&mut self, process: ProcessId) -> Vec<nestwalk_mem::Write> {
        let place = self.state.last_writes.iter().position(|(of, _)| *of == process);
        place.map(|place| self.state.last_writes.swap_remove(place).1).unwrap_or_default()
    }

    /// A number that changes whenever a page that was mapped may be mapped no more, or its accessed
    /// bit may be clear: see [`Below::epoch`].
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.state.invalidations.epoch
    }

    /// What has been done so far.
    #[inline]
    pub fn counters(&self) -> &OsCounters {
        &self.state.counters
    }

    /// The clock as of the last tick.
    pub fn clock(&self) -> Nanoseconds {
        self.state.now
    }

    /// Its physical memory.
    pub fn memory(&self) -> &PhysicalMemory {
        &self.state.memory
    }

    /// Its configuration.
    pub fn config(&self) -> &KernelConfig {
        &self.config
    }

    /// Its memory manager.
    pub fn manager(&self) -> &dyn MemoryManager {
        &*self.manager
    }

    /// Its table placement.
    pub fn table_placement(&self) -> &dyn TablePlacement {
        &*self.tables
    }

    /// Where table nodes of `process` lie in order (ASAP's descriptors): what its own kernel told,
    /// if it began with a table that [was found](Kernel::spawn_frozen) and had regions, else what
    /// this kernel's table placement has.
    pub fn table_regions(&self, process: ProcessId) -> &[TableRegion] {
        self.frozen_regions.get(&process).map_or_else(|| self.tables.regions(process), Vec::as_slice)
    }

    /// A number that changes whenever [`Kernel::table_regions`] of some process do.
    pub fn table_regions_generation(&self) -> u64 {
        self.tables.regions_generation() + self.frozen_generation
    }

    /// The toolbox, and the manager that may use it.
    #[inline]
    pub(crate) fn context<'a>(
        &'a mut self,
        cpu: Cpu,
        below: &'a mut dyn Below,
    ) -> (Context<'a>, &'a mut dyn MemoryManager) {
        let Self { state, tables, manager, .. } = self;
        (Context { state, tables: &mut **tables, below, cpu }, &mut **manager)
    }

    /// Tells the manager of pages that compaction has moved.
    #[inline]
    pub(crate) fn settle(&mut self, cpu: Cpu, below: &mut dyn Below) {
        if !self.state.moved.is_empty() || !self.state.moved_files.is_empty() {
            self.tell_moved(cpu, below);
        }
    }

    #[cold]
    fn tell_moved(&mut self, cpu: Cpu, below: &mut dyn Below) {
        let moved = std::mem::take(&mut self.state.moved);
        let files = std::mem::take(&mut self.state.moved_files);
        let (mut cx, manager) = self.context(cpu, below);
        for moved in moved {
            manager.moved(&mut cx, moved);
        }
        for from in files {
            manager.file_moved(&mut cx, from);
        }
    }
}
