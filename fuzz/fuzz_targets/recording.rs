// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes are a recording of a process that can be inspected, or are refused.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use nestwalk_live::{Options, Recording, inspect};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(recording) = Recording::from_bytes(bytes, Path::new("fuzzed")) {
        let _ = inspect(&recording, Options { all_flags: true, contents: true });
    }
});
