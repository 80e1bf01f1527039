// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which model of a machine this engine computes: two engines of the same model give the same results to the last bit.
//!
//! Results are kept under a name that holds it (`nestwalk results`), so that those of another model are never taken for its own.

/// The number of the model. Each change that may change any counter of any run takes the next one:
/// `python/tests/test_golden.py` fails when the stored counters were changed under a number that has been in use.
pub const MODEL: u32 = 1;

/// A number of the engine's sources in a build that is no release, where the code may be ahead of [`MODEL`]; else empty.
const BUILD: &str = env!("NESTWALK_BUILD");

/// The model, as results are kept under: `1` of a release, `1+0123456789abcdef` of a build from a developer's tree.
pub fn model() -> String {
    if BUILD.is_empty() { MODEL.to_string() } else { format!("{MODEL}+{BUILD}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_developers_build_is_no_release() {
        let model = model();
        let (number, build) = model.split_once('+').unwrap_or((&model, ""));
        assert_eq!(number, MODEL.to_string());
        assert!(build.is_empty() || build.len() == 16, "{model}");
    }
}
