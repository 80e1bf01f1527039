// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast replays are: a trace that is made up, on the paper's fleet.
//!
//! Sizes of VMs are Azure's, small ones more often; arrivals are uniform over 30 days; lifetimes are uniform up to twice the mean that
//! fills four fifths of the fleet's memory. None of this claims to be like a real trace: it keeps a fleet full and busy.

use std::time::Instant;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::allocator::AllocatorKind;
use crate::error::CloudError;
use crate::fleet::Fleet;
use crate::replay::{DynamicOptions, Options, replay};
use crate::request::{Departure, VmRequest, below};
use crate::scheduler::SchedulerOptions;

/// The names of all benchmarks: what a replay does, and the fleet.
pub const NAMES: [&str; 5] =
    ["place_improv_1k_hosts", "place_improv_10k_hosts", "place_improv_100k_hosts", "place_dynamic_1k_hosts", BASELINE];

/// The one with Xen's allocator and without ImprovPlacement.
const BASELINE: &str = "place_baseline_1k_hosts";

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
    /// The share of VMs in one segment, and VMs without a host: to see that it did what it should.
    pub one_segment_share: f64,
    /// VMs for which no host had room.
    pub unplaced: u64,
}

/// Seconds of the trace: 30 days.
const SPAN_S: u64 = 30 * 24 * 3600;

/// `vms` that keep `fleet` at four fifths of its memory.
pub fn trace(fleet: &Fleet, vms: u64, seed: u64) -> Vec<VmRequest> {
    // Azure V1's memory sizes in MiB, with the share of VMs in thousandths (assumed: small ones prevail) and virtual CPUs.
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
    let (hosts, vms) = match name {
        "place_improv_10k_hosts" => (10_000, 2_000_000),
        "place_improv_100k_hosts" => (100_000, 4_000_000),
        _ => (1000, 200_000),
    };
    run_scaled(name, hosts, vms)
}

/// As [`run`], with so many hosts and VMs.
///
/// # Errors
/// As [`run`].
pub fn run_scaled(name: &str, hosts: u32, vms: u64) -> Result<Measured, CloudError> {
    let Some(name) = NAMES.into_iter().find(|known| *known == name) else {
        return Err(CloudError::option("benchmark", format!("there is no {name}: take one of {}", NAMES.join(", "))));
    };
    let fleet = Fleet::paper(hosts);
    let requests = trace(&fleet, vms, 1);
    let baseline = name == BASELINE;
    let options = Options {
        dynamic: (name == "place_dynamic_1k_hosts").then(DynamicOptions::default),
        allocator: if baseline { AllocatorKind::Xen } else { AllocatorKind::CompromisOpt2 },
        scheduler: SchedulerOptions { improv_placement: !baseline, ..SchedulerOptions::default() },
        ..Options::default()
    };
    let began = Instant::now();
    let replay = replay(&fleet, &requests, &options, &mut |_| true)?;
    let wall_s = began.elapsed().as_secs_f64();
    let departing = requests.iter().filter(|request| request.departure != Departure::Unknown).count();
    let events = (requests.len() + departing) as u64;
    let one_segment_share = replay.result.segments.shares.get("1").copied().unwrap_or(0.0);
    let unplaced = replay.result.vms.unplaced;
    Ok(Measured { name, value: events as f64 / wall_s, unit: "events/s", events, wall_s, one_segment_share, unplaced })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_benchmark_keeps_its_fleet_busy() {
        for name in NAMES {
            let measured = run_scaled(name, 20, 4000).unwrap();
            assert!(measured.events > 6000 && measured.unplaced < 400, "{measured:?}");
            assert_eq!(measured.one_segment_share > 0.9, name != BASELINE, "{measured:?}");
        }
        assert!(run("nothing").unwrap_err().to_string().contains("place_improv_1k_hosts"));
    }
}
