// SPDX-License-Identifier: MIT OR Apache-2.0
//! Free memory as maximal segments, in order of address and in order of size.
//!
//! Compromis describes a free segment by its base, its limit and the date of allocation of the
//! segment before it. All three are kept. Each operation takes time logarithmic in the number of
//! segments.

use std::collections::{BTreeMap, BTreeSet};

use nestwalk_mem::{Frame, FrameRange, PageCount};

/// A free segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeSegment {
    /// Where it is.
    pub range: FrameRange,
    /// When the allocated segment directly before it was allocated, in seconds of the trace's
    /// clock. `None` if there is none: memory begins here, or a hole ends.
    pub before_s: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
struct Allocated {
    pages: u64,
    date_s: i64,
}

/// Where a segment is in the order of sizes: of equally large ones, the lowest is last.
type BySize = (u64, std::cmp::Reverse<u64>);

/// Free and allocated segments of one memory.
#[derive(Clone, Debug, Default)]
pub struct FreeList {
    free: BTreeMap<u64, u64>,
    by_size: BTreeSet<BySize>,
    allocated: BTreeMap<u64, Allocated>,
    free_pages: u64,
}

const fn size_key(start: u64, pages: u64) -> BySize {
    (pages, std::cmp::Reverse(start))
}

impl FreeList {
    /// All of `memory` is free. Its ranges are ascending; neighbouring ones become one segment.
    pub fn new(memory: &[FrameRange]) -> Self {
        let mut list = Self::default();
        for range in memory {
            list.free_pages += range.count.0;
            list.insert(range.start.0, range.count.0);
        }
        list
    }

    /// Free pages.
    pub const fn free_pages(&self) -> PageCount {
        PageCount(self.free_pages)
    }

    /// Free segments, ascending in address.
    pub fn segments(&self) -> impl Iterator<Item = FrameRange> + '_ {
        self.free.iter().map(|(&start, &pages)| FrameRange::new(Frame(start), PageCount(pages)))
    }

    /// Free segments as Compromis describes them, ascending in address.
    pub fn descriptors(&self) -> impl Iterator<Item = FreeSegment> + '_ {
        self.segments().map(|range| {
            let before = self.allocated.range(..range.start.0).next_back();
            let touches =
                |(&start, held): (&u64, &Allocated)| (start + held.pages == range.start.0).then_some(held.date_s);
            FreeSegment { range, before_s: before.and_then(touches) }
        })
    }

    /// Allocated segments, ascending in address, each as it was allocated (less what was given back
    /// since).
    pub fn allocated(&self) -> impl Iterator<Item = FrameRange> + '_ {
        self.allocated.iter().map(|(&start, held)| FrameRange::new(Frame(start), PageCount(held.pages)))
    }

    /// Sizes of free segments, the largest first.
    pub fn sizes_descending(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_size.iter().rev().map(|&(pages, _)| pages)
    }

    /// Sizes of free segments, the smallest first.
    pub fn sizes_ascending(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_size.iter().map(|&(pages, _)| pages)
    }

    /// The free segment that begins at `start`.
    pub fn at(&self, start: Frame) -> Option<FrameRange> {
        self.free.get(&start.0).map(|&pages| FrameRange::new(start, PageCount(pages)))
    }

    /// The largest free segment; of equally large ones, the lowest.
    pub fn largest(&self) -> Option<FrameRange> {
        self.by_size.last().copied().map(range_of)
    }

    /// The smallest free segment of at least `pages`; of equally large ones, the lowest.
    pub fn smallest_of(&self, pages: u64) -> Option<FrameRange> {
        let &(size, _) = self.by_size.range(size_key(u64::MAX, pages)..).next()?;
        self.exact(size)
    }

    /// A free segment of exactly `pages`, the lowest of those.
    pub fn exact(&self, pages: u64) -> Option<FrameRange> {
        let equal = size_key(u64::MAX, pages)..=size_key(0, pages);
        self.by_size.range(equal).next_back().copied().map(range_of)
    }

    /// Allocates the first `pages` of the free segment that begins at `start`.
    pub fn take(&mut self, start: Frame, pages: u64, now_s: i64) {
        let size = self.free.remove(&start.0).expect("a free segment begins here");
        assert!(0 < pages && pages <= size, "{pages} pages of a segment of {size}");
        self.by_size.remove(&size_key(start.0, size));
        if pages < size {
            self.free.insert(start.0 + pages, size - pages);
            self.by_size.insert(size_key(start.0 + pages, size - pages));
        }
        self.allocated.insert(start.0, Allocated { pages, date_s: now_s });
        self.free_pages -= pages;
    }

    /// Frees `range`, all of which is allocated, and merges it with the free segments on both
    /// sides.
    pub fn free(&mut self, range: FrameRange) {
        let end = range.end().0;
        let mut at = range.start.0;
        // Most often it is one whole allocated segment, but neighbours may be freed at once, or a
        // part of one.
        while at < end {
            let held = self.allocated.range(..=at).next_back().filter(|&(start, held)| at < start + held.pages);
            let Some((&start, &held)) = held else { panic!("frame {at:#x} is freed but not allocated") };
            let held_end = start + held.pages;
            let upto = held_end.min(end);
            self.allocated.remove(&start);
            if start < at {
                self.allocated.insert(start, Allocated { pages: at - start, ..held });
            }
            if upto < held_end {
                self.allocated.insert(upto, Allocated { pages: held_end - upto, ..held });
            }
            at = upto;
        }
        self.free_pages += range.count.0;
        self.insert(range.start.0, range.count.0);
    }

    /// Adds a free segment, merged with its neighbours.
    fn insert(&mut self, start: u64, pages: u64) {
        let (mut start, mut pages) = (start, pages);
        if let Some((&right, &size)) = self.free.range(start..).next()
            && start + pages == right
        {
            self.free.remove(&right);
            self.by_size.remove(&size_key(right, size));
            pages += size;
        }
        if let Some((&left, &size)) = self.free.range(..start).next_back()
            && left + size == start
        {
            self.by_size.remove(&size_key(left, size));
            (start, pages) = (left, pages + size);
        }
        self.free.insert(start, pages);
        self.by_size.insert(size_key(start, pages));
    }

    /// Panics unless both orders hold the same segments, none overlap, and none could be merged.
    pub fn check_invariants(&self) {
        let by_size: BTreeMap<u64, u64> = self.by_size.iter().map(|&(pages, start)| (start.0, pages)).collect();
        assert_eq!(by_size, self.free, "both orders hold the same segments");
        assert_eq!(self.free.values().sum::<u64>(), self.free_pages);
        let mut end = None;
        for (&start, &pages) in &self.free {
            assert!(pages > 0 && end.is_none_or(|end| end < start), "free segments are apart");
            end = Some(start + pages);
        }
        for held in self.allocated() {
            let before = self.free.range(..held.end().0).next_back();
            assert!(
                before.is_none_or(|(start, pages)| start + pages <= held.start.0),
                "{held:?} is free and allocated"
            );
        }
    }
}

fn range_of((pages, start): BySize) -> FrameRange {
    FrameRange::new(Frame(start.0), PageCount(pages))
}
