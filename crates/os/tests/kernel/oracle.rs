// SPDX-License-Identifier: MIT OR Apache-2.0
//! A second kernel, slow and obviously correct: maps from pages to what the program wrote there.
//! After random programs the real one, alone or as guest and host, must hold the same.

use std::collections::BTreeMap;

use nestwalk_mem::{Cpu, PageCount, Vpn, VpnRange};
use nestwalk_os::op::{Op, Outcome};
use nestwalk_os::{Advice, Below, Kernel, KernelConfig, OsError, ProcessId, StartState};
use proptest::prelude::*;

use crate::contents::{Metal, Token, VmMemory};
use crate::{configurations, strategy};

/// What one page of the model holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Page {
    writable: bool,
    token: Token,
    /// Since `MADV_FREE`, it may read as zeroes at any time, and then stays so.
    lazy: bool,
}

/// Mapped pages of a process.
type Space = BTreeMap<Vpn, Page>;

/// A machine under test: one kernel, or a guest on a host.
struct Machine {
    kernel: Kernel,
    host: Option<(Kernel, ProcessId, Vpn)>,
    metal: Metal,
    /// The upper kernel's swap.
    swap: std::rc::Rc<std::cell::RefCell<crate::contents::Swap>>,
}

impl Machine {
    fn alone(config: &KernelConfig) -> Self {
        let metal = Metal::default();
        let swap = metal.swap.clone();
        Self { kernel: Kernel::new(config).unwrap(), host: None, metal, swap }
    }

    fn nested(guest: &KernelConfig, host: &KernelConfig) -> Self {
        let mut metal = Metal::default();
        let mut host = Kernel::new(host).unwrap();
        let (vm, base) = host.host_vm(guest.memory, &mut metal).unwrap();
        Self { kernel: Kernel::new(guest).unwrap(), host: Some((host, vm, base)), metal, swap: Default::default() }
    }

    /// Does `what` with the upper kernel and what lies below it.
    fn with<T>(&mut self, what: impl FnOnce(&mut Kernel, &mut dyn Below) -> T) -> T {
        match &mut self.host {
            None => what(&mut self.kernel, &mut self.metal),
            Some((host, vm, base)) => {
                let (metal, swap) = (self.metal.clone(), self.swap.clone());
                what(&mut self.kernel, &mut VmMemory { host, vm: *vm, base: *base, metal, swap })
            }
        }
    }

    /// What a page of the program holds; `None` if it is not in the table.
    fn read(&mut self, process: ProcessId, page: Vpn) -> Option<Token> {
        let leaf = self.kernel.table(process).unwrap().leaf(page)?;
        if !leaf.entry.is_present() {
            return Some(self.swap.borrow()[&(process, page)]);
        }
        let frame = leaf.frame_of(page);
        Some(match &mut self.host {
            None => self.metal.read(frame),
            Some((host, vm, base)) => {
                let (metal, swap) = (self.metal.clone(), self.swap.clone());
                VmMemory { host, vm: *vm, base: *base, metal, swap }.read(frame)
            }
        })
    }

    /// The program stores to a page that its kernel has made ready.
    fn write(&mut self, process: ProcessId, page: Vpn, token: Token) -> Result<(), OsError> {
        let frame = self.kernel.table(process)?.translate(page).expect("it was touched");
        match &mut self.host {
            None => self.metal.write(frame, token),
            Some((host, vm, base)) => {
                let (metal, swap) = (self.metal.clone(), self.swap.clone());
                VmMemory { host, vm: *vm, base: *base, metal, swap }.write(frame, token)?;
            }
        }
        Ok(())
    }
}

/// The machine and the model, side by side.
struct Pair {
    machine: Machine,
    model: BTreeMap<ProcessId, Space>,
    heaps: BTreeMap<ProcessId, (Vpn, Vpn)>,
    next_token: Token,
}

impl Pair {
    fn new(machine: Machine) -> Self {
        Self { machine, model: BTreeMap::new(), heaps: BTreeMap::new(), next_token: 1 }
    }

    fn step(&mut self, op: &Op) {
        let process = op.process(&self.machine.kernel);
        let result = self.machine.with(|kernel, below| op.apply(kernel, below));
        let Some(process) = process else {
            if let (Op::Spawn, Ok(Outcome::New(child))) = (op, &result) {
                self.model.insert(*child, Space::new());
            }
            return;
        };
        match result {
            Ok(outcome) => self.mirror(op, process, outcome),
            Err(OsError::OutOfMemory { .. } | OsError::Host { .. }) => self.kill(op, process),
            Err(error) => assert!(self.forbids(op, process), "{op:?} by {process:?}: {error}"),
        }
    }

    /// Whether the model says that the operation is an error.
    fn forbids(&self, op: &Op, process: ProcessId) -> bool {
        let space = &self.model[&process];
        match *op {
            Op::Touch(_, page, store, _) => space.get(&page).is_none_or(|page| store && !page.writable),
            Op::Madvise(_, range, Advice::PopulateWrite) => {
                each(range).any(|page| space.get(&page).is_none_or(|page| !page.writable))
            }
            Op::Mremap(_, from, to) => {
                let unmapped = each(from).any(|page| !space.contains_key(&page));
                let grown = VpnRange { start: from.end, end: to.end };
                let blocked = from.start == to.start && each(grown).any(|page| space.contains_key(&page));
                unmapped || blocked || (from.start != to.start && from.overlaps(to))
            }
            Op::Brk(_, end) => {
                let end = Vpn(end.0 >> 12);
                let (start, old) = self.heaps.get(&process).copied().unwrap_or((end, end));
                end < start || each(VpnRange { start: old, end }).any(|page| space.contains_key(&page))
            }
            _ => false,
        }
    }

    /// There was no memory for it: as Linux does in the end, the process is killed, whatever part
    /// of the operation was done.
    fn kill(&mut self, op: &Op, process: ProcessId) {
        if !matches!(op, Op::Fork(_) | Op::Touch(..)) {
            self.machine.with(|kernel, below| kernel.exit(process, below)).unwrap();
            self.model.remove(&process);
            self.heaps.remove(&process);
        }
    }

    fn mirror(&mut self, op: &Op, process: ProcessId, outcome: Outcome) {
        let space = self.model.get_mut(&process).unwrap();
        match *op {
            Op::Mmap(_, range, flags) => map(space, range, flags.writable),
            Op::Unmap(_, range) => unmap(space, range),
            Op::Mprotect(_, range, writable) => change(space, range, |page| page.writable = writable),
            Op::Madvise(_, range, Advice::DontNeed) => {
                change(space, range, |page| (page.token, page.lazy) = (0, false))
            }
            Op::Madvise(_, range, Advice::Free) => change(space, range, |page| page.lazy = true),
            Op::Touch(_, page, store, _) => {
                if store {
                    self.store(process, page);
                }
            }
            Op::Brk(_, end) => self.move_heap(process, Vpn(end.0 >> 12)),
            Op::Mremap(_, from, to) => self.move_pages(process, from, to),
            Op::Fork(_) => {
                let Outcome::New(child) = outcome else { panic!("a fork makes a process") };
                self.fork(process, child);
            }
            Op::Exit(_) => {
                self.model.remove(&process);
                self.heaps.remove(&process);
            }
            Op::Spawn | Op::Pressure(_) | Op::Tick(_) | Op::Madvise(..) => {}
        }
    }

    fn store(&mut self, process: ProcessId, page: Vpn) {
        let token = self.next_token;
        self.next_token += 1;
        if self.machine.write(process, page, token).is_ok() {
            let page =
                self.model.get_mut(&process).unwrap().get_mut(&page).expect("the kernel allowed a store outside");
            assert!(page.writable, "the kernel allowed a store to a read-only page");
            (page.token, page.lazy) = (token, false);
        }
    }

    fn move_heap(&mut self, process: ProcessId, end: Vpn) {
        let heap = self.heaps.entry(process).or_insert((end, end));
        let old = std::mem::replace(&mut heap.1, end);
        let space = self.model.get_mut(&process).unwrap();
        unmap(space, VpnRange { start: end, end: old });
        map(space, VpnRange { start: old, end }, true);
    }

    fn move_pages(&mut self, process: ProcessId, from: VpnRange, to: VpnRange) {
        let space = self.model.get_mut(&process).unwrap();
        let old: Vec<Page> = each(from).map(|page| space.remove(&page).unwrap()).collect();
        unmap(space, to);
        let like_the_last =
            |old: &[Page], i: usize| Page { writable: old[i.min(old.len() - 1)].writable, ..Page::default() };
        for (i, page) in each(to).enumerate() {
            space.insert(page, old.get(i).copied().unwrap_or_else(|| like_the_last(&old, i)));
        }
        let mut swap = self.machine.swap.borrow_mut();
        let kept: Vec<_> = (0..from.len().min(to.len()))
            .filter_map(|i| Some((to.start + i, swap.remove(&(process, from.start + i))?)))
            .collect();
        swap.extend(kept.into_iter().map(|(page, token)| ((process, page), token)));
    }

    fn fork(&mut self, parent: ProcessId, child: ProcessId) {
        let space = self.model[&parent].clone();
        self.model.insert(child, space);
        if let Some(&heap) = self.heaps.get(&parent) {
            self.heaps.insert(child, heap);
        }
        let mut swap = self.machine.swap.borrow_mut();
        let pages: Vec<_> = swap.iter().filter(|((p, _), _)| *p == parent).map(|(&(_, page), &t)| (page, t)).collect();
        swap.extend(pages.into_iter().map(|(page, token)| ((child, page), token)));
    }

    /// Everything that the program could read is what it wrote, and both kernels are sound.
    fn check(&mut self) {
        let alive: Vec<ProcessId> = self.machine.kernel.processes().collect();
        assert_eq!(alive, self.model.keys().copied().collect::<Vec<_>>());
        for (&process, space) in &mut self.model {
            for (&page, model) in space.iter_mut() {
                let read = self.machine.read(process, page).unwrap_or(0);
                if model.lazy && read == 0 {
                    *model = Page { token: 0, ..*model };
                }
                assert_eq!(read, model.token, "{process:?} reads {page:?}");
            }
        }
        self.machine.kernel.check_invariants();
        if let Some((host, ..)) = &self.machine.host {
            host.check_invariants();
        }
    }

    fn run(mut self, program: &[Op]) {
        for op in program {
            self.step(op);
            self.check();
        }
    }
}

fn each(range: VpnRange) -> impl Iterator<Item = Vpn> {
    (range.start.0..range.end.0.max(range.start.0)).map(Vpn)
}

fn map(space: &mut Space, range: VpnRange, writable: bool) {
    space.extend(each(range).map(|page| (page, Page { writable, ..Page::default() })));
}

fn unmap(space: &mut Space, range: VpnRange) {
    space.retain(|&page, _| !range.contains(page));
}

fn change(space: &mut Space, range: VpnRange, change: impl FnMut(&mut Page)) {
    let mapped = space.iter_mut().filter(|(page, _)| range.contains(**page));
    mapped.map(|(_, page)| page).for_each(change);
}

/// `count` cases, and in proportion more when `PROPTEST_CASES` (256 by default) asks for more.
fn cases(count: u32) -> ProptestConfig {
    let cases = (ProptestConfig::default().cases * count).div_ceil(256);
    ProptestConfig { cases, max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(96))]

    /// Alone, over every manager and placement.
    #[test]
    fn a_kernel_holds_what_programs_wrote(
        program in strategy::program(),
        which in any::<prop::sample::Index>(),
        fragmented in any::<bool>(),
    ) {
        let all = configurations(PageCount(4096));
        let mut config = all[which.index(all.len())].clone();
        if fragmented {
            config.start =
                StartState::Fragmented { blocks_permille: 700, frames_per_block: 3, unmovable_permille: 200 };
        }
        Pair::new(Machine::alone(&config)).run(&program);
    }

    /// A guest on a host that has less memory than the guest believes to have.
    #[test]
    fn a_guest_on_a_host_holds_what_programs_wrote(
        program in strategy::program(),
        guest in any::<prop::sample::Index>(),
        host in any::<prop::sample::Index>(),
        small in any::<bool>(),
    ) {
        let guests = configurations(PageCount(4096));
        let hosts = configurations(PageCount(if small { 2048 } else { 8192 }));
        let host = &hosts[host.index(hosts.len())];
        let mut host = host.clone();
        host.swap = PageCount(8192);
        Pair::new(Machine::nested(&guests[guest.index(guests.len())], &host)).run(&program);
    }
}

/// The oracle itself can fail: a machine that loses a store is found out.
#[test]
#[should_panic(expected = "reads")]
fn a_lost_store_is_noticed() {
    let config = &configurations(PageCount(4096))[0];
    let mut pair = Pair::new(Machine::alone(config));
    let program = [
        Op::Spawn,
        Op::Mmap(nestwalk_os::op::Nth(0), crate::pages(512, 8), nestwalk_os::VmaFlags::ANONYMOUS),
        Op::Touch(nestwalk_os::op::Nth(0), Vpn(513), true, Cpu(0)),
    ];
    program.iter().for_each(|op| pair.step(op));
    let frame = pair.machine.kernel.table(ProcessId(0)).unwrap().translate(Vpn(513)).unwrap();
    pair.machine.metal.write(frame, 0);
    pair.check();
}
