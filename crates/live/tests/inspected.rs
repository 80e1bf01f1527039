// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings with a known layout give the known numbers; damaged ones are refused; this process
//! can be looked at.

use std::collections::BTreeSet;
use std::path::Path;

use nestwalk_live::{Entry, InspectError, Inspection, Known, Options, Process, Recorder, Recording, inspect};
use proptest::prelude::*;

const MAGIC: &[u8] = b"NWIN0001";
const PMD: u64 = 1;
const ZEROS: u64 = 2;

fn section(name: &str, body: &[u8]) -> Vec<u8> {
    let head = [name.len() as u64, body.len() as u64].into_iter().flat_map(u64::to_le_bytes);
    head.chain(name.bytes()).chain(body.iter().copied()).collect()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A piece: first page, kind, entries.
type Recorded = (u64, u64, Vec<u64>);

fn recording(maps: &str, pieces: &[Recorded], more: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut pages = Vec::new();
    for (first, bits, entries) in pieces {
        pages.extend(words(&[*first, entries.len() as u64, *bits]));
        pages.extend(words(entries));
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend(section("process/maps", maps.as_bytes()));
    bytes.extend(section("pages", &pages));
    for (name, body) in more {
        bytes.extend(section(name, body));
    }
    bytes
}

fn open(bytes: &[u8]) -> Result<Recording, InspectError> {
    Recording::from_bytes(bytes, Path::new("known.rec"))
}

fn inspected(bytes: &[u8]) -> Inspection {
    inspect(&open(bytes).unwrap(), Options::default()).unwrap()
}

fn present(frame: u64) -> u64 {
    Entry::PRESENT | frame
}

const MAPS: &str = "10000000-10400000 rw-p 00000000 00:00 0 [heap]\n\
                    20000000-20010000 r--s 00000000 08:01 77 /a file\n\
                    30000000-30002000 rw-p 00000000 00:00 0 \n";

/// 2 MiB by a PMD; a packed group, a scattered one, one with a page missing and one swapped out; a
/// page of zeros; a shared file.
fn layout() -> Vec<Recorded> {
    let heap = 0x10200;
    let mut small: Vec<u64> = (0..8).map(|page| present(0x800 + page)).collect();
    small.extend((0..8).map(|page| present(0x4000 + 8 * page)));
    small.extend((0..7).map(|page| present(0x900 + page)));
    small.push(0);
    small.extend([Entry::SWAPPED | 5; 8]);
    vec![
        (0x10000, PMD, vec![present(0x10_0000)]),
        (heap, 0, small),
        (heap + 32, ZEROS, vec![present(1); 4]),
        (0x20000, 0, (0..16).map(|page| present(0x5004 + page) | Entry::FILE).collect()),
    ]
}

#[test]
fn a_known_layout_gives_the_known_numbers() {
    let found = inspected(&recording(MAPS, &layout(), &[("leaves", Vec::new())]));
    let memory = found.memory;
    assert_eq!(memory.anonymous_bytes, (512 + 23) * 4096);
    assert_eq!((memory.shared_bytes, memory.file_bytes), (16 * 4096, 0));
    assert_eq!((memory.swapped_bytes, memory.zero_bytes), (8 * 4096, 4 * 4096));
    let metric = found.host_pt_fragmentation.value().unwrap();
    // Packed 1, scattered 8, two groups of the file in the middle of a line 2 each; zeros and
    // missing pages are no whole group.
    assert_eq!(metric.host_4k.distribution, [1, 2, 0, 0, 0, 0, 0, 1]);
    assert_eq!((metric.host_4k.groups, metric.incomplete_groups), (4, 2));
    assert_eq!(metric.anonymous.value().unwrap().distribution, [1, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(metric.file.value().unwrap().value, 2.0);
    let huge = &found.huge_pages;
    assert_eq!(huge.pmd_mapped_bytes, Known::Is(2 << 20));
    assert_eq!(huge.pmd_mapped_share, Known::Is(512.0 / 551.0));
    let runs = found.contiguity.value().unwrap();
    assert_eq!((runs.virtual_order.longest_pages, runs.virtual_order.runs), (512, 1 + 1 + 8 + 1 + 1));
    assert_eq!((found.mappings.count, found.mappings.for_99_percent), (3, 2));
    assert_eq!((found.page_tables.pte_tables, found.page_tables.pmd_tables), (2, 1));
    assert!(found.notes.is_empty(), "{:?}", found.notes);
}

#[test]
fn hugetlb_is_mapped_by_large_leaves_and_counted_by_the_kernel() {
    let maps = "40000000-40400000 rw-p 00000000 00:0f 31 /anon_hugepage (deleted)\n";
    let pages: Vec<Recorded> =
        vec![(0x40000, PMD, vec![present(0x20_0000) | Entry::FILE, present(0x20_0200) | Entry::FILE])];
    let status = ("process/status", b"Name:\tdb\nPid:\t7\nHugetlbPages:\t    4096 kB\n".to_vec());
    let found = inspected(&recording(maps, &pages, &[("leaves", Vec::new()), status]));
    assert_eq!(found.huge_pages.hugetlb_bytes, Known::Is(4 << 20));
    assert_eq!(found.huge_pages.pmd_mapped_share, Known::Is(1.0));
    assert_eq!(found.contiguity.value().unwrap().virtual_order.longest_pages, 1024);
    let Known::Not { unavailable } = &found.host_pt_fragmentation else { panic!("no PTE maps it") };
    assert!(unavailable.contains("by PTEs"), "{unavailable}");
}

#[test]
fn without_leaves_the_share_of_large_pages_is_not_known_and_says_why() {
    let found = inspected(&recording(MAPS, &layout()[1..], &[]));
    let Known::Not { unavailable } = &found.huge_pages.pmd_mapped_share else { panic!("made up") };
    assert!(unavailable.contains("PAGEMAP_SCAN"), "{unavailable}");
    assert!(found.notes[0].contains("PAGEMAP_SCAN"), "{:?}", found.notes);
}

#[test]
fn hidden_frames_are_no_numbers() {
    let hidden: Vec<Recorded> = vec![(0x10000, 0, vec![present(0); 64])];
    let found = inspected(&recording(MAPS, &hidden, &[("leaves", Vec::new())]));
    assert_eq!(found.memory.anonymous_bytes, 64 * 4096);
    let Known::Not { unavailable } = &found.host_pt_fragmentation else { panic!("made up") };
    assert!(unavailable.contains("CAP_SYS_ADMIN"), "{unavailable}");
    assert!(found.contiguity.value().is_none() && found.coalescing.value().is_none());
    assert!(found.strip.iter().all(|cell| cell.lines.is_none()));
}

#[test]
fn the_frame_of_zeros_is_told_by_its_number_where_no_piece_says_it() {
    let pages: Vec<Recorded> = vec![(0x10000, 0, vec![present(7), present(9), present(7), present(9)])];
    let found = inspected(&recording(MAPS, &pages, &[("zero_frame", b"7".to_vec())]));
    assert_eq!((found.memory.zero_bytes, found.memory.anonymous_bytes), (2 * 4096, 2 * 4096));
}

#[test]
fn a_hundred_thousand_mappings_are_read() {
    let count = 100_000_u64;
    let address = |index: u64| 0x10_0000_0000 + index * 0x2000;
    let maps: String =
        (0..count).map(|at| format!("{:x}-{:x} rw-p 00000000 00:00 0 \n", address(at), address(at) + 0x1000)).collect();
    let pages: Vec<Recorded> = (0..count).map(|at| (address(at) >> 12, 0, vec![present(at + 1)])).collect();
    let found = inspected(&recording(&maps, &pages, &[("leaves", Vec::new())]));
    assert_eq!((found.mappings.count, found.mappings.for_99_percent), (count, count * 99 / 100));
    assert_eq!(found.mappings.largest.len(), 16);
    // Frames that follow each other though the pages do not.
    let runs = found.contiguity.value().unwrap();
    assert_eq!((runs.virtual_order.runs, runs.physical_order.runs), (count, 1));
}

#[test]
fn what_is_no_recording_is_refused_with_its_name() {
    let good = recording(MAPS, &layout(), &[]);
    let cut = &good[..good.len() - 1];
    let outside = recording(MAPS, &[(0x50000, 0, vec![present(1)])], &[]);
    let descending = recording(MAPS, &[(0x10001, 0, vec![0]), (0x10000, 0, vec![0])], &[]);
    for (bytes, what) in [(&b"NWIN"[..], "first bytes"), (cut, "cut"), (&descending, "ascend")] {
        let error = open(bytes).unwrap_err().to_string();
        assert!(error.starts_with("known.rec: ") && error.contains(what), "{error}");
    }
    let error = inspect(&open(&outside).unwrap(), Options::default()).unwrap_err().to_string();
    assert!(error.contains("in no mapping"), "{error}");
}

#[test]
fn this_process_and_its_recording_say_the_same() {
    let process = Process::open(std::process::id()).unwrap();
    let recorder = Recorder::new(&process);
    let found = inspect(&recorder, Options::default()).unwrap();
    assert!(found.memory.present_bytes > 0 && found.mappings.count > 0);
    let bytes = recorder.recording(Path::new("self.rec")).to_bytes().unwrap();
    let again = inspected(&bytes);
    assert_eq!(found, again);
}

#[test]
fn a_packed_recording_with_a_changed_byte_is_refused_or_the_same() {
    let recording = open(&recording(MAPS, &layout(), &[])).unwrap();
    let packed = recording.to_bytes().unwrap();
    assert!(open(&packed).is_ok());
    for place in 0..packed.len() {
        let mut changed = packed.clone();
        changed[place] ^= 0x10;
        // Some bits of zstd's headers mean nothing.
        if let Ok(same) = open(&changed) {
            assert_eq!(same.to_bytes().unwrap(), packed, "byte {place}");
        }
    }
}

#[test]
fn a_process_that_is_not_there_is_named() {
    let error = Process::open(u32::MAX >> 1).unwrap_err().to_string();
    assert!(error.starts_with("there is no process 2147483647"), "{error}");
}

/// The distribution as the definition has it, page by page.
fn defined(entries: &[u64]) -> [u64; 8] {
    let mut distribution = [0; 8];
    for group in entries.chunks_exact(8).filter(|group| group.iter().all(|&entry| Entry(entry).present())) {
        let lines: BTreeSet<u64> = group.iter().map(|&entry| Entry(entry).frame() >> 3).collect();
        distribution[lines.len() - 1] += 1;
    }
    distribution
}

proptest! {
    #[test]
    fn any_layout_gives_what_the_definition_gives(
        frames in proptest::collection::vec(proptest::option::weighted(0.95, 1_u64..64), 1..300),
        cuts in proptest::collection::vec(0_usize..300, 0..6),
    ) {
        let entries: Vec<u64> = frames.iter().map(|frame| frame.map_or(0, present)).collect();
        let mut ends: Vec<usize> = cuts.into_iter().filter(|&cut| cut < entries.len()).collect();
        ends.extend([0, entries.len()]);
        ends.sort_unstable();
        let pieces: Vec<Recorded> =
            ends.windows(2).map(|cut| (0x10000 + cut[0] as u64, 0, entries[cut[0]..cut[1]].to_vec())).collect();
        let found = inspected(&recording(MAPS, &pieces, &[]));
        let distribution = found.host_pt_fragmentation.value().map_or([0; 8], |metric| metric.host_4k.distribution);
        prop_assert_eq!(distribution, defined(&entries));
        let present_pages = frames.iter().flatten().count() as u64;
        prop_assert_eq!(found.memory.anonymous_bytes, present_pages * 4096);
        if let Some(heap) = found.mappings.largest.first() {
            let groups: u64 = distribution.iter().sum();
            prop_assert_eq!(heap.groups, groups);
        }
    }

    #[test]
    fn damaged_recordings_are_refused_or_read(place in 0_usize..1500, value: u8, cut in 0_usize..2000) {
        let mut bytes = recording(MAPS, &layout(), &[("flags", words(&[0x800, 0])), ("leaves", Vec::new())]);
        if let Some(byte) = bytes.get_mut(place) {
            *byte = value;
        }
        bytes.truncate(cut);
        if let Ok(recording) = open(&bytes) {
            let _ = inspect(&recording, Options::default());
        }
    }
}
