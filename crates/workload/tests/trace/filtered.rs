// SPDX-License-Identifier: MIT OR Apache-2.0
//! Filtered and collapsed stretches: nothing is lost that a kernel, a TLB or a cache must see, and
//! every access is counted.

use std::collections::BTreeMap;

use nestwalk_mem::{Access, Gva};
use nestwalk_workload::trace::format::RecordKind;
use nestwalk_workload::trace::{
    ConvertOptions, Decoder, FilterOptions, PlayOptions, SampleOptions, SteadyFrom, Strata, Trace, TraceWorkload,
    check, info,
};
use nestwalk_workload::{Batch, FilteredWorkload, Phase, Step, ThreadId, Workload};

use crate::capture::{Capture, Place, Touch, mmap, munmap};

const BASE: u64 = 0x4000_0000;
/// Small, so that a short program fills it.
const SMALL: FilterOptions = FilterOptions { line_sets: 4, line_ways: 2, page_sets: 1, page_ways: 4, renew: 50 };

/// Two threads that go round in a few pages, a stride apart, loading first and storing later; half
/// of the memory goes and comes back in the middle.
fn program() -> (Capture, Vec<(u32, Touch)>) {
    let (mut capture, mut all) = (Capture::default(), Vec::new());
    capture.events(0, &[mmap(BASE, 1 << 20)]);
    for block in 0..12u64 {
        if block == 6 {
            capture.events(1, &[munmap(BASE, 1 << 19), mmap(BASE, 1 << 19)]);
        }
        let thread = (block % 2) as u32;
        let touches: Vec<Touch> = (0..800u64)
            .map(|i| {
                let page = (i / 100 + block) % 9;
                let line = if i % 3 == 0 { 1 } else { i * 7 % 5 };
                let address = BASE + (page << 12 | line << 6 | (i % 64));
                Touch { site: (i % 4) as u32, store: i % 4 == 3 && block % 3 > 0, ..Touch::load(address) }
            })
            .collect();
        capture.accesses(thread, &touches);
        all.extend(touches.into_iter().map(|touch| (thread, touch)));
    }
    (capture, all)
}

/// Kept accesses with the number absorbed after each, in order.
fn kept(trace: &Trace) -> Vec<(ThreadId, Access, u32)> {
    let (mut decoder, mut all) = (Decoder::new(trace).unwrap(), Vec::new());
    for record in trace.records().iter().filter(|record| record.kind == RecordKind::Filtered) {
        let (mut accesses, mut gaps) = (Vec::new(), Vec::new());
        decoder.begin(trace, record).unwrap();
        while decoder.left() > 0 {
            let count = decoder.fill(trace, &mut accesses, 7).unwrap();
            decoder.fill_gaps(&mut gaps, count);
        }
        assert_eq!(accesses.len(), gaps.len());
        all.extend(accesses.into_iter().zip(gaps).map(|(access, gap)| (record.thread, access, gap)));
    }
    all
}

#[test]
fn every_access_is_kept_or_counted_and_what_a_kernel_must_see_is_kept() {
    let (capture, all) = program();
    let place = Place::new();
    let report =
        place.convert(&capture.bytes, &ConvertOptions { filter: Some(SMALL), ..ConvertOptions::default() }).unwrap();
    assert_eq!(report.represented_accesses, all.len() as u64);
    assert!(report.accesses < all.len() as u64 / 2, "{} of {} kept", report.accesses, all.len());
    let path = place.path("trace.nwt");
    let checked = check(&path).unwrap();
    assert_eq!((checked.accesses + checked.absorbed, checked.instructions), (all.len() as u64, 2 * all.len() as u64));
    let about = info(&path).unwrap();
    assert_eq!((about.format.as_str(), about.filter, about.represented_accesses), ("nwt 2", Some(SMALL), 9600));
    assert_eq!(about.stretches.len(), 1);
    assert_eq!((about.stretches[0].kind, about.stretches[0].represented_accesses), ("filtered", 9600));

    // Since the last event: pages by whether a store was kept; lines.
    let mut pages: BTreeMap<u64, bool> = BTreeMap::new();
    let mut at = 0;
    for (thread, access, gap) in kept(&place.trace()) {
        for (index, &(of, touch)) in all[at..=at + gap as usize].iter().enumerate() {
            if at + index == 6 * 800 {
                pages.clear();
            }
            let page = touch.address >> 12;
            assert_eq!(of, u32::from(thread.0));
            if index == 0 {
                assert_eq!(access, Access::new(Gva(touch.address), touch.store));
                *pages.entry(page).or_default() |= touch.store;
            } else {
                assert!(pages.get(&page).is_some_and(|&stored| stored || !touch.store), "lost: {touch:?}");
            }
        }
        at += 1 + gap as usize;
    }
    assert_eq!(at, all.len());
}

/// Plays a workload: accesses, absorbed ones, stores and instructions.
fn totals(workload: &mut dyn Workload) -> (u64, u64, u64, u64) {
    let (mut batch, mut sums) = (Batch::default(), (0, 0, 0, 0));
    loop {
        match workload.next(&mut batch).unwrap() {
            Step::End => return sums,
            Step::Accesses => {
                assert!(batch.absorbed.is_empty() || batch.absorbed.len() == batch.accesses.len());
                sums.0 += batch.accesses.len() as u64;
                sums.1 += batch.represented() - batch.accesses.len() as u64;
                sums.2 +=
                    batch.absorbed_stores + batch.accesses.iter().filter(|access| access.is_store()).count() as u64;
                sums.3 += batch.instructions;
            }
            _ => {}
        }
    }
}

#[test]
fn a_filtered_trace_and_a_trace_filtered_while_it_is_played_count_the_same() {
    let (capture, all) = program();
    let stores = all.iter().filter(|(_, touch)| touch.store).count() as u64;
    let place = Place::new();
    place.convert(&capture.bytes, &ConvertOptions { filter: Some(SMALL), ..ConvertOptions::default() }).unwrap();
    let open = || TraceWorkload::open(&place.path("trace.nwt"), PlayOptions { warm_permille: 0 }).unwrap();
    let filtered = totals(&mut open());
    assert_eq!((filtered.0 + filtered.1, filtered.2, filtered.3), (9600, stores, 2 * 9600));
    assert_eq!(totals(&mut FilteredWorkload::new(Box::new(open()), SMALL)), filtered, "filtered once is enough");

    place.convert(&capture.bytes, &ConvertOptions::default()).unwrap();
    let live = totals(&mut FilteredWorkload::new(Box::new(open()), SMALL));
    assert_eq!((live.0 + live.1, live.2, live.3), (9600, stores, 2 * 9600));
    assert_eq!(open().facts().accesses, Some(9600));
}

#[test]
fn a_collapsed_stretch_has_each_line_once_and_stands_for_all_of_it() {
    let mut capture = Capture::default();
    capture.events(0, &[mmap(BASE, 1 << 22)]);
    let touches: Vec<_> = (0..20_000u64).map(|i| Touch::store(BASE + (i * i % 3001) * 64)).collect();
    touches.chunks(5000).for_each(|chunk| capture.accesses(0, chunk));
    let sample = SampleOptions {
        steady_from: SteadyFrom::Access(5_000),
        strata: Strata::Windows(1),
        collapse: 10_000,
        warm: 1_000,
        window: 4_000,
        seed: 1,
        budget: None,
    };
    let place = Place::new();
    let options = ConvertOptions { sample: Some(sample), filter: Some(SMALL), ..ConvertOptions::default() };
    place.convert(&capture.bytes, &options).unwrap();
    let about = info(&place.path("trace.nwt")).unwrap();
    let represented = |kind, phase| {
        about
            .stretches
            .iter()
            .filter(|s| (s.kind, s.phase) == (kind, phase))
            .map(|s| s.represented_accesses)
            .sum::<u64>()
    };
    assert_eq!(represented("filtered", "measure"), 4_000);
    assert_eq!(represented("filtered", "warm"), 11_000);
    assert_eq!(represented("skipped", "populate"), 5_000);
    check(&place.path("trace.nwt")).unwrap();

    let mut workload = TraceWorkload::open(&place.path("trace.nwt"), PlayOptions::default()).unwrap();
    let (mut batch, mut phase, mut first) = (Batch::default(), None, None);
    loop {
        match workload.next(&mut batch).unwrap() {
            Step::End => break,
            Step::Phase(now) => phase = Some(now),
            Step::Accesses if first.is_none() => {
                assert_eq!(phase, Some(Phase::Warm));
                first = Some(batch.clone());
            }
            _ => {}
        }
    }
    let collapsed = first.unwrap();
    let lines: std::collections::BTreeSet<u64> = collapsed.accesses.iter().map(|access| access.gva().0 >> 6).collect();
    let wanted: std::collections::BTreeSet<u64> =
        touches[5_000..15_000].iter().map(|touch| touch.address >> 6).collect();
    assert_eq!((lines.len(), &lines), (collapsed.accesses.len(), &wanted));
    assert_eq!((collapsed.represented(), collapsed.instructions), (10_000, 20_000));

    let without = ConvertOptions { filter: None, ..options };
    let error = place.convert(&capture.bytes, &without).unwrap_err().to_string();
    assert!(error.contains("needs a filter"), "{error}");
}

/// A trace of the version before there were filters, from the first 2 M accesses of a redis-server:
/// 4 windows of 2,000 + 3,000 accesses.
#[test]
fn a_trace_of_version_1_is_still_read() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/version1.nwt");
    let about = info(&path).unwrap();
    assert_eq!((about.format.as_str(), about.accesses, about.represented_accesses), ("nwt 1", 20_000, 20_000));
    let kinds: Vec<_> = about.stretches.iter().map(|s| (s.kind, s.phase, s.count, s.accesses)).collect();
    let windows = [("whole", "warm", 4, 8_000), ("whole", "measure", 4, 12_000)];
    assert!(windows.iter().all(|window| kinds.contains(window)), "{kinds:?}");
    let checked = check(&path).unwrap();
    assert_eq!((checked.accesses, checked.absorbed, checked.instructions), (20_000, 0, about.instructions));
    let mut workload = TraceWorkload::open(&path, PlayOptions::default()).unwrap();
    let played = totals(&mut workload);
    assert_eq!((played.0, played.1, played.3), (20_000, 0, about.instructions));
    // The same bytes under the new version's header are the same trace; filtered records under the
    // old one are refused.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..32].copy_from_slice(&nestwalk_workload::trace::format::file_header(2));
    assert_eq!(Trace::from_bytes(bytes).unwrap().records().len(), workload.trace().records().len());
    let (capture, _) = program();
    let place = Place::new();
    place.convert(&capture.bytes, &ConvertOptions { filter: Some(SMALL), ..ConvertOptions::default() }).unwrap();
    let mut bytes = std::fs::read(place.path("trace.nwt")).unwrap();
    bytes[..32].copy_from_slice(&nestwalk_workload::trace::format::file_header(1));
    assert!(Trace::from_bytes(bytes).unwrap_err().to_string().contains("version 1"));
}
