// SPDX-License-Identifier: MIT OR Apache-2.0
//! ASAP: what a prefetch hides, cycle by cycle, and what it cannot change.
//!
//! Latencies of `tests/machine.toml`: memory 191, L1-D 4, a look-up in page-walk caches 2.

mod common;

use common::{TestTable, WRITABLE, machine};
use nestwalk_mem::{Access, Frame, Geometry, Gva, Level, PageSize, Vpn, VpnRange};
use nestwalk_mmu::{Asap, Core, Counters, Levels, Llc, MmuConfig, Native, Nested, RunEnd, SortedNodes};

const MEMORY: u64 = 191;
const L1D: u64 = 4;
const LOOKUP: u64 = 2;

/// Nodes of `level` over the pages up to `end`, the first of them in `frame`.
fn sorted(level: u8, end: u64, frame: u64) -> SortedNodes {
    let pages = VpnRange { start: Vpn(0), end: Vpn(end) };
    SortedNodes { pages, level: Level(level), base: Frame(frame).address().into() }
}

struct Rig {
    core: Core<Asap>,
    llc: Llc,
}

impl Rig {
    fn new(config: &MmuConfig, guest: &[u8], host: &[u8]) -> Self {
        let levels = |levels| Levels::new(levels).unwrap();
        let asap = Asap::new(16, levels(guest), levels(host)).unwrap();
        Self { core: Core::with_accelerator(config, asap).unwrap(), llc: Llc::new(config).unwrap() }
    }

    fn native(&mut self, table: &mut TestTable, page: u64) -> Counters {
        let before = self.core.counters();
        let mut walker = Native { table: &mut table.table };
        let end = self.core.run(&mut self.llc, &mut walker, &[Access::load(Gva(page << 12))], None);
        assert_eq!(end, RunEnd::Done);
        self.core.check_invariants();
        self.core.counters().minus(&before)
    }

    fn nested(&mut self, (guest, host): &mut (TestTable, TestTable), page: u64) -> Counters {
        let before = self.core.counters();
        let mut walker = Nested { guest: &mut guest.table, host: &mut host.table, base: Vpn(0) };
        let end = self.core.run(&mut self.llc, &mut walker, &[Access::load(Gva(page << 12))], None);
        assert_eq!(end, RunEnd::Done);
        self.core.check_invariants();
        self.core.counters().minus(&before)
    }
}

/// A native program whose PTE nodes follow each other from frame 0x1000 on, and whose PMD node is
/// in frame 0x2000.
fn native_table() -> TestTable {
    let mut table = TestTable::new(Geometry::X86_4, 0x3000, 1);
    for node in 0..40_u64 {
        table.map(node * 512 + 5, 0x10_0000 + node, PageSize::Small, WRITABLE);
    }
    for node in 0..40 {
        let page = Vpn(node * 512);
        let pte = table.table.lowest_node(page).0;
        table.table.relocate(pte, Frame(0x1000 + node));
    }
    let pmd = table.table.ensure_node(Vpn(0), Level::PMD, |_, _| Err(())).unwrap();
    table.table.relocate(pmd, Frame(0x2000));
    table
}

fn native_nodes() -> [SortedNodes; 2] {
    [sorted(1, 40 * 512, 0x1000), sorted(2, 1 << 18, 0x2000)]
}

#[test]
fn a_native_walk_pays_for_the_longer_of_walk_and_prefetch() {
    for (levels, cold, warm) in [
        (&[][..], LOOKUP + 4 * MEMORY, LOOKUP + 2 * MEMORY),
        // P1: the PTE has arrived when the walk comes to it.
        (&[1], LOOKUP + 3 * MEMORY + L1D, LOOKUP + MEMORY + L1D),
        // P1 + P2: with the upper levels in the page-walk caches, both lines come in at 191; the
        // walk has waited for the PMD's from 2 on.
        (&[1, 2], LOOKUP + 2 * MEMORY + 2 * L1D, MEMORY + L1D),
    ] {
        let (mut table, mut rig) = (native_table(), Rig::new(&machine(), levels, &[]));
        rig.core.accelerator_mut().load(&native_nodes(), &[], Vpn(0));
        let first = rig.native(&mut table, 5);
        assert_eq!(first.walk_cycles, cold, "{levels:?}");
        // 16 nodes on: another line of the PMD node.
        let second = rig.native(&mut table, 16 * 512 + 5);
        assert_eq!(second.walk_cycles, warm, "{levels:?}");
        let wanted = levels.len() as u64;
        assert_eq!((second.prefetch.issued, second.prefetch.useful), (wanted, wanted));
        assert_eq!((second.registers.walks, second.registers.covered_by(1)), (1, wanted.min(1)));
        // The next node: its PMD entry is in a line that the L1-D holds.
        let third = rig.native(&mut table, 17 * 512 + 5);
        assert_eq!(third.prefetch.needless, wanted.saturating_sub(1));
    }
}

/// A guest whose nodes are in its frames 16 to 19, on a host with nodes from 0x5000 on. Page 5 is
/// in guest frame 200.
fn machine_tables() -> (TestTable, TestTable) {
    let mut guest = TestTable::new(Geometry::X86_4, 16, 1);
    guest.map(5, 200, PageSize::Small, WRITABLE);
    assert_eq!(guest.nodes(), [16, 17, 18, 19]);
    let mut host = TestTable::new(Geometry::X86_4, 0x5000, 1);
    (0..256).for_each(|gfn| host.map(gfn, 0x8000 + gfn, PageSize::Small, WRITABLE));
    assert_eq!(host.nodes(), [0x5000, 0x5001, 0x5002, 0x5003]);
    (guest, host)
}

/// Worked out by hand. Without prefetches, `time` after each step:
/// - the guest's look-up 2; the host walk for the gPGD: look-up 4, four entries from memory 768;
///   the gPGD's entry 959;
/// - gPUD: look-up, hPTE in the L1-D 965, its entry 1156; gPMD the same, 1353; gPTE the same, 1550;
/// - data: look-up 1552, hPTE (another line) 1743.
#[test]
fn a_nested_walk_worked_out_by_hand() {
    const BARE: u64 = 1743;
    /// A line from memory that has arrived meanwhile.
    const HIDDEN: u64 = MEMORY - L1D;
    for (guest, host, cycles, hits) in [
        (&[][..], &[][..], BARE, 0),
        (&[1], &[], BARE - HIDDEN, 1),
        (&[1, 2], &[], BARE - 2 * HIDDEN, 2),
        // The first host walk comes to its PTE long after the prefetch; the last one 2 cycles after
        // it, since the page-walk caches have all levels above. The line of host PTEs for guest
        // nodes is used by four host walks.
        (&[1], &[1], BARE - 2 * HIDDEN - LOOKUP, 1 + 4 + 1),
        (&[1, 2], &[1, 2], BARE - 4 * HIDDEN - LOOKUP, 2 + 5 + 1),
    ] {
        let (mut tables, mut rig) = (machine_tables(), Rig::new(&machine(), guest, host));
        // The guest's nodes as they lie in host memory.
        let guest_nodes = [sorted(1, 512, 0x8000 + 19), sorted(2, 1 << 18, 0x8000 + 18)];
        let host_nodes = [sorted(1, 512, 0x5003), sorted(2, 1 << 18, 0x5002)];
        rig.core.accelerator_mut().load(&guest_nodes, &host_nodes, Vpn(0));
        let counters = rig.nested(&mut tables, 5);
        assert_eq!(counters.walk_cycles, cycles, "guest {guest:?}, host {host:?}");
        assert_eq!(counters.walk_events.total_references(), 4 + 3 + 4 + 1, "the walk is the same");
        assert_eq!(counters.prefetch.useful, hits, "guest {guest:?}, host {host:?}");
    }
}

#[test]
fn a_prefetch_to_a_hole_changes_no_result() {
    let (mut table, mut other) = (native_table(), native_table());
    // Node 7 lies elsewhere: what is at its place in the region belongs to another owner.
    for table in [&mut table, &mut other] {
        let hole = table.table.lowest_node(Vpn(7 * 512)).0;
        table.table.relocate(hole, Frame(0x9999));
    }
    let mut with = Rig::new(&machine(), &[1, 2], &[]);
    with.core.accelerator_mut().load(&native_nodes(), &[], Vpn(0));
    let mut without = Rig::new(&machine(), &[], &[]);
    for page in [7 * 512 + 5, 20 * 512 + 5, 7 * 512 + 5, 6 * 512 + 5] {
        let (with, without) = (with.native(&mut table, page), without.native(&mut other, page));
        assert_eq!(with.tlb, without.tlb);
        assert_eq!(with.walk_events.total_references(), without.walk_events.total_references());
        assert!(with.walk_cycles <= without.walk_cycles);
        if page == 7 * 512 + 5 && with.tlb.walks() == 1 {
            // P2 is right, P1 is not.
            assert_eq!((with.prefetch.issued, with.prefetch.useful), (2, 1));
            assert_eq!(without.walk_cycles - with.walk_cycles, MEMORY - L1D);
        }
    }
    for page in 0..40 {
        let leaf = |table: &TestTable| table.table.translate(Vpn(page * 512 + 5));
        assert_eq!(leaf(&table), leaf(&other));
    }
}

#[test]
fn without_a_free_miss_register_a_prefetch_is_dropped() {
    let config = MmuConfig { l1d_miss_registers: Some(1), ..machine() };
    let (mut table, mut rig) = (native_table(), Rig::new(&config, &[1, 2], &[]));
    rig.core.accelerator_mut().load(&native_nodes(), &[], Vpn(0));
    let counters = rig.native(&mut table, 5);
    assert_eq!((counters.prefetch.issued, counters.prefetch.dropped), (1, 1));
    // The one that the walk needs first is made.
    assert_eq!(counters.walk_cycles, LOOKUP + 2 * MEMORY + L1D + MEMORY);
}

#[test]
fn for_a_huge_page_the_prefetch_of_the_pte_is_wasted_and_that_of_the_pmd_is_not() {
    let mut table = TestTable::new(Geometry::X86_4, 0x3000, 1);
    table.map(0, 0x10_0000, PageSize::Huge, WRITABLE);
    let nodes = [sorted(1, 512, 0x1000), sorted(2, 1 << 18, 0x3002)];
    let mut rig = Rig::new(&machine(), &[1, 2], &[]);
    rig.core.accelerator_mut().load(&nodes, &[], Vpn(0));
    let counters = rig.native(&mut table, 5);
    assert_eq!(counters.walk_cycles, LOOKUP + 2 * MEMORY + L1D);
    assert_eq!((counters.prefetch.issued, counters.prefetch.useful), (2, 1));
}

#[test]
fn with_five_levels_a_third_one_can_be_prefetched() {
    let mut table = TestTable::new(Geometry::X86_5, 0x3000, 1);
    table.map(5, 0x10_0000, PageSize::Small, WRITABLE);
    let nodes = [sorted(1, 512, 0x3004), sorted(2, 1 << 18, 0x3003), sorted(3, 1 << 27, 0x3002)];
    let mut rig = Rig::new(&machine(), &[1, 2, 3], &[]);
    rig.core.accelerator_mut().load(&nodes, &[], Vpn(0));
    assert_eq!(rig.native(&mut table, 5).walk_cycles, LOOKUP + 2 * MEMORY + 3 * L1D);
}

#[test]
fn walks_in_stages_ask_for_the_same_lines_at_the_same_times() {
    let mut guest = TestTable::new(Geometry::X86_4, 8192, 1);
    let mut host = TestTable::new(Geometry::X86_4, 1 << 20, 1);
    (0..4096).for_each(|page| guest.map(page, page * 1229 % 4096, PageSize::Small, WRITABLE));
    // The guest's nodes, which begin at 8192, lie together in the host, too.
    (0..8192).for_each(|gfn| host.map(gfn, gfn * 3 + 7, PageSize::Small, WRITABLE));
    (8192..8192 + 64).for_each(|gfn| host.map(gfn, 0x8000 + gfn - 8192, PageSize::Small, WRITABLE));
    let guest_nodes = [sorted(1, 4096, 0x8003), sorted(2, 1 << 18, 0x8002)];
    let host_nodes = [sorted(1, 16 * 512, (1 << 20) + 3), sorted(2, 1 << 18, (1 << 20) + 2)];
    let mut state = 1_u64;
    let accesses: Vec<_> = (0..4000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Access::new(Gva((state >> 33) % (4096 << 12)), state >> 62 == 0)
        })
        .collect();
    for miss_registers in [1, 3, 10] {
        let config = MmuConfig { l1d_miss_registers: Some(miss_registers), ..machine() };
        let outcome = |stages: bool, vectors: bool| {
            let mut rig = Rig::new(&config, &[1, 2], &[1, 2]);
            rig.core.set_stages(stages);
            rig.core.set_vectors(vectors);
            rig.core.accelerator_mut().load(&guest_nodes, &host_nodes, Vpn(0));
            let (mut guest, mut host) = (guest.table.clone(), host.table.clone());
            let mut walker = Nested { guest: &mut guest, host: &mut host, base: Vpn(0) };
            assert_eq!(rig.core.run(&mut rig.llc, &mut walker, &accesses, None), RunEnd::Done);
            rig.core.check_invariants();
            rig.core.counters()
        };
        let (staged, expected) = (outcome(true, true), outcome(false, true));
        assert!(staged.prefetch.useful > 100 && staged.tlb.walks() > 1000);
        assert_eq!(staged, expected, "{miss_registers} miss registers");
        assert_eq!(outcome(false, false), expected, "without vectors");
        assert_eq!(outcome(true, false), expected, "in stages, without vectors");
    }
}
