// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts what the steps of a replay did.

use std::collections::BTreeMap;

use super::cloud::{BothRules, Step};
use super::options::Options;
use super::result::{
    ByGroup, BySize, Modes, Outcome, Outcomes, Replay, ReplayResult, Segments, Spread, Timing, VmOutcome, Work,
};
use crate::allocator::MAX_DS;
use crate::extent::CountingRule;
use crate::fleet::Fleet;
use crate::request::{Event, VmRequest};

/// What was counted so far.
pub(super) struct Tally {
    pub result: ReplayResult,
    pub vms: Vec<VmOutcome>,
    /// The most segments of each VM, where it has ever been other than at its placement.
    most: BTreeMap<u32, u32>,
    by_size: BTreeMap<u64, BySize>,
    by_group: Vec<ByGroup>,
    counting: CountingRule,
    measure_from_s: i64,
    placement_ns: Vec<u32>,
    allocation_ns: Vec<u32>,
    allocation_steps: Vec<u32>,
    /// Since the last sample.
    pub placed: Segments,
    pub unplaced: u64,
    pub moves: u64,
}

impl Tally {
    pub fn new(fleet: &Fleet, requests: &[VmRequest], options: &Options) -> Self {
        let group =
            |group: &crate::HostGroup| ByGroup { name: group.name.clone(), hosts: group.hosts, ..ByGroup::default() };
        Self {
            result: ReplayResult::default(),
            vms: vec![VmOutcome::default(); requests.len()],
            most: BTreeMap::new(),
            by_size: BTreeMap::new(),
            by_group: fleet.groups.iter().map(group).collect(),
            counting: options.counting,
            measure_from_s: options.measure_from_s.unwrap_or(i64::MIN),
            placement_ns: Vec::new(),
            allocation_ns: Vec::new(),
            allocation_steps: Vec::new(),
            placed: Segments::default(),
            unplaced: 0,
            moves: 0,
        }
    }

    /// Counts what `event` of `request` did. `group`: the group of the host that it was placed on.
    pub fn count(&mut self, event: Event, request: &VmRequest, step: Step, group: impl Fn(u32) -> u32) {
        match step {
            Step::Refused => self.arrived(event, request, Outcome::Refused),
            Step::Unplaced { placement_ns } => {
                self.placement_ns.push(clipped(placement_ns));
                self.unplaced += 1;
                self.arrived(event, request, Outcome::Unplaced);
            }
            Step::Placed { host, segments, placement_ns, allocation_ns, steps, moved } => {
                self.placement_ns.push(clipped(placement_ns));
                self.allocation_ns.push(clipped(allocation_ns));
                self.allocation_steps.push(clipped(steps));
                self.arrived(event, request, Outcome::Placed);
                self.placed(event, request, host, segments, group(host));
                let migration = &mut self.result.migration;
                migration.moves += u64::from(moved.bytes > 0);
                migration.bytes_copied += moved.bytes;
                migration.failed += u64::from(moved.tried && moved.bytes == 0);
                self.moves += u64::from(moved.bytes > 0);
            }
            Step::Resized { segments, pages, back } => self.resized(event, segments, pages, back),
            Step::Departed | Step::Nothing => {}
        }
    }

    fn arrived(&mut self, event: Event, request: &VmRequest, outcome: Outcome) {
        self.vms[event.vm as usize].outcome = outcome;
        if event.time_s < self.measure_from_s {
            self.result.warm_up.count(outcome);
            return;
        }
        self.result.vms.count(outcome);
        let memory_pages = request.memory_pages;
        let by_size = self.by_size.entry(memory_pages).or_insert_with(|| BySize { memory_pages, ..BySize::default() });
        by_size.vms.count(outcome);
    }

    fn placed(&mut self, event: Event, request: &VmRequest, host: u32, segments: BothRules, group: u32) {
        let count = segments.by(self.counting);
        self.placed.count(count);
        let vm = &mut self.vms[event.vm as usize];
        (vm.host, vm.segments) = (host, u32::try_from(count).unwrap_or(u32::MAX));
        if event.time_s < self.measure_from_s {
            return;
        }
        let other = match self.counting {
            CountingRule::InOrder => segments.any_order,
            CountingRule::AnyOrder => segments.in_order,
        };
        self.result.segments_other_rule.count(other);
        if let Some(by_size) = self.by_size.get_mut(&request.memory_pages) {
            by_size.segments.count(count);
        }
        let by_group = &mut self.by_group[group as usize];
        by_group.placed += 1;
        by_group.segments.count(count);
    }

    fn resized(&mut self, event: Event, segments: BothRules, pages: u64, back: bool) {
        let resize = &mut self.result.resize;
        match (back, pages > 0) {
            (false, true) => {
                resize.vms += 1;
                resize.pages += pages;
            }
            (false, false) => resize.not_done += 1,
            (true, true) => resize.undone += 1,
            (true, false) => resize.not_undone += 1,
        }
        let count = u32::try_from(segments.by(self.counting)).unwrap_or(u32::MAX);
        if count > self.vms[event.vm as usize].segments {
            let most = self.most.entry(event.vm).or_default();
            *most = count.max(*most);
        }
    }

    pub fn outcomes(&self) -> Outcomes {
        self.result.vms
    }

    /// Works out what follows from the counts. `wall_s`: how long it took.
    pub fn finish(mut self, requests: &[VmRequest], events: usize, work: Work, wall_s: f64) -> Replay {
        let result = &mut self.result;
        for (vm, at) in self.vms.iter().zip(0..) {
            let measured = requests[at as usize].arrival_s >= self.measure_from_s;
            if measured && vm.outcome == Outcome::Placed {
                result.segments.count(u64::from(vm.segments));
                result.segments_most.count(u64::from(self.most.get(&at).copied().unwrap_or(vm.segments)));
            }
        }
        let modes = |n: u32| {
            let (ds_vms, ept_vms) = result.segments_most.at_most(u64::from(n));
            Modes { n, ds_vms, ept_vms }
        };
        result.modes = (1..=MAX_DS as u32).map(modes).collect();
        result.by_size = self.by_size.into_values().collect();
        result.by_group = self.by_group;
        [&mut result.segments, &mut result.segments_other_rule, &mut result.segments_most]
            .into_iter()
            .chain(result.by_size.iter_mut().map(|size| &mut size.segments))
            .chain(result.by_group.iter_mut().map(|group| &mut group.segments))
            .for_each(Segments::finish);
        result.allocation_steps = Spread::of(self.allocation_steps);
        let timing = Timing {
            placement_ns: Spread::of(self.placement_ns),
            allocation_ns: Spread::of(self.allocation_ns),
            wall_s,
            events_per_s: if wall_s > 0.0 { events as f64 / wall_s } else { 0.0 },
        };
        Replay { result: self.result, work, timing, vms: self.vms }
    }
}

fn clipped(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
