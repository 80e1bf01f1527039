// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines whose memory is populated, for Python, which copies the process (`fork`) for each run
//! that goes on from one.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nestwalk_machine::Configuration;
use pyo3::prelude::*;

use crate::listener::Listener;
use crate::{guarded, json, refuse};

/// A machine up to the first access of its program.
#[pyclass]
pub(crate) struct Populated {
    /// Taken by the one run that it serves.
    machine: Mutex<Option<nestwalk_machine::Populated>>,
}

#[pymethods]
impl Populated {
    /// The machine of the scenario `text`, of the file `path`; bundled traces lie in `traces`.
    #[new]
    #[pyo3(signature = (text, path, traces, progress=None))]
    fn new(py: Python<'_>, text: &str, path: PathBuf, traces: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        guarded(py, || {
            let configuration = Configuration::parse(text, &path).map_err(refuse)?;
            let mut listener = Listener::new(progress);
            let machine = nestwalk_machine::Populated::new(&configuration, &traces, &mut |now| {
                listener.hear(now.accesses, now.accesses_total)
            });
            Ok(Self { machine: Mutex::new(Some(listener.conclude(machine)?)) })
        })
    }

    /// Makes the run that `text`, of the file `path`, describes, on this machine, which is used up.
    #[pyo3(signature = (text, path, progress=None))]
    fn run(&self, py: Python<'_>, text: &str, path: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<String> {
        guarded(py, || {
            let configuration = Configuration::parse(text, &path).map_err(refuse)?;
            let taken = self.machine.lock().unwrap_or_else(PoisonError::into_inner).take();
            let machine = taken.ok_or_else(|| refuse("a populated machine serves one run: fork before it"))?;
            let mut listener = Listener::new(progress);
            let outcome = machine.run(configuration, &mut |now| listener.hear(now.accesses, now.accesses_total));
            json(&listener.conclude(outcome)?)
        })
    }
}

/// What decides how memory is populated in the run that `text`, of the file `path`, describes: runs
/// that have it in common can go on from one [`Populated`].
#[pyfunction]
pub(crate) fn populated_by(py: Python<'_>, text: &str, path: PathBuf) -> PyResult<String> {
    guarded(py, || Ok(Configuration::parse(text, Path::new(&path)).map_err(refuse)?.populated_by()))
}
