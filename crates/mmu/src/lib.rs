// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory-management unit: what happens between a program's access and the memory that serves
//! it.
//!
//! A [`Core`] has TLBs, page-walk caches, an optional nested TLB and private data caches; cores
//! share an [`Llc`]. Its input is a slice of accesses and a [`Walker`], which translates virtual
//! addresses to host-physical ones:
//! - [`Native`]: one page table;
//! - [`Nested`]: a guest table whose nodes and pages lie in guest-physical memory, over a host
//!   table.
//!
//! Every step of a walk is a reference that goes through the caches and competes there with the
//! program's data. The [`Counters`] say how many there were, which step of which walk each one was,
//! and what served it.
//!
//! The core handles no page faults. [`Core::run`] stops *before* the access that needs one and says
//! which; the machine asks the kernel in question and goes on from there.
//!
//! Promises: true LRU everywhere, to the last entry; the same accesses on the same tables give the
//! same counters to the last bit, however they are cut into batches; nothing is allocated per
//! access.

mod absorbed;
pub mod accelerator;
mod any_walker;
mod cache;
mod clustered;
mod config;
mod contiguous;
mod corunner;
mod counters;
mod engine;
mod error;
mod events;
mod evictions;
mod filtered;
mod frequency;
mod hierarchy;
mod key;
mod latency;
mod leaf;
mod levels;
mod llc;
mod lru;
mod mapping;
mod memo;
mod native;
mod nested;
mod play;
mod processor;
mod recent_pages;
mod run;
mod segmented;
mod segments;
mod sets;
mod simd;
mod stages;
mod tape;
mod tasks;
mod tlb;
mod tlb_level;
mod walk_cache;
mod walk_unit;
mod walker;

pub use accelerator::asap::{Asap, AsapHardware, Levels, RegisterCounters, SortedNodes};
pub use accelerator::cuckoo::{Cuckoo, CuckooConfig, CuckooCounters};
pub use accelerator::pom_tlb::{PomTlb, PomTlbConfig, PomTlbCounters};
pub use accelerator::prefetch::{InFlight, Issue, PrefetchCounters};
pub use accelerator::tables::{Lookups, Probe, Tables};
pub use accelerator::{Accelerator, AcceleratorConfig, Found, NoAccelerator};
pub use cache::Cache;
pub use clustered::Group;
pub use config::{
    CacheConfig, Contiguous, LlcConfig, LlcPolicy, MmuConfig, NestedTlbConfig, PwcConfig, PwcRules, TlbConfig,
    TlbReplacement, WaysConfig,
};
pub use contiguous::ContiguousCounters;
pub use corunner::CoRunner;
pub use counters::{AcceleratorCounters, Counters, Taken};
pub use engine::{Engine, EngineWalker, SeenBy};
pub use error::MmuError;
pub use events::{Served, Table, WalkEvents};
pub use filtered::Accesses;
pub use hierarchy::{CacheCounters, PrivateCaches};
pub use key::Asid;
pub use latency::LatencyHistogram;
pub use llc::Llc;
pub use mapping::Mapping;
pub use native::Native;
pub use nested::Nested;
pub use processor::{Account, Core, RunEnd};
pub use segmented::Segmented;
pub use segments::{SegmentCounters, Segments, SegmentsError};
pub use simd::Simd;
pub use tlb::{TlbCounters, Tlbs};
pub use walk_cache::{NestedTlb, NestedTlbCounters, PwcCounters, WalkCache};
pub use walk_unit::WalkUnit;
pub use walker::{Fault, Walker};
