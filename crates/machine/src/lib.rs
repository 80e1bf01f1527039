// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine that runs a program over one or more kernels, and what comes out.
//!
//! [`run`] takes a scenario (TOML, see [`Scenario`]) and returns a [`RunResult`]. The same scenario gives the same result to
//! the last bit.

use std::path::Path;

mod asap;
pub mod bench;
mod beside;
mod build;
pub mod by_name;
pub mod catalog;
mod clock;
pub mod colocated;
mod contiguity;
mod crowd;
pub mod dump;
mod error;
pub mod estimate;
pub mod guest;
mod hardware;
pub mod keys;
pub mod live;
pub mod machine_file;
mod member;
mod meter;
pub mod model;
mod neighbours;
pub mod paging;
pub mod patterns;
mod pieces;
pub mod places;
mod populated;
pub mod preset;
mod program;
pub mod ranges;
pub mod reserved;
pub mod result;
mod run;
mod sampler;
pub mod saved;
pub mod scenario;
mod schedule;
pub mod spread;
mod stack;
mod summary;
mod system;
mod timing;
pub mod touched;
pub mod warm_up;
pub mod whole;
mod windows;

pub use asap::AsapScenario;
pub use build::{bundled_traces, trace_path, workload};
pub use error::MachineError;
pub use model::model;
pub use populated::Populated;
pub use result::RunResult;
pub use run::{OnProgress, Progress};
pub use scenario::{Configuration, MachineConfig, Scenario};
pub use timing::{Cost, Costs, Timing};

/// Makes the run that `text` describes. `path` is the file that it comes from: it is named in messages, and its folder is where
/// relative paths begin. Bundled traces lie in the folder `traces`.
///
/// # Errors
/// When the scenario, or what it names, is not what it should be; when a simulated kernel is out of memory; when
/// `on_progress` breaks.
pub fn run(
    text: &str,
    path: &Path,
    traces: &Path,
    on_progress: &mut OnProgress<'_>,
) -> Result<RunResult, MachineError> {
    let configuration = Configuration::parse(text, path)?;
    Populated::new(&configuration, traces, on_progress)?.run(configuration, on_progress)
}
