// SPDX-License-Identifier: MIT OR Apache-2.0
//! What cores must forget after a kernel changed a page table.

use nestwalk_mem::VpnRange;

use crate::counters::OsCounters;
use crate::state::process::ProcessId;

/// Which part of an address space is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The translations of these pages.
    Pages(VpnRange),
    /// All translations of the process.
    All,
}

/// One TLB shootdown.
///
/// The machine applies it to every core that may hold translations of the process. If the process
/// is a virtual machine, its pages are guest frames (less the base of its memory), and what must go
/// is whatever was derived from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invalidation {
    /// Whose translations.
    pub process: ProcessId,
    /// Which.
    pub scope: Scope,
    /// Whether page-table nodes over these pages went or moved: page-walk caches must forget them
    /// too.
    pub nodes: bool,
}

/// Above this many pages Linux flushes a whole address space (`tlb_single_page_flush_ceiling`).
pub const PAGES_MAX: u64 = 33;

/// Invalidations that the machine has not yet taken.
#[derive(Debug, Default)]
pub(crate) struct Invalidations {
    pub(crate) pending: Vec<Invalidation>,
    /// See [`Below::epoch`](crate::below::Below::epoch).
    pub(crate) epoch: u64,
}

impl Invalidations {
    /// One shootdown for `range`. Linux's ceiling turns long ranges into a flush of everything; a
    /// range is kept here all the same, since it says more, and the machine may flush more than it
    /// must.
    pub(crate) fn pages(&mut self, counters: &mut OsCounters, process: ProcessId, range: VpnRange, nodes: bool) {
        if range.is_empty() {
            return;
        }
        self.epoch += 1;
        counters.shootdowns += 1;
        counters.shootdown_pages += range.len();
        self.pending.push(Invalidation { process, scope: Scope::Pages(range), nodes });
    }

    /// One shootdown for the whole process.
    pub(crate) fn all(&mut self, counters: &mut OsCounters, process: ProcessId) {
        self.epoch += 1;
        counters.shootdowns += 1;
        self.pending.push(Invalidation { process, scope: Scope::All, nodes: true });
    }
}
