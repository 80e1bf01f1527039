// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a running Linux machine shows of itself.
//!
//! A process: [`inspect`] says in one pass over its pages what page walks have to deal with
//! (contiguity, fragmentation of the host's page table, large pages). What it knows it knows from a
//! [`Source`]: a running [`Process`], or a [`Recording`].
//!
//! The processor: [`Leaves`] are CPUID's raw registers, of this processor or recorded from another
//! one; [`Processor::decode`] says what caches and TLBs they describe; [`Sysfs`] is what Linux says
//! of the same; and [`nearest`] names the bundled machine whose file fills in what no register
//! says.
//!
//! Decoding is a pure function of registers, so that recorded ones are its tests.

mod amd;
#[cfg(target_os = "linux")]
pub mod bench;
mod cpuid;
mod decode;
mod descriptors;
mod error;
mod families;
pub mod frames;
mod groups;
mod huge;
mod inspection;
mod intel;
mod known;
pub mod kpageflags;
pub mod maps;
#[cfg(target_os = "linux")]
mod pagemap;
#[cfg(target_os = "linux")]
pub mod probe;
#[cfg(target_os = "linux")]
mod process;
mod processor;
mod recording;
mod runs;
mod settings;
mod sorted;
mod source;
mod stats_fd;
#[cfg(target_os = "linux")]
mod stats_file;
mod status;
mod strip;
mod sysfs;
mod tables;
#[cfg(test)]
mod testing;
mod vm;
pub mod words;

pub use cpuid::{DumpError, Leaves, Registers};
pub use error::InspectError;
pub use families::{Nearest, nearest};
pub use groups::{Coalescing, Distribution, Fragmentation};
pub use huge::{FewUsed, Fill, HugePages, LargeFolios};
pub use inspection::{Inspection, Listed, Mappings, Memory, Options, inspect};
pub use known::Known;
#[cfg(target_os = "linux")]
pub use process::Process;
pub use processor::{Cache, CacheKind, Processor, Tlb, TlbPages};
pub use recording::{Recorder, Recording};
pub use runs::{Bucket, Contiguity, Histogram};
pub use settings::{Buddy, Khugepaged, Mthp, Settings, buddyinfo};
pub use sorted::{SortedTables, sorted_lines};
pub use source::{Entry, Leaf, Piece, Source, Visibility};
pub use stats_fd::parse as kvm_statistics;
pub use status::Status;
pub use strip::Cell;
pub use sysfs::{Sysfs, SysfsCache};
pub use tables::PageTables;
pub use vm::{Cause, Host, Ksm, Kvm, Leaves as EptLeaves, Verdict, Vm, VmmMemory, rollup};
