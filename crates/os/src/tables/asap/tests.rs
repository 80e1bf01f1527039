// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each rule of the placement on a machine made for it. Random programs run in the contract suite
//! and the oracle.

use nestwalk_mem::{Cpu, Nanoseconds, Va, Vpn};

use crate::below::{Bare, Below};
use crate::config::KernelConfig;
use crate::kernel::Kernel;
use crate::kernel::host_memory::HostMemory;
use crate::state::vma::VmaFlags;
use crate::tables::TablesConfig;

use super::*;

const NODE: u64 = 512;
const START: u64 = 1 << 20;

fn config(frames: u64) -> KernelConfig {
    let mut config = KernelConfig::new(PageCount(frames));
    config.tables = TablesConfig::Asap(AsapConfig::default());
    config
}

fn kernel() -> (Kernel, ProcessId) {
    let mut kernel = Kernel::new(&config(1 << 15)).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    (kernel, process)
}

fn pages(first: u64, count: u64) -> VpnRange {
    VpnRange::new(Vpn(START + first), PageCount(count))
}

fn map(kernel: &mut Kernel, process: ProcessId, range: VpnRange) {
    kernel.mmap(process, range, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
}

fn touch(kernel: &mut Kernel, process: ProcessId, first: u64) {
    kernel.fault(process, Vpn(START + first), true, Cpu(0), &mut Bare).unwrap();
}

fn statistic(kernel: &Kernel, name: &str) -> u64 {
    nestwalk_mem::counters::value(&kernel.table_placement().counters(), name)
}

/// The PTE nodes by number (from the one that covers `START` on), with their frames.
fn nodes(kernel: &Kernel, process: ProcessId) -> Vec<(u64, Frame)> {
    let mut nodes = Vec::new();
    kernel.table(process).unwrap().for_each_node(|view| {
        if view.level == Level::PTE {
            nodes.push(((view.first_page.0 - START) / NODE, view.frame));
        }
    });
    nodes
}

fn regions(kernel: &Kernel, process: ProcessId, level: Level) -> Vec<TableRegion> {
    kernel.table_regions(process).iter().filter(|region| region.level == level).copied().collect()
}

/// How many PTE nodes lie where the regions say, and how many elsewhere.
fn in_place(kernel: &Kernel, process: ProcessId) -> (usize, usize) {
    let regions = regions(kernel, process, Level::PTE);
    let is_in_place = |&(number, frame): &(u64, Frame)| {
        let page = Vpn(START + number * NODE);
        regions.iter().any(|r| r.pages.contains(page) && r.base + (page.0 - r.pages.start.0) / NODE == frame)
    };
    let nodes = nodes(kernel, process);
    let count = nodes.iter().filter(|node| is_in_place(node)).count();
    (count, nodes.len() - count)
}

fn tick(kernel: &mut Kernel) {
    kernel.tick(kernel.clock() + Nanoseconds(1), &mut Bare).unwrap();
    kernel.check_invariants();
}

#[test]
fn nodes_lie_at_base_plus_index_in_whatever_order_they_are_made() {
    let (mut kernel, process) = kernel();
    map(&mut kernel, process, pages(0, 40 * NODE));
    for number in [7, 39, 0, 23, 8] {
        touch(&mut kernel, process, number * NODE + 5);
    }
    let [region] = regions(&kernel, process, Level::PTE)[..] else { panic!("one mapping, one region") };
    assert_eq!(region.pages, pages(0, 40 * NODE));
    for (number, frame) in nodes(&kernel, process) {
        assert_eq!(frame, region.base + number);
    }
    assert_eq!(nodes(&kernel, process).len(), 5);
    assert_eq!(kernel.table_placement().reserved(), PageCount(35), "those for which there is no node yet");
    assert_eq!(regions(&kernel, process, Level::PMD).len(), 1);
    kernel.check_invariants();
}

#[test]
fn a_node_that_two_mappings_share_has_one_place_and_both_find_it() {
    let (mut kernel, process) = kernel();
    map(&mut kernel, process, pages(0, 3 * NODE + 100));
    let read_only = VmaFlags { writable: false, ..VmaFlags::ANONYMOUS };
    kernel.mmap(process, pages(3 * NODE + 100, 2 * NODE), read_only, &mut Bare).unwrap();
    for page in [0, 3 * NODE + 99, 4 * NODE] {
        kernel.fault(process, Vpn(START + page), false, Cpu(0), &mut Bare).unwrap();
    }
    let ranges: Vec<_> = regions(&kernel, process, Level::PTE).iter().map(|region| region.pages).collect();
    assert_eq!(ranges, [pages(0, 4 * NODE), pages(4 * NODE, 2 * NODE)]);
    assert_eq!(in_place(&kernel, process), (3, 0));
    kernel.munmap(process, pages(0, 3 * NODE + 100), &mut Bare).unwrap();
    let ranges: Vec<_> = regions(&kernel, process, Level::PTE).iter().map(|region| region.pages).collect();
    assert_eq!(ranges, [pages(3 * NODE, NODE), pages(4 * NODE, 2 * NODE)], "the shared node stays where it is");
    assert_eq!(in_place(&kernel, process), (1, 0), "the empty ones are gone");
    kernel.check_invariants();
}

#[test]
fn a_heap_that_grows_has_its_region_extended_at_the_tick_and_its_nodes_moved_there() {
    let (mut kernel, process) = kernel();
    let end = |pages: u64| Va((START + pages) << 12);
    kernel.brk(process, end(0), &mut Bare).unwrap();
    for step in 1..=24 {
        kernel.brk(process, end(step * NODE), &mut Bare).unwrap();
        touch(&mut kernel, process, step * NODE - 1);
        if step > 1 && regions(&kernel, process, Level::PTE)[0].pages.end.0 < START + step * NODE {
            assert_eq!(in_place(&kernel, process).1, 1, "made before the region was extended");
        }
        tick(&mut kernel);
        assert_eq!(in_place(&kernel, process), (step as usize, 0));
    }
    assert!((2..8).contains(&statistic(&kernel, "extensions")), "twice as large each time");
    assert_eq!(kernel.counters().nodes_moved, statistic(&kernel, "nodes_moved"));
    assert!(statistic(&kernel, "nodes_moved") > 0 && statistic(&kernel, "regions") == 2);
}

#[test]
fn a_mapping_that_grows_downwards_is_extended_at_its_low_end() {
    let (mut kernel, process) = kernel();
    // Something above the heap's region keeps frames below it free.
    map(&mut kernel, process, pages(100 * NODE, 64 * NODE));
    map(&mut kernel, process, pages(40 * NODE, 2 * NODE));
    kernel.munmap(process, pages(100 * NODE, 64 * NODE), &mut Bare).unwrap();
    for step in 1..10 {
        map(&mut kernel, process, pages((40 - step) * NODE, NODE));
        touch(&mut kernel, process, (40 - step) * NODE);
        tick(&mut kernel);
        assert_eq!(in_place(&kernel, process), (step as usize, 0));
    }
    let [region] = regions(&kernel, process, Level::PTE)[..] else { panic!("one mapping, one region") };
    assert!(region.pages.start <= Vpn(START + 31 * NODE) && region.pages.end == Vpn(START + 42 * NODE));
}

/// Maps 16 nodes' pages and takes the frame behind the region for `owner`. Grows the mapping by two
/// nodes.
fn grow_into(owner: Owner) -> (Kernel, ProcessId, Frame) {
    let (mut kernel, process) = kernel();
    let end = |pages: u64| Va((START + pages) << 12);
    kernel.brk(process, end(0), &mut Bare).unwrap();
    kernel.brk(process, end(16 * NODE), &mut Bare).unwrap();
    touch(&mut kernel, process, 0);
    let next = regions(&kernel, process, Level::PTE)[0].base + 16;
    assert_eq!(kernel.state.memory.alloc_at(FrameRange::single(next), &mut NoMoves), [true]);
    kernel.state.memory.set_owner(next, owner);
    kernel.brk(process, end(18 * NODE), &mut Bare).unwrap();
    (kernel, process, next)
}

struct NoMoves;

impl nestwalk_mem::physical::Migrate for NoMoves {
    fn migrate(&mut self, _: Frame, _: Frame, _: Owner) -> bool {
        false
    }
}

#[test]
fn what_does_not_move_leaves_a_hole_and_the_table_finds_the_node_elsewhere() {
    let (mut kernel, process, pinned) = grow_into(Owner::Kernel);
    kernel.state.pinned.0 += 1;
    tick(&mut kernel);
    let [region] = regions(&kernel, process, Level::PTE)[..] else { panic!("one mapping, one region") };
    assert!(region.base + 16 == pinned && region.pages.len() >= 18 * NODE);
    assert_eq!((statistic(&kernel, "holes"), statistic(&kernel, "frames_not_had")), (1, 1));
    [16 * NODE, 17 * NODE].into_iter().for_each(|page| touch(&mut kernel, process, page));
    assert_eq!(in_place(&kernel, process), (2, 1));
    assert_eq!(statistic(&kernel, "placed_elsewhere"), 1);
    assert!(kernel.table(process).unwrap().translate(Vpn(START + 16 * NODE)).is_some());
    kernel.check_invariants();
    kernel.exit(process, &mut Bare).unwrap();
    assert_eq!(kernel.memory().free_frames().0 + 1, kernel.memory().frames().0);
}

#[test]
fn what_is_asked_for_besides_ends_where_it_cannot_be_had() {
    let (mut kernel, process) = kernel();
    let end = |pages: u64| Va((START + pages) << 12);
    kernel.brk(process, end(0), &mut Bare).unwrap();
    kernel.brk(process, end(16 * NODE), &mut Bare).unwrap();
    let base = regions(&kernel, process, Level::PTE)[0].base;
    // Two frames behind the region can be had, the third cannot.
    assert_eq!(kernel.state.memory.alloc_at(FrameRange::single(base + 18), &mut NoMoves), [true]);
    kernel.state.memory.set_owner(base + 18, Owner::Kernel);
    kernel.state.pinned.0 += 1;
    kernel.brk(process, end(17 * NODE), &mut Bare).unwrap();
    tick(&mut kernel);
    assert_eq!(regions(&kernel, process, Level::PTE)[0].pages.len(), 18 * NODE);
    assert_eq!(statistic(&kernel, "holes"), 0);
    // When the third is needed, it is a hole.
    kernel.brk(process, end(20 * NODE), &mut Bare).unwrap();
    tick(&mut kernel);
    assert_eq!((statistic(&kernel, "holes"), statistic(&kernel, "frames_not_had")), (1, 1));
}

#[test]
fn pages_in_the_way_are_moved() {
    let (mut kernel, process, _) = grow_into(Owner::Cache);
    kernel.state.cache.0 += 1;
    tick(&mut kernel);
    [16 * NODE, 17 * NODE].into_iter().for_each(|page| touch(&mut kernel, process, page));
    assert_eq!((in_place(&kernel, process), statistic(&kernel, "holes")), ((3, 0), 0));
    kernel.check_invariants();
}

#[test]
fn where_another_region_is_in_the_way_the_growing_one_moves() {
    let (mut kernel, process) = kernel();
    let end = |pages: u64| Va((START + pages) << 12);
    kernel.brk(process, end(0), &mut Bare).unwrap();
    kernel.brk(process, end(4 * NODE), &mut Bare).unwrap();
    [0, NODE, 3 * NODE].into_iter().for_each(|page| touch(&mut kernel, process, page));
    let before = regions(&kernel, process, Level::PTE)[0].base;
    let other = kernel.spawn(&mut Bare).unwrap();
    let wall = kernel.state.memory.alloc_at(FrameRange::new(before + 4, PageCount(4)), &mut NoMoves);
    (0..4).filter(|&i| wall[i]).for_each(|i| kernel.state.memory.free(before + 4 + i as u64, Order::PAGE, Cpu(0)));
    // The frames behind it go to the other process, one region after the other.
    let mut first = 0;
    while kernel.memory().is_free(before + 4) {
        kernel.mmap(other, pages(first, NODE), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
        first += 2 * NODE;
    }
    kernel.brk(process, end(6 * NODE), &mut Bare).unwrap();
    tick(&mut kernel);
    assert_eq!(statistic(&kernel, "regions_moved"), 1);
    assert_ne!(regions(&kernel, process, Level::PTE)[0].base, before);
    assert_eq!((in_place(&kernel, process), statistic(&kernel, "nodes_moved")), ((3, 0), 3));
}

#[test]
fn unmapping_gives_frames_back_and_leaves_the_rest_in_place() {
    let (mut kernel, process) = kernel();
    map(&mut kernel, process, pages(0, 30 * NODE));
    (0..30).for_each(|number| touch(&mut kernel, process, number * NODE));
    kernel.munmap(process, pages(10 * NODE + 1, 10 * NODE - 2), &mut Bare).unwrap();
    kernel.check_invariants();
    // Node 10 still holds the first of its pages; the last of node 19 was never touched, but is
    // mapped.
    assert_eq!(in_place(&kernel, process), (21, 0));
    assert_eq!(statistic(&kernel, "frames_given_back"), 8);
    assert_eq!(regions(&kernel, process, Level::PTE).len(), 2);
    let before = kernel.table_regions_generation();
    let moved = VpnRange::new(Vpn(START + 100 * NODE), PageCount(10 * NODE));
    kernel.mremap(process, pages(0, 10 * NODE), moved, &mut Bare).unwrap();
    kernel.check_invariants();
    assert!(kernel.table_regions_generation() > before);
    assert_eq!(in_place(&kernel, process).1, 0);
    kernel.exit(process, &mut Bare).unwrap();
    assert_eq!(kernel.memory().free_frames(), kernel.memory().frames());
    assert_eq!(kernel.table_regions(process), []);
}

#[test]
fn a_child_has_regions_of_its_own() {
    let (mut kernel, parent) = kernel();
    map(&mut kernel, parent, pages(0, 8 * NODE));
    (0..8).for_each(|number| touch(&mut kernel, parent, number * NODE));
    let child = kernel.fork(parent, &mut Bare).unwrap();
    assert_eq!((in_place(&kernel, parent), in_place(&kernel, child)), ((8, 0), (8, 0)));
    assert_ne!(regions(&kernel, parent, Level::PTE)[0].base, regions(&kernel, child, Level::PTE)[0].base);
    kernel.check_invariants();
}

#[test]
fn under_pressure_unused_frames_go_and_nodes_stay() {
    let (mut kernel, process) = kernel();
    map(&mut kernel, process, pages(0, 30 * NODE));
    [3, 17].into_iter().for_each(|number| touch(&mut kernel, process, number * NODE));
    kernel.reclaim(PageCount(1000), Cpu(0), &mut Bare).unwrap();
    kernel.check_invariants();
    assert_eq!(kernel.table_placement().reserved(), PageCount(0));
    let [region] = regions(&kernel, process, Level::PTE)[..] else { panic!("it shrinks and stays one") };
    assert_eq!(region.pages, pages(3 * NODE, 15 * NODE));
    touch(&mut kernel, process, 5 * NODE);
    assert_eq!(in_place(&kernel, process), (2, 1));
}

#[test]
fn a_third_level_has_regions_too_and_the_root_never() {
    let mut config = config(1 << 15);
    config.tables = TablesConfig::Asap(AsapConfig { levels: 4 });
    let mut kernel = Kernel::new(&config).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    map(&mut kernel, process, pages(0, NODE));
    let levels: Vec<_> = kernel.table_regions(process).iter().map(|region| region.level.0).collect();
    assert_eq!(levels, [1, 2, 3]);
    config.tables = TablesConfig::Asap(AsapConfig { levels: 0 });
    assert!(Kernel::new(&config).unwrap_err().to_string().contains("tables.levels"));
}

/// A program of 20 nodes' pages in a VM. The guest, the host, the VM's process and where its memory
/// begins.
fn virtual_machine(hypercalls: bool) -> (Kernel, Kernel, ProcessId, Vpn) {
    let mut host = config(1 << 16);
    host.hypercalls = hypercalls;
    let mut host = Kernel::new(&host).unwrap();
    let (vm, base) = host.host_vm(PageCount(1 << 15), &mut Bare).unwrap();
    let mut guest = Kernel::new(&config(1 << 15)).unwrap();
    let mut bare = Bare;
    let below: &mut dyn Below = &mut HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut bare };
    let process = guest.spawn(below).unwrap();
    guest.mmap(process, pages(0, 20 * NODE), VmaFlags::ANONYMOUS, below).unwrap();
    for number in [19, 3, 0] {
        guest.fault(process, Vpn(START + number * NODE), true, Cpu(0), below).unwrap();
    }
    guest.check_invariants();
    host.check_invariants();
    (guest, host, vm, base)
}

#[test]
fn a_guest_s_regions_are_contiguous_in_a_host_that_knows_the_hypercall() {
    let (guest, host, vm, base) = virtual_machine(true);
    let process = guest.processes().next().unwrap();
    for region in guest.table_regions(process) {
        let below = region.below.expect("the host has done it");
        for i in 0..region.pages.len() / NODE.pow(region.level.0.into()) {
            assert_eq!(host.table(vm).unwrap().translate(base + region.base.0 + i), Some(below + i));
        }
    }
    assert_eq!((guest.counters().hypercalls, statistic(&guest, "made_contiguous")), (2, 2));
    assert_eq!(host.table_regions(vm).len(), 2, "the host has regions for the VM's memory");
}

#[test]
fn a_region_stays_where_the_guest_was_told_that_it_is() {
    let (mut guest, mut host, vm, base) = virtual_machine(true);
    let process = guest.processes().next().unwrap();
    // The guest's memory lies the wrong way round, so each further mapping has two more regions
    // moved together.
    for gfn in (0..1 << 12).rev() {
        host.fault(vm, base + gfn, true, Cpu(0), &mut Bare).unwrap();
    }
    let mut bare = Bare;
    let below: &mut dyn Below = &mut HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut bare };
    for mapping in 1..6 {
        guest.mmap(process, pages(100 * mapping * NODE, 20 * NODE), VmaFlags::ANONYMOUS, below).unwrap();
    }
    assert_eq!(statistic(&guest, "made_contiguous"), statistic(&guest, "regions"));
    for region in guest.table_regions(process) {
        let (told, table) = (region.below.expect("the host has done it"), host.table(vm).unwrap());
        let frames = region.pages.len() / NODE.pow(region.level.0.into());
        let there = (0..frames).map(|i| table.translate(base + region.base.0 + i).unwrap());
        assert!(there.enumerate().all(|(i, frame)| frame == told + i as u64), "{region:?} has moved");
    }
    guest.check_invariants();
    host.check_invariants();
}

#[test]
fn a_host_that_does_not_know_the_hypercall_is_asked_once() {
    let (guest, ..) = virtual_machine(false);
    let process = guest.processes().next().unwrap();
    assert!(guest.table_regions(process).len() == 2 && in_place(&guest, process) == (3, 0));
    assert!(guest.table_regions(process).iter().all(|region| region.below.is_none()));
    assert_eq!(guest.counters().hypercalls, 1);
}
