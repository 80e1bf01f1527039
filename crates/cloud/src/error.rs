// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a replay refuses. Each message is one line that names the place and the remedy.

use thiserror::Error;

/// Why a replay was not run to its end.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CloudError {
    /// The fleet cannot be built.
    #[error("fleet: {place}: {problem}")]
    Fleet {
        /// Which host group, or "the fleet".
        place: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// A request is not one of a VM.
    #[error("request {index}: {problem}")]
    Request {
        /// Its position among the requests, from 0.
        index: usize,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// An option is out of its range.
    #[error("option {option}: {problem}")]
    Option {
        /// Its key.
        option: &'static str,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// The caller's progress function returned false.
    #[error("interrupted after {events} events")]
    Interrupted {
        /// Events that were replayed.
        events: u64,
    },
}

impl CloudError {
    pub(crate) fn option(option: &'static str, problem: impl Into<String>) -> Self {
        Self::Option { option, problem: problem.into() }
    }
}
