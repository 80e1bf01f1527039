// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values that a machine may keep to itself.

use serde::Serialize;

/// A value, or the sentence that says why it is not known. As JSON: the value itself, or
/// `{"unavailable": "..."}`.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Known<T> {
    /// The value.
    Is(T),
    /// Why there is none.
    Not {
        /// A whole sentence: `unavailable, because ...`.
        unavailable: String,
    },
}

impl<T> Known<T> {
    /// No value, because of `reason`, which continues the words "unavailable, because".
    pub fn not(reason: impl std::fmt::Display) -> Self {
        Self::Not { unavailable: format!("unavailable, because {reason}") }
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Not { .. } => None,
        }
    }

    /// Another value out of this one.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Known<U> {
        match self {
            Self::Is(value) => Known::Is(change(value)),
            Self::Not { unavailable } => Known::Not { unavailable },
        }
    }
}

impl<T> From<Result<T, String>> for Known<T> {
    fn from(result: Result<T, String>) -> Self {
        result.map_or_else(Self::not, Self::Is)
    }
}
