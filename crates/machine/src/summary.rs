// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the result of a run from its counters.

use nestwalk_mem::{Level, PageTable};
use nestwalk_mmu::{Counters, LatencyHistogram, Served, Table};
use nestwalk_os::alignment::Alignment;
use nestwalk_os::{Kernel, ProcessId, fragmentation};

use crate::beside::Companion;
use crate::build::role;
use crate::by_name::ByName;
use crate::colocated::ColocatedConfig;
use crate::paging::VmPaging;
use crate::result::{
    self, ColocatedStatistics, Fragmentation, KernelStatistics, References, RunResult, SCHEMA, Statistics,
    StepReferences, Window,
};
use crate::run::Outcome;
use crate::scenario::Configuration;
use crate::stack::{Floor, Place, Stack};

pub(crate) fn summarise(configuration: Configuration, outcome: Outcome) -> RunResult {
    let (adopted_pages, refused_events) = (outcome.program.adopted_pages(), outcome.program.refused_events());
    let whole_run = outcome.whole_run;
    let (stack, place) = (&outcome.stack, outcome.program.place());
    // With a shadow table or segments the hardware walks no table of the host's.
    let walks_host = place.depth() > 1 && stack.paging(&place.floors()[0]).is_none();
    let host_pt_fragmentation = walks_host.then(|| measure_fragmentation(stack, place));
    let alignment = walks_host.then(|| measure_alignment(stack, place));
    let statistics = Statistics {
        total: outcome.windows.iter().fold(Window::default(), |sum, window| sum.plus(window)),
        references: references(&outcome.measured),
        steps: steps(&outcome.measured),
        latency_histogram: result::LatencyHistogram {
            bucket_cycles: LatencyHistogram::WIDTH_CYCLES,
            counts: outcome.measured.latency.buckets.to_vec(),
        },
        mmu: ByName(outcome.measured),
        kernels: kernels(stack, place),
        reserved: outcome.reserved.clone(),
        colocated: colocated(&configuration, stack, &outcome.companions),
        windows: outcome.windows,
        warm_accesses: outcome.warm_accesses,
        populated_pages: outcome.populated_pages,
        adopted_pages,
        refused_events,
    };
    RunResult {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        name: configuration.scenario.name.clone(),
        row: statistics.row(&configuration.scenario.name, host_pt_fragmentation.as_ref(), alignment.as_ref()),
        configuration,
        statistics,
        warm_up: outcome.warm_up,
        whole_run,
        contiguity: outcome.contiguity,
        host_pt_fragmentation,
        alignment,
    }
}

/// Of the program's pages, in the table that maps them and in that of the kernel below.
fn measure_alignment(stack: &Stack, place: &Place) -> Alignment {
    let below = place.top() - 1;
    Alignment::of(stack.table(place, place.top()), stack.table(place, below), place.floors()[below].base)
}

fn measure_fragmentation(stack: &Stack, place: &Place) -> Fragmentation {
    let table = stack.table(place, place.top());
    let measured = fragmentation::Fragmentation::of_small(table, fragmentation::everything(table));
    spread_of(&measured)
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

const ALIVE: &str = "a place's processes live as long as the place";

fn kernels(stack: &Stack, place: &Place) -> Vec<KernelStatistics> {
    let describe = |(layer, floor): (usize, &Floor)| {
        let paging = stack.paging(floor).map_or_else(|| "ept".to_owned(), VmPaging::name);
        KernelStatistics {
            paging: (layer < place.top()).then_some(paging),
            ..kernel_statistics(stack.kernel(floor), role(layer, place.depth()), floor.process)
        }
    };
    place.floors().iter().enumerate().map(describe).collect()
}

/// Of `kernel`, of which `process` is the program or the VM.
fn kernel_statistics(kernel: &Kernel, role: &'static str, process: ProcessId) -> KernelStatistics {
    let table = kernel.table(process).expect(ALIVE);
    KernelStatistics {
        role,
        paging: None,
        manager: kernel.manager().facts().name.to_owned(),
        frames: kernel.memory().frames().0,
        free_frames: kernel.memory().free_frames().0,
        table_nodes: table.node_count(),
        table_runs: runs_of_frames(table),
        vmas: count_vmas(kernel.vmas(process).expect(ALIVE).map(|vma| vma.range.len()).collect()),
        counters: ByName(*kernel.counters()),
        reserved_frames: kernel.manager().reserved().0,
        manager_counters: kernel.manager().statistics().into_iter().collect(),
        table_counters: kernel.table_placement().statistics().into_iter().collect(),
    }
}

/// On how many runs of neighbouring frames the nodes of `table` lie.
fn runs_of_frames(table: &PageTable) -> u64 {
    let mut frames = Vec::new();
    table.for_each_node(|node| frames.push(node.frame.0));
    frames.sort_unstable();
    let breaks = frames.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count() as u64;
    breaks + u64::from(!frames.is_empty())
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
fn colocated(configuration: &Configuration, stack: &Stack, companions: &[Companion]) -> Vec<ColocatedStatistics> {
    let entries = configuration.scenario.colocated.iter().zip(companions);
    entries.map(|(config, companion)| colocated_entry(config, stack, companion)).collect()
}

fn colocated_entry(config: &ColocatedConfig, stack: &Stack, companion: &Companion) -> ColocatedStatistics {
    let mut spread = fragmentation::Fragmentation::default();
    for place in companion.places.iter().filter(|place| place.depth() > 1) {
        let table = stack.table(place, place.top());
        spread.add(&fragmentation::Fragmentation::of_small(table, fragmentation::everything(table)));
    }
    ColocatedStatistics {
        workload: companion.name.clone(),
        count: config.count,
        touches: companion.tally.touches,
        accesses: companion.tally.accesses,
        instructions: companion.tally.instructions,
        restarts: companion.tally.restarts,
        kernels: companion.work.iter().take(companion.depth).copied().map(ByName).collect(),
        mmu: companion.counters.clone().map(ByName),
        host_pt_fragmentation: (companion.depth > 1 && !companion.places.is_empty()).then(|| spread_of(&spread)),
    }
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
