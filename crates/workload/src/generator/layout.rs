// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address space of a made-up program: its data structures, and the small mappings that every
//! process has.
//!
//! Data structures that the program maps one after the other are neighbours, and the kernel makes
//! one VMA of them (`vma_merge`); [`Layout::gap`] keeps two apart, as a guard page or an old table
//! that was freed does. The small mappings (code, libraries, their data) lie apart from each other;
//! each thread has a stack with its locals.

use nestwalk_mem::{PageCount, Vpn, VpnRange, size};

use super::config::{Common, Mixture, impossible};
use super::heap::{GrowingHeapConfig, GrowingRegion, HeapGrowth};
use super::memory::{MmapArea, Region};
use crate::stream::WorkloadError;

/// Pages of a small mapping that the program touches (assumed): a library's data and the code that
/// runs.
const SMALL_MAPPING_PAGES: u64 = 4;

/// Where the program break begins: behind an executable of 1 MiB at `ELF_ET_DYN_BASE`, without
/// address randomisation (the size is assumed).
const BREAK: Vpn = Vpn(0x5_5555_5654);
/// Where FreeBSD places mappings of a program without static data: `maxdsiz`, 32 GiB, above it.
const FREEBSD_MMAP: Vpn = Vpn(0x8_0000_0000 >> 12);

/// See the [module's documentation](self).
pub(super) struct Layout {
    area: MmapArea,
    small: Vec<Region>,
    locals: Vec<Region>,
    data: Vec<Region>,
    heap: Option<GrowingRegion>,
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
        let own = threads * mixture.local_pages + u64::from(mixture.small_mappings) * SMALL_MAPPING_PAGES;
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
        let locals = apart(mixture.local_pages, threads);
        area.skip(PageCount(1));
        Ok(Self { area, small, locals, data: Vec::new(), heap: None, left: common.footprint.0 - own })
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

    /// The heap, of `pages`, which grows as it is filled.
    ///
    /// # Errors
    /// When its steps are larger than it is, or empty.
    pub(super) fn heap(&mut self, name: &str, pages: u64, config: GrowingHeapConfig) -> Result<Region, WorkloadError> {
        if !(1..=pages).contains(&config.step.0) {
            let [step, least, most] = [config.step.0, 1, pages].map(|pages| size::format(PageCount(pages).bytes()));
            let what = format!("heap.step = {step:?}: from {least:?} to the heap's size, {most:?}");
            return Err(impossible(name, what));
        }
        self.left = self.left.checked_sub(pages).expect("a program fills what it has left");
        let region = match config.grows {
            HeapGrowth::Brk => Region { pages: VpnRange::new(BREAK, PageCount(pages)) },
            HeapGrowth::Above => Region { pages: VpnRange::new(FREEBSD_MMAP, PageCount(pages)) },
            HeapGrowth::Below => self.area.map(PageCount(pages)),
        };
        self.heap = Some(GrowingRegion { region, config });
        Ok(region)
    }

    /// The heap, if it grows.
    pub(super) fn growing(&self) -> Option<GrowingRegion> {
        self.heap
    }

    /// Maps `permille` thousandths of `of` pages, at least one.
    pub(super) fn map_share(&mut self, of: u64, permille: u64) -> Region {
        self.map((of * permille / 1000).max(1).min(self.left))
    }

    /// Keeps what is mapped next from being one VMA with what was mapped last.
    pub(super) fn gap(&mut self) {
        self.area.skip(PageCount(1));
    }

    /// Where what the program maps and unmaps as it runs lies: right below all that it has mapped.
    pub(super) fn rest(&self) -> MmapArea {
        self.area.clone()
    }

    /// All mappings but those of a heap that grows, in the order in which they are made.
    pub(super) fn regions(&self) -> Vec<Region> {
        [&self.small[..], &self.locals, &self.data].concat()
    }

    /// Pages of all mappings, and of a heap when it has grown.
    pub(super) fn pages(&self) -> PageCount {
        let heap = self.heap.map(|heap| heap.region);
        PageCount(self.regions().iter().chain(&heap).map(|region| region.pages.len()).sum())
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
