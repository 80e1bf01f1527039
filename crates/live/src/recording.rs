// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answers of a [`Source`], kept in a file: read again it gives the same, without the
//! process and without privilege.
//!
//! The file: 8 bytes [`MAGIC`], then sections. A section is two little-endian words of 64 bits
//! (bytes of its name, bytes of its body), the name, the body. It may be packed by zstd as a whole.
//! Names and bodies:
//!
//! | name | body |
//! | --- | --- |
//! | `process/maps`, `process/status` | the files of `/proc/PID` |
//! | `system/proc/buddyinfo`, ... | files below `/` |
//! | `pages` | pieces: words (first page; number of entries; bit 0: mapped by PMDs, bit 1: page of zeros), then the entries |
//! | `leaves` | empty; there if it is known which pages are mapped by PMDs |
//! | `flags` | pairs of words: a frame, its flags in `/proc/kpageflags` |
//! | `zero_frame` | the frame of the page of zeros in decimal digits, where no piece says which pages it is |
//! | `zeros` | pairs of words: the address of a 2 MiB page, the pages of zeros in it |
//!
//! Whether frames are known shows in the entries: those of present pages are not all 0.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::InspectError;
use crate::known::Known;
use crate::maps::{self, Mapping};
use crate::source::{Entry, Leaf, Piece, Source, Visibility, without_zeros};

/// What a recording begins with.
pub const MAGIC: &[u8; 8] = b"NWIN0001";
const ZSTD_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
const WORD: usize = 8;
/// What a packed recording may unpack to: the entries of 1 TiB.
const BYTES_MAX: u64 = 1 << 31;
const PMD: u64 = 1;
const ZEROS: u64 = 2;
/// zstd's own default.
const LEVEL: i32 = 3;

/// A recording in memory.
#[derive(Debug, Default)]
pub struct Recording {
    path: PathBuf,
    sections: BTreeMap<String, Vec<u8>>,
}

impl Recording {
    /// Whether the file begins like a recording; a file that cannot be read does not.
    pub fn is_one(path: &Path) -> bool {
        let mut start = [0; MAGIC.len()];
        let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
        read.is_ok() && (&start == MAGIC || start.starts_with(&ZSTD_MAGIC))
    }

    /// Reads the file `path`.
    ///
    /// # Errors
    /// When it cannot be read, or is no recording.
    pub fn open(path: &Path) -> Result<Self, InspectError> {
        let bytes = std::fs::read(path).map_err(|source| InspectError::Io { path: path.into(), source })?;
        Self::from_bytes(&bytes, path)
    }

    /// The same of what the file `path` holds.
    ///
    /// # Errors
    /// When it is no recording.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self, InspectError> {
        let wrong = |what: String| InspectError::Recording { path: path.into(), what };
        let sections = if bytes.starts_with(&ZSTD_MAGIC) {
            let whole = unpack(bytes).map_err(|error| wrong(format!("the zstd frame is damaged or cut ({error})")))?;
            sections(&whole)
        } else {
            sections(bytes)
        };
        let found = Self { path: path.into(), sections: sections.map_err(wrong)? };
        found.check().map_err(wrong)?;
        Ok(found)
    }

    fn check(&self) -> Result<(), String> {
        for name in ["flags", "zeros"] {
            if !self.section(name).len().is_multiple_of(2 * WORD) {
                return Err(format!("the section {name} is no list of pairs"));
            }
        }
        let mut end = 0;
        let mut body = self.section("pages");
        while !body.is_empty() {
            let piece = piece(body).ok_or("the section pages is cut")?;
            let pages = piece.count.checked_mul(piece.leaf.pages());
            let next = pages.and_then(|pages| piece.first.checked_add(pages)).filter(|&next| next < 1 << 45);
            end = next.filter(|_| piece.first >= end).ok_or("the section pages does not ascend")?;
            body = piece.rest;
        }
        Ok(())
    }

    fn section(&self, name: &str) -> &[u8] {
        self.sections.get(name).map_or(&[], Vec::as_slice)
    }

    fn text(&self, name: &str) -> io::Result<String> {
        let body = self.sections.get(name).ok_or_else(|| io::Error::other("it was not recorded"))?;
        Ok(String::from_utf8_lossy(body).into_owned())
    }

    fn pairs(&self, name: &str) -> Option<BTreeMap<u64, u64>> {
        let body = self.sections.get(name)?;
        Some(body.chunks_exact(2 * WORD).map(|pair| (word(pair, 0), word(pair, 1))).collect())
    }

    /// Packs it, as it is written to a file.
    ///
    /// # Errors
    /// When memory is short.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let mut packer = zstd::stream::write::Encoder::new(Vec::new(), LEVEL)?;
        // Without it a changed byte can be another text that is just as good.
        packer.include_checksum(true)?;
        packer.write_all(MAGIC)?;
        for (name, body) in &self.sections {
            packer.write_all(&(name.len() as u64).to_le_bytes())?;
            packer.write_all(&(body.len() as u64).to_le_bytes())?;
            packer.write_all(name.as_bytes())?;
            packer.write_all(body)?;
        }
        packer.finish()
    }
}

fn unpack(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    zstd::stream::read::Decoder::with_buffer(bytes)?.take(BYTES_MAX).read_to_end(&mut whole)?;
    Ok(whole)
}

fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; WORD];
    word.copy_from_slice(&bytes[index * WORD..][..WORD]);
    u64::from_le_bytes(word)
}

fn sections(bytes: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let mut rest =
        bytes.strip_prefix(MAGIC).ok_or("not a recording of nestwalk inspect (its first bytes are others)")?;
    let mut found = BTreeMap::new();
    while !rest.is_empty() {
        let cut = "the recording is cut";
        let (head, after) = rest.split_at_checked(2 * WORD).ok_or(cut)?;
        let [name, body] = [0, 1].map(|index| usize::try_from(word(head, index)).unwrap_or(usize::MAX));
        let (name, after) = after.split_at_checked(name).ok_or(cut)?;
        let (body, after) = after.split_at_checked(body).ok_or(cut)?;
        let name = std::str::from_utf8(name).map_err(|_| "a section's name is no text")?;
        found.insert(name.to_owned(), body.to_vec());
        rest = after;
    }
    if !found.contains_key("process/maps") || !found.contains_key("pages") {
        return Err("the recording has no section process/maps or no section pages".into());
    }
    Ok(found)
}

/// A recorded piece, and what follows it.
struct Recorded<'a> {
    first: u64,
    count: u64,
    leaf: Leaf,
    zeros: bool,
    entries: &'a [u8],
    rest: &'a [u8],
}

fn piece(body: &[u8]) -> Option<Recorded<'_>> {
    let (head, after) = body.split_at_checked(3 * WORD)?;
    let (first, count, bits) = (word(head, 0), word(head, 1), word(head, 2));
    let bytes = usize::try_from(count).ok()?.checked_mul(WORD)?;
    let (entries, rest) = after.split_at_checked(bytes)?;
    let leaf = if bits & PMD != 0 { Leaf::Pmd } else { Leaf::Pte };
    Some(Recorded { first, count, leaf, zeros: bits & ZEROS != 0, entries, rest })
}

impl Source for Recording {
    fn process(&self, name: &str) -> io::Result<String> {
        self.text(&format!("process/{name}"))
    }

    fn system(&self, path: &str) -> io::Result<String> {
        self.text(&format!("system/{path}"))
    }

    fn folders(&self, path: &str) -> Vec<String> {
        let prefix = format!("system/{path}/");
        let below = self.sections.keys().filter_map(|name| name.strip_prefix(&prefix)?.split_once('/'));
        let mut names: Vec<String> = below.map(|(folder, _)| folder.to_owned()).collect();
        names.dedup();
        names
    }

    fn mappings(&self) -> Result<Vec<Mapping>, InspectError> {
        let text = self.text("process/maps").unwrap_or_default();
        let wrong = |what: String| InspectError::Recording { path: self.path.clone(), what };
        maps::parse(&text).map_err(|error| wrong(error.to_string().split(';').next().unwrap_or_default().to_owned()))
    }

    fn pages(&self, mappings: &[Mapping], visit: &mut dyn FnMut(usize, Piece<'_>)) -> Result<Visibility, InspectError> {
        let mut seen = Visibility { frames: true, leaves: self.sections.contains_key("leaves") };
        let (mut present, mut shown) = (false, false);
        let zero_frame = self.text("zero_frame").ok().and_then(|digits| digits.trim().parse().ok());
        let mut body = self.section("pages");
        let mut index = 0;
        let mut entries = Vec::new();
        while let Some(recorded) = piece(body) {
            body = recorded.rest;
            let Recorded { first, count, leaf, zeros, .. } = recorded;
            let end = first + count * leaf.pages();
            while mappings.get(index).is_some_and(|mapping| mapping.end_page() <= first) {
                index += 1;
            }
            if mappings.get(index).is_none_or(|mapping| mapping.first_page() > first || mapping.end_page() < end) {
                let what = format!("pages at {:#x} are in no mapping", first * maps::PAGE_BYTES);
                return Err(InspectError::Recording { path: self.path.clone(), what });
            }
            entries.clear();
            entries.extend((0..count as usize).map(|at| Entry(word(recorded.entries, at))));
            present |= entries.iter().any(|entry| entry.present());
            shown |= entries.iter().any(|entry| entry.present() && entry.frame() != 0);
            without_zeros(Piece { first, leaf, zeros, entries: &entries }, zero_frame, &mut |piece| {
                visit(index, piece)
            });
        }
        seen.frames = shown || !present;
        Ok(seen)
    }

    fn flags(&self, frames: &[u64]) -> Known<Vec<u64>> {
        let Some(known) = self.pairs("flags") else { return Known::not("the recording has no flags of frames") };
        let flags: Option<Vec<u64>> = frames.iter().map(|frame| known.get(frame).copied()).collect();
        flags.map_or_else(|| Known::not("the recording has the flags of a sample of the frames only"), Known::Is)
    }

    fn zero_pages(&self, starts: &[u64]) -> Known<Vec<Option<u32>>> {
        let Some(known) = self.pairs("zeros") else { return Known::not("the recording has no contents of pages") };
        Known::Is(starts.iter().map(|start| Some((*known.get(start)?).min(512) as u32)).collect())
    }
}

/// A source that keeps all that another one says.
pub struct Recorder<'a> {
    source: &'a dyn Source,
    kept: RefCell<BTreeMap<String, Vec<u8>>>,
}

impl<'a> Recorder<'a> {
    /// Keeps what `source` says.
    pub fn new(source: &'a dyn Source) -> Self {
        Self { source, kept: RefCell::default() }
    }

    /// All answers.
    pub fn recording(self, path: &Path) -> Recording {
        Recording { path: path.into(), sections: self.kept.into_inner() }
    }

    fn keep(&self, name: String, body: impl Into<Vec<u8>>) {
        self.kept.borrow_mut().insert(name, body.into());
    }

    fn keep_pairs(&self, name: &str, pairs: impl Iterator<Item = (u64, u64)>) {
        let body: Vec<u8> = pairs.flat_map(|(one, two)| [one, two]).flat_map(u64::to_le_bytes).collect();
        self.keep(name.to_owned(), body);
    }
}

impl Source for Recorder<'_> {
    fn process(&self, name: &str) -> io::Result<String> {
        let text = self.source.process(name)?;
        self.keep(format!("process/{name}"), text.clone());
        Ok(text)
    }

    fn system(&self, path: &str) -> io::Result<String> {
        let text = self.source.system(path)?;
        self.keep(format!("system/{path}"), text.clone());
        Ok(text)
    }

    fn folders(&self, path: &str) -> Vec<String> {
        self.source.folders(path)
    }

    fn mappings(&self) -> Result<Vec<Mapping>, InspectError> {
        let mappings = self.source.mappings()?;
        let lines: Vec<String> = mappings.iter().map(line).collect();
        self.keep("process/maps".into(), lines.concat());
        Ok(mappings)
    }

    fn pages(&self, mappings: &[Mapping], visit: &mut dyn FnMut(usize, Piece<'_>)) -> Result<Visibility, InspectError> {
        let mut body: Vec<u8> = Vec::new();
        let seen = self.source.pages(mappings, &mut |index, piece| {
            let pmd = if piece.leaf == Leaf::Pmd { PMD } else { 0 };
            let bits = pmd | if piece.zeros { ZEROS } else { 0 };
            for word in [piece.first, piece.entries.len() as u64, bits] {
                body.extend_from_slice(&word.to_le_bytes());
            }
            body.extend(piece.entries.iter().flat_map(|entry| entry.0.to_le_bytes()));
            visit(index, piece);
        })?;
        self.keep("pages".into(), body);
        if seen.leaves {
            self.keep("leaves".into(), Vec::new());
        }
        Ok(seen)
    }

    fn flags(&self, frames: &[u64]) -> Known<Vec<u64>> {
        let flags = self.source.flags(frames);
        if let Known::Is(flags) = &flags {
            self.keep_pairs("flags", frames.iter().copied().zip(flags.iter().copied()));
        }
        flags
    }

    fn zero_pages(&self, starts: &[u64]) -> Known<Vec<Option<u32>>> {
        let zeros = self.source.zero_pages(starts);
        if let Known::Is(zeros) = &zeros {
            let known = starts.iter().zip(zeros).filter_map(|(&start, zeros)| Some((start, u64::from((*zeros)?))));
            self.keep_pairs("zeros", known);
        }
        zeros
    }
}

/// A mapping as `/proc/PID/maps` has it, without the offset in its file.
fn line(mapping: &Mapping) -> String {
    let Mapping { start, end, permissions, file, name } = mapping;
    let file = if file.is_empty() { "00:00 0" } else { file };
    format!("{start:x}-{end:x} {} 00000000 {file} {name}\n", String::from_utf8_lossy(permissions))
}
