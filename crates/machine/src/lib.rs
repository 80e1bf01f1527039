// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine that runs a program over one or more kernels, and what comes out.
//!
//! [`run`] takes a scenario (TOML, see [`Scenario`]) and returns a [`RunResult`]. The same scenario
//! gives the same result to the last bit.

use std::path::Path;

mod accesses;
mod assembly;
pub mod bench;
mod build;
pub mod by_name;
pub mod catalog;
mod chain;
mod checks;
mod clock;
pub mod colocated;
mod companions;
mod configuration;
mod contiguity;
pub mod dump;
mod error;
pub mod estimate;
pub mod guest;
mod hardware;
mod kernel_scenario;
pub mod keys;
pub mod live;
mod lower_kernels;
mod machine;
pub mod machine_file;
mod meter;
pub mod model;
mod observer;
mod out_of_order;
pub mod paging;
pub mod patterns;
mod pieces;
pub mod places;
mod plans;
mod platform;
mod populated;
pub mod preset;
mod process_family;
mod progress;
mod range_registers;
pub mod ranges;
pub mod requests;
pub mod reserved;
mod restore;
pub mod result;
mod run;
mod sampler;
pub mod saved;
pub mod scenario;
mod schedule;
pub mod spread;
mod stack;
mod stream;
mod summary;
mod tenant;
#[cfg(test)]
mod testing;
mod timing;
pub mod touched;
mod traces;
pub mod waiting;
mod walk_time;
pub mod warm_up;
pub mod whole;
pub mod windows;
mod workload_config;
mod workloads;

pub use configuration::Configuration;
pub use error::MachineError;
pub use model::model;
pub use populated::Populated;
pub use progress::{OnProgress, Progress};
pub use result::RunResult;
pub use scenario::{MachineConfig, Scenario};
pub use timing::{Cost, Costs, Timing};
pub use traces::{bundled_traces, trace_path};
pub use workload_config::WorkloadConfig;
pub use workloads::{open as open_workload, workload};

/// Makes the run that `text` describes. `path` is the file that it comes from: it is named in
/// messages, and its folder is where relative paths begin. Bundled traces lie in the folder
/// `traces`.
///
/// # Errors
/// When the scenario, or what it names, is not what it should be; when a simulated kernel is out of
/// memory; when `on_progress` breaks.
pub fn run(
    text: &str,
    path: &Path,
    traces: &Path,
    on_progress: &mut OnProgress<'_>,
) -> Result<RunResult, MachineError> {
    let configuration = Configuration::parse(text, path)?;
    Populated::new(&configuration, traces, on_progress)?.run(configuration, on_progress)
}
