// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a trace says about a VM, and the events of a replay in order.

use nestwalk_mem::PageCount;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::error::CloudError;

/// When a VM is deleted, in seconds of the trace's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Departure {
    /// At this time.
    At(i64),
    /// At some time from `lo_s` to `hi_s`, both included: drawn uniformly.
    Between {
        /// The earliest.
        lo_s: i64,
        /// The latest.
        hi_s: i64,
    },
    /// Not while the trace lasts.
    Unknown,
}

/// A VM of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmRequest {
    /// When it is created, in seconds of the trace's clock.
    pub arrival_s: i64,
    /// When it is deleted.
    pub departure: Departure,
    /// Its virtual CPUs.
    pub vcpus: u32,
    /// Its memory in pages of 4 KiB.
    pub memory_pages: u64,
}

impl VmRequest {
    /// Its memory.
    pub const fn memory(&self) -> PageCount {
        PageCount(self.memory_pages)
    }
}

/// What happens at one point of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// When, in seconds of the trace's clock.
    pub time_s: i64,
    /// The request's position among the requests.
    pub vm: u32,
    /// Whether the VM is created; otherwise it is deleted.
    pub arrives: bool,
}

/// The events of some requests in the order in which they happen, and what had to be assumed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// In order: by time; at equal times deletions first, then creations; then by the request's position. A VM that is
    /// deleted at the second of its creation is deleted after all creations of that second.
    pub events: Vec<Event>,
    /// Requests whose deletion was drawn within bounds.
    pub drawn: u64,
    /// Requests that have no deletion.
    pub unknown: u64,
    /// Requests that are deleted at the second of their creation.
    pub momentary: u64,
}

impl Events {
    /// Orders the events of `requests`. Deletions with bounds are drawn from a generator seeded with `seed`, one after the
    /// other in the order of requests.
    ///
    /// # Errors
    /// If a request has no processors or no memory, or is deleted before it is created.
    pub fn new(requests: &[VmRequest], seed: u64) -> Result<Self, CloudError> {
        if requests.len() >= u32::MAX as usize {
            return Err(CloudError::option("requests", "more than 4 billion: replay a part of the trace"));
        }
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut ordered: Vec<(i64, u8, u32)> = Vec::with_capacity(requests.len() * 2);
        let mut events = Self::default();
        for (index, request) in requests.iter().enumerate() {
            request.check().map_err(|problem| CloudError::Request { index, problem })?;
            ordered.push((request.arrival_s, 1, index as u32));
            let departure = match request.departure {
                Departure::At(time_s) => Some(time_s),
                Departure::Between { lo_s, hi_s } => {
                    events.drawn += u64::from(lo_s < hi_s);
                    let lo_s = lo_s.max(request.arrival_s);
                    Some(lo_s + below(&mut rng, hi_s.abs_diff(lo_s).saturating_add(1)) as i64)
                }
                Departure::Unknown => None,
            };
            match departure {
                Some(time_s) => {
                    let momentary = time_s == request.arrival_s;
                    events.momentary += u64::from(momentary);
                    ordered.push((time_s, if momentary { 2 } else { 0 }, index as u32));
                }
                None => events.unknown += 1,
            }
        }
        ordered.sort_unstable();
        let event = |(time_s, rank, vm)| Event { time_s, vm, arrives: rank == 1 };
        events.events = ordered.into_iter().map(event).collect();
        Ok(events)
    }
}

impl VmRequest {
    fn check(&self) -> Result<(), String> {
        if self.vcpus == 0 || self.memory_pages == 0 {
            return Err(format!("{} vCPUs and {} pages: a VM has both", self.vcpus, self.memory_pages));
        }
        let (last, order) = match self.departure {
            Departure::At(time_s) => (time_s, true),
            Departure::Between { lo_s, hi_s } => (hi_s, lo_s <= hi_s),
            Departure::Unknown => return Ok(()),
        };
        match order && self.arrival_s <= last {
            true => Ok(()),
            false => {
                Err(format!("it arrives at {} s and departs at {:?}: before that", self.arrival_s, self.departure))
            }
        }
    }
}

/// A number below `bound`, each as likely as any other to within 2^-64 of the range.
pub(crate) fn below(rng: &mut Xoshiro256PlusPlus, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(arrival_s: i64, departure: Departure) -> VmRequest {
        VmRequest { arrival_s, departure, vcpus: 1, memory_pages: 512 }
    }

    fn order(requests: &[VmRequest]) -> Vec<(i64, u32, bool)> {
        let events = Events::new(requests, 1).unwrap().events;
        events.iter().map(|event| (event.time_s, event.vm, event.arrives)).collect()
    }

    #[test]
    fn deletions_come_before_creations_of_the_same_second() {
        let requests = [vm(10, Departure::At(20)), vm(20, Departure::Unknown), vm(20, Departure::At(20))];
        let expected = [(10, 0, true), (20, 0, false), (20, 1, true), (20, 2, true), (20, 2, false)];
        assert_eq!(order(&requests), expected);
    }

    #[test]
    fn drawn_deletions_lie_within_their_bounds_and_repeat() {
        let requests: Vec<_> = (0..1000).map(|at| vm(at, Departure::Between { lo_s: at - 5, hi_s: at + 7 })).collect();
        let events = Events::new(&requests, 7).unwrap();
        assert_eq!(events, Events::new(&requests, 7).unwrap());
        assert_ne!(events, Events::new(&requests, 8).unwrap());
        assert_eq!((events.drawn, events.unknown), (1000, 0));
        let mut seen = [false; 8];
        for event in events.events.iter().filter(|event| !event.arrives) {
            seen[usize::try_from(event.time_s - i64::from(event.vm)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 8], "every second of the bounds that is not before the arrival");
    }

    #[test]
    fn what_is_no_vm_is_refused_with_its_position() {
        let refused =
            |request: VmRequest| Events::new(&[vm(0, Departure::Unknown), request], 1).unwrap_err().to_string();
        assert!(refused(VmRequest { vcpus: 0, ..vm(0, Departure::Unknown) }).starts_with("request 1: 0 vCPUs"));
        assert!(refused(vm(10, Departure::At(9))).contains("before that"));
        assert!(refused(vm(0, Departure::Between { lo_s: 9, hi_s: 8 })).contains("before that"));
    }
}
