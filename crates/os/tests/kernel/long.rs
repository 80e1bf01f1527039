// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long random programs, with files and under pressure, over every manager: what only shows when a
//! kernel has run for a while. `NESTWALK_OPERATIONS` says how long (2,000 by default, some seconds
//! in all), `NESTWALK_TABLES` with which table placement only. A million operations of one manager:
//! `NESTWALK_OPERATIONS=1000000 cargo test -p nestwalk-os --test kernel long::hawkeye`.

use nestwalk_mem::{Cpu, PageCount};
use nestwalk_os::ManagerConfig;
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

/// Over all configurations of the memory manager of that name.
fn run_all(manager: &str) {
    let tables = std::env::var("NESTWALK_TABLES").ok();
    let mut swapped_out = Vec::new();
    for config in configurations(MEMORY).iter().filter(|config| config.manager.build().facts().name == manager) {
        let placement = config.tables.build().name();
        if tables.as_deref().is_none_or(|wanted| wanted == placement) {
            let begun = std::time::Instant::now();
            swapped_out.push(run(Pair::new(Machine::alone(config))));
            println!("{manager} with {placement}: {} operations in {:.1?}", operations(), begun.elapsed());
        }
    }
    assert!(!swapped_out.is_empty(), "no such placement: {tables:?}");
    assert!(swapped_out.iter().any(|&pages| pages > 0), "memory was never short: {swapped_out:?}");
}

/// A test for each manager, so that one can be run alone.
macro_rules! long_programs {
    ($($manager:ident)*) => {
        $(
            #[test]
            fn $manager() {
                run_all(stringify!($manager));
            }
        )*

        #[test]
        fn every_manager_has_a_long_program() {
            let names = [$(stringify!($manager)),*];
            let all: Vec<_> = ManagerConfig::all().iter().map(|config| config.build().facts().name).collect();
            assert_eq!(all, names);
        }
    };
}

long_programs! { linux4k thp mthp ptemagnet freebsd quicksilver ingens hawkeye }
