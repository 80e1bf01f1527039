// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shadow tables: the composition of a guest's table and its host's, kept by the hypervisor.
//!
//! Two uses, one mechanism (KVM's `mmu/mmu.c`, `kvm_mmu_page` with `direct = 0`):
//! - *shadow paging*: the guest's own table over the host's. The hardware walks the shadow only, so a walk is one-dimensional;
//! - *nested virtualisation*: the table that a guest hypervisor keeps for its guest (EPT12) over the host's. The hardware walks the
//!   inner guest's table over the shadow (EPT02).
//!
//! An entry is filled when the hardware misses it. The nodes of the upper table that an entry was made from are
//! write-protected from then on: each write to one is an exit, which takes out what it concerns. (KVM lets PTE nodes go
//! unsynchronised for a while; this does not.) The hypervisor sets accessed and dirty bits in the upper table: a page
//! that is not dirty there is filled read-only, so that the first store exits again.

use nestwalk_mem::{
    Cpu, Entry, Frame, Geometry, Leaf, Level, NodeId, Order, Owner, PageCount, PageTable, Vpn, VpnRange,
};

use crate::error::OsError;
use crate::kernel::Kernel;
use crate::process::ProcessId;

/// A shadow table. See the [module's documentation](self).
#[derive(Debug)]
pub struct Shadow {
    /// What the hardware walks.
    pub table: PageTable,
    /// By node of the upper table: whether it is write-protected.
    protected: Vec<bool>,
}

/// How an attempt to fill an entry ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// The shadow has it now.
    Done,
    /// The upper table does not map the page, or does not allow the store: a fault of the kernel that keeps it.
    Upper,
    /// The lower table does not map this page, or does not allow the store: a fault of the host.
    Lower(Vpn),
}

/// The leaf of `table` for `page`, if the hardware could use it.
fn usable(table: &PageTable, page: Vpn, store: bool) -> Option<Leaf> {
    table.leaf(page).filter(|leaf| leaf.entry.is_present() && (!store || leaf.entry.has(Entry::WRITABLE)))
}

/// What the hypervisor sets in `leaf`, which `table` has for `page`.
fn mark(table: &mut PageTable, page: Vpn, leaf: Leaf, store: bool) {
    let (node, _) = table.lowest_node(page);
    let index = table.geometry().index(page, leaf.level);
    table.mark(node, index, Entry::ACCESSED | if store { Entry::DIRTY } else { 0 });
}

impl Shadow {
    /// Takes out the entries over `pages`. How many there were.
    fn zap(&mut self, pages: VpnRange) -> u64 {
        let mut gone = Vec::new();
        self.table.for_each_leaf(pages, |leaf| gone.push(leaf.page));
        gone.iter().for_each(|&page| {
            self.table.unmap(page);
        });
        gone.len() as u64
    }

    fn is_protected(&self, node: NodeId) -> bool {
        self.protected.get(node.0 as usize).copied().unwrap_or(false)
    }

    /// Write-protects the nodes of `upper` on the way to the leaf for `page`, which stands at `level`.
    fn protect(&mut self, upper: &PageTable, page: Vpn, level: Level) {
        let (mut node, mut at) = (upper.root(), upper.geometry().root());
        loop {
            let number = node.0 as usize;
            if self.protected.len() <= number {
                self.protected.resize(number + 1, false);
            }
            self.protected[number] = true;
            if at == level {
                return;
            }
            (node, at) = (upper.entry_for(node, at, page).node(), at.down());
        }
    }

    /// Checks that each entry says what `upper` over `lower` says, whose memory begins at page `base` there.
    ///
    /// # Panics
    /// When one does not.
    pub fn check_invariants(&self, upper: &PageTable, lower: &PageTable, base: Vpn) {
        self.table.check_invariants();
        self.table.for_each_leaf(VpnRange { start: Vpn(0), end: self.table.geometry().end() }, |leaf| {
            for page in [leaf.page, leaf.page + (leaf.size().pages() - 1)] {
                let below = upper.translate(page).and_then(|frame| lower.translate(base + frame.0));
                assert_eq!(Some(leaf.frame_of(page)), below, "{page:?}");
            }
        });
    }
}

impl Kernel {
    /// An empty shadow, of the shape `geometry`, of `upper`, whose writes are noted down from now on.
    ///
    /// # Errors
    /// When there is no memory for its root.
    pub fn make_shadow(&mut self, upper: &mut PageTable, geometry: Geometry, cpu: Cpu) -> Result<Shadow, OsError> {
        let root = self.shadow_node(cpu)?;
        upper.watch();
        Ok(Shadow { table: PageTable::new(geometry, root), protected: Vec::new() })
    }

    fn shadow_node(&mut self, cpu: Cpu) -> Result<Frame, OsError> {
        let (free, all) = (self.state.memory.free_frames(), self.state.memory.frames());
        let frame = self.state.alloc_kernel(cpu).ok_or(OsError::OutOfMemory { free, all })?;
        self.state.memory.set_owner(frame, Owner::Kernel);
        Ok(frame)
    }

    /// Takes in what was written to the `upper` table: each write to a write-protected node is an exit, and what it concerns
    /// goes from the `shadow`. To be called before the hardware walks the shadow again.
    #[inline]
    pub fn synchronise_shadow(&mut self, shadow: &mut Shadow, upper: &mut PageTable) {
        for write in upper.take_writes() {
            if shadow.is_protected(write.node) {
                self.state.counters.shadow_writes += 1;
                self.state.counters.shadow_zaps += shadow.zap(write.pages);
            }
        }
    }

    /// The lower table has changed: takes out every entry of the `shadow` over it.
    pub fn zap_shadow(&mut self, shadow: &mut Shadow) {
        self.state.counters.shadow_zaps += shadow.zap(VpnRange { start: Vpn(0), end: shadow.table.geometry().end() });
    }

    /// Fills the entry of `shadow` for `page` of `upper`. Under it lies this kernel's `process`, in which the upper kernel's
    /// frame 0 is page `base`. Writes to the upper table must have been
    /// [taken in](Kernel::synchronise_shadow) before.
    ///
    /// # Errors
    /// When there is no memory for a node.
    pub fn fill_shadow(
        &mut self,
        shadow: &mut Shadow,
        upper: &mut PageTable,
        (process, base): (ProcessId, Vpn),
        page: Vpn,
        store: bool,
        cpu: Cpu,
    ) -> Result<Filled, OsError> {
        let Some(above) = usable(upper, page, store) else {
            self.state.counters.shadow_reflected += 1;
            return Ok(Filled::Upper);
        };
        let lower_page = base + above.frame_of(page).0;
        let lower = self.table_mut(process)?;
        let Some(below) = usable(lower, lower_page, store) else { return Ok(Filled::Lower(lower_page)) };
        mark(lower, lower_page, below, store);
        mark(upper, page, above, store);
        let size = above.size().min(below.size());
        let first = page.align_down(size.order());
        let frame = below.frame_of(lower_page).align_down(size.order());
        let writable = below.entry.has(Entry::WRITABLE)
            && above.entry.has(Entry::WRITABLE)
            && (store || above.entry.has(Entry::DIRTY));
        let flags = Entry::ACCESSED | if writable { Entry::WRITABLE } else { 0 };
        // What was there, read-only or in smaller pieces, makes room.
        let room = VpnRange::new(first, PageCount(size.pages()));
        self.make_room(shadow, room);
        shadow.table.map(first, frame, size, flags, |_, _| self.shadow_node(cpu))?;
        self.state.counters.shadow_fills += 1;
        shadow.protect(upper, page, above.level);
        Ok(Filled::Done)
    }

    /// Takes out the entries of `shadow` over `room`, and the nodes that they leave empty.
    fn make_room(&mut self, shadow: &mut Shadow, room: VpnRange) {
        let mut there = Vec::new();
        shadow.table.for_each_leaf(room, |leaf| there.push(leaf.page));
        for page in there {
            shadow.table.unmap(page);
        }
        if room.len() > 1 {
            let mut freed = Vec::new();
            shadow.table.prune(room, |_, _, frame| freed.push(frame));
            freed.into_iter().for_each(|frame| self.state.memory.free(frame, Order::PAGE, Cpu(0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bare, HostMemory, KernelConfig, VmaFlags};

    struct Pair {
        host: Kernel,
        guest: Kernel,
        vm: ProcessId,
        base: Vpn,
        program: ProcessId,
        shadow: Shadow,
    }

    const PAGES: VpnRange = VpnRange { start: Vpn(0x1000), end: Vpn(0x1400) };

    impl Pair {
        fn new() -> Self {
            let mut host = Kernel::new(&KernelConfig::new(PageCount(1 << 16))).unwrap();
            let (vm, base) = host.host_vm(PageCount(1 << 15), &mut Bare).unwrap();
            let mut guest = Kernel::new(&KernelConfig::new(PageCount(1 << 15))).unwrap();
            let memory = &mut HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut Bare };
            let program = guest.spawn(memory).unwrap();
            guest.mmap(program, PAGES, VmaFlags::ANONYMOUS, memory).unwrap();
            let table = guest.table_mut(program).unwrap();
            let shadow = host.make_shadow(table, Geometry::X86_4, Cpu(0)).unwrap();
            Self { host, guest, vm, base, program, shadow }
        }

        fn with_guest<R>(&mut self, act: impl FnOnce(&mut Kernel, ProcessId, &mut HostMemory<'_>) -> R) -> R {
            let Self { host, guest, vm, base, program, .. } = self;
            act(guest, *program, &mut HostMemory { host, process: *vm, base: *base, cpu: Cpu(0), below: &mut Bare })
        }

        fn fill(&mut self, page: Vpn, store: bool) -> Filled {
            let Self { host, guest, vm, base, program, shadow } = self;
            let upper = guest.table_mut(*program).unwrap();
            host.synchronise_shadow(shadow, upper);
            host.fill_shadow(shadow, upper, (*vm, *base), page, store, Cpu(0)).unwrap()
        }

        /// As the hardware and both kernels would.
        fn access(&mut self, page: Vpn, store: bool) {
            for _ in 0..4 {
                match self.fill(page, store) {
                    Filled::Done => {
                        let lower = self.host.table(self.vm).unwrap();
                        self.shadow.check_invariants(self.guest.table(self.program).unwrap(), lower, self.base);
                        return;
                    }
                    Filled::Upper => {
                        self.with_guest(|guest, program, memory| {
                            guest.fault(program, page, store, Cpu(0), memory).unwrap()
                        });
                    }
                    Filled::Lower(page) => {
                        self.host.fault(self.vm, page, store, Cpu(0), &mut Bare).unwrap();
                    }
                }
            }
            panic!("{page:?} never gets filled");
        }
    }

    #[test]
    fn a_first_touch_is_a_fault_of_the_guest_and_a_fill() {
        let mut pair = Pair::new();
        assert_eq!(pair.fill(PAGES.start, false), Filled::Upper);
        pair.access(PAGES.start, false);
        let counts = |pair: &Pair| (pair.host.counters().shadow_fills, pair.host.counters().shadow_writes);
        assert_eq!((counts(&pair), pair.host.counters().shadow_reflected), ((1, 0), 2));
        // Its PTE node is write-protected now, so the guest's next fault in it exits for the entry that it writes.
        pair.access(PAGES.start + 1, false);
        assert_eq!(counts(&pair), (2, 1));
    }

    #[test]
    fn a_page_is_read_only_in_the_shadow_until_the_guest_has_it_dirty() {
        let mut pair = Pair::new();
        pair.access(PAGES.start, false);
        let writable = |pair: &Pair| pair.shadow.table.leaf(PAGES.start).unwrap().entry.has(Entry::WRITABLE);
        let dirty =
            |pair: &Pair| pair.guest.table(pair.program).unwrap().leaf(PAGES.start).unwrap().entry.has(Entry::DIRTY);
        assert!(!writable(&pair) && !dirty(&pair));
        pair.access(PAGES.start, true);
        assert!(writable(&pair) && dirty(&pair));
    }

    #[test]
    fn what_the_guest_unmaps_leaves_the_shadow() {
        let mut pair = Pair::new();
        (0..64).for_each(|page| pair.access(PAGES.start + page, true));
        let writes = pair.host.counters().shadow_writes;
        let gone = VpnRange::new(PAGES.start, PageCount(32));
        pair.with_guest(|guest, program, memory| guest.munmap(program, gone, memory).unwrap());
        let upper = pair.guest.table_mut(pair.program).unwrap();
        pair.host.synchronise_shadow(&mut pair.shadow, upper);
        assert!(pair.shadow.table.translate(PAGES.start).is_none());
        assert!(pair.shadow.table.translate(PAGES.start + 32).is_some());
        assert_eq!(pair.host.counters().shadow_zaps, 32);
        assert_eq!(pair.host.counters().shadow_writes - writes, 32, "an exit for each entry");
    }

    #[test]
    fn a_change_below_takes_all_out() {
        let mut pair = Pair::new();
        (0..8).for_each(|page| pair.access(PAGES.start + page, true));
        pair.host.zap_shadow(&mut pair.shadow);
        assert_eq!((0..8).filter(|&page| pair.shadow.table.translate(PAGES.start + page).is_some()).count(), 0);
        (0..8).for_each(|page| pair.access(PAGES.start + page, false));
        assert_eq!(pair.host.counters().shadow_fills, 16);
    }
}
