// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the work of one benchmark a few times: `repeat NAME TIMES TRACES [full]`. Prints how much one
//! repetition does. It is of small scale, for instruction counts: what two repetitions execute more
//! than one is the work itself, without set-up. With `full` it has the scale of `nestwalk bench`, for
//! profilers. `repeat --list` prints the names, but for that of the one that is large at every scale.

use std::path::Path;
use std::process::ExitCode;

use nestwalk_machine::bench::{LARGE, NAMES, Scale, Unwatched, work};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["--list"] {
        NAMES.iter().filter(|&&name| name != LARGE).for_each(|name| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    let (name, times, traces, scale) = match &arguments[..] {
        [name, times, traces] => (name, times, traces, Scale::SMALL),
        [name, times, traces, full] if full == "full" => (name, times, traces, Scale::FULL),
        _ => {
            eprintln!("usage: repeat NAME TIMES TRACES [full] | repeat --list");
            return ExitCode::from(2);
        }
    };
    let Ok(times) = times.parse() else {
        eprintln!("repeat: TIMES is no number: {times}");
        return ExitCode::from(2);
    };
    match work(name, scale, times, Path::new(traces), &mut Unwatched) {
        Ok((count, _)) => println!("{count}"),
        Err(error) => {
            eprintln!("repeat: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
