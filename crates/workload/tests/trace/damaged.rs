// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damaged input: one line that names file, byte and remedy, and nothing half-written.

use nestwalk_workload::WorkloadError;
use nestwalk_workload::trace::format::{HEADER_BYTES, TRAILER_BYTES, checksum};
use nestwalk_workload::trace::{
    ConvertOptions, FilterOptions, SampleOptions, SteadyFrom, Strata, Trace, check, fuzz_one,
};
use proptest::prelude::*;

use crate::capture::{Capture, Place, Touch, convert_file, mmap, munmap};

/// A small trace with every kind of record.
fn sampled_trace() -> (Place, Vec<u8>) {
    a_trace(None)
}

/// The same, with its windows filtered.
fn filtered_trace() -> (Place, Vec<u8>) {
    a_trace(Some(FilterOptions { line_sets: 4, line_ways: 2, page_sets: 1, page_ways: 4, renew: 0 }))
}

fn a_trace(filter: Option<FilterOptions>) -> (Place, Vec<u8>) {
    let mut capture = Capture::default();
    capture.events(0, &[mmap(0x1000_0000, 1 << 24), munmap(0x1080_0000, 1 << 12)]);
    for thread in 0..2 {
        let touches: Vec<_> = (0..600u64).map(|i| Touch::store(0x1000_0000 + i * 7919 % (1 << 22))).collect();
        capture.accesses(thread, &touches);
    }
    let sample = SampleOptions {
        steady_from: SteadyFrom::Access(100),
        strata: Strata::Windows(3),
        collapse: 0,
        warm: 50,
        window: 100,
        seed: 1,
        budget: None,
    };
    let place = Place::new();
    place
        .convert(&capture.bytes, &ConvertOptions { sample: Some(sample), filter, ..ConvertOptions::default() })
        .unwrap();
    let bytes = std::fs::read(place.path("trace.nwt")).unwrap();
    (place, bytes)
}

/// Writes `bytes` as a trace and checks it; returns the error as a user sees it.
fn complaint(place: &Place, bytes: &[u8]) -> Option<String> {
    std::fs::write(place.path("bad.nwt"), bytes).unwrap();
    check(&place.path("bad.nwt")).err().map(|error| error.to_string())
}

#[test]
fn a_trace_cut_anywhere_says_where() {
    [sampled_trace(), filtered_trace()].iter().for_each(|(place, bytes)| cut_anywhere(place, bytes));
}

fn cut_anywhere(place: &Place, bytes: &[u8]) {
    assert_eq!(complaint(place, bytes), None);
    for length in 0..bytes.len() {
        let error = complaint(place, &bytes[..length]).unwrap_or_else(|| panic!("cut to {length} bytes: accepted"));
        assert!(error.contains("bad.nwt: at byte ") && !error.contains('\n'), "{error}");
        if length >= HEADER_BYTES {
            assert!(error.contains(&format!("at byte {length}: the trace is cut")), "{length}: {error}");
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    [sampled_trace(), filtered_trace()].into_iter().for_each(|(place, bytes)| flip_bits(&place, bytes));
}

fn flip_bits(place: &Place, mut bytes: Vec<u8>) {
    for at in 0..bytes.len() {
        let bit = 1 << (at * 5 % 8);
        bytes[at] ^= bit;
        let error = complaint(place, &bytes).unwrap_or_else(|| panic!("bit {bit} of byte {at}: accepted"));
        assert!(error.contains("bad.nwt: at byte ") && !error.contains('\n'), "{error}");
        bytes[at] ^= bit;
    }
}

#[test]
fn what_is_no_trace_or_another_version_is_told_so() {
    let (place, mut bytes) = sampled_trace();
    assert!(complaint(&place, b"PAR1 and so on, for more than a header").unwrap().contains("not a Nestwalk trace"));
    assert!(complaint(&place, b"").unwrap().contains("not a Nestwalk trace"));
    bytes[8] = 9;
    assert!(complaint(&place, &bytes).unwrap().contains("version 9"));
    let missing = check(&place.path("no such file")).unwrap_err();
    assert!(matches!(missing, WorkloadError::Io { .. }) && missing.to_string().contains("no such file"));
    assert!(check(place.0.path()).unwrap_err().to_string().contains("it has to be a file"));
}

/// Changes a field of the header of the record at `at` and makes its checksum right again.
fn spoil(bytes: &mut [u8], at: usize, field: usize, value: &[u8]) {
    bytes[at + field..at + field + value.len()].copy_from_slice(value);
    let sum = checksum(&bytes[at..at + 28]);
    bytes[at + 28..at + 32].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn lengths_that_lie_under_a_right_checksum_are_refused() {
    let (place, bytes) = sampled_trace();
    let trace = Trace::from_bytes(bytes.clone()).unwrap();
    for record in trace.records() {
        for (field, value) in [
            (4, u32::MAX.to_le_bytes()),
            (4, (record.items + 1).to_le_bytes()),
            (8, u32::MAX.to_le_bytes()),
            (8, (1u32 << 24).to_le_bytes()),
            (12, u32::MAX.to_le_bytes()),
            (12, (1u32 << 24).to_le_bytes()),
        ] {
            let mut bad = bytes.clone();
            spoil(&mut bad, record.offset as usize, field, &value);
            let error = complaint(&place, &bad).expect("a lying length is accepted");
            assert!(error.contains(&format!("at byte {}: ", record.offset)), "{error}");
        }
    }
    let trailer = bytes.len() - TRAILER_BYTES;
    for (field, value) in [(0, 0u64), (0, u64::MAX), (8, u64::MAX), (8, 32), (16, 1 << 60)] {
        let mut bad = bytes.clone();
        spoil(&mut bad, trailer, field, &value.to_le_bytes());
        assert!(complaint(&place, &bad).is_some(), "field {field} of the trailer = {value}");
    }
}

#[test]
fn a_damaged_capture_leaves_nothing_and_an_old_trace_in_peace() {
    let mut capture = Capture::default();
    capture.accesses(0, &[Touch::load(0x1000); 10]);
    capture.events(0, &[mmap(0x10000, 0x1000)]);
    let whole = capture.bytes.clone();
    let spoilt = |at: usize, value: &[u8]| {
        let mut bytes = whole.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    let events = 32 + 160;
    let mut packed = zstd::encode_all(&whole[..], 1).unwrap();
    packed.truncate(packed.len() - 6);
    for (bytes, words) in [
        (vec![], "at byte 0: the capture is empty"),
        (b"hello".to_vec(), "at byte 0: a text, of which no line is an access"),
        (spoilt(events, &[0]), "at byte 192: no block begins here"),
        (spoilt(8, &[11]), "at byte 0: a block of 11 records in 160 bytes"),
        (spoilt(8, &[0xff; 8]), "at byte 0: a block of"),
        (spoilt(20, &[2]), "at byte 0: a block of unknown kind 2"),
        (spoilt(32 + 16 + 7, &[2]), "at byte 48: an access to"),
        (spoilt(32 + 8 + 6, &[16]), "at byte 32: an access to"),
        (spoilt(events + 32, &[9]), "at byte 224: an event after 9 accesses"),
        (spoilt(events + 32 + 8, &[99]), "unknown event 99"),
        (spoilt(events + 32 + 8, &[12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff]), "no system call makes"),
        (spoilt(events + 32 + 40, &[0xff; 8]), "impossible range"),
        (packed, "zstd frame is damaged or cut"),
    ] {
        let place = Place::new();
        std::fs::write(place.path("trace.nwt"), "an old trace").unwrap();
        let error = place.convert(&bytes, &ConvertOptions::default()).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("capture: ") && !error.contains('\n'), "{words}: {error}");
        assert_eq!(std::fs::read(place.path("trace.nwt")).unwrap(), b"an old trace");
        assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 2, "something was left behind");
    }
}

#[test]
fn a_capture_that_ends_inside_a_block_is_taken_up_to_there() {
    let mut capture = Capture::default();
    capture.accesses(0, &[Touch::load(0x1000); 10]);
    capture.accesses(0, &[Touch::load(0x2000); 10]);
    for (length, accesses) in [(32 + 160 + 31, 10), (32 + 160 + 32, 10), (32 + 160 + 32 + 47, 12), (32 + 15, 0)] {
        let place = Place::new();
        let report = place.convert(&capture.bytes[..length], &ConvertOptions::default()).unwrap();
        assert_eq!(report.accesses, accesses, "{length} bytes");
        let warning = report.metadata.warning.unwrap();
        assert!(warning.contains("ends inside a block"), "{warning}");
        assert_eq!(check(&place.path("trace.nwt")).unwrap().accesses, accesses);
    }
    let whole = Place::new().convert(&capture.bytes, &ConvertOptions::default()).unwrap();
    assert_eq!(whole.metadata.warning, None);
}

#[test]
fn a_capture_of_a_driver_warns_that_its_children_are_missing() {
    let clone = |flags: u32| (7, flags, 0, 0, 0, 1);
    let warning = |flags: &[u32]| {
        let mut capture = Capture::default();
        capture.accesses(0, &[Touch::load(0x1000); 10]);
        for &flags in flags {
            capture.events(0, &[clone(flags)]);
        }
        Place::new().convert(&capture.bytes, &ConvertOptions::default()).unwrap().metadata.warning
    };
    assert_eq!(warning(&[0]), None, "a thread is in the capture");
    let message = warning(&[1, 0, 1]).unwrap();
    assert!(message.contains("first process only: 2;") && message.contains("sh -c"), "{message}");
}

#[test]
fn the_source_of_a_conversion_is_never_replaced_by_its_outcome() {
    let mut capture = Capture::default();
    capture.accesses(0, &[Touch::load(0x1000); 10]);
    let place = Place::new();
    let path = place.path("both");
    std::fs::write(&path, &capture.bytes).unwrap();
    let error = convert_file(&path, &path, &ConvertOptions::default()).unwrap_err().to_string();
    assert!(error.contains("both the source and the destination"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), capture.bytes);
}

#[test]
fn an_interrupted_conversion_leaves_nothing() {
    let mut capture = Capture::default();
    (0..100).for_each(|_| capture.accesses(0, &[Touch::load(0x1000); 1000]));
    let place = Place::new();
    std::fs::write(place.path("capture"), &capture.bytes).unwrap();
    let mut calls = 0;
    let error = nestwalk_workload::trace::convert(
        &place.path("capture"),
        &place.path("trace.nwt"),
        &ConvertOptions::default(),
        &mut |_| {
            calls += 1;
            if calls == 3 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
        },
    );
    let interrupted =
        matches!(&error, Err(WorkloadError::Io { source, .. }) if source.kind() == std::io::ErrorKind::Interrupted);
    assert!(interrupted, "{error:?}");
    assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 1);
}

#[test]
fn impossible_options_and_places_are_refused() {
    let place = Place::new();
    let level = place.convert(b"", &ConvertOptions { level: 23, ..ConvertOptions::default() }).unwrap_err();
    assert!(level.to_string().contains("1 to 22"));
    let mut capture = Capture::default();
    capture.accesses(0, &[Touch::load(0x1000); 10]);
    std::fs::write(place.path("capture"), &capture.bytes).unwrap();
    let nowhere = crate::capture::convert_file(
        &place.path("capture"),
        &place.path("no/such/directory/t.nwt"),
        &ConvertOptions::default(),
    );
    assert!(nowhere.unwrap_err().to_string().contains("no/such/directory"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_fuzz_target_returns_for_spoilt_traces(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), filtered: bool) {
        let (_, mut bytes) = if filtered { filtered_trace() } else { sampled_trace() };
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        fuzz_one(&bytes);
    }

    #[test]
    fn the_fuzz_target_returns_for_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        fuzz_one(&bytes);
    }
}
