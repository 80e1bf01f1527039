// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be known of a process's memory in one pass over its pages.

use serde::Serialize;

use crate::error::InspectError;
use crate::groups::{Coalescing, Fragmentation, GROUP_PAGES, Groups, Kind};
use crate::huge::{self, HUGE_PAGES, HugePages};
use crate::known::Known;
use crate::maps::{Mapping, PAGE_BYTES};
use crate::runs::{Contiguity, Runs};
use crate::settings::Settings;
use crate::sorted::SortedTables;
use crate::source::{Entry, Leaf, Piece, Source, Visibility};
use crate::status::Status;
use crate::strip::{self, Cell, Lines, Region};
use crate::tables::{self, PageTables};

/// Of so many pages the flags of one are read, unless all are wanted.
const SAMPLE_BITS: u32 = 6;
/// Flags are read of at most so many pages, unless all are wanted: the 95 % interval of a share is
/// then at most 3 points wide either way, and a call for each costs 1 ms at most.
const SAMPLE_MAX: usize = 2048;

/// Mappings that are listed, the ones with most memory.
const LISTED: usize = 16;
/// The share of the memory that "most of it" means.
const MOST: f64 = 0.99;

const HIDDEN: &str = "the kernel shows frame numbers to processes with CAP_SYS_ADMIN only, and as 0 to others: run as root, \
                      outside containers";
const NO_LEAVES: &str = "this kernel has no PAGEMAP_SCAN (Linux 6.7 and later), and does not say which pages PMDs map";

/// What to look at beyond the default, which costs less than 30 ms of CPU time a GiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Read the flags of every frame and not of a sample.
    pub all_flags: bool,
    /// Read the contents of 2 MiB pages, to count the pages in them that hold zeros only. It marks
    /// them as accessed.
    pub contents: bool,
}

/// What is known of a process.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Inspection {
    /// Which process it is.
    pub process: Status,
    /// Its memory.
    pub memory: Memory,
    /// Its mappings.
    pub mappings: Mappings,
    /// Its page tables.
    pub page_tables: PageTables,
    /// Where its kernel keeps them in the order of their addresses.
    pub sorted_tables: Known<SortedTables>,
    /// Host page-table fragmentation.
    pub host_pt_fragmentation: Known<Fragmentation>,
    /// Runs of pages and frames.
    pub contiguity: Known<Contiguity>,
    /// What entries for several pages could do.
    pub coalescing: Known<Coalescing>,
    /// Memory in large pages.
    pub huge_pages: HugePages,
    /// Settings of the kernel.
    pub settings: Settings,
    /// The address space from its lowest address to its highest, in cells; what is not touched is
    /// left out.
    pub strip: Vec<Cell>,
    /// What was not as it should be: a sentence each.
    pub notes: Vec<String>,
}

/// Bytes of a process's memory by what they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Memory {
    /// Of all mappings together.
    pub mapped_bytes: u64,
    /// In memory: the following three together.
    pub present_bytes: u64,
    /// In memory and the process's own, or still shared with its parent after a fork.
    pub anonymous_bytes: u64,
    /// In memory and of a file that is mapped privately or only read.
    pub file_bytes: u64,
    /// In memory and shared: shared files, shared memory, memfd.
    pub shared_bytes: u64,
    /// Swapped out, or being moved.
    pub swapped_bytes: u64,
    /// The page of zeros: read and never written; no memory is behind it.
    pub zero_bytes: u64,
}

/// The mappings (VMAs) of a process.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Mappings {
    /// How many there are.
    pub count: u64,
    /// The fewest that hold 99 % of the memory that is present: what a range TLB or ASAP's
    /// registers would need.
    pub for_99_percent: u64,
    /// Those with most memory, at most 16.
    pub largest: Vec<Listed>,
}

/// A mapping of the list.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Listed {
    /// First address, hexadecimal.
    pub start: String,
    /// The address after the last one.
    pub end: String,
    /// File or name; may be empty.
    pub name: String,
    /// Bytes that are present.
    pub present_bytes: u64,
    /// Groups of eight pages that PTEs map wholly.
    pub groups: u64,
    /// Lines of host PTEs that such a group lies on, the mean; null where there is none, or frames
    /// are hidden.
    pub lines: Option<f64>,
}

/// Looks at the process that `source` is about.
///
/// # Errors
/// When its mappings or pages cannot be read.
pub fn inspect(source: &dyn Source, options: Options) -> Result<Inspection, InspectError> {
    let process = Status::read(source);
    let mappings = source.mappings()?;
    let mut pass = Pass::new(&mappings, options);
    let visibility = source.pages(&mappings, &mut |mapping, piece| pass.take(mapping, piece))?;
    pass.end();
    Ok(pass.conclude(source, process, visibility, options))
}

/// Pages of a part of a region.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    present: u64,
    files: u64,
    swapped: u64,
}

/// One pass over all pages.
struct Pass<'a> {
    mappings: &'a [Mapping],
    all_flags: bool,
    at: usize,
    present: Vec<u64>,
    lines: Vec<Lines>,
    memory: Memory,
    groups: Groups,
    runs: Runs,
    regions: Vec<Region>,
    huge_pages: u64,
    anonymous_huge: Vec<u64>,
    sample: Vec<u64>,
    small_pages: u64,
}

impl<'a> Pass<'a> {
    fn new(mappings: &'a [Mapping], options: Options) -> Self {
        let mapped_bytes = mappings.iter().map(|mapping| mapping.end - mapping.start).sum();
        Self {
            mappings,
            all_flags: options.all_flags,
            at: 0,
            present: vec![0; mappings.len()],
            lines: vec![Lines::default(); mappings.len()],
            memory: Memory { mapped_bytes, ..Memory::default() },
            groups: Groups::default(),
            runs: Runs::default(),
            regions: Vec::new(),
            huge_pages: 0,
            anonymous_huge: Vec::new(),
            sample: Vec::new(),
            small_pages: 0,
        }
    }

    fn take(&mut self, mapping: usize, piece: Piece<'_>) {
        if mapping != self.at {
            self.runs.close();
            self.at = mapping;
        }
        match piece.leaf {
            Leaf::Pmd => self.huge(piece),
            Leaf::Pte => self.small(piece),
        }
    }

    fn huge(&mut self, piece: Piece<'_>) {
        for (index, entry) in (0..).zip(piece.entries).filter(|(_, entry)| entry.present()) {
            let page = piece.first + index * HUGE_PAGES;
            self.count(entry.file(), piece.zeros, HUGE_PAGES);
            if piece.zeros {
                continue;
            }
            self.huge_pages += HUGE_PAGES;
            if !entry.file() {
                self.anonymous_huge.push(page * PAGE_BYTES);
            }
            self.runs.add(page, entry.frame(), HUGE_PAGES);
            let region = self.region(page);
            region.huge = true;
            region.present += HUGE_PAGES;
        }
    }

    /// Pages by 2 MiB regions, so that a region's record is looked up once.
    fn small(&mut self, piece: Piece<'_>) {
        let (mut page, mut rest) = (piece.first, piece.entries);
        while !rest.is_empty() {
            let room = (HUGE_PAGES - page % HUGE_PAGES) as usize;
            let (part, after) = rest.split_at(room.min(rest.len()));
            self.small_part(Piece { first: page, entries: part, ..piece });
            (page, rest) = (page + part.len() as u64, after);
        }
    }

    fn small_part(&mut self, piece: Piece<'_>) {
        let mut seen = Seen::default();
        let (mut page, mut rest) = (piece.first, piece.entries);
        while let Some((&entry, after)) = rest.split_first() {
            match rest.first_chunk::<GROUP_PAGES>() {
                Some(group) if page.is_multiple_of(GROUP_PAGES as u64) && !piece.zeros && all_present(group) => {
                    self.whole_group(page, group, &mut seen);
                    (page, rest) = (page + GROUP_PAGES as u64, &rest[GROUP_PAGES..]);
                }
                _ => {
                    self.one_page(page, entry, piece.zeros, &mut seen);
                    (page, rest) = (page + 1, after);
                }
            }
        }
        if page.is_multiple_of(GROUP_PAGES as u64) {
            self.groups.close();
        }
        self.count(true, piece.zeros, seen.files);
        self.count(false, piece.zeros, seen.present - seen.files);
        self.memory.swapped_bytes += seen.swapped * PAGE_BYTES;
        let (lines, groups) = self.groups.take_recent();
        self.lines[self.at].add(lines, groups);
        if seen.present + seen.swapped + groups == 0 {
            return;
        }
        let region = self.region(piece.first);
        region.swapped += seen.swapped;
        region.table = true;
        region.lines.add(lines, groups);
        if !piece.zeros {
            region.present += seen.present;
            self.small_pages += seen.present;
        }
    }

    /// Eight pages of one group, all present.
    #[inline]
    fn whole_group(&mut self, page: u64, group: &[Entry; GROUP_PAGES], seen: &mut Seen) {
        let frames = group.map(Entry::frame);
        let files = group.iter().map(|entry| u64::from(entry.file())).sum::<u64>();
        seen.present += GROUP_PAGES as u64;
        seen.files += files;
        self.groups.add_whole(&frames, files as usize);
        for (page, frame) in (page..).zip(frames) {
            self.runs.add(page, frame, 1);
        }
        if self.all_flags {
            self.sample.extend(frames);
        } else if let Some(index) = drawn(page, GROUP_PAGES as u64) {
            self.sample.push(frames[index]);
        }
    }

    fn one_page(&mut self, page: u64, entry: Entry, zeros: bool, seen: &mut Seen) {
        if !entry.present() {
            seen.swapped += u64::from(entry.swapped());
            return;
        }
        seen.present += 1;
        seen.files += u64::from(entry.file());
        let kind = match (zeros, entry.file()) {
            (true, _) => Kind::Zeros,
            (false, true) => Kind::File,
            (false, false) => Kind::Anonymous,
        };
        self.groups.add(page, entry.frame(), kind);
        if !zeros {
            self.runs.add(page, entry.frame(), 1);
            if self.all_flags || drawn(page, 1).is_some() {
                self.sample.push(entry.frame());
            }
        }
    }

    fn count(&mut self, file: bool, zeros: bool, pages: u64) {
        let (memory, bytes) = (&mut self.memory, pages * PAGE_BYTES);
        if zeros {
            memory.zero_bytes += bytes;
            return;
        }
        memory.present_bytes += bytes;
        self.present[self.at] += pages;
        match (file, self.mappings[self.at].shared()) {
            (false, _) => memory.anonymous_bytes += bytes,
            (true, false) => memory.file_bytes += bytes,
            (true, true) => memory.shared_bytes += bytes,
        }
    }

    /// The record of the 2 MiB region that `page` is in: the last one, or a new one.
    fn region(&mut self, page: u64) -> &mut Region {
        let number = page / HUGE_PAGES;
        if self.regions.last().is_none_or(|last| last.number != number) {
            self.regions.push(Region { number, ..Region::default() });
        }
        let last = self.regions.len() - 1;
        &mut self.regions[last]
    }

    fn end(&mut self) {
        self.groups.close();
        let (lines, groups) = self.groups.take_recent();
        if let Some(last) = self.regions.last_mut() {
            last.lines.add(lines, groups);
        }
        if let Some(mapping) = self.lines.get_mut(self.at) {
            mapping.add(lines, groups);
        }
    }

    fn conclude(self, source: &dyn Source, process: Status, visibility: Visibility, options: Options) -> Inspection {
        let mut notes = Vec::new();
        if visibility.frames && !visibility.leaves {
            notes.push(format!("Groups within 2 MiB pages are counted as groups of PTEs, because {NO_LEAVES}."));
        }
        let mappings = self.listed(visibility.frames);
        let huge_pages = self.huge_section(source, &process, visibility, options);
        let strip = strip::cells(&self.regions, visibility.frames);
        let hidden = !visibility.frames;
        Inspection {
            mappings,
            sorted_tables: SortedTables::read(source, &process),
            page_tables: tables::needed(&self.regions, process.page_table_bytes.clone()),
            host_pt_fragmentation: if hidden { Known::not(HIDDEN) } else { self.groups.fragmentation() },
            coalescing: if hidden { Known::not(HIDDEN) } else { self.groups.coalescing() },
            contiguity: if hidden { Known::not(HIDDEN) } else { contiguity(self.runs) },
            huge_pages,
            settings: Settings::read(source),
            memory: self.memory,
            process,
            strip,
            notes,
        }
    }

    fn listed(&self, frames: bool) -> Mappings {
        let mut order: Vec<usize> = (0..self.mappings.len()).filter(|&index| self.present[index] > 0).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.present[index]));
        let all: u64 = self.present.iter().sum();
        let mut held = 0;
        let needed = order.iter().take_while(|&&index| {
            let more = (held as f64) < MOST * all as f64;
            held += self.present[index];
            more
        });
        let for_99_percent = needed.count() as u64;
        let largest = order.iter().take(LISTED).map(|&index| {
            let Mapping { start, end, name, .. } = &self.mappings[index];
            let present_bytes = self.present[index] * PAGE_BYTES;
            let lines = self.lines[index];
            Listed {
                start: format!("{start:#x}"),
                end: format!("{end:#x}"),
                name: name.clone(),
                present_bytes,
                groups: lines.groups,
                lines: lines.mean().filter(|_| frames),
            }
        });
        Mappings { count: self.mappings.len() as u64, for_99_percent, largest: largest.collect() }
    }

    fn huge_section(&self, source: &dyn Source, process: &Status, seen: Visibility, options: Options) -> HugePages {
        let present = self.memory.present_bytes;
        let bytes = self.huge_pages * PAGE_BYTES;
        let pmd_mapped_bytes = if seen.leaves { Known::Is(bytes) } else { Known::not(NO_LEAVES) };
        let pmd_mapped_share = match (&pmd_mapped_bytes, present) {
            (_, 0) => Known::not("no memory of the process is present"),
            (known, _) => known.clone().map(|bytes| bytes as f64 / present as f64),
        };
        let large_folios = if seen.frames { self.folios(source) } else { Known::not(HIDDEN) };
        let few_used = match (seen.leaves, options.contents) {
            (false, _) => Known::not(NO_LEAVES),
            (true, false) => {
                Known::not("only the contents of memory tell, and they are read only when asked (--contents)")
            }
            (true, true) => self.few_used(source),
        };
        let small = self.regions.iter().filter(|region| !region.huge);
        HugePages {
            pmd_mapped_bytes,
            pmd_mapped_share,
            hugetlb_bytes: process.hugetlb_bytes.clone(),
            large_folios,
            regions: huge::fills(small.map(|region| region.present)),
            few_used,
        }
    }

    fn folios(&self, source: &dyn Source) -> Known<huge::LargeFolios> {
        let limit = if self.all_flags { usize::MAX } else { SAMPLE_MAX };
        let step = self.sample.len().div_ceil(limit).max(1);
        let sample: Vec<u64> = self.sample.iter().copied().step_by(step).collect();
        match source.flags(&sample) {
            Known::Is(flags) => huge::large_folios(&flags, self.small_pages),
            Known::Not { unavailable } => Known::Not { unavailable },
        }
    }

    fn few_used(&self, source: &dyn Source) -> Known<huge::FewUsed> {
        let step = self.anonymous_huge.len().div_ceil(huge::LOOKED_AT_MAX).max(1);
        let starts: Vec<u64> = self.anonymous_huge.iter().copied().step_by(step).collect();
        match source.zero_pages(&starts) {
            Known::Is(zeros) => huge::few_used(&zeros.into_iter().flatten().collect::<Vec<_>>()),
            Known::Not { unavailable } => Known::Not { unavailable },
        }
    }
}

fn contiguity(runs: Runs) -> Known<Contiguity> {
    let found = runs.contiguity();
    if found.virtual_order.runs == 0 {
        return Known::not("no page of it has a frame: the memory was never written, or is swapped out");
    }
    Known::Is(found)
}

/// Which of the `pages` pages from `page` on the flags are read of: one page of each 64, at a place
/// that follows from their number alone. The pages have to be in one window of 64.
#[inline]
fn drawn(page: u64, pages: u64) -> Option<usize> {
    let window = page >> SAMPLE_BITS;
    // Fibonacci hashing: places that have nothing to do with the alignment of folios.
    let place = window.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SAMPLE_BITS);
    let index = place.checked_sub(page & ((1 << SAMPLE_BITS) - 1))?;
    (index < pages).then_some(index as usize)
}

#[inline]
fn all_present(group: &[Entry; GROUP_PAGES]) -> bool {
    group.iter().fold(Entry::PRESENT, |bits, entry| bits & entry.0) != 0
}
