// SPDX-License-Identifier: MIT OR Apache-2.0
//! Python bindings: the module `nestwalk._native`.
//!
//! Structured values go to Python as JSON text, which Python parses where it needs it. Errors
//! become `nestwalk.errors.NestwalkError`, whose text is the engine's one line. Long work is done
//! without the GIL; Ctrl-C ends it.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

use nestwalk_machine::estimate::{Beside, ratio_beside};
use nestwalk_machine::{Configuration, bench, catalog, workload};
use pyo3::exceptions::PyRuntimeError;
use pyo3::import_exception;
use pyo3::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

mod capture;
mod cloud;
mod guest;
mod keys;
mod listener;
mod live;
mod populated;
#[cfg(target_os = "linux")]
mod probe;
mod trace;

use listener::Listener;

import_exception!(nestwalk.errors, NestwalkError);

/// The exception for any of the engine's errors: one line for people.
fn refuse(error: impl std::fmt::Display) -> PyErr {
    NestwalkError::new_err(error.to_string())
}

/// `value` as JSON text.
fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Reads JSON text from our own Python. Messages leave out its lines and columns, which mean
/// nothing to a user.
fn from_json<T: DeserializeOwned>(text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| {
        let message = error.to_string();
        refuse(message.rsplit_once(" at line ").map_or(message.as_str(), |(before, _)| before))
    })
}

/// Does `work` without the GIL. A panic is a bug of the engine: it becomes a [`NestwalkError`] that
/// names the place, and not an exception of an unexpected type.
fn guarded<T: Send>(py: Python<'_>, work: impl FnOnce() -> PyResult<T> + Send) -> PyResult<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map_or(String::new(), |place| format!(" at {}:{}", place.file(), place.line()));
            PANICKED.with(|at| *at.borrow_mut() = place);
        }));
    });
    py.detach(|| {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
            let said = payload.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("it did not say why");
            let place = PANICKED.with(|at| at.borrow().clone());
            Err(refuse(format!("this is a bug in Nestwalk, please report it with what was run: panic{place}: {said}")))
        })
    })
}

thread_local! {
    /// Where this thread panicked last.
    static PANICKED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Panics, for the test that such a thing is an error like any other.
#[pyfunction]
#[pyo3(name = "_panic")]
fn panic_now(py: Python<'_>) -> PyResult<()> {
    guarded(py, || panic!("as asked for"))
}

/// The engine.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{
        benchmark, benchmark_names, catalogue, check, clock_ghz, configuration, model, panic_now, ratio, run,
        save_memory, scenario, touched_regions, version,
    };

    #[pymodule_export]
    use super::keys::{machine, schema, statistics_schema, toml_check, toml_path_at, toml_position};

    #[pymodule_export]
    use super::live::{
        anonymous_pages, inspect_host, inspect_is_recording, inspect_process, proc_buddyinfo, proc_mappings,
        proc_words, processor, recorded_regions, save_real_memory,
    };

    #[pymodule_export]
    use super::populated::{Populated, populated_by};

    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use super::probe::{Counters, Probe};

    #[pymodule_export]
    use super::capture::{capture_live, capture_stream};

    #[pymodule_export]
    use super::cloud::cloud_replay;

    #[pymodule_export]
    use super::guest::{tables_have_regions, vm_processes, vm_record, vm_tables};

    #[pymodule_export]
    use super::trace::{locality, trace_check, trace_convert, trace_head, trace_info, trace_profile};
}

/// Of each window two sums, and of all.
type Model = (Vec<(f64, f64)>, (f64, f64));

/// The ratio of sums over windows, and half of its 95 % interval; `None` where it cannot be known.
/// `model`: the same two sums of each window, and of all, by a capture's model.
#[pyfunction]
fn ratio(windows: Vec<(f64, f64)>, model: Option<Model>) -> (Option<f64>, Option<f64>) {
    let model = model.map(|(windows, program)| Beside { windows, program });
    let estimate = ratio_beside(&windows, model.as_ref());
    (estimate.map(|estimate| estimate.value), estimate.and_then(|estimate| estimate.ci95))
}

/// The clock that the processor has in effect, GHz: a few ms of work that takes a known number of
/// cycles.
#[pyfunction]
fn clock_ghz(py: Python<'_>) -> Option<f64> {
    py.detach(bench::clock_ghz)
}

/// The version of engine and package.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The model that this engine computes, as results are kept under.
#[pyfunction]
fn model() -> String {
    nestwalk_machine::model()
}

/// What comes with Nestwalk, by kind; bundled traces lie in `traces`.
#[pyfunction]
#[pyo3(name = "catalog")]
fn catalogue(py: Python<'_>, traces: PathBuf) -> PyResult<String> {
    guarded(py, || json(&catalog::all(&traces)))
}

/// The text of the bundled scenario `name`.
#[pyfunction]
fn scenario(name: &str) -> PyResult<String> {
    let (_, text) = catalog::Shelf::Scenarios.text(name, Path::new("")).map_err(refuse)?;
    Ok(text)
}

/// Reports errors in the scenario `text`, of the file `path`, and in the files that it names, as
/// far as they show without a run.
#[pyfunction]
fn check(py: Python<'_>, text: &str, path: PathBuf, traces: PathBuf) -> PyResult<()> {
    guarded(py, || {
        let configuration = Configuration::parse(text, &path).map_err(refuse)?;
        workload(&configuration, &traces).map_err(refuse)?;
        Ok(())
    })
}

/// All that the run that `text`, of the file `path`, describes is made from, names resolved:
/// `scenario`, `machine`, `costs`.
#[pyfunction]
fn configuration(py: Python<'_>, text: &str, path: PathBuf) -> PyResult<String> {
    guarded(py, || json(&Configuration::parse(text, &path).map_err(refuse)?))
}

/// Makes the run that `text`, of the file `path`, describes; bundled traces lie in `traces`.
#[pyfunction]
#[pyo3(signature = (text, path, traces, progress=None))]
fn run(py: Python<'_>, text: &str, path: PathBuf, traces: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<String> {
    guarded(py, || {
        let mut listener = Listener::new(progress);
        let outcome =
            nestwalk_machine::run(text, &path, &traces, &mut |now| listener.hear(now.accesses, now.accesses_total));
        json(&listener.conclude(outcome)?)
    })
}

/// The memory with which kernel `layer` of the scenario `text` begins: what it is, as JSON, and the
/// bytes of its file.
#[pyfunction]
fn save_memory(
    py: Python<'_>,
    text: &str,
    path: PathBuf,
    traces: PathBuf,
    layer: usize,
) -> PyResult<(String, std::borrow::Cow<'static, [u8]>)> {
    guarded(py, || {
        let configuration = Configuration::parse(text, &path).map_err(refuse)?;
        let (saved, packed) = nestwalk_machine::saved::save(&configuration, &traces, layer).map_err(refuse)?;
        Ok((json(&saved)?, packed.into()))
    })
}

/// Numbers (address >> 21) of the 2 MiB regions that the program of the scenario `text` touches
/// until it is populated.
#[pyfunction]
fn touched_regions(py: Python<'_>, text: &str, path: PathBuf, traces: PathBuf) -> PyResult<Vec<u64>> {
    guarded(py, || {
        let configuration = Configuration::parse(text, &path).map_err(refuse)?;
        nestwalk_machine::touched::regions(&configuration, &traces).map_err(refuse)
    })
}

/// The benchmarks there are.
#[pyfunction]
#[pyo3(name = "bench_names")]
fn benchmark_names() -> Vec<&'static str> {
    [bench::NAMES.as_slice(), &bench::imports::NAMES, &nestwalk_cloud::bench::names(), live::BENCHMARKS].concat()
}

/// The best of `repetitions` runs of the benchmark `name`; bundled traces lie in `traces`.
#[pyfunction]
#[pyo3(name = "bench")]
fn benchmark(py: Python<'_>, name: &str, repetitions: u32, traces: PathBuf) -> PyResult<String> {
    guarded(py, || match cloud::benchmark(name, repetitions).or_else(|| live::benchmark(name, repetitions)) {
        Some(done) => done,
        None => json(&bench::run(name, repetitions, &traces).map_err(refuse)?),
    })
}
