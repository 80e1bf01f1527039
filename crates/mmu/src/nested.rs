// SPDX-License-Identifier: MIT OR Apache-2.0
//! A nested walk: a guest table whose nodes and pages lie in guest-physical memory, over a host
//! table (two-dimensional paging).
//!
//! For each guest level the guest entry's guest-physical address is translated by a host walk, then
//! the entry is read; at last a host walk translates the data page. Cold and without large pages
//! that is 24 references with four levels on both sides and 35 with five. The TLBs get the combined
//! translation, of the smaller one of the two leaves.

use nestwalk_mem::{CONTIGUOUS_ORDER, Gpa, Gva, Level, NodeId, PageTable, Va, Vpn};

use crate::accelerator::Accelerator;
use crate::accelerator::tables::Tables;
use crate::clustered::Group;
use crate::contiguous::is_in_block;
use crate::events::{Table, WalkEvents};
use crate::leaf::{Found, group_around, hint_leaf, index_of, known_leaf, leaf_of, set_dirty};
use crate::mapping::Mapping;
use crate::memo::{Memo, Prepared, Sources};
use crate::simd::Simd;
use crate::stages::ROOT;
use crate::walk_unit::WalkUnit;
use crate::walker::{Fault, Walker, descend};

/// Translation through a guest's table over its host's. A VM is a process of the host, and its
/// guest-physical memory is one range of that process's virtual memory.
#[derive(Debug)]
pub struct Nested<'t> {
    /// The table of the process in the guest.
    pub guest: &'t mut PageTable,
    /// The table of the VM's process in the host.
    pub host: &'t mut PageTable,
    /// The host virtual page at which guest-physical memory begins.
    pub base: Vpn,
}

/// The one-dimensional walk through the `host`'s table for `gpa`, which lies in its `page`.
/// `guest_level` says what for (0: the data page). `None` is an EPT violation.
#[inline(always)]
fn host_walk<P: Accelerator, S: Simd>(
    host: &mut PageTable,
    unit: &mut WalkUnit<P>,
    simd: S,
    (gpa, page): (Gpa, Vpn),
    write: bool,
    guest_level: u8,
) -> Option<Mapping> {
    unit.begin_host_walk(gpa);
    if let Some(nested_tlb) = &mut unit.nested_tlb {
        let (found, latency) = (nested_tlb.find(simd, page, write), nested_tlb.latency_cycles());
        unit.nested_tlb_lookup(found.is_some(), latency);
        if found.is_some() {
            return found;
        }
    }
    match host.known_pte_node(page) {
        Some(node) => host_walk_to((node, Level::PTE), host, unit, simd, page, write, guest_level),
        None => host_walk_to_any(host, unit, simd, page, write, guest_level),
    }
}

/// The same where the last node is not known beforehand.
#[inline(never)]
fn host_walk_to_any<P: Accelerator, S: Simd>(
    host: &mut PageTable,
    unit: &mut WalkUnit<P>,
    simd: S,
    page: Vpn,
    write: bool,
    guest_level: u8,
) -> Option<Mapping> {
    simd.apart(
        #[inline(always)]
        || host_walk_to(host.lowest_node(page), host, unit, simd, page, write, guest_level),
    )
}

/// The same to the `last` node, with its level.
#[inline(always)]
fn host_walk_to<P: Accelerator, S: Simd>(
    last: (NodeId, Level),
    host: &mut PageTable,
    unit: &mut WalkUnit<P>,
    simd: S,
    page: Vpn,
    write: bool,
    guest_level: u8,
) -> Option<Mapping> {
    let searched = unit.searches_host_pwc(guest_level);
    let found = descend(
        (host, Table::Host),
        unit,
        simd,
        page,
        last,
        searched,
        #[inline(always)]
        |unit, level, at| {
            unit.reference(Table::Host, at.into(), WalkEvents::step_code(guest_level, level.0));
            Some(())
        },
    )
    .filter(|found| found.allows(write))?;
    found.mark(host, page, write);
    let mapping = found.part(page, write);
    if let Some(nested_tlb) = &mut unit.nested_tlb {
        nested_tlb.insert(simd, page, mapping);
    }
    Some(mapping)
}

impl Nested<'_> {
    /// The host's page for `gpa`.
    #[inline(always)]
    fn host_page(&self, gpa: Gpa) -> Vpn {
        self.base + gpa.page().0
    }

    /// [`Walker::walk`] where the guest's last node is not known beforehand.
    #[inline(never)]
    fn walk_to_any<P: Accelerator, S: Simd>(
        &mut self,
        unit: &mut WalkUnit<P>,
        simd: S,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault> {
        simd.apart(
            #[inline(always)]
            || self.walk_to(self.guest.lowest_node(Va::from(gva).page()), unit, simd, gva, store),
        )
    }

    /// The same to the guest's `last` node, with its level.
    #[inline(always)]
    fn walk_to<P: Accelerator, S: Simd>(
        &mut self,
        last: (NodeId, Level),
        unit: &mut WalkUnit<P>,
        simd: S,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault> {
        let base = self.base;
        let of_host = |gpa: Gpa| (gpa, base + gpa.page().0);
        let mut violation = None;
        let found = descend(
            (self.guest, Table::Guest),
            unit,
            simd,
            Va::from(gva).page(),
            last,
            unit.guest_pwc.exists(),
            #[inline(always)]
            |unit, level, at| {
                let gpa = Gpa::from(at);
                let Some(host) = host_walk(self.host, unit, simd, of_host(gpa), true, level.0) else {
                    violation = Some(gpa);
                    return None;
                };
                let hpa = host.start() + gpa.page_offset();
                unit.reference(Table::Guest, hpa, WalkEvents::step_code(level.0, 0));
                Some(())
            },
        );
        let Some(found) = found.filter(|found| found.allows(store)) else {
            return Err(violation.map_or(Fault::Guest { gva, store }, |gpa| Fault::Host { gpa, store: true }));
        };
        let gpa = found.gpa_of(gva);
        let host = host_walk(self.host, unit, simd, of_host(gpa), store, 0).ok_or(Fault::Host { gpa, store })?;
        Ok(self.finish(gva, found, host, store))
    }

    /// Both leaves are known: sets the guest's bits and combines.
    #[inline(always)]
    fn finish(&mut self, gva: Gva, found: Found, host: Mapping, store: bool) -> Mapping {
        found.mark(self.guest, Va::from(gva).page(), store);
        let size = found.size().min(host.size());
        Mapping::of(found.entry, host.frame().align_down(size.order()), size).used(store).and_rights_of(host)
    }
}

impl Nested<'_> {
    /// [`Walker::prepare`] where `memo` does not know what the walk finds, or it changes something.
    #[inline(never)]
    fn prepare_anew(&mut self, memo: &mut Memo, gva: Gva, store: bool) -> Option<Prepared> {
        let page = Va::from(gva).page();
        let found = known_leaf(self.guest, page, store)?;
        let gfn = u32::try_from(found.entry.frame().0).ok()?;
        if !memo.prepare_node(self.guest, self.host, found.node) {
            return None;
        }
        let host_page = memo.host_page(gfn.into());
        let host = known_leaf(self.host, host_page, store).or_else(|| leaf_of(self.host, host_page, store))?;
        if !memo.prepare_block(self.host, host, host_page) {
            return None;
        }
        host.mark(self.host, host_page, store);
        let mapping = self.finish(gva, found, host.part(host_page, store), store);
        let node = found.node;
        memo.learn(self.guest, (self.host, host), (node, index_of(page, Level::PTE)));
        Some(Prepared { mapping, node, gfn })
    }
}

impl Walker for Nested<'_> {
    type Hint = NestedHint;

    #[inline(always)]
    fn walk<P: Accelerator, S: Simd>(
        &mut self,
        unit: &mut WalkUnit<P>,
        simd: S,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault> {
        match self.guest.known_pte_node(Va::from(gva).page()) {
            Some(node) => self.walk_to((node, Level::PTE), unit, simd, gva, store),
            None => self.walk_to_any(unit, simd, gva, store),
        }
    }

    fn prepares(&self) -> Option<(Sources, usize)> {
        let common = self.guest.geometry().root() == ROOT && self.host.geometry().root() == ROOT;
        common.then(|| (Sources::nested(self.guest, self.host, self.base), self.guest.node_slots()))
    }

    #[inline(always)]
    fn prepare(&mut self, memo: &mut Memo, gva: Gva, store: bool) -> Option<Prepared> {
        let page = Va::from(gva).page();
        let node = self.guest.known_pte_node(page)?;
        if let Some(leaf) = memo.leaf(node, index_of(page, Level::PTE), store) {
            return Some(Prepared { mapping: leaf.mapping(), node, gfn: leaf.gfn() });
        }
        self.prepare_anew(memo, gva, store)
    }

    #[cold]
    fn mark_node(&mut self, memo: &mut Memo, node: NodeId) {
        let page = self.base + self.guest.node_frame(node).0;
        set_dirty(self.host, page);
        memo.set_marked(node);
    }

    fn tables(&mut self) -> Tables<'_> {
        Tables::Two { guest: self.guest, host: self.host, base: self.base }
    }

    fn resolve(&mut self, gva: Gva, store: bool) -> Result<Mapping, Fault> {
        let page = Va::from(gva).page();
        let found = leaf_of(self.guest, page, store).ok_or(Fault::Guest { gva, store })?;
        let gpa = found.gpa_of(gva);
        let host_page = self.host_page(gpa);
        let host = leaf_of(self.host, host_page, store).ok_or(Fault::Host { gpa, store })?;
        host.mark(self.host, host_page, store);
        Ok(self.finish(gva, found, host.part(host_page, store), store))
    }

    #[inline(always)]
    fn neighbours(&self, gva: Gva, memo: Option<&Memo>) -> Group {
        let page = Va::from(gva).page();
        if let (Some(memo), Some(node)) = (memo, self.guest.known_pte_node(page))
            && let Some(group) = memo.neighbours(node, index_of(page, Level::PTE))
        {
            return group;
        }
        let base = self.base.0;
        let (page, guest) = group_around(self.guest, page, |frame| base.wrapping_add(frame));
        // The line of host entries that the walk has read is that of the data page's own group.
        let (_, host) = group_around(self.host, Vpn(page), |frame| frame);
        guest.through(host)
    }

    fn is_in_block(&self, gva: Gva) -> bool {
        let page = Va::from(gva).page();
        let gpa = leaf_of(self.guest, page, false).expect("it was just walked for").gpa_of(gva);
        // The pages of a block are the host's in the same order only where its memory begins at
        // such a block.
        let aligned = self.base.is_aligned(CONTIGUOUS_ORDER);
        aligned && is_in_block(self.guest, page) && is_in_block(self.host, self.host_page(gpa))
    }

    fn set_dirty(&mut self, gva: Gva) {
        if let Some(found) = set_dirty(self.guest, Va::from(gva).page()) {
            let page = self.host_page(found.gpa_of(gva));
            set_dirty(self.host, page);
        }
    }

    #[inline(always)]
    fn hint_first(&self, gva: Gva, memo: Option<&Memo>) -> NestedHint {
        let page = Va::from(gva).page();
        let (node, level) = match memo {
            Some(memo) => {
                let (node, level) = self.guest.lowest_node(page);
                memo.fetch_node(node);
                if level == Level::PTE && memo.fetch_leaf(node, index_of(page, level)) {
                    return NestedHint { gva, node: node.0, level: NestedHint::LEAF };
                }
                self.guest.prefetch_entry(node, index_of(page, level));
                (node, level)
            }
            None => hint_leaf(self.guest, page),
        };
        NestedHint { gva, node: node.0, level: level.0 }
    }

    #[inline(always)]
    fn hint_second(&self, hint: NestedHint, memo: Option<&Memo>) -> Option<Prepared> {
        let (node, level) = (NodeId(hint.node), Level(hint.level));
        let page = Va::from(hint.gva).page();
        if hint.level == NestedHint::LEAF {
            let memo = memo?;
            let leaf = memo.leaf(node, index_of(page, Level::PTE), false)?;
            memo.fetch_block(leaf.gfn());
            return Some(Prepared { mapping: leaf.mapping(), node, gfn: leaf.gfn() });
        }
        let entry = self.guest.entry(node, index_of(page, level));
        if entry.is_present() && entry.is_leaf() {
            let gpa = Found { entry, node, level }.gpa_of(hint.gva);
            let page = self.host_page(gpa);
            if let Some(memo) = memo {
                memo.fetch_block(gpa.page().0 as u32);
                let (node, level) = self.host.lowest_node(page);
                self.host.prefetch_entry(node, index_of(page, level));
            } else {
                hint_leaf(self.host, page);
            }
        }
        None
    }
}

/// Where a nested walk will end: the guest's node with the leaf.
#[derive(Clone, Copy, Debug, Default)]
pub struct NestedHint {
    gva: Gva,
    node: u32,
    /// Its level, or [`NestedHint::LEAF`].
    level: u8,
}

impl NestedHint {
    /// Says that what the walk finds is known.
    const LEAF: u8 = u8::MAX;
}
