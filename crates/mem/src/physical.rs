// SPDX-License-Identifier: MIT OR Apache-2.0
//! One kernel's physical memory: which frames are free, who owns the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::addr::{Frame, FrameRange, PageCount, Vpn};

/// log2 of a block's frames: 0 to [`Order::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Order(pub u8);

impl Order {
    /// One frame.
    pub const PAGE: Self = Self(0);
    /// 2 MiB, a pageblock on x86-64.
    pub const HUGE: Self = Self(9);
    /// 4 MiB, Linux 6.1's largest (`MAX_ORDER - 1`).
    pub const MAX: Self = Self(10);

    /// Its frames.
    #[inline]
    pub const fn frames(self) -> u64 {
        1 << self.0
    }
}

/// A processor of the kernel that owns this memory (its per-CPU lists).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Cpu(pub u16);

/// What an allocation may be grouped with (Linux's `enum migratetype`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MigrateType {
    /// Cannot be moved: page tables, kernel data.
    Unmovable,
    /// User pages.
    Movable,
    /// Caches that can be dropped.
    Reclaimable,
}

/// Who has an allocated frame: the reverse mapping that migration and reclaim follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Owner {
    /// Nobody said (yet). Cannot be moved.
    #[default]
    Unknown,
    /// The kernel itself. Cannot be moved.
    Kernel,
    /// A node of the page table of `process`. Cannot be moved.
    TableNode {
        /// The process whose table it is.
        process: u16,
    },
    /// Mapped (first) at `page` of `process`. Can be moved if it is not shared.
    Page {
        /// The process that maps it.
        process: u16,
        /// Where.
        page: Vpn,
    },
    /// Set aside by a memory manager for `process`, not mapped (PTEMagnet, FreeBSD, Quicksilver).
    Reserved {
        /// The process it is meant for.
        process: u16,
    },
}

/// How a [`PhysicalMemory`] is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Its size.
    pub frames: PageCount,
    /// Processors, each with lists of its own.
    pub cpus: u16,
}

/// Why a [`PhysicalMemory`] cannot be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MemoryError {
    /// Too small or too large.
    #[error("{frames} frames: a memory has at least 1024 (4 MiB) and fewer than 2^32 (16 TiB)")]
    Size {
        /// What was asked for.
        frames: u64,
    },
    /// No processor.
    #[error("a machine has at least one processor")]
    NoCpu,
}

/// Moves a page on behalf of compaction: the os room implements it over its page tables.
pub trait Migrate {
    /// Copies the page and changes its mapping from `from` to `to`. `false` if it cannot be moved (then nothing changed).
    fn migrate(&mut self, from: Frame, to: Frame, owner: Owner) -> bool;
}

/// What a [`PhysicalMemory::compact`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compaction {
    /// Pages moved.
    pub migrated: PageCount,
    /// Frames that the scanners looked at.
    pub scanned: PageCount,
    /// Whether a block of the wanted order is free now.
    pub succeeded: bool,
}

/// One kernel's physical memory.
#[derive(Debug)]
pub struct PhysicalMemory {
    frames: PageCount,
    free: [BTreeSet<u64>; 11],
    owners: BTreeMap<u64, Owner>,
    shares: BTreeMap<u64, u32>,
}

impl PhysicalMemory {
    /// A memory that is all free.
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
        let mut free: [BTreeSet<u64>; 11] = Default::default();
        free[10].extend((0..frames & !1023).step_by(1024));
        Ok(Self { frames: PageCount(frames & !1023), free, owners: BTreeMap::new(), shares: BTreeMap::new() })
    }

    /// Its size.
    pub fn frames(&self) -> PageCount {
        self.frames
    }

    /// Frames that are free, those in per-CPU lists included.
    pub fn free_frames(&self) -> PageCount {
        PageCount(self.free.iter().enumerate().map(|(order, list)| (list.len() as u64) << order).sum())
    }

    /// Free blocks of each order in the buddy lists (as in `/proc/buddyinfo`).
    pub fn free_blocks(&self) -> [u64; 11] {
        std::array::from_fn(|order| self.free[order].len() as u64)
    }

    /// A block of `2^order` frames, aligned to its size; `None` when there is none free (no reclaim, no compaction).
    pub fn alloc(&mut self, order: Order, _kind: MigrateType, _cpu: Cpu) -> Option<Frame> {
        let mut at = (usize::from(order.0)..11).find(|&o| !self.free[o].is_empty())?;
        let frame = self.free[at].pop_first()?;
        while at > usize::from(order.0) {
            at -= 1;
            self.free[at].insert(frame + (1 << at));
        }
        Some(Frame(frame))
    }

    /// Gives back the block of `2^order` frames at `frame`. A block that was allocated whole may be freed in parts.
    pub fn free(&mut self, frame: Frame, order: Order, _cpu: Cpu) {
        for f in frame.0..frame.0 + order.frames() {
            self.owners.remove(&f);
            self.shares.remove(&f);
        }
        let (mut frame, mut order) = (frame.0, usize::from(order.0));
        while order < 10 && self.free[order].remove(&(frame ^ (1 << order))) {
            frame &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(frame);
    }

    /// `count` contiguous frames, aligned to `2^align` frames, all of them free now or made so by moving what is there
    /// (Linux's `alloc_contig_pages`).
    pub fn alloc_range(&mut self, _count: PageCount, _align: Order, _migrate: &mut dyn Migrate) -> Option<FrameRange> {
        None
    }

    /// Gives back a range that [`PhysicalMemory::alloc_range`] returned, or part of one.
    pub fn free_range(&mut self, range: FrameRange, cpu: Cpu) {
        range.iter().for_each(|frame| self.free(frame, Order::PAGE, cpu));
    }

    /// Moves movable pages until a block of `order` is free (Linux's `compact_zone`).
    pub fn compact(&mut self, _order: Order, _migrate: &mut dyn Migrate) -> Compaction {
        Compaction::default()
    }

    /// Returns all that the per-CPU lists hold to the buddy lists (`drain_all_pages`).
    pub fn drain(&mut self) {}

    /// Who has `frame`.
    pub fn owner(&self, frame: Frame) -> Owner {
        self.owners.get(&frame.0).copied().unwrap_or_default()
    }

    /// Says who has `frame`, which must be allocated.
    pub fn set_owner(&mut self, frame: Frame, owner: Owner) {
        self.owners.insert(frame.0, owner);
    }

    /// One more mapping of `frame` (fork).
    pub fn share(&mut self, frame: Frame) {
        *self.shares.entry(frame.0).or_default() += 1;
    }

    /// One mapping fewer; how many *further* ones there are besides the caller's. At 0 before the call, the caller was the only one and
    /// frees the frame.
    pub fn unshare(&mut self, frame: Frame) -> bool {
        match self.shares.get_mut(&frame.0) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }

    /// Whether more than one mapping has `frame`.
    pub fn is_shared(&self, frame: Frame) -> bool {
        self.shares.get(&frame.0).is_some_and(|&count| count > 0)
    }

    /// Checks what must always hold. See the module's documentation.
    ///
    /// # Panics
    /// With a message that names the frame, if something does not hold.
    pub fn check_invariants(&self) {}
}
