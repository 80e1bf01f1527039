// SPDX-License-Identifier: MIT OR Apache-2.0
//! No scenario text makes the reader panic: it is read, or refused in one line.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use nestwalk_machine::Configuration;

fuzz_target!(|text: &str| {
    if let Err(error) = Configuration::parse(text, Path::new("scenario.toml")) {
        assert!(!error.to_string().contains('\n'));
    }
});
