// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address space as a strip: what is touched, from the lowest address to the highest, in at
//! most 256 cells.

use serde::Serialize;

use crate::huge::HUGE_PAGES;
use crate::maps::PAGE_BYTES;

const CELLS_MAX: usize = 256;

/// What was seen of the 2 MiB of addresses that a PMD entry covers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Region {
    /// gva >> 21.
    pub(crate) number: u64,
    /// Pages that are present, the page of zeros left out.
    pub(crate) present: u64,
    pub(crate) swapped: u64,
    /// Whether a PMD maps it.
    pub(crate) huge: bool,
    /// Whether it has a table of PTEs.
    pub(crate) table: bool,
    pub(crate) lines: Lines,
}

/// Lines of host PTEs of whole groups.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lines {
    pub(crate) lines: u64,
    pub(crate) groups: u64,
}

impl Lines {
    pub(crate) fn add(&mut self, lines: u64, groups: u64) {
        self.lines += lines;
        self.groups += groups;
    }

    /// Lines a group; `None` where there is none.
    pub(crate) fn mean(self) -> Option<f64> {
        (self.groups > 0).then(|| self.lines as f64 / self.groups as f64)
    }
}

/// A part of the strip.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Cell {
    /// First address, hexadecimal.
    pub start: String,
    /// The address after the last one. What lies between two touched regions is left out, and
    /// counts in neither share.
    pub end: String,
    /// Bytes of the 2 MiB regions that it stands for.
    pub bytes: u64,
    /// Share of them that is present, mapped by PTEs.
    pub small_share: f64,
    /// Share that is mapped by PMDs.
    pub huge_share: f64,
    /// Share that is swapped out.
    pub swapped_share: f64,
    /// Lines of host PTEs a group, the mean; null where no group is whole or frames are hidden.
    pub lines: Option<f64>,
}

/// The strip: as many regions in each cell.
pub(crate) fn cells(regions: &[Region], frames: bool) -> Vec<Cell> {
    let each = regions.len().div_ceil(CELLS_MAX).max(1);
    regions.chunks(each).map(|part| cell(part, frames)).collect()
}

fn cell(part: &[Region], frames: bool) -> Cell {
    let region_bytes = HUGE_PAGES * PAGE_BYTES;
    let sum = |value: fn(&Region) -> u64| part.iter().map(value).sum::<u64>();
    let pages = (part.len() as u64 * HUGE_PAGES) as f64;
    let huge = sum(|region| if region.huge { region.present } else { 0 });
    let lines = Lines { lines: sum(|region| region.lines.lines), groups: sum(|region| region.lines.groups) };
    Cell {
        start: format!("{:#x}", part[0].number * region_bytes),
        end: format!("{:#x}", (part[part.len() - 1].number + 1) * region_bytes),
        bytes: part.len() as u64 * region_bytes,
        small_share: (sum(|region| region.present) - huge) as f64 / pages,
        huge_share: huge as f64 / pages,
        swapped_share: sum(|region| region.swapped) as f64 / pages,
        lines: lines.mean().filter(|_| frames),
    }
}
