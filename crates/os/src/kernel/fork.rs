// SPDX-License-Identifier: MIT OR Apache-2.0
//! fork with copy-on-write (`copy_page_range`).

use nestwalk_mem::{Entry, Owner, Vpn};

use crate::below::Below;
use crate::context::Context;
use crate::context::contiguous::blocks_of;
use crate::context::placement::TableContext;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::ProcessId;

impl Kernel {
    /// A child of `parent` with the same mappings, which shares all its pages until one of the two
    /// stores to them. Huge pages are shared as such (`copy_huge_pmd`).
    ///
    /// # Errors
    /// When there is no memory for the child's page table; then there is no child.
    pub fn fork(&mut self, parent: ProcessId, below: &mut dyn Below) -> Result<ProcessId, OsError> {
        let space = self.state.processes.get(parent)?;
        let (vmas, heap, cpu, limit) = (space.vmas.clone(), space.heap, space.cpu, space.cgroup_limit);
        let child = self.spawn(below)?;
        let space = self.state.processes.get_mut(child)?;
        (space.vmas, space.heap, space.cpu, space.parent) = (vmas.clone(), heap, cpu, Some(parent));
        space.cgroup_limit = limit;
        let (cx, _) = self.context(cpu, below);
        let mut inner = TableContext { state: cx.state, below: cx.below, cpu };
        vmas.iter().for_each(|vma| cx.tables.vma_created(&mut inner, child, *vma));
        self.settle(cpu, below);
        let mut next = Vpn(0);
        let copied = self.retrying(cpu, below, |cx, _| cx.copy_leaves(parent, child, &mut next));
        // The parent's pages are write-protected now, whatever became of the child.
        self.state.invalidations.all(&mut self.state.counters, parent);
        if let Err(error) = copied {
            self.exit(child, below)?;
            return Err(error);
        }
        self.state.counters.forks += 1;
        let (mut cx, manager) = self.context(cpu, below);
        manager.forked(&mut cx, parent, child);
        Ok(child)
    }
}

impl Context<'_> {
    /// Shares the parent's leaves from `next` on with the child. `next` goes along, so that it can
    /// be called again if it fails.
    fn copy_leaves(&mut self, parent: ProcessId, child: ProcessId, next: &mut Vpn) -> Result<(), OsError> {
        while let Some(vma) = self.state.processes.get(parent)?.vmas.at_or_after(*next) {
            let mut at = vma.range.start.max(*next);
            while let Some(leaves) = self.next_leaves(parent, &mut at, vma.range.end)? {
                let blocks = blocks_of(&leaves, vma.range);
                for leaf in leaves {
                    if self.is_file_leaf(leaf) {
                        continue;
                    }
                    self.write_leaf_node(parent, leaf.page)?;
                    self.copy_leaf(parent, child, leaf)?;
                    *next = leaf.page + 1;
                }
                self.join_again(parent, &blocks)?;
                self.join_again(child, &blocks)?;
            }
            *next = vma.range.end;
        }
        Ok(())
    }

    /// Whether it maps a page of the page cache, which the child finds there by itself. (Linux
    /// leaves a mapping of a file out unless some page of it has been copied: `vma_needs_copy`.)
    fn is_file_leaf(&self, leaf: nestwalk_mem::Leaf) -> bool {
        leaf.entry.is_present() && matches!(self.state.memory.owner(leaf.entry.frame()), Owner::File { .. })
    }

    fn copy_leaf(&mut self, parent: ProcessId, child: ProcessId, leaf: nestwalk_mem::Leaf) -> Result<(), OsError> {
        self.state.counters.entries_copied += 1;
        if !leaf.entry.is_present() {
            self.map_entry(child, leaf.page, leaf.level, leaf.entry)?;
            self.state.swap.used.0 += 1;
            return Ok(());
        }
        let entry = leaf.entry.without(Entry::WRITABLE | Entry::CONTIGUOUS).with(Entry::COPY_ON_WRITE);
        self.map_entry(child, leaf.page, leaf.level, entry)?;
        self.state.processes.get_mut(parent)?.table.update(leaf.page, |_| entry);
        for i in 0..leaf.size().pages() {
            self.state.memory.share(leaf.entry.frame() + i);
        }
        Ok(())
    }
}
