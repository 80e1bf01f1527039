// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which free memory of a host a VM gets.
//!
//! An allocator is one file here and one arm of [`AllocatorKind`]. Each promises
//! - to give a VM exactly the memory that it asks for, or nothing (`xen` leaves the VGA hole out,
//!   `linux-hugetlb` may round up to a whole page of 1 GiB);
//! - to give it in the order in which the guest sees it, so that its segments can be counted
//!   ([`crate::extent`]);
//! - no frame to two VMs; and what is freed is merged with its neighbours as far as the allocator's
//!   rules allow;
//! - the same frames for the same calls, always.
//!
//! The property tests in `tests.rs` hold each of [`AllocatorKind::ALL`] to that, against a naive
//! list of frames.

mod best_fit;
mod buddy;
mod first_fit;
mod free_list;
pub mod hugetlb;
mod list;
mod opt1;
mod opt2;
#[cfg(test)]
mod tests;
pub mod xen;

use nestwalk_mem::{FrameRange, PageCount};
use serde::{Deserialize, Serialize};

use crate::extent::{CountingRule, Extent, count_segments};

pub use free_list::{FreeList, FreeSegment};
use hugetlb::{Hugetlb, HugetlbOptions};
pub use list::{ListAllocator, Rule};
use xen::{Xen, XenOptions};

/// How many sums of largest free segments an index keeps: DS-n is looked at for n up to this.
pub const MAX_DS: usize = 8;

/// Allocates a host's memory, or one NUMA node's, to VMs.
pub trait SegmentAllocator {
    /// Pages that are free.
    fn free_pages(&self) -> PageCount;

    /// Allocates `memory` for a VM at time `now_s` and appends it to `out`, in the guest's order.
    /// False, and nothing is changed, if it cannot be had.
    fn allocate(&mut self, memory: PageCount, now_s: i64, out: &mut Vec<Extent>) -> bool;

    /// Allocates exactly `range`, if all of it is free and the allocator can do so.
    fn allocate_at(&mut self, _range: FrameRange, _now_s: i64) -> bool {
        false
    }

    /// Frees part of what was allocated: whole extents, or parts of those that can be split.
    fn free(&mut self, extent: Extent);

    /// Whether a part of `extent` can be freed alone.
    fn splits(&self, _extent: Extent) -> bool {
        true
    }

    /// Appends what [`SegmentAllocator::allocate`] would, and changes nothing.
    fn trial(&self, memory: PageCount, out: &mut Vec<Extent>) -> bool;

    /// How many segments a VM of `memory` would get now, counted by `rule`; `None` if it would get
    /// no memory.
    fn segments_for(&self, memory: PageCount, rule: CountingRule) -> Option<u64> {
        let mut extents = Vec::new();
        self.trial(memory, &mut extents).then(|| count_segments(&extents, rule))
    }

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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
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
    /// Xen x86 with HVM guests.
    Xen,
    /// Linux with a pool of 1 GiB pages.
    LinuxHugetlb,
}

/// What allocators can be told.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct AllocatorOptions {
    /// For [`AllocatorKind::Xen`].
    pub xen: XenOptions,
    /// For [`AllocatorKind::LinuxHugetlb`].
    pub hugetlb: HugetlbOptions,
}

impl AllocatorKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::CompromisOpt1, Self::CompromisOpt2, Self::BestFit, Self::FirstFit, Self::Xen, Self::LinuxHugetlb];

    /// Whether a VM gets `k` segments exactly where the `k` largest free ranges together are large
    /// enough for it and the `k - 1` largest are not. Then an index need not simulate.
    pub const fn largest_first(self) -> bool {
        matches!(self, Self::CompromisOpt2 | Self::BestFit)
    }

    /// Whether a VM gets one segment exactly where one free range is large enough for it.
    pub const fn keeps_whole(self) -> bool {
        matches!(self, Self::CompromisOpt1 | Self::CompromisOpt2 | Self::BestFit | Self::FirstFit)
    }

    /// An allocator for `memory`, whose ranges are ascending.
    pub fn build(self, memory: &[FrameRange], options: &AllocatorOptions) -> Allocator {
        let list = |rule| Allocator::List(ListAllocator::new(memory, rule));
        match self {
            Self::Xen => Allocator::Xen(Xen::new(memory, options.xen)),
            Self::LinuxHugetlb => Allocator::Hugetlb(Hugetlb::new(memory, options.hugetlb)),
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
    /// Xen.
    Xen(Xen),
    /// Linux with a pool of 1 GiB pages.
    Hugetlb(Hugetlb),
}

macro_rules! each {
    ($self:ident, $allocator:ident => $call:expr) => {
        match $self {
            Allocator::List($allocator) => $call,
            Allocator::Xen($allocator) => $call,
            Allocator::Hugetlb($allocator) => $call,
        }
    };
}

impl Allocator {
    /// Allocates by `rule` from now on, if this is an allocator with rules.
    pub fn set_rule(&mut self, rule: Rule) {
        if let Self::List(allocator) = self {
            allocator.set_rule(rule);
        }
    }

    /// As [`SegmentAllocator::allocate`], from the smallest free segments where the allocator can
    /// choose: for a VM that does not care how many segments it gets.
    pub fn allocate_smallest(&mut self, memory: PageCount, now_s: i64, out: &mut Vec<Extent>) -> bool {
        match self {
            Self::List(allocator) => allocator.allocate_smallest(memory, now_s, out),
            other => other.allocate(memory, now_s, out),
        }
    }
}

impl SegmentAllocator for Allocator {
    fn free_pages(&self) -> PageCount {
        each!(self, allocator => allocator.free_pages())
    }

    fn allocate(&mut self, memory: PageCount, now_s: i64, out: &mut Vec<Extent>) -> bool {
        each!(self, allocator => allocator.allocate(memory, now_s, out))
    }

    fn allocate_at(&mut self, range: FrameRange, now_s: i64) -> bool {
        each!(self, allocator => allocator.allocate_at(range, now_s))
    }

    fn free(&mut self, extent: Extent) {
        each!(self, allocator => allocator.free(extent));
    }

    fn splits(&self, extent: Extent) -> bool {
        each!(self, allocator => allocator.splits(extent))
    }

    fn trial(&self, memory: PageCount, out: &mut Vec<Extent>) -> bool {
        each!(self, allocator => allocator.trial(memory, out))
    }

    fn segments_for(&self, memory: PageCount, rule: CountingRule) -> Option<u64> {
        each!(self, allocator => allocator.segments_for(memory, rule))
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
