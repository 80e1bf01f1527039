// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the result of a run from its counters.

use nestwalk_mem::{Level, PageTable};
use nestwalk_mmu::{Counters, LatencyHistogram, Served, Table};
use nestwalk_os::alignment::Alignment;
use nestwalk_os::{Kernel, OsError, ProcessId, fragmentation};

use crate::by_name::ByName;
use crate::chain::{Floor, KernelChain};
use crate::colocated::ColocatedConfig;
use crate::companions::{Companion, companions};
use crate::configuration::Configuration;
use crate::contiguity::Contiguity;
use crate::error::MachineError;
use crate::machine::{Machine, TenantId};
use crate::observer::Observed;
use crate::paging::VmPaging;
use crate::requests::Requests;
use crate::reserved::Reserved;
use crate::result::{
    self, ColocatedStatistics, Fragmentation, KernelStatistics, References, RunResult, SCHEMA, Statistics,
    StepReferences,
};
use crate::stack::Stack;
use crate::whole::WholeRun;
use crate::windows::Window;

/// All that is there when a run has ended.
pub(crate) struct Outcome {
    pub machine: Machine,
    /// The measured tenant.
    pub id: TenantId,
    pub observed: Observed,
    pub reserved: Reserved,
    pub requests: Option<Requests>,
    pub whole_run: WholeRun,
    pub contiguity: Vec<Contiguity>,
}

/// The result of a run of `configuration` that ended with `outcome`.
///
/// # Errors
/// When a process of the outcome has exited.
pub(crate) fn summarise(configuration: Configuration, outcome: Outcome) -> Result<RunResult, MachineError> {
    let Outcome { machine, id, observed, reserved, requests, whole_run, contiguity } = outcome;
    let Observed { measured, warm_accesses, warm_up } = observed;
    let tenant = machine.tenant(id);
    let (stack, chain) = (&machine.platform.stack, tenant.family.chain());
    // With a shadow table or segments the hardware walks no table of the host's.
    let walks_host = chain.depth() > 1 && stack.paging(chain.bottom_floor()).is_none();
    let gone =
        |source| MachineError::Os { place: configuration.file(), kernel: chain.role(chain.top()).into(), source };
    let host_pt_fragmentation = walks_host.then(|| measure_fragmentation(stack, chain)).transpose().map_err(gone)?;
    let alignment = walks_host.then(|| measure_alignment(stack, chain)).transpose().map_err(gone)?;
    let statistics = Statistics {
        total: measured.windows.iter().fold(Window::default(), |sum, window| sum.plus(window)),
        references: references(&measured.counters),
        steps: steps(&measured.counters),
        latency_histogram: result::LatencyHistogram {
            bucket_cycles: LatencyHistogram::WIDTH_CYCLES,
            counts: measured.counters.latency.buckets.to_vec(),
        },
        mmu: ByName(measured.counters),
        kernels: kernels(stack, chain).map_err(gone)?,
        reserved,
        colocated: colocated(&configuration, &machine).map_err(gone)?,
        windows: measured.windows,
        waiting: measured.waiting,
        modelled_program: measured.modelled_program,
        requests,
        warm_accesses,
        populated_pages: tenant.tally.touches,
        adopted_pages: tenant.family.adopted_pages(),
        refused_events: tenant.family.refused_events(),
    };
    Ok(RunResult {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        name: configuration.scenario.name.clone(),
        row: statistics.row(&configuration.scenario.name, host_pt_fragmentation.as_ref(), alignment.as_ref()),
        configuration,
        statistics,
        warm_up,
        whole_run,
        contiguity,
        host_pt_fragmentation,
        alignment,
    })
}

/// Of the program's pages, in the table that maps them and in that of the kernel below.
fn measure_alignment(stack: &Stack, chain: &KernelChain) -> Result<Alignment, OsError> {
    let below = chain.top() - 1;
    let (guest, host) = (stack.table(chain, chain.top())?, stack.table(chain, below)?);
    Ok(Alignment::of(guest, host, chain.floors()[below].base))
}

fn measure_fragmentation(stack: &Stack, chain: &KernelChain) -> Result<Fragmentation, OsError> {
    let table = stack.table(chain, chain.top())?;
    let measured = fragmentation::Fragmentation::of_small(table, fragmentation::everything(table));
    Ok(spread_of(&measured))
}

fn spread_of(measured: &fragmentation::Fragmentation) -> Fragmentation {
    Fragmentation { value: measured.average(), distribution: measured.distribution, groups: measured.groups() }
}

const fn table_name(table: Table) -> &'static str {
    match table {
        Table::Guest => "guest",
        Table::Host => "host",
    }
}

const fn served_name(served: Served) -> &'static str {
    Served::NAMES[served as usize]
}

fn references(counters: &Counters) -> Vec<References> {
    let mut rows = Vec::new();
    for table in [Table::Guest, Table::Host] {
        for level in 1..=5 {
            for served in Served::ALL {
                let count = counters.walk_events.references(table, Level(level), served);
                if count > 0 {
                    rows.push(References { table: table_name(table), level, served_by: served_name(served), count });
                }
            }
        }
    }
    rows
}

/// Levels of a step: 0 and those of the deepest table.
const STEP_LEVELS: std::ops::RangeInclusive<u8> = 0..=5;

fn steps(counters: &Counters) -> Vec<StepReferences> {
    let mut rows = Vec::new();
    for guest_level in STEP_LEVELS.rev() {
        for host_level in STEP_LEVELS.rev() {
            for served in Served::ALL {
                let count = counters.walk_events.step(guest_level, host_level, served);
                if count > 0 {
                    rows.push(StepReferences { guest_level, host_level, served_by: served_name(served), count });
                }
            }
        }
    }
    rows
}

fn kernels(stack: &Stack, chain: &KernelChain) -> Result<Vec<KernelStatistics>, OsError> {
    let describe = |(layer, floor): (usize, &Floor)| {
        let paging = stack.paging(floor).map_or_else(|| "ept".to_owned(), VmPaging::name);
        let statistics = kernel_statistics(stack.kernel(floor), chain.role(layer), floor.process)?;
        Ok(KernelStatistics { paging: (layer < chain.top()).then_some(paging), ..statistics })
    };
    chain.floors().iter().enumerate().map(describe).collect()
}

/// Of `kernel`, of which `process` is the program or the VM.
fn kernel_statistics(kernel: &Kernel, role: &'static str, process: ProcessId) -> Result<KernelStatistics, OsError> {
    let table = kernel.table(process)?;
    let (mapped_pages, page_runs) = runs_of_pages(table);
    Ok(KernelStatistics {
        role,
        paging: None,
        manager: kernel.manager().facts().name.to_owned(),
        frames: kernel.memory().frames().0,
        free_frames: kernel.memory().free_frames().0,
        table_nodes: table.node_count(),
        table_runs: runs_of_frames(table),
        mapped_pages,
        page_runs,
        vmas: count_vmas(kernel.vmas(process)?.map(|vma| vma.range.len()).collect()),
        counters: ByName(*kernel.counters()),
        reserved_frames: kernel.manager().reserved().0,
        manager_counters: kernel.manager().counters().into(),
        table_counters: kernel.table_placement().counters().into(),
    })
}

/// On how many runs of neighbouring frames the nodes of `table` lie.
fn runs_of_frames(table: &PageTable) -> u64 {
    let mut frames = Vec::new();
    table.for_each_node(|node| frames.push(node.frame.0));
    frames.sort_unstable();
    let breaks = frames.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count() as u64;
    breaks + u64::from(!frames.is_empty())
}

/// How many pages of 4 KiB `table` maps, and on how many runs of neighbouring frames they lie, in
/// the order of their addresses.
fn runs_of_pages(table: &PageTable) -> (u64, u64) {
    let (mut pages, mut runs) = (0, 0);
    let mut expected = None;
    table.for_each_leaf(fragmentation::everything(table), |leaf| {
        if !leaf.entry.is_present() {
            return;
        }
        let (page, frame, count) = (leaf.page, leaf.entry.frame(), leaf.size().pages());
        runs += u64::from(expected != Some((page, frame)));
        expected = Some((page + count, frame + count));
        pages += count;
    });
    (pages, runs)
}

/// How many VMAs there are, and the fewest that hold 99 % of all pages.
fn count_vmas(mut pages: Vec<u64>) -> [u64; 2] {
    pages.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = pages.iter().sum();
    let mut held = 0;
    let most = pages.iter().take_while(|&&pages| {
        let wanted = held * 100 < all * 99;
        held += pages;
        wanted
    });
    [pages.len() as u64, most.count() as u64]
}

/// What ran beside the program, by entry of the scenario.
fn colocated(configuration: &Configuration, machine: &Machine) -> Result<Vec<ColocatedStatistics>, OsError> {
    let configs = &configuration.scenario.colocated;
    let entries = configs.iter().zip(companions(machine, configs.len()));
    entries.map(|(config, companion)| colocated_entry(config, &machine.platform.stack, &companion)).collect()
}

fn colocated_entry(
    config: &ColocatedConfig,
    stack: &Stack,
    companion: &Companion,
) -> Result<ColocatedStatistics, OsError> {
    let mut spread = fragmentation::Fragmentation::default();
    for chain in companion.alive.iter().filter(|chain| chain.depth() > 1) {
        let table = stack.table(chain, chain.top())?;
        spread.add(&fragmentation::Fragmentation::of_small(table, fragmentation::everything(table)));
    }
    Ok(ColocatedStatistics {
        workload: companion.name.clone(),
        count: config.count,
        touches: companion.tally.touches,
        accesses: companion.tally.accesses,
        instructions: companion.tally.instructions,
        restarts: companion.tally.restarts,
        kernels: companion.work.iter().take(companion.depth).copied().map(ByName).collect(),
        mmu: companion.counters.clone().map(ByName),
        host_pt_fragmentation: (companion.depth > 1 && !companion.alive.is_empty()).then(|| spread_of(&spread)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vmas_that_hold_99_percent() {
        assert_eq!(count_vmas(vec![]), [0, 0]);
        assert_eq!(count_vmas(vec![1, 990, 9]), [3, 1]);
        assert_eq!(count_vmas(vec![1, 980, 19]), [3, 2]);
        assert_eq!(count_vmas(vec![100; 100]), [100, 99]);
    }
}
