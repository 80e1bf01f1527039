// SPDX-License-Identifier: MIT OR Apache-2.0
//! The huge page of zeroes: a load of memory that was never stored to maps it, if `use_zero_page`
//! says so (`set_huge_zero_page`).
//!
//! There is one of it, made at the first such load. A store to it splits the mapping and makes one
//! small page, as to memory that is shared since a fork (`do_huge_pmd_wp_page`). It goes when
//! memory is short and nothing maps it (`shrink_huge_zero_page_scan`). Linux's small leaves after
//! such a split all map one small page of zeroes; here each maps its own of the 512.

use nestwalk_mem::counters::Counter;
use nestwalk_mem::{Entry, Frame, FrameRange, Level, Owner, PageCount, PageSize};

use super::shrinker::Shrinker;
use crate::context::Context;
use crate::context::event::Fault;
use crate::error::OsError;

/// Its frames.
const FRAMES: u64 = PageSize::Huge.pages();

nestwalk_mem::counters! {
    /// What transparent huge pages count by themselves.
    pub numbers ThpCounters {
        /// Loads that mapped the huge page of zeroes.
        zero_page_faults ["faults"],
        /// Times that the huge page of zeroes was made (`thp_zero_page_alloc`).
        zero_page_allocations ["2 MiB pages"],
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct ZeroPage {
    asked: Shrinker,
    counters: ThpCounters,
}

impl ZeroPage {
    /// Maps it for a load. `None` when there is no block for it.
    ///
    /// # Errors
    /// When there is no memory for a node, or nothing below backs a frame.
    pub fn map(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<Option<PageSize>, OsError> {
        let Some(head) = self.frame(cx)? else { return Ok(None) };
        let entry = Entry::leaf(head, fault.leaf_flags()).without(Entry::WRITABLE).with(Entry::COPY_ON_WRITE);
        let first = fault.page.align_down(PageSize::Huge.order());
        cx.map_entry(fault.process, first, Level::PMD, entry)?;
        (0..FRAMES).for_each(|i| cx.state.memory.share(head + i));
        self.counters.zero_page_faults += 1;
        Ok(Some(PageSize::Huge))
    }

    /// Linux's `get_huge_zero_page`: compacts for it, whatever `defrag` says.
    fn frame(&mut self, cx: &mut Context<'_>) -> Result<Option<Frame>, OsError> {
        if cx.state.zero_block.is_some() {
            return Ok(cx.state.zero_block);
        }
        let Some(head) = cx.huge_frame(true) else { return Ok(None) };
        let frames = FrameRange::new(head, PageCount(FRAMES));
        if let Err(error) = cx.zero(frames) {
            cx.free(frames);
            return Err(error);
        }
        cx.state.memory.set_owner(head, Owner::Kernel);
        cx.state.zero_block = Some(head);
        self.counters.zero_page_allocations += 1;
        Ok(Some(head))
    }

    /// The shrinker's turn in a round of reclaim at `priority`. Returns how many frames became
    /// free.
    pub fn shrink(&mut self, cx: &mut Context<'_>, priority: u32) -> PageCount {
        let Some(head) = cx.state.zero_block else { return PageCount(0) };
        if (0..FRAMES).any(|i| cx.state.memory.is_shared(head + i)) {
            return PageCount(0);
        }
        let mut freed = 0;
        self.asked.shrink(FRAMES, priority, |_| {
            if cx.state.zero_block.take().is_some() {
                cx.free(FrameRange::new(head, PageCount(FRAMES)));
                freed = FRAMES;
            }
            false
        });
        PageCount(freed)
    }

    /// Whether it has been made at some time, so that it may be there.
    pub fn is_made(&self) -> bool {
        self.counters.zero_page_allocations > 0
    }

    /// Its counters.
    pub fn counters(&self) -> Vec<Counter> {
        nestwalk_mem::counters::list(&self.counters)
    }
}
