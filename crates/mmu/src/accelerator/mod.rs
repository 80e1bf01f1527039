// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hardware between the TLBs and a walk: a technique is one file here.
//!
//! Such a file has the technique's keys with their ranges, its counters, and the hardware itself. Beside it, a
//! technique is an arm of [`AcceleratorConfig`], a line in [`KEYS`], a field of
//! [`Counters`](crate::Counters), and an arm where a machine makes its cores. What it is told and what it may do
//! is the trait [`Accelerator`]: it prefetches lines while a walk goes on (ASAP), or answers in place of the walk
//! (POM-TLB).

pub mod asap;
pub mod pom_tlb;
pub mod prefetch;

use nestwalk_mem::keys::Key;
use nestwalk_mem::{Gpa, Gva, Gvn, Hpa, VpnRange};
use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::mapping::Mapping;
use crate::processor::Asid;

use pom_tlb::PomTlbConfig;
use prefetch::Issue;

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

/// Hardware that sees TLB misses and walks: what it is told, and what it may do. All of it is compiled away where there is
/// none.
pub trait Accelerator {
    /// Whether it ever prefetches.
    const ACTIVE: bool = false;
    /// Whether it ever answers in place of a walk.
    const TRANSLATES: bool = false;

    /// A walk for `gva` begins. `issue` takes the lines to prefetch.
    #[inline(always)]
    fn walk_starts(&mut self, gva: Gva, issue: &mut Issue<'_>) {
        let _ = (gva, issue);
    }

    /// Inside a nested walk, the host walk for `gpa` begins.
    #[inline(always)]
    fn host_walk_starts(&mut self, gpa: Gpa, issue: &mut Issue<'_>) {
        let _ = (gpa, issue);
    }

    /// The TLBs have no translation of `page` for a load, or a `store`. Each line that it reads goes to `refer`. What it
    /// does is counted if `counted`; where only the TLBs are simulated it is not.
    #[inline(always)]
    fn look_up(&mut self, page: Gvn, store: bool, counted: bool, refer: impl FnMut(Hpa)) -> Option<Found> {
        let _ = (page, store, counted, refer);
        None
    }

    /// A walk found `mapping` for `page`, which it had no translation of.
    #[inline(always)]
    fn learn(&mut self, page: Gvn, mapping: Mapping, counted: bool) {
        let _ = (page, mapping, counted);
    }

    /// The core switches to another process (`guest`) and another VM (`host`).
    fn switch_to(&mut self, guest: Asid, host: Asid) {
        let _ = (guest, host);
    }

    /// Translations of `pages` of the process in use go.
    fn invalidate(&mut self, pages: VpnRange) {
        let _ = pages;
    }

    /// All translations of the process in use go.
    fn flush(&mut self) {}

    /// All translations go.
    fn flush_all(&mut self) {}

    /// Writes what it counted into a core's snapshot.
    fn count(&self, counters: &mut Counters) {
        let _ = counters;
    }

    /// Exchanges what it counted with its part of `counters`.
    fn exchange_counters(&mut self, counters: &mut Counters) {
        let _ = counters;
    }

    /// Moves the events that are its own from where a core counts them to its part of a snapshot.
    fn take_events(counters: &mut Counters) {
        let _ = counters;
    }

    /// Checks what must always hold.
    fn check_invariants(&self) {}
}

/// What an accelerator answers in place of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The translation; of a store, with its dirty bit.
    pub mapping: Mapping,
    /// Whether this is the first store to it, as far as is known here: the dirty bits of the leaves behind it are to be set.
    pub first_store: bool,
}

/// No such hardware.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAccelerator;

impl Accelerator for NoAccelerator {}
