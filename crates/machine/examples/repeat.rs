// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the work of one benchmark a few times at small scale, for instruction counts: `repeat NAME
//! TIMES TRACES`. Prints how much one repetition does. The difference between two repetitions and
//! one is the work itself, without set-up. `repeat --list` prints the names, except that of the
//! benchmark that is large at every scale.

use std::path::Path;
use std::process::ExitCode;

use nestwalk_machine::bench::{LARGE, NAMES, Scale, Unwatched, work};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["--list"] {
        NAMES.iter().filter(|&&name| name != LARGE).for_each(|name| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    let [name, times, traces] = &arguments[..] else {
        eprintln!("usage: repeat NAME TIMES TRACES | repeat --list");
        return ExitCode::from(2);
    };
    let Ok(times) = times.parse() else {
        eprintln!("repeat: TIMES is no number: {times}");
        return ExitCode::from(2);
    };
    match work(name, Scale::SMALL, times, Path::new(traces), &mut Unwatched) {
        Ok((count, _)) => println!("{count}"),
        Err(error) => {
            eprintln!("repeat: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
