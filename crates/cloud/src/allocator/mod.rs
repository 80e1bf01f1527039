// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which free memory of a host a VM gets.
//!
//! An allocator is one file here and one arm of [`AllocatorKind`]. Each promises
//! - to give a VM exactly the memory that it asks for, or nothing (`linux-hugetlb` gives more where it rounds up);
//! - to give it in the order in which the guest sees it, so that its segments can be counted ([`crate::extent`]);
//! - no frame to two VMs; and what is freed is merged with its neighbours as far as the allocator's rules allow;
//! - the same frames for the same calls, always.
//!
//! The property tests in `tests.rs` hold each of [`AllocatorKind::ALL`] to that, against a naive list of frames.

mod best_fit;
mod first_fit;
mod free_list;
mod list;
mod opt1;
mod opt2;

use nestwalk_mem::{FrameRange, PageCount};
use serde::{Deserialize, Serialize};

use crate::extent::{CountingRule, Extent, count_segments};

pub use free_list::{FreeList, FreeSegment};
pub use list::{ListAllocator, Rule};

/// How many sums of largest free segments an index keeps: DS-n is looked at for n up to this.
pub const MAX_DS: usize = 8;

/// Allocates a host's memory, or one NUMA node's, to VMs.
pub trait SegmentAllocator {
    /// Pages that are free.
    fn free_pages(&self) -> PageCount;

    /// Allocates `memory` for a VM at time `now_s` and appends it to `out`, in the guest's order. False, and nothing is
    /// changed, if it cannot be had.
    fn allocate(&mut self, memory: PageCount, now_s: i64, out: &mut Vec<Extent>) -> bool;

    /// Frees part of what was allocated: whole extents, or parts of them.
    fn free(&mut self, extent: Extent);

    /// Free memory as maximal ranges, ascending in address.
    fn free_segments(&self) -> Vec<FrameRange>;

    /// `sums[k]`: pages of the `k + 1` largest free ranges together.
    fn largest_sums(&self, sums: &mut [u32]) {
        let mut sizes: Vec<u64> = self.free_segments().iter().map(|range| range.count.0).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let (mut sum, mut sizes) = (0, sizes.into_iter());
        for slot in sums {
            sum += sizes.next().unwrap_or(0) as u32;
            *slot = sum;
        }
    }

    /// Free lists or segments that were looked at, since the beginning.
    fn steps(&self) -> u64;

    /// Panics if its structures contradict each other.
    fn check_invariants(&self);
}

/// The allocators.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllocatorKind {
    /// Compromis, option 1.
    CompromisOpt1,
    /// Compromis, option 2.
    #[default]
    CompromisOpt2,
    /// Best fit.
    BestFit,
    /// First fit.
    FirstFit,
}

impl AllocatorKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::CompromisOpt1, Self::CompromisOpt2, Self::BestFit, Self::FirstFit];

    /// An allocator for `memory`, whose ranges are ascending.
    pub fn build(self, memory: &[FrameRange]) -> Allocator {
        let list = |rule| Allocator::List(ListAllocator::new(memory, rule));
        match self {
            Self::CompromisOpt1 => list(Rule::Opt1),
            Self::CompromisOpt2 => list(Rule::Opt2),
            Self::BestFit => list(Rule::BestFit),
            Self::FirstFit => list(Rule::FirstFit),
        }
    }
}

/// One of the allocators: no dynamic dispatch, and a fleet of them is one array.
#[derive(Clone, Debug)]
pub enum Allocator {
    /// Compromis, best fit, first fit.
    List(ListAllocator),
}

macro_rules! each {
    ($self:ident, $allocator:ident => $call:expr) => {
        match $self {
            Allocator::List($allocator) => $call,
        }
    };
}

impl Allocator {
    /// How many segments a VM of `memory` would get, counted by `rule`: the allocation is made on a copy.
    pub fn simulate(&self, memory: PageCount, rule: CountingRule) -> Option<u64> {
        let mut extents = Vec::new();
        self.clone().allocate(memory, 0, &mut extents).then(|| count_segments(&extents, rule))
    }
}

impl SegmentAllocator for Allocator {
    fn free_pages(&self) -> PageCount {
        each!(self, allocator => allocator.free_pages())
    }

    fn allocate(&mut self, memory: PageCount, now_s: i64, out: &mut Vec<Extent>) -> bool {
        each!(self, allocator => allocator.allocate(memory, now_s, out))
    }

    fn free(&mut self, extent: Extent) {
        each!(self, allocator => allocator.free(extent));
    }

    fn free_segments(&self) -> Vec<FrameRange> {
        each!(self, allocator => allocator.free_segments())
    }

    fn largest_sums(&self, sums: &mut [u32]) {
        each!(self, allocator => allocator.largest_sums(sums));
    }

    fn steps(&self) -> u64 {
        each!(self, allocator => allocator.steps())
    }

    fn check_invariants(&self) {
        each!(self, allocator => allocator.check_invariants());
    }
}
