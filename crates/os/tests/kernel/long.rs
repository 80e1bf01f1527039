// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long random programs, with files and under pressure, over every manager: what only shows when a
//! kernel has run for a while. `NESTWALK_OPERATIONS` says how long (10,000 by default, some seconds
//! in all), `NESTWALK_TABLES` with which table placement only. A million operations of one manager:
//! `NESTWALK_OPERATIONS=1000000 cargo test -p nestwalk-os --test kernel long::hawkeye`.
//!
//! Operations as random programs have them leave memory nearly empty: many give back much, and few
//! take more than a page. So in every other stretch of [`PHASE`] operations programs fill memory,
//! and the kernel has to reclaim, swap and say no.

use nestwalk_mem::{Cpu, PageCount};
use nestwalk_os::op::{Nth, Op};
use nestwalk_os::{Advice, ManagerConfig, OsCounters};
use proptest::strategy::Strategy;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::oracle::{Machine, Pair};
use crate::{configurations, strategy};

const MEMORY: PageCount = PageCount(3072);
/// Less than what five processes can have mapped, so that both run out.
const SWAP: PageCount = PageCount(2048);
/// Operations by default.
const OPERATIONS: usize = 10_000;
/// All that programs can read is compared with the oracle after so many operations.
const CHECK_EVERY: usize = 100;
/// So many processes at a time. A new one may come only when another one has exited, which happens
/// at every so many attempts: they live long enough to use much memory.
const PROCESSES_MAX: usize = 5;
const EXIT_EVERY: usize = 3;
/// In every other stretch of so many operations programs fill memory.
const PHASE: usize = 1000;

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

/// Whether there are too many processes for it, or it takes memory away while that is to be filled.
fn passes_over(op: &Op, pair: &Pair, filling: bool) -> bool {
    match op {
        Op::Spawn | Op::Fork(_) => pair.machine.kernel.processes().count() >= PROCESSES_MAX,
        Op::Pressure(_) => filling,
        _ => false,
    }
}

/// What gives memory back takes it instead.
fn fill(op: Op) -> Op {
    match op {
        Op::Unmap(n, range) | Op::Madvise(n, range, Advice::DontNeed | Advice::Free) => {
            Op::Madvise(n, range, Advice::PopulateWrite)
        }
        op => op,
    }
}

/// Runs a random program, and looks for frames that were lost. What the kernel had to do.
fn run(mut pair: Pair) -> OsCounters {
    let config = format!("{:?}", pair.machine.kernel.config());
    let before = free_when_empty(&mut pair);
    let (mut runner, any) = (TestRunner::deterministic(), strategy::op());
    let mut passed = 0;
    for number in 0..operations() {
        let filling = (number / PHASE).is_multiple_of(2);
        let mut next = || any.new_tree(&mut runner).unwrap().current();
        let mut op = next();
        while passes_over(&op, &pair, filling) {
            passed += 1;
            op = if passed % EXIT_EVERY == 0 { Op::Exit(Nth((number % PROCESSES_MAX) as u16)) } else { next() };
        }
        let op = if filling { fill(op) } else { op };
        pair.step(&op);
        if number % CHECK_EVERY == 0 {
            pair.check();
        }
    }
    pair.check();
    let counters = *pair.machine.kernel.counters();
    assert!(counters.forks > 0 && counters.faults_file > 0, "{config}: {counters:?}");
    assert!(counters.reclaims_direct > 0 && counters.reclaims_background > 0, "{config}: memory was never short");
    assert_eq!(free_when_empty(&mut pair), before, "{config}: frames were lost");
    let ended = pair.machine.kernel.counters();
    assert_eq!(ended.nodes_made, ended.nodes_freed, "{config}: nodes were lost");
    counters
}

/// What a reader wants to know of a run.
fn what(counters: &OsCounters) -> String {
    let OsCounters { forks, swapped_out, out_of_memory, migrated, collapses, promotions, .. } = counters;
    let (processes, reclaims) = (counters.exits, counters.reclaims_direct + counters.reclaims_background);
    format!(
        "{processes} processes exited ({forks} forks made), {reclaims} reclaims, {swapped_out} pages swapped out, \
         {migrated} moved, {out_of_memory} requests without memory, {} superpages made",
        collapses + promotions
    )
}

/// Over all configurations of the memory manager of that name.
fn run_all(manager: &str) {
    let tables = std::env::var("NESTWALK_TABLES").ok();
    let mut swapped_out = Vec::new();
    let mut all = configurations(MEMORY);
    all.iter_mut().for_each(|config| config.swap = SWAP);
    for config in all.iter().filter(|config| config.manager.build().facts().name == manager) {
        let placement = config.tables.build().name();
        if tables.as_deref().is_none_or(|wanted| wanted == placement) {
            let begun = std::time::Instant::now();
            let counters = run(Pair::new(Machine::alone(config)));
            println!("{manager} with {placement}: {} operations in {:.1?}", operations(), begun.elapsed());
            println!("  {}", what(&counters));
            swapped_out.push(counters.swapped_out);
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
