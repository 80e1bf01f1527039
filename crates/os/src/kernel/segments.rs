// SPDX-License-Identifier: MIT OR Apache-2.0
//! A VM whose whole memory lies in a few contiguous segments of the host's (Compromis, DS-n).
//!
//! The hypervisor chooses among its free segments by one of the rules of
//! [`nestwalk_cloud::allocator`]: the paper's option 1 or 2, best fit or first fit. All is
//! allocated when the VM begins, and pinned: neither reclaim nor compaction touches a frame that
//! registers point to.

use nestwalk_cloud::allocator::AllocatorOptions;
use nestwalk_cloud::{AllocatorKind, Extent, SegmentAllocator};
use nestwalk_mem::{Cpu, Entry, Frame, FrameRange, Order, PageCount, PageSize, Vpn, VpnRange};

use crate::below::Below;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::ProcessId;
use crate::state::vma::{HugeAdvice, VmaFlags};

/// Which of the `free` segments, in order of address, make up `memory`, in the order in which the
/// VM sees them. `None` if all of them together are too small.
fn choose(free: &[FrameRange], memory: PageCount, allocator: AllocatorKind) -> Option<Vec<FrameRange>> {
    let mut chosen = Vec::new();
    let done = allocator.build(free, &AllocatorOptions::default()).allocate(memory, 0, &mut chosen);
    done.then(|| chosen.into_iter().map(Extent::range).collect())
}

impl Kernel {
    /// As [`Kernel::host_vm`], with all of the VM's memory in at most `max` segments, which are
    /// returned in the order in which the guest sees them; `None`, and an ordinary VM, if free
    /// memory is in too many pieces for that. `allocator` is one that gives whole segments
    /// ([`AllocatorKind::keeps_whole`]).
    ///
    /// # Errors
    /// When the allocator gives none, and as [`Kernel::host_vm`].
    pub fn host_vm_in_segments(
        &mut self,
        memory: PageCount,
        max: usize,
        allocator: AllocatorKind,
        below: &mut dyn Below,
    ) -> Result<(ProcessId, Vpn, Option<Vec<FrameRange>>), OsError> {
        if !allocator.keeps_whole() {
            return Err(OsError::NotWhole(allocator));
        }
        let (process, base) = self.host_vm(memory, below)?;
        let free = self.free_segments();
        let spare = self.state.watermarks.high.0;
        let enough = self.state.memory.free_frames().0 >= memory.0 + spare;
        let Some(segments) = choose(&free, memory, allocator).filter(|segments| enough && segments.len() <= max) else {
            return Ok((process, base, None));
        };
        let pages = VpnRange::new(base, memory);
        self.munmap(process, pages, below)?;
        self.mmap(process, pages, VmaFlags { advice: HugeAdvice::NoHuge, ..VmaFlags::ANONYMOUS }, below)?;
        let mut page = base;
        for &segment in &segments {
            let had = crate::context::migrate::alloc_at(&mut self.state, below, segment);
            assert!(had.into_iter().all(|had| had), "{segment:?} was free");
            self.map_segment(process, page, segment, below)?;
            page += segment.count.0;
        }
        Ok((process, base, Some(segments)))
    }

    /// Free memory as maximal segments, in order of address, each beginning at a multiple of 2 MiB.
    fn free_segments(&mut self) -> Vec<FrameRange> {
        self.state.memory.drain();
        let mut blocks: Vec<(Frame, Order)> = self.state.memory.iter_free().collect();
        blocks.sort_unstable();
        let mut runs: Vec<FrameRange> = Vec::new();
        for (start, order) in blocks {
            match runs.last_mut() {
                Some(run) if run.end() == start => run.count.0 += order.frames(),
                _ => runs.push(FrameRange::new(start, PageCount(order.frames()))),
            }
        }
        let huge = PageSize::Huge.pages();
        let aligned = |run: FrameRange| {
            let start = run.start.0.next_multiple_of(huge);
            (start < run.end().0).then(|| FrameRange::new(Frame(start), PageCount(run.end().0 - start)))
        };
        runs.into_iter().filter_map(aligned).collect()
    }

    /// Maps `segment` at `page` in the largest leaves that fit, and pins it.
    fn map_segment(
        &mut self,
        process: ProcessId,
        page: Vpn,
        segment: FrameRange,
        below: &mut dyn Below,
    ) -> Result<(), OsError> {
        self.pin(segment);
        let (mut page, mut frame, end) = (page, segment.start, segment.end());
        while frame < end {
            let fits = |size: &PageSize| {
                page.is_aligned(size.order()) && frame.is_aligned(size.order()) && frame.0 + size.pages() <= end.0
            };
            let size = PageSize::ALL.into_iter().rev().find(fits).unwrap_or(PageSize::Small);
            let entry = Entry::leaf(frame, Entry::WRITABLE | Entry::ACCESSED | Entry::DIRTY);
            let (mut cx, _) = self.context(Cpu(0), below);
            cx.map_entry(process, page, size.level(), entry)?;
            (page, frame) = (page + size.pages(), frame + size.pages());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
