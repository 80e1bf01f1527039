// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever the bytes, each reader of another tool's format makes a trace of them that can be read, or refuses them in one line and
//! leaves nothing behind. The first byte chooses the format; beyond the formats, the content decides, as it does for users.
#![no_main]

use std::ops::ControlFlow;

use nestwalk_workload::trace::convert::Known;
use nestwalk_workload::trace::{ConvertOptions, check, convert};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else { return };
    let from = Known::ALL.get(usize::from(first)).copied();
    let folder = std::env::temp_dir().join(format!("nestwalk-fuzz-imports-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    let (source, trace) = (folder.join("source"), folder.join("trace.nwt"));
    std::fs::write(&source, data).expect("room for a temporary file");
    let options = ConvertOptions { from, ..ConvertOptions::default() };
    match convert(&source, &trace, &options, &mut |_| ControlFlow::Continue(())) {
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
