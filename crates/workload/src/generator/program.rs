// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a generator states of its program, and the driver that makes a [`Workload`] of it.

use nestwalk_mem::{Access, PageCount, Vpn};

use super::config::Common;
use super::memory::Region;
use crate::stream::{Batch, MemoryEvent, Phase, Step, ThreadId, Workload, WorkloadError, WorkloadFacts};

/// Accesses that a thread of several makes before the next one's turn.
pub(super) const ACCESS_TURN: usize = 4096;
/// Pages that a thread of several touches first before the next one's turn. Below a per-CPU batch
/// of the kernel's allocator (63 frames) the length of turns makes no difference to which frames a
/// thread gets.
pub(super) const TOUCH_TURN: usize = 32;
/// Of so many requests that fill a server, the first [`FILL_DETAILED`] are made in full.
const FILL_PERIOD: u64 = 1024;
/// See [`FILL_PERIOD`].
const FILL_DETAILED: u64 = 16;
/// Requests in a batch of those that are not.
const FILL_BATCH: u64 = 64;

/// What a thread of so many does before the next one's turn: all that a batch holds if it is alone,
/// else `several`.
pub(super) const fn turn(threads: u16, several: usize) -> usize {
    if threads == 1 { Batch::ACCESSES_MAX } else { several }
}

/// A made-up program.
pub(super) trait Program: Send {
    /// Its name.
    const NAME: &'static str;

    /// Whether its accesses say what they wait for.
    const TELLS_DEPENDENCES: bool = false;

    /// Its mappings, in the order in which it makes them.
    fn regions(&self) -> Vec<Region>;

    /// Pages that it touches before its steady phase begins. The steady phase touches no others.
    fn footprint(&self) -> PageCount;

    /// Appends the next first touches of `thread` until there are `most`; nothing when it has
    /// touched all it has to.
    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize);

    /// Appends accesses of `thread` until there are `most`, and says how many instructions it
    /// executed for them.
    fn fill(&mut self, thread: u16, accesses: &mut Vec<Access>, most: usize) -> u64;

    /// The same, with the places where its requests end, if it is a server that tells them apart.
    fn fill_requests(&mut self, thread: u16, batch: &mut Batch, most: usize) {
        batch.instructions = self.fill(thread, &mut batch.accesses, most);
    }

    /// Requests by which it fills its memory, in the place of first touches and a steady phase.
    fn filling(&self) -> u64 {
        0
    }

    /// Appends the pages that the next of those requests uses, at least one, and says how many
    /// instructions it executes.
    fn touch_request(&mut self, _touches: &mut Vec<(Vpn, bool)>) -> u64 {
        0
    }

    /// Appends accesses of the next of those requests until there are `most` or it ends. Its
    /// instructions, and whether it has ended.
    fn serve(&mut self, _accesses: &mut Vec<Access>, _most: usize) -> (u64, bool) {
        (0, true)
    }
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Begin,
    Map {
        region: usize,
    },
    /// `done` threads in a row, up to the next one, had nothing to touch.
    Touch {
        thread: u16,
        done: u16,
    },
    BeginAccesses {
        phase: Phase,
    },
    Accesses {
        phase: Phase,
        left: u64,
    },
    BeginFilling,
    /// So many requests are done.
    Fill {
        done: u64,
    },
    End,
}

/// Runs a program through its phases.
pub(super) struct Driver<P> {
    program: P,
    common: Common,
    stage: Stage,
    /// Whose accesses come next.
    thread: u16,
}

impl<P: Program> Driver<P> {
    /// # Errors
    /// If a common parameter is impossible.
    pub(super) fn new(common: Common, program: P) -> Result<Self, WorkloadError> {
        common.check(P::NAME)?;
        Ok(Self { program, common, stage: Stage::Begin, thread: 0 })
    }

    fn next_thread(&self, thread: u16) -> u16 {
        (thread + 1) % self.common.threads
    }

    fn map(&mut self, region: usize) -> Step {
        let regions = self.program.regions();
        let last = region + 1 == regions.len();
        self.stage = if last { Stage::Touch { thread: 0, done: 0 } } else { Stage::Map { region: region + 1 } };
        Step::Event(MemoryEvent::Mmap { range: regions[region].pages, writable: true, anonymous: true })
    }

    /// One turn of first touches; `None` when all threads are done.
    fn touch(&mut self, mut thread: u16, mut done: u16, batch: &mut Batch) -> Option<Step> {
        while done < self.common.threads {
            let most = turn(self.common.threads, TOUCH_TURN);
            self.program.touch(thread, &mut batch.touches, most);
            batch.thread = ThreadId(thread);
            thread = self.next_thread(thread);
            if !batch.touches.is_empty() {
                self.stage = Stage::Touch { thread, done: 0 };
                return Some(Step::Touches);
            }
            done += 1;
        }
        let fills = self.program.filling() > 0;
        self.stage = if fills { Stage::BeginFilling } else { Stage::BeginAccesses { phase: Phase::Warm } };
        None
    }

    /// The next requests that fill a server, or a part of one.
    fn serve(&mut self, done: u64, batch: &mut Batch) -> Step {
        let all = self.program.filling();
        if done >= all {
            self.stage = Stage::End;
            return Step::End;
        }
        batch.thread = ThreadId(0);
        let place = done % FILL_PERIOD;
        if place < FILL_DETAILED {
            let (instructions, ended) = self.program.serve(&mut batch.accesses, Batch::ACCESSES_MAX);
            batch.instructions = instructions;
            batch.requests.extend(ended.then_some(batch.accesses.len() as u64));
            self.stage = Stage::Fill { done: done + u64::from(ended) };
            return Step::Accesses;
        }
        let count = FILL_BATCH.min(FILL_PERIOD - place).min(all - done);
        for _ in 0..count {
            batch.instructions += self.program.touch_request(&mut batch.touches);
            batch.requests.push(batch.touches.len() as u64);
        }
        self.stage = Stage::Fill { done: done + count };
        Step::Touches
    }

    fn begin(&mut self, phase: Phase) -> Option<Step> {
        let warm = self.common.warm_accesses.unwrap_or(u64::MAX);
        let left = if phase == Phase::Warm { warm } else { self.common.measured_accesses };
        self.stage = Stage::Accesses { phase, left };
        (left > 0).then_some(Step::Phase(phase))
    }

    fn accesses(&mut self, phase: Phase, left: u64, batch: &mut Batch) -> Option<Step> {
        if left == 0 {
            let warm = phase == Phase::Warm;
            self.stage = if warm { Stage::BeginAccesses { phase: Phase::Measure } } else { Stage::End };
            return None;
        }
        let most = left.min(turn(self.common.threads, ACCESS_TURN) as u64);
        batch.thread = ThreadId(self.thread);
        self.program.fill_requests(self.thread, batch, most as usize);
        debug_assert_eq!(batch.accesses.len() as u64, most);
        self.thread = self.next_thread(self.thread);
        self.stage = Stage::Accesses { phase, left: left - most };
        Some(Step::Accesses)
    }
}

impl<P: Program> Workload for Driver<P> {
    fn facts(&self) -> WorkloadFacts {
        let fills = self.program.filling() > 0;
        WorkloadFacts {
            name: P::NAME.into(),
            footprint: self.program.footprint(),
            accesses: (!fills).then(|| self.common.warm_accesses.unwrap_or(0) + self.common.measured_accesses),
            warms_until_told: !fills && self.common.warm_accesses.is_none(),
            kernel_half: false,
            tells_dependences: P::TELLS_DEPENDENCES,
            modelled: None,
            threads: self.common.threads,
        }
    }

    fn end_warm_up(&mut self) {
        if self.common.warm_accesses.is_none() && matches!(self.stage, Stage::Accesses { phase: Phase::Warm, .. }) {
            self.stage = Stage::BeginAccesses { phase: Phase::Measure };
        }
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        batch.clear();
        loop {
            let step = match self.stage {
                Stage::Begin => {
                    self.stage = Stage::Map { region: 0 };
                    Some(Step::Phase(Phase::Populate))
                }
                Stage::Map { region } => Some(self.map(region)),
                Stage::Touch { thread, done } => self.touch(thread, done, batch),
                Stage::BeginAccesses { phase } => self.begin(phase),
                Stage::Accesses { phase, left } => self.accesses(phase, left, batch),
                Stage::BeginFilling => {
                    self.stage = Stage::Fill { done: 0 };
                    Some(Step::Phase(Phase::Measure))
                }
                Stage::Fill { done } => Some(self.serve(done, batch)),
                Stage::End => Some(Step::End),
            };
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }
}
