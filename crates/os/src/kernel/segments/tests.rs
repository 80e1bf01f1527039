// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::{Bare, HostMemory, KernelConfig, StartState};

const OPT2: AllocatorKind = AllocatorKind::CompromisOpt2;

fn range(start: u64, count: u64) -> FrameRange {
    FrameRange::new(Frame(start), PageCount(count))
}

#[test]
fn exactly_fitting_segments_come_first_then_the_largest_is_split() {
    let free = [range(0, 10), range(100, 30), range(200, 20)];
    assert_eq!(choose(&free, PageCount(20), OPT2), Some(vec![range(200, 20)]));
    assert_eq!(choose(&free, PageCount(15), OPT2), Some(vec![range(100, 15)]));
    assert_eq!(choose(&free, PageCount(45), OPT2), Some(vec![range(100, 30), range(200, 15)]));
    assert_eq!(choose(&free, PageCount(40), OPT2), Some(vec![range(100, 30), range(0, 10)]));
    assert_eq!(choose(&free, PageCount(61), OPT2), None);
    let small_ones = Some(vec![range(0, 10), range(200, 20), range(100, 5)]);
    assert_eq!(choose(&free, PageCount(35), AllocatorKind::CompromisOpt1), small_ones);
}

#[test]
fn a_vm_in_one_segment_is_backed_from_the_start_and_never_moves() {
    let mut host = Kernel::new(&KernelConfig::new(PageCount(1 << 16))).unwrap();
    let (vm, base, segments) = host.host_vm_in_segments(PageCount(1 << 15), 1, OPT2, &mut Bare).unwrap();
    let segments = segments.expect("fresh memory is one segment");
    assert_eq!((segments.len(), segments[0].count), (1, PageCount(1 << 15)));
    for gfn in [0, 1, 511, 512, (1 << 15) - 1] {
        assert_eq!(host.table(vm).unwrap().translate(base + gfn), Some(segments[0].start + gfn));
    }
    host.check_invariants();
    // A guest on it makes the host fault no more.
    let faults = host.counters().faults_4k + host.counters().faults_2m;
    let mut guest = Kernel::new(&KernelConfig::new(PageCount(1 << 15))).unwrap();
    let memory = &mut HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut Bare };
    let program = guest.spawn(memory).unwrap();
    let pages = VpnRange::new(Vpn(512), PageCount(1000));
    guest.mmap(program, pages, VmaFlags::ANONYMOUS, memory).unwrap();
    (0..1000).for_each(|page| {
        guest.fault(program, Vpn(512 + page), true, Cpu(0), memory).unwrap();
    });
    assert_eq!(host.counters().faults_4k + host.counters().faults_2m, faults);
    // Reclaim and compaction leave it alone.
    host.reclaim(PageCount(1 << 14), Cpu(0), &mut Bare).unwrap();
    assert_eq!(host.table(vm).unwrap().translate(base), Some(segments[0].start));
    host.check_invariants();
}

#[test]
fn memory_in_too_many_pieces_leaves_an_ordinary_vm() {
    let start = StartState::Fragmented { blocks_permille: 500, frames_per_block: 1, unmovable_permille: 1000 };
    let mut host = Kernel::new(&KernelConfig { start, ..KernelConfig::new(PageCount(1 << 16)) }).unwrap();
    let (vm, base, segments) = host.host_vm_in_segments(PageCount(1 << 14), 2, OPT2, &mut Bare).unwrap();
    assert_eq!(segments, None);
    assert_eq!(host.table(vm).unwrap().translate(base), None);
    host.fault(vm, base, true, Cpu(0), &mut Bare).unwrap();
    host.check_invariants();
}

#[test]
fn a_vm_that_ends_gives_its_segments_back() {
    let mut host = Kernel::new(&KernelConfig::new(PageCount(1 << 16))).unwrap();
    let free = host.memory().free_frames();
    let (vm, _, _) = host.host_vm_in_segments(PageCount(1 << 15), 3, OPT2, &mut Bare).unwrap();
    host.exit(vm, &mut Bare).unwrap();
    assert_eq!(host.memory().free_frames(), free);
    host.check_invariants();
}

#[test]
fn an_allocator_that_gives_no_whole_segments_is_refused() {
    let mut host = Kernel::new(&KernelConfig::new(PageCount(1 << 14))).unwrap();
    let refused = host.host_vm_in_segments(PageCount(1 << 12), 3, AllocatorKind::Xen, &mut Bare).err();
    assert_eq!(refused, Some(OsError::NotWhole(AllocatorKind::Xen)));
    assert_eq!(host.processes().count(), 0);
}
