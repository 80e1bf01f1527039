// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chases: each load's value is the next load's address, so a load begins when the one before has
//! ended.

use std::time::Instant;

use nestwalk_workload::chase::{Order, Visits, offset};

use super::{Arena, ProbeError};

/// Lines of a page.
const LINES: u64 = 64;
/// Lines that a dense chase visits of a page before it goes to the next: so many share the cost of
/// one TLB miss.
const LINES_AT_ONCE: u64 = 16;
/// Steps after which the clock is read: some 0.1 to 0.5 ms.
const CHUNK: u64 = 2048;

/// Which addresses are visited, in which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chase {
    /// One line in each of so many pages.
    Pages {
        /// How many.
        pages: u64,
        /// In which order.
        order: Order,
    },
    /// All 64 lines of so many pages, 16 of a page at a time: caches are asked, TLBs hardly.
    Lines {
        /// How many pages.
        pages: u64,
    },
}

impl Chase {
    /// Pages that it needs.
    #[must_use]
    pub fn pages(self) -> u64 {
        match self {
            Self::Pages { pages, .. } | Self::Lines { pages } => pages,
        }
    }

    /// Steps until it is back at its beginning.
    #[must_use]
    pub fn steps(self) -> u64 {
        match self {
            Self::Pages { pages, .. } => pages,
            Self::Lines { pages } => pages * LINES,
        }
    }

    /// Offsets from the beginning of the arena in the order of visits, bytes.
    pub fn offsets(self, seed: u64) -> impl Iterator<Item = u64> {
        let (pages, order) = match self {
            Self::Pages { pages, order } => (pages, order),
            Self::Lines { pages } => (pages, Order::Random),
        };
        let visits = Visits::new(pages, order, seed);
        (0..self.steps()).map(move |step| match self {
            Self::Pages { .. } => {
                let page = visits.page(step);
                page * 4096 + offset(page)
            }
            Self::Lines { .. } => {
                let (turn, place) = (step / LINES_AT_ONCE, step % LINES_AT_ONCE);
                let page = visits.page(turn % pages);
                // Lines of a page in the irregular order in which the pointers of 64 neighbouring
                // pages lie.
                page * 4096 + offset(page / LINES * LINES + turn / pages * LINES_AT_ONCE + place)
            }
        })
    }
}

/// What a chase took.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Sample {
    /// Nanoseconds a load: the median over stretches of 2048 loads.
    pub ns: f64,
    /// Stretches that were timed.
    pub stretches: u64,
    /// Of these, those in which the kernel took the processor away; they are left out unless all
    /// were.
    pub disturbed: u64,
}

impl Arena {
    /// Builds `chase` in this arena, runs it once to warm up, and then for at least `microseconds`
    /// and one whole round.
    ///
    /// # Errors
    /// [`ProbeError::Size`].
    pub fn time(&mut self, chase: Chase, seed: u64, microseconds: u64) -> Result<Sample, ProbeError> {
        self.check(chase.pages())?;
        let mut cursor = self.build(chase, seed);
        // SAFETY: `build` left a closed chain of addresses within this arena.
        cursor = unsafe { follow(cursor, chase.steps().min(1 << 20)) };
        let begun = Instant::now();
        let (mut calm, mut all, mut done) = (Vec::new(), Vec::new(), 0);
        while done < chase.steps() || (begun.elapsed().as_micros() as u64) < microseconds {
            let (switches, start) = (taken_away(), Instant::now());
            // SAFETY: the same chain.
            cursor = unsafe { follow(cursor, CHUNK) };
            let ns = start.elapsed().as_nanos() as f64 / CHUNK as f64;
            if taken_away() == switches {
                calm.push(ns);
            }
            all.push(ns);
            done += CHUNK;
        }
        std::hint::black_box(cursor);
        let (stretches, disturbed) = (all.len() as u64, (all.len() - calm.len()) as u64);
        Ok(Sample { ns: median(if calm.is_empty() { all } else { calm }), stretches, disturbed })
    }

    /// Writes the pointers of `chase`, and returns the first address.
    fn build(&mut self, chase: Chase, seed: u64) -> *const u8 {
        let base = self.base();
        let mut offsets = chase.offsets(seed);
        let first = base.wrapping_add(offsets.next().unwrap_or(0) as usize);
        let mut last = first;
        for next in offsets.map(|offset| base.wrapping_add(offset as usize)).chain([first]) {
            // SAFETY: offsets are multiples of 64 below the bytes of the pages that `check`
            // allowed; the memory is this arena's, populated and writable.
            unsafe { last.cast::<*const u8>().write(next) };
            last = next;
        }
        first
    }
}

/// Follows `steps` pointers from `cursor`.
///
/// # Safety
/// `cursor` points to the address of another such pointer, and so on for ever.
unsafe fn follow(mut cursor: *const u8, steps: u64) -> *const u8 {
    for _ in 0..steps {
        // SAFETY: as the caller promises. Volatile: it is read, however useless the compiler finds
        // it.
        cursor = unsafe { cursor.cast::<*const u8>().read_volatile() };
    }
    cursor
}

/// How often the kernel took the processor away from this thread.
fn taken_away() -> i64 {
    // SAFETY: all zeroes is a valid `rusage`, and the kernel fills it in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_chase_visits_each_page_or_each_line_once() {
        for order in Order::ALL {
            let visited: Vec<u64> = Chase::Pages { pages: 512, order }.offsets(1).collect();
            assert!(visited.iter().map(|offset| offset / 4096).collect::<BTreeSet<_>>().into_iter().eq(0..512));
            assert_eq!(visited.len(), 512);
        }
        let visited: BTreeSet<u64> = Chase::Lines { pages: 128 }.offsets(1).collect();
        assert!(visited.into_iter().eq((0..128 * 64).map(|line| line * 64)));
    }

    #[test]
    fn pointers_follow_the_offsets_and_come_back() {
        let mut arena = Arena::huge(4 << 20, &mut || true).unwrap();
        for chase in [Chase::Pages { pages: 64, order: Order::Grouped }, Chase::Lines { pages: 64 }] {
            let first = arena.build(chase, 9);
            let mut cursor = first;
            for expected in chase.offsets(9) {
                assert_eq!(cursor as u64 - arena.base() as u64, expected);
                // SAFETY: as `build` left it.
                cursor = unsafe { follow(cursor, 1) };
            }
            assert_eq!(cursor, first);
            let sample = arena.time(chase, 9, 0).unwrap();
            assert!(sample.ns > 0.0 && sample.stretches >= 1 && sample.disturbed <= sample.stretches, "{sample:?}");
        }
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
