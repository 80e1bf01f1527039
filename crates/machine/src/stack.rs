// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels stacked on each other: one is a native machine, two are a VM on its host, three are nested virtualisation.

use nestwalk_mem::{Cpu, PageTable, Vpn};
use nestwalk_os::{Bare, Below, FaultKind, HostMemory, Invalidation, Kernel, OsError, ProcessId};

/// A kernel and what runs on it: the VM above, or the program on the topmost one.
#[derive(Debug)]
pub struct Layer {
    /// The kernel.
    pub kernel: Kernel,
    /// The process that the layer above (or the program) is.
    pub process: ProcessId,
    /// Where in that process the memory of the layer above begins; 0 at the top.
    pub base: Vpn,
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

    /// The page table of a native program.
    pub fn native_table(&mut self) -> &mut PageTable {
        let layer = &mut self.layers[0];
        table_of(layer)
    }

    /// The tables of a program in a VM: the guest's, the host's, and the host page at which guest frame 0 lies.
    ///
    /// # Panics
    /// When there are not two kernels.
    pub fn nested_tables(&mut self) -> (&mut PageTable, &mut PageTable, Vpn) {
        let [host, guest] = &mut self.layers[..] else { panic!("a nested walk takes two kernels") };
        let base = host.base;
        (table_of(guest), table_of(host), base)
    }

    /// Hands out the shootdowns that were asked for since the last time: the layer, the process that it runs, and what to
    /// forget.
    #[inline]
    pub fn drain_invalidations(&mut self, mut apply: impl FnMut(usize, ProcessId, Invalidation)) {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if layer.kernel.has_invalidations() {
                let process = layer.process;
                layer.kernel.take_invalidations().for_each(|invalidation| apply(index, process, invalidation));
            }
        }
    }
}
