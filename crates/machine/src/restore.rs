// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads memories that were saved (`nestwalk memory`) back into kernels.

use std::path::Path;

use nestwalk_os::{Kernel, OsError};

use crate::error::MachineError;

/// The most that a file may unpack to: 16 TiB of memory, every other frame in use.
const UNPACKED_MAX: u64 = 1 << 34;

/// `kernel`, which has no process yet, begins with the memory of the file `path`.
///
/// # Errors
/// When the file cannot be read, or is no saved memory of that size.
pub(crate) fn restore(kernel: &mut Kernel, path: &Path) -> Result<(), MachineError> {
    let refused = |what: String| MachineError::Saved { path: path.to_owned(), what };
    let packed = std::fs::read(path).map_err(|source| MachineError::Io { path: path.to_owned(), source })?;
    let bytes = unpack(&packed).map_err(|error| refused(format!("{error}: it is no saved memory, or damaged")))?;
    kernel.restore_memory(&bytes).map_err(|error| match error {
        OsError::Saved(error) => refused(error.to_string()),
        other => refused(other.to_string()),
    })
}

fn unpack(packed: &[u8]) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    zstd::Decoder::new(packed)?.take(UNPACKED_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
