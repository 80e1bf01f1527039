// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures that choose their windows themselves: nothing is lost, what is sampled is what the
//! whole stream has, and the size holds.

use nestwalk_mem::{Access, Vpn};
use nestwalk_workload::trace::capture::{Answer, Begin, CaptureOptions, CaptureReport, Live, capture};
use nestwalk_workload::trace::format::RecordKind;
use nestwalk_workload::trace::{
    ConvertOptions, Decoder, FilterOptions, PlayOptions, Trace, TraceWorkload, check, info,
};
use nestwalk_workload::{Batch, Phase, Step, ThreadId, Workload, WorkloadError};

use crate::capture::{Capture, Place, Touch, mmap, munmap};

const BASE: u64 = 0x4000_0000;
const PAGES: u64 = 3000;
/// Of the program's start-up, which touches its pages, and of what it does then.
const STARTUP: u64 = 400_000;
const STEADY: u64 = 3_200_000;

/// A program that fills its memory, and then reads it at random with a lot of accesses to its stack
/// between.
fn program() -> Vec<u8> {
    let mut capture = Capture::default();
    capture.events(0, &[mmap(BASE, PAGES << 12), mmap(BASE + (1 << 32), 1 << 20)]);
    let (mut random, mut block) = (1u64, Vec::new());
    for n in 0..STARTUP + STEADY {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let touch = if n < STARTUP {
            Touch { site: 1, ..Touch::store(BASE + ((n * PAGES / STARTUP) << 12) + n % 512 * 8) }
        } else if n % 8 == 0 {
            Touch { site: 2, store: random >> 40 & 3 == 0, ..Touch::load(BASE + (random >> 33) % (PAGES << 12)) }
        } else {
            Touch { site: 3 + (n % 4) as u32, ..Touch::load(BASE + (1 << 32) + n % 40 * 8) }
        };
        block.push(Touch { instructions: 1 + (n % 3) as u16, ..touch });
        if block.len() == 20_000 {
            capture.accesses(0, &block);
            block.clear();
            if n > STARTUP && n % 1_000_000 < 20_000 {
                capture.events(0, &[munmap(BASE, 1 << 14), mmap(BASE, 1 << 14)]);
            }
        }
    }
    capture.bytes
}

fn made(place: &Place, stream: &[u8], options: &CaptureOptions) -> Result<CaptureReport, WorkloadError> {
    std::fs::write(place.path("capture"), stream).unwrap();
    capture(&place.path("capture"), &place.path("trace.nwt"), options, &mut |_| Answer::GoOn)
}

fn kept(trace: &Trace) -> Vec<(ThreadId, Access, u32)> {
    let (mut decoder, mut all) = (Decoder::new(trace).unwrap(), Vec::new());
    for record in trace.records().iter().filter(|record| record.kind == RecordKind::Filtered) {
        let (mut accesses, mut gaps) = (Vec::new(), Vec::new());
        decoder.begin(trace, record).unwrap();
        let count = decoder.fill(trace, &mut accesses, usize::MAX).unwrap();
        decoder.fill_gaps(&mut gaps, count);
        all.extend(accesses.into_iter().zip(gaps).map(|(access, gap)| (record.thread, access, gap)));
    }
    all
}

#[test]
fn what_fits_is_what_a_conversion_keeps() {
    let (stream, place, converted) = (program(), Place::new(), Place::new());
    let options = CaptureOptions { begin: Begin::Access(0), ..CaptureOptions::default() };
    let report = made(&place, &stream, &options).unwrap();
    let plain = ConvertOptions { filter: Some(FilterOptions::default()), ..ConvertOptions::default() };
    let other = converted.convert(&stream, &plain).unwrap();
    assert_eq!(kept(&place.trace()), kept(&converted.trace()));
    let (ours, theirs) = (&report.metadata, &other.metadata);
    assert_eq!(ours.program_accesses, STARTUP + STEADY);
    assert_eq!(ours.absorbed + ours.accesses, STARTUP + STEADY);
    assert_eq!(
        (ours.program_instructions, ours.instructions, ours.footprint_pages, ours.events, ours.threads),
        (theirs.program_instructions, theirs.instructions, theirs.footprint_pages, theirs.events, theirs.threads)
    );
    assert_eq!((&ours.vmas, &ours.implied), (&theirs.vmas, &theirs.implied));
    let absorbed_stores = |trace: &Trace| trace.records().iter().map(|record| record.absorbed_stores).sum::<u64>();
    let (ours, theirs) = (absorbed_stores(&place.trace()), absorbed_stores(&converted.trace()));
    assert!(ours.abs_diff(theirs) <= theirs / 1000, "{ours} of {theirs}: known by record only, they are spread evenly");
    check(&place.path("trace.nwt")).unwrap();
    assert!(report.latency_ci95 == Some(0.0) && !report.short_of_room && !report.over_size);
}

#[test]
fn the_start_up_is_found_and_is_there_as_first_touches() {
    let (stream, place) = (program(), Place::new());
    let report = made(&place, &stream, &CaptureOptions::default()).unwrap();
    assert!(report.steady.abs_diff(STARTUP) <= 2 * (1 << 16), "{}", report.steady);
    let found = info(&place.path("trace.nwt")).unwrap();
    assert_eq!(found.program_accesses, STARTUP + STEADY);
    assert!(found.touches >= PAGES, "{}", found.touches);
}

/// Pages touched first, whether in a log or by an access: each is there before a window uses it.
#[test]
fn a_small_size_gives_windows_and_loses_no_page() {
    let (stream, place) = (program(), Place::new());
    let whole = made(&place, &stream, &CaptureOptions::default()).unwrap();
    let size = whole.bytes / 2;
    let report = made(&place, &stream, &CaptureOptions { size, precision: 1e-6, ..CaptureOptions::default() }).unwrap();
    assert!(report.bytes <= size || report.over_size, "{} of {size}", report.bytes);
    let found = info(&place.path("trace.nwt")).unwrap();
    let sampling = found.sampling.unwrap();
    assert!(sampling.windows >= 2 && sampling.warm_accesses > 0, "{sampling:?}");
    assert_eq!(found.footprint_bytes, whole.metadata.footprint_pages << 12);
    assert_eq!((found.program_accesses, found.events), (STARTUP + STEADY, whole.metadata.events));
    check(&place.path("trace.nwt")).unwrap();
    let mut workload = TraceWorkload::open(&place.path("trace.nwt"), PlayOptions::default()).unwrap();
    let (mut batch, mut seen, mut measured) = (Batch::default(), std::collections::BTreeSet::new(), 0);
    let mut phase = Phase::Populate;
    loop {
        match workload.next(&mut batch).unwrap() {
            Step::Touches => seen.extend(batch.touches.iter().map(|&(page, _)| page)),
            Step::Phase(next) => phase = next,
            Step::Accesses => {
                seen.extend(batch.accesses.iter().map(|access| Vpn(access.gva().0 >> 12)));
                measured += if phase == Phase::Measure { batch.represented() } else { 0 };
            }
            Step::Event(_) => {}
            Step::End => break,
        }
    }
    assert_eq!(seen.len() as u64, whole.metadata.footprint_pages);
    let wanted = sampling.windows * sampling.window_accesses;
    assert!(measured.abs_diff(wanted) < wanted / 50, "{measured} measured of {wanted}");
}

#[test]
fn a_whole_capture_has_every_access_from_where_it_is_told_to_begin() {
    let stream = program();
    let whole = CaptureOptions { whole: true, ..CaptureOptions::default() };
    let of = |begin| {
        let place = Place::new();
        (made(&place, &stream, &CaptureOptions { begin, ..whole.clone() }).unwrap(), place)
    };
    let (all, _) = of(Begin::Auto);
    assert_eq!((all.steady, all.metadata.accesses, &all.metadata.sampling), (0, STARTUP + STEADY, &None));
    let (later, place) = of(Begin::Access(1_234_567));
    assert_eq!((later.steady, later.metadata.accesses), (1_234_567, STARTUP + STEADY - 1_234_567));
    assert_eq!(later.metadata.footprint_pages, all.metadata.footprint_pages);
    assert_eq!(later.metadata.program_accesses, STARTUP + STEADY);
    // As what is cut out of the whole.
    let sampling = later.metadata.sampling.unwrap();
    assert_eq!(
        (sampling.windows, sampling.first_access, sampling.window_accesses),
        (1, 1_234_567, later.metadata.accesses)
    );
    check(&place.path("trace.nwt")).unwrap();

    // When it is told to, which is where a block ends.
    let place = Place::new();
    std::fs::write(place.path("capture"), &stream).unwrap();
    let options = CaptureOptions { begin: Begin::Told, ..whole };
    let late = |now: Live| if now.accesses > 1_000_000 { Answer::Sample } else { Answer::GoOn };
    let told = capture(&place.path("capture"), &place.path("trace.nwt"), &options, &mut { late }).unwrap();
    assert!((1_000_000..1_100_000).contains(&told.steady), "{}", told.steady);
    assert_eq!(told.metadata.accesses, STARTUP + STEADY - told.steady);
}

#[test]
fn marks_begin_and_end_it_and_a_wish_to_give_up_leaves_nothing() {
    let mut capture_ = Capture::default();
    capture_.events(0, &[mmap(BASE, 1 << 20)]);
    let some: Vec<Touch> = (0..300_000).map(|n| Touch::load(BASE + n * 64 % (1 << 20))).collect();
    for mark in 1..4 {
        capture_.accesses(0, &some);
        capture_.events(0, &[(10, 0, 0, 0, mark, 0)]);
    }
    let place = Place::new();
    let options = CaptureOptions { begin: Begin::Mark(1), end_mark: Some(2), ..CaptureOptions::default() };
    let report = made(&place, &capture_.bytes, &options).unwrap();
    assert_eq!((report.steady, report.metadata.program_accesses), (300_000, 600_000));
    let whole = Place::new();
    let report = made(&whole, &capture_.bytes, &CaptureOptions { whole: true, ..options }).unwrap();
    assert_eq!((report.steady, report.metadata.program_accesses), (300_000, 600_000));
    assert_eq!((report.metadata.accesses, report.metadata.touches), (300_000, 256));

    let none = CaptureOptions { begin: Begin::Mark(9), ..CaptureOptions::default() };
    let other = Place::new();
    assert!(made(&other, &capture_.bytes, &none).unwrap_err().to_string().contains("no mark 9"));
    let (source, target) = (other.path("capture"), other.path("trace.nwt"));
    let mut calls = 0;
    let gave_up = capture(&source, &target, &CaptureOptions::default(), &mut |_: Live| {
        calls += 1;
        if calls > 2 { Answer::Abandon } else { Answer::GoOn }
    });
    assert!(gave_up.is_err());
    let left: Vec<_> = other.0.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["capture"]);
}
