// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole core against a simple reference model (lists and maps, one reference after the other),
//! on random machines, random tables and random streams: every counter must be equal, and so must
//! every accessed and dirty bit.
//!
//! Page faults are handled as a kernel does, in the middle of a run. Between runs translations are
//! invalidated, processes switch, and a second core uses the same last-level cache.

mod caches;
mod captured;
#[path = "../common/mod.rs"]
mod common;
mod machine;
mod pom;
mod tables;
mod tlbs;

use common::{TestTable, WRITABLE, machine};
use machine::{Machine, Tables, counted_by};
use nestwalk_mem::{Access, Geometry, Gva, Hpa, PageCount, PageSize, Vpn, VpnRange};
use nestwalk_mmu::{
    Accelerator, AcceleratorCounters, Asid, CacheConfig, CoRunner, Contiguous, Core, Engine, Fault, Llc, LlcConfig,
    LlcPolicy, MmuConfig, Native, Nested, NestedTlbConfig, NoAccelerator, PomTlb, PomTlbConfig, PwcConfig, PwcRules,
    RunEnd, TlbConfig, TlbReplacement, WaysConfig,
};
use pom::Pom;
use proptest::prelude::*;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tables::{Leaf, Table};

/// Cores of the machine. Both run the same two programs.
const CORES: usize = 2;

/// Where guests' tables put their nodes in guest-physical memory, and hosts' tables in physical
/// memory.
const GUEST_NODES: u64 = 1 << 20;
const HOST_NODES: u64 = 1 << 24;

/// Above all frames.
const MEMORY_END: Hpa = Hpa(1 << 38);

/// Where a part-of-memory TLB begins: above the co-runner's memory.
const POM: Hpa = Hpa((1 << 38) + (1 << 30));

fn below(random: &mut Xoshiro256PlusPlus, limit: u64) -> u64 {
    random.next_u64() % limit
}

/// A program in a VM, or a native one: the tables that the machine walks, and what the model knows
/// of them.
struct Program {
    asid: (u16, u16),
    own: TestTable,
    host: Option<TestTable>,
    model: Tables,
    /// First pages of stretches that it uses.
    places: Vec<u64>,
    next_frame: u64,
}

impl Program {
    /// A program whose pages, nodes and frames are chosen by `random`, with some contiguous blocks
    /// if there may be such.
    fn new(
        asid: (u16, u16),
        geometries: (Geometry, Option<Geometry>),
        contiguous: bool,
        random: &mut Xoshiro256PlusPlus,
    ) -> Self {
        let own_nodes = if geometries.1.is_some() { GUEST_NODES } else { HOST_NODES + (u64::from(asid.0) << 20) };
        let mut own = TestTable::new(geometries.0, own_nodes, 1 + below(random, 3));
        let mut places = Vec::new();
        let mut frame = 1 << 10;
        // The highest bit of a page's number.
        let top = 9 * u32::from(geometries.0.levels()) - 1;
        for _ in 0..3 + below(random, 12) {
            // Some share nodes at each level, others do not.
            let place =
                below(random, 2) << top | below(random, 3) << 27 | below(random, 4) << 18 | below(random, 5) << 9;
            let size = match below(random, 12) {
                0 => PageSize::Giant,
                1..4 => PageSize::Huge,
                _ => PageSize::Small,
            };
            let first = (place + below(random, 64) * 8) & !(size.pages() - 1);
            let writable = |random: &mut Xoshiro256PlusPlus| if below(random, 5) > 0 { WRITABLE } else { 0 };
            places.push(first);
            if size > PageSize::Small {
                frame = (frame + size.pages()) & !(size.pages() - 1);
                if clear_of(&own, first, size) {
                    own.map(first, frame, size, writable(random));
                    frame += size.pages();
                }
                continue;
            }
            if contiguous && below(random, 2) == 0 {
                frame = frame.next_multiple_of(16);
                let (first, flags) = (first & !15, writable(random));
                for page in
                    (first..first + 16 * (1 + below(random, 3))).filter(|page| page / 16 % 3 > 0 || page % 5 > 0)
                {
                    if clear_of(&own, page, size) {
                        own.map(page, frame + page - first, size, flags);
                    }
                }
                join_some(&mut own, first..first + 48, random);
                frame += 48;
                continue;
            }
            let (scattered, flags) = (below(random, 2) == 0, writable(random));
            frame = (frame + 7) & !7;
            for page in first..first + below(random, 40) {
                frame += if scattered { 1 + below(random, 9) } else { 1 };
                if below(random, 10) > 0 && clear_of(&own, page, size) {
                    own.map(page, frame, size, if below(random, 8) > 0 { flags } else { 0 });
                }
            }
        }
        let host = geometries.1.map(|geometry| {
            let mut host = TestTable::new(geometry, HOST_NODES + (u64::from(asid.1) << 20), 1 + below(random, 3));
            if below(random, 2) == 0 {
                // The guest's nodes in one huge page, or in small ones as they come.
                host.map(GUEST_NODES, 1 << 18, PageSize::Huge, WRITABLE);
            }
            for huge in 0..frame.min(1 << 14) >> 9 {
                match below(random, 4) {
                    0 => host.map(huge << 9, (1 << 19) + (huge << 9), PageSize::Huge, WRITABLE),
                    1 => (0..512).filter(|small| small % 5 > 0).for_each(|small| {
                        let flags = if small % 11 > 0 { WRITABLE } else { 0 };
                        host.map(huge << 9 | small, (1 << 21) + (huge << 9 | small ^ 3), PageSize::Small, flags);
                    }),
                    2 if contiguous => {
                        let (flags, pages) = (if huge % 5 > 0 { WRITABLE } else { 0 }, huge << 9..(huge + 1) << 9);
                        for page in pages.clone().filter(|page| page % 47 > 0) {
                            host.map(page, (1 << 21) + page, PageSize::Small, flags);
                        }
                        join_some(&mut host, pages, random);
                    }
                    _ => {}
                }
            }
            host
        });
        Self { places, ..Self::over(asid, own, host) }
    }

    /// A program that finds these tables.
    fn over(asid: (u16, u16), own: TestTable, host: Option<TestTable>) -> Self {
        let model = Tables { own: Table::of(&own.table), host: host.as_ref().map(|host| Table::of(&host.table)) };
        Self { asid, own, host, model, places: Vec::new(), next_frame: 1 << 22 }
    }

    /// The kernel in question handles a fault: maps the page, or makes it writable.
    fn handle<P: Accelerator>(&mut self, fault: Fault, core: &mut Core<P>, reference: &mut Machine, number: usize) {
        let next = self.next_frame;
        self.next_frame += 1;
        let (page, table, model, guest) = match fault {
            Fault::Guest { gva, .. } => (gva.page().0, &mut self.own, &mut self.model.own, true),
            Fault::Host { gpa, .. } => {
                (gpa.page().0, self.host.as_mut().unwrap(), self.model.host.as_mut().unwrap(), false)
            }
            Fault::Boundary { .. } => unreachable!("nobody has segments here"),
        };
        let Some((_, leaf)) = model.leaf(page) else {
            // What was not present is in no TLB.
            table.map(page, next, PageSize::Small, WRITABLE);
            model.take_nodes(&table.table);
            model.leaves.insert(page, Leaf::new(next, PageSize::Small, true));
            return;
        };
        assert!(!leaf.writable);
        model.make_writable(page);
        table.table.update(Vpn(page), |entry| entry.with(WRITABLE)).unwrap();
        if guest {
            core.invalidate(VpnRange::new(Vpn(page), PageCount(1)));
            reference.invalidate(number, page..page + 1);
        } else {
            core.flush_nested();
            reference.flush_all(number);
        }
    }

    /// Runs `accesses` on a core and on the model's.
    fn run<P: Engine>(
        &mut self,
        rig: &mut Rig<P>,
        number: usize,
        accesses: &[Access],
        detail: bool,
        mut corunner: Option<&mut CoRunner>,
    ) {
        let mut rest = accesses;
        let mut beside = corunner.as_deref().cloned();
        rig.cores[number].switch_to(Asid(self.asid.0), Asid(self.asid.1));
        rig.reference.switch_to(number, self.asid.0, self.asid.1);
        loop {
            let core = &mut rig.cores[number];
            let end = match &mut self.host {
                None => {
                    let mut walker = Native { table: &mut self.own.table };
                    if detail {
                        core.run(&mut rig.llc, &mut walker, rest, corunner.as_deref_mut())
                    } else {
                        core.run_functional(&mut walker, rest)
                    }
                }
                Some(host) => {
                    let mut walker = Nested { guest: &mut self.own.table, host: &mut host.table, base: Vpn(0) };
                    if detail {
                        core.run(&mut rig.llc, &mut walker, rest, corunner.as_deref_mut())
                    } else {
                        core.run_functional(&mut walker, rest)
                    }
                }
            };
            let expected = rest.iter().enumerate().find_map(|(index, &access)| {
                let fault = rig.reference.access(number, &mut self.model, access, detail, beside.as_mut()).err()?;
                Some(RunEnd::Fault { index, fault })
            });
            assert_eq!(end, expected.unwrap_or(RunEnd::Done));
            let RunEnd::Fault { index, fault } = end else { break };
            rest = &rest[index..];
            self.handle(fault, &mut rig.cores[number], &mut rig.reference, number);
        }
    }

    /// Accessed and dirty bits are what the model's tables have.
    fn assert_same_bits(&self) {
        assert_eq!(tables::leaves(&self.own.table), self.model.own.leaves);
        if let (Some(host), Some(model)) = (&self.host, &self.model.host) {
            assert_eq!(tables::leaves(&host.table), model.leaves);
        }
    }
}

/// Makes blocks of some of the `pages` that may be ones.
fn join_some(table: &mut TestTable, pages: std::ops::Range<u64>, random: &mut Xoshiro256PlusPlus) {
    for page in pages.step_by(16) {
        if below(random, 4) > 0 {
            table.table.join(Vpn(page));
        }
    }
}

/// Whether no leaf of `table` overlaps the page of `size` at `first`.
fn clear_of(table: &TestTable, first: u64, size: PageSize) -> bool {
    let mut clear = true;
    table.table.for_each_leaf(VpnRange::new(Vpn(first), PageCount(size.pages())), |_| clear = false);
    clear
}

/// The machine and its model.
struct Rig<P = NoAccelerator> {
    cores: Vec<Core<P>>,
    llc: Llc,
    reference: Machine,
}

impl Rig {
    fn new(config: &MmuConfig) -> Self {
        Self {
            cores: (0..CORES).map(|_| Core::new(config).unwrap()).collect(),
            llc: Llc::new(config).unwrap(),
            reference: Machine::new(config, CORES, None),
        }
    }
}

impl<P: Engine> Rig<P> {
    /// On a processor with vectors or without.
    fn with_vectors(mut self, has: bool) -> Self {
        self.cores.iter_mut().for_each(|core| core.set_vectors(has));
        self
    }
}

impl Rig<PomTlb> {
    /// With a part-of-memory TLB of so many bytes above all else.
    fn with_pom(config: &MmuConfig, size: u64) -> Self {
        let pom = PomTlb::new(&PomTlbConfig { size }, POM);
        Self {
            cores: (0..CORES).map(|_| Core::with_accelerator(config, pom.clone()).unwrap()).collect(),
            llc: Llc::new(config).unwrap(),
            reference: Machine::new(config, CORES, Some(Pom::new(size, POM.0))),
        }
    }
}

/// What happens between two checks.
#[derive(Clone, Debug)]
enum Op {
    /// A program runs on a core for so many bursts.
    Run {
        core: usize,
        program: usize,
        bursts: u64,
        detail: bool,
        seed: u64,
    },
    /// A program's kernel invalidates pages around one of its places.
    Invalidate {
        core: usize,
        place: prop::sample::Index,
        pages: u64,
    },
    FlushGuest {
        core: usize,
    },
    FlushNested {
        core: usize,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let core = 0..CORES;
    let run = (core.clone(), 0_usize..2, 1_u64..100, prop::bool::weighted(0.8), any::<u64>())
        .prop_map(|(core, program, bursts, detail, seed)| Op::Run { core, program, bursts, detail, seed });
    let pages = prop_oneof![Just(1), Just(7), Just(8), Just(9), Just(600)];
    let invalidate = (core.clone(), any::<prop::sample::Index>(), pages)
        .prop_map(|(core, place, pages)| Op::Invalidate { core, place, pages });
    prop::collection::vec(
        prop_oneof![
            8 => run,
            2 => invalidate,
            1 => core.clone().prop_map(|core| Op::FlushGuest { core }),
            1 => core.prop_map(|core| Op::FlushNested { core }),
        ],
        1..12,
    )
}

/// Jumps among `places`, each followed by a few accesses nearby: repeated lines, pages and groups,
/// TLB hits and walks.
fn bursts(places: &[u64], count: u64, seed: u64) -> Vec<Access> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut accesses = Vec::new();
    for _ in 0..count {
        let place = places[below(&mut random, places.len() as u64) as usize];
        let page = place + if below(&mut random, 4) == 0 { below(&mut random, 512) } else { below(&mut random, 24) };
        let start = (page << 12) + below(&mut random, 512) * 8;
        for step in 0..1 + below(&mut random, 5) {
            let gva = if below(&mut random, 6) == 0 {
                start + (step << 12)
            } else {
                start & !4095 | (start + step * 8) & 4095
            };
            accesses.push(Access::new(Gva(gva), below(&mut random, 4) == 0));
        }
    }
    accesses
}

fn ways(sets: &'static [u32], ways: &'static [u32]) -> impl Strategy<Value = WaysConfig> {
    (prop::sample::select(sets), prop::sample::select(ways))
        .prop_map(|(sets, ways)| WaysConfig { entries: sets * ways, ways })
}

fn cache(sets: &'static [u32], of_ways: &'static [u32], latency_cycles: u32) -> impl Strategy<Value = CacheConfig> {
    ways(sets, of_ways).prop_map(move |WaysConfig { entries, ways }| CacheConfig {
        bytes: u64::from(entries) * 64,
        ways,
        latency_cycles,
    })
}

fn walk_caches() -> impl Strategy<Value = PwcConfig> {
    let level = || prop::option::of(ways(&[1, 2, 3, 8], &[1, 2, 4, 5, 9]));
    let any = (level(), level(), level(), level(), 1_u32..4, prop_oneof![Just(PwcRules::default()), rules()]).prop_map(
        |(pl2, pl3, pl4, pl5, latency_cycles, rules)| PwcConfig { latency_cycles, pl2, pl3, pl4, pl5, rules },
    );
    let ruled = rules().prop_map(|rules| PwcConfig { rules, ..machine().guest_pwc });
    prop_oneof![3 => Just(machine().guest_pwc), 3 => any, 1 => ruled, 1 => Just(PwcConfig::default())]
}

fn rules() -> impl Strategy<Value = PwcRules> {
    (prop::sample::select(vec![None, Some(2), Some(8)]), any::<bool>(), any::<bool>())
        .prop_map(|(entries_per_tag, all_levels, repeats_miss)| PwcRules { entries_per_tag, all_levels, repeats_miss })
}

fn tlb(sizes: &[PageSize], entries: u32, ways: u32) -> TlbConfig {
    TlbConfig { sizes: sizes.to_vec(), entries, ways, clustered: false, contiguous: None }
}

/// First and second levels: the test machine's, unified ones, small ones, odd numbers of sets,
/// none, clustered ones, ones of contiguous blocks.
fn tlb_levels() -> impl Strategy<Value = (Vec<TlbConfig>, Vec<TlbConfig>)> {
    use PageSize::{Giant, Huge, Small};
    let small_and_huge = || vec![tlb(&[Small], 8, 4), tlb(&[Huge], 2, 2)];
    let clusters = |entries, ways| TlbConfig { clustered: true, ..tlb(&[Small], entries, ways) };
    let blocks = |sizes: &[PageSize], entries, ways| TlbConfig {
        contiguous: Some(Contiguous::K64),
        ..tlb(sizes, entries, ways)
    };
    let base = machine();
    prop::sample::select(vec![
        (base.l1_tlb.clone(), base.l2_tlb.clone()),
        (base.l1_tlb.clone(), base.clone().with_clustered_tlb().unwrap().l2_tlb),
        (base.clone().with_contiguous_tlb().l1_tlb, base.with_contiguous_tlb().l2_tlb),
        (small_and_huge(), vec![blocks(&[Small, Huge], 24, 3)]),
        (vec![blocks(&PageSize::ALL, 6, 6)], vec![]),
        (vec![tlb(&[Small, Huge], 8, 4), blocks(&[], 3, 3)], vec![tlb(&[Small], 12, 4), blocks(&[Giant], 10, 5)]),
        (vec![tlb(&PageSize::ALL, 16, 16)], vec![tlb(&PageSize::ALL, 66, 6)]),
        (small_and_huge(), vec![]),
        (small_and_huge(), vec![tlb(&[Small], 24, 3), tlb(&[Huge], 10, 5), tlb(&[Giant], 2, 2)]),
        (small_and_huge(), vec![clusters(16, 4)]),
        (small_and_huge(), vec![tlb(&[Small, Huge], 12, 4), clusters(12, 4)]),
        (
            vec![tlb(&[Small], 4, 1), tlb(&[Giant], 1, 1)],
            vec![TlbConfig { sizes: vec![Small, Huge], ..clusters(10, 10) }],
        ),
    ])
}

/// Levels, and what leaves their sets: clusters and blocks have LRU only.
fn tlbs() -> impl Strategy<Value = ((Vec<TlbConfig>, Vec<TlbConfig>), TlbReplacement)> {
    (tlb_levels(), prop::bool::weighted(0.3)).prop_map(|(levels, by_use)| {
        let grouped = |array: &TlbConfig| array.clustered || array.contiguous.is_some();
        let by_use = by_use && !levels.0.iter().chain(&levels.1).any(grouped);
        (levels, if by_use { TlbReplacement::Lfu } else { TlbReplacement::Lru })
    })
}

/// Machines of all kinds, with caches that are small enough to evict.
fn machines() -> impl Strategy<Value = MmuConfig> {
    let policy = prop::sample::select(vec![LlcPolicy::NonInclusive, LlcPolicy::Inclusive, LlcPolicy::Exclusive]);
    let nested_tlb = prop::option::of(ways(&[1, 3, 4], &[2, 4, 5]));
    (
        (
            cache(&[2, 8, 64], &[2, 8, 12], 4),
            cache(&[4, 32, 33], &[4, 8, 16, 20], 12),
            cache(&[16, 37, 128], &[4, 11, 16, 20, 30], 40),
        ),
        policy,
        (walk_caches(), walk_caches()),
        nested_tlb,
        tlbs(),
        prop::bool::weighted(0.2),
    )
        .prop_map(|((l1d, l2, llc), policy, (guest_pwc, host_pwc), nested_tlb, tlbs, skips)| {
            let ((l1_tlb, l2_tlb), tlb_replacement) = tlbs;
            MmuConfig {
                l1d,
                l2,
                llc: LlcConfig { bytes: llc.bytes, ways: llc.ways, latency_cycles: llc.latency_cycles, policy },
                guest_pwc,
                host_pwc,
                host_pwc_skips_data: skips,
                nested_tlb: nested_tlb.map(|WaysConfig { entries, ways }| NestedTlbConfig {
                    entries,
                    ways,
                    latency_cycles: 1,
                }),
                l1_tlb,
                l2_tlb,
                tlb_replacement,
                ..machine()
            }
        })
}

fn geometry() -> impl Strategy<Value = Geometry> {
    prop_oneof![2 => Just(Geometry::X86_4), 1 => Just(Geometry::X86_5)]
}

/// Both cores learn what the last-level cache has evicted, here and in the reference model.
fn hear_of_evictions<P: Engine>(rig: &mut Rig<P>) {
    let mut nothing = TestTable::new(Geometry::X86_4, HOST_NODES, 1).table;
    for core in &mut rig.cores {
        assert_eq!(core.run(&mut rig.llc, &mut Native { table: &mut nothing }, &[], None), RunEnd::Done);
    }
    rig.reference.hear_of_evictions();
}

/// Does all of `ops` on both, and checks that both have counted the same.
fn check<P: Engine<Counters: AcceleratorCounters>>(
    rig: &mut Rig<P>,
    programs: &mut [Program],
    ops: &[Op],
    corunner: Option<CoRunner>,
) {
    let mut corunner = corunner;
    for op in ops {
        match *op {
            Op::Run { core, program, bursts: count, detail, seed } => {
                hear_of_evictions(rig);
                let program = &mut programs[program];
                let accesses = bursts(&program.places, count, seed);
                program.run(rig, core, &accesses, detail, corunner.as_mut());
            }
            Op::Invalidate { core, ref place, pages } => {
                let places = &programs[0].places;
                let first = places[place.index(places.len())];
                rig.cores[core].invalidate(VpnRange::new(Vpn(first), PageCount(pages)));
                rig.reference.invalidate(core, first..first + pages);
            }
            Op::FlushGuest { core } => {
                rig.cores[core].flush_guest();
                rig.reference.flush_guest(core);
            }
            Op::FlushNested { core } => {
                rig.cores[core].flush_nested();
                rig.reference.flush_all(core);
            }
        }
    }
    for (number, core) in rig.cores.iter().enumerate() {
        core.check_invariants();
        assert_same(&counted_by(&core.counters()), &rig.reference.counted(number), number);
    }
    programs.iter().for_each(Program::assert_same_bits);
}

/// Fails with the counters that differ, the machine's first.
fn assert_same(found: &machine::Counted, expected: &machine::Counted, core: usize) {
    let names: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let differ: Vec<_> = names
        .into_iter()
        .filter(|name| found.get(*name) != expected.get(*name))
        .map(|name| format!("{name}: {:?}, expected {:?}", found.get(name), expected.get(name)))
        .collect();
    assert!(differ.is_empty(), "core {core}:\n{}", differ.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_counter_is_that_of_the_machine_said_plainly(
        config in machines(),
        geometries in (geometry(), prop::option::weighted(0.8, geometry())),
        tables in any::<u64>(),
        ops in ops(),
        beside in prop::option::weighted(0.3, any::<u64>()),
        // Of few lines, so that entries push each other out; of an odd number of them; of many.
        pom in prop::option::weighted(0.4, prop::sample::select(vec![128_u64, 64 * 2 * 3, 64 * 2 * 37, 1 << 16])),
        has_vectors in prop::bool::weighted(0.7),
    ) {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(tables);
        let programs = [(1, 1), (2, 1)];
        let contiguous = config.holds_contiguous();
        let mut programs = programs.map(|asid| Program::new(asid, geometries, contiguous, &mut random));
        // Programs of one VM share their host's table; here each VM has one program.
        programs[1].asid.1 = 2;
        let corunner = beside.map(|seed| CoRunner::new(MEMORY_END, 1 << 16, seed));
        match pom {
            Some(size) => {
                let mut rig = Rig::with_pom(&config, size).with_vectors(has_vectors);
                check(&mut rig, &mut programs, &ops, corunner);
            }
            None => check(&mut Rig::new(&config).with_vectors(has_vectors), &mut programs, &ops, corunner),
        }
    }
}

/// The same with a part-of-memory TLB that all entries fit into, or hardly any.
#[test]
fn a_long_run_with_a_part_of_memory_tlb_is_equal_too() {
    use PageSize::{Giant, Huge, Small};
    let (l1_tlb, l2_tlb) = (vec![tlb(&[Small], 8, 4), tlb(&[Huge, Giant], 2, 2)], vec![tlb(&[Small, Huge], 24, 4)]);
    let config = MmuConfig { l1_tlb, l2_tlb, ..machine() };
    for (size, hits) in [(1 << 20, 10_000), (1 << 12, 100)] {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(5);
        let geometries = (Geometry::X86_4, Some(Geometry::X86_4));
        let mut programs = [(1, 1), (2, 2)].map(|asid| Program::new(asid, geometries, false, &mut random));
        let run = |program, seed| Op::Run { core: 0, program, bursts: 10_000, detail: true, seed };
        let mut rig = Rig::with_pom(&config, size);
        check(&mut rig, &mut programs, &[run(0, 1), run(1, 2), run(0, 3)], None);
        let counted = rig.reference.counted(0);
        let of = |name: &str| counted.get(name).copied().unwrap_or_default();
        assert!(of("POM hit 0") > hits && of("POM miss") > 10_000, "{counted:?}");
        assert!(size < 1 << 20 || of("POM hit 1") > 10 && of("POM other size") > 10, "{counted:?}");
    }
}

/// The same of contiguous blocks, in a VM of which guest and host have some and natively.
#[test]
fn a_long_run_with_contiguous_blocks_is_equal_too() {
    for (host, fills) in [(None, 1000), (Some(Geometry::X86_4), 100)] {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(6);
        let programs = [(1, 1), (2, 2)];
        let mut programs = programs.map(|asid| Program::new(asid, (Geometry::X86_4, host), true, &mut random));
        let run = |program, seed| Op::Run { core: 0, program, bursts: 10_000, detail: true, seed };
        use PageSize::{Huge, Small};
        // So small that blocks go and come again.
        let (l1_tlb, l2_tlb) = (vec![tlb(&[Small, Huge], 4, 4)], vec![tlb(&[Small, Huge], 8, 4)]);
        let mut rig = Rig::new(&MmuConfig { l1_tlb, l2_tlb, ..machine() }.with_contiguous_tlb());
        check(&mut rig, &mut programs, &[run(0, 1), run(1, 2), run(0, 3)], None);
        let counted = rig.reference.counted(0);
        assert!(counted.get("blocks").is_some_and(|&blocks| blocks > fills), "{host:?}: {counted:?}");
    }
}

/// A long run on the machine that is used most, so that all structures are full.
#[test]
fn every_counter_of_a_long_nested_run_on_the_usual_machine_is_equal() {
    let config = MmuConfig {
        llc: LlcConfig { bytes: 20 * 64 * 64, policy: LlcPolicy::Inclusive, ..machine().llc },
        ..machine()
    };
    let mut random = Xoshiro256PlusPlus::seed_from_u64(5);
    let geometries = (Geometry::X86_4, Some(Geometry::X86_4));
    let mut programs = [(1, 1), (2, 2)].map(|asid| Program::new(asid, geometries, false, &mut random));
    let run = |program, seed| Op::Run { core: 0, program, bursts: 20_000, detail: true, seed };
    let mut rig = Rig::new(&config);
    check(&mut rig, &mut programs, &[run(0, 1), run(1, 2), run(0, 3)], None);
    let counted = rig.reference.counted(0);
    for name in ["aborted walks", "full l2 Small", "full miss Huge", "pwc Guest 0", "pwc Host 2", "step 0.1 Memory"] {
        assert!(counted.get(name).is_some_and(|&count| count > 10), "the run has too little of {name}");
    }
}
