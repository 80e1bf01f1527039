// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the facts about a process come from: a running one, or a recording of one. All that is
//! computed is computed from this trait, so that a recording goes through the same code.

use std::io;

use crate::error::InspectError;
use crate::known::Known;
use crate::maps::Mapping;

/// An entry of `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(pub u64);

impl Entry {
    /// The page is in memory.
    pub const PRESENT: u64 = 1 << 63;
    /// The page is swapped out, or being migrated.
    pub const SWAPPED: u64 = 1 << 62;
    /// The page belongs to a file or to shared memory.
    pub const FILE: u64 = 1 << 61;

    /// Whether the page is in memory.
    pub fn present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    /// Whether the page is swapped out.
    pub fn swapped(self) -> bool {
        self.0 & (Self::SWAPPED | Self::PRESENT) == Self::SWAPPED
    }

    /// Whether the page belongs to a file or to shared memory.
    pub fn file(self) -> bool {
        self.0 & Self::FILE != 0
    }

    /// The frame (pfn) of a page that is present; 0 where the kernel hides it.
    pub fn frame(self) -> u64 {
        self.0 & ((1 << 55) - 1)
    }
}

/// How pages of a [`Piece`] are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaf {
    /// By PTEs, or it is not known by what: an entry for each page of 4 KiB.
    Pte,
    /// By PMDs (or larger leaves): an entry for each 2 MiB.
    Pmd,
}

impl Leaf {
    /// Pages of 4 KiB for each entry.
    pub fn pages(self) -> u64 {
        match self {
            Self::Pte => 1,
            Self::Pmd => 512,
        }
    }
}

/// Some pages that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Number of the first page (gva >> 12).
    pub first: u64,
    /// How they are mapped.
    pub leaf: Leaf,
    /// Whether they are the kernel's page of zeros, which any number of addresses may have.
    pub zeros: bool,
    /// Their entries.
    pub entries: &'a [Entry],
}

/// Says which parts of a piece are the page of zeros, which kernels before 6.7 tell by its frame
/// only.
pub(crate) fn without_zeros(piece: Piece<'_>, zero: Option<u64>, visit: &mut dyn FnMut(Piece<'_>)) {
    let is_zero = |entry: &Entry| entry.present() && Some(entry.frame()) == zero;
    let mut first = piece.first;
    for run in piece.entries.chunk_by(|one, two| is_zero(one) == is_zero(two)) {
        visit(Piece { first, leaf: piece.leaf, zeros: piece.zeros || is_zero(&run[0]), entries: run });
        first += run.len() as u64 * piece.leaf.pages();
    }
}

/// What is true of all pieces of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visibility {
    /// Whether entries have frame numbers.
    pub frames: bool,
    /// Whether it is known which pages are mapped by PMDs (`PAGEMAP_SCAN`, Linux 6.7).
    pub leaves: bool,
}

/// Where the facts about a process come from.
pub trait Source {
    /// What the file `name` below `/proc/PID` holds.
    ///
    /// # Errors
    /// When it cannot be read.
    fn process(&self, name: &str) -> io::Result<String>;

    /// What the file `path` below `/` holds.
    ///
    /// # Errors
    /// When it cannot be read.
    fn system(&self, path: &str) -> io::Result<String>;

    /// Names of the folders in the folder `path` below `/`, in order.
    fn folders(&self, path: &str) -> Vec<String>;

    /// The mappings.
    ///
    /// # Errors
    /// When they cannot be read, or are none.
    fn mappings(&self) -> Result<Vec<Mapping>, InspectError>;

    /// Hands all pages of `mappings` that are present or swapped to `visit`, ascending; pages that
    /// are neither may be among them, and no piece goes beyond a mapping.
    ///
    /// # Errors
    /// When the process ends meanwhile, or may not be read.
    fn pages(&self, mappings: &[Mapping], visit: &mut dyn FnMut(usize, Piece<'_>)) -> Result<Visibility, InspectError>;

    /// The flags (`/proc/kpageflags`) of frames, in their order; frames that no memory has are
    /// [`crate::kpageflags::NOPAGE`].
    fn flags(&self, frames: &[u64]) -> Known<Vec<u64>>;

    /// For each 2 MiB page that begins at an address in `starts`: how many of its 512 small pages
    /// hold nothing but zeros; none for those that went away.
    fn zero_pages(&self, starts: &[u64]) -> Known<Vec<Option<u32>>>;
}
