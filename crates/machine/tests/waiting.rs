// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that say which access needs which: how long they wait is sampled, and nothing else
//! changes.

use std::ops::ControlFlow;
use std::path::Path;

use nestwalk_machine::{Configuration, Populated, RunResult};

const SMALL_PAGES: &str = "{ kind = 'linux4k' }";
const HUGE_PAGES: &str = "{ kind = 'thp' }";
const SORTED: &str = "{ kind = 'linux4k' }\ntables = { kind = 'asap' }";
const UPDATES: &str = "kind = 'gups'\nfootprint = '256 MiB'\nwarm_accesses = 200000\nmeasured_accesses = 1000000";
const CHASE: &str =
    "kind = 'pointer_chase'\nfootprint = '256 MiB'\nwarm_accesses = 200000\nmeasured_accesses = 1000000";

/// The machine `broadwell-asap` with a core of 192 instructions, changed, as a file called `name`.
fn machine(name: &str, change: impl FnOnce(&mut toml::Table)) -> String {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.toml"));
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/broadwell-asap.toml"));
    let mut machine: toml::Table = text.unwrap().parse().unwrap();
    let core = "reorder_buffer = 192\nstore_buffer = 42\npage_walkers = 2\nlocked_cycles = 20";
    let timing = machine["timing"].as_table_mut().unwrap();
    timing.insert("out_of_order".to_owned(), core.parse::<toml::Table>().unwrap().into());
    change(&mut machine);
    std::fs::write(&file, machine.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

/// That machine as it is.
fn plain_core(name: &str) -> String {
    machine(name, |_| {})
}

fn core_with(name: &str, key: &str, value: i64) -> String {
    machine(name, |machine| {
        machine["timing"]["out_of_order"].as_table_mut().unwrap().insert(key.to_owned(), value.into());
    })
}

fn scenario(machine: &str, workload: &str, managers: &[&str], more: &str) -> String {
    let kernels: String = managers.iter().map(|m| format!("[[kernels]]\nmanager = {m}\n")).collect();
    format!("schema = 1\nname = 'test'\nmachine = '{machine}'\n{more}\n[workload.generator]\n{workload}\n{kernels}")
}

fn run(machine: &str, workload: &str, managers: &[&str], more: &str) -> RunResult {
    let text = scenario(machine, workload, managers, more);
    nestwalk_machine::run(&text, Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// All that a result has but times, and what they come from.
fn without_times(result: &RunResult) -> serde_json::Value {
    let mut statistics = serde_json::to_value(&result.statistics).unwrap();
    let forget = |place: &mut serde_json::Value| {
        place.as_object_mut().unwrap().remove("cycles");
    };
    forget(&mut statistics);
    statistics["windows"].as_array_mut().unwrap().iter_mut().for_each(forget);
    statistics.as_object_mut().unwrap().remove("waiting");
    statistics
}

#[test]
fn what_is_sampled_changes_nothing_but_times() {
    let core = plain_core("sampled");
    let shards = "kind = 'shards'\nfootprint = '64 MiB'\nthreads = 2\nmeasured_accesses = 2000000\nwarm_accesses = 0";
    let cases = [
        (UPDATES, &[SMALL_PAGES][..], ""),
        (CHASE, &[SMALL_PAGES, HUGE_PAGES], "corunner = 'random'"),
        (UPDATES, &[SORTED, SORTED], "[asap]\nguest_levels = [1, 2]\nhost_levels = [1, 2]"),
        (shards, &[HUGE_PAGES, SMALL_PAGES], ""),
    ];
    for (workload, managers, more) in cases {
        let sampled = run(&core, workload, managers, more);
        let plain = run("broadwell-asap", workload, managers, more);
        assert_eq!(without_times(&sampled), without_times(&plain), "{workload}");
        assert!(plain.statistics.waiting.is_none());
        assert!(sampled.statistics.waiting.unwrap().accesses >= 4096, "{:?}", sampled.statistics.waiting);
        assert_ne!(sampled.statistics.total.cycles, plain.statistics.total.cycles);
        assert_eq!(sampled.statistics.total.cycles.os, plain.statistics.total.cycles.os);
    }
}

#[test]
fn a_chase_of_pointers_hides_nothing_and_independent_updates_hide_most() {
    let core = plain_core("chased");
    let waiting = |workload| run(&core, workload, &[SMALL_PAGES], "").statistics.waiting.unwrap();
    let (chase, updates) = (waiting(CHASE), waiting(UPDATES));
    assert!(chase.data_overlap_permille.unwrap() <= 1, "{chase:?}");
    assert!(chase.walk_critical_permille.unwrap() >= 999, "{chase:?}");
    // With ten miss registers a tenth of the latency of data and walks is seen, less what
    // instructions take meanwhile; and two walkers keep up with that.
    assert!((900..=950).contains(&updates.data_overlap_permille.unwrap()), "{updates:?}");
    assert!(updates.walk_critical_permille.unwrap() <= 150, "{updates:?}");
}

#[test]
fn a_wider_core_waits_less() {
    let cycles = |machine: &str| {
        let cycles = run(machine, UPDATES, &[SMALL_PAGES], "").statistics.total.cycles;
        (cycles.work, cycles.data, cycles.walk)
    };
    let base = cycles(&plain_core("two-walkers"));
    let walkers = cycles(&core_with("six-walkers", "page_walkers", 6));
    assert_eq!((walkers.0, walkers.1), (base.0, base.1));
    assert!(walkers.2 < base.2 * 9 / 10, "{walkers:?} for {base:?}");
    let (narrow, wide) =
        (cycles(&core_with("narrow", "reorder_buffer", 24)), cycles(&core_with("wide", "reorder_buffer", 512)));
    assert!(narrow.1 > base.1 * 5 / 4 && wide.1 <= base.1, "{narrow:?}, {base:?}, {wide:?}");
}

#[test]
fn intervals_of_sampled_times_cover_those_of_a_long_run() {
    let long = UPDATES.replace("measured_accesses = 1000000", "measured_accesses = 20000000");
    let core = plain_core("covered");
    let cycles = |workload: &str, seed| {
        let row = run(&core, workload, &[SMALL_PAGES], &format!("seed = {seed}")).row;
        (row.cycles_per_access.unwrap(), row.cycles_per_access_ci95.unwrap())
    };
    let (truth, own) = cycles(&long, 1000);
    let runs: Vec<_> = (0..20).map(|seed| cycles(UPDATES, seed)).collect();
    let covered = runs.iter().filter(|(value, half)| (value - truth).abs() <= half + own).count();
    assert!(covered >= 18, "{covered} of 20 cover {truth} +- {own}: {runs:?}");
    assert!(runs.iter().all(|(value, half)| *half > 0.0 && half / value < 0.05), "{runs:?}");
}

#[test]
fn a_machine_populated_for_another_core_waits_as_its_own_does() {
    let parse = |machine: &str| {
        let text = scenario(machine, UPDATES, &[SMALL_PAGES], "");
        Configuration::parse(&text, Path::new("test.toml")).unwrap()
    };
    let ten = plain_core("ten-registers");
    let four = machine("four-registers", |machine| {
        machine["mmu"].as_table_mut().unwrap().insert("l1d_miss_registers".to_owned(), 4.into());
    });
    let populated = Populated::new(&parse(&ten), Path::new("."), &mut |_| ControlFlow::Continue(())).unwrap();
    let shared = populated.run(parse(&four), &mut |_| ControlFlow::Continue(())).unwrap().statistics;
    let own = run(&four, UPDATES, &[SMALL_PAGES], "").statistics;
    assert_eq!((shared.total, shared.waiting), (own.total, own.waiting));
    assert_ne!(shared.total.cycles, run(&ten, UPDATES, &[SMALL_PAGES], "").statistics.total.cycles);
}
