// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program under several configurations at once, while it runs: `nestwalk capture --live`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nestwalk_workload::trace::capture::{Answer, Live};
use nestwalk_workload::trace::live::{Follower, LiveOptions, broadcast};

use crate::configuration::Configuration;
use crate::error::MachineError;
use crate::populated::Populated;
use crate::result::RunResult;

/// What came of it.
#[derive(Debug)]
pub struct LiveReport {
    /// Of each configuration, in their order.
    pub results: Vec<RunResult>,
    /// How far the program came.
    pub live: Live,
    /// What a user has to know of the stream.
    pub warning: Option<String>,
}

/// Runs the accesses from `source`, the plugin's stream, under each of the scenarios `runs` (their
/// texts and files; their workloads are ignored). `hear` is called now and then.
///
/// # Errors
/// As for [`run`](crate::run) of any of them; when the source is damaged, or `hear` answered
/// [`Answer::Abandon`].
pub fn run(
    source: &Path,
    runs: &[(String, PathBuf)],
    options: &LiveOptions,
    traces: &Path,
    hear: &mut dyn FnMut(Live) -> Answer,
) -> Result<LiveReport, MachineError> {
    let parsed = runs.iter().map(|(text, path)| Configuration::parse(text, path));
    let configurations = parsed.collect::<Result<Vec<_>, _>>()?;
    let (stream, followers) = broadcast(options, configurations.len());
    let stop = AtomicBool::new(false);
    let (read, results) = std::thread::scope(|scope| {
        let machines: Vec<_> = configurations
            .into_iter()
            .zip(followers)
            .map(|(configuration, follower)| scope.spawn(|| one(configuration, follower, traces, &stop)))
            .collect();
        let read =
            stream.read(source, &mut |live| if stop.load(Ordering::Relaxed) { Answer::Abandon } else { hear(live) });
        if read.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        let results: Vec<_> = machines
            .into_iter()
            .map(|machine| machine.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        (read, results)
    });
    // The first failure: a machine that fails ends the reading, and a reading that fails ends the
    // machines.
    let (mut done, mut ended) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(result) => done.push(result),
            Err(error @ MachineError::Interrupted { .. }) => ended = Some(error),
            Err(error) => return Err(error),
        }
    }
    let (live, warning) = read?;
    match ended {
        Some(error) => Err(error),
        None => Ok(LiveReport { results: done, live, warning }),
    }
}

fn one(
    configuration: Configuration,
    follower: Follower,
    traces: &Path,
    stop: &AtomicBool,
) -> Result<RunResult, MachineError> {
    let mut on_progress = |_| match stop.load(Ordering::Relaxed) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let result = Populated::of(Box::new(follower), &configuration, traces, &mut on_progress)
        .and_then(|populated| populated.run(configuration, &mut on_progress));
    if result.is_err() {
        stop.store(true, Ordering::Relaxed);
    }
    result
}
