// SPDX-License-Identifier: MIT OR Apache-2.0
//! What holds of every generator.

use std::collections::BTreeSet;

use nestwalk_mem::{Access, PageCount, Vpn, VpnRange};

use super::*;
use crate::stream::{Batch, MemoryEvent, Phase, Step};

/// All that a workload yields.
#[derive(Default, PartialEq, Debug)]
struct Played {
    mapped: Vec<VpnRange>,
    touched: Vec<(Vpn, u16)>,
    accesses: Vec<(Access, u16)>,
    phases: Vec<(Phase, u64)>,
    instructions: u64,
}

fn play(config: &GeneratorConfig) -> Played {
    let mut workload = config.build().unwrap();
    let (mut played, mut batch) = (Played::default(), Batch::default());
    loop {
        match workload.next(&mut batch).unwrap() {
            Step::Accesses => {
                assert!(!batch.accesses.is_empty() && batch.accesses.len() <= Batch::ACCESSES_MAX);
                played.accesses.extend(batch.accesses.iter().map(|&access| (access, batch.thread.0)));
                played.instructions += batch.instructions;
            }
            Step::Touches => {
                assert!(!batch.touches.is_empty() && batch.touches.len() <= Batch::ACCESSES_MAX);
                assert!(batch.touches.iter().all(|&(_, store)| store), "memory is filled by stores");
                played.touched.extend(batch.touches.iter().map(|&(page, _)| (page, batch.thread.0)));
            }
            Step::Event(MemoryEvent::Mmap { range, writable: true, anonymous: true }) => played.mapped.push(range),
            Step::Event(event) => panic!("{event:?}"),
            Step::Phase(phase) => played.phases.push((phase, played.accesses.len() as u64)),
            Step::End => return played,
        }
    }
}

const COMMON: &str = "footprint = '8 MiB'\nwarm_accesses = 20000\nmeasured_accesses = 300001\n";

fn config(kind: &str, more: &str) -> GeneratorConfig {
    toml::from_str(&format!("kind = '{kind}'\n{COMMON}{more}")).unwrap_or_else(|error| panic!("{error}"))
}

/// Every kind, alone and with three threads.
fn all() -> Vec<GeneratorConfig> {
    let kinds = GeneratorConfig::KINDS.iter();
    let mut all: Vec<_> = kinds.flat_map(|(kind, _)| [config(kind, ""), config(kind, "threads = 3")]).collect();
    all.extend([
        config("graph", "traversal = 'frontier'"),
        config("pointer_chase", "stride = 4096"),
        config("zipf_kv", "value_bytes = 20000"),
    ]);
    all
}

#[test]
fn phases_and_counts_are_as_configured() {
    for config in all() {
        let facts = config.build().unwrap().facts();
        let played = play(&config);
        let phases = [(Phase::Populate, 0), (Phase::Warm, 0), (Phase::Measure, 20_000)];
        assert_eq!(played.phases, phases, "{}", facts.name);
        assert_eq!(played.accesses.len(), 320_001, "{}", facts.name);
        assert_eq!(facts.accesses, Some(320_001));
        let per_access = played.instructions as f64 / played.accesses.len() as f64;
        assert!((1.0..30.0).contains(&per_access), "{}: {per_access} instructions an access", facts.name);
    }
}

#[test]
fn every_page_is_touched_once_and_the_footprint_is_what_is_touched() {
    for config in all() {
        let facts = config.build().unwrap().facts();
        let played = play(&config);
        let pages: BTreeSet<Vpn> = played.touched.iter().map(|&(page, _)| page).collect();
        assert_eq!(pages.len(), played.touched.len(), "{}: a page is touched first twice", facts.name);
        assert_eq!(facts.footprint, PageCount(pages.len() as u64), "{}", facts.name);
        assert!(facts.footprint <= PageCount(2048) && facts.footprint >= PageCount(1900), "{facts:?}");
        let mapped: BTreeSet<Vpn> = played.mapped.iter().flat_map(|r| (r.start.0..r.end.0).map(Vpn)).collect();
        assert_eq!(mapped, pages, "{}: what is mapped is touched and nothing else", facts.name);
        let outside = played.accesses.iter().find(|(access, _)| !pages.contains(&Vpn(access.gva().page().0)));
        assert_eq!(outside, None, "{}", facts.name);
    }
}

#[test]
fn the_same_seed_gives_the_same_stream_and_another_one_does_not() {
    for config in all() {
        assert_eq!(play(&config), play(&config));
    }
    for kind in ["gups", "pointer_chase", "zipf_kv", "graph"] {
        assert_ne!(play(&config(kind, "")).accesses, play(&config(kind, "seed = 2")).accesses, "{kind}");
    }
}

#[test]
fn all_threads_work() {
    for config in all().into_iter().filter(|config| config.build().unwrap().facts().threads == 3) {
        let played = play(&config);
        for thread in 0..3 {
            let accesses = played.accesses.iter().filter(|&&(_, t)| t == thread).count();
            assert!((90_000..130_000).contains(&accesses), "{config:?}, thread {thread}: {accesses}");
            assert!(played.touched.iter().any(|&(_, t)| t == thread), "{config:?}, thread {thread} touches nothing");
        }
    }
}

#[test]
fn gups_updates_uniformly() {
    let played = play(&config("gups", ""));
    let mut pages = vec![0u64; 2048];
    for pair in played.accesses[..320_000].chunks_exact(2) {
        let (load, store) = (pair[0].0, pair[1].0);
        assert!(!load.is_store() && store.is_store() && load.gva() == store.gva());
        assert_eq!(load.gva().0 % 8, 0);
        pages[(load.gva().page().0 - played.mapped[0].start.0) as usize] += 1;
    }
    // 160,000 updates of 2048 pages: 78 each; chi-square of 2047 degrees of freedom is 2047 +- 64.
    let chi: f64 = pages.iter().map(|&n| (n as f64 - 78.125).powi(2) / 78.125).sum();
    assert!((1800.0..2300.0).contains(&chi), "{chi}");
}

#[test]
fn stream_goes_through_its_arrays_in_step() {
    let played = play(&config("stream", ""));
    let [a, b, c] = [0, 1, 2].map(|array| played.mapped[array].start.address().0);
    for (element, triad) in played.accesses.chunks_exact(3).enumerate() {
        let offset = element as u64 * 8 % ((2048 / 3) * 4096);
        assert_eq!([0, 1, 2].map(|i| triad[i].0.gva().0), [b + offset, c + offset, a + offset]);
        assert_eq!([0, 1, 2].map(|i| triad[i].0.is_store()), [false, false, true]);
    }
}

#[test]
fn a_pointer_chase_visits_every_node_before_any_again() {
    let played = play(&config("pointer_chase", ""));
    let nodes = 8 * 1024 * 1024 / 64;
    let first: BTreeSet<u64> = played.accesses[..nodes].iter().map(|(access, _)| access.gva().0).collect();
    assert_eq!(first.len(), nodes);
    assert_eq!(played.accesses[0], played.accesses[nodes], "then the cycle begins anew");
}

#[test]
fn a_key_value_store_has_hot_keys_and_its_share_of_sets() {
    let played = play(&config("zipf_kv", "value_bytes = 64\nset_permille = 250"));
    let objects = played.mapped[1];
    let (mut counts, mut sets, mut requests) = (std::collections::BTreeMap::new(), 0, 0);
    for request in played.accesses.chunks_exact(4) {
        assert!(objects.contains(Vpn(request[1].0.gva().page().0)));
        *counts.entry(request[1].0.gva().0).or_insert(0) += 1;
        let store = request[3].0;
        assert!(store.is_store());
        sets += usize::from(objects.contains(Vpn(store.gva().page().0)));
        requests += 1;
    }
    assert!((240..=260).contains(&(sets * 1000 / requests)), "{sets} of {requests}");
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    // With some 60,000 keys and exponent 0.99, the first has 8 to 9 % of the requests, twice as many as the second.
    assert!((70..=100).contains(&(counts[0] * 1000 / requests)), "{} of {requests}", counts[0]);
    assert!((170..=230).contains(&(counts[0] * 100 / counts[1])), "{counts:?}");
}

#[test]
fn impossible_parameters_are_one_clear_error() {
    let cases = [
        ("kind = 'gups'\nthreads = 0", "threads = 0"),
        ("kind = 'gups'\nfootprint = '4 KiB'", "footprint = \"4 KiB\""),
        ("kind = 'gups'\nfootprint = '65 TiB'", "64 TiB"),
        ("kind = 'stream'\nmeasured_accesses = 0", "measured_accesses = 0"),
        ("kind = 'pointer_chase'\nstride = 48", "stride = 48"),
        ("kind = 'pointer_chase'\nstride = 2097152\nfootprint = '1 MiB'", "larger than the footprint"),
        ("kind = 'zipf_kv'\nvalue_bytes = 0", "value_bytes = 0"),
        ("kind = 'zipf_kv'\nskew = nan", "skew = NaN"),
        ("kind = 'zipf_kv'\nset_permille = 1001", "set_permille = 1001"),
        ("kind = 'zipf_kv'\nvalue_bytes = 65536\nfootprint = '1 MiB'", "too small"),
        ("kind = 'graph'\ndegree = 0", "degree = 0"),
        ("kind = 'graph'\nfootprint = '256 KiB'", "too small"),
    ];
    for (text, expected) in cases {
        let config: GeneratorConfig = toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let error = config.build().err().unwrap_or_else(|| panic!("{text} was accepted")).to_string();
        assert!(error.contains(expected) && error.lines().count() == 1, "{text}: {error}");
    }
}

#[test]
fn unknown_keys_kinds_and_sizes_are_refused() {
    for text in [
        "kind = 'gups'\nstride = 64",
        "kind = 'gupz'",
        "kind = 'gups'\nfootprint = '4 GB'",
        "kind = 'gups'\nfootprint = 5000",
    ] {
        assert!(toml::from_str::<GeneratorConfig>(text).is_err(), "{text}");
    }
    assert_eq!(
        toml::from_str::<GeneratorConfig>("kind = 'gups'\nfootprint = 8192").unwrap(),
        GeneratorConfig::Gups(GupsConfig { footprint: PageCount(2), ..GupsConfig::default() })
    );
}

#[test]
fn a_configuration_survives_being_written_and_read() {
    for config in all() {
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<GeneratorConfig>(&text).unwrap(), config, "{text}");
    }
}
