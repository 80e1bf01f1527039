// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stream`: McCalpin's triad, `a[i] = b[i] + q * c[i]`, over three arrays of doubles, again and
//! again. Each thread has a slice. Nothing has more locality: a TLB miss every 512 elements and
//! array.

use nestwalk_mem::{Access, PageCount, Vpn};

use super::config::parameters;
use super::memory::{MmapArea, Region, Sweep};
use super::program::Program;
use crate::stream::WorkloadError;

/// Instructions of an element (assumed): load, multiply, add from memory, store, and a loop's share
/// at scalar code.
const INSTRUCTIONS_PER_ELEMENT: u64 = 6;
/// Accesses of an element: load `b`, load `c`, store `a`.
const ACCESSES_PER_ELEMENT: u64 = 3;
/// Bytes of an element.
const ELEMENT: u64 = 8;

parameters! {
    /// Sequential triad over three arrays, each a third of the footprint.
    StreamConfig {}
}

pub(super) struct Stream {
    /// `a`, `b`, `c`.
    arrays: [Region; 3],
    sweep: Sweep,
    threads: Vec<Thread>,
}

struct Thread {
    start: u64,
    end: u64,
    /// The element, and how many of its accesses are done.
    at: (u64, u64),
}

impl Stream {
    pub(super) fn new(config: &StreamConfig) -> Result<Self, WorkloadError> {
        config.common().check(Self::NAME)?;
        let mut area = MmapArea::new();
        let arrays: [Region; 3] = std::array::from_fn(|_| area.map(PageCount(config.footprint.0 / 3)));
        let elements = arrays[0].bytes() / ELEMENT;
        let threads = u64::from(config.threads);
        let thread = |index| {
            let (start, end) = (elements * index / threads, elements * (index + 1) / threads);
            Thread { start, end, at: (start, 0) }
        };
        Ok(Self {
            arrays,
            // STREAM fills all three in one loop.
            sweep: Sweep::new(vec![arrays.to_vec()], config.threads),
            threads: (0..threads).map(thread).collect(),
        })
    }

    #[inline]
    fn access(arrays: &[Region; 3], element: u64, which: u64) -> Access {
        let [a, b, c] = arrays;
        match which {
            0 => Access::load(b.at(element * ELEMENT)),
            1 => Access::load(c.at(element * ELEMENT)),
            _ => Access::store(a.at(element * ELEMENT)),
        }
    }
}

impl Program for Stream {
    const NAME: &'static str = "stream";

    fn regions(&self) -> Vec<Region> {
        self.arrays.to_vec()
    }

    fn footprint(&self) -> PageCount {
        PageCount(self.arrays.iter().map(|array| array.pages.len()).sum())
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn fill(&mut self, thread: u16, accesses: &mut Vec<Access>, most: usize) -> u64 {
        let Thread { start, end, at } = &mut self.threads[usize::from(thread)];
        let arrays = self.arrays;
        let room = most - accesses.len();
        while accesses.len() < most {
            let (element, done) = *at;
            let whole =
                if done == 0 { ((most - accesses.len()) as u64 / ACCESSES_PER_ELEMENT).min(*end - element) } else { 0 };
            if whole > 0 {
                let triads = element..element + whole;
                accesses.extend(triads.flat_map(|e| [0, 1, 2].map(|which| Self::access(&arrays, e, which))));
                at.0 += whole;
            } else {
                accesses.push(Self::access(&arrays, element, done));
                *at = if done + 1 == ACCESSES_PER_ELEMENT { (element + 1, 0) } else { (element, done + 1) };
            }
            if at.0 == *end {
                at.0 = *start;
            }
        }
        room as u64 * INSTRUCTIONS_PER_ELEMENT / ACCESSES_PER_ELEMENT
    }
}
