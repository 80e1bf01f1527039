// SPDX-License-Identifier: MIT OR Apache-2.0
//! ASAP in a scenario: which levels its hardware prefetches, and how its range registers follow the kernels' regions.

use nestwalk_mem::Frame;
use nestwalk_mmu::{Asap, Core, Levels, SortedNodes};
use nestwalk_os::{ProcessId, TableRegion, TablesConfig};
use serde::{Deserialize, Serialize};

use crate::chain::{Floor, KernelChain};
use crate::scenario::{Configuration, KernelScenario};
use crate::stack::Stack;

/// ASAP's hardware (`[asap]` in a scenario). The kernels whose levels it prefetches need `tables = { kind = "asap" }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
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

/// Keeps the range registers of a core as the kernels of the program that runs on it want them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Follower {
    loaded: Option<Loaded>,
}

/// Of which program's tables the registers were loaded last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Loaded {
    /// Its lowest and its topmost kernel, with the processes there.
    processes: [(usize, ProcessId); 2],
    /// The generations of these kernels' regions then.
    generations: [u64; 2],
}

impl Follower {
    /// Loads the registers of `core` anew if another program runs there now, or regions have changed.
    #[inline]
    pub fn follow(&mut self, stack: &Stack, place: &KernelChain, core: &mut Core<Asap>) {
        let ends = [place.floors()[0], place.floors()[place.top()]];
        let now = Some(Loaded {
            processes: ends.map(|floor| (floor.kernel, floor.process)),
            generations: ends.map(|floor| stack.kernel(&floor).table_regions_generation()),
        });
        if self.loaded != now {
            self.loaded = now;
            load(stack, place, core);
        }
    }
}

#[cold]
fn load(stack: &Stack, place: &KernelChain, core: &mut Core<Asap>) {
    let regions = |floor: &Floor| stack.kernel(floor).table_regions(floor.process);
    let sorted = |region: &TableRegion, base: Frame| SortedNodes {
        pages: region.pages,
        level: region.level,
        base: base.address().into(),
    };
    let (bottom, top) = (&place.floors()[0], &place.floors()[place.top()]);
    let here: Vec<_> = regions(bottom).iter().map(|region| sorted(region, region.base)).collect();
    let (guest, host) = if place.depth() == 1 {
        (here, Vec::new())
    } else {
        let in_host = |region: &TableRegion| Some(sorted(region, region.below?));
        (regions(top).iter().filter_map(in_host).collect(), here)
    };
    core.prefetcher_mut().load(&guest, &host, bottom.base);
}
