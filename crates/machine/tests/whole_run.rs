// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole run, from beginning to end: every fault and exit is counted once, and none is lost
//! between the measured part and the whole.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use nestwalk_machine::RunResult;
use nestwalk_os::OsCounters;

const GUPS: &str =
    "[workload.generator]\nkind = 'gups'\nfootprint = '64 MiB'\nwarm_accesses = 10000\nmeasured_accesses = 10000";
const PLAIN: &str = "[[kernels]]\nmanager = { kind = 'linux4k' }\n";

fn run(workload: &str, kernels: &str) -> RunResult {
    let text = format!("schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n{workload}\n{kernels}");
    let traces = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../data/traces");
    nestwalk_machine::run(&text, Path::new("test.toml"), &traces, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Cycles of all events of all kernels, worked out from the result's own counters and costs;
/// `under` says of which kernels (bottom first) each fault is an exit besides.
fn costs(result: &RunResult, under: &[bool]) -> u64 {
    let events = &result.configuration.costs.events;
    let cost = |name: &str| events.get(name).map_or(0, |cost| cost.cycles);
    let kernels = result.statistics.kernels.iter().zip(under);
    let per_kernel = kernels.map(|(kernel, &under)| {
        let each = |(name, count): (&&str, u64)| {
            let exit = if under && name.starts_with("faults_") { cost("vm_exit") } else { 0 };
            count * (cost(name) + exit)
        };
        OsCounters::NAMES.iter().zip(kernel.counters.values()).map(each).sum::<u64>()
    });
    per_kernel.sum()
}

#[test]
fn a_native_run_has_a_fault_for_every_page_and_no_exit() {
    let result = run(GUPS, PLAIN);
    let whole = &result.whole_run;
    assert!(whole.faults >= 64 << 8, "{whole:?}");
    assert_eq!((whole.exits, whole.kernels.len()), (0, 1));
    assert_eq!(whole.cycles.values().sum::<u64>() + whole.boot_cycles, costs(&result, &[false]));
    assert!(!whole.cycles.contains_key("exits"));
}

#[test]
fn in_a_vm_every_fault_of_the_host_is_an_exit() {
    let result = run(GUPS, &[PLAIN; 2].concat());
    let whole = &result.whole_run;
    assert_eq!(whole.exits, whole.kernels[0].faults);
    assert_eq!(whole.faults, whole.kernels[0].faults + whole.kernels[1].faults);
    assert_eq!(whole.kernels[0].cycles["exits"], whole.exits * result.configuration.costs.events["vm_exit"].cycles);
    assert_eq!(whole.cycles.values().sum::<u64>() + whole.boot_cycles, costs(&result, &[true, false]));
}

#[test]
fn a_shadow_table_is_paid_for_before_anything_is_measured() {
    let ept = run(GUPS, &[PLAIN; 2].concat());
    let shadow = run(GUPS, &format!("{PLAIN}paging = {{ kind = 'shadow' }}\n{PLAIN}"));
    assert_eq!(shadow.statistics.total.cycles.os, 0, "the steady state looks free");
    let cycles = |result: &RunResult| result.whole_run.cycles.values().sum::<u64>();
    assert!(cycles(&shadow) > cycles(&ept));
    assert!(shadow.whole_run.exits > 2 * ept.whole_run.exits);
    assert_eq!(cycles(&shadow) + shadow.whole_run.boot_cycles, costs(&shadow, &[false, false]));
}

#[test]
fn a_made_up_program_has_costs_but_no_length() {
    let whole = run(GUPS, PLAIN).whole_run;
    assert_eq!(whole.accesses, None);
    assert!(whole.unavailable.unwrap().starts_with("unavailable, because"));
}

#[test]
fn a_trace_stands_for_all_accesses_of_its_program() {
    let sampled = run("[workload]\ntrace = 'bfs'", &[PLAIN; 2].concat());
    let whole = &sampled.whole_run;
    assert!(whole.accesses.unwrap() > sampled.statistics.total.accesses + sampled.statistics.warm_accesses);
    assert!(whole.faults >= sampled.statistics.populated_pages);
    assert_eq!((&whole.unavailable, whole.estimated_cycles), (&None, 0));
    // Part of it only: fewer accesses, and the faults until then.
    let part =
        run("sampling = { measured_accesses_max = 100000 }\n[workload]\ntrace = 'bfs'", &[PLAIN; 2].concat()).whole_run;
    assert!(part.accesses < whole.accesses);
    assert!(part.faults <= whole.faults);
}

#[test]
fn exits_between_windows_are_as_frequent_as_in_them() {
    let result = run("[workload]\ntrace = 'bfs'", &format!("{PLAIN}paging = {{ kind = 'shadow' }}\n{PLAIN}"));
    let (whole, total) = (&result.whole_run, &result.statistics.total);
    assert!(whole.estimated_cycles > 0, "this program's windows have exits");
    // All kernel work of the windows, as often as they fit into the program, is more than what was
    // skipped after the first.
    let most = total.cycles.os as f64 / total.accesses as f64 * whole.accesses.unwrap() as f64;
    assert!((whole.estimated_cycles as f64) < most, "{} and {most}", whole.estimated_cycles);
}
