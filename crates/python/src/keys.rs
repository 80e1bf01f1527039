// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files, their keys and what they say, for Python.

use std::path::{Path, PathBuf};

use nestwalk_machine::catalog::Shelf;
use nestwalk_machine::keys::FileKind;
use nestwalk_machine::machine_file;
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

/// The machine called `name`, or of the file `name`, checked as a run would: its keys, values and comments.
#[pyfunction]
pub(crate) fn machine(name: &str) -> PyResult<String> {
    let here = Path::new("");
    machine_file::check(name, here).map_err(refuse)?;
    let (path, text) = Shelf::Machines.text(name, here).map_err(refuse)?;
    let lines = machine_file::lines(&text, &path).map_err(refuse)?;
    json(&MachineFile { path, text, lines })
}
