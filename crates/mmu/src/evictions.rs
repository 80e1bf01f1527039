// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an inclusive last level evicted: the cores lose it, too, each when it runs next.

use crate::cache::Victim;

/// Lines that were evicted, of which the last ones are kept until all cores have heard of them.
#[derive(Clone, Debug)]
pub(crate) struct Evictions {
    /// A ring.
    lines: Box<[u64; Evictions::KEPT]>,
    count: u64,
}

impl Evictions {
    /// How many are kept.
    pub const KEPT: usize = 1 << 12;

    /// None so far.
    pub fn new() -> Self {
        Self { lines: Box::new([0; Self::KEPT]), count: 0 }
    }

    /// Tells the cores that a line is gone, if it is.
    #[inline(always)]
    pub fn announce(&mut self, gone: Victim) {
        // Otherwise the place is written, but not taken.
        self.lines[self.count as usize % Self::KEPT] = gone.line();
        self.count += u64::from(gone.is_real());
    }

    /// How many there were.
    #[inline(always)]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Those after the first `heard`; `None` if not all of them are kept.
    pub fn since(&self, heard: u64) -> Option<impl Iterator<Item = u64>> {
        let are_kept = self.count - heard <= Self::KEPT as u64;
        are_kept.then(|| (heard..self.count).map(|number| self.lines[number as usize % Self::KEPT]))
    }
}
