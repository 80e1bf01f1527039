// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs of the bundled traces on a whole machine, as `nestwalk run` makes them: decode, page
//! faults, simulation, results. What a sampled trace touches before its first window is set-up.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nestwalk_workload::{Batch, Step, Workload, WorkloadError, WorkloadFacts};

use super::{Watch, repeat};
use crate::configuration::Configuration;
use crate::error::MachineError;
use crate::populated::Populated;
use crate::workloads;

/// A benchmark: a bundled trace, on a machine or in a VM.
struct TraceRun {
    name: &'static str,
    /// As a scenario names it. `xz` is one of the whole traces.
    trace: &'static str,
    kernels: usize,
}

const fn run(name: &'static str, trace: &'static str, kernels: usize) -> TraceRun {
    TraceRun { name, trace, kernels }
}

const RUNS: [TraceRun; 6] = [
    run("trace_redis", "redis", 2),
    run("trace_redis_native", "redis", 1),
    run("trace_xz", "whole/xz.nwt", 2),
    run("trace_xz_native", "whole/xz.nwt", 1),
    run("trace_bfs", "bfs", 2),
    run("trace_bfs_native", "bfs", 1),
];

/// Whether `name` is one of these benchmarks.
pub(super) fn has(name: &str) -> bool {
    RUNS.iter().any(|run| run.name == name)
}

/// A program that ends early, and whose accesses are counted.
struct Limited {
    workload: Box<dyn Workload>,
    accesses_max: u64,
    /// Accesses in the file, not those that they stand for.
    accesses: Arc<AtomicU64>,
}

impl Workload for Limited {
    fn facts(&self) -> WorkloadFacts {
        self.workload.facts()
    }

    fn program_accesses(&self) -> Option<u64> {
        self.workload.program_accesses()
    }

    fn end_warm_up(&mut self) {
        self.workload.end_warm_up();
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        let done = self.accesses.load(Ordering::Relaxed);
        if done >= self.accesses_max {
            return Ok(Step::End);
        }
        let step = self.workload.next(batch)?;
        if step == Step::Accesses {
            let left = usize::try_from(self.accesses_max - done).unwrap_or(usize::MAX);
            batch.accesses.truncate(left);
            batch.absorbed.truncate(left);
            self.accesses.fetch_add(batch.accesses.len() as u64, Ordering::Relaxed);
        }
        Ok(step)
    }
}

/// Runs the trace of the benchmark `name` `repetitions` times; or, with a `stretch`, once as far as
/// `repetitions` stretches of so many accesses, so that one more repetition is one more stretch and
/// no set-up. Returns the accesses of a repetition.
///
/// # Errors
/// When the trace cannot be read.
pub(super) fn simulate(
    name: &str,
    stretch: Option<u64>,
    traces: &Path,
    repetitions: u32,
    watch: &mut dyn Watch,
) -> Result<u64, MachineError> {
    let (runs, accesses_max) = match stretch {
        None => (repetitions, u64::MAX),
        Some(stretch) => (1, stretch * u64::from(repetitions)),
    };
    let chosen = RUNS.iter().find(|run| run.name == name).expect("the caller asked whether there is one");
    let text = format!(
        "schema = 1\nname = '{name}'\nmachine = 'broadwell-asap'\n{}[workload]\ntrace = '{}'\n",
        "[[kernels]]\n".repeat(chosen.kernels),
        chosen.trace
    );
    // Paths in a scenario are relative to its file.
    let configuration = Configuration::parse(&text, &traces.join("bench.toml"))?;
    let on_progress = &mut |_| ControlFlow::Continue(());
    let accesses = Arc::new(AtomicU64::new(0));
    let prepare = || {
        accesses.store(0, Ordering::Relaxed);
        let workload = workloads::workload(&configuration, traces)?;
        let limited = Limited { workload, accesses_max, accesses: Arc::clone(&accesses) };
        Populated::of(Box::new(limited), &configuration, traces, on_progress).map(Some)
    };
    let all = repeat(runs, watch, prepare, |machine| {
        let populated = machine.take().expect("each machine runs once");
        populated.run(configuration.clone(), &mut |_| ControlFlow::Continue(()))?;
        Ok(accesses.load(Ordering::Relaxed))
    })?;
    Ok(all * u64::from(runs) / u64::from(repetitions.max(1)))
}

#[cfg(test)]
mod tests {
    use super::super::{Scale, Unwatched, work};
    use super::*;

    #[test]
    fn every_trace_is_bundled_and_has_two_stretches() {
        let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces");
        let stretch = Scale::SMALL.trace_stretch.unwrap();
        for run in &RUNS {
            let done = work(run.name, Scale::SMALL, 2, &traces, &mut Unwatched).unwrap();
            assert_eq!(done, (stretch, "accesses/s"), "{}", run.name);
        }
    }
}
