// SPDX-License-Identifier: MIT OR Apache-2.0
//! Linux (KVM): VMs on a pool of 1 GiB pages (hugetlbfs), the rest of their memory from the buddy
//! allocator.
//!
//! Follows Linux 6.1's `mm/hugetlb.c` (functions named below; not held against a running kernel):
//! - At boot memblock hands out 1 GiB pages from the top of memory down
//!   (`__alloc_bootmem_huge_page`). They reach the pool's free list so that the highest is at its
//!   head (`gather_bootmem_prealloc`).
//! - `dequeue_huge_page_node_exact` takes the head, `enqueue_huge_page` puts a freed page there:
//!   last in, first out.
//!
//! Assumed, as there is no one rule among operators: a VM's whole GiBs come from the pool while it
//! lasts. What is less than a GiB, or more than the pool has, comes from the buddy allocator
//! (orders 0 to 10, the lower half of a split block is used, 2 MiB at a time as transparent huge
//! pages give it). If that is exhausted, one more page of the pool is used, and its rest is wasted
//! until the VM ends.

use nestwalk_mem::{Frame, FrameRange, Order, PageCount};
use serde::{Deserialize, Serialize};

use super::SegmentAllocator;
use super::buddy::{Blocks, Buddy, Half, Rules, Trial};
use crate::extent::Extent;

/// Frames of a 1 GiB page.
const GIB: u64 = 1 << 18;
/// Linux 6.1's largest order (`MAX_ORDER - 1`): 4 MiB.
const MAX_ORDER: u8 = 10;

/// How large the pool is.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HugetlbOptions {
    /// The pool's share of the memory for VMs, rounded down to whole pages of 1 GiB. The default is
    /// an assumption.
    pub pool_share: f64,
}

impl Default for HugetlbOptions {
    fn default() -> Self {
        Self { pool_share: 0.9 }
    }
}

/// A pool of 1 GiB pages beside a buddy allocator.
#[derive(Clone, Debug)]
pub struct Hugetlb {
    /// The pool's pages, ascending: free or not.
    pages: Vec<u64>,
    /// Free ones; the last is the head of the list.
    pool: Vec<u64>,
    buddy: Buddy,
}

impl Hugetlb {
    /// All of `memory` is free; its ranges are ascending.
    pub fn new(memory: &[FrameRange], options: HugetlbOptions) -> Self {
        let total: u64 = memory.iter().map(|range| range.count.0).sum();
        let wanted = (total as f64 * options.pool_share) as u64 / GIB;
        let gibs = memory.iter().rev().flat_map(|range| {
            let (first, end) = (range.start.0.div_ceil(GIB), range.end().0 / GIB);
            (first..end.max(first)).rev().map(|gib| gib * GIB)
        });
        let mut pages: Vec<u64> = gibs.take(wanted as usize).collect();
        pages.reverse();
        let mut rest = Vec::new();
        for range in memory {
            let mut at = range.start.0;
            for &page in pages.iter().filter(|&&page| range.start.0 <= page && page < range.end().0) {
                rest.push(FrameRange::new(Frame(at), PageCount(page - at)));
                at = page + GIB;
            }
            rest.push(FrameRange::new(Frame(at), PageCount(range.end().0 - at)));
        }
        rest.retain(|range| range.count.0 > 0);
        let rules = Rules { max_order: MAX_ORDER, used: Half::Lower, lowest_first: true, zones: false };
        Self { pool: pages.clone(), pages, buddy: Buddy::new(rules, &rest) }
    }

    /// How many pages of the pool a VM of `memory` gets, and how many pages of the buddy allocator.
    /// `None` if it does not fit.
    fn plan(&self, memory: PageCount) -> Option<(u64, u64)> {
        let pool = self.pool.len() as u64;
        let from_pool = (memory.0 / GIB).min(pool);
        let missing = memory.0 - from_pool * GIB;
        match missing > self.buddy.free_pages() {
            false => Some((from_pool, missing)),
            true => (missing < GIB && from_pool < pool).then_some((from_pool + 1, 0)),
        }
    }
}

/// Gives a VM `pool`, the last page first, and `rest` pages of `buddy`.
fn serve(pool: &[u64], rest: u64, buddy: &mut impl Blocks, out: &mut Vec<Extent>) {
    out.extend(pool.iter().rev().map(|&start| Extent::ascending(FrameRange::new(Frame(start), PageCount(GIB)))));
    let huge = buddy.allocate(Order::HUGE, rest >> Order::HUGE.0, out) << Order::HUGE.0;
    buddy.allocate(Order::PAGE, rest - huge, out);
}

impl SegmentAllocator for Hugetlb {
    fn free_pages(&self) -> PageCount {
        PageCount(self.pool.len() as u64 * GIB + self.buddy.free_pages())
    }

    /// The last page of the pool may be larger than what is missing: then the VM has more than
    /// `memory`.
    fn allocate(&mut self, memory: PageCount, _now_s: i64, out: &mut Vec<Extent>) -> bool {
        let Some((pool, rest)) = self.plan(memory) else { return false };
        let taken = self.pool.split_off(self.pool.len() - pool as usize);
        serve(&taken, rest, &mut self.buddy, out);
        true
    }

    fn trial(&self, memory: PageCount, out: &mut Vec<Extent>) -> bool {
        let plan = self.plan(memory);
        if let Some((pool, rest)) = plan {
            serve(&self.pool[self.pool.len() - pool as usize..], rest, &mut Trial::new(&self.buddy), out);
        }
        plan.is_some()
    }

    fn free(&mut self, extent: Extent) {
        let range = extent.range();
        if self.splits(extent) {
            self.buddy.free(range);
        } else {
            assert_eq!(range.count.0, GIB, "a page of the pool is freed whole");
            self.pool.push(range.start.0);
        }
    }

    fn free_segments(&self) -> Vec<FrameRange> {
        let mut ranges = self.buddy.free_segments();
        ranges.extend(self.pool.iter().map(|&start| FrameRange::new(Frame(start), PageCount(GIB))));
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, last| {
            let joined = last.end() == next.start;
            last.count.0 += if joined { next.count.0 } else { 0 };
            joined
        });
        ranges
    }

    fn splits(&self, extent: Extent) -> bool {
        self.pages.binary_search(&(extent.start.0 / GIB * GIB)).is_err()
    }

    fn steps(&self) -> u64 {
        self.buddy.steps
    }

    fn check_invariants(&self) {
        self.buddy.check_invariants();
        let mut free = self.pool.clone();
        free.sort_unstable();
        assert!(free.windows(2).all(|pair| pair[0] < pair[1]), "no page is free twice");
        assert!(free.iter().all(|page| self.pages.binary_search(page).is_ok()));
    }
}
