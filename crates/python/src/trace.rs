// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces for Python.

use std::path::{Path, PathBuf};

use nestwalk_machine::{WorkloadConfig, open_workload};
use nestwalk_workload::trace::{self, ConvertOptions, FilterOptions, Metadata, SampleOptions, SteadyFrom, Strata};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};

use crate::listener::Listener;
use crate::{from_json, guarded, json, refuse};

/// How to convert, as `nestwalk.traces` writes it. What is left out is as in
/// [`ConvertOptions::default`].
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Options {
    program: Option<String>,
    command: Option<String>,
    tool: Option<String>,
    date: Option<String>,
    level: Option<i32>,
    total: Option<u64>,
    sample: Option<Sample>,
    filter: Option<FilterOptions>,
    from: Option<String>,
    process: Option<u64>,
    until: Option<u64>,
    source_format: Option<String>,
    warning: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sample {
    steady_access: Option<u64>,
    steady_mark: Option<u64>,
    windows: Option<u64>,
    period: Option<u64>,
    windows_max: Option<u64>,
    collapse: u64,
    warm: u64,
    window: u64,
    seed: u64,
    budget: Option<u64>,
}

/// What a conversion brought, as Python gets it.
#[derive(Serialize)]
struct Report {
    accesses: u64,
    represented_accesses: u64,
    bytes_per_access: f64,
    bytes: u64,
    #[serde(flatten)]
    metadata: serde_json::Value,
}

impl TryFrom<Options> for ConvertOptions {
    type Error = PyErr;

    fn try_from(options: Options) -> PyResult<Self> {
        let default = Self::default();
        Ok(Self {
            program: options.program.unwrap_or(default.program),
            command: options.command.unwrap_or(default.command),
            tool: options.tool.unwrap_or(default.tool),
            date: options.date.or(default.date),
            level: options.level.unwrap_or(default.level),
            total: options.total.or(default.total),
            sample: options.sample.map(Into::into).or(default.sample),
            filter: options.filter.or(default.filter),
            from: options.from.map(|name| name.parse().map_err(refuse)).transpose()?,
            process: options.process,
            until: options.until.or(default.until),
            source_format: options.source_format.unwrap_or(default.source_format),
            warning: options.warning.or(default.warning),
        })
    }
}

impl From<Sample> for SampleOptions {
    fn from(sample: Sample) -> Self {
        Self {
            steady_from: match sample.steady_mark {
                Some(mark) => SteadyFrom::Mark(mark),
                None => SteadyFrom::Access(sample.steady_access.unwrap_or(0)),
            },
            strata: match sample.period {
                Some(accesses) => Strata::Period { accesses, windows_max: sample.windows_max },
                None => Strata::Windows(sample.windows.unwrap_or(1)),
            },
            collapse: sample.collapse,
            warm: sample.warm,
            window: sample.window,
            seed: sample.seed,
            budget: sample.budget,
        }
    }
}

/// Converts the capture `source` to the trace `destination` as `options` (JSON) says.
#[pyfunction]
#[pyo3(signature = (source, destination, options, progress=None))]
pub(crate) fn trace_convert(
    py: Python<'_>,
    source: PathBuf,
    destination: PathBuf,
    options: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let options: ConvertOptions = crate::from_json::<Options>(options)?.try_into()?;
    guarded(py, || {
        let mut listener = Listener::new(progress);
        let outcome =
            trace::convert(&source, &destination, &options, &mut |now| listener.hear(now.accesses, now.total));
        let report = listener.conclude(outcome)?;
        json(&Report {
            accesses: report.accesses,
            represented_accesses: report.represented_accesses,
            bytes_per_access: report.bytes_per_access,
            bytes: report.bytes,
            metadata: about(&report.metadata)?,
        })
    })
}

/// What a trace says of itself, without what the report has already.
fn about(metadata: &Metadata) -> PyResult<serde_json::Value> {
    let mut value = serde_json::to_value(metadata).map_err(refuse)?;
    if let Some(table) = value.as_object_mut() {
        table.remove("accesses");
    }
    Ok(value)
}

/// What the trace `path` holds.
#[pyfunction]
pub(crate) fn trace_info(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    guarded(py, || json(&trace::info(&path).map_err(refuse)?))
}

/// What a check of the whole trace counted.
#[derive(Serialize)]
struct Checked {
    accesses: u64,
    records: u64,
    touches: u64,
    events: u64,
    instructions: u64,
}

/// Reads the whole trace `path` and checks every checksum, every record, and that the totals agree.
#[pyfunction]
pub(crate) fn trace_check(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    guarded(py, || {
        let found = trace::check(&path).map_err(refuse)?;
        json(&Checked {
            accesses: found.accesses,
            records: found.records,
            touches: found.touches,
            events: found.events,
            instructions: found.instructions,
        })
    })
}

/// `count` items of the trace `path`, from the one with the number `skip` on.
#[pyfunction]
pub(crate) fn trace_head(py: Python<'_>, path: PathBuf, skip: u64, count: usize) -> PyResult<String> {
    guarded(py, || json(&trace::head::head(&path, skip, count).map_err(refuse)?))
}

/// How the program of the trace `path` uses its memory.
#[pyfunction]
#[pyo3(signature = (path, progress=None))]
pub(crate) fn trace_profile(py: Python<'_>, path: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<String> {
    guarded(py, || {
        let mut listener = Listener::new(progress);
        let outcome = trace::profile::profile(&path, &mut |done, all| listener.hear(done, Some(all)));
        json(&listener.conclude(outcome)?)
    })
}

/// Spatial locality of the program `workload` (a scenario's `[workload]`, as JSON) by page, over at
/// most `accesses` measured accesses.
#[pyfunction]
#[pyo3(signature = (workload, traces, accesses, progress=None))]
pub(crate) fn locality(
    py: Python<'_>,
    workload: &str,
    traces: PathBuf,
    accesses: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    guarded(py, || {
        let config: WorkloadConfig = from_json(workload)?;
        let program = open_workload(&config, 1, Path::new(""), &traces).map_err(refuse)?;
        let all = program.facts().accesses.map(|all| all.min(accesses));
        let mut listener = Listener::new(progress);
        let outcome = nestwalk_workload::locality::measure(program, accesses, &mut |done| listener.hear(done, all));
        json(&listener.conclude(outcome)?)
    })
}
