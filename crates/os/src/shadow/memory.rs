// SPDX-License-Identifier: MIT OR Apache-2.0
//! A VM's memory under shadow paging, and how the shadow of its direct map is filled.

use nestwalk_mem::{Cpu, Entry, Frame, FrameRange, Geometry, Leaf, PageSize, PageTable, Vpn};

use super::Shadows;
use super::direct::{DirectMap, page_of};
use super::table::{PREFETCHED, usable};
use crate::below::{Bare, Below, Hypercall, HypercallReply};
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::kernel::host_memory::HostMemory;

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
        // Reclaim for a node may have taken the page again: then this use is over, and the next one
        // faults.
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
