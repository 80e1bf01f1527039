// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a memory manager is: its facts and the events that the kernel tells it of.

use std::fmt;

use nestwalk_mem::counters::Counter;
use nestwalk_mem::{Frame, FrameRange, PageCount, PageSize, Vpn, VpnRange};

use crate::context::Context;
use crate::context::event::{Cause, Fault, Fill};
use crate::error::OsError;
use crate::state::files::FileId;
use crate::state::process::ProcessId;
use crate::state::vma::FileView;
use crate::state::{KernelState, Moved};

/// When an event happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Never.
    Never,
    /// In the page fault.
    Fault,
    /// In a daemon.
    Daemon,
    /// In the page fault, and for what it missed in a daemon.
    FaultOrDaemon,
}

/// How much of a block is prepared at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preparation {
    /// All of it, with its allocation.
    Full,
    /// 4 KiB at a time, as pages are touched.
    Incremental,
    /// 4 KiB at a time up to a threshold, then the rest at once.
    IncrementalThenFull,
}

/// How small pages become a large one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promotion {
    /// They do not.
    None,
    /// They lie in place already.
    InPlace,
    /// They are copied to a new block.
    OutOfPlace,
}

/// When a block is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deallocation {
    /// Each page as it is unmapped.
    OnUnmap,
    /// When all of it is unmapped, or under memory pressure.
    Deferred,
    /// As deferred, and a daemon moves the pages of an inactive block elsewhere, so that all of it
    /// goes back.
    Evicted,
}

/// A manager's choices at the five events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Its name in tables of results.
    pub name: &'static str,
    /// Where it is described: a paper's section or a kernel function.
    pub source: &'static str,
    /// Pages of the blocks that it takes besides single pages.
    pub block: PageCount,
    /// Event 1: when a block is acquired.
    pub allocation: When,
    /// Event 2: how its contents get there.
    pub preparation: Preparation,
    /// Event 3: when it is mapped large.
    pub mapping: When,
    /// Event 3: how, if pages of it are mapped already.
    pub promotion: Promotion,
    /// Event 5 (event 4, the destruction of a mapping, is on the program's demand in all of them).
    pub deallocation: Deallocation,
}

/// A memory manager. Called on faults, unmaps and ticks, never on an access.
///
/// A call that returns [`OsError::OutOfMemory`] must have changed nothing that matters: the kernel
/// reclaims memory and makes the same call again.
pub trait MemoryManager: fmt::Debug + Send {
    /// Its choices at the five events.
    fn facts(&self) -> &'static Facts;

    /// Whether the kernel keeps more memory free for its sake, as Linux does while transparent huge
    /// pages are on (`set_recommended_min_free_kbytes`).
    fn keeps_for_huge_pages(&self) -> bool {
        false
    }

    /// Whether a block of 2 MiB that it takes is one page until it is split or all of it is free
    /// (Linux's compound pages): nothing moves a part of it
    /// ([`PhysicalMemory::keep_compounds`](nestwalk_mem::PhysicalMemory::keep_compounds)).
    fn keeps_compounds(&self) -> bool {
        false
    }

    /// Whether compaction passes over pageblocks that had nothing for it until kswapd sleeps, and
    /// is not put off when it has failed for a fault
    /// ([`PhysicalMemory::keep_skip_hints`](nestwalk_mem::PhysicalMemory::keep_skip_hints)).
    fn keeps_skip_hints(&self) -> bool {
        false
    }

    /// Events 1 to 3, synchronous: serves the fault by mapping at least the page that it names, and
    /// returns the size of the leaf. Nothing is mapped at the page; [`Context::page_frame`],
    /// [`Context::zero`] and [`Context::map`] are the tools.
    ///
    /// # Errors
    /// When there is no memory, or nothing below backs it.
    fn fault(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError>;

    /// Event 1 for one page whose contents the kernel brings: a frame for it.
    ///
    /// # Errors
    /// When there is no memory.
    fn frame_for(&mut self, cx: &mut Context<'_>, fault: &Fault, fill: Fill) -> Result<Frame, OsError> {
        let _ = (fault, fill);
        cx.page_frame()
    }

    /// Event 3, synchronous, on a page that the kernel has served by itself: it has been copied,
    /// swapped in, or made writable for a store. It is mapped now.
    ///
    /// # Errors
    /// When nothing below backs a frame.
    fn remapped(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<(), OsError> {
        let _ = (cx, fault);
        Ok(())
    }

    /// Events 4 and 5: `frames`, mapped from `page` on (one 4 KiB page or one whole large page),
    /// are mapped nowhere any more. They are the manager's now, to free or to keep.
    fn release(&mut self, cx: &mut Context<'_>, process: ProcessId, page: Vpn, frames: FrameRange, cause: Cause) {
        let _ = (process, page, cause);
        cx.free(frames);
    }

    /// Event 4 alone: `frame` is no longer mapped at `page` of `process`, but others that a fork
    /// made still map it. The last of them will [`release`](MemoryManager::release) it, as a page
    /// of its own.
    fn left(&mut self, cx: &mut Context<'_>, process: ProcessId, page: Vpn, frame: Frame) {
        let _ = (cx, process, page, frame);
    }

    /// `child` is a fork of `parent`, and all pages of both are shared now.
    fn forked(&mut self, cx: &mut Context<'_>, parent: ProcessId, child: ProcessId) {
        let _ = (cx, parent, child);
    }

    /// The pages of `from`, which are mapped still, are about to be mapped at `to` instead
    /// (mremap).
    fn moving(&mut self, cx: &mut Context<'_>, process: ProcessId, from: VpnRange, to: VpnRange) {
        let _ = (cx, process, from, to);
    }

    /// The program gives the contents of `range` back (`MADV_DONTNEED`), whatever of it is mapped.
    fn discarding(&mut self, cx: &mut Context<'_>, process: ProcessId, range: VpnRange) {
        let _ = (cx, process, range);
    }

    /// Pages of `range` are no longer part of a mapping (and all of them have been released).
    fn unmapped(&mut self, cx: &mut Context<'_>, process: ProcessId, range: VpnRange) {
        let _ = (cx, process, range);
    }

    /// The process has exited: all its pages have been released.
    fn exited(&mut self, cx: &mut Context<'_>, process: ProcessId) {
        let _ = (cx, process);
    }

    /// Compaction has moved a mapped page; the frame where it was is free.
    fn moved(&mut self, cx: &mut Context<'_>, moved: Moved) {
        let _ = (cx, moved);
    }

    /// Event 1 for a page of a file that the page cache is about to hold: a frame for it.
    ///
    /// # Errors
    /// When there is no memory.
    fn file_frame(&mut self, cx: &mut Context<'_>, file: FileId, page: u64) -> Result<Frame, OsError> {
        let _ = (file, page);
        cx.page_frame()
    }

    /// Event 5 for a frame of the page cache, which neither it nor any process has any more.
    fn file_released(&mut self, cx: &mut Context<'_>, frame: Frame) {
        cx.free(FrameRange::single(frame));
    }

    /// Compaction has moved a page of the page cache; the frame where it was is free.
    fn file_moved(&mut self, cx: &mut Context<'_>, from: Frame) {
        let _ = (cx, from);
    }

    /// Event 3 for a mapping of a file, before anything is looked at: a load of a page that has no
    /// entry. Whether it has mapped a whole block that holds the page
    /// ([`Context::map_file_block`]).
    ///
    /// # Errors
    /// When there is no memory, or nothing below backs it.
    fn map_file_block(&mut self, cx: &mut Context<'_>, fault: &Fault, view: FileView) -> Result<bool, OsError> {
        let _ = (cx, fault, view);
        Ok(false)
    }

    /// Event 3 for a mapping of a file, after a page of it has been mapped for a load.
    ///
    /// # Errors
    /// As [`MemoryManager::map_file_block`].
    fn file_mapped(&mut self, cx: &mut Context<'_>, fault: &Fault, view: FileView) -> Result<(), OsError> {
        let _ = (cx, fault, view);
        Ok(())
    }

    /// Memory is short: gives back up to `want` frames that nothing maps, and returns how many.
    fn pressure(&mut self, cx: &mut Context<'_>, want: PageCount) -> PageCount {
        let _ = (cx, want);
        PageCount(0)
    }

    /// Memory is short, and what it held in reserve and the page cache are gone: gives back frames
    /// that nothing maps and that cost work to free, as a shrinker does in a round of reclaim at
    /// `priority` (12 for the first; 0 in the last of direct reclaim, 1 in kswapd's). Returns how
    /// many.
    fn shrink(&mut self, cx: &mut Context<'_>, priority: u32) -> PageCount {
        let _ = (cx, priority);
        PageCount(0)
    }

    /// Whether [`MemoryManager::shrink`] may find something, so that kswapd is woken at once.
    fn can_shrink(&self) -> bool {
        false
    }

    /// Events 1 to 3 and 5, asynchronous: time has passed, it is [`KernelState::now`] now.
    ///
    /// # Errors
    /// When nothing below backs a frame. Want of memory is no error: a daemon gives up and tries
    /// later.
    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        let _ = cx;
        Ok(())
    }

    /// Whether it goes by the [walk time](crate::state::process::Process::walk_time) of processes,
    /// so that the machine that simulates the processors should tell it.
    fn wants_walk_time(&self) -> bool {
        false
    }

    /// A process has stored to a page of a large page, or may have. It hears of that only while it
    /// [wants to](KernelState::watches_stores).
    fn stored(&mut self, process: ProcessId, page: Vpn) {
        let _ = (process, page);
    }

    /// Frames that it holds and that nothing maps.
    fn reserved(&self) -> PageCount {
        PageCount(0)
    }

    /// Counters of its own, which its file [declares](nestwalk_mem::counters). All of them,
    /// whatever it has done.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    /// Checks its own structures against the kernel's.
    ///
    /// # Panics
    /// With a message that says what does not hold.
    fn check_invariants(&self, state: &KernelState) {
        let _ = state;
    }
}
