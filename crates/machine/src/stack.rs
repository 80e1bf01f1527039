// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels stacked on each other: one is a native machine, two are a VM on its host, three are nested virtualisation.

use nestwalk_mem::{Cpu, PageTable, Vpn};
use nestwalk_mmu::Segments;
use nestwalk_os::{Bare, Below, FaultKind, Filled, HostMemory, Invalidation, Kernel, OsError, ProcessId};

use crate::paging::VmPaging;

/// A kernel and what runs on it: the VM above, or the program on the topmost one.
#[derive(Debug)]
pub struct Layer {
    /// The kernel.
    pub kernel: Kernel,
    /// The process that the layer above (or the program) is.
    pub process: ProcessId,
    /// Where in that process the memory of the layer above begins; 0 at the top.
    pub base: Vpn,
    /// How that memory is translated.
    pub paging: VmPaging,
}

impl Layer {
    fn memory<'a>(&'a mut self, cpu: Cpu, below: &'a mut dyn Below) -> HostMemory<'a> {
        HostMemory { host: &mut self.kernel, process: self.process, base: self.base, cpu, below }
    }
}

/// The kernels of a machine, bottom first.
#[derive(Debug)]
pub struct Stack {
    layers: Vec<Layer>,
}

/// Calls `act` with what lies under a kernel that stands on `layers`.
pub(crate) fn with_below<R>(layers: &mut [Layer], cpu: Cpu, act: impl FnOnce(&mut dyn Below) -> R) -> R {
    match layers {
        [] => act(&mut Bare),
        [host] => act(&mut host.memory(cpu, &mut Bare)),
        [bottom, host] => act(&mut host.memory(cpu, &mut bottom.memory(cpu, &mut Bare))),
        _ => unreachable!("a stack has at most three kernels"),
    }
}

/// The page table of what runs on `layer`.
fn table_of(layer: &mut Layer) -> &mut PageTable {
    layer.kernel.table_mut(layer.process).expect("a layer's process lives as long as the layer")
}

/// What the hardware walks.
#[derive(Debug)]
pub enum Translation<'a> {
    /// One table: a native program's, or a shadow table.
    OneTable(&'a mut PageTable),
    /// A table over another, in which what the first calls frame 0 is page `base`.
    TwoTables {
        /// The program's.
        guest: &'a mut PageTable,
        /// The one below: the host's, or a shadow table.
        host: &'a mut PageTable,
        /// See above.
        base: Vpn,
    },
    /// A table over segment registers.
    Segments(&'a mut PageTable, &'a Segments),
}

/// The page of the lowest guest kernel's table whose shadow entry a fault misses.
type ShadowPage = Vpn;

impl Stack {
    /// The most kernels that can be stacked.
    pub const LAYERS_MAX: usize = 3;

    /// A stack of `layers`, bottom first.
    ///
    /// # Panics
    /// When there is none, or more than [`Stack::LAYERS_MAX`].
    pub fn new(layers: Vec<Layer>) -> Self {
        assert!((1..=Self::LAYERS_MAX).contains(&layers.len()));
        Self { layers }
    }

    /// The layers, bottom first.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// How many there are.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// The topmost layer, on which the program runs.
    pub fn top(&self) -> usize {
        self.layers.len() - 1
    }

    /// Calls `act` with the kernel of `layer`, the process that it runs, and what lies below it.
    pub fn with<R>(
        &mut self,
        layer: usize,
        cpu: Cpu,
        act: impl FnOnce(&mut Kernel, ProcessId, &mut dyn Below) -> R,
    ) -> R {
        let (under, from) = self.layers.split_at_mut(layer);
        let Layer { kernel, process, .. } = &mut from[0];
        with_below(under, cpu, |below| act(kernel, *process, below))
    }

    /// A page fault in the kernel of `layer`.
    ///
    /// # Errors
    /// When that kernel, or one below it, cannot serve it.
    #[inline]
    pub fn fault(&mut self, layer: usize, page: Vpn, store: bool, cpu: Cpu) -> Result<FaultKind, OsError> {
        self.with(layer, cpu, |kernel, process, below| kernel.fault(process, page, store, cpu, below))
    }

    /// Lets the daemons of all kernels work until `now_ns`, bottom first.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn tick(&mut self, now_ns: u64) -> Result<(), OsError> {
        for layer in 0..self.layers.len() {
            self.with(layer, Cpu(0), |kernel, _, below| kernel.tick(now_ns, below))?;
        }
        Ok(())
    }

    /// What the hardware walks now. A shadow table has taken in all that was written to what it is made from.
    pub fn translation(&mut self) -> Translation<'_> {
        let (host, above) = self.layers.split_first_mut().expect("a stack has a layer");
        let Some((next, over)) = above.split_first_mut() else { return Translation::OneTable(table_of(host)) };
        let Layer { kernel, paging, base, process } = host;
        match paging {
            VmPaging::Ept => {
                let host = kernel.table_mut(*process).expect("a layer's process lives as long as the layer");
                Translation::TwoTables { guest: table_of(next), host, base: *base }
            }
            VmPaging::Segments(segments) => Translation::Segments(table_of(next), segments),
            VmPaging::Shadow(shadow) => {
                kernel.synchronise_shadow(shadow, table_of(next));
                match over.first_mut() {
                    None => Translation::OneTable(&mut shadow.table),
                    Some(top) => {
                        Translation::TwoTables { guest: table_of(top), host: &mut shadow.table, base: next.base }
                    }
                }
            }
        }
    }

    /// Whether the lowest kernel keeps a shadow table.
    pub fn shadows(&self) -> bool {
        matches!(self.layers[0].paging, VmPaging::Shadow(_))
    }

    /// The hardware missed `page` in the shadow table, or may not store there: the lowest kernel fills the entry, taking
    /// faults of its own as need be. `false` if the table that is shadowed does not map the page: a fault of the kernel that
    /// keeps it.
    ///
    /// # Errors
    /// When the lowest kernel is out of memory.
    ///
    /// # Panics
    /// When there is no shadow table.
    pub fn shadow_fault(&mut self, page: ShadowPage, store: bool, cpu: Cpu) -> Result<bool, OsError> {
        let [host, next, ..] = &mut self.layers[..] else { panic!("a shadow table takes two kernels") };
        let Layer { kernel, process, base, paging: VmPaging::Shadow(shadow) } = host else {
            panic!("the lowest kernel keeps no shadow table")
        };
        let upper = table_of(next);
        kernel.synchronise_shadow(shadow, upper);
        loop {
            match kernel.fill_shadow(shadow, upper, (*process, *base), page, store, cpu)? {
                Filled::Done => return Ok(true),
                Filled::Upper => return Ok(false),
                Filled::Lower(page) => kernel.fault(*process, page, store, cpu, &mut Bare)?,
            };
        }
    }

    /// Hands out the shootdowns that were asked for since the last time: the layer, the process that it runs, and what to
    /// forget.
    #[inline]
    pub fn drain_invalidations(&mut self, mut apply: impl FnMut(usize, ProcessId, Invalidation)) {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if !layer.kernel.has_invalidations() {
                continue;
            }
            let Layer { kernel, process, paging, .. } = layer;
            let mut changed = false;
            kernel.take_invalidations().for_each(|invalidation| {
                changed |= invalidation.process == *process;
                apply(index, *process, invalidation);
            });
            if let VmPaging::Shadow(shadow) = paging
                && changed
            {
                kernel.zap_shadow(shadow);
            }
        }
    }
}
