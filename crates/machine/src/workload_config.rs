// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program is, as a scenario says it.

use nestwalk_workload::{ChurnConfig, GeneratorConfig};
use serde::{Deserialize, Serialize};

use crate::preset::PresetChoice;

/// The program of a scenario.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum WorkloadConfig {
    /// A trace: a bundled one by name, or a file (relative to the scenario).
    Trace(String),
    /// A generator with its parameters.
    Generator(GeneratorConfig),
    /// A preset by name or file, as it is or with other parameters. It is resolved to its generator
    /// when the scenario is read.
    Preset(PresetChoice),
    /// Memory that is allocated and freed without end, and nothing else. Only beside another
    /// program.
    Churn(ChurnConfig),
}
