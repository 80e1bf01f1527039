// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever the bytes, a capture becomes a trace that can be read, or is refused in one line and leaves nothing behind.
#![no_main]

use std::ops::ControlFlow;

use nestwalk_workload::trace::{ConvertOptions, check, convert};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = std::env::temp_dir().join(format!("nestwalk-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    let (capture, trace) = (folder.join("capture"), folder.join("trace.nwt"));
    std::fs::write(&capture, data).expect("room for a temporary file");
    match convert(&capture, &trace, &ConvertOptions::default(), &mut |_| ControlFlow::Continue(())) {
        Ok(_) => {
            check(&trace).expect("what was converted can be read");
            std::fs::remove_file(&trace).expect("it was just written");
        }
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            assert!(!trace.exists(), "a trace is left of a conversion that failed");
        }
    }
});
