// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever the bytes, the trace reader returns: no panic, no endless loop, no memory beyond its bounds.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nestwalk_workload::trace::fuzz_one(data));
