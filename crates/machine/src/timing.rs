// SPDX-License-Identifier: MIT OR Apache-2.0
//! How counters become cycles (`docs/model.md`, "Time").

use std::collections::BTreeMap;

use nestwalk_mem::Cycles;
use nestwalk_os::OsCounters;
use serde::{Deserialize, Serialize};

use crate::error::MachineError;
use crate::out_of_order::OutOfOrderConfig;

/// The machine file's part of the time model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// Cycles that 1000 instructions take when no access waits.
    pub base_cycles_per_kiloinstruction: u64,
    /// Share of the data latency beyond L1-D that out-of-order execution hides, in thousandths.
    pub data_overlap_permille: u64,
    /// Share of the walk cycles that nothing hides, in thousandths.
    pub walk_critical_permille: u64,
    /// Where these come from.
    #[serde(default)]
    pub source: String,
    /// What decides how much a core hides, for programs that say which access needs which. Without
    /// it the shares above are taken for them, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_order: Option<OutOfOrderConfig>,
}

/// What kernel work costs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// The version of this file's shape: 1.
    pub schema: u32,
    /// Its name.
    pub name: String,
    /// One line about it.
    pub description: String,
    /// By event.
    pub events: BTreeMap<String, Cost>,
    /// How programs that share processors take turns. Only needed where programs run beside each
    /// other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedulerTimes>,
}

/// The times of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SchedulerTimes {
    /// In this time each program has its turn, if turns do not get too short, us.
    pub latency_us: u64,
    /// A turn is at least this long, us.
    pub granularity_us: u64,
    /// How often busy processors are balanced, us for each processor that there is.
    pub balance_us: u64,
    /// Where these come from.
    #[serde(default)]
    pub source: String,
}

impl SchedulerTimes {
    /// The turn (`sched_slice`) of one of `running` programs on a processor, in a machine with
    /// `cpus` processors of `mhz` MHz.
    pub(crate) fn slice(&self, running: usize, cpus: usize, mhz: u64) -> Cycles {
        // SCHED_TUNABLESCALING_LOG: both grow with the number of processors, up to 8.
        let factor = 1 + u64::from(cpus.clamp(1, 8).ilog2());
        let us = (self.latency_us * factor / running.max(1) as u64).max(self.granularity_us * factor).max(1);
        Cycles::of_us(us, mhz)
    }
}

/// What one event costs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Cycles each time.
    pub cycles: u64,
    /// Where the number comes from.
    #[serde(default)]
    pub source: String,
    /// Or why this value was chosen, where it was not measured.
    #[serde(default)]
    pub assumption: String,
}

/// A VM exit and the entry after it: part of each fault that a guest causes in its host. (A
/// hypercall's cost includes it.)
pub(crate) const VM_EXIT: &str = "vm_exit";

impl Costs {
    /// A cost for each of [`OsCounters::NAMES`], 0 where the table names none.
    ///
    /// # Errors
    /// When the table names an event that no kernel counts.
    pub(crate) fn weights(&self) -> Result<CostWeights, MachineError> {
        let known = || OsCounters::NAMES.iter().copied().chain([VM_EXIT]);
        if let Some(unknown) = self.events.keys().find(|name| !known().any(|k| k == *name)) {
            return Err(MachineError::unknown("event in the cost table", unknown, known()));
        }
        let cycles = |name: &str| self.events.get(name).map_or(0, |cost| cost.cycles);
        let exits = |name: &str| if FAULTS.contains(&name) { cycles(VM_EXIT) } else { 0 };
        Ok(CostWeights {
            alone: OsCounters::NAMES.iter().map(|name| cycles(name)).collect(),
            under_guest: OsCounters::NAMES.iter().map(|name| cycles(name) + exits(name)).collect(),
        })
    }
}

/// Page faults of all kinds.
pub(crate) const FAULTS: [&str; 9] = [
    "faults_4k",
    "faults_2m",
    "faults_1g",
    "faults_spurious",
    "faults_copied",
    "faults_reused",
    "faults_swapped_in",
    "faults_file",
    "faults_file_read",
];

/// What kernel work is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Page faults, without what they zero, copy and allocate.
    Faults,
    /// Zeroing pages, page-table pages included.
    Zeroing,
    /// Exits of a VM, with the upkeep of its shadow table.
    Exits,
    /// Page-table pages made, freed and moved.
    Tables,
    /// Pages and entries copied or moved.
    Copying,
    /// Making huge pages: compaction, khugepaged, promotion, splits.
    HugePages,
    /// TLB shootdowns.
    Shootdowns,
    /// Reclaim and swap.
    Reclaim,
    /// Files: reading, mapping and copying pages of the page cache.
    Files,
    /// System calls.
    Calls,
}

impl Kind {
    /// Its key in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Faults => "faults",
            Self::Zeroing => "zeroing",
            Self::Exits => "exits",
            Self::Tables => "tables",
            Self::Copying => "copying",
            Self::HugePages => "huge_pages",
            Self::Shootdowns => "shootdowns",
            Self::Reclaim => "reclaim",
            Self::Files => "files",
            Self::Calls => "calls",
        }
    }
}

/// What the event `name`, one of [`OsCounters::NAMES`], is for.
pub(crate) fn kind_of(name: &str) -> Kind {
    match name {
        "zeroed_4k" | "zeroed_2m" => Kind::Zeroing,
        "copied_4k" | "copied_collapse" | "migrated" | "entries_copied" | "entries_moved" => Kind::Copying,
        "nodes_made" | "nodes_freed" | "nodes_moved" => Kind::Tables,
        "collapses" | "promotions" | "pages_scanned" | "huge_fallbacks" => Kind::HugePages,
        "shootdowns" | "shootdown_pages" => Kind::Shootdowns,
        "swapped_out" | "faults_swapped_in" | "out_of_memory" => Kind::Reclaim,
        "pages_mapped_around" | "file_pages_read" | "file_waits" | "file_pages_written" | "copied_file" => Kind::Files,
        "hypercalls" => Kind::Exits,
        _ if name.starts_with("faults_") => Kind::Faults,
        _ if name.starts_with("shadow_") => Kind::Exits,
        _ if name.starts_with("compaction") || name.starts_with("splits") => Kind::HugePages,
        _ if name.starts_with("reclaim") => Kind::Reclaim,
        _ => Kind::Calls,
    }
}

/// A cost table ready to be multiplied with counters, in the order of [`OsCounters::NAMES`].
#[derive(Clone, Debug)]
pub(crate) struct CostWeights {
    alone: Vec<u64>,
    under_guest: Vec<u64>,
}

impl CostWeights {
    /// The costs of what a kernel does, by counter. Under a guest, each fault that it takes is a VM
    /// exit, too.
    #[inline]
    pub(crate) fn of(&self, under_guest: bool) -> &[u64] {
        if under_guest { &self.under_guest } else { &self.alone }
    }

    /// The cost of one event of the counter at that place: of the event, and of the exit that comes
    /// with it under a guest.
    pub(crate) fn parts(&self, counter: usize, under_guest: bool) -> [u64; 2] {
        let own = self.alone[counter];
        [own, self.of(under_guest)[counter] - own]
    }

    /// Cycles of what a kernel did.
    pub(crate) fn cycles(&self, done: &OsCounters, under_guest: bool) -> Cycles {
        Cycles(done.values().zip(self.of(under_guest)).map(|(count, cycles)| count * cycles).sum())
    }
}

impl Timing {
    /// Cycles of the program's own instructions.
    pub(crate) fn work(&self, instructions: u64) -> Cycles {
        Cycles(thousandths(instructions, self.base_cycles_per_kiloinstruction))
    }

    /// Cycles that the program waits for data, of the latency `beyond_l1` above that of L1-D hits.
    pub(crate) fn data(&self, beyond_l1: Cycles) -> Cycles {
        Cycles(thousandths(beyond_l1.0, 1000 - self.data_overlap_permille))
    }

    /// Cycles that the program waits for walks.
    pub(crate) fn walk(&self, latency: Cycles) -> Cycles {
        Cycles(thousandths(latency.0, self.walk_critical_permille))
    }
}

/// So many thousandths of `number`. The product may need more than 64 bits.
fn thousandths(number: u64, permille: u64) -> u64 {
    u64::try_from(u128::from(number) * u128::from(permille) / 1000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(events: &str) -> Costs {
        toml::from_str(&format!("schema = 1\nname = 'x'\ndescription = 'x'\n{events}")).unwrap()
    }

    #[test]
    fn events_cost_what_the_table_says_and_a_host_fault_exits_the_vm() {
        let weights = costs("[events]\nfaults_4k = { cycles = 7 }\nvm_exit = { cycles = 100 }").weights().unwrap();
        let done = OsCounters { faults_4k: 3, splits: 9, ..Default::default() };
        assert_eq!(weights.cycles(&done, false), Cycles(21));
        assert_eq!(weights.cycles(&done, true), Cycles(321));
    }

    #[test]
    fn every_fault_is_a_counter() {
        assert!(FAULTS.iter().all(|name| OsCounters::NAMES.contains(name)));
        let faults = OsCounters::NAMES.iter().filter(|name| name.starts_with("faults_"));
        assert_eq!(faults.count(), FAULTS.len());
    }

    #[test]
    fn what_is_called_a_system_call_is_one() {
        let calls: Vec<_> = OsCounters::NAMES.iter().filter(|name| kind_of(name) == Kind::Calls).collect();
        assert_eq!(calls, [&"mmaps", &"munmaps", &"other_calls", &"file_calls", &"forks", &"exits"]);
    }

    #[test]
    fn the_exit_is_told_apart_from_the_fault() {
        let weights = costs("[events]\nfaults_4k = { cycles = 7 }\nvm_exit = { cycles = 100 }").weights().unwrap();
        let fault = OsCounters::NAMES.iter().position(|name| *name == "faults_4k").unwrap();
        assert_eq!(weights.parts(fault, true), [7, 100]);
        assert_eq!(weights.parts(fault, false), [7, 0]);
    }

    #[test]
    fn an_unknown_event_is_refused_with_the_nearest() {
        let error = costs("[events]\nfault_4k = { cycles = 7 }").weights().unwrap_err().to_string();
        assert!(error.contains("did you mean 'faults_4k'?"), "{error}");
    }
}
