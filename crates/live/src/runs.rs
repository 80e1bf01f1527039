// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guest-physical contiguity: runs of pages that follow each other in virtual and in physical
//! memory, and runs of the frames alone, whatever the order of the pages that have them.

use std::collections::BTreeSet;

use serde::Serialize;

/// Runs of lengths from a power of two up to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Bucket {
    /// Pages of the shortest run that counts here, a power of two.
    pub pages_min: u64,
    /// Runs.
    pub runs: u64,
    /// Their pages together.
    pub pages: u64,
}

/// Runs counted by their length.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Histogram {
    /// Runs in all.
    pub runs: u64,
    /// Pages in all.
    pub pages: u64,
    /// Pages of the longest run.
    pub longest_pages: u64,
    /// Pages a run, the mean.
    pub mean_pages: f64,
    /// By length, shortest first; lengths that no run has are left out.
    pub histogram: Vec<Bucket>,
}

/// Contiguity in both orders.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Contiguity {
    /// Pages that follow each other in virtual memory whose frames follow each other too: what one
    /// TLB entry of any length, or a range of segments, could hold.
    pub virtual_order: Histogram,
    /// Frames of the process that follow each other, in any process: what was there to be had.
    pub physical_order: Histogram,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    runs: u64,
    pages: u64,
}

/// Powers of two that a length can have.
const POWERS: usize = 64;

#[derive(Clone, Debug)]
struct Buckets {
    counts: [Counts; POWERS],
    longest: u64,
}

impl Default for Buckets {
    fn default() -> Self {
        Self { counts: [Counts::default(); POWERS], longest: 0 }
    }
}

impl Buckets {
    fn add(&mut self, pages: u64) {
        let bucket = &mut self.counts[pages.ilog2() as usize];
        bucket.runs += 1;
        bucket.pages += pages;
        self.longest = self.longest.max(pages);
    }

    fn histogram(&self) -> Histogram {
        let buckets = self.counts.iter().enumerate().filter(|(_, count)| count.runs > 0);
        let histogram: Vec<Bucket> = buckets
            .map(|(power, count)| Bucket { pages_min: 1 << power, runs: count.runs, pages: count.pages })
            .collect();
        let (runs, pages) = (histogram.iter().map(|one| one.runs).sum(), histogram.iter().map(|one| one.pages).sum());
        let mean_pages = if runs == 0 { 0.0 } else { pages as f64 / runs as f64 };
        Histogram { runs, pages, longest_pages: self.longest, mean_pages, histogram }
    }
}

/// Collects runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    page: u64,
    frame: u64,
    pages: u64,
    buckets: Buckets,
    frames: Frames,
}

impl Runs {
    /// `pages` pages from the page number `page` on have the frames from `frame` on.
    #[inline]
    pub(crate) fn add(&mut self, page: u64, frame: u64, pages: u64) {
        if page == self.page + self.pages && frame == self.frame + self.pages && self.pages > 0 {
            self.pages += pages;
            return;
        }
        self.close();
        (self.page, self.frame, self.pages) = (page, frame, pages);
    }

    /// What follows is no part of the run before it: another mapping begins.
    pub(crate) fn close(&mut self) {
        let pages = std::mem::take(&mut self.pages);
        if pages > 0 {
            self.buckets.add(pages);
            self.frames.add(self.frame, pages);
        }
    }

    /// What was collected.
    pub(crate) fn contiguity(mut self) -> Contiguity {
        self.close();
        Contiguity { virtual_order: self.buckets.histogram(), physical_order: self.frames.histogram() }
    }
}

/// Frames of a block: 128 MiB of memory, whose bits take a page.
const BLOCK_BITS: u32 = 15;
const BLOCK_WORDS: usize = 1 << (BLOCK_BITS - 6);
/// Frames from this number on (128 TiB) are few, and of devices: they are kept as a list.
const FAR: u64 = 1 << 35;

/// A set of frames: bits in blocks, which is faster than sorting, and counts a frame once that is
/// mapped twice.
#[derive(Clone, Debug, Default)]
struct Frames {
    blocks: Vec<Option<Box<[u64; BLOCK_WORDS]>>>,
    far: BTreeSet<u64>,
}

impl Frames {
    #[inline]
    fn add(&mut self, frame: u64, pages: u64) {
        for frame in frame..frame + pages {
            if frame >= FAR {
                self.far.insert(frame);
                continue;
            }
            let block = (frame >> BLOCK_BITS) as usize;
            if block >= self.blocks.len() {
                self.blocks.resize(block + 1, None);
            }
            let words = self.blocks[block].get_or_insert_with(|| Box::new([0; BLOCK_WORDS]));
            words[(frame >> 6) as usize % BLOCK_WORDS] |= 1 << (frame & 63);
        }
    }

    /// Its runs.
    fn histogram(&self) -> Histogram {
        let mut buckets = Buckets::default();
        let mut run = 0;
        for block in &self.blocks {
            // No word of a block that has no frame is looked at: far frames are behind many of
            // these.
            let Some(words) = block else {
                run = runs_of(0, run, &mut buckets);
                continue;
            };
            for word in words.as_slice() {
                run = runs_of(*word, run, &mut buckets);
            }
        }
        let mut last = FAR - 1;
        for &frame in &self.far {
            if frame != last + 1 && run > 0 {
                buckets.add(run);
                run = 0;
            }
            run += 1;
            last = frame;
        }
        if run > 0 {
            buckets.add(run);
        }
        buckets.histogram()
    }
}

/// Counts the runs of ones of a word, lowest bit first, of which the first may go on one of `run`
/// bits before it. Returns how long the run is that the word ends with.
fn runs_of(mut word: u64, mut run: u64, buckets: &mut Buckets) -> u64 {
    let mut left = u64::BITS;
    while left > 0 {
        let ones = word.trailing_ones().min(left);
        run += u64::from(ones);
        if ones == left {
            return run;
        }
        word >>= ones;
        left -= ones;
        if run > 0 {
            buckets.add(run);
            run = 0;
        }
        let zeros = word.trailing_zeros().min(left);
        if zeros == left {
            return 0;
        }
        word >>= zeros;
        left -= zeros;
    }
    run
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(pages: &[(u64, u64)]) -> Contiguity {
        let mut runs = Runs::default();
        for &(page, frame) in pages {
            runs.add(page, frame, 1);
        }
        runs.contiguity()
    }

    #[test]
    fn known_runs() {
        // Five in order; then the same memory's next four frames backwards.
        let pages = [(0, 10), (1, 11), (2, 12), (3, 13), (4, 14), (5, 18), (6, 17), (7, 16), (8, 15)];
        let found = of(&pages);
        let bucket = |pages_min, runs, pages| Bucket { pages_min, runs, pages };
        assert_eq!(found.virtual_order.histogram, [bucket(1, 4, 4), bucket(4, 1, 5)]);
        assert_eq!(found.physical_order.histogram, [bucket(8, 1, 9)]);
        assert_eq!((found.virtual_order.longest_pages, found.physical_order.longest_pages), (5, 9));
    }

    #[test]
    fn a_frame_that_is_mapped_twice_counts_once() {
        let found = of(&[(0, 10), (1, 11), (100, 10), (101, 11), (102, 12)]);
        assert_eq!((found.virtual_order.pages, found.physical_order.pages, found.physical_order.runs), (5, 3, 1));
    }

    #[test]
    fn a_run_goes_on_across_words_blocks_and_the_far_end() {
        let mut runs = Runs::default();
        runs.add(0, (1 << BLOCK_BITS) - 70, 200);
        runs.add(1000, FAR - 3, 5);
        runs.add(2000, FAR + 9, 1);
        let found = runs.contiguity().physical_order;
        let lengths: Vec<_> = found.histogram.iter().map(|one| (one.pages_min, one.runs, one.pages)).collect();
        assert_eq!(lengths, [(1, 1, 1), (4, 1, 5), (128, 1, 200)]);
    }

    proptest! {
        #[test]
        fn runs_cover_all_pages(frames in proptest::collection::vec(1_u64..200, 1..150)) {
            let pages: Vec<_> = (0..).zip(frames.iter().copied()).collect();
            let found = of(&pages);
            let distinct: BTreeSet<u64> = frames.iter().copied().collect();
            let starts = distinct.iter().filter(|&&frame| !distinct.contains(&(frame - 1))).count();
            prop_assert_eq!(found.virtual_order.pages, frames.len() as u64);
            prop_assert_eq!(found.physical_order.pages, distinct.len() as u64);
            prop_assert_eq!(found.physical_order.runs, starts as u64);
            let breaks = frames.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
            prop_assert_eq!(found.virtual_order.runs, breaks as u64 + 1);
        }
    }
}
