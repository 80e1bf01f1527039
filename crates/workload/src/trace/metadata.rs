// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a trace as a whole. It is in the file as JSON, so that it can grow without
//! a new version: readers ignore keys that they do not know.

use nestwalk_mem::Reuse;
use serde::{Deserialize, Serialize};

use super::filter::FilterOptions;
use crate::modelled::ModelledSample;

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
