// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures for Python: the plugin's stream in, a trace out.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nestwalk_machine::RunResult;
use nestwalk_machine::live::{self, LiveReport};
use nestwalk_workload::ModelledSample;
use nestwalk_workload::trace::capture::{self, Answer, Begin, CaptureOptions, Live};
use nestwalk_workload::trace::live::LiveOptions;
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{guarded, json, refuse};

/// How to capture, as `nestwalk.capture.session` writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    program: String,
    command: String,
    size: u64,
    precision: f64,
    whole: bool,
    begin_accesses: Option<u64>,
    begin_mark: Option<u64>,
    begin_told: bool,
    end_mark: Option<u64>,
    spool: Option<u64>,
    seed: u64,
}

impl Options {
    fn begin(&self) -> Begin {
        match (self.begin_mark, self.begin_accesses) {
            (Some(mark), _) => Begin::Mark(mark),
            (None, Some(access)) => Begin::Access(access),
            (None, None) if self.begin_told => Begin::Told,
            (None, None) => Begin::Auto,
        }
    }
}

impl From<Options> for CaptureOptions {
    fn from(options: Options) -> Self {
        let default = Self::default();
        Self {
            begin: options.begin(),
            program: options.program,
            command: options.command,
            size: options.size,
            precision: options.precision,
            whole: options.whole,
            end_mark: options.end_mark,
            spool: options.spool.unwrap_or(default.spool),
            seed: options.seed,
        }
    }
}

/// What came of a capture, as Python gets it.
#[derive(Serialize)]
struct Report {
    accesses: u64,
    bytes: u64,
    threads: u64,
    instructions: u64,
    footprint_bytes: u64,
    sampled_from: u64,
    windows: u64,
    window_accesses: u64,
    walk_latency_ci95: Option<f64>,
    walk_cycles_ci95: Option<f64>,
    model_off: Option<f64>,
    short_of_room: bool,
    over_size: bool,
    spooled_permille: u64,
    warning: Option<String>,
}

/// Python is asked at most so often: taking the GIL costs more than a block.
const BETWEEN_CALLS: Duration = Duration::from_millis(50);

/// Asks Python now and then what is to happen.
struct Listening {
    hear: Py<PyAny>,
    heard: Instant,
    raised: Option<PyErr>,
}

impl Listening {
    fn new(hear: Py<PyAny>) -> Self {
        Self { hear, heard: Instant::now(), raised: None }
    }

    fn hear(&mut self, now: Live) -> Answer {
        if self.heard.elapsed() < BETWEEN_CALLS && !now.ended {
            return Answer::GoOn;
        }
        self.heard = Instant::now();
        let answer = Python::attach(|py| {
            let told = (now.accesses, now.footprint_pages, now.walks, now.bytes, now.ended);
            self.hear.call1(py, told)?.extract::<u8>(py)
        });
        match answer {
            Ok(1) => Answer::GoOn,
            Ok(2) => Answer::Sample,
            Ok(_) => Answer::Abandon,
            Err(error) => {
                self.raised = Some(error);
                Answer::Abandon
            }
        }
    }

    /// What Python raised comes before what came of it.
    fn conclude<T>(self, outcome: PyResult<T>) -> PyResult<T> {
        self.raised.map_or(outcome, Err)
    }
}

/// How to follow a program, as `nestwalk.capture.session` writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Following {
    footprint: u64,
    threads: u16,
    /// Scenarios: their texts, and the files named in messages.
    runs: Vec<(String, PathBuf)>,
}

/// What came of a program that was followed.
#[derive(Serialize)]
struct Followed {
    accesses: u64,
    footprint_bytes: u64,
    warning: Option<String>,
    results: Vec<RunResult>,
}

/// Runs what comes from `source` under several scenarios (`following`, JSON), as `options` (JSON,
/// those of `capture`) say. `hear` is called as by `capture`. Bundled traces lie in `traces`.
#[pyfunction]
pub(crate) fn capture_live(
    py: Python<'_>,
    source: PathBuf,
    following: &str,
    options: &str,
    traces: PathBuf,
    hear: Py<PyAny>,
) -> PyResult<String> {
    let Following { footprint, threads, runs } = crate::from_json(following)?;
    let options: Options = crate::from_json(options)?;
    let options = LiveOptions {
        begin: options.begin(),
        program: options.program,
        footprint_bytes: footprint,
        threads,
        end_mark: options.end_mark,
    };
    guarded(py, || {
        let mut listening = Listening::new(hear);
        let outcome = live::run(&source, &runs, &options, &traces, &mut |now| listening.hear(now));
        let LiveReport { results, live, warning } = listening.conclude(outcome.map_err(refuse))?;
        json(&Followed { accesses: live.accesses, footprint_bytes: live.footprint_pages << 12, warning, results })
    })
}

/// Makes the trace `destination` of what comes from `source` as `options` (JSON) say. `hear` is
/// called with accesses, pages ever touched, misses of the model's TLB, bytes on disk, and whether
/// the last mark has come; it answers 0 to give up, 1 to go on, 2 to begin sampling.
#[pyfunction]
#[pyo3(name = "capture")]
pub(crate) fn capture_stream(
    py: Python<'_>,
    source: PathBuf,
    destination: PathBuf,
    options: &str,
    hear: Py<PyAny>,
) -> PyResult<String> {
    let options: Options = crate::from_json(options)?;
    guarded(py, || {
        let mut listening = Listening::new(hear);
        let outcome = capture::capture(&source, &destination, &options.into(), &mut |now| listening.hear(now));
        let done = listening.conclude(outcome.map_err(refuse))?;
        let sampling = done.metadata.sampling.unwrap_or_default();
        json(&Report {
            accesses: done.metadata.program_accesses,
            bytes: done.bytes,
            threads: done.metadata.threads,
            instructions: done.metadata.program_instructions,
            footprint_bytes: done.metadata.footprint_pages << 12,
            sampled_from: done.steady,
            windows: sampling.windows,
            window_accesses: sampling.window_accesses,
            walk_latency_ci95: done.latency_ci95,
            walk_cycles_ci95: done.cycles_ci95,
            model_off: sampling.modelled.as_ref().map(ModelledSample::off),
            short_of_room: done.short_of_room,
            over_size: done.over_size,
            spooled_permille: done.spooled_permille,
            warning: done.metadata.warning,
        })
    })
}
