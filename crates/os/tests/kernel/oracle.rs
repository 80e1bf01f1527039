// SPDX-License-Identifier: MIT OR Apache-2.0
//! A second kernel, slow and obviously correct: maps from pages to what the program wrote there.
//! After random programs the real one, alone or as guest and host, must hold the same.

use std::collections::BTreeMap;

use nestwalk_mem::{Cpu, Frame, PageCount, Vpn, VpnRange};
use nestwalk_os::op::{FILE_PAGES, Op, Outcome};
use nestwalk_os::{Advice, Below, FileId, FileName, Kernel, KernelConfig, OsError, ProcessId, StartState};
use proptest::prelude::*;

use crate::contents::{Disk, Metal, Token, VmMemory};
use crate::{configurations, strategy};

/// What one page of the model holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Page {
    writable: bool,
    token: Token,
    /// Since `MADV_FREE`, it may read as zeroes at any time, and then stays so.
    lazy: bool,
    /// The file's page that it shows, and whether stores go there.
    file: Option<(FileId, u64, bool)>,
    /// A store has made it a page of its own, which holds `token`.
    copied: bool,
}

impl Page {
    /// Its mapping has grown beyond the end of the file.
    fn is_beyond_its_file(&self) -> bool {
        self.file.is_some_and(|(_, page, _)| page >= FILE_PAGES.0)
    }

    /// It is given back.
    fn discard(&mut self) {
        (self.token, self.lazy, self.copied) = (0, false, false);
    }
}

/// Mapped pages of a process.
type Space = BTreeMap<Vpn, Page>;

/// A machine under test: one kernel, or a guest on a host.
pub struct Machine {
    pub kernel: Kernel,
    host: Option<(Kernel, ProcessId, Vpn)>,
    metal: Metal,
    /// The upper kernel's swap.
    swap: std::rc::Rc<std::cell::RefCell<crate::contents::Swap>>,
    /// Its files.
    disk: Disk,
}

impl Machine {
    pub fn alone(config: &KernelConfig) -> Self {
        let metal = Metal::default();
        let (swap, disk) = (metal.swap.clone(), metal.disk.clone());
        Self { kernel: Kernel::new(config).unwrap(), host: None, metal, swap, disk }
    }

    fn nested(guest: &KernelConfig, host: &KernelConfig) -> Self {
        let mut metal = Metal::default();
        let mut host = Kernel::new(host).unwrap();
        let (vm, base) = host.host_vm(guest.memory, &mut metal).unwrap();
        let (swap, disk) = Default::default();
        Self { kernel: Kernel::new(guest).unwrap(), host: Some((host, vm, base)), metal, swap, disk }
    }

    /// Does `what` with the upper kernel and what lies below it.
    pub fn with<T>(&mut self, what: impl FnOnce(&mut Kernel, &mut dyn Below) -> T) -> T {
        match &mut self.host {
            None => what(&mut self.kernel, &mut self.metal),
            Some((host, vm, base)) => {
                let (metal, swap, disk) = (self.metal.clone(), self.swap.clone(), self.disk.clone());
                what(&mut self.kernel, &mut VmMemory { host, vm: *vm, base: *base, metal, swap, disk })
            }
        }
    }

    /// What a page of the program holds; `None` if it is not in the table.
    fn read(&mut self, process: ProcessId, page: Vpn) -> Option<Token> {
        let leaf = self.kernel.table(process).unwrap().leaf(page)?;
        if !leaf.entry.is_present() {
            return Some(self.swap.borrow().read(process, page));
        }
        Some(self.read_frame(leaf.frame_of(page)))
    }

    fn read_frame(&mut self, frame: Frame) -> Token {
        match &mut self.host {
            None => self.metal.read(frame),
            Some((host, vm, base)) => {
                let (metal, swap, disk) = (self.metal.clone(), self.swap.clone(), self.disk.clone());
                VmMemory { host, vm: *vm, base: *base, metal, swap, disk }.read(frame)
            }
        }
    }

    /// What a page of a file holds, in the page cache or on disk.
    fn read_file(&mut self, file: FileId, page: u64) -> Token {
        let known = self.kernel.files().has(file);
        match known.then(|| self.kernel.files().page(file, page)).flatten() {
            Some(cached) => self.read_frame(cached.frame),
            None => self.disk.read(file, page),
        }
    }

    /// The program stores to a page that its kernel has made ready.
    fn write(&mut self, process: ProcessId, page: Vpn, token: Token) -> Result<(), OsError> {
        let frame = self.kernel.table(process)?.translate(page).expect("it was touched");
        self.write_frame(frame, token)
    }

    fn write_frame(&mut self, frame: Frame, token: Token) -> Result<(), OsError> {
        match &mut self.host {
            None => self.metal.write(frame, token),
            Some((host, vm, base)) => {
                let (metal, swap, disk) = (self.metal.clone(), self.swap.clone(), self.disk.clone());
                VmMemory { host, vm: *vm, base: *base, metal, swap, disk }.write(frame, token)?;
            }
        }
        Ok(())
    }
}

/// The machine and the model, side by side.
pub struct Pair {
    pub machine: Machine,
    model: BTreeMap<ProcessId, Space>,
    heaps: BTreeMap<ProcessId, (Vpn, Vpn)>,
    /// What was stored to files.
    files: BTreeMap<(FileId, u64), Token>,
    next_token: Token,
}

impl Pair {
    pub fn new(mut machine: Machine) -> Self {
        for name in 0..3 {
            machine.kernel.open_file(FileName(name), FILE_PAGES);
        }
        Self { machine, model: BTreeMap::new(), heaps: BTreeMap::new(), files: BTreeMap::new(), next_token: 1 }
    }

    pub fn step(&mut self, op: &Op) {
        let process = op.process(&self.machine.kernel);
        let result = self.machine.with(|kernel, below| op.apply(kernel, below));
        // There are no cores that would want them.
        self.machine.kernel.take_invalidations();
        let Some(process) = process else {
            if let (Op::Spawn, Ok(Outcome::New(child))) = (op, &result) {
                self.model.insert(*child, Space::new());
            }
            return;
        };
        match result {
            Ok(outcome) => self.mirror(op, process, outcome),
            Err(OsError::OutOfMemory { .. } | OsError::Host { .. }) => {
                if let Op::WriteFile(_, name, first, count) = *op {
                    // Some pages hold something else since, the others what they held before:
                    // nothing may be stored to those, which the kernel takes for clean.
                    (first..first + count).for_each(|page| self.look_at_file(FileId(name.0 as u32), page));
                }
                self.kill(op, process);
            }
            Err(error) => {
                assert!(self.forbids(op, process), "{op:?} by {process:?}: {error}");
                if let Op::Madvise(_, range, Advice::PopulateWrite) = *op {
                    // What comes before the page that it may not populate has been.
                    let space = &self.model[&process];
                    let end = each(range).find(|page| is_unpopulated(space, *page)).unwrap_or(range.end);
                    self.populate(process, VpnRange { start: range.start, end });
                }
            }
        }
    }

    /// Whether the model says that the operation is an error.
    fn forbids(&self, op: &Op, process: ProcessId) -> bool {
        let space = &self.model[&process];
        match *op {
            Op::Touch(_, page, store, _) => {
                space.get(&page).is_none_or(|page| store && !page.writable || page.is_beyond_its_file())
            }
            Op::Madvise(_, range, Advice::PopulateWrite) => each(range).any(|page| is_unpopulated(space, page)),
            Op::MmapFile(_, range, _, first, ..) => first + range.len() > FILE_PAGES.0,
            Op::ReadFile(_, _, first, count) | Op::WriteFile(_, _, first, count) => first + count > FILE_PAGES.0,
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
            self.forget(process);
        }
    }

    /// It is gone.
    fn forget(&mut self, process: ProcessId) {
        self.model.remove(&process);
        self.heaps.remove(&process);
        self.machine.swap.borrow_mut().forget(process);
    }

    fn mirror(&mut self, op: &Op, process: ProcessId, outcome: Outcome) {
        let space = self.model.get_mut(&process).unwrap();
        match *op {
            Op::Mmap(_, range, flags) => map(space, range, flags.writable),
            Op::MmapFile(_, range, name, first, shared, writable) => {
                let file = FileId(name.0 as u32);
                space.extend(each(range).zip(first..).map(|(page, place)| {
                    (page, Page { writable, file: Some((file, place, shared)), ..Page::default() })
                }));
            }
            Op::WriteFile(_, name, first, count) => {
                (first..first + count).for_each(|page| self.write_file(FileId(name.0 as u32), page));
            }
            Op::Unmap(_, range) => unmap(space, range),
            Op::Mprotect(_, range, writable) => change(space, range, |page| page.writable = writable),
            Op::Madvise(_, range, Advice::DontNeed) => change(space, range, Page::discard),
            Op::Madvise(_, range, Advice::Free) => change(space, range, |page| page.lazy = page.file.is_none()),
            Op::Madvise(_, range, Advice::PopulateWrite) => self.populate(process, range),
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
            Op::Exit(_) => self.forget(process),
            Op::Spawn | Op::Pressure(_) | Op::Tick(_) | Op::Madvise(..) | Op::ReadFile(..) => {}
        }
    }

    /// Private pages of files are copied as if they were stored to.
    fn populate(&mut self, process: ProcessId, range: VpnRange) {
        let (files, space) = (&self.files, self.model.get_mut(&process).unwrap());
        change(space, range, |page| {
            if let Some((file, place, false)) = page.file.filter(|_| !page.copied) {
                (page.copied, page.token) = (true, held(files, file, place));
            }
        });
    }

    fn store(&mut self, process: ProcessId, page: Vpn) {
        let token = self.next_token;
        self.next_token += 1;
        if self.machine.write(process, page, token).is_ok() {
            let page =
                self.model.get_mut(&process).unwrap().get_mut(&page).expect("the kernel allowed a store outside");
            assert!(page.writable, "the kernel allowed a store to a read-only page");
            match page.file {
                Some((file, place, true)) => drop(self.files.insert((file, place), token)),
                _ => (page.token, page.lazy, page.copied) = (token, false, page.file.is_some()),
            }
        }
    }

    fn write_file(&mut self, file: FileId, page: u64) {
        let token = self.next_token;
        self.next_token += 1;
        // It may have been reclaimed for the next one: what was written is lost to this test then.
        let cached = self.machine.kernel.files().page(file, page);
        let written = cached.is_some_and(|cached| self.machine.write_frame(cached.frame, token).is_ok());
        let token = if written { token } else { self.machine.read_file(file, page) };
        self.files.insert((file, page), token);
    }

    /// The page holds what is found there.
    fn look_at_file(&mut self, file: FileId, page: u64) {
        let token = self.machine.read_file(file, page);
        self.files.insert((file, page), token);
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
        let like_the_last = |old: &[Page], i: usize| {
            let last = old[i.min(old.len() - 1)];
            let beyond = (i + 1).saturating_sub(old.len()) as u64;
            let file = last.file.map(|(file, page, shared)| (file, page + beyond, shared));
            Page { writable: last.writable, file, ..Page::default() }
        };
        for (i, page) in each(to).enumerate() {
            space.insert(page, old.get(i).copied().unwrap_or_else(|| like_the_last(&old, i)));
        }
        let mut swap = self.machine.swap.borrow_mut();
        let kept: Vec<_> = (0..from.len().min(to.len()))
            .filter_map(|i| Some((to.start + i, swap.remove(process, from.start + i)?)))
            .collect();
        kept.into_iter().for_each(|(page, token)| swap.write(process, page, token));
    }

    fn fork(&mut self, parent: ProcessId, child: ProcessId) {
        let space = self.model[&parent].clone();
        self.model.insert(child, space);
        if let Some(&heap) = self.heaps.get(&parent) {
            self.heaps.insert(child, heap);
        }
        self.machine.swap.borrow_mut().fork(parent, child);
    }

    /// Everything that the program could read is what it wrote, and both kernels are sound.
    pub fn check(&mut self) {
        let alive: Vec<ProcessId> = self.machine.kernel.processes().collect();
        assert_eq!(alive, self.model.keys().copied().collect::<Vec<_>>());
        for (&process, space) in &mut self.model {
            for (&page, model) in space.iter_mut() {
                let found = self.machine.read(process, page);
                let read = match model.file {
                    Some((file, place, _)) => {
                        found.unwrap_or_else(|| if model.copied { 0 } else { self.machine.read_file(file, place) })
                    }
                    None => found.unwrap_or(0),
                };
                if let Some((file, place, _)) = model.file.filter(|_| !model.copied) {
                    assert_eq!(read, held(&self.files, file, place), "{process:?} reads {page:?} of {file:?}");
                    continue;
                }
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

/// Whether the page may not be populated for stores.
fn is_unpopulated(space: &Space, page: Vpn) -> bool {
    space.get(&page).is_none_or(|page| !page.writable || page.is_beyond_its_file())
}

/// What a page of a file holds.
fn held(files: &BTreeMap<(FileId, u64), Token>, file: FileId, page: u64) -> Token {
    files.get(&(file, page)).copied().unwrap_or_else(|| Disk::fresh(file.0, page))
}

fn each(range: VpnRange) -> impl Iterator<Item = Vpn> {
    (range.start.0..range.end.0.max(range.start.0)).map(Vpn)
}

fn map(space: &mut Space, range: VpnRange, writable: bool) {
    space.extend(each(range).map(|page| (page, Page { writable, ..Page::default() })));
}

fn unmap(space: &mut Space, range: VpnRange) {
    let pages: Vec<Vpn> = mapped(space, range).map(|(&page, _)| page).collect();
    for page in pages {
        space.remove(&page);
    }
}

fn change(space: &mut Space, range: VpnRange, change: impl FnMut(&mut Page)) {
    mapped(space, range).map(|(_, page)| page).for_each(change);
}

fn mapped(space: &mut Space, range: VpnRange) -> impl Iterator<Item = (&Vpn, &mut Page)> {
    // A heap that grows gives a range that ends before it begins.
    space.range_mut(range.start..range.end.max(range.start))
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
