// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a program uses its memory, by its trace: footprint and working set over time, reuse
//! distances of pages, and which parts of the address space it accesses when. For pictures.

use std::ops::ControlFlow;
use std::path::Path;

use nestwalk_mem::{Access, Vpn};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::format::RecordKind;
use super::log::LogStep;
use super::pages::PageTracker;
use super::reader::{Decoder, Trace};
use super::stack::Stack;
use crate::stream::{Phase, WorkloadError};

/// Parts that the run is cut into.
const INTERVALS: u64 = 120;
/// Parts that the used address space is cut into.
const ROWS: usize = 80;
/// Pages of what the address space is counted by: 2 MiB.
const CHUNK_ORDER: u32 = 9;
/// Chunks no further apart than this belong to one region: 64 MiB.
const REGION_GAP: u64 = 32;
/// Reuse distances are counted by powers of two up to here.
const REUSE_BINS: usize = 33;
/// Accesses decoded at a time.
const PIECE: usize = 1 << 14;

/// What [`profile`] finds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Profile {
    /// Accesses of an interval of [`Profile::footprint`] and [`Profile::heat`].
    pub interval_accesses: u64,
    /// Distinct pages touched up to the end of each interval, in bytes.
    pub footprint: Vec<Footprint>,
    /// Distinct pages of each stretch whose accesses are there.
    pub working_set: Vec<WorkingSet>,
    /// How many other pages were accessed since a page was before.
    pub reuse: Vec<Reuse>,
    /// Accesses to pages that were not accessed before in the stretch.
    pub first_accesses: u64,
    /// Parts of the address space, from the lowest.
    pub rows: Vec<Row>,
    /// Accesses by interval and row; without those that are 0.
    pub heat: Vec<Cell>,
}

/// A point of the footprint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Footprint {
    /// Accesses of the program so far.
    pub access: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A point of the working set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct WorkingSet {
    /// The first access.
    pub access: u64,
    /// Accesses of the program.
    pub accesses: u64,
    /// Bytes of the pages that they touch.
    pub bytes: u64,
}

/// Accesses by reuse distance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Reuse {
    /// Below so many other pages, and not below half of that.
    pub pages_below: u64,
    /// Accesses of the program.
    pub accesses: u64,
}

/// A part of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Row {
    /// First byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Which region it is of: parts of one lie beside each other.
    pub region: usize,
}

/// Accesses to a part of the address space in an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Cell {
    /// Which interval, from 0.
    pub interval: u64,
    /// Which of [`Profile::rows`].
    pub row: usize,
    /// Accesses in the file.
    pub accesses: u64,
}

/// Reads the whole trace `path`. `progress` is told of accesses done and of all there are, and ends
/// it by breaking.
///
/// # Errors
/// When the trace cannot be read or is damaged, or `progress` broke
/// ([`std::io::ErrorKind::Interrupted`]).
pub fn profile(path: &Path, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<Profile, WorkloadError> {
    let trace = Trace::open(path)?;
    let all = trace.metadata().accesses;
    let mut decoder = Decoder::new(&trace)?;
    let mut state = State::new(trace.metadata().program_accesses);
    let (mut accesses, mut gaps, mut touches): (Vec<Access>, Vec<u32>, Vec<(Vpn, bool)>) = Default::default();
    let mut done = 0;
    for record in trace.records() {
        match record.kind {
            RecordKind::Accesses | RecordKind::Filtered => {
                decoder.begin(&trace, record)?;
                while decoder.left() > 0 {
                    accesses.clear();
                    gaps.clear();
                    let count = decoder.fill(&trace, &mut accesses, PIECE)?;
                    decoder.fill_gaps(&mut gaps, count);
                    state.accesses(&accesses, &gaps);
                    done += count as u64;
                    if progress(done, all).is_break() {
                        return Err(WorkloadError::Io {
                            path: path.into(),
                            source: std::io::ErrorKind::Interrupted.into(),
                        });
                    }
                }
            }
            RecordKind::Log => {
                decoder.begin_log(&trace, record)?;
                loop {
                    touches.clear();
                    match decoder.log_step(&trace, &mut touches, PIECE)? {
                        LogStep::Touches(_) => touches.iter().for_each(|&(page, _)| state.touch(page)),
                        LogStep::Event(_) => {}
                        LogStep::End => break,
                    }
                }
            }
            _ => {
                let mark = decoder.mark(&trace, record)?;
                state.mark(mark.access, mark.phase);
            }
        }
    }
    Ok(state.finish())
}

/// What has been counted so far.
struct State {
    interval_accesses: u64,
    /// Accesses of the program so far.
    position: u64,
    pages: PageTracker,
    footprint: Vec<Footprint>,
    /// The stretch, or the interval of it, whose working set is being counted: its beginning and
    /// its pages.
    stretch_begin: u64,
    stretch_pages: FxHashSet<u64>,
    last_page: Vpn,
    working_set: Vec<WorkingSet>,
    stack: Stack,
    /// By log2 of the distance + 1.
    reuse: [u64; REUSE_BINS],
    first_accesses: u64,
    /// By interval and chunk.
    heat: FxHashMap<(u64, u64), u64>,
}

impl State {
    fn new(program_accesses: u64) -> Self {
        Self {
            interval_accesses: program_accesses.div_ceil(INTERVALS).max(1),
            position: 0,
            pages: PageTracker::default(),
            footprint: Vec::new(),
            stretch_begin: 0,
            stretch_pages: FxHashSet::default(),
            last_page: Vpn(u64::MAX),
            working_set: Vec::new(),
            stack: Stack::default(),
            reuse: [0; REUSE_BINS],
            first_accesses: 0,
            heat: FxHashMap::default(),
        }
    }

    fn accesses(&mut self, accesses: &[Access], gaps: &[u32]) {
        for (index, access) in accesses.iter().enumerate() {
            let page = access.gva().page();
            let absorbed = u64::from(gaps.get(index).copied().unwrap_or(0));
            self.access(Vpn(page.0));
            // A filter's pages are those of a small LRU array, so an absorbed access has a distance
            // below its size.
            self.reuse[0] += absorbed;
            self.move_to(self.position + 1 + absorbed);
        }
    }

    fn access(&mut self, page: Vpn) {
        match self.stack.access(page) {
            Some(distance) => self.reuse[(64 - distance.leading_zeros() as usize).min(REUSE_BINS - 1)] += 1,
            None => self.first_accesses += 1,
        }
        if page != self.last_page {
            self.last_page = page;
            self.stretch_pages.insert(page.0);
            self.touch(page);
        }
        *self.heat.entry((self.position / self.interval_accesses, page.0 >> CHUNK_ORDER)).or_default() += 1;
    }

    fn touch(&mut self, page: Vpn) {
        self.pages.note(page, false);
    }

    fn move_to(&mut self, position: u64) {
        let interval = self.position / self.interval_accesses;
        self.position = position;
        if position / self.interval_accesses != interval {
            self.note_footprint();
            self.end_stretch();
        }
    }

    fn note_footprint(&mut self) {
        self.footprint.push(Footprint { access: self.position, bytes: self.pages.footprint().bytes() });
    }

    fn end_stretch(&mut self) {
        if !self.stretch_pages.is_empty() {
            let bytes = (self.stretch_pages.len() as u64) << 12;
            let accesses = self.position - self.stretch_begin;
            self.working_set.push(WorkingSet { access: self.stretch_begin, accesses, bytes });
        }
        self.stretch_pages.clear();
        self.last_page = Vpn(u64::MAX);
        self.stretch_begin = self.position;
    }

    /// A phase begins at access `at` of the program.
    fn mark(&mut self, at: u64, phase: Phase) {
        let skipped = at > self.position;
        if skipped || phase == Phase::Populate {
            self.end_stretch();
        }
        if skipped {
            self.position = at;
            self.note_footprint();
            self.stack = Stack::default();
        }
        self.stretch_begin = self.stretch_begin.max(at);
    }

    fn finish(mut self) -> Profile {
        self.end_stretch();
        self.note_footprint();
        let (rows, heat) = rows(&self.heat);
        let bins = self.reuse.iter().rposition(|&accesses| accesses > 0).map_or(0, |last| last + 1);
        let reuse = |bin: usize| Reuse { pages_below: 1 << bin, accesses: self.reuse[bin] };
        Profile {
            interval_accesses: self.interval_accesses,
            footprint: self.footprint,
            working_set: self.working_set,
            reuse: (0..bins).map(reuse).collect(),
            first_accesses: self.first_accesses,
            rows,
            heat,
        }
    }
}

/// Cuts the chunks that are used into regions, and these into at most about [`ROWS`] rows; says
/// what is in them.
fn rows(heat: &FxHashMap<(u64, u64), u64>) -> (Vec<Row>, Vec<Cell>) {
    let mut chunks: Vec<u64> = heat.keys().map(|&(_, chunk)| chunk).collect();
    chunks.sort_unstable();
    chunks.dedup();
    let regions: Vec<(u64, u64)> =
        chunks.chunk_by(|a, b| b - a <= REGION_GAP).map(|region| (region[0], region[region.len() - 1] + 1)).collect();
    let all: u64 = regions.iter().map(|(start, end)| end - start).sum();
    let step = all.div_ceil(ROWS as u64).max(1);
    let mut rows = Vec::new();
    for (region, &(start, end)) in regions.iter().enumerate() {
        let parts = (start..end).step_by(step as usize);
        rows.extend(parts.map(|from| (from, (from + step).min(end), region)));
    }
    let mut cells: FxHashMap<(u64, usize), u64> = FxHashMap::default();
    for (&(interval, chunk), &accesses) in heat {
        let row = rows.partition_point(|&(_, end, _)| end <= chunk);
        *cells.entry((interval, row)).or_default() += accesses;
    }
    let mut cells: Vec<Cell> =
        cells.into_iter().map(|((interval, row), accesses)| Cell { interval, row, accesses }).collect();
    cells.sort_unstable_by_key(|cell| (cell.interval, cell.row));
    let address = |chunk: u64| chunk << (CHUNK_ORDER + 12);
    let row = |(start, end, region): (u64, u64, usize)| Row { start: address(start), end: address(end), region };
    (rows.into_iter().map(row).collect(), cells)
}
