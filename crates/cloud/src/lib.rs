// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cloud above the hosts: how a hypervisor chooses the memory of a VM, and a scheduler its
//! host.
//!
//! Compromis (Teabe et al., VEE 2021) translates a VM's memory by registers, one pair for each
//! contiguous segment of host memory. Whether a VM gets few segments depends on two choices, and
//! both are here:
//! - [`allocator`]: which free memory of a host a VM gets: Compromis' two options, Xen's buddy
//!   allocator, Linux with a pool of 1 GiB pages, best fit and first fit;
//! - [`scheduler`]: which host a VM is put on: a model of Nova's filter scheduler, ImprovPlacement,
//!   and plain fits.
//!
//! [`fleet`] describes the hosts, [`request`] the VMs, and [`replay()`] runs a trace of VMs over a
//! fleet and counts.
//!
//! What the crate promises
//! - The same fleet, requests and options give the same [`ReplayResult`] to the last bit. Measured
//!   times are kept apart ([`Timing`]).
//! - Every VM has exactly one outcome: placed, unplaced (no host had room at that time) or refused
//!   (larger than any host).
//! - Placing a VM does not take time linear in the number of hosts ([`scheduler`] says how, and
//!   when it does after all).
//!
//! It reads no files: loaders of traces and fleets are in the Python package.

pub mod allocator;
pub mod bench;
pub mod error;
pub mod extent;
pub mod fleet;
pub mod host;
pub mod memory_map;
pub mod replay;
pub mod request;
pub mod scheduler;

pub use allocator::hugetlb::HugetlbOptions;
pub use allocator::xen::{Split, XenOptions};
pub use allocator::{AllocatorKind, SegmentAllocator};
pub use error::CloudError;
pub use extent::{CountingRule, Extent};
pub use fleet::{Fleet, HostGroup};
pub use host::{Host, HostId, HostOptions};
pub use memory_map::{Hole, HoleKind, MemoryMap};
pub use replay::{
    Demand, DynamicOptions, Migration, Options, Outcome, Progress, Replay, ReplayResult, Timing, VmOutcome, Work,
    demand, replay,
};
pub use request::{Departure, Resize, ResizeHow, VmRequest};
pub use scheduler::{Policy, SchedulerOptions};
