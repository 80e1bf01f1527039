// SPDX-License-Identifier: MIT OR Apache-2.0
//! madvise.

use nestwalk_mem::{Entry, FrameRange, PageCount, PageSize, Vpn, VpnRange};

use crate::below::Below;
use crate::context::Context;
use crate::context::collapse::{Candidate, CollapseLimits, examine};
use crate::context::contiguous::blocks_of;
use crate::context::event::Cause;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::ProcessId;
use crate::state::vma::HugeAdvice;

/// What a program may say about pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Advice {
    /// They are given back at once, and read as zeroes.
    DontNeed,
    /// They may be given back when memory is short, unless they are stored to before.
    Free,
    /// Huge pages are welcome.
    HugePage,
    /// Huge pages are not welcome.
    NoHugePage,
    /// Huge pages should be made now.
    Collapse,
    /// All pages should be mapped now, ready to be stored to.
    PopulateWrite,
}

impl Advice {
    /// Linux's number on x86-64, if it is one that matters here.
    pub const fn from_linux(number: u32) -> Option<Self> {
        match number {
            4 => Some(Self::DontNeed),
            8 => Some(Self::Free),
            14 => Some(Self::HugePage),
            15 => Some(Self::NoHugePage),
            23 => Some(Self::PopulateWrite),
            25 => Some(Self::Collapse),
            _ => None,
        }
    }
}

impl Kernel {
    /// Does what is advised for the mapped pages of `range`.
    ///
    /// # Errors
    /// When the range is impossible, or memory is short and the advice asks for some.
    pub fn madvise(
        &mut self,
        process: ProcessId,
        range: VpnRange,
        advice: Advice,
        below: &mut dyn Below,
    ) -> Result<(), OsError> {
        self.check_range(range)?;
        self.state.counters.other_calls += 1;
        match advice {
            Advice::DontNeed => self.discard(process, range, below),
            Advice::Free => self.make_lazily_free(process, range, below),
            Advice::HugePage => self.advise_huge(process, range, HugeAdvice::Huge, below),
            Advice::NoHugePage => self.advise_huge(process, range, HugeAdvice::NoHuge, below),
            Advice::Collapse => self.collapse_range(process, range, below).map(|_| ()),
            Advice::PopulateWrite => self.populate(process, range, below),
        }
    }

    fn parts(&self, process: ProcessId, range: VpnRange) -> Result<Vec<VpnRange>, OsError> {
        Ok(self.state.processes.get(process)?.vmas.within(range).map(|vma| vma.range).collect())
    }

    /// `madvise_dontneed_single_vma`. Nodes stay.
    fn discard(&mut self, process: ProcessId, range: VpnRange, below: &mut dyn Below) -> Result<(), OsError> {
        let cpu = self.state.processes.get(process)?.cpu;
        self.retrying(cpu, below, |cx, _| cx.split_at_ends(process, range))?;
        let parts = self.parts(process, range)?;
        let (mut cx, manager) = self.context(cpu, below);
        manager.discarding(&mut cx, process, range);
        let mut present = false;
        let result = parts
            .into_iter()
            .try_for_each(|part| self.retrying(cpu, below, |cx, manager| cx.zap(manager, process, part, &mut present)));
        if present {
            self.state.invalidations.pages(&mut self.state.counters, process, range, false);
        }
        result
    }

    /// `madvise_free_single_vma`: pages that are not shared become clean and unused, so that
    /// reclaim drops them.
    fn make_lazily_free(&mut self, process: ProcessId, range: VpnRange, below: &mut dyn Below) -> Result<(), OsError> {
        let cpu = self.state.processes.get(process)?.cpu;
        self.retrying(cpu, below, |cx, _| cx.split_at_ends(process, range))?;
        for part in self.parts(process, range)? {
            if self.vma(process, part.start).is_some_and(|vma| vma.flags.view().is_some()) {
                continue; // EINVAL: only anonymous memory
            }
            let (mut cx, _) = self.context(cpu, below);
            cx.clean(process, part)?;
        }
        Ok(())
    }

    fn advise_huge(
        &mut self,
        process: ProcessId,
        range: VpnRange,
        advice: HugeAdvice,
        below: &mut dyn Below,
    ) -> Result<(), OsError> {
        let cpu = self.state.processes.get(process)?.cpu;
        self.retrying(cpu, below, |cx, _| cx.split_at_ends(process, range))?;
        self.state.processes.get_mut(process)?.vmas.change(range, |flags| flags.advice = advice);
        Ok(())
    }

    /// Makes huge pages of all aligned 2 MiB of `range` that can become one (`madvise_collapse`),
    /// whatever the memory manager would do. Returns how many pages of `range` lie in huge pages
    /// afterwards.
    ///
    /// # Errors
    /// When there is no such process, or nothing below backs a frame.
    pub fn collapse_range(
        &mut self,
        process: ProcessId,
        range: VpnRange,
        below: &mut dyn Below,
    ) -> Result<PageCount, OsError> {
        let cpu = self.state.processes.get(process)?.cpu;
        let size = PageSize::Huge.pages();
        let mut huge = 0;
        for block in range.start.0.div_ceil(size)..range.end.0 / size {
            let first = Vpn(block * size);
            let (mut cx, manager) = self.context(cpu, below);
            match examine(cx.state, process, first, &CollapseLimits::NONE)? {
                Candidate::Unsuitable => continue,
                Candidate::Huge => {}
                Candidate::Suitable => {
                    let Some(frame) = cx.huge_frame(true) else { continue };
                    cx.collapse(process, first, frame, &mut |cx, page, frame, shared| {
                        if shared {
                            manager.left(cx, process, page, frame);
                        } else {
                            manager.release(cx, process, page, FrameRange::single(frame), Cause::Replaced);
                        }
                    })?;
                    self.settle(cpu, below);
                }
            }
            huge += size;
        }
        Ok(PageCount(huge))
    }

    fn populate(&mut self, process: ProcessId, range: VpnRange, below: &mut dyn Below) -> Result<(), OsError> {
        let cpu = self.state.processes.get(process)?.cpu;
        let mut page = range.start;
        while page < range.end {
            match self.backed_span(process, page, true)?.0 {
                0 => drop(self.fault(process, page, true, cpu, below)?),
                span => page += span,
            }
        }
        Ok(())
    }
}

impl Context<'_> {
    fn clean(&mut self, process: ProcessId, range: VpnRange) -> Result<(), OsError> {
        let (mut at, mut changed) = (range.start, false);
        while let Some(leaves) = self.next_leaves(process, &mut at, range.end)? {
            for leaf in leaves.iter().filter(|leaf| leaf.entry.is_present()) {
                let frames = FrameRange::new(leaf.entry.frame(), PageCount(leaf.size().pages()));
                if frames.iter().any(|frame| self.state.memory.is_shared(frame)) {
                    continue;
                }
                let table = &mut self.state.processes.get_mut(process)?.table;
                table.update(leaf.page, |entry| entry.without(Entry::ACCESSED | Entry::DIRTY));
                changed = true;
            }
            self.join_again(process, &blocks_of(&leaves, range))?;
        }
        if changed {
            self.invalidate(process, range, false);
        }
        Ok(())
    }
}
