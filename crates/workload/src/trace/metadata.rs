// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a trace as a whole. It is in the file as JSON, so that it can grow without
//! a new version: readers ignore keys that they do not know.

use nestwalk_mem::Reuse;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::filter::FilterOptions;

/// The whole of it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// Name of the program, for tables.
    pub program: String,
    /// The command line that ran.
    pub command: String,
    /// What captured it.
    pub tool: String,
    /// When, if the person who captured it wants that known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// The format that the trace was converted from.
    pub source_format: String,
    /// Accesses in this file.
    pub accesses: u64,
    /// Accesses that the filter absorbed: those of the program that the file stands for are these
    /// and its own.
    #[serde(skip_serializing_if = "is_zero")]
    pub absorbed: u64,
    /// Instructions executed during the accesses in this file, and those that it stands for.
    pub instructions: u64,
    /// First touches in this file (of a sampled trace).
    pub touches: u64,
    /// Events of the capture.
    pub events: u64,
    /// Accesses of the whole program, as far as it was captured.
    pub program_accesses: u64,
    /// Instructions of the whole program, as far as it was captured.
    pub program_instructions: u64,
    /// Threads that appear.
    pub threads: u64,
    /// Distinct 4 KiB pages that an access begins in, over the whole capture.
    pub footprint_pages: u64,
    /// Mappings at the end, in order of address.
    pub vmas: Vec<Vma>,
    /// Ranges that the program uses though the capture does not say that it mapped them. They must
    /// be there from the start.
    pub implied: Vec<Vma>,
    /// How it was sampled; absent if it holds every access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// The filter of the stretches that are filtered; absent if none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<FilterOptions>,
    /// How long before absorbed accesses of measured stretches their lines were used; absent where
    /// none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<Reuse>,
    /// Whether it has accesses to the kernel's half of the address space.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kernel_half: bool,
    /// What is to be known of the source: why it is not whole, what its format lacks, what was left
    /// out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

// What serde calls takes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Vma {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Whether stores are allowed.
    pub writable: bool,
    /// Whether it is private anonymous memory (otherwise of a file, or shared).
    pub anonymous: bool,
}

/// How a trace was sampled.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Windows that the file has.
    pub windows: u64,
    /// Windows left out because the file would have become larger than asked for.
    pub windows_over_budget: u64,
    /// Measured accesses of a window.
    pub window_accesses: u64,
    /// Accesses before the warm-up of which only the last one to each line is kept.
    #[serde(skip_serializing_if = "is_zero")]
    pub collapsed_accesses: u64,
    /// Accesses before them that warm up.
    pub warm_accesses: u64,
    /// Every stretch of so many accesses has one window, at a random place.
    pub stratum_accesses: u64,
    /// The access with which the first stretch begins.
    pub first_access: u64,
    /// What the random places come from.
    pub seed: u64,
    /// What the model of the capture counted; absent if the windows were not chosen by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelled: Option<ModelledSample>,
}

/// What the model of a capture counted, of a sample and of what it is a sample of.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelledSample {
    /// Of the program from [`Sampling::first_access`] on, as far as the model saw that.
    pub program: Modelled,
    /// Of the measured part of each window.
    pub windows: Vec<Modelled>,
}

/// What the model of a capture ([`super::capture::model`]) counted in a part of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Modelled {
    /// Accesses.
    pub accesses: u64,
    /// Misses of its TLB.
    pub walks: u64,
    /// What they cost.
    pub walk_cycles: u64,
    /// What the accesses that the filter kept cost in its caches.
    pub data_cycles: u64,
}

impl Modelled {
    /// Walks an access, walk cycles an access and data cycles an access, as multiples of those of
    /// `all`; 1 where both have none.
    pub fn relative_to(&self, all: &Self) -> [f64; 3] {
        let rate = |sum: u64, of: &Self| sum as f64 / of.accesses.max(1) as f64;
        let relative = |part: fn(&Self) -> u64| {
            let (mine, its) = (rate(part(self), self), rate(part(all), all));
            if mine == its { 1.0 } else { mine / its }
        };
        [relative(|it| it.walks), relative(|it| it.walk_cycles), relative(|it| it.data_cycles)]
    }

    /// All that was counted: of time, but for the instructions and what the filter absorbed.
    pub const fn cycles(&self) -> u64 {
        self.walk_cycles + self.data_cycles
    }

    /// Both together.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            accesses: self.accesses + other.accesses,
            walks: self.walks + other.walks,
            walk_cycles: self.walk_cycles + other.walk_cycles,
            data_cycles: self.data_cycles + other.data_cycles,
        }
    }
}
