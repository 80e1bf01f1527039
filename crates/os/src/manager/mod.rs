// SPDX-License-Identifier: MIT OR Apache-2.0
//! How user memory is managed: one file a technique.
//!
//! A [`MemoryManager`] is stated along the five events in the life of a page or superpage (Zhu, Cox and Rixner,
//! USENIX ATC 2020, section 2): physical allocation, preparation, mapping creation, mapping destruction, physical
//! deallocation. Its [`Facts`] say what it does at each. What every manager does alike (finding the mapping,
//! copy-on-write, swapping in, splitting, walking tables at unmap and fork) the kernel does; what differs is asked
//! here.

pub mod freebsd;
pub mod hawkeye;
pub mod ingens;
pub mod linux4k;
pub mod mthp;
pub mod ptemagnet;
pub mod quicksilver;
mod radix;
mod reservation;
mod scan;
pub mod thp;

use std::fmt;

use nestwalk_mem::{EntrySlot, Frame, FrameRange, PageCount, PageSize, Vpn, VpnRange};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::error::OsError;
use crate::process::ProcessId;
use crate::state::{KernelState, Moved};
use crate::vma::Vma;

/// Which memory manager, and its parameters.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum ManagerConfig {
    /// 4 KiB pages only.
    #[default]
    #[serde(deserialize_with = "crate::config::no_keys")]
    Linux4k,
    /// Linux's transparent huge pages.
    Thp(thp::ThpConfig),
    /// Linux's multi-size transparent huge pages: folios of 16 KiB to 1 MiB.
    MThp(mthp::MThpConfig),
    /// Groups of 8 neighbouring pages on 8 neighbouring frames.
    PteMagnet(ptemagnet::PteMagnetConfig),
    /// FreeBSD's superpages: reservations of 2 MiB, filled page by page.
    #[serde(deserialize_with = "crate::config::no_keys")]
    FreeBsd,
    /// The same, the rest of which is prepared at once: Sync-1, Sync-64.
    Quicksilver(quicksilver::QuicksilverConfig),
    /// Huge pages that a daemon makes of 2 MiB that are 90 % in use.
    Ingens(ingens::IngensConfig),
    /// Huge pages that a daemon makes of 2 MiB that are used most densely.
    HawkEye(hawkeye::HawkEyeConfig),
}

impl ManagerConfig {
    /// Every manager, with default parameters: what lists show and the contract tests go over.
    pub fn all() -> Vec<Self> {
        vec![
            Self::Linux4k,
            Self::Thp(thp::ThpConfig::default()),
            Self::MThp(mthp::MThpConfig::default()),
            Self::PteMagnet(ptemagnet::PteMagnetConfig::default()),
            Self::FreeBsd,
            Self::Quicksilver(quicksilver::QuicksilverConfig::default()),
            Self::Ingens(ingens::IngensConfig::default()),
            Self::HawkEye(hawkeye::HawkEyeConfig::default()),
        ]
    }

    /// Makes the manager.
    pub fn build(&self) -> Box<dyn MemoryManager> {
        match self {
            Self::Linux4k => Box::new(linux4k::Linux4k),
            Self::Thp(config) => Box::new(thp::Thp::new(*config)),
            Self::MThp(config) => Box::new(mthp::MThp::new(*config)),
            Self::PteMagnet(config) => Box::new(ptemagnet::PteMagnet::new(*config)),
            Self::FreeBsd => Box::<freebsd::FreeBsd>::default(),
            Self::Quicksilver(config) => Box::new(quicksilver::Quicksilver::new(*config)),
            Self::Ingens(config) => Box::new(ingens::Ingens::new(*config)),
            Self::HawkEye(config) => Box::new(hawkeye::HawkEye::new(*config)),
        }
    }
}

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
    /// As deferred, and a daemon moves the pages of an inactive block elsewhere, so that all of it goes back.
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

/// A fault on a page that was never mapped (or not since it was given back), in a mapping that allows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Whose.
    pub process: ProcessId,
    /// Where.
    pub page: Vpn,
    /// Whether it is a store.
    pub store: bool,
    /// The mapping.
    pub vma: Vma,
    /// The slot of the page's entry, or of the one that has to point to a missing node.
    pub slot: EntrySlot,
}

impl Fault {
    /// The flags of the leaf that serves it.
    #[inline]
    pub fn leaf_flags(&self) -> u64 {
        use nestwalk_mem::Entry;
        let writable = if self.vma.flags.writable { Entry::WRITABLE } else { 0 };
        let dirty = if self.store { Entry::DIRTY } else { 0 };
        writable | dirty | Entry::ACCESSED
    }
}

/// Why the kernel needs one frame for a page whose contents come from elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// A copy of a page shared since a fork.
    Copy,
    /// A page from swap.
    SwapIn,
}

/// Why a page is no longer mapped where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The program gave it back (munmap, DONTNEED), or exited.
    Program,
    /// A copy or a huge page has taken its place.
    Replaced,
    /// It was reclaimed.
    Reclaimed,
}

/// A memory manager. Called on faults, unmaps and ticks, never on an access.
///
/// A call that returns [`OsError::OutOfMemory`] must have changed nothing that matters: the kernel reclaims memory and
/// makes the same call again.
pub trait MemoryManager: fmt::Debug + Send {
    /// Its choices at the five events.
    fn facts(&self) -> &'static Facts;

    /// Whether the kernel keeps more memory free for its sake, as Linux does while transparent huge pages are on
    /// (`set_recommended_min_free_kbytes`).
    fn keeps_for_huge_pages(&self) -> bool {
        false
    }

    /// Events 1 to 3, synchronous: serves the fault by mapping at least the page that it names, and returns the
    /// size of the leaf. Nothing is mapped at the page; [`Context::page_frame`], [`Context::zero`] and
    /// [`Context::map`] are the tools.
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

    /// Event 3, synchronous, on a page that the kernel has served by itself: it has been copied, swapped in, or made
    /// writable for a store. It is mapped now.
    ///
    /// # Errors
    /// When nothing below backs a frame.
    fn remapped(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<(), OsError> {
        let _ = (cx, fault);
        Ok(())
    }

    /// Events 4 and 5: `frames`, mapped from `page` on (one 4 KiB page or one whole large page), are mapped nowhere
    /// any more. They are the manager's now, to free or to keep.
    fn release(&mut self, cx: &mut Context<'_>, process: ProcessId, page: Vpn, frames: FrameRange, cause: Cause) {
        let _ = (process, page, cause);
        cx.free(frames);
    }

    /// Event 4 alone: `frame` is no longer mapped at `page` of `process`, but others that a fork made still map it. The
    /// last of them will [`release`](MemoryManager::release) it, as a page of its own.
    fn left(&mut self, cx: &mut Context<'_>, process: ProcessId, page: Vpn, frame: Frame) {
        let _ = (cx, process, page, frame);
    }

    /// `child` is a fork of `parent`, and all pages of both are shared now.
    fn forked(&mut self, cx: &mut Context<'_>, parent: ProcessId, child: ProcessId) {
        let _ = (cx, parent, child);
    }

    /// The pages of `from`, which are mapped still, are about to be mapped at `to` instead (mremap).
    fn moving(&mut self, cx: &mut Context<'_>, process: ProcessId, from: VpnRange, to: VpnRange) {
        let _ = (cx, process, from, to);
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

    /// Memory is short: gives back up to `want` frames that nothing maps, and returns how many.
    fn pressure(&mut self, cx: &mut Context<'_>, want: PageCount) -> PageCount {
        let _ = (cx, want);
        PageCount(0)
    }

    /// Events 1 to 3 and 5, asynchronous: time has passed, it is [`KernelState::now_ns`] now.
    ///
    /// # Errors
    /// When nothing below backs a frame. Want of memory is no error: a daemon gives up and tries later.
    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        let _ = cx;
        Ok(())
    }

    /// Frames that it holds and that nothing maps.
    fn reserved(&self) -> PageCount {
        PageCount(0)
    }

    /// Counts of its own, by name.
    fn statistics(&self) -> Vec<(&'static str, u64)> {
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
