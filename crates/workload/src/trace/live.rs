// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that simulations follow while it runs: no trace between its capture and them.
//!
//! One thread reads the capture's stream and hands each piece to every [`Follower`], a workload.
//! The slowest of them decides how fast the program goes, and nothing is kept but the few pieces
//! that are on their way.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use nestwalk_mem::{Access, Gva, PageCount, Vpn};

use super::capture::{Answer, Begin, Live};
use super::convert::feed;
use super::convert::sink::Sink;
use super::event::{EventOp, TraceEvent};
use super::pages::{Novelty, PageTracker};
use super::source::SourceAccess;
use super::space::{AddressSpace, PageEffect};
use crate::stream::{Batch, MemoryEvent, Phase, Step, ThreadId, Workload, WorkloadError, WorkloadFacts};

/// Pieces on the way to a follower.
const AHEAD: usize = 16;

/// How to follow.
#[derive(Clone, PartialEq, Debug)]
pub struct LiveOptions {
    /// What to call the program.
    pub program: String,
    /// Memory that the program may touch: what it will is not known yet.
    pub footprint_bytes: u64,
    /// Cores that the simulations have; more threads share them in turn.
    pub threads: u16,
    /// Where the warm-up begins; [`Begin::Auto`]: with the first access. Before it memory is
    /// populated only.
    pub begin: Begin,
    /// End at the program's mark with this number.
    pub end_mark: Option<u64>,
}

/// What all followers get.
#[derive(Debug)]
enum Piece {
    Accesses {
        thread: ThreadId,
        accesses: Vec<SourceAccess>,
        more: u64,
    },
    Touches {
        thread: ThreadId,
        touches: Vec<(Vpn, bool)>,
    },
    Event(MemoryEvent),
    /// What follows is no longer populating.
    Begin,
}

/// Hands a stream to its followers.
#[derive(Debug)]
pub struct Broadcast {
    followers: Vec<SyncSender<Arc<Piece>>>,
    options: LiveOptions,
    threads: Vec<u32>,
    pages: PageTracker,
    space: AddressSpace,
    position: u64,
    begun: bool,
    ended: bool,
}

/// A stream's source and `count` followers of it.
pub fn broadcast(options: &LiveOptions, count: usize) -> (Broadcast, Vec<Follower>) {
    let (senders, followers) = (0..count)
        .map(|_| {
            let (send, receive) = sync_channel(AHEAD);
            (send, Follower::new(receive, options.clone()))
        })
        .unzip();
    let broadcast = Broadcast {
        followers: senders,
        options: options.clone(),
        threads: Vec::new(),
        pages: PageTracker::default(),
        space: AddressSpace::default(),
        position: 0,
        begun: options.begin == Begin::Auto,
        ended: false,
    };
    (broadcast, followers)
}

impl Broadcast {
    /// Reads `source` (a FIFO or a file) to its end. `hear` is called now and then. Returns how far
    /// it came, and a warning if the stream ended early.
    ///
    /// # Errors
    /// When the source is damaged, no follower is left, or `hear` returned [`Answer::Abandon`]
    /// ([`std::io::ErrorKind::Interrupted`]); when the place to begin at never came.
    pub fn read(
        mut self,
        source: &Path,
        hear: &mut dyn FnMut(Live) -> Answer,
    ) -> Result<(Live, Option<String>), WorkloadError> {
        let told = std::cell::Cell::new(false);
        let mut this = Told { broadcast: &mut self, told: &told };
        let outcome = feed(source, &mut this, &mut |this| {
            match hear(this.broadcast.live()) {
                _ if this.broadcast.ended => return Err(interrupted(source)),
                Answer::Abandon => return Err(interrupted(source)),
                Answer::Sample => told.set(true),
                Answer::GoOn => {}
            }
            Ok(())
        });
        let warning = match outcome {
            Err(_) if self.ended => None,
            outcome => outcome?.1,
        };
        if !self.begun {
            let what = "the program ended before its simulation was to begin: let it begin earlier (--from)".to_owned();
            return Err(WorkloadError::Parameter { name: "capture".into(), what });
        }
        Ok((self.live(), warning))
    }

    fn live(&self) -> Live {
        Live {
            accesses: self.position,
            footprint_pages: self.pages.footprint().0,
            ended: self.ended,
            ..Live::default()
        }
    }

    fn send(&mut self, piece: Piece) -> Result<(), WorkloadError> {
        let piece = Arc::new(piece);
        // One that has failed says itself why.
        self.followers.retain(|follower| follower.send(Arc::clone(&piece)).is_ok());
        if self.followers.is_empty() { Err(interrupted(Path::new("capture"))) } else { Ok(()) }
    }

    /// The simulation's thread for one of the program's.
    fn core_of(&self, thread: ThreadId) -> ThreadId {
        ThreadId(thread.0 % self.options.threads.max(1))
    }

    /// Sends first touches, if there are any.
    fn send_touches(&mut self, thread: ThreadId, touches: Vec<(Vpn, bool)>) -> Result<(), WorkloadError> {
        if touches.is_empty() { Ok(()) } else { self.send(Piece::Touches { thread: self.core_of(thread), touches }) }
    }

    fn begin(&mut self) -> Result<(), WorkloadError> {
        if std::mem::replace(&mut self.begun, true) { Ok(()) } else { self.send(Piece::Begin) }
    }
}

/// The same while it is read, when it may be told to begin.
struct Told<'a> {
    broadcast: &'a mut Broadcast,
    told: &'a std::cell::Cell<bool>,
}

impl Sink for Told<'_> {
    fn thread(&mut self, number: u32) -> Option<ThreadId> {
        let threads = &mut self.broadcast.threads;
        let index = threads.iter().rposition(|&thread| thread == number).unwrap_or_else(|| {
            threads.push(number);
            threads.len() - 1
        });
        u16::try_from(index).ok().map(ThreadId)
    }

    fn accesses(&mut self, thread: ThreadId, accesses: &[SourceAccess], more: u64) -> Result<(), WorkloadError> {
        let this = &mut *self.broadcast;
        let due = match this.options.begin {
            Begin::Access(access) => this.position >= access,
            Begin::Told => self.told.get(),
            Begin::Auto | Begin::Mark(_) => false,
        };
        if due {
            this.begin()?;
        }
        this.position += accesses.len() as u64;
        let noted = accesses.iter().filter_map(|access| {
            let page = access.address().page();
            (this.pages.note(page, access.is_store()) != Novelty::Known).then(|| (page, access.is_store()))
        });
        let touches: Vec<_> = noted.collect();
        if this.begun {
            let thread = this.core_of(thread);
            return this.send(Piece::Accesses { thread, accesses: accesses.to_vec(), more });
        }
        this.send_touches(thread, touches)
    }

    fn event(&mut self, event: &TraceEvent) -> Result<(), WorkloadError> {
        let this = &mut *self.broadcast;
        if event.op == EventOp::Mark {
            this.ended |= this.options.end_mark == Some(event.argument);
            if this.options.begin == Begin::Mark(event.argument) {
                this.begin()?;
            }
        }
        let Some(meaning) = event.meaning() else { return Ok(()) };
        match this.space.apply(&meaning) {
            PageEffect::None => {}
            PageEffect::Clear(range) => this.pages.clear(range),
            PageEffect::Relocate(from, to) => this.pages.relocate(from, to),
            PageEffect::ShareAll => this.pages.share_all(),
        }
        this.send(Piece::Event(meaning))
    }

    fn copies(&mut self, thread: ThreadId, pages: &[(Vpn, bool)]) -> Result<(), WorkloadError> {
        let this = &mut *self.broadcast;
        let mut touches = pages.to_vec();
        touches.retain(|&(page, store)| this.pages.note(page, store) != Novelty::Known);
        this.send_touches(thread, touches)
    }
}

/// A program that runs elsewhere at this moment, for one simulation.
#[derive(Debug)]
pub struct Follower {
    pieces: Receiver<Arc<Piece>>,
    /// What it is at, and how much of it is done.
    present: Option<(Arc<Piece>, usize)>,
    options: LiveOptions,
    phase: Option<Phase>,
    /// The phase to announce next.
    next_phase: Option<Phase>,
    program_accesses: u64,
}

impl Follower {
    fn new(pieces: Receiver<Arc<Piece>>, options: LiveOptions) -> Self {
        let first = if options.begin == Begin::Auto { Phase::Warm } else { Phase::Populate };
        Self { pieces, present: None, options, phase: None, next_phase: Some(first), program_accesses: 0 }
    }
}

impl Workload for Follower {
    fn facts(&self) -> WorkloadFacts {
        WorkloadFacts {
            name: self.options.program.clone(),
            footprint: PageCount::covering(self.options.footprint_bytes),
            accesses: None,
            threads: self.options.threads,
            warms_until_told: true,
            kernel_half: false,
            tells_dependences: false,
            modelled: None,
        }
    }

    fn program_accesses(&self) -> Option<u64> {
        Some(self.program_accesses)
    }

    fn end_warm_up(&mut self) {
        if self.phase == Some(Phase::Warm) {
            self.next_phase = Some(Phase::Measure);
        }
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        batch.clear();
        if let Some(phase) = self.next_phase.take() {
            self.phase = Some(phase);
            return Ok(Step::Phase(phase));
        }
        loop {
            let (piece, done) = match self.present.take() {
                Some(present) => present,
                None => match self.pieces.recv() {
                    Ok(piece) => (piece, 0),
                    Err(_) => return Ok(Step::End),
                },
            };
            match &*piece {
                Piece::Accesses { thread, accesses, more } => {
                    let part = &accesses[done..accesses.len().min(done + Batch::ACCESSES_MAX)];
                    let end = done + part.len();
                    batch.thread = *thread;
                    let made = part.iter().map(|one| Access::new(Gva(one.address().0), one.is_store()));
                    batch.accesses.extend(made);
                    batch.instructions = part.iter().map(SourceAccess::instructions).sum();
                    self.program_accesses += part.len() as u64;
                    if end < accesses.len() {
                        self.present = Some((piece, end));
                    } else {
                        batch.instructions += more;
                    }
                    if !batch.accesses.is_empty() {
                        return Ok(Step::Accesses);
                    }
                }
                Piece::Touches { thread, touches } => {
                    let end = touches.len().min(done + Batch::ACCESSES_MAX);
                    batch.thread = *thread;
                    batch.touches.extend_from_slice(&touches[done..end]);
                    if end < touches.len() {
                        self.present = Some((piece, end));
                    }
                    return Ok(Step::Touches);
                }
                Piece::Event(event) => return Ok(Step::Event(*event)),
                Piece::Begin => {
                    self.phase = Some(Phase::Warm);
                    return Ok(Step::Phase(Phase::Warm));
                }
            }
        }
    }
}

fn interrupted(path: &Path) -> WorkloadError {
    WorkloadError::Io { path: path.into(), source: std::io::ErrorKind::Interrupted.into() }
}
