// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that begins with a page table that was found.

use nestwalk_mem::{Cpu, Entry, Frame, Level, PageCount, PageSize, SortedRegion, Vpn, VpnRange};
use nestwalk_os::tables::TablesConfig;
use nestwalk_os::tables::asap::AsapConfig;
use nestwalk_os::{
    Bare, FrozenLeaf, FrozenNode, FrozenTable, HostMemory, Kernel, KernelConfig, OsError, ProcessId, VmaFlags,
};
use proptest::prelude::*;

/// What the table of `process` looks like.
fn found(kernel: &Kernel, process: ProcessId) -> FrozenTable {
    let table = kernel.table(process).unwrap();
    let mut found = FrozenTable::default();
    table.for_each_node(|view| {
        found.nodes.push(FrozenNode { level: view.level, first: view.first_page, frame: view.frame });
    });
    let whole = VpnRange { start: Vpn(0), end: table.geometry().end() };
    table.for_each_leaf(whole, |leaf| {
        let writable = leaf.entry.has(Entry::WRITABLE);
        found.leaves.push(FrozenLeaf { page: leaf.page, frame: leaf.frame_of(leaf.page), size: leaf.size(), writable });
    });
    found.nodes.sort_unstable_by_key(|node| (node.level, node.first));
    found.leaves.sort_unstable_by_key(|leaf| leaf.page);
    found
}

fn kernel() -> Kernel {
    Kernel::new(&KernelConfig::new(PageCount(1 << 14))).unwrap()
}

proptest! {
    #[test]
    fn a_table_found_in_one_kernel_is_the_same_in_another(
        others in 0_u64..600,
        touched in proptest::collection::vec((0_u64..4096, any::<bool>()), 1..300),
    ) {
        let mut first = kernel();
        let process = first.spawn(&mut Bare).unwrap();
        let mapping = VpnRange::new(Vpn(0x7f00_0000), PageCount(4096));
        first.mmap(process, mapping, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
        let other = first.spawn(&mut Bare).unwrap();
        first.mmap(other, mapping, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
        for i in 0..others {
            first.fault(other, mapping.start + i, true, Cpu(0), &mut Bare).unwrap();
        }
        for &(page, store) in &touched {
            let _ = first.fault(process, mapping.start + page, store, Cpu(0), &mut Bare);
        }
        let table = found(&first, process);

        let mut host = kernel();
        let (vm, base) = host.host_vm(PageCount(1 << 13), &mut Bare).unwrap();
        let mut second = Kernel::new(&KernelConfig::new(PageCount(1 << 13))).unwrap();
        let mut below = HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut Bare };
        let again = second.spawn_frozen(&table, &FrozenTable::default(), &mut below).unwrap();
        prop_assert_eq!(&found(&second, again), &table);
        second.check_invariants();

        // All of it is backed, and the process lives on as any other.
        for frame in table.nodes.iter().map(|node| node.frame).chain(table.leaves.iter().map(|leaf| leaf.frame)) {
            prop_assert!(host.table(vm).unwrap().translate(base + frame.0).is_some());
        }
        let mut below = HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut Bare };
        let child = second.fork(again, &mut below).unwrap();
        second.exit(again, &mut below).unwrap();
        second.check_invariants();
        second.exit(child, &mut below).unwrap();
        second.check_invariants();
        prop_assert_eq!(second.memory().free_frames(), PageCount(1 << 13));
        host.check_invariants();
    }
}

/// A table of 4 levels with one page.
fn one_page() -> FrozenTable {
    let node = |level, frame| FrozenNode { level: Level(level), first: Vpn(0), frame: Frame(frame) };
    FrozenTable {
        nodes: vec![node(4, 100), node(3, 200), node(2, 300), node(1, 400)],
        leaves: vec![FrozenLeaf { page: Vpn(7), frame: Frame(2000), size: PageSize::Small, writable: true }],
        regions: Vec::new(),
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_remedy() {
    let refusal = |table: &FrozenTable| match kernel().spawn_frozen(table, &FrozenTable::default(), &mut Bare) {
        Err(OsError::Config { key: "dump", what }) => what,
        other => panic!("{other:?}"),
    };
    let mut beyond = one_page();
    beyond.leaves[0].frame = Frame(1 << 14);
    assert!(refusal(&beyond).contains("it needs memory"), "{}", refusal(&beyond));
    let mut large = kernel_half();
    large.leaves[7].frame = Frame(1 << 14);
    let refused = kernel().spawn_frozen(&one_page(), &large, &mut Bare).unwrap_err().to_string();
    assert!(refused.contains("the kernel's half needs memory"), "{refused}");
    let mut flat = one_page();
    flat.nodes.remove(0);
    assert_eq!(refusal(&flat), "it has 3 levels and this kernel's tables have 4");

    let mut busy = kernel();
    let process = busy.spawn(&mut Bare).unwrap();
    let table = found(&busy, process);
    let mut taken = one_page();
    taken.nodes[0].frame = table.nodes[0].frame;
    let error = busy.spawn_frozen(&taken, &FrozenTable::default(), &mut Bare).unwrap_err().to_string();
    assert!(error.contains("is taken: let the kernel start fresh"), "{error}");
}

#[test]
fn a_frame_mapped_twice_is_shared_and_freed_once() {
    let mut table = one_page();
    table.leaves[0].writable = false;
    table.leaves.push(FrozenLeaf { page: Vpn(9), ..table.leaves[0] });
    let mut kernel = kernel();
    let process = kernel.spawn_frozen(&table, &FrozenTable::default(), &mut Bare).unwrap();
    assert!(kernel.memory().is_shared(Frame(2000)));
    kernel.check_invariants();
    kernel.exit(process, &mut Bare).unwrap();
    assert_eq!(kernel.memory().free_frames(), PageCount(1 << 14));
}

/// A kernel's half for [`one_page`]: a direct map of 2,048 frames, a page of its own in two places
/// under one shared node, and a node that nothing lies under.
fn kernel_half() -> FrozenTable {
    let half = 1 << 35;
    let node = |level, first, frame| FrozenNode { level: Level(level), first: Vpn(half + first), frame: Frame(frame) };
    let leaf = |page, frame, size| FrozenLeaf { page: Vpn(half + page), frame: Frame(frame), size, writable: false };
    let elsewhere = 1 << 27;
    let own = [7, 512 + 7].map(|page| leaf(elsewhere + page, 3000, PageSize::Small));
    FrozenTable {
        nodes: vec![
            node(3, 0, 500),
            node(2, 0, 501),
            node(3, elsewhere, 502),
            node(2, elsewhere, 503),
            node(1, elsewhere, 504),
            node(1, elsewhere + 512, 504),
        ],
        leaves: (0..8).map(|i| leaf(i * 512, i * 512, PageSize::Huge)).chain(own).collect(),
        regions: Vec::new(),
    }
}

#[test]
fn the_kernels_half_is_mapped_and_owns_what_is_not_its_direct_map() {
    let frames = PageCount(1 << 13);
    let mut host = kernel();
    let (vm, base) = host.host_vm(frames, &mut Bare).unwrap();
    let mut guest = Kernel::new(&KernelConfig::new(frames)).unwrap();
    let mut below = HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut Bare };
    let process = guest.spawn_frozen(&one_page(), &kernel_half(), &mut below).unwrap();
    guest.check_invariants();
    let at = |guest: &Kernel, page: u64| guest.table(process).unwrap().translate(Vpn((1 << 35) + page));
    assert_eq!(at(&guest, 513), Some(Frame(513)));
    assert_eq!((at(&guest, (1 << 27) + 7), at(&guest, (1 << 27) + 519)), (Some(Frame(3000)), Some(Frame(3000))));
    // Four tables and a page of the process; five tables and a page of the kernel; the direct map
    // takes none.
    assert_eq!(guest.memory().free_frames(), PageCount(frames.0 - 5 - 6));
    // All that is mapped is backed: the kernel may use any frame.
    for frame in [0, 1234, 3000, 504, 8 * 512 - 1] {
        assert!(host.table(vm).unwrap().translate(base + frame).is_some(), "{frame}");
    }

    // A page that the dump does not have, beside the others, and the process's end.
    let mut below = HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut Bare };
    let new = VpnRange::new(Vpn((1 << 35) + (1 << 27) + 8), PageCount(1));
    guest.mmap(process, new, VmaFlags::ANONYMOUS, &mut below).unwrap();
    guest.fault(process, new.start, true, Cpu(0), &mut below).unwrap();
    guest.check_invariants();
    guest.exit(process, &mut below).unwrap();
    guest.check_invariants();
    assert_eq!(guest.memory().free_frames(), PageCount(frames.0 - 6));
    host.check_invariants();
}

/// The regions that a kernel might have had for [`one_page`]: its PTE table is in place, and three
/// places after it are empty; its PMD table lies elsewhere.
fn regions() -> Vec<SortedRegion> {
    let region = |level, order: u32, tables: u64, base| SortedRegion {
        process: 71,
        level: Level(level),
        pages: VpnRange::new(Vpn(0), PageCount(tables << order)),
        base: Frame(base),
        used: 1,
        idle: tables - 1,
        holes: 0,
    };
    vec![region(1, 9, 4, 400), region(2, 18, 2, 1000)]
}

#[test]
fn hardware_is_told_what_the_kernel_had_said_while_the_process_lives() {
    let frames = PageCount(1 << 13);
    let table = FrozenTable { regions: regions(), ..one_page() };
    assert_eq!(table.in_place(), (1, 1));
    let mut host = kernel();
    let (vm, base) = host.host_vm(frames, &mut Bare).unwrap();
    let mut guest = Kernel::new(&KernelConfig::new(frames)).unwrap();
    let before = guest.table_regions_generation();
    let mut below = HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut Bare };
    let process = guest.spawn_frozen(&table, &FrozenTable::default(), &mut below).unwrap();
    let other = guest.spawn(&mut below).unwrap();
    guest.check_invariants();
    host.check_invariants();
    let told = guest.table_regions(process);
    let bases: Vec<_> = told.iter().map(|region| (region.level.0, region.base, region.pages.len())).collect();
    assert_eq!(bases, [(1, Frame(400), 4 << 9), (2, Frame(1000), 2 << 18)]);
    // All of a region is contiguous below, as what it holds lies there.
    for region in told {
        for i in 0..region.pages.len() >> (9 * u32::from(region.level.0)) {
            let below = host.table(vm).unwrap().translate(base + region.base.0 + i);
            assert_eq!(below, region.below.map(|first| first + i));
            assert!(below.is_some());
        }
    }
    assert!(guest.table_regions(other).is_empty() && guest.table_regions_generation() > before);
    // An empty place is for no other use: five are set aside, and two processes have five nodes and
    // a page.
    assert_eq!(guest.memory().free_frames(), PageCount(frames.0 - 5 - 6));
    // A table that lies elsewhere translates as any other.
    assert_eq!(guest.table(process).unwrap().translate(Vpn(7)), Some(Frame(2000)));

    let mut below = HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut Bare };
    let child = guest.fork(process, &mut below).unwrap();
    assert!(guest.table_regions(child).is_empty());
    let before = guest.table_regions_generation();
    guest.exit(process, &mut below).unwrap();
    assert!(guest.table_regions(process).is_empty() && guest.table_regions_generation() > before);
    guest.check_invariants();
}

#[test]
fn regions_that_cannot_be_are_refused() {
    let table = FrozenTable { regions: regions(), ..one_page() };
    let sorting =
        KernelConfig { tables: TablesConfig::Asap(AsapConfig::default()), ..KernelConfig::new(PageCount(1 << 14)) };
    let error = Kernel::new(&sorting).unwrap().spawn_frozen(&table, &FrozenTable::default(), &mut Bare).unwrap_err();
    assert!(error.to_string().contains("the regions of its own kernel: leave tables"), "{error}");
    let mut beyond = table;
    beyond.regions[1].base = Frame((1 << 14) - 1);
    let error = kernel().spawn_frozen(&beyond, &FrozenTable::default(), &mut Bare).unwrap_err().to_string();
    assert!(error.contains("it needs memory"), "{error}");
}
