// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a guest's kernel uses itself, under shadow paging.
//!
//! It reaches all of its memory through its direct map, which is shadowed like any other table: the
//! first use of a frame is an exit, in which the host takes its own fault if it must, and an entry
//! is filled. The direct map is made of large pages and never changes, so its shadow has nothing to
//! watch above: a *direct* `kvm_mmu_page`. An entry is as large as the host's leaf, but no 2 MiB in
//! which a shadowed node lies are mapped in one piece (`kvm_mmu_gfn_disallow_lpage`): else it could
//! not be write-protected alone.

use std::collections::BTreeSet;

use nestwalk_mem::{Frame, FrameRange, Level, PageSize, PageTable, Vpn, VpnRange};

use super::table::{unmap_all, usable};

/// The shadow of a guest's direct map.
#[derive(Debug, Default)]
pub(super) struct DirectMap {
    /// By the guest's frames; there as soon as one is used.
    pub(super) table: Option<PageTable>,
    /// Frames with nodes that are shadowed.
    pub(super) nodes: BTreeSet<Frame>,
}

pub(super) const fn page_of(frame: Frame) -> Vpn {
    Vpn(frame.0)
}

impl DirectMap {
    /// The node in `frame` is shadowed from now on. How many entries go for it.
    pub fn protect(&mut self, frame: Frame) -> u64 {
        self.nodes.insert(frame);
        let Some(table) = &mut self.table else { return 0 };
        let large = table.leaf(page_of(frame)).filter(|leaf| leaf.level > Level::PTE);
        u64::from(large.is_some_and(|leaf| table.unmap(leaf.page).is_some()))
    }

    /// The node in `frame` is shadowed no more.
    pub fn forget(&mut self, frame: Frame) {
        self.nodes.remove(&frame);
    }

    /// The host has changed what lies behind `frames`. How many entries go for it.
    pub fn zap(&mut self, frames: FrameRange) -> u64 {
        let Some(table) = &mut self.table else { return 0 };
        let end = page_of(frames.end()).min(table.geometry().end());
        unmap_all(table, VpnRange { start: page_of(frames.start), end })
    }

    /// From `frame` on, how many frames the kernel can load from (or store to) without an exit: 0
    /// where `below`, the host's frame behind it, is another one than was filled.
    pub fn span(&self, frame: Frame, below: Option<Frame>, store: bool) -> u64 {
        let leaf = self.table.as_ref().and_then(|table| usable(table, page_of(frame), store));
        let same = leaf.filter(|leaf| below == Some(leaf.frame_of(page_of(frame))));
        same.map_or(0, |leaf| leaf.size().pages() - (frame.0 - leaf.page.0))
    }

    /// The size of an entry for `frame`, where the host's leaf is of `size`.
    pub fn size(&self, frame: Frame, size: PageSize) -> PageSize {
        let free = |size: &PageSize| {
            let first = frame.align_down(size.order());
            *size == PageSize::Small || self.nodes.range(first..first + size.pages()).next().is_none()
        };
        PageSize::ALL.into_iter().rev().filter(|&one| one <= size).find(free).unwrap_or(PageSize::Small)
    }
}
