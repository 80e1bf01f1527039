// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the bins of each pair of partitions lie, how large they are, and in which order their
//! pages are touched first.
//!
//! A bin is three arrays behind one another: updates, targets, and targets that are written as it
//! goes; each as long as it is ever filled. (GPOP allocates all three for all edges of the pair, so
//! there are pages between them that nothing ever touches. They are left out.)

use std::ops::Range;

use nestwalk_mem::addr::PAGE_BYTES;

use super::{Algorithm, WORD};
use crate::generator::adjacency::Adjacency;
use crate::generator::memory::HEADER;

/// How many of `count` a `share` in millionths is.
pub(super) const fn part(count: u64, share: u32) -> u64 {
    count * share as u64 / 1_000_000
}

/// One of a bin's arrays, in the order in which they lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Array {
    /// What is sent.
    Updates,
    /// The targets of all edges, as listed when the graph was loaded.
    Targets,
    /// The targets of active edges.
    Written,
}

/// A bin: bytes before it, senders before those of its updates, its edges.
#[derive(Clone, Copy)]
struct Pair {
    byte: u64,
    sender: u64,
    edges: u64,
}

/// All bins.
pub(super) struct Bins {
    /// Partitions.
    pub(super) count: u64,
    /// Row by row; and one more, where all end.
    pairs: Vec<Pair>,
    /// Lengths of runs of neighbouring targets in one partition, as sampled, and their sum.
    pub(super) runs: Vec<u32>,
    run_sum: u64,
    /// How much of updates and of written targets is ever filled, in millionths of edges.
    filled: u32,
    written: u32,
    /// Whether the first step is dense in most partitions: it fills updates bin after bin.
    dense_first: bool,
}

impl Bins {
    /// Those of a graph in partitions of `width` vertices.
    pub(super) fn new(graph: &Adjacency, width: u64, algorithm: Algorithm) -> Self {
        let count = graph.vertices().div_ceil(width);
        let runs = runs(graph, width);
        let run_sum = runs.iter().map(|&run| u64::from(run)).sum();
        let steps = algorithm.steps();
        let written = steps.iter().map(|step| step.edges).max().unwrap_or(0);
        let filled = if steps.iter().any(|step| step.dense > 0) { 1_000_000 } else { written };
        let pairs = Vec::with_capacity((count * count) as usize + 1);
        let dense_first = steps[0].dense > 500_000;
        let mut bins = Self { count, pairs, runs, run_sum, filled, written, dense_first };
        let mut next = Pair { byte: 0, sender: 0, edges: 0 };
        for row in 0..count {
            let last = graph.vertices().min((row + 1) * width) - 1;
            let own = graph.edges_of(last).1 - graph.edges_of(row * width).0;
            for share in graph.shares(row * width, width) {
                next.edges = (own as f64 * share) as u64;
                bins.pairs.push(next);
                let words =
                    [Array::Updates, Array::Targets, Array::Written].map(|array| bins.length(next.edges, array));
                next.byte += 3 * HEADER + WORD * words.iter().sum::<u64>();
                next.sender += bins.updates(next.edges);
            }
        }
        bins.pairs.push(Pair { edges: 0, ..next });
        bins
    }

    fn pair(&self, from: u64, to: u64) -> Pair {
        self.pairs[(from * self.count + to) as usize]
    }

    /// Bytes of all bins.
    pub(super) fn bytes(&self) -> u64 {
        self.pairs[self.pairs.len() - 1].byte
    }

    /// Senders of all bins.
    pub(super) fn senders(&self) -> u64 {
        self.pairs[self.pairs.len() - 1].sender
    }

    /// Edges of a bin.
    pub(super) fn edges(&self, from: u64, to: u64) -> u64 {
        self.pair(from, to).edges
    }

    /// The number of a bin's first sender.
    pub(super) fn sender(&self, from: u64, to: u64) -> u64 {
        self.pair(from, to).sender
    }

    /// Updates of `edges` in one bin.
    pub(super) fn updates(&self, edges: u64) -> u64 {
        (edges * self.runs.len() as u64).div_ceil(self.run_sum).min(edges)
    }

    /// Words of an array.
    pub(super) fn length(&self, edges: u64, array: Array) -> u64 {
        match array {
            Array::Updates => self.updates(part(edges, self.filled)),
            Array::Targets => edges,
            Array::Written => part(edges, self.written),
        }
    }

    /// Where a word of one of a bin's arrays is, in bytes from the first bin.
    #[inline]
    pub(super) fn word(&self, from: u64, to: u64, array: Array, index: u64) -> u64 {
        let pair = self.pair(from, to);
        let before = match array {
            Array::Updates => 0,
            Array::Targets => self.length(pair.edges, Array::Updates),
            Array::Written => self.length(pair.edges, Array::Updates) + pair.edges,
        };
        pair.byte + HEADER * (array as u64 + 1) + WORD * (before + index)
    }

    /// The pages, from the first bin's on, that begin in an array or in its header.
    fn pages(&self, from: u64, to: u64, array: Array) -> Range<u64> {
        let words = self.length(self.edges(from, to), array);
        let page = |byte: u64| byte.div_ceil(PAGE_BYTES);
        page(self.word(from, to, array, 0) - HEADER)..page(self.word(from, to, array, words))
    }

    /// The pages of senders that begin in a row.
    fn sender_turns(&self, row: u64) -> Vec<Turn> {
        let page = |sender: u64| (WORD * sender).div_ceil(PAGE_BYTES);
        let of_bin = |to: u64| {
            let (begin, end) = (self.sender(row, to), self.pairs[(row * self.count + to + 1) as usize].sender);
            (page(begin)..page(end)).map(move |page| Turn {
                word: page * PAGE_BYTES / WORD - begin,
                of: end - begin,
                page: Page::Sender(page),
            })
        };
        (0..self.count).flat_map(of_bin).collect()
    }
}

/// Lengths of runs of neighbouring targets in one partition, of lists of all lengths.
fn runs(graph: &Adjacency, width: u64) -> Vec<u32> {
    let mut runs = Vec::new();
    for vertex in graph.typical() {
        let mut list = graph.list(vertex);
        let mut last = None;
        while let Some((_, target)) = list.next(graph) {
            match runs.last_mut() {
                Some(run) if last == Some(target / width) => *run += 1,
                _ => runs.push(1),
            }
            last = Some(target / width);
        }
    }
    if runs.is_empty() { vec![1] } else { runs }
}

/// A page that is touched first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Page {
    /// Of the senders.
    Sender(u64),
    /// Of the bins.
    Bin(u64),
}

/// What is touched first in one go over all rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    /// Senders, as the graph is taken apart (`transposePartition`).
    Senders,
    /// Targets (`writeDestIds`).
    Targets,
    /// What the first steps fill: updates, and written targets.
    Filled,
}

/// How far the first touches of a thread's rows are, in one pass.
pub(super) struct FirstTouches {
    pass: Pass,
    row: u64,
    /// The row's pages that are still to come, the next one last.
    pages: Vec<Page>,
}

impl FirstTouches {
    /// Those of the rows `first`, `first + stride` and so on.
    pub(super) const fn new(pass: Pass, first: u64) -> Self {
        Self { pass, row: first, pages: Vec::new() }
    }

    /// The next page.
    pub(super) fn next(&mut self, bins: &Bins, stride: u64) -> Option<Page> {
        while self.pages.is_empty() {
            if self.row >= bins.count {
                return None;
            }
            self.pages = of_row(bins, self.row, self.pass);
            self.pages.reverse();
            self.row += stride;
        }
        self.pages.pop()
    }
}

/// A page, and how full its array is when it is touched: the word that it begins with, of so many.
#[derive(Clone, Copy)]
struct Turn {
    word: u64,
    of: u64,
    page: Page,
}

/// The pages of a row, in the order in which they are touched.
///
/// What is filled source by source grows in all bins at once, so a page's turn comes when its array
/// is as full as that. Arrays that are not alike long get out of step soon: neighbouring frames
/// belong to bins that are far apart, and are gathered far apart in time.
fn of_row(bins: &Bins, row: u64, pass: Pass) -> Vec<Page> {
    let array = |to: u64, array: Array| {
        let (begin, words) = (bins.word(row, to, array, 0), bins.length(bins.edges(row, to), array));
        bins.pages(row, to, array).map(move |page| Turn {
            word: (page * PAGE_BYTES).saturating_sub(begin) / WORD,
            of: words,
            page: Page::Bin(page),
        })
    };
    let all = |kind: Array| (0..bins.count).flat_map(move |to| array(to, kind));
    match pass {
        Pass::Senders => by_turn(bins.sender_turns(row)),
        Pass::Targets => by_turn(all(Array::Targets).collect()),
        Pass::Filled if bins.dense_first => {
            let mut pages: Vec<Page> = all(Array::Updates).map(|turn| turn.page).collect();
            pages.extend(by_turn(all(Array::Written).collect()));
            pages
        }
        Pass::Filled => by_turn(all(Array::Updates).chain(all(Array::Written)).collect()),
    }
}

fn by_turn(mut turns: Vec<Turn>) -> Vec<Page> {
    let before =
        |a: &Turn, b: &Turn| (u128::from(a.word) * u128::from(b.of)).cmp(&(u128::from(b.word) * u128::from(a.of)));
    turns.sort_by(before);
    turns.into_iter().map(|turn| turn.page).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::adjacency::GraphKind;

    #[test]
    fn every_page_of_the_bins_is_touched_first_once() {
        let graph = Adjacency::new(GraphKind::Social, 70_000, 35, 100, 7);
        for algorithm in [Algorithm::PageRank, Algorithm::Components, Algorithm::BreadthFirst, Algorithm::Nibble] {
            let bins = Bins::new(&graph, 8192, algorithm);
            let mut pages = Vec::new();
            for pass in [Pass::Senders, Pass::Targets, Pass::Filled] {
                for first in 0..3 {
                    let mut touches = FirstTouches::new(pass, first);
                    pages.extend(std::iter::from_fn(|| touches.next(&bins, 3)));
                }
            }
            pages.sort_unstable();
            let all = (0..(WORD * bins.senders()).div_ceil(PAGE_BYTES)).map(Page::Sender);
            let all: Vec<Page> = all.chain((0..bins.bytes().div_ceil(PAGE_BYTES)).map(Page::Bin)).collect();
            assert!(pages == all, "{algorithm:?}: {} pages of {}", pages.len(), all.len());
        }
    }

    #[test]
    fn bins_grow_together_and_get_out_of_step() {
        let graph = Adjacency::new(GraphKind::Social, 400_000, 35, 100, 7);
        let bins = Bins::new(&graph, 32_768, Algorithm::PageRank);
        let bin_of = |page: Page| {
            let Page::Bin(page) = page else { unreachable!("a sender") };
            (0..bins.count).find(|&to| bins.pages(1, to, Array::Targets).contains(&page)).unwrap()
        };
        let order: Vec<u64> = of_row(&bins, 1, Pass::Targets).into_iter().map(bin_of).collect();
        let mut seen = vec![0; bins.count as usize];
        for (done, &bin) in order.iter().enumerate() {
            seen[bin as usize] += 1;
            // No bin is ahead of its share by more than its first page and the one that it is at.
            let pages = bins.pages(1, bin, Array::Targets);
            let share = (pages.end - pages.start) as f64 * (done + 1) as f64 / order.len() as f64;
            assert!(f64::from(seen[bin as usize]) < share + 2.0, "bin {bin} after {done}");
        }
        let in_turn = order.windows(2).filter(|pair| pair[1] == (pair[0] + 1) % bins.count).count();
        assert!(in_turn * 2 < order.len(), "{in_turn} of {} follow their neighbour", order.len());
        let filled = of_row(&bins, 1, Pass::Filled);
        assert!(filled.is_sorted(), "a dense scatter fills bin after bin");
    }

    #[test]
    fn there_are_as_many_updates_as_gpop_counted() {
        // On this graph, GPOP has 32 partitions, 73,178,813 edges and 18,643,202 updates.
        let graph = Adjacency::new(GraphKind::Social, 2_097_152, 35, 100, crate::generator::bijection::mix(1));
        let bins = Bins::new(&graph, 65_536, Algorithm::PageRank);
        let pairs = || (0..bins.count).flat_map(|from| (0..bins.count).map(move |to| (from, to)));
        let edges: u64 = pairs().map(|(from, to)| bins.edges(from, to)).sum();
        assert_eq!((bins.count, graph.edges()), (32, 73_178_813));
        assert!(edges * 1000 > graph.edges() * 999, "{edges}");
        let off = bins.senders() as f64 / 18_643_202.0 - 1.0;
        assert!(off.abs() < 0.05, "{} updates, off by {off}", bins.senders());
    }

    #[test]
    fn arrays_follow_one_another() {
        let graph = Adjacency::new(GraphKind::Social, 70_000, 35, 100, 7);
        let bins = Bins::new(&graph, 8192, Algorithm::BreadthFirst);
        let mut end = 0;
        for (from, to) in (0..bins.count).flat_map(|from| (0..bins.count).map(move |to| (from, to))) {
            for array in [Array::Updates, Array::Targets, Array::Written] {
                assert_eq!(bins.word(from, to, array, 0), end + HEADER);
                end = bins.word(from, to, array, bins.length(bins.edges(from, to), array));
            }
        }
        assert_eq!(end, bins.bytes());
    }
}
