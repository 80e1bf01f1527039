// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a replay: hosts, the VMs on them, the scheduler; and what one event does to it.

use std::time::Instant;

use nestwalk_mem::PageCount;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::options::Options;
use crate::allocator::Rule;
use crate::error::CloudError;
use crate::extent::{CountingRule, Extent, count_segments};
use crate::fleet::Fleet;
use crate::host::{Host, HostId, Serve};
use crate::request::{Event, EventKind, VmRequest};
use crate::scheduler::Scheduler;

/// No slot.
const NONE: u32 = u32::MAX;
/// A VM that runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Live {
    /// Its request.
    pub vm: u32,
    /// Where it runs.
    pub host: u32,
    /// Its memory, in the order in which the guest sees it.
    pub extents: Vec<Extent>,
    /// Its memory as the scheduler counts it, in pages.
    pub pages: u64,
    /// Pages that it was given, or that were taken away.
    pub resized: u64,
}

/// What one event did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A VM is larger than any host.
    Refused,
    /// No host has room.
    Unplaced { placement_ns: u64 },
    /// A VM was placed.
    Placed { host: u32, segments: BothRules, placement_ns: u64, allocation_ns: u64, steps: u64, moved: Moved },
    /// A VM ended, or never ran.
    Departed,
    /// A VM was resized by `pages`, or had its first size `back`; or could not (0).
    Resized { segments: BothRules, pages: u64, back: bool },
    /// The VM does not run.
    Nothing,
}

/// Segments by both rules of counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct BothRules {
    pub in_order: u64,
    pub any_order: u64,
}

impl BothRules {
    pub fn of(extents: &[Extent]) -> Self {
        let count = |rule| count_segments(extents, rule);
        Self { in_order: count(CountingRule::InOrder), any_order: count(CountingRule::AnyOrder) }
    }

    pub fn by(self, rule: CountingRule) -> u64 {
        match rule {
            CountingRule::InOrder => self.in_order,
            CountingRule::AnyOrder => self.any_order,
        }
    }
}

/// What live migration did for one VM's placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Moved {
    /// It was looked for something to move.
    pub tried: bool,
    /// Bytes of the VM that was moved; 0 if none was.
    pub bytes: u64,
}

/// The state of a replay.
#[derive(Clone, Debug)]
pub(super) struct Cloud {
    pub hosts: Vec<Host>,
    /// One host of each group with nothing on it.
    empty: Vec<Host>,
    pub scheduler: Scheduler,
    pub rng: Xoshiro256PlusPlus,
    /// VMs that run, and slots that none is in.
    pub live: Vec<Live>,
    unused: Vec<u32>,
    /// The slot of each request's VM.
    slots: Vec<u32>,
    /// The slots of each host's VMs, where migration needs them.
    pub on_host: Vec<Vec<u32>>,
    pub running: u64,
}

impl Cloud {
    pub fn new(fleet: &Fleet, requests: &[VmRequest], options: &Options) -> Result<Self, CloudError> {
        let most_vcpus = requests.iter().map(|request| request.vcpus).max().unwrap_or(1);
        let host_options = options.hosts();
        let hosts = Host::all(fleet, &host_options)?;
        let empty = fleet.groups.iter().zip(0..).map(|(group, at)| Host::new(group, at, &host_options));
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(options.seed);
        rng.long_jump();
        Ok(Self {
            empty: empty.collect::<Result<_, _>>()?,
            scheduler: Scheduler::new(options.scheduler, options.counting, options.allocator, &hosts, most_vcpus),
            rng,
            live: Vec::new(),
            unused: Vec::new(),
            slots: vec![NONE; requests.len()],
            on_host: vec![Vec::new(); if options.migration.is_some() { hosts.len() } else { 0 }],
            running: 0,
            hosts,
        })
    }

    /// Memory for VMs of all hosts.
    pub fn capacity(&self, fleet: &Fleet) -> PageCount {
        let of = |(host, group): (&Host, u32)| host.free_pages().0 * u64::from(group);
        PageCount(self.empty.iter().zip(fleet.groups.iter().map(|group| group.hosts)).map(of).sum())
    }

    /// Virtual CPUs of all hosts.
    pub fn vcpus(&self, fleet: &Fleet) -> u64 {
        let of = |(host, group): (&Host, u32)| u64::from(host.free_vcpus()) * u64::from(group);
        self.empty.iter().zip(fleet.groups.iter().map(|group| group.hosts)).map(of).sum()
    }

    pub fn set_rule(&mut self, rule: Rule) {
        self.hosts.iter_mut().for_each(|host| host.set_rule(rule));
        self.scheduler.set_rule(rule);
    }

    pub fn step(&mut self, event: Event, requests: &[VmRequest], options: &Options) -> Step {
        let request = &requests[event.vm as usize];
        match event.kind {
            EventKind::Arrive => self.arrive(event, request, requests, options),
            EventKind::Depart | EventKind::DepartAtOnce => self.depart(event.vm, request),
            EventKind::Resize | EventKind::ResizeBack => match &options.resize {
                Some(resize) => self.resize(event, resize),
                None => Step::Nothing,
            },
        }
    }

    fn arrive(&mut self, event: Event, request: &VmRequest, requests: &[VmRequest], options: &Options) -> Step {
        let memory = request.memory();
        if !self.empty.iter().any(|host| host.passes(request.vcpus, memory)) {
            return Step::Refused;
        }
        let began = Instant::now();
        let chosen = self.scheduler.choose(&self.hosts, request, &mut self.rng);
        let placement_ns = began.elapsed().as_nanos() as u64;
        let Some(mut host) = chosen else { return Step::Unplaced { placement_ns } };
        let few = u64::from(options.ds_segments);
        let ds = |host: HostId, hosts: &[Host]| {
            hosts[host.0 as usize].segments_for(memory, options.counting).is_some_and(|segments| segments <= few)
        };
        let mut moved = Moved::default();
        if let Some(migration) = &options.migration
            && !ds(host, &self.hosts)
        {
            moved.tried = true;
            if let Some((freed, bytes)) = self.make_room(event.time_s, request, requests, few, migration) {
                (host, moved.bytes) = (freed, bytes);
            }
        }
        let by_rule = !options.ept_takes_small || ds(host, &self.hosts);
        let serve = if by_rule { Serve::ByRule } else { Serve::Smallest };
        let slot = self.slot();
        let steps = self.hosts[host.0 as usize].steps();
        let began = Instant::now();
        let extents = &mut self.live[slot as usize].extents;
        let placed = self.hosts[host.0 as usize].place(request.vcpus, memory, event.time_s, serve, extents);
        let allocation_ns = began.elapsed().as_nanos() as u64;
        assert!(placed, "the scheduler's choice passes its filters");
        let segments = BothRules::of(extents);
        let steps = self.hosts[host.0 as usize].steps() - steps;
        self.enter(slot, event.vm, host, memory);
        Step::Placed { host: host.0, segments, placement_ns, allocation_ns, steps, moved }
    }

    fn slot(&mut self) -> u32 {
        self.unused.pop().unwrap_or_else(|| {
            self.live.push(Live::default());
            self.live.len() as u32 - 1
        })
    }

    /// Notes that the VM of request `vm`, whose memory is in `slot`, runs on `host`.
    fn enter(&mut self, slot: u32, vm: u32, host: HostId, memory: PageCount) {
        let live = &mut self.live[slot as usize];
        (live.vm, live.host, live.pages, live.resized) = (vm, host.0, memory.0, 0);
        self.slots[vm as usize] = slot;
        self.running += 1;
        if let Some(slots) = self.on_host.get_mut(host.0 as usize) {
            slots.push(slot);
        }
        self.scheduler.update(host, &self.hosts[host.0 as usize]);
    }

    fn depart(&mut self, vm: u32, request: &VmRequest) -> Step {
        let slot = std::mem::replace(&mut self.slots[vm as usize], NONE);
        if slot == NONE {
            return Step::Nothing;
        }
        let live = &mut self.live[slot as usize];
        let host = HostId(live.host);
        let memory = PageCount(live.pages);
        self.hosts[host.0 as usize].remove(request.vcpus, memory, &live.extents);
        live.extents.clear();
        self.unused.push(slot);
        self.running -= 1;
        self.leave(slot, host);
        self.scheduler.update(host, &self.hosts[host.0 as usize]);
        Step::Departed
    }

    pub fn leave(&mut self, slot: u32, host: HostId) {
        if let Some(slots) = self.on_host.get_mut(host.0 as usize) {
            slots.retain(|&other| other != slot);
        }
    }

    /// The slot of request `vm`'s VM, if it runs.
    pub fn slot_of(&self, vm: u32) -> Option<u32> {
        Some(self.slots[vm as usize]).filter(|&slot| slot != NONE)
    }

    /// Moves the VM in `slot` to `target`, where it gets new memory. Returns the bytes that are
    /// copied.
    pub fn migrate(&mut self, slot: u32, target: HostId, now_s: i64, requests: &[VmRequest]) -> u64 {
        let live = &mut self.live[slot as usize];
        let request = &requests[live.vm as usize];
        let (from, memory) = (HostId(live.host), PageCount(live.pages));
        let mut extents = Vec::new();
        let placed = self.hosts[target.0 as usize].place(request.vcpus, memory, now_s, Serve::ByRule, &mut extents);
        assert!(placed, "the target has room");
        self.hosts[from.0 as usize].remove(request.vcpus, memory, &live.extents);
        (live.extents, live.host) = (extents, target.0);
        self.leave(slot, from);
        self.on_host[target.0 as usize].push(slot);
        self.scheduler.update(from, &self.hosts[from.0 as usize]);
        self.scheduler.update(target, &self.hosts[target.0 as usize]);
        memory.bytes()
    }
}
