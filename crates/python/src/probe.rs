// SPDX-License-Identifier: MIT OR Apache-2.0
//! The probe's memory and counters, for Python, which decides what is measured in which order.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nestwalk_live::probe::{Arena, Chase, Event, Means, lines_per_group};
use nestwalk_workload::chase::{Layout, Order, Spread};
use pyo3::prelude::*;
use serde::Serialize;

use crate::listener::Listener;
use crate::{from_json, guarded, json, refuse};

#[derive(Serialize)]
struct Facts {
    bytes: u64,
    huge_bytes: u64,
    means: Option<&'static str>,
}

/// One arena.
#[pyclass]
pub(crate) struct Probe {
    arena: Mutex<Arena>,
}

impl Probe {
    fn arena(&self) -> MutexGuard<'_, Arena> {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Probe {
    /// `bytes` of memory, touched, in 2 MiB pages (`huge`) or in 4 KiB pages; `remap` moves these
    /// by `mremap` in any case.
    #[new]
    #[pyo3(signature = (bytes, huge, remap=false))]
    fn new(py: Python<'_>, bytes: u64, huge: bool, remap: bool) -> PyResult<Self> {
        guarded(py, || {
            let mut listener = Listener::new(None);
            let mut hear = || listener.hear(0, None).is_continue();
            let means = remap.then_some(Means::Remap);
            let arena = if huge { Arena::huge(bytes, &mut hear) } else { Arena::small(bytes, means, &mut hear) };
            Ok(Self { arena: Mutex::new(listener.conclude(arena)?) })
        })
    }

    /// `bytes`, `huge_bytes`, `means`.
    fn facts(&self) -> PyResult<String> {
        let arena = self.arena();
        let means = arena.means().map(Means::name);
        json(&Facts { bytes: arena.pages() * 4096, huge_bytes: arena.huge_bytes(), means })
    }

    /// Gives the first `pages` pages the frames of the layout `spread`.
    fn arrange(&self, py: Python<'_>, pages: u64, spread: &str, seed: u64) -> PyResult<()> {
        guarded(py, || {
            let spread: Spread = from_json(&format!("\"{spread}\""))?;
            let mut arena = self.arena();
            arena.check(pages).map_err(refuse)?;
            if !pages.is_multiple_of(spread.pages_step()) {
                return Err(refuse(format!(
                    "{pages} pages: {} takes a multiple of {}",
                    spread.name(),
                    spread.pages_step()
                )));
            }
            arena.arrange(pages, &Layout::new(pages, spread, seed)).map_err(refuse)
        })
    }

    /// Lines a group, or the sentence why that cannot be known.
    fn lines_per_group(&self, py: Python<'_>, pages: u64) -> PyResult<Py<PyAny>> {
        match lines_per_group(&self.arena(), pages) {
            Ok(lines) => Ok(lines.into_pyobject(py)?.into_any().unbind()),
            Err(why) => Ok(why.into_pyobject(py)?.into_any().unbind()),
        }
    }

    /// Times a chase.
    fn time(&self, py: Python<'_>, pages: u64, kind: &str, seed: u64, microseconds: u64) -> PyResult<String> {
        guarded(py, || {
            let chase = match kind {
                "lines" => Chase::Lines { pages },
                order => Chase::Pages { pages, order: from_json::<Order>(&format!("\"{order}\""))? },
            };
            json(&self.arena().time(chase, seed, microseconds).map_err(refuse)?)
        })
    }
}

/// The counters of this thread.
#[pyclass]
pub(crate) struct Counters {
    counters: nestwalk_live::probe::Counters,
}

#[pymethods]
impl Counters {
    /// Opens those that can be opened: what every kernel names, and `events` (a list of `name`,
    /// `kind`, `config`).
    #[new]
    #[pyo3(signature = (events="[]"))]
    fn new(events: &str) -> PyResult<Self> {
        Ok(Self { counters: nestwalk_live::probe::Counters::open(&from_json::<Vec<Event>>(events)?) })
    }

    /// A list of `name`, `count`, `counted_share`, `unavailable`.
    fn read(&self) -> PyResult<String> {
        json(&self.counters.read())
    }
}
