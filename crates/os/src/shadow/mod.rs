// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shadow tables: the composition of a guest's table and its host's, kept by the hypervisor.
//!
//! Two uses, one mechanism (KVM's `mmu/mmu.c`, `kvm_mmu_page` with `direct = 0`):
//! - *shadow paging*: the guest's own table over the host's. The hardware walks the shadow only, so
//!   a walk is one-dimensional. What the guest's kernel does itself goes through a shadow, too:
//!   that of its direct map (`direct`);
//! - *nested virtualisation*: the table that a guest hypervisor keeps for its guest (EPT12) over
//!   the host's. The hardware walks the inner guest's table over the shadow (EPT02).
//!
//! An entry is filled when the hardware misses it, and up to seven neighbours with it. The nodes of
//! the upper table that an entry was made from are write-protected from then on (`nodes`). The
//! first write to a PTE node is an exit; further ones are free until the guest flushes its TLB,
//! which is an exit in turn and brings the shadow up to date (`sync`). Each write to a higher node
//! is an exit, which takes out what it concerns. When the host changes the page behind a guest's
//! frame, the entries that map it go (`reverse`).
//!
//! The hypervisor sets accessed and dirty bits in the upper table: a page that is not dirty there
//! is filled read-only, so that the first store exits again.

mod direct;
pub mod memory;
mod nodes;
mod reverse;
mod sync;
mod table;
#[cfg(test)]
mod tests;

use nestwalk_mem::{
    Cpu, Entry, Frame, FrameRange, Geometry, Leaf, Level, Order, Owner, PageCount, PageSize, PageTable, Vpn, VpnRange,
};

use crate::below::Bare;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::ProcessId;
use direct::DirectMap;
use nodes::Nodes;
use reverse::ReverseMap;
use table::{PREFETCHED, unmap_all, usable};

/// All that a hypervisor keeps for one VM: a shadow table for each process of its kernel that runs
/// (a root in KVM's cache of them).
#[derive(Debug)]
pub struct Shadows {
    /// The VM's process in the hypervisor's kernel.
    vm: ProcessId,
    /// The page of that process at which the VM's frame 0 lies.
    base: Vpn,
    tables: Vec<(ProcessId, Shadow)>,
    /// What the hardware walks before there is one: nothing.
    nothing: PageTable,
    /// What the VM's kernel uses itself; none where the VM is a hypervisor, whose own memory EPT
    /// translates.
    direct: Option<DirectMap>,
}

/// The shadow of one table.
#[derive(Debug)]
struct Shadow {
    /// What the hardware walks.
    table: PageTable,
    nodes: Nodes,
    entries: ReverseMap,
}

/// A use of memory that a shadow did not allow: an exit.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    /// Which page was used.
    pub page: Vpn,
    /// Whether it was stored to.
    pub store: bool,
    /// The CPU whose lists give the frames of nodes.
    pub cpu: Cpu,
}

/// How an attempt to fill an entry ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// The shadow has it now.
    Done,
    /// The upper table does not map the page, or does not allow the store: a fault of the kernel
    /// that keeps it.
    Upper,
    /// The lower table does not map this page, or does not allow the store: a fault of the host.
    Lower(Vpn),
}

/// The entry that a shadow should have for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Composed {
    size: PageSize,
    /// The upper kernel's frame behind the page.
    gfn: Frame,
    /// The lower kernel's.
    frame: Frame,
    writable: bool,
}

/// What the hypervisor sets in `leaf`, which `table` has for `page`.
fn mark(table: &mut PageTable, page: Vpn, leaf: Leaf, store: bool) {
    let (node, _) = table.lowest_node(page);
    let index = table.geometry().index(page, leaf.level);
    table.mark(node, index, Entry::ACCESSED | if store { Entry::DIRTY } else { 0 });
}

/// `above` over `below`, for `page`. A page that is not dirty above may not be written to.
fn compose(page: Vpn, above: Leaf, below: Leaf, lower_page: Vpn) -> Composed {
    let writable = above.entry.has(Entry::WRITABLE | Entry::DIRTY) && below.entry.has(Entry::WRITABLE);
    let size = above.size().min(below.size());
    Composed { size, gfn: above.frame_of(page), frame: below.frame_of(lower_page), writable }
}

impl Composed {
    fn flags(self) -> u64 {
        Entry::ACCESSED | if self.writable { Entry::WRITABLE } else { 0 }
    }
}

/// What the hypervisor would put into a shadow for `page` without being asked: only what the guest
/// has used (`prefetch_invalid_gpte`).
fn wanted(upper: &PageTable, lower: &PageTable, base: Vpn, page: Vpn) -> Option<Composed> {
    let above = usable(upper, page, false).filter(|leaf| leaf.entry.has(Entry::ACCESSED))?;
    let lower_page = base + above.frame_of(page).0;
    Some(compose(page, above, usable(lower, lower_page, false)?, lower_page))
}

impl Shadows {
    /// None yet, for the VM that is `vm`, whose frame 0 lies at page `base`, of tables of the shape
    /// `geometry`. Those of a guest that `is_hypervisor` compose the tables that it keeps for its
    /// own guest.
    pub fn new((vm, base): (ProcessId, Vpn), geometry: Geometry, is_hypervisor: bool) -> Self {
        let nothing = PageTable::new(geometry, Frame(0));
        let direct = (!is_hypervisor).then(DirectMap::default);
        Self { vm, base, tables: Vec::new(), nothing, direct }
    }

    fn place_of(&self, process: ProcessId) -> Option<usize> {
        self.tables.iter().position(|(of, _)| *of == process)
    }

    /// What the hardware walks for `process`, once what was written to its own table has been
    /// [taken in](Kernel::synchronise_shadow).
    #[inline]
    pub fn table(&mut self, process: ProcessId) -> &mut PageTable {
        match self.place_of(process) {
            Some(place) => &mut self.tables[place].1.table,
            None => &mut self.nothing,
        }
    }

    /// Checks that each entry for `process` says what `upper` over `lower` says, unless the guest
    /// may write to it freely.
    ///
    /// # Panics
    /// When one does not.
    pub fn check_invariants(&self, process: ProcessId, upper: &PageTable, lower: &PageTable) {
        let Some(place) = self.place_of(process) else { return };
        let shadow = &self.tables[place].1;
        shadow.table.check_invariants();
        shadow.nodes.check_invariants(upper.geometry());
        shadow.table.for_each_leaf(VpnRange { start: Vpn(0), end: upper.geometry().end() }, |leaf| {
            if shadow.is_unsync(leaf.page) {
                return;
            }
            for page in [leaf.page, leaf.page + (leaf.size().pages() - 1)] {
                let above = upper.leaf(page).unwrap_or_else(|| panic!("{page:?} is mapped in the shadow only"));
                let lower_page = self.base + above.frame_of(page).0;
                let below = lower.leaf(lower_page).unwrap_or_else(|| panic!("{page:?}: nothing below {above:?}"));
                let composed = compose(page, above, below, lower_page);
                assert_eq!(leaf.frame_of(page), composed.frame, "{page:?}");
                assert!(!leaf.entry.has(Entry::WRITABLE) || composed.writable, "{page:?} is writable");
            }
            let gfn = upper.translate(leaf.page).expect("it was there just now");
            assert!(shadow.entries.knows(gfn, leaf.size(), leaf.page), "{leaf:?} is not found by {gfn:?}");
            assert!(shadow.nodes.has(upper.leaf(leaf.page).expect("likewise").level, shadow.node_of(upper, leaf.page)));
        });
    }
}

impl Shadow {
    fn new(geometry: Geometry, root: Frame) -> Self {
        Self { table: PageTable::new(geometry, root), nodes: Nodes::default(), entries: ReverseMap::default() }
    }

    /// Takes out the entries over `pages`. How many there were.
    fn zap(&mut self, pages: VpnRange) -> u64 {
        unmap_all(&mut self.table, pages)
    }

    /// The first page of the node of `upper` that has the leaf for `page`.
    fn node_of(&self, upper: &PageTable, page: Vpn) -> Vpn {
        let (_, level) = upper.lowest_node(page);
        page.align_down(upper.geometry().entry_order(level.up()))
    }

    /// Whether the guest may write freely to the PTE for `page`.
    fn is_unsync(&self, page: Vpn) -> bool {
        let node = page.align_down(self.table.geometry().entry_order(Level::PMD));
        self.nodes.is_unsync(Level::PTE, node)
    }

    /// Write-protects the nodes of `upper` on the way to the leaf for `page`, which is at
    /// `level`. `new` gets the frames of those that were not yet.
    fn protect(&mut self, upper: &PageTable, page: Vpn, level: Level, mut new: impl FnMut(Frame)) {
        let geometry = upper.geometry();
        let first = |level: Level| page.align_down(geometry.entry_order(level.up()));
        // Where the lowest is, all are.
        if self.nodes.has(level, first(level)) && !self.nodes.any_written() {
            return;
        }
        let (mut node, mut at) = (upper.root(), geometry.root());
        loop {
            let frame = upper.node_frame(node);
            if self.nodes.protect(at, first(at), frame) {
                new(frame);
            }
            if at == level {
                return;
            }
            (node, at) = (upper.entry_for(node, at, page).node(), at.down());
        }
    }
}

impl Kernel {
    fn shadow_node(&mut self, cpu: Cpu) -> Result<Frame, OsError> {
        let (free, all) = (self.state.memory.free_frames(), self.state.memory.frames());
        let frame = self.state.alloc_kernel(cpu).ok_or(OsError::OutOfMemory { free, all })?;
        self.state.memory.set_owner(frame, Owner::Kernel);
        self.state.pinned.0 += 1;
        Ok(frame)
    }

    fn free_shadow_nodes(&mut self, frames: Vec<Frame>) {
        self.state.pinned.0 -= frames.len() as u64;
        frames.into_iter().for_each(|frame| self.state.memory.free(frame, Order::PAGE, Cpu(0)));
    }

    /// Fills the entry that `miss` wants of the shadow of `upper`, the table of the VM's `process`.
    /// There is a shadow from then on.
    ///
    /// # Errors
    /// When there is no memory for a node, and nothing can be reclaimed.
    pub fn fill_shadow(
        &mut self,
        shadows: &mut Shadows,
        (process, upper): (ProcessId, &mut PageTable),
        miss: Miss,
    ) -> Result<Filled, OsError> {
        // What was found may be gone after a reclaim: all over again.
        self.reclaiming(miss.cpu, &mut Bare, |host, _| host.try_fill(shadows, process, upper, miss))
    }

    fn try_fill(
        &mut self,
        shadows: &mut Shadows,
        process: ProcessId,
        upper: &mut PageTable,
        Miss { page, store, cpu }: Miss,
    ) -> Result<Filled, OsError> {
        if shadows.place_of(process).is_none() {
            let root = self.shadow_node(cpu)?;
            upper.watch();
            shadows.tables.push((process, Shadow::new(shadows.nothing.geometry(), root)));
        }
        self.synchronise_shadow(shadows, (process, upper));
        let Some(above) = usable(upper, page, store) else {
            self.state.counters.shadow_reflected += 1;
            return Ok(Filled::Upper);
        };
        let lower_page = shadows.base + above.frame_of(page).0;
        let lower = self.table_mut(shadows.vm)?;
        let Some(below) = usable(lower, lower_page, store) else { return Ok(Filled::Lower(lower_page)) };
        mark(lower, lower_page, below, store);
        mark(upper, page, above, store);
        let above = usable(upper, page, store).expect("it was usable just now");
        let place = shadows.place_of(process).expect("there is one now");
        let Shadows { tables, direct, .. } = shadows;
        let shadow = &mut tables[place].1;
        let mut gone = 0;
        shadow.protect(upper, page, above.level, |node| {
            gone += direct.as_mut().map_or(0, |direct| direct.protect(node));
        });
        self.state.counters.shadow_zaps += gone;
        self.put(shadow, page, compose(page, above, below, lower_page), cpu)?;
        self.state.counters.shadow_fills += 1;
        self.prefetch(shadows, place, upper, page, cpu)?;
        Ok(Filled::Done)
    }

    /// Puts what was `composed` for `page` into the shadow. What was there, read-only or in smaller
    /// pieces, makes room.
    fn put(&mut self, shadow: &mut Shadow, page: Vpn, composed: Composed, cpu: Cpu) -> Result<(), OsError> {
        let Composed { size, gfn, frame, .. } = composed;
        let order = size.order();
        let (first, frame) = (page.align_down(order), frame.align_down(order));
        self.map_shadow(&mut shadow.table, (first, frame), size, composed.flags(), cpu)?;
        let table = &shadow.table;
        shadow.entries.note(gfn.align_down(order), size, first, |other| table.translate(other) == Some(frame));
        Ok(())
    }

    fn map_shadow(
        &mut self,
        table: &mut PageTable,
        (page, frame): (Vpn, Frame),
        size: PageSize,
        flags: u64,
        cpu: Cpu,
    ) -> Result<(), OsError> {
        let room = VpnRange::new(page, PageCount(size.pages()));
        unmap_all(table, room);
        if room.len() > 1 {
            let mut freed = Vec::new();
            table.prune(room, |_, _, frame| freed.push(frame));
            self.free_shadow_nodes(freed);
        }
        table.map(page, frame, size, flags, |_, _| self.shadow_node(cpu))
    }

    /// With an entry for `page`, those beside it that are as good as certain come without an exit
    /// of their own (`FNAME(pte_prefetch)`): up to the first that is not.
    fn prefetch(
        &mut self,
        shadows: &mut Shadows,
        place: usize,
        upper: &PageTable,
        page: Vpn,
        cpu: Cpu,
    ) -> Result<(), OsError> {
        let shadow = &mut shadows.tables[place].1;
        if shadow.table.leaf(page).is_none_or(|leaf| leaf.level > Level::PTE) {
            return Ok(());
        }
        let first = page.align_down(PREFETCHED.ilog2());
        for neighbour in (0..PREFETCHED).map(|i| first + i) {
            if shadow.table.leaf(neighbour).is_some() {
                continue;
            }
            let lower = self.table(shadows.vm)?;
            let Some(composed) = wanted(upper, lower, shadows.base, neighbour) else { break };
            self.put(shadow, neighbour, composed, cpu)?;
            self.state.counters.shadow_prefetches += 1;
        }
        Ok(())
    }

    /// The process is no more: nor is its shadow.
    fn drop_shadow(&mut self, shadows: &mut Shadows, place: usize) {
        let (_, mut shadow) = shadows.tables.swap_remove(place);
        let whole = VpnRange { start: Vpn(0), end: shadow.table.geometry().end() };
        self.state.counters.shadow_zaps += shadow.zap(whole);
        let root = shadow.table.geometry().root();
        shadow.nodes.forget(root, whole, |frame| forget_node(&mut shadows.direct, frame));
        let mut frames = Vec::new();
        shadow.table.for_each_node(|view| frames.push(view.frame));
        self.free_shadow_nodes(frames);
    }
}

fn forget_node(direct: &mut Option<DirectMap>, frame: Frame) {
    if let Some(direct) = direct {
        direct.forget(frame);
    }
}

/// Frames of the VM behind `pages` of its process.
fn frames_behind(pages: VpnRange, base: Vpn) -> FrameRange {
    let start = pages.start.0.saturating_sub(base.0);
    FrameRange::new(Frame(start), PageCount(pages.end.0.saturating_sub(base.0) - start))
}
