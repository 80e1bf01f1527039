// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tenants beside the measured one did, from beginning to end, by entry of the scenario.

use nestwalk_mmu::Counters;

use crate::chain::KernelChain;
use crate::machine::{Machine, TenantId};
use crate::meter::Work;
use crate::tenant::Tally;

/// What all tenants of one entry of the scenario did.
pub(crate) struct Companion {
    /// The program's name.
    pub name: String,
    /// What they did, added up.
    pub tally: Tally,
    /// What the kernels did for them.
    pub work: Work,
    /// Their kernels, from a native program's one on.
    pub depth: usize,
    /// What their cores counted; `None` where their accesses were not simulated.
    pub counters: Option<Counters>,
    /// The kernels of those that are alive at the end.
    pub alive: Vec<KernelChain>,
}

/// Of each of the scenario's `entries`.
pub(crate) fn companions(machine: &Machine, entries: usize) -> Vec<Companion> {
    (0..entries).map(|entry| companion(machine, entry)).collect()
}

fn companion(machine: &Machine, entry: usize) -> Companion {
    let (tally, work, alive) = (Tally::default(), Work::default(), Vec::new());
    let mut sum = Companion { name: String::new(), tally, work, depth: 1, counters: None, alive };
    for id in machine.ids() {
        let tenant = machine.tenant(id);
        if tenant.company().is_none_or(|company| company.entry != entry) {
            continue;
        }
        add(&mut sum, machine, id);
    }
    sum
}

fn add(sum: &mut Companion, machine: &Machine, id: TenantId) {
    let tenant = machine.tenant(id);
    let chain = tenant.family.chain();
    (sum.name, sum.depth) = (tenant.stream.workload().facts().name, chain.depth());
    sum.tally.add(&tenant.tally);
    sum.work.iter_mut().zip(tenant.family.work()).for_each(|(sum, work)| sum.add(work));
    if tenant.is_alive() {
        sum.alive.push(*chain);
    }
    if let Some(counters) = machine.counters(id) {
        sum.counters = Some(sum.counters.as_ref().map_or(counters.clone(), |sum| sum.plus(&counters)));
    }
}
