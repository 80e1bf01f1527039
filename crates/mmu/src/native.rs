// SPDX-License-Identifier: MIT OR Apache-2.0
//! A native walk: one table, whose nodes and pages lie in physical memory.

use nestwalk_mem::{Gva, PageTable, Va};

use crate::accelerator::Accelerator;
use crate::accelerator::tables::Tables;
use crate::clustered::Group;
use crate::contiguous::is_in_block;
use crate::events::{Table, WalkEvents};
use crate::leaf::{Found, group_around, hint_leaf, leaf_of, set_dirty};
use crate::mapping::Mapping;
use crate::memo::{Memo, Prepared, Sources};
use crate::simd::Simd;
use crate::walk_unit::WalkUnit;
use crate::walker::{Fault, Walker, descend};

/// Translation through one page table.
#[derive(Debug)]
pub struct Native<'t> {
    /// The process's table.
    pub table: &'t mut PageTable,
}

impl Native<'_> {
    #[inline(always)]
    fn finish(&mut self, gva: Gva, found: Found, store: bool) -> Mapping {
        found.mark(self.table, Va::from(gva).page(), store);
        Mapping::of(found.entry, found.entry.frame().into(), found.size()).used(store)
    }
}

impl Walker for Native<'_> {
    type Hint = ();

    #[inline(always)]
    fn walk<P: Accelerator, S: Simd>(
        &mut self,
        unit: &mut WalkUnit<P>,
        simd: S,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault> {
        let page = Va::from(gva).page();
        let found = descend(
            (self.table, Table::Guest),
            unit,
            simd,
            page,
            self.table.lowest_node(page),
            unit.guest_pwc.exists(),
            #[inline(always)]
            |unit, level, at| {
                unit.reference(Table::Guest, at.into(), WalkEvents::step_code(level.0, 0));
                Some(())
            },
        );
        match found {
            Some(found) if found.allows(store) => Ok(self.finish(gva, found, store)),
            _ => Err(Fault::Guest { gva, store }),
        }
    }

    fn prepares(&self) -> Option<(Sources, usize)> {
        Sources::flat(self.table, None)
    }

    #[inline(always)]
    fn is_flat(&self) -> bool {
        true
    }

    #[inline(always)]
    fn prepare(&mut self, memo: &mut Memo, gva: Gva, store: bool) -> Option<Prepared> {
        let found = memo.prepare_flat(self.table, Va::from(gva).page(), store)?;
        Some(Prepared { mapping: self.finish(gva, found, store), node: found.node, gfn: 0 })
    }

    fn tables(&mut self) -> Tables<'_> {
        Tables::One(self.table)
    }

    fn resolve(&mut self, gva: Gva, store: bool) -> Result<Mapping, Fault> {
        let page = Va::from(gva).page();
        let found = leaf_of(self.table, page, store).ok_or(Fault::Guest { gva, store })?;
        Ok(self.finish(gva, found, store))
    }

    #[inline(always)]
    fn neighbours(&self, gva: Gva, _: Option<&Memo>) -> Group {
        group_around(self.table, Va::from(gva).page(), |frame| frame).1
    }

    fn is_in_block(&self, gva: Gva) -> bool {
        is_in_block(self.table, Va::from(gva).page())
    }

    fn set_dirty(&mut self, gva: Gva) {
        set_dirty(self.table, Va::from(gva).page());
    }

    #[inline(always)]
    fn hint_first(&self, gva: Gva, _: Option<&Memo>) {
        hint_leaf(self.table, Va::from(gva).page());
    }
}
