// SPDX-License-Identifier: MIT OR Apache-2.0
//! The raw stream of the capture plugin; `capture/README.md` describes it.
//!
//! One thread reads and unpacks, another one encodes.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use nestwalk_mem::{Va, Vpn};
use zerocopy::{FromZeros, IntoBytes};

use super::input::Input;
use super::sink::Sink;
use crate::stream::{ThreadId, WorkloadError};
use crate::trace::event::{EventOp, TraceEvent};
use crate::trace::format::{ADDRESS_END, u32_at, u64_at};
use crate::trace::source::{INSTRUCTIONS_SATURATED, SourceAccess};

/// What the format is called.
pub const NAME: &str = "raw";
/// What writes it.
pub const TOOL: &str = "nestwalk capture (QEMU user mode)";

/// What a block begins with.
pub const MAGIC: u32 = 0x4352_5441;
const HEADER_BYTES: usize = 32;
const EVENT_BYTES: usize = 48;
/// The event of memory that the kernel copied to (flags 1) or from (0) for the program. It changes
/// no mapping, and a trace has it as touches of pages.
const COPY: u32 = 12;
/// The most that one system call copies is less (Linux's `MAX_RW_COUNT` is 2 GiB - 4 KiB).
const COPY_BYTES_MAX: u64 = 1 << 31;
/// The most records that a block may have: 64 times what the plugin writes.
const RECORDS_MAX: u64 = 1 << 22;
/// Blocks that are read ahead.
const AHEAD: usize = 4;
const REMEDY: &str = "make the capture again with nestwalk capture";

struct Header {
    thread: u32,
    records: u64,
    events: bool,
    instructions: u64,
}

/// A block, or why there is none.
struct Block {
    header: Header,
    /// Where its records begin.
    offset: u64,
    accesses: Vec<SourceAccess>,
    events: Vec<u8>,
    /// Whether the input ended inside it.
    cut: bool,
}

enum Item {
    Block(Block),
    /// The input ended inside a header, at this byte.
    Cut(u64),
}

/// Counts the accesses of a capture.
pub fn count(mut input: Input) -> Result<u64, WorkloadError> {
    let (mut accesses, mut scratch) = (0, vec![0; 1 << 20]);
    while let Some(header) = read_header(&mut input)? {
        let Some(header) = header else { break };
        let size = header.record_bytes();
        let mut left = header.records as usize * size;
        let mut got = 0;
        while left > 0 {
            let part = left.min(scratch.len());
            let done = input.read(&mut scratch[..part])?;
            got += done;
            left = if done < part { 0 } else { left - part };
        }
        accesses += if header.events { 0 } else { (got / size) as u64 };
    }
    Ok(accesses)
}

/// Reads a capture into `recorder`. Returns a warning if the capture ended inside a block; what it
/// has up to there is kept.
pub fn read<S: Sink>(
    input: Input,
    recorder: &mut S,
    progress: &mut dyn FnMut(&mut S) -> Result<(), WorkloadError>,
) -> Result<Option<String>, WorkloadError> {
    let (send, receive) = sync_channel::<Result<Item, WorkloadError>>(AHEAD);
    let (give_back, taken_back) = sync_channel::<Vec<SourceAccess>>(AHEAD + 2);
    let errors = input.corrupt(0, String::new());
    std::thread::scope(|scope| {
        scope.spawn(move || read_ahead(input, &send, &taken_back));
        // Both ends go when this closure returns, so that the reader never waits for a consumer
        // that has failed.
        let (receive, give_back) = (receive, give_back);
        consume(&receive, &give_back, recorder, progress, &errors)
    })
}

fn read_ahead(mut input: Input, send: &SyncSender<Result<Item, WorkloadError>>, rooms: &Receiver<Vec<SourceAccess>>) {
    loop {
        let room = rooms.try_recv().unwrap_or_default();
        let item = read_item(&mut input, room);
        let last = !matches!(&item, Ok(Some(Item::Block(block))) if !block.cut);
        let Some(item) = item.transpose() else { return };
        if send.send(item).is_err() || last {
            return;
        }
    }
}

fn read_item(input: &mut Input, mut accesses: Vec<SourceAccess>) -> Result<Option<Item>, WorkloadError> {
    let Some(header) = read_header(input)? else { return Ok(None) };
    let Some(header) = header else { return Ok(Some(Item::Cut(input.position()))) };
    let offset = input.position();
    let mut events = Vec::new();
    let records = header.records as usize;
    let bytes = if header.events {
        events.resize(records * EVENT_BYTES, 0);
        let bytes = input.read(&mut events)?;
        events.truncate(bytes / EVENT_BYTES * EVENT_BYTES);
        bytes
    } else {
        accesses.resize(records, SourceAccess::new_zeroed());
        let bytes = input.read(accesses.as_mut_bytes())?;
        accesses.truncate(bytes / size_of::<SourceAccess>());
        bytes
    };
    let cut = bytes < records * header.record_bytes();
    if header.events {
        accesses.clear();
    }
    Ok(Some(Item::Block(Block { header, offset, accesses, events, cut })))
}

/// The next header; `None` at the end, `Some(None)` if the input ends inside it.
fn read_header(input: &mut Input) -> Result<Option<Option<Header>>, WorkloadError> {
    let at = input.position();
    let mut bytes = [0; HEADER_BYTES];
    let read = input.read(&mut bytes)?;
    if read == 0 && at > 0 {
        return Ok(None);
    }
    if read < HEADER_BYTES && at > 0 {
        return Ok(Some(None));
    }
    let fault = |what: String| Err(input.corrupt(at, what));
    if u32_at(&bytes, 0) != MAGIC {
        return fault(if at == 0 {
            format!("not a raw capture, plain or zstd (its first bytes are others): {REMEDY}")
        } else {
            format!("no block begins here, the capture is damaged: {REMEDY}")
        });
    }
    let header = Header {
        thread: u32_at(&bytes, 4),
        records: u64_at(&bytes, 8),
        events: u32_at(&bytes, 20) == 1,
        instructions: u64_at(&bytes, 24),
    };
    if u32_at(&bytes, 20) > 1 {
        return fault(format!("a block of unknown kind {}: {REMEDY}", u32_at(&bytes, 20)));
    }
    let size = header.record_bytes() as u64;
    if header.records > RECORDS_MAX || header.records * size != u64::from(u32_at(&bytes, 16)) {
        return fault(format!("a block of {} records in {} bytes: {REMEDY}", header.records, u32_at(&bytes, 16)));
    }
    Ok(Some(Some(header)))
}

impl Header {
    const fn record_bytes(&self) -> usize {
        if self.events { EVENT_BYTES } else { size_of::<SourceAccess>() }
    }
}

/// What is known of a thread while its blocks come.
#[derive(Clone, Copy, Default)]
struct Thread {
    accesses: u64,
    /// By the header of its last block of accesses.
    instructions: u64,
    begun: bool,
}

fn consume<S: Sink>(
    blocks: &Receiver<Result<Item, WorkloadError>>,
    rooms: &SyncSender<Vec<SourceAccess>>,
    recorder: &mut S,
    progress: &mut dyn FnMut(&mut S) -> Result<(), WorkloadError>,
    errors: &WorkloadError,
) -> Result<Option<String>, WorkloadError> {
    let corrupt = |at: u64, what: String| match errors {
        WorkloadError::Corrupt { path, .. } => WorkloadError::Corrupt { path: path.clone(), offset: at, what },
        _ => unreachable!("made by Input::corrupt"),
    };
    let mut threads: Vec<Thread> = Vec::new();
    let (mut warning, mut children) = (None, 0);
    for item in blocks {
        let mut block = match item? {
            Item::Block(block) => block,
            Item::Cut(at) => {
                warning = Some(cut_at(at));
                continue;
            }
        };
        let thread = recorder.thread(block.header.thread);
        let thread = thread.ok_or_else(|| corrupt(block.offset, format!("more than 65,536 threads: {REMEDY}")))?;
        if threads.len() <= usize::from(thread.0) {
            threads.resize(usize::from(thread.0) + 1, Thread::default());
        }
        let state = &mut threads[usize::from(thread.0)];
        children += take_events(&block, thread, state, recorder, &corrupt)?;
        take_accesses(&mut block, thread, state, recorder, &corrupt)?;
        if block.cut {
            let end = (block.accesses.len() * size_of::<SourceAccess>() + block.events.len()) as u64;
            warning = Some(cut_at(block.offset + end));
        }
        progress(recorder)?;
        // Whether there is room for it back there does not matter.
        let _ = rooms.try_send(block.accesses);
    }
    let warnings: Vec<String> = warning.into_iter().chain(not_recorded(children)).collect();
    Ok((!warnings.is_empty()).then(|| warnings.join("; ")))
}

/// Of a capture of a driver, which lets others do the work, nearly everything is missing.
fn not_recorded(children: u64) -> Option<String> {
    (children > 0).then(|| {
        format!(
            "child processes that the program started and the capture lacks, as it has the first process only: {children}; if \
             the work is in one, as it is with gcc or sh -c, name it (nestwalk capture --follow NAME ...)"
        )
    })
}

fn cut_at(offset: u64) -> String {
    format!("the capture ends inside a block, at byte {offset} (unpacked); all before it was kept")
}

fn take_accesses<S: Sink>(
    block: &mut Block,
    thread: ThreadId,
    state: &mut Thread,
    recorder: &mut S,
    corrupt: &impl Fn(u64, String) -> WorkloadError,
) -> Result<(), WorkloadError> {
    let counted = SourceAccess::check_all(&block.accesses)
        .map_err(|(index, what)| corrupt(block.offset + (index * size_of::<SourceAccess>()) as u64, what))?;
    let Some(first) = block.accesses.first().copied() else { return Ok(()) };
    let total = block.header.instructions;
    let mut more = 0;
    if !state.begun && first.instructions() == INSTRUCTIONS_SATURATED {
        // The capture began when the thread had long been running: what it did before is no part of
        // it.
        block.accesses[0] = first.with_fewer_instructions(INSTRUCTIONS_SATURATED);
    } else if !block.cut {
        // What the header counts beyond the accesses came after the last one (then the next block's
        // first access counts it too, and must not), or the number of an access was too small for
        // it.
        let counted = state.instructions.saturating_add(counted);
        more = total.saturating_sub(counted);
        block.accesses[0] = first.with_fewer_instructions(counted.saturating_sub(total));
    }
    state.begun = true;
    state.instructions = total;
    state.accesses += block.accesses.len() as u64;
    recorder.accesses(thread, &block.accesses, more)
}

/// The pages of an event [`COPY`], and whether they were stored to.
fn copied(event: &[u8]) -> Result<Vec<(Vpn, bool)>, String> {
    let (store, start, bytes) = (u32_at(event, 12) & 1 == 1, u64_at(event, 16), u64_at(event, 24));
    if bytes == 0 || bytes > COPY_BYTES_MAX || start >= ADDRESS_END - bytes {
        return Err(format!("a copy of {bytes} bytes at {start:#x}, which no system call makes"));
    }
    let (first, last) = (Va(start).page(), Va(start + bytes - 1).page());
    Ok((first.0..=last.0).map(|page| (Vpn(page), store)).collect())
}

/// Says how many child processes began.
fn take_events<S: Sink>(
    block: &Block,
    thread: ThreadId,
    state: &Thread,
    recorder: &mut S,
    corrupt: &impl Fn(u64, String) -> WorkloadError,
) -> Result<u64, WorkloadError> {
    let mut children = 0;
    for (index, bytes) in block.events.chunks_exact(EVENT_BYTES).enumerate() {
        let at = block.offset + (index * EVENT_BYTES) as u64;
        let before = u64_at(bytes, 0);
        if before != state.accesses {
            let have = state.accesses;
            return Err(corrupt(
                at,
                format!(
                    "an event after {before} accesses of its thread, of which the capture has {have}: a block is missing, {REMEDY}"
                ),
            ));
        }
        let number = u32_at(bytes, 8);
        if number == COPY {
            let pages = copied(bytes).map_err(|what| corrupt(at, format!("{what}: {REMEDY}")))?;
            recorder.copies(thread, &pages)?;
            continue;
        }
        let op = EventOp::of(number)
            .ok_or_else(|| corrupt(at + 8, format!("unknown event {number}: use a newer Nestwalk, or {REMEDY}")))?;
        let event = TraceEvent {
            op,
            thread,
            flags: u32_at(bytes, 12),
            address: Va(u64_at(bytes, 16)),
            bytes: u64_at(bytes, 24),
            argument: u64_at(bytes, 32),
            result: u64_at(bytes, 40),
        };
        event.check().map_err(|what| corrupt(at, format!("{what}: {REMEDY}")))?;
        children += u64::from(event.starts_process());
        recorder.event(&event)?;
    }
    Ok(children)
}
