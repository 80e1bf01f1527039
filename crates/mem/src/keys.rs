// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers that a file may hold: each with its range, its unit, and why it may not be more.
//!
//! Who reads a number declares its key. Files are checked against the keys before they are read,
//! and the schemas and the pages about keys are made from them.

/// A number of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Key {
    /// Where it is: names separated by dots; `[]` behind an array whose elements all have it, `*`
    /// for any name.
    pub path: &'static str,
    /// The least that it may be.
    pub least: u64,
    /// The most that it may be.
    pub most: u64,
    /// What it counts. `bytes`: it may be written as a size, such as `"16 GiB"`.
    pub unit: &'static str,
    /// Why it may not be more.
    pub upper: Upper,
}

/// What sets the upper end of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(tag = "kind", content = "why", rename_all = "snake_case")]
pub enum Upper {
    /// The model, the architecture, or the file format: more cannot be.
    Limit(&'static str),
    /// Our judgement that no run needs more, so that slips of the pen are caught: may be raised
    /// where the key is declared.
    Assumption(&'static str),
}

impl std::fmt::Display for Upper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Limit(why) => write!(f, "a limit: {why}"),
            Self::Assumption(why) => write!(f, "an assumption: {why}"),
        }
    }
}

/// An upper end that cannot be raised.
pub const fn limit(why: &'static str) -> Upper {
    Upper::Limit(why)
}

/// An upper end that may be raised.
pub const fn assumed(why: &'static str) -> Upper {
    Upper::Assumption(why)
}

/// A number and its range.
pub const fn key(path: &'static str, least: u64, most: u64, unit: &'static str, upper: Upper) -> Key {
    Key { path, least, most, unit, upper }
}
