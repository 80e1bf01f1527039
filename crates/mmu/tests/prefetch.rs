// SPDX-License-Identifier: MIT OR Apache-2.0
//! The seam for accelerators that prefetch: a line in flight costs a walk what is left of its
//! latency.

mod common;

use common::{TestTable, WRITABLE, machine};
use nestwalk_mem::{Access, Geometry, Gpa, Gva, Hpa, PageSize};
use nestwalk_mmu::{Accelerator, Core, Engine, Issue, Llc, Native, RunEnd};

/// Knows where the PTE node is, as ASAP's range registers do.
struct PteNode(Hpa);

impl Accelerator for PteNode {
    type Counters = ();

    const ACTIVE: bool = true;

    fn walk_starts(&mut self, gva: Gva, issue: &mut Issue<'_>) {
        issue.prefetch(self.0 + (gva.0 >> 12 & 511) * 8);
    }

    fn host_walk_starts(&mut self, _: Gpa, _: &mut Issue<'_>) {
        unreachable!("a native walk");
    }
}

impl Engine for PteNode {}

#[test]
fn a_walk_waits_for_what_is_left_of_a_prefetch() {
    let mut table = TestTable::new(Geometry::X86_4, 0x100, 1);
    [0, 8].iter().for_each(|&page| table.map(page, 64 + page, PageSize::Small, WRITABLE));
    let config = machine();
    // Nodes come from the top: the PTE node is the fourth.
    let mut core = Core::with_accelerator(&config, PteNode(Hpa(0x103 << 12))).unwrap();
    let mut llc = Llc::new(&config).unwrap();
    let mut walk = |page: u64| {
        let before = core.counters();
        let access = [Access::load(Gva(page << 12))];
        let mut walker = Native { table: &mut table.table };
        assert_eq!(core.run(&mut llc, &mut walker, &access, None), RunEnd::Done);
        let counters = core.counters().minus(&before);
        assert_eq!((counters.prefetch.issued, counters.prefetch.useful), (1, 1));
        counters.walk_cycles
    };
    // Cold: by the time the walk comes to the PTE it has long arrived.
    assert_eq!(walk(0), 2 + 3 * 191 + 4);
    // The upper levels are in the page-walk caches: the walk comes 2 cycles after the prefetch.
    assert_eq!(walk(8), 2 + (191 - 2));
}
