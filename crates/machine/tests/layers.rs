// SPDX-License-Identifier: MIT OR Apache-2.0
//! The floors of this crate: a module uses what lies on its own floor or below, and no files use
//! each other in a circle.

#[path = "../../os/tests/sources/mod.rs"]
mod sources;

use sources::Sources;

/// From the ground up, each with its name. A folder is one module here.
const FLOORS: &[(&str, &[&str])] = &[
    (
        "ground",
        &["by_name", "clock", "dump", "error", "estimate", "model", "places", "ranges", "reserved", "spread", "traces"],
    ),
    (
        "configuration",
        &[
            "asap",
            "catalog",
            "checks",
            "colocated",
            "configuration",
            "kernel_scenario",
            "keys",
            "machine_file",
            "out_of_order",
            "paging",
            "preset",
            "scenario",
            "timing",
            "workload_config",
            "workloads",
        ],
    ),
    (
        "kernels and cores",
        &[
            "accesses",
            "build",
            "chain",
            "hardware",
            "lower_kernels",
            "meter",
            "platform",
            "range_registers",
            "restore",
            "stack",
            "waiting",
            "walk_time",
        ],
    ),
    ("tenant", &["plans", "process_family", "stream", "tenant"]),
    ("schedule", &["schedule"]),
    ("machine", &["assembly", "machine"]),
    (
        "run",
        &[
            "companions",
            "contiguity",
            "observer",
            "pieces",
            "populated",
            "progress",
            "requests",
            "result",
            "run",
            "sampler",
            "summary",
            "warm_up",
            "whole",
            "windows",
        ],
    ),
    ("uses of it", &["bench", "guest", "live", "patterns", "saved", "testing", "touched"]),
];

fn floor(module: &str) -> usize {
    let top = module.split("::").next().unwrap_or(module);
    let at = FLOORS.iter().position(|(_, modules)| modules.contains(&top));
    at.unwrap_or_else(|| panic!("{module} is on no floor: name it in FLOORS"))
}

#[test]
fn a_module_uses_no_higher_floor() {
    let mut arrows = 0;
    for (module, uses) in &Sources::read().0 {
        for used in uses {
            let (from, to) = (floor(module), floor(used));
            assert!(to <= from, "{module} ({}) uses {used} ({}), which is above it", FLOORS[from].0, FLOORS[to].0);
            arrows += usize::from(to < from);
        }
    }
    assert!(arrows > 100, "only {arrows} uses were found: this test does not see them any more");
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let left = Sources::read().in_circles();
    assert!(left.is_empty(), "in circles, or above one: {left:#?}");
}
