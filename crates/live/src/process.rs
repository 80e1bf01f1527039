// SPDX-License-Identifier: MIT OR Apache-2.0
//! A running process as a [`Source`].

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::InspectError;
use crate::known::Known;
use crate::kpageflags;
use crate::maps::{self, Mapping, PAGE_BYTES};
use crate::pagemap::{self, Pagemap, Region};
use crate::source::{Entry, Leaf, Piece, Source, Visibility, without_zeros};

/// Entries that are read at once: 512 KiB, which stay in the cache until they are counted.
const CHUNK: u64 = 1 << 16;
/// Pages that are neither present nor swapped are read along if a call less is needed for it.
const GAP: u64 = 64;
const HUGE_BYTES: u64 = 2 << 20;

/// A running process.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    folder: PathBuf,
    pagemap: RefCell<Pagemap>,
    zero_frame: Option<u64>,
}

impl Process {
    /// Opens the process `pid`.
    ///
    /// # Errors
    /// When there is none, or it may not be looked at.
    pub fn open(pid: u32) -> Result<Self, InspectError> {
        // SAFETY: sysconf has no preconditions.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if bytes != PAGE_BYTES as i64 {
            return Err(InspectError::PageSize { bytes: bytes.unsigned_abs() });
        }
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let path = folder.join("pagemap");
        let file = File::open(&path).map_err(|error| {
            let none = if folder.is_dir() { InspectError::NoMemory { pid } } else { InspectError::NoProcess { pid } };
            failed(pid, &path, error, none)
        })?;
        Ok(Self { pid, folder, pagemap: RefCell::new(Pagemap::new(file)), zero_frame: pagemap::zero_frame() })
    }

    fn failed(&self, name: &str, error: io::Error) -> InspectError {
        failed(self.pid, &self.folder.join(name), error, InspectError::Gone { pid: self.pid })
    }

    /// Whether entries have frame numbers: the kernel hides them all or none.
    fn shows_frames(&self) -> bool {
        // The page of zeros of our own is a page whose frame is not 0.
        self.zero_frame.is_some()
    }

    fn read(&self, first: u64, count: u64, into: &mut Vec<Entry>) -> Result<(), InspectError> {
        into.clear();
        let mut pagemap = self.pagemap.borrow_mut();
        pagemap.read(first, count as usize, into).map_err(|error| self.failed("pagemap", error))?;
        if (into.len() as u64) < count { Err(InspectError::Gone { pid: self.pid }) } else { Ok(()) }
    }

    /// Hands over the entries of pages from `first` to `end`, as if all were mapped by PTEs.
    fn small(&self, first: u64, end: u64, zeros: bool, visit: &mut dyn FnMut(Piece<'_>)) -> Result<(), InspectError> {
        let mut entries = Vec::new();
        let mut at = first;
        while at < end {
            let count = (end - at).min(CHUNK);
            self.read(at, count, &mut entries)?;
            visit(Piece { first: at, leaf: Leaf::Pte, zeros, entries: &entries });
            at += count;
        }
        Ok(())
    }

    /// The same of pages that are mapped by PMDs: of each 2 MiB only the first entry is read.
    fn huge(&self, first: u64, end: u64, zeros: bool, visit: &mut dyn FnMut(Piece<'_>)) -> Result<(), InspectError> {
        let mut one = Vec::new();
        let mut entries = Vec::new();
        for at in (first..end).step_by(Leaf::Pmd.pages() as usize) {
            self.read(at, 1, &mut one)?;
            entries.extend_from_slice(&one);
        }
        visit(Piece { first, leaf: Leaf::Pmd, zeros, entries: &entries });
        Ok(())
    }

    /// Hands over what is known without frame numbers, which the kernel hides: it is all in the
    /// regions.
    fn categories(region: &Region, mapping: &Mapping, visit: &mut dyn FnMut(Piece<'_>)) {
        let (first, end, leaf) = extent(region, mapping);
        let zeros = region.categories & pagemap::ZEROS != 0;
        let entry = entry(region.categories);
        let mut at = first;
        let entries = vec![entry; ((end - first) / leaf.pages()).min(CHUNK) as usize];
        while at < end {
            let count = ((end - at) / leaf.pages()).min(CHUNK);
            visit(Piece { first: at, leaf, zeros, entries: &entries[..count as usize] });
            at += count * leaf.pages();
        }
    }

    fn region(&self, region: &Region, mapping: &Mapping, visit: &mut dyn FnMut(Piece<'_>)) -> Result<(), InspectError> {
        if !self.shows_frames() {
            Self::categories(region, mapping, visit);
            return Ok(());
        }
        let (first, end, leaf) = extent(region, mapping);
        let zeros = region.categories & pagemap::ZEROS != 0;
        match leaf {
            Leaf::Pte => self.small(first, end, zeros, visit),
            Leaf::Pmd => self.huge(first, end, zeros, visit),
        }
    }
}

/// The entry of a page with these categories, without a frame.
fn entry(categories: u64) -> Entry {
    let bit = |category, bit| if categories & category != 0 { bit } else { 0 };
    Entry(
        bit(pagemap::PRESENT, Entry::PRESENT) | bit(pagemap::SWAPPED, Entry::SWAPPED) | bit(pagemap::FILE, Entry::FILE),
    )
}

/// The pages of `region` within `mapping`, and how they are mapped.
fn extent(region: &Region, mapping: &Mapping) -> (u64, u64, Leaf) {
    let (start, end) = (region.start.max(mapping.start), region.end.min(mapping.end));
    let huge = region.categories & (pagemap::HUGE | pagemap::PRESENT) == pagemap::HUGE | pagemap::PRESENT;
    let whole = start.is_multiple_of(HUGE_BYTES) && end.is_multiple_of(HUGE_BYTES);
    (start / PAGE_BYTES, end / PAGE_BYTES, if huge && whole { Leaf::Pmd } else { Leaf::Pte })
}

/// Regions that are read by the same calls: small pages whatever their other categories, with small
/// gaps between.
fn merged(regions: Vec<Region>, frames: bool) -> Vec<Region> {
    if !frames {
        return regions;
    }
    let apart = pagemap::HUGE | pagemap::ZEROS;
    let mut found: Vec<Region> = Vec::with_capacity(regions.len());
    for region in regions {
        match found.last_mut() {
            Some(last)
                if (last.categories | region.categories) & apart == 0
                    && region.start - last.end <= GAP * PAGE_BYTES =>
            {
                last.end = region.end;
            }
            _ => found.push(region),
        }
    }
    found
}

fn failed(pid: u32, path: &Path, error: io::Error, gone: InspectError) -> InspectError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => gone,
        Some(libc::EACCES | libc::EPERM) => InspectError::Refused { path: path.into() },
        // pagemap of a thread of the kernel.
        Some(libc::EINVAL) => InspectError::NoMemory { pid },
        _ => InspectError::Io { path: path.into(), source: error },
    }
}

fn lossy(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

impl Source for Process {
    fn process(&self, name: &str) -> io::Result<String> {
        lossy(&self.folder.join(name))
    }

    fn system(&self, path: &str) -> io::Result<String> {
        lossy(&Path::new("/").join(path))
    }

    fn folders(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(Path::new("/").join(path)).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.path().is_dir());
        let mut names: Vec<String> = folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    fn mappings(&self) -> Result<Vec<Mapping>, InspectError> {
        let text = self.process("maps").map_err(|error| self.failed("maps", error))?;
        let found = maps::parse(&text)?;
        if found.is_empty() { Err(InspectError::NoMemory { pid: self.pid }) } else { Ok(found) }
    }

    fn pages(&self, mappings: &[Mapping], visit: &mut dyn FnMut(usize, Piece<'_>)) -> Result<Visibility, InspectError> {
        let frames = self.shows_frames();
        let (Some(first), Some(last)) = (mappings.first(), mappings.last()) else {
            return Ok(Visibility { frames, leaves: true });
        };
        // Entries with frames say themselves what belongs to a file.
        let file = if frames { 0 } else { pagemap::FILE };
        let wanted = pagemap::PRESENT | pagemap::SWAPPED | pagemap::ZEROS | pagemap::HUGE | file;
        let regions = self.pagemap.borrow().scan(first.start, last.end, wanted);
        let regions = regions.map_err(|error| self.failed("pagemap", error))?;
        let Some(regions) = regions else {
            for (index, mapping) in mappings.iter().enumerate() {
                self.small(mapping.first_page(), mapping.end_page(), false, &mut |piece| {
                    without_zeros(piece, self.zero_frame, &mut |piece| visit(index, piece));
                })?;
            }
            return Ok(Visibility { frames, leaves: false });
        };
        let mut index = 0;
        for region in merged(regions, frames) {
            while mappings.get(index).is_some_and(|mapping| mapping.end <= region.start) {
                index += 1;
            }
            let within = mappings[index..].iter().enumerate().take_while(|(_, mapping)| mapping.start < region.end);
            for (offset, mapping) in within {
                self.region(&region, mapping, &mut |piece| visit(index + offset, piece))?;
            }
        }
        Ok(Visibility { frames, leaves: true })
    }

    fn flags(&self, frames: &[u64]) -> Known<Vec<u64>> {
        kpageflags::read(frames)
    }

    fn zero_pages(&self, starts: &[u64]) -> Known<Vec<Option<u32>>> {
        match File::open(self.folder.join("mem")) {
            Ok(memory) => Known::Is(starts.iter().map(|&start| zero_pages(&memory, start).ok()).collect()),
            Err(error) => Known::not(format!("the memory of process {} cannot be read ({error})", self.pid)),
        }
    }
}

/// How many of the 512 pages from the address `start` on hold zeros only.
fn zero_pages(memory: &File, start: u64) -> io::Result<u32> {
    let mut contents = vec![0; HUGE_BYTES as usize];
    memory.read_exact_at(&mut contents, start)?;
    let zeros = contents.chunks_exact(PAGE_BYTES as usize).filter(|page| page.iter().all(|&byte| byte == 0));
    Ok(zeros.count() as u32)
}
