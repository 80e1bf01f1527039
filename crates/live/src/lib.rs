// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a running Linux machine shows of itself.
//!
//! So far its processor: [`Leaves`] are CPUID's raw registers, of this processor or recorded from another one;
//! [`Processor::decode`] says what caches and TLBs they describe; [`Sysfs`] is what Linux says of the same; and
//! [`nearest`] names the bundled machine whose file fills in what no register says.
//!
//! Decoding is a pure function of registers, so that recorded ones are its tests.

mod amd;
mod cpuid;
mod descriptors;
mod families;
mod intel;
mod processor;
mod sysfs;

pub use cpuid::{DumpError, Leaves, Registers};
pub use families::{Nearest, nearest};
pub use processor::{Cache, CacheKind, Processor, Tlb, TlbPages};
pub use sysfs::{Sysfs, SysfsCache};
