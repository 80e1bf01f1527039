// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run is made from: a scenario (TOML), and the machine and cost files that it names.

use std::path::{Path, PathBuf};

use nestwalk_mem::{Geometry, PageCount, size};
use nestwalk_mmu::MmuConfig;
use nestwalk_os::{ManagerConfig, StartState, TablesConfig};
use nestwalk_workload::trace::FilterOptions;
use nestwalk_workload::{ChurnConfig, GeneratorConfig};
use serde::{Deserialize, Serialize};

use crate::asap::AsapScenario;
use crate::catalog::Shelf;
use crate::chain::KernelChain;
use crate::colocated::{self, ColocatedConfig};
use crate::error::MachineError;
use crate::paging::PagingConfig;
use crate::preset::PresetChoice;
use crate::ranges::{self, File};
use crate::timing::{Costs, Timing};

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
    /// The memory limit of the program's cgroup, if it has one: `ptemagnet` may look at it. The program must fit into it.
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
    /// Hardware that prefetches page-table lines (ASAP); none if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asap: Option<AsapScenario>,
    /// Whether an entry of the second-level TLB may hold up to 8 neighbouring 4 KiB pages (Clustered TLB).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clustered_tlb: bool,
}

/// The longest name of a scenario: files are called by it, with up to 14 bytes behind it.
const NAME_BYTES_MAX: usize = 200;

fn default_costs() -> String {
    "linux-6.1".into()
}

fn default_seed() -> u64 {
    1
}

/// The program of a scenario.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum WorkloadConfig {
    /// A trace: a bundled one by name, or a file (relative to the scenario).
    Trace(String),
    /// A generator with its parameters.
    Generator(GeneratorConfig),
    /// A preset by name or file, as it is or with other parameters. It is resolved to its generator when the scenario is read.
    Preset(PresetChoice),
    /// Memory that is allocated and freed without end, and nothing else. Only beside another program.
    Churn(ChurnConfig),
}

/// One kernel of the stack.
#[derive(Clone, Debug, Default, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KernelScenario {
    /// Its physical memory; as much as what runs on it needs if nothing is said.
    #[serde(with = "nestwalk_mem::size::optional_pages")]
    #[schemars(with = "Option<nestwalk_mem::schema::Pages>")]
    pub memory: Option<PageCount>,
    /// Levels of its page tables: 4 or 5; as a dump has, else 4, if nothing is said.
    pub levels: Option<u8>,
    /// Processors, each with its lists of free pages; the threads of the program if nothing is said.
    pub cpus: Option<u16>,
    /// Its memory manager.
    pub manager: ManagerConfig,
    /// Where it places page-table nodes.
    pub tables: TablesConfig,
    /// What its memory looks like before anything runs.
    pub start: StartState,
    /// A memory that `nestwalk memory` has saved: the file (relative to the scenario). It begins in that state, in place of `start`.
    pub saved: Option<String>,
    /// Memory that is kept free (sysctl `min_free_kbytes`); as much as Linux keeps if nothing is said.
    #[serde(with = "nestwalk_mem::size::optional_pages")]
    #[schemars(with = "Option<nestwalk_mem::schema::Pages>")]
    pub min_free: Option<PageCount>,
    /// Page tables of a real process, dumped from a running machine: the file (relative to the scenario). The program's process
    /// then begins with them, frame by frame, and its memory events change nothing. Of the topmost kernel only.
    pub dump: Option<String>,
    /// Swap space; none if nothing is said.
    #[serde(with = "nestwalk_mem::size::optional_pages")]
    #[schemars(with = "Option<nestwalk_mem::schema::Pages>")]
    pub swap: Option<PageCount>,
    /// How the memory of the VM on it is translated.
    pub paging: PagingConfig,
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
    /// A program's warm-up that goes on until what is measured no longer drifts ends after this many accesses, warm or not;
    /// 600 million if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_accesses_max: Option<u64>,
    /// In every this many accesses of an unsampled workload's measuring phase ...
    pub period: Option<u64>,
    /// ... this many warm the caches in detail (before, only TLBs work) ...
    pub warm: u64,
    /// ... and this many are measured.
    pub measure: u64,
    /// Filters the accesses while the program runs: those that hit a small LRU filter over lines and one over pages are only
    /// counted. Not quite the same (`docs/trace-format.md`, "Filtered stretches"); faster with a co-runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub filter: Option<FilterOptions>,
    /// Simulated time that passes for the daemons of the kernels while the program warms up, beyond what its accesses take: as
    /// if it had run for so long before it is measured. Spread evenly over the first accesses of the warm-up; none of it
    /// takes time of the program.
    #[serde(skip_serializing_if = "is_zero")]
    pub lapse_ms: u64,
    /// Accesses of a window into which what is measured in one go is cut, such as those of a request; a twentieth of all if
    /// nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
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

/// Everything a run is made from, all names resolved.
#[derive(Clone, Debug, Serialize)]
pub struct Configuration {
    /// What the user wrote.
    pub scenario: Scenario,
    /// The machine that it names.
    pub machine: MachineConfig,
    /// The costs that it names.
    pub costs: Costs,
    /// Where relative paths begin.
    #[serde(skip)]
    pub base: PathBuf,
    /// The scenario's file and text, for messages.
    #[serde(skip)]
    pub(crate) source: (PathBuf, String),
}

impl Configuration {
    /// Reads `text`, the scenario of the file `path` (used in messages and, its folder, for relative paths), and all that it names.
    ///
    /// # Errors
    /// When it, or a file it names, is not what it should be.
    pub fn parse(text: &str, path: &Path) -> Result<Self, MachineError> {
        File::Scenario.check(path, text)?;
        let mut scenario: Scenario = toml::from_str(text).map_err(|error| MachineError::toml(path, text, &error))?;
        let base = path.parent().unwrap_or(Path::new("")).to_owned();
        let beside = scenario.colocated.iter_mut().map(|colocated| &mut colocated.workload);
        for workload in std::iter::once(&mut scenario.workload).chain(beside) {
            if let WorkloadConfig::Preset(choice) = workload {
                *workload = WorkloadConfig::Generator(choice.resolve(&base)?);
            }
        }
        let mut machine: MachineConfig = Shelf::Machines.load(&scenario.machine, &base)?;
        if scenario.clustered_tlb {
            let failed = |source| MachineError::Mmu { name: scenario.machine.clone(), source };
            machine.mmu = machine.mmu.with_clustered_tlb().map_err(failed)?;
        }
        if let Err(error) = machine.mmu.validate() {
            return Err(refuse_machine(&scenario.machine, &base, &error.to_string()));
        }
        let costs = Shelf::Costs.load(&scenario.costs, &base)?;
        let source = (path.to_owned(), text.to_owned());
        let configuration = Self { scenario, machine, costs, base, source };
        configuration.check()?;
        Ok(configuration)
    }

    fn check(&self) -> Result<(), MachineError> {
        let scenario = &self.scenario;
        for (what, schema) in
            [("scenario", scenario.schema), ("machine", self.machine.schema), ("costs", self.costs.schema)]
        {
            if schema != 1 {
                return self.refuse(format!("{what} file has schema {schema}; this version reads schema 1"));
            }
        }
        if scenario.name.is_empty() || scenario.name.len() > NAME_BYTES_MAX {
            let length = scenario.name.len();
            return self.refuse(format!("name has {length} bytes: it names files, give 1 to {NAME_BYTES_MAX}"));
        }
        if !(1..=KernelChain::DEPTH_MAX).contains(&scenario.kernels.len()) {
            return self.refuse(format!(
                "kernels: there are {}: give one ([[kernels]] once: native), two (the host's first, then the guest's) or three (a VM on a VM)",
                scenario.kernels.len()
            ));
        }
        for (layer, kernel) in scenario.kernels.iter().enumerate() {
            if kernel.dump.is_some() && layer + 1 < scenario.kernels.len() {
                return self.refuse("dump is a key of the last of the [[kernels]], on which the program runs".into());
            }
            if kernel.saved.is_some() && kernel.start != StartState::Fresh {
                return self.refuse("saved and start: give one of the two, either says how the memory begins".into());
            }
            if matches!(kernel.paging, PagingConfig::Segments { .. }) && matches!(kernel.start, StartState::Frag { .. })
            {
                return self.refuse("start: kind = \"frag\" is for kernels whose VM is not in segments".into());
            }
            kernel.paging.check(self, layer).map_err(|what| self.scenario_error(what))?;
            kernel.geometry().map_err(|what| self.scenario_error(what))?;
        }
        if let Some(asap) = &scenario.asap {
            asap.check(self).map_err(|what| self.scenario_error(what))?;
        }
        if let Err(what) = colocated::check(scenario) {
            return self.refuse(what);
        }
        let sampling = &scenario.sampling;
        if let Some(period) = sampling.period
            && (sampling.measure == 0 || sampling.warm + sampling.measure > period)
        {
            return self.refuse(format!(
                "sampling: warm ({}) and measure ({}) must fit into period ({period}), and measure must not be 0",
                sampling.warm, sampling.measure
            ));
        }
        for pair in scenario.kernels.windows(2) {
            if let (Some(host), Some(guest)) = (pair[0].memory, pair[1].memory)
                && guest >= host
            {
                return self.refuse(format!(
                    "the guest's memory ({}) must be smaller than the host's ({})",
                    size::format(guest.bytes()),
                    size::format(host.bytes())
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn scenario_error(&self, what: String) -> MachineError {
        // Most sentences begin with the key that they are about.
        let key = what.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.')).next().unwrap_or_default();
        let (path, text) = &self.source;
        MachineError::Scenario { place: ranges::place(path, text, key), what }
    }

    /// Its file, for messages.
    pub(crate) fn file(&self) -> String {
        self.source.0.display().to_string()
    }

    fn refuse(&self, what: String) -> Result<(), MachineError> {
        Err(self.scenario_error(what))
    }
}

/// What is wrong with the structures of the machine `name`. Such a sentence begins with a part of the file in brackets.
fn refuse_machine(name: &str, base: &Path, what: &str) -> MachineError {
    let (path, text) = match Shelf::Machines.text(name, base) {
        Ok(found) => found,
        Err(error) => return error,
    };
    let part = what.trim_start_matches('[').split(']').next().unwrap_or_default();
    MachineError::Config { place: ranges::place(&path, &text, &format!("mmu.{part}")), what: what.to_owned() }
}

impl KernelScenario {
    /// The shape of its page tables.
    pub(crate) fn geometry(&self) -> Result<Geometry, String> {
        match self.levels {
            None | Some(4) => Ok(Geometry::X86_4),
            Some(5) => Ok(Geometry::X86_5),
            Some(other) => Err(format!("levels = {other}: page tables have 4 or 5 levels")),
        }
    }
}
