// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole runs: that they are deterministic, and that what must be so is so.

use std::ops::ControlFlow;
use std::path::Path;

use nestwalk_machine::{Configuration, MachineError, Populated, RunResult};

/// Runs `workload` (the body of its table) over kernels with `managers`, bottom first.
fn run(workload: &str, managers: &[&str], more: &str) -> Result<RunResult, MachineError> {
    let kernels: String = managers.iter().map(|m| format!("[[kernels]]\nmanager = {m}\n")).collect();
    let text = format!(
        "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n{more}\n[workload.generator]\n{workload}\n{kernels}"
    );
    nestwalk_machine::run(&text, Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(()))
}

const GUPS: &str = "kind = 'gups'\nfootprint = '256 MiB'\nwarm_accesses = 200000\nmeasured_accesses = 400000";
const SMALL_PAGES: &str = "{ kind = 'linux4k' }";
const HUGE_PAGES: &str = "{ kind = 'thp' }";

fn json(result: &RunResult) -> String {
    serde_json::to_string(result).unwrap()
}

#[test]
fn the_same_scenario_gives_the_same_result_to_the_last_bit() {
    let once = run(GUPS, &[SMALL_PAGES, SMALL_PAGES], "corunner = 'random'").unwrap();
    let again = run(GUPS, &[SMALL_PAGES, SMALL_PAGES], "corunner = 'random'").unwrap();
    assert_eq!(json(&once), json(&again));
    let other = run(GUPS, &[SMALL_PAGES, SMALL_PAGES], "corunner = 'random'\nseed = 2").unwrap();
    assert_ne!(once.statistics.mmu, other.statistics.mmu);
}

#[test]
fn random_updates_walk_and_a_nested_walk_costs_more() {
    let native = run(GUPS, &[SMALL_PAGES], "").unwrap().row;
    let nested = run(GUPS, &[SMALL_PAGES, SMALL_PAGES], "").unwrap().row;
    // 64 Ki pages under an L2 TLB of 1536 entries: nearly every first access to a page misses.
    assert!(native.walks_per_kiloaccess.unwrap() > 300.0, "{native:?}");
    assert_eq!(native.host_references_per_walk, Some(0.0));
    assert!(native.references_per_walk.unwrap() <= 4.0);
    assert!(nested.host_references_per_walk.unwrap() > 1.0);
    assert!(nested.references_per_walk.unwrap() <= 24.0);
    assert!(nested.walk_latency_cycles > native.walk_latency_cycles);
    assert!(nested.cycles_per_access > native.cycles_per_access);
}

#[test]
fn huge_pages_on_both_sides_take_nearly_all_walks_away() {
    let small = run(GUPS, &[SMALL_PAGES, SMALL_PAGES], "").unwrap();
    let huge = run(GUPS, &[HUGE_PAGES, HUGE_PAGES], "").unwrap();
    assert!(huge.row.walks_per_kiloaccess.unwrap() < small.row.walks_per_kiloaccess.unwrap() / 10.0, "{:?}", huge.row);
    // No group of 4 KiB leaves is left to measure, so the fragmentation is not known.
    assert_eq!(huge.host_pt_fragmentation.unwrap().groups, 0);
    assert_eq!(huge.row.host_pt_fragmentation, None);
}

#[test]
fn an_smt_co_runner_makes_walks_longer_but_no_more_frequent() {
    let alone = run(GUPS, &[SMALL_PAGES, SMALL_PAGES], "").unwrap().row;
    let shared = run(GUPS, &[SMALL_PAGES, SMALL_PAGES], "corunner = 'random'").unwrap().row;
    assert_eq!(alone.walks_per_kiloaccess, shared.walks_per_kiloaccess);
    assert!(shared.walk_latency_cycles > alone.walk_latency_cycles);
}

/// The machine `broadwell-asap` without page-walk caches, as a file.
fn machine_without_pwc() -> String {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("without-pwc.toml");
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/broadwell-asap.toml"));
    let mut machine: toml::Table = text.unwrap().parse().unwrap();
    let mmu = machine["mmu"].as_table_mut().unwrap();
    assert!(mmu.remove("guest_pwc").is_some() && mmu.remove("host_pwc").is_some());
    std::fs::write(&file, machine.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn without_page_walk_caches_every_walk_has_the_references_of_its_levels() {
    let machine = machine_without_pwc();
    let references = |levels: &[u8]| {
        let kernels: String = levels.iter().map(|levels| format!("[[kernels]]\nlevels = {levels}\n")).collect();
        let text = format!("schema = 1\nname = 'test'\nmachine = '{machine}'\n[workload.generator]\n{GUPS}\n{kernels}");
        let row =
            nestwalk_machine::run(&text, Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(()))
                .unwrap()
                .row;
        (row.guest_references_per_walk.unwrap(), row.host_references_per_walk.unwrap())
    };
    // A guest of n levels over a host of m: n of its own, and n + 1 walks of the host.
    assert_eq!(references(&[4]), (4.0, 0.0));
    assert_eq!(references(&[5]), (5.0, 0.0));
    assert_eq!(references(&[4, 4]), (4.0, 20.0));
    assert_eq!(references(&[5, 5]), (5.0, 30.0));
    // Bottom first: the host has five, the guest four, and the other way round.
    assert_eq!(references(&[5, 4]), (4.0, 25.0));
    assert_eq!(references(&[4, 5]), (5.0, 24.0));
}

#[test]
fn windows_add_up_to_the_whole() {
    let result = run(GUPS, &[SMALL_PAGES], "").unwrap();
    let windows = &result.statistics.windows;
    assert!(windows.len() >= 10, "{}", windows.len());
    assert_eq!(windows.iter().map(|w| w.accesses).sum::<u64>(), result.statistics.total.accesses);
    assert_eq!(result.statistics.total.accesses, 400_000);
    assert_eq!(result.statistics.latency_histogram.counts.iter().sum::<u64>(), result.statistics.total.walks);
    let references: u64 = result.statistics.references.iter().map(|r| r.count).sum();
    assert_eq!(references, result.statistics.total.walk_references);
}

#[test]
fn windows_have_the_length_that_is_asked_for() {
    let result = run(GUPS, &[SMALL_PAGES], "sampling = { window = 1567 }").unwrap();
    let windows = &result.statistics.windows;
    assert_eq!(windows.len(), 400_000_usize.div_ceil(1567));
    let (last, whole) = windows.split_last().unwrap();
    assert!(whole.iter().all(|window| window.accesses == 1567));
    assert_eq!(last.accesses, 400_000 % 1567);
    let plain = run(GUPS, &[SMALL_PAGES], "").unwrap();
    assert_eq!(result.statistics.mmu, plain.statistics.mmu, "where windows begin changes nothing");
    assert!(run(GUPS, &[SMALL_PAGES], "sampling = { window = 0 }").is_err());
}

#[test]
fn steps_of_walks_are_its_references() {
    for kernels in [&[SMALL_PAGES][..], &[SMALL_PAGES, SMALL_PAGES]] {
        let statistics = run(GUPS, kernels, "").unwrap().statistics;
        let sum = |host: bool, level: u8| {
            let of = |step: &&nestwalk_machine::result::StepReferences| match host {
                true => step.host_level == level,
                false => step.guest_level == level && step.host_level == 0,
            };
            statistics.steps.iter().filter(of).map(|step| step.count).sum::<u64>()
        };
        for (table, host) in [("guest", false), ("host", true)] {
            for level in 1..=5 {
                let of_level = statistics.references.iter().filter(|r| (r.table, r.level) == (table, level));
                assert_eq!(sum(host, level), of_level.map(|r| r.count).sum::<u64>(), "{table} {level}");
            }
        }
    }
}

#[test]
fn sampling_keeps_the_miss_ratio_within_its_interval() {
    let whole = run(GUPS, &[SMALL_PAGES], "").unwrap().row;
    let sampled = run(GUPS, &[SMALL_PAGES], "sampling = { period = 40000, warm = 10000, measure = 5000 }").unwrap();
    assert!((40_000..=60_000).contains(&sampled.statistics.total.accesses), "{}", sampled.statistics.total.accesses);
    let difference = (sampled.row.walks_per_kiloaccess.unwrap() - whole.walks_per_kiloaccess.unwrap()).abs();
    // Twice the half width: one test in twenty would fail by chance with less, and the seed is
    // fixed.
    assert!(difference <= 2.0 * sampled.row.walks_per_kiloaccess_ci95.unwrap(), "{difference}");
}

#[test]
fn a_run_can_be_interrupted() {
    let text = format!("schema = 1\nname = 'test'\nmachine = 'zen4'\n[workload.generator]\n{GUPS}\n[[kernels]]\n");
    let mut calls = 0;
    let result = nestwalk_machine::run(&text, Path::new("t"), Path::new("."), &mut |_| {
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(result, Err(MachineError::Interrupted { .. })));
    assert_eq!(calls, 3);
}

#[test]
fn the_scenario_s_seed_reaches_the_generator() {
    let accesses = |seed| run(GUPS, &[SMALL_PAGES], &format!("seed = {seed}")).unwrap().statistics.mmu.tlb;
    assert_eq!(accesses(1), accesses(1));
    assert_ne!(accesses(1), accesses(2));
}

/// A guard against a technique that silently runs its baseline: PTEMagnet's own counters move, and
/// so does what it is for.
#[test]
fn ptemagnet_acts_and_packs_host_ptes() {
    // Four threads first-touch a shared table in turn: stock frames of a group end up on several
    // lines.
    let chase = "kind = 'key_value'\nserver = 'memcached'\nfootprint = '64 MiB'\nwarm_accesses = 1000\nmeasured_accesses = 50000\nthreads = 4";
    let stock = run(chase, &[SMALL_PAGES, SMALL_PAGES], "").unwrap();
    let magnet = run(chase, &[SMALL_PAGES, "{ kind = 'ptemagnet' }"], "").unwrap();
    let reserved = magnet.statistics.kernels[1].manager_counters["reservations"];
    assert!(reserved > 1000, "{reserved}");
    assert_eq!(magnet.row.host_pt_fragmentation, Some(1.0));
    assert!(stock.row.host_pt_fragmentation > Some(1.0), "{:?}", stock.row);
}

/// The same guard for HugeGPT: host walks to guest nodes have a step less, those to data are as
/// before.
#[test]
fn hugegpt_takes_host_references_away() {
    let host = "{ kind = 'thp', enabled = 'madvise' }";
    let stock = run(GUPS, &[host, SMALL_PAGES], "").unwrap();
    let text = format!(
        "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n[workload.generator]\n{GUPS}\n[[kernels]]\nmanager = {host}\n[[kernels]]\ntables = {{ kind = 'hugegpt' }}"
    );
    let huge =
        nestwalk_machine::run(&text, Path::new("t"), Path::new("."), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(huge.row.guest_references_per_walk, stock.row.guest_references_per_walk);
    assert!(huge.row.host_references_per_walk < stock.row.host_references_per_walk);
    assert!(huge.statistics.kernels[1].table_counters["huge_regions"] > 0);
}

/// Runs `GUPS` over kernels with `tables`, bottom first, and `asap` levels: those of the guest's
/// table, then the host's.
fn asap(tables: &[&str], guest_levels: &[u8], host_levels: &[u8], more: &str) -> Result<RunResult, MachineError> {
    let kernels: String = tables.iter().map(|kind| format!("[[kernels]]\ntables = {{ kind = '{kind}' }}\n")).collect();
    let asap = match (guest_levels, host_levels) {
        ([], []) => String::new(),
        (guest, host) => format!("[asap]\nguest_levels = {guest:?}\nhost_levels = {host:?}\n"),
    };
    let text = format!(
        "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n{more}\n[workload.generator]\n{GUPS}\n{kernels}{asap}"
    );
    nestwalk_machine::run(&text, Path::new("t"), Path::new("."), &mut |_| ControlFlow::Continue(()))
}

/// The guard for ASAP: prefetches are made and met, every walk is covered by one register, and each
/// level that is prefetched makes walks shorter, with a co-runner even more so.
#[test]
fn asap_prefetches_and_shortens_walks() {
    for more in ["", "corunner = 'random'"] {
        let native = |levels: &[u8]| asap(&["asap"], levels, &[], more).unwrap();
        let virtualised = |guest: &[u8], host: &[u8]| asap(&["asap", "asap"], guest, host, more).unwrap();
        let [none, p1, p1_p2] = [native(&[]), native(&[1]), native(&[1, 2])];
        let [bare, p1g, p1g_p2g] = [virtualised(&[], &[]), virtualised(&[1], &[]), virtualised(&[1, 2], &[])];
        let [p1g_p1h, all] = [virtualised(&[1], &[1]), virtualised(&[1, 2], &[1, 2])];
        let less_and_more =
            [(&none, &p1), (&p1, &p1_p2), (&bare, &p1g), (&p1g, &p1g_p2g), (&p1g, &p1g_p1h), (&p1g_p1h, &all)];
        for (less, more) in less_and_more {
            assert!(more.row.walk_latency_cycles < less.row.walk_latency_cycles, "{:?} {:?}", less.row, more.row);
            assert_eq!(more.row.references_per_walk, less.row.references_per_walk, "the walk itself is the same");
            let mmu = &more.statistics.mmu;
            assert!(mmu.prefetch.issued > 0 && mmu.prefetch.useful > 0);
            assert_eq!(mmu.prefetch.dropped, 0);
            assert_eq!(mmu.registers.covered_by(1), mmu.registers.walks, "one mapping, one register");
        }
    }
}

#[test]
fn asap_follows_five_levels_and_huge_pages() {
    let result = |levels: &str| {
        let kernel = "[[kernels]]\nlevels = 5\nmanager = { kind = 'thp' }\ntables = { kind = 'asap', levels = 3 }\n";
        let text = format!(
            "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\ncorunner = 'random'\n[workload.generator]\nkind = 'gups'\nfootprint = '8 GiB'\nwarm_accesses = 100000\nmeasured_accesses = 200000\n{kernel}{kernel}[asap]\nguest_levels = {levels}\nhost_levels = {levels}\n"
        );
        nestwalk_machine::run(&text, Path::new("t"), Path::new("."), &mut |_| ControlFlow::Continue(())).unwrap()
    };
    let (ptes, pmds, both) = (result("[1]"), result("[2]"), result("[2, 3]"));
    let useful = |result: &RunResult| result.statistics.mmu.prefetch.useful;
    assert_eq!(useful(&ptes), 0, "no walk reads a PTE");
    assert!(pmds.row.walk_latency_cycles < ptes.row.walk_latency_cycles);
    assert!(both.row.walk_latency_cycles <= pmds.row.walk_latency_cycles);
}

/// GUPS in a VM, with `paging` in the host.
fn run_with_paging(paging: &str, more: &str) -> RunResult {
    let text = format!(
        "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n{more}\n[workload.generator]\n{GUPS}\n\
         [[kernels]]\npaging = {paging}\n[[kernels]]\n"
    );
    nestwalk_machine::run(&text, Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn shadow_paging_walks_one_table_and_exits_for_what_the_guest_writes() {
    let ept = run_with_paging("{ kind = 'ept' }", "");
    let shadow = run_with_paging("{ kind = 'shadow' }", "");
    assert!(shadow.row.references_per_walk.unwrap() <= 4.0);
    assert_eq!(shadow.row.host_references_per_walk, Some(0.0));
    assert!(shadow.row.walk_latency_cycles < ept.row.walk_latency_cycles);
    assert_eq!(shadow.row.walks_per_kiloaccess, ept.row.walks_per_kiloaccess, "the TLBs see the same");
    // Each first touch is reflected, filled for the kernel, which zeroes the page, and for the
    // program.
    let touched = shadow.statistics.kernels[1].counters.faults_4k;
    assert!(shadow.statistics.kernels[0].counters.shadow_fills >= 2 * touched);
    assert!(shadow.statistics.kernels[0].counters.shadow_reflected >= touched);
    // A PTE node exits for its first write only, as nothing is flushed here; a PMD node for each
    // PTE node that it gets.
    let nodes = touched.div_ceil(512);
    assert!((nodes..=nodes + 4).contains(&shadow.statistics.kernels[0].counters.shadow_unsyncs), "{nodes} nodes");
    assert!((nodes - 1..=nodes + 4).contains(&shadow.statistics.kernels[0].counters.shadow_writes), "{nodes} nodes");
    assert_eq!(
        shadow.statistics.kernels[0].counters.shadow_flushes + shadow.statistics.kernels[0].counters.shadow_invlpgs,
        0
    );
    assert_eq!(ept.statistics.kernels[0].counters.shadow_fills, 0);
    assert_eq!(shadow.statistics.kernels[0].paging.as_deref(), Some("shadow"));
}

#[test]
fn segments_make_a_walk_one_dimensional_without_any_exit() {
    let ept = run_with_paging("{ kind = 'ept' }", "");
    for max in [1, 2, 3, 8] {
        let segments = run_with_paging(&format!("{{ kind = 'segments', max = {max} }}"), "");
        assert_eq!(segments.row.host_references_per_walk, Some(0.0));
        assert!(segments.row.walk_latency_cycles < ept.row.walk_latency_cycles);
        assert_eq!(segments.row.walks_per_kiloaccess, ept.row.walks_per_kiloaccess, "the TLBs see the same");
        assert_eq!(segments.statistics.kernels[0].paging.as_deref(), Some("segments (1)"), "fresh memory is one");
        assert_eq!(segments.statistics.kernels[0].counters.faults_4k, 0, "all was there from the start");
        assert_eq!(segments.host_pt_fragmentation.map(|f| f.groups), None);
    }
}

#[test]
fn a_vm_in_too_many_pieces_falls_back() {
    let aged =
        "start = { kind = 'fragmented', blocks_permille = 900, frames_per_block = 1, unmovable_permille = 1000 }";
    let run = |fallback: &str| {
        let text = format!(
            "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n[workload.generator]\n{GUPS}\n[[kernels]]\n\
             memory = '4 GiB'\n{aged}\npaging = {{ kind = 'segments', max = 3{fallback} }}\n[[kernels]]\nmemory = '1 GiB'\n"
        );
        nestwalk_machine::run(&text, Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(()))
            .unwrap()
    };
    let paging = |result: &RunResult| result.statistics.kernels[0].paging.clone().unwrap();
    assert_eq!(paging(&run("")), "ept");
    assert_eq!(paging(&run(", fallback = 'shadow'")), "shadow");
}

#[test]
fn a_vm_in_a_vm_walks_in_two_dimensions_over_a_composed_table() {
    let once = run(GUPS, &[SMALL_PAGES, SMALL_PAGES], "").unwrap();
    let twice = run(GUPS, &[SMALL_PAGES, SMALL_PAGES, SMALL_PAGES], "").unwrap();
    let (once_references, references) = (once.row.references_per_walk.unwrap(), twice.row.references_per_walk.unwrap());
    assert!((references / once_references - 1.0).abs() < 0.1, "{references} against {once_references}");
    assert_eq!(twice.row.walks_per_kiloaccess, once.row.walks_per_kiloaccess, "the TLBs see the same");
    let roles: Vec<_> = twice.statistics.kernels.iter().map(|kernel| kernel.role).collect();
    assert_eq!(roles, ["host", "middle", "guest"]);
    // The middle hypervisor's table is shadowed: what it maps, the lowest one is trapped for.
    let filled =
        twice.statistics.kernels[0].counters.shadow_fills + twice.statistics.kernels[0].counters.shadow_prefetches;
    assert!(filled >= twice.statistics.kernels[1].counters.faults_4k);
    assert!(twice.statistics.kernels[0].counters.shadow_unsyncs > 0);
    // Huge pages in the two hypervisors make the composed table's leaves huge.
    let huge = run(GUPS, &[HUGE_PAGES, HUGE_PAGES, SMALL_PAGES], "").unwrap();
    assert!(huge.row.host_references_per_walk < twice.row.host_references_per_walk);
}

#[test]
fn a_clustered_tlb_walks_less_where_neighbours_lie_together_and_goes_with_asap() {
    // 8192 pages, under half an L2 TLB of 1536 entries in clusters.
    const SMALL: &str = "kind = 'gups'\nfootprint = '32 MiB'\nwarm_accesses = 200000\nmeasured_accesses = 400000";
    let magnet = |more: &str| run(SMALL, &[SMALL_PAGES, "{ kind = 'ptemagnet' }"], more).unwrap().row;
    let (plain, clustered) = (magnet(""), magnet("clustered_tlb = true"));
    assert!(
        clustered.walks_per_kiloaccess.unwrap() < 0.9 * plain.walks_per_kiloaccess.unwrap(),
        "{clustered:?} against {plain:?}"
    );
    let text = |more: &str| {
        format!(
            "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n{more}\n[workload.generator]\n{SMALL}\n\
             [asap]\nguest_levels = [1]\nhost_levels = [1]\n[[kernels]]\ntables = {{ kind = 'asap' }}\n\
             [[kernels]]\nmanager = {{ kind = 'ptemagnet' }}\ntables = {{ kind = 'asap' }}\n"
        )
    };
    let asap = |more: &str| {
        nestwalk_machine::run(&text(more), Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(()))
            .unwrap()
            .row
    };
    let (without, with) = (asap(""), asap("clustered_tlb = true"));
    assert!(with.walks_per_kiloaccess.unwrap() < 0.95 * without.walks_per_kiloaccess.unwrap());
    assert!(with.walk_latency_cycles < clustered.walk_latency_cycles, "ASAP hides part of the walks that are left");
}

/// A run of the redis-like generator, whose accesses are mostly local.
fn redis(more: &str) -> RunResult {
    let text = format!(
        "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n{more}\n[workload.preset]\nname = 'redis-trace'\n\
         divide_footprint = 16\ndata_accesses = [100000, 100000]\n[[kernels]]\n[[kernels]]\n"
    );
    nestwalk_machine::run(&text, Path::new("t"), Path::new("."), &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_filter_of_one_way_a_set_changes_no_look_up_of_the_tlbs() {
    let (all, filtered) = (redis(""), redis("sampling = { filter = 'exact' }"));
    let mmu = |result: &RunResult| result.statistics.mmu.clone();
    assert_eq!(mmu(&all).tlb, mmu(&filtered).tlb);
    let pwcs = |result: &RunResult| [mmu(result).guest_pwc.clone(), mmu(result).host_pwc.clone()];
    assert_eq!(pwcs(&all), pwcs(&filtered));
    let total = |result: &RunResult| result.statistics.total;
    assert_eq!(total(&all).instructions, total(&filtered).instructions);
    assert_eq!(total(&all).walk_references, total(&filtered).walk_references);
    // Page-table lines lie among the data: their order in a set of the L1-D is not quite the same.
    let close = |a: u64, b: u64| a.abs_diff(b) <= a / 200;
    assert!(close(total(&all).walk_cycles, total(&filtered).walk_cycles));
    assert!(close(mmu(&all).caches.data_cycles, mmu(&filtered).caches.data_cycles));
}

#[test]
fn the_co_runner_makes_an_access_for_each_that_a_filter_absorbs() {
    let (all, filtered) =
        (redis("corunner = 'random'"), redis("corunner = 'random'\nsampling = { filter = 'default' }"));
    for result in [&all, &filtered] {
        let sum: u64 = result.statistics.mmu.caches.corunner.iter().sum();
        assert_eq!(sum, result.statistics.total.accesses);
    }
    // Beside it the L1-D loses lines between two uses: those of absorbed accesses, too.
    let data = |result: &RunResult| result.statistics.mmu.caches.data.map(|count| count as f64);
    let (served, expected) = (data(&filtered), data(&all));
    let cycles = |result: &RunResult| result.statistics.mmu.caches.data_cycles as f64;
    assert!((served[1] / expected[1] - 1.0).abs() < 0.05, "{served:?}, not {expected:?}");
    assert!((cycles(&filtered) / cycles(&all) - 1.0).abs() < 0.01);
    let (all, filtered) = (all.row, filtered.row);
    let off = |value: fn(&nestwalk_machine::result::Row) -> Option<f64>| {
        (value(&filtered).unwrap() / value(&all).unwrap() - 1.0).abs()
    };
    assert!(off(|row| row.walks_per_kiloaccess) < 0.01);
    assert!(off(|row| row.walk_latency_cycles) < 0.03);
}

/// The scenario of `workload` over kernels with `managers`, with `more` keys.
fn scenario(workload: &str, managers: &[&str], more: &str) -> String {
    let kernels: String = managers.iter().map(|m| format!("[[kernels]]\n{m}\n")).collect();
    format!("schema = 1\nname = 'test'\n{more}\n{workload}\n{kernels}")
}

fn parse(text: &str) -> Configuration {
    Configuration::parse(text, Path::new("test.toml")).unwrap()
}

fn populate(text: &str) -> Populated {
    Populated::new(&parse(text), Path::new("."), &mut |_| ControlFlow::Continue(())).unwrap()
}

fn run_text(text: &str) -> RunResult {
    nestwalk_machine::run(text, Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// One thread, and several.
const PROGRAMS: [&str; 2] = [
    "[workload.generator]\nkind = 'gups'\nfootprint = '128 MiB'\nwarm_accesses = 100000\nmeasured_accesses = 200000",
    "[workload.generator]\nkind = 'key_value'\nfootprint = '256 MiB'\nthreads = 3\nwarm_accesses = 60000\n\
     measured_accesses = 90000",
];

#[test]
fn a_machine_populated_for_other_hardware_gives_the_same_result_to_the_last_bit() {
    let asap = "manager = { kind = 'thp' }\ntables = { kind = 'asap' }";
    let small = "manager = { kind = 'linux4k' }";
    let plain = "machine = 'broadwell-asap'";
    let hardware = [
        "machine = 'broadwell-asap'\ncorunner = 'random'",
        "machine = 'broadwell-asap'\nclustered_tlb = true",
        "machine = 'broadwell-asap'\nasap = { guest_levels = [1, 2], host_levels = [1] }",
        "machine = 'broadwell-asap'\nsampling = { window = 5000 }",
    ];
    for program in PROGRAMS {
        for kernels in [&[asap, asap][..], &[small, "manager = { kind = 'ptemagnet' }"], &[small]] {
            let sorted = kernels[0] == asap;
            for more in hardware.iter().filter(|more| sorted || !more.contains("asap = ")) {
                let text = scenario(program, kernels, more);
                let shared =
                    populate(&scenario(program, kernels, plain)).run(parse(&text), &mut |_| ControlFlow::Continue(()));
                assert_eq!(json(&shared.unwrap()), json(&run_text(&text)), "{text}");
            }
        }
    }
}

#[test]
fn a_machine_is_not_shared_by_what_populates_memory_in_another_way() {
    let kernels = ["manager = { kind = 'linux4k' }", "manager = { kind = 'linux4k' }"];
    let plain = scenario(PROGRAMS[0], &kernels, "machine = 'broadwell-asap'");
    let beside = "machine = 'broadwell-asap'\n[[colocated]]\nworkload = { churn = { size = '1 MiB' } }";
    let others = [
        scenario(PROGRAMS[0], &kernels, "machine = 'broadwell-asap'\nseed = 2"),
        scenario(PROGRAMS[1], &kernels, "machine = 'broadwell-asap'"),
        scenario(PROGRAMS[0], &["manager = { kind = 'thp' }", kernels[1]], "machine = 'broadwell-asap'"),
        scenario(PROGRAMS[0], &kernels, "machine = 'broadwell-asap'\nsampling = { filter = 'default' }"),
        // Its clock has another frequency, and the clock wakes the daemons.
        scenario(PROGRAMS[0], &kernels, "machine = 'zen4'"),
        // Its kernels set the contiguous bit.
        scenario(PROGRAMS[0], &kernels, "machine = 'broadwell-asap'\ncontiguous_tlb = true"),
        // What is beside it uses the cores.
        scenario(PROGRAMS[0], &kernels, beside),
        scenario(PROGRAMS[0], &kernels, &format!("corunner = 'random'\n{beside}")),
    ];
    for (index, text) in others.iter().enumerate() {
        for other in others[..index].iter().chain([&plain]) {
            assert_ne!(parse(text).populated_by(), parse(other).populated_by(), "{text}\n{other}");
        }
    }
    let refused = populate(&plain).run(parse(&others[0]), &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(refused.contains("test.toml") && refused.contains("populated in another way"), "{refused}");
}

/// A store whose data fills the last-level cache (20 MiB) many times over, and whose values are
/// seldom asked for again.
fn store(more: &str, sampling: &str) -> RunResult {
    let program = format!(
        "[workload.generator]\nkind = 'key_value'\nfootprint = '1 GiB'\nlocal_permille = 0\nmeasured_accesses = 1000000\n{more}"
    );
    let kernels = ["manager = { kind = 'linux4k' }", "manager = { kind = 'linux4k' }"];
    run_text(&scenario(&program, &kernels, &format!("machine = 'broadwell-asap'\nsampling = {{ {sampling} }}")))
}

#[test]
fn a_warm_up_ends_when_nothing_drifts_and_not_before() {
    let open = store("", "");
    assert_eq!((open.warm_up.reached, open.warm_up.unavailable), (Some(true), None), "{:?}", open.warm_up);
    assert_eq!(open.warm_up.accesses, open.statistics.warm_accesses);
    assert!(open.warm_up.accesses < open.warm_up.accesses_max.unwrap());
    let latency = |result: &RunResult| result.row.walk_latency_cycles.unwrap();
    // Many times as long changes hardly anything; half a million accesses, by which runs were
    // warmed up before, do not do.
    let long = store(&format!("warm_accesses = {}", 4 * open.warm_up.accesses), "");
    let short = store("warm_accesses = 500000", "");
    assert_eq!((long.warm_up.reached, long.warm_up.accesses_max), (Some(true), None), "{:?}", long.warm_up);
    assert_eq!((short.warm_up.reached, short.warm_up.accesses), (Some(false), 500_000), "{:?}", short.warm_up);
    let off = |result: &RunResult| (latency(result) / latency(&long) - 1.0).abs();
    assert!(off(&open) < 0.03, "{} {}", latency(&open), latency(&long));
    assert!(off(&short) > 0.1, "{} {}", latency(&short), latency(&long));
}

#[test]
fn an_exclusive_cache_does_not_count_as_full_of_nothing_while_the_l2s_that_feed_it_fill() {
    // Before the 27.5 MiB of the last-level cache come 20 L2s of 1 MiB, and it is empty until then.
    let program = "[workload.generator]\nkind = 'transactions'\nfootprint = '30 GiB'\nthreads = 20\n\
                   measured_accesses = 100000";
    let kernels = ["manager = { kind = 'linux4k' }"];
    let warm_up = run_text(&scenario(program, &kernels, "machine = 'skylake-6138'")).warm_up;
    assert_eq!(warm_up.reached, Some(true));
    assert!(warm_up.drift.unwrap().llc_held > 0.95, "{warm_up:?}");
}

#[test]
fn a_warm_up_with_a_least_length_goes_on_until_then() {
    let open = store("", "");
    let ended = open.warm_up.accesses;
    let same = store("", &format!("warm_accesses_min = {ended}"));
    let counted = |result: &RunResult| serde_json::to_string(&result.statistics).unwrap();
    assert_eq!((same.warm_up, counted(&same)), (open.warm_up, counted(&open)), "it was warm by then");
    let longer = store("", &format!("warm_accesses_min = {}", 2 * ended));
    assert_eq!((longer.warm_up.reached, longer.warm_up.accesses), (Some(true), 2 * ended), "{:?}", longer.warm_up);
    let shorter = store("", &format!("warm_accesses_min = {}", ended / 4));
    assert_eq!(shorter.warm_up, open.warm_up, "it was not warm by then");
    let refused =
        run(GUPS, &[SMALL_PAGES], "sampling = { warm_accesses_min = 20, warm_accesses_max = 10 }").unwrap_err();
    assert!(
        refused.to_string().contains("warm_accesses_min (20) must not be above warm_accesses_max (10)"),
        "{refused}"
    );
    let bounded = store("", "warm_accesses_min = 500000, warm_accesses_max = 500000");
    assert_eq!(bounded.warm_up.reached, Some(false));
    assert!((500_000..520_000).contains(&bounded.warm_up.accesses), "{:?}", bounded.warm_up);
}

/// A native redis of which clients fill 64 MiB, under a manager.
fn fill(manager: &str, more: &str) -> RunResult {
    let program = format!(
        "[workload.generator]\nkind = 'key_value'\nfootprint = '96 MiB'\nvalue_bytes = 4096\nkey_bytes = 15\n\
         fill_requests = 20000\nfill_keys = 14000\n{more}"
    );
    let kernel = format!("memory = '256 MiB'\nmanager = {manager}");
    run_text(&scenario(&program, &[&kernel], "machine = 'broadwell-asap'"))
}

#[test]
fn a_server_that_is_filled_says_how_long_each_request_took() {
    let (small, huge) = (fill("{ kind = 'linux4k' }", ""), fill("{ kind = 'thp', enabled = 'always' }", ""));
    let [few, many] = [&huge, &small].map(|result| result.statistics.requests.as_ref().unwrap());
    for requests in [few, many] {
        assert_eq!((requests.count, requests.detailed), (20_000, 20 * 16));
        assert_eq!(requests.series_cycles.len(), 20_000_usize.div_ceil(128));
        assert_eq!(requests.series_cycles.iter().sum::<u64>(), requests.cycles);
        assert!(requests.cycles_p50 <= requests.cycles_p95 && requests.cycles_p99 <= requests.cycles_max);
    }
    // A huge page is zeroed in one request; with small pages many take a fault or two.
    assert!(few.cycles_max > 3 * many.cycles_p99, "{} and {}", few.cycles_max, many.cycles_p99);
    assert!(few.cycles < many.cycles, "{} and {}", few.cycles, many.cycles);
    // All kernel work of filling is in some request, and the network is in each.
    let kernel: u64 = small.whole_run.cycles.values().sum();
    let least = small.configuration.machine.timing.base_cycles_per_kiloinstruction * 5;
    assert!(many.cycles > kernel + 20_000 * least, "{} and {kernel}", many.cycles);
    let networked = fill("{ kind = 'linux4k' }", "network_instructions = 100000");
    let more = networked.statistics.requests.as_ref().unwrap().cycles_p50 - many.cycles_p50;
    let network = small.configuration.machine.timing.base_cycles_per_kiloinstruction * 100;
    assert!(more.abs_diff(network) * 50 < network, "{more} and {network}");
    // Windows are those of what was simulated in full.
    assert!(small.statistics.total.accesses < 20 * 16 * 5000, "{}", small.statistics.total.accesses);
}

#[test]
fn requests_of_a_steady_server_take_the_time_of_its_windows() {
    let made = store("warm_accesses = 0\nnetwork_instructions = 5000", "");
    let requests = made.statistics.requests.as_ref().unwrap();
    let cycles = made.statistics.total.cycles.total();
    // All but the request that is under way at the end.
    assert!(requests.cycles <= cycles && cycles - requests.cycles < cycles / 50, "{} of {cycles}", requests.cycles);
    assert_eq!(requests.count, requests.detailed);
    assert!(store("warm_accesses = 0", "").statistics.requests.is_none());
}

#[test]
fn a_warm_up_that_is_bounded_says_that_it_was_not_reached() {
    let bounded = store("", "warm_accesses_max = 1000000");
    assert_eq!((bounded.warm_up.reached, bounded.warm_up.accesses_max), (Some(false), Some(1_000_000)));
    assert!((1_000_000..1_020_000).contains(&bounded.warm_up.accesses), "{:?}", bounded.warm_up);
    assert!(bounded.warm_up.drift.unwrap().llc_held < 0.98, "{:?}", bounded.warm_up);
    assert_eq!(bounded.statistics.total.accesses, 1_000_000);
    let none = store("warm_accesses = 0", "");
    assert_eq!((none.warm_up.reached, none.warm_up.accesses, none.warm_up.drift), (Some(false), 0, None));
}

#[test]
fn a_filtered_program_is_told_that_it_is_warm_too() {
    let filtered = store("", "filter = 'default', warm_accesses_max = 2000000");
    assert_eq!(filtered.statistics.total.accesses, 1_000_000);
    assert!(filtered.warm_up.accesses < 2_100_000, "{:?}", filtered.warm_up);
}

/// A native run of `manager` on memory of which so much lies in no free 2 MiB block, `lapse_ms`
/// before it is measured.
fn run_fragmented(manager: &str, percent: u16, lapse_ms: u64) -> RunResult {
    let start = format!("start = {{ kind = 'frag', percent = {percent}, need = '64 MiB', wait_ms = 10000 }}");
    let text = format!(
        "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n[sampling]\nlapse_ms = {lapse_ms}\n\
         [workload.generator]\nkind = 'gups'\nfootprint = '64 MiB'\nwarm_accesses = 1100000\nmeasured_accesses = 100000\n\
         [[kernels]]\nmemory = '512 MiB'\nmanager = {manager}\n{start}\n"
    );
    nestwalk_machine::run(&text, Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Superpages that the program got in its whole run.
fn superpages(result: &RunResult) -> u64 {
    let counters = &result.whole_run.kernels[0].counters;
    let [faults, promotions, collapses] =
        ["faults_2m", "promotions", "collapses"].map(|name| counters.get(name).copied().unwrap_or_default());
    // Quicksilver's fault that completes a reservation promotes it, too.
    faults.max(promotions) + collapses
}

#[test]
fn on_fragmented_memory_only_those_get_superpages_who_make_room() {
    let made = |manager: &str| {
        let result = run_fragmented(manager, 100, 0);
        let started = result.contiguity[0].started;
        assert_eq!(started.blocks[9..].iter().all(|&count| count == 0), started.fragmentation_index_permille >= 0);
        superpages(&result)
    };
    assert_eq!(made("{ kind = 'freebsd' }"), 0, "it takes a block that is free, or none");
    assert_eq!(made("{ kind = 'thp', defrag = 'never' }"), 0, "nobody compacts");
    // The recipe's huge pages wait to be split, so that little is free: too little to compact for
    // the first 8 blocks, until kswapd is woken.
    assert_eq!(made("{ kind = 'thp', defrag = 'always' }"), 24, "the fault compacts, and all can be moved");
    assert_eq!(made("{ kind = 'quicksilver' }"), 32, "the daemon has emptied inactive reservations");
}

#[test]
fn time_that_passes_in_the_warm_up_lets_daemons_work_and_costs_none() {
    let run = |lapse_ms| run_fragmented("{ kind = 'hawkeye' }", 0, lapse_ms);
    let (none, some) = (run(0), run(25_000));
    assert_eq!(superpages(&none), 0);
    // Scans of 4096 pages, 8 blocks each, 10 s apart.
    assert!((8..=24).contains(&superpages(&some)), "{}", superpages(&some));
    assert_eq!(none.statistics.total.cycles.os, some.statistics.total.cycles.os, "none of it was measured");
}

const SHARDS: &str = "kind = 'shards'\nfootprint = '64 MiB'\nshards = 2\nloads = 4\nwarm_accesses = 200000\n\
                      measured_accesses = 200000";

#[test]
fn memory_that_is_given_back_is_faulted_in_again_and_the_run_has_a_length() {
    let run = |manager: &str| run(SHARDS, &[manager], "").unwrap();
    let (small, huge) = (run(SMALL_PAGES), run(HUGE_PAGES));
    // Four times but for the ranks, which stay.
    let pages = 64 << 8;
    assert!(small.whole_run.faults > 3 * pages && small.whole_run.faults < 4 * pages, "{}", small.whole_run.faults);
    // The ends of its mappings lie within blocks of 2 MiB: three mappings, four times.
    assert!(huge.whole_run.faults < 2 * 512 * 3 * 4, "{}", huge.whole_run.faults);
    assert!(huge.whole_run.faults * 10 < small.whole_run.faults, "{}", huge.whole_run.faults);
    for result in [&small, &huge] {
        assert_eq!(result.whole_run.unavailable, None);
        assert!(result.whole_run.accesses.unwrap() > 10 * 400_000);
    }
    assert_eq!(small.whole_run.accesses, huge.whole_run.accesses);
    assert!(huge.row.walks_per_kiloaccess < small.row.walks_per_kiloaccess);
    // What is promoted once all of it is used comes too late for most of it.
    let late = run("{ kind = 'freebsd' }");
    assert!(late.row.walks_per_kiloaccess > huge.row.walks_per_kiloaccess, "{:?}", late.row);
}
