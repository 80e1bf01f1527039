// SPDX-License-Identifier: MIT OR Apache-2.0
//! The floors of this crate: a module uses what lies on lower floors only, and no files use each
//! other in a circle.

mod sources;

use sources::Sources;

/// From the ground up. A folder is one module here.
const FLOORS: &[&[&str]] = &[
    &["counters", "id", "keys", "fragmentation"],
    &["alignment", "error"],
    &["below", "state"],
    &["context"],
    &["manager", "tables"],
    &["config"],
    &["kernel"],
    &["op", "shadow"],
];

fn floor(module: &str) -> usize {
    let top = module.split("::").next().unwrap_or(module);
    let at = FLOORS.iter().position(|floor| floor.contains(&top));
    at.unwrap_or_else(|| panic!("{module} is on no floor: name it in FLOORS"))
}

#[test]
fn a_module_uses_lower_floors_only() {
    let mut arrows = 0;
    for (module, uses) in &Sources::read().0 {
        for used in uses {
            let within = module.split("::").next() == used.split("::").next();
            assert!(within || floor(used) < floor(module), "{module} uses {used}, which is not below it");
            arrows += usize::from(!within);
        }
    }
    assert!(arrows > 100, "only {arrows} uses were found: this test does not see them any more");
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let left = Sources::read().in_circles();
    assert!(left.is_empty(), "in circles, or above one: {left:#?}");
}
