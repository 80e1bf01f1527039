// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a running program to a trace, without options: `nestwalk capture`.
//!
//! While the program runs its accesses go, filtered, to a *spool*: a trace beside the destination,
//! thinned out as it grows ([`planner::Thin`]), while a small [model](model) notes how each stretch
//! of the program is. Once the program has ended, all is known: where the start-up ends, how much
//! stretches differ, how long the program was. Then the windows are [chosen](choose) for the size
//! and the precision that are wanted, and the spool is [turned](resample) into the trace.

use std::path::Path;

use super::convert::{Known, feed};
use super::destination::Destination;
use super::filter::FilterOptions;
use super::metadata::Metadata;
use super::reader::Trace;
use super::recorder::{Planner, Recorded, Recorder};
use crate::stream::WorkloadError;
use choose::{Choice, Wanted};
use model::Unit;
use planner::Since;

pub mod choose;
pub mod model;
pub mod planner;
pub mod resample;

/// Where sampling begins, or what is kept of a whole capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// Where the start-up ends, as far as that shows.
    Auto,
    /// At this access.
    Access(u64),
    /// At the program's mark with this number.
    Mark(u64),
    /// When [`Answer::Sample`] comes.
    Told,
}

/// How to capture.
#[derive(Clone, PartialEq, Debug)]
pub struct CaptureOptions {
    /// What to call the program.
    pub program: String,
    /// Its command line.
    pub command: String,
    /// The most bytes of the trace; what is kept in any case (first touches, memory events) may go
    /// beyond it.
    pub size: u64,
    /// Half of the 95 % interval of the walk latency that is enough, as a share of it.
    pub precision: f64,
    /// Keep every access from where sampling would begin, whatever the size; without being told
    /// where, from the first.
    pub whole: bool,
    /// Where sampling begins.
    pub begin: Begin,
    /// End at the program's mark with this number.
    pub end_mark: Option<u64>,
    /// Bytes after which the spool keeps half of what it kept before.
    pub spool: u64,
    /// Of the windows' random places.
    pub seed: u64,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self {
            program: String::new(),
            command: String::new(),
            size: 32_000_000,
            precision: 0.02,
            whole: false,
            begin: Begin::Auto,
            end_mark: None,
            spool: 1 << 30,
            seed: 1,
        }
    }
}

/// How far a capture is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Live {
    /// Accesses of the program.
    pub accesses: u64,
    /// Pages ever touched.
    pub footprint_pages: u64,
    /// Misses of the model's TLB.
    pub walks: u64,
    /// Bytes of the spool.
    pub bytes: u64,
    /// The mark at which the capture ends has come: the program may be ended.
    pub ended: bool,
}

/// What is to happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Give up: no trace.
    Abandon,
    /// Go on.
    GoOn,
    /// Sampling begins now, if it begins when it is told to; otherwise as [`Answer::GoOn`].
    Sample,
}

/// What came of it.
#[derive(Clone, PartialEq, Debug)]
pub struct CaptureReport {
    /// What the trace says of itself.
    pub metadata: Metadata,
    /// Bytes of the trace.
    pub bytes: u64,
    /// Where sampling begins: the program's access.
    pub steady: u64,
    /// Half of the 95 % interval of the walk latency that is to be expected, as a share of it;
    /// `None` if there were no walks.
    pub latency_ci95: Option<f64>,
    /// The same of walk cycles an access, if windows had been placed without looking at the
    /// program.
    pub cycles_ci95: Option<f64>,
    /// Whether the size kept the precision from being reached.
    pub short_of_room: bool,
    /// Whether what is kept in any case (first touches, memory events, few windows) takes more than
    /// the size.
    pub over_size: bool,
    /// The share of the program that the spool had, in thousandths.
    pub spooled_permille: u64,
}

/// zstd's level of the spool, which has to keep up, of a trace of every access, which has to keep
/// up and be kept, and of a sampled one, which is written once.
const SPOOL_LEVEL: i32 = 1;
const WHOLE_LEVEL: i32 = 3;
const TRACE_LEVEL: i32 = 9;
/// Traces that are made before the size is right.
const ATTEMPTS: u32 = 4;
/// A trace that came out smaller than this share of what it may take gets more windows, if it needs
/// them.
const ROOMY: f64 = 0.7;

/// Captures what comes from `source` (a FIFO or a file with the plugin's stream) into the trace
/// `destination`, which is there whole or not at all. `hear` is called now and then.
///
/// # Errors
/// When the source is damaged, the destination or the spool beside it cannot be written, an option
/// is impossible, or `hear` returned [`Answer::Abandon`] ([`std::io::ErrorKind::Interrupted`]).
pub fn capture(
    source: &Path,
    destination: &Path,
    options: &CaptureOptions,
    hear: &mut dyn FnMut(Live) -> Answer,
) -> Result<CaptureReport, WorkloadError> {
    if options.whole {
        return everything(source, destination, options, hear);
    }
    let beside = destination.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let io = |source| WorkloadError::Io { path: beside.into(), source };
    let folder = tempfile::Builder::new().prefix(".nestwalk-").tempdir_in(beside).map_err(io)?;
    let spooled = spool(source, &folder.path().join("spool"), options, hear)?;
    let (draft, fitting) = (folder.path().join("trace"), folder.path().join("fitting"));
    let mut room = spooled.room(options.size);
    let (mut best, mut before): (Option<CaptureReport>, Vec<planner::Window>) = (None, Vec::new());
    for _ in 0..ATTEMPTS {
        let choice = choose::choose(&spooled.wanted(room, options));
        // With other room there are no other windows.
        if choice.windows == before {
            break;
        }
        let recorded = make(&spooled, &choice, &draft, options, hear)?;
        let bytes = recorded.totals.bytes;
        let fits = bytes <= options.size;
        if fits || best.as_ref().is_none_or(|best| bytes < best.bytes) {
            std::fs::rename(&draft, &fitting).map_err(io)?;
            best = Some(report(&choice, recorded, &spooled, options));
        }
        let roomy = choice.short_of_room && (bytes as f64) < ROOMY * options.size as f64;
        if fits && !roomy {
            break;
        }
        // What was foreseen was off by as much.
        let taken = bytes.saturating_sub(spooled.fixed_bytes()).max(1) as f64;
        room = spooled.room(options.size).max(1.0) * choice.bytes / taken * 0.97;
        before = choice.windows;
    }
    publish(&fitting, destination)?;
    best.ok_or_else(|| interrupted(destination))
}

/// The spool, and what is known of the program once it has ended.
struct Spooled {
    trace: Trace,
    recorded: Recorded,
    units: Vec<Unit>,
    /// What it has, from and until.
    kept: Vec<(u64, u64)>,
    steady: u64,
}

impl Spooled {
    /// Bytes that a trace has besides its accesses: first touches and events, sites, the index.
    fn fixed_bytes(&self) -> u64 {
        let totals = &self.recorded.totals;
        totals.bytes - totals.access_bytes.min(totals.bytes)
    }

    fn room(&self, size: u64) -> f64 {
        size.saturating_sub(self.fixed_bytes()) as f64
    }

    fn wanted<'a>(&'a self, room: f64, options: &CaptureOptions) -> Wanted<'a> {
        let totals = &self.recorded.totals;
        Wanted {
            units: &self.units,
            kept: &self.kept,
            total: self.recorded.metadata.program_accesses,
            steady: self.steady,
            room,
            bytes_per_kept: totals.access_bytes as f64 / totals.accesses.max(1) as f64,
            lines: self.recorded.metadata.footprint_pages.saturating_mul(64),
            precision: options.precision,
            seed: options.seed,
        }
    }
}

/// Reads the source to its end, or to the mark at which the capture is to end. Returns what the
/// trace is to say of it, and where it was [told](Begin::Told) to begin.
fn read(
    source: &Path,
    recorder: &mut Recorder,
    options: &CaptureOptions,
    hear: &mut dyn FnMut(Live) -> Answer,
) -> Result<(Metadata, Option<u64>), WorkloadError> {
    let (mut told, mut ended) = (None, false);
    let outcome = feed(source, recorder, &mut |recorder| {
        ended = ended || options.end_mark.is_some_and(|mark| recorder.mark_at(mark).is_some());
        let live = Live {
            accesses: recorder.position(),
            footprint_pages: recorder.footprint().0,
            walks: recorder.walks(),
            bytes: recorder.totals().bytes,
            ended,
        };
        match hear(live) {
            _ if ended => Err(interrupted(source)),
            Answer::Abandon => Err(interrupted(source)),
            Answer::Sample if told.is_none() => {
                told = Some(recorder.position());
                recorder.begin()
            }
            Answer::Sample | Answer::GoOn => Ok(()),
        }
    });
    let (known, warning) = match outcome {
        Err(_) if ended => (Known::Raw, None), // no other stream has marks
        outcome => outcome?,
    };
    let metadata = Metadata {
        program: options.program.clone(),
        command: options.command.clone(),
        tool: known.tool().into(),
        source_format: known.name().into(),
        warning,
        ..Metadata::default()
    };
    Ok((metadata, told))
}

/// Where what is kept begins, if that was asked for.
///
/// # Errors
/// When the program ended before, or made no access at all.
fn begun(recorder: &Recorder, options: &CaptureOptions, told: Option<u64>) -> Result<Option<u64>, WorkloadError> {
    let begun = match options.begin {
        Begin::Auto => None,
        Begin::Access(access) => Some((access, format!("the program ended before access {access}"))),
        Begin::Mark(mark) => {
            let at = recorder.mark_at(mark).unwrap_or(u64::MAX);
            Some((at, format!("the program made no mark {mark}")))
        }
        Begin::Told => Some((told.unwrap_or(u64::MAX), "the program ended before it was time".into())),
    };
    let refused = |what| WorkloadError::Parameter { name: options.program.clone(), what };
    let total = recorder.position();
    if let Some((at, why)) = &begun
        && *at >= total
    {
        return Err(refused(format!("{why}, so nothing was sampled: let sampling begin earlier (--from)")));
    }
    if total == 0 {
        let what = "made no access that was recorded: it could not be started, or ran without the plugin";
        return Err(refused(what.into()));
    }
    Ok(begun.map(|(at, _)| at))
}

/// Makes the spool.
fn spool(
    source: &Path,
    path: &Path,
    options: &CaptureOptions,
    hear: &mut dyn FnMut(Live) -> Answer,
) -> Result<Spooled, WorkloadError> {
    let mut recorder = Recorder::spooling(path, SPOOL_LEVEL, FilterOptions::default(), options.spool)?;
    let (metadata, told) = read(source, &mut recorder, options, hear)?;
    let begun = begun(&recorder, options, told)?;
    let (recorded, units, kept) = recorder.finish_spool(metadata)?;
    let steady = begun.unwrap_or_else(|| choose::steady_from(&units));
    Ok(Spooled { trace: Trace::open(path)?, recorded, units, kept, steady })
}

/// Makes the trace of a choice.
fn make(
    spooled: &Spooled,
    choice: &Choice,
    path: &Path,
    options: &CaptureOptions,
    hear: &mut dyn FnMut(Live) -> Answer,
) -> Result<Recorded, WorkloadError> {
    let windows = planner::Windows::new(choice.windows.clone(), choice.about.clone());
    let of_spool = &spooled.recorded.metadata;
    let mut recorder = Recorder::planned(path, TRACE_LEVEL, Planner::Windows(windows), Some(FilterOptions::default()))?;
    let live = Live {
        accesses: of_spool.program_accesses,
        footprint_pages: of_spool.footprint_pages,
        walks: spooled.units.iter().map(|unit| unit.walks).sum(),
        bytes: spooled.recorded.totals.bytes,
        ended: options.end_mark.is_some(),
    };
    resample::resample(&spooled.trace, &mut recorder, &mut || match hear(live) {
        Answer::Abandon => Err(interrupted(path)),
        _ => Ok(()),
    })?;
    recorder.jump(of_spool.program_accesses, of_spool.program_instructions)?;
    recorder.finish(of_spool.clone())
}

fn publish(draft: &Path, destination: &Path) -> Result<(), WorkloadError> {
    let io = |source| WorkloadError::Io { path: destination.into(), source };
    let to = Destination::of(destination).map_err(io)?;
    let mut file = to.temporary().map_err(io)?;
    std::io::copy(&mut std::fs::File::open(draft).map_err(io)?, &mut file).map_err(io)?;
    to.take(file).map_err(io)
}

fn report(choice: &Choice, recorded: Recorded, spooled: &Spooled, options: &CaptureOptions) -> CaptureReport {
    let total = recorded.metadata.program_accesses.max(1);
    let had = u128::from(spooled.units.iter().map(|unit| unit.accesses).sum::<u64>());
    CaptureReport {
        bytes: recorded.totals.bytes,
        steady: spooled.steady,
        latency_ci95: choice.latency_ci95,
        cycles_ci95: choice.cycles_ci95,
        short_of_room: choice.short_of_room,
        over_size: recorded.totals.bytes > options.size,
        spooled_permille: (had * 1000 / u128::from(total)).min(1000) as u64,
        metadata: recorded.metadata,
    }
}

/// Keeps every access, from where the capture begins: without being told, from the first.
fn everything(
    source: &Path,
    destination: &Path,
    options: &CaptureOptions,
    hear: &mut dyn FnMut(Live) -> Answer,
) -> Result<CaptureReport, WorkloadError> {
    let since = match options.begin {
        Begin::Auto => None,
        Begin::Access(access) => Some(Since::access(Some(access))),
        Begin::Mark(mark) => Some(Since::mark(mark)),
        Begin::Told => Some(Since::access(None)),
    };
    let mut recorder = match since {
        None => Recorder::create(destination, WHOLE_LEVEL, None, None, None)?,
        Some(since) => Recorder::planned(destination, WHOLE_LEVEL, Planner::Since(since), None)?,
    };
    let (metadata, told) = read(source, &mut recorder, options, hear)?;
    let steady = begun(&recorder, options, told)?.unwrap_or(0);
    let Recorded { totals, metadata } = recorder.finish(metadata)?;
    Ok(CaptureReport {
        metadata,
        bytes: totals.bytes,
        steady,
        latency_ci95: Some(0.0),
        cycles_ci95: Some(0.0),
        short_of_room: false,
        over_size: false,
        spooled_permille: 1000,
    })
}

fn interrupted(path: &Path) -> WorkloadError {
    WorkloadError::Io { path: path.into(), source: std::io::ErrorKind::Interrupted.into() }
}
