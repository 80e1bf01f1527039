// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a trace asks of any fleet: to size one.

use serde::{Deserialize, Serialize};

use crate::error::CloudError;
use crate::request::{EventKind, Events, VmRequest};

/// Memory and virtual CPUs of the VMs that would run if every one were placed.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Demand {
    /// VMs.
    pub vms: u64,
    /// The most memory at one time, in pages of 4 KiB.
    pub peak_pages: u64,
    /// When that was, in seconds of the trace's clock.
    pub peak_s: i64,
    /// The most virtual CPUs at one time.
    pub peak_vcpus: u64,
    /// The most VMs at one time.
    pub peak_running: u64,
    /// Mean memory over time, in pages.
    pub mean_pages: f64,
    /// Mean virtual CPUs over time.
    pub mean_vcpus: f64,
    /// The largest VM's memory, in pages.
    pub largest_pages: u64,
}

/// The demand of `requests`, whose open deletions are drawn as a replay with `seed` draws them.
///
/// # Errors
/// If a request is not one of a VM.
pub fn demand(requests: &[VmRequest], seed: u64) -> Result<Demand, CloudError> {
    let events = Events::new(requests, seed, None)?.events;
    let largest_pages = requests.iter().map(|request| request.memory_pages).max().unwrap_or(0);
    let mut demand = Demand { vms: requests.len() as u64, largest_pages, ..Demand::default() };
    let (mut pages, mut vcpus, mut running) = (0_u64, 0_u64, 0_u64);
    let (mut page_seconds, mut vcpu_seconds) = (0_u128, 0_u128);
    let mut last_s = events.first().map_or(0, |event| event.time_s);
    let first_s = last_s;
    for event in events {
        let seconds = u128::from(event.time_s.abs_diff(last_s));
        page_seconds += u128::from(pages) * seconds;
        vcpu_seconds += u128::from(vcpus) * seconds;
        last_s = event.time_s;
        let request = &requests[event.vm as usize];
        if event.kind == EventKind::Arrive {
            pages += request.memory_pages;
            vcpus += u64::from(request.vcpus);
            running += 1;
        } else {
            pages -= request.memory_pages;
            vcpus -= u64::from(request.vcpus);
            running -= 1;
        }
        if pages > demand.peak_pages {
            (demand.peak_pages, demand.peak_s) = (pages, event.time_s);
        }
        demand.peak_vcpus = demand.peak_vcpus.max(vcpus);
        demand.peak_running = demand.peak_running.max(running);
    }
    let span = last_s.abs_diff(first_s);
    if span > 0 {
        demand.mean_pages = page_seconds as f64 / span as f64;
        demand.mean_vcpus = vcpu_seconds as f64 / span as f64;
    }
    Ok(demand)
}
