// SPDX-License-Identifier: MIT OR Apache-2.0
//! What changes above or below a shadow, and what becomes of its entries.

use nestwalk_mem::{Entry, FrameRange, Level, PageCount, PageSize, PageTable, Vpn, VpnRange};

use super::nodes::Written;
use super::{Shadows, forget_node, frames_behind, wanted};
use crate::kernel::Kernel;
use crate::state::invalidation::{Invalidation, PAGES_MAX, Scope};
use crate::state::process::ProcessId;

impl Kernel {
    /// Takes in what was written to `upper`, the table of the VM's `process`. To be called before
    /// the hardware walks the shadow again.
    #[inline]
    pub fn synchronise_shadow(&mut self, shadows: &mut Shadows, (process, upper): (ProcessId, &mut PageTable)) {
        let writes = upper.take_writes();
        if !writes.is_empty() {
            self.take_in(shadows, process, &writes);
        }
    }

    fn take_in(&mut self, shadows: &mut Shadows, process: ProcessId, writes: &[nestwalk_mem::Write]) {
        let Some(place) = shadows.place_of(process) else { return };
        let Shadows { tables, direct, .. } = shadows;
        let shadow = &mut tables[place].1;
        let geometry = shadow.table.geometry();
        let counters = &mut self.state.counters;
        for write in writes {
            let level = Level((write.pages.len().ilog2() / geometry.index_bits()) as u8 + 1);
            let node_order = geometry.entry_order(level.up());
            let first = write.pages.start.align_down(node_order);
            let (gone, below) = match shadow.nodes.write(level, first) {
                Written::Freely => continue,
                Written::Unsynchronised => {
                    counters.shadow_unsyncs += 1;
                    continue;
                }
                Written::Trapped => (write.pages, level.down()),
                Written::Flooded => (VpnRange::new(first, PageCount(1 << node_order)), level),
            };
            counters.shadow_writes += 1;
            counters.shadow_zaps += shadow.zap(gone);
            shadow.nodes.forget(below, gone, |frame| forget_node(direct, frame));
        }
    }

    /// The VM's `kernel` has flushed the TLB, which is an exit: for each page with INVLPG
    /// (`kvm_mmu_invlpg`), or all at once with a load of CR3 (`kvm_mmu_sync_roots`). A hypervisor
    /// in the VM knows only the latter (INVEPT). Nothing that the guest changed before can be used
    /// after this.
    pub fn guest_flushed(&mut self, shadows: &mut Shadows, kernel: &mut Kernel, flushed: &Invalidation) {
        let process = flushed.process;
        let Some(place) = shadows.place_of(process) else { return };
        let Ok(upper) = kernel.table_mut(process) else {
            let writes = kernel.take_last_writes(process);
            self.take_in(shadows, process, &writes);
            return self.drop_shadow(shadows, place);
        };
        self.synchronise_shadow(shadows, (process, upper));
        match flushed.scope {
            Scope::Pages(pages) if pages.len() <= PAGES_MAX && shadows.direct.is_some() => {
                (0..pages.len()).for_each(|i| self.invlpg(shadows, place, upper, pages.start + i));
            }
            _ => self.synchronise_nodes(shadows, place, upper),
        }
    }

    /// `FNAME(invlpg)`: of a node that may be written to freely, this entry is made anew.
    fn invlpg(&mut self, shadows: &mut Shadows, place: usize, upper: &PageTable, page: Vpn) {
        self.state.counters.shadow_invlpgs += 1;
        let shadow = &mut shadows.tables[place].1;
        if !shadow.is_unsync(page) || shadow.table.unmap(page).is_none() {
            return;
        }
        self.state.counters.shadow_zaps += 1;
        let lower = self.table(shadows.vm).expect("the VM is alive");
        if let Some(composed) = wanted(upper, lower, shadows.base, page) {
            // Its node is there, so nothing is allocated.
            self.put(shadow, page, composed, nestwalk_mem::Cpu(0)).expect("the node was there");
            self.state.counters.shadow_prefetches += 1;
        }
    }

    /// `mmu_sync_children`: nodes that could be written to freely are write-protected, and their
    /// entries looked at.
    fn synchronise_nodes(&mut self, shadows: &mut Shadows, place: usize, upper: &PageTable) {
        self.state.counters.shadow_flushes += 1;
        let Shadows { vm, base, tables, .. } = shadows;
        let shadow = &mut tables[place].1;
        for node in shadow.nodes.synchronise() {
            self.state.counters.shadow_syncs += 1;
            let pages = VpnRange::new(node, PageCount(shadow.table.geometry().entries() as u64));
            let mut there = Vec::new();
            shadow.table.for_each_leaf(pages, |leaf| there.push(leaf));
            for leaf in there {
                let lower = self.table(*vm).expect("the VM is alive");
                let composed = wanted(upper, lower, *base, leaf.page);
                match composed.filter(|composed| composed.frame == leaf.entry.frame()) {
                    Some(composed) => {
                        shadow.table.update(leaf.page, |entry| entry.without(Entry::WRITABLE).with(composed.flags()));
                        let (table, frame) = (&shadow.table, composed.frame);
                        let maps = |other| table.translate(other) == Some(frame);
                        shadow.entries.note(composed.gfn, PageSize::Small, leaf.page, maps);
                    }
                    None => {
                        shadow.table.unmap(leaf.page);
                        self.state.counters.shadow_zaps += 1;
                    }
                }
            }
        }
    }

    /// This kernel has changed what lies behind `scope` of the VM's process: entries that were made
    /// from it go (`kvm_unmap_gfn_range`). `kernel` is the VM's.
    pub fn host_changed(&mut self, shadows: &mut Shadows, kernel: &mut Kernel, scope: Scope) {
        let frames = match scope {
            Scope::Pages(pages) => frames_behind(pages, shadows.base),
            Scope::All => FrameRange::new(nestwalk_mem::Frame(0), PageCount(1 << 52)),
        };
        if let Some(direct) = &mut shadows.direct {
            self.state.counters.shadow_zaps += direct.zap(frames);
        }
        for place in 0..shadows.tables.len() {
            let process = shadows.tables[place].0;
            if let Ok(upper) = kernel.table_mut(process) {
                self.synchronise_shadow(shadows, (process, upper));
            }
            let upper = kernel.table(process).ok();
            let shadow = &mut shadows.tables[place].1;
            let mut found = Vec::new();
            shadow.entries.take(frames, |size, page, gfn| found.push((size, page, gfn)));
            for (size, page, gfn) in found {
                // The page may map another frame by now, whose entry stays. What the guest may
                // write freely, it is not known.
                let other = !shadow.is_unsync(page) && upper.is_some_and(|upper| upper.translate(page) != Some(gfn));
                let there = shadow.table.leaf(page).is_some_and(|leaf| (leaf.page, leaf.size()) == (page, size));
                if there && !other {
                    shadow.table.unmap(page);
                    self.state.counters.shadow_zaps += 1;
                }
            }
        }
    }
}
