// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of nodes.

/// A node of one table: an index that stays valid until the node is pruned or collapsed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The top node, where every walk begins.
    pub(super) const ROOT: Self = Self(0);

    /// The most bits of a node's number, so that something else fits above it in a word. That many
    /// nodes are 64 GiB of entries.
    pub(super) const BITS: u32 = 24;

    /// The word that holds `number` above this; `None` if it is too large for that.
    #[inline]
    pub(super) fn under(self, number: u64) -> Option<u64> {
        (number >> (64 - Self::BITS) == 0).then_some(number << Self::BITS | u64::from(self.0))
    }

    /// The number above, and the node, of a word that [`NodeId::under`] made.
    #[inline]
    pub(super) const fn split(word: u64) -> (u64, Self) {
        (word >> Self::BITS, Self((word & ((1 << Self::BITS) - 1)) as u32))
    }
}
