// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes in comes out.

use nestwalk_mem::{Access, Gva};
use nestwalk_workload::ThreadId;
use nestwalk_workload::trace::{ConvertOptions, Trace, check, info};
use proptest::prelude::*;

use crate::capture::{Capture, Item, Place, RawEvent, Touch, convert_file, items, mmap, munmap};

#[derive(Clone, Debug)]
enum Block {
    Accesses(u32, Vec<Touch>),
    Events(u32, Vec<RawEvent>),
}

fn touch() -> impl Strategy<Value = Touch> {
    let address = prop_oneof![0x1000u64..0x9000, any::<u64>().prop_map(|a| a >> 8)];
    (address, 0u32..30, 1u16..100, 0u8..6, any::<bool>()).prop_map(|(address, site, instructions, size_log2, store)| {
        Touch { address, site, instructions, size_log2, store }
    })
}

fn event() -> impl Strategy<Value = RawEvent> {
    (1u32..12, 0u32..4, 0u64..1 << 40, 0u64..1 << 20, 0u64..1 << 36, 0u64..1 << 40)
}

fn block() -> impl Strategy<Value = Block> {
    let thread = prop_oneof![Just(0u32), Just(1), Just(7)];
    prop_oneof![
        3 => (thread.clone(), prop::collection::vec(touch(), 0..60)).prop_map(|(t, a)| Block::Accesses(t, a)),
        1 => (thread, prop::collection::vec(event(), 0..5)).prop_map(|(t, e)| Block::Events(t, e)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_capture_round_trips(blocks in prop::collection::vec(block(), 1..20), packed: bool) {
        let (mut capture, mut wanted, mut threads) = (Capture::default(), Vec::new(), Vec::new());
        let (mut instructions, mut events) = (0, 0);
        let mut pages = std::collections::BTreeSet::new();
        for block in &blocks {
            let number = match block { Block::Accesses(t, _) | Block::Events(t, _) => *t };
            if !threads.contains(&number) {
                threads.push(number);
            }
            let thread = ThreadId(threads.iter().position(|&t| t == number).unwrap() as u16);
            match block {
                Block::Accesses(_, accesses) => {
                    capture.accesses(number, accesses);
                    wanted.extend(accesses.iter().map(|a| Item::Access(thread, Access::new(Gva(a.address), a.store))));
                    instructions += accesses.iter().map(|a| u64::from(a.instructions)).sum::<u64>();
                    pages.extend(accesses.iter().map(|a| a.address >> 12));
                }
                Block::Events(_, list) => {
                    capture.events(number, list);
                    events += list.len();
                }
            }
        }
        let raw_events: Vec<RawEvent> =
            blocks.iter().flat_map(|b| match b { Block::Events(_, e) => e.clone(), Block::Accesses(..) => vec![] }).collect();
        let bytes = if packed { zstd::encode_all(&capture.bytes[..], 1).unwrap() } else { capture.bytes.clone() };
        let place = Place::new();
        let report = place.convert(&bytes, &ConvertOptions::default()).unwrap();
        let trace = place.trace();
        let got = items(&trace);

        let accesses: Vec<_> = got.iter().filter(|item| matches!(item, Item::Access(..))).copied().collect();
        prop_assert_eq!(&accesses, &wanted);
        // Mappings that the converter adds for stray accesses are no events of the capture.
        let mut left = raw_events.iter();
        for item in &got {
            let Item::Event(e) = item else { continue };
            let words = (e.op as u32, e.flags, e.address.0, e.bytes, e.argument, e.result);
            if left.as_slice().first() == Some(&words) {
                left.next();
            } else {
                prop_assert_eq!((words.0, words.1, words.3), (9, 0x22, 4096));
            }
        }
        prop_assert!(left.as_slice().is_empty());

        let info = info(&place.path("trace.nwt")).unwrap();
        prop_assert_eq!((info.accesses, info.instructions), (wanted.len() as u64, instructions));
        prop_assert_eq!((info.threads, info.events), (threads.len() as u64, events as u64));
        prop_assert_eq!(info.footprint_bytes, pages.len() as u64 * 4096);
        prop_assert_eq!(info.bytes, std::fs::metadata(place.path("trace.nwt")).unwrap().len());
        prop_assert_eq!((report.accesses, report.bytes), (info.accesses, info.bytes));
        let checked = check(&place.path("trace.nwt")).unwrap();
        prop_assert_eq!((checked.accesses, checked.instructions), (info.accesses, info.instructions));
    }
}

#[test]
fn events_stand_between_the_accesses_that_they_stood_between() {
    let mut capture = Capture::default();
    capture.events(0, &[mmap(0x10000, 0x4000)]);
    capture.accesses(0, &[Touch::store(0x10000), Touch::load(0x11000)]);
    capture.events(0, &[munmap(0x10000, 0x1000)]);
    capture.accesses(0, &[Touch::load(0x12000)]);
    let place = Place::new();
    place.convert(&capture.bytes, &ConvertOptions::default()).unwrap();
    let shape: String = items(&place.trace())
        .iter()
        .map(|item| match item {
            Item::Access(..) => 'a',
            Item::Event(_) => 'e',
            _ => '?',
        })
        .collect();
    assert_eq!(shape, "eaaea");
    let info = info(&place.path("trace.nwt")).unwrap();
    assert_eq!(info.vmas.iter().map(|vma| (vma.start, vma.end)).collect::<Vec<_>>(), [(0x11000, 0x14000)]);
}

/// What the kernel copies is no event of the trace, but a touch of each page that is new, in its
/// place; and making a trace of the trace keeps it.
#[test]
fn what_the_kernel_copies_touches_pages_that_are_new() {
    let copy = |address, bytes, to_user| (12, u32::from(to_user), address, bytes, 0, 0);
    let mut capture = Capture::default();
    capture.events(0, &[mmap(0x10000, 0x8000)]);
    capture.accesses(0, &[Touch::load(0x10000)]);
    capture.events(0, &[copy(0x10ff0, 0x1020, true), copy(0x13000, 1, false), copy(0x11000, 0x1000, true)]);
    capture.accesses(0, &[Touch::store(0x14000)]);
    capture.events(0, &[copy(0x13000, 8, true), munmap(0x11000, 0x1000), mmap(0x11000, 0x1000)]);
    capture.events(0, &[copy(0x11000, 8, false)]);
    let place = Place::new();
    place.convert(&capture.bytes, &ConvertOptions::default()).unwrap();
    let shape = |trace: &Trace| -> Vec<String> {
        let name = |item: &Item| match item {
            Item::Access(_, touch) => format!("a{:x}", touch.gva().0 >> 12),
            Item::Event(event) => format!("e{}", event.op as u32),
            Item::Touch(_, page, store) => format!("{}{page:x}", if *store { "s" } else { "l" }),
            Item::Mark(_) => "m".into(),
        };
        items(trace).iter().map(name).collect()
    };
    // Pages 0x10 to 0x12: the first had been loaded from and is stored to now.
    let wanted = ["e1", "a10", "s10", "s11", "s12", "l13", "a14", "s13", "e2", "e1", "l11"];
    assert_eq!(shape(&place.trace()), wanted);
    let info = info(&place.path("trace.nwt")).unwrap();
    assert_eq!((info.events, info.footprint_bytes, info.accesses), (3, 5 << 12, 2));
    convert_file(&place.path("trace.nwt"), &place.path("again.nwt"), &ConvertOptions::default()).unwrap();
    assert_eq!(shape(&Trace::open(&place.path("again.nwt")).unwrap()), wanted);
}

#[test]
fn a_page_that_is_used_after_another_thread_unmapped_it_is_mapped_once_more() {
    let mut capture = Capture::default();
    capture.events(0, &[mmap(0x10000, 0x4000), munmap(0x10000, 0x4000)]);
    capture.accesses(1, &[Touch::load(0x11000), Touch::load(0x11008)]);
    let place = Place::new();
    place.convert(&capture.bytes, &ConvertOptions::default()).unwrap();
    let all = items(&place.trace());
    assert!(matches!(all[2], Item::Event(event) if event.op as u32 == 9 && event.address.0 == 0x11000), "{all:?}");
    assert_eq!(all.len(), 5);
    assert!(place.trace().metadata().implied.is_empty());
}

#[test]
fn instructions_of_saturated_accesses_come_from_the_block_header() {
    let mut capture = Capture::default();
    capture.accesses(0, &[Touch { instructions: 10, ..Touch::load(0x1000) }]);
    let second = capture.bytes.len();
    capture.accesses(0, &[Touch { instructions: 0xffff, ..Touch::load(0x1000) }]);
    capture.bytes[second + 24..second + 32].copy_from_slice(&1_000_010u64.to_le_bytes());
    let place = Place::new();
    assert_eq!(place.convert(&capture.bytes, &ConvertOptions::default()).unwrap().metadata.instructions, 1_000_010);
}

#[test]
fn instructions_after_a_block_s_last_access_are_counted_once() {
    let mut capture = Capture::default();
    let mut headers = Vec::new();
    for _ in 0..4 {
        headers.push(capture.bytes.len());
        capture.accesses(0, &[Touch { instructions: 10, ..Touch::load(0x1000) }; 3]);
    }
    // Each block ends some instructions after its last access; the next one's first access counts
    // them too.
    for (header, instructions) in headers.into_iter().zip([35u64, 67, 90, 128]) {
        capture.bytes[header + 24..header + 32].copy_from_slice(&instructions.to_le_bytes());
    }
    let place = Place::new();
    let report = place.convert(&capture.bytes, &ConvertOptions::default()).unwrap();
    assert_eq!((report.metadata.instructions, report.metadata.program_instructions), (128, 128));
}
