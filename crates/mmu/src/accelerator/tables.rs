// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an accelerator that walks tables of its own is told, and says.

use nestwalk_mem::{Hpa, PageTable, Vpn};

/// The tables that a walker walks.
#[derive(Debug)]
pub enum Tables<'a> {
    /// One.
    One(&'a mut PageTable),
    /// One over another.
    Two {
        /// The program's.
        guest: &'a mut PageTable,
        /// The one below.
        host: &'a mut PageTable,
        /// The page of the lower one at which the memory of the upper one begins.
        base: Vpn,
    },
    /// Something else.
    Other,
}

/// A reference of a walk through tables of an accelerator's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// What is read.
    pub hpa: Hpa,
    /// Where it is counted.
    pub code: u8,
    /// Whether it is to the host's table.
    pub host: bool,
    /// Whether the walk waits for it. The other references go on beside the walk, and take none of
    /// its time.
    pub waits: bool,
}

/// Cycles of look-ups in structures of the walker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lookups {
    /// For the program's table.
    pub guest: u32,
    /// For the host's.
    pub host: u32,
}
