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

/// What happens to a VM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum EventKind {
    /// It is deleted.
    Depart,
    /// Some of its memory is unplugged.
    Unplug,
    /// It is created.
    Arrive,
    /// It gets the unplugged memory back.
    Plug,
    /// It is deleted at the second of its creation.
    DepartAtOnce,
}

/// What happens at one point of a replay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Event {
    /// When, in seconds of the trace's clock.
    pub time_s: i64,
    /// What.
    pub kind: EventKind,
    /// The request's position among the requests.
    pub vm: u32,
}

/// Memory hot-unplug during the life of some VMs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Unplug {
    /// The share of VMs that it happens to, drawn. Once each, at a time of their life that is drawn.
    pub vm_share: f64,
    /// The share of such a VM's memory, rounded down to blocks of 2 MiB.
    pub memory_share: f64,
    /// Which blocks.
    pub from: UnplugFrom,
    /// Whether the VM gets the memory back, at a later time of its life that is drawn.
    pub returned: bool,
}

impl Default for Unplug {
    fn default() -> Self {
        Self { vm_share: 0.1, memory_share: 0.25, from: UnplugFrom::Blocks, returned: true }
    }
}

/// Which blocks of a VM's memory are unplugged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnplugFrom {
    /// The last ones.
    End,
    /// Any, drawn: those that the guest can free.
    #[default]
    Blocks,
}

/// The events of some requests in the order in which they happen, and what had to be assumed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// In order: by time; at equal times as [`EventKind`] has it (deletions before creations); then by the request's position.
    pub events: Vec<Event>,
    /// What had to be assumed.
    pub assumed: Assumed,
}

/// What a trace left open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Assumed {
    /// VMs whose deletion was drawn within bounds.
    pub departures_drawn: u64,
    /// VMs that have no deletion.
    pub departures_unknown: u64,
    /// VMs that are deleted at the second of their creation.
    pub momentary: u64,
}

impl Events {
    /// Orders the events of `requests`. Deletions with bounds are drawn from a generator seeded with `seed`, one after the
    /// other in the order of requests; so is what `unplug` asks for, from another one.
    ///
    /// # Errors
    /// If a request has no processors or no memory, or is deleted before it is created.
    pub fn new(requests: &[VmRequest], seed: u64, unplug: Option<&Unplug>) -> Result<Self, CloudError> {
        if requests.len() >= u32::MAX as usize {
            return Err(CloudError::option("requests", "more than 4 billion: replay a part of the trace"));
        }
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut unplug_rng = rng.clone();
        unplug_rng.jump();
        let last_arrival = requests.iter().map(|request| request.arrival_s).max().unwrap_or(0);
        let mut all = Self::default();
        all.events.reserve(requests.len() * 2);
        for (index, (request, vm)) in requests.iter().zip(0..).enumerate() {
            request.check().map_err(|problem| CloudError::Request { index, problem })?;
            let departure = all.depart(request, vm, &mut rng);
            all.events.push(Event { time_s: request.arrival_s, kind: EventKind::Arrive, vm });
            if let Some(unplug) = unplug {
                let end = departure.unwrap_or(last_arrival).max(request.arrival_s);
                all.unplug(unplug, vm, (request.arrival_s, end), &mut unplug_rng);
            }
        }
        all.events.sort_unstable();
        Ok(all)
    }

    fn depart(&mut self, request: &VmRequest, vm: u32, rng: &mut Xoshiro256PlusPlus) -> Option<i64> {
        let time_s = match request.departure {
            Departure::At(time_s) => time_s,
            Departure::Between { lo_s, hi_s } => {
                self.assumed.departures_drawn += u64::from(lo_s < hi_s);
                drawn(rng, lo_s.max(request.arrival_s), hi_s)
            }
            Departure::Unknown => {
                self.assumed.departures_unknown += 1;
                return None;
            }
        };
        let momentary = time_s == request.arrival_s;
        self.assumed.momentary += u64::from(momentary);
        let kind = if momentary { EventKind::DepartAtOnce } else { EventKind::Depart };
        self.events.push(Event { time_s, kind, vm });
        Some(time_s)
    }

    /// `life`: from the VM's creation to its deletion. Memory is unplugged after the former and before the latter.
    fn unplug(&mut self, unplug: &Unplug, vm: u32, life: (i64, i64), rng: &mut Xoshiro256PlusPlus) {
        let chosen = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        if chosen >= unplug.vm_share || life.1 - life.0 < 3 {
            return;
        }
        let at = drawn(rng, life.0 + 1, life.1 - 2);
        self.events.push(Event { time_s: at, kind: EventKind::Unplug, vm });
        if unplug.returned {
            self.events.push(Event { time_s: drawn(rng, at + 1, life.1 - 1), kind: EventKind::Plug, vm });
        }
    }
}

/// A time from `lo_s` to `hi_s`, both included.
fn drawn(rng: &mut Xoshiro256PlusPlus, lo_s: i64, hi_s: i64) -> i64 {
    lo_s + below(rng, hi_s.abs_diff(lo_s).saturating_add(1)) as i64
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
        let events = Events::new(requests, 1, None).unwrap().events;
        events.iter().map(|event| (event.time_s, event.vm, event.kind == EventKind::Arrive)).collect()
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
        let events = Events::new(&requests, 7, None).unwrap();
        assert_eq!(events, Events::new(&requests, 7, None).unwrap());
        assert_ne!(events, Events::new(&requests, 8, None).unwrap());
        assert_eq!((events.assumed.departures_drawn, events.assumed.departures_unknown), (1000, 0));
        let mut seen = [false; 8];
        for event in events.events.iter().filter(|event| event.kind != EventKind::Arrive) {
            seen[usize::try_from(event.time_s - i64::from(event.vm)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 8], "every second of the bounds that is not before the arrival");
    }

    #[test]
    fn memory_is_unplugged_within_the_life_of_some_vms() {
        let requests: Vec<_> = (0..1000).map(|at| vm(at, Departure::At(at + 2 + at % 50))).collect();
        let unplug = Unplug { vm_share: 0.5, ..Unplug::default() };
        let events = Events::new(&requests, 7, Some(&unplug)).unwrap().events;
        let kinds = |kind| events.iter().filter(|event| event.kind == kind).count();
        assert!((400..560).contains(&kinds(EventKind::Unplug)), "{}", kinds(EventKind::Unplug));
        assert_eq!(kinds(EventKind::Unplug), kinds(EventKind::Plug));
        let plain = Events::new(&requests, 7, None).unwrap().events;
        let others = events.iter().filter(|event| !matches!(event.kind, EventKind::Unplug | EventKind::Plug));
        assert!(others.eq(&plain), "nothing else is drawn differently");
        for vm in 0..1000 {
            let of_vm: Vec<_> = events.iter().filter(|event| event.vm == vm).map(|event| event.kind).collect();
            let all = [EventKind::Arrive, EventKind::Unplug, EventKind::Plug, EventKind::Depart];
            assert!(of_vm == all || of_vm == [EventKind::Arrive, EventKind::Depart]);
        }
    }

    #[test]
    fn what_is_no_vm_is_refused_with_its_position() {
        let refused =
            |request: VmRequest| Events::new(&[vm(0, Departure::Unknown), request], 1, None).unwrap_err().to_string();
        assert!(refused(VmRequest { vcpus: 0, ..vm(0, Departure::Unknown) }).starts_with("request 1: 0 vCPUs"));
        assert!(refused(vm(10, Departure::At(9))).contains("before that"));
        assert!(refused(vm(0, Departure::Between { lo_s: 9, hi_s: 8 })).contains("before that"));
    }
}
