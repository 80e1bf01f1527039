// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the user writes down of a run: the scenario (TOML), and the machine file that it names.

use nestwalk_mem::PageCount;
use nestwalk_mmu::{AcceleratorConfig, AsapHardware, MmuConfig};
use nestwalk_workload::trace::FilterOptions;
use serde::{Deserialize, Serialize};

use crate::colocated::ColocatedConfig;
use crate::kernel_scenario::KernelScenario;
use crate::timing::Timing;
use crate::workload_config::WorkloadConfig;

/// A run, as written down by its user.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The version of this file's shape: 1.
    pub schema: u32,
    /// Its name in tables.
    pub name: String,
    /// One line about it.
    #[serde(default)]
    pub description: String,
    /// A machine by name, or the path of a machine file (relative to the scenario).
    pub machine: String,
    /// A cost table by name, or the path of a cost file.
    #[serde(default = "default_costs")]
    pub costs: String,
    /// Everything that is random follows from it.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// The program.
    pub workload: WorkloadConfig,
    /// The memory limit of the program's cgroup, if it has one: `ptemagnet` may look at it. The
    /// program must fit into it.
    #[serde(default, with = "nestwalk_mem::size::optional_pages", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<nestwalk_mem::schema::Pages>")]
    pub cgroup_limit: Option<PageCount>,
    /// The kernels, bottom first: one is a native run, two are a VM on a host.
    pub kernels: Vec<KernelScenario>,
    /// Programs that run beside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub colocated: Vec<ColocatedConfig>,
    /// How long they run before the program begins, ms of simulated time.
    #[serde(default)]
    pub colocated_lead_ms: u64,
    /// A thread that shares the program's core.
    #[serde(default)]
    pub corunner: CoRunnerConfig,
    /// How much of a long run is simulated in detail.
    #[serde(default)]
    pub sampling: Sampling,
    /// Hardware that prefetches page-table lines (ASAP); none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asap: Option<AsapHardware>,
    /// Hardware that the TLBs ask before a walk begins; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<AcceleratorConfig>,
    /// Whether an entry of the second-level TLB may hold up to 8 neighbouring 4 KiB pages
    /// (Clustered TLB).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clustered_tlb: bool,
    /// Whether leaves have a contiguous bit, as on arm64, and an entry of either level of the TLB
    /// may hold 64 KiB whose 16 leaves have it. Kernels set it for `mthp` with folios of 64 KiB and
    /// more, `freebsd` with `promote_64k`, `quicksilver` with `small_threshold`, and where 2 MiB
    /// are split.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contiguous_tlb: bool,
}

fn default_costs() -> String {
    "linux-6.1".into()
}

fn default_seed() -> u64 {
    1
}

/// The SMT co-runner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CoRunnerConfig {
    /// The program has the core to itself.
    #[default]
    None,
    /// One access to a random line for each of the program's (ASAP).
    Random,
}

/// How much of a run is simulated in detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// Stop after this many measured accesses.
    pub measured_accesses_max: Option<u64>,
    /// A warm-up that goes on until what is measured no longer drifts ends after this many
    /// accesses, warm or not; by default 600 million.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_accesses_max: Option<u64>,
    /// Such a warm-up goes on until this many accesses, though it may be warm before. So runs are
    /// measured at the same place of a program that changes as it runs.
    #[serde(skip_serializing_if = "is_zero")]
    pub warm_accesses_min: u64,
    /// In every this many accesses of an unsampled workload's measuring phase ...
    pub period: Option<u64>,
    /// ... this many warm the caches in detail (before, only TLBs work) ...
    pub warm: u64,
    /// ... and this many are measured.
    pub measure: u64,
    /// Filters the accesses while the program runs: those that hit a small LRU filter over lines
    /// and one over pages are only counted. Results differ slightly (`docs/trace-format.md`,
    /// "Filtered stretches"); faster with a co-runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub filter: Option<FilterOptions>,
    /// Simulated time that passes for the kernels' daemons while the program warms up, besides that
    /// of its accesses, as if it had run for so long before it is measured. Spread evenly over the
    /// first accesses of the warm-up; it is not charged to the program.
    #[serde(skip_serializing_if = "is_zero")]
    pub lapse_ms: u64,
    /// Accesses of a window: a contiguous measurement is cut into such windows, for example those
    /// of a request. By default a twentieth of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
}

impl Sampling {
    /// After how many accesses a warm-up without a length of its own ends, warm or not.
    pub(crate) fn warm_accesses_most(&self) -> u64 {
        const DEFAULT: u64 = 600_000_000;
        self.warm_accesses_max.unwrap_or(DEFAULT)
    }
}

/// Serde asks by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A machine file.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineConfig {
    /// The version of this file's shape: 1.
    pub schema: u32,
    /// Its name.
    pub name: String,
    /// One line about it.
    pub description: String,
    /// The clock's frequency under load, MHz.
    pub frequency_mhz: u64,
    /// How cycles become time.
    pub timing: Timing,
    /// Caches, TLBs, page-walk caches.
    pub mmu: MmuConfig,
}
