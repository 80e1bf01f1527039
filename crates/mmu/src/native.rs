// SPDX-License-Identifier: MIT OR Apache-2.0
//! A native walk: one table, whose nodes and pages lie in physical memory.

use nestwalk_mem::addr::{LINE_SHIFT, PAGE_SHIFT};
use nestwalk_mem::{Entry, Gva, Level, NodeId, PageSize, PageTable, Va, Vpn};

use crate::counters::{Table, WalkEvents};
use crate::hierarchy::Llc;
use crate::prefetcher::Prefetcher;
use crate::tlb::Mapping;
use crate::walk_unit::WalkUnit;
use crate::walker::{Fault, Walker, index_of};

/// Translation through one page table.
#[derive(Debug)]
pub struct Native<'t> {
    /// The process's table.
    pub table: &'t mut PageTable,
}

/// A leaf that a walk ended at.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub node: NodeId,
    pub index: usize,
    pub entry: Entry,
    pub level: Level,
}

impl Found {
    /// The 4 KiB frame behind `page`.
    #[inline(always)]
    pub fn frame_of(self, page: Vpn) -> u64 {
        self.entry.frame().0 + (page.0 & (self.size().pages() - 1))
    }

    /// The size of its page.
    #[inline(always)]
    pub fn size(self) -> PageSize {
        match self.level.0 {
            1 => PageSize::Small,
            2 => PageSize::Huge,
            _ => PageSize::Giant,
        }
    }

    /// What hardware sets in the leaf for this access.
    #[inline(always)]
    pub fn mark(self, table: &mut PageTable, store: bool) {
        table.mark(self.node, self.index, Entry::ACCESSED | if store { Entry::DIRTY } else { 0 });
    }
}

/// The leaf for `page`, found without references; `None` if it is not present or does not allow a `write`.
#[inline]
pub(crate) fn leaf_of(table: &PageTable, page: Vpn, write: bool) -> Option<Found> {
    let (node, level) = table.lowest_node(page);
    let index = index_of(page, level);
    let entry = table.entry(node, index);
    let usable = entry.is_present() && (!write || entry.has(Entry::WRITABLE));
    usable.then_some(Found { node, index, entry, level })
}

impl Native<'_> {
    #[inline(always)]
    fn finish(&mut self, found: Found, store: bool) -> Mapping {
        found.mark(self.table, store);
        Mapping {
            frame: found.entry.frame().into(),
            size: found.size(),
            writable: found.entry.has(Entry::WRITABLE),
            dirty: store || found.entry.has(Entry::DIRTY),
        }
    }
}

impl Walker for Native<'_> {
    type Hint = NativeHint;

    #[inline(always)]
    fn walk<P: Prefetcher>(
        &mut self,
        unit: &mut WalkUnit<P>,
        llc: &mut Llc,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault> {
        let (geometry, page) = (self.table.geometry(), Va::from(gva).page());
        let (mut node, mut level) = (self.table.root(), geometry.root());
        if unit.guest_pwc.exists() {
            let hit = unit.guest_pwc.find(geometry, page);
            unit.pwc_lookup(Table::Guest, hit.map_or(0, |(_, at)| at.0), unit.guest_pwc.latency_cycles());
            if let Some((below, at)) = hit {
                (node, level) = (below, at.down());
            }
        }
        loop {
            let index = index_of(page, level);
            unit.reference(llc, self.table.entry_address(node, index).into(), WalkEvents::step_code(level.0, 0));
            let entry = self.table.entry(node, index);
            if !entry.is_present() {
                return Err(Fault::Guest { gva, store });
            }
            if entry.is_leaf() {
                if store && !entry.has(Entry::WRITABLE) {
                    return Err(Fault::Guest { gva, store });
                }
                return Ok(self.finish(Found { node, index, entry, level }, store));
            }
            unit.guest_pwc.insert(page, level, entry.node());
            (node, level) = (entry.node(), level.down());
        }
    }

    fn resolve(&mut self, gva: Gva, store: bool) -> Result<Mapping, Fault> {
        let page = Va::from(gva).page();
        let found = leaf_of(self.table, page, store).ok_or(Fault::Guest { gva, store })?;
        Ok(self.finish(found, store))
    }

    fn set_dirty(&mut self, gva: Gva) {
        if let Some(found) = leaf_of(self.table, Va::from(gva).page(), true) {
            found.mark(self.table, true);
        }
    }

    #[inline(always)]
    fn hint_first(&self, gva: Gva) -> NativeHint {
        let page = Va::from(gva).page();
        let (node, level) = self.table.lowest_node(page);
        let index = index_of(page, level);
        self.table.prefetch(node, index);
        NativeHint { node: node.0, level: level.0, gva }
    }

    #[inline(always)]
    fn hint_second(&self, _: &mut NativeHint) {}

    #[inline(always)]
    fn hint_third(&self, hint: &NativeHint, mut line: impl FnMut(u64)) {
        let page = Va::from(hint.gva).page();
        let (node, level) = (NodeId(hint.node), Level(hint.level.max(1)));
        let index = index_of(page, level);
        line(self.table.entry_address(node, index).0 >> LINE_SHIFT);
        let entry = self.table.entry(node, index);
        if entry.is_present() && entry.is_leaf() {
            let frame = Found { node, index, entry, level }.frame_of(page);
            line((frame << PAGE_SHIFT | hint.gva.page_offset()) >> LINE_SHIFT);
        }
    }
}

/// Where a native walk will end.
#[derive(Clone, Copy, Debug, Default)]
pub struct NativeHint {
    node: u32,
    level: u8,
    gva: Gva,
}
