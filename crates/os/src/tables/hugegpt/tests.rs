// SPDX-License-Identifier: MIT OR Apache-2.0
use nestwalk_mem::{Cpu, PageSize, Vpn, VpnRange};

use crate::below::Bare;
use crate::config::KernelConfig;
use crate::kernel::Kernel;
use crate::kernel::host_memory::HostMemory;
use crate::manager::ManagerConfig;
use crate::manager::thp::{Enabled, ThpConfig};
use crate::state::process::ProcessId;
use crate::state::vma::VmaFlags;
use crate::tables::TablesConfig;

use super::*;

const GUEST: PageCount = PageCount(1 << 15);

fn guest() -> Kernel {
    let mut config = KernelConfig::new(GUEST);
    config.tables = TablesConfig::HugeGpt(HugeGptConfig::default());
    Kernel::new(&config).unwrap()
}

/// A host that knows the hypercalls, or not; its huge pages are for who asks (`madvise`).
fn host(hypercalls: bool) -> (Kernel, ProcessId, Vpn) {
    let mut config = KernelConfig::new(PageCount(1 << 17));
    config.manager = ManagerConfig::Thp(ThpConfig { enabled: Enabled::Madvise, ..ThpConfig::default() });
    config.hypercalls = hypercalls;
    let mut host = Kernel::new(&config).unwrap();
    let (vm, base) = host.host_vm(GUEST, &mut Bare).unwrap();
    (host, vm, base)
}

fn statistic(kernel: &Kernel, name: &str) -> u64 {
    nestwalk_mem::counters::value(&kernel.table_placement().counters(), name)
}

/// Runs a program of 4096 pages in the guest. How many of its table's nodes lie on huge pages of
/// the host, and on others.
fn nodes_on_huge_pages(hypercalls: bool) -> (u64, u64, Kernel) {
    let ((mut host, vm, base), mut guest) = (host(hypercalls), guest());
    let mut bare = Bare;
    let mut below = HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut bare };
    let process = guest.spawn(&mut below).unwrap();
    guest.mmap(process, VpnRange::new(Vpn(1 << 20), PageCount(4096)), VmaFlags::ANONYMOUS, &mut below).unwrap();
    for page in 0..4096 {
        guest.fault(process, Vpn((1 << 20) + page), true, Cpu(0), &mut below).unwrap();
    }
    guest.check_invariants();
    host.check_invariants();
    let (mut huge, mut other) = (0, 0);
    guest.table(process).unwrap().for_each_node(|view| {
        let leaf = host.table(vm).unwrap().leaf(base + view.frame.0).unwrap();
        *if leaf.size() == PageSize::Huge { &mut huge } else { &mut other } += 1;
    });
    (huge, other, guest)
}

#[test]
fn all_nodes_lie_on_huge_pages_of_a_host_that_knows() {
    let (huge, other, guest) = nodes_on_huge_pages(true);
    assert_eq!((huge, other), (11, 0), "8 PTE nodes and one of each level above");
    assert_eq!(statistic(&guest, "regions_made"), statistic(&guest, "huge_regions"));
    assert_eq!(statistic(&guest, "fallbacks"), 0);
}

#[test]
fn on_a_host_that_does_not_know_the_guest_is_stock() {
    let (huge, other, guest) = nodes_on_huge_pages(false);
    assert_eq!((huge, other), (0, 11));
    assert_eq!((statistic(&guest, "regions_made"), guest.table_placement().reserved()), (0, PageCount(0)));
}

#[test]
fn unused_regions_come_back_under_pressure() {
    let ((mut host, vm, base), mut guest) = (host(true), guest());
    let mut bare = Bare;
    let mut below = HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut bare };
    let process = guest.spawn(&mut below).unwrap();
    assert!(guest.table_placement().reserved() > PageCount(0));
    guest.exit(process, &mut below).unwrap();
    guest.reclaim(PageCount(1 << 12), Cpu(0), &mut below).unwrap();
    assert_eq!(guest.table_placement().reserved(), PageCount(0));
    assert_eq!(guest.memory().free_frames(), guest.memory().frames());
}
