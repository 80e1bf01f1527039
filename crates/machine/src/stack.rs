// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of a machine.
//!
//! One kernel is a native machine; a VM has a kernel of its own over it, and there may be several
//! VMs. A program's [`KernelChain`] names the kernels under it. What the kernels below one of them
//! are is looked up where it is needed: [`LowerKernels`].

use nestwalk_mem::{Cpu, Nanoseconds, PageTable, Vpn};
use nestwalk_mmu::Segments;
use nestwalk_os::{Bare, Below, FaultKind, Filled, Invalidation, Kernel, Miss, OsError, ProcessId, WalkTime};

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

    /// Whether a kernel goes by the walk time of processes.
    pub fn wants_walk_time(&self) -> bool {
        self.hosts.iter().any(|host| host.kernel.wants_walk_time())
    }

    /// Tells the kernels of `chain` that the processors' counters went on by `more`, each for the
    /// process of its own that runs: the program, or the VM that it is in.
    pub fn add_walk_time(&mut self, chain: &KernelChain, more: WalkTime) {
        for floor in chain.floors() {
            self.hosts[floor.kernel].kernel.add_walk_time(floor.process, more);
        }
    }

    /// Whether a kernel under the program wants to hear of stores.
    #[inline]
    pub fn watches_stores(&self, chain: &KernelChain) -> bool {
        chain.floors().iter().any(|floor| self.kernel(floor).watches_stores())
    }

    /// The program has stored to `page`, or may have: tells its kernels, each of its own page.
    pub fn note_store(&mut self, chain: &KernelChain, mut page: Vpn) {
        for layer in (0..chain.depth()).rev() {
            let floor = &chain.floors()[layer];
            let kernel = &mut self.hosts[floor.kernel].kernel;
            kernel.note_store(floor.process, page);
            let frame = kernel.table(floor.process).ok().and_then(|table| table.translate(page));
            let (Some(frame), Some(below)) = (frame, layer.checked_sub(1)) else { return };
            page = chain.floors()[below].base + frame.0;
        }
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

    /// The latest of the clocks of the kernels of `chain`.
    pub fn clock(&self, chain: &KernelChain) -> Nanoseconds {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{add_kernel, add_process};
    use crate::testing::{FIRST, kernels, map};
    use nestwalk_mem::{Frame, PageCount};
    use nestwalk_os::{KernelConfig, Shadows};

    fn frame_of(stack: &Stack, chain: &KernelChain, layer: usize, page: Vpn) -> Option<Frame> {
        stack.table(chain, layer).unwrap().translate(page)
    }

    #[test]
    fn a_fault_is_served_by_all_kernels_below() {
        for depth in 1..=KernelChain::DEPTH_MAX {
            let (mut stack, chain) = kernels(depth);
            map(&mut stack, &chain, 4);
            stack.fault(&chain, chain.top(), FIRST + 2, true, Cpu(1)).unwrap();
            let mut page = FIRST + 2;
            for layer in (0..depth).rev() {
                let frame = frame_of(&stack, &chain, layer, page);
                let frame = frame.unwrap_or_else(|| panic!("{depth} kernels: floor {layer} backs {page:?}"));
                if layer > 0 {
                    page = chain.floors()[layer - 1].base + frame.0;
                }
            }
        }
    }

    #[test]
    fn what_the_kernel_below_cannot_back_is_an_error_that_names_the_frame() {
        let (mut stack, chain) = kernels(2);
        map(&mut stack, &chain, 4);
        let vm = chain.floors()[0];
        stack.with(&chain, 0, Cpu(0), |kernel, _, below| kernel.exit(vm.process, below)).unwrap();
        let error = stack.fault(&chain, 1, FIRST, true, Cpu(0)).unwrap_err();
        let OsError::Host { source, .. } = error else { panic!("{error}") };
        assert_eq!(*source, OsError::NoProcess(vm.process));
    }

    #[test]
    fn a_program_that_has_exited_has_no_translation() {
        let (mut stack, chain) = kernels(2);
        let gone = OsError::NoProcess(chain.process());
        stack.with(&chain, 1, Cpu(0), |kernel, process, below| kernel.exit(process, below)).unwrap();
        assert_eq!(stack.table(&chain, 1).unwrap_err(), gone);
        assert_eq!(stack.translation(&chain).unwrap_err(), gone);
        assert_eq!(stack.touch(&chain, FIRST, false, Cpu(0)).unwrap_err(), gone);
    }

    /// A second VM on the lowest kernel, beside that of `chain`.
    fn second_vm(stack: &mut Stack, chain: &KernelChain) -> KernelChain {
        let host = add_process(stack, &[*chain.bottom_floor()], Some(PageCount(1 << 12))).unwrap();
        let guest = add_kernel(stack, &[host], &KernelConfig::new(PageCount(1 << 12)), None, Cpu(0)).unwrap();
        KernelChain::new(&[host, guest])
    }

    #[test]
    fn a_shadow_table_is_that_of_its_vm_only() {
        let (mut stack, chain) = kernels(2);
        let other = second_vm(&mut stack, &chain);
        let vm = *chain.bottom_floor();
        let geometry = stack.kernel(&vm).config().geometry;
        let shadows = Shadows::new((vm.process, vm.base), geometry, false);
        stack.add_paging(&vm, VmPaging::Shadow(Box::new(shadows)));
        assert_eq!((stack.shadows(&chain), stack.shadows(&other)), (true, false));
        for chain in [&chain, &other] {
            map(&mut stack, chain, 4);
            stack.fault(chain, 1, FIRST, true, Cpu(0)).unwrap();
        }
        assert!(stack.shadow_fault(&chain, FIRST, true, Cpu(0)).unwrap());
        assert!(!stack.shadow_fault(&chain, FIRST + 3, true, Cpu(0)).unwrap(), "the guest's fault");
        assert!(!stack.shadow_fault(&other, FIRST, true, Cpu(0)).unwrap(), "nothing is shadowed");
        assert!(matches!(stack.translation(&chain), Ok(Translation::OneTable(_))));
        assert!(matches!(stack.translation(&other), Ok(Translation::TwoTables { .. })));
        // The frames that the shadowed VM's kernel uses are exits that fill its direct map.
        let fills = stack.kernel(&vm).counters().shadow_fills;
        stack.fault(&chain, 1, FIRST + 1, true, Cpu(0)).unwrap();
        assert!(stack.kernel(&vm).counters().shadow_fills > fills);
        let fills = stack.kernel(&vm).counters().shadow_fills;
        stack.fault(&other, 1, FIRST + 1, true, Cpu(0)).unwrap();
        assert_eq!(stack.kernel(&vm).counters().shadow_fills, fills);
    }

    #[test]
    fn processors_are_counted_on_from_floor_to_floor() {
        let (stack, chain) = kernels(3);
        let mut floors = chain.floors().to_vec();
        (floors[0].first_cpu, floors[1].first_cpu, floors[2].first_cpu) = (Cpu(1), Cpu(1), Cpu(2));
        let chain = KernelChain::new(&floors);
        assert_eq!(stack.cpu(&chain, 0), Cpu(2));
        assert_eq!(stack.cpu(&chain, 2), Cpu(0), "each kernel has four");
        assert_eq!(stack.machine_cpu(&chain, Cpu(1)), Cpu(3));
    }

    #[test]
    fn shootdowns_are_handed_out_once_with_the_kernel_that_asks() {
        let (mut stack, chain) = kernels(2);
        map(&mut stack, &chain, 4);
        stack.fault(&chain, 1, FIRST, true, Cpu(0)).unwrap();
        stack.drain_invalidations(|_, _| {});
        let range = nestwalk_mem::VpnRange::new(FIRST, PageCount(4));
        stack.with(&chain, 1, Cpu(0), |kernel, process, below| kernel.munmap(process, range, below)).unwrap();
        let mut asked = Vec::new();
        stack.drain_invalidations(|kernel, invalidation| asked.push((kernel, invalidation.process)));
        assert_eq!(asked, [(chain.top_floor().kernel, chain.process())]);
        stack.drain_invalidations(|kernel, invalidation| panic!("{kernel}: {invalidation:?}"));
    }
}
