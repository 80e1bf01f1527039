// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses of a thread on their way to a core.

use std::ops::Range;

use nestwalk_mmu::Accesses;
use nestwalk_workload::Batch;

/// How closely accesses are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Only the TLBs see them.
    TlbOnly,
    /// Everything does.
    Full,
    /// Everything does, and how long a program waits is looked at that [says](crate::waiting) which
    /// access needs which.
    Timed,
}

/// The part of a batch between two of its accesses.
pub fn part_of(batch: &Batch, part: Range<usize>) -> Accesses<'_> {
    let absorbed = if batch.absorbed.is_empty() { &[][..] } else { &batch.absorbed[part.clone()] };
    Accesses { all: &batch.accesses[part], absorbed, reuse: batch.reuse.as_ref() }
}
