// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stream that every workload is: the types between a program and the machine that runs it.

use std::path::PathBuf;
use std::sync::Arc;

use nestwalk_mem::{Access, PageCount, Reuse, Va, Vpn, VpnRange};

use crate::modelled::ModelledSample;

/// A thread of the program, numbered from 0 in the order in which threads appear.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct ThreadId(pub u16);

/// Something that the program asks of its kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryEvent {
    /// A new mapping at a fixed address (a trace names the address that the program got).
    Mmap {
        /// Where.
        range: VpnRange,
        /// Whether stores are allowed.
        writable: bool,
        /// Whether it is private anonymous memory (otherwise of a file, or shared).
        anonymous: bool,
    },
    /// A mapping, or part of one, goes.
    Munmap {
        /// Where.
        range: VpnRange,
    },
    /// The heap's end moves.
    Brk {
        /// The new end.
        end: Va,
    },
    /// A mapping moves or changes size.
    Mremap {
        /// Where it was.
        from: VpnRange,
        /// Where it is now.
        to: VpnRange,
    },
    /// Protection changes.
    Mprotect {
        /// Where.
        range: VpnRange,
        /// Whether stores are allowed from now on.
        writable: bool,
    },
    /// Advice.
    Madvise {
        /// Where.
        range: VpnRange,
        /// Linux's `MADV_*` number.
        advice: u32,
    },
    /// A new mapping of a file, out of the page cache.
    MmapFile {
        /// Where.
        range: VpnRange,
        /// What the file is called, as a number: the same for all programs of a kernel.
        file: u64,
        /// How large it is.
        size: PageCount,
        /// Its page that lies at the start of the range.
        first: u64,
        /// Whether stores go to the file.
        shared: bool,
        /// Whether stores are allowed.
        writable: bool,
    },
    /// A file is read from its beginning, into memory that the program touches by itself.
    ReadFile {
        /// What it is called.
        file: u64,
        /// How much is read, and how large it is at least.
        pages: PageCount,
    },
    /// A file is written from its beginning.
    WriteFile {
        /// What it is called.
        file: u64,
        /// How much, and how large it is then at least.
        pages: PageCount,
    },
    /// The process forks; the stream goes on with the parent.
    Fork,
    /// The process forks and waits for its child; the stream goes on with the child, up to its
    /// [`MemoryEvent::ChildExit`].
    ForkAndWait,
    /// Another program begins as a process of its own, without memory (`vfork` and `exec`), and the
    /// process waits for it; the stream goes on with the child, up to its
    /// [`MemoryEvent::ChildExit`].
    SpawnAndWait,
    /// The last child that is alive exits. If its parent waited for it, the stream goes on with the
    /// parent.
    ChildExit,
}

/// What the machine does with the accesses that follow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Only page faults happen: memory is brought into the state that the program would have given
    /// it.
    Populate,
    /// TLBs, page-walk caches and caches work, and nothing is counted.
    Warm,
    /// All works and all is counted.
    Measure,
}

/// What a call of [`Workload::next`] brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// [`Batch::accesses`] by [`Batch::thread`].
    Accesses,
    /// [`Batch::touches`]: pages touched for the first time, in order, in a stretch whose accesses
    /// are not known.
    Touches,
    /// The program asks its kernel for something.
    Event(MemoryEvent),
    /// What follows belongs to this phase. A measuring phase that follows a skipped stretch is a
    /// new window (of a sampled trace).
    Phase(Phase),
    /// The program has ended.
    End,
}

/// Room for what a workload yields. The machine owns one and hands it in again and again, so
/// nothing is allocated a batch.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Who does it.
    pub thread: ThreadId,
    /// For [`Step::Accesses`]: the accesses in program order, at most [`Batch::ACCESSES_MAX`].
    pub accesses: Vec<Access>,
    /// For [`Step::Accesses`] of a filtered stretch: by access, how many that hit the first-level
    /// TLB and the L1-D came after it and are only counted. Empty if none were left out.
    pub absorbed: Vec<u32>,
    /// How many of those were stores.
    pub absorbed_stores: u64,
    /// How long before the absorbed ones their lines were used, if that is known.
    pub reuse: Option<Arc<Reuse>>,
    /// For [`Step::Accesses`]: the instructions that the thread executed meanwhile, the accesses'
    /// own included.
    pub instructions: u64,
    /// For [`Step::Touches`]: page, and whether the first touch is a store.
    pub touches: Vec<(Vpn, bool)>,
    /// Of a server whose requests are told apart: for each request that ends in the batch, how many
    /// accesses (those that were left out included) or touches of the batch come before its end.
    /// Touches are those of whole requests, of which each has the same share of the instructions.
    pub requests: Vec<u64>,
}

impl Batch {
    /// A workload fills in at most this many accesses or touches at a time.
    pub const ACCESSES_MAX: usize = 1 << 14;

    /// Accesses of the program that those of the batch stand for.
    #[inline]
    pub fn represented(&self) -> u64 {
        self.accesses.len() as u64 + self.absorbed.iter().copied().map(u64::from).sum::<u64>()
    }

    /// Empties it for the next step, keeping the room.
    pub fn clear(&mut self) {
        self.accesses.clear();
        self.absorbed.clear();
        self.absorbed_stores = 0;
        self.reuse = None;
        self.touches.clear();
        self.requests.clear();
        self.instructions = 0;
    }
}

/// What is known of a workload before it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkloadFacts {
    /// Its name in tables.
    pub name: String,
    /// Pages that it will have touched at its end, exactly or at the most.
    pub footprint: PageCount,
    /// Accesses that it will yield, if known (for the progress bar); without a warm-up that goes on
    /// until it is told.
    pub accesses: Option<u64>,
    /// Threads.
    pub threads: u16,
    /// Whether its warm-up goes on until [`Workload::end_warm_up`].
    pub warms_until_told: bool,
    /// Whether it accesses the kernel's half of the address space, which only tables that were
    /// found have.
    pub kernel_half: bool,
    /// Whether its accesses say what they wait for ([`nestwalk_mem::Dependence`]); otherwise all
    /// are [free](nestwalk_mem::Dependence::Free), which then means nothing.
    pub tells_dependences: bool,
    /// What the model of a capture counted, if that chose its windows.
    pub modelled: Option<ModelledSample>,
}

/// Why a workload cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A file cannot be read at all.
    #[error("{}: {}", path.display(), nestwalk_mem::reason(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what it should be. `what` names the place and the remedy.
    #[error("{}: at byte {offset}: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there and what can be done.
        what: String,
    },
    /// A generator's parameter is impossible.
    #[error("workload {name}: {what}")]
    Parameter {
        /// The workload.
        name: String,
        /// What is wrong and what would be right.
        what: String,
    },
}

/// A program: a stream of steps. Same parameters and same seed, same stream.
pub trait Workload: Send {
    /// What is known before it runs.
    fn facts(&self) -> WorkloadFacts;

    /// Data accesses of the whole program before the place that the stream has come to, those that
    /// it skips included. `None` of a made-up program, which populates its memory without them.
    fn program_accesses(&self) -> Option<u64> {
        None
    }

    /// What is next belongs to the measured phase, if a warm-up is under way that has no length of
    /// its own ([`WorkloadFacts::warms_until_told`]).
    fn end_warm_up(&mut self) {}

    /// Fills `batch` (which it clears first) with what comes next.
    ///
    /// # Errors
    /// When a trace cannot be read on.
    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError>;
}
