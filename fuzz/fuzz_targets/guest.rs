// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever a guest's memory holds, a walk of its page tables ends, in a dump that can be read or in one line; likewise for
//! whatever a stream of accesses of a guest holds.
#![no_main]

use std::ops::ControlFlow;
use std::path::Path;

use nestwalk_machine::MachineError;
use nestwalk_machine::guest::{ENTRIES, Page, Words, walk};
use nestwalk_workload::trace::guest::{Kept, MAGIC, record};
use nestwalk_workload::trace::{ConvertOptions, check};

/// Guest memory of a few pages: what the fuzzer gives, and zeroes behind it.
struct Few<'a>(&'a [u8]);

/// A fuzzer's table that leads back to itself many times is a long walk; this bounds its memory.
const PAGES: u64 = 16;

impl Page for Few<'_> {
    fn page(&self, gpa: u64) -> Result<Option<Words>, MachineError> {
        let mut words = [0; ENTRIES];
        let bytes = self.0.get(gpa as usize..).unwrap_or(&[]);
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        Ok(self.contains(gpa).then_some(words))
    }

    fn contains(&self, gpa: u64) -> bool {
        gpa < PAGES * 4096
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else { return };
    match walk(&Few(rest), 0, 4 + (first & 1), first & 2 != 0) {
        Ok(tables) => {
            let mut bytes = Vec::new();
            tables.write_to(&mut bytes).expect("room in memory");
            // Two large pages may lie at addresses that are no multiple of their size: those are refused, in one line.
            let _ = nestwalk_machine::dump::whole_from_bytes(&bytes, Path::new("tables"));
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
    let folder = std::env::temp_dir().join(format!("nestwalk-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    let (stream, trace) = (folder.join("stream"), folder.join("guest.nwt"));
    std::fs::write(&stream, [MAGIC, &[0; 8], rest].concat()).expect("room for a temporary file");
    let options = ConvertOptions::default();
    let kept = if first & 4 != 0 { Kept::BothHalves } else { Kept::UserHalf };
    match record(&stream, &trace, &options, kept, &mut |_| ControlFlow::Continue(())) {
        Ok(_) => {
            check(&trace).expect("what was recorded can be read");
            std::fs::remove_file(&trace).expect("it was just written");
        }
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            assert!(!trace.exists(), "a trace is left of a recording that failed");
        }
    }
});
