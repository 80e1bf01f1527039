// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long random programs, with files and under pressure, over every manager: what only shows when a
//! kernel has run for a while. `NESTWALK_OPERATIONS` says how long (2,000 by default, four seconds
//! in all).

use nestwalk_mem::{Cpu, PageCount};
use nestwalk_os::op::{Nth, Op};
use proptest::strategy::Strategy;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::oracle::{Machine, Pair};
use crate::{configurations, strategy};

const MEMORY: PageCount = PageCount(4096);
/// Operations by default.
const OPERATIONS: usize = 2000;
/// All that programs can read is compared with the oracle after so many operations.
const CHECK_EVERY: usize = 500;
/// With more processes, one exits: memory holds a few that use all of their pages.
const PROCESSES_MAX: usize = 5;

fn operations() -> usize {
    let text = std::env::var("NESTWALK_OPERATIONS");
    text.map_or(OPERATIONS, |text| text.parse().unwrap_or_else(|_| panic!("NESTWALK_OPERATIONS={text}: a number")))
}

/// All processes exit, and the page cache is dropped. Frames that are free then.
fn free_when_empty(pair: &mut Pair) -> PageCount {
    while pair.machine.kernel.processes().next().is_some() {
        pair.step(&Op::Exit(Nth(0)));
    }
    pair.machine.with(|kernel, below| kernel.reclaim(MEMORY, Cpu(0), below)).unwrap();
    pair.check();
    pair.machine.kernel.memory().free_frames()
}

/// Runs a random program, and looks for frames that were lost. Pages that were swapped out.
fn run(mut pair: Pair) -> u64 {
    let config = format!("{:?}", pair.machine.kernel.config());
    let before = free_when_empty(&mut pair);
    let (mut runner, any) = (TestRunner::deterministic(), strategy::op());
    for number in 0..operations() {
        let op = match pair.machine.kernel.processes().count() {
            0 => Op::Spawn,
            count if count > PROCESSES_MAX => Op::Exit(Nth((number % count) as u16)),
            _ => any.new_tree(&mut runner).unwrap().current(),
        };
        pair.step(&op);
        if number % CHECK_EVERY == 0 {
            pair.check();
        }
    }
    pair.check();
    let counters = *pair.machine.kernel.counters();
    assert!(counters.forks > 0 && counters.faults_file > 0, "{config}: {counters:?}");
    let swapped_out = counters.swapped_out;
    assert_eq!(free_when_empty(&mut pair), before, "{config}: frames were lost");
    let counters = pair.machine.kernel.counters();
    assert_eq!(counters.nodes_made, counters.nodes_freed, "{config}: nodes were lost");
    swapped_out
}

#[test]
fn a_long_program_loses_nothing() {
    let swapped_out: Vec<u64> =
        configurations(MEMORY).iter().map(|config| run(Pair::new(Machine::alone(config)))).collect();
    let short = swapped_out.iter().filter(|&&pages| pages > 0).count();
    assert!(2 * short > swapped_out.len(), "memory was short under too few managers: {swapped_out:?}");
}
