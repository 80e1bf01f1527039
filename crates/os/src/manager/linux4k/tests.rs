// SPDX-License-Identifier: MIT OR Apache-2.0
use nestwalk_mem::{Cpu, Vpn, VpnRange};

use crate::below::Bare;
use crate::config::KernelConfig;
use crate::kernel::Kernel;
use crate::state::vma::{HugeAdvice, VmaFlags};

use super::*;

#[test]
fn neighbours_get_frames_in_order_and_no_page_is_huge() {
    let mut kernel = Kernel::new(&KernelConfig::new(PageCount(8192))).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    let flags = VmaFlags { advice: HugeAdvice::Huge, ..VmaFlags::ANONYMOUS };
    kernel.mmap(process, VpnRange::new(Vpn(512), PageCount(1024)), flags, &mut Bare).unwrap();
    for i in 0..1024 {
        kernel.fault(process, Vpn(512 + i), true, Cpu(0), &mut Bare).unwrap();
    }
    let table = kernel.table(process).unwrap();
    let frames: Vec<_> = (512..1536).map(|page| table.translate(Vpn(page)).unwrap().0).collect();
    let in_order = frames.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
    assert!(in_order > 1000, "on fresh memory, {in_order} of 1023 neighbours are side by side");
    assert_eq!((kernel.counters().faults_4k, kernel.counters().zeroed_4k), (1024, 1024 + 5));
    assert_eq!((kernel.counters().faults_2m, kernel.counters().huge_fallbacks), (0, 0));
}
