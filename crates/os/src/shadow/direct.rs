// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a guest's kernel uses itself, under shadow paging.
//!
//! It reaches all of its memory through its direct map, which is shadowed like any other table: the first use of a frame
//! is an exit, in which the host takes its own fault if it must, and an entry is filled. The direct map is made of large pages and never
//! changes, so its shadow has nothing to watch above: a *direct* `kvm_mmu_page`. An entry is as large as the host's leaf, but no 2 MiB in which a
//! shadowed node lies are mapped in one piece (`kvm_mmu_gfn_disallow_lpage`): else it could not be write-protected alone.

use std::collections::BTreeSet;

use nestwalk_mem::{Cpu, Entry, Frame, FrameRange, Geometry, Leaf, Level, PageSize, PageTable, Vpn, VpnRange};

use super::{PREFETCHED, Shadows, unmap_all, usable};
use crate::below::{Bare, Below, HostMemory, Hypercall, HypercallReply};
use crate::error::OsError;
use crate::kernel::Kernel;

/// The shadow of a guest's direct map.
#[derive(Debug, Default)]
pub(super) struct DirectMap {
    /// By the guest's frames; there as soon as one is used.
    table: Option<PageTable>,
    /// Frames with nodes that are shadowed.
    nodes: BTreeSet<Frame>,
}

const fn page_of(frame: Frame) -> Vpn {
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

    /// From `frame` on, how many frames the kernel can load from (or store to) without an exit: 0 where `below`, the host's frame behind
    /// it, is another one than was filled.
    fn span(&self, frame: Frame, below: Option<Frame>, store: bool) -> u64 {
        let leaf = self.table.as_ref().and_then(|table| usable(table, page_of(frame), store));
        let same = leaf.filter(|leaf| below == Some(leaf.frame_of(page_of(frame))));
        same.map_or(0, |leaf| leaf.size().pages() - (frame.0 - leaf.page.0))
    }

    /// The size of an entry for `frame`, where the host's leaf is of `size`.
    fn size(&self, frame: Frame, size: PageSize) -> PageSize {
        let free = |size: &PageSize| {
            let first = frame.align_down(size.order());
            *size == PageSize::Small || self.nodes.range(first..first + size.pages()).next().is_none()
        };
        PageSize::ALL.into_iter().rev().filter(|&one| one <= size).find(free).unwrap_or(PageSize::Small)
    }
}

/// A VM's memory as its kernel sees it under shadow paging.
pub struct ShadowedMemory<'a, 'b> {
    /// The same without.
    pub memory: &'a mut HostMemory<'b>,
    /// What the host keeps for it.
    pub shadows: &'a mut Shadows,
}

impl ShadowedMemory<'_, '_> {
    /// The host's frame behind `frame`.
    fn below(&self, frame: Frame) -> Option<Frame> {
        self.memory.host.table(self.memory.process).ok()?.translate(self.memory.page_of(frame))
    }
}

impl Below for ShadowedMemory<'_, '_> {
    fn touch(&mut self, frames: FrameRange, store: bool) -> Result<(), OsError> {
        let mut frame = frames.start;
        while frame < frames.end() {
            let below = self.below(frame);
            let Some(direct) = &self.shadows.direct else { return self.memory.touch(frames, store) };
            // Exits for writes to a node that is shadowed are counted where they are taken in.
            let is_node = below.is_some() && direct.nodes.contains(&frame);
            match direct.span(frame, below, store) {
                0 if is_node => frame += 1,
                0 => {
                    self.memory.touch(FrameRange::single(frame), store)?;
                    let HostMemory { host, cpu, .. } = &mut *self.memory;
                    let filled = host.fill_direct(self.shadows, frame, store, *cpu);
                    filled.map_err(|source| OsError::Host { frame, source: Box::new(source) })?;
                    frame += 1;
                }
                span => frame += span,
            }
        }
        Ok(())
    }

    #[inline]
    fn epoch(&self) -> Option<u64> {
        self.memory.epoch()
    }

    fn hypercall(&mut self, call: Hypercall) -> HypercallReply {
        self.memory.hypercall(call)
    }
}

impl Kernel {
    /// The kernel of a VM uses `frame`, which is backed: fills the entry for it.
    fn fill_direct(&mut self, shadows: &mut Shadows, frame: Frame, store: bool, cpu: Cpu) -> Result<(), OsError> {
        self.reclaiming(cpu, &mut Bare, |host, _| host.try_fill_direct(shadows, frame, store, cpu))
    }

    fn try_fill_direct(&mut self, shadows: &mut Shadows, frame: Frame, store: bool, cpu: Cpu) -> Result<(), OsError> {
        let Shadows { vm, base, direct: Some(direct), .. } = shadows else { return Ok(()) };
        if direct.table.is_none() {
            direct.table = Some(PageTable::new(Geometry::X86_4, self.shadow_node(cpu)?));
        }
        // Reclaim for a node may have taken the page again: then this use is over, and the next one faults.
        let Some(below) = usable(self.table(*vm)?, *base + frame.0, store) else { return Ok(()) };
        let size = direct.size(frame, below.size());
        let first = frame.align_down(size.order());
        self.put_direct(direct, first, below, (*base, size), cpu)?;
        self.state.counters.shadow_fills += 1;
        if size > PageSize::Small {
            return Ok(());
        }
        let first = frame.align_down(PREFETCHED.ilog2());
        for neighbour in (0..PREFETCHED).map(|i| first + i) {
            if direct.table.as_ref().is_some_and(|table| table.leaf(page_of(neighbour)).is_some()) {
                continue;
            }
            let Some(below) = usable(self.table(*vm)?, *base + neighbour.0, true) else { break };
            self.put_direct(direct, neighbour, below, (*base, size), cpu)?;
            self.state.counters.shadow_prefetches += 1;
        }
        Ok(())
    }

    /// An entry of `size` for `frame`, which the host's leaf `below` maps.
    fn put_direct(
        &mut self,
        direct: &mut DirectMap,
        frame: Frame,
        below: Leaf,
        (base, size): (Vpn, PageSize),
        cpu: Cpu,
    ) -> Result<(), OsError> {
        let table = direct.table.as_mut().expect("it was made before");
        let place = (page_of(frame), below.frame_of(base + frame.0));
        self.map_shadow(table, place, size, below.entry.flags() & Entry::WRITABLE, cpu)
    }
}
