// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of processes.

/// A process of one kernel. Numbers are handed out in a circle, as Linux does, so that one that has
/// exited is not soon used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize)]
#[repr(transparent)]
pub struct ProcessId(pub u16);
