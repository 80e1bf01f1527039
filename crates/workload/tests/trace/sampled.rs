// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sampled traces: the footprint is the program's, first touches come in order, windows lie where
//! they should.

use std::collections::{BTreeMap, BTreeSet};

use nestwalk_mem::{Access, Gva};
use nestwalk_workload::Phase;
use nestwalk_workload::trace::{ConvertOptions, SampleOptions, SteadyFrom, Strata, check};

use crate::capture::{Capture, Item, Place, Touch, items, mmap, munmap};

fn sampling(strata: Strata, steady_from: SteadyFrom) -> ConvertOptions {
    let sample = SampleOptions { steady_from, strata, collapse: 0, warm: 300, window: 200, seed: 7, budget: None };
    ConvertOptions { sample: Some(sample), ..ConvertOptions::default() }
}

/// A program of 20,000 accesses in blocks of 1000: pages come up slowly, some are loaded from first
/// and stored to later, and in the middle half of the memory is unmapped and mapped again.
fn program() -> (Capture, Vec<Touch>) {
    let (mut capture, mut all) = (Capture::default(), Vec::new());
    capture.events(0, &[mmap(0x100_0000, 0x100_0000)]);
    for block in 0..20u64 {
        if block == 10 {
            capture.events(0, &[munmap(0x100_0000, 0x80_0000), mmap(0x100_0000, 0x80_0000), (10, 0, 0, 0, 3, 0)]);
        }
        let accesses: Vec<_> = (0..1000u64)
            .map(|i| {
                let n = block * 1000 + i;
                let address = 0x100_0000 + (n * 37 % (1 + n / 10)) * 4096 % 0x100_0000;
                Touch { site: (n % 9) as u32, store: n % 9 > 5, ..Touch::load(address) }
            })
            .collect();
        capture.accesses(0, &accesses);
        all.extend(accesses);
    }
    (capture, all)
}

/// The kernel's view of the same program, one access after another: which accesses fault.
fn faults(all: &[Touch]) -> Vec<Option<(u64, bool)>> {
    let mut pages: BTreeMap<u64, bool> = BTreeMap::new();
    let fault = |(n, touch): (usize, &Touch)| {
        if n == 10_000 {
            pages.retain(|&page, _| page >= 0x180_0000 >> 12);
        }
        let page = touch.address >> 12;
        let known = pages.get(&page).copied();
        *pages.entry(page).or_default() |= touch.store;
        (known.is_none() || known == Some(false) && touch.store).then_some((page, touch.store))
    };
    all.iter().enumerate().map(fault).collect()
}

/// Goes through a trace and checks that it is `all`: windows access by access, and the rest by its
/// faults, in order. Returns the phases and where they lie.
fn follow(place: &Place, all: &[Touch]) -> Vec<(Phase, u64, u64)> {
    let faults = faults(all);
    let (mut at, mut phase, mut segments, mut touched) = (0, Phase::Populate, Vec::new(), Vec::new());
    let mut end_segment = |at: usize, phase: Phase, next: usize, touched: &mut Vec<(u64, bool)>| {
        if phase == Phase::Populate {
            let wanted: Vec<_> = faults[at..next].iter().flatten().copied().collect();
            assert_eq!(*touched, wanted, "first touches of accesses {at} to {next}");
            touched.clear();
        }
        if next > at {
            segments.push((phase, at as u64, next as u64));
        }
    };
    let mut begun = 0;
    for item in items(&place.trace()) {
        match item {
            Item::Mark(mark) => {
                let next = mark.access as usize;
                assert_eq!(mark.instructions, mark.access * 2);
                assert!(phase == Phase::Populate || at == next, "a window of {at} accesses ends at {next}");
                end_segment(begun, phase, next, &mut touched);
                (begun, at, phase) = (next, next, mark.phase);
            }
            Item::Access(_, access) => {
                assert_ne!(phase, Phase::Populate);
                assert_eq!(access, Access::new(Gva(all[at].address), all[at].store));
                at += 1;
            }
            Item::Touch(_, page, store) => {
                assert_eq!(phase, Phase::Populate);
                touched.push((page, store));
            }
            Item::Event(_) => {}
        }
    }
    end_segment(begun, phase, all.len(), &mut touched);
    segments
}

fn measured(segments: &[(Phase, u64, u64)]) -> Vec<(u64, u64)> {
    segments.iter().filter(|s| s.0 == Phase::Measure).map(|s| (s.1, s.2)).collect()
}

#[test]
fn windows_lie_in_their_stretches_and_the_rest_is_there_by_its_first_touches() {
    let (capture, all) = program();
    let place = Place::new();
    let report = place.convert(&capture.bytes, &sampling(Strata::Windows(9), SteadyFrom::Access(2000))).unwrap();
    let segments = follow(&place, &all);
    let windows = measured(&segments);
    assert_eq!(windows.len(), 9);
    for (i, (from, to)) in windows.iter().enumerate() {
        let stretch = 2000 + i as u64 * 2000;
        assert!(stretch + 300 <= *from && *to <= stretch + 2000 && to - from == 200);
    }
    let pages: BTreeSet<_> = all.iter().map(|touch| touch.address >> 12).collect();
    assert_eq!(report.metadata.footprint_pages, pages.len() as u64);
    assert_eq!((report.accesses, report.metadata.program_accesses), (9 * 500, 20_000));
    assert_eq!(report.metadata.program_instructions, 40_000);
    assert_eq!(report.metadata.sampling.as_ref().unwrap().windows, 9);
    let checked = check(&place.path("trace.nwt")).unwrap();
    assert_eq!((checked.accesses, checked.touches), (report.accesses, report.metadata.touches));
}

#[test]
fn a_period_needs_no_length_and_stops_at_its_most_windows() {
    let (capture, all) = program();
    let place = Place::new();
    let strata = Strata::Period { accesses: 1500, windows_max: Some(4) };
    place.convert(&capture.bytes, &sampling(strata, SteadyFrom::Access(0))).unwrap();
    let windows = measured(&follow(&place, &all));
    assert_eq!(windows.len(), 4);
    assert!(windows.iter().enumerate().all(|(i, w)| w.0 / 1500 == i as u64));
}

#[test]
fn a_mark_of_the_capture_begins_the_steady_phase() {
    let (capture, all) = program();
    let place = Place::new();
    let strata = Strata::Period { accesses: 2000, windows_max: None };
    place.convert(&capture.bytes, &sampling(strata, SteadyFrom::Mark(3))).unwrap();
    let windows = measured(&follow(&place, &all));
    assert_eq!(windows.len(), 5);
    assert!(windows[0].0 >= 10_300);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_other_windows() {
    let (capture, _) = program();
    let options = sampling(Strata::Windows(9), SteadyFrom::Access(0));
    let bytes = |options: &ConvertOptions| {
        let place = Place::new();
        place.convert(&capture.bytes, options).unwrap();
        std::fs::read(place.path("trace.nwt")).unwrap()
    };
    assert_eq!(bytes(&options), bytes(&options));
    let other = SampleOptions { seed: 8, ..options.sample.unwrap() };
    assert_ne!(bytes(&options), bytes(&ConvertOptions { sample: Some(other), ..options }));
}

#[test]
fn a_budget_leaves_windows_out_and_no_first_touch() {
    let (capture, all) = program();
    let place = Place::new();
    let options = sampling(Strata::Windows(10), SteadyFrom::Access(0));
    let full = place.convert(&capture.bytes, &options).unwrap();
    let most = full.bytes - 1500 + 4096;
    let options =
        ConvertOptions { sample: Some(SampleOptions { budget: Some(most), ..options.sample.unwrap() }), ..options };
    let less = place.convert(&capture.bytes, &options).unwrap();
    follow(&place, &all);
    let sampling = less.metadata.sampling.unwrap();
    assert!(sampling.windows_over_budget > 0 && sampling.windows > 0, "{sampling:?}");
    assert_eq!(sampling.windows + sampling.windows_over_budget, 10);
    assert!(less.bytes < most && less.metadata.footprint_pages == full.metadata.footprint_pages);
}

#[test]
fn impossible_sampling_leaves_no_file() {
    let (capture, _) = program();
    let place = Place::new();
    for (options, words) in [
        (sampling(Strata::Windows(100), SteadyFrom::Access(0)), "fewer or shorter windows"),
        (sampling(Strata::Windows(1), SteadyFrom::Mark(9)), "no mark 9"),
        (sampling(Strata::Period { accesses: 500, windows_max: None }, SteadyFrom::Access(1 << 40)), "ended before"),
    ] {
        let error = place.convert(&capture.bytes, &options).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
        let files: Vec<_> = std::fs::read_dir(place.0.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(files, ["capture"]);
    }
}
