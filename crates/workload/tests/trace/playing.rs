// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces as workloads.

use nestwalk_mem::{Access, Gva, PageCount, Vpn, VpnRange};
use nestwalk_workload::trace::{ConvertOptions, PlayOptions, SampleOptions, SteadyFrom, Strata, TraceWorkload};
use nestwalk_workload::{Batch, MemoryEvent, Phase, Step, ThreadId, Workload};

use crate::capture::{Capture, Place, Touch, mmap};

/// All steps, with what the batch held.
fn play(place: &Place, options: PlayOptions) -> Vec<(Step, Batch)> {
    let mut workload = TraceWorkload::open(&place.path("trace.nwt"), options).unwrap();
    let (mut steps, mut batch) = (Vec::new(), Batch::default());
    loop {
        let step = workload.next(&mut batch).unwrap();
        assert!(batch.accesses.len() <= Batch::ACCESSES_MAX && batch.touches.len() <= Batch::ACCESSES_MAX);
        if step == Step::End {
            return steps;
        }
        steps.push((step, batch.clone()));
    }
}

#[test]
fn a_whole_trace_maps_what_is_implied_warms_up_and_is_measured() {
    let all: Vec<_> = (0..50_000u64).map(|i| Touch::store(0x4000_0000 + i * 64)).collect();
    let mut capture = Capture::default();
    all.chunks(10_000).for_each(|chunk| capture.accesses(5, chunk));
    let place = Place::new();
    place.convert(&capture.bytes, &ConvertOptions::default()).unwrap();
    let steps = play(&place, PlayOptions { warm_permille: 100 });

    let pages = PageCount::covering(50_000 * 64);
    let range = VpnRange::new(Vpn(0x40000), pages);
    assert_eq!(steps[0].0, Step::Event(MemoryEvent::Mmap { range, writable: true, anonymous: true }));
    assert_eq!(steps[1].0, Step::Phase(Phase::Warm));
    let measure = steps.iter().position(|(step, _)| *step == Step::Phase(Phase::Measure)).unwrap();
    let count = |steps: &[(Step, Batch)]| steps.iter().map(|(_, b)| b.accesses.len()).sum::<usize>();
    assert_eq!((count(&steps[..measure]), count(&steps[measure..])), (5_000, 45_000));
    let played: Vec<_> = steps.iter().flat_map(|(_, b)| b.accesses.iter().copied()).collect();
    assert!(played.iter().zip(&all).all(|(a, b)| *a == Access::store(Gva(b.address))));
    assert_eq!(steps.iter().map(|(_, b)| b.instructions).sum::<u64>(), 100_000);
    let facts = TraceWorkload::open(&place.path("trace.nwt"), PlayOptions::default()).unwrap().facts();
    assert_eq!((facts.footprint, facts.accesses, facts.threads), (pages, Some(50_000), 1));
    assert_eq!(facts.name, "capture");
}

#[test]
fn no_warm_up_begins_measured_and_more_than_all_is_refused() {
    let mut capture = Capture::default();
    capture.accesses(0, &[Touch::load(0x1000)]);
    let place = Place::new();
    place.convert(&capture.bytes, &ConvertOptions::default()).unwrap();
    assert_eq!(play(&place, PlayOptions { warm_permille: 0 })[1].0, Step::Phase(Phase::Measure));
    let error = TraceWorkload::open(&place.path("trace.nwt"), PlayOptions { warm_permille: 1001 }).unwrap_err();
    assert!(error.to_string().contains("at most 1000"));
}

#[test]
fn a_sampled_trace_populates_warms_and_measures_each_window() {
    let mut capture = Capture::default();
    capture.events(0, &[mmap(0x4000_0000, 40_000 << 12)]);
    let pages: Vec<_> = (0..40_000u64).map(|i| Touch::store(0x4000_0000 + i * 4096)).collect();
    capture.accesses(0, &pages[..30_000]);
    capture.accesses(1, &pages[30_000..]);
    let again: Vec<_> = (0..10_000u64).map(|i| Touch::load(0x4000_0000 + i * 4096)).collect();
    capture.accesses(1, &again);
    let place = Place::new();
    let sample = SampleOptions {
        steady_from: SteadyFrom::Access(40_000),
        strata: Strata::Windows(2),
        collapse: 0,
        warm: 1000,
        window: 1000,
        seed: 3,
        budget: None,
    };
    place.convert(&capture.bytes, &ConvertOptions { sample: Some(sample), ..ConvertOptions::default() }).unwrap();
    let steps = play(&place, PlayOptions::default());
    let phases: Vec<_> =
        steps.iter().filter_map(|(s, _)| if let Step::Phase(p) = s { Some(*p) } else { None }).collect();
    use Phase::{Measure, Populate, Warm};
    assert_eq!(phases, [Populate, Warm, Measure, Populate, Warm, Measure, Populate]);
    let touches: Vec<_> =
        steps.iter().flat_map(|(_, b)| b.touches.iter().map(|&(page, store)| (b.thread, page, store))).collect();
    let wanted = |i: u64| (ThreadId(u16::from(i >= 30_000)), Vpn(0x40000 + i), true);
    assert!(touches.len() == 40_000 && touches.iter().zip(0..).all(|(touch, i)| *touch == wanted(i)));
    assert_eq!(steps.iter().map(|(_, b)| b.accesses.len()).sum::<usize>(), 4000);
}
