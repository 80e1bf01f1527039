// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which model of a machine this engine computes: two engines of the same model give the same
//! results to the last bit.
//!
//! Results are stored under a name that includes it (`nestwalk results`), so that those of another
//! model are not mistaken for its own.

/// The number of the model. A change that may change any counter of any run takes the next one:
/// `python/tests/test_golden.py` fails when stored counters change under a number that has been in
/// use.
pub const MODEL: u32 = 16;

/// A checksum of the engine's sources in builds that are no release, where the code may be ahead of
/// [`MODEL`]; else empty.
const BUILD: &str = env!("NESTWALK_BUILD");

/// The model in the names of results: `1` in a release, `1+0123456789abcdef` in a build from a
/// developer's tree.
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
