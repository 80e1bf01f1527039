// SPDX-License-Identifier: MIT OR Apache-2.0
//! POM-TLB: its references and cycles, one by one, and that it translates as walks do.
//!
//! Latencies of `tests/machine.toml`: memory 191, L1-D 4, a look-up in page-walk caches 2.

mod common;

use common::{TestTable, WRITABLE, cycles_of_events, machine, machine_without_pwc};
use nestwalk_mem::{Access, Entry, Geometry, Gva, Hpa, PageSize, Vpn, VpnRange};
use nestwalk_mmu::{
    AcceleratorCounters, Asid, Core, Counters, Engine, Fault, Llc, MmuConfig, Nested, NoAccelerator, PomTlb,
    PomTlbConfig, PomTlbCounters, RunEnd, TlbConfig,
};
use proptest::prelude::*;

const MEMORY: u64 = 191;
const L1D: u64 = 4;

/// Above all frames of these tests.
const BASE: Hpa = Hpa(1 << 40);

struct Rig<P> {
    core: Core<P>,
    llc: Llc,
    tables: (TestTable, TestTable),
}

impl<P: Engine<Counters: AcceleratorCounters>> Rig<P> {
    fn new(config: &MmuConfig, hardware: P, tables: (TestTable, TestTable)) -> Self {
        let mut core = Core::with_accelerator(config, hardware).unwrap();
        core.switch_to(Asid(1), Asid(0));
        Self { core, llc: Llc::new(config).unwrap(), tables }
    }

    fn run(&mut self, access: Access, functional: bool) -> RunEnd {
        let (guest, host) = (&mut self.tables.0.table, &mut self.tables.1.table);
        let mut walker = Nested { guest, host, base: Vpn(0) };
        if functional {
            return self.core.run_functional(&mut walker, &[access]);
        }
        self.core.run(&mut self.llc, &mut walker, &[access], None)
    }

    /// What a load adds to the counters. The TLBs have nothing before.
    fn cold_load(&mut self, page: u64) -> Counters {
        self.forget_tlbs();
        let before = self.core.counters();
        assert_eq!(self.run(Access::load(Gva(page << 12)), false), RunEnd::Done);
        self.core.check_invariants();
        self.core.counters().minus(&before)
    }

    /// Fills the TLBs with pages of another process.
    fn forget_tlbs(&mut self) {
        self.core.switch_to(Asid(7), Asid(0));
        for page in 100..108 {
            assert_eq!(self.run(Access::load(Gva((OTHERS + page) << 12)), true), RunEnd::Done);
        }
        self.core.switch_to(Asid(1), Asid(0));
    }
}

/// Pages that the TLBs are filled with.
const OTHERS: u64 = 1 << 24;

/// TLBs of hardly any entries, each for all page sizes.
fn small_tlbs(config: MmuConfig) -> MmuConfig {
    let array = |entries| {
        let sizes = PageSize::ALL.to_vec();
        vec![TlbConfig { sizes, entries, ways: entries, clustered: false, contiguous: None }]
    };
    MmuConfig { l1_tlb: array(1), l2_tlb: array(2), ..config }
}

/// Page 5 in guest frame 200 and 2 MiB at page 1024, over a host of 4 KiB and of 2 MiB pages.
fn tables() -> (TestTable, TestTable) {
    let mut guest = TestTable::new(Geometry::X86_4, 16, 1);
    guest.map(5, 200, PageSize::Small, WRITABLE);
    guest.map(1024, 1024, PageSize::Huge, WRITABLE);
    guest.map(OTHERS, 2048, PageSize::Huge, WRITABLE);
    let mut host = TestTable::new(Geometry::X86_4, 0x5000, 1);
    (0..512).for_each(|gfn| host.map(gfn, 0x8000 + gfn, PageSize::Small, WRITABLE));
    host.map(1024, 0x1_0000, PageSize::Huge, WRITABLE);
    (2048..2560).for_each(|gfn| host.map(gfn, 0x2_0000 + gfn, PageSize::Small, WRITABLE));
    (guest, host)
}

fn pom() -> PomTlb {
    PomTlb::new(&PomTlbConfig { size: 16 << 20 }, BASE)
}

#[test]
fn a_hit_is_one_reference_and_a_miss_two_before_the_walk() {
    let config = small_tlbs(machine_without_pwc());
    let mut plain = Rig::new(&config, NoAccelerator, tables());
    let mut with = Rig::new(&config, pom(), tables());
    let (walk, first) = (plain.cold_load(5), with.cold_load(5));
    assert_eq!(walk.walk_events.total_references(), 24);
    assert_eq!(first.walk_events, walk.walk_events, "the walk is the same");
    assert_eq!(first.walk_cycles, walk.walk_cycles + 2 * MEMORY, "both sets are read first");
    let expected = PomTlbCounters { misses: 1, references: [0, 0, 0, 2], ..PomTlbCounters::default() };
    assert_eq!(first.pom_tlb, expected);

    let again = with.cold_load(5);
    assert_eq!((again.tlb.walks(), again.walk_events.total_references()), (1, 0));
    assert_eq!((again.walk_cycles, again.guest_walk_cycles), (L1D, L1D), "its line is in the L1-D still");
    let expected = PomTlbCounters { hits: [1, 0], references: [1, 0, 0, 0], ..PomTlbCounters::default() };
    assert_eq!(again.pom_tlb, expected);
}

#[test]
fn a_large_page_is_found_by_one_reference_once_its_size_is_known() {
    let mut with = Rig::new(&small_tlbs(machine()), pom(), tables());
    assert_eq!(with.cold_load(1024).pom_tlb.misses, 1);
    let same = with.cold_load(1024).pom_tlb;
    assert_eq!((same.hits, same.size_mispredicted, same.references.iter().sum::<u64>()), ([0, 1], 0, 1));
    let beside = with.cold_load(1025).pom_tlb;
    assert_eq!((beside.hits, beside.size_mispredicted, beside.references.iter().sum::<u64>()), ([0, 1], 1, 2));
}

#[test]
fn a_shootdown_takes_the_entry_out() {
    let mut with = Rig::new(&small_tlbs(machine()), pom(), tables());
    with.cold_load(5);
    with.core.invalidate(VpnRange { start: Vpn(4), end: Vpn(7) });
    let table = &mut with.tables.0;
    table.table.unmap(Vpn(5)).unwrap();
    table.map(5, 201, PageSize::Small, WRITABLE);
    assert_eq!(
        (with.cold_load(5).pom_tlb.misses, with.core.tlbs().peek(Gva(5 << 12)).unwrap().frame().0),
        (1, 0x8000 + 201)
    );
}

#[derive(Clone, Debug)]
enum Op {
    /// A page and whether it is stored to.
    Access(prop::sample::Index, u64, bool),
    /// The guest maps that leaf elsewhere, and tells the core.
    Move(prop::sample::Index, u64),
    /// Functional accesses elsewhere, which push all else out of the TLBs.
    Others,
    Flush,
    FlushAll,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        60 => (any::<prop::sample::Index>(), 0_u64..1 << 18, any::<bool>()).prop_map(|(leaf, page, store)| Op::Access(leaf, page, store)),
        4 => (any::<prop::sample::Index>(), 0_u64..64).prop_map(|(leaf, frame)| Op::Move(leaf, frame)),
        3 => Just(Op::Others),
        1 => Just(Op::Flush),
        1 => Just(Op::FlushAll),
    ]
}

/// A leaf of the guest: where, its size, whether it may be stored to.
type Leaf = (u64, PageSize, bool);

/// Leaves that do not overlap, a gibibyte for each of them.
fn leaves() -> impl Strategy<Value = Vec<Leaf>> {
    let size = prop_oneof![4 => Just(PageSize::Small), 2 => Just(PageSize::Huge), 1 => Just(PageSize::Giant)];
    let leaf = (0_u64..1 << 18, size, prop::bool::weighted(0.8));
    prop::collection::vec(leaf, 1..24).prop_map(|leaves| {
        let place = |(number, (page, size, writable)): (usize, Leaf)| {
            (((number as u64) << 18 | page) >> size.order() << size.order(), size, writable)
        };
        leaves.into_iter().enumerate().map(place).collect()
    })
}

/// These leaves in frames of their own, over a host that maps 64 GiB by 4 KiB, 2 MiB and 1 GiB in
/// turn.
fn mapped(leaves: &[Leaf]) -> (TestTable, TestTable) {
    let mut guest = TestTable::new(Geometry::X86_4, 16, 1);
    for &(page, size, writable) in leaves {
        guest.map(page, page, size, if writable { WRITABLE } else { 0 });
    }
    guest.map(OTHERS, 2048, PageSize::Huge, WRITABLE);
    let mut host = TestTable::new(Geometry::X86_4, 1 << 27, 1);
    (0..4096).for_each(|gfn| host.map(gfn, (1 << 26) + gfn, PageSize::Small, WRITABLE));
    (8..512).for_each(|block| {
        host.map(block << 9, (1 << 25) + (block << 9), PageSize::Huge, if block % 5 == 0 { 0 } else { WRITABLE })
    });
    (1..64).for_each(|block| host.map(block << 18, (1 << 25) + (block << 18), PageSize::Giant, WRITABLE));
    (guest, host)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Against a core without it: the same page faults, the same frames and rights, and in the end
    /// the same dirty bits.
    #[test]
    fn it_translates_as_walks_do(
        leaves in leaves(),
        ops in prop::collection::vec(op(), 1..200),
        // Of few lines, so that entries push each other out.
        size in prop::sample::select(vec![128_u64, 4096, 1 << 20]),
        clustered in any::<bool>(),
        functional in any::<bool>(),
    ) {
        let config = small_tlbs(machine());
        let config = if clustered { config.with_clustered_tlb().unwrap() } else { config };
        let mut plain = Rig::new(&config, NoAccelerator, mapped(&leaves));
        let mut with = Rig::new(&config, PomTlb::new(&PomTlbConfig { size }, BASE), mapped(&leaves));
        for op in ops {
            match op {
                Op::Access(leaf, page, store) => {
                    let (first, size, _) = leaves[leaf.index(leaves.len())];
                    let access = Access::new(Gva((first + (page & (size.pages() - 1))) << 12), store);
                    let ends = (plain.run(access, functional), with.run(access, functional));
                    prop_assert_eq!(ends.0, ends.1);
                    if ends.0 == RunEnd::Done {
                        let page = access.gva().page();
                        let known = |found: Option<nestwalk_mmu::Mapping>| {
                            found.map(|mapping| (mapping.frame_of(page), mapping.is_writable()))
                        };
                        let both = (plain.core.tlbs().peek(access.gva()), with.core.tlbs().peek(access.gva()));
                        prop_assert_eq!(known(both.0), known(both.1));
                        prop_assert!(!store || both.1.unwrap().is_dirty());
                    } else {
                        let is_right = matches!(ends.1, RunEnd::Fault { fault: Fault::Guest { .. } | Fault::Host { .. }, .. });
                        prop_assert!(is_right);
                    }
                }
                Op::Move(leaf, frame) => {
                    let (page, size, writable) = leaves[leaf.index(leaves.len())];
                    let pages = VpnRange { start: Vpn(page), end: Vpn(page + size.pages()) };
                    for tables in [&mut plain.tables, &mut with.tables] {
                        tables.0.table.unmap(Vpn(page)).unwrap();
                        let frame = frame << 18 >> size.order() << size.order();
                        tables.0.map(page, frame, size, if writable { WRITABLE } else { 0 });
                    }
                    plain.core.invalidate(pages);
                    with.core.invalidate(pages);
                }
                Op::Others => {
                    plain.forget_tlbs();
                    with.forget_tlbs();
                }
                Op::Flush => {
                    plain.core.flush_guest();
                    with.core.flush_guest();
                }
                Op::FlushAll => {
                    plain.core.flush_nested();
                    with.core.flush_nested();
                }
            }
        }
        with.core.check_invariants();
        for &(page, ..) in &leaves {
            let dirty = |rig: &TestTable| rig.table.leaf(Vpn(page)).map(|leaf| leaf.entry.has(Entry::DIRTY));
            prop_assert_eq!(dirty(&plain.tables.0), dirty(&with.tables.0));
        }
        let counters = with.core.counters();
        prop_assert_eq!(counters.walk_cycles, cycles_of_events(&config, &counters));
        if !functional {
            let found: u64 = counters.pom_tlb.hits.iter().sum();
            prop_assert_eq!(found + counters.pom_tlb.misses, counters.tlb.walks());
        }
    }
}
