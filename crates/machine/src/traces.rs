// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where traces lie.

use std::path::{Path, PathBuf};

use crate::error::MachineError;

/// The file of the trace `name`: a bundled one, or a path (relative to `base`) if it has a folder
/// or an extension.
///
/// # Errors
/// When it is neither.
pub fn trace_path(name: &str, base: &Path, traces: &Path) -> Result<PathBuf, MachineError> {
    if name.contains('/') || Path::new(name).extension().is_some() {
        return Ok(base.join(name));
    }
    [traces.join(name).with_extension("nwt"), base.join(name)]
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| MachineError::unknown("trace", name, bundled_traces(traces)))
}

/// The names of the bundled traces, in order.
pub fn bundled_traces(traces: &Path) -> Vec<String> {
    let files = std::fs::read_dir(traces).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "nwt"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort_unstable();
    names
}
