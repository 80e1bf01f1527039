// SPDX-License-Identifier: MIT OR Apache-2.0
//! The floors of this crate: a module uses what lies on its own floor or below, and no files use
//! each other in a circle.

#[path = "../../os/tests/sources/mod.rs"]
mod sources;

use sources::Sources;

/// From the ground up, each with its name. A module that is not named is on the floor of the
/// nearest folder that is.
const FLOORS: &[(&str, &[&str])] = &[
    ("the stream that a program is", &["modelled", "stream"]),
    ("programs that are generated", &["chase", "churn", "generator"]),
    (
        "parts of the trace format",
        &[
            "trace::block",
            "trace::encode",
            "trace::event",
            "trace::filtered",
            "trace::format",
            "trace::index",
            "trace::log",
            "trace::predict",
            "trace::sites",
            "trace::varint",
        ],
    ),
    (
        "what is done with accesses",
        &[
            "trace::collapse",
            "trace::destination",
            "trace::filter",
            "trace::metadata",
            "trace::pages",
            "trace::sample",
            "trace::source",
            "trace::space",
            "trace::stack",
        ],
    ),
    ("reader and writer", &["trace::reader", "trace::writer"]),
    ("plans of what is kept", &["trace::capture::model", "trace::capture::planner"]),
    ("recorder and player", &["trace::play", "trace::recorder"]),
    ("converters", &["trace::convert"]),
    (
        "commands",
        &[
            "filtered",
            "locality",
            "trace",
            "trace::capture",
            "trace::guest",
            "trace::head",
            "trace::inspect",
            "trace::live",
            "trace::profile",
        ],
    ),
];

fn floor(module: &str) -> usize {
    let named = |name: &str| FLOORS.iter().position(|(_, modules)| modules.contains(&name));
    let mut name = module;
    loop {
        if let Some(floor) = named(name) {
            return floor;
        }
        // All of the crate's root and of `trace` is named.
        name = match name.rsplit_once("::") {
            Some((folder, _)) if folder != "trace" => folder,
            _ => panic!("{module} is on no floor: name it in FLOORS"),
        };
    }
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
