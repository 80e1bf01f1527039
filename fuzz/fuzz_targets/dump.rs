// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever the bytes, a dump of page tables is read or refused in one line.
#![no_main]

use std::path::Path;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Err(error) = nestwalk_machine::dump::from_bytes(data, Path::new("tables")) {
        assert!(!error.to_string().contains('\n'));
    }
});
