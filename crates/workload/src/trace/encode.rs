// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns records into bytes, and blocks of accesses on several threads at a time: they decode
//! alone, so they encode alone.
//!
//! What comes out is in the order of what was put in, and has the same bytes whatever the number of
//! threads.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;

use nestwalk_mem::Gva;
use zstd::bulk::Compressor;

use super::block::BlockEncoder;
use super::format::{ITEMS_MAX, RECORD_BYTES, RecordHeader, RecordKind, checksum};
use super::sites::SiteId;
use crate::stream::ThreadId;

/// Payloads shorter than this are stored as they are.
const COMPRESSED_MIN: usize = 64;
/// Blocks with fewer accesses are encoded at once: to hand them over would take as long.
const HANDED_OVER_MIN: usize = 1 << 13;
/// Blocks that a thread has to do at a time: one that it works on, and the next.
const AHEAD: usize = 2;
/// The most encoding threads: four keep up with what one thread can put in.
const THREADS_MAX: usize = 4;
/// Encoded bytes that wait for a block before them; with more, everybody waits for that block.
const WAITING_BYTES_MAX: usize = 1 << 24;

/// The part of a record header that does not depend on the payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub kind: RecordKind,
    pub thread: ThreadId,
    pub items: u32,
    pub instructions: u64,
    /// Accesses that were absorbed, and stores among them: for the index.
    pub absorbed: (u64, u64),
}

impl Head {
    pub(super) const fn of(kind: RecordKind) -> Self {
        Self { kind, thread: ThreadId(0), items: 0, instructions: 0, absorbed: (0, 0) }
    }
}

/// A record as it goes into the file.
#[derive(Debug)]
pub(super) struct Record {
    pub head: Head,
    pub bytes: Vec<u8>,
}

/// Accesses of one thread that become a record.
#[derive(Debug)]
pub(super) struct Block {
    pub head: Head,
    sites: Vec<SiteId>,
    addresses: Vec<Gva>,
    /// What goes behind the accesses: the numbers of those that were absorbed.
    pub behind: Vec<u8>,
}

impl Default for Block {
    fn default() -> Self {
        Self { head: Head::of(RecordKind::Accesses), sites: Vec::new(), addresses: Vec::new(), behind: Vec::new() }
    }
}

impl Block {
    /// How many accesses it holds.
    pub(super) const fn items(&self) -> usize {
        self.sites.len()
    }

    /// Whether it can take no more.
    pub(super) const fn is_full(&self) -> bool {
        self.sites.len() == ITEMS_MAX
    }

    /// Takes in the next access.
    #[inline]
    pub(super) fn push(&mut self, site: SiteId, address: Gva) {
        self.sites.push(site);
        self.addresses.push(address);
    }

    fn clear(&mut self) {
        self.sites.clear();
        self.addresses.clear();
        self.behind.clear();
    }
}

/// Encodes and packs.
struct Encoder {
    blocks: BlockEncoder,
    compressor: Compressor<'static>,
    plain: Vec<u8>,
}

impl Encoder {
    fn new(level: i32) -> io::Result<Self> {
        Ok(Self { blocks: BlockEncoder::default(), compressor: Compressor::new(level)?, plain: Vec::new() })
    }

    fn block(&mut self, block: &Block) -> io::Result<Record> {
        for (&site, &address) in block.sites.iter().zip(&block.addresses) {
            self.blocks.push(site, address);
        }
        let mut plain = std::mem::take(&mut self.plain);
        self.blocks.finish(&mut plain);
        plain.extend_from_slice(&block.behind);
        let record = self.pack(block.head, &plain);
        self.plain = plain;
        record
    }

    fn pack(&mut self, head: Head, plain: &[u8]) -> io::Result<Record> {
        let compressed = plain.len() >= COMPRESSED_MIN;
        let mut bytes = vec![0; RECORD_BYTES];
        if compressed {
            bytes.resize(RECORD_BYTES + zstd::zstd_safe::compress_bound(plain.len()), 0);
            let stored = self.compressor.compress_to_buffer(plain, &mut bytes[RECORD_BYTES..])?;
            bytes.truncate(RECORD_BYTES + stored);
        } else {
            bytes.extend_from_slice(plain);
        }
        let payload = &bytes[RECORD_BYTES..];
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
        bytes[..RECORD_BYTES].copy_from_slice(&header.to_bytes());
        Ok(Record { head, bytes })
    }
}

/// A thread that encodes blocks, in the order in which it gets them.
struct Worker {
    /// `None` once it is to end.
    blocks: Option<SyncSender<Block>>,
    done: Receiver<(Block, io::Result<Record>)>,
    /// Taken from `done`.
    finished: VecDeque<io::Result<Record>>,
    /// Blocks that it has, and has not finished.
    has: usize,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(mut encoder: Encoder) -> io::Result<Self> {
        let (blocks, taken) = sync_channel::<Block>(AHEAD);
        let (give, done) = channel();
        let work = move || {
            for block in taken {
                let record = encoder.block(&block);
                if give.send((block, record)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("nestwalk-encode".into()).spawn(work)?;
        Ok(Self { blocks: Some(blocks), done, finished: VecDeque::new(), has: 0, thread: Some(thread) })
    }

    fn finish_one(&mut self, (block, record): (Block, io::Result<Record>), spare: &mut Vec<Block>) {
        self.has -= 1;
        self.finished.push_back(record);
        spare.push(block);
    }

    /// Takes what is finished, without waiting.
    fn collect(&mut self, spare: &mut Vec<Block>) {
        loop {
            match self.done.try_recv() {
                Ok(done) => self.finish_one(done, spare),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.resume_panic(),
            }
        }
    }

    /// The record of the first block that was not asked for yet.
    fn wait(&mut self, spare: &mut Vec<Block>) -> io::Result<Record> {
        loop {
            if let Some(record) = self.finished.pop_front() {
                return record;
            }
            match self.done.recv() {
                Ok(done) => self.finish_one(done, spare),
                Err(_) => self.resume_panic(),
            }
        }
    }

    /// It ends before its blocks do only by a panic.
    fn resume_panic(&mut self) -> ! {
        self.blocks = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            _ => unreachable!("an encoding thread ends when its blocks do"),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.blocks = None;
        if let Some(thread) = self.thread.take() {
            // Nothing is left to be done about a panic of a thread whose work is not wanted any
            // more.
            let _ = thread.join();
        }
    }
}

enum Slot {
    Ready(Record),
    /// The worker with this number has it.
    With(usize),
}

/// See the [module's documentation](self).
pub(super) struct Encoding {
    level: i32,
    own: Encoder,
    /// How many threads there are to be; they start when there is something for them.
    threads: usize,
    workers: Vec<Worker>,
    slots: VecDeque<Slot>,
    waiting_bytes: usize,
    spare: Vec<Block>,
}

impl std::fmt::Debug for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoding").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl Encoding {
    /// With zstd's `level`, on `threads` threads besides the caller's; `None` = as the machine has
    /// processors.
    pub(super) fn new(level: i32, threads: Option<usize>) -> io::Result<Self> {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            level,
            own: Encoder::new(level)?,
            threads: threads.unwrap_or_else(|| (processors() - 1).min(THREADS_MAX)),
            workers: Vec::new(),
            slots: VecDeque::new(),
            waiting_bytes: 0,
            spare: Vec::new(),
        })
    }

    /// Takes `block`, and leaves an empty one.
    pub(super) fn put(&mut self, block: &mut Block) -> io::Result<()> {
        let worker = if block.items() < HANDED_OVER_MIN { None } else { self.idle()? };
        let Some((number, blocks)) = worker.and_then(|at| Some((at, self.workers[at].blocks.as_ref()?))) else {
            let record = self.own.block(block)?;
            block.clear();
            self.ready(record);
            return Ok(());
        };
        let mut next = self.spare.pop().unwrap_or_default();
        next.clear();
        if blocks.send(std::mem::replace(block, next)).is_err() {
            self.workers[number].resume_panic();
        }
        self.workers[number].has += 1;
        self.slots.push_back(Slot::With(number));
        Ok(())
    }

    /// The worker that has least to do, unless all of them have enough: then the caller is one.
    fn idle(&mut self) -> io::Result<Option<usize>> {
        while self.workers.len() < self.threads {
            match Worker::start(Encoder::new(self.level)?) {
                Ok(worker) => self.workers.push(worker),
                // The system allows no more threads: those that there are will do.
                Err(_) => self.threads = self.workers.len(),
            }
        }
        for worker in &mut self.workers {
            worker.collect(&mut self.spare);
        }
        let least = self.workers.iter().enumerate().min_by_key(|(_, worker)| worker.has);
        Ok(least.filter(|(_, worker)| worker.has < AHEAD).map(|(number, _)| number))
    }

    /// Takes a record whose payload is `plain`.
    pub(super) fn put_plain(&mut self, head: Head, plain: &[u8]) -> io::Result<()> {
        let record = self.own.pack(head, plain)?;
        self.ready(record);
        Ok(())
    }

    fn ready(&mut self, record: Record) {
        self.waiting_bytes += record.bytes.len();
        self.slots.push_back(Slot::Ready(record));
    }

    /// The next record in order: if it is ready, or if too much waits behind it, or if the caller
    /// wants to `wait` for it.
    pub(super) fn next(&mut self, wait: bool) -> io::Result<Option<Record>> {
        match self.slots.front() {
            None => return Ok(None),
            Some(&Slot::With(number)) => {
                let worker = &mut self.workers[number];
                worker.collect(&mut self.spare);
                if worker.finished.is_empty() && !wait && self.waiting_bytes <= WAITING_BYTES_MAX {
                    return Ok(None);
                }
            }
            Some(Slot::Ready(_)) => {}
        }
        match self.slots.pop_front() {
            None => Ok(None),
            Some(Slot::With(number)) => self.workers[number].wait(&mut self.spare).map(Some),
            Some(Slot::Ready(record)) => {
                self.waiting_bytes -= record.bytes.len();
                Ok(Some(record))
            }
        }
    }
}
