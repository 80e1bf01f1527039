// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures of the system-mode plugin.

use nestwalk_workload::trace::ConvertOptions;

use crate::capture::{Item, Place, items};

fn capture(records: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = b"NWSM0001".to_vec();
    bytes.extend((records.len() as u64).to_le_bytes());
    records.iter().for_each(|(address, rest)| bytes.extend([address.to_le_bytes(), rest.to_le_bytes()].concat()));
    bytes
}

const RECORDS: [(u64, u64); 3] =
    [(0x7fff_f000_0008, 0x1234_5008 | 5 << 52), (0x7fff_f000_1010, 0x9001 | 7 << 52), (0x7fff_f000_0008, 0x1234_5008)];

#[test]
fn addresses_stores_and_instructions_come_through_and_physical_addresses_do_not() {
    let place = Place::new();
    let report = place.convert(&capture(&RECORDS), &ConvertOptions::default()).unwrap();
    assert_eq!((report.accesses, report.metadata.instructions), (3, 12));
    assert_eq!((report.metadata.source_format.as_str(), report.metadata.footprint_pages), ("system", 2));
    let accesses: Vec<_> = items(&place.trace())
        .into_iter()
        .filter_map(|item| match item {
            Item::Access(_, access) => Some((access.gva().0, access.is_store())),
            _ => None,
        })
        .collect();
    assert_eq!(accesses, [(0x7fff_f000_0008, false), (0x7fff_f000_1010, true), (0x7fff_f000_0008, false)]);
}

#[test]
fn a_cut_capture_keeps_what_it_has_and_an_impossible_address_is_named() {
    let place = Place::new();
    let whole = capture(&RECORDS);
    let report = place.convert(&whole[..whole.len() - 3], &ConvertOptions::default()).unwrap();
    assert_eq!(report.accesses, 2);
    assert!(report.metadata.warning.unwrap().contains("after 2 of its 3 accesses"));
    let error = place.convert(&whole[..12], &ConvertOptions::default()).unwrap_err().to_string();
    assert!(error.contains("ends inside its header"), "{error}");
    let error = place.convert(&capture(&[RECORDS[0], (u64::MAX, 0)]), &ConvertOptions::default()).unwrap_err();
    assert!(error.to_string().contains("at byte 32") || error.to_string().contains("32"), "{error}");
}
