// SPDX-License-Identifier: MIT OR Apache-2.0
use nestwalk_mem::{Cpu, VpnRange};

use crate::below::Bare;
use crate::config::KernelConfig;
use crate::fragmentation::Fragmentation;
use crate::kernel::Kernel;
use crate::manager::ManagerConfig;
use crate::state::process::ProcessId;
use crate::state::vma::VmaFlags;

use super::*;

const FIRST: Vpn = Vpn(0x1000);

fn kernel() -> (Kernel, ProcessId) {
    let mut config = KernelConfig::new(PageCount(16_384));
    config.manager = ManagerConfig::MThp(MThpConfig::default());
    let mut kernel = Kernel::new(&config).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    kernel.mmap(process, VpnRange::new(FIRST, PageCount(4100)), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    (kernel, process)
}

fn touch(kernel: &mut Kernel, process: ProcessId, page: u64) {
    kernel.fault(process, FIRST + page, true, Cpu(0), &mut Bare).unwrap();
}

fn average(kernel: &Kernel, process: ProcessId) -> f64 {
    let whole = VpnRange { start: Vpn(0), end: Vpn(1 << 30) };
    Fragmentation::of_small(kernel.table(process).unwrap(), whole).average().unwrap()
}

#[test]
fn a_sparse_program_pays_for_eight_pages_a_touch() {
    let (mut kernel, process) = kernel();
    let before = kernel.memory().free_frames().0;
    (0..100).for_each(|n| touch(&mut kernel, process, n * 8));
    assert_eq!(kernel.counters().faults_4k, 100);
    assert!(before - kernel.memory().free_frames().0 >= 800);
    assert_eq!(average(&kernel, process), 1.0);
    kernel.check_invariants();
}

#[test]
fn the_end_of_a_mapping_that_holds_no_folio_gets_single_pages() {
    let (mut kernel, process) = kernel();
    touch(&mut kernel, process, 4097);
    let table = kernel.table(process).unwrap();
    assert!(table.translate(FIRST + 4097).is_some() && table.translate(FIRST + 4096).is_none());
}

#[test]
fn rewriting_after_a_fork_scatters_what_was_packed() {
    let (mut kernel, process) = kernel();
    (0..512).for_each(|n| touch(&mut kernel, process, n * 8));
    assert_eq!(average(&kernel, process), 1.0);
    let child = kernel.fork(process, &mut Bare).unwrap();
    // Copies are single pages, taken in the order of the stores.
    for place in 0..8 {
        (0..512).for_each(|n| touch(&mut kernel, process, n * 8 + place));
    }
    assert!(average(&kernel, process) > 2.0, "{}", average(&kernel, process));
    kernel.exit(child, &mut Bare).unwrap();
    kernel.check_invariants();
}

#[test]
fn folio_sizes_are_the_kernel_s() {
    let orders = [Folio::K16, Folio::K32, Folio::K64, Folio::K128, Folio::K256, Folio::K512, Folio::M1];
    assert_eq!(orders.map(|folio| folio.order().0), [2, 3, 4, 5, 6, 7, 8]);
}
