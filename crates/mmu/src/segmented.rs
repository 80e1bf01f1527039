// SPDX-License-Identifier: MIT OR Apache-2.0
//! A walk of DS-n: one-dimensional, where every guest-physical address goes through
//! [segment registers](crate::segments).

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{CONTIGUOUS_PAGES, Gpa, Gva, Hpa, PageSize, PageTable, Va};

use crate::accelerator::Accelerator;
use crate::accelerator::tables::Tables;
use crate::clustered::Group;
use crate::contiguous::is_in_block;
use crate::events::{Table, WalkEvents};
use crate::leaf::{Found, group_around, hint_leaf, leaf_of, set_dirty};
use crate::mapping::Mapping;
use crate::memo::{Memo, Prepared, Sources};
use crate::segments::Segments;
use crate::simd::Simd;
use crate::walk_unit::WalkUnit;
use crate::walker::{Fault, Walker, descend};

/// Translation through a guest's table and its VM's segment registers.
#[derive(Debug)]
pub struct Segmented<'t> {
    /// The table of the process in the guest.
    pub guest: &'t mut PageTable,
    /// The VM's registers.
    pub segments: &'t Segments,
}

impl Segmented<'_> {
    /// The leaf is known, and so is where it leads.
    #[inline(always)]
    fn finish(&mut self, gva: Gva, found: Found, hpa: Hpa, store: bool) -> Mapping {
        found.mark(self.guest, Va::from(gva).page(), store);
        let size = match found.size() {
            PageSize::Small => PageSize::Small,
            large => self.segments.piece(found.gpa_of(gva).0 >> PAGE_SHIFT, large),
        };
        Mapping::of(found.entry, hpa.page().align_down(size.order()), size).used(store)
    }
}

impl Walker for Segmented<'_> {
    type Hint = ();

    #[inline(always)]
    fn walk<P: Accelerator, S: Simd>(
        &mut self,
        unit: &mut WalkUnit<P>,
        simd: S,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault> {
        let segments = self.segments;
        let mut violation = None;
        let page = Va::from(gva).page();
        let found = descend(
            (self.guest, Table::Guest),
            unit,
            simd,
            page,
            self.guest.lowest_node(page),
            unit.guest_pwc.exists(),
            #[inline(always)]
            |unit, level, at| {
                let gpa = Gpa::from(at);
                unit.segment_translation(segments.latency_cycles);
                let Some(hpa) = segments.translate(gpa) else {
                    violation = Some(gpa);
                    return None;
                };
                unit.reference(Table::Guest, hpa, WalkEvents::step_code(level.0, 0));
                Some(())
            },
        );
        let Some(found) = found.filter(|found| found.allows(store)) else {
            return Err(violation.map_or(Fault::Guest { gva, store }, |gpa| Fault::Boundary { gpa }));
        };
        let gpa = found.gpa_of(gva);
        unit.segment_translation(segments.latency_cycles);
        let hpa = segments.translate(gpa).ok_or(Fault::Boundary { gpa })?;
        Ok(self.finish(gva, found, hpa, store))
    }

    fn prepares(&self) -> Option<(Sources, usize)> {
        Sources::flat(self.guest, Some(self.segments))
    }

    #[inline(always)]
    fn is_flat(&self) -> bool {
        true
    }

    #[inline(always)]
    fn prepare(&mut self, memo: &mut Memo, gva: Gva, store: bool) -> Option<Prepared> {
        let found = memo.prepare_flat(self.guest, Va::from(gva).page(), store)?;
        let hpa = self.segments.translate(found.gpa_of(gva))?;
        Some(Prepared { mapping: self.finish(gva, found, hpa, store), node: found.node, gfn: 0 })
    }

    fn tables(&mut self) -> Tables<'_> {
        Tables::Other
    }

    fn resolve(&mut self, gva: Gva, store: bool) -> Result<Mapping, Fault> {
        let found = leaf_of(self.guest, Va::from(gva).page(), store).ok_or(Fault::Guest { gva, store })?;
        let gpa = found.gpa_of(gva);
        let hpa = self.segments.translate(gpa).ok_or(Fault::Boundary { gpa })?;
        Ok(self.finish(gva, found, hpa, store))
    }

    #[inline(always)]
    fn neighbours(&self, gva: Gva, _: Option<&Memo>) -> Group {
        let host = |frame: u64| self.segments.translate(Gpa(frame << PAGE_SHIFT)).map_or(u64::MAX, |hpa| hpa.page().0);
        group_around(self.guest, Va::from(gva).page(), host).1
    }

    fn is_in_block(&self, gva: Gva) -> bool {
        let page = Va::from(gva).page();
        let gpa = leaf_of(self.guest, page, false).expect("it was just walked for").gpa_of(gva);
        is_in_block(self.guest, page) && self.segments.holds(gpa.0 >> PAGE_SHIFT, CONTIGUOUS_PAGES)
    }

    fn set_dirty(&mut self, gva: Gva) {
        set_dirty(self.guest, Va::from(gva).page());
    }

    #[inline(always)]
    fn hint_first(&self, gva: Gva, _: Option<&Memo>) {
        hint_leaf(self.guest, Va::from(gva).page());
    }
}
