// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contiguous bit of PTEs: who sets it for 64 KiB, and what keeps it.
//!
//! A memory manager joins 16 pages ([`Context::join`]) that it has laid in one aligned 64 KiB; the
//! table ends the block when one of them goes. What changes all 16 alike keeps them a block, as in
//! Linux, whose `set_ptes` and `wrprotect_ptes` work on runs of PTEs (`mm/contpte.c`): fork,
//! `mprotect`, `MADV_FREE`, `mremap`. So does the split of 2 MiB, whose 512 PTEs are written at
//! once (`__split_huge_pmd_locked`).

use nestwalk_mem::{CONTIGUOUS_ORDER, CONTIGUOUS_PAGES, Entry, Leaf, PageCount, PageTable, Vpn, VpnRange};

use crate::context::Context;
use crate::error::OsError;
use crate::state::process::ProcessId;

/// Makes blocks of all the PTEs that a leaf of 2 MiB has become.
pub(super) fn join_all(table: &mut PageTable, leaf: Leaf) {
    (0..leaf.size().pages()).step_by(CONTIGUOUS_PAGES as usize).for_each(|place| {
        table.join(leaf.page + place);
    });
}

/// The first pages of the contiguous blocks that lie in `leaves`, all of which are in `range`.
pub(crate) fn blocks_of(leaves: &[Leaf], range: VpnRange) -> Vec<Vpn> {
    let begins = |leaf: &&Leaf| leaf.entry.has(Entry::CONTIGUOUS) && leaf.page.is_aligned(CONTIGUOUS_ORDER);
    let within = |page: &Vpn| *page + CONTIGUOUS_PAGES <= range.end;
    leaves.iter().filter(begins).map(|leaf| leaf.page).filter(within).collect()
}

impl Context<'_> {
    /// Sets the contiguous bit in the PTEs of the aligned 64 KiB around `page`, if entries have
    /// such a bit and these 16 may have it ([`PageTable::join`]). Pages that were not mapped as one
    /// before, and that a TLB may hold one by one, are invalidated (break before make, as
    /// `contpte_convert` and FreeBSD's `pmap_promote_l3c` do); those of a `fresh` block are in no
    /// TLB. Returns whether it did.
    ///
    /// # Errors
    /// When there is no such process, or nothing below backs the table node.
    pub fn join(&mut self, process: ProcessId, page: Vpn, fresh: bool) -> Result<bool, OsError> {
        if !self.state.contiguous {
            return Ok(false);
        }
        if !fresh {
            self.write_leaf_node(process, page)?;
        }
        if !self.state.processes.get_mut(process)?.table.join(page) {
            return Ok(false);
        }
        if !fresh {
            let block = VpnRange::new(page.align_down(CONTIGUOUS_ORDER), PageCount(CONTIGUOUS_PAGES));
            self.invalidate(process, block, false);
        }
        Ok(true)
    }

    /// Joins again what were `blocks` before all their PTEs were changed or moved, where that is
    /// possible. The caller invalidates the pages.
    ///
    /// # Errors
    /// When there is no such process.
    pub(crate) fn join_again(&mut self, process: ProcessId, blocks: &[Vpn]) -> Result<(), OsError> {
        if !blocks.is_empty() {
            let table = &mut self.state.processes.get_mut(process)?.table;
            for &block in blocks.iter().filter(|block| block.is_aligned(CONTIGUOUS_ORDER)) {
                table.join(block);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
