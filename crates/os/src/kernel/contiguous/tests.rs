// SPDX-License-Identifier: MIT OR Apache-2.0
use nestwalk_mem::Cpu;

use super::*;
use crate::{Bare, KernelConfig, VmaFlags};

const OTHERS: VpnRange = VpnRange { start: Vpn(0x1000), end: Vpn(0x1100) };

/// A host with a VM, and a process whose pages have every second frame of a stretch; the others are
/// free, and next in line.
fn host() -> (Kernel, ProcessId, Vpn, ProcessId) {
    let mut host = Kernel::new(&KernelConfig::new(PageCount(1 << 16))).unwrap();
    let (vm, base) = host.host_vm(PageCount(1 << 14), &mut Bare).unwrap();
    let other = host.spawn(&mut Bare).unwrap();
    host.mmap(other, OTHERS, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    for i in 0..OTHERS.len() {
        host.fault(other, OTHERS.start + i, true, Cpu(0), &mut Bare).unwrap();
    }
    for i in (0..OTHERS.len()).step_by(2) {
        let page = VpnRange::new(OTHERS.start + i, PageCount(1));
        host.munmap(other, page, &mut Bare).unwrap();
    }
    (host, vm, base, other)
}

fn frames(host: &Kernel, process: ProcessId, pages: VpnRange) -> Vec<Option<Frame>> {
    let table = host.table(process).unwrap();
    (0..pages.len()).map(|i| table.translate(pages.start + i)).collect()
}

fn is_contiguous(host: &Kernel, vm: ProcessId, pages: VpnRange, first: Frame) -> bool {
    frames(host, vm, pages).iter().enumerate().all(|(i, &frame)| frame == Some(first + i as u64))
}

#[test]
fn pages_that_nobody_has_seen_become_contiguous_without_a_shootdown() {
    let (mut host, vm, base, other) = host();
    let theirs = frames(&host, other, OTHERS);
    let before = *host.counters();
    let pages = VpnRange::new(base + 8, PageCount(9));
    let first = host.make_contiguous(vm, pages, &mut Bare).unwrap();
    assert!(is_contiguous(&host, vm, pages, first));
    let done = host.counters().since(&before);
    assert_eq!((done.shootdowns, done.migrated, done.faults_4k), (0, 0, 9));
    assert_eq!(frames(&host, other, OTHERS), theirs, "there are free blocks, so nothing has to move");
    host.check_invariants();
}

#[test]
fn of_pages_that_were_used_those_are_moved_and_told_of() {
    let (mut host, vm, base, other) = host();
    let theirs = frames(&host, other, OTHERS);
    let pages = VpnRange::new(base + 8, PageCount(9));
    for i in [3, 5] {
        host.fault(vm, pages.start + i, true, Cpu(0), &mut Bare).unwrap();
    }
    let before = *host.counters();
    let first = host.make_contiguous(vm, pages, &mut Bare).unwrap();
    assert!(is_contiguous(&host, vm, pages, first));
    let done = host.counters().since(&before);
    assert_eq!((done.shootdowns, done.shootdown_pages, done.migrated), (1, 3, 2));
    assert_eq!(frames(&host, other, OTHERS), theirs);
    // Once is enough.
    assert_eq!(host.make_contiguous(vm, pages, &mut Bare).unwrap(), first);
    assert_eq!(host.counters().since(&before).shootdowns, 1);
    host.check_invariants();
}
