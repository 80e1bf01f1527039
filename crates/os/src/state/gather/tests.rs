// SPDX-License-Identifier: MIT OR Apache-2.0
use nestwalk_mem::{Cpu, PageCount, Vpn, VpnRange};

use crate::below::Bare;
use crate::config::KernelConfig;
use crate::kernel::Kernel;
use crate::state::process::ProcessId;
use crate::state::vma::VmaFlags;

use super::*;

fn touch(kernel: &mut Kernel, process: ProcessId, pages: VpnRange) -> Vec<Frame> {
    let touched = (pages.start.0..pages.end.0).map(|page| {
        kernel.fault(process, Vpn(page), true, Cpu(0), &mut Bare).unwrap();
        kernel.table(process).unwrap().translate(Vpn(page)).unwrap()
    });
    touched.collect()
}

/// Touches `count` pages, gives them back, and touches them anew: which of the old pages' frames
/// each got.
fn second_time(kind: VmaKind, count: u64) -> Vec<Option<usize>> {
    let mut kernel = Kernel::new(&KernelConfig::new(PageCount(1 << 16))).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    let pages = VpnRange::new(Vpn(0x1000), PageCount(count));
    let flags = VmaFlags { kind, ..VmaFlags::ANONYMOUS };
    kernel.mmap(process, pages, flags, &mut Bare).unwrap();
    let before = touch(&mut kernel, process, pages);
    kernel.madvise(process, pages, crate::Advice::DontNeed, &mut Bare).unwrap();
    kernel.check_invariants();
    let after = touch(&mut kernel, process, pages);
    after.iter().map(|frame| before.iter().position(|old| old == frame)).collect()
}

#[test]
fn the_last_batch_comes_back_first_and_each_batch_in_order() {
    let expected: Vec<_> = (518..600).chain(8..518).chain(0..8).map(Some).collect();
    // The per-CPU list of 64 Ki frames is long enough to hold all of it.
    assert_eq!(second_time(VmaKind::Anonymous, 600), expected);
}

#[test]
fn a_file_goes_in_small_batches() {
    let expected: Vec<_> = (30..40).chain(15..30).chain(0..15).map(Some).collect();
    assert_eq!(second_time(VmaKind::File, 40), expected);
}
