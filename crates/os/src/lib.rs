// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one kernel: processes, mappings, page faults, and memory managers.
//!
//! A machine runs one [`Kernel`] (native), two (a guest over a host) or three (nested virtualisation). They are all of
//! the same type: a VM is a [process](Kernel::host_vm) of its host whose memory is one mapping, and [`HostMemory`]
//! turns a guest frame that the host has not mapped into a page fault of the host. What a policy does at one level it
//! does at every level.
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
pub mod collapse;
pub mod config;
pub mod context;
pub mod counters;
pub mod error;
mod fault;
mod fork;
pub mod fragmentation;
pub mod frozen;
mod gather;
mod hypercall;
pub mod invalidation;
pub mod kernel;
mod madvise;
pub mod manager;
mod mappings;
mod migrate;
mod mremap;
pub mod op;
pub mod process;
mod reclaim;
mod segments;
pub mod shadow;
mod start;
pub mod state;
pub mod tables;
mod unmap;
pub mod vma;

pub use nestwalk_cloud::AllocatorKind;

pub use below::{Bare, Below, HostMemory, Hypercall, HypercallReply};
pub use config::{KernelConfig, StartState};
pub use context::Context;
pub use counters::OsCounters;
pub use error::OsError;
pub use fault::FaultKind;
pub use frozen::{FrozenLeaf, FrozenNode, FrozenTable};
pub use invalidation::{Invalidation, Scope};
pub use kernel::Kernel;
pub use madvise::Advice;
pub use manager::{ManagerConfig, MemoryManager};
pub use process::ProcessId;
pub use shadow::{Filled, Miss, ShadowedMemory, Shadows};
pub use tables::{TablePlacement, TableRegion, TablesConfig};
pub use vma::{HugeAdvice, Vma, VmaFlags, VmaKind};

/// The tutorial's code is run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/add-a-memory-manager.md")]
struct Tutorial;
