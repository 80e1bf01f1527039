// SPDX-License-Identifier: MIT OR Apache-2.0
//! ASAP in a scenario: which levels its hardware prefetches, and how its range registers follow the kernels' regions.

use nestwalk_mem::Frame;
use nestwalk_mmu::{Asap, Core, Levels, SortedNodes};
use nestwalk_os::{TableRegion, TablesConfig};
use serde::{Deserialize, Serialize};

use crate::scenario::{Configuration, KernelScenario};
use crate::stack::Stack;

/// ASAP's hardware (`[asap]` in a scenario). The kernels whose levels it prefetches need `tables = { kind = "asap" }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AsapScenario {
    /// Range registers a table. The paper has 8 to 16.
    #[serde(default = "sixteen")]
    pub registers: usize,
    /// Levels of the guest's table to prefetch, or of the only one: `[1]` is P1 (P1g in a VM), `[1, 2]` is P1+P2.
    #[serde(default)]
    pub guest_levels: Vec<u8>,
    /// Levels of the host's table: `[1]` is P1h.
    #[serde(default)]
    pub host_levels: Vec<u8>,
}

const fn sixteen() -> usize {
    16
}

impl AsapScenario {
    /// The hardware, its registers empty.
    ///
    /// # Errors
    /// What is impossible about it.
    pub(crate) fn build(&self) -> Result<Asap, String> {
        let levels = |key: &str, levels: &[u8]| {
            Levels::new(levels).ok_or_else(|| format!("asap: {key} = {levels:?}: levels are 1 (PTE) to 4"))
        };
        let (guest, host) = (levels("guest_levels", &self.guest_levels)?, levels("host_levels", &self.host_levels)?);
        Asap::new(self.registers, guest, host).map_err(|error| format!("asap: {error}"))
    }

    /// Whether it goes together with the rest of `configuration`.
    ///
    /// # Errors
    /// What does not fit, and what would.
    pub(crate) fn check(&self, configuration: &Configuration) -> Result<(), String> {
        self.build()?;
        if self.guest_levels.is_empty() && self.host_levels.is_empty() {
            return Err("asap: there is nothing to prefetch; give guest_levels = [1, 2], for example".into());
        }
        if configuration.machine.mmu.l1d_miss_registers.is_none_or(|count| count == 0) {
            return Err(
                "asap: the machine file does not say l1d_miss_registers, by which prefetches are limited".into()
            );
        }
        let kernels = &configuration.scenario.kernels;
        if kernels.len() > 2 {
            return Err(
                "asap: with a VM on a VM the hardware walks a table that no kernel sorts; give two kernels at most"
                    .into(),
            );
        }
        if kernels.len() < 2 && !self.host_levels.is_empty() {
            return Err("asap: host_levels in a native run, which has no host; leave the key out".into());
        }
        let (host, guest) = (&kernels[0], &kernels[kernels.len() - 1]);
        check_kernel("guest_levels", &self.guest_levels, guest)?;
        check_kernel("host_levels", &self.host_levels, host)
    }
}

fn check_kernel(key: &str, levels: &[u8], kernel: &KernelScenario) -> Result<(), String> {
    let Some(&highest) = levels.iter().max() else { return Ok(()) };
    let root = kernel.geometry()?.levels();
    if highest >= root {
        return Err(format!("asap: {key} = {levels:?}: level {root} is the root, which no region holds"));
    }
    match kernel.tables {
        TablesConfig::Asap(tables) if tables.levels >= highest => Ok(()),
        TablesConfig::Asap(tables) => Err(format!(
            "asap: {key} = {levels:?}, but that kernel sorts {} levels: give it tables = {{ kind = \"asap\", levels = {highest} }}",
            tables.levels
        )),
        _ => Err(format!(
            "asap: {key} = {levels:?}, but that kernel's table nodes are not sorted: give it tables = {{ kind = \"asap\" }}"
        )),
    }
}

/// Keeps the range registers of cores as the kernels want them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Follower {
    /// Of the host's regions and the guest's when registers were last loaded.
    generations: Option<[u64; 2]>,
}

impl Follower {
    /// Loads the registers of `cores` anew if regions have changed.
    #[inline]
    pub fn follow(&mut self, stack: &Stack, cores: &mut [Core<Asap>]) {
        let layers = stack.layers();
        let generation = |layer: usize| layers[layer].kernel.table_regions_generation();
        let now = Some([generation(0), generation(stack.top())]);
        if self.generations != now {
            self.generations = now;
            load(stack, cores);
        }
    }
}

#[cold]
fn load(stack: &Stack, cores: &mut [Core<Asap>]) {
    let layers = stack.layers();
    let regions = |layer: usize| layers[layer].kernel.table_regions(layers[layer].process);
    let place = |region: &TableRegion, base: Frame| SortedNodes {
        pages: region.pages,
        level: region.level,
        base: base.address().into(),
    };
    let here: Vec<_> = regions(0).iter().map(|region| place(region, region.base)).collect();
    let (guest, host) = if stack.depth() == 1 {
        (here, Vec::new())
    } else {
        let in_host = |region: &TableRegion| Some(place(region, region.below?));
        (regions(stack.top()).iter().filter_map(in_host).collect(), here)
    };
    cores.iter_mut().for_each(|core| core.prefetcher_mut().load(&guest, &host, layers[0].base));
}
