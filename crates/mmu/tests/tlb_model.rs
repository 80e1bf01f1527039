// SPDX-License-Identifier: MIT OR Apache-2.0
//! The TLBs alone against an independent model: lists that are searched and reordered. Hits by
//! level and size, and misses, must be equal to the last one.

mod common;

use common::{Rig, TestTable, WRITABLE, machine};
use nestwalk_mem::{Access, Geometry, Gva, PageSize, PageTable};
use nestwalk_mmu::{MmuConfig, Native, RunEnd, TlbConfig, TlbCounters};
use proptest::prelude::*;

/// One array: sets of (size, page) in order of use, the latest first.
struct ModelArray {
    sizes: Vec<PageSize>,
    ways: usize,
    sets: Vec<Vec<(PageSize, u64)>>,
}

impl ModelArray {
    fn new(config: &TlbConfig) -> Self {
        let sets = vec![Vec::new(); (config.entries / config.ways) as usize];
        Self { sizes: config.sizes.clone(), ways: config.ways as usize, sets }
    }

    fn set(&mut self, size: PageSize, page: u64) -> &mut Vec<(PageSize, u64)> {
        let count = self.sets.len() as u64;
        &mut self.sets[((page / size.pages()) % count) as usize]
    }

    fn find(&mut self, page: u64) -> Option<PageSize> {
        self.sizes.clone().into_iter().find(|&size| {
            let entry = (size, page / size.pages());
            let set = self.set(size, page);
            let there = set.contains(&entry);
            set.retain(|&other| other != entry);
            there.then(|| set.insert(0, entry)).is_some()
        })
    }

    fn insert(&mut self, size: PageSize, page: u64) {
        let ways = self.ways;
        let set = self.set(size, page);
        set.insert(0, (size, page / size.pages()));
        set.truncate(ways);
    }
}

/// Two levels of arrays.
struct Model {
    levels: [Vec<ModelArray>; 2],
    counters: TlbCounters,
}

impl Model {
    fn new(config: &MmuConfig) -> Self {
        let level = |arrays: &[TlbConfig]| arrays.iter().map(ModelArray::new).collect();
        Self { levels: [level(&config.l1_tlb), level(&config.l2_tlb)], counters: TlbCounters::default() }
    }

    fn insert(&mut self, level: usize, size: PageSize, page: u64) {
        let held = |array: &ModelArray| array.sizes.iter().copied().filter(|&held| held <= size).max();
        let best = self.levels[level].iter_mut().max_by_key(|array| held(array));
        if let Some(array) = best
            && let Some(size) = held(array)
        {
            array.insert(size, page);
        }
    }

    fn access(&mut self, table: &PageTable, access: Access) {
        let page = access.gva().page().0;
        self.counters.accesses += 1;
        self.counters.stores += u64::from(access.is_store());
        if let Some(size) = self.levels[0].iter_mut().find_map(|array| array.find(page)) {
            self.counters.l1_hits[size as usize] += 1;
        } else if let Some(size) = self.levels[1].iter_mut().find_map(|array| array.find(page)) {
            self.counters.l2_hits[size as usize] += 1;
            self.insert(0, size, page);
        } else {
            let size = table.leaf(nestwalk_mem::Vpn(page)).unwrap().size();
            self.counters.misses[size as usize] += 1;
            self.insert(0, size, page);
            self.insert(1, size, page);
        }
    }
}

/// 2 GiB: a giant page, 128 huge ones and then small ones.
fn mixed_table() -> PageTable {
    let mut table = TestTable::new(Geometry::X86_4, 1 << 20, 1);
    table.map(0, 0, PageSize::Giant, WRITABLE);
    (0..128).for_each(|huge| table.map((1 << 18) + huge * 512, huge * 512, PageSize::Huge, WRITABLE));
    let first = (1 << 18) + 128 * 512;
    (first..first + (1 << 16)).for_each(|page| table.map(page, page, PageSize::Small, WRITABLE));
    table.table
}

/// Runs `accesses` in stretches that are simulated in full and functionally by turns, and the
/// model.
fn assert_equal(config: &MmuConfig, table: &mut PageTable, accesses: &[Access]) {
    let mut rig = Rig::new(config);
    let mut model = Model::new(config);
    for (number, stretch) in accesses.chunks(777).enumerate() {
        let end = if number % 2 == 0 {
            rig.native(table, stretch)
        } else {
            rig.core.run_functional(&mut Native { table }, stretch)
        };
        assert_eq!(end, RunEnd::Done);
    }
    accesses.iter().for_each(|&access| model.access(table, access));
    let counters = rig.core.counters();
    let sum = |of: fn(&TlbCounters) -> [u64; 3]| -> [u64; 3] {
        std::array::from_fn(|size| of(&counters.tlb)[size] + of(&counters.functional)[size])
    };
    assert_eq!(sum(|counters| counters.l1_hits), model.counters.l1_hits, "first level");
    assert_eq!(sum(|counters| counters.l2_hits), model.counters.l2_hits, "second level");
    assert_eq!(sum(|counters| counters.misses), model.counters.misses, "misses");
    assert_eq!(counters.tlb.accesses + counters.functional.accesses, model.counters.accesses);
    assert_eq!(counters.tlb.stores + counters.functional.stores, model.counters.stores);
    rig.core.check_invariants();
}

/// Unified, first levels of four and eight ways, odd numbers of sets, no second level, a level
/// without giant pages.
fn machines() -> Vec<MmuConfig> {
    let tlb = |sizes: &[PageSize], entries, ways| TlbConfig {
        sizes: sizes.to_vec(),
        entries,
        ways,
        clustered: false,
        contiguous: None,
    };
    let base = machine();
    let unified = vec![tlb(&PageSize::ALL, 64, 8)];
    vec![
        base.clone(),
        MmuConfig { l1_tlb: unified.clone(), l2_tlb: vec![tlb(&PageSize::ALL, 2046, 6)], ..base.clone() },
        MmuConfig { l1_tlb: vec![tlb(&[PageSize::Small], 16, 4), tlb(&[PageSize::Huge], 8, 4)], ..base.clone() },
        MmuConfig { l1_tlb: vec![tlb(&PageSize::ALL, 72, 72)], l2_tlb: vec![], ..base.clone() },
        MmuConfig {
            l1_tlb: vec![tlb(&[PageSize::Small], 12, 4), tlb(&[PageSize::Huge], 3, 1)],
            l2_tlb: vec![tlb(&[PageSize::Small], 24, 3), tlb(&[PageSize::Huge], 10, 5), tlb(&[PageSize::Giant], 2, 2)],
            ..base
        },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn tlb_misses_equal_the_models_on_random_streams(
        config in prop::sample::select(machines()),
        // Where, how far it spreads, for how long it stays on the page.
        jumps in prop::collection::vec((0_u64..1 << 31, 0_u32..31, 1_usize..5, any::<bool>()), 1..3000),
    ) {
        let mut table = mixed_table();
        let end = ((1 << 18) + 128 * 512 + (1 << 16)) << 12;
        let accesses: Vec<Access> = jumps
            .iter()
            .flat_map(|&(at, spread, stay, store)| {
                // Small spreads keep to hot places, each of another page size.
                let place = [0, 1 << 30, end - (1 << 28)][at as usize % 3];
                let gva = (place + (at & ((1 << spread) - 1))) % end;
                std::iter::repeat_n(Access::new(Gva(gva), store), stay)
            })
            .collect();
        assert_equal(&config, &mut table, &accesses);
    }
}

/// The accesses of a real program, taken down as it runs: breadth-first search over a random graph
/// in compressed rows.
fn breadth_first_search() -> Vec<Access> {
    const NODES: u64 = 1 << 14;
    const DEGREE: u64 = 8;
    let (rows, columns, parents, queue) = (1 << 30, 1_130_000_000_u64, 1_250_000_000_u64, 1_300_000_000_u64);
    let mut accesses = Vec::new();
    let mut state = 1_u64;
    let mut parent = vec![None; NODES as usize];
    let mut frontier = std::collections::VecDeque::from([0_u64]);
    let mut queued = 1;
    parent[0] = Some(0);
    while let Some(node) = frontier.pop_front() {
        accesses.push(Access::load(Gva(queue + (queued - frontier.len() as u64 - 1) * 8)));
        accesses.push(Access::load(Gva(rows + node * 8)));
        for edge in 0..DEGREE {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(node + edge);
            let next = (state >> 40) % NODES;
            accesses.push(Access::load(Gva(columns + (node * DEGREE + edge) * 8)));
            accesses.push(Access::load(Gva(parents + next * 64)));
            if parent[next as usize].is_none() {
                parent[next as usize] = Some(node);
                accesses.push(Access::store(Gva(parents + next * 64)));
                accesses.push(Access::store(Gva(queue + queued * 8)));
                queued += 1;
                frontier.push_back(next);
            }
        }
    }
    accesses
}

#[test]
fn tlb_misses_equal_the_models_on_a_graph_search() {
    let accesses = breadth_first_search();
    assert!(accesses.len() > 200_000);
    for config in machines() {
        assert_equal(&config, &mut mixed_table(), &accesses);
    }
}
