// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a trace, record by record. The file has its final name only once it is complete: until then it is a temporary
//! file beside it, which goes away with the writer.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use nestwalk_mem::{Gva, Vpn};
use tempfile::NamedTempFile;
use zstd::bulk::Compressor;

use super::block::BlockEncoder;
use super::destination::Destination;
use super::event::TraceEvent;
use super::filtered::Gaps;
use super::format::{
    ITEMS_MAX, PAYLOAD_BYTES_MAX, RecordHeader, RecordKind, TRAILER_BYTES, Trailer, VERSION, VERSION_UNFILTERED,
    checksum, file_header,
};
use super::index::{self, RecordEntry};
use super::log::LogBuilder;
use super::metadata::Metadata;
use super::sites::{SiteId, SiteTable};
use crate::stream::{Phase, ThreadId, WorkloadError};

/// A trace that is being written.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    destination: Destination,
    out: Output,
    encoder: BlockEncoder,
    thread: ThreadId,
    /// Of a filtered trace: what its filter absorbs.
    gaps: Option<Gaps>,
    /// Instructions of the block, and of the log, that are being built.
    block_instructions: u64,
    log_instructions: u64,
    log: LogBuilder,
    index: Vec<RecordEntry>,
    totals: Totals,
    plain: Vec<u8>,
}

/// What has been written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Accesses.
    pub accesses: u64,
    /// Accesses that a filter absorbed besides.
    pub absorbed: u64,
    /// Instructions meanwhile.
    pub instructions: u64,
    /// First touches.
    pub touches: u64,
    /// Bytes of access records.
    pub access_bytes: u64,
    /// Bytes of all records.
    pub bytes: u64,
}

impl Writer {
    /// Begins a trace that will be called `path`. `level` is zstd's, 1 to 22. If it is `filtered`, so are all its accesses.
    ///
    /// # Errors
    /// When no file can be made there.
    pub fn create(path: &Path, level: i32, filtered: bool) -> Result<Self, WorkloadError> {
        let io = |source| WorkloadError::Io { path: path.into(), source };
        let destination = Destination::of(path).map_err(io)?;
        let file = destination.temporary().map_err(io)?;
        let mut out = Output {
            file: BufWriter::with_capacity(1 << 20, file),
            at: 0,
            compressor: Compressor::new(level).map_err(io)?,
            stored: Vec::new(),
        };
        let version = if filtered { VERSION } else { VERSION_UNFILTERED };
        out.put(&file_header(version)).map_err(io)?;
        Ok(Self {
            path: path.into(),
            destination,
            out,
            encoder: BlockEncoder::default(),
            thread: ThreadId(0),
            gaps: filtered.then(Gaps::default),
            block_instructions: 0,
            log_instructions: 0,
            log: LogBuilder::default(),
            index: Vec::new(),
            totals: Totals::default(),
            plain: Vec::new(),
        })
    }

    /// The next access, by `thread`, which executed `instructions` since the one before, its own included.
    ///
    /// # Errors
    /// When the file cannot be written.
    #[inline]
    pub fn access(
        &mut self,
        thread: ThreadId,
        site: SiteId,
        address: Gva,
        instructions: u64,
    ) -> Result<(), WorkloadError> {
        if thread != self.thread || self.encoder.is_full() || self.log.items() > 0 {
            self.change_to_accesses(thread)?;
        }
        if let Some(gaps) = &mut self.gaps {
            gaps.keep(self.encoder.items() == 0);
        }
        self.encoder.push(site, address);
        self.block_instructions += instructions;
        Ok(())
    }

    /// How many of the next accesses, by `thread`, a filter may absorb; 0: one has to be kept first, since nothing but a kept
    /// access of the same thread can be before them in a record.
    #[inline]
    pub fn room_to_absorb(&self, thread: ThreadId) -> u32 {
        let open = self.encoder.items() > 0 && thread == self.thread && self.log.items() == 0;
        self.gaps.as_ref().filter(|_| open).map_or(0, Gaps::room)
    }

    /// The next `count` accesses are absorbed, no more than there is [room](Writer::room_to_absorb) for. `stores` of them are
    /// stores; `instructions` as for [`Writer::access`].
    #[inline]
    pub fn absorb(&mut self, count: u32, stores: u64, instructions: u64) {
        if let Some(gaps) = &mut self.gaps {
            gaps.absorb(count, stores);
        }
        self.block_instructions += instructions;
    }

    /// Instructions of the block's thread that no record of an access accounts for.
    pub fn block_instructions(&mut self, instructions: u64) {
        self.block_instructions += instructions;
    }

    #[cold]
    fn change_to_accesses(&mut self, thread: ThreadId) -> Result<(), WorkloadError> {
        self.flush()?;
        self.thread = thread;
        Ok(())
    }

    /// A first touch in a stretch whose accesses are left out.
    ///
    /// # Errors
    /// When the file cannot be written.
    #[inline]
    pub fn touch(&mut self, thread: ThreadId, page: Vpn, store: bool) -> Result<(), WorkloadError> {
        self.flush_block()?;
        if self.log.is_full() {
            self.flush_log()?;
        }
        self.log.touch(thread, page, store);
        self.totals.touches += 1;
        Ok(())
    }

    /// Instructions of a stretch whose accesses are left out.
    pub fn skipped_instructions(&mut self, instructions: u64) {
        self.log_instructions += instructions;
    }

    /// A memory event.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn event(&mut self, event: &TraceEvent) -> Result<(), WorkloadError> {
        self.flush_block()?;
        if self.log.is_full() {
            self.flush_log()?;
        }
        self.log.event(event);
        Ok(())
    }

    /// `phase` begins, before access number `access` of the program and after `instructions` of it (all threads).
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn mark(&mut self, phase: Phase, access: u64, instructions: u64) -> Result<(), WorkloadError> {
        self.flush()?;
        let mark = super::index::Mark { phase, access, instructions };
        let header = Head { items: 1, ..Head::of(RecordKind::Mark) };
        self.record(header, &mark.to_bytes())
    }

    /// Ends the record that is being built.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&mut self) -> Result<(), WorkloadError> {
        self.flush_block()?;
        self.flush_log()
    }

    /// What has been written up to the last complete record.
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// Completes the trace and gives it its name. `metadata`'s counts of what the file holds are filled in.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self, sites: &SiteTable, metadata: &mut Metadata) -> Result<Totals, WorkloadError> {
        self.flush()?;
        metadata.accesses = self.totals.accesses;
        metadata.absorbed = self.totals.absorbed;
        metadata.instructions = self.totals.instructions;
        metadata.touches = self.totals.touches;
        let sites_at = self.out.at;
        let mut plain = std::mem::take(&mut self.plain);
        for from in (0..sites.attributes.len()).step_by(ITEMS_MAX) {
            let to = sites.attributes.len().min(from + ITEMS_MAX);
            sites.encode(from, to, &mut plain);
            self.unindexed(RecordKind::Sites, to - from, &plain)?;
        }
        let json = serde_json::to_vec(metadata).map_err(|error| self.io(error.into()))?;
        if json.len() > PAYLOAD_BYTES_MAX {
            return Err(self.io(std::io::Error::other("too many mappings for a trace: convert a shorter capture")));
        }
        self.unindexed(RecordKind::Metadata, 1, &json)?;
        let index_at = self.out.at;
        let entries = std::mem::take(&mut self.index);
        for part in entries.chunks(ITEMS_MAX) {
            index::encode(part, &mut plain);
            self.unindexed(RecordKind::Index, part.len(), &plain)?;
        }
        let trailer = Trailer { sites_at, index_at, file_bytes: self.out.at + TRAILER_BYTES as u64 };
        self.out.put(&trailer.to_bytes()).map_err(|error| self.io(error))?;
        self.totals.bytes = self.out.at;
        let Self { out, path, destination, totals, .. } = self;
        let file = out
            .file
            .into_inner()
            .map_err(|error| WorkloadError::Io { path: path.clone(), source: error.into_error() })?;
        destination.take(file).map_err(|source| WorkloadError::Io { path, source })?;
        Ok(totals)
    }

    fn flush_block(&mut self) -> Result<(), WorkloadError> {
        if self.encoder.items() == 0 {
            return Ok(());
        }
        let items = self.encoder.items() as u32;
        let instructions = std::mem::take(&mut self.block_instructions);
        let mut plain = std::mem::take(&mut self.plain);
        self.encoder.finish(&mut plain);
        let mut head = Head { kind: RecordKind::Accesses, thread: self.thread, items, instructions, absorbed: (0, 0) };
        if let Some(gaps) = &mut self.gaps {
            (head.kind, head.absorbed) = (RecordKind::Filtered, gaps.finish(&mut plain));
        }
        let before = self.out.at;
        self.record(head, &plain)?;
        self.plain = plain;
        self.totals.accesses += u64::from(items);
        self.totals.absorbed += head.absorbed.0;
        self.totals.instructions += instructions;
        self.totals.access_bytes += self.out.at - before;
        Ok(())
    }

    fn flush_log(&mut self) -> Result<(), WorkloadError> {
        if self.log.items() == 0 {
            return Ok(());
        }
        let items = self.log.items() as u32;
        let instructions = std::mem::take(&mut self.log_instructions);
        let mut plain = std::mem::take(&mut self.plain);
        self.log.finish(&mut plain);
        self.record(Head { items, instructions, ..Head::of(RecordKind::Log) }, &plain)?;
        self.plain = plain;
        Ok(())
    }

    fn record(&mut self, head: Head, plain: &[u8]) -> Result<(), WorkloadError> {
        let entry = RecordEntry {
            offset: self.out.at,
            kind: head.kind,
            thread: head.thread,
            items: head.items,
            instructions: head.instructions,
            absorbed: head.absorbed.0,
            absorbed_stores: head.absorbed.1,
        };
        self.index.push(entry);
        self.out.record(head, plain).map_err(|error| self.io(error))?;
        self.totals.bytes = self.out.at;
        Ok(())
    }

    fn unindexed(&mut self, kind: RecordKind, items: usize, plain: &[u8]) -> Result<(), WorkloadError> {
        let head = Head { items: items as u32, ..Head::of(kind) };
        self.out.record(head, plain).map_err(|error| self.io(error))
    }

    fn io(&self, source: std::io::Error) -> WorkloadError {
        WorkloadError::Io { path: self.path.clone(), source }
    }
}

/// The part of a record header that does not depend on the payload.
#[derive(Clone, Copy)]
struct Head {
    kind: RecordKind,
    thread: ThreadId,
    items: u32,
    instructions: u64,
    /// Accesses that were absorbed, and stores among them: for the index.
    absorbed: (u64, u64),
}

impl Head {
    const fn of(kind: RecordKind) -> Self {
        Self { kind, thread: ThreadId(0), items: 0, instructions: 0, absorbed: (0, 0) }
    }
}

/// The file, and what it takes to put records into it.
struct Output {
    file: BufWriter<NamedTempFile>,
    /// Bytes written.
    at: u64,
    compressor: Compressor<'static>,
    stored: Vec<u8>,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("file", &self.file).field("at", &self.at).finish_non_exhaustive()
    }
}

/// Payloads shorter than this are stored as they are.
const COMPRESSED_MIN: usize = 64;

impl Output {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn record(&mut self, head: Head, plain: &[u8]) -> std::io::Result<()> {
        let compressed = plain.len() >= COMPRESSED_MIN;
        let mut stored = std::mem::take(&mut self.stored);
        if compressed {
            stored.resize(zstd::zstd_safe::compress_bound(plain.len()), 0);
            let bytes = self.compressor.compress_to_buffer(plain, &mut stored[..])?;
            stored.truncate(bytes);
        }
        let payload = if compressed { &stored[..] } else { plain };
        let header = RecordHeader {
            kind: head.kind,
            compressed,
            thread: head.thread,
            items: head.items,
            stored_bytes: payload.len() as u32,
            plain_bytes: plain.len() as u32,
            instructions: head.instructions,
            checksum: checksum(payload),
        };
        debug_assert!(RecordHeader::from_bytes(&header.to_bytes()).is_ok());
        self.put(&header.to_bytes())?;
        self.put(payload)?;
        self.stored = stored;
        Ok(())
    }
}
