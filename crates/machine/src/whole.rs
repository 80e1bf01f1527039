// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole run beside its measured part: what faults, exits and the kernels' other work for the
//! program cost from its first instruction to its last, populating included.
//!
//! A technique that is free in the steady state may have been paid for before: a shadow table by an
//! exit for every page, a huge page by the zeroing of 2 MiB. Cycles are counts times the cost
//! table, as everywhere (`docs/model.md`, "The whole run").

use std::collections::BTreeMap;

use nestwalk_os::OsCounters;
use serde::Serialize;

use crate::chain::KernelChain;
use crate::meter::{Meter, Work, faults_exit, since};
use crate::stack::Stack;
use crate::timing::{FAULTS, Kind, kind_of};

/// What the kernels did for the program in the whole run. Unless a field names one kernel, its
/// counts are those of all of them together.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WholeRun {
    /// Data accesses of the program as far as the run went, those that a sampled trace skips
    /// included. `None` where [`WholeRun::unavailable`] says why.
    pub accesses: Option<u64>,
    /// Why no time of the whole run can be given: a sentence.
    pub unavailable: Option<String>,
    /// Cycles of what is not counted, as it comes between the windows of a sampled trace, where
    /// only first touches and memory events are known: exits of a shadow table, reclaim and swap.
    /// It is taken to be as frequent there as in the windows.
    pub estimated_cycles: u64,
    /// Page faults of all kinds.
    pub faults: u64,
    /// Exits of the VM (of all VMs, where one runs in another).
    pub exits: u64,
    /// Cycles by what they were spent on: `faults`, `zeroing`, `exits`, `tables`, `copying`,
    /// `huge_pages`, `shootdowns`, `reclaim`, `files`, `calls`.
    pub cycles: BTreeMap<&'static str, u64>,
    /// The same for each kernel, bottom first.
    pub kernels: Vec<WholeKernel>,
    /// Cycles of what the kernels did before the program began, in none of the above: a VM's memory
    /// that is allocated at once (DS-n), a pool for page tables (`HugeGPT`).
    pub boot_cycles: u64,
}

/// What one kernel did for the program in the whole run.
#[derive(Clone, Debug, Serialize)]
pub struct WholeKernel {
    /// `host`, `middle`, `guest` or `native`.
    pub role: &'static str,
    /// Page faults that it served.
    pub faults: u64,
    /// Exits that ended in it. (A hypercall counts for the kernel that makes it.)
    pub exits: u64,
    /// What it counted for the program, by name; what did not happen is left out.
    pub counters: BTreeMap<&'static str, u64>,
    /// Cycles by what they were spent on, as in [`WholeRun::cycles`]; kinds that cost nothing are
    /// left out.
    pub cycles: BTreeMap<&'static str, u64>,
}

/// Why a run has no time for the whole program.
const NO_LENGTH: &str = "unavailable, because this program is made up: its memory is populated by first touches without the \
                         accesses between them, and it has no end of its own";
const FROZEN: &str =
    "unavailable, because the guest's page tables were found ready, so nothing is known of how they were made";
/// What is known of the workload for this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Accesses of the program until the run ended, skipped ones included, if known.
    pub accesses: Option<u64>,
    /// Accesses between the first window and the end that were not simulated.
    pub skipped: u64,
    /// Accesses that were measured.
    pub measured: u64,
    /// Whether the guest's tables were found ready.
    pub frozen: bool,
}

/// Parts of that work, and what it was done for.
pub(crate) struct Parts<'a> {
    /// Before the program began.
    pub boot: &'a Work,
    /// While it was measured.
    pub windows: &'a Work,
    /// How far it went.
    pub extent: Extent,
}

/// Counters of the kernels of `chain`, by layer.
pub(crate) fn snapshot(stack: &Stack, chain: &KernelChain) -> Work {
    let mut work = Work::default();
    for (counters, floor) in work.iter_mut().zip(chain.floors()) {
        counters.add(stack.kernel(floor).counters());
    }
    work
}

/// The whole of `work`, which was done for the program on `chain`.
pub(crate) fn whole_run(stack: &Stack, chain: &KernelChain, meter: &Meter, work: &Work, parts: Parts<'_>) -> WholeRun {
    let Parts { boot, windows, extent } = parts;
    let own = since(work, boot);
    let mut whole = WholeRun { boot_cycles: meter.cycles(stack, chain, boot).0, ..Default::default() };
    for (layer, done) in own.iter().enumerate().take(chain.depth()) {
        let kernel = of_kernel(stack, chain, meter, layer, done);
        whole.faults += kernel.faults;
        whole.exits += kernel.exits;
        for (kind, cycles) in &kernel.cycles {
            *whole.cycles.entry(kind).or_default() += cycles;
        }
        whole.kernels.push(kernel);
    }
    whole.unavailable = match extent {
        Extent { frozen: true, .. } => Some(FROZEN.to_owned()),
        Extent { accesses: None, .. } => Some(NO_LENGTH.to_owned()),
        _ => None,
    };
    whole.accesses = extent.accesses.filter(|_| whole.unavailable.is_none());
    whole.estimated_cycles = unseen(stack, chain, meter, windows, extent);
    whole
}

/// Cycles of what recurs without a first touch, in the accesses that were skipped; `windows` is
/// what was done while measuring.
fn unseen(stack: &Stack, chain: &KernelChain, meter: &Meter, windows: &Work, extent: Extent) -> u64 {
    if extent.measured == 0 {
        return 0;
    }
    let shadowed = stack.shadows(chain);
    let recurs = |kind: &str| kind == Kind::Reclaim.name() || (shadowed && kind == Kind::Exits.name());
    let kernels = windows.iter().enumerate().take(chain.depth());
    let seen: u64 = kernels
        .flat_map(|(layer, done)| of_kernel(stack, chain, meter, layer, done).cycles)
        .filter(|(kind, _)| recurs(kind))
        .map(|(_, cycles)| cycles)
        .sum();
    (u128::from(seen) * u128::from(extent.skipped) / u128::from(extent.measured)) as u64
}

fn of_kernel(stack: &Stack, chain: &KernelChain, meter: &Meter, layer: usize, done: &OsCounters) -> WholeKernel {
    let under_guest = faults_exit(stack, chain, layer);
    let (mut faults, mut exits) = (0, 0);
    let mut cycles: BTreeMap<&'static str, u64> = BTreeMap::new();
    let counters = OsCounters::NAMES.iter().copied().zip(done.values()).filter(|&(_, count)| count > 0).collect();
    for (counter, (name, count)) in OsCounters::NAMES.iter().zip(done.values()).enumerate() {
        let is_fault = FAULTS.contains(name);
        faults += if is_fault { count } else { 0 };
        exits += if EXITS.contains(name) || (is_fault && under_guest) { count } else { 0 };
        let [own, exit] = meter.costs(counter, under_guest);
        for (kind, cost) in [(kind_of(name), own), (Kind::Exits, exit)] {
            if count * cost > 0 {
                *cycles.entry(kind.name()).or_default() += count * cost;
            }
        }
    }
    WholeKernel { role: chain.role(layer), faults, exits, counters, cycles }
}

/// What is an exit each time, besides a fault below a guest.
const EXITS: [&str; 7] = [
    "hypercalls",
    "shadow_fills",
    "shadow_reflected",
    "shadow_writes",
    "shadow_unsyncs",
    "shadow_invlpgs",
    "shadow_flushes",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exits_is_a_counter() {
        assert!(EXITS.iter().all(|name| OsCounters::NAMES.contains(name)));
    }
}
