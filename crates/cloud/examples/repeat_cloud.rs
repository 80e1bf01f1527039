// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the work of one benchmark a few times at small scale, for instruction counts:
//! `repeat_cloud NAME TIMES TRACES` (no traces are needed). Prints how many events one repetition
//! has. `repeat_cloud --list` prints the names, `repeat_cloud --full NAME` runs one at full scale
//! and prints what it measured.

use std::process::ExitCode;

use nestwalk_cloud::bench::{names, run, run_scaled};

/// Those with a name of their own at small scale: the others differ by the number of hosts only.
const COUNTED: [&str; 3] = ["place_improv_1k_hosts", "place_baseline_1k_hosts", "place_improv_numa_1k_hosts"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["--list"] => {
            COUNTED.iter().for_each(|name| println!("{name}"));
            Ok(())
        }
        ["--full", name] => run(name).map(|measured| println!("{measured:?}")),
        [name, times, ..] => {
            let Ok(times) = times.parse::<u32>() else {
                eprintln!("repeat_cloud: TIMES is no number: {times}");
                return ExitCode::from(2);
            };
            // Each repetition does the same, so any one's number of events will do.
            (0..times).try_fold(0, |_, _| run_scaled(name, 200, 20_000).map(|measured| measured.events)).map(|events| {
                println!("{events}");
            })
        }
        _ => {
            eprintln!("usage: repeat_cloud NAME TIMES | repeat_cloud --list | repeat_cloud --full NAME");
            eprintln!("names: {}", names().join(", "));
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("repeat_cloud: {error}");
            ExitCode::from(2)
        }
    }
}
