// SPDX-License-Identifier: MIT OR Apache-2.0
//! What tests of several modules need.

use std::fs;

/// A temporary folder with `files`: paths in it and their texts.
pub(crate) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}
