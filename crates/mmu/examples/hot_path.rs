// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a fixed number of accesses of one case through a core, for profilers and instruction
//! counts: `hot_path CASE [MILLIONS [ORDER [MACHINE]]] [OPTIONS]`, with a guest of `2^ORDER` pages,
//! on `broadwell-asap` or another machine file. Options: `--no-hints`, `--no-vectors`,
//! `--clustered`.
//! Without a case it lists them.

#[path = "../benches/cases/mod.rs"]
mod cases;

use std::time::Instant;

use cases::{Case, GUEST_ORDER, Machine, machine_config};
use nestwalk_mmu::Table;

/// Seconds of processor time (on Linux; elsewhere of the clock on the wall), which a busy machine
/// disturbs less.
fn seconds(begin: Instant) -> f64 {
    let nanoseconds = std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split(' ').next().and_then(|field| field.parse::<f64>().ok()));
    nanoseconds.map_or_else(|| begin.elapsed().as_secs_f64(), |nanoseconds| nanoseconds * 1e-9)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(case) = Case::ALL.into_iter().find(|case| arguments.first().is_some_and(|name| name == case.name()))
    else {
        Case::ALL.iter().for_each(|case| println!("{}", case.name()));
        return;
    };
    let millions = arguments.get(1).and_then(|text| text.parse::<f64>().ok()).unwrap_or(4.0);
    let order = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(GUEST_ORDER);
    let accesses = case.accesses((millions * 1e6) as usize, order);
    let name = arguments.get(3).filter(|text| !text.starts_with("--")).map_or("broadwell-asap", String::as_str);
    let Some(mut config) = machine_config(name) else {
        eprintln!("hot_path: there is no machine file machines/{name}.toml with an MMU");
        std::process::exit(2);
    };
    if arguments.iter().any(|argument| argument == "--clustered") {
        config = config.with_clustered_tlb().expect("a TLB that can have clusters");
    }
    let mut machine = Machine::new(&config, order);
    machine.core().set_hints(!arguments.iter().any(|argument| argument == "--no-hints"));
    machine.core().set_vectors(!arguments.iter().any(|argument| argument == "--no-vectors"));
    let clock = Instant::now();
    let before = seconds(clock);
    machine.run(&accesses);
    let seconds = seconds(clock) - before;
    let counters = machine.core().counters();
    let walks = counters.tlb.walks();
    println!("{}: {:.2} M accesses/s", case.name(), accesses.len() as f64 / seconds / 1e6);
    println!(
        "walks {walks}, cycles a walk {:.1}, references a walk {:.2} (guest {:?}, host {:?}), data {:?}",
        counters.walk_cycles as f64 / walks as f64,
        counters.walk_events.total_references() as f64 / walks as f64,
        counters.walk_events.of_table(Table::Guest),
        counters.walk_events.of_table(Table::Host),
        counters.caches.data,
    );
}
