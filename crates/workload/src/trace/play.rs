// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace as a [`Workload`].
//!
//! A whole trace warms up for a share of its accesses and is measured for the rest; its pages are
//! populated by the faults that its accesses cause. A sampled one has its own phases: skipped
//! stretches populate (first touches and events), each window warms up and is measured.

use std::path::Path;
use std::sync::Arc;

use nestwalk_mem::{PageCount, Reuse, Va, VpnRange};

use super::format::RecordKind;
use super::log::LogStep;
use super::metadata::{Metadata, Vma};
use super::reader::{Decoder, Trace};
use crate::stream::{Batch, MemoryEvent, Phase, Step, ThreadId, Workload, WorkloadError, WorkloadFacts};

/// How to play a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlayOptions {
    /// Of a whole trace: the share of its accesses that warms up, in thousandths.
    pub warm_permille: u16,
}

impl Default for PlayOptions {
    fn default() -> Self {
        Self { warm_permille: 200 }
    }
}

/// A trace that is being played.
#[derive(Debug)]
pub struct TraceWorkload {
    trace: Trace,
    decoder: Decoder,
    /// The next of the mappings that are implied.
    implied: usize,
    /// The next record.
    record: usize,
    current: Current,
    /// Of a whole trace: the phase that begins now.
    phase: Option<Phase>,
    /// Of a whole trace: accesses that are still to warm up.
    warm_left: Option<u64>,
    /// Accesses of the whole program up to here, as far as the last mark and what came after it
    /// say.
    program_accesses: u64,
    reuse: Option<Arc<Reuse>>,
}

/// What is left of the record that has begun.
#[derive(Clone, Copy, Debug)]
enum Current {
    Nothing,
    /// Accesses of a thread.
    Accesses {
        thread: ThreadId,
        items: u32,
        instructions: Spread,
        absorbed_stores: Spread,
        /// Accesses that the record stands for, and those of them that have been yielded.
        represented: u64,
        done: u64,
    },
    Log,
}

/// What is known of a record as a whole only, spread evenly over its accesses; differences of
/// prefixes, so that none is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    total: u64,
    accounted: u64,
}

impl Spread {
    pub(super) const fn new(total: u64) -> Self {
        Self { total, accounted: 0 }
    }

    /// The share of what comes up to the `done`-th of `all` accesses.
    pub(super) fn up_to(&mut self, done: u64, all: u64) -> u64 {
        let by_now = (u128::from(self.total) * u128::from(done) / u128::from(all)) as u64;
        by_now - std::mem::replace(&mut self.accounted, by_now)
    }
}

impl TraceWorkload {
    /// Opens the trace `path`.
    ///
    /// # Errors
    /// As for [`Trace::open`]; when more than all is to warm up.
    pub fn open(path: &Path, options: PlayOptions) -> Result<Self, WorkloadError> {
        Self::new(Trace::open(path)?, options)
    }

    /// Plays `trace`.
    ///
    /// # Errors
    /// When more than all is to warm up.
    pub fn new(trace: Trace, options: PlayOptions) -> Result<Self, WorkloadError> {
        if options.warm_permille > 1000 {
            let what = format!("warm-up of {} thousandths of a trace: at most 1000", options.warm_permille);
            return Err(WorkloadError::Parameter { name: trace.metadata().program.clone(), what });
        }
        let has_phases = trace.records().iter().any(|record| record.kind == RecordKind::Mark);
        let warm = u128::from(represented(trace.metadata())) * u128::from(options.warm_permille) / 1000;
        let first = if warm == 0 { Phase::Measure } else { Phase::Warm };
        Ok(Self {
            decoder: Decoder::new(&trace)?,
            reuse: trace.metadata().reuse.clone().map(Arc::new),
            trace,
            implied: 0,
            record: 0,
            current: Current::Nothing,
            phase: (!has_phases).then_some(first),
            warm_left: Some(warm as u64).filter(|&warm| warm > 0 && !has_phases),
            program_accesses: 0,
        })
    }

    /// The trace.
    pub const fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Begins the next record; `None` at the end. A mark is a step by itself.
    fn begin_record(&mut self) -> Result<Option<Step>, WorkloadError> {
        let Some(record) = self.trace.records().get(self.record) else {
            self.program_accesses = self.trace.metadata().program_accesses.max(self.program_accesses);
            return Ok(Some(Step::End));
        };
        self.record += 1;
        match record.kind {
            RecordKind::Accesses | RecordKind::Filtered => {
                self.decoder.begin(&self.trace, record)?;
                self.current = Current::Accesses {
                    thread: record.thread,
                    items: record.items,
                    instructions: Spread::new(record.instructions),
                    absorbed_stores: Spread::new(record.absorbed_stores),
                    represented: record.represented(),
                    done: 0,
                };
            }
            RecordKind::Log => {
                self.decoder.begin_log(&self.trace, record)?;
                self.current = Current::Log;
            }
            _ => {
                let mark = self.decoder.mark(&self.trace, record)?;
                self.program_accesses = mark.access;
                return Ok(Some(Step::Phase(mark.phase)));
            }
        }
        Ok(None)
    }

    fn accesses(&mut self, batch: &mut Batch) -> Result<Option<Step>, WorkloadError> {
        let Current::Accesses { thread, items, instructions, absorbed_stores, represented, done } = &mut self.current
        else {
            return Ok(None);
        };
        // As many as probably stand for what is left to warm up: a filtered stretch comes near its
        // end in smaller and smaller steps.
        let standing_for = |left: u64| (u128::from(left) * u128::from(*items) / u128::from(*represented)).max(1) as u64;
        let most = self.warm_left.map_or(u64::MAX, standing_for).min(Batch::ACCESSES_MAX as u64) as usize;
        let count = self.decoder.fill(&self.trace, &mut batch.accesses, most)?;
        self.decoder.fill_gaps(&mut batch.absorbed, count);
        batch.reuse.clone_from(&self.reuse);
        batch.thread = *thread;
        let played = batch.represented();
        self.program_accesses += played;
        *done += played;
        batch.instructions = instructions.up_to(*done, *represented);
        batch.absorbed_stores = absorbed_stores.up_to(*done, *represented);
        if self.decoder.left() == 0 {
            self.current = Current::Nothing;
        }
        if let Some(left) = &mut self.warm_left {
            *left = left.saturating_sub(played);
            if *left == 0 {
                self.warm_left = None;
                self.phase = Some(Phase::Measure);
            }
        }
        Ok(Some(Step::Accesses))
    }

    /// The next event of the log, or as many touches of one thread as there are and fit. `None`
    /// once it is used up.
    fn log(&mut self, batch: &mut Batch) -> Result<Option<Step>, WorkloadError> {
        loop {
            match self.decoder.log_step(&self.trace, &mut batch.touches, Batch::ACCESSES_MAX)? {
                LogStep::Touches(thread) => {
                    batch.thread = thread;
                    return Ok(Some(Step::Touches));
                }
                LogStep::Event(event) => {
                    if let Some(meaning) = event.meaning() {
                        batch.thread = event.thread;
                        return Ok(Some(Step::Event(meaning)));
                    }
                }
                LogStep::End => {
                    self.current = Current::Nothing;
                    return Ok(None);
                }
            }
        }
    }
}

/// Accesses of the program that a trace stands for.
pub(super) const fn represented(metadata: &Metadata) -> u64 {
    metadata.accesses.saturating_add(metadata.absorbed)
}

/// The event that makes an implied mapping; `None` if the trace's metadata is nonsense.
pub(super) fn implied_mapping(vma: &Vma) -> Option<MemoryEvent> {
    if vma.start >= vma.end || vma.end > super::format::ADDRESS_END {
        return None;
    }
    let range = VpnRange::new(Va(vma.start).page(), PageCount::covering(vma.end - (vma.start >> 12 << 12)));
    Some(MemoryEvent::Mmap { range, writable: vma.writable, anonymous: vma.anonymous })
}

impl Workload for TraceWorkload {
    fn facts(&self) -> WorkloadFacts {
        let metadata = self.trace.metadata();
        WorkloadFacts {
            name: metadata.program.clone(),
            footprint: PageCount(metadata.footprint_pages),
            accesses: Some(represented(metadata)),
            threads: u16::try_from(metadata.threads).unwrap_or(u16::MAX),
            warms_until_told: false,
            kernel_half: metadata.kernel_half,
            tells_dependences: false,
            modelled: metadata.sampling.as_ref().and_then(|sampling| sampling.modelled.clone()),
        }
    }

    fn program_accesses(&self) -> Option<u64> {
        Some(self.program_accesses)
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        batch.clear();
        while let Some(vma) = self.trace.metadata().implied.get(self.implied) {
            self.implied += 1;
            if let Some(event) = implied_mapping(vma) {
                return Ok(Step::Event(event));
            }
        }
        if let Some(phase) = self.phase.take() {
            return Ok(Step::Phase(phase));
        }
        loop {
            let step = match self.current {
                Current::Nothing => self.begin_record()?,
                Current::Accesses { .. } => self.accesses(batch)?,
                Current::Log => self.log(batch)?,
            };
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }
}
