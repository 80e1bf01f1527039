// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order in which the pages of a range that is given back reach the allocator (Linux's `mmu_gather`).
//!
//! Pages are collected in the order of their addresses, and freed at the end a batch at a time, each batch from its last page
//! to its first (`release_pages` strings them together at the head of a list). So the next program to take them from the
//! processor's list gets them in the order of their old addresses, batch by batch. Every batch but the first needs a page of
//! the kernel's own meanwhile; that it is allocated matters, since per-CPU lists give less back after an allocation.
//!
//! Pages of a file go in small batches as the file is truncated (`shmem_undo_range`).

use nestwalk_mem::{Frame, MigrateType, Order, Owner};

use crate::context::Context;
use crate::vma::VmaKind;

/// Pages of the first batch (`MMU_GATHER_BUNDLE`).
const FIRST: usize = 8;
/// Pages of all further ones (`MAX_GATHER_BATCH`).
const FURTHER: usize = 510;
/// How many of those there are at once, at most (`MAX_GATHER_BATCH_COUNT`).
const FURTHER_COUNT: usize = 10_000 / FURTHER;
/// Pages of a batch of a file (`PAGEVEC_SIZE`).
const FILE: usize = 15;

/// Frames that have left a page table and are not yet free.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// Of what is being zapped.
    kind: Option<VmaKind>,
    frames: Vec<Frame>,
    /// The kernel's own pages that hold the batches but the first.
    batches: Vec<Frame>,
}

impl Gather {
    /// Whether single frames that are freed now are collected.
    #[inline]
    pub(crate) fn holds_back(&self) -> bool {
        self.kind.is_some()
    }

    /// How many frames there is room for.
    fn room(&self) -> usize {
        match self.kind {
            Some(VmaKind::File) => FILE,
            _ => FIRST + self.batches.len() * FURTHER,
        }
    }
}

impl Context<'_> {
    /// A range of this kind is about to be zapped: its frames are collected until [`Context::end_gather`].
    pub(crate) fn begin_gather(&mut self, kind: VmaKind) {
        debug_assert!(!self.state.gather.holds_back(), "one range is zapped at a time");
        self.state.gather.kind = Some(kind);
    }

    /// Collects a frame (`__tlb_remove_page_size`).
    pub(crate) fn gather(&mut self, frame: Frame) {
        let gather = &mut self.state.gather;
        if gather.frames.len() == gather.room() && !self.next_batch() {
            self.flush_gather();
        }
        self.state.gather.frames.push(frame);
    }

    /// Makes room for one more batch, if there may be one (`tlb_next_batch`).
    fn next_batch(&mut self) -> bool {
        let gather = &mut self.state.gather;
        if gather.kind == Some(VmaKind::File) || gather.batches.len() == FURTHER_COUNT {
            return false;
        }
        let memory = &mut self.state.memory;
        let Some(page) = memory.alloc(Order::PAGE, MigrateType::Unmovable, self.cpu) else { return false };
        memory.set_owner(page, Owner::Kernel);
        gather.batches.push(page);
        true
    }

    /// The range has been zapped: all that was collected goes (`tlb_finish_mmu`).
    pub(crate) fn end_gather(&mut self) {
        self.flush_gather();
        let gather = &mut self.state.gather;
        gather.kind = None;
        for page in gather.batches.drain(..) {
            self.state.memory.free(page, Order::PAGE, self.cpu);
        }
    }

    /// Frees what was collected, batch by batch, each from its last page to its first (`tlb_batch_pages_flush`).
    fn flush_gather(&mut self) {
        let gather = &mut self.state.gather;
        let (first, further) = gather.frames.split_at(gather.frames.len().min(FIRST));
        let (first, further) =
            if gather.kind == Some(VmaKind::File) { (&gather.frames[..], &[][..]) } else { (first, further) };
        for &frame in std::iter::once(first).chain(further.chunks(FURTHER)).flat_map(|batch| batch.iter().rev()) {
            self.state.memory.free(frame, Order::PAGE, self.cpu);
        }
        gather.frames.clear();
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::{Cpu, PageCount, Vpn, VpnRange};

    use crate::below::Bare;
    use crate::config::KernelConfig;
    use crate::kernel::Kernel;
    use crate::process::ProcessId;
    use crate::vma::VmaFlags;

    use super::*;

    fn touch(kernel: &mut Kernel, process: ProcessId, pages: VpnRange) -> Vec<Frame> {
        let touched = (pages.start.0..pages.end.0).map(|page| {
            kernel.fault(process, Vpn(page), true, Cpu(0), &mut Bare).unwrap();
            kernel.table(process).unwrap().translate(Vpn(page)).unwrap()
        });
        touched.collect()
    }

    /// Touches `count` pages, gives them back, and touches them anew: which of the old pages' frames each got.
    fn second_time(kind: VmaKind, count: u64) -> Vec<Option<usize>> {
        let mut kernel = Kernel::new(&KernelConfig::new(PageCount(1 << 16))).unwrap();
        let process = kernel.spawn(&mut Bare).unwrap();
        let pages = VpnRange::new(Vpn(0x1000), PageCount(count));
        let flags = VmaFlags { kind, ..VmaFlags::ANONYMOUS };
        kernel.mmap(process, pages, flags, &mut Bare).unwrap();
        let before = touch(&mut kernel, process, pages);
        kernel.madvise(process, pages, crate::Advice::DontNeed, &mut Bare).unwrap();
        kernel.check_invariants();
        let after = touch(&mut kernel, process, pages);
        after.iter().map(|frame| before.iter().position(|old| old == frame)).collect()
    }

    #[test]
    fn the_last_batch_comes_back_first_and_each_batch_in_order() {
        let expected: Vec<_> = (518..600).chain(8..518).chain(0..8).map(Some).collect();
        // The per-CPU list of 64 Ki frames is long enough to hold all of it.
        assert_eq!(second_time(VmaKind::Anonymous, 600), expected);
    }

    #[test]
    fn a_file_goes_in_small_batches() {
        let expected: Vec<_> = (30..40).chain(15..30).chain(0..15).map(Some).collect();
        assert_eq!(second_time(VmaKind::File, 40), expected);
    }
}
