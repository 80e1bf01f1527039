// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw captures made up for tests, written from their description in `capture/README.md`; and
//! reading traces back.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use nestwalk_mem::Access;
use nestwalk_workload::trace::event::TraceEvent;
use nestwalk_workload::trace::format::RecordKind;
use nestwalk_workload::trace::index::Mark;
use nestwalk_workload::trace::log::LogStep;
use nestwalk_workload::trace::{ConvertOptions, ConvertReport, Decoder, Trace, convert};
use nestwalk_workload::{ThreadId, WorkloadError};

/// An access of a made-up program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    pub address: u64,
    pub site: u32,
    pub instructions: u16,
    pub size_log2: u8,
    pub store: bool,
}

impl Touch {
    pub fn load(address: u64) -> Self {
        Self { address, site: 1, instructions: 2, size_log2: 3, store: false }
    }

    pub fn store(address: u64) -> Self {
        Self { store: true, ..Self::load(address) }
    }
}

/// Op, flags, address, length, argument, result.
pub type RawEvent = (u32, u32, u64, u64, u64, u64);

/// A private anonymous mapping, as `mmap` makes it.
pub fn mmap(address: u64, bytes: u64) -> RawEvent {
    (1, 0, 0, bytes, 3 | 0x22 << 32, address)
}

pub fn munmap(address: u64, bytes: u64) -> RawEvent {
    (2, 0, address, bytes, 0, 0)
}

/// A raw capture that is being made up.
#[derive(Clone, Default)]
pub struct Capture {
    pub bytes: Vec<u8>,
    counts: Vec<(u64, u64)>,
}

impl Capture {
    fn header(&mut self, thread: u32, records: usize, size: usize, kind: u32) {
        self.bytes.extend(0x4352_5441_u32.to_le_bytes());
        self.bytes.extend(thread.to_le_bytes());
        self.bytes.extend((records as u64).to_le_bytes());
        self.bytes.extend(((records * size) as u32).to_le_bytes());
        self.bytes.extend(kind.to_le_bytes());
        let instructions = self.count(thread).1;
        self.bytes.extend(instructions.to_le_bytes());
    }

    fn count(&mut self, thread: u32) -> &mut (u64, u64) {
        let index = thread as usize;
        if self.counts.len() <= index {
            self.counts.resize(index + 1, (0, 0));
        }
        &mut self.counts[index]
    }

    pub fn accesses(&mut self, thread: u32, accesses: &[Touch]) {
        let instructions: u64 = accesses.iter().map(|a| u64::from(a.instructions)).sum();
        let count = self.count(thread);
        count.0 += accesses.len() as u64;
        count.1 += instructions;
        self.header(thread, accesses.len(), 16, 0);
        for a in accesses {
            self.bytes.extend(a.address.to_le_bytes());
            let packed = u64::from(a.site)
                | u64::from(a.instructions) << 32
                | u64::from(a.size_log2) << 48
                | u64::from(a.store) << 56;
            self.bytes.extend(packed.to_le_bytes());
        }
    }

    pub fn events(&mut self, thread: u32, events: &[RawEvent]) {
        let before = self.count(thread).0;
        self.header(thread, events.len(), 48, 1);
        for &(op, flags, address, bytes, argument, result) in events {
            self.bytes.extend(before.to_le_bytes());
            self.bytes.extend(op.to_le_bytes());
            self.bytes.extend(flags.to_le_bytes());
            for word in [address, bytes, argument, result] {
                self.bytes.extend(word.to_le_bytes());
            }
        }
    }
}

/// A directory of its own.
pub struct Place(pub tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn convert(&self, capture: &[u8], options: &ConvertOptions) -> Result<ConvertReport, WorkloadError> {
        std::fs::write(self.path("capture"), capture).unwrap();
        convert_file(&self.path("capture"), &self.path("trace.nwt"), options)
    }

    pub fn trace(&self) -> Trace {
        Trace::open(&self.path("trace.nwt")).unwrap()
    }
}

pub fn convert_file(
    source: &Path,
    destination: &Path,
    options: &ConvertOptions,
) -> Result<ConvertReport, WorkloadError> {
    convert(source, destination, options, &mut |_| ControlFlow::Continue(()))
}

/// What a trace holds, one after another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Item {
    Access(ThreadId, Access),
    Touch(ThreadId, u64, bool),
    Event(TraceEvent),
    Mark(Mark),
}

pub fn items(trace: &Trace) -> Vec<Item> {
    let mut decoder = Decoder::new(trace).unwrap();
    let mut all = Vec::new();
    for record in trace.records() {
        match record.kind {
            RecordKind::Accesses => {
                let mut accesses = Vec::new();
                decoder.begin(trace, record).unwrap();
                decoder.fill(trace, &mut accesses, usize::MAX).unwrap();
                all.extend(accesses.into_iter().map(|access| Item::Access(record.thread, access)));
            }
            RecordKind::Log => {
                decoder.begin_log(trace, record).unwrap();
                let mut touches = Vec::new();
                loop {
                    match decoder.log_step(trace, &mut touches, usize::MAX).unwrap() {
                        LogStep::Touches(thread) => {
                            let touches = touches.drain(..);
                            all.extend(touches.map(|(page, store)| Item::Touch(thread, page.0, store)));
                        }
                        LogStep::Event(event) => all.push(Item::Event(event)),
                        LogStep::End => break,
                    }
                }
            }
            _ => all.push(Item::Mark(decoder.mark(trace, record).unwrap())),
        }
    }
    all
}
