// SPDX-License-Identifier: MIT OR Apache-2.0
//! `nwtrace convert|info|check`: the trace functions of the library as a small program, for pipes from the capture plugin.
//!
//! Errors are one line on standard error and exit code 2.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lexopt::prelude::*;
use nestwalk_workload::trace::{self, ConvertOptions, Progress, SampleOptions, SteadyFrom, Strata};

const USAGE: &str = "\
usage: nwtrace convert SOURCE TRACE [options]   SOURCE: a raw capture, plain or zstd; - is standard input
       nwtrace info TRACE                       what it holds, as JSON
       nwtrace check TRACE                      decodes all of it and verifies every checksum
options of convert (numbers may end in k, M or G: thousands, millions, milliards):
  --program NAME --command TEXT --tool TEXT --date TEXT   what the trace says of itself
  --level N                zstd level, 1 to 22 (1)
sampling (without it, every access is kept):
  --sample-windows N       N windows, evenly over the steady phase; a pipe needs --total as well
  --period ACCESSES        or: a window in every so many accesses
  --windows-max N          at most so many of them
  --window ACCESSES        measured accesses of a window (200k)
  --warm ACCESSES          accesses before them that warm up (1M)
  --skip-start ACCESSES    the steady phase begins here (0)
  --steady-from MARK       or: with the capture's mark number MARK
  --total ACCESSES         length of the capture
  --budget BYTES           leave windows out that would make the file larger (evenly, if their number is known)
  --seed N                 of the windows' random places (1)

Filtering what is kept (docs/trace-format.md):
  --collapse ACCESSES      so many before each window's warm-up: the last access to each line
  --filter default         leave out accesses that small LRU filters over lines and pages both hold, and count them
  --filter exact           the same with one line and one page a set
  --filter LxW,PxW[,RENEW] the same with L sets of W lines and P sets of W pages; a line is kept again after RENEW accesses";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("nwtrace: {what}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), String> {
    let mut arguments = lexopt::Parser::from_env();
    match arguments.next().map_err(|e| e.to_string())? {
        Some(Value(verb)) if verb == "convert" => convert(arguments),
        Some(Value(verb)) if verb == "info" => {
            let info = trace::info(&one_path(arguments)?).map_err(|e| e.to_string())?;
            println!("{}", serde_json::to_string_pretty(&info).map_err(|e| e.to_string())?);
            Ok(())
        }
        Some(Value(verb)) if verb == "check" => {
            let report = trace::check(&one_path(arguments)?).map_err(|e| e.to_string())?;
            println!(
                "whole: {} accesses, {} first touches, {} events in {} records",
                report.accesses, report.touches, report.events, report.records
            );
            Ok(())
        }
        Some(Long("help") | Short('h')) => {
            println!("{USAGE}");
            Ok(())
        }
        Some(other) => Err(format!("{}; try nwtrace --help", other.unexpected())),
        None => Err("what to do? convert, info or check; try nwtrace --help".into()),
    }
}

fn one_path(mut arguments: lexopt::Parser) -> Result<PathBuf, String> {
    let path = match arguments.next() {
        Ok(Some(Value(path))) => PathBuf::from(path),
        _ => return Err("give one trace; try nwtrace --help".into()),
    };
    match arguments.next() {
        Ok(None) => Ok(path),
        _ => Err("give one trace only; try nwtrace --help".into()),
    }
}

/// The sampling options as given.
#[derive(Default)]
struct Sampling {
    windows: Option<u64>,
    period: Option<u64>,
    windows_max: Option<u64>,
    window: Option<u64>,
    collapse: Option<u64>,
    warm: Option<u64>,
    skip_start: Option<u64>,
    steady_from: Option<u64>,
    budget: Option<u64>,
    seed: Option<u64>,
}

fn convert(mut arguments: lexopt::Parser) -> Result<(), String> {
    let mut options = ConvertOptions::default();
    let mut sampling = Sampling::default();
    let mut paths: Vec<PathBuf> = Vec::new();
    while let Some(argument) = arguments.next().map_err(|e| e.to_string())? {
        let name = match argument {
            Value(path) => {
                paths.push(path.into());
                continue;
            }
            Short('h') => {
                println!("{USAGE}");
                return Ok(());
            }
            Long(name) => name.to_owned(),
            other => return Err(format!("{}; try nwtrace --help", other.unexpected())),
        };
        take_option(&name, &mut arguments, &mut options, &mut sampling)?;
    }
    let [source, destination] = &paths[..] else {
        return Err("convert needs a source and a destination; try nwtrace --help".into());
    };
    options.sample = sampling.options()?;
    let report = trace::convert(source, destination, &options, &mut progress()).map_err(|e| e.to_string())?;
    if let Some(warning) = &report.metadata.warning {
        eprintln!("nwtrace: {}: {warning}", source.display());
    }
    println!(
        "{}: {} of {} accesses, {} windows, footprint {} bytes, {} bytes, {:.3} bytes an access",
        destination.display(),
        report.accesses,
        report.metadata.program_accesses,
        report.metadata.sampling.as_ref().map_or(0, |sampling| sampling.windows),
        report.metadata.footprint_pages << 12,
        report.bytes,
        report.bytes_per_access,
    );
    Ok(())
}

fn take_option(
    name: &str,
    arguments: &mut lexopt::Parser,
    options: &mut ConvertOptions,
    sampling: &mut Sampling,
) -> Result<(), String> {
    let value = arguments.value().map_err(|e| e.to_string())?.string().map_err(|e| e.to_string())?;
    let number = || parse(name, &value).map(Some);
    match name {
        "program" => options.program = value,
        "command" => options.command = value,
        "tool" => options.tool = value,
        "date" => options.date = Some(value),
        "level" => options.level = parse(name, &value)?.try_into().unwrap_or(i32::MAX),
        "total" => options.total = number()?,
        "filter" => options.filter = Some(value.parse()?),
        "sample-windows" => sampling.windows = number()?,
        "period" => sampling.period = number()?,
        "windows-max" => sampling.windows_max = number()?,
        "window" => sampling.window = number()?,
        "warm" => sampling.warm = number()?,
        "collapse" => sampling.collapse = number()?,
        "skip-start" => sampling.skip_start = number()?,
        "steady-from" => sampling.steady_from = number()?,
        "budget" => sampling.budget = number()?,
        "seed" => sampling.seed = number()?,
        _ => return Err(format!("unknown option --{name}; try nwtrace --help")),
    }
    Ok(())
}

impl Sampling {
    fn options(&self) -> Result<Option<SampleOptions>, String> {
        let strata = match (self.windows, self.period) {
            (Some(_), Some(_)) => return Err("--sample-windows and --period exclude each other".into()),
            (Some(windows), None) => Strata::Windows(windows),
            (None, Some(accesses)) => Strata::Period { accesses, windows_max: self.windows_max },
            (None, None) => return self.nothing_else(),
        };
        let steady_from = match (self.skip_start, self.steady_from) {
            (Some(_), Some(_)) => return Err("--skip-start and --steady-from exclude each other".into()),
            (_, Some(mark)) => SteadyFrom::Mark(mark),
            (access, None) => SteadyFrom::Access(access.unwrap_or(0)),
        };
        Ok(Some(SampleOptions {
            steady_from,
            strata,
            collapse: self.collapse.unwrap_or(0),
            warm: self.warm.unwrap_or(1_000_000),
            window: self.window.unwrap_or(200_000),
            seed: self.seed.unwrap_or(1),
            budget: self.budget,
        }))
    }

    /// Without windows, no other sampling option means anything.
    fn nothing_else(&self) -> Result<Option<SampleOptions>, String> {
        let others = [
            self.windows_max,
            self.window,
            self.collapse,
            self.warm,
            self.skip_start,
            self.steady_from,
            self.budget,
            self.seed,
        ];
        if others.iter().any(Option::is_some) {
            return Err("sampling needs --sample-windows or --period".into());
        }
        Ok(None)
    }
}

fn parse(name: &str, value: &str) -> Result<u64, String> {
    let (digits, unit) = match value.as_bytes().last() {
        Some(b'k') => (&value[..value.len() - 1], 1_000),
        Some(b'M') => (&value[..value.len() - 1], 1_000_000),
        Some(b'G') => (&value[..value.len() - 1], 1_000_000_000),
        _ => (value, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| format!("--{name} {value}: not a number (digits, perhaps followed by k, M or G)"))
}

/// A line on standard error every few seconds.
fn progress() -> impl FnMut(Progress) -> ControlFlow<()> {
    let (begin, mut last) = (Instant::now(), Instant::now());
    move |now| {
        if last.elapsed() >= Duration::from_secs(5) {
            last = Instant::now();
            let rate = now.accesses as f64 / begin.elapsed().as_secs_f64() / 1e6;
            let of = now.total.map_or(String::new(), |total| format!(" of {:.0} M", total as f64 / 1e6));
            eprintln!(
                "nwtrace: {:.0} M{of} accesses read ({rate:.0} M/s), {:.1} MB written",
                now.accesses as f64 / 1e6,
                now.bytes as f64 / 1e6
            );
        }
        ControlFlow::Continue(())
    }
}
