// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of a machine, and where on them a program runs.
//!
//! One kernel is a native machine; a VM stands on it with a kernel of its own, and there may be several VMs. A program's
//! [`Place`] names the kernels that it stands on, bottom first: one natively, two in a VM, three in a nested VM.

use nestwalk_mem::{Cpu, PageTable, Vpn};
use nestwalk_mmu::Segments;
use nestwalk_os::{
    Bare, Below, FaultKind, Filled, HostMemory, Invalidation, Kernel, Miss, OsError, ProcessId, ShadowedMemory, Shadows,
};

use crate::paging::VmPaging;

/// A kernel that a program stands on, and what the next floor (or the program) is to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Floor {
    /// Which of the [`Stack`]'s kernels.
    pub kernel: usize,
    /// The process that the VM above (or the program) is.
    pub process: ProcessId,
    /// Where in that process the memory of the VM above begins; 0 for a program.
    pub base: Vpn,
    /// The processor of this kernel on which processor 0 of the VM above (or the program's first thread) runs.
    pub first_cpu: Cpu,
    /// How the memory of the VM above is translated: which of the [`Stack`]'s ways; with EPT if it is none of those.
    pub paging: Option<usize>,
}

/// The kernels under a program, bottom first.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    floors: [Floor; Place::DEPTH_MAX],
    depth: usize,
}

impl Place {
    /// The most kernels that stand on each other.
    pub const DEPTH_MAX: usize = 3;

    /// On these kernels, bottom first.
    ///
    /// # Panics
    /// When there is none, there are more than [`Place::DEPTH_MAX`], or one stands on itself or on a later one.
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

    /// How many there are.
    #[inline]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The number of the topmost.
    #[inline]
    pub fn top(&self) -> usize {
        self.depth - 1
    }

    /// The process of the topmost kernel that the program is.
    #[inline]
    pub fn process(&self) -> ProcessId {
        self.floors[self.depth - 1].process
    }

    /// The program is another process of its kernel from now on.
    pub fn become_process(&mut self, process: ProcessId) {
        self.floors[self.depth - 1].process = process;
    }
}

/// All kernels of a machine. Each stands on the bare machine or on one with a smaller number.
#[derive(Debug, Default)]
pub struct Stack {
    kernels: Vec<Kernel>,
    pagings: Vec<Paged>,
}

/// A VM whose memory is translated by something else than EPT.
#[derive(Debug)]
struct Paged {
    /// The kernel that hosts it, and the one that runs in it (which comes next: see [`Place::new`]).
    host: usize,
    guest: usize,
    /// The process of the host that it is.
    vm: ProcessId,
    how: VmPaging,
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

/// The memory of a VM that is `floor`'s process, running on the VM's processor `cpu`.
fn memory<'a>(host: &'a mut Kernel, floor: &Floor, cpu: Cpu, below: &'a mut dyn Below) -> HostMemory<'a> {
    let cpu = cpu_of(host, floor.first_cpu, cpu);
    HostMemory { host, process: floor.process, base: floor.base, cpu, below }
}

/// Which processor of `kernel` is number `cpu` of those that begin at `first`.
#[inline]
fn cpu_of(kernel: &Kernel, first: Cpu, cpu: Cpu) -> Cpu {
    let (number, cpus) = (u32::from(first.0) + u32::from(cpu.0), u32::from(kernel.config().cpus));
    // A division takes longer than all the rest, and is hardly ever needed.
    Cpu(if number < cpus { number } else { number % cpus } as u16)
}

impl Stack {
    /// Adds a kernel, and says its number.
    pub fn add(&mut self, kernel: Kernel) -> usize {
        self.kernels.push(kernel);
        self.kernels.len() - 1
    }

    /// Has the memory of the VM on `floor` translated by `paging`.
    pub fn add_paging(&mut self, floor: &mut Floor, paging: VmPaging) {
        floor.paging = Some(self.pagings.len());
        // The measured program's kernels are built one after the other, and only they have anything else than EPT.
        self.pagings.push(Paged { host: floor.kernel, guest: floor.kernel + 1, vm: floor.process, how: paging });
    }

    /// How the memory of the VM on `floor` is translated; `None` is EPT.
    pub fn paging(&self, floor: &Floor) -> Option<&VmPaging> {
        floor.paging.map(|number| &self.pagings[number].how)
    }

    /// All kernels.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// Whether a daemon of some kernel should run before the next tick is due.
    pub fn has_background_work(&self) -> bool {
        self.kernels.iter().any(Kernel::has_background_work)
    }

    /// The kernel of a floor.
    pub fn kernel(&self, floor: &Floor) -> &Kernel {
        &self.kernels[floor.kernel]
    }

    /// The kernel that a program runs on.
    pub fn top_kernel(&self, place: &Place) -> &Kernel {
        self.kernel(&place.floors()[place.top()])
    }

    /// The processor of the program's kernel on which its thread number `thread` runs.
    pub fn cpu(&self, place: &Place, thread: u16) -> Cpu {
        let floor = &place.floors()[place.top()];
        cpu_of(self.kernel(floor), floor.first_cpu, Cpu(thread))
    }

    /// The processor of the machine (of the bottom kernel) that is `cpu` to the program's kernel.
    pub fn machine_cpu(&self, place: &Place, cpu: Cpu) -> Cpu {
        let under = &place.floors()[..place.top()];
        under.iter().rev().fold(cpu, |cpu, floor| cpu_of(self.kernel(floor), floor.first_cpu, cpu))
    }

    /// Calls `act` with the kernel of floor `layer` of `place`, the process that it runs, and what lies below it. `cpu` is
    /// the processor of that kernel that works.
    // Always inlined: a call costs a page fault 6 % of its instructions.
    #[inline(always)]
    pub fn with<R>(
        &mut self,
        place: &Place,
        layer: usize,
        cpu: Cpu,
        act: impl FnOnce(&mut Kernel, ProcessId, &mut dyn Below) -> R,
    ) -> R {
        let [f0, f1, f2] = &place.floors;
        match layer {
            0 => act(&mut self.kernels[f0.kernel], f0.process, &mut Bare),
            1 => {
                if f0.paging.is_some() && place.depth == 2 {
                    return self.with_paging(f0, f1, cpu, act);
                }
                let [host, kernel] = self.kernels.get_disjoint_mut([f0.kernel, f1.kernel]).expect(APART);
                act(kernel, f1.process, &mut memory(host, f0, cpu, &mut Bare))
            }
            _ => {
                let numbers = [f0.kernel, f1.kernel, f2.kernel];
                let [bottom, host, kernel] = self.kernels.get_disjoint_mut(numbers).expect(APART);
                let host_cpu = cpu_of(host, f1.first_cpu, cpu);
                act(kernel, f2.process, &mut memory(host, f1, cpu, &mut memory(bottom, f0, host_cpu, &mut Bare)))
            }
        }
    }

    /// [`Stack::with`] for the kernel `f1` of a VM whose memory is not translated by EPT. Apart, so that the other is short.
    #[cold]
    #[inline(never)]
    fn with_paging<R>(
        &mut self,
        f0: &Floor,
        f1: &Floor,
        cpu: Cpu,
        act: impl FnOnce(&mut Kernel, ProcessId, &mut dyn Below) -> R,
    ) -> R {
        let [host, kernel] = self.kernels.get_disjoint_mut([f0.kernel, f1.kernel]).expect(APART);
        let mut bare = Bare;
        let memory = &mut memory(host, f0, cpu, &mut bare);
        match f0.paging.map(|number| &mut self.pagings[number].how) {
            Some(VmPaging::Shadow(shadows)) => act(kernel, f1.process, &mut ShadowedMemory { memory, shadows }),
            _ => act(kernel, f1.process, memory),
        }
    }

    /// The latest of the clocks of the kernels of `place`, ns.
    pub fn clock(&self, place: &Place) -> u64 {
        place.floors().iter().map(|floor| self.kernel(floor).clock().0).max().unwrap_or_default()
    }

    /// A page fault in the kernel of floor `layer`, on that kernel's processor `cpu`.
    ///
    /// # Errors
    /// When that kernel, or one below it, cannot serve it.
    #[inline]
    pub fn fault(
        &mut self,
        place: &Place,
        layer: usize,
        page: Vpn,
        store: bool,
        cpu: Cpu,
    ) -> Result<FaultKind, OsError> {
        self.with(place, layer, cpu, |kernel, process, below| kernel.fault(process, page, store, cpu, below))
    }

    /// A load (or store) of the program at `place`, of which only what it does to the kernels matters: see [`Kernel::touch`].
    ///
    /// # Errors
    /// As [`Stack::fault`].
    #[inline]
    pub fn touch(&mut self, place: &Place, page: Vpn, store: bool, cpu: Cpu) -> Result<(), OsError> {
        self.with(place, place.top(), cpu, |kernel, process, below| kernel.touch(process, page, store, cpu, below))
    }

    /// The page table of what runs on floor `layer`.
    pub fn table(&self, place: &Place, layer: usize) -> &PageTable {
        let floor = &place.floors()[layer];
        self.kernel(floor).table(floor.process).expect(ALIVE)
    }

    /// What the hardware walks for the program at `place`. A shadow table has taken in all that was written to what it is
    /// made from.
    #[inline]
    pub fn translation(&mut self, place: &Place) -> Translation<'_> {
        let [f0, f1, f2] = &place.floors;
        if place.depth == 1 {
            return Translation::OneTable(self.kernels[f0.kernel].table_mut(f0.process).expect(ALIVE));
        }
        let paging = f0.paging.map(|number| &mut self.pagings[number].how);
        if let Some(VmPaging::Shadow(shadows)) = paging {
            let [host, next] = self.kernels.get_disjoint_mut([f0.kernel, f1.kernel]).expect(APART);
            host.synchronise_shadow(shadows, (f1.process, next.table_mut(f1.process).expect(ALIVE)));
            let shadow = shadows.table(f1.process);
            if place.depth == 2 {
                return Translation::OneTable(shadow);
            }
            let guest = self.kernels[f2.kernel].table_mut(f2.process).expect(ALIVE);
            return Translation::TwoTables { guest, host: shadow, base: f1.base };
        }
        let [host, next] = self.kernels.get_disjoint_mut([f0.kernel, f1.kernel]).expect(APART);
        let guest = next.table_mut(f1.process).expect(ALIVE);
        match paging {
            Some(VmPaging::Segments(segments)) => Translation::Segments(guest, segments),
            _ => Translation::TwoTables { guest, host: host.table_mut(f0.process).expect(ALIVE), base: f0.base },
        }
    }

    /// Whether the lowest kernel under the program keeps a shadow table.
    #[inline]
    pub fn shadows(&self, place: &Place) -> bool {
        place.depth > 1 && matches!(self.paging(&place.floors[0]), Some(VmPaging::Shadow(_)))
    }

    /// The hardware missed `page` in the shadow table, or may not store there: the lowest kernel fills the entry, taking
    /// faults of its own as need be. `false` if the table that is shadowed does not map the page: a fault of the kernel that
    /// keeps it. `cpu` is the processor of the machine.
    ///
    /// # Errors
    /// When the lowest kernel is out of memory.
    ///
    /// # Panics
    /// When there is no shadow table.
    pub fn shadow_fault(&mut self, place: &Place, page: Vpn, store: bool, cpu: Cpu) -> Result<bool, OsError> {
        let [f0, f1, _] = &place.floors;
        let [host, next] = self.kernels.get_disjoint_mut([f0.kernel, f1.kernel]).expect("two kernels");
        let Some(VmPaging::Shadow(shadows)) = f0.paging.map(|number| &mut self.pagings[number].how) else {
            panic!("the lowest kernel keeps no shadow table")
        };
        let upper = next.table_mut(f1.process)?;
        loop {
            match host.fill_shadow(shadows, (f1.process, upper), Miss { page, store, cpu })? {
                Filled::Done => return Ok(true),
                Filled::Upper => return Ok(false),
                Filled::Lower(page) => host.fault(f0.process, page, store, cpu, &mut Bare)?,
            };
        }
    }

    /// Hands out the shootdowns that were asked for since the last time: the kernel that asks, and what to forget. Shadow tables
    /// hear of them first.
    #[inline]
    pub fn drain_invalidations(&mut self, mut apply: impl FnMut(usize, Invalidation)) {
        for number in 0..self.kernels.len() {
            if !self.kernels[number].has_invalidations() {
                continue;
            }
            if self.pagings.is_empty() {
                self.kernels[number].take_invalidations().for_each(|invalidation| apply(number, invalidation));
                continue;
            }
            let taken: Vec<_> = self.kernels[number].take_invalidations().collect();
            for invalidation in taken {
                self.tell_shadows(number, &invalidation);
                apply(number, invalidation);
            }
        }
    }

    /// The kernel of that `number` has changed a table, and flushed what hardware knows of it.
    fn tell_shadows(&mut self, number: usize, invalidation: &Invalidation) {
        for Paged { host, guest, vm, how } in &mut self.pagings {
            let VmPaging::Shadow(shadows) = how else { continue };
            let shadows: &mut Shadows = shadows;
            let [hypervisor, kernel] = self.kernels.get_disjoint_mut([*host, *guest]).expect(APART);
            if number == *host && invalidation.process == *vm {
                hypervisor.host_changed(shadows, kernel, invalidation.scope);
            } else if number == *guest {
                hypervisor.guest_flushed(shadows, kernel, invalidation);
            }
        }
    }
}

const ALIVE: &str = "a place's processes live as long as the place";
const APART: &str = "the kernels of a place are different ones";
