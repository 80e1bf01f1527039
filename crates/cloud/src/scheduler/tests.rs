// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index chooses as a look at every host does.

use proptest::prelude::*;
use rand_xoshiro::rand_core::SeedableRng;

use super::*;
use crate::extent::Extent;
use crate::fleet::{Fleet, HostGroup};
use crate::host::{HostOptions, Serve};
use crate::request::Departure;

fn vm(vcpus: u32, memory_pages: u64) -> VmRequest {
    VmRequest { arrival_s: 0, departure: Departure::Unknown, vcpus, memory_pages }
}

fn fleet(nodes: u32) -> Fleet {
    let group = |name, hosts, vcpus, memory| HostGroup {
        numa_nodes: nodes,
        ..HostGroup::plain(name, hosts, vcpus, PageCount(memory))
    };
    Fleet { groups: vec![group("small", 4, 12, 1000), group("large", 3, 20, 2500), group("wide", 2, 40, 1500)] }
}

#[derive(Clone, Debug)]
enum Op {
    Come(u32, u64),
    Go(prop::sample::Index),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let size = prop_oneof![Just(50u64), Just(100), Just(130), Just(400), Just(700), 1..2600u64];
    let op = prop_oneof![
        3 => (1..9u32, size).prop_map(|(vcpus, memory)| Op::Come(vcpus, memory)),
        2 => any::<prop::sample::Index>().prop_map(Op::Go),
    ];
    prop::collection::vec(op, 1..120)
}

fn options() -> impl Strategy<Value = SchedulerOptions> {
    let policy = prop::sample::select(&[Policy::FilterScheduler, Policy::FirstFit, Policy::BestFit, Policy::WorstFit]);
    let weights =
        prop::sample::select(&[(1.0, 0.0), (-1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (-0.5, 2.0), (2.0, -1.0), (0.0, 1.0)]);
    let subset = prop_oneof![2 => Just(1u32), 1 => 2..5u32];
    (policy, weights, subset, any::<bool>()).prop_map(|(policy, weights, host_subset_size, improv_placement)| {
        SchedulerOptions {
            policy,
            improv_placement,
            cpu_allocation_ratio: 1.0,
            host_subset_size,
            ram_weight_multiplier: weights.0,
            cpu_weight_multiplier: weights.1,
            ..SchedulerOptions::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_index_chooses_as_a_look_at_every_host_does(
        ops in ops(), options in options(), kind in prop::sample::select(&AllocatorKind::ALL), nodes in 1..3u32,
        rule in prop::sample::select(&[CountingRule::InOrder, CountingRule::AnyOrder]), limit in 1..20usize,
    ) {
        let mut hosts = Host::all(&fleet(nodes), &HostOptions::new(kind)).unwrap();
        let mut indexed = Scheduler::new(options, rule, kind, &hosts, 8);
        let mut naive = Scheduler::new(SchedulerOptions { index: false, ..options }, rule, kind, &hosts, 8);
        let (mut one, mut other) = (Xoshiro256PlusPlus::seed_from_u64(5), Xoshiro256PlusPlus::seed_from_u64(5));
        let mut live: Vec<(HostId, VmRequest, Vec<Extent>)> = Vec::new();
        for op in ops {
            let changed = match op {
                Op::Come(vcpus, memory) => {
                    let request = vm(vcpus, memory);
                    let host = indexed.choose(&hosts, &request, &mut one);
                    prop_assert_eq!(host, naive.choose(&hosts, &request, &mut other));
                    let candidates = indexed.candidates(&hosts, &request, limit);
                    prop_assert_eq!(&candidates, &naive.candidates(&hosts, &request, limit));
                    prop_assert_eq!(host.is_some(), !candidates.is_empty());
                    let Some(id) = host else { continue };
                    let mut extents = Vec::new();
                    prop_assert!(hosts[id.0 as usize].place(vcpus, request.memory(), 0, Serve::ByRule, &mut extents));
                    live.push((id, request, extents));
                    id
                }
                Op::Go(_) if live.is_empty() => continue,
                Op::Go(which) => {
                    let (id, request, extents) = live.swap_remove(which.index(live.len()));
                    hosts[id.0 as usize].remove(request.vcpus, request.memory(), &extents);
                    id
                }
            };
            indexed.update(changed, &hosts[changed.0 as usize]);
        }
    }
}

fn chosen(hosts: &[Host], options: SchedulerOptions, request: &VmRequest) -> Vec<u32> {
    let mut scheduler = Scheduler::new(options, CountingRule::InOrder, AllocatorKind::CompromisOpt2, hosts, 8);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut seen: Vec<u32> = (0..100).map(|_| scheduler.choose(hosts, request, &mut rng).unwrap().0).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[test]
fn policies_prefer_what_they_say() {
    let mut hosts = Host::all(&fleet(1), &HostOptions::new(AllocatorKind::CompromisOpt2)).unwrap();
    assert!(hosts[4].place(1, PageCount(2000), 0, Serve::ByRule, &mut Vec::new()));
    let base = SchedulerOptions { cpu_allocation_ratio: 1.0, ..SchedulerOptions::default() };
    let with = |policy| chosen(&hosts, SchedulerOptions { policy, ..base }, &vm(1, 100));
    assert_eq!(with(Policy::FirstFit), [0]);
    assert_eq!(with(Policy::BestFit), [4], "500 pages are left there");
    assert_eq!(with(Policy::WorstFit), [5]);
    assert_eq!(with(Policy::FilterScheduler), [5], "Nova spreads by default");
    let stacks = SchedulerOptions { ram_weight_multiplier: -1.0, ..base };
    assert_eq!(chosen(&hosts, stacks, &vm(1, 100)), [4]);
    let cpus = SchedulerOptions { ram_weight_multiplier: 0.0, cpu_weight_multiplier: 1.0, ..base };
    assert_eq!(chosen(&hosts, cpus, &vm(1, 100)), [7], "40 CPUs are free");
    let both = SchedulerOptions { cpu_weight_multiplier: 1.0, ..base };
    assert_eq!(chosen(&hosts, both, &vm(1, 100)), [7], "1 + 1000/2000 against 1 + 8/28");
    let subset = SchedulerOptions { host_subset_size: 3, ..base };
    assert_eq!(chosen(&hosts, subset, &vm(1, 100)), [5, 6, 7], "one of the three with the most memory");
}

#[test]
fn filters_let_pass_what_fits() {
    let hosts = Host::all(&fleet(1), &HostOptions::new(AllocatorKind::CompromisOpt2)).unwrap();
    let base = SchedulerOptions { cpu_allocation_ratio: 1.0, ..SchedulerOptions::default() };
    assert_eq!(chosen(&hosts, base, &vm(8, 2500)), [4]);
    let mut scheduler = Scheduler::new(base, CountingRule::InOrder, AllocatorKind::CompromisOpt2, &hosts, 50);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    assert_eq!(scheduler.choose(&hosts, &vm(21, 2000), &mut rng), None, "CPUs here, memory there");
    assert_eq!(scheduler.choose(&hosts, &vm(1, 2501), &mut rng), None);
    assert_eq!(scheduler.choose(&hosts, &vm(1, u64::MAX), &mut rng), None);
    assert_eq!(scheduler.choose(&hosts, &vm(21, 1500), &mut rng), Some(HostId(7)));
}

#[test]
fn improv_placement_prefers_fewer_segments_to_more_memory() {
    let fleet = Fleet { groups: vec![HostGroup::plain("h", 2, 100, PageCount(1000))] };
    let mut hosts = Host::all(&fleet, &HostOptions::new(AllocatorKind::CompromisOpt2)).unwrap();
    // Host 0: 800 free pages in two pieces of 400. Host 1: 500 free pages in one.
    let mut middle = Vec::new();
    let mut place = |host: usize, memory| {
        let mut extents = Vec::new();
        assert!(hosts[host].place(1, PageCount(memory), 0, Serve::ByRule, &mut extents));
        extents
    };
    let first = place(0, 400);
    middle.extend(place(0, 200));
    place(1, 500);
    hosts[0].remove(1, PageCount(400), &first);
    let base = SchedulerOptions::default();
    assert_eq!(chosen(&hosts, base, &vm(1, 450)), [0]);
    let improv = SchedulerOptions { improv_placement: true, ..base };
    assert_eq!(chosen(&hosts, improv, &vm(1, 450)), [1]);
    assert_eq!(chosen(&hosts, improv, &vm(1, 400)), [0], "one segment on either: the scheduler's own weight decides");
    assert_eq!(chosen(&hosts, improv, &vm(1, 600)), [0], "capacity is untouched");
}
