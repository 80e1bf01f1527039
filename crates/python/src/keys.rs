// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files, their keys and what they say, for Python.

use std::path::{Path, PathBuf};

use nestwalk_machine::catalog::Shelf;
use nestwalk_machine::keys::FileKind;
use nestwalk_machine::{machine_file, places};
use pyo3::prelude::*;
use serde::Serialize;

use crate::{json, refuse};

#[derive(Serialize)]
struct MachineFile {
    path: PathBuf,
    text: String,
    lines: Vec<machine_file::Line>,
}

/// The JSON Schema of files of the sort `kind`: machine, scenario or costs.
#[pyfunction]
pub(crate) fn schema(kind: &str) -> PyResult<String> {
    let known = || FileKind::ALL.map(FileKind::name).join(", ");
    let kind =
        FileKind::of(kind).ok_or_else(|| refuse(format!("unknown sort of file '{kind}'; there are {}", known())))?;
    json(&kind.schema())
}

/// The JSON Schema of the statistics of a result.
#[pyfunction]
pub(crate) fn statistics_schema() -> PyResult<String> {
    json(&nestwalk_machine::result::schema())
}

/// The machine called `name`, or of the file `name`, checked as a run would: its keys, values and
/// comments.
#[pyfunction]
pub(crate) fn machine(name: &str) -> PyResult<String> {
    let here = Path::new("");
    machine_file::check(name, here).map_err(refuse)?;
    let (path, text) = Shelf::Machines.text(name, here).map_err(refuse)?;
    let lines = machine_file::lines(&text, &path).map_err(refuse)?;
    json(&MachineFile { path, text, lines })
}

/// Says where `text`, the file `path`, is no TOML, if it is none.
#[pyfunction]
pub(crate) fn toml_check(path: PathBuf, text: &str) -> PyResult<()> {
    places::check_syntax(&path, text).map_err(refuse)
}

/// Line and column of the value at a path of keys (or of its key), of the deepest part of the path
/// that is there.
#[pyfunction]
pub(crate) fn toml_position(text: &str, path: Vec<String>, of_key: bool) -> Option<(usize, usize)> {
    places::position(text, &path, of_key)
}

/// The path of keys of what is at a line and a column.
#[pyfunction]
pub(crate) fn toml_path_at(text: &str, line: usize, column: usize) -> Vec<String> {
    places::path_at(text, (line, column))
}
