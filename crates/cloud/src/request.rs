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
    /// It is given memory, or some of its memory is taken away.
    Resize,
    /// It is created.
    Arrive,
    /// It has its first size again.
    ResizeBack,
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

/// What changes the memory of some VMs while they run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resize {
    /// How.
    pub how: ResizeHow,
    /// The share of VMs that it happens to, drawn. Once each, at a time of their life that is
    /// drawn.
    pub vm_share: f64,
    /// By which share of such a VM's memory, rounded down to blocks of 2 MiB.
    pub memory_share: f64,
    /// Whether the VM gets its first size back, at a later time of its life that is drawn.
    pub undone: bool,
}

impl Default for Resize {
    fn default() -> Self {
        Self { how: ResizeHow::default(), vm_share: 0.1, memory_share: 0.25, undone: true }
    }
}

/// How a VM's memory changes. What it gets (or gets back) is at the end of the memory that its
/// guest sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResizeHow {
    /// It is given more.
    Grow,
    /// It gives its end back.
    Shrink,
    /// It gives blocks of 2 MiB back, drawn: those that the guest can free (memory hot-unplug,
    /// virtio-mem).
    #[default]
    Unplug,
    /// Its balloon takes blocks of 2 MiB, drawn. The scheduler does not know of it: others are not
    /// placed into that memory, but what the hosts allocate may lie there.
    Balloon,
}

/// The events of some requests in the order in which they happen, and what had to be assumed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// In order: by time; at equal times as [`EventKind`] has it (deletions before creations); then
    /// by the request's position.
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
    /// Orders the events of `requests`. Deletions with bounds are drawn from a generator seeded
    /// with `seed`, one after the other in the order of requests; so is what `resize` asks for,
    /// from another one.
    ///
    /// # Errors
    /// If a request has no processors or no memory, or is deleted before it is created.
    pub fn new(requests: &[VmRequest], seed: u64, resize: Option<&Resize>) -> Result<Self, CloudError> {
        if requests.len() >= u32::MAX as usize {
            return Err(CloudError::option("requests", "more than 4 billion: replay a part of the trace"));
        }
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut resize_rng = rng.clone();
        resize_rng.jump();
        let last_arrival = requests.iter().map(|request| request.arrival_s).max().unwrap_or(0);
        let mut all = Self::default();
        all.events.reserve(requests.len() * 2);
        for (index, (request, vm)) in requests.iter().zip(0..).enumerate() {
            request.check().map_err(|problem| CloudError::Request { index, problem })?;
            let departure = all.depart(request, vm, &mut rng);
            all.events.push(Event { time_s: request.arrival_s, kind: EventKind::Arrive, vm });
            if let Some(resize) = resize {
                let end = departure.unwrap_or(last_arrival).max(request.arrival_s);
                all.resize(resize, vm, (request.arrival_s, end), &mut resize_rng);
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

    /// `life`: from the VM's creation to its deletion. It is resized after the former and before
    /// the latter.
    fn resize(&mut self, resize: &Resize, vm: u32, life: (i64, i64), rng: &mut Xoshiro256PlusPlus) {
        let chosen = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        if chosen >= resize.vm_share || life.1 - life.0 < 3 {
            return;
        }
        let at = drawn(rng, life.0 + 1, life.1 - 2);
        self.events.push(Event { time_s: at, kind: EventKind::Resize, vm });
        if resize.undone {
            self.events.push(Event { time_s: drawn(rng, at + 1, life.1 - 1), kind: EventKind::ResizeBack, vm });
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
    fn some_vms_are_resized_within_their_life() {
        let requests: Vec<_> = (0..1000).map(|at| vm(at, Departure::At(at + 2 + at % 50))).collect();
        let resize = Resize { vm_share: 0.5, ..Resize::default() };
        let events = Events::new(&requests, 7, Some(&resize)).unwrap().events;
        let kinds = |kind| events.iter().filter(|event| event.kind == kind).count();
        assert!((400..560).contains(&kinds(EventKind::Resize)), "{}", kinds(EventKind::Resize));
        assert_eq!(kinds(EventKind::Resize), kinds(EventKind::ResizeBack));
        let plain = Events::new(&requests, 7, None).unwrap().events;
        let others = events.iter().filter(|event| !matches!(event.kind, EventKind::Resize | EventKind::ResizeBack));
        assert!(others.eq(&plain), "nothing else is drawn differently");
        for vm in 0..1000 {
            let of_vm: Vec<_> = events.iter().filter(|event| event.vm == vm).map(|event| event.kind).collect();
            let all = [EventKind::Arrive, EventKind::Resize, EventKind::ResizeBack, EventKind::Depart];
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
