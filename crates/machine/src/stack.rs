// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of a machine.
//!
//! One kernel is a native machine; a VM has a kernel of its own over it, and there may be several
//! VMs. A program's [`KernelChain`] names the kernels under it. What the kernels below one of them
//! are is looked up where it is needed: [`LowerKernels`].

use nestwalk_mem::{Cpu, PageTable, Vpn};
use nestwalk_mmu::Segments;
use nestwalk_os::{Bare, Below, FaultKind, Filled, Invalidation, Kernel, Miss, OsError, ProcessId};

use crate::chain::{Floor, KernelChain, cpu_of};
use crate::lower_kernels::{Host, LowerKernels, Paged, split};
use crate::paging::VmPaging;

/// All kernels of a machine. Each runs on bare metal or on one with a smaller number.
#[derive(Debug, Default)]
pub struct Stack {
    hosts: Vec<Host>,
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

impl Stack {
    /// Adds a kernel, and says its number.
    pub fn add(&mut self, kernel: Kernel) -> usize {
        self.hosts.push(Host { kernel, pagings: Vec::new() });
        self.hosts.len() - 1
    }

    /// Has the memory of the VM on `floor`, whose kernel is added next (or was right after that of
    /// the floor), translated by `paging`.
    pub fn add_paging(&mut self, floor: &Floor, paging: VmPaging) {
        let paged = Paged { vm: floor.process, guest: floor.kernel + 1, how: paging };
        self.hosts[floor.kernel].pagings.push(paged);
    }

    /// How the memory of the VM on `floor` is translated; `None` is EPT.
    #[inline]
    pub fn paging(&self, floor: &Floor) -> Option<&VmPaging> {
        let pagings = &self.hosts[floor.kernel].pagings;
        pagings.iter().find(|paged| paged.vm == floor.process).map(|paged| &paged.how)
    }

    /// Whether a daemon of some kernel should run before the next tick is due.
    pub fn has_background_work(&self) -> bool {
        self.hosts.iter().any(|host| host.kernel.has_background_work())
    }

    /// The kernel of a floor.
    #[inline]
    pub fn kernel(&self, floor: &Floor) -> &Kernel {
        &self.hosts[floor.kernel].kernel
    }

    /// The kernel that a program runs on.
    pub fn top_kernel(&self, chain: &KernelChain) -> &Kernel {
        self.kernel(chain.top_floor())
    }

    /// The processor of the program's kernel on which its thread number `thread` runs.
    #[inline]
    pub fn cpu(&self, chain: &KernelChain, thread: u16) -> Cpu {
        let floor = chain.top_floor();
        cpu_of(self.kernel(floor), floor.first_cpu, Cpu(thread))
    }

    /// The processor of the machine (of the bottom kernel) that is `cpu` to the program's kernel.
    #[inline]
    pub fn machine_cpu(&self, chain: &KernelChain, cpu: Cpu) -> Cpu {
        let under = &chain.floors()[..chain.top()];
        under.iter().rev().fold(cpu, |cpu, floor| cpu_of(self.kernel(floor), floor.first_cpu, cpu))
    }

    /// Calls `act` with the kernel of floor `layer` of `chain`, the process that it runs, and what
    /// lies below it. `cpu` is the processor of that kernel that works.
    #[inline(always)]
    pub fn with<R>(
        &mut self,
        chain: &KernelChain,
        layer: usize,
        cpu: Cpu,
        act: impl FnOnce(&mut Kernel, ProcessId, &mut dyn Below) -> R,
    ) -> R {
        let (floor, floors) = chain.up_to(layer);
        let (host, hosts) = split(&mut self.hosts, floor.kernel);
        act(&mut host.kernel, floor.process, &mut LowerKernels::new(hosts, floors, cpu))
    }

    /// The latest of the clocks of the kernels of `chain`, ns.
    pub fn clock(&self, chain: &KernelChain) -> u64 {
        chain.floors().iter().map(|floor| self.kernel(floor).clock()).max().unwrap_or_default()
    }

    /// A page fault in the kernel of floor `layer`, on that kernel's processor `cpu`.
    ///
    /// # Errors
    /// When that kernel, or one below it, cannot serve it.
    #[inline]
    pub fn fault(
        &mut self,
        chain: &KernelChain,
        layer: usize,
        page: Vpn,
        store: bool,
        cpu: Cpu,
    ) -> Result<FaultKind, OsError> {
        self.with(chain, layer, cpu, |kernel, process, below| kernel.fault(process, page, store, cpu, below))
    }

    /// A load (or store) of the program on `chain`, of which only what it does to the kernels
    /// matters: see [`Kernel::touch`].
    ///
    /// # Errors
    /// As [`Stack::fault`].
    #[inline]
    pub fn touch(&mut self, chain: &KernelChain, page: Vpn, store: bool, cpu: Cpu) -> Result<(), OsError> {
        self.with(chain, chain.top(), cpu, |kernel, process, below| kernel.touch(process, page, store, cpu, below))
    }

    /// The page table of what runs on floor `layer`.
    ///
    /// # Errors
    /// When it has exited.
    pub fn table(&self, chain: &KernelChain, layer: usize) -> Result<&PageTable, OsError> {
        let floor = &chain.floors()[layer];
        self.kernel(floor).table(floor.process)
    }

    /// What the hardware walks for the program on `chain`. A shadow table has taken in all that was
    /// written to what it is made from.
    ///
    /// # Errors
    /// When the program, or a VM that it runs in, has exited.
    #[inline]
    pub fn translation(&mut self, chain: &KernelChain) -> Result<Translation<'_>, OsError> {
        let [bottom, floors @ ..] = chain.floors() else { unreachable!("a chain has a kernel") };
        let Some(next) = floors.first() else {
            return Ok(Translation::OneTable(self.hosts[bottom.kernel].kernel.table_mut(bottom.process)?));
        };
        let (lower, upper) = self.hosts.split_at_mut(next.kernel);
        let (host, paging) = lower[bottom.kernel].parts(bottom.process);
        let (this, above) = upper.split_first_mut().expect("the next floor's kernel");
        let guest = this.kernel.table_mut(next.process)?;
        match paging {
            None => Ok(Translation::TwoTables { guest, host: host.table_mut(bottom.process)?, base: bottom.base }),
            Some(VmPaging::Segments(segments)) => Ok(Translation::Segments(guest, segments)),
            Some(VmPaging::Shadow(shadows)) => {
                host.synchronise_shadow(shadows, (next.process, guest));
                let shadow = shadows.table(next.process);
                let Some(top) = floors.get(1) else { return Ok(Translation::OneTable(shadow)) };
                let guest = above[top.kernel - next.kernel - 1].kernel.table_mut(top.process)?;
                Ok(Translation::TwoTables { guest, host: shadow, base: next.base })
            }
        }
    }

    /// Whether the lowest kernel under the program keeps a shadow table.
    #[inline]
    pub fn shadows(&self, chain: &KernelChain) -> bool {
        chain.depth() > 1 && matches!(self.paging(chain.bottom_floor()), Some(VmPaging::Shadow(_)))
    }

    /// The hardware missed `page` in the shadow table, or may not store there: the lowest kernel
    /// fills the entry, taking faults of its own as need be. `false` if that is a fault of the
    /// kernel above: the table that it keeps does not map the page, or has no shadow. `cpu` is the
    /// processor of the machine.
    ///
    /// # Errors
    /// When the lowest kernel is out of memory, or the program has exited.
    pub fn shadow_fault(&mut self, chain: &KernelChain, page: Vpn, store: bool, cpu: Cpu) -> Result<bool, OsError> {
        let [bottom, next, ..] = chain.floors() else { return Ok(false) };
        let (lower, upper) = self.hosts.split_at_mut(next.kernel);
        let (host, Some(VmPaging::Shadow(shadows))) = lower[bottom.kernel].parts(bottom.process) else {
            return Ok(false);
        };
        let shadowed = upper[0].kernel.table_mut(next.process)?;
        loop {
            match host.fill_shadow(shadows, (next.process, shadowed), Miss { page, store, cpu })? {
                Filled::Done => return Ok(true),
                Filled::Upper => return Ok(false),
                Filled::Lower(page) => host.fault(bottom.process, page, store, cpu, &mut Bare)?,
            };
        }
    }

    /// Hands out the shootdowns that were asked for since the last time: the kernel that asks, and
    /// what to forget. Shadow tables hear of them first.
    #[inline]
    pub fn drain_invalidations(&mut self, mut apply: impl FnMut(usize, Invalidation)) {
        for number in 0..self.hosts.len() {
            if self.hosts[number].kernel.has_invalidations() {
                self.drain_kernel(number, &mut apply);
            }
        }
    }

    fn drain_kernel(&mut self, number: usize, apply: &mut impl FnMut(usize, Invalidation)) {
        if self.hosts.iter().all(|host| host.pagings.is_empty()) {
            let taken = self.hosts[number].kernel.take_invalidations();
            return taken.for_each(|invalidation| apply(number, invalidation));
        }
        let taken: Vec<_> = self.hosts[number].kernel.take_invalidations().collect();
        for invalidation in taken {
            self.tell_shadows(number, &invalidation);
            apply(number, invalidation);
        }
    }

    /// The kernel of that `number` has changed a table, and flushed what hardware knows of it.
    fn tell_shadows(&mut self, number: usize, invalidation: &Invalidation) {
        for host in 0..self.hosts.len() {
            let (lower, upper) = self.hosts.split_at_mut(host + 1);
            let Host { kernel, pagings } = &mut lower[host];
            for Paged { vm, guest, how } in pagings {
                let VmPaging::Shadow(shadows) = how else { continue };
                let guest_kernel = &mut upper[*guest - host - 1].kernel;
                if number == host && invalidation.process == *vm {
                    kernel.host_changed(shadows, guest_kernel, invalidation.scope);
                } else if number == *guest {
                    kernel.guest_flushed(shadows, guest_kernel, invalidation);
                }
            }
        }
    }
}
