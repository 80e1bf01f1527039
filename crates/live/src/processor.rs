// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a processor of any vendor says of itself.

use serde::Serialize;

/// A processor as its CPUID describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Processor {
    /// Who made it: `"GenuineIntel"`, `"AuthenticAMD"`; as CPUID writes it.
    pub vendor: String,
    /// The name it gives itself; may be empty or cut short in a VM.
    pub brand: String,
    /// Family, with the extended family added.
    pub family: u32,
    /// Model, with the extended model before it.
    pub model: u32,
    /// Stepping.
    pub stepping: u32,
    /// The hypervisor's signature, such as `"KVMKVMKVM"`, if CPUID says that there is one. It may
    /// have masked the rest.
    pub hypervisor: Option<String>,
    /// Frequency without turbo, MHz, if CPUID says (Intel's leaf 16h).
    pub base_mhz: Option<u32>,
    /// Highest frequency of a core, MHz, if CPUID says (Intel's leaf 16h).
    pub max_mhz: Option<u32>,
    /// Data and unified caches, nearest first.
    pub caches: Vec<Cache>,
    /// Arrays of TLBs that loads use, nearest first.
    pub tlbs: Vec<Tlb>,
    /// Whether CPUID was asked for the TLBs of 1 GiB pages and answered; a hypervisor may mask that
    /// leaf on its own.
    pub giant_tlb_known: bool,
    /// What could not be read, or had to be interpreted: a sentence each.
    pub notes: Vec<String>,
}

/// What a cache holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Data and code.
    Unified,
}

/// A data or unified cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Cache {
    /// 1 is next to the core.
    pub level: u8,
    /// What it holds.
    pub kind: CacheKind,
    /// Its size in bytes.
    pub bytes: u64,
    /// Ways of a set; all lines, if it is fully associative.
    pub ways: u32,
    /// Whether it holds all that the levels before it hold; none where that is not known.
    pub inclusive: Option<bool>,
    /// Where CPUID says so.
    pub source: String,
}

/// A page size of an array.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub enum TlbPages {
    /// 4 KiB.
    #[serde(rename = "4KiB")]
    Small,
    /// 2 MiB.
    #[serde(rename = "2MiB")]
    Huge,
    /// 1 GiB.
    #[serde(rename = "1GiB")]
    Giant,
}

impl TlbPages {
    /// All sizes, smallest first.
    pub const ALL: [Self; 3] = [Self::Small, Self::Huge, Self::Giant];
}

/// One array of a TLB that serves loads.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Tlb {
    /// 1 is next to the core.
    pub level: u8,
    /// The sizes of the pages that it holds.
    pub sizes: Vec<TlbPages>,
    /// Entries in all.
    pub entries: u32,
    /// Ways of a set; all entries, if it is fully associative.
    pub ways: u32,
    /// Where CPUID says so.
    pub source: String,
}
