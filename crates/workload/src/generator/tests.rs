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
    let mut heap_end: Option<Vpn> = None;
    loop {
        match workload.next(&mut batch).unwrap() {
            Step::Event(MemoryEvent::Brk { end }) => {
                if let Some(start) = heap_end.replace(end.page()) {
                    played.mapped.push(VpnRange { start, end: end.page() });
                }
            }
            Step::Accesses => {
                assert!(!batch.accesses.is_empty() && batch.accesses.len() <= Batch::ACCESSES_MAX);
                played.accesses.extend(batch.accesses.iter().map(|&access| (access, batch.thread.0)));
                played.instructions += batch.instructions;
            }
            Step::Touches => {
                assert!(!batch.touches.is_empty() && batch.touches.len() <= Batch::ACCESSES_MAX);
                assert!(batch.touches.iter().all(|&(_, store)| store), "memory is filled by stores");
                for &(page, _) in &batch.touches {
                    // The last mappings first: there are many of a heap that grows.
                    assert!(played.mapped.iter().rev().any(|range| range.contains(page)), "{page:?} is not mapped yet");
                }
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

/// Co-runners and builds have tests of their own.
const APART: [&str; 4] = ["neighbour", "build", "shards", "row_blocks"];

/// Every kind of program, alone and with three threads.
fn all() -> Vec<GeneratorConfig> {
    let kinds = GeneratorConfig::KINDS.iter().filter(|(kind, _)| !APART.contains(kind));
    let mut all: Vec<_> = kinds.flat_map(|(kind, _)| [config(kind, ""), config(kind, "threads = 3")]).collect();
    all.extend([
        config("graph", "traversal = 'frontier'"),
        config("graph", "traversal = 'direction_optimising'\nproperty_bytes = 4\nloading = 'scattered'"),
        config("graph", "traversal = 'components'\nthreads = 3"),
        config("graph", "graph = 'kronecker'\nlocality = 0"),
        config("partitions", "algorithm = 'components'\nthreads = 2"),
        config("partitions", "algorithm = 'breadth_first'"),
        config("partitions", "algorithm = 'nibble'"),
        config("lonestar", "algorithm = 'breadth_first'"),
        config("lonestar", "algorithm = 'breadth_first'\nthreads = 3\ndegree = 8"),
        config("key_value", "value_bytes = 30"),
        config("key_value", "server = 'memcached'\nset_permille = 500\nstretches = 2\nvalue_bytes = 300"),
        config("tree", "value_bytes = 0\nfanout = 64\nskew = 0.9"),
        config("transactions", "buffer_pool = false\nrecord_bytes = 100"),
        config("page_touch", "locality = 'weak'\nstride_pages = 7\nthreads = 3"),
        config("pointer_chase", "stride = 4096"),
        config("netlist", "heap = {}"),
        config("netlist", "heap = { step = '4 KiB', grows = 'below' }\nthreads = 3"),
        config("netlist", "heap = { step = '28 KiB', grows = 'above' }\nthreads = 3"),
        config("compiler", "heap = { step = '2 MiB', grows = 'below' }"),
        config("compiler", "heap = { step = '2 MiB', grows = 'above' }"),
        config("compiler", "heap = { step = '128 KiB' }\nthreads = 3"),
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
    for (kind, _) in GeneratorConfig::KINDS.iter().filter(|(kind, _)| *kind != "stream" && !APART.contains(kind)) {
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
fn impossible_parameters_are_one_clear_error() {
    let cases = [
        ("kind = 'gups'\nthreads = 0", "threads = 0"),
        ("kind = 'gups'\nfootprint = '4 KiB'", "footprint = \"4 KiB\""),
        ("kind = 'gups'\nfootprint = '65 TiB'", "64 TiB"),
        ("kind = 'stream'\nmeasured_accesses = 0", "measured_accesses = 0"),
        ("kind = 'pointer_chase'\nstride = 48", "stride = 48"),
        ("kind = 'pointer_chase'\nstride = 2097152\nfootprint = '1 MiB'", "larger than the footprint"),
        ("kind = 'graph'\ndegree = 0", "degree = 0"),
        ("kind = 'graph'\nfootprint = '256 KiB'", "at least"),
        ("kind = 'graph'\nfootprint = '2 MiB'\ndegree = 4096", "too small"),
        ("kind = 'graph'\nproperty_bytes = 5", "property_bytes = 5"),
        ("kind = 'graph'\nlocal_permille = 996", "local_permille = 996"),
        ("kind = 'match_finder'\nfootprint = '1800 KiB'", "too small, a thread has"),
        ("kind = 'match_finder'\ntext = { kept = [1001] }", "text.kept: 1001 of a thousand"),
        ("kind = 'match_finder'\ntext = { first = [900, 200] }", "text.first: 1100 of a thousand in all"),
        ("kind = 'match_finder'\ntext = { others = [1] }", "text.others_again: has not as many"),
        ("kind = 'match_finder'\ntext = { others_again = [1] }", "text.others_again: has not as many"),
        ("kind = 'page_touch'\nstride_pages = 0", "stride_pages = 0"),
        ("kind = 'key_value'\nstretches = 0", "stretches"),
        ("kind = 'key_value'\nskew = 0.0", "skew = 0"),
        ("kind = 'key_value'\nkey_bytes = 251", "key_bytes = 251"),
        ("kind = 'key_value'\nvalue_bytes = 8193", "value_bytes"),
        ("kind = 'key_value'\nfill_keys = 9", "give both"),
        ("kind = 'key_value'\nfill_requests = 0\nfill_keys = 9", "at least 1"),
        ("kind = 'key_value'\nfill_requests = 9\nfill_keys = 9\nthreads = 2", "threads = 1"),
        ("kind = 'key_value'\nfill_requests = 9\nfill_keys = 9\nserver = 'memcached'", "redis"),
        ("kind = 'key_value'\nfill_requests = 2000000\nfill_keys = 2000000\nfootprint = '1 GiB'", "has room for"),
        ("kind = 'key_value'\nserver = 'memcached'\nstretches = 64\nfootprint = '3 MiB'", "too small"),
        ("kind = 'tree'\nfanout = 3", "fanout = 3"),
        ("kind = 'tree'\nput_permille = 1001", "put_permille"),
        ("kind = 'transactions'\nrecords = 0", "records"),
        ("kind = 'energy_grid'\nnuclides = 33", "nuclides = 33"),
        ("kind = 'energy_grid'\nnuclides = 4096\nfootprint = '8 MiB'", "two points"),
        ("kind = 'fp_tree'\nitems = 1", "items = 1: from 2"),
        ("kind = 'fp_tree'\nitems = 65535\nfootprint = '2 MiB'", "too small for a tree of 65535 items"),
        ("kind = 'netlist'\nconnections = 65", "connections = 65"),
        ("kind = 'compiler'\npasses = 0", "passes = 0"),
        ("kind = 'compute'\nfanout = 1", "fanout = 1"),
        ("kind = 'netlist'\nheap = { step = 0 }", "heap.step = \"0 B\": from \"4 KiB\" to the heap's size"),
        ("kind = 'compiler'\nheap = { step = '5 GiB' }", "heap.step = \"5 GiB\": from \"4 KiB\" to the heap's size"),
        ("kind = 'neighbour'\nthreads = 0", "threads = 0"),
        ("kind = 'neighbour'\ntouches = 0", "touches = 0"),
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
        "kind = 'gups'\nheap = {}",
        "kind = 'netlist'\nheap = { step = 5000 }",
        "kind = 'netlist'\nheap = { step = '4 KB' }",
        "kind = 'netlist'\nheap = { grows = 'up' }",
        "kind = 'netlist'\nheap = 'brk'",
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

/// Events and touches of a program, until its memory is filled.
fn filling(text: &str) -> Vec<(Step, Vec<u64>)> {
    let mut workload = toml::from_str::<GeneratorConfig>(text).unwrap().build().unwrap();
    let (mut steps, mut batch) = (Vec::new(), Batch::default());
    loop {
        match workload.next(&mut batch).unwrap() {
            Step::Phase(Phase::Warm) => return steps,
            step => steps.push((step, batch.touches.iter().map(|&(page, _)| page.0).collect())),
        }
    }
}

#[test]
fn a_heap_grows_by_a_step_when_the_program_first_needs_a_page_beyond_it() {
    let steps = filling("kind = 'netlist'\nfootprint = '8 MiB'\nthreads = 2\nheap = { step = '132 KiB' }");
    let breaks: Vec<(usize, u64)> = steps
        .iter()
        .enumerate()
        .filter_map(|(nth, (step, _))| match step {
            Step::Event(MemoryEvent::Brk { end }) => Some((nth, end.page().0)),
            _ => None,
        })
        .collect();
    let (_, start) = breaks[0];
    let grown: Vec<u64> = breaks.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    let (last, whole) = grown.split_last().unwrap();
    assert!(whole.len() > 20 && whole.iter().all(|&pages| pages == 33) && (1..=33).contains(last), "{grown:?}");
    // All that is mapped is used before more is asked for, and the next page is the one asked for.
    for (nth, end) in &breaks[1..] {
        let mut before = steps[..*nth].iter().flat_map(|(_, touches)| touches);
        let used = before.by_ref().filter(|&&page| (start..*end).contains(&page)).count() as u64;
        let asked = grown.iter().take(breaks.iter().position(|(at, _)| at == nth).unwrap() - 1).sum::<u64>();
        assert_eq!(used, asked, "before the break is at {end}");
        assert_eq!(steps[nth + 1].1[0], start + asked);
    }
    // The elements, one allocation, are mapped at once and before.
    let mapped = |step: &Step| match step {
        Step::Event(MemoryEvent::Mmap { range, .. }) => range.len(),
        _ => 0,
    };
    let largest = steps.iter().map(|(step, _)| mapped(step)).max().unwrap();
    assert!(largest > 450, "{largest} pages of elements");
}

#[test]
fn mappings_of_a_heap_lie_below_or_above_each_other_and_each_is_filled_upwards() {
    for (grows, down) in [("below", true), ("above", false)] {
        let text = format!("kind = 'compiler'\nfootprint = '31 MiB'\nheap = {{ step = '2 MiB', grows = '{grows}' }}");
        let steps = filling(&text);
        let is_large = |range: &VpnRange| range.len() > 105;
        let large: Vec<VpnRange> = steps
            .iter()
            .filter_map(|(step, _)| match step {
                Step::Event(MemoryEvent::Mmap { range, .. }) if is_large(range) => Some(*range),
                _ => None,
            })
            .collect();
        assert!(large.len() >= 14 && large[..large.len() - 1].iter().all(|range| range.len() == 512), "{large:?}");
        for pair in large.windows(2) {
            let neighbours = if down { pair[1].end == pair[0].start } else { pair[1].start == pair[0].end };
            assert!(neighbours, "{grows}: {pair:?}");
        }
        assert_eq!(large[0].start.is_aligned(9), !down, "FreeBSD aligns, Linux does not");
        let touched: Vec<u64> = steps.iter().flat_map(|(_, touches)| touches.clone()).collect();
        for range in &large {
            let own: Vec<u64> = touched.iter().copied().filter(|&page| range.contains(Vpn(page))).collect();
            assert!(own.iter().copied().eq(range.start.0..range.end.0), "{grows}: {range:?}");
        }
    }
}

/// Local accesses come in the stated proportion, and evenly: never far from it.
#[test]
fn local_accesses_have_their_share() {
    for (kind, permille) in [("key_value", 951), ("graph", 124), ("tree", 0)] {
        let config = config(kind, &format!("local_permille = {permille}"));
        let played = play(&config);
        // Libraries come first (key_value has 6, graph 13, tree 12 of them), then the thread's
        // stack.
        let stack = played.mapped.iter().find(|range| range.len() == 105).unwrap();
        for part in played.accesses.chunks_exact(10_000) {
            let local = part.iter().filter(|(access, _)| stack.contains(Vpn(access.gva().page().0))).count() as u64;
            assert!(local.abs_diff(permille * 10) <= 30, "{kind}: {local} of 10,000");
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(60))]
    /// Whatever the size and the number of threads: what is mapped is touched once, by its threads;
    /// every access lies in it; the footprint is the stated one within 2 % (from 32 MiB on: a graph
    /// grows by 4096 vertices at a time).
    #[test]
    fn programs_of_any_size_stay_in_their_memory(
        kind in 0..GeneratorConfig::KINDS.len(), mebibytes in 32u64..120, threads in 1u16..9, seed in 1u64..99,
    ) {
        let (kind, _) = GeneratorConfig::KINDS[kind];
        proptest::prop_assume!(!APART.contains(&kind));
        let text = format!(
            "kind = '{kind}'\nfootprint = '{mebibytes} MiB'\nthreads = {threads}\nseed = {seed}\n\
             warm_accesses = 0\nmeasured_accesses = 100000"
        );
        let config: GeneratorConfig = toml::from_str(&text).unwrap();
        let facts = config.build().unwrap().facts();
        let played = play(&config);
        let touched: BTreeSet<Vpn> = played.touched.iter().map(|&(page, _)| page).collect();
        let mapped: u64 = played.mapped.iter().map(|range| range.len()).sum();
        proptest::prop_assert_eq!(touched.len(), played.touched.len());
        proptest::prop_assert_eq!((mapped, facts.footprint.0), (touched.len() as u64, touched.len() as u64));
        proptest::prop_assert!(facts.footprint.0.abs_diff(mebibytes << 8) * 50 <= mebibytes << 8, "{:?}", facts);
        for (access, thread) in played.accesses {
            proptest::prop_assert!(thread < threads && touched.contains(&Vpn(access.gva().page().0)));
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]
    /// Whatever the degree, also one that is more than the graph has vertices: a graph program is
    /// refused, or runs in its memory.
    #[test]
    fn graph_programs_of_any_degree_run_or_are_refused(
        kind in 0..4usize, kronecker in proptest::bool::ANY, mebibytes in 2u64..320, log in 0u32..13, more in 0u64..4096,
    ) {
        let kind = ["graph", "partitions", "lonestar", "shards"][kind];
        let (graph, degree) = (if kronecker { "kronecker" } else { "social" }, (1 << log) + more % (1 << log));
        let text = format!(
            "kind = '{kind}'\nfootprint = '{mebibytes} MiB'\ndegree = {degree}\ngraph = '{graph}'\n\
             warm_accesses = 0\nmeasured_accesses = 20000"
        );
        let config: GeneratorConfig = toml::from_str(&text).unwrap();
        if let Ok(mut workload) = config.build() {
            let (mut batch, mut accesses) = (Batch::default(), 0);
            loop {
                match workload.next(&mut batch).unwrap() {
                    Step::Accesses => accesses += batch.accesses.len(),
                    Step::End => break,
                    _ => {}
                }
            }
            proptest::prop_assert_eq!(accesses, 20_000);
        }
    }
}

/// A key's pages need not fit into what is left of a batch (once found by the test above).
#[test]
fn a_batch_of_first_touches_is_never_longer_than_it_may_be() {
    let text = "kind = 'key_value'\nfootprint = '118 MiB'\nseed = 2\nwarm_accesses = 0\nmeasured_accesses = 1";
    play(&toml::from_str(text).unwrap());
}

/// Of a redis that clients fill, batch by batch: what it accesses or touches, and its requests'
/// ends.
fn filled(more: &str) -> Vec<(Step, Batch)> {
    let text = format!("kind = 'key_value'\nfootprint = '64 MiB'\nvalue_bytes = 4096\n{more}");
    let mut workload = toml::from_str::<GeneratorConfig>(&text).unwrap().build().unwrap();
    let mut batches = Vec::new();
    loop {
        let mut batch = Batch::default();
        match workload.next(&mut batch).unwrap() {
            Step::End => return batches,
            step => batches.push((step, batch)),
        }
    }
}

#[test]
fn a_redis_is_filled_by_requests_in_full_and_by_their_pages() {
    let batches = filled("fill_requests = 5000\nfill_keys = 9000\nnetwork_instructions = 7000");
    let ended = |of: Step| batches.iter().filter(|(step, _)| *step == of).map(|(_, b)| b.requests.len()).sum::<usize>();
    // 16 of each 1024 in full.
    assert_eq!((ended(Step::Accesses), ended(Step::Touches)), (5 * 16, 5000 - 5 * 16));
    let begun = batches.iter().position(|(step, _)| *step == Step::Phase(Phase::Measure)).unwrap();
    let before = batches[..begun].iter().flat_map(|(_, batch)| batch.touches.iter().map(|&(page, _)| page.0));
    let buffers: BTreeSet<_> = before.collect();
    assert!(buffers.len() < 300, "only its buffers are touched before the first request: {}", buffers.len());
    let mut pages = BTreeSet::new();
    let mut instructions = [Vec::new(), Vec::new()];
    for (step, batch) in &batches[begun..] {
        pages.extend(batch.touches.iter().map(|&(page, _)| page.0));
        let stores = batch.accesses.iter().filter(|access| access.is_store());
        pages.extend(stores.map(|access| access.gva().page().0));
        if !batch.requests.is_empty() {
            let of = &mut instructions[usize::from(*step == Step::Touches)];
            of.push(batch.instructions / batch.requests.len() as u64);
            let length = batch.accesses.len() + batch.touches.len();
            assert_eq!(batch.requests.last(), Some(&(length as u64)), "a batch is of whole requests");
            assert!(batch.requests.windows(2).all(|pair| pair[0] < pair[1]), "each touches a page");
        }
    }
    // 9000 (1 - exp(-5 / 9)) = 3837 different keys of 5120 bytes and 80 to 100 more each.
    let keys = pages.difference(&buffers).count() as f64 * 4096.0 / 5210.0;
    assert!((3750.0..4000.0).contains(&keys), "{keys}, {} buffers", buffers.len());
    let [full, touched] = instructions.map(|all| all.iter().sum::<u64>() / all.len() as u64);
    assert!(touched.abs_diff(full) * 50 < full, "{touched} and {full} instructions");
    let without = filled("fill_requests = 100\nfill_keys = 9000");
    let (_, last) = without.last().unwrap();
    let own = last.instructions / last.requests.len() as u64;
    assert!(touched.abs_diff(own + 7000) < 50, "{touched}, of them {own} its own");
}

#[test]
fn a_page_of_a_filled_redis_is_touched_before_anything_else_uses_it() {
    let batches = filled("fill_requests = 3000\nfill_keys = 3000");
    let mut stored = BTreeSet::new();
    for (_, batch) in &batches {
        stored.extend(batch.touches.iter().map(|&(page, _)| page.0));
        for access in &batch.accesses {
            let page = access.gva().page().0;
            if access.is_store() {
                stored.insert(page);
            }
            assert!(stored.contains(&page), "page {page} is read before it is filled");
        }
    }
}

#[test]
fn requests_of_a_steady_server_are_told_apart_where_the_network_is_simulated() {
    let told = |more: &str| {
        let text = format!("kind = 'key_value'\n{COMMON}value_bytes = 100\n{more}");
        let mut workload = toml::from_str::<GeneratorConfig>(&text).unwrap().build().unwrap();
        let (mut batch, mut requests, mut instructions) = (Batch::default(), 0, 0);
        while workload.next(&mut batch).unwrap() != Step::End {
            requests += batch.requests.len() as u64;
            instructions += batch.instructions;
        }
        (requests, instructions)
    };
    let (none, own) = told("");
    let (requests, all) = told("network_instructions = 10000");
    assert_eq!(none, 0);
    // 320,001 accesses, some 2000 a request.
    assert!((100..250).contains(&requests), "{requests}");
    // They come with accesses: a request of more than the average has more of them.
    let network = (all - own) as f64 / (requests * 10_000) as f64;
    assert!((network - 1.0).abs() < 0.03, "{network}: {own} and {all} instructions, {requests} requests");
}
