// SPDX-License-Identifier: MIT OR Apache-2.0
//! The payload of a log record: memory events, and first touches of pages whose accesses were left
//! out, in order.
//!
//! Touches come in runs of consecutive pages. Columns of like things lie together, because zstd
//! does well on them: operations, starts of runs, lengths of runs, and the words of events.

use std::mem::take;
use std::ops::Range;

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Va, Vpn};

use super::event::{EventOp, TraceEvent};
use super::format::{ADDRESS_END, Fault, ITEMS_MAX, u32_at};
use super::varint::{self, VarintReader};
use crate::stream::ThreadId;

/// Pages that a thread touches one after another, each the neighbour of the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TouchRun {
    /// Who.
    thread: ThreadId,
    /// The page touched first.
    first: Vpn,
    /// How many pages.
    pages: u32,
    /// Whether they go towards lower addresses.
    descending: bool,
    /// Whether these are the pages' first stores (otherwise loads).
    store: bool,
}

impl TouchRun {
    /// The `i`-th page.
    #[inline]
    fn page(&self, i: u32) -> Vpn {
        if self.descending { Vpn(self.first.0 - u64::from(i)) } else { self.first + u64::from(i) }
    }

    fn last(&self) -> Vpn {
        self.page(self.pages - 1)
    }

    /// Takes `page` in as the next one, if it is.
    fn extend(&mut self, thread: ThreadId, page: Vpn, store: bool) -> bool {
        let last = self.last();
        let up = page.0 == last.0 + 1 && (self.pages == 1 || !self.descending);
        let down = page.0 + 1 == last.0 && (self.pages == 1 || self.descending);
        if thread != self.thread || store != self.store || !(up || down) {
            return false;
        }
        self.descending = down;
        self.pages += 1;
        true
    }
}

/// What comes next in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogStep {
    /// First touches by this thread.
    Touches(ThreadId),
    /// A memory event.
    Event(TraceEvent),
    /// Nothing.
    End,
}

const OP_THREAD: u8 = 0;
const OP_EVENT: u8 = 1;
const OP_TOUCHES: u8 = 2;
const OP_STORE: u8 = 4;
const OP_DESCENDING: u8 = 8;
/// Bytes before the columns: their four lengths.
const PREFIX_BYTES: usize = 16;

/// Builds a log.
#[derive(Debug, Default)]
pub struct LogBuilder {
    run: Option<TouchRun>,
    items: usize,
    thread: ThreadId,
    /// Where the next run would begin if it went on where the last one ended.
    next_page: u64,
    next_address: u64,
    ops: Vec<u8>,
    starts: Vec<u8>,
    lengths: Vec<u8>,
    words: Vec<u8>,
}

impl LogBuilder {
    /// How many touches and events it holds.
    pub const fn items(&self) -> usize {
        self.items
    }

    /// Whether it can take no more.
    pub const fn is_full(&self) -> bool {
        self.items >= ITEMS_MAX
    }

    /// Notes a first touch.
    #[inline]
    pub fn touch(&mut self, thread: ThreadId, page: Vpn, store: bool) {
        self.items += 1;
        if self.run.as_mut().is_some_and(|run| run.extend(thread, page, store)) {
            return;
        }
        self.put_run();
        self.run = Some(TouchRun { thread, first: page, pages: 1, descending: false, store });
    }

    /// Notes an event.
    pub fn event(&mut self, event: &TraceEvent) {
        self.items += 1;
        self.put_run();
        self.put_thread(event.thread);
        self.ops.push(OP_EVENT);
        let start = event.address.0;
        varint::put(&mut self.words, event.op as u64);
        varint::put(&mut self.words, u64::from(event.flags));
        varint::put_signed(&mut self.words, start.wrapping_sub(self.next_address) as i64);
        varint::put(&mut self.words, event.bytes);
        varint::put(&mut self.words, event.argument);
        varint::put_signed(&mut self.words, event.result.wrapping_sub(start) as i64);
        self.next_address = start.wrapping_add(event.bytes);
    }

    /// Writes the payload to `out` (cleared first) and begins anew.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.put_run();
        out.clear();
        let columns = [&mut self.ops, &mut self.starts, &mut self.lengths, &mut self.words];
        for column in &columns {
            out.extend_from_slice(&(column.len() as u32).to_le_bytes());
        }
        for column in columns {
            out.append(column);
        }
        self.items = 0;
        self.thread = ThreadId(0);
        self.next_page = 0;
        self.next_address = 0;
    }

    fn put_thread(&mut self, thread: ThreadId) {
        if thread != self.thread {
            self.thread = thread;
            self.ops.push(OP_THREAD);
            varint::put(&mut self.words, u64::from(thread.0));
        }
    }

    fn put_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        self.put_thread(run.thread);
        let store = if run.store { OP_STORE } else { 0 };
        let descending = if run.descending { OP_DESCENDING } else { 0 };
        self.ops.push(OP_TOUCHES | store | descending);
        varint::put_signed(&mut self.starts, run.first.0.wrapping_sub(self.next_page) as i64);
        varint::put(&mut self.lengths, u64::from(run.pages - 1));
        self.next_page = if run.descending { run.last().0.wrapping_sub(1) } else { run.last().0 + 1 };
    }
}

/// Decodes a payload in pieces. Keeps its room from log to log.
#[derive(Debug, Default)]
pub struct LogDecoder {
    /// The payload that is being decoded; put there by the reader.
    pub(super) plain: Vec<u8>,
    /// What is left of each column, as places in `plain`.
    ops: Range<usize>,
    starts: Range<usize>,
    lengths: Range<usize>,
    words: Range<usize>,
    /// Touches and events that are still to come.
    items: u32,
    thread: ThreadId,
    next_page: u64,
    next_address: u64,
    /// Of a run that did not fit into a piece.
    rest: Option<TouchRun>,
}

impl LogDecoder {
    /// Begins with the payload in `self.plain`, which has `items` touches and events.
    ///
    /// # Errors
    /// Says what is wrong with it, if anything is.
    pub fn begin(&mut self, items: u32) -> Result<(), Fault> {
        let [ops, starts, lengths, words] = columns(&self.plain)?;
        *self = Self { plain: take(&mut self.plain), ops, starts, lengths, words, items, ..Self::default() };
        Ok(())
    }

    /// Goes on to the next step. Touches (pages, and whether they are stores) are appended to
    /// `out`, at most `most` (which is not 0) at a time. At the end, checks that nothing is left
    /// over.
    ///
    /// # Errors
    /// Says what is wrong with the payload, if anything is.
    pub fn step(&mut self, out: &mut Vec<(Vpn, bool)>, most: usize) -> Result<LogStep, Fault> {
        loop {
            let thread = self.thread;
            if self.touches(out, most)? > 0 {
                return Ok(LogStep::Touches(thread));
            }
            let Some(at) = self.ops.next() else { break };
            match self.plain[at] & 3 {
                OP_EVENT => return self.event().map(LogStep::Event),
                OP_THREAD => self.change_thread()?,
                _ => return Err(format!("a log with the unknown operation {}", self.plain[at])),
            }
        }
        if self.items != 0 || !self.starts.is_empty() || !self.lengths.is_empty() || !self.words.is_empty() {
            return Err("a log of fewer items than its header says".into());
        }
        Ok(LogStep::End)
    }

    /// Appends the touches before the next operation of another kind, up to `most`, and says how
    /// many there were.
    fn touches(&mut self, out: &mut Vec<(Vpn, bool)>, most: usize) -> Result<usize, Fault> {
        let mut room = most;
        if let Some(run) = self.rest.take() {
            self.put(run, out, &mut room);
        }
        while room > 0
            && let Some(&op) = self.plain[..self.ops.end].get(self.ops.start)
            && op & 3 == OP_TOUCHES
        {
            self.ops.start += 1;
            let run = self.run(op)?;
            self.put(run, out, &mut room);
        }
        Ok(most - room)
    }

    /// Appends as many pages of `run` as there is room for and keeps the rest.
    #[inline]
    fn put(&mut self, run: TouchRun, out: &mut Vec<(Vpn, bool)>, room: &mut usize) {
        let pages = run.pages.min(u32::try_from(*room).unwrap_or(u32::MAX));
        out.extend((0..pages).map(|i| (run.page(i), run.store)));
        *room -= pages as usize;
        if pages < run.pages {
            self.rest = Some(TouchRun { first: run.page(pages), pages: run.pages - pages, ..run });
        }
    }

    fn change_thread(&mut self) -> Result<(), Fault> {
        let thread = self.word().and_then(|thread| u16::try_from(thread).ok());
        self.thread = ThreadId(thread.ok_or("a log with an impossible thread")?);
        Ok(())
    }

    #[inline]
    fn run(&mut self, op: u8) -> Result<TouchRun, Fault> {
        let (step, more) = (signed(&self.plain, &mut self.starts), unsigned(&self.plain, &mut self.lengths));
        let (Some(step), Some(more)) = (step, more) else {
            return Err("a log that ends inside a run of touches".into());
        };
        let first = self.next_page.wrapping_add(step as u64);
        let descending = op & OP_DESCENDING != 0;
        let pages_end = ADDRESS_END >> PAGE_SHIFT;
        let fits = more < ITEMS_MAX as u64
            && first < pages_end
            && if descending { more <= first } else { first + more < pages_end };
        if !fits {
            return Err(format!("a log with an impossible run of {more} pages after page {first:#x}"));
        }
        let pages = more as u32 + 1;
        self.count(pages)?;
        let run = TouchRun { thread: self.thread, first: Vpn(first), pages, descending, store: op & OP_STORE != 0 };
        self.next_page = if descending { run.last().0.wrapping_sub(1) } else { run.last().0 + 1 };
        Ok(run)
    }

    fn event(&mut self) -> Result<TraceEvent, Fault> {
        let event = self.event_words().ok_or("a log that ends inside an event, or has an unknown one")?;
        event.check()?;
        self.count(1)?;
        Ok(event)
    }

    fn event_words(&mut self) -> Option<TraceEvent> {
        let op = EventOp::of(u32::try_from(self.word()?).ok()?)?;
        let flags = u32::try_from(self.word()?).ok()?;
        let start = self.next_address.wrapping_add(self.signed_word()? as u64);
        let bytes = self.word()?;
        let argument = self.word()?;
        let result = start.wrapping_add(self.signed_word()? as u64);
        self.next_address = start.wrapping_add(bytes);
        Some(TraceEvent { op, thread: self.thread, flags, address: Va(start), bytes, argument, result })
    }

    fn word(&mut self) -> Option<u64> {
        unsigned(&self.plain, &mut self.words)
    }

    fn signed_word(&mut self) -> Option<i64> {
        signed(&self.plain, &mut self.words)
    }

    /// Takes `items` off those that the header promises.
    fn count(&mut self, items: u32) -> Result<(), Fault> {
        self.items = self.items.checked_sub(items).ok_or("a log of more items than its header says")?;
        Ok(())
    }
}

/// Where the columns of operations, starts, lengths and words are in `plain`.
fn columns(plain: &[u8]) -> Result<[Range<usize>; 4], Fault> {
    let prefix = plain.get(..PREFIX_BYTES).ok_or("a log without its column lengths")?;
    let mut columns = [const { 0..0 }; 4];
    let mut at = PREFIX_BYTES;
    for (i, column) in columns.iter_mut().enumerate() {
        *column = at..at + u32_at(prefix, i * 4) as usize;
        at = column.end;
        if at > plain.len() {
            return Err("a log column longer than the log".into());
        }
    }
    if at == plain.len() { Ok(columns) } else { Err("a log longer than its columns".into()) }
}

/// Takes the next integer off a column.
#[inline]
fn unsigned(plain: &[u8], column: &mut Range<usize>) -> Option<u64> {
    let mut reader = VarintReader::new(&plain[..column.end], column.start);
    let value = reader.unsigned()?;
    column.start = reader.position();
    Some(value)
}

/// Takes the next signed integer off a column.
#[inline]
fn signed(plain: &[u8], column: &mut Range<usize>) -> Option<i64> {
    unsigned(plain, column).map(varint::unzigzag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Item {
        Touch(ThreadId, Vpn, bool),
        Event(TraceEvent),
    }

    fn item() -> impl Strategy<Value = Item> {
        let thread = (0u16..3).prop_map(ThreadId);
        let touch = (thread.clone(), 0u64..40, any::<bool>()).prop_map(|(t, p, s)| Item::Touch(t, Vpn(p), s));
        let event = (thread, 1u32..12, any::<u32>(), 0u64..1 << 55, 0u64..1 << 40, 0u64..1 << 40).prop_map(
            |(thread, op, flags, address, bytes, argument)| {
                let op = EventOp::of(op).unwrap();
                Item::Event(TraceEvent {
                    op,
                    thread,
                    flags,
                    address: Va(address),
                    bytes,
                    argument,
                    result: address / 2,
                })
            },
        );
        prop_oneof![4 => touch, 1 => event]
    }

    /// A line for each touch and event, of a log that is taken in pieces.
    fn expand(plain: &[u8], items: u32, piece: usize) -> Result<Vec<String>, Fault> {
        let mut decoder = LogDecoder { plain: plain.into(), ..LogDecoder::default() };
        decoder.begin(items)?;
        let (mut lines, mut touches) = (Vec::new(), Vec::new());
        loop {
            match decoder.step(&mut touches, piece)? {
                LogStep::Touches(thread) => {
                    assert!((1..=piece).contains(&touches.len()));
                    lines.extend(touches.drain(..).map(|(page, store)| format!("{thread:?} {page:?} {store}")));
                }
                LogStep::Event(event) => lines.push(format!("{event:?}")),
                LogStep::End => return Ok(lines),
            }
        }
    }

    proptest! {
        #[test]
        fn a_log_round_trips_in_order(items in prop::collection::vec(item(), 0..200), piece in 1usize..9) {
            let mut builder = LogBuilder::default();
            let mut plain = Vec::new();
            for _ in 0..2 {
                let mut wanted = Vec::new();
                for item in &items {
                    match *item {
                        Item::Touch(thread, page, store) => {
                            builder.touch(thread, page, store);
                            wanted.push(format!("{thread:?} {page:?} {store}"));
                        }
                        Item::Event(event) => {
                            builder.event(&event);
                            wanted.push(format!("{event:?}"));
                        }
                    }
                }
                builder.finish(&mut plain);
                prop_assert_eq!(expand(&plain, items.len() as u32, piece), Ok(wanted));
                prop_assert!(expand(&plain, items.len() as u32 + 1, piece).is_err());
            }
        }

        #[test]
        fn no_bytes_make_it_panic(plain in prop::collection::vec(any::<u8>(), 0..200), items in 0u32..1000) {
            let _ = expand(&plain, items, 100);
        }
    }

    #[test]
    fn neighbouring_pages_cost_next_to_nothing() {
        let mut builder = LogBuilder::default();
        (0..100_000).for_each(|page| builder.touch(ThreadId(0), Vpn(1000 + page), true));
        (0..100_000).rev().for_each(|page| builder.touch(ThreadId(0), Vpn(1000 + page), true));
        let mut plain = Vec::new();
        builder.finish(&mut plain);
        assert!(plain.len() < 40, "{}", plain.len());
    }
}
