// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lies under a kernel's memory on this machine, looked up as far as it is needed.
//!
//! A kernel tells [`Below`] of each frame that it uses. Most frames are backed already, so the
//! kernels below are not prepared in advance: [`LowerKernels`] holds the floors that are left, and
//! each use splits off the topmost of them. That kernel gets the rest as its own `Below`, to any
//! depth; bare metal is the end of the list.

use nestwalk_mem::{Cpu, FrameRange};
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
        (kernel, pagings.iter_mut().find(|paged| paged.vm == vm).map(|paged| &mut paged.how))
    }
}

/// The kernels under one kernel of a chain.
pub(crate) struct LowerKernels<'a> {
    /// All kernels of the machine with smaller numbers than that kernel.
    pub hosts: &'a mut [Host],
    /// Those that it runs on, bottom first.
    pub floors: &'a [Floor],
    /// Its processor that works.
    pub cpu: Cpu,
}

impl LowerKernels<'_> {
    /// Calls `act` with the memory of the VM on the topmost of the floors; without one, there is
    /// bare metal, and the answer is `metal`.
    #[inline(always)]
    fn with<R>(&mut self, metal: R, act: impl FnOnce(&mut dyn Below) -> R) -> R {
        let Some((floor, floors)) = self.floors.split_last() else { return metal };
        let (hosts, upper) = self.hosts.split_at_mut(floor.kernel);
        let (host, paging) = upper[0].parts(floor.process);
        let cpu = cpu_of(host, floor.first_cpu, self.cpu);
        let below = &mut LowerKernels { hosts, floors, cpu };
        let mut memory = HostMemory { host, process: floor.process, base: floor.base, cpu, below };
        match paging {
            Some(VmPaging::Shadow(shadows)) => act(&mut ShadowedMemory { memory: &mut memory, shadows }),
            _ => act(&mut memory),
        }
    }
}

impl Below for LowerKernels<'_> {
    #[inline]
    fn touch(&mut self, frames: FrameRange, store: bool) -> Result<(), OsError> {
        self.with(Ok(()), |memory| memory.touch(frames, store))
    }

    #[inline]
    fn epoch(&self) -> Option<u64> {
        let Some(floor) = self.floors.last() else { return Some(0) };
        Some(self.hosts[floor.kernel].kernel.epoch())
    }

    fn hypercall(&mut self, call: Hypercall) -> HypercallReply {
        self.with(HypercallReply::Unsupported, |memory| memory.hypercall(call))
    }
}
