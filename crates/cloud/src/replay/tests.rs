// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole replays: sums, repeatability, and what the options do.

use proptest::prelude::*;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::*;
use crate::allocator::AllocatorKind;
use crate::fleet::HostGroup;
use crate::request::{Departure, Resize, ResizeHow, below};
use crate::scheduler::{Policy, SchedulerOptions};
use nestwalk_mem::PageCount;

/// All ways to resize a VM.
const HOW: [ResizeHow; 4] = [ResizeHow::Grow, ResizeHow::Shrink, ResizeHow::Unplug, ResizeHow::Balloon];
const GIB: u64 = 1 << 18;

fn fleet(hosts: u32) -> Fleet {
    let group = |name, gib| HostGroup::plain(name, hosts, 32, PageCount(gib * GIB));
    Fleet { groups: vec![group("a", 32), group("b", 48)] }
}

/// `vms` of a few sizes, over 10,000 s; mean life 1,500 s. About 200 GiB run at a time with 300
/// VMs.
fn trace(vms: u64, seed: u64) -> Vec<VmRequest> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let sizes = [768, 1792, 3584, 7168, 14336, 28672, 65536].map(|mib| mib * 256);
    (0..vms)
        .map(|_| {
            let arrival_s = below(&mut rng, 10_000) as i64;
            let end_s = arrival_s + below(&mut rng, 3000) as i64;
            let departure = match below(&mut rng, 10) {
                0 => Departure::Unknown,
                1..=4 => Departure::Between { lo_s: end_s, hi_s: end_s + 500 },
                _ => Departure::At(end_s),
            };
            let size = below(&mut rng, 7).min(below(&mut rng, 7)) as usize;
            VmRequest { arrival_s, departure, vcpus: 1 << (size / 2), memory_pages: sizes[size] }
        })
        .collect()
}

fn run(fleet: &Fleet, requests: &[VmRequest], options: &Options) -> Replay {
    replay(fleet, requests, options, &mut |_| true).unwrap()
}

fn improv(allocator: AllocatorKind) -> Options {
    let scheduler = SchedulerOptions { improv_placement: true, ..SchedulerOptions::default() };
    Options { allocator, scheduler, ..Options::default() }
}

/// What holds of every replay.
fn check(replay: &Replay, requests: &[VmRequest]) {
    let result = &replay.result;
    for outcomes in [result.vms, result.warm_up].iter().chain(result.by_size.iter().map(|size| &size.vms)) {
        assert_eq!(outcomes.requests, outcomes.placed + outcomes.unplaced + outcomes.refused);
    }
    assert_eq!(result.vms.requests + result.warm_up.requests, requests.len() as u64, "every VM has an outcome");
    let placed = result.vms.placed;
    for segments in [&result.segments, &result.segments_other_rule, &result.segments_most] {
        assert_eq!(segments.histogram.values().sum::<u64>(), placed);
        assert!(placed == 0 || (segments.shares.values().sum::<f64>() - 1.0).abs() < 1e-9);
    }
    assert_eq!(result.by_size.iter().map(|size| size.vms.requests).sum::<u64>(), result.vms.requests);
    assert_eq!(result.by_size.iter().map(|size| size.segments.at_most(u64::MAX).0).sum::<u64>(), placed);
    assert_eq!(result.by_group.iter().map(|group| group.placed).sum::<u64>(), placed);
    assert!(result.modes.iter().all(|modes| modes.ds_vms + modes.ept_vms == placed));
    assert!(result.modes.windows(2).all(|pair| pair[0].ds_vms <= pair[1].ds_vms));
    let sampled: u64 = result.series.iter().flat_map(|sample| sample.placed).sum();
    assert_eq!(sampled, placed + result.warm_up.placed, "the last sample is at the last event");
    for map in &result.maps {
        let pairs = map.cells.windows(2);
        assert!(pairs.clone().all(|pair| pair[0].start_page + pair[0].pages <= pair[1].start_page), "no overlap");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_vm_has_an_outcome_and_a_replay_repeats(
        seed: u64, kind in prop::sample::select(&AllocatorKind::ALL), improv_placement: bool, hosts in 1..6u32,
        subset in 1..4u32, migrate: bool, how in prop::option::of(prop::sample::select(&HOW)), small: bool, warm: bool,
    ) {
        let requests = trace(150, seed);
        let scheduler = SchedulerOptions { improv_placement, host_subset_size: subset, ..SchedulerOptions::default() };
        let options = Options {
            seed,
            allocator: kind,
            scheduler,
            migration: migrate.then(Migration::default),
            resize: how.map(|how| Resize { how, vm_share: 0.5, ..Resize::default() }),
            ept_takes_small: small,
            measure_from_s: warm.then_some(3000),
            samples: 17,
            ..Options::default()
        };
        let first = run(&fleet(hosts), &requests, &options);
        check(&first, &requests);
        let again = run(&fleet(hosts), &requests, &options);
        prop_assert_eq!((&first.result, first.work, &first.vms), (&again.result, again.work, &again.vms));
        let naive = Options { scheduler: SchedulerOptions { index: false, ..scheduler }, ..options };
        let naive = run(&fleet(hosts), &requests, &naive);
        prop_assert_eq!((&first.result, &first.vms), (&naive.result, &naive.vms), "indexed and naive choose alike");
    }
}

#[test]
fn all_memory_is_free_again_when_all_vms_have_gone() {
    let mut requests = trace(400, 3);
    requests
        .iter_mut()
        .filter(|vm| vm.departure == Departure::Unknown)
        .for_each(|vm| vm.departure = Departure::At(20_000));
    for (kind, how) in AllocatorKind::ALL.into_iter().flat_map(|kind| HOW.map(|how| (kind, how))) {
        let resize = Some(Resize { how, vm_share: 0.5, ..Resize::default() });
        let options = Options { migration: Some(Migration::default()), resize, ..improv(kind) };
        let replay = run(&fleet(4), &requests, &options);
        check(&replay, &requests);
        let last = replay.result.series.last().unwrap();
        assert_eq!((last.running, last.used_pages, last.used_vcpus), (0, 0, 0), "{kind:?}");
        assert!(replay.result.resize.vms > 20 && replay.result.resize.undone > 10, "{kind:?} {how:?}");
    }
}

#[test]
fn a_vm_larger_than_any_host_is_refused_and_one_without_room_is_unplaced() {
    let vm = |vcpus, gib| VmRequest { arrival_s: 0, departure: Departure::Unknown, vcpus, memory_pages: gib * GIB };
    let requests = [vm(1, 49), vm(513, 1), vm(1, 48), vm(1, 48), vm(1, 32)];
    let replay = run(&fleet(1), &requests, &Options::default());
    check(&replay, &requests);
    let outcomes: Vec<Outcome> = replay.vms.iter().map(|vm| vm.outcome).collect();
    use Outcome::{Placed, Refused, Unplaced};
    assert_eq!(outcomes, [Refused, Refused, Placed, Unplaced, Placed]);
}

#[test]
fn compromis_needs_fewer_segments_than_first_fit_and_xen() {
    let requests = trace(2000, 11);
    let alone = |options: &Options| {
        let replay = run(&fleet(14), &requests, options);
        check(&replay, &requests);
        replay.result.segments.at_most(1).0 as f64 / replay.result.vms.placed as f64
    };
    let compromis = alone(&improv(AllocatorKind::CompromisOpt2));
    let first_fit = alone(&Options {
        allocator: AllocatorKind::FirstFit,
        scheduler: SchedulerOptions { policy: Policy::FirstFit, ..SchedulerOptions::default() },
        ..Options::default()
    });
    let xen = alone(&Options { allocator: AllocatorKind::Xen, ..Options::default() });
    assert!(compromis > first_fit && first_fit > xen, "{compromis} {first_fit} {xen}");
    assert!(compromis > 0.9 && xen == 0.0, "{compromis} {xen}");
}

/// Three VMs on one host of 32 GiB: 8, 16 and 8 GiB; the outer ones end. Then 12 GiB are asked for.
fn gap() -> Vec<VmRequest> {
    let vm = |arrival_s, end_s, gib| VmRequest {
        arrival_s,
        departure: Departure::At(end_s),
        vcpus: 1,
        memory_pages: gib * GIB,
    };
    vec![vm(0, 10, 8), vm(1, 99, 16), vm(2, 10, 8), vm(20, 99, 12)]
}

#[test]
fn migration_makes_room_at_the_cost_of_the_moved_memory() {
    let two = |hosts| Fleet { groups: vec![HostGroup::plain("h", hosts, 32, PageCount(32 * GIB))] };
    let vm = |arrival_s, end_s, gib| VmRequest {
        arrival_s,
        departure: Departure::At(end_s),
        vcpus: 1,
        memory_pages: gib * GIB,
    };
    // Host 0 has 6 GiB left. Host 1 has 8, 4, 8 and 12 GiB in this order, and both VMs of 8 GiB
    // end.
    let requests = [vm(0, 99, 26), vm(1, 10, 8), vm(2, 99, 4), vm(3, 10, 8), vm(4, 99, 12), vm(20, 99, 12)];
    let plain = run(&two(2), &requests, &Options::default());
    assert_eq!((plain.vms[5].host, plain.vms[5].segments), (1, 2), "8 and 4 GiB");
    let options = Options { migration: Some(Migration::default()), ..Options::default() };
    let moved = run(&two(2), &requests, &options);
    check(&moved, &requests);
    assert_eq!((moved.vms[5].host, moved.vms[5].segments), (1, 1));
    let expected = Migrations { moves: 1, bytes_copied: 4 << 30, failed: 0 };
    assert_eq!(moved.result.migration, expected, "the VM of 4 GiB went to host 0: the one of 12 GiB fits nowhere");
    let alone = run(&two(1), &requests[1..], &options);
    assert_eq!((alone.vms[4].segments, alone.result.migration.failed), (2, 1), "there is no other host");
}

#[test]
fn a_placement_on_more_hosts_does_not_look_at_more_of_them() {
    let looked_at = |hosts: u32| {
        let fleet = Fleet::paper(hosts);
        let requests = crate::bench::trace(&fleet, 20 * u64::from(hosts), 3);
        let replay = run(&fleet, &requests, &improv(AllocatorKind::CompromisOpt2));
        replay.work.candidates as f64 / requests.len() as f64
    };
    let (few, many) = (looked_at(100), looked_at(3200));
    assert!(many < 2.0 * few, "{few} nodes for 100 hosts, {many} for 3200");
}

#[test]
fn dynamic_option_select_takes_the_option_that_makes_more_ds_vms() {
    let requests = trace(3000, 5);
    for first in [AllocatorKind::CompromisOpt1, AllocatorKind::CompromisOpt2] {
        let options = Options { dynamic: Some(DynamicOptions { period_s: 1000 }), ..improv(first) };
        let dynamic = run(&fleet(10), &requests, &options);
        check(&dynamic, &requests);
        assert!(dynamic.result.dynamic.len() >= 10);
        let mut option = first;
        for decision in &dynamic.result.dynamic {
            let (one, two) = (decision.ds_vms_opt1, decision.ds_vms_opt2);
            let better = match one.cmp(&two) {
                std::cmp::Ordering::Greater => AllocatorKind::CompromisOpt1,
                std::cmp::Ordering::Less => AllocatorKind::CompromisOpt2,
                std::cmp::Ordering::Equal => option,
            };
            assert_eq!(decision.option, better);
            option = better;
        }
        // What the option in force made is what a replay of the first period under it makes.
        let plain = run(&fleet(10), &requests, &improv(first));
        let ds = |replay: &Replay| {
            let of_period = requests.iter().zip(&replay.vms).filter(|(request, _)| request.arrival_s < 1000);
            of_period.filter(|(_, vm)| vm.segments == 1).count() as u64
        };
        let decided = &dynamic.result.dynamic[0];
        let made = if first == AllocatorKind::CompromisOpt1 { decided.ds_vms_opt1 } else { decided.ds_vms_opt2 };
        assert_eq!((made, ds(&dynamic)), (ds(&plain), ds(&plain)));
    }
}

#[test]
fn blocks_that_are_taken_cost_segments_and_the_end_does_not() {
    let requests = trace(300, 9);
    let with = |how| {
        let resize = Some(Resize { how, vm_share: 1.0, memory_share: 0.25, undone: false });
        let replay = run(&fleet(20), &requests, &Options { resize, ..improv(AllocatorKind::CompromisOpt2) });
        check(&replay, &requests);
        assert!(replay.result.resize.pages > 0 && replay.result.resize.undone == 0);
        (replay.result.segments.at_most(1).0, replay.result.segments_most.at_most(1).0)
    };
    let (at_first, ever) = with(ResizeHow::Shrink);
    assert_eq!(at_first, ever);
    for how in [ResizeHow::Unplug, ResizeHow::Balloon] {
        let (at_first, ever) = with(how);
        assert!(ever * 10 < at_first, "{how:?}: {ever} of {at_first}");
    }
    let (at_first, ever) = with(ResizeHow::Grow);
    assert!(ever < at_first, "what lies behind a VM is not always free: {ever} of {at_first}");
}

#[test]
fn the_scheduler_does_not_know_of_a_balloon() {
    // One host of 48 GiB is full of two VMs. What the balloons have taken is free, and yet no third
    // VM comes.
    let vm = |arrival_s| VmRequest { arrival_s, departure: Departure::Unknown, vcpus: 1, memory_pages: 24 * GIB };
    let small = VmRequest { memory_pages: 4 * GIB, ..vm(10_000) };
    let requests = [vm(0), vm(0), small];
    let one = Fleet { groups: vec![HostGroup::plain("h", 1, 32, PageCount(48 * GIB))] };
    let with = |how| {
        let resize = Some(Resize { how, vm_share: 1.0, memory_share: 0.5, undone: false });
        run(&one, &requests, &Options { resize, ..improv(AllocatorKind::CompromisOpt2) })
    };
    let (balloon, unplug) = (with(ResizeHow::Balloon), with(ResizeHow::Unplug));
    assert_eq!((balloon.result.resize.pages, unplug.result.resize.pages), (24 * GIB, 24 * GIB));
    assert_eq!((balloon.result.vms.unplaced, unplug.result.vms.unplaced), (1, 0));
}

#[test]
fn unusable_memory_is_free_memory_that_a_vm_does_not_get_in_n_segments() {
    let one = Fleet { groups: vec![HostGroup::plain("h", 1, 32, PageCount(32 * GIB))] };
    let options = Options { samples: 99, ..Options::default() };
    let replay = run(&one, &gap()[..3], &options);
    // The sizes are 8, 16 and 8 GiB. From 11 s on, 8 + 8 GiB are free: one in three requests fits
    // in 16 but not in 8.
    let sample = replay.result.series.iter().find(|sample| sample.time_s == 50).unwrap();
    let unusable = sample.unusable_share.unwrap();
    assert!((unusable[0] - 1.0 / 3.0).abs() < 1e-9 && unusable[1] == 0.0, "{unusable:?}");
    assert_eq!((sample.running, sample.used_pages), (1, 16 * GIB));
    let cells: Vec<_> = replay.result.maps[0].cells.iter().map(|cell| (cell.pages / GIB, cell.kind, cell.vm)).collect();
    assert_eq!(cells, [(8, CellKind::Vm, Some(0)), (16, CellKind::Vm, Some(1)), (8, CellKind::Vm, Some(2))]);
}

#[test]
fn an_interrupted_replay_says_where() {
    let requests = trace(5000, 1);
    let mut calls = 0;
    let mut progress = |now: Progress| {
        calls += 1;
        assert_eq!(now.events, calls * EVENTS_PER_PROGRESS);
        calls < 2
    };
    let interrupted = replay(&fleet(10), &requests, &Options::default(), &mut progress).unwrap_err();
    assert_eq!(interrupted, CloudError::Interrupted { events: 2 * EVENTS_PER_PROGRESS });
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let refused = |options: Options| replay(&fleet(1), &[], &options, &mut |_| true).unwrap_err().to_string();
    let scheduler = |scheduler| Options { scheduler, ..Options::default() };
    let base = SchedulerOptions::default();
    assert!(refused(scheduler(SchedulerOptions { host_subset_size: 0, ..base })).contains("host_subset_size"));
    assert!(refused(scheduler(SchedulerOptions { cpu_allocation_ratio: f64::NAN, ..base })).contains("cpu_allocation"));
    assert!(refused(Options { ds_segments: 9, ..Options::default() }).contains("ds_segments: 9: give 1 to 8"));
    assert!(refused(Options { map_host: 2, ..Options::default() }).contains("the fleet's hosts are 0 to 1"));
    let dynamic = Some(DynamicOptions::default());
    assert!(refused(Options { dynamic, allocator: AllocatorKind::Xen, ..Options::default() }).contains("dynamic"));
    let none = Fleet { groups: Vec::new() };
    assert!(replay(&none, &[], &Options::default(), &mut |_| true).unwrap_err().to_string().contains("no hosts"));
    let replay = run(&fleet(1), &[], &Options::default());
    assert_eq!((replay.result.vms.requests, replay.result.span_s), (0, None));
}

#[test]
fn demand_is_what_would_run_if_all_were_placed() {
    let demand = demand(&gap(), 1).unwrap();
    assert_eq!((demand.vms, demand.peak_pages, demand.peak_s, demand.peak_running), (4, 32 * GIB, 2, 3));
    let mean = (8 * 10 + 16 * 98 + 8 * 8 + 12 * 79) as f64 / 99.0 * GIB as f64;
    assert!((demand.mean_pages - mean).abs() < 1e-3);
}
