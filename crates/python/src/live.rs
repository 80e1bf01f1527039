// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this machine shows of itself, for Python.

use std::path::{Path, PathBuf};

use nestwalk_live::{Leaves, Nearest, Processor, Sysfs, nearest};
use pyo3::prelude::*;
use serde::Serialize;

use crate::{json, refuse};

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
