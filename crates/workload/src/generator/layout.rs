// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address space of a made-up program: its data structures, and the small mappings that every
//! process has.
//!
//! Data structures that the program maps one after the other are neighbours, and the kernel makes
//! one VMA of them (`vma_merge`); [`Layout::gap`] keeps two apart, as a guard page or an old table
//! that was freed does. The small mappings (code, libraries, their data) lie apart from each other;
//! each thread has a stack with its locals.

use nestwalk_mem::{PageCount, Vpn};

use super::config::{Common, Mixture, impossible};
use super::locals::LOCAL_PAGES;
use super::memory::{MmapArea, Region};
use crate::stream::WorkloadError;

/// Pages of a small mapping that the program touches (assumed): a library's data and the code that
/// runs.
const SMALL_MAPPING_PAGES: u64 = 4;

/// See the [module's documentation](self).
pub(super) struct Layout {
    area: MmapArea,
    small: Vec<Region>,
    locals: Vec<Region>,
    data: Vec<Region>,
    /// Pages of the footprint that are not mapped yet.
    left: u64,
}

impl Layout {
    /// The process of the program `name` before it maps data. Its threads' stacks and small
    /// mappings are part of the footprint.
    ///
    /// # Errors
    /// When a common parameter is impossible, or the footprint leaves no room for data.
    pub(super) fn new(name: &str, common: Common, mixture: Mixture) -> Result<Self, WorkloadError> {
        common.check(name)?;
        if mixture.local_permille > 995 {
            return Err(impossible(name, format!("local_permille = {}: at most 995", mixture.local_permille)));
        }
        let threads = u64::from(common.threads);
        let own = threads * LOCAL_PAGES + u64::from(mixture.small_mappings) * SMALL_MAPPING_PAGES;
        let least = own + 64 * threads + 256;
        if common.footprint.0 < least {
            let least = nestwalk_mem::size::format(PageCount(least).bytes());
            return Err(impossible(name, format!("footprint: at least {least:?} for its threads, libraries and data")));
        }
        let mut area = MmapArea::new();
        let mut apart = |pages, count| -> Vec<Region> {
            let one = |_| {
                area.skip(PageCount(1));
                area.map(PageCount(pages))
            };
            (0..count).map(one).collect()
        };
        let small = apart(SMALL_MAPPING_PAGES, u64::from(mixture.small_mappings));
        let locals = apart(LOCAL_PAGES, threads);
        area.skip(PageCount(1));
        Ok(Self { area, small, locals, data: Vec::new(), left: common.footprint.0 - own })
    }

    /// Pages for data that are left.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Maps `pages` for a data structure, right below the one before.
    ///
    /// # Panics
    /// When the footprint has fewer left.
    pub(super) fn map(&mut self, pages: u64) -> Region {
        self.left = self.left.checked_sub(pages).expect("a program maps what it has left");
        let region = self.area.map(PageCount(pages));
        self.data.push(region);
        region
    }

    /// Maps `permille` thousandths of `of` pages, at least one.
    pub(super) fn map_share(&mut self, of: u64, permille: u64) -> Region {
        self.map((of * permille / 1000).max(1).min(self.left))
    }

    /// Keeps what is mapped next from being one VMA with what was mapped last.
    pub(super) fn gap(&mut self) {
        self.area.skip(PageCount(1));
    }

    /// All mappings, in the order in which they are made.
    pub(super) fn regions(&self) -> Vec<Region> {
        [&self.small[..], &self.locals, &self.data].concat()
    }

    /// Pages of all mappings.
    pub(super) fn pages(&self) -> PageCount {
        PageCount(self.regions().iter().map(|region| region.pages.len()).sum())
    }

    /// The stack of a thread.
    pub(super) fn locals(&self, thread: usize) -> Region {
        self.locals[thread]
    }

    /// What a thread touches before it works: its stack, and the first thread the small mappings as
    /// well.
    pub(super) fn touch(&self, thread: u16, touches: &mut Vec<(Vpn, bool)>) {
        let small: &[Region] = if thread == 0 { &self.small } else { &[] };
        for region in small.iter().chain([&self.locals[usize::from(thread)]]) {
            touches.extend((0..region.pages.len()).map(|page| (region.pages.start + page, true)));
        }
    }
}
