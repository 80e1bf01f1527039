// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hardware between the TLBs and a walk: a technique is one file here.
//!
//! Such a file has the technique's keys with their ranges, its counters, and the hardware itself.
//! Beside it, a technique is an arm of [`AcceleratorConfig`], a line in [`KEYS`], a field of
//! [`Counters`](crate::Counters), which [`AcceleratorCounters`](crate::AcceleratorCounters) finds
//! by its type, and an arm where a machine makes its cores. What it is told and
//! what it may do is the trait [`Accelerator`]: it prefetches lines while a walk goes on (ASAP),
//! answers in place of the walk (POM-TLB), or walks other tables (elastic cuckoo page tables).

pub mod asap;
pub mod cuckoo;
pub mod pom_tlb;
pub mod prefetch;
pub mod tables;

use nestwalk_mem::keys::Key;
use nestwalk_mem::{Gpa, Gva, Gvn, Hpa, VpnRange};
use serde::{Deserialize, Serialize};

use crate::events::WalkEvents;
use crate::key::Asid;
use crate::mapping::Mapping;

use cuckoo::CuckooConfig;
use pom_tlb::PomTlbConfig;
use prefetch::Issue;
use tables::{Lookups, Probe, Tables};

/// Hardware that the TLBs ask before a walk begins, or in place of it. None by default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AcceleratorConfig {
    /// POM-TLB (Ryoo et al., ISCA 2017): a third-level TLB in memory, whose sets are lines of the
    /// data caches.
    PomTlb(PomTlbConfig),
    /// Elastic cuckoo page tables (Skarlatos et al., ASPLOS 2020; nested: Stojkovic et al., ASPLOS
    /// 2022): the hardware walks hashed tables in place of the kernels' radix tables.
    ElasticCuckoo(CuckooConfig),
}

impl AcceleratorConfig {
    /// Memory that is set aside for it, above that of the lowest kernel, which ends at `end`.
    pub fn memory_bytes(&self, end: Hpa) -> u64 {
        match self {
            Self::PomTlb(config) => config.size,
            // Of each page there is a small part in it, and some MiB a process.
            Self::ElasticCuckoo(_) => end.0 + (1 << 30),
        }
    }
}

/// The numbers of a scenario that techniques declare.
pub const KEYS: [&[Key]; 3] = [asap::KEYS, pom_tlb::KEYS, cuckoo::KEYS];

/// Hardware that sees TLB misses and walks: what it is told, and what it may do. All of it is
/// compiled away where there is none.
pub trait Accelerator {
    /// Whether it ever prefetches.
    const ACTIVE: bool = false;
    /// Whether it ever answers in place of a walk.
    const TRANSLATES: bool = false;
    /// Whether it walks tables of its own in place of the kernels'.
    const WALKS: bool = false;

    /// What it counts: a [part of all counters](crate::counters::AcceleratorCounters).
    type Counters;

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

    /// The TLBs have no translation of `page` for a load, or a `store`. Each line that it reads
    /// goes to `refer`. What it does is counted if `counted`; where only the TLBs are simulated it
    /// is not.
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

    /// Accesses to these tables begin. Kernels may have changed them since the last time.
    fn take_in(&mut self, tables: Tables<'_>) {
        let _ = tables;
    }

    /// Walks for `gva`; each line that it reads goes to `probe`. The translation has been found in
    /// `tables`, if the walk `ends_well`.
    fn walk(&mut self, gva: Gva, tables: Tables<'_>, ends_well: bool, probe: impl FnMut(Probe)) -> Lookups {
        let _ = (gva, tables, ends_well, probe);
        Lookups::default()
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

    /// What it has counted, if it counts anything.
    fn counters(&self) -> Option<&Self::Counters> {
        None
    }

    /// The same, to be exchanged.
    fn counters_mut(&mut self) -> Option<&mut Self::Counters> {
        None
    }

    /// Moves the events that are its own from where a core counts them to what it counted itself.
    fn take_events(events: &mut WalkEvents, counters: &mut Self::Counters) {
        let _ = (events, counters);
    }

    /// Checks what must always hold.
    fn check_invariants(&self) {}
}

/// What an accelerator answers in place of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The translation; of a store, with its dirty bit.
    pub mapping: Mapping,
    /// Whether this is the first store to it, as far as is known here: the dirty bits of the leaves
    /// behind it are to be set.
    pub first_store: bool,
}

/// No such hardware.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAccelerator;

impl Accelerator for NoAccelerator {
    type Counters = ();
}
