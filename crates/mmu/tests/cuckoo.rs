// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elastic cuckoo page tables: references and cycles of walks one by one; on random tables that
//! change they translate as walks through radix tables do; and every line that holds a page is
//! among those that a walk reads.
//!
//! Latencies of `tests/machine.toml`: memory 191, L1-D 4.

mod common;

use common::{TestTable, WRITABLE, machine};
use nestwalk_mem::{Access, Entry, Frame, Geometry, Gva, Hpa, Level, PageSize, PageTable, Vpn, VpnRange};
use nestwalk_mmu::{
    AcceleratorCounters, Asid, Core, Counters, Cuckoo, CuckooConfig, CuckooCounters, Engine, Llc, Mapping, MmuConfig,
    Native, Nested, NoAccelerator, RunEnd, Served, TlbConfig,
};
use proptest::prelude::*;

const MEMORY: u64 = 191;
const L1D: u64 = 4;
/// A look-up in the walk caches.
const LOOKUP: u64 = 2;

/// Above all frames of these tests.
const BASE: Hpa = Hpa(1 << 40);

struct Rig<P> {
    core: Core<P>,
    llc: Llc,
    own: TestTable,
    host: Option<TestTable>,
}

impl<P: Engine<Counters: AcceleratorCounters>> Rig<P> {
    fn new(config: &MmuConfig, hardware: P, own: TestTable, host: Option<TestTable>) -> Self {
        let mut core = Core::with_accelerator(config, hardware).unwrap();
        core.switch_to(Asid(1), Asid(3));
        Self { core, llc: Llc::new(config).unwrap(), own, host }
    }

    fn run(&mut self, accesses: &[Access]) -> RunEnd {
        match &mut self.host {
            None => self.core.run(&mut self.llc, &mut Native { table: &mut self.own.table }, accesses, None),
            Some(host) => {
                let mut walker = Nested { guest: &mut self.own.table, host: &mut host.table, base: Vpn(BASE_PAGE) };
                self.core.run(&mut self.llc, &mut walker, accesses, None)
            }
        }
    }

    /// What a load adds to the counters.
    fn load(&mut self, page: u64) -> Counters {
        let before = self.core.counters();
        assert_eq!(self.run(&[Access::load(Gva(page << 12))]), RunEnd::Done);
        self.core.check_invariants();
        self.core.counters().minus(&before)
    }
}

/// Where guest-physical memory begins in the host's table.
const BASE_PAGE: u64 = 1 << 20;

/// The host's table for guest frames as they are given: first frame, count.
fn host(frames: &[(u64, u64, PageSize)]) -> TestTable {
    let mut host = TestTable::new(Geometry::X86_4, 0x5000, 1);
    for &(first, count, size) in frames {
        for number in 0..count {
            let gfn = first + number * size.pages();
            host.map(BASE_PAGE + gfn, (1 << 20) + gfn, size, WRITABLE);
        }
    }
    host
}

fn cuckoo() -> Cuckoo {
    Cuckoo::new(&CuckooConfig::default(), BASE..Hpa(1 << 41))
}

/// TLBs of hardly any entries, each for all page sizes.
fn small_tlbs(config: MmuConfig) -> MmuConfig {
    let array = |entries| {
        vec![TlbConfig { sizes: PageSize::ALL.to_vec(), entries, ways: entries, clustered: false, contiguous: None }]
    };
    MmuConfig { l1_tlb: array(1), l2_tlb: array(2), ..config }
}

/// References at a step, whatever served them.
fn at(counters: &Counters, guest: u8, host: u8) -> u64 {
    Served::ALL.map(|served| counters.walk_events.step(guest, host, served)).iter().sum()
}

#[test]
fn a_native_walk_reads_all_ways_and_waits_for_one_line() {
    let mut own = TestTable::new(Geometry::X86_4, 0x100, 1);
    own.map(5, 200, PageSize::Small, WRITABLE);
    own.map(6, 201, PageSize::Small, WRITABLE);
    own.map(1024, 1024, PageSize::Huge, WRITABLE);
    own.map(1 << 18, 1 << 18, PageSize::Giant, WRITABLE);
    let mut rig = Rig::new(&small_tlbs(machine()), cuckoo(), own, None);
    // Nothing is known: three ways of three tables, and beside them both walk tables.
    let cold = rig.load(5);
    assert_eq!([1, 2, 3].map(|level| at(&cold, level, 0)), [3, 3, 3]);
    assert_eq!((cold.walk_cycles, cold.guest_walk_cycles), (MEMORY + LOOKUP, MEMORY + LOOKUP), "one latency, not nine");
    let expected = CuckooCounters {
        walk_cache_misses: [1, 1, 0, 0, 0],
        beside: 8,
        walk_table_references: [0, 0, 0, 2],
        ..CuckooCounters::default()
    };
    assert_eq!(cold.cuckoo, expected);
    // The section is known: it has pages of 4 KiB and of 2 MiB, the latter in a known way. The line
    // of page 5 has 6.
    let warm = rig.load(6);
    assert_eq!([1, 2, 3].map(|level| at(&warm, level, 0)), [3, 1, 0]);
    assert_eq!(warm.walk_cycles, L1D + LOOKUP);
    assert_eq!((warm.cuckoo.walk_cache_hits, warm.cuckoo.beside), ([1, 1, 0, 0, 0], 3));
    // A large page: its way is known, but there may be small ones in the section.
    let large = rig.load(1024 + 7);
    assert_eq!([1, 2, 3].map(|level| at(&large, level, 0)), [3, 1, 0]);
    // Its way of the 1 GiB table is known. Smaller pages are somewhere in these 8 GiB, and once its
    // 16 MiB are known, not there.
    let giant = rig.load((1 << 18) + 7);
    assert_eq!([1, 2, 3].map(|level| at(&giant, level, 0)), [3, 3, 1]);
    assert_eq!(giant.walk_cycles, L1D + LOOKUP, "the first walk has read that line");
    rig.load(5);
    rig.load(1024);
    let again = rig.load((1 << 18) + 8);
    assert_eq!([1, 2, 3].map(|level| at(&again, level, 0)), [0, 0, 1]);
}

#[test]
fn a_nested_walk_has_three_steps() {
    let mut own = TestTable::new(Geometry::X86_4, 16, 1);
    own.map(5, 200, PageSize::Small, WRITABLE);
    own.map(6, 208, PageSize::Small, WRITABLE);
    let host = host(&[(0, 512, PageSize::Small)]);
    let mut rig = Rig::new(&small_tlbs(machine()), cuckoo(), own, Some(host));
    let cold = rig.load(5);
    // Nine lines of the guest's. The host's table of 4 KiB pages is read for each of the nine in
    // all ways or, where the walk cache knows its entry by then, in one. Then the data page:
    // nothing is known of its section.
    let first: u64 = [1, 2, 3].map(|level| at(&cold, level, 1)).iter().sum();
    assert!((9 + 2..=27).contains(&first), "{first}");
    let misses = cold.cuckoo.walk_cache_misses;
    assert_eq!(first, 9 + 2 * misses[2]);
    assert_eq!([1, 2, 3].map(|level| at(&cold, level, 0)), [3, 3, 3]);
    assert_eq!([1, 2, 3].map(|level| at(&cold, 0, level)), [3, 3, 3]);
    assert_eq!(([misses[0], misses[1], misses[3], misses[4]], cold.cuckoo.beside), ([1; 4], first + 18 - 3));
    assert_eq!((cold.guest_walk_cycles, cold.host_walk_cycles), (MEMORY + LOOKUP, 2 * (MEMORY + LOOKUP)));
    // Everything is known: one line of the host's for each of the guest's three, these three, and
    // three for the page.
    let warm = rig.load(6);
    assert_eq!((at(&warm, 1, 1), at(&warm, 1, 0), at(&warm, 0, 1)), (3, 3, 3));
    assert_eq!(warm.walk_events.total_references(), 9);
    assert_eq!(warm.cuckoo.walk_cache_misses, [0; 5]);
    // The lines of steps 1 and 2 are those of page 5; the data page is in another group of frames.
    assert_eq!((warm.guest_walk_cycles, warm.host_walk_cycles), (L1D + LOOKUP, L1D + LOOKUP + MEMORY + LOOKUP));
}

#[test]
fn a_page_that_is_not_there_is_looked_for_everywhere_and_not_counted() {
    let own = TestTable::new(Geometry::X86_4, 0x100, 1);
    let mut rig = Rig::new(&small_tlbs(machine()), cuckoo(), own, None);
    assert!(matches!(rig.run(&[Access::load(Gva(5 << 12))]), RunEnd::Fault { .. }));
    let counters = rig.core.counters();
    assert_eq!((counters.aborted_walks, counters.aborted_references, counters.walk_cycles), (1, 9 + 2, 0));
    assert_eq!(counters.cuckoo, CuckooCounters::default());
    rig.own.map(5, 200, PageSize::Small, WRITABLE);
    // The walk caches know both sections by now.
    assert_eq!(at(&rig.load(5), 1, 0), 3);
}

#[test]
fn cores_share_the_tables_and_a_new_process_begins_anew() {
    let mut own = TestTable::new(Geometry::X86_4, 0x100, 1);
    own.map(5, 200, PageSize::Small, WRITABLE);
    let config = small_tlbs(machine());
    let hardware = cuckoo();
    let mut first = Rig::new(&config, hardware.clone(), own, None);
    first.load(5);
    let own = std::mem::replace(&mut first.own, TestTable::new(Geometry::X86_4, 0x200, 1));
    let mut second = Rig::new(&config, hardware, own, None);
    assert_eq!(second.load(5).cuckoo.moved, 0);
    // The same process has another table now.
    first.own.map(9, 300, PageSize::Small, WRITABLE);
    first.core.flush_guest();
    assert_eq!(at(&first.load(9), 1, 0), 3);
    assert!(matches!(first.run(&[Access::load(Gva(5 << 12))]), RunEnd::Fault { .. }));
}

/// What a kernel does to a guest's table, or to the host's.
#[derive(Clone, Debug)]
enum Op {
    Access(u64, bool),
    Map(u64, PageSize),
    Unmap(u64),
    Split(u64),
    Collapse(u64),
    Prune(u64),
}

fn op() -> impl Strategy<Value = Op> {
    // Pages of 20 MiB, so that a section ends within, with small ones in a part of it only.
    let page = || prop_oneof![3 => 0_u64..64, 1 => 0_u64..5120];
    let size = prop_oneof![6 => Just(PageSize::Small), 1 => Just(PageSize::Huge)];
    prop_oneof![
        20 => (page(), any::<bool>()).prop_map(|(page, store)| Op::Access(page, store)),
        10 => (page(), size).prop_map(|(page, size)| Op::Map(page, size)),
        3 => page().prop_map(Op::Unmap),
        1 => page().prop_map(Op::Split),
        1 => page().prop_map(Op::Collapse),
        1 => page().prop_map(Op::Prune),
    ]
}

/// Does to `table` what `op` says. New nodes and pages have frames from `next` on.
fn change(table: &mut TestTable, op: &Op, offset: u64, next: &mut u64) {
    *next += 1024;
    let frame = *next & !511;
    match *op {
        Op::Access(..) => {}
        Op::Map(page, size) => {
            let first = (offset + page) & !(size.pages() - 1);
            let mut clear = true;
            let range = VpnRange { start: Vpn(first), end: Vpn(first + size.pages()) };
            table.table.for_each_leaf(range, |_| clear = false);
            // A node without entries is in the way of a large page.
            let no_node = size == PageSize::Small || table.table.lowest_node(Vpn(first)).1 > Level::PTE;
            if clear && no_node {
                table.map(first, frame, size, WRITABLE);
            }
        }
        Op::Unmap(page) => drop(table.table.unmap(Vpn(offset + page))),
        Op::Split(page) => drop(table.table.split(Vpn(offset + page), Frame(frame))),
        Op::Collapse(page) => drop(table.table.collapse(Vpn(offset + page), Frame(frame), WRITABLE)),
        Op::Prune(page) => {
            let range = VpnRange { start: Vpn(offset + page), end: Vpn(offset + page + 1024) };
            table.table.prune(range, |_, _, _| {});
        }
    }
}

fn entries(table: &PageTable) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    let flags = Entry::ACCESSED | Entry::DIRTY;
    let end = table.geometry().end();
    table.for_each_leaf(VpnRange { start: Vpn(0), end }, |leaf| all.push((leaf.page.0, leaf.entry.flags() & flags)));
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Against a core that walks the radix tables: the same page faults, the same translations, the
    /// same accessed and dirty bits; each walk that ends well waits for one line a step.
    #[test]
    fn it_translates_as_walks_of_radix_tables_do(
        ops in prop::collection::vec((op(), any::<bool>()), 1..300),
        is_nested in any::<bool>(),
        // Of few lines, so that tables are resized.
        lines in prop::sample::select(vec![64, 16384]),
        (pmd_walk_cache, pud_walk_cache) in (1_u32..3, 1_u32..3),
        has_vectors in any::<bool>(),
    ) {
        let config = small_tlbs(machine());
        let cuckoo = CuckooConfig { lines, pmd_walk_cache, pud_walk_cache, walk_cache_cycles: 0 };
        let own = || TestTable::new(Geometry::X86_4, 16, 1);
        let below = || is_nested.then(|| host(&[(0, 512, PageSize::Small), (512, 511, PageSize::Huge), (1 << 18, 2, PageSize::Giant)]));
        let mut plain = Rig::new(&config, NoAccelerator, own(), below());
        let mut with = Rig::new(&config, Cuckoo::new(&cuckoo, BASE..Hpa(1 << 41)), own(), below());
        with.core.set_vectors(has_vectors);
        let mut next = 2048;
        for (op, in_host) in &ops {
            if let Op::Access(page, store) = *op {
                let access = Access::new(Gva(page << 12), store);
                let ends = (plain.run(&[access]), with.run(&[access]));
                // Which of the two kernels has to act first may differ: the guest's nodes are not
                // where its lines are.
                let done = (ends.0 == RunEnd::Done, ends.1 == RunEnd::Done);
                if done.0 {
                    prop_assert!(done.1);
                    // Nor are they marked by the same accesses, where those in the plain VM ended
                    // in such faults.
                    let known = |found: Option<Mapping>| {
                        let found = found.unwrap();
                        (found.frame(), found.size(), found.is_writable(), found.is_dirty() && !is_nested)
                    };
                    let both = (plain.core.tlbs().peek(access.gva()), with.core.tlbs().peek(access.gva()));
                    prop_assert_eq!(known(both.0), known(both.1));
                    prop_assert!(!store || both.1.unwrap().is_dirty());
                } else if !is_nested {
                    prop_assert_eq!(ends.0, ends.1);
                }
                continue;
            }
            let (mut once, mut again) = (next, next);
            for (number, frames) in [(0, &mut once), (1, &mut again)] {
                let (own, host) = if number == 0 {
                    (&mut plain.own, &mut plain.host)
                } else {
                    (&mut with.own, &mut with.host)
                };
                match host {
                    Some(host) if *in_host => change(host, op, BASE_PAGE, frames),
                    _ => change(own, op, 0, frames),
                }
            }
            next = once;
            plain.core.flush_all();
            with.core.flush_all();
        }
        with.core.check_invariants();
        let counters = with.core.counters();
        let steps = if is_nested { 3 } else { 1 };
        let lines_read = counters.walk_events.total_references();
        prop_assert_eq!(lines_read - counters.cuckoo.beside, steps * counters.tlb.walks(), "one line a step has the entry");
        if !is_nested {
            prop_assert_eq!(entries(&plain.own.table), entries(&with.own.table));
            prop_assert_eq!(plain.core.counters().tlb, counters.tlb);
        }
    }
}
