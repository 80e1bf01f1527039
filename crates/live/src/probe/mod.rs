// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hands of `nestwalk probe`: memory whose layout is known, and chases of pointers through it,
//! timed.
//!
//! Two arenas of the same size are enough for every measurement. One keeps its 2 MiB pages. The
//! other begins with 2 MiB pages too, which the kernel guarantees to be contiguous; its 4 KiB pages
//! are then moved about *within* it, so that each group of 8 pages has its frames on as many lines
//! of the host's page table as is wanted ([`Arena::arrange`]). All layouts so have the same frames,
//! the same guest page tables and the same contents, and nothing of this needs a privilege or a
//! frame number.
//!
//! What to measure, how often and in which order is the caller's business
//! (`python/nestwalk/probe`).

mod arena;
mod chase;
mod counters;
mod mapping;
mod mover;
mod pagemap;

pub use arena::Arena;
pub use chase::{Chase, Sample};
pub use counters::{Counted, Counters, Event};
pub use mover::Means;
pub use pagemap::lines_per_group;

use std::io;

/// Why a measurement cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel gives no memory.
    #[error("{mib} MiB of memory cannot be had: {source}")]
    Memory {
        /// How much was asked for.
        mib: u64,
        /// What the kernel says.
        source: io::Error,
    },
    /// Pages cannot be moved.
    #[error("pages cannot be moved ({means}): {source}{remedy}")]
    Move {
        /// The system call.
        means: &'static str,
        /// What the kernel says.
        source: io::Error,
        /// What to do, if something can be done.
        remedy: &'static str,
    },
    /// Not a size that an arena has.
    #[error("{pages} pages: a chase takes a multiple of 8, and at most the {most} of its arena")]
    Size {
        /// What was asked for.
        pages: u64,
        /// What there is.
        most: u64,
    },
    /// The caller wants to end.
    #[error("interrupted")]
    Interrupted,
}
