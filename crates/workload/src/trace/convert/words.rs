// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses and nothing else: a file of little-endian u64, or a numpy array (`.npy`,
//! versions 1 to 3) of one dimension.

use super::import::{ADDRESS_END, BATCH, Batch, Reader};
use super::input::Input;
use crate::stream::WorkloadError;

/// What the formats are called.
pub const NAME: &str = "addresses";
/// A numpy array.
pub const NUMPY_NAME: &str = "numpy";
/// What writes it: that is not known.
pub const TOOL: &str = "";
/// What a numpy array begins with.
pub const NUMPY_MAGIC: &[u8] = b"\x93NUMPY";
/// Bytes that are looked at to tell what a file is.
pub const HEAD: usize = 1 << 16;

/// Of an access, in bytes: an assumption.
const BYTES_ASSUMED: u16 = 8;
/// Every access by the same instruction: there is nothing to tell them apart.
const SITE: u32 = 0;
/// The longest header of an array that is read.
const HEADER_MAX: usize = 1 << 16;

/// How an address is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Word {
    bytes: usize,
    big_endian: bool,
}

/// Whether `head`, the beginning of a file, can be addresses: whole words, all of them of user
/// space, few of them near 0.
pub fn fits(head: &[u8]) -> bool {
    let words = || head.chunks_exact(8).map(word);
    let first_pages = words().filter(|&address| address < 4096).count();
    head.len() >= 8 && words().all(|address| address < ADDRESS_END) && first_pages * 4 <= head.len() / 8
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// See the [module's documentation](self).
pub struct Addresses {
    input: Input,
    word: Word,
    /// Words that are still to come, if that is known.
    left: Option<u64>,
    /// Bytes behind the last whole word.
    rest: usize,
    buffer: Vec<u8>,
}

impl Addresses {
    /// Reads `input`, which is addresses from the first byte on.
    pub fn new(input: Input) -> Self {
        Self { input, word: Word { bytes: 8, big_endian: false }, left: None, rest: 0, buffer: vec![0; 8 * BATCH] }
    }

    /// Reads `input`, which is a numpy array.
    ///
    /// # Errors
    /// When its header is damaged, or it is no array of addresses: what it is, and what to do.
    pub fn numpy(mut input: Input) -> Result<Self, WorkloadError> {
        let damaged =
            |input: &Input| input.corrupt(0, "the header of the numpy array is damaged: save it again".into());
        let mut fixed = [0; 8];
        if input.read(&mut fixed)? < fixed.len() {
            return Err(damaged(&input));
        }
        let mut length = [0; 4];
        let width = if fixed[6] == 1 { 2 } else { 4 };
        if input.read(&mut length[..width])? < width {
            return Err(damaged(&input));
        }
        let mut header = vec![0; (u32::from_le_bytes(length) as usize).min(HEADER_MAX)];
        if input.read(&mut header)? < header.len() {
            return Err(damaged(&input));
        }
        // Parts of it are in messages, which are one line.
        let header: String = String::from_utf8_lossy(&header).chars().filter(|letter| !letter.is_control()).collect();
        let (word, left) = of_header(&header).map_err(|what| input.corrupt(0, what))?;
        Ok(Self { word, left: Some(left), ..Self::new(input) })
    }
}

/// How the words are written and how many there are, by the header of a numpy array: a Python
/// dictionary.
fn of_header(header: &str) -> Result<(Word, u64), String> {
    let value = |key: &str| {
        let from = header.find(&format!("'{key}':"))? + key.len() + 3;
        Some(header[from..].trim_start())
    };
    let damaged = || "the header of the numpy array is damaged: save it again".to_owned();
    let remedy = "save addresses alone: numpy.save(file, addresses.astype('<u8'))";
    let kind = value("descr").ok_or_else(damaged)?;
    let Some(kind) = kind.strip_prefix('\'').and_then(|rest| rest.split('\'').next()) else {
        return Err(format!("a numpy array with several fields: {remedy}"));
    };
    let (order, kind) = kind.split_at_checked(1).ok_or_else(damaged)?;
    let bytes = match kind {
        "u8" | "i8" => 8,
        "u4" => 4,
        _ => {
            return Err(format!("a numpy array of {order}{kind}, where addresses (u8, i8 or u4) are wanted: {remedy}"));
        }
    };
    let shape = value("shape").and_then(|rest| rest.strip_prefix('(')?.split(')').next()).ok_or_else(damaged)?;
    let mut lengths = shape.split(',').map(str::trim).filter(|length| !length.is_empty());
    let length = lengths.next().and_then(|length| length.parse().ok());
    match (length, lengths.next()) {
        (Some(length), None) => Ok((Word { bytes, big_endian: order == ">" }, length)),
        _ => Err(format!("a numpy array of shape ({shape}), where one dimension is wanted: {remedy}")),
    }
}

impl Reader for Addresses {
    fn fill(&mut self, batch: &mut Batch) -> Result<bool, WorkloadError> {
        let Word { bytes, big_endian } = self.word;
        let words = self.left.map_or(BATCH, |left| usize::try_from(left).unwrap_or(BATCH).min(BATCH));
        let begin = self.input.position();
        let got = self.input.read(&mut self.buffer[..words * bytes])?;
        let rest = got % bytes;
        // Only the last read brings part of a word.
        self.rest += rest;
        let mut all = 0;
        for chunk in self.buffer[..got - rest].chunks_exact(bytes) {
            let address =
                if big_endian { chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)) } else { word(chunk) };
            all |= address;
            batch.push(address & (ADDRESS_END - 1), SITE, 1, BYTES_ASSUMED, false);
        }
        if all >= ADDRESS_END {
            let big = |chunk: &[u8]| (if big_endian { chunk[0] } else { chunk[bytes - 1] }) != 0;
            let index = self.buffer.chunks_exact(bytes).position(big).unwrap_or(0);
            let what = "no address that a program has (2^56 or more): the file is no list of addresses, or is damaged";
            return Err(self.input.corrupt(begin + (index * bytes) as u64, what.into()));
        }
        let done = (got / bytes) as u64;
        self.left = self.left.map(|left| left - done);
        Ok(done > 0)
    }

    fn warnings(&self) -> Vec<String> {
        let mut all = vec![format!(
            "addresses alone: stores, sizes, instructions, threads and the memory map are not in the file; loads of {BYTES_ASSUMED} \
             bytes by one instruction and one thread are assumed, one instruction an access, and mappings follow from the accesses"
        )];
        if self.rest > 0 || self.left.is_some_and(|left| left > 0) {
            all.push("the file ends before its last address: it is cut".into());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_arrays_are_understood() {
        let header =
            |descr: &str, shape: &str| format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}   \n");
        assert_eq!(of_header(&header("'<u8'", "(12,)")), Ok((Word { bytes: 8, big_endian: false }, 12)));
        assert_eq!(of_header(&header("'>i8'", "(7,)")), Ok((Word { bytes: 8, big_endian: true }, 7)));
        assert_eq!(of_header(&header("'<u4'", "(7,)")), Ok((Word { bytes: 4, big_endian: false }, 7)));
        for (descr, shape, says) in [
            ("'<f8'", "(1,)", "of <f8"),
            ("'<u8'", "(3, 2)", "shape (3, 2)"),
            ("'<u8'", "()", "shape ()"),
            ("[('a', '<u8')]", "(1,)", "several fields"),
        ] {
            assert!(of_header(&header(descr, shape)).unwrap_err().contains(says));
        }
        for damaged in ["", "{'descr': '", "{'descr': ''}", "{'descr': '<u8'}", "{'descr': '<u8', 'shape': 7"] {
            assert!(of_header(damaged).is_err());
        }
    }
}
