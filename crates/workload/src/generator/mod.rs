// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are made up: streams of accesses computed from parameters and a seed.
//!
//! A generator pretends to own data and never stores it: what it would read there (the next pointer, the target of an edge,
//! the object of a key) it computes. So a 400 GB program costs no memory. Each file here is one program: its memory, the
//! order in which it fills it, and the accesses of its steady phase ([`program`]). The driver turns that into a
//! [`Workload`]: it maps the memory, yields first touches while populating, and then warm and measured accesses, with the
//! threads taking turns.
//!
//! Same parameters, same stream, on every machine: random numbers are xoshiro256++ on integers, and what floating point
//! there is (the zipf sampler) uses software functions with the same bits everywhere.

mod bijection;
mod config;
mod graph;
mod gups;
mod memory;
mod pointer_chase;
mod program;
mod stream;
mod zipf;
mod zipf_kv;

pub use graph::{GraphConfig, Traversal};
pub use gups::GupsConfig;
pub use pointer_chase::PointerChaseConfig;
pub use stream::StreamConfig;
pub use zipf_kv::ZipfKvConfig;

use serde::{Deserialize, Serialize};

use crate::stream::{Workload, WorkloadError};
use program::Driver;

/// A generator with its parameters, as written in a scenario: `kind = "gups"` and the keys of that kind.
///
/// All kinds have `footprint` (a size, `"4 GiB"`), `warm_accesses`, `measured_accesses` (of all threads together),
/// `threads` and `seed`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum GeneratorConfig {
    /// Random updates of a table.
    Gups(GupsConfig),
    /// Sequential triad over three arrays.
    Stream(StreamConfig),
    /// Dependent loads in one random cycle.
    PointerChase(PointerChaseConfig),
    /// A key-value store under skewed requests.
    ZipfKv(ZipfKvConfig),
    /// Traversal of a power-law graph.
    Graph(GraphConfig),
}

impl GeneratorConfig {
    /// All kinds, by the name that `kind` takes, with a line about each.
    pub const KINDS: &'static [(&'static str, &'static str)] = &[
        ("gups", "read-modify-write of random words of one table"),
        ("stream", "sequential triad over three arrays"),
        ("pointer_chase", "dependent loads in one random cycle through all lines or pages"),
        ("zipf_kv", "key-value store: hash index and values, zipf keys, GET and SET"),
        ("graph", "PageRank- or BFS-like traversal of a power-law graph"),
    ];

    /// Makes its seed depend on that of the run, whose 1 changes nothing.
    #[must_use]
    pub fn reseeded(mut self, seed: u64) -> Self {
        let own = match &mut self {
            Self::Gups(config) => &mut config.seed,
            Self::Stream(config) => &mut config.seed,
            Self::PointerChase(config) => &mut config.seed,
            Self::ZipfKv(config) => &mut config.seed,
            Self::Graph(config) => &mut config.seed,
        };
        *own = own.wrapping_add(seed.wrapping_sub(1));
        self
    }

    /// The program, at its beginning.
    ///
    /// # Errors
    /// [`WorkloadError::Parameter`] if a parameter is impossible.
    pub fn build(&self) -> Result<Box<dyn Workload>, WorkloadError> {
        Ok(match self {
            Self::Gups(config) => Box::new(Driver::new(config.common(), gups::Gups::new(config)?)?),
            Self::Stream(config) => Box::new(Driver::new(config.common(), stream::Stream::new(config)?)?),
            Self::PointerChase(config) => {
                Box::new(Driver::new(config.common(), pointer_chase::PointerChase::new(config)?)?)
            }
            Self::ZipfKv(config) => Box::new(Driver::new(config.common(), zipf_kv::ZipfKv::new(config)?)?),
            Self::Graph(config) => Box::new(Driver::new(config.common(), graph::Graph::new(config)?)?),
        })
    }
}

#[cfg(test)]
mod tests;
