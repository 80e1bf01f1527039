// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far a run is, for its caller.

use std::ops::ControlFlow;

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Accesses simulated.
    pub accesses: u64,
    /// Accesses that there will be, if known.
    pub accesses_total: Option<u64>,
    /// Pages that first touches of skipped stretches brought in.
    pub populated_pages: u64,
}

/// Told from time to time how far a run is; `Break` ends it.
pub type OnProgress<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;
