// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that hashed tables lie in.

use nestwalk_mem::Hpa;

use crate::config::LINE_BYTES;

/// Contiguous lines, a power of two of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub base: Hpa,
    pub lines: usize,
}

/// Memory that is handed out in extents. What was given back is handed out again before anything
/// else of that size.
#[derive(Debug)]
pub(super) struct Region {
    base: Hpa,
    next: Hpa,
    end: Hpa,
    /// Extents that were given back, by log2 of their lines.
    free: Vec<Vec<Hpa>>,
    /// What was taken since the last [`Region::take_news`].
    news: Vec<Extent>,
}

impl Region {
    pub fn new(base: Hpa, end: Hpa) -> Self {
        Self { base, next: base, end, free: vec![Vec::new(); usize::BITS as usize], news: Vec::new() }
    }

    /// The number of bytes of the region before `hpa`.
    pub fn offset(&self, hpa: Hpa) -> u64 {
        hpa.0 - self.base.0
    }

    /// Takes `lines`, a power of two.
    ///
    /// # Panics
    /// When there are none left, which takes more than a hundred processes for each GiB of memory.
    pub fn take(&mut self, lines: usize) -> Extent {
        let base = self.free[lines.trailing_zeros() as usize].pop().unwrap_or_else(|| {
            let base = self.next;
            self.next = base + lines as u64 * LINE_BYTES;
            assert!(self.next <= self.end, "the hashed page tables of all processes need more memory than there is");
            base
        });
        let extent = Extent { base, lines };
        self.news.push(extent);
        extent
    }

    /// Gives it back.
    pub fn give(&mut self, extent: Extent) {
        self.free[extent.lines.trailing_zeros() as usize].push(extent.base);
    }

    /// What was taken since the last time.
    pub fn take_news(&mut self) -> Vec<Extent> {
        std::mem::take(&mut self.news)
    }

    /// Lines that were taken and not given back.
    #[cfg(test)]
    pub fn in_use(&self) -> u64 {
        let free: u64 = self.free.iter().enumerate().map(|(order, list)| (list.len() as u64) << order).sum();
        self.offset(self.next) / LINE_BYTES - free
    }
}
