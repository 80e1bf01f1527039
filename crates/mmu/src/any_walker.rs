// SPDX-License-Identifier: MIT OR Apache-2.0
//! A walker of any kind, chosen as the program runs.
//!
//! For processors without vectors the loops of [`run`](crate::run) are compiled once for an
//! accelerator, with this walker, in place of once for each walker: few processors need them, and
//! all who build them wait.

use nestwalk_mem::{Gva, NodeId};

use crate::accelerator::Accelerator;
use crate::accelerator::tables::Tables;
use crate::clustered::Group;
use crate::mapping::Mapping;
use crate::memo::{Memo, Prepared, Sources};
use crate::native::Native;
use crate::nested::Nested;
use crate::segmented::Segmented;
use crate::simd::Simd;
use crate::walk_unit::WalkUnit;
use crate::walker::{Fault, Walker};

/// One of the ways to translate.
#[derive(Debug)]
pub enum AnyWalker<'a, 'tables> {
    /// One page table.
    Native(&'a mut Native<'tables>),
    /// A guest's table and its host's.
    Nested(&'a mut Nested<'tables>),
    /// A guest's table and segment registers.
    Segmented(&'a mut Segmented<'tables>),
}

/// What the walker that it is says to `$call`.
macro_rules! ask {
    ($any:ident, $walker:ident => $call:expr) => {
        match $any {
            AnyWalker::Native($walker) => $call,
            AnyWalker::Nested($walker) => $call,
            AnyWalker::Segmented($walker) => $call,
        }
    };
}

impl Walker for AnyWalker<'_, '_> {
    /// Nothing is fetched ahead.
    type Hint = ();

    #[inline(never)]
    fn walk<P: Accelerator, S: Simd>(
        &mut self,
        unit: &mut WalkUnit<P>,
        simd: S,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault> {
        ask!(self, walker => walker.walk(unit, simd, gva, store))
    }

    fn prepares(&self) -> Option<(Sources, usize)> {
        ask!(self, walker => walker.prepares())
    }

    fn is_flat(&self) -> bool {
        ask!(self, walker => walker.is_flat())
    }

    fn prepare(&mut self, memo: &mut Memo, gva: Gva, store: bool) -> Option<Prepared> {
        ask!(self, walker => walker.prepare(memo, gva, store))
    }

    fn mark_node(&mut self, memo: &mut Memo, node: NodeId) {
        ask!(self, walker => walker.mark_node(memo, node));
    }

    fn tables(&mut self) -> Tables<'_> {
        ask!(self, walker => walker.tables())
    }

    fn resolve(&mut self, gva: Gva, store: bool) -> Result<Mapping, Fault> {
        ask!(self, walker => walker.resolve(gva, store))
    }

    fn neighbours(&self, gva: Gva, memo: Option<&Memo>) -> Group {
        ask!(self, walker => walker.neighbours(gva, memo))
    }

    fn is_in_block(&self, gva: Gva) -> bool {
        ask!(self, walker => walker.is_in_block(gva))
    }

    fn set_dirty(&mut self, gva: Gva) {
        ask!(self, walker => walker.set_dirty(gva));
    }

    fn hint_first(&self, _: Gva, _: Option<&Memo>) {}
}
