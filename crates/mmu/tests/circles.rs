// SPDX-License-Identifier: MIT OR Apache-2.0
//! No files of this crate use each other in a circle.

#[path = "../../os/tests/sources/mod.rs"]
mod sources;

#[test]
fn no_files_use_each_other_in_a_circle() {
    let left = sources::Sources::read().in_circles();
    assert!(left.is_empty(), "in circles, or above one: {left:#?}");
}
