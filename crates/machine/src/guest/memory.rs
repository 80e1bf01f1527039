// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's memory as pieces of files: QEMU's memory-backend file, or `/proc/PID/mem` of a running
//! QEMU.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde::Deserialize;

use super::ENTRIES;
use crate::error::MachineError;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// A page as page-table entries.
pub type Words = [u64; ENTRIES];

/// A range of guest-physical memory, and where its bytes are.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// Guest-physical address of its first byte.
    pub gpa: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The file.
    pub file: PathBuf,
    /// Where in the file.
    pub offset: u64,
    /// Its offset in QEMU's RAM, which some versions of QEMU call a physical address. Above a hole
    /// it differs from the gpa.
    pub ram_offset: u64,
}

/// Something that has pages at guest-physical addresses.
pub trait Page {
    /// The page at `gpa`, a multiple of [`PAGE_BYTES`]; `None` if there is no memory.
    ///
    /// # Errors
    /// When it cannot be read.
    fn page(&self, gpa: u64) -> Result<Option<Words>, MachineError>;

    /// Whether `gpa` is memory.
    fn contains(&self, gpa: u64) -> bool;
}

/// A guest's memory.
#[derive(Debug)]
pub struct Memory {
    pieces: Vec<(Piece, File)>,
}

impl Memory {
    /// Opens the files.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub fn open(pieces: Vec<Piece>) -> Result<Self, MachineError> {
        let open = |piece: Piece| match File::open(&piece.file) {
            Ok(file) => Ok((piece, file)),
            Err(source) => Err(MachineError::Io { path: piece.file, source }),
        };
        Ok(Self { pieces: pieces.into_iter().map(open).collect::<Result<_, _>>()? })
    }

    /// The pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().map(|(piece, _)| piece)
    }

    fn piece(&self, gpa: u64) -> Option<&(Piece, File)> {
        self.pieces.iter().find(|(piece, _)| gpa.checked_sub(piece.gpa).is_some_and(|inside| inside < piece.bytes))
    }

    /// Reads the bytes at `gpa` into `out`, all of which must be in one piece.
    ///
    /// # Errors
    /// When they are not, or cannot be read.
    pub fn read(&self, gpa: u64, out: &mut [u8]) -> Result<(), MachineError> {
        let Some((piece, file)) =
            self.piece(gpa).filter(|(piece, _)| gpa - piece.gpa + out.len() as u64 <= piece.bytes)
        else {
            let path = self.pieces.first().map_or_else(PathBuf::new, |(piece, _)| piece.file.clone());
            return Err(MachineError::Dump { path, what: format!("{gpa:#x} is no memory of the guest") });
        };
        file.read_exact_at(out, piece.offset + (gpa - piece.gpa))
            .map_err(|source| MachineError::Io { path: piece.file.clone(), source })
    }
}

impl Page for Memory {
    fn page(&self, gpa: u64) -> Result<Option<Words>, MachineError> {
        if !self.contains(gpa) {
            return Ok(None);
        }
        let mut bytes = [0; PAGE_BYTES as usize];
        self.read(gpa, &mut bytes)?;
        Ok(Some(words(&bytes)))
    }

    fn contains(&self, gpa: u64) -> bool {
        self.piece(gpa).is_some_and(|(piece, _)| gpa - piece.gpa + PAGE_BYTES <= piece.bytes)
    }
}

/// The entries that a page's bytes are.
pub(super) fn words(bytes: &[u8]) -> Words {
    let mut words = [0; ENTRIES];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}
