// SPDX-License-Identifier: MIT OR Apache-2.0
//! An entry of a page table.

use std::fmt;

use super::node_id::NodeId;
use crate::addr::Frame;

/// An entry of a node.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Entry(pub(super) u64);

impl Entry {
    /// Nothing here.
    pub const NONE: Self = Self(0);
    /// The hardware may use this entry.
    pub const PRESENT: u64 = 1 << 0;
    /// Stores are allowed.
    pub const WRITABLE: u64 = 1 << 1;
    /// One of 16 entries that map an aligned 64 KiB in order, a contiguous block
    /// ([`PageTable::join`](super::PageTable::join)). x86-64 has no such bit; arm64 has it at 52.
    pub const CONTIGUOUS: u64 = 1 << 4;
    /// The page was used since the bit was last cleared.
    pub const ACCESSED: u64 = 1 << 5;
    /// The page was stored to since the bit was last cleared.
    pub const DIRTY: u64 = 1 << 6;
    /// This entry maps a page (x86 has this bit, PS, above the PTE level only; here every leaf has
    /// it).
    pub const LEAF: u64 = 1 << 7;
    /// Software: shared with another process since a fork; a store copies the page.
    pub const COPY_ON_WRITE: u64 = 1 << 9;
    /// Software: not present, because the page was swapped out.
    pub const SWAPPED: u64 = 1 << 10;

    const TARGET_SHIFT: u32 = 12;
    const FLAGS: u64 = (1 << Self::TARGET_SHIFT) - 1;

    /// A present leaf for `frame` with `flags` besides.
    #[inline]
    pub const fn leaf(frame: Frame, flags: u64) -> Self {
        Self(frame.0 << Self::TARGET_SHIFT | flags | Self::PRESENT | Self::LEAF)
    }

    /// The entry of a page that was swapped out.
    pub const fn swapped() -> Self {
        Self(Self::SWAPPED)
    }

    #[inline]
    pub(super) const fn pointer(node: NodeId) -> Self {
        Self((node.0 as u64) << Self::TARGET_SHIFT | Self::PRESENT | Self::WRITABLE)
    }

    /// Whether there is nothing at all, not even a note of a swapped page.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether the hardware may use it.
    #[inline]
    pub const fn is_present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    /// Whether it maps a page.
    #[inline]
    pub const fn is_leaf(self) -> bool {
        self.0 & Self::LEAF != 0
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub const fn has(self, flags: u64) -> bool {
        self.0 & flags == flags
    }

    /// The same with `flags` set.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: u64) -> Self {
        Self(self.0 | flags & Self::FLAGS)
    }

    /// The same with `flags` cleared.
    #[inline]
    #[must_use]
    pub const fn without(self, flags: u64) -> Self {
        Self(self.0 & !(flags & Self::FLAGS))
    }

    /// The flag bits.
    #[inline]
    pub const fn flags(self) -> u64 {
        self.0 & Self::FLAGS
    }

    /// The frame that a leaf maps (the first one of a large page).
    #[inline]
    pub const fn frame(self) -> Frame {
        debug_assert!(self.is_leaf());
        Frame(self.0 >> Self::TARGET_SHIFT)
    }

    /// The node that a present entry which is no leaf points to.
    #[inline]
    pub const fn node(self) -> NodeId {
        debug_assert!(self.is_present() && !self.is_leaf());
        NodeId((self.0 >> Self::TARGET_SHIFT) as u32)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({:#x}, flags {:#x})", self.0 >> Self::TARGET_SHIFT, self.flags())
    }
}
