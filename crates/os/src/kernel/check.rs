// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must always hold of a kernel.

use nestwalk_mem::{Entry, Frame, Owner, PageSize, Vpn, VpnRange};

use crate::kernel::Kernel;
use crate::state::process::{Process, ProcessId};

impl Kernel {
    /// Checks what must always hold: every structure's own invariants; every mapped frame is
    /// allocated, mapped once more than it is shared, and owned by its page; allocated and free
    /// frames are all frames.
    ///
    /// # Panics
    /// With a message that names the process, page or frame, if something does not hold.
    pub fn check_invariants(&self) {
        self.state.memory.check_invariants();
        self.manager.check_invariants(&self.state);
        self.tables.check_invariants(&self.state);
        let frames = self.state.memory.frames().0 as usize;
        let mut mappings = vec![0u32; frames];
        if let Some(head) = self.state.zero_block {
            mappings[head.0 as usize..][..PageSize::Huge.pages() as usize].fill(1);
        }
        self.state.files.check_invariants();
        for (file, page, cached) in self.state.files.iter() {
            let owner = self.state.memory.owner(cached.frame);
            assert_eq!(owner, Owner::File { file: file.0, page }, "the owner of {cached:?}");
            assert_eq!(std::mem::replace(&mut mappings[cached.frame.0 as usize], 1), 0, "{cached:?} is another's, too");
        }
        let mut nodes = 0;
        for (id, process) in self.state.processes.iter() {
            process.vmas.check_invariants();
            process.table.check_invariants();
            self.check_leaves(id, process, &mut mappings);
            process.table.for_each_node(|view| {
                let owner = self.state.memory.owner(view.frame);
                if owner == Owner::Kernel && is_kernel_half(process, view.first_page) {
                    return;
                }
                assert_eq!(owner, Owner::TableNode { process: id.0 }, "{view:?} of {id:?}");
                let mapped = std::mem::replace(&mut mappings[view.frame.0 as usize], u32::MAX);
                assert_eq!(mapped, 0, "{view:?} of {id:?} lies in a mapped frame");
                nodes += 1;
            });
        }
        let counters = &self.state.counters;
        assert_eq!(nodes, counters.nodes_made - counters.nodes_freed, "nodes made less nodes freed");
        self.check_frames(&mappings);
    }

    fn check_leaves(&self, id: ProcessId, process: &Process, mappings: &mut [u32]) {
        let whole = VpnRange { start: Vpn(0), end: process.table.geometry().end() };
        process.table.for_each_leaf(whole, |leaf| {
            let vma = process.vmas.get(leaf.page);
            if vma.is_none() && is_kernel_half(process, leaf.page) {
                return; // found as it is: `frozen`
            }
            let vma = vma.unwrap_or_else(|| panic!("{leaf:?} of {id:?} lies outside of all mappings"));
            if !leaf.entry.is_present() {
                return;
            }
            let last = leaf.page + (leaf.size().pages() - 1);
            assert!(vma.range.contains(last), "{leaf:?} of {id:?} reaches beyond {vma:?}");
            let writable = leaf.entry.has(Entry::WRITABLE);
            assert!(!writable || vma.flags.writable, "{leaf:?} of {id:?} is writable, {vma:?} is not");
            for i in 0..leaf.size().pages() {
                let frame = leaf.frame_of(leaf.page + i);
                mappings[frame.0 as usize] += 1;
                let shared = self.state.memory.is_shared(frame);
                let owner = self.state.memory.owner(frame);
                let view = vma.flags.view().filter(|_| matches!(owner, Owner::File { .. }));
                if let Some(view) = view {
                    let place = Owner::File { file: view.file.0, page: view.page(leaf.page + i) };
                    assert_eq!(owner, place, "{leaf:?} of {id:?}, by {vma:?}");
                }
                let may_store = view.is_some_and(|view| view.shared);
                assert!(!writable || !shared || may_store, "{leaf:?} of {id:?} is writable, and {frame:?} is shared");
                assert!(
                    view.is_some() || !matches!(owner, Owner::File { .. }),
                    "{leaf:?} of {id:?} maps a file's page"
                );
                if let Owner::Page { process, page } = self.state.memory.owner(frame)
                    && !shared
                {
                    assert_eq!((process, page), (id.0, leaf.page + i), "the owner of {frame:?}");
                }
            }
        });
    }

    fn check_frames(&self, mappings: &[u32]) {
        let memory = &self.state.memory;
        let mut in_use = 0;
        for (frame, &count) in mappings.iter().enumerate() {
            let frame = Frame(frame as u64);
            in_use += u64::from(count > 0);
            let shared = count != u32::MAX && count > 1;
            assert_eq!(shared, memory.is_shared(frame), "{frame:?} is mapped {count} times");
        }
        let reserved = self.manager.reserved().0 + self.tables.reserved().0;
        let (free, pinned) = (memory.free_frames().0, self.state.cache.0 + self.state.pinned.0);
        let all = in_use + pinned + reserved + free;
        assert_eq!(all, memory.frames().0, "{in_use} in use, {pinned} pinned, {reserved} reserved, {free} free");
    }
}

/// Whether `page` is in the upper half of what the process's table translates.
fn is_kernel_half(process: &Process, page: Vpn) -> bool {
    page.0 >= process.table.geometry().end().0 / 2
}
