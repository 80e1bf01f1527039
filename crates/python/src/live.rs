// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this machine shows of itself, for Python.

use std::path::{Path, PathBuf};

use nestwalk_live::{Host, Leaves, Nearest, Options, Processor, Recorder, Recording, Source, Sysfs, inspect, nearest};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;

#[cfg(target_os = "linux")]
use crate::cloud::Benchmarked;
use crate::{guarded, json, refuse};

#[derive(Serialize)]
struct Found {
    processor: Processor,
    nearest: Nearest,
    sysfs: Option<Sysfs>,
}

/// The processor that this runs on, as CPUID and Linux describe it; or the one whose CPUID was recorded in the text `dump`, of
/// the file `path`.
#[pyfunction]
#[pyo3(signature = (dump=None, path=None))]
pub(crate) fn processor(dump: Option<&str>, path: Option<PathBuf>) -> PyResult<String> {
    let (leaves, sysfs) = match dump {
        Some(text) => {
            let place = path.unwrap_or_default();
            let leaves = Leaves::parse(text).map_err(|error| refuse(format!("{}: {error}", place.display())))?;
            (leaves, None)
        }
        None => (Leaves::here().unwrap_or_default(), Some(Sysfs::read(Path::new("/")))),
    };
    let processor = Processor::decode(&leaves);
    let nearest = nearest(&processor);
    json(&Found { processor, nearest, sysfs })
}

/// What Python says that is to be inspected: a process, or the file of a recording.
fn source(pid: Option<u32>, path: Option<&Path>) -> PyResult<Box<dyn Source>> {
    match (pid, path) {
        #[cfg(target_os = "linux")]
        (Some(pid), None) => Ok(Box::new(nestwalk_live::Process::open(pid).map_err(refuse)?)),
        #[cfg(not(target_os = "linux"))]
        (Some(_), None) => Err(refuse("running processes can be inspected on Linux only; inspect a recording of one")),
        (None, Some(path)) => Ok(Box::new(Recording::open(path).map_err(refuse)?)),
        _ => Err(refuse("give either a pid or a recording")),
    }
}

/// What the memory of a process looks like, or of the recording `path` of one: JSON, and the recording packed for a file if
/// `keep`.
#[pyfunction]
#[pyo3(signature = (pid=None, path=None, all_flags=false, contents=false, keep=false))]
pub(crate) fn inspect_process<'py>(
    py: Python<'py>,
    pid: Option<u32>,
    path: Option<PathBuf>,
    all_flags: bool,
    contents: bool,
    keep: bool,
) -> PyResult<(String, Option<Bound<'py, PyBytes>>)> {
    let (text, kept) = guarded(py, || {
        let source = source(pid, path.as_deref())?;
        let options = Options { all_flags, contents };
        if !keep {
            return Ok((json(&inspect(source.as_ref(), options).map_err(refuse)?)?, None));
        }
        let recorder = Recorder::new(source.as_ref());
        let found = inspect(&recorder, options).map_err(refuse)?;
        let kept = recorder.recording(Path::new("")).to_bytes().map_err(refuse)?;
        Ok((json(&found)?, Some(kept)))
    })?;
    Ok((text, kept.map(|bytes| PyBytes::new(py, &bytes))))
}

/// Whether the file `path` begins like a recording.
#[pyfunction]
pub(crate) fn inspect_is_recording(path: PathBuf) -> bool {
    Recording::is_one(&path)
}

/// The VMs of this KVM host; JSON. `root` is `/` unless a test says otherwise.
#[pyfunction]
#[pyo3(signature = (root=None))]
pub(crate) fn inspect_host(py: Python<'_>, root: Option<PathBuf>) -> PyResult<String> {
    guarded(py, || json(&Host::read(root.as_deref().unwrap_or(Path::new("/")))))
}

/// The best of `repetitions` runs of the benchmark `name`, as JSON; `None` if it is none of inspection's.
#[cfg(target_os = "linux")]
pub(crate) fn benchmark(name: &str, repetitions: u32) -> Option<PyResult<String>> {
    use nestwalk_live::bench;

    (name == bench::NAME).then(|| {
        let mut value = 0_f64;
        for _ in 0..repetitions.max(1) {
            value = value.max(bench::run().map_err(refuse)?);
        }
        json(&Benchmarked::new(bench::NAME, value, "pages/s"))
    })
}

/// Other systems have no processes that could be inspected.
#[cfg(not(target_os = "linux"))]
pub(crate) fn benchmark(_name: &str, _repetitions: u32) -> Option<PyResult<String>> {
    None
}

/// The names of inspection's benchmarks.
pub(crate) const BENCHMARKS: &[&str] = if cfg!(target_os = "linux") { &["inspect_gib"] } else { &[] };
