// SPDX-License-Identifier: MIT OR Apache-2.0
//! ASAP in a scenario: which levels its hardware prefetches, and how its range registers follow the kernels' regions.

use nestwalk_mmu::{Asap, Levels};
use serde::{Deserialize, Serialize};

/// ASAP's hardware (`[asap]` in a scenario). The kernels whose levels it prefetches need `tables = { kind = "asap" }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AsapScenario {
    /// Range registers a table. The paper has 8 to 16.
    #[serde(default = "sixteen")]
    pub registers: usize,
    /// Levels of the guest's table to prefetch, or of the only one: `[1]` is P1 (P1g in a VM), `[1, 2]` is P1+P2.
    #[serde(default)]
    pub guest_levels: Vec<u8>,
    /// Levels of the host's table: `[1]` is P1h.
    #[serde(default)]
    pub host_levels: Vec<u8>,
}

const fn sixteen() -> usize {
    16
}

impl AsapScenario {
    /// The hardware, its registers empty.
    ///
    /// # Errors
    /// What is impossible about it.
    pub(crate) fn build(&self) -> Result<Asap, String> {
        let levels = |key: &str, levels: &[u8]| {
            Levels::new(levels).ok_or_else(|| format!("asap: {key} = {levels:?}: levels are 1 (PTE) to 4"))
        };
        let (guest, host) = (levels("guest_levels", &self.guest_levels)?, levels("host_levels", &self.host_levels)?);
        Asap::new(self.registers, guest, host).map_err(|error| format!("asap: {error}"))
    }
}
