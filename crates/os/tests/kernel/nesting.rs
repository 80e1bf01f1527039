// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels on top of each other.

use nestwalk_mem::{Cpu, Entry, FrameRange, PageCount, PageSize, Vpn, VpnRange};
use nestwalk_os::manager::thp::ThpConfig;
use nestwalk_os::{
    Advice, Bare, Below, FaultKind, HostMemory, Hypercall, HypercallReply, Kernel, KernelConfig, ManagerConfig,
    OsError, ProcessId, VmaFlags,
};

use crate::{configurations, pages};

fn kernel(pages: u64) -> Kernel {
    Kernel::new(&KernelConfig::new(PageCount(pages))).unwrap()
}

fn vm<'a>(host: &'a mut Kernel, (process, base): (ProcessId, Vpn), below: &'a mut dyn Below) -> HostMemory<'a> {
    HostMemory { host, process, base, cpu: Cpu(0), below }
}

#[test]
fn a_fault_three_kernels_deep_backs_the_page_and_every_table_node() {
    let (mut l0, mut l1, mut l2) = (kernel(8192), kernel(4096), kernel(2048));
    let vm1 = l0.host_vm(PageCount(4096), &mut Bare).unwrap();
    let vm2 = l1.host_vm(PageCount(2048), &mut vm(&mut l0, vm1, &mut Bare)).unwrap();
    let mut below = Bare;
    let mut memory1 = vm(&mut l0, vm1, &mut below);
    let mut memory2 = vm(&mut l1, vm2, &mut memory1);
    let process = l2.spawn(&mut memory2).unwrap();
    l2.mmap(process, pages(512, 64), VmaFlags::ANONYMOUS, &mut memory2).unwrap();
    let kind = l2.fault(process, Vpn(515), true, Cpu(0), &mut memory2).unwrap();
    assert_eq!(kind, FaultKind::Minor(PageSize::Small));
    let mut frames = vec![l2.table(process).unwrap().translate(Vpn(515)).unwrap()];
    l2.table(process).unwrap().for_each_node(|view| frames.push(view.frame));
    for frame in frames {
        let in_l1 = l1.table(vm2.0).unwrap().translate(vm2.1 + frame.0).expect("the second kernel backs the third");
        l0.table(vm1.0).unwrap().translate(vm1.1 + in_l1.0).expect("the first kernel backs the second");
    }
    assert_eq!((l2.counters().faults_4k, l2.counters().nodes_made), (1, 4));
    assert_eq!(l1.counters().faults_4k, 5, "a page and four nodes");
    assert_eq!(l0.counters().faults_4k, 5 + l1.counters().nodes_made, "those, and the second kernel's nodes");
    [&l0, &l1, &l2].iter().for_each(|kernel| kernel.check_invariants());
}

#[test]
fn a_guest_larger_than_its_host_gets_the_host_s_error() {
    let (mut host, mut guest) = (kernel(1024), kernel(4096));
    let machine = host.host_vm(PageCount(4096), &mut Bare).unwrap();
    let process = guest.spawn(&mut vm(&mut host, machine, &mut Bare)).unwrap();
    guest.mmap(process, pages(512, 3000), VmaFlags::ANONYMOUS, &mut vm(&mut host, machine, &mut Bare)).unwrap();
    let errors = (512..3512)
        .filter_map(|page| guest.fault(process, Vpn(page), true, Cpu(0), &mut vm(&mut host, machine, &mut Bare)).err());
    let Some(OsError::Host { source, .. }) = errors.into_iter().next() else { panic!("the host has room") };
    assert!(matches!(*source, OsError::OutOfMemory { .. }));
    guest.check_invariants();
    host.check_invariants();
}

#[test]
fn a_touch_beyond_the_guest_s_memory_is_an_error() {
    let mut host = kernel(2048);
    let machine = host.host_vm(PageCount(1024), &mut Bare).unwrap();
    let error = vm(&mut host, machine, &mut Bare).touch(FrameRange::single(nestwalk_mem::Frame(1024)), false);
    let Err(OsError::Host { frame, .. }) = error else { panic!("{error:?}") };
    assert_eq!(frame.0, 1024);
}

#[test]
fn a_guest_s_touches_are_its_accesses_to_the_host() {
    let mut host = kernel(4096);
    let machine = host.host_vm(PageCount(1024), &mut Bare).unwrap();
    let range = FrameRange::new(nestwalk_mem::Frame(16), PageCount(8));
    vm(&mut host, machine, &mut Bare).touch(range, false).unwrap();
    vm(&mut host, machine, &mut Bare).touch(FrameRange::single(range.start), true).unwrap();
    let leaf = |host: &Kernel, i| host.table(machine.0).unwrap().leaf(machine.1 + i).unwrap().entry;
    use nestwalk_mem::Entry;
    assert!(leaf(&host, 16).has(Entry::ACCESSED | Entry::DIRTY));
    assert!(leaf(&host, 17).has(Entry::ACCESSED) && !leaf(&host, 17).has(Entry::DIRTY));
    assert_eq!(host.counters().faults_4k, 8);
}

#[test]
fn hypercalls_do_what_they_say_or_are_refused() {
    for mut config in configurations(PageCount(8192)) {
        let mut host = Kernel::new(&config).unwrap();
        let machine = host.host_vm(PageCount(4096), &mut Bare).unwrap();
        let frames = FrameRange::new(nestwalk_mem::Frame(512), PageCount(1024));
        let mut below = Bare;
        let mut memory = vm(&mut host, machine, &mut below);
        memory.touch(FrameRange::new(frames.start, PageCount(40)), true).unwrap();
        let all = HypercallReply::Done { frames: frames.count, base: None };
        assert_eq!(memory.hypercall(Hypercall::PreferHuge(frames)), all);
        memory.touch(frames, true).unwrap();
        assert_eq!(memory.hypercall(Hypercall::GatherHuge(frames)), all, "{config:?}");
        let leaf = host.table(machine.0).unwrap().leaf(machine.1 + 600).unwrap();
        assert_eq!(leaf.size(), PageSize::Huge);

        let few = FrameRange::new(nestwalk_mem::Frame(100), PageCount(100));
        let reply = vm(&mut host, machine, &mut Bare).hypercall(Hypercall::MakeContiguous(few));
        let HypercallReply::Done { frames: PageCount(100), base: Some(base) } = reply else { panic!("{reply:?}") };
        let table = host.table(machine.0).unwrap();
        assert!((0..100).all(|i| table.translate(machine.1 + (100 + i)) == Some(base + i)));

        let beyond = FrameRange::new(nestwalk_mem::Frame(4000), PageCount(512));
        let reply = vm(&mut host, machine, &mut Bare).hypercall(Hypercall::PreferHuge(beyond));
        assert_eq!(reply, HypercallReply::Done { frames: PageCount(0), base: None });
        host.check_invariants();

        config.hypercalls = false;
        let mut host = Kernel::new(&config).unwrap();
        let machine = host.host_vm(PageCount(4096), &mut Bare).unwrap();
        let reply = vm(&mut host, machine, &mut Bare).hypercall(Hypercall::PreferHuge(frames));
        assert_eq!(reply, HypercallReply::Unsupported);
    }
}

#[test]
fn a_vm_s_memory_is_one_mapping_aligned_to_a_giant_page() {
    let mut config = KernelConfig::new(PageCount(8192));
    config.manager = ManagerConfig::Thp(ThpConfig::default());
    let mut host = Kernel::new(&config).unwrap();
    let (process, base) = host.host_vm(PageCount(4096), &mut Bare).unwrap();
    assert!(base.is_aligned(18));
    assert_eq!(host.vmas(process).unwrap().map(|vma| vma.range.len()).collect::<Vec<_>>(), [4096]);
    host.madvise(process, pages(base.0, 4096), Advice::NoHugePage, &mut Bare).unwrap();
    vm(&mut host, (process, base), &mut Bare)
        .touch(FrameRange::new(nestwalk_mem::Frame(0), PageCount(4)), true)
        .unwrap();
    assert_eq!((host.counters().faults_4k, host.counters().faults_2m), (4, 0));
}

/// What each of two programs wrote to its table last is remembered; that the host took the frame
/// away meanwhile is noticed.
#[test]
fn programs_that_fault_in_turn_write_to_tables_that_the_host_backs() {
    let (mut host, mut guest) = (kernel(8192), kernel(2048));
    let machine = host.host_vm(PageCount(2048), &mut Bare).unwrap();
    let mut programs = Vec::new();
    for _ in 0..2 {
        let process = guest.spawn(&mut vm(&mut host, machine, &mut Bare)).unwrap();
        guest.mmap(process, pages(512, 64), VmaFlags::ANONYMOUS, &mut vm(&mut host, machine, &mut Bare)).unwrap();
        programs.push(process);
    }
    let node = |guest: &Kernel, process| {
        let table = guest.table(process).unwrap();
        machine.1 + table.node_frame(table.lowest_node(Vpn(512)).0).0
    };
    for page in 512..576 {
        for &process in &programs {
            guest.touch(process, Vpn(page), true, Cpu(0), &mut vm(&mut host, machine, &mut Bare)).unwrap();
            assert!(host.table(machine.0).unwrap().translate(node(&guest, process)).is_some());
        }
        if page % 5 == 0 {
            let taken = VpnRange::new(node(&guest, programs[page as usize % 2]), PageCount(1));
            host.madvise(machine.0, taken, Advice::DontNeed, &mut Bare).unwrap();
            assert!(host.table(machine.0).unwrap().translate(taken.start).is_none());
        }
    }
    assert_eq!(guest.counters().faults_4k, 128);
    [&host, &guest].iter().for_each(|kernel| kernel.check_invariants());
}

#[test]
fn a_touch_sets_the_bits_that_the_hardware_would_set_and_faults_where_it_would() {
    let mut kernel = kernel(2048);
    let process = kernel.spawn(&mut Bare).unwrap();
    kernel.mmap(process, pages(512, 8), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    let entry = |kernel: &Kernel| kernel.table(process).unwrap().leaf(Vpn(512)).unwrap().entry;
    kernel.touch(process, Vpn(512), false, Cpu(0), &mut Bare).unwrap();
    assert!(entry(&kernel).has(Entry::ACCESSED) && !entry(&kernel).has(Entry::DIRTY));
    kernel.touch(process, Vpn(512), true, Cpu(0), &mut Bare).unwrap();
    assert!(entry(&kernel).has(Entry::DIRTY));
    assert_eq!((kernel.counters().faults_4k, kernel.counters().faults_spurious), (1, 0));
    let child = kernel.fork(process, &mut Bare).unwrap();
    kernel.touch(process, Vpn(512), false, Cpu(0), &mut Bare).unwrap();
    assert_eq!(kernel.counters().faults_copied, 0);
    kernel.touch(process, Vpn(512), true, Cpu(0), &mut Bare).unwrap();
    assert_eq!((kernel.counters().faults_copied, kernel.counters().faults_4k), (1, 1));
    let outside = kernel.touch(child, Vpn(5), false, Cpu(0), &mut Bare);
    assert_eq!(outside, Err(OsError::Segfault { process: child, page: Vpn(5) }));
    kernel.check_invariants();
}
