// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether what was once read from a table still holds.

use std::sync::atomic::{AtomicU64, Ordering};

/// Which table it is, and how often something that was true of it ceased to be. Two equal versions
/// say that all nodes are where they were, and that each leaf that was there is still the same, but
/// for the accessed and dirty bits that hardware sets. Pages and nodes may have been added
/// meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Version {
    /// Differs from that of every other table of this process; a clone is another table. Never 0.
    pub table: u64,
    /// How often a node was removed or moved.
    pub node_changes: u64,
    /// How often a leaf was changed or taken away by software.
    pub leaf_changes: u64,
}

/// What a table has to itself: a clone gets another one.
#[derive(Debug)]
pub(super) struct Identity(u64);

impl Identity {
    pub fn new() -> Self {
        static TABLES: AtomicU64 = AtomicU64::new(1);
        Self(TABLES.fetch_add(1, Ordering::Relaxed))
    }

    pub const fn number(&self) -> u64 {
        self.0
    }
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self::new()
    }
}
