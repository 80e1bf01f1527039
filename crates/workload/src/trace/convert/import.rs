// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the readers of other tools' formats share: one thread unpacks and reads, another one
//! encodes.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use nestwalk_mem::{Va, Vpn};
use rustc_hash::FxHashMap;

use super::sink::Sink;
use crate::stream::WorkloadError;
use crate::trace::event::TraceEvent;
use crate::trace::metadata::Metadata;
use crate::trace::source::{INSTRUCTIONS_SATURATED, SourceAccess};

/// Accesses that a reader puts into a batch before it hands it over.
pub const BATCH: usize = 1 << 16;
/// Batches that are read ahead.
const AHEAD: usize = 4;
/// Addresses below this are a program's own: user addresses of 5-level paging.
pub const ADDRESS_END: u64 = 1 << 56;

/// Some accesses of one thread, and perhaps a memory event after them.
#[derive(Debug, Default)]
pub struct Batch {
    /// The number that the format gives the thread.
    pub thread: u32,
    /// In program order. All have passed [`SourceAccess::check_all`].
    pub accesses: Vec<SourceAccess>,
    /// Instructions of the thread that no access accounts for.
    pub more: u64,
    /// What comes after the accesses.
    pub event: Option<TraceEvent>,
    /// Pages that the kernel touched for the thread, and whether by a store; after the accesses,
    /// too.
    pub copies: Vec<(Vpn, bool)>,
}

impl Batch {
    fn clear(&mut self) {
        self.thread = 0;
        self.accesses.clear();
        self.more = 0;
        self.event = None;
        self.copies.clear();
    }

    /// Puts in an access to `address`, which a trace can hold, of `bytes` bytes (rounded up to a
    /// power of two; 0 = 1) by instruction `site`, `instructions` after the thread's access before.
    #[inline]
    pub fn push(&mut self, address: u64, site: u32, instructions: u64, bytes: u16, store: bool) {
        let counted = instructions.min(INSTRUCTIONS_SATURATED);
        self.more += instructions - counted;
        self.accesses.push(SourceAccess::new(Va(address), site, counted as u16, size_log2(bytes), store));
    }
}

/// The smallest power of two that is not below `bytes`.
#[inline]
pub const fn size_log2(bytes: u16) -> u8 {
    let log2 = 16 - bytes.saturating_sub(1).leading_zeros() as u8;
    if log2 > 15 { 15 } else { log2 }
}

/// Reads one format.
pub trait Reader: Send {
    /// Adds what comes next to the empty `batch`; `false` at the end, when it has added nothing.
    ///
    /// # Errors
    /// When the input cannot be read on, or is not of the format: where, and what can be done.
    fn fill(&mut self, batch: &mut Batch) -> Result<bool, WorkloadError>;

    /// What a user has to know of what was read: what the format lacks, and what was left out.
    /// Asked for at the end.
    fn warnings(&self) -> Vec<String>;

    /// What the source says of itself, if it says that much.
    fn about(&self) -> Option<&Metadata> {
        None
    }
}

/// Counts what `reader` yields.
pub fn count(mut reader: Box<dyn Reader>) -> Result<u64, WorkloadError> {
    let (mut batch, mut accesses) = (Batch::default(), 0);
    while reader.fill(&mut batch)? {
        accesses += batch.accesses.len() as u64;
        batch.clear();
    }
    Ok(accesses)
}

/// Reads all of `reader` into `recorder`. Returns its warnings.
pub fn read<S: Sink>(
    mut reader: Box<dyn Reader>,
    recorder: &mut S,
    progress: &mut dyn FnMut(&mut S) -> Result<(), WorkloadError>,
) -> Result<Option<String>, WorkloadError> {
    let (send, receive) = sync_channel::<Result<Batch, WorkloadError>>(AHEAD);
    let (give_back, taken_back) = sync_channel::<Batch>(AHEAD + 2);
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            read_ahead(&mut *reader, &send, &taken_back);
            reader.warnings()
        });
        consume(receive, &give_back, recorder, progress)?;
        let warnings = reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((!warnings.is_empty()).then(|| warnings.join("; ")))
    })
}

fn read_ahead(reader: &mut dyn Reader, send: &SyncSender<Result<Batch, WorkloadError>>, rooms: &Receiver<Batch>) {
    loop {
        let mut batch = rooms.try_recv().unwrap_or_default();
        batch.clear();
        let item = match reader.fill(&mut batch) {
            Ok(true) => Ok(batch),
            Ok(false) => return,
            Err(error) => Err(error),
        };
        let last = item.is_err();
        if send.send(item).is_err() || last {
            return;
        }
    }
}

/// Takes `batches` by value: its end goes when this returns, so that the reader never waits for a
/// consumer that has failed.
#[allow(clippy::needless_pass_by_value)]
fn consume<S: Sink>(
    batches: Receiver<Result<Batch, WorkloadError>>,
    rooms: &SyncSender<Batch>,
    recorder: &mut S,
    progress: &mut dyn FnMut(&mut S) -> Result<(), WorkloadError>,
) -> Result<(), WorkloadError> {
    for batch in &batches {
        let batch = batch?;
        let thread = recorder.thread(batch.thread).ok_or_else(|| WorkloadError::Parameter {
            name: "trace".into(),
            what: "more than 65,536 threads: a trace holds no more; convert a part of the capture".into(),
        })?;
        recorder.accesses(thread, &batch.accesses, batch.more)?;
        if let Some(event) = &batch.event {
            recorder.event(&TraceEvent { thread, ..*event })?;
        }
        if !batch.copies.is_empty() {
            recorder.copies(thread, &batch.copies)?;
        }
        progress(recorder)?;
        // Whether there is room for it back there does not matter.
        let _ = rooms.try_send(batch);
    }
    Ok(())
}

/// Numbers instructions by their addresses.
#[derive(Debug)]
pub struct Instructions {
    /// Address and number, by the address' low bits.
    recent: Vec<(u64, u32)>,
    all: FxHashMap<u64, u32>,
}

impl Default for Instructions {
    fn default() -> Self {
        let mut recent = vec![(0, 0); Self::RECENT];
        // An address that does not belong in this entry, as 0 does not in the others.
        recent[0].0 = 1;
        Self { recent, all: FxHashMap::default() }
    }
}

impl Instructions {
    const RECENT: usize = 1 << 13;
    /// A trace has at most 2^24 sites, and an instruction may be several (by store and size): the
    /// rest share a number.
    const MAX: usize = 1 << 22;

    /// The number of the instruction at `address`.
    #[inline]
    pub fn number(&mut self, address: u64) -> u32 {
        let recent = &mut self.recent[address as usize % Self::RECENT];
        if recent.0 == address {
            return recent.1;
        }
        let next = self.all.len() as u32;
        let number = if self.all.len() < Self::MAX {
            *self.all.entry(address).or_insert(next)
        } else {
            self.all.get(&address).copied().unwrap_or(next)
        };
        *recent = (address, number);
        number
    }
}

/// What is kept of things that happen many times: how often, and where first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// How often.
    pub count: u64,
    /// Line or byte of the first one.
    pub first: u64,
}

impl Seen {
    /// It happened at `place`.
    pub fn at(&mut self, place: u64) {
        if self.count == 0 {
            self.first = place;
        }
        self.count += 1;
    }
}
