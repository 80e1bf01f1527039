// SPDX-License-Identifier: MIT OR Apache-2.0
//! A nested walk: a guest table whose nodes and pages lie in guest-physical memory, over a host table (two-dimensional paging).
//!
//! For each guest level the guest entry's guest-physical address is translated by a host walk, then the entry is read;
//! at last a host walk translates the data page. Cold and without large pages that is 24 references with four levels on
//! both sides and 35 with five. The TLBs get the combined translation, of the smaller one of the two leaves.

use nestwalk_mem::addr::{LINE_SHIFT, PAGE_SHIFT};
use nestwalk_mem::{Entry, Gpa, Gva, Level, NodeId, PageTable, Pfn, Va, Vpn};

use crate::counters::{Table, WalkEvents};
use crate::hierarchy::Llc;
use crate::native::{Found, leaf_of};
use crate::prefetcher::Prefetcher;
use crate::tlb::Mapping;
use crate::walk_cache::HostPage;
use crate::walk_unit::WalkUnit;
use crate::walker::{Fault, Walker, index_of};

/// Translation through a guest's table over its host's. A VM is a process of the host, and its guest-physical memory is
/// one range of that process's virtual memory.
#[derive(Debug)]
pub struct Nested<'t> {
    /// The table of the process in the guest.
    pub guest: &'t mut PageTable,
    /// The table of the VM's process in the host.
    pub host: &'t mut PageTable,
    /// The host virtual page at which guest-physical memory begins.
    pub base: Vpn,
}

impl Nested<'_> {
    /// The host's page for `gpa`.
    #[inline(always)]
    fn host_page(&self, gpa: Gpa) -> Vpn {
        self.base + gpa.page().0
    }

    /// The one-dimensional walk through the host's table. `guest_level` says what for (0: the data page).
    #[inline(always)]
    fn host_walk<P: Prefetcher>(
        &mut self,
        unit: &mut WalkUnit<P>,
        llc: &mut Llc,
        gpa: Gpa,
        write: bool,
        guest_level: u8,
    ) -> Result<HostPage, Fault> {
        let began = unit.begin_host_walk(llc, gpa);
        let page = self.host_page(gpa);
        if let Some(nested_tlb) = &mut unit.nested_tlb {
            let (found, latency) = (nested_tlb.find(page, write), nested_tlb.latency_cycles());
            unit.nested_tlb_lookup(found.is_some(), latency);
            if let Some(found) = found {
                unit.end_host_walk(began);
                return Ok(found);
            }
        }
        let geometry = self.host.geometry();
        let (mut node, mut level) = (self.host.root(), geometry.root());
        if unit.host_pwc.exists() {
            let hit = unit.host_pwc.find(geometry, page);
            unit.pwc_lookup(Table::Host, hit.map_or(0, |(_, at)| at.0), unit.host_pwc.latency_cycles());
            if let Some((below, at)) = hit {
                (node, level) = (below, at.down());
            }
        }
        let found = loop {
            let index = index_of(page, level);
            let step = WalkEvents::step_code(guest_level, level.0);
            unit.reference(llc, self.host.entry_address(node, index).into(), step);
            let entry = self.host.entry(node, index);
            if !entry.is_present() {
                return Err(Fault::Host { gpa, store: write });
            }
            if entry.is_leaf() {
                break Found { node, index, entry, level };
            }
            unit.host_pwc.insert(page, level, entry.node());
            (node, level) = (entry.node(), level.down());
        };
        if write && !found.entry.has(Entry::WRITABLE) {
            return Err(Fault::Host { gpa, store: write });
        }
        found.mark(self.host, write);
        unit.end_host_walk(began);
        let host = HostPage {
            frame: Pfn(found.frame_of(page)),
            size: found.size(),
            writable: found.entry.has(Entry::WRITABLE),
            dirty: write || found.entry.has(Entry::DIRTY),
        };
        if let Some(nested_tlb) = &mut unit.nested_tlb {
            nested_tlb.insert(page, host);
        }
        Ok(host)
    }

    /// The guest-physical address of `gva`, which `found` maps.
    #[inline(always)]
    fn data_gpa(gva: Gva, found: Found) -> Gpa {
        Gpa(found.frame_of(Va::from(gva).page()) << PAGE_SHIFT | gva.page_offset())
    }

    /// Both leaves are known: sets the guest's bits and combines.
    #[inline(always)]
    fn finish(&mut self, found: Found, host: HostPage, store: bool) -> Mapping {
        found.mark(self.guest, store);
        let size = found.size().min(host.size);
        Mapping {
            frame: host.frame.align_down(size.order()),
            size,
            writable: found.entry.has(Entry::WRITABLE) && host.writable,
            dirty: (store || found.entry.has(Entry::DIRTY)) && host.dirty,
        }
    }
}

impl Walker for Nested<'_> {
    type Hint = NestedHint;

    #[inline(always)]
    fn walk<P: Prefetcher>(
        &mut self,
        unit: &mut WalkUnit<P>,
        llc: &mut Llc,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault> {
        let (geometry, page) = (self.guest.geometry(), Va::from(gva).page());
        let (mut node, mut level) = (self.guest.root(), geometry.root());
        if unit.guest_pwc.exists() {
            let hit = unit.guest_pwc.find(geometry, page);
            unit.pwc_lookup(Table::Guest, hit.map_or(0, |(_, at)| at.0), unit.guest_pwc.latency_cycles());
            if let Some((below, at)) = hit {
                (node, level) = (below, at.down());
            }
        }
        let found = loop {
            let index = index_of(page, level);
            let gpa = Gpa::from(self.guest.entry_address(node, index));
            let host = self.host_walk(unit, llc, gpa, true, level.0)?;
            unit.reference(llc, host.frame.address() + gpa.page_offset(), WalkEvents::step_code(level.0, 0));
            let entry = self.guest.entry(node, index);
            if !entry.is_present() {
                return Err(Fault::Guest { gva, store });
            }
            if entry.is_leaf() {
                break Found { node, index, entry, level };
            }
            unit.guest_pwc.insert(page, level, entry.node());
            (node, level) = (entry.node(), level.down());
        };
        if store && !found.entry.has(Entry::WRITABLE) {
            return Err(Fault::Guest { gva, store });
        }
        let host = self.host_walk(unit, llc, Self::data_gpa(gva, found), store, 0)?;
        Ok(self.finish(found, host, store))
    }

    fn resolve(&mut self, gva: Gva, store: bool) -> Result<Mapping, Fault> {
        let page = Va::from(gva).page();
        let found = leaf_of(self.guest, page, store).ok_or(Fault::Guest { gva, store })?;
        let gpa = Self::data_gpa(gva, found);
        let host_page = self.host_page(gpa);
        let host = leaf_of(self.host, host_page, store).ok_or(Fault::Host { gpa, store })?;
        host.mark(self.host, store);
        let host = HostPage {
            frame: Pfn(host.frame_of(host_page)),
            size: host.size(),
            writable: host.entry.has(Entry::WRITABLE),
            dirty: store || host.entry.has(Entry::DIRTY),
        };
        Ok(self.finish(found, host, store))
    }

    fn set_dirty(&mut self, gva: Gva) {
        if let Some(found) = leaf_of(self.guest, Va::from(gva).page(), true) {
            found.mark(self.guest, true);
            let page = self.host_page(Self::data_gpa(gva, found));
            if let Some(host) = leaf_of(self.host, page, true) {
                host.mark(self.host, true);
            }
        }
    }

    #[inline(always)]
    fn hint_first(&self, gva: Gva) -> NestedHint {
        let page = Va::from(gva).page();
        let (node, level) = self.guest.lowest_node(page);
        let index = index_of(page, level);
        self.guest.prefetch(node, index);
        let entry_page = self.host_page(self.guest.entry_address(node, index).into());
        let (node_host, node_host_level) = self.host.lowest_node(entry_page);
        self.host.prefetch(node_host, index_of(entry_page, node_host_level));
        NestedHint { gva, node, level, node_host, node_host_level, ..NestedHint::default() }
    }

    #[inline(always)]
    fn hint_second(&self, hint: &mut NestedHint) {
        let page = Va::from(hint.gva).page();
        let index = index_of(page, hint.level);
        let entry = self.guest.entry(hint.node, index);
        if entry.is_present() && entry.is_leaf() {
            let found = Found { node: hint.node, index, entry, level: hint.level };
            hint.data = Self::data_gpa(hint.gva, found);
            let data_page = self.host_page(hint.data);
            (hint.data_host, hint.data_host_level) = self.host.lowest_node(data_page);
            self.host.prefetch(hint.data_host, index_of(data_page, hint.data_host_level));
        }
    }

    #[inline(always)]
    fn hint_third(&self, hint: &NestedHint, mut line: impl FnMut(u64)) {
        let page = Va::from(hint.gva).page();
        let mut lines_of = |gpa: Gpa, node: NodeId, level: Level| {
            let page = self.host_page(gpa);
            let index = index_of(page, level);
            line(self.host.entry_address(node, index).0 >> LINE_SHIFT);
            let entry = self.host.entry(node, index);
            if entry.is_present() && entry.is_leaf() {
                let frame = Found { node, index, entry, level }.frame_of(page);
                line((frame << PAGE_SHIFT | gpa.page_offset()) >> LINE_SHIFT);
            }
        };
        let entry = self.guest.entry_address(hint.node, index_of(page, hint.level));
        lines_of(entry.into(), hint.node_host, hint.node_host_level);
        if hint.data != NestedHint::NO_DATA {
            lines_of(hint.data, hint.data_host, hint.data_host_level);
        }
    }
}

/// Where a nested walk will end.
#[derive(Clone, Copy, Debug)]
pub struct NestedHint {
    gva: Gva,
    /// The data's address, once it is known.
    data: Gpa,
    /// The guest node with the leaf.
    node: NodeId,
    level: Level,
    /// The host node with the entry for that node.
    node_host: NodeId,
    node_host_level: Level,
    /// The host node with the entry for the data.
    data_host: NodeId,
    data_host_level: Level,
}

impl NestedHint {
    const NO_DATA: Gpa = Gpa(u64::MAX);
}

impl Default for NestedHint {
    fn default() -> Self {
        let (node, level) = (NodeId(0), Level::PTE);
        Self {
            gva: Gva(0),
            data: Self::NO_DATA,
            node,
            level,
            node_host: node,
            node_host_level: level,
            data_host: node,
            data_host_level: level,
        }
    }
}
