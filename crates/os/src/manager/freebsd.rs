// SPDX-License-Identifier: MIT OR Apache-2.0
//! FreeBSD's superpages (`vm_reserv.c`, `pmap.c` of amd64): the first fault in
//! an aligned 2 MiB sets a physical block aside, each page is zeroed as it is touched, and when all
//! 512 are there they become a superpage where they lie.
//!
//! Promotion wants 512 pages that agree: all of them dirty, or none. If they do not, the clean ones
//! lose the right to be stored to, so that the next store to one faults and tries again
//! (`pmap_promote_pde`). Demotion is the kernel's split.
//!
//! With `promote_64k` there are two levels, as on arm64 since FreeBSD 15 (`VM_NRESERVLEVEL` is 2 in
//! `sys/arm64/include/vmparam.h`: 64 KiB in 2 MiB). The reservation is the same; an aligned 64 KiB
//! of it whose 16 pages are there and agree gets the contiguous bit of PTEs (`pmap_promote_l3c`),
//! and 2 MiB are tried once that has been done. It takes a machine whose PTEs have that bit.
//!
//! Files have reservations, too: the page cache gets its frames there, and 2 MiB of a file that
//! are in the cache as a whole are mapped by one entry, at the first fault of a process or, where
//! it has mapped them page by page, by promotion, as far as the mapping is aligned as the file is.
//! The faults on files are Linux's (what is read and mapped around).
//!
//! Left out: a superpage of clean pages that is demoted by the first store (here the store dirties
//! all of it); a forked process's copies get frames of its reservation only where it has one
//! already; a page of a file that is reclaimed breaks its reservation (FreeBSD gives it back to the
//! reservation); 64 KiB of a file.

use nestwalk_mem::counters::{Counter, list};
use nestwalk_mem::{Entry, Frame, FrameRange, PageCount, PageSize, Vpn, VpnRange};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::context::event::{Cause, Fault, Fill};
use crate::error::OsError;
use crate::manager::contract::{Deallocation, Facts, MemoryManager, Preparation, Promotion, When};
use crate::manager::linux4k::map_one_page;
use crate::manager::reservation::{GROUP_ORDER, GROUP_PAGES, Number, Reservations, map_zeroed};
use crate::state::files::FileId;
use crate::state::process::ProcessId;
use crate::state::vma::FileView;
use crate::state::{KernelState, Moved};

/// Its choices at the five events.
pub const FACTS: Facts = Facts {
    name: "freebsd",
    source: "FreeBSD, sys/vm/vm_reserv.c and sys/amd64/amd64/pmap.c; Zhu, Cox and Rixner (ATC 2020), section 2",
    block: PageCount(512),
    allocation: When::Fault,
    preparation: Preparation::Incremental,
    mapping: When::Fault,
    promotion: Promotion::InPlace,
    deallocation: Deallocation::Deferred,
};

/// Its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FreeBsdConfig {
    /// Whether an aligned 64 KiB of a reservation is promoted, too, once its 16 pages are in use
    /// and agree: it gets the contiguous bit (arm64; amd64 has no such level). Takes a machine
    /// whose TLBs hold 64 KiB (`contiguous_tlb`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub promote_64k: bool,
}

nestwalk_mem::counters! {
    /// What FreeBSD's manager counts, besides its reservations.
    pub numbers FreeBsdCounters {
        /// Promotions that failed because some pages were dirty and some were not.
        promotions_failed_mixed ["promotions"],
    }
}

nestwalk_mem::counters! {
    /// What it counts of its lower level, where there is one.
    pub numbers SmallCounters {
        /// Aligned 64 KiB that got the contiguous bit.
        promotions_64k ["64 KiB blocks"],
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct FreeBsd {
    config: FreeBsdConfig,
    reservations: Reservations,
    counters: FreeBsdCounters,
    small: SmallCounters,
}

impl FreeBsd {
    /// With no reservations yet.
    pub fn new(config: FreeBsdConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Whether a page that has come into the reservation can be the last one of what is promoted:
    /// nearly none of them is where there is one level.
    #[inline(always)]
    fn may_promote(&self, number: Number) -> bool {
        self.config.promote_64k || self.reservations.block(number).is_full()
    }

    /// The page of the fault, which is in the reservation, is mapped: tries what may be promoted
    /// now, the lower level first.
    #[inline(never)]
    fn populated(&mut self, cx: &mut Context<'_>, fault: &Fault, number: Number) -> Result<(), OsError> {
        if self.config.promote_64k
            && self.reservations.block(number).is_group_full(fault.page)
            && !self.promote_small(cx, fault, number)?
        {
            return Ok(());
        }
        if self.reservations.block(number).is_full() { self.promote(cx, fault, number) } else { Ok(()) }
    }

    /// Sets the contiguous bit in the PTEs of the fault's 64 KiB, all of which are in use, if they
    /// agree and lie in one mapping. Whether they have it now.
    fn promote_small(&mut self, cx: &mut Context<'_>, fault: &Fault, number: Number) -> Result<bool, OsError> {
        let first = fault.page.align_down(GROUP_ORDER);
        if !fault.vma.holds_block(first, GROUP_ORDER) {
            return Ok(false);
        }
        let range = VpnRange::new(first, PageCount(GROUP_PAGES));
        let base = number.base() + (first.0 & (PageSize::Huge.pages() - 1));
        let placed = cx.placed_in(fault.process, range, base)?;
        let Some(placed) = placed.filter(|placed| placed.mapped == GROUP_PAGES) else { return Ok(false) };
        if placed.all & Entry::CONTIGUOUS != 0 {
            return Ok(true);
        }
        if placed.differ(Entry::WRITABLE | Entry::DIRTY) {
            self.counters.promotions_failed_mixed += 1;
            cx.protect_clean(fault.process, range)?;
            return Ok(false);
        }
        let joined = cx.join(fault.process, first, false)?;
        self.small.promotions_64k += u64::from(joined);
        Ok(joined)
    }

    /// Makes a superpage of a full reservation, if its 512 pages agree and lie in one mapping.
    fn promote(&mut self, cx: &mut Context<'_>, fault: &Fault, number: Number) -> Result<(), OsError> {
        let first = fault.page.align_down(PageSize::Huge.order());
        if !fault.vma.holds_block(first, PageSize::Huge.order()) {
            return Ok(());
        }
        let Some(placed) = cx.placed(fault.process, first, number.base())?.filter(|placed| placed.mapped == 512) else {
            return Ok(());
        };
        if placed.differ(Entry::WRITABLE | Entry::DIRTY) {
            self.counters.promotions_failed_mixed += 1;
            let range = VpnRange::new(first, PageCount(PageSize::Huge.pages()));
            return cx.protect_clean(fault.process, range);
        }
        cx.promote(fault.process, first, number.base(), placed.all | Entry::ACCESSED).map(drop)
    }
}

impl MemoryManager for FreeBsd {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn fault(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError> {
        let Some((number, frame)) = self.reservations.frame_for_fault(cx, fault) else {
            return map_one_page(cx, fault);
        };
        if let Err(error) = map_zeroed(cx, fault, frame) {
            self.reservations.give_back(cx, number, frame);
            return Err(error);
        }
        if self.may_promote(number) {
            self.populated(cx, fault, number)?;
        }
        Ok(PageSize::Small)
    }

    fn remapped(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<(), OsError> {
        match self.reservations.find(fault.process, fault.page) {
            Some(number) if self.may_promote(number) => self.populated(cx, fault, number),
            _ => Ok(()),
        }
    }

    fn frame_for(&mut self, cx: &mut Context<'_>, fault: &Fault, _: Fill) -> Result<Frame, OsError> {
        match self.reservations.frame_for_fill(cx.state.now, fault.process, fault.page) {
            Some(frame) => Ok(frame),
            None => cx.page_frame(),
        }
    }

    fn release(&mut self, cx: &mut Context<'_>, _: ProcessId, _: Vpn, frames: FrameRange, cause: Cause) {
        self.reservations.release(cx, frames, cause);
    }

    fn exited(&mut self, cx: &mut Context<'_>, process: ProcessId) {
        self.reservations.exited(cx, process);
    }

    fn moved(&mut self, cx: &mut Context<'_>, moved: Moved) {
        self.reservations.moved(cx, moved.from);
    }

    fn file_frame(&mut self, cx: &mut Context<'_>, file: FileId, page: u64) -> Result<Frame, OsError> {
        self.reservations.file_frame(cx, file, page)
    }

    fn file_released(&mut self, cx: &mut Context<'_>, frame: Frame) {
        self.reservations.release_file(cx, frame);
    }

    fn file_moved(&mut self, cx: &mut Context<'_>, from: Frame) {
        self.reservations.moved(cx, from);
    }

    fn map_file_block(&mut self, cx: &mut Context<'_>, fault: &Fault, view: FileView) -> Result<bool, OsError> {
        self.reservations.map_file_block(cx, fault, view)
    }

    fn file_mapped(&mut self, cx: &mut Context<'_>, fault: &Fault, view: FileView) -> Result<(), OsError> {
        self.reservations.promote_file(cx, fault, view)
    }

    fn pressure(&mut self, cx: &mut Context<'_>, want: PageCount) -> PageCount {
        self.reservations.pressure(cx, want)
    }

    fn reserved(&self) -> PageCount {
        self.reservations.reserved()
    }

    fn counters(&self) -> Vec<Counter> {
        let small = if self.config.promote_64k { list(&self.small) } else { Vec::new() };
        [list(&self.reservations.counters), list(&self.counters), small].concat()
    }

    fn check_invariants(&self, state: &KernelState) {
        self.reservations.check_invariants(state);
    }
}

#[cfg(test)]
mod tests;
