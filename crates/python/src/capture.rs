// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures for Python: the plugin's stream in, a trace out.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nestwalk_workload::trace::capture::{self, Answer, Begin, CaptureOptions, Live};
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

impl From<Options> for CaptureOptions {
    fn from(options: Options) -> Self {
        let default = Self::default();
        Self {
            begin: match (options.begin_mark, options.begin_accesses) {
                (Some(mark), _) => Begin::Mark(mark),
                (None, Some(access)) => Begin::Access(access),
                (None, None) if options.begin_told => Begin::Told,
                (None, None) => Begin::Auto,
            },
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
    short_of_room: bool,
    over_size: bool,
    spooled_permille: u64,
    warning: Option<String>,
}

/// Python is asked at most so often: taking the GIL costs more than a block.
const BETWEEN_CALLS: Duration = Duration::from_millis(50);

/// Makes the trace `destination` of what comes from `source` as `options` (JSON) say. `hear` is called with accesses, pages
/// ever touched, misses of the model's TLB, bytes on disk, and whether the last mark has come; it answers 0 to give up, 1 to go
/// on, 2 to begin sampling.
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
        let (mut heard, mut raised) = (Instant::now(), None);
        let mut listen = |now: Live| {
            if heard.elapsed() < BETWEEN_CALLS && !now.ended {
                return Answer::GoOn;
            }
            heard = Instant::now();
            let answer = Python::attach(|py| {
                let told = (now.accesses, now.footprint_pages, now.walks, now.bytes, now.ended);
                hear.call1(py, told)?.extract::<u8>(py)
            });
            match answer {
                Ok(1) => Answer::GoOn,
                Ok(2) => Answer::Sample,
                Ok(_) => Answer::Abandon,
                Err(error) => {
                    raised = Some(error);
                    Answer::Abandon
                }
            }
        };
        let outcome = capture::capture(&source, &destination, &options.into(), &mut listen);
        if let Some(raised) = raised {
            return Err(raised);
        }
        let done = outcome.map_err(refuse)?;
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
            short_of_room: done.short_of_room,
            over_size: done.over_size,
            spooled_permille: done.spooled_permille,
            warning: done.metadata.warning,
        })
    })
}
