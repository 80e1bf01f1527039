// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hardware between the TLBs and a walk: a technique is one file here.
//!
//! Such a file has the technique's keys with their ranges, its counters, and the hardware itself. Beside it, a technique is
//! an arm of [`AcceleratorConfig`], a line in [`KEYS`], a field of [`Counters`](crate::Counters), and an arm where a machine
//! makes its cores. What it is told and what it may do is the trait [`Prefetcher`](crate::Prefetcher).

pub mod asap;
pub mod pom_tlb;

use nestwalk_mem::keys::Key;
use serde::{Deserialize, Serialize};

use pom_tlb::PomTlbConfig;

/// Hardware that the TLBs ask before a walk begins. None if nothing is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AcceleratorConfig {
    /// POM-TLB (Ryoo et al., ISCA 2017): a third-level TLB in memory, whose sets are lines of the data caches.
    PomTlb(PomTlbConfig),
}

impl AcceleratorConfig {
    /// Memory that it takes, above the memory of the lowest kernel.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::PomTlb(config) => config.size,
        }
    }
}

/// The numbers of a scenario that techniques declare.
pub const KEYS: [&[Key]; 2] = [asap::KEYS, pom_tlb::KEYS];
