// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything a run is made from: the scenario, and the machine and cost files that it names.

use std::path::{Path, PathBuf};

use nestwalk_mem::size;
use nestwalk_os::StartState;
use serde::Serialize;

use crate::catalog::Shelf;
use crate::checks;
use crate::error::MachineError;
use crate::kernel_scenario::KERNELS_MAX;
use crate::paging::PagingConfig;
use crate::ranges::{self, File};
use crate::scenario::{MachineConfig, Scenario};
use crate::timing::Costs;
use crate::workload_config::WorkloadConfig;

/// The longest name of a scenario: files are called by it, with up to 14 bytes behind it.
const NAME_BYTES_MAX: usize = 200;

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
    /// Reads `text`, the scenario of the file `path` (used in messages and, its folder, for
    /// relative paths), and all that it names.
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
        if scenario.contiguous_tlb {
            machine.mmu = machine.mmu.with_contiguous_tlb();
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
        if !(1..=KERNELS_MAX).contains(&scenario.kernels.len()) {
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
            checks::paging(kernel.paging, scenario, &self.machine, layer).map_err(|what| self.scenario_error(what))?;
            kernel.geometry().map_err(|what| self.scenario_error(what))?;
        }
        if let Some(asap) = &scenario.asap {
            checks::asap(asap, scenario, &self.machine).map_err(|what| self.scenario_error(what))?;
        }
        if let Some(accelerator) = &scenario.accelerator {
            checks::accelerator(accelerator, scenario).map_err(|what| self.scenario_error(what))?;
        }
        checks::promotes_64k(scenario, &self.machine).map_err(|what| self.scenario_error(what))?;
        if let Err(what) = checks::colocated(scenario) {
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
        let (least, most) = (sampling.warm_accesses_min, sampling.warm_accesses_most());
        if least > most {
            return self
                .refuse(format!("sampling: warm_accesses_min ({least}) must not be above warm_accesses_max ({most})"));
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

/// The error `what` about the structures of the machine `name`. It begins with a part of the file
/// in brackets.
fn refuse_machine(name: &str, base: &Path, what: &str) -> MachineError {
    let (path, text) = match Shelf::Machines.text(name, base) {
        Ok(found) => found,
        Err(error) => return error,
    };
    let part = what.trim_start_matches('[').split(']').next().unwrap_or_default();
    MachineError::Config { place: ranges::place(&path, &text, &format!("mmu.{part}")), what: what.to_owned() }
}
