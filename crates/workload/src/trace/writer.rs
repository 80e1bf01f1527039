// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a trace, record by record. The file has its final name only once it is complete: until
//! then it is a temporary file beside it, which goes away with the writer. Records are encoded by
//! [`super::encode`].

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use nestwalk_mem::{Gva, Vpn};
use tempfile::NamedTempFile;

use super::destination::Destination;
use super::encode::{Block, Encoding, Head, Record};
use super::event::TraceEvent;
use super::filtered::Gaps;
use super::format::{
    ITEMS_MAX, PAYLOAD_BYTES_MAX, RecordKind, TRAILER_BYTES, Trailer, VERSION, VERSION_UNFILTERED, file_header,
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
    file: BufWriter<NamedTempFile>,
    /// Bytes written.
    at: u64,
    encoding: Encoding,
    /// The accesses of the record that is being built, and whose they are.
    block: Block,
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
    /// Begins a trace that will be called `path`. `level` is zstd's, 1 to 22. If it is `filtered`,
    /// so are all its accesses.
    ///
    /// # Errors
    /// When no file can be made there.
    pub fn create(path: &Path, level: i32, filtered: bool) -> Result<Self, WorkloadError> {
        Self::with_threads(path, level, filtered, None)
    }

    /// The same, which encodes on so many threads besides the caller's.
    fn with_threads(path: &Path, level: i32, filtered: bool, threads: Option<usize>) -> Result<Self, WorkloadError> {
        let io = |source| WorkloadError::Io { path: path.into(), source };
        let destination = Destination::of(path).map_err(io)?;
        let mut file = BufWriter::with_capacity(1 << 20, destination.temporary().map_err(io)?);
        let header = file_header(if filtered { VERSION } else { VERSION_UNFILTERED });
        file.write_all(&header).map_err(io)?;
        Ok(Self {
            path: path.into(),
            destination,
            file,
            at: header.len() as u64,
            encoding: Encoding::new(level, threads).map_err(io)?,
            block: Block::default(),
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

    /// The next access, by `thread`, which executed `instructions` since the one before, its own
    /// included.
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
        if thread != self.thread || self.block.is_full() || self.log.items() > 0 {
            self.change_to_accesses(thread)?;
        }
        if let Some(gaps) = &mut self.gaps {
            gaps.keep(self.block.items() == 0);
        }
        self.block.push(site, address);
        self.block_instructions += instructions;
        Ok(())
    }

    /// How many of the next accesses, by `thread`, a filter may absorb; 0: one has to be kept
    /// first, since nothing but a kept access of the same thread can be before them in a record.
    #[inline]
    pub fn room_to_absorb(&self, thread: ThreadId) -> u32 {
        let open = self.block.items() > 0 && thread == self.thread && self.log.items() == 0;
        self.gaps.as_ref().filter(|_| open).map_or(0, Gaps::room)
    }

    /// The next `count` accesses are absorbed, no more than there is [room](Writer::room_to_absorb)
    /// for. `stores` of them are stores; `instructions` as for [`Writer::access`].
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
        self.end_record()?;
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

    /// `phase` begins, before access number `access` of the program and after `instructions` of it
    /// (all threads).
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn mark(&mut self, phase: Phase, access: u64, instructions: u64) -> Result<(), WorkloadError> {
        self.end_record()?;
        let mark = super::index::Mark { phase, access, instructions };
        let head = Head { items: 1, ..Head::of(RecordKind::Mark) };
        self.record(head, &mark.to_bytes())
    }

    /// Ends the record that is being built, and writes all that have ended.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&mut self) -> Result<(), WorkloadError> {
        self.end_record()?;
        self.write_ended(true)
    }

    fn end_record(&mut self) -> Result<(), WorkloadError> {
        self.flush_block()?;
        self.flush_log()
    }

    /// What has been written. Records that have ended may be missing, but for those before a
    /// [`Writer::flush`].
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// Completes the trace and gives it its name. `metadata`'s counts of what the file holds are
    /// filled in.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self, sites: &SiteTable, metadata: &mut Metadata) -> Result<Totals, WorkloadError> {
        self.flush()?;
        metadata.accesses = self.totals.accesses;
        metadata.absorbed = self.totals.absorbed;
        metadata.instructions = self.totals.instructions;
        metadata.touches = self.totals.touches;
        let sites_at = self.at;
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
        let index_at = self.at;
        let entries = std::mem::take(&mut self.index);
        for part in entries.chunks(ITEMS_MAX) {
            index::encode(part, &mut plain);
            self.unindexed(RecordKind::Index, part.len(), &plain)?;
        }
        let trailer = Trailer { sites_at, index_at, file_bytes: self.at + TRAILER_BYTES as u64 };
        self.put(&trailer.to_bytes())?;
        let Self { file, path, destination, totals, .. } = self;
        let file =
            file.into_inner().map_err(|error| WorkloadError::Io { path: path.clone(), source: error.into_error() })?;
        destination.take(file).map_err(|source| WorkloadError::Io { path, source })?;
        Ok(totals)
    }

    fn flush_block(&mut self) -> Result<(), WorkloadError> {
        if self.block.items() == 0 {
            return Ok(());
        }
        let items = self.block.items() as u32;
        let instructions = std::mem::take(&mut self.block_instructions);
        let mut head = Head { kind: RecordKind::Accesses, thread: self.thread, items, instructions, absorbed: (0, 0) };
        if let Some(gaps) = &mut self.gaps {
            (head.kind, head.absorbed) = (RecordKind::Filtered, gaps.finish(&mut self.block.behind));
        }
        self.block.head = head;
        self.encoding.put(&mut self.block).map_err(|error| self.io(error))?;
        self.write_ended(false)
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
        self.encoding.put_plain(head, plain).map_err(|error| self.io(error))?;
        self.write_ended(false)
    }

    /// Writes records that are encoded; `all` = waits for those that are not yet.
    fn write_ended(&mut self, all: bool) -> Result<(), WorkloadError> {
        while let Some(record) = self.encoding.next(all).map_err(|error| self.io(error))? {
            self.write(&record)?;
        }
        Ok(())
    }

    fn write(&mut self, Record { head, bytes }: &Record) -> Result<(), WorkloadError> {
        self.index.push(RecordEntry {
            offset: self.at,
            kind: head.kind,
            thread: head.thread,
            items: head.items,
            instructions: head.instructions,
            absorbed: head.absorbed.0,
            absorbed_stores: head.absorbed.1,
        });
        self.put(bytes)?;
        if matches!(head.kind, RecordKind::Accesses | RecordKind::Filtered) {
            self.totals.accesses += u64::from(head.items);
            self.totals.absorbed += head.absorbed.0;
            self.totals.instructions += head.instructions;
            self.totals.access_bytes += bytes.len() as u64;
        }
        Ok(())
    }

    fn unindexed(&mut self, kind: RecordKind, items: usize, plain: &[u8]) -> Result<(), WorkloadError> {
        let head = Head { items: items as u32, ..Head::of(kind) };
        self.encoding.put_plain(head, plain).map_err(|error| self.io(error))?;
        while let Some(record) = self.encoding.next(true).map_err(|error| self.io(error))? {
            self.put(&record.bytes)?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WorkloadError> {
        self.file.write_all(bytes).map_err(|error| self.io(error))?;
        self.at += bytes.len() as u64;
        self.totals.bytes = self.at;
        Ok(())
    }

    fn io(&self, source: std::io::Error) -> WorkloadError {
        WorkloadError::Io { path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::sites::{SiteAttributes, SiteNumbers};

    /// Long blocks and short ones, of two threads, with memory events, touches and marks between
    /// them.
    fn write(path: &Path, filtered: bool, threads: usize) -> Totals {
        let mut writer = Writer::with_threads(path, 1, filtered, Some(threads)).unwrap();
        let mut sites = SiteNumbers::default();
        let (load, store) = (SiteAttributes::new(false, 3).unwrap(), SiteAttributes::new(true, 2).unwrap());
        for part in 0..12_u64 {
            let thread = ThreadId((part % 2) as u16);
            for i in 0..[40_000, 700, 3, 400_000][part as usize % 4] {
                let site = sites.number(i % 7 + part, if i % 3 == 0 { store } else { load });
                let address = 0x7000_0000 + i.wrapping_mul(i) % (1 << 30) * 8;
                if filtered && i % 5 != 0 && writer.room_to_absorb(thread) > 0 {
                    writer.absorb(1, u64::from(i % 3 == 0), 2);
                } else {
                    writer.access(thread, site, Gva(address), 2).unwrap();
                }
            }
            writer.touch(thread, Vpn(part), true).unwrap();
            writer.mark(Phase::Measure, part, part).unwrap();
        }
        writer.finish(sites.table(), &mut Metadata::default()).unwrap()
    }

    #[test]
    fn the_bytes_do_not_depend_on_the_number_of_threads() {
        let folder = tempfile::tempdir().unwrap();
        for filtered in [false, true] {
            let mut files = [0, 1, 3].map(|threads| {
                let path = folder.path().join(format!("{threads}.nwt"));
                let totals = write(&path, filtered, threads);
                assert_eq!(totals.accesses + totals.absorbed, 3 * 440_703);
                crate::trace::check(&path).unwrap();
                (totals.access_bytes, std::fs::read(path).unwrap())
            });
            files.sort();
            assert!(files[0] == files[1] && files[1] == files[2], "files differ");
        }
    }

    #[test]
    fn a_writer_that_is_given_up_ends_its_threads_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::with_threads(&folder.path().join("t.nwt"), 1, false, Some(2)).unwrap();
        for i in 0..600_000 {
            writer.access(ThreadId(0), SiteId(0), Gva(i * 7919), 1).unwrap();
        }
        drop(writer);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
