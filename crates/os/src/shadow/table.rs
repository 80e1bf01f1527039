// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the shadow of a process's table and that of the direct map have in common.

use nestwalk_mem::{Entry, Leaf, PageTable, Vpn, VpnRange};

/// Aligned entries of a PTE node that are filled together (`PTE_PREFETCH_NUM`).
pub(super) const PREFETCHED: u64 = 8;

/// Unmaps the leaves of `table` over `pages`. How many there were.
pub(super) fn unmap_all(table: &mut PageTable, pages: VpnRange) -> u64 {
    let mut there = Vec::new();
    table.for_each_leaf(pages, |leaf| there.push(leaf.page));
    there.iter().for_each(|&page| {
        table.unmap(page);
    });
    there.len() as u64
}

/// The leaf of `table` for `page`, if the hardware could use it.
pub(super) fn usable(table: &PageTable, page: Vpn, store: bool) -> Option<Leaf> {
    table.leaf(page).filter(|leaf| leaf.entry.is_present() && (!store || leaf.entry.has(Entry::WRITABLE)))
}
