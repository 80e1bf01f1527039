// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order in which the pages of a range that is given back reach the allocator (Linux's
//! `mmu_gather`).
//!
//! Pages are collected in the order of their addresses, and freed at the end a batch at a time,
//! each batch from its last page to its first (`release_pages` strings them together at the head of
//! a list). So the next program to take them from the processor's list gets them in the order of
//! their old addresses, batch by batch. Every batch but the first needs a page of the kernel's own
//! meanwhile; that it is allocated matters, since per-CPU lists give less back after an allocation.
//!
//! Pages of a file go in small batches as the file is truncated (`shmem_undo_range`).

use nestwalk_mem::{Cpu, Frame, MigrateType, Order, Owner, PhysicalMemory};

use super::vma::VmaKind;

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

    /// A range of this kind is about to be zapped: its frames are collected until [`Gather::end`].
    pub(crate) fn begin(&mut self, kind: VmaKind) {
        debug_assert!(!self.holds_back(), "one range is zapped at a time");
        self.kind = Some(kind);
    }

    /// Collects a frame (`__tlb_remove_page_size`).
    pub(crate) fn add(&mut self, frame: Frame, memory: &mut PhysicalMemory, cpu: Cpu) {
        if self.frames.len() == self.room() && !self.next_batch(memory, cpu) {
            self.flush(memory, cpu);
        }
        self.frames.push(frame);
    }

    /// Makes room for one more batch, if there may be one (`tlb_next_batch`).
    fn next_batch(&mut self, memory: &mut PhysicalMemory, cpu: Cpu) -> bool {
        if self.kind == Some(VmaKind::File) || self.batches.len() == FURTHER_COUNT {
            return false;
        }
        let Some(page) = memory.alloc(Order::PAGE, MigrateType::Unmovable, cpu) else { return false };
        memory.set_owner(page, Owner::Kernel);
        self.batches.push(page);
        true
    }

    /// The range has been zapped: all that was collected goes (`tlb_finish_mmu`).
    pub(crate) fn end(&mut self, memory: &mut PhysicalMemory, cpu: Cpu) {
        self.flush(memory, cpu);
        self.kind = None;
        for page in self.batches.drain(..) {
            memory.free(page, Order::PAGE, cpu);
        }
    }

    /// Frees what was collected, batch by batch, each from its last page to its first
    /// (`tlb_batch_pages_flush`).
    fn flush(&mut self, memory: &mut PhysicalMemory, cpu: Cpu) {
        let first = if self.kind == Some(VmaKind::File) { self.frames.len() } else { self.frames.len().min(FIRST) };
        let (first, further) = self.frames.split_at(first);
        for &frame in std::iter::once(first).chain(further.chunks(FURTHER)).flat_map(|batch| batch.iter().rev()) {
            memory.free(frame, Order::PAGE, cpu);
        }
        self.frames.clear();
    }
}

#[cfg(test)]
mod tests;
