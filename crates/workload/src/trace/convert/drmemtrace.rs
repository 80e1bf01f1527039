// SPDX-License-Identifier: MIT OR Apache-2.0
//! `DynamoRIO`'s final offline traces, versions 1 to 7: packed records of 12 bytes (u16 type, u16
//! size, u64 address), as `clients/drcachesim/common/trace_entry.h` defines them. A file begins
//! with a header, which has the version, and ends with a footer; markers between them say when it
//! was, and where parts of the kernel begin and end.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use super::import::{ADDRESS_END, BATCH, Batch, Instructions, Reader, Seen};
use super::input::Input;
use crate::stream::WorkloadError;
use crate::trace::format::{u32_at, u64_at};

/// What the format is called.
pub const NAME: &str = "drmemtrace";
/// What writes it.
pub const TOOL: &str = "DynamoRIO drmemtrace";

/// Bytes of a record.
const RECORD: usize = 12;
/// Of a trace of a 32-bit program, and of one by compilers that did not pack it.
const OTHER_RECORDS: [(usize, &str); 2] = [(8, "a 32-bit program"), (16, "a version before records were packed")];
/// The newest version that is read.
const VERSION_MAX: u64 = 7;
const READ_RECORDS: usize = 1 << 16;
const REMEDY: &str = "fetch it again, or run drraw2trace again";

/// Types of records (`trace_type_t`).
mod kind {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const PREFETCH: u16 = 2;
    pub const PREFETCH_INSTRUCTION: u16 = 9;
    pub const INSTRUCTION: u16 = 10;
    pub const RETURN: u16 = 16;
    pub const BUNDLE: u16 = 17;
    pub const THREAD: u16 = 22;
    pub const PROCESS: u16 = 24;
    pub const HEADER: u16 = 25;
    pub const FOOTER: u16 = 26;
    pub const HARDWARE_PREFETCH: u16 = 27;
    pub const MARKER: u16 = 28;
    pub const NO_FETCH: u16 = 29;
    pub const MAYBE_FETCH: u16 = 30;
    pub const SYSENTER: u16 = 31;
    pub const PREFETCH_L1_NT: u16 = 32;
    pub const PREFETCH_WRITE_L3_NT: u16 = 46;
    pub const ENCODING: u16 = 47;
    pub const TAKEN: u16 = 48;
    pub const UNTAKEN: u16 = 49;
}

/// Types of markers (`trace_marker_type_t`).
mod marker {
    pub const TIMESTAMP: u16 = 2;
    pub const FILE_TYPE: u16 = 9;
    pub const VERSION: u16 = 12;
    pub const WINDOW: u16 = 14;
    pub const SYSCALL_TRACE_START: u16 = 27;
    pub const SYSCALL_TRACE_END: u16 = 28;
    pub const SWITCH_START: u16 = 34;
    pub const SWITCH_END: u16 = 35;
}

/// Bits of the file type (`offline_file_type_t`).
mod file_type {
    /// Filtered by caches: all, instructions, data.
    pub const FILTERED: u64 = 0x1 | 0x80 | 0x100;
    pub const INSTRUCTION_ONLY: u64 = 0x4;
    pub const AARCH64: u64 = 0x8;
    pub const BITS_32: u64 = 0x10 | 0x20;
}

/// Whether `head` is the beginning of such a file.
pub fn is_in(head: &[u8]) -> bool {
    let kind = |at: usize| head.get(at..at + 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let next = [RECORD, OTHER_RECORDS[0].0, OTHER_RECORDS[1].0].map(kind);
    let begins = |kind: &Option<u16>| matches!(*kind, Some(kind::THREAD..=kind::PROCESS | kind::MARKER) | None);
    head.len() >= RECORD
        && kind(0) == Some(kind::HEADER)
        && kind(2) == Some(0)
        && u32_at(head, 4) < 0x1_0000
        && next.iter().any(begins)
}

/// Reads one file: all of it, or of several processes the one that is `wanted`.
///
/// # Errors
/// When it does not begin as such a file does.
pub fn file(input: Input, wanted: Option<u64>) -> Result<Box<dyn Reader>, WorkloadError> {
    Ok(Box::new(Shard::new(input, wanted)?))
}

/// The processes of a trace.
#[derive(Clone, Debug)]
pub struct Processes {
    /// The one that is read; `None` = the trace has to be of one.
    wanted: Option<u64>,
    /// All that were named, in order.
    seen: BTreeSet<u64>,
}

impl Processes {
    /// Of a trace of which the `wanted` one is read, or which is of one.
    pub const fn new(wanted: Option<u64>) -> Self {
        Self { wanted, seen: BTreeSet::new() }
    }

    /// Process `number` is in the trace. Whether it is left out.
    ///
    /// # Errors
    /// When there was another one, and neither is wanted.
    fn leaves_out(&mut self, number: u64) -> Result<bool, String> {
        self.seen.insert(number);
        if let (None, Some(first), Some(last)) = (self.wanted, self.seen.first(), self.seen.last())
            && first != last
        {
            return Err(format!(
                "accesses of two processes ({first} and {last}), and a trace has one address space: choose one, \
                 --process {first}"
            ));
        }
        Ok(self.wanted.is_some_and(|wanted| wanted != number))
    }

    /// Adds those of another file.
    ///
    /// # Errors
    /// As [`Processes::leaves_out`].
    pub fn add(&mut self, other: &Self) -> Result<(), String> {
        other.seen.iter().try_for_each(|&number| self.leaves_out(number).map(drop))
    }

    /// The trace has ended.
    ///
    /// # Errors
    /// When the process that is wanted was not in it.
    pub fn check(&self) -> Result<(), String> {
        match self.wanted {
            Some(wanted) if !self.seen.contains(&wanted) => {
                let all: Vec<_> = self.seen.iter().map(u64::to_string).collect();
                let all = if all.is_empty() { "names none".to_owned() } else { format!("has {}", all.join(", ")) };
                Err(format!("no process {wanted} is in it, it {all}: give one of these to --process"))
            }
            _ => Ok(()),
        }
    }
}

/// What was left out, and what the files say of themselves.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Accesses by the kernel, by other processes, and prefetches.
    pub kernel: u64,
    pub others: u64,
    pub prefetches: u64,
    /// Tracing windows, if there are several.
    pub windows: u64,
    /// Bits of all files.
    pub file_type: u64,
    /// Files without a footer, and the name of one.
    pub cut: Seen,
}

impl Notes {
    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.kernel += other.kernel;
        self.others += other.others;
        self.prefetches += other.prefetches;
        self.windows = self.windows.max(other.windows);
        self.file_type |= other.file_type;
        self.cut.count += other.cut.count;
    }

    /// What a user has to know.
    pub fn warnings(&self) -> Vec<String> {
        let mut all = vec!["drmemtrace files have no memory map: mappings follow from the accesses".to_owned()];
        if self.file_type & file_type::INSTRUCTION_ONLY != 0 {
            all.push("it was made with instructions only".into());
        }
        if self.file_type & file_type::FILTERED != 0 {
            all.push(
                "it was filtered by caches while it was made: accesses that hit them are missing, and rates are wrong"
                    .into(),
            );
        }
        if self.windows > 0 {
            all.push(format!(
                "it has {} windows of the program, which follow on each other here",
                self.windows.saturating_add(1)
            ));
        }
        if self.kernel > 0 {
            all.push(format!("left out: {} accesses by the kernel (a trace is of the program)", self.kernel));
        }
        if self.others > 0 {
            all.push(format!("left out: {} accesses by other processes", self.others));
        }
        if self.prefetches > 0 {
            all.push(format!("left out: {} prefetches", self.prefetches));
        }
        if self.cut.count > 0 {
            all.push(format!("files that end without a footer, and are cut: {}", self.cut.count));
        }
        all
    }
}

/// What a step of a [`Shard`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// There may be more.
    More,
    /// The file has ended.
    End,
}

/// One file.
pub struct Shard {
    input: Input,
    buffer: Vec<u8>,
    used: usize,
    filled: usize,
    state: State,
    /// Whether a step ends with each timestamp.
    timed: bool,
}

/// What is known from the records so far.
struct State {
    thread: u32,
    processes: Processes,
    /// Threads of processes that are left out, and whether the current one is such.
    left_out: FxHashSet<u32>,
    leaves_out: bool,
    /// Address of the instruction whose accesses come.
    instruction: u64,
    instructions: Instructions,
    /// Instructions of this thread since its access before; and of the others.
    since: u64,
    others: FxHashMap<u32, u64>,
    /// Whether a part of the kernel is open.
    kernel: bool,
    /// Microseconds.
    time: u64,
    ended: bool,
    notes: Notes,
    /// What of an address says where: the rest may be a tag (`AArch64`'s top byte).
    address_mask: u64,
}

impl Shard {
    /// Reads `input`: all of it, or of several processes the one that is `wanted`.
    ///
    /// # Errors
    /// When it does not begin as such a file does.
    pub fn new(mut input: Input, wanted: Option<u64>) -> Result<Self, WorkloadError> {
        let head = input.peek(3 * RECORD)?;
        if !is_in(head) {
            let what = format!("no drmemtrace file: it has no header; {REMEDY}");
            return Err(input.corrupt(0, what));
        }
        let kind = |at: usize| head.get(at..at + 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
        if !matches!(kind(RECORD), Some(kind::THREAD..=kind::PROCESS | kind::MARKER) | None)
            && let Some((bytes, of)) = OTHER_RECORDS
                .iter()
                .find(|(bytes, _)| matches!(kind(*bytes), Some(kind::THREAD..=kind::PROCESS | kind::MARKER)))
        {
            let what = format!(
                "records of {bytes} bytes, as of {of}; those of 12 bytes are read: trace a 64-bit program anew"
            );
            return Err(input.corrupt(0, what));
        }
        let state = State {
            thread: 0,
            processes: Processes::new(wanted),
            left_out: FxHashSet::default(),
            leaves_out: false,
            instruction: 0,
            instructions: Instructions::default(),
            since: 0,
            others: FxHashMap::default(),
            kernel: false,
            time: 0,
            ended: false,
            notes: Notes::default(),
            address_mask: u64::MAX,
        };
        Ok(Self { input, buffer: vec![0; READ_RECORDS * RECORD], used: 0, filled: 0, state, timed: false })
    }

    /// The same, whose steps end with each timestamp.
    pub fn timed(self) -> Self {
        Self { timed: true, ..self }
    }

    /// When what comes next happened, in microseconds.
    pub const fn time(&self) -> u64 {
        self.state.time
    }

    /// Its processes so far.
    pub const fn processes(&self) -> &Processes {
        &self.state.processes
    }

    /// The input's errors are about this file.
    pub const fn input(&self) -> &Input {
        &self.input
    }

    /// What is to be known of it at its end.
    pub fn notes(&self) -> Notes {
        let mut notes = self.state.notes.clone();
        if !self.state.ended {
            notes.cut.at(0);
        }
        notes
    }

    /// Adds the next accesses of one thread to the empty `batch`.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn step(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        loop {
            if self.used == self.filled {
                let got = self.input.read(&mut self.buffer)?;
                (self.used, self.filled) = (0, got - got % RECORD);
                if self.filled == 0 {
                    return Ok(self.finish(batch));
                }
            }
            batch.thread = self.state.thread;
            let (taken, outcome) = self.state.take(&self.buffer[self.used..self.filled], batch, self.timed);
            self.used += taken;
            match outcome {
                Ok(true) => return Ok(Step::More),
                Ok(false) => {}
                Err(what) => {
                    // What cannot be a record does not end the buffer's whole records: the position
                    // is behind these.
                    let left = (self.filled - self.used) as u64;
                    return Err(self.input.corrupt(self.input.position().saturating_sub(left), what));
                }
            }
        }
    }

    /// Instructions behind the last access go into the last batches, a thread each.
    fn finish(&mut self, batch: &mut Batch) -> Step {
        let state = &mut self.state;
        state.others.retain(|_, since| *since > 0);
        loop {
            batch.thread = state.thread;
            batch.more += std::mem::take(&mut state.since);
            if !batch.accesses.is_empty() || batch.more > 0 {
                return Step::More;
            }
            let Some(&thread) = state.others.keys().min() else { return Step::End };
            state.thread = thread;
            state.since = state.others.remove(&thread).unwrap_or(0);
        }
    }
}

impl State {
    /// Takes records of `bytes` until the batch is to be handed over (`true`) or they end
    /// (`false`); says how many bytes it took.
    fn take(&mut self, bytes: &[u8], batch: &mut Batch, timed: bool) -> (usize, Result<bool, String>) {
        for (index, record) in bytes.chunks_exact(RECORD).enumerate() {
            let word = u32_at(record, 0);
            let (kind, size, value) = (word as u16, (word >> 16) as u16, u64_at(record, 4));
            match kind {
                kind::READ | kind::WRITE => {
                    self.access(value, size, kind == kind::WRITE, batch);
                    if batch.accesses.len() >= BATCH {
                        return ((index + 1) * RECORD, Ok(true));
                    }
                }
                kind::INSTRUCTION..=kind::RETURN | kind::SYSENTER | kind::TAKEN | kind::UNTAKEN => {
                    self.instruction = value;
                    self.since += u64::from(!(self.kernel || self.leaves_out));
                }
                kind::ENCODING => {}
                kind::THREAD if value as u32 != self.thread && !(batch.accesses.is_empty() && batch.more == 0) => {
                    return (index * RECORD, Ok(true));
                }
                kind::THREAD => self.switch(value as u32, batch),
                kind::MARKER if size == marker::TIMESTAMP => {
                    self.time = value;
                    if timed {
                        return ((index + 1) * RECORD, Ok(true));
                    }
                }
                _ => {
                    if let Err(what) = self.rare(kind, size, value) {
                        return (index * RECORD, Err(what));
                    }
                }
            }
        }
        (bytes.len(), Ok(false))
    }

    #[inline]
    fn access(&mut self, address: u64, bytes: u16, store: bool, batch: &mut Batch) {
        let address = address & self.address_mask;
        if self.leaves_out {
            self.notes.others += 1;
            return;
        }
        // Addresses above are the kernel's, whether or not markers say so.
        if self.kernel || address >= ADDRESS_END {
            self.notes.kernel += 1;
            return;
        }
        let site = self.instructions.number(self.instruction);
        batch.push(address, site, std::mem::take(&mut self.since), bytes, store);
    }

    fn switch(&mut self, thread: u32, batch: &mut Batch) {
        if thread != self.thread {
            self.others.insert(self.thread, std::mem::take(&mut self.since));
            self.since = self.others.remove(&thread).unwrap_or(0);
            self.thread = thread;
            self.leaves_out = self.left_out.contains(&thread);
        }
        batch.thread = thread;
    }

    #[cold]
    fn rare(&mut self, kind: u16, size: u16, value: u64) -> Result<(), String> {
        match kind {
            kind::MARKER => self.marker(size, value)?,
            kind::HEADER => check_version(value)?,
            kind::FOOTER => self.ended = true,
            // Follows the number of its thread.
            kind::PROCESS => {
                self.leaves_out = self.processes.leaves_out(value)?;
                if self.leaves_out {
                    self.left_out.insert(self.thread);
                } else {
                    self.left_out.remove(&self.thread);
                }
            }
            kind::PREFETCH..=kind::PREFETCH_INSTRUCTION
            | kind::HARDWARE_PREFETCH
            | kind::PREFETCH_L1_NT..=kind::PREFETCH_WRITE_L3_NT => self.notes.prefetches += 1,
            // An instruction that is executed again without being fetched (rep movs): the same one,
            // counted once.
            kind::NO_FETCH | kind::MAYBE_FETCH => self.instruction = value,
            kind::BUNDLE => self.bundle(size, value),
            _ if kind < kind::ENCODING => {}
            _ => return Err(format!("a record of unknown type {kind}: {REMEDY}")),
        }
        Ok(())
    }

    /// Up to eight instructions that follow on the one before; `value` has the lengths before each
    /// of them, a byte each.
    fn bundle(&mut self, count: u16, value: u64) {
        let count = usize::from(count).min(8);
        let lengths = value.to_le_bytes();
        let length: u64 = lengths[..count].iter().copied().map(u64::from).sum();
        self.instruction = self.instruction.wrapping_add(length);
        self.since += if self.kernel || self.leaves_out { 0 } else { count as u64 };
    }

    fn marker(&mut self, kind: u16, value: u64) -> Result<(), String> {
        match kind {
            marker::VERSION => check_version(value)?,
            marker::FILE_TYPE => {
                self.notes.file_type |= value;
                if value & file_type::BITS_32 != 0 {
                    return Err("a trace of a 32-bit program: trace a 64-bit program anew".into());
                }
                if value & file_type::AARCH64 != 0 {
                    self.address_mask = ADDRESS_END - 1;
                }
            }
            marker::WINDOW => self.notes.windows = self.notes.windows.max(value),
            marker::SYSCALL_TRACE_START | marker::SWITCH_START => self.kernel = true,
            marker::SYSCALL_TRACE_END | marker::SWITCH_END => self.kernel = false,
            _ => {}
        }
        Ok(())
    }
}

fn check_version(version: u64) -> Result<(), String> {
    if (1..=VERSION_MAX).contains(&version) {
        return Ok(());
    }
    Err(format!(
        "drmemtrace version {version}; versions 1 to {VERSION_MAX} are read: use a newer Nestwalk, or the drraw2trace of an older \
         DynamoRIO"
    ))
}

impl Reader for Shard {
    fn fill(&mut self, batch: &mut Batch) -> Result<bool, WorkloadError> {
        let more = self.step(batch)? == Step::More;
        if !more {
            self.state.processes.check().map_err(|what| self.input.corrupt(0, what))?;
        }
        Ok(more)
    }

    fn warnings(&self) -> Vec<String> {
        self.notes().warnings()
    }
}
