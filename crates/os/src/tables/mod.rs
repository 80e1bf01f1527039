// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where page-table nodes are put: one file a technique.
//!
//! Each is a [`TablePlacement`].

pub mod asap;
pub mod buddy;
pub mod hugegpt;
pub mod scattered;

use serde::{Deserialize, Serialize};

pub use crate::context::placement::{NodeKey, TableContext, TablePlacement, TableRegion};

/// Which placement, and its parameters.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum TablesConfig {
    /// Wherever the buddy allocator puts them, as Linux does.
    #[default]
    #[serde(deserialize_with = "crate::keys::no_keys")]
    Buddy,
    /// At random places all over memory.
    Scattered(scattered::ScatteredConfig),
    /// In 2 MiB regions that the host backs by huge pages.
    HugeGpt(hugegpt::HugeGptConfig),
    /// Sorted, in regions set aside for each mapping.
    Asap(asap::AsapConfig),
}

impl TablesConfig {
    /// Every placement, with default parameters: what lists show and the contract tests go over.
    pub fn all() -> Vec<Self> {
        vec![
            Self::Buddy,
            Self::Scattered(scattered::ScatteredConfig::default()),
            Self::HugeGpt(hugegpt::HugeGptConfig::default()),
            Self::Asap(asap::AsapConfig::default()),
        ]
    }

    /// Makes the placement.
    pub fn build(&self) -> Box<dyn TablePlacement> {
        match self {
            Self::Buddy => Box::new(buddy::Buddy),
            Self::Scattered(config) => Box::new(scattered::Scattered::new(*config)),
            Self::HugeGpt(config) => Box::new(hugegpt::HugeGpt::new(*config)),
            Self::Asap(config) => Box::new(asap::Asap::new(*config)),
        }
    }
}
