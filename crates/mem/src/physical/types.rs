// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of a physical memory: orders, processors, migrate types, owners.

use crate::addr::{Frame, PageCount, Vpn};

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

/// What a frame is used for, as far as a page allocator that knows no process can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameUse {
    /// For nothing.
    Free = 0,
    /// For pages that can be moved: [`Owner::Cache`].
    Cache = 1,
    /// By the kernel itself: [`Owner::Kernel`].
    Kernel = 2,
}

impl FrameUse {
    /// The owner of a frame that is used so; a free one has none.
    pub(super) const fn owner(self) -> Option<Owner> {
        match self {
            Self::Free => None,
            Self::Cache => Some(Owner::Cache),
            Self::Kernel => Some(Owner::Kernel),
        }
    }
}

/// How much of a memory is in use, and by whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InUse {
    /// Pages of the page cache.
    pub cache: PageCount,
    /// The kernel's own.
    pub kernel: PageCount,
}

/// Who has an allocated frame: the reverse mapping that migration and reclaim follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Owner {
    /// Not known (yet). Cannot be moved.
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
        /// Where: at most 45 bits, a page of a 57-bit address.
        page: Vpn,
    },
    /// Set aside by a memory manager for `process`, not mapped (PTEMagnet, FreeBSD, Quicksilver).
    Reserved {
        /// The process it is meant for.
        process: u16,
    },
    /// A clean page of the page cache that no process maps. Moving it needs no [`Migrate`], and it
    /// can be dropped ([`PhysicalMemory::drop_cache`](super::PhysicalMemory::drop_cache)).
    Cache,
    /// A page of a file in the page cache. Can be moved however often it is mapped.
    File {
        /// The file, below 2^24.
        file: u32,
        /// Which of its pages, below 2^37.
        page: u64,
    },
}

impl Owner {
    const PAGE_BITS: u32 = 45;
    const PROCESS_SHIFT: u32 = Self::PAGE_BITS;
    const TAG_SHIFT: u32 = Self::PROCESS_SHIFT + 16;
    const FILE_PAGE_BITS: u32 = 37;
    const FILE_BITS: u32 = Self::TAG_SHIFT - Self::FILE_PAGE_BITS;

    /// Eight bytes: three bits of tag, the process, the page. All zeroes is [`Owner::Unknown`], as
    /// in fresh metadata.
    #[inline(always)]
    pub(super) fn pack(self) -> u64 {
        let (tag, process, page) = match self {
            Self::Unknown => (0, 0, 0),
            Self::Kernel => (1, 0, 0),
            Self::TableNode { process } => (2, process, 0),
            Self::Page { process, page } => (3, process, page.0),
            Self::Reserved { process } => (4, process, 0),
            Self::Cache => (5, 0, 0),
            Self::File { file, page } => return Self::pack_file(file, page),
        };
        assert!(page >> Self::PAGE_BITS == 0, "{page:#x} is no page of a 57-bit address");
        tag << Self::TAG_SHIFT | u64::from(process) << Self::PROCESS_SHIFT | page
    }

    fn pack_file(file: u32, page: u64) -> u64 {
        assert!(file >> Self::FILE_BITS == 0, "file {file} is beyond the files that a kernel can have");
        assert!(page >> Self::FILE_PAGE_BITS == 0, "{page:#x} is no page of a file of 2^49 bytes");
        6 << Self::TAG_SHIFT | u64::from(file) << Self::FILE_PAGE_BITS | page
    }

    /// The inverse of [`Owner::pack`].
    #[inline(always)]
    pub(super) fn unpack(bits: u64) -> Self {
        let process = (bits >> Self::PROCESS_SHIFT) as u16;
        match bits >> Self::TAG_SHIFT {
            0 => Self::Unknown,
            1 => Self::Kernel,
            2 => Self::TableNode { process },
            3 => Self::Page { process, page: Vpn(bits & ((1 << Self::PAGE_BITS) - 1)) },
            4 => Self::Reserved { process },
            5 => Self::Cache,
            6 => Self::File {
                file: (bits >> Self::FILE_PAGE_BITS) as u32 & ((1 << Self::FILE_BITS) - 1),
                page: bits & ((1 << Self::FILE_PAGE_BITS) - 1),
            },
            tag => unreachable!("owner tag {tag}"),
        }
    }

    /// Whether the frame is on an LRU list of Linux, so that compaction may take it (`PageLRU`).
    #[inline]
    pub(super) fn is_movable(self) -> bool {
        matches!(self, Self::Page { .. } | Self::Cache | Self::File { .. })
    }
}

/// How a [`PhysicalMemory`](super::PhysicalMemory) is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Its size.
    pub frames: PageCount,
    /// Processors, each with lists of its own.
    pub cpus: u16,
    /// Frames that are kept free (sysctl `min_free_kbytes`), which sets all watermarks and the
    /// length of the per-CPU lists.
    pub min_free: PageCount,
}

impl MemoryConfig {
    /// A memory of which as much is kept free as Linux does without huge pages.
    pub fn new(frames: PageCount, cpus: u16) -> Self {
        Self { frames, cpus, min_free: super::least_min_free(frames) }
    }
}

/// Why a [`PhysicalMemory`](super::PhysicalMemory) cannot be made.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
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
    /// Copies the page and changes its mapping (of a page of a file: all its mappings) from `from`
    /// to `to`. `false` if it cannot be moved (then nothing changed).
    fn migrate(&mut self, from: Frame, to: Frame, owner: Owner) -> bool;
}

/// What a [`PhysicalMemory::compact`](super::PhysicalMemory::compact) did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compaction {
    /// Pages moved.
    pub migrated: PageCount,
    /// Frames that the scanners looked at.
    pub scanned: PageCount,
    /// Whether a block of the wanted order is free now.
    pub succeeded: bool,
    /// Whether nothing was tried, since too little memory is free, or its fragmentation is not what
    /// ails (`COMPACT_SKIPPED`).
    pub skipped: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_survives_packing_at_its_limits() {
        let owners = [
            Owner::Unknown,
            Owner::Kernel,
            Owner::TableNode { process: u16::MAX },
            Owner::Page { process: 0, page: Vpn(0) },
            Owner::Page { process: u16::MAX, page: Vpn((1 << 45) - 1) },
            Owner::Reserved { process: 7 },
            Owner::Cache,
            Owner::File { file: 0, page: 0 },
            Owner::File { file: (1 << 24) - 1, page: (1 << 37) - 1 },
        ];
        owners.iter().for_each(|&owner| assert_eq!(Owner::unpack(owner.pack()), owner));
        assert_eq!(Owner::Unknown.pack(), 0, "fresh metadata must read as Unknown");
    }

    #[test]
    #[should_panic(expected = "no page of a 57-bit address")]
    fn an_owner_page_beyond_57_bits_is_refused() {
        Owner::Page { process: 0, page: Vpn(1 << 45) }.pack();
    }
}
