// SPDX-License-Identifier: MIT OR Apache-2.0
//! Huge pages of which a part is unmapped: they wait until memory is short, and are split then
//! (`deferred_split_huge_page`, `deferred_split_scan`).
//!
//! Until it is split a huge page is one page, whatever maps it: what is unmapped of it is not free,
//! and compaction does not move the rest. It goes as a whole when its last part is unmapped.

use std::collections::{BTreeMap, VecDeque};

use nestwalk_mem::{Frame, FrameRange, PageCount, PageSize, Vpn, VpnRange};

use super::shrinker::Shrinker;
use crate::context::Context;
use crate::state::KernelState;
use crate::state::process::ProcessId;

/// Frames of a huge page.
const FRAMES: u64 = PageSize::Huge.pages();

/// A huge page in the queue.
#[derive(Clone, Copy, Debug)]
struct Partial {
    /// A bit for each frame that nothing maps.
    unmapped: [u64; 8],
    /// How many these are.
    count: u64,
    /// Whose page was unmapped first, and at which page its process mapped the first frame: where
    /// the others are looked for.
    process: ProcessId,
    first: Vpn,
    /// Its place in the queue.
    ticket: u64,
}

impl Partial {
    fn has(&self, index: u64) -> bool {
        self.unmapped[(index / 64) as usize] >> (index % 64) & 1 == 1
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct DeferredSplits {
    /// By first frame.
    pages: BTreeMap<Frame, Partial>,
    /// Oldest first; an entry whose ticket is not its page's is void.
    queue: VecDeque<(Frame, u64)>,
    tickets: u64,
    /// Frames of these pages that nothing maps.
    held: u64,
    asked: Shrinker,
}

impl DeferredSplits {
    /// Frames that nothing maps, and that are not free.
    pub fn held(&self) -> PageCount {
        PageCount(self.held)
    }

    /// Whether there is something to split.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// `frame`, which is part of a huge page and was mapped at `page`, is mapped nowhere any more
    /// (`page_remove_rmap`). If all of the huge page is unmapped now, it is freed.
    pub fn unmapped(&mut self, cx: &mut Context<'_>, process: ProcessId, page: Vpn, frame: Frame) {
        let head = frame.align_down(PageSize::Huge.order());
        let index = frame.0 - head.0;
        let Self { pages, queue, tickets, held, .. } = self;
        let partial = pages.entry(head).or_insert_with(|| {
            *tickets += 1;
            queue.push_back((head, *tickets));
            cx.state.counters.splits_deferred += 1;
            let first = Vpn(page.0.wrapping_sub(index));
            Partial { unmapped: [0; 8], count: 0, process, first, ticket: *tickets }
        });
        debug_assert!(!partial.has(index), "{frame:?} is unmapped twice");
        partial.unmapped[(index / 64) as usize] |= 1 << (index % 64);
        partial.count += 1;
        *held += 1;
        if partial.count == FRAMES {
            self.pages.remove(&head);
            self.held -= FRAMES;
            cx.free(FrameRange::new(head, PageCount(FRAMES)));
        }
    }

    /// Splits the huge page that `frame` is part of (`split_huge_page`): what nothing maps is free,
    /// the rest are pages of their own. Returns how many frames became free.
    pub fn split(&mut self, cx: &mut Context<'_>, frame: Frame) -> PageCount {
        let head = frame.align_down(PageSize::Huge.order());
        cx.state.memory.split_compound(head);
        cx.state.counters.splits_whole += 1;
        let Some(partial) = self.pages.remove(&head) else { return PageCount(0) };
        self.held -= partial.count;
        flush_mapped(cx, head, &partial);
        // All but the first, which its finder still holds (`__split_huge_page`).
        for index in (1..FRAMES).chain([0]).filter(|&index| partial.has(index)) {
            cx.free(FrameRange::single(head + index));
        }
        PageCount(partial.count)
    }

    /// The shrinker's turn in a round of reclaim at `priority`. Returns how many frames became
    /// free.
    pub fn shrink(&mut self, cx: &mut Context<'_>, priority: u32) -> PageCount {
        let mut freed = 0;
        let mut asked = std::mem::take(&mut self.asked);
        asked.shrink(self.pages.len() as u64, priority, |count| {
            let (split, frames) = self.scan(cx, count);
            freed += frames;
            split > 0 || !self.is_empty()
        });
        self.asked = asked;
        PageCount(freed)
    }

    /// Linux's `deferred_split_scan`: takes up to `count` from the front of the queue and splits
    /// the last of them first. Returns how many, and how many frames became free.
    fn scan(&mut self, cx: &mut Context<'_>, count: u64) -> (u64, u64) {
        let mut taken = Vec::new();
        while (taken.len() as u64) < count
            && let Some((head, ticket)) = self.queue.pop_front()
        {
            if self.pages.get(&head).is_some_and(|partial| partial.ticket == ticket) {
                taken.push(head);
            }
        }
        let freed = taken.iter().rev().map(|&head| self.split(cx, head).0).sum();
        (taken.len() as u64, freed)
    }

    /// Checks that what is held is allocated, whole, and counted.
    ///
    /// # Panics
    /// With a message that names the frame, if that does not hold.
    pub fn check_invariants(&self, state: &KernelState) {
        for (&head, partial) in &self.pages {
            assert!(state.memory.is_compound(head), "{head:?} waits to be split and is not whole");
            let bits: u32 = partial.unmapped.iter().map(|word| word.count_ones()).sum();
            assert_eq!(u64::from(bits), partial.count, "frames of {head:?} that nothing maps");
            assert!((1..FRAMES).contains(&partial.count), "{head:?} has {} unmapped frames", partial.count);
            assert!(self.queue.contains(&(head, partial.ticket)), "{head:?} is not in the queue");
        }
        assert_eq!(self.held, self.pages.values().map(|partial| partial.count).sum::<u64>(), "frames held");
    }
}

/// The pages that are still mapped are unmapped for a moment, one by one (`unmap_folio`): cores
/// forget each. Of those that the process does not map where it mapped the others, none is told.
fn flush_mapped(cx: &mut Context<'_>, head: Frame, partial: &Partial) {
    for index in (0..FRAMES).filter(|&index| !partial.has(index)) {
        let page = Vpn(partial.first.0.wrapping_add(index));
        let maps_it = cx.state.processes.get(partial.process).is_ok_and(|space| {
            page < space.table.geometry().end() && space.table.translate(page) == Some(head + index)
        });
        if maps_it {
            cx.invalidate(partial.process, VpnRange::new(page, PageCount(1)), false);
        }
    }
}
