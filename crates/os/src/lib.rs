// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one kernel: processes, mappings, page faults, and memory managers.
//!
//! A machine runs one [`Kernel`] (native), two (a guest over a host) or three (nested
//! virtualisation). They are all of the same type: a VM is a [process](Kernel::host_vm) of its host
//! whose memory is one mapping, and [`HostMemory`] turns a guest frame that the host has not mapped
//! into a page fault of the host. What a policy does at one level it does at every level.
//!
//! - [`manager`]: how user memory is managed, one file a technique, stated along five events;
//! - [`tables`]: where page-table nodes are put, one file a technique;
//! - [`fragmentation`]: how far the host's page table is scattered, as the papers measure it;
//! - [`frozen`]: a process whose page table is that of a real kernel;
//! - [`op`]: a language of operations that drives tests, fuzzing and replays.
//!
//! Everything is deterministic: the same configuration and the same calls give the same frames.

pub mod alignment;
pub mod below;
pub mod config;
pub mod context;
pub mod counters;
pub mod error;
pub mod fragmentation;
pub mod id;
pub mod kernel;
mod keys;
pub mod manager;
pub mod op;
pub mod shadow;
pub mod state;
pub mod tables;

pub use nestwalk_cloud::AllocatorKind;

pub use below::{Bare, Below, Hypercall, HypercallReply};
pub use config::{KernelConfig, StartState};
pub use context::Context;
pub use counters::OsCounters;
pub use error::OsError;
pub use id::{FileId, FileName, ProcessId};
pub use kernel::Kernel;
pub use kernel::fault::FaultKind;
pub use kernel::frozen::{FrozenLeaf, FrozenNode, FrozenTable};
pub use kernel::host_memory::HostMemory;
pub use kernel::madvise::Advice;
pub use manager::{ManagerConfig, MemoryManager};
pub use shadow::memory::ShadowedMemory;
pub use shadow::{Filled, Miss, Shadows};
pub use state::files::Files;
pub use state::invalidation::{Invalidation, Scope};
pub use state::process::WalkTime;
pub use state::vma::{FileView, HugeAdvice, Vma, VmaFlags, VmaKind};
pub use tables::{TablePlacement, TableRegion, TablesConfig};

/// The tutorial's code is run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/add-a-memory-manager.md")]
struct Tutorial;
