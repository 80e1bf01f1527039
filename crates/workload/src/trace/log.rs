// SPDX-License-Identifier: MIT OR Apache-2.0
//! The payload of a log record: memory events, and first touches of pages whose accesses were left out, in order.
//!
//! Touches come in runs of consecutive pages. Columns of like things lie together, because zstd does well on them:
//! operations, starts of runs, lengths of runs, and the words of events.

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Va, Vpn};

use super::event::{EventOp, TraceEvent};
use super::format::{ADDRESS_END, Fault, ITEMS_MAX, u32_at};
use super::varint::{self, VarintReader};
use crate::stream::ThreadId;

/// Pages that a thread touches one after another, each the neighbour of the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TouchRun {
    /// Who.
    pub thread: ThreadId,
    /// The page touched first.
    pub first: Vpn,
    /// How many pages.
    pub pages: u32,
    /// Whether they go towards lower addresses.
    pub descending: bool,
    /// Whether these are the pages' first stores (otherwise loads).
    pub store: bool,
}

impl TouchRun {
    /// The `i`-th page.
    #[inline]
    pub fn page(&self, i: u32) -> Vpn {
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

/// One entry of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogEntry {
    /// First touches.
    Touches(TouchRun),
    /// A memory event.
    Event(TraceEvent),
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

/// Reads a payload of `items` touches and events into `entries` (cleared first).
///
/// # Errors
/// Says what is wrong with it, if anything is. Memory is bounded by the payload's length.
pub fn decode(plain: &[u8], items: u32, entries: &mut Vec<LogEntry>) -> Result<(), Fault> {
    entries.clear();
    let [ops, starts, lengths, words] = columns(plain)?;
    let mut state = LogReader {
        starts: VarintReader::new(starts, 0),
        lengths: VarintReader::new(lengths, 0),
        words: VarintReader::new(words, 0),
        thread: ThreadId(0),
        next_page: 0,
        next_address: 0,
    };
    let mut left = items;
    for &op in ops {
        let Some(entry) = state.entry(op)? else { continue };
        let size = match entry {
            LogEntry::Touches(run) => run.pages,
            LogEntry::Event(_) => 1,
        };
        left = left.checked_sub(size).ok_or("a log of more items than its header says")?;
        entries.push(entry);
    }
    if left != 0 || !state.starts.is_at_end() || !state.lengths.is_at_end() || !state.words.is_at_end() {
        return Err("a log of fewer items than its header says".into());
    }
    Ok(())
}

fn columns(plain: &[u8]) -> Result<[&[u8]; 4], Fault> {
    let (prefix, mut rest) = plain.split_at_checked(PREFIX_BYTES).ok_or("a log without its column lengths")?;
    let mut columns = [&[][..]; 4];
    for (i, column) in columns.iter_mut().enumerate() {
        (*column, rest) =
            rest.split_at_checked(u32_at(prefix, i * 4) as usize).ok_or("a log column longer than the log")?;
    }
    if rest.is_empty() { Ok(columns) } else { Err("a log longer than its columns".into()) }
}

struct LogReader<'a> {
    starts: VarintReader<'a>,
    lengths: VarintReader<'a>,
    words: VarintReader<'a>,
    thread: ThreadId,
    next_page: u64,
    next_address: u64,
}

impl LogReader<'_> {
    fn entry(&mut self, op: u8) -> Result<Option<LogEntry>, Fault> {
        match op & 3 {
            OP_THREAD => {
                let thread = self.words.unsigned().and_then(|thread| u16::try_from(thread).ok());
                self.thread = ThreadId(thread.ok_or("a log with an impossible thread")?);
                Ok(None)
            }
            OP_EVENT => self.event().map(|event| Some(LogEntry::Event(event))),
            OP_TOUCHES => self.run(op).map(|run| Some(LogEntry::Touches(run))),
            _ => Err(format!("a log with the unknown operation {op}")),
        }
    }

    fn run(&mut self, op: u8) -> Result<TouchRun, Fault> {
        let (Some(step), Some(more)) = (self.starts.signed(), self.lengths.unsigned()) else {
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
        let run = TouchRun {
            thread: self.thread,
            first: Vpn(first),
            pages: more as u32 + 1,
            descending,
            store: op & OP_STORE != 0,
        };
        self.next_page = if descending { run.last().0.wrapping_sub(1) } else { run.last().0 + 1 };
        Ok(run)
    }

    fn event(&mut self) -> Result<TraceEvent, Fault> {
        let event = self.event_words().ok_or("a log that ends inside an event, or has an unknown one")?;
        event.check()?;
        Ok(event)
    }

    fn event_words(&mut self) -> Option<TraceEvent> {
        let op = EventOp::of(u32::try_from(self.words.unsigned()?).ok()?)?;
        let flags = u32::try_from(self.words.unsigned()?).ok()?;
        let start = self.next_address.wrapping_add(self.words.signed()? as u64);
        let bytes = self.words.unsigned()?;
        let argument = self.words.unsigned()?;
        let result = start.wrapping_add(self.words.signed()? as u64);
        self.next_address = start.wrapping_add(bytes);
        Some(TraceEvent { op, thread: self.thread, flags, address: Va(start), bytes, argument, result })
    }
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

    fn expand(entries: &[LogEntry]) -> Vec<String> {
        entries
            .iter()
            .flat_map(|entry| match *entry {
                LogEntry::Touches(run) => {
                    (0..run.pages).map(|i| format!("{:?} {:?} {}", run.thread, run.page(i), run.store)).collect()
                }
                LogEntry::Event(event) => vec![format!("{event:?}")],
            })
            .collect()
    }

    proptest! {
        #[test]
        fn a_log_round_trips_in_order(items in prop::collection::vec(item(), 0..200)) {
            let mut builder = LogBuilder::default();
            let mut plain = Vec::new();
            let mut entries = Vec::new();
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
                decode(&plain, items.len() as u32, &mut entries).unwrap();
                prop_assert_eq!(expand(&entries), wanted);
                prop_assert!(decode(&plain, items.len() as u32 + 1, &mut entries).is_err());
            }
        }

        #[test]
        fn no_bytes_make_it_panic(plain in prop::collection::vec(any::<u8>(), 0..200), items in 0u32..1000) {
            let _ = decode(&plain, items, &mut Vec::new());
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
