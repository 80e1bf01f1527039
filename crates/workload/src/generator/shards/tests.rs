// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::BTreeSet;

use nestwalk_mem::addr::PAGE_BYTES;

use super::graph::{PART_EDGES, SOURCES};
use super::plan::{EDGE, HEADER};
use super::*;

fn config(more: &str) -> ShardsConfig {
    let common = "footprint = '24 MiB'\nwarm_accesses = 40_000\nmeasured_accesses = 200_000";
    let mut table: toml::Table = toml::from_str(common).unwrap();
    table.extend(toml::from_str::<toml::Table>(more).unwrap());
    table.try_into().unwrap()
}

/// All that a run does, page by page.
#[derive(Default)]
struct Played {
    mapped: BTreeSet<Vpn>,
    /// Pages that a shard's mappings have in use, at the most of all moments.
    used: BTreeSet<Vpn>,
    used_max: usize,
    /// Accesses to pages that were not touched before.
    early: u64,
    measured: u64,
    warmed: u64,
    windows: u64,
    instructions: u64,
    read: Vec<u64>,
    accesses: u64,
}

fn play(config: &ShardsConfig) -> Played {
    let mut program = Shards::new(config).unwrap();
    let (mut played, mut batch) = (Played::default(), Batch::default());
    let mut phase = Phase::Populate;
    loop {
        let step = program.next(&mut batch).unwrap();
        played.instructions += batch.instructions;
        match step {
            Step::Phase(next) => {
                phase = next;
                played.windows += u64::from(phase == Phase::Measure);
            }
            Step::Event(MemoryEvent::Mmap { range, writable: true, anonymous: true }) => {
                for page in (range.start.0..range.end.0).map(Vpn) {
                    assert!(played.mapped.insert(page), "{page:?} is mapped twice");
                }
            }
            Step::Event(MemoryEvent::Munmap { range }) => {
                for page in (range.start.0..range.end.0).map(Vpn) {
                    assert!(played.mapped.remove(&page), "{page:?} is not mapped");
                    played.used.remove(&page);
                }
            }
            Step::Event(MemoryEvent::ReadFile { file, .. }) => played.read.push(file),
            Step::Event(event) => panic!("{event:?}"),
            Step::Touches => {
                assert!(!batch.touches.is_empty());
                for &(page, store) in &batch.touches {
                    assert!(store && played.mapped.contains(&page), "{page:?} is not mapped");
                    played.used.insert(page);
                }
            }
            Step::Accesses => {
                for access in &batch.accesses {
                    let page = Vpn(access.gva().page().0);
                    assert!(played.mapped.contains(&page), "{access:?} is not mapped");
                    played.early += u64::from(played.used.insert(page));
                }
                let count = batch.accesses.len() as u64;
                if phase == Phase::Measure { played.measured += count } else { played.warmed += count }
            }
            Step::End => {
                played.accesses = program.program_accesses().unwrap();
                return played;
            }
        }
        played.used_max = played.used_max.max(played.used.len());
    }
}

#[test]
fn memory_is_given_back_shard_by_shard_and_the_footprint_is_the_largest_ones() {
    for more in ["shards = 3\nloads = 5", "shards = 2\nloads = 2\nthreads = 4\ngraph = 'kronecker'"] {
        let config = config(more);
        let facts = Shards::new(&config).unwrap().facts();
        let played = play(&config);
        let used = played.used_max as u64;
        assert!(facts.footprint <= config.footprint && facts.footprint.0 * 100 >= config.footprint.0 * 85, "{facts:?}");
        // Every page of the footprint is used but for an edge or two that no source has.
        assert!(used <= facts.footprint.0 && used * 1000 >= facts.footprint.0 * 995, "{used} of {facts:?}");
        let mut files: Vec<u64> = played.read.clone();
        assert_eq!(files.len() as u64, config.loads);
        files.sort_unstable();
        files.dedup();
        assert_eq!(files.len() as u64, config.shards.min(config.loads), "a shard's file is its own");
    }
}

#[test]
fn windows_are_as_many_and_as_long_as_asked_and_the_rest_goes_by_as_time() {
    let config = config("shards = 3\nloads = 4\nwindows = 6\nthreads = 2");
    let played = play(&config);
    assert_eq!((played.warmed, played.measured, played.windows), (40_000, 200_000, 24));
    let per_access = u64::from(config.instructions_per_kiloaccess);
    let (own, all) = (played.instructions as f64, (played.accesses * per_access / 1000) as f64);
    // The windows' instructions come on top, and so do those that set vertices up.
    let windows = (240_000 * per_access / 1000) as f64;
    assert!((0.97..1.1).contains(&((own - windows) / all)), "{own} and {all}");
}

#[test]
fn edges_are_touched_before_windows_write_them() {
    // A window writes an edge a little before its turn at most.
    let played = play(&config("shards = 2\nloads = 2\nmeasured_accesses = 1_000_000\nwindows = 40"));
    assert!(played.early * 50 < played.used_max as u64, "{} of {}", played.early, played.used_max);
}

fn program(threads: u16) -> Shards {
    Shards::new(&ShardsConfig { threads, shards: 3, locality: 0, ..config("local_permille = 0") }).unwrap()
}

#[test]
fn a_pass_makes_as_many_accesses_as_are_counted_for_it() {
    for pass in [Pass::Scatter, Pass::Gather] {
        let mut shards = program(1);
        let graph = shards.program.restart();
        assert!(graph.sums);
        graph.seek(pass, 0);
        let mut accesses = Vec::new();
        let start = graph.cursors[0].first;
        let mut steps = 0;
        loop {
            graph.operate(0, &mut accesses);
            steps += 1;
            let cursor = graph.cursors[0];
            // The scatter goes through its parts one by one.
            let around = cursor.next == start && cursor.edge == 0
                || cursor.next < start + SOURCES && steps > 1 && pass == Pass::Scatter;
            if around {
                break;
            }
        }
        let parts = if pass == Pass::Scatter { graph.shard.edges.div_ceil(PART_EDGES) } else { 1 };
        let counted = graph.data_accesses(pass) / parts;
        let off = accesses.len().abs_diff(counted as usize);
        assert!(off * 50 < counted as usize, "{pass:?}: {} for {counted}", accesses.len());
    }
}

#[test]
fn each_edge_of_a_vertex_has_a_place_and_the_last_come_last() {
    let shards = program(2);
    let graph = shards.program.pattern();
    let (first, end) = graph.edges_of(graph.shard.first);
    assert_eq!(first, graph.shard.edges_before);
    assert!(end > first);
    let (last, all) = graph.edges_of(graph.shard.end - 1);
    assert!(last <= all && all == graph.shard.edges_before + graph.shard.edges);
    // A vertex with many pages of edges fills them in order.
    let hub =
        (graph.shard.first..graph.shard.end).max_by_key(|&vertex| graph.edges_of(vertex).1 - graph.edges_of(vertex).0);
    let (first, end) = graph.edges_of(hub.unwrap());
    let page = |edge| (HEADER + (edge - graph.shard.edges_before) * EDGE) / PAGE_BYTES;
    let when = graph.first_touches();
    let pages: Vec<u64> = (page(first) + 1..page(end - 1)).map(|page| when[page as usize].1).collect();
    assert!(pages.len() > 4, "{} pages", pages.len());
    assert!(pages.is_sorted(), "{pages:?}");
}

#[test]
fn sources_of_edges_are_those_who_have_them() {
    let shards = program(1);
    let graph = &shards.program.pattern().graph;
    for edge in (0..graph.edges()).step_by(997) {
        let owner = graph.owner(edge);
        let (first, end) = graph.edges_of(owner);
        assert!((first..end).contains(&edge), "{edge} is none of {owner}, which has {first} to {end}");
    }
}

#[test]
fn every_footprint_that_has_room_is_used_nearly_whole() {
    for pages in (6000..9000).step_by(211) {
        let config = ShardsConfig { footprint: PageCount(pages), shards: 3, ..config("") };
        let facts = Shards::new(&config).unwrap().facts();
        assert!(facts.footprint.0 <= pages && facts.footprint.0 * 100 >= 85 * pages, "{facts:?} of {pages}");
    }
}

#[test]
fn what_is_impossible_is_refused() {
    for (more, word) in [
        ("shards = 0", "shards"),
        ("loads = 1001", "loads"),
        ("windows = 1", "windows"),
        ("footprint = '2 MiB'", "footprint"),
        ("degree = 0", "degree"),
        ("locality = 901", "locality"),
    ] {
        let mut table: toml::Table = toml::from_str("footprint = '24 MiB'").unwrap();
        table.extend(toml::from_str::<toml::Table>(more).unwrap());
        let error = Shards::new(&table.try_into().unwrap()).err().unwrap_or_else(|| panic!("{more} is taken"));
        assert!(error.to_string().contains(word), "{error}");
    }
}
