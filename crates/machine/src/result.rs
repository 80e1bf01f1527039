// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run returns: the whole configuration, the counters, and the row of the comparison table
//! made from them.

use nestwalk_mmu::Counters;
use nestwalk_os::alignment::Alignment;
use nestwalk_os::{ManagerConfig, OsCounters, TablesConfig};
use nestwalk_workload::Modelled;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;

use crate::by_name::{ByName, OwnCounters};
use crate::configuration::Configuration;
use crate::contiguity::Contiguity;
use crate::estimate::{Beside, Estimate, ratio, ratio_beside};
use crate::requests::Requests;
use crate::reserved::Reserved;
use crate::waiting::Shares;
use crate::warm_up::WarmUp;
use crate::whole::WholeRun;
use crate::windows::Window;

/// The version of the result's shape.
pub const SCHEMA: u32 = 1;

/// A run: how it was made and what came out.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of Nestwalk that made it.
    pub version: &'static str,
    /// The scenario's name.
    pub name: String,
    /// Everything that is needed to make the run again.
    pub configuration: Configuration,
    /// The row for the comparison table.
    pub row: Row,
    /// The counters of the measured part.
    pub statistics: Statistics,
    /// How TLBs and caches warmed up before the first measured access, and whether they were warm.
    pub warm_up: WarmUp,
    /// What the kernels did from beginning to end, populating included.
    pub whole_run: WholeRun,
    /// The free memory of each kernel, bottom first: blocks by order and the fragmentation index,
    /// at three moments.
    pub contiguity: Vec<Contiguity>,
    /// How the program's pages lie in guest memory; `None` without a host table.
    pub host_pt_fragmentation: Option<Fragmentation>,
    /// The sizes in which guest and host map the program's pages at the end; `None` without a host
    /// table.
    pub alignment: Option<Alignment>,
}

/// The line of the comparison table. A value that cannot be known is `None`.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The scenario's name.
    pub configuration: String,
    /// Walks per 1000 accesses.
    pub walks_per_kiloaccess: Option<f64>,
    /// Half the width of its 95 % interval.
    pub walks_per_kiloaccess_ci95: Option<f64>,
    /// Cycles a walk.
    pub walk_latency_cycles: Option<f64>,
    /// Half the width of its 95 % interval.
    pub walk_latency_cycles_ci95: Option<f64>,
    /// References to tables a walk.
    pub references_per_walk: Option<f64>,
    /// Those to guest tables (to the only table, when native).
    pub guest_references_per_walk: Option<f64>,
    /// Those to host tables.
    pub host_references_per_walk: Option<f64>,
    /// Share of the references that memory served.
    pub memory_served_share: Option<f64>,
    /// Walk cycles an access.
    pub walk_cycles_per_access: Option<f64>,
    /// Half the width of its 95 % interval.
    pub walk_cycles_per_access_ci95: Option<f64>,
    /// Cycles an access in references to the guest's table (to the only table, when native).
    pub guest_walk_cycles_per_access: Option<f64>,
    /// Cycles an access in references to the host's table.
    pub host_walk_cycles_per_access: Option<f64>,
    /// The largest share of the memory in use that the program's kernel held in reserve, unused, at
    /// any time.
    pub reserved_share_max: Option<f64>,
    /// The mean of that share over the run.
    pub reserved_share_mean: Option<f64>,
    /// Average lines that the host PTEs of 8 neighbouring pages fill.
    pub host_pt_fragmentation: Option<f64>,
    /// Share of the program's pages that guest and host map by 2 MiB (aligned huge pages).
    pub huge_on_huge_share: Option<f64>,
    /// Share that is 2 MiB in the guest and 4 KiB in the host.
    pub huge_on_small_share: Option<f64>,
    /// Share that is 4 KiB in the guest and 2 MiB in the host.
    pub small_on_huge_share: Option<f64>,
    /// Estimated cycles an access; the comparison makes `relative_time` of it.
    pub cycles_per_access: Option<f64>,
    /// Half the width of its 95 % interval.
    pub cycles_per_access_ci95: Option<f64>,
}

/// Counters of the measured part.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Statistics {
    /// The measured windows added up.
    #[serde(flatten)]
    pub total: Window,
    /// References to tables.
    pub references: Vec<References>,
    /// The same by step of the walk.
    pub steps: Vec<StepReferences>,
    /// Distribution of walk latencies.
    pub latency_histogram: LatencyHistogram,
    /// All counters of the MMU, by name.
    pub mmu: ByName<Counters>,
    /// All counters of each kernel since the start, bottom first.
    pub kernels: Vec<KernelStatistics>,
    /// What ran beside the program, by `[[colocated]]` entry: all that it did, from beginning to
    /// end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub colocated: Vec<ColocatedStatistics>,
    /// Frames that the program's kernel held in reserve, over the time of the run.
    pub reserved: Reserved,
    /// Each measured window.
    pub windows: Vec<Window>,
    /// What the model of the capture counted of all that the windows are a sample of, where that
    /// chose them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelled_program: Option<Modelled>,
    /// How much of its waiting the program hides, where it says which access needs which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Shares>,
    /// The requests of a server that tells them apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Requests>,
    /// Accesses that only warmed TLBs and caches.
    pub warm_accesses: u64,
    /// Pages that were brought in by first touches of stretches that the trace skips.
    pub populated_pages: u64,
    /// Pages that the program used though it had never mapped them (a trace that does not know all
    /// mappings).
    pub adopted_pages: u64,
    /// Memory events that the kernel refused, because the trace does not know what they refer to.
    pub refused_events: u64,
}

/// References of walks to one level of one table that one place served.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct References {
    /// `guest` (the only table, when native) or `host`.
    pub table: &'static str,
    /// 1 = PTE.
    pub level: u8,
    /// `l1d`, `l2`, `llc` or `memory`.
    pub served_by: &'static str,
    /// How many.
    pub count: u64,
}

/// References at one step of a walk that one place served. A two-dimensional walk's steps have two
/// co-ordinates (steps 1 to 24 of the papers' figures, row by row).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StepReferences {
    /// The level of the guest's entry that is wanted (natively: of the entry); 0 for the data page
    /// at the end.
    pub guest_level: u8,
    /// The level of the host's entry that is read on the way there; 0 for the guest's entry itself.
    pub host_level: u8,
    /// `l1d`, `l2`, `llc` or `memory`.
    pub served_by: &'static str,
    /// How many.
    pub count: u64,
}

/// Walks by latency.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LatencyHistogram {
    /// The width of a bucket; the last bucket holds all that are longer.
    pub bucket_cycles: u64,
    /// Walks in each.
    pub counts: Vec<u64>,
}

/// A kernel's counters.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KernelStatistics {
    /// `host`, `middle`, `guest` or `native`.
    pub role: &'static str,
    /// How the memory of the VM on it is translated: `ept`, `shadow`, or `segments` with their
    /// number.
    pub paging: Option<String>,
    /// Its memory manager.
    pub manager: String,
    /// Frames of its memory.
    pub frames: u64,
    /// Those that are free at the end.
    pub free_frames: u64,
    /// Nodes of the page table of the program (or VM) that it runs.
    pub table_nodes: u64,
    /// Runs of neighbouring frames on which those nodes lie.
    pub table_runs: u64,
    /// Pages of 4 KiB that the table maps (a large page is several).
    pub mapped_pages: u64,
    /// Runs of pages that follow each other in virtual memory and whose frames follow each other,
    /// too: what one range, or one TLB entry of any length, could hold.
    pub page_runs: u64,
    /// VMAs of the program (or VM), and the fewest of them that hold 99 % of its mapped pages.
    pub vmas: [u64; 2],
    /// All counters, by name.
    pub counters: ByName<OsCounters>,
    /// Frames that the manager has set aside and that nothing maps.
    pub reserved_frames: u64,
    /// The manager's own counters, by name.
    pub manager_counters: OwnCounters<ManagerConfig>,
    /// The table placement's own counters, by name.
    pub table_counters: OwnCounters<TablesConfig>,
}

/// What the programs of one `[[colocated]]` entry did, added up.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ColocatedStatistics {
    /// The trace or the kind of generator.
    pub workload: String,
    /// How many they were.
    pub count: u16,
    /// First touches of stretches without accesses.
    pub touches: u64,
    /// Data accesses.
    pub accesses: u64,
    /// Instructions.
    pub instructions: u64,
    /// Times that one had ended and began anew.
    pub restarts: u64,
    /// What each kernel under them did for them, bottom first.
    pub kernels: Vec<ByName<OsCounters>>,
    /// All counters of their cores, by name; `None` where their accesses were not simulated.
    pub mmu: Option<ByName<Counters>>,
    /// How the pages of those that are alive at the end lie in guest memory; `None` without a host
    /// table, or if none is.
    pub host_pt_fragmentation: Option<Fragmentation>,
}

/// How many lines the host PTEs of each group of 8 neighbouring guest pages fill.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Fragmentation {
    /// Their average: 1 is perfect, 8 the worst. `None` when there is no whole group of 4 KiB
    /// pages.
    pub value: Option<f64>,
    /// Groups on 1, 2, ... 8 lines.
    pub distribution: [u64; 8],
    /// All groups.
    pub groups: u64,
}

/// The JSON Schema of [`Statistics`], as results have it: with the meaning of each counter, and its
/// unit as `x-unit`.
pub fn schema() -> serde_json::Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<Statistics>().to_value()
}

impl Statistics {
    /// The row that these counters make.
    pub(crate) fn row(&self, name: &str, fragmentation: Option<&Fragmentation>, alignment: Option<&Alignment>) -> Row {
        let over_windows = |part: fn(&Window) -> (u64, u64), of_model: fn(&Modelled) -> (u64, u64)| {
            let float = |(y, x): (u64, u64)| (y as f64, x as f64);
            let windows: Vec<_> = self.windows.iter().map(|window| float(part(window))).collect();
            let model: Option<Vec<_>> =
                self.windows.iter().map(|window| window.modelled.as_ref().map(of_model).map(float)).collect();
            let program = self.modelled_program.as_ref().map(of_model).map(float);
            let model = model.zip(program).map(|(windows, program)| Beside { windows, program });
            ratio_beside(&windows, model.as_ref())
        };
        let walks = over_windows(|w| (1000 * w.walks, w.accesses), |m| (m.walks, m.accesses));
        let latency = over_windows(|w| (w.walk_cycles, w.walks), |m| (m.walk_cycles, m.walks));
        let walk_cycles = over_windows(|w| (w.walk_cycles, w.accesses), |m| (m.walk_cycles, m.accesses));
        let cycles = over_windows(|w| (w.cycles.total(), w.accesses), |m| (m.cycles(), m.accesses));
        let value = |estimate: Option<Estimate>| estimate.map(|e| e.value);
        let ci95 = |estimate: Option<Estimate>| estimate.and_then(|e| e.ci95);
        let per_walk = |keep: &dyn Fn(&References) -> bool| {
            let count: u64 = self.references.iter().filter(|r| keep(r)).map(|r| r.count).sum();
            value(ratio(&[(count, self.total.walks)]))
        };
        let per_access = |cycles: u64| value(ratio(&[(cycles, self.total.accesses)]));
        let share = |part: fn(&Alignment) -> u64| alignment.and_then(|a| value(ratio(&[(part(a), a.pages())])));
        let from_memory: u64 = self.references.iter().filter(|r| r.served_by == "memory").map(|r| r.count).sum();
        Row {
            configuration: name.to_owned(),
            walks_per_kiloaccess: value(walks),
            walks_per_kiloaccess_ci95: ci95(walks),
            walk_latency_cycles: value(latency),
            walk_latency_cycles_ci95: ci95(latency),
            references_per_walk: per_walk(&|_| true),
            guest_references_per_walk: per_walk(&|r| r.table == "guest"),
            host_references_per_walk: per_walk(&|r| r.table == "host"),
            memory_served_share: value(ratio(&[(from_memory, self.total.walk_references)])),
            walk_cycles_per_access: value(walk_cycles),
            walk_cycles_per_access_ci95: ci95(walk_cycles),
            guest_walk_cycles_per_access: per_access(self.mmu.guest_walk_cycles),
            host_walk_cycles_per_access: per_access(self.mmu.host_walk_cycles),
            reserved_share_max: self.reserved.maximum_share,
            reserved_share_mean: self.reserved.mean_share,
            host_pt_fragmentation: fragmentation.and_then(|f| f.value),
            huge_on_huge_share: share(|a| a.huge_on_huge),
            huge_on_small_share: share(|a| a.huge_on_small),
            small_on_huge_share: share(|a| a.small_on_huge),
            cycles_per_access: value(cycles),
            cycles_per_access_ci95: ci95(cycles),
        }
    }
}
