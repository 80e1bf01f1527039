// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory as hardware and a kernel's lowest layer see it.
//!
//! None of it knows processes, faults or caches:
//! - [`addr`]: unit types for addresses and page numbers, so that no bare integer crosses a
//!   function as an address; [`time`]: one for nanoseconds;
//! - [`page_table`]: radix tables of any [`Geometry`], with pages in simulated physical memory;
//! - [`sorted_regions`]: where a running kernel says that its page tables lie in order;
//! - [`physical`]: one kernel's physical memory: Linux's buddy allocator with per-CPU lists.
//!
//! And [`reason()`]: how all that read and write files say why that failed.

pub mod access;
pub mod addr;
pub mod aligned;
pub mod counters;
pub mod geometry;
pub mod huge;
pub mod keys;
pub mod page_table;
pub mod physical;
pub mod prefetch;
mod reason;
pub mod reuse;
pub mod schema;
pub mod size;
pub mod sorted_regions;
pub mod time;

pub use access::{Access, Dependence};
pub use addr::{Frame, FrameRange, Gfn, Gpa, Gva, Gvn, Hpa, Pa, PageCount, Pfn, Va, Vpn, VpnRange};
pub use geometry::{CONTIGUOUS_ORDER, CONTIGUOUS_PAGES, Geometry, Level, PageSize};
pub use page_table::{Entry, EntrySlot, Leaf, NodeId, PageTable, Version, Write};
pub use physical::{Cpu, MigrateType, Order, Owner, PhysicalMemory};
pub use reason::reason;
pub use reuse::{Reuse, ReuseCell, ReuseTimes};
pub use sorted_regions::SortedRegion;
pub use time::{Cycles, Nanoseconds};
