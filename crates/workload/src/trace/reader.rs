// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a trace. [`Trace::open`] checks that the file is complete and reads its tables; a
//! [`Decoder`] then unpacks any record alone, in room that it keeps: nothing is allocated a record
//! once it has seen the largest one.
//!
//! Nothing in a file is believed before its checksum and its bounds have been checked: a damaged
//! file gives an error that names the byte, never a panic, and never takes more memory than a small
//! multiple of the file's size and one record's.
//!
//! The file is read with `pread`, not mapped: a record is some 100 KB, so the copy costs nothing,
//! and a file that shrinks while it is being read gives an error instead of a signal.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nestwalk_mem::{Access, Gva, Vpn};
use zstd::bulk::Decompressor;

use super::block::BlockDecoder;
use super::filtered::take_gaps;
use super::format::{
    Fault, HEADER_BYTES, RECORD_BYTES, RecordHeader, RecordKind, TRAILER_BYTES, Trailer, VERSION, VERSION_UNFILTERED,
    check_file_header, checksum, file_header,
};
use super::index::{self, Mark, RecordEntry};
use super::log::{LogDecoder, LogStep};
use super::metadata::Metadata;
use super::sites::{SiteId, SiteTable};
use crate::stream::WorkloadError;

/// The most sites of a trace: what bounds the table that a small damaged file can ask for.
const SITES_MAX: usize = 1 << 24;
const AGAIN: &str = "fetch or convert the trace again";

/// A complete trace, open for reading.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    source: Source,
    version: u16,
    bytes: u64,
    records_end: u64,
    records: Vec<RecordEntry>,
    sites: SiteTable,
    metadata: Metadata,
}

#[derive(Debug)]
enum Source {
    File(File),
    Memory(Vec<u8>),
}

impl Source {
    fn read_at(&self, out: &mut [u8], offset: u64) -> std::io::Result<()> {
        match self {
            Self::File(file) => file.read_exact_at(out, offset),
            Self::Memory(bytes) => {
                let from = usize::try_from(offset).ok().and_then(|from| bytes.get(from..from.checked_add(out.len())?));
                out.copy_from_slice(from.ok_or(std::io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}

impl Trace {
    /// Opens the trace `path`.
    ///
    /// # Errors
    /// When it cannot be read, is no trace or one of another version, is cut, or its tables are
    /// damaged.
    pub fn open(path: &Path) -> Result<Self, WorkloadError> {
        let io = |source| WorkloadError::Io { path: path.into(), source };
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            let what = "a trace is read from its end: it has to be a file";
            return Err(io(std::io::Error::new(std::io::ErrorKind::InvalidInput, what)));
        }
        Self::read(path.into(), Source::File(file), meta.len())
    }

    /// Reads a trace that is already in memory.
    ///
    /// # Errors
    /// As for [`Trace::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, WorkloadError> {
        let length = bytes.len() as u64;
        Self::read("(memory)".into(), Source::Memory(bytes), length)
    }

    fn read(path: PathBuf, source: Source, bytes: u64) -> Result<Self, WorkloadError> {
        let mut trace = Self {
            path,
            source,
            version: 0,
            bytes,
            records_end: 0,
            records: Vec::new(),
            sites: SiteTable::default(),
            metadata: Metadata::default(),
        };
        let trailer = trace.ends()?;
        trace.records_end = trailer.sites_at;
        let (mut payloads, mut plain, mut at) = (Payloads::new(&trace)?, Vec::new(), trailer.sites_at);
        let mut has_metadata = false;
        let end = bytes - TRAILER_BYTES as u64;
        while at < end {
            let header = payloads.read(&trace, at, end, &mut plain)?;
            let taken = trace.take_table(&header, &plain, at >= trailer.index_at);
            taken.map_err(|what| trace.corrupt(at, format!("{what}: {AGAIN}")))?;
            has_metadata |= header.kind == RecordKind::Metadata;
            at += RECORD_BYTES as u64 + u64::from(header.stored_bytes);
        }
        if !has_metadata {
            return Err(trace.corrupt(trailer.sites_at, format!("a trace without metadata: {AGAIN}")));
        }
        Ok(trace)
    }

    /// Checks the two ends of the file.
    fn ends(&mut self) -> Result<Trailer, WorkloadError> {
        let mut header = [0; HEADER_BYTES];
        let present = self.bytes.min(HEADER_BYTES as u64) as usize;
        self.get(&mut header[..present], 0)?;
        // A cut header with the right beginning is a cut trace; anything else of that length is no
        // trace.
        if present < HEADER_BYTES && present > 0 && begins_a_header(&header[..present]) {
            return Err(self.corrupt(self.bytes, format!("the trace is cut inside its header: {AGAIN}")));
        }
        self.version = check_file_header(&header).map_err(|(offset, what)| self.corrupt(offset, what))?;
        let mut bytes = [0; TRAILER_BYTES];
        if self.bytes >= (HEADER_BYTES + TRAILER_BYTES) as u64 {
            self.get(&mut bytes, self.bytes - TRAILER_BYTES as u64)?;
        }
        Trailer::from_bytes(&bytes, self.bytes).ok_or_else(|| self.find_cut())
    }

    /// Goes from record to record to say where the file breaks off.
    fn find_cut(&self) -> WorkloadError {
        let mut at = HEADER_BYTES as u64;
        loop {
            let mut bytes = [0; RECORD_BYTES];
            if at + RECORD_BYTES as u64 > self.bytes {
                return self.corrupt(
                    self.bytes,
                    format!("the trace is cut: the file ends here, without its trailer: {AGAIN}"),
                );
            }
            if let Err(error) = self.get(&mut bytes, at) {
                return error;
            }
            let Ok(header) = RecordHeader::from_bytes(&bytes) else {
                return self
                    .corrupt(at, format!("the trace is damaged: no record and no trailer begins here: {AGAIN}"));
            };
            let next = at + RECORD_BYTES as u64 + u64::from(header.stored_bytes);
            if next > self.bytes {
                return self.corrupt(
                    self.bytes,
                    format!(
                        "the trace is cut: the file ends here, inside the record that begins at byte {at}: {AGAIN}"
                    ),
                );
            }
            at = next;
        }
    }

    fn take_table(&mut self, header: &RecordHeader, plain: &[u8], in_index: bool) -> Result<(), Fault> {
        match header.kind {
            RecordKind::Sites if !in_index => {
                if self.sites.attributes.len() + header.items as usize > SITES_MAX {
                    return Err(format!("a trace of more than {SITES_MAX} sites"));
                }
                self.sites.decode(plain, header.items)
            }
            RecordKind::Metadata if !in_index => {
                self.metadata =
                    serde_json::from_slice(plain).map_err(|error| format!("metadata that is not: {error}"))?;
                Ok(())
            }
            RecordKind::Index if in_index => {
                index::decode(plain, header.items, HEADER_BYTES as u64, self.records_end, &mut self.records)?;
                let filtered = self.records.iter().any(|record| record.kind == RecordKind::Filtered);
                if filtered && self.version < VERSION {
                    return Err(format!("filtered accesses in a trace of version {}", self.version));
                }
                Ok(())
            }
            _ => Err("a record where it does not belong".into()),
        }
    }

    /// Its records: accesses, logs and marks, in order.
    pub fn records(&self) -> &[RecordEntry] {
        &self.records
    }

    /// What it says of itself.
    pub const fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Its sites.
    pub const fn sites(&self) -> &SiteTable {
        &self.sites
    }

    /// The version of its format.
    pub const fn version(&self) -> u16 {
        self.version
    }

    /// Its size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where its records end.
    pub(super) const fn records_end(&self) -> u64 {
        self.records_end
    }

    fn get(&self, out: &mut [u8], offset: u64) -> Result<(), WorkloadError> {
        self.source.read_at(out, offset).map_err(|source| WorkloadError::Io { path: self.path.clone(), source })
    }

    /// An error at `offset`.
    pub(super) fn corrupt(&self, offset: u64, what: String) -> WorkloadError {
        WorkloadError::Corrupt { path: self.path.clone(), offset, what }
    }
}

/// Whether a whole header of some version begins so.
fn begins_a_header(start: &[u8]) -> bool {
    (VERSION_UNFILTERED..=VERSION).any(|version| file_header(version).starts_with(start))
}

/// Gets payloads: reads, checks and unpacks them.
struct Payloads {
    zstd: Decompressor<'static>,
    stored: Vec<u8>,
}

impl std::fmt::Debug for Payloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Payloads").field("stored", &self.stored.len()).finish_non_exhaustive()
    }
}

impl Payloads {
    fn new(trace: &Trace) -> Result<Self, WorkloadError> {
        let zstd = Decompressor::new().map_err(|source| WorkloadError::Io { path: trace.path.clone(), source })?;
        Ok(Self { zstd, stored: Vec::new() })
    }

    /// Puts the payload of the record at `at`, which must end by `end`, into `plain`.
    fn read(&mut self, trace: &Trace, at: u64, end: u64, plain: &mut Vec<u8>) -> Result<RecordHeader, WorkloadError> {
        let corrupt = |what: &str| trace.corrupt(at, format!("{what}: {AGAIN}"));
        if at + RECORD_BYTES as u64 > end {
            return Err(corrupt("no room for a record"));
        }
        let mut bytes = [0; RECORD_BYTES];
        trace.get(&mut bytes, at)?;
        let header = RecordHeader::from_bytes(&bytes).map_err(|what| corrupt(&what))?;
        if u64::from(header.stored_bytes) > end - at - RECORD_BYTES as u64 {
            return Err(corrupt("a record that is longer than what is left"));
        }
        let stored = if header.compressed { &mut self.stored } else { &mut *plain };
        stored.resize(header.stored_bytes as usize, 0);
        trace.get(stored, at + RECORD_BYTES as u64)?;
        if checksum(stored) != header.checksum {
            return Err(corrupt("a damaged record (its checksum does not match)"));
        }
        if header.compressed {
            plain.resize(header.plain_bytes as usize, 0);
            let unpacked = self.zstd.decompress_to_buffer(&self.stored, &mut plain[..]);
            if !unpacked.is_ok_and(|bytes| bytes == plain.len()) {
                return Err(corrupt("a record that does not unpack to the size it says"));
            }
        }
        Ok(header)
    }
}

/// Unpacks records, in any order. For one trace: it is not to be lent to another.
#[derive(Debug)]
pub struct Decoder {
    payloads: Payloads,
    block: BlockDecoder,
    /// Of filtered accesses: how many were absorbed after each, those of the whole record, and
    /// the position of the next one.
    gaps: Vec<u32>,
    gap: usize,
    log: LogDecoder,
    mark: Vec<u8>,
    /// The position of the record that was begun last, and the length of its payload.
    at: u64,
    stored_bytes: u32,
}

impl Decoder {
    /// One for `trace`.
    ///
    /// # Errors
    /// When zstd cannot be had.
    pub fn new(trace: &Trace) -> Result<Self, WorkloadError> {
        Ok(Self {
            payloads: Payloads::new(trace)?,
            block: BlockDecoder::default(),
            gaps: Vec::new(),
            gap: 0,
            log: LogDecoder::default(),
            mark: Vec::new(),
            at: 0,
            stored_bytes: 0,
        })
    }

    /// Begins with a record of accesses, filtered or not; [`Decoder::fill`] then yields them.
    ///
    /// # Errors
    /// When the record is damaged.
    pub fn begin(&mut self, trace: &Trace, record: &RecordEntry) -> Result<(), WorkloadError> {
        self.at = record.offset;
        let header = self.payloads.read(trace, record.offset, trace.records_end, &mut self.block.plain)?;
        self.stored_bytes = header.stored_bytes;
        let kind = if record.kind == RecordKind::Filtered { RecordKind::Filtered } else { RecordKind::Accesses };
        agree(trace, record, &header, kind)?;
        self.gap = 0;
        self.gaps.clear();
        if kind == RecordKind::Filtered {
            let taken = take_gaps(&mut self.block.plain, header.items, record.absorbed, &mut self.gaps);
            taken.map_err(|what| self.fault(trace, &what))?;
        }
        self.block.begin(header.items, &trace.sites.attributes).map_err(|what| self.fault(trace, &what))
    }

    /// All accesses of a record with their sites, and how many the filter absorbed after each (0 if
    /// the record is not filtered).
    ///
    /// # Errors
    /// When the record is damaged.
    pub fn accesses(
        &mut self,
        trace: &Trace,
        record: &RecordEntry,
        accesses: &mut Vec<(SiteId, Gva)>,
        gaps: &mut Vec<u32>,
    ) -> Result<(), WorkloadError> {
        self.begin(trace, record)?;
        self.block.fill_sites(accesses).map_err(|what| self.fault(trace, &what))?;
        gaps.extend_from_slice(&self.gaps);
        gaps.resize(accesses.len(), 0);
        Ok(())
    }

    /// How many accesses of the record are still to come.
    pub const fn left(&self) -> usize {
        self.block.left()
    }

    /// Appends up to `most` accesses to `out` and says how many there were.
    ///
    /// # Errors
    /// When the record is damaged.
    #[inline]
    pub fn fill(&mut self, trace: &Trace, out: &mut Vec<Access>, most: usize) -> Result<usize, WorkloadError> {
        self.block.fill(out, most).map_err(|what| self.fault(trace, &what))
    }

    /// Appends all accesses of the record that are still to come, with their sites.
    ///
    /// # Errors
    /// When the record is damaged.
    pub fn fill_sites(&mut self, trace: &Trace, out: &mut Vec<(SiteId, Gva)>) -> Result<(), WorkloadError> {
        self.block.fill_sites(out).map_err(|what| self.fault(trace, &what))
    }

    /// Appends to `out` how many accesses the filter absorbed after each of the `count` accesses
    /// that [`Decoder::fill`] yielded last. Nothing, if the record is not filtered.
    #[inline]
    pub fn fill_gaps(&mut self, out: &mut Vec<u32>, count: usize) {
        if let Some(gaps) = self.gaps.get(self.gap..self.gap + count) {
            out.extend_from_slice(gaps);
            self.gap += count;
        }
    }

    /// Begins with a log; [`Decoder::log_step`] then goes through it.
    ///
    /// # Errors
    /// When the record is damaged.
    pub fn begin_log(&mut self, trace: &Trace, record: &RecordEntry) -> Result<(), WorkloadError> {
        self.at = record.offset;
        let header = self.payloads.read(trace, record.offset, trace.records_end, &mut self.log.plain)?;
        self.stored_bytes = header.stored_bytes;
        agree(trace, record, &header, RecordKind::Log)?;
        self.log.begin(header.items).map_err(|what| self.fault(trace, &what))
    }

    /// What comes next in the log. Touches are appended to `out`, at most `most` (which is not 0)
    /// at a time.
    ///
    /// # Errors
    /// When the record is damaged.
    pub fn log_step(
        &mut self,
        trace: &Trace,
        out: &mut Vec<(Vpn, bool)>,
        most: usize,
    ) -> Result<LogStep, WorkloadError> {
        self.log.step(out, most).map_err(|what| self.fault(trace, &what))
    }

    /// Reads a mark.
    ///
    /// # Errors
    /// When the record is damaged.
    pub fn mark(&mut self, trace: &Trace, record: &RecordEntry) -> Result<Mark, WorkloadError> {
        self.at = record.offset;
        let header = self.payloads.read(trace, record.offset, trace.records_end, &mut self.mark)?;
        self.stored_bytes = header.stored_bytes;
        agree(trace, record, &header, RecordKind::Mark)?;
        Mark::from_bytes(&self.mark).map_err(|what| self.fault(trace, &what))
    }

    /// Bytes of the payload of the record that was read last, as stored.
    pub(super) const fn stored_bytes(&self) -> u64 {
        self.stored_bytes as u64
    }

    fn fault(&self, trace: &Trace, what: &str) -> WorkloadError {
        trace.corrupt(self.at, format!("{what}: {AGAIN}"))
    }
}

/// Checks that a record is the one that the index speaks of.
fn agree(trace: &Trace, entry: &RecordEntry, header: &RecordHeader, kind: RecordKind) -> Result<(), WorkloadError> {
    let same = header.kind == entry.kind
        && header.kind == kind
        && header.thread == entry.thread
        && header.items == entry.items
        && header.instructions == entry.instructions;
    if same {
        return Ok(());
    }
    Err(trace.corrupt(entry.offset, format!("a record that is not what the index says: {AGAIN}")))
}
