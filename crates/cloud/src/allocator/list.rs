// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocators that choose among free segments by a rule: Compromis' two options, best fit and first
//! fit.

use nestwalk_mem::{FrameRange, PageCount};

use super::{FreeList, SegmentAllocator, best_fit, first_fit, opt1, opt2};
use crate::extent::{CountingRule, Extent, count_segments};

/// Which free segment is next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Compromis' first option.
    Opt1,
    /// Compromis' second option.
    Opt2,
    /// Best fit.
    BestFit,
    /// First fit.
    FirstFit,
}

/// A list of free segments and the rule by which they are allocated. The rule may change at any
/// time: it has no state.
#[derive(Clone, Debug)]
pub struct ListAllocator {
    list: FreeList,
    rule: Rule,
    steps: u64,
}

impl ListAllocator {
    /// All of `memory` is free; its ranges are ascending.
    pub fn new(memory: &[FrameRange], rule: Rule) -> Self {
        Self { list: FreeList::new(memory), rule, steps: 0 }
    }

    /// Allocates by `rule` from now on.
    pub fn set_rule(&mut self, rule: Rule) {
        self.rule = rule;
    }

    /// The free segments.
    pub const fn list(&self) -> &FreeList {
        &self.list
    }

    /// Allocates `memory` by Compromis' first option but without splitting a large segment: the
    /// smallest ones there are.
    pub(crate) fn allocate_smallest(&mut self, memory: PageCount, now_s: i64, out: &mut Vec<Extent>) -> bool {
        self.allocate_by(memory, now_s, out, |list, _, _| list.smallest_of(1))
    }

    fn allocate_by(
        &mut self,
        memory: PageCount,
        now_s: i64,
        out: &mut Vec<Extent>,
        next: impl Fn(&FreeList, u64, bool) -> Option<FrameRange>,
    ) -> bool {
        if memory > self.list.free_pages() {
            return false;
        }
        let mut missing = memory.0;
        while missing > 0 {
            let segment = next(&self.list, missing, missing == memory.0).expect("enough pages are free");
            let pages = segment.count.0.min(missing);
            self.list.take(segment.start, pages, now_s);
            out.push(Extent::ascending(FrameRange::new(segment.start, PageCount(pages))));
            missing -= pages;
            self.steps += 1;
        }
        true
    }
}

impl SegmentAllocator for ListAllocator {
    fn free_pages(&self) -> PageCount {
        self.list.free_pages()
    }

    fn allocate(&mut self, memory: PageCount, now_s: i64, out: &mut Vec<Extent>) -> bool {
        match self.rule {
            Rule::Opt1 => self.allocate_by(memory, now_s, out, opt1::next),
            Rule::Opt2 => self.allocate_by(memory, now_s, out, |list, missing, _| opt2::next(list, missing)),
            Rule::BestFit => self.allocate_by(memory, now_s, out, |list, missing, _| best_fit::next(list, missing)),
            Rule::FirstFit => self.allocate_by(memory, now_s, out, |list, missing, _| first_fit::next(list, missing)),
        }
    }

    fn trial(&self, memory: PageCount, out: &mut Vec<Extent>) -> bool {
        self.clone().allocate(memory, 0, out)
    }

    fn allocate_at(&mut self, range: FrameRange, now_s: i64) -> bool {
        let fits = self.list.at(range.start).is_some_and(|segment| segment.count >= range.count);
        if fits {
            self.list.take(range.start, range.count.0, now_s);
        }
        fits
    }

    fn free(&mut self, extent: Extent) {
        self.list.free(extent.range());
        self.steps += 1;
    }

    /// Free segments are apart from each other, so the rule of counting does not matter, and each
    /// that is taken counts.
    fn segments_for(&self, memory: PageCount, rule: CountingRule) -> Option<u64> {
        if memory > self.list.free_pages() {
            return None;
        }
        if self.list.largest().is_some_and(|largest| largest.count >= memory) {
            return Some(1);
        }
        if matches!(self.rule, Rule::Opt2 | Rule::BestFit) {
            let mut missing = memory.0;
            let whole = self.list.sizes_descending().take_while(|&size| {
                let needed = missing > 0;
                missing = missing.saturating_sub(size);
                needed
            });
            return Some(whole.count() as u64);
        }
        if self.rule == Rule::Opt1 {
            return Some(opt1::count(&self.list, memory.0));
        }
        let mut extents = Vec::new();
        self.trial(memory, &mut extents).then(|| count_segments(&extents, rule))
    }

    fn free_segments(&self) -> Vec<FrameRange> {
        self.list.segments().collect()
    }

    fn largest_sums(&self, sums: &mut [u32]) {
        let (mut sum, mut sizes) = (0, self.list.sizes_descending());
        for slot in sums {
            sum += sizes.next().unwrap_or(0) as u32;
            *slot = sum;
        }
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn check_invariants(&self) {
        self.list.check_invariants();
    }
}
