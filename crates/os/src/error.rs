// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a kernel cannot do what it was asked for.

use nestwalk_cloud::AllocatorKind;
use nestwalk_mem::physical::{MemoryError, SavedError};
use nestwalk_mem::{Cpu, Frame, PageCount, Vpn, VpnRange};

use crate::id::ProcessId;

/// Why a kernel cannot do what it was asked for.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum OsError {
    /// There is no such process (any more).
    #[error("there is no process {}", .0.0)]
    NoProcess(ProcessId),
    /// All process numbers are in use.
    #[error("all {0} process numbers are in use: let processes exit first")]
    TooManyProcesses(u32),
    /// The kernel has no such processor.
    #[error("there is no processor {}: the kernel has {cpus}, give it more (`cpus`)", cpu.0)]
    NoCpu {
        /// Which.
        cpu: Cpu,
        /// How many there are.
        cpus: u16,
    },
    /// An access outside all mappings.
    #[error("process {} has nothing mapped at page {:#x}", process.0, page.0)]
    Segfault {
        /// Whose access.
        process: ProcessId,
        /// Where.
        page: Vpn,
    },
    /// A store into a mapping that is read-only.
    #[error("process {} may not store to page {:#x}: its mapping is read-only", process.0, page.0)]
    ReadOnly {
        /// Whose access.
        process: ProcessId,
        /// Where.
        page: Vpn,
    },
    /// A range is empty, or lies outside of what the page table can map.
    #[error("pages {:#x}..{:#x} are empty or outside of the address space", .0.start.0, .0.end.0)]
    BadRange(VpnRange),
    /// The address space has no gap that is large enough.
    #[error("no gap of {} pages is left in the address space", .0.0)]
    NoAddressSpace(PageCount),
    /// No frame is free, and reclaim found nothing to give back.
    #[error("out of memory: {} of {} frames are free, and nothing can be reclaimed", free.0, all.0)]
    OutOfMemory {
        /// Frames still free (the reserve below the lowest watermark).
        free: PageCount,
        /// All frames of this kernel.
        all: PageCount,
    },
    /// What lies under this kernel's physical memory cannot back a frame.
    #[error("the host cannot back guest frame {:#x}: {source}", frame.0)]
    Host {
        /// The frame of this kernel.
        frame: Frame,
        /// What the host says.
        source: Box<OsError>,
    },
    /// The physical memory cannot be made.
    #[error("physical memory: {0}")]
    Memory(#[from] MemoryError),
    /// A saved memory cannot be taken.
    #[error("saved memory: {0}")]
    Saved(#[from] SavedError),
    /// The memory cannot be exchanged while processes use it.
    #[error("the memory is in use: restore a saved one before the first process begins")]
    MemoryInUse,
    /// The allocator does not give whole segments.
    #[error("the allocator {0:?} does not give whole segments: choose one that does")]
    NotWhole(AllocatorKind),
    /// A value in the configuration is impossible.
    #[error("kernel configuration, `{key}`: {what}")]
    Config {
        /// The key.
        key: &'static str,
        /// What is wrong and what would be right.
        what: String,
    },
}
