// SPDX-License-Identifier: MIT OR Apache-2.0
//! One kernel's physical memory: which frames are free, who owns the others.
//!
//! [`PhysicalMemory`] is Linux 6.1's page allocator for a machine with one zone: a buddy allocator
//! of orders 0 to 10 with lists for each migrate type (`zone`, `lists`), per-CPU lists in front of
//! it (`pcp`), compaction (`compact`) and contiguous ranges (`contig`). The order of every list is
//! Linux's, so that the frames that a program's neighbouring pages get (and so the fragmentation of
//! the host's page table) come out as on the real kernel.
//!
//! What it promises
//! - Allocating and freeing take constant time and, once the per-CPU lists have grown, no memory.
//! - Twelve bytes a frame, not paged in before the frame's pageblock is split, or one that shares a
//!   page of the machine that runs the simulation with it.
//! - A frame is in exactly one of: a free block, a per-CPU list, an allocated block. Freeing what
//!   is not allocated, owning what is free and the like panic: these are errors of the calling
//!   kernel, never of its input.
//!
//! What it leaves to its caller: watermarks (it tells them, and allocates to the last frame),
//! reclaim, and when to compact. One zone means: no DMA zones, no NUMA, no `MIGRATE_HIGHATOMIC`
//! reserve, no CMA.

mod age;
mod buddyinfo;
mod check;
mod compact;
mod compound;
mod contig;
mod frees;
mod lists;
mod occupied;
mod pcp;
mod saved;
mod table;
mod types;
mod watermark;
mod zeroed;
mod zone;

#[cfg(test)]
mod history;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::addr::{Frame, FrameRange, PageCount};

use compact::Scanners;
use pcp::{COSTLY_ORDER, Limits, PerCpu, has_lists};
use table::{Head, Kind, MAX_ORDER, PAGEBLOCK, PAGEBLOCK_ORDER, Pfn32, State};
use zeroed::Zeroed;
use zone::Zone;

pub use age::{Aging, Fragmentation};
pub use buddyinfo::BuddyInfo;
pub use saved::SavedError;
pub use types::{Compaction, Cpu, FrameUse, InUse, MemoryConfig, MemoryError, Migrate, MigrateType, Order, Owner};
pub use watermark::{Watermarks, huge_min_free, least_min_free};

impl From<MigrateType> for Kind {
    #[inline]
    fn from(kind: MigrateType) -> Self {
        match kind {
            MigrateType::Unmovable => Self::Unmovable,
            MigrateType::Movable => Self::Movable,
            MigrateType::Reclaimable => Self::Reclaimable,
        }
    }
}

/// One kernel's physical memory.
pub struct PhysicalMemory {
    zone: Zone,
    cpus: Vec<PerCpu>,
    limits: Limits,
    watermarks: Watermarks,
    scanners: Scanners,
    /// Where [`PhysicalMemory::drop_cache`] goes on.
    cache_hand: Pfn32,
    /// Frames that are neither in the buddy lists nor in per-CPU lists.
    allocated: u64,
    /// Whether a block of 2 MiB that was allocated whole stays one page.
    compounds: bool,
    /// Frames that were filled with zeroes while they were free, once some were.
    zeroed: Option<Zeroed>,
}

impl fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhysicalMemory")
            .field("frames", &self.frames())
            .field("allocated", &self.allocated)
            .field("free_blocks", &self.free_blocks())
            .finish_non_exhaustive()
    }
}

impl PhysicalMemory {
    /// A memory that is all free. Its size is rounded down to a multiple of 4 MiB.
    ///
    /// # Errors
    /// On a size or a number of processors that cannot be.
    pub fn new(config: &MemoryConfig) -> Result<Self, MemoryError> {
        let frames = config.frames.0;
        if !(1024..1 << 32).contains(&frames) {
            return Err(MemoryError::Size { frames });
        }
        if config.cpus == 0 {
            return Err(MemoryError::NoCpu);
        }
        let frames = PageCount(frames >> MAX_ORDER << MAX_ORDER);
        let batch = watermark::batch(frames);
        let watermarks = Watermarks::of(frames, config.min_free);
        // Linux sets ALLOC_NOFRAGMENT where a zone below could serve instead: on machines with
        // memory above 4 GiB.
        let nofragment = frames.bytes() > 4 << 30;
        Ok(Self {
            zone: Zone::new(frames.0 as u32, nofragment),
            cpus: (0..config.cpus).map(|_| PerCpu::new()).collect(),
            limits: Limits { batch, high: watermark::high(watermarks, config.cpus, batch) },
            watermarks,
            scanners: Scanners::new(frames.0 as u32),
            cache_hand: 0,
            allocated: 0,
            compounds: false,
            zeroed: None,
        })
    }

    /// Its size.
    pub fn frames(&self) -> PageCount {
        PageCount(u64::from(self.zone.table.len()))
    }

    /// Its processors.
    pub fn cpus(&self) -> u16 {
        self.cpus.len() as u16
    }

    /// Frames that are free, those in per-CPU lists included.
    #[inline]
    pub fn free_frames(&self) -> PageCount {
        PageCount(u64::from(self.zone.table.len()) - self.allocated)
    }

    /// Free blocks of each order in the buddy lists (as in `/proc/buddyinfo`).
    pub fn free_blocks(&self) -> [u64; 11] {
        self.zone.lists.counts()
    }

    /// Free frames under which Linux would reclaim. This room does not act on them.
    pub fn watermarks(&self) -> Watermarks {
        self.watermarks
    }

    /// A block of `2^order` frames, aligned to its size; `None` when there is none free (no
    /// reclaim, no compaction).
    ///
    /// Orders up to 3 empty the other processors' lists before they give up, as
    /// `__alloc_pages_direct_reclaim` does.
    ///
    /// # Panics
    /// If the order is above [`Order::MAX`] or the memory has no such processor.
    // Nearly every caller knows the order when it is compiled, and most of what follows depends on
    // nothing else.
    #[inline(always)]
    pub fn alloc(&mut self, order: Order, kind: MigrateType, cpu: Cpu) -> Option<Frame> {
        assert!(order <= Order::MAX, "no blocks of order {}", order.0);
        let kind = Kind::from(kind);
        let pfn = match self.try_alloc(order.0, kind, cpu) {
            Some(pfn) => pfn,
            None => self.alloc_after_drain(order.0, kind, cpu)?,
        };
        self.zone.set_allocated(pfn, order.0);
        self.allocated += order.frames();
        Some(Frame(u64::from(pfn)))
    }

    /// Linux's `rmqueue`.
    #[inline(always)]
    fn try_alloc(&mut self, order: u8, kind: Kind, cpu: Cpu) -> Option<Pfn32> {
        if has_lists(order) {
            self.cpus[usize::from(cpu.0)].alloc(&mut self.zone, self.limits, order, kind)
        } else {
            self.zone.rmqueue_buddy(order, kind)
        }
    }

    #[cold]
    #[inline(never)]
    fn alloc_after_drain(&mut self, order: u8, kind: Kind, cpu: Cpu) -> Option<Pfn32> {
        if order > COSTLY_ORDER || self.cpus.iter().all(|cpu| cpu.count() == 0) {
            return None;
        }
        self.drain();
        self.try_alloc(order, kind, cpu)
    }

    /// Gives back the block of `2^order` frames at `frame`. A block that was allocated whole may be
    /// freed in parts, and neighbours that were allocated in parts may be freed as a whole.
    ///
    /// # Panics
    /// If a frame of it is not allocated (a double free, say) or still shared.
    #[inline]
    pub fn free(&mut self, frame: Frame, order: Order, cpu: Cpu) {
        let pfn = frame.0 as Pfn32;
        if order == Order::PAGE && self.zone.table.is_lone_page(self.checked(frame)) {
            // The common case. Its entry is overwritten as a whole by whichever list it joins.
        } else {
            self.release(frame, order);
        }
        self.allocated -= order.frames();
        if let Some(zeroed) = &mut self.zeroed {
            zeroed.forget(pfn, order.0);
        }
        self.put(pfn, order.0, cpu);
    }

    /// Puts a block whose entries are blank, or about to be overwritten, where free blocks go
    /// (`__free_pages_ok`, `free_unref_page`).
    #[inline]
    fn put(&mut self, pfn: Pfn32, order: u8, cpu: Cpu) {
        let kind = self.zone.table.block(pfn).kind;
        if has_lists(order) {
            self.cpus[usize::from(cpu.0)].free(&mut self.zone, self.limits, pfn, order, kind);
        } else {
            self.zone.table.absorb(pfn, order);
            self.zone.free_one(pfn, order, kind);
        }
    }

    /// Checks that a block is allocated and blanks its entries.
    #[inline(never)]
    fn release(&mut self, frame: Frame, order: Order) {
        assert!(order <= Order::MAX, "no blocks of order {}", order.0);
        let pfn = self.checked(frame);
        assert!(frame.is_aligned(u32::from(order.0)), "{frame:?} starts no block of order {}", order.0);
        let end = pfn + (1 << order.0);
        let mut at = pfn;
        while at < end {
            let (start, head) = self.zone.table.find_head(at);
            assert!(
                head.state() == State::Allocated,
                "{:?} is freed but not allocated ({:?})",
                Frame(at.into()),
                head.state()
            );
            if head.order() > order.0 {
                self.zone.split_allocated(start, head.order(), pfn, order.0);
                break;
            }
            at = start + (1 << head.order());
        }
        let shared = (pfn..end).find(|&pfn| self.zone.table.shares(pfn) > 0);
        assert!(shared.is_none(), "frame {shared:#x?} is freed but still shared");
        self.zone.table.wipe(pfn, order.0);
    }

    /// Gives back a range that [`PhysicalMemory::alloc_range`] returned, or part of one, frame by
    /// frame as `free_contig_range` does.
    pub fn free_range(&mut self, range: FrameRange, cpu: Cpu) {
        range.iter().for_each(|frame| self.free(frame, Order::PAGE, cpu));
    }

    /// Returns all that the per-CPU lists hold to the buddy lists (`drain_all_pages`).
    pub fn drain(&mut self) {
        for cpu in &mut self.cpus {
            cpu.drain(&mut self.zone, self.limits);
        }
    }

    /// Whether `frame` is free, in a buddy list or a per-CPU list.
    pub fn is_free(&self, frame: Frame) -> bool {
        self.zone.table.find_head(self.checked(frame)).1.state() != State::Allocated
    }

    /// The block of the buddy lists that `frame` lies in, if it lies in one.
    pub fn free_block_of(&self, frame: Frame) -> Option<(Frame, Order)> {
        let (start, order) = self.zone.buddy_of(self.checked(frame))?;
        Some((Frame(start.into()), Order(order)))
    }

    /// The free blocks of the buddy lists, by address.
    pub fn iter_free(&self) -> impl Iterator<Item = (Frame, Order)> + '_ {
        self.heads()
            .filter_map(|(pfn, head)| (head.state() == State::Free).then_some((Frame(pfn.into()), Order(head.order()))))
    }

    /// The free blocks of one list in the order in which they will be taken.
    pub fn free_list(&self, order: Order, kind: MigrateType) -> impl Iterator<Item = Frame> + '_ {
        self.zone.lists.iter(&self.zone.table, order.0, kind.into()).map(|pfn| Frame(pfn.into()))
    }

    /// All blocks by address, whatever their state.
    fn heads(&self) -> impl Iterator<Item = (Pfn32, Head)> + '_ {
        let next = |&(pfn, head): &(Pfn32, Head)| {
            let next = pfn + (1 << head.order());
            (next < self.zone.table.len()).then(|| self.zone.head_at(next))
        };
        std::iter::successors(Some(self.zone.head_at(0)), next)
    }

    /// The migrate type of the frame's pageblock: the lists that frames freed in it go to.
    pub fn pageblock_type(&self, frame: Frame) -> MigrateType {
        match self.zone.table.block(self.checked(frame)).kind {
            Kind::Unmovable => MigrateType::Unmovable,
            Kind::Movable => MigrateType::Movable,
            Kind::Reclaimable => MigrateType::Reclaimable,
        }
    }

    /// Who has `frame`. A free frame has an unknown owner.
    // Always: most callers ask for one kind only, and then nothing else is unpacked.
    #[inline(always)]
    pub fn owner(&self, frame: Frame) -> Owner {
        let pfn = self.checked(frame);
        if self.zone.table.is_seen_allocated(pfn) || !self.is_free(frame) {
            self.zone.table.owner(pfn)
        } else {
            Owner::Unknown
        }
    }

    /// A hint that `frame` is about to get an owner. Beyond the memory it says nothing.
    #[inline]
    pub fn prefetch(&self, frame: Frame) {
        if frame.0 < u64::from(self.zone.table.len()) {
            self.zone.table.prefetch(frame.0 as Pfn32);
        }
    }

    /// Says who has `frame`, which must be allocated.
    ///
    /// # Panics
    /// If it is free.
    #[inline(always)]
    pub fn set_owner(&mut self, frame: Frame, owner: Owner) {
        let pfn = self.allocated_frame(frame);
        self.zone.table.set_owner(pfn, owner);
    }

    /// Says who has all of `frames`, which must be allocated: [`PhysicalMemory::set_owner`] for
    /// each.
    ///
    /// # Panics
    /// If one is free.
    pub fn set_owners(&mut self, frames: FrameRange, owner: Owner) {
        let mut at = frames.start;
        while at < frames.end() {
            let pfn = self.allocated_frame(at);
            let (start, head) = self.zone.table.find_head(pfn);
            // The records of a larger block are marked as used one pageblock at a time.
            let end = (u64::from(start) + (1 << head.order()))
                .min(at.align_down(PAGEBLOCK_ORDER.into()).0 + u64::from(PAGEBLOCK));
            let end = Frame(end).min(frames.end());
            self.zone.table.set_owners(pfn..end.0 as Pfn32, owner);
            at = end;
        }
    }

    /// One more mapping of `frame` (fork).
    ///
    /// # Panics
    /// If it is free, or shared 2^24 times.
    #[inline]
    pub fn share(&mut self, frame: Frame) {
        let pfn = self.allocated_frame(frame);
        let shares = self.zone.table.shares(pfn);
        self.zone.table.set_shares(pfn, shares + 1);
    }

    /// One mapping fewer. `true` if others remain; `false` if the caller's was the only one, so
    /// that it frees the frame.
    ///
    /// # Panics
    /// If it is free.
    #[inline]
    pub fn unshare(&mut self, frame: Frame) -> bool {
        let pfn = self.allocated_frame(frame);
        let shares = self.zone.table.shares(pfn);
        if shares > 0 {
            self.zone.table.set_shares(pfn, shares - 1);
        }
        shares > 0
    }

    /// Whether more than one mapping has `frame`.
    #[inline]
    pub fn is_shared(&self, frame: Frame) -> bool {
        self.zone.table.shares(self.checked(frame)) > 0
    }

    /// The frame's number in this room.
    ///
    /// # Panics
    /// If the memory has no such frame.
    #[inline]
    fn checked(&self, frame: Frame) -> Pfn32 {
        assert!(frame.0 < u64::from(self.zone.table.len()), "{frame:?} lies beyond the memory");
        frame.0 as Pfn32
    }

    /// The frame's number, given that the frame is allocated, and about to be written to.
    #[inline(always)]
    fn allocated_frame(&mut self, frame: Frame) -> Pfn32 {
        let pfn = self.checked(frame);
        if !self.zone.table.is_seen_allocated(pfn) {
            self.allocated_inside(pfn);
        }
        pfn
    }

    /// The same for a frame of which that cannot be seen at once.
    #[inline(never)]
    fn allocated_inside(&mut self, pfn: Pfn32) {
        let (_, head) = self.zone.table.find_head(pfn);
        assert!(head.state() == State::Allocated, "{:?} is not allocated ({:?})", Frame(pfn.into()), head.state());
        if head.order() >= PAGEBLOCK_ORDER {
            self.zone.table.block_mut(pfn).detailed = true;
        }
    }
}
