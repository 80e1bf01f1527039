// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a trace of VMs over a fleet.
//!
//! Events happen in the order of [`Events`]: by time, deletions before creations. A VM is refused
//! if it is larger than any host of the fleet when that is empty, and unplaced if no host has room
//! when it arrives; it is not tried again. Each VM has exactly one outcome.

mod cloud;
mod demand;
mod dynamic;
mod migrate;
mod options;
mod resize;
mod result;
mod sample;
mod tally;
#[cfg(test)]
mod tests;

use std::time::Instant;

use crate::error::CloudError;
use crate::fleet::Fleet;
use crate::request::{Events, VmRequest};

use cloud::Cloud;
use dynamic::Dynamic;
use sample::Sampler;
use tally::Tally;

pub use demand::{Demand, demand};
pub use options::{DynamicOptions, Migration, Options};
pub use result::{
    ByGroup, BySize, Cell, CellKind, Decision, HostMap, Migrations, Modes, Outcome, Outcomes, Replay, ReplayResult,
    Resizes, Sample, Segments, Spread, Timing, VmOutcome, Work,
};

/// How far a replay is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Events that were replayed.
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

/// Replays `requests` over `fleet`. `progress` is called every [`EVENTS_PER_PROGRESS`] events; when
/// it returns false, the replay ends.
///
/// # Errors
/// If the fleet cannot be built, a request is not one of a VM, an option is out of range, or
/// `progress` returned false.
pub fn replay(
    fleet: &Fleet,
    requests: &[VmRequest],
    options: &Options,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Replay, CloudError> {
    options.check(fleet)?;
    let began = Instant::now();
    let Events { events, assumed } = Events::new(requests, options.seed, options.resize.as_ref())?;
    let mut cloud = Cloud::new(fleet, requests, options)?;
    let mut tally = Tally::new(fleet, requests, options);
    let mut sampler = Sampler::new(&cloud, fleet, requests, &events, options);
    let first_s = events.first().map_or(0, |event| event.time_s);
    let mut dynamic = options.dynamic.map(|dynamic| Dynamic::new(&dynamic, options.allocator, &cloud, first_s));
    tally.result.assumed = assumed;
    tally.result.span_s = events.last().map(|last| (first_s, last.time_s));
    for (at, &event) in events.iter().enumerate() {
        sampler.before(event.time_s, &cloud, fleet, &mut tally)?;
        if let Some(dynamic) = &mut dynamic {
            tally.result.dynamic.extend(dynamic.before(at, &mut cloud, &events, requests, options));
        }
        let step = cloud.step(event, requests, options);
        tally.count(event, &requests[event.vm as usize], step, |host| cloud.hosts[host as usize].group());
        if let Some(dynamic) = &mut dynamic {
            dynamic.count(step, options);
        }
        let done = at as u64 + 1;
        let now = || Progress {
            events: done,
            events_total: events.len() as u64,
            time_s: event.time_s,
            running: cloud.running,
            unplaced: tally.outcomes().unplaced,
        };
        if done.is_multiple_of(EVENTS_PER_PROGRESS) && !progress(now()) {
            return Err(CloudError::Interrupted { events: done });
        }
    }
    sampler.finish(&cloud, fleet, &mut tally)?;
    let list_steps = cloud.hosts.iter().map(|host| host.steps()).sum();
    let work = Work { candidates: cloud.scheduler.examined(), list_steps };
    Ok(tally.finish(requests, events.len(), work, began.elapsed().as_secs_f64()))
}
