// SPDX-License-Identifier: MIT OR Apache-2.0
use nestwalk_mem::{Level, PageSize, Vpn};

use crate::below::Bare;
use crate::config::KernelConfig;
use crate::kernel::Kernel;
use crate::state::vma::VmaFlags;
use crate::tables::TablesConfig;

use super::*;

#[test]
fn nodes_lie_all_over_memory_and_no_two_in_order() {
    let mut config = KernelConfig::new(PageCount(1 << 18));
    config.tables = TablesConfig::Scattered(ScatteredConfig { seed: 3 });
    let mut kernel = Kernel::new(&config).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    let start = Vpn(1 << 20);
    let pages = 256 * PageSize::Huge.pages();
    kernel.mmap(process, nestwalk_mem::VpnRange::new(start, PageCount(pages)), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    for i in 0..256 {
        kernel.fault(process, start + i * 512, true, Default::default(), &mut Bare).unwrap();
    }
    let mut frames = Vec::new();
    kernel.table(process).unwrap().for_each_node(|view| {
        if view.level == Level::PTE {
            frames.push(view.frame.0);
        }
    });
    assert_eq!(frames.len(), 256);
    let in_order = frames.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
    let quarters: Vec<_> = (0..4).map(|q| frames.iter().filter(|&&frame| frame >> 16 == q).count()).collect();
    assert!(in_order < 4 && quarters.iter().all(|&count| count > 32), "{in_order} in order, by quarter {quarters:?}");
    kernel.check_invariants();
}
