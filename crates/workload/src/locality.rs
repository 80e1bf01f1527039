// SPDX-License-Identifier: MIT OR Apache-2.0
//! Spatial locality of a program by page, of a trace or a generator alike: how far apart the uses
//! of a page are, whether a page's neighbours are used near it in time, and how long runs of
//! neighbouring pages are.
//!
//! Every stream goes through the filter of filtered traces first (what is filtered stays as it is),
//! so a filtered capture and a generator are counted by the same rule. A *use* of a page is an
//! access to it after at least [`NEAR_PAGES`] other pages: what a fully associative LRU TLB of that
//! many entries would miss. Only uses are counted, and absorbed accesses cannot be uses. Distances
//! are those in the filtered stream, which does not hear of absorbed accesses.

use std::ops::ControlFlow;

use nestwalk_mem::Vpn;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::filtered::FilteredWorkload;
use crate::stream::{Batch, Phase, Step, Workload, WorkloadError};
use crate::trace::FilterOptions;
use crate::trace::stack::Stack;

/// Pages of a small TLB: that of a first level.
pub const NEAR_PAGES: u64 = 64;
/// Pages of a large TLB: that of a second level.
pub const FAR_PAGES: u64 = 1536;
/// Log2 of the pages of a group: what a Clustered TLB's entry covers, and a line of a page table.
const GROUP_ORDER: u32 = 3;
/// Distances are counted by powers of two up to here, runs as well.
const BINS: usize = 32;
/// Longest run that is told from longer ones.
const RUN_MAX: u32 = 1 << (BINS - 2);

/// What [`measure`] finds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Locality {
    /// Accesses of the program that were counted, absorbed ones included.
    pub accesses: u64,
    /// Uses of pages.
    pub uses: u64,
    /// Uses of pages that were not seen before in the stretch: their distance is not known.
    pub first_uses: u64,
    /// Uses by distance, from the shortest.
    pub reuse: Vec<Distance>,
    /// By size of a TLB.
    pub near: Vec<Near>,
    /// Runs of neighbouring pages, by length.
    pub runs: Vec<Run>,
    /// Uses of a run, on average.
    pub run_mean: f64,
}

/// Uses of pages by their distance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Distance {
    /// Below so many other pages, and not below half of that.
    pub pages_below: u64,
    /// Uses.
    pub uses: u64,
}

/// How often a page's neighbours were used lately when it is used itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Near {
    /// The last so many pages count as lately.
    pub pages: u64,
    /// Uses of pages that are not among them.
    pub uses: u64,
    /// Those of which another page of the aligned group of 8 is among them.
    pub with_neighbour: u64,
}

/// Runs of neighbouring pages of one length. A use goes on with a run if the page before or behind
/// was used lately (among the last [`NEAR_PAGES`]), so runs may be interleaved with each other and
/// with anything else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Run {
    /// Fewer than so many uses, and not fewer than half of that.
    pub pages_below: u64,
    /// Runs.
    pub runs: u64,
}

/// Runs `workload`, and counts its measured accesses, at most `accesses_max`. A workload that
/// warms up until it is told does so for as many accesses. `progress` is told of accesses done,
/// and ends it by breaking.
///
/// # Errors
/// When a trace cannot be read, or `progress` broke ([`std::io::ErrorKind::Interrupted`]).
pub fn measure(
    workload: Box<dyn Workload>,
    accesses_max: u64,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Locality, WorkloadError> {
    let until_told = workload.facts().warms_until_told;
    let name = workload.facts().name;
    let mut workload = FilteredWorkload::new(workload, FilterOptions::default());
    let (mut batch, mut counts) = (Batch::default(), Counts::default());
    let (mut phase, mut warmed) = (Phase::Measure, 0);
    while counts.accesses < accesses_max {
        match workload.next(&mut batch)? {
            Step::Accesses => {
                let counted = phase == Phase::Measure;
                batch.accesses.iter().for_each(|access| counts.access(Vpn(access.gva().page().0), counted));
                if counted {
                    counts.accesses += batch.represented();
                } else {
                    warmed += batch.represented();
                    if until_told && warmed >= accesses_max {
                        workload.end_warm_up();
                    }
                }
                if progress(counts.accesses).is_break() {
                    let source = std::io::ErrorKind::Interrupted.into();
                    return Err(WorkloadError::Io { path: name.into(), source });
                }
            }
            Step::Phase(next) => {
                if next == Phase::Populate {
                    counts.begin();
                }
                phase = next;
            }
            Step::End => break,
            Step::Touches | Step::Event(_) => {}
        }
    }
    Ok(counts.finish())
}

/// What has been counted so far.
#[derive(Default)]
struct Counts {
    accesses: u64,
    stack: Stack,
    first_uses: u64,
    /// By log2 of the distance.
    reuse: [u64; BINS],
    near: [(u64, u64); 2],
    /// By page: how many uses the run had that its last use belongs to, itself included.
    run_length: FxHashMap<Vpn, u32>,
    /// By log2 of the length.
    runs: [u64; BINS],
}

/// The bin of `value`: below 1 << bin, and not below half of that.
fn bin(value: u64) -> usize {
    (64 - value.leading_zeros() as usize).min(BINS - 1)
}

impl Counts {
    /// A stretch begins: nothing of what was used before is known to be near.
    fn begin(&mut self) {
        self.stack = Stack::default();
        self.run_length.clear();
    }

    fn access(&mut self, page: Vpn, counted: bool) {
        let distance = self.stack.distance(page);
        if distance.is_none_or(|pages| pages >= NEAR_PAGES) {
            self.use_page(page, distance, counted);
        }
        self.stack.access(page);
    }

    fn use_page(&mut self, page: Vpn, distance: Option<u64>, counted: bool) {
        let run = self.run(page);
        if !counted {
            return;
        }
        match distance {
            Some(pages) => self.reuse[bin(pages)] += 1,
            None => self.first_uses += 1,
        }
        let nearest = self.nearest_of_group(page);
        for (near, pages) in self.near.iter_mut().zip([NEAR_PAGES, FAR_PAGES]) {
            if distance.is_none_or(|distance| distance >= pages) {
                near.0 += 1;
                near.1 += u64::from(nearest.is_some_and(|nearest| nearest < pages));
            }
        }
        // The run that it goes on with is one longer now.
        if run > 1 {
            let shorter = &mut self.runs[bin(u64::from(run - 1))];
            *shorter = shorter.saturating_sub(1);
        }
        self.runs[bin(run.into())] += 1;
    }

    /// Length of the run that the use of `page` belongs to.
    fn run(&mut self, page: Vpn) -> u32 {
        let lately = |neighbour: u64| {
            let near = self.stack.distance(Vpn(neighbour)).is_some_and(|pages| pages < NEAR_PAGES);
            near.then(|| self.run_length.get(&Vpn(neighbour)).copied().unwrap_or(1))
        };
        let neighbours = [page.0.wrapping_sub(1), page.0 + 1].into_iter().filter_map(lately);
        let length = neighbours.max().map_or(1, |length| (length + 1).min(RUN_MAX));
        self.run_length.insert(page, length);
        length
    }

    /// How many pages were used since the latest of the others of the group of `page` was.
    fn nearest_of_group(&self, page: Vpn) -> Option<u64> {
        let first = page.0 >> GROUP_ORDER << GROUP_ORDER;
        let others = (first..first + (1 << GROUP_ORDER)).filter(|&other| other != page.0);
        others.filter_map(|other| self.stack.distance(Vpn(other))).min()
    }

    fn finish(self) -> Locality {
        let uses = self.near[0].0;
        let full = |bins: &[u64; BINS]| bins.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        let distance = |bin: usize| Distance { pages_below: 1 << bin, uses: self.reuse[bin] };
        let run = |bin: usize| Run { pages_below: 1 << bin, runs: self.runs[bin] };
        let near = [NEAR_PAGES, FAR_PAGES].into_iter().zip(self.near);
        let runs: u64 = self.runs.iter().sum();
        Locality {
            accesses: self.accesses,
            uses,
            first_uses: self.first_uses,
            reuse: (bin(NEAR_PAGES)..full(&self.reuse)).map(distance).collect(),
            near: near.map(|(pages, (uses, with_neighbour))| Near { pages, uses, with_neighbour }).collect(),
            runs: (1..full(&self.runs)).map(run).collect(),
            run_mean: if runs == 0 { 0.0 } else { uses as f64 / runs as f64 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(pages: impl IntoIterator<Item = u64>) -> Locality {
        let mut counts = Counts::default();
        pages.into_iter().for_each(|page| counts.access(Vpn(page), true));
        counts.finish()
    }

    /// Pages that are neither in one group nor beside each other.
    fn apart(count: u64) -> impl Iterator<Item = u64> + Clone {
        (0..count).map(|nth| 1_000_003 + nth * 16)
    }

    #[test]
    fn uses_are_what_a_small_lru_tlb_misses_and_have_its_distances() {
        // Pages 0 to 99 in turn: each is used after 99 others; 64 of them in turn are no uses.
        let found = counted(apart(100).chain(apart(100)));
        assert_eq!((found.uses, found.first_uses), (200, 100));
        assert_eq!(found.reuse, [Distance { pages_below: 128, uses: 100 }]);
        assert_eq!(found.near[1], Near { pages: FAR_PAGES, uses: 100, with_neighbour: 0 });
        assert_eq!(counted(apart(64).chain(apart(64))).uses, 64);
        assert_eq!(counted(apart(65).chain(apart(65))).reuse, [Distance { pages_below: 128, uses: 65 }]);
    }

    #[test]
    fn a_neighbour_counts_as_long_as_the_tlb_of_that_size_would_hold_it() {
        // Page 8, then so many others, then page 9 of its group, or page 7 of another.
        let with = |others: u64, page: u64| {
            let found = counted([8].into_iter().chain(apart(others)).chain([page]));
            [found.near[0].with_neighbour, found.near[1].with_neighbour]
        };
        assert_eq!(with(63, 9), [1, 1]);
        assert_eq!(with(64, 9), [0, 1]);
        assert_eq!(with(FAR_PAGES - 1, 9), [0, 1]);
        assert_eq!(with(FAR_PAGES, 9), [0, 0]);
        assert_eq!(with(3, 7), [0, 0]);
    }

    #[test]
    fn runs_go_on_through_others_in_between() {
        let interleaved = (0..10u64).flat_map(|nth| [100 + nth, 900 - nth, 5_000_000 + 64 * nth]);
        let found = counted(interleaved);
        let runs: Vec<_> = found.runs.iter().map(|run| (run.pages_below, run.runs)).collect();
        assert_eq!(runs, [(2, 10), (4, 0), (8, 0), (16, 2)]);
        assert!((found.run_mean - 30.0 / 12.0).abs() < 1e-9, "{}", found.run_mean);
    }
}
