// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which kernels a program runs on: one natively, two in a VM, three in a nested VM.

use nestwalk_mem::{Cpu, Vpn};
use nestwalk_os::{Kernel, ProcessId};

use crate::kernel_scenario::KERNELS_MAX;

/// A kernel of a chain, and what the next kernel (or the program) is to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Floor {
    /// Its number in the [`Stack`](crate::stack::Stack).
    pub kernel: usize,
    /// The process that the VM above (or the program) is.
    pub process: ProcessId,
    /// Where in that process the memory of the VM above begins; 0 for a program.
    pub base: Vpn,
    /// The processor of this kernel on which processor 0 of the VM above (or the program's first
    /// thread) runs.
    pub first_cpu: Cpu,
}

/// Which processor of `kernel` is number `cpu` of those that begin at `first`.
#[inline]
pub(crate) fn cpu_of(kernel: &Kernel, first: Cpu, cpu: Cpu) -> Cpu {
    let (number, cpus) = (u32::from(first.0) + u32::from(cpu.0), u32::from(kernel.config().cpus));
    // A division takes longer than all the rest, and is hardly ever needed.
    Cpu(if number < cpus { number } else { number % cpus } as u16)
}

/// The kernels under a program, bottom first.
#[derive(Clone, Copy, Debug)]
pub struct KernelChain {
    floors: [Floor; KernelChain::DEPTH_MAX],
    depth: usize,
}

impl KernelChain {
    /// The most kernels on top of each other.
    pub const DEPTH_MAX: usize = KERNELS_MAX;

    /// These kernels, bottom first.
    ///
    /// # Panics
    /// When there is none, there are more than [`KernelChain::DEPTH_MAX`], or one does not come
    /// after the one below it in the stack.
    pub fn new(floors: &[Floor]) -> Self {
        assert!((1..=Self::DEPTH_MAX).contains(&floors.len()), "{} kernels", floors.len());
        assert!(floors.is_sorted_by(|below, above| below.kernel < above.kernel), "{floors:?}");
        let mut all = [floors[0]; Self::DEPTH_MAX];
        all[..floors.len()].copy_from_slice(floors);
        Self { floors: all, depth: floors.len() }
    }

    /// The kernels, bottom first.
    #[inline]
    pub fn floors(&self) -> &[Floor] {
        &self.floors[..self.depth]
    }

    /// The floor `layer`, and those below it, bottom first.
    #[inline]
    pub fn up_to(&self, layer: usize) -> (&Floor, &[Floor]) {
        debug_assert!(layer < self.depth, "floor {layer} of {}", self.depth);
        (&self.floors[layer], &self.floors[..layer])
    }

    /// The lowest kernel.
    #[inline]
    pub fn bottom_floor(&self) -> &Floor {
        &self.floors[0]
    }

    /// The kernel that the program runs on.
    #[inline]
    pub fn top_floor(&self) -> &Floor {
        &self.floors[self.depth - 1]
    }

    /// How many kernels there are.
    #[inline]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The number of the topmost floor.
    #[inline]
    pub fn top(&self) -> usize {
        self.depth - 1
    }

    /// The process of the topmost kernel that the program is.
    #[inline]
    pub fn process(&self) -> ProcessId {
        self.top_floor().process
    }

    /// The program is another process of its kernel from now on.
    pub fn become_process(&mut self, process: ProcessId) {
        self.floors[self.depth - 1].process = process;
    }

    /// What the kernel of floor `layer` is called in results and messages.
    pub fn role(&self, layer: usize) -> &'static str {
        role(layer, self.depth)
    }
}

/// What the kernel of `layer` is called in results and messages, where there are `depth`.
pub(crate) fn role(layer: usize, depth: usize) -> &'static str {
    match (layer, depth) {
        (0, 1) => "native",
        (0, _) => "host",
        (layer, depth) if layer + 1 == depth => "guest",
        _ => "middle",
    }
}
