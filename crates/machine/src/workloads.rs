// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the workload that a scenario names.

use std::path::Path;

use nestwalk_workload::Workload;
use nestwalk_workload::churn::{Churn, ChurnConfig};
use nestwalk_workload::trace::{PlayOptions, TraceWorkload};

use crate::configuration::Configuration;
use crate::error::MachineError;
use crate::traces::trace_path;
use crate::workload_config::WorkloadConfig;

/// The measured program of `configuration`. Bundled traces lie in the folder `traces`.
///
/// # Errors
/// When there is no such trace, it cannot be read, or a generator's parameters are impossible.
pub fn workload(configuration: &Configuration, traces: &Path) -> Result<Box<dyn Workload>, MachineError> {
    open(&configuration.scenario.workload, configuration.scenario.seed, &configuration.base, traces)
}

/// The program that `config` describes, with the seed of a run.
///
/// # Errors
/// When there is no such trace, it cannot be read, or a generator's parameters are impossible.
pub fn open(config: &WorkloadConfig, seed: u64, base: &Path, traces: &Path) -> Result<Box<dyn Workload>, MachineError> {
    match config {
        WorkloadConfig::Generator(generator) => Ok(generator.clone().reseeded(seed).build()?),
        WorkloadConfig::Preset(choice) => Ok(choice.resolve(base)?.reseeded(seed).build()?),
        WorkloadConfig::Trace(name) => {
            let path = trace_path(name, base, traces)?;
            Ok(Box::new(TraceWorkload::open(&path, PlayOptions::default())?))
        }
        WorkloadConfig::Churn(churn) => {
            let seed = churn.seed.wrapping_add(seed.wrapping_sub(1));
            Ok(Box::new(Churn::new(&ChurnConfig { seed, ..churn.clone() })?))
        }
    }
}
