// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::BTreeSet;

use super::bins::part;
use super::run::{Phase, Place};
use super::*;

fn partitions(algorithm: Algorithm, threads: u16) -> Partitions {
    let config = PartitionsConfig { footprint: PageCount(6_000), algorithm, threads, ..PartitionsConfig::default() };
    Partitions::new(&config).unwrap()
}

const ALL: [Algorithm; 4] = [Algorithm::PageRank, Algorithm::Components, Algorithm::BreadthFirst, Algorithm::Nibble];

/// Accesses of thread 0 until it is back where it began, with the phase of each operation.
fn round(program: &mut Partitions) -> Vec<(Phase, usize, Access)> {
    program.threads[0].place = program.beginning(0);
    let mut threads = std::mem::take(&mut program.threads);
    program.enter(&mut threads[0]);
    program.threads = threads;
    let mut seen = Vec::new();
    let mut accesses = Vec::new();
    loop {
        let (phase, step) = (program.threads[0].place.phase, program.threads[0].place.step);
        accesses.clear();
        program.operate(0, &mut accesses);
        assert!(!accesses.is_empty() && accesses.len() < 8192);
        seen.extend(accesses.iter().map(|&access| (phase, step, access)));
        let thread = &program.threads[0];
        let begins = thread.place.step == 0 && thread.place.partition == 0 && thread.at == 0 && thread.bin == 0;
        if begins && matches!(thread.place.phase, Phase::Inner | Phase::Scatter) && phase != thread.place.phase {
            return seen;
        }
    }
}

fn of(region: Region, access: &Access) -> bool {
    region.pages.contains(Vpn(access.gva().page().0))
}

#[test]
fn pagerank_sends_and_receives_over_every_edge_once() {
    let mut program = partitions(Algorithm::PageRank, 1);
    let seen = round(&mut program);
    let program = &program;
    let pairs = || (0..program.bins.count).flat_map(|row| (0..program.bins.count).map(move |bin| (row, bin)));
    let edges: u64 = pairs().map(|(row, bin)| program.bins.edges(row, bin)).sum();
    assert!(edges <= program.adjacency.edges() && edges * 100 > program.adjacency.edges() * 99);
    let count = |phase, region, store| {
        let hits =
            seen.iter().filter(|(at, _, access)| *at == phase && of(region, access) && access.is_store() == store);
        hits.count() as u64
    };
    let updates: u64 = pairs().map(|(row, bin)| program.bins.updates(program.bins.edges(row, bin))).sum();
    assert_eq!(count(Phase::Scatter, program.senders, false), updates);
    assert_eq!(count(Phase::Scatter, program.bin_memory, true), updates);
    // Of each edge a target and an update, and the value twice.
    assert_eq!(count(Phase::Gather, program.bin_memory, false), 2 * edges);
    assert_eq!(count(Phase::Gather, program.values, false), edges);
    assert_eq!(count(Phase::Gather, program.values, true), edges);
    assert_eq!(count(Phase::Filter, program.values, true), program.adjacency.vertices());
}

#[test]
fn a_sparse_scatter_has_nineteen_accesses_an_edge() {
    let program = partitions(Algorithm::Nibble, 1);
    let mut thread = Thread::new(Dice::of_threads(1, 1).remove(0), 0, program.beginning(0));
    thread.place.step = 4;
    let mut seen = Vec::new();
    while thread.place.phase == Phase::Scatter {
        program.advance(&mut thread, &mut seen);
    }
    let count = |region| seen.iter().filter(|access| of(region, access)).count() as u64;
    let (edges, vertices) = (count(program.edges), count(program.frontier));
    // As many vertices and edges as the step has of all.
    let step = &Algorithm::Nibble.steps()[4];
    let (first, members) = program.members(0);
    let of_all = program.adjacency.edges_of(first + members - 1).1 - program.adjacency.edges_of(first).0;
    for (found, all, share) in [(vertices, members, step.vertices), (edges, of_all, step.edges)] {
        let off = found as f64 / part(all, share) as f64 - 1.0;
        assert!(off.abs() < 0.1, "{found} of {all}, off by {off}");
    }
    assert_eq!(count(program.table_memory), 15 * edges);
    // Where a list ends is looked up for each edge, and where it begins for each vertex, too.
    assert_eq!(count(program.offsets), edges + 2 * vertices);
    // To bins so small that none of their edges is active nothing is sent.
    let stores = count(program.bin_memory);
    assert!(stores <= 2 * edges && stores * 100 > 2 * edges * 99, "{stores} stores of {edges} edges");
}

#[test]
fn a_gather_stays_within_its_partition() {
    for algorithm in ALL {
        let mut program = partitions(algorithm, 2);
        for _ in 0..20_000 {
            let thread = &program.threads[1];
            let (phase, (first, members)) = (thread.place.phase, program.members(thread.place.partition));
            let mut accesses = Vec::new();
            let mut threads = std::mem::take(&mut program.threads);
            program.advance(&mut threads[1], &mut accesses);
            program.threads = threads;
            if phase == Phase::Gather {
                for access in accesses.iter().filter(|access| of(program.values, access)) {
                    let vertex = (access.gva().0 - program.values.at(0).0) / WORD;
                    assert!((first..first + members).contains(&vertex), "{algorithm:?}: {vertex}");
                }
            }
        }
    }
}

#[test]
fn threads_begin_all_over_the_run() {
    for algorithm in ALL {
        let program = partitions(algorithm, 8);
        let places: Vec<Place> = program.threads.iter().map(|thread| thread.place).collect();
        // Where hardly anything is sent, no thread need be sending.
        let phases: BTreeSet<u8> = places.iter().map(|place| place.phase as u8).collect();
        let gathers = places.iter().filter(|place| matches!(place.phase, Phase::Gather | Phase::Early)).count();
        // A sparse scatter has 19 accesses an edge, a gather five.
        let least = if algorithm == Algorithm::Nibble { 1 } else { 3 };
        assert!(phases.len() >= 2 && gathers >= least, "{algorithm:?}: {places:?}");
        for (index, place) in places.iter().enumerate() {
            assert_eq!(place.partition % 8, index as u64);
        }
    }
}

#[test]
fn impossible_graphs_are_refused() {
    let refused = |config: PartitionsConfig| Partitions::new(&config).err().expect("refused").to_string();
    let base = || PartitionsConfig { footprint: PageCount(40_000), ..PartitionsConfig::default() };
    assert!(refused(PartitionsConfig { degree: 0, ..base() }).contains("degree = 0: from 1 to 4096"));
    assert!(refused(PartitionsConfig { locality: 901, ..base() }).contains("locality = 901: from 0 to 900"));
    let error = refused(PartitionsConfig { threads: 100, ..base() });
    assert!(error.contains("partitions for 100 threads"), "{error}");
    let error = refused(PartitionsConfig { footprint: PageCount(1 << 33), ..base() });
    assert!(error.contains("numbers of 32 bits"), "{error}");
}

#[test]
fn every_step_does_as_much_as_was_counted() {
    // Of 73,178,813 edges, GPOP's search gathered these in its last four steps that count, its
    // components in the first two.
    let edges = 73_178_813.0;
    for (algorithm, gathered) in [
        (Algorithm::Components, vec![73_178_813.0, 52_007_358.0]),
        (Algorithm::BreadthFirst, vec![579_464.0, 24_380_190.0, 73_178_813.0, 7_428_591.0]),
        (
            Algorithm::Nibble,
            vec![377_805.0, 1_634_788.0, 3_419_370.0, 5_353_833.0, 7_304_890.0, 9_137_826.0, 10_760_165.0],
        ),
    ] {
        assert_eq!(gathered.len(), algorithm.steps().len());
        for (step, gathered) in algorithm.steps().iter().zip(gathered) {
            let dense = f64::from(step.dense) / 1e6;
            let share = dense + (1.0 - dense) * f64::from(step.edges) / 1e6;
            let counted = gathered / edges;
            assert!((share / counted - 1.0).abs() < 0.05, "{algorithm:?}: {share} for {counted}");
        }
    }
}

#[test]
fn all_phases_come_and_first_touches_cover_what_is_used() {
    for algorithm in ALL {
        for threads in [1, 3] {
            let mut program = partitions(algorithm, threads);
            let mut touched = BTreeSet::new();
            for thread in 0..threads {
                loop {
                    let mut touches = Vec::new();
                    program.touch(thread, &mut touches, 1000);
                    if touches.is_empty() {
                        break;
                    }
                    touched.extend(touches.into_iter().map(|(page, _)| page));
                }
            }
            let mut phases = Vec::new();
            let (mut all, mut fresh) = (0, 0);
            for (phase, _, access) in round(&mut program) {
                if !phases.contains(&phase) {
                    phases.push(phase);
                }
                all += 1;
                fresh += u64::from(!touched.contains(&Vpn(access.gva().page().0)));
            }
            let expected: &[Phase] = match algorithm {
                Algorithm::PageRank => &[Phase::Scatter, Phase::Settle, Phase::Gather, Phase::Filter],
                Algorithm::Components => &[
                    Phase::Inner,
                    Phase::Scatter,
                    Phase::Settle,
                    Phase::Early,
                    Phase::Gather,
                    Phase::Filter,
                    Phase::Reset,
                ],
                _ => &[Phase::Scatter, Phase::Settle, Phase::Gather, Phase::Filter, Phase::Reset],
            };
            phases.sort_by_key(|phase| expected.iter().position(|at| at == phase));
            assert_eq!(phases, expected, "{algorithm:?}, {threads} threads");
            assert!(fresh * 1000 <= all, "{algorithm:?}, {threads} threads: {fresh} of {all} never touched");
        }
    }
}
