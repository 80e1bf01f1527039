// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs beside the measured one, as a scenario describes them.

use nestwalk_mem::PageCount;
use serde::{Deserialize, Serialize};

use crate::kernel_scenario::KernelScenario;
use crate::workload_config::WorkloadConfig;

/// A program that runs beside the measured one, once or several times.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ColocatedConfig {
    /// What it does.
    pub workload: WorkloadConfig,
    /// How many of it run; each has a seed of its own.
    #[serde(default = "one")]
    pub count: u16,
    /// Whether it is a process of the measured program's kernel, or has a VM of its own on the same
    /// host.
    #[serde(default)]
    pub vm: VmConfig,
    /// The kernel of its VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelScenario>,
    /// The cores on which its accesses run. By default cores of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<CoresConfig>,
    /// The memory limit of its cgroup, if it has one: `ptemagnet` may look at it. The program must
    /// fit into it.
    #[serde(default, with = "nestwalk_mem::size::optional_pages", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<nestwalk_mem::schema::Pages>")]
    pub cgroup_limit: Option<PageCount>,
    /// When it is killed.
    #[serde(default)]
    pub until: UntilConfig,
}

fn one() -> u16 {
    1
}

/// Where a program beside the measured one runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VmConfig {
    /// A further process of the measured program's kernel.
    #[default]
    Same,
    /// A VM of its own, each, on the host (natively: on the machine's kernel).
    Own,
}

/// The cores on which a program beside the measured one runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CoresConfig {
    /// A core for each thread; with the measured program they share the last-level cache.
    Own,
    /// The second hardware threads of the measured program's cores: caches, TLBs and page-walk
    /// caches are shared.
    Smt,
    /// None: its page faults are simulated, its accesses are not.
    None,
}

/// When a program beside the measured one is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UntilConfig {
    /// When the run ends.
    #[default]
    End,
    /// When the measured program has touched all its memory.
    Populated,
}

impl ColocatedConfig {
    /// The cores that its accesses run on.
    pub(crate) fn cores(&self) -> CoresConfig {
        let makes_none = matches!(self.workload, WorkloadConfig::Churn(_));
        self.cores.unwrap_or(if makes_none { CoresConfig::None } else { CoresConfig::Own })
    }
}
