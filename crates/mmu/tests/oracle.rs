// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walkers against an oracle that translates with maps and loops, on random tables of mixed leaf
//! sizes; and what must make no difference: fetching ahead, cutting into batches.

mod common;

use common::{Rig, TestTable, WRITABLE, cycles_of_events, machine, machine_with_nested_tlb, machine_without_pwc};
use nestwalk_mem::{Access, Entry, Frame, Geometry, Gpa, Gva, NodeId, PageSize, PageTable, Pfn, Vpn};
use nestwalk_mmu::{
    Counters, Fault, LlcPolicy, MmuConfig, Native, Nested, PwcConfig, RunEnd, Segmented, Segments, Served, Table,
    WaysConfig,
};
use proptest::prelude::*;

/// Pages, each with its size, as a list.
#[derive(Clone, Debug, Default)]
struct Oracle(Vec<(u64, u64, PageSize, bool)>);

impl Oracle {
    /// The frame behind `page`, and whether it may be stored to.
    fn find(&self, page: u64) -> Option<(u64, bool)> {
        let covers = |&&(first, _, size, _): &&(u64, u64, PageSize, bool)| first <= page && page < first + size.pages();
        self.0.iter().find(covers).map(|&(first, frame, _, writable)| (frame + page - first, writable))
    }

    /// Adds a page unless it overlaps one that is there.
    fn add(&mut self, page: u64, frame: u64, size: PageSize, writable: bool) {
        if self.0.iter().all(|&(first, _, other, _)| page + size.pages() <= first || first + other.pages() <= page) {
            self.0.push((page, frame, size, writable));
        }
    }

    fn table(&self, geometry: Geometry, first_node: u64) -> TestTable {
        let mut table = TestTable::new(geometry, first_node, 1);
        for &(page, frame, size, writable) in &self.0 {
            table.map(page, frame, size, if writable { WRITABLE } else { 0 });
        }
        table
    }
}

/// Where nodes of guest tables lie in guest-physical memory: above all pages of `oracle_strategy`.
const GUEST_NODES: u64 = 16 << 18;

fn size_strategy() -> impl Strategy<Value = PageSize> {
    prop_oneof![6 => Just(PageSize::Small), 3 => Just(PageSize::Huge), 1 => Just(PageSize::Giant)]
}

/// Some leaves among the first `gigabytes`, with frames among the first `frames` gigabytes.
fn oracle_strategy(gigabytes: u64, frames: u64) -> impl Strategy<Value = Oracle> {
    let leaf = (size_strategy(), 0..gigabytes << 18, 0..frames << 18, prop::bool::weighted(0.8));
    prop::collection::vec(leaf, 1..60).prop_map(|leaves| {
        let mut oracle = Oracle::default();
        for (size, page, frame, writable) in leaves {
            oracle.add(page >> size.order() << size.order(), frame >> size.order() << size.order(), size, writable);
        }
        oracle
    })
}

/// Accesses that mostly find a leaf of the oracle: leaf, page in it, offset, store.
fn access_strategy() -> impl Strategy<Value = Vec<(prop::sample::Index, u64, u64, bool)>> {
    prop::collection::vec((any::<prop::sample::Index>(), 0_u64..1 << 18, 0_u64..4096, any::<bool>()), 1..400)
}

fn accesses_in(oracle: &Oracle, picks: &[(prop::sample::Index, u64, u64, bool)]) -> Vec<Access> {
    let access = |&(leaf, page, offset, store): &(prop::sample::Index, u64, u64, bool)| {
        let (first, _, size, _) = oracle.0[leaf.index(oracle.0.len())];
        // Now and then a page beyond the leaf, which is mapped or not. Runs of one line come up by
        // themselves.
        let page = first + page % (size.pages() + 1);
        Access::new(Gva(page << 12 | (offset & !63)), store)
    };
    picks.iter().flat_map(|pick| std::iter::repeat_n(access(pick), 1 + (pick.1 % 3) as usize)).collect()
}

fn geometry_strategy() -> impl Strategy<Value = Geometry> {
    prop_oneof![Just(Geometry::X86_4), Just(Geometry::X86_5)]
}

/// Runs `accesses` one at a time, skipping those that fault, and checks each against `expected`.
fn check_each(
    accesses: &[Access],
    mut run: impl FnMut(&[Access]) -> (RunEnd, Option<(u64, bool)>),
    expected: impl Fn(Access) -> Result<u64, Fault>,
) -> Result<(), TestCaseError> {
    for &access in accesses {
        let (end, entry) = run(&[access]);
        match expected(access) {
            Ok(frame) => {
                prop_assert_eq!(end, RunEnd::Done);
                let (there, writable) = entry.expect("the TLB has it now");
                prop_assert_eq!(there, frame);
                prop_assert!(writable || !access.is_store());
            }
            Err(fault) => prop_assert_eq!(end, RunEnd::Fault { index: 0, fault }),
        }
    }
    Ok(())
}

fn frame_in_tlb(rig: &Rig, access: Access) -> Option<(u64, bool)> {
    let mapping = rig.core.tlbs().peek(access.gva())?;
    Some((mapping.frame_of(access.gva().page()).0, mapping.is_writable()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn native_walks_translate_as_the_oracle_does(
        oracle in oracle_strategy(8, 8),
        geometry in geometry_strategy(),
        picks in access_strategy(),
        clustered in any::<bool>(),
        functional in any::<bool>(),
    ) {
        let mut table = oracle.table(geometry, 1 << 22);
        let config = if clustered { machine().with_clustered_tlb().unwrap() } else { machine() };
        let mut rig = Rig::new(&config);
        let accesses = accesses_in(&oracle, &picks);
        let run = |accesses: &[Access]| {
            let end = if functional {
                rig.core.run_functional(&mut Native { table: &mut table.table }, accesses)
            } else {
                rig.native(&mut table.table, accesses)
            };
            (end, frame_in_tlb(&rig, accesses[0]))
        };
        check_each(&accesses, run, |access| match oracle.find(access.gva().page().0) {
            Some((frame, writable)) if writable || !access.is_store() => Ok(frame),
            _ => Err(Fault::Guest { gva: access.gva(), store: access.is_store() }),
        })?;
        rig.core.check_invariants();
    }

    #[test]
    fn nested_walks_translate_as_two_oracles_do(
        guest in oracle_strategy(8, 4),
        mut host in oracle_strategy(4, 8),
        geometries in (geometry_strategy(), geometry_strategy()),
        picks in access_strategy(),
        config in prop::sample::select(vec![
            machine(),
            machine_without_pwc(),
            machine_with_nested_tlb(),
            machine().with_clustered_tlb().unwrap(),
        ]),
        functional in any::<bool>(),
    ) {
        let mut guest_table = guest.table(geometries.0, GUEST_NODES);
        for node in guest_table.nodes() {
            host.add(node, (1 << 24) + node, PageSize::Small, true);
        }
        // Half of the pages that the guest uses and the host does not have yet, the host gets.
        for &(_, frame, _, writable) in guest.0.iter().step_by(2) {
            host.add(frame, (1 << 23) + frame, PageSize::Small, writable);
        }
        let mut host_table = host.table(geometries.1, 1 << 26);
        let mut rig = Rig::new(&config);
        let accesses = accesses_in(&guest, &picks);
        let run = |accesses: &[Access]| {
            let (guest, host) = (&mut guest_table.table, &mut host_table.table);
            let end = if functional {
                rig.core.run_functional(&mut Nested { guest, host, base: Vpn(0) }, accesses)
            } else {
                rig.nested(guest, host, accesses)
            };
            (end, frame_in_tlb(&rig, accesses[0]))
        };
        check_each(&accesses, run, |access| {
            let (gva, store) = (access.gva(), access.is_store());
            let fits = |&(_, writable): &(u64, bool)| writable || !store;
            let (gfn, _) = guest.find(gva.page().0).filter(fits).ok_or(Fault::Guest { gva, store })?;
            let gpa = Gpa(gfn << 12 | gva.page_offset());
            Ok(host.find(gfn).filter(fits).ok_or(Fault::Host { gpa, store })?.0)
        })?;
        rig.core.check_invariants();
        if !functional {
            prop_assert_eq!(rig.core.counters().walk_cycles, cycles_of_events(&config, &rig.core.counters()));
        }
    }

    #[test]
    fn neither_fetching_ahead_nor_batches_change_a_statistic(
        seed in any::<u64>(),
        policy in prop::sample::select(vec![LlcPolicy::NonInclusive, LlcPolicy::Inclusive, LlcPolicy::Exclusive]),
        cut in 1_usize..300,
    ) {
        let mut config = machine();
        config.llc.policy = policy;
        // Small, so that all levels evict; a number of sets that is no power of two.
        (config.l2.bytes, config.llc.bytes, config.llc.ways) = (16 << 10, 36 << 10, 12);
        let (mut guest, mut host) = scattered_vm();
        let accesses = bursts(seed, 3000);
        let mut outcome = |hints: bool, cut: usize| {
            let mut rig = Rig::new(&config);
            rig.core.set_hints(hints);
            for batch in accesses.chunks(cut) {
                assert_eq!(rig.nested(&mut guest, &mut host, batch), RunEnd::Done);
            }
            rig.core.check_invariants();
            rig.core.counters()
        };
        let whole = outcome(true, accesses.len());
        prop_assert!(whole.tlb.walks() > 100 && whole.tlb.l1_hits[0] > 100);
        prop_assert_eq!(&outcome(false, accesses.len()), &whole);
        prop_assert_eq!(&outcome(true, cut), &whole);
        prop_assert_eq!(whole.walk_cycles, cycles_of_events(&config, &whole));
    }

    #[test]
    fn segments_without_vectors_change_no_statistic(seed in any::<u64>(), is_clustered in any::<bool>()) {
        let config = machine();
        let config = if is_clustered { config.with_clustered_tlb().unwrap() } else { config };
        let segments = Segments::new(&[(Pfn(0x9000), 0x800), (Pfn(0x100), 0x2000)], 1).unwrap();
        let accesses = bursts(seed, 1000);
        let outcome = |vectors: bool| {
            let (mut rig, mut guest) = (Rig::new(&config), scattered_vm().0);
            rig.core.set_vectors(vectors);
            let mut walker = Segmented { guest: &mut guest, segments: &segments };
            assert_eq!(rig.core.run(&mut rig.llc, &mut walker, &accesses, None), RunEnd::Done);
            let functional = rig.core.run_functional(&mut walker, &bursts(seed ^ 1 << 40, 1000));
            assert_eq!(functional, RunEnd::Done);
            rig.core.check_invariants();
            rig.core.counters()
        };
        let with = outcome(true);
        prop_assert!(with.tlb.walks() > 100 && with.functional.walks() > 100);
        prop_assert_eq!(&outcome(false), &with);
    }

    /// Kernels change their tables between runs. In a run, nothing that a walk relies on changes.
    #[test]
    fn walks_in_stages_are_walks_one_after_the_other(
        seed in any::<u64>(),
        policy in prop::sample::select(vec![LlcPolicy::NonInclusive, LlcPolicy::Inclusive]),
        (guest_pwc, host_pwc) in (pwc(), pwc()),
        is_clustered in any::<bool>(),
        large in large_blocks(),
        cut in 1_usize..300,
    ) {
        let mut config = MmuConfig { guest_pwc, host_pwc, ..machine() };
        (config.l2.bytes, config.llc.bytes, config.llc.ways, config.llc.policy) = (16 << 10, 36 << 10, 12, policy);
        if is_clustered {
            config = config.with_clustered_tlb().unwrap();
        }
        let tables = scattered_vm_on(large);
        let accesses = bursts(seed, 800);
        let outcome = |stages: bool| {
            let (mut rig, (mut guest, mut host)) = (Rig::new(&config), tables.clone());
            rig.core.set_stages(stages);
            for (number, batch) in (0_u64..).zip(accesses.chunks(cut)) {
                let gfn = Vpn((seed >> 8).wrapping_add(number * 997) % (8192 + 12));
                match number % 5 {
                    0 => drop(host.update(gfn, |entry| entry.without(Entry::ACCESSED | Entry::DIRTY))),
                    1 => {
                        move_page(&mut host, gfn, (1 << 21) + (number << 9));
                        rig.core.flush_nested();
                    }
                    3 => {
                        host.split(gfn, Frame((1 << 23) + number));
                        rig.core.flush_nested();
                    }
                    2 => {
                        let node = NodeId((number % guest.node_count()) as u32);
                        guest.relocate(node, Frame(8192 + 64 + number % 400));
                        rig.core.flush_all();
                    }
                    _ => {}
                }
                let before = (guest.version(), host.version());
                assert_eq!(rig.nested(&mut guest, &mut host, batch), RunEnd::Done);
                assert_eq!((guest.version(), host.version()), before);
            }
            rig.core.check_invariants();
            let entries = |table: &PageTable, pages: u64| -> Vec<_> { (0..pages).map(|page| table.leaf(Vpn(page))).collect() };
            (rig.core.counters(), entries(&guest, 4096), entries(&host, 8192 + 64))
        };
        let (staged, expected) = (outcome(true), outcome(false));
        prop_assert!(staged.0.tlb.walks() > 30);
        prop_assert_eq!(&staged.0, &expected.0);
        prop_assert!(staged.1 == expected.1 && staged.2 == expected.2, "accessed and dirty bits");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Walks of one table, natively and through segment registers, while the kernel changes it.
    #[test]
    fn flat_walks_in_stages_are_walks_one_after_the_other(
        seed in any::<u64>(),
        guest_pwc in pwc(),
        is_segmented in any::<bool>(),
        is_clustered in any::<bool>(),
        // Of the second segment: the guest's nodes are in it, or some of them beyond.
        frames in prop::sample::select(vec![0x2000_u64, 0x1804]),
        changes in prop::collection::vec((0_u64..6, 0_u64..1024, 100_usize..2000), 1..10),
    ) {
        let mut config = MmuConfig { guest_pwc, ..machine() };
        config.l2_tlb[0].entries = 4 * config.l2_tlb[0].ways;
        if is_clustered {
            config = config.with_clustered_tlb().unwrap();
        }
        let segments = [(Pfn(0x9000), 0x800), (Pfn(0x100), frames)];
        let table = scattered_vm().0;
        let outcome = |stages: bool| {
            let (mut rig, mut table) = (Rig::new(&config), table.clone());
            let mut segments = segments.map(|(base, frames)| (base.0, frames));
            rig.core.set_stages(stages);
            let mut faults = Vec::new();
            for (number, &(kind, page, count)) in (0_u64..).zip(&changes) {
                let accesses = pages_at_random(seed.wrapping_add(number), count);
                let mut accesses = &accesses[..];
                let registers = Segments::new(&segments.map(|(base, frames)| (Pfn(base), frames)), 3).unwrap();
                let mut run = |accesses: &[Access]| if is_segmented {
                    let mut walker = Segmented { guest: &mut table, segments: &registers };
                    rig.core.run(&mut rig.llc, &mut walker, accesses, None)
                } else {
                    rig.native(&mut table, accesses)
                };
                while let RunEnd::Fault { index, fault } = run(accesses) {
                    faults.push((index, fault));
                    accesses = &accesses[index + 1..];
                }
                match kind {
                    0 => drop(table.update(Vpn(page), |entry| entry.without(Entry::WRITABLE))),
                    1 => drop(table.update(Vpn(page), |entry| Entry::leaf(Frame(4096 + number), entry.flags()))),
                    2 => drop(table.update(Vpn(page), |entry| entry.without(Entry::ACCESSED | Entry::DIRTY))),
                    3 => drop(table.unmap(Vpn(page))),
                    4 => drop(table.relocate(NodeId((page % table.node_count()) as u32), Frame(8192 + 64 + number))),
                    _ => segments[0].0 += 0x800,
                }
                rig.core.flush_all();
            }
            rig.core.check_invariants();
            let entries: Vec<_> = (0..1024).map(|page| table.leaf(Vpn(page))).collect();
            (rig.core.counters(), faults, entries)
        };
        let (staged, expected) = (outcome(true), outcome(false));
        prop_assert_eq!(&staged.0, &expected.0);
        prop_assert_eq!(staged.1, expected.1);
        prop_assert!(staged.2 == expected.2, "accessed and dirty bits");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// What walks find is kept once they were many, and forgotten when the tables change.
    #[test]
    fn walks_that_find_what_was_kept_are_walks_one_after_the_other(
        seed in any::<u64>(),
        in_order in any::<bool>(),
        // Of 64 pages, so many that were not stored to yet.
        clean in 0_u64..12,
        // Of 64 pages, one that the guest does not allow to store to, and the next, where the host
        // does not.
        locked in prop::sample::select(vec![64_u64, 20, 40]),
        is_clustered in any::<bool>(),
        l1_ways in prop::sample::select(vec![4_u32, 8]),
        large in large_blocks(),
        changes in prop::collection::vec((0_u64..8, 0_u64..1024, 100_usize..5000), 1..10),
    ) {
        let mut config = machine();
        // So that most accesses walk.
        (config.l1_tlb[0].entries, config.l1_tlb[0].ways) = (l1_ways, l1_ways);
        config.l2_tlb[0].entries = 4 * config.l2_tlb[0].ways;
        if is_clustered {
            config = config.with_clustered_tlb().unwrap();
        }
        let used = Entry::WRITABLE | Entry::ACCESSED | Entry::DIRTY;
        let flags = |page: u64, locked: u64| match page % 64 {
            place if place < clean => Entry::WRITABLE,
            place if place == locked => Entry::ACCESSED,
            _ => used,
        };
        let guest_frame = |page: u64| if in_order { page } else { page * 1229 % 4096 };
        let (mut guest, mut host) = (TestTable::new(Geometry::X86_4, 8192, 1), TestTable::new(Geometry::X86_4, 1 << 20, 1));
        (0..1024).for_each(|page| guest.map(page, guest_frame(page), PageSize::Small, flags(page, locked)));
        // Nodes of the guest's table must be writable.
        let host_flags = |gfn: u64| if gfn < 4096 { flags(gfn, locked + 1) } else { flags(gfn / 2, 64) };
        let large_flags = |block: u64| match (block + locked) % 3 {
            0 => Entry::WRITABLE,
            1 if block < BLOCKS - 1 => Entry::ACCESSED,
            _ => used,
        };
        for block in 0..BLOCKS {
            if large >> block & 1 != 0 {
                host.map(block << 9, (block + 1) << 9, PageSize::Huge, large_flags(block));
            } else {
                let pages = block << 9..(block + 1) << 9;
                pages.for_each(|gfn| host.map(gfn, gfn + 8 * 7 + (1 << 15), PageSize::Small, host_flags(gfn)));
            }
        }
        let outcome = |stages: bool| {
            let (mut rig, mut guest, mut host) = (Rig::new(&config), guest.table.clone(), host.table.clone());
            rig.core.set_stages(stages);
            let mut faults = Vec::new();
            for (number, &(kind, page, count)) in (0_u64..).zip(&changes) {
                let mut accesses = &pages_at_random(seed.wrapping_add(number), count)[..];
                while let RunEnd::Fault { index, fault } = rig.nested(&mut guest, &mut host, accesses) {
                    faults.push((index, fault));
                    accesses = &accesses[index + 1..];
                }
                let moved = |entry: Entry| Entry::leaf(Frame(4096 + 8 * number), entry.flags());
                match kind {
                    0 => drop(guest.update(Vpn(page), |entry| entry.without(Entry::WRITABLE))),
                    1 => drop(guest.update(Vpn(page), moved)),
                    2 => drop(guest.update(Vpn(page), |entry| entry.without(Entry::ACCESSED))),
                    3 => move_page(&mut host, Vpn(page), (1 << 21) + (number << 9)),
                    7 => drop(host.split(Vpn(page), Frame((1 << 23) + number))),
                    4 => drop(host.update(Vpn(page), |entry| entry.without(Entry::WRITABLE))),
                    5 => drop(host.update(Vpn(page), |entry| entry.without(Entry::ACCESSED))),
                    _ => drop(guest.unmap(Vpn(page))),
                }
                rig.core.flush_all();
            }
            rig.core.check_invariants();
            let entries = |table: &PageTable, pages: u64| -> Vec<_> { (0..pages).map(|page| table.leaf(Vpn(page))).collect() };
            (rig.core.counters(), faults, entries(&guest, 1024), entries(&host, 8192 + 64))
        };
        let (staged, expected) = (outcome(true), outcome(false));
        prop_assert_eq!(&staged.0, &expected.0);
        prop_assert_eq!(staged.1, expected.1);
        prop_assert!(staged.2 == expected.2 && staged.3 == expected.3, "accessed and dirty bits");
    }
}

/// Pages of the first 1024, one after the other, a quarter of the accesses stores.
fn pages_at_random(seed: u64, count: usize) -> Vec<Access> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Access::new(Gva(((state >> 40) % 1024) << 12 | (state >> 20 & 0xff8)), state >> 33 & 3 == 0)
    };
    (0..count).map(|_| next()).collect()
}

/// Page-walk caches of some shapes, the common one among them.
fn pwc() -> impl Strategy<Value = PwcConfig> {
    let level = |entries, ways| Some(WaysConfig { entries, ways });
    let common =
        PwcConfig { latency_cycles: 2, pl2: level(8, 4), pl3: level(4, 4), pl4: level(2, 2), ..PwcConfig::default() };
    prop::sample::select(vec![
        common,
        common,
        PwcConfig { pl5: level(1, 1), ..common },
        PwcConfig { pl3: None, ..common },
        PwcConfig { pl2: level(9, 3), ..common },
        PwcConfig { pl4: None, ..common },
        PwcConfig::default(),
    ])
}

/// Of 2 MiB, the guest's memory: nodes of its table are in the last one.
const BLOCKS: u64 = 17;

/// A bit for each block that the host has in a large page: none, that of the guest's nodes (as
/// with HugeGPT), all, or every second one.
fn large_blocks() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![0, 1 << (BLOCKS - 1), (1 << BLOCKS) - 1, 0x1_5555])
}

/// Puts the page of `table` that covers `page` into other frames: as many from `frame` on as it
/// has.
fn move_page(table: &mut PageTable, page: Vpn, frame: u64) {
    table.update(page, |entry| Entry::leaf(Frame(frame), entry.flags()));
}

/// A guest of 4096 small pages at 0, scattered, over a host that scatters them again.
fn scattered_vm() -> (PageTable, PageTable) {
    scattered_vm_on(0)
}

/// The same, over a host with [`large_blocks`].
fn scattered_vm_on(large: u64) -> (PageTable, PageTable) {
    let (mut guest, mut host) = (TestTable::new(Geometry::X86_4, 8192, 1), TestTable::new(Geometry::X86_4, 1 << 20, 1));
    (0..4096).for_each(|page| guest.map(page, page * 1229 % 4096, PageSize::Small, WRITABLE));
    for block in 0..BLOCKS {
        if large >> block & 1 != 0 {
            host.map(block << 9, (64 + block * 3) << 9, PageSize::Huge, WRITABLE);
        } else {
            (block << 9..(block + 1) << 9).for_each(|gfn| host.map(gfn, gfn * 3 + 7, PageSize::Small, WRITABLE));
        }
    }
    (guest.table, host.table)
}

/// Random jumps, each followed by a few accesses nearby: repeated lines, repeated pages, TLB hits
/// and walks.
fn bursts(seed: u64, count: u64) -> Vec<Access> {
    let mut state = seed | 1;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut accesses = Vec::new();
    for _ in 0..count {
        let page = if random(3) == 0 { random(4096) } else { random(40) };
        let start = (page << 12) + random(512) * 8;
        for step in 0..random(6) {
            accesses.push(Access::new(Gva((start & !4095) | ((start + step * 8) & 4095)), random(4) == 0));
        }
    }
    accesses
}

#[test]
fn a_nested_walk_pays_for_the_host_at_every_guest_level() {
    let (mut guest, mut host) = scattered_vm();
    let mut rig = Rig::new(&machine());
    assert_eq!(rig.nested(&mut guest, &mut host, &bursts(1, 5000)), RunEnd::Done);
    let counters = rig.core.counters();
    let at = |guest_level: u8| -> u64 {
        (1..=5).flat_map(|host| Served::ALL.map(|served| counters.walk_events.step(guest_level, host, served))).sum()
    };
    // Each guest entry needed its host walk, and each host walk at least the host's leaf entry.
    for level in 1..=4 {
        let entries: u64 = Served::ALL.map(|served| counters.walk_events.step(level, 0, served)).iter().sum();
        assert!(entries > 0 && at(level) >= entries, "level {level}: {} for {entries}", at(level));
    }
    assert!(at(0) >= counters.tlb.walks());
    assert_eq!(counters.walk_cycles, cycles_of_events(&machine(), &counters));
    let host_references: u64 = counters.walk_events.of_table(Table::Host).iter().sum();
    assert_eq!(host_references, (0..=5).map(at).sum::<u64>());
}

#[test]
fn a_co_runner_takes_cache_but_no_tlb_entries() {
    let run = |beside: bool| -> Counters {
        let (mut guest, mut host) = scattered_vm();
        let config: MmuConfig = machine();
        let mut rig = Rig::new(&config);
        let mut walker = Nested { guest: &mut guest, host: &mut host, base: Vpn(0) };
        let accesses = bursts(2, 5000);
        let mut corunner = nestwalk_mmu::CoRunner::new(nestwalk_mem::Hpa(1 << 34), 1 << 30, 3);
        config.validate_memory(corunner.end()).unwrap();
        let end = rig.core.run(&mut rig.llc, &mut walker, &accesses, beside.then_some(&mut corunner));
        assert_eq!(end, RunEnd::Done);
        rig.core.counters()
    };
    let (alone, beside) = (run(false), run(true));
    assert_eq!(alone.tlb, beside.tlb);
    assert_eq!(beside.caches.corunner.iter().sum::<u64>(), beside.tlb.accesses);
    assert_eq!(alone.caches.corunner, [0; 4]);
    assert_eq!(alone.walk_events.total_references(), beside.walk_events.total_references());
    assert!(beside.walk_cycles > alone.walk_cycles && beside.caches.data_cycles > alone.caches.data_cycles);
    assert!(beside.caches.corunner[3] > beside.caches.corunner[0], "a random line of a gigabyte is nowhere near");
}
