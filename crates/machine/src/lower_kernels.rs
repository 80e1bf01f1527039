// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lies under a kernel's memory on this machine, looked up as far as it is needed.
//!
//! A kernel tells [`Below`] of each frame that it uses. [`LowerKernels`] is the kernel right below,
//! with the floors that are left: where that kernel uses a frame of its own, the next one is split
//! off in the same way, to any depth. Bare metal is the end of the list.

use nestwalk_mem::{Cpu, Frame, FrameRange};
use nestwalk_os::{Below, HostMemory, Hypercall, HypercallReply, Kernel, OsError, ProcessId, ShadowedMemory};

use crate::chain::{Floor, cpu_of};
use crate::paging::VmPaging;

/// A kernel, with the VMs on it whose memory is translated by something else than EPT.
#[derive(Debug)]
pub(crate) struct Host {
    pub kernel: Kernel,
    pub pagings: Vec<Paged>,
}

/// How the memory of one VM is translated.
#[derive(Debug)]
pub(crate) struct Paged {
    /// The process of the host that the VM is.
    pub vm: ProcessId,
    /// The number of the kernel that runs in it.
    pub guest: usize,
    pub how: VmPaging,
}

impl Host {
    /// The kernel, and how the memory of its process `vm` is translated; `None` is EPT.
    #[inline]
    pub fn parts(&mut self, vm: ProcessId) -> (&mut Kernel, Option<&mut VmPaging>) {
        let Self { kernel, pagings } = self;
        if pagings.is_empty() {
            return (kernel, None);
        }
        (kernel, pagings.iter_mut().find(|paged| paged.vm == vm).map(|paged| &mut paged.how))
    }
}

/// The kernel of that number, and those with smaller ones.
#[inline(always)]
pub(crate) fn split(hosts: &mut [Host], kernel: usize) -> (&mut Host, &mut [Host]) {
    hosts[..=kernel].split_last_mut().expect("it has one at least")
}

/// The kernels under one kernel of a chain.
pub(crate) enum LowerKernels<'a> {
    /// None: the kernel runs on bare metal.
    Metal,
    /// The kernel runs in a VM.
    Vm(Vm<'a>),
}

/// A VM, as the kernel in it sees what is below.
pub(crate) struct Vm<'a> {
    /// The kernel that hosts it.
    host: &'a mut Kernel,
    /// How its memory is translated; `None` is EPT.
    paging: Option<&'a mut VmPaging>,
    /// Its floor in the chain.
    floor: &'a Floor,
    /// The processor of the host that works.
    cpu: Cpu,
    /// What the host runs on: all kernels with smaller numbers, and the floors that are left.
    hosts: &'a mut [Host],
    floors: &'a [Floor],
}

impl<'a> LowerKernels<'a> {
    /// Those of `floors`, bottom first, under a kernel whose processor `cpu` works. `hosts` are all
    /// kernels with smaller numbers than that one.
    #[inline(always)]
    pub fn new(hosts: &'a mut [Host], floors: &'a [Floor], cpu: Cpu) -> Self {
        let Some((floor, floors)) = floors.split_last() else { return Self::Metal };
        let (host, hosts) = split(hosts, floor.kernel);
        let (host, paging) = host.parts(floor.process);
        let cpu = cpu_of(host, floor.first_cpu, cpu);
        Self::Vm(Vm { host, paging, floor, cpu, hosts, floors })
    }
}

impl Vm<'_> {
    /// Calls `act` with the VM's memory, as its kernel reaches it.
    fn with_memory<R>(&mut self, act: impl FnOnce(&mut dyn Below) -> R) -> R {
        let Self { host, floor, cpu, .. } = self;
        let below = &mut LowerKernels::new(self.hosts, self.floors, *cpu);
        let mut memory = HostMemory { host, process: floor.process, base: floor.base, cpu: *cpu, below };
        match &mut self.paging {
            Some(VmPaging::Shadow(shadows)) => act(&mut ShadowedMemory { memory: &mut memory, shadows }),
            _ => act(&mut memory),
        }
    }

    // A function of its own, so that the answer of bare metal costs nothing.
    #[inline(never)]
    fn touch(&mut self, frames: FrameRange, store: bool) -> Result<(), OsError> {
        if self.paging.is_some() || frames.count.0 != 1 {
            return self.touch_any(frames, store);
        }
        // One frame, which is what nearly all touches are: as `HostMemory` does it.
        let (frame, Floor { process, base, .. }) = (frames.start, *self.floor);
        let below = &mut LowerKernels::new(self.hosts, self.floors, self.cpu);
        match self.host.touch(process, base + frame.0, store, self.cpu, below) {
            Ok(()) => Ok(()),
            Err(source) => Err(not_backed(frame, source)),
        }
    }

    /// Several frames at once, or with a shadow table to keep.
    #[inline(never)]
    fn touch_any(&mut self, frames: FrameRange, store: bool) -> Result<(), OsError> {
        self.with_memory(|memory| memory.touch(frames, store))
    }
}

impl Below for LowerKernels<'_> {
    #[inline]
    fn touch(&mut self, frames: FrameRange, store: bool) -> Result<(), OsError> {
        match self {
            Self::Metal => Ok(()),
            Self::Vm(vm) => vm.touch(frames, store),
        }
    }

    #[inline]
    fn zero(&mut self, frames: FrameRange) -> Result<(), OsError> {
        match self {
            Self::Metal => Ok(()),
            Self::Vm(vm) => vm.touch(frames, true),
        }
    }

    #[inline]
    fn epoch(&self) -> Option<u64> {
        match self {
            Self::Metal => Some(0),
            Self::Vm(vm) => Some(vm.host.epoch()),
        }
    }

    fn hypercall(&mut self, call: Hypercall) -> HypercallReply {
        match self {
            Self::Metal => HypercallReply::Unsupported,
            Self::Vm(vm) => vm.with_memory(|memory| memory.hypercall(call)),
        }
    }
}

#[cold]
#[inline(never)]
fn not_backed(frame: Frame, source: OsError) -> OsError {
    OsError::Host { frame, source: Box::new(source) }
}
