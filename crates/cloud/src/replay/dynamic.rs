// SPDX-License-Identifier: MIT OR Apache-2.0
//! DynamicOptionSelec (VEE'21, section on the cloud scheduler).
//!
//! At the end of each period the starts and stops of that period are replayed under both options of
//! Compromis' allocator, from the fleet's state at its beginning. All hypervisors get the option
//! that made more DS-n VMs; at equal numbers they keep the one they have. What the option in force
//! would make is what it did make: only the other one is replayed.

use std::ops::Range;

use super::cloud::{Cloud, Step};
use super::options::{DynamicOptions, Options};
use super::result::Decision;
use crate::allocator::{AllocatorKind, Rule};
use crate::request::{Event, VmRequest};

/// Decides which option is in force.
pub(super) struct Dynamic {
    period_s: i64,
    /// When the next decision is due.
    due_s: i64,
    option: AllocatorKind,
    /// The fleet at the beginning of the period, and the period's first event.
    start: (Cloud, usize),
    /// DS-n VMs of the period so far.
    ds_vms: u64,
}

impl Dynamic {
    pub fn new(options: &DynamicOptions, option: AllocatorKind, cloud: &Cloud, first_s: i64) -> Self {
        let period_s = i64::from(options.period_s);
        let due_s = first_s.saturating_add(period_s);
        Self { period_s, due_s, option, start: (cloud.clone(), 0), ds_vms: 0 }
    }

    pub fn count(&mut self, step: Step, options: &Options) {
        self.ds_vms += u64::from(is_ds(step, options));
    }

    /// Decides, if a period ended before `events[at]`; changes the hosts' option.
    pub fn before(
        &mut self,
        at: usize,
        cloud: &mut Cloud,
        events: &[Event],
        requests: &[VmRequest],
        options: &Options,
    ) -> Option<Decision> {
        let now_s = events[at].time_s;
        if now_s < self.due_s {
            return None;
        }
        let time_s = self.due_s;
        while self.due_s <= now_s {
            self.due_s = self.due_s.saturating_add(self.period_s);
        }
        let other = match self.option {
            AllocatorKind::CompromisOpt1 => AllocatorKind::CompromisOpt2,
            _ => AllocatorKind::CompromisOpt1,
        };
        let would = self.replayed(other, self.start.1..at, events, requests, options);
        let (ds_vms_opt1, ds_vms_opt2) = match self.option {
            AllocatorKind::CompromisOpt1 => (self.ds_vms, would),
            _ => (would, self.ds_vms),
        };
        if would > self.ds_vms {
            self.option = other;
            cloud.set_rule(rule(other));
        }
        self.start = (cloud.clone(), at);
        self.ds_vms = 0;
        Some(Decision { time_s, option: self.option, ds_vms_opt1, ds_vms_opt2 })
    }

    /// DS-n VMs of the period's events under `option`.
    fn replayed(
        &self,
        option: AllocatorKind,
        period: Range<usize>,
        events: &[Event],
        requests: &[VmRequest],
        options: &Options,
    ) -> u64 {
        let mut cloud = self.start.0.clone();
        cloud.set_rule(rule(option));
        events[period].iter().map(|&event| u64::from(is_ds(cloud.step(event, requests, options), options))).sum()
    }
}

fn rule(option: AllocatorKind) -> Rule {
    match option {
        AllocatorKind::CompromisOpt1 => Rule::Opt1,
        _ => Rule::Opt2,
    }
}

/// Whether a VM was placed in at most n segments.
fn is_ds(step: Step, options: &Options) -> bool {
    let few = u64::from(options.ds_segments);
    matches!(step, Step::Placed { segments, .. } if segments.by(options.counting) <= few)
}
