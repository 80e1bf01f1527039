// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast replays are: a trace that is made up, on the paper's fleet.
//!
//! Sizes of VMs are Azure's, small ones more often; arrivals are uniform over 30 days; lifetimes
//! are uniform up to twice the mean that fills four fifths of the fleet's memory. None of this
//! claims to be like a real trace: it keeps a fleet full and busy.

use std::time::Instant;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::allocator::AllocatorKind;
use crate::error::CloudError;
use crate::fleet::Fleet;
use crate::replay::{DynamicOptions, Options, replay};
use crate::request::{Departure, VmRequest, below};
use crate::scheduler::SchedulerOptions;

/// One benchmark: what a replay does, on how many hosts.
#[derive(Clone, Copy, Debug)]
pub struct Benchmark {
    /// Its name.
    pub name: &'static str,
    hosts: u32,
    vms: u64,
    allocator: AllocatorKind,
    improv_placement: bool,
    dynamic: bool,
    numa_nodes: u32,
}

impl Benchmark {
    const fn improv(name: &'static str, hosts: u32, vms: u64) -> Self {
        let allocator = AllocatorKind::CompromisOpt2;
        Self { name, hosts, vms, allocator, improv_placement: true, dynamic: false, numa_nodes: 1 }
    }

    const fn of(self, allocator: AllocatorKind) -> Self {
        Self { allocator, ..self }
    }

    const fn on_two_nodes(self) -> Self {
        Self { numa_nodes: 2, ..self }
    }
}

/// All of them. Xen's and Linux' allocators and hosts of two NUMA nodes have no ranges to go by:
/// VMs are tried on hosts.
pub const ALL: [Benchmark; 11] = [
    Benchmark::improv("place_improv_1k_hosts", 1000, 200_000),
    Benchmark::improv("place_improv_10k_hosts", 10_000, 2_000_000),
    Benchmark::improv("place_improv_100k_hosts", 100_000, 4_000_000),
    Benchmark { dynamic: true, ..Benchmark::improv("place_dynamic_1k_hosts", 1000, 200_000) },
    Benchmark {
        improv_placement: false,
        ..Benchmark::improv("place_baseline_1k_hosts", 1000, 200_000).of(AllocatorKind::Xen)
    },
    Benchmark::improv("place_improv_xen_1k_hosts", 1000, 20_000).of(AllocatorKind::Xen),
    Benchmark::improv("place_improv_xen_10k_hosts", 10_000, 100_000).of(AllocatorKind::Xen),
    Benchmark::improv("place_improv_hugetlb_1k_hosts", 1000, 20_000).of(AllocatorKind::LinuxHugetlb),
    Benchmark::improv("place_improv_hugetlb_10k_hosts", 10_000, 50_000).of(AllocatorKind::LinuxHugetlb),
    Benchmark::improv("place_improv_numa_1k_hosts", 1000, 20_000).on_two_nodes(),
    Benchmark::improv("place_improv_numa_10k_hosts", 10_000, 200_000).on_two_nodes(),
];

/// What a benchmark found: creations and deletions of VMs a second, all of a replay included.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// Which.
    pub name: &'static str,
    /// How many a second.
    pub value: f64,
    /// `events/s`.
    pub unit: &'static str,
    /// Events of one run.
    pub events: u64,
    /// Its time in seconds.
    pub wall_s: f64,
    /// Hosts that were tried, and nodes of indices that were looked at.
    pub candidates: u64,
    /// The share of VMs in one segment, and VMs without a host: to see that it did what it should.
    pub one_segment_share: f64,
    /// VMs for which no host had room.
    pub unplaced: u64,
}

/// Seconds of the trace: 30 days.
const SPAN_S: u64 = 30 * 24 * 3600;

/// `vms` that keep `fleet` at four fifths of its memory.
pub fn trace(fleet: &Fleet, vms: u64, seed: u64) -> Vec<VmRequest> {
    // Azure V1's memory sizes in MiB, with the share of VMs in thousandths (assumed: small ones
    // prevail) and virtual CPUs.
    const SIZES: [(u64, u64, u32); 14] = [
        (768, 120, 1),
        (1792, 350, 1),
        (2048, 20, 1),
        (3584, 250, 2),
        (4096, 20, 2),
        (7168, 120, 4),
        (8192, 15, 2),
        (14336, 60, 8),
        (16384, 10, 4),
        (28672, 15, 4),
        (32768, 5, 8),
        (57344, 8, 8),
        (65536, 2, 16),
        (114_688, 5, 16),
    ];
    let memory: u64 = fleet.groups.iter().map(|group| u64::from(group.hosts) * group.memory_pages).sum();
    let mean = SIZES.iter().map(|size| size.0 * 256 * size.1).sum::<u64>() / 1000;
    let life_s = u128::from(SPAN_S) * u128::from(memory / 5 * 4) / u128::from(mean * vms.max(1));
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut one = || {
        let mut drawn = below(&mut rng, 1000);
        let size = SIZES.iter().find(|size| {
            let here = drawn < size.1;
            drawn = drawn.saturating_sub(size.1);
            here
        });
        let &(mib, _, vcpus) = size.expect("the shares add up");
        let arrival_s = below(&mut rng, SPAN_S) as i64;
        let end_s = arrival_s + below(&mut rng, 2 * life_s as u64 + 1) as i64;
        let departure = if end_s > SPAN_S as i64 { Departure::Unknown } else { Departure::At(end_s) };
        VmRequest { arrival_s, departure, vcpus, memory_pages: mib * 256 }
    };
    (0..vms).map(|_| one()).collect()
}

/// Runs the benchmark `name` at full scale.
///
/// # Errors
/// If there is no such benchmark.
pub fn run(name: &str) -> Result<Measured, CloudError> {
    let benchmark = find(name)?;
    run_scaled(name, benchmark.hosts, benchmark.vms)
}

/// The names of all benchmarks.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|benchmark| benchmark.name).collect()
}

fn find(name: &str) -> Result<Benchmark, CloudError> {
    ALL.into_iter().find(|known| known.name == name).ok_or_else(|| {
        CloudError::option("benchmark", format!("there is no {name}: take one of {}", names().join(", ")))
    })
}

/// As [`run`], with so many hosts and VMs.
///
/// # Errors
/// As [`run`].
pub fn run_scaled(name: &str, hosts: u32, vms: u64) -> Result<Measured, CloudError> {
    let benchmark = find(name)?;
    let mut fleet = Fleet::paper(hosts);
    fleet.groups.iter_mut().for_each(|group| group.numa_nodes = benchmark.numa_nodes);
    let requests = trace(&fleet, vms, 1);
    let scheduler = SchedulerOptions { improv_placement: benchmark.improv_placement, ..SchedulerOptions::default() };
    let options = Options {
        dynamic: benchmark.dynamic.then(DynamicOptions::default),
        allocator: benchmark.allocator,
        scheduler,
        ..Options::default()
    };
    let began = Instant::now();
    let replay = replay(&fleet, &requests, &options, &mut |_| true)?;
    let wall_s = began.elapsed().as_secs_f64();
    let departing = requests.iter().filter(|request| request.departure != Departure::Unknown).count();
    let events = (requests.len() + departing) as u64;
    Ok(Measured {
        name: benchmark.name,
        value: events as f64 / wall_s,
        unit: "events/s",
        events,
        wall_s,
        candidates: replay.work.candidates,
        one_segment_share: replay.result.segments.shares.get("1").copied().unwrap_or(0.0),
        unplaced: replay.result.vms.unplaced,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_benchmark_keeps_its_fleet_busy() {
        for Benchmark { name, allocator, .. } in ALL {
            let measured = run_scaled(name, 20, 4000).unwrap();
            assert!(measured.events > 6000 && measured.unplaced < 400, "{measured:?}");
            assert_eq!(measured.one_segment_share > 0.9, allocator.keeps_whole(), "{measured:?}");
        }
        assert!(run("nothing").unwrap_err().to_string().contains("place_improv_1k_hosts"));
    }

    #[test]
    fn the_cost_of_a_placement_hardly_grows_with_the_hosts() {
        // The others are the same with more hosts.
        for Benchmark { name, .. } in ALL.into_iter().filter(|benchmark| benchmark.hosts == 1000) {
            let [few, many] = [40, 640].map(|hosts| {
                let measured = run_scaled(name, hosts, u64::from(hosts) * 20).unwrap();
                measured.candidates as f64 / measured.events as f64
            });
            assert!(many < 4.0 * few, "{name}: {few} candidates an event with 40 hosts, {many} with 640");
        }
    }
}
