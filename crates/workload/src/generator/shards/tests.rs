// SPDX-License-Identifier: MIT OR Apache-2.0
use nestwalk_mem::addr::PAGE_BYTES;

use super::graph::{PART_EDGES, SOURCES};
use super::plan::EDGE;
use super::*;
use crate::generator::memory::HEADER;
use crate::generator::windows::played::{config, play};
use crate::stream::Workload as _;

#[test]
fn memory_is_given_back_shard_by_shard_and_the_footprint_is_the_largest_ones() {
    for more in ["shards = 3\nloads = 5", "shards = 2\nloads = 2\nthreads = 4\ngraph = 'kronecker'"] {
        let config = config(more);
        let facts = Shards::windows(&config).unwrap().facts();
        let played = play(Shards::windows(&config).unwrap());
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
    let played = play(Shards::windows(&config).unwrap());
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
    let played =
        play(Shards::windows(&config("shards = 2\nloads = 2\nmeasured_accesses = 1_000_000\nwindows = 40")).unwrap());
    assert!(played.early * 50 < played.used_max as u64, "{} of {}", played.early, played.used_max);
}

fn program(threads: u16) -> Graph {
    Shards::new(&ShardsConfig { threads, shards: 3, locality: 0, ..config("local_permille = 0") }).unwrap().graph
}

#[test]
fn a_pass_makes_as_many_accesses_as_are_counted_for_it() {
    for pass in [Pass::Scatter, Pass::Gather] {
        let mut graph = program(1);
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
    let graph = program(2);
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
    let when = graph.first_shares();
    let pages: Vec<u64> = (page(first) + 1..page(end - 1)).map(|page| when[page as usize]).collect();
    assert!(pages.len() > 4, "{} pages", pages.len());
    assert!(pages.is_sorted(), "{pages:?}");
}

#[test]
fn sources_of_edges_are_those_who_have_them() {
    let graph = program(1).graph;
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
        let facts = Shards::windows(&config).unwrap().facts();
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
