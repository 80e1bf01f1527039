// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel as the machine sees it.
//!
//! The mechanisms stand in files of their own, each an `impl Kernel`: `fault`, `mappings` (mmap, brk, mprotect),
//! `unmap` (munmap, exit), `mremap`, `madvise`, `fork`, `reclaim`, `hypercall`.

use nestwalk_mem::physical::{MemoryConfig, huge_min_free, least_min_free};
use nestwalk_mem::{Cpu, Owner, PageCount, PageTable, PhysicalMemory, Vpn};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::below::Below;
use crate::config::KernelConfig;
use crate::context::Context;
use crate::counters::OsCounters;
use crate::error::OsError;
use crate::gather::Gather;
use crate::invalidation::{Invalidation, Invalidations};
use crate::manager::MemoryManager;
use crate::process::{Process, ProcessId, Processes};
use crate::reclaim::Clock;
use crate::state::{KernelState, Swap};
use crate::tables::{TableContext, TablePlacement, TableRegion};
use crate::vma::{Vma, Vmas};

/// One kernel. See the [crate's documentation](crate).
#[derive(Debug)]
pub struct Kernel {
    pub(crate) config: KernelConfig,
    pub(crate) state: KernelState,
    pub(crate) tables: Box<dyn TablePlacement>,
    pub(crate) manager: Box<dyn MemoryManager>,
    pub(crate) clock_hand: Clock,
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
        let memory = PhysicalMemory::new(&MemoryConfig { frames: config.memory, cpus: config.cpus, min_free })?;
        let watermarks = memory.watermarks();
        let mut state = KernelState {
            memory,
            processes: Processes::default(),
            counters: OsCounters::default(),
            now_ns: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(config.seed),
            watermarks,
            invalidations: Invalidations::default(),
            last_writes: Vec::new(),
            swap: Swap { size: config.swap, used: PageCount(0) },
            deferral: Default::default(),
            background_wanted: false,
            compaction_wanted: None,
            moved: Vec::new(),
            gather: Gather::default(),
            cache: PageCount(0),
            pinned: PageCount(0),
        };
        crate::start::prepare(&mut state, config);
        Ok(Self { config: config.clone(), state, tables: config.tables.build(), manager, clock_hand: Clock::default() })
    }

    /// A new process without mappings.
    ///
    /// # Errors
    /// When there is no memory for the root of its page table, or no number left.
    pub fn spawn(&mut self, below: &mut dyn Below) -> Result<ProcessId, OsError> {
        let geometry = self.config.geometry;
        // The number is not known before the process exists, and placements want to know whose root it is.
        let process = Process {
            vmas: Vmas::default(),
            table: PageTable::new(geometry, nestwalk_mem::Frame(0)),
            cpu: Cpu(0),
            heap: None,
            cgroup_limit: None,
            parent: None,
            last_node: None,
        };
        let id = self.state.processes.insert(process)?;
        let root = self.retrying(Cpu(0), below, |cx, _| {
            let mut inner = TableContext { state: cx.state, below: cx.below, cpu: cx.cpu };
            inner.place_node(cx.tables, id, geometry.root(), Vpn(0))
        });
        match root {
            Ok(frame) => {
                let table = &mut self.state.processes.get_mut(id)?.table;
                table.relocate(table.root(), frame);
                Ok(id)
            }
            Err(error) => {
                self.state.processes.remove(id);
                Err(error)
            }
        }
    }

    /// A process that is a virtual machine with `memory`: one writable mapping, whose start is a multiple of 1 GiB.
    /// Returns the process and the page at which the guest's frame 0 lies. Whether it is advised to be huge is for
    /// [`Kernel::madvise`] to say.
    ///
    /// # Errors
    /// When there is no memory for a table node, or no gap of that size in an address space.
    pub fn host_vm(&mut self, memory: PageCount, below: &mut dyn Below) -> Result<(ProcessId, Vpn), OsError> {
        let process = self.spawn(below)?;
        let base = self.find_free(process, memory, 18)?;
        let range = nestwalk_mem::VpnRange::new(base, memory);
        self.mmap(process, range, crate::vma::VmaFlags::ANONYMOUS, below)?;
        Ok((process, base))
    }

    /// Lets daemons run up to `now_ns`, in ns since the kernel began: background reclaim and compaction, the table
    /// placement's and the memory manager's daemons. Time does not go back.
    ///
    /// # Errors
    /// When nothing below backs a frame.
    pub fn tick(&mut self, now_ns: u64, below: &mut dyn Below) -> Result<(), OsError> {
        self.state.now_ns = self.state.now_ns.max(now_ns);
        self.reclaim_in_background(below)?;
        self.compact_in_background(below);
        let (cx, _) = self.context(Cpu(0), below);
        let mut inner = TableContext { state: cx.state, below: cx.below, cpu: cx.cpu };
        let placed = cx.tables.tick(&mut inner);
        self.settle(Cpu(0), below);
        placed?;
        let (mut cx, manager) = self.context(Cpu(0), below);
        manager.tick(&mut cx)?;
        self.settle(Cpu(0), below);
        Ok(())
    }

    /// Whether a daemon has work that should not wait until the next tick is due (a kworker that was woken).
    pub fn has_background_work(&self) -> bool {
        self.tables.has_work()
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

    /// Puts `process` into a cgroup whose memory limit is `limit`, if it has one. Its children will be in it, too.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn set_cgroup_limit(&mut self, process: ProcessId, limit: Option<PageCount>) -> Result<(), OsError> {
        self.state.processes.get_mut(process)?.cgroup_limit = limit;
        Ok(())
    }

    /// The processes that are alive, by number.
    pub fn processes(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.state.processes.iter().map(|(id, _)| id)
    }

    /// Shootdowns that have not been taken yet, oldest first. They must be applied before the next access of any
    /// core.
    #[inline]
    pub fn take_invalidations(&mut self) -> std::vec::Drain<'_, Invalidation> {
        self.state.invalidations.pending.drain(..)
    }

    /// Whether [`Kernel::take_invalidations`] has any.
    #[inline]
    pub fn has_invalidations(&self) -> bool {
        !self.state.invalidations.pending.is_empty()
    }

    /// What was written to the table of `process`, which is no more, and [watched](PageTable::watch) was, before it exited.
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

    /// The clock as of the last tick, in ns.
    pub fn clock(&self) -> u64 {
        self.state.now_ns
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

    /// Where table nodes of `process` lie in order (ASAP's descriptors).
    pub fn table_regions(&self, process: ProcessId) -> &[TableRegion] {
        self.tables.regions(process)
    }

    /// A number that changes whenever [`Kernel::table_regions`] of some process do.
    pub fn table_regions_generation(&self) -> u64 {
        self.tables.regions_generation()
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

    /// Runs `step`, which may be run again from the start, until it does not end for want of memory, reclaiming in
    /// between.
    ///
    /// # Errors
    /// Those of `step`; want of memory only when nothing more can be reclaimed.
    pub(crate) fn retrying<T>(
        &mut self,
        cpu: Cpu,
        below: &mut dyn Below,
        mut step: impl FnMut(&mut Context<'_>, &mut dyn MemoryManager) -> Result<T, OsError>,
    ) -> Result<T, OsError> {
        self.reclaiming(cpu, below, |kernel, below| {
            let (mut cx, manager) = kernel.context(cpu, below);
            let result = step(&mut cx, manager);
            kernel.settle(cpu, below);
            result
        })
    }

    /// [`Kernel::retrying`] for what needs the kernel whole.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn reclaiming<T>(
        &mut self,
        cpu: Cpu,
        below: &mut dyn Below,
        mut step: impl FnMut(&mut Self, &mut dyn Below) -> Result<T, OsError>,
    ) -> Result<T, OsError> {
        loop {
            match step(self, below) {
                Err(error @ OsError::OutOfMemory { .. }) => self.reclaim_or(error, cpu, below)?,
                other => return other,
            }
        }
    }

    /// Tells the manager of pages that compaction has moved.
    #[inline]
    pub(crate) fn settle(&mut self, cpu: Cpu, below: &mut dyn Below) {
        if !self.state.moved.is_empty() {
            self.tell_moved(cpu, below);
        }
    }

    #[cold]
    fn tell_moved(&mut self, cpu: Cpu, below: &mut dyn Below) {
        let moved = std::mem::take(&mut self.state.moved);
        let (mut cx, manager) = self.context(cpu, below);
        for moved in moved {
            manager.moved(&mut cx, moved);
        }
    }

    /// Checks what must always hold: every structure's own invariants; every mapped frame is allocated, mapped once
    /// more than it is shared, and owned by its page; allocated and free frames are all frames.
    ///
    /// # Panics
    /// With a message that names the process, page or frame, if something does not hold.
    pub fn check_invariants(&self) {
        self.state.memory.check_invariants();
        self.manager.check_invariants(&self.state);
        self.tables.check_invariants(&self.state);
        let frames = self.state.memory.frames().0 as usize;
        let mut mappings = vec![0u32; frames];
        let mut nodes = 0;
        for (id, process) in self.state.processes.iter() {
            process.vmas.check_invariants();
            process.table.check_invariants();
            self.check_leaves(id, process, &mut mappings);
            process.table.for_each_node(|view| {
                let owner = self.state.memory.owner(view.frame);
                if owner == Owner::Kernel && is_kernel_half(process, view.first_page) {
                    return;
                }
                assert_eq!(owner, Owner::TableNode { process: id.0 }, "{view:?} of {id:?}");
                let mapped = std::mem::replace(&mut mappings[view.frame.0 as usize], u32::MAX);
                assert_eq!(mapped, 0, "{view:?} of {id:?} lies in a mapped frame");
                nodes += 1;
            });
        }
        let counters = &self.state.counters;
        assert_eq!(nodes, counters.nodes_made - counters.nodes_freed, "nodes made less nodes freed");
        self.check_frames(&mappings);
    }

    fn check_leaves(&self, id: ProcessId, process: &Process, mappings: &mut [u32]) {
        let whole = nestwalk_mem::VpnRange { start: Vpn(0), end: process.table.geometry().end() };
        process.table.for_each_leaf(whole, |leaf| {
            let vma = process.vmas.get(leaf.page);
            if vma.is_none() && is_kernel_half(process, leaf.page) {
                return; // found as it is: `frozen`
            }
            let vma = vma.unwrap_or_else(|| panic!("{leaf:?} of {id:?} lies outside of all mappings"));
            if !leaf.entry.is_present() {
                return;
            }
            let last = leaf.page + (leaf.size().pages() - 1);
            assert!(vma.range.contains(last), "{leaf:?} of {id:?} reaches beyond {vma:?}");
            let writable = leaf.entry.has(nestwalk_mem::Entry::WRITABLE);
            assert!(!writable || vma.flags.writable, "{leaf:?} of {id:?} is writable, {vma:?} is not");
            for i in 0..leaf.size().pages() {
                let frame = leaf.frame_of(leaf.page + i);
                mappings[frame.0 as usize] += 1;
                let shared = self.state.memory.is_shared(frame);
                assert!(!(writable && shared), "{leaf:?} of {id:?} is writable, and {frame:?} is shared");
                if let Owner::Page { process, page } = self.state.memory.owner(frame)
                    && !shared
                {
                    assert_eq!((process, page), (id.0, leaf.page + i), "the owner of {frame:?}");
                }
            }
        });
    }

    fn check_frames(&self, mappings: &[u32]) {
        let memory = &self.state.memory;
        let mut in_use = 0;
        for (frame, &count) in mappings.iter().enumerate() {
            let frame = nestwalk_mem::Frame(frame as u64);
            in_use += u64::from(count > 0);
            let shared = count != u32::MAX && count > 1;
            assert_eq!(shared, memory.is_shared(frame), "{frame:?} is mapped {count} times");
        }
        let reserved = self.manager.reserved().0 + self.tables.reserved().0;
        let (free, pinned) = (memory.free_frames().0, self.state.cache.0 + self.state.pinned.0);
        let all = in_use + pinned + reserved + free;
        assert_eq!(all, memory.frames().0, "{in_use} in use, {pinned} pinned, {reserved} reserved, {free} free");
    }
}

/// Whether `page` is in the upper half of what the process's table translates.
fn is_kernel_half(process: &Process, page: Vpn) -> bool {
    page.0 >= process.table.geometry().end().0 / 2
}
