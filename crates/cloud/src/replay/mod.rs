// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a trace of VMs over a fleet.

mod options;
mod result;

use std::time::Instant;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::error::CloudError;
use crate::extent::{Extent, count_segments};
use crate::fleet::Fleet;
use crate::host::{Host, Serve};
use crate::request::{Events, VmRequest};
use crate::scheduler::Scheduler;

pub use options::Options;
pub use result::{Latency, Outcome, Outcomes, Replay, ReplayResult, Segments, Timing, VmOutcome};

/// How far a replay is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Creations and deletions that were replayed.
    pub events: u64,
    /// All there are.
    pub events_total: u64,
    /// The trace's time, in seconds.
    pub time_s: i64,
    /// VMs that run now.
    pub running: u64,
    /// VMs for which no host had room, so far.
    pub unplaced: u64,
}

/// Events between two calls of a progress function.
pub const EVENTS_PER_PROGRESS: u64 = 4096;

/// Replays `requests` over `fleet`. `progress` is called every [`EVENTS_PER_PROGRESS`] events; when it returns false, the
/// replay ends.
///
/// # Errors
/// If the fleet cannot be built, a request is not one of a VM, an option is out of range, or `progress` returned false.
pub fn replay(
    fleet: &Fleet,
    requests: &[VmRequest],
    options: &Options,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Replay, CloudError> {
    options.check()?;
    let host_options = options.hosts();
    let mut hosts = Host::all(fleet, &host_options)?;
    let empty: Vec<Host> = fleet
        .groups
        .iter()
        .zip(0..)
        .map(|(group, at)| Host::new(group, at, &host_options))
        .collect::<Result<_, _>>()?;
    let events = Events::new(requests, options.seed)?.events;
    let mut scheduler = Scheduler::new(options.scheduler, options.counting);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(options.seed);
    let mut vms = vec![VmOutcome::default(); requests.len()];
    let mut memory: Vec<Vec<Extent>> = vec![Vec::new(); requests.len()];
    let mut result = ReplayResult::default();
    let start = Instant::now();
    for (event, done) in events.iter().zip(1..) {
        let (request, vm) = (&requests[event.vm as usize], &mut vms[event.vm as usize]);
        let extents = &mut memory[event.vm as usize];
        if event.arrives {
            let size = request.memory();
            if empty.iter().any(|host| host.passes(request.vcpus, size)) {
                vm.outcome = Outcome::Unplaced;
            }
            if let Some(host) = scheduler.choose(&hosts, request, &mut rng) {
                assert!(hosts[host.0 as usize].place(request.vcpus, size, event.time_s, Serve::ByRule, extents));
                let segments = count_segments(extents, options.counting);
                *vm = VmOutcome { outcome: Outcome::Placed, host: host.0, segments: segments as u32 };
                *result.segments.histogram.entry(segments).or_default() += 1;
            }
            result.vms.count(vm.outcome);
        } else if vm.outcome == Outcome::Placed {
            hosts[vm.host as usize].remove(request.vcpus, request.memory(), extents);
            *extents = Vec::new();
        }
        let progressed = Progress {
            events: done,
            events_total: events.len() as u64,
            time_s: event.time_s,
            running: 0,
            unplaced: result.vms.unplaced,
        };
        if done % EVENTS_PER_PROGRESS == 0 && !progress(progressed) {
            return Err(CloudError::Interrupted { events: done });
        }
    }
    result.segments.finish();
    let wall_s = start.elapsed().as_secs_f64();
    let timing = Timing { wall_s, events_per_s: events.len() as f64 / wall_s, ..Timing::default() };
    Ok(Replay { result, timing, vms })
}
