// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs beside the measured one: what they change, what they must not, and which mixes are
//! refused.

use std::ops::ControlFlow;
use std::path::Path;

use nestwalk_machine::{MachineError, RunResult};

const PROGRAM: &str = "kind = 'gups'\nfootprint = '64 MiB'\nwarm_accesses = 20000\nmeasured_accesses = 100000";
/// Its pages fit into the second-level TLB, its data do not fit into the L2 cache.
const SMALL_PROGRAM: &str =
    "kind = 'pointer_chase'\nfootprint = '4 MiB'\nwarm_accesses = 100000\nmeasured_accesses = 100000";
/// By then it has its memory: 4096 faults of guest and host, some 9400 cycles each.
const LEAD_MS: u64 = 18;
const VM: &str = "[[kernels]]\n[[kernels]]\n";
const CHURN: &str = "[[colocated]]\nworkload.churn = { size = '4 MiB' }\n";
/// Its pages do not fit into the second-level TLB, and it makes accesses for as long as the program
/// runs.
const NEIGHBOUR: &str =
    "[[colocated]]\nworkload.generator = { kind = 'gups', footprint = '16 MiB', measured_accesses = 1000000000 }\n";

fn run(program: &str, kernels: &str, more: &str) -> Result<RunResult, MachineError> {
    run_after(0, program, kernels, more)
}

/// The same after the others have run for `lead_ms`.
fn run_after(lead_ms: u64, program: &str, kernels: &str, more: &str) -> Result<RunResult, MachineError> {
    let text = format!(
        "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\ncolocated_lead_ms = {lead_ms}\n[workload.generator]\n{program}\n{kernels}{more}"
    );
    nestwalk_machine::run(&text, Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(()))
}

fn json(result: &RunResult) -> String {
    serde_json::to_string(&result.statistics).unwrap()
}

fn fragmentation(result: &RunResult) -> f64 {
    result.row.host_pt_fragmentation.unwrap()
}

#[test]
fn the_same_mix_gives_the_same_result_to_the_last_bit() {
    let mix = format!("{CHURN}count = 3\n{NEIGHBOUR}vm = 'own'\n{NEIGHBOUR}cores = 'smt'\n");
    let once = run(PROGRAM, VM, &mix).unwrap();
    assert_eq!(json(&once), json(&run(PROGRAM, VM, &mix).unwrap()));
    assert_eq!(once.statistics.colocated.len(), 3);
    assert!(once.statistics.colocated.iter().all(|one| one.touches + one.accesses > 1000));
}

#[test]
fn co_runners_of_the_same_kernel_scatter_memory_and_ptemagnet_keeps_it_together() {
    let few_cpus = |manager: &str| format!("[[kernels]]\n[[kernels]]\ncpus = 2\nmanager = {{ kind = '{manager}' }}\n");
    let crowd = format!("{CHURN}count = 8\n");
    let alone = run(PROGRAM, &few_cpus("linux4k"), "").unwrap();
    let stock = run(PROGRAM, &few_cpus("linux4k"), &crowd).unwrap();
    let magnet = run(PROGRAM, &few_cpus("ptemagnet"), &crowd).unwrap();
    assert!(fragmentation(&alone) <= 2.0, "{}", fragmentation(&alone));
    assert!(fragmentation(&stock) > 4.0, "{}", fragmentation(&stock));
    let packed = magnet.host_pt_fragmentation.as_ref().unwrap();
    assert_eq!(packed.distribution[0], packed.groups, "order-3 blocks last here, so every group is packed");
    let fallbacks = magnet.statistics.kernels[1].manager_counters["fallbacks"];
    assert_eq!(fallbacks, 0);
    let reserved = &magnet.statistics.reserved;
    assert!(reserved.maximum_frames > 0 && reserved.series.len() > 2, "{reserved:?}");
    assert_eq!(stock.statistics.reserved.maximum_frames, 0);
}

#[test]
fn another_vm_leaves_guest_frames_alone() {
    let alone = run(PROGRAM, VM, "").unwrap();
    let beside = run(PROGRAM, VM, &format!("{CHURN}vm = 'own'\ncount = 2\n")).unwrap();
    let spread = |result: &RunResult| result.host_pt_fragmentation.clone().unwrap().distribution;
    assert_eq!(spread(&alone), spread(&beside));
    assert_eq!(alone.row.walks_per_kiloaccess, beside.row.walks_per_kiloaccess);
    assert!(beside.statistics.colocated[0].kernels.len() == 2, "its own kernel and the host");
}

#[test]
fn neighbours_on_their_own_cores_take_cache_and_no_tlb() {
    let alone = run(SMALL_PROGRAM, VM, "").unwrap();
    let from_memory = |result: &RunResult| result.statistics.mmu.caches.data[3];
    for place in ["vm = 'own'", "vm = 'same'"] {
        // Between two uses of a line by the program, twelve bring in more lines than the last-level
        // cache has.
        let beside = run_after(LEAD_MS, SMALL_PROGRAM, VM, &format!("{NEIGHBOUR}count = 12\n{place}\n")).unwrap();
        assert_eq!(alone.row.walks_per_kiloaccess, beside.row.walks_per_kiloaccess, "{place}");
        let (before, after) = (from_memory(&alone), from_memory(&beside));
        assert!(after > before + 10_000, "{place}: {after} of its accesses went to memory, {before} alone");
        assert_eq!(beside.statistics.total.accesses, 100_000, "only the program's accesses are measured");
        assert!(beside.statistics.colocated[0].mmu.as_ref().unwrap().walk_cycles > 0);
    }
}

#[test]
fn the_second_thread_of_a_core_takes_tlb_entries_too() {
    let alone = run(SMALL_PROGRAM, VM, "").unwrap();
    let own = run_after(LEAD_MS, SMALL_PROGRAM, VM, NEIGHBOUR).unwrap();
    let shared = run_after(LEAD_MS, SMALL_PROGRAM, VM, &format!("{NEIGHBOUR}cores = 'smt'\n")).unwrap();
    assert_eq!(alone.row.walks_per_kiloaccess, own.row.walks_per_kiloaccess);
    let walks = |result: &RunResult| result.row.walks_per_kiloaccess.unwrap();
    assert!(walks(&shared) > walks(&alone) + 10.0, "{} {}", walks(&shared), walks(&alone));
    assert_eq!(shared.statistics.total.accesses, 100_000, "the other thread's accesses are not the program's");
    let accesses = shared.statistics.colocated[0].mmu.as_ref().unwrap().tlb.accesses;
    assert!(accesses > 10_000, "{accesses}");
}

#[test]
fn who_runs_until_the_memory_is_populated_is_gone_afterwards() {
    let mix = |until: &str| format!("{CHURN}count = 4\nuntil = '{until}'\n");
    let populated = run(PROGRAM, VM, &mix("populated")).unwrap();
    let end = run(PROGRAM, VM, &mix("end")).unwrap();
    let touches = |result: &RunResult| result.statistics.colocated[0].touches;
    assert!(touches(&populated) > 0 && touches(&populated) < touches(&end));
    let free = |result: &RunResult| result.statistics.kernels[1].free_frames;
    assert!(free(&populated) > free(&end));
}

#[test]
fn those_that_lead_run_before_the_program() {
    let touches = |lead_ms| run_after(lead_ms, PROGRAM, VM, CHURN).unwrap().statistics.colocated[0].touches;
    // A fault of the guest, with one of the host, takes some 4 us: 20 ms are thousands.
    assert!(touches(20) > touches(0) + 2000, "{} {}", touches(20), touches(0));
}

#[test]
fn a_program_that_has_ended_begins_anew() {
    let short = "[[colocated]]\nworkload.generator = { kind = 'gups', footprint = '1 MiB', warm_accesses = 0, measured_accesses = 2000 }\n";
    let result = run(PROGRAM, VM, short).unwrap();
    assert!(result.statistics.colocated[0].restarts > 3, "{}", result.statistics.colocated[0].restarts);
}

#[test]
fn natively_too() {
    let mix = format!("{CHURN}count = 2\n{NEIGHBOUR}vm = 'own'\n");
    let result = run(PROGRAM, "[[kernels]]\n", &mix).unwrap();
    assert_eq!(result.row.host_references_per_walk, Some(0.0));
    assert!(result.statistics.colocated[1].host_pt_fragmentation.is_some(), "it runs in a VM, the program does not");
    assert!(result.statistics.colocated[0].host_pt_fragmentation.is_none());
}

#[test]
fn impossible_mixes_are_refused_in_one_line() {
    let refused = |more: &str, expected: &str| {
        let message = run(PROGRAM, VM, more).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    };
    refused(&format!("{CHURN}count = 0"), "count = 0");
    refused(&format!("{CHURN}cores = 'own'"), "churn makes no accesses");
    refused(&format!("{CHURN}kernel = {{ levels = 5 }}"), "give vm = \"own\"");
    refused(&format!("{CHURN}vm = 'own'\nkernel = {{ levels = 3 }}"), "levels = 3");
    refused(&format!("{CHURN}vm = 'other'"), "unknown variant `other`");
    refused("[[colocated]]\nworkload.churn = { size = '4 KiB' }", "64 KiB");
    refused(&format!("{NEIGHBOUR}cores = 'smt'\ncount = 2"), "hardware threads");
    let text = "schema = 1\nname = 'x'\nmachine = 'zen4'\nworkload.churn = { size = '4 MiB' }\n[[kernels]]\n";
    let error = nestwalk_machine::run(text, Path::new("x"), Path::new("."), &mut |_| ControlFlow::Continue(()));
    assert!(error.unwrap_err().to_string().contains("give it as [[colocated]]"));
}

#[test]
fn hawkeye_hears_of_the_walks_of_all_programs_of_its_kernel() {
    let rounds = |metric: &str| {
        let hawkeye = format!(
            "[[kernels]]\ncpus = 2\nmanager = {{ kind = 'hawkeye', metric = '{metric}', sample_sleep_ms = 10, \
             sample_ms = 10, scan_sleep_ms = 10, measure_sleep_ms = 10, measure_ms = 10, measured_min = '1 MiB' }}\n"
        );
        let program = PROGRAM.replace("measured_accesses = 100000", "measured_accesses = 3000000");
        let result = run_after(2 * LEAD_MS, &program, &hawkeye, NEIGHBOUR).unwrap();
        let counters = &result.statistics.kernels[0].manager_counters;
        (counters["rounds_by_overhead"], counters["measurements"])
    };
    let (by_overhead, by_coverage) = (rounds("overhead"), rounds("coverage"));
    assert!(by_overhead.0 > 0 && by_overhead.1 > 0, "{by_overhead:?}");
    assert_eq!(by_coverage, (0, 0));
}
