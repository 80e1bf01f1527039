// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole guests for Python.

use std::path::{Path, PathBuf};

use nestwalk_machine::dump;
use nestwalk_machine::guest::{self, Agreement, Memory, Piece};
use nestwalk_workload::trace::ConvertOptions;
use nestwalk_workload::trace::guest::{Counts, Kept, record};
use pyo3::prelude::*;
use serde::Serialize;

use crate::listener::Listener;
use crate::{from_json, guarded, json, refuse};

fn memory(pieces: &str) -> PyResult<Memory> {
    Memory::open(from_json::<Vec<Piece>>(pieces)?).map_err(refuse)
}

/// The processes of a guest whose memory is `pieces` (JSON), and whose CR3 was `cr3`.
#[pyfunction]
pub(crate) fn vm_processes(py: Python<'_>, pieces: &str, cr3: u64, levels: u8) -> PyResult<String> {
    let memory = memory(pieces)?;
    guarded(py, || json(&guest::processes(&memory, cr3, levels).map_err(refuse)?))
}

/// Writes the page tables that `cr3` points to as the dump `path`, with `regions`, what the guest's
/// kernel says of where it sorts those of the process.
#[pyfunction]
#[pyo3(signature = (pieces, cr3, levels, kernel, path, regions=None))]
pub(crate) fn vm_tables(
    py: Python<'_>,
    pieces: &str,
    cr3: u64,
    levels: u8,
    kernel: bool,
    path: PathBuf,
    regions: Option<String>,
) -> PyResult<String> {
    let memory = memory(pieces)?;
    guarded(py, || {
        let mut tables = guest::walk(&memory, cr3, levels, kernel).map_err(refuse)?;
        if let Some(regions) = regions {
            tables.add_regions(regions).map_err(refuse)?;
        }
        tables.write(&path).map_err(refuse)?;
        json(&tables.summary())
    })
}

/// Whether the dump of page tables `path` says where its kernel sorts them; `False` for what is no
/// dump.
#[pyfunction]
pub(crate) fn tables_have_regions(path: PathBuf) -> PyResult<bool> {
    dump::has_sections(&path).map_err(refuse)
}

/// What became of a stream, as Python gets it.
#[derive(Serialize)]
struct Report {
    accesses: u64,
    bytes: u64,
    footprint_pages: u64,
    vcpus: u64,
    warning: Option<String>,
    counts: Counts,
    /// With the dumped tables, if there are any.
    frames: Option<Agreement>,
}

/// Converts the stream `source` to the trace `destination`. When it has ended, its frames are
/// compared with the dump `tables` of a guest whose memory is `pieces`, if there is such a file by
/// then.
#[pyfunction]
#[pyo3(signature = (source, destination, tables, pieces, about, kept, progress=None))]
#[expect(clippy::too_many_arguments, reason = "as many as Python gives")]
pub(crate) fn vm_record(
    py: Python<'_>,
    source: PathBuf,
    destination: PathBuf,
    tables: PathBuf,
    pieces: PathBuf,
    about: (String, String, Option<String>),
    kept: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (program, command, date) = about;
    let kept = match kept {
        "user-code" => Kept::UserCode,
        "both-halves" => Kept::BothHalves,
        _ => Kept::UserHalf,
    };
    let options = ConvertOptions { program, command, date, ..ConvertOptions::default() };
    guarded(py, || {
        let mut listener = Listener::new(progress);
        let outcome = record(&source, &destination, &options, kept, &mut |now| listener.hear(now.accesses, now.total));
        let report = listener.conclude(outcome)?;
        json(&Report {
            accesses: report.accesses,
            bytes: report.bytes,
            footprint_pages: report.metadata.footprint_pages,
            vcpus: report.metadata.threads,
            warning: report.metadata.warning,
            counts: report.counts,
            frames: agreement(&tables, &pieces, &report.frames)?,
        })
    })
}

fn agreement(
    tables: &Path,
    pieces: &Path,
    frames: &[nestwalk_workload::trace::guest::FrameCount],
) -> PyResult<Option<Agreement>> {
    if !tables.is_file() {
        return Ok(None);
    }
    let dumped = dump::read_whole(tables).map_err(refuse)?;
    let levels = dumped.user.root().map_or(4, |level| level.0);
    let pieces: Vec<Piece> = from_json(&std::fs::read_to_string(pieces)?)?;
    Ok(Some(guest::agreement(&dumped, frames, levels, &pieces)))
}
