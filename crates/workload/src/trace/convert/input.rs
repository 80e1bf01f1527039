// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a capture comes from: a file, a FIFO or standard input, plain or in a zstd frame.

use std::fs::File;
use std::io::{BufReader, Chain, Cursor, Read};
use std::path::{Path, PathBuf};

use super::STDIN;
use crate::stream::WorkloadError;

/// What a zstd frame begins with.
const ZSTD_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
/// Bytes that are asked of the system at a time.
const READ_BYTES: usize = 1 << 20;

type Sniffed = Chain<Cursor<Vec<u8>>, Box<dyn Read + Send>>;

/// A capture, unpacked, with its position.
pub struct Input {
    path: PathBuf,
    reader: Box<dyn Read + Send>,
    at: u64,
}

impl Input {
    /// Whether `source` is a file that can be read once to count and once to convert.
    pub fn can_be_read_twice(source: &Path) -> bool {
        source != Path::new(STDIN) && source.is_file()
    }

    /// Opens `source` and unpacks it if it is packed.
    pub fn open(source: &Path) -> Result<Self, WorkloadError> {
        let io = |source_error| WorkloadError::Io { path: source.into(), source: source_error };
        let mut raw: Box<dyn Read + Send> = if source == Path::new(STDIN) {
            Box::new(std::io::stdin())
        } else {
            Box::new(File::open(source).map_err(io)?)
        };
        let mut head = Vec::new();
        raw.by_ref().take(4).read_to_end(&mut head).map_err(io)?;
        let packed = head == ZSTD_MAGIC;
        let whole: Sniffed = Cursor::new(head).chain(raw);
        let reader: Box<dyn Read + Send> = if packed {
            let buffered = BufReader::with_capacity(READ_BYTES, whole);
            let mut decoder = zstd::stream::read::Decoder::with_buffer(buffered).map_err(io)?;
            // `zstd --long` may have been used: allow what zstd allows at most.
            decoder.window_log_max(31).map_err(io)?;
            Box::new(decoder)
        } else {
            Box::new(whole)
        };
        Ok(Self { path: source.into(), reader, at: 0 })
    }

    /// Bytes (unpacked) before the next one.
    pub const fn position(&self) -> u64 {
        self.at
    }

    /// Whether what comes next is `magic`. Nothing is consumed.
    pub fn begins_with(&mut self, magic: &[u8]) -> Result<bool, WorkloadError> {
        let at = self.at;
        let mut head = vec![0; magic.len()];
        let read = self.read(&mut head)?;
        head.truncate(read);
        let same = head == magic;
        let rest = std::mem::replace(&mut self.reader, Box::new(std::io::empty()));
        self.reader = Box::new(Cursor::new(head).chain(rest));
        self.at = at;
        Ok(same)
    }

    /// Reads until `out` is full or the input ends, and says how many bytes there were.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, WorkloadError> {
        let mut done = 0;
        while done < out.len() {
            match self.reader.read(&mut out[done..]) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failure(self.at + done as u64, error)),
            }
        }
        self.at += done as u64;
        Ok(done)
    }

    fn failure(&self, offset: u64, error: std::io::Error) -> WorkloadError {
        // The zstd library reports a damaged frame as "other", a cut one as an unexpected end.
        match error.kind() {
            std::io::ErrorKind::Other | std::io::ErrorKind::UnexpectedEof => self.corrupt(
                offset,
                format!("the zstd frame is damaged or cut ({error}): fetch or make the capture again"),
            ),
            _ => WorkloadError::Io { path: self.path.clone(), source: error },
        }
    }

    /// An error at `offset` of the unpacked capture.
    pub fn corrupt(&self, offset: u64, what: String) -> WorkloadError {
        WorkloadError::Corrupt { path: self.path.clone(), offset, what }
    }
}
