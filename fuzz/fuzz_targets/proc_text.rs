// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any text is one of the files of /proc that are read, or is refused: maps, status, buddyinfo,
//! zoneinfo, pagetypeinfo, smaps_rollup, KVM's statistics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nestwalk_live::{Status, buddyinfo, frames, kvm_statistics, maps, rollup};

fuzz_target!(|bytes: &[u8]| {
    let _ = kvm_statistics(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(found) = maps::parse(text) {
        assert!(found.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
    let _ = Status::parse(text);
    let _ = buddyinfo(text);
    let _ = rollup(text);
    for zone in frames::zones(text) {
        assert!(zone.start_pfn.checked_add(zone.spanned).is_some());
        let _ = frames::pageblocks(text, &zone);
    }
});
