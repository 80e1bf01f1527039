// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a capture comes from: a file, a FIFO or standard input, plain or packed. How it is packed
//! shows in its first bytes.

use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use super::STDIN;
use crate::stream::WorkloadError;

/// Bytes that are asked of the system at a time.
const READ_BYTES: usize = 1 << 20;

/// The decoders' errors tell a damaged stream from a failing disk by these kinds.
const DAMAGE: [std::io::ErrorKind; 4] = [
    std::io::ErrorKind::Other,
    std::io::ErrorKind::UnexpectedEof,
    std::io::ErrorKind::InvalidData,
    std::io::ErrorKind::InvalidInput,
];

/// How a file is packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Packing {
    Plain,
    Zstd,
    Gzip,
    Xz,
    Lz4,
}

impl Packing {
    /// Bytes that are enough to tell.
    const HEAD: usize = 6;

    /// By the magic numbers of RFC 8878, RFC 1952, the .xz format and the LZ4 frame format.
    fn of(head: &[u8]) -> Self {
        let begins = |magic: &[u8]| head.starts_with(magic);
        if begins(&0xfd2f_b528_u32.to_le_bytes()) {
            Self::Zstd
        } else if begins(&[0x1f, 0x8b, 8]) {
            Self::Gzip
        } else if begins(b"\xfd7zXZ\0") {
            Self::Xz
        } else if begins(&0x184d_2204_u32.to_le_bytes()) {
            Self::Lz4
        } else {
            Self::Plain
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "file",
            Self::Zstd => "zstd frame",
            Self::Gzip => "gzip stream",
            Self::Xz => "xz stream",
            Self::Lz4 => "lz4 frame",
        }
    }

    fn unpack(self, packed: Box<dyn Read + Send>) -> std::io::Result<Box<dyn Read + Send>> {
        if self == Self::Plain {
            return Ok(packed);
        }
        let buffered = BufReader::with_capacity(READ_BYTES, packed);
        Ok(match self {
            Self::Plain => Box::new(buffered),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(buffered)?;
                // `zstd --long` may have been used: allow what zstd allows at most.
                decoder.window_log_max(31)?;
                Box::new(decoder)
            }
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(buffered)),
            Self::Xz => Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(buffered)),
            Self::Lz4 => Box::new(Lz4 { frames: Some(lz4_flex::frame::FrameDecoder::new(buffered)) }),
        })
    }
}

/// LZ4 frames, one after another: the library's decoder ends with the first.
struct Lz4<R: Read> {
    frames: Option<lz4_flex::frame::FrameDecoder<R>>,
}

impl<R: std::io::BufRead> Read for Lz4<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let Some(decoder) = &mut self.frames else { return Ok(0) };
            let bytes = decoder.read(out)?;
            if bytes > 0 || out.is_empty() {
                return Ok(bytes);
            }
            let Some(decoder) = self.frames.take() else { return Ok(0) };
            let mut rest = decoder.into_inner();
            if !rest.fill_buf()?.is_empty() {
                self.frames = Some(lz4_flex::frame::FrameDecoder::new(rest));
            }
        }
    }
}

/// A capture, unpacked, with its position.
pub struct Input {
    path: PathBuf,
    packing: Packing,
    reader: Box<dyn Read + Send>,
    /// Bytes that were looked at before they were read, and how many of them have been read since.
    head: Vec<u8>,
    head_read: usize,
    at: u64,
}

impl Input {
    /// Whether `source` is a file that can be read once to count and once to convert.
    pub fn can_be_read_twice(source: &Path) -> bool {
        source != Path::new(STDIN) && (source.is_file() || source.is_dir())
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
        raw.by_ref().take(Packing::HEAD as u64).read_to_end(&mut head).map_err(io)?;
        let packing = Packing::of(&head);
        let reader = packing.unpack(Box::new(Cursor::new(head).chain(raw))).map_err(io)?;
        Ok(Self { packing, ..Self::of(source, reader) })
    }

    /// What `reader` yields, which is no packed file itself but comes from `path`.
    pub fn of(path: &Path, reader: Box<dyn Read + Send>) -> Self {
        Self { path: path.into(), packing: Packing::Plain, reader, head: Vec::new(), head_read: 0, at: 0 }
    }

    /// Bytes (unpacked) before the next one.
    pub const fn position(&self) -> u64 {
        self.at
    }

    /// Up to `bytes` of what comes next; fewer only if the input ends before. Nothing is consumed.
    pub fn peek(&mut self, bytes: usize) -> Result<&[u8], WorkloadError> {
        let have = self.head.len() - self.head_read;
        if have < bytes {
            self.head.drain(..self.head_read);
            self.head_read = 0;
            self.head.resize(bytes, 0);
            let mut head = std::mem::take(&mut self.head);
            let got = self.read_on(&mut head[have..], self.at + have as u64);
            head.truncate(have + got.as_ref().copied().unwrap_or(0));
            self.head = head;
            got?;
        }
        let rest = &self.head[self.head_read..];
        Ok(&rest[..rest.len().min(bytes)])
    }

    /// Reads until `out` is full or the input ends, and says how many bytes there were.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, WorkloadError> {
        let seen = &self.head[self.head_read..];
        let from_head = seen.len().min(out.len());
        out[..from_head].copy_from_slice(&seen[..from_head]);
        self.head_read += from_head;
        let done = from_head + self.read_on(&mut out[from_head..], self.at + from_head as u64)?;
        self.at += done as u64;
        Ok(done)
    }

    fn read_on(&mut self, out: &mut [u8], at: u64) -> Result<usize, WorkloadError> {
        let mut done = 0;
        while done < out.len() {
            match self.reader.read(&mut out[done..]) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failure(at + done as u64, error)),
            }
        }
        Ok(done)
    }

    fn failure(&self, offset: u64, error: std::io::Error) -> WorkloadError {
        // Members of a zip file are plain here, and their decoder's complaint says what it is
        // about.
        if DAMAGE.contains(&error.kind()) && error.raw_os_error().is_none() {
            let packing = self.packing.name();
            self.corrupt(offset, format!("the {packing} is damaged or cut ({error}): fetch or make the capture again"))
        } else {
            WorkloadError::Io { path: self.path.clone(), source: error }
        }
    }

    /// An error at `offset` of the unpacked capture.
    pub fn corrupt(&self, offset: u64, what: String) -> WorkloadError {
        WorkloadError::Corrupt { path: self.path.clone(), offset, what }
    }
}
