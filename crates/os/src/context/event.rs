// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens to pages: the words in which the kernel and a memory manager speak.

use nestwalk_mem::{Entry, EntrySlot, Vpn};

use crate::state::process::ProcessId;
use crate::state::vma::Vma;

/// A fault on a page that was never mapped (or not since it was given back), in a mapping that
/// allows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Whose.
    pub process: ProcessId,
    /// Where.
    pub page: Vpn,
    /// Whether it is a store.
    pub store: bool,
    /// The mapping.
    pub vma: Vma,
    /// The slot of the page's entry, or of the one that has to point to a missing node.
    pub slot: EntrySlot,
}

impl Fault {
    /// The flags of the leaf that serves it.
    #[inline]
    pub fn leaf_flags(&self) -> u64 {
        let writable = if self.vma.flags.writable { Entry::WRITABLE } else { 0 };
        let dirty = if self.store { Entry::DIRTY } else { 0 };
        writable | dirty | Entry::ACCESSED
    }
}

/// Why the kernel needs one frame for a page whose contents come from elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// A copy of a page shared since a fork.
    Copy,
    /// A page from swap.
    SwapIn,
}

/// Why a page is no longer mapped where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The program gave it back (munmap, DONTNEED), or exited.
    Program,
    /// A copy or a huge page has taken its place.
    Replaced,
    /// It was reclaimed.
    Reclaimed,
}
