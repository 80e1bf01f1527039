// SPDX-License-Identifier: MIT OR Apache-2.0
//! From captures to traces: one file a format.

use std::ops::ControlFlow;
use std::path::Path;

use super::filter::FilterOptions;
use super::metadata::Metadata;
use super::recorder::Recorder;
use super::sample::{SampleOptions, Strata};
use crate::stream::WorkloadError;
use input::Input;
use known::Source;

mod archive;
mod champsim;
mod drmemtrace;
mod import;
pub(super) mod input;
mod known;
mod lackey;
mod lines;
mod merge;
mod own;
mod pin;
mod raw;
pub(super) mod sink;
mod system;
mod words;

pub use known::Known;
use sink::Sink;

/// Reads all of `source` into `recorder`, or whatever else takes it. Returns the format that it
/// has, and a warning if it ended early.
///
/// # Errors
/// When it cannot be read or is damaged, or `progress` ended the work by an error.
pub(super) fn feed<S: Sink>(
    source: &Path,
    recorder: &mut S,
    progress: &mut dyn FnMut(&mut S) -> Result<(), WorkloadError>,
) -> Result<(Known, Option<String>), WorkloadError> {
    let opened = Source::open(source, None, None, None)?;
    let known = opened.known();
    Ok((known, opened.read(recorder, progress)?))
}

/// How to convert.
#[derive(Clone, PartialEq, Debug)]
pub struct ConvertOptions {
    /// What to call the program in tables; empty = the name of the source.
    pub program: String,
    /// The command line that ran, if known.
    pub command: String,
    /// What captured it, if not what the format says.
    pub tool: String,
    /// When, if that is to be known.
    pub date: Option<String>,
    /// zstd's level, 1 to 22: higher takes longer to write, not to read.
    pub level: i32,
    /// Accesses of the capture, where they are known though the input cannot be read twice (a
    /// pipe).
    pub total: Option<u64>,
    /// How to sample; `None` keeps every access.
    pub sample: Option<SampleOptions>,
    /// How to filter what is kept; `None` does not.
    pub filter: Option<FilterOptions>,
    /// The source's format, where its content does not tell; `None` = what the content says.
    pub from: Option<Known>,
    /// Of a drmemtrace trace of several processes: which one; `None` = it has to be of one.
    pub process: Option<u64>,
    /// Of a trace: the access before which it is cut off; `None` = all of it.
    pub until: Option<u64>,
    /// The format that the trace should name as its origin, if not the source's: one who reads
    /// another one streams it as a capture.
    pub source_format: String,
    /// What a user has to know of the source besides what its reader finds.
    pub warning: Option<String>,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            program: String::new(),
            command: String::new(),
            tool: String::new(),
            date: None,
            level: 1,
            total: None,
            sample: None,
            filter: None,
            from: None,
            process: None,
            until: None,
            source_format: String::new(),
            warning: None,
        }
    }
}

/// How far a conversion has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Accesses read.
    pub accesses: u64,
    /// Accesses that there are, if known.
    pub total: Option<u64>,
    /// Bytes written.
    pub bytes: u64,
}

/// What a conversion brought.
#[derive(Clone, PartialEq, Debug)]
pub struct ConvertReport {
    /// Accesses in the trace.
    pub accesses: u64,
    /// Accesses of the program that they stand for: more, if they are filtered.
    pub represented_accesses: u64,
    /// Bytes of the file for each of them, all included.
    pub bytes_per_access: f64,
    /// Bytes of the file.
    pub bytes: u64,
    /// All that the trace says of itself.
    pub metadata: Metadata,
}

/// The name of a source that means standard input.
pub const STDIN: &str = "-";

/// Converts the capture `source` (a file, a FIFO, or `-` for standard input; plain or zstd) into
/// the trace `destination`. `progress` is called now and then and ends the conversion by breaking.
/// Nothing is left at `destination` unless all went well.
///
/// # Errors
/// When the source cannot be read or is damaged, the destination cannot be written, an option is
/// impossible, or `progress` broke ([`std::io::ErrorKind::Interrupted`]).
pub fn convert(
    source: &Path,
    destination: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<ConvertReport, WorkloadError> {
    if !(1..=22).contains(&options.level) {
        let what = format!("compression level {}: zstd has 1 to 22", options.level);
        return Err(WorkloadError::Parameter { name: "trace".into(), what });
    }
    let needs_total = options.sample.is_some_and(|sample| matches!(sample.strata, Strata::Windows(_)));
    let mut total = options.total;
    let opened = Source::open(source, options.from, options.until, options.process)?;
    let (known, about) = (opened.known(), opened.about().cloned());
    if let Some(about) = &about {
        total = Some(options.until.unwrap_or(about.accesses));
    } else if total.is_none() && needs_total && Input::can_be_read_twice(source) {
        total = Some(Source::open(source, options.from, None, options.process)?.count()?);
    }
    if let (Ok(from), Ok(to)) = (source.canonicalize(), destination.canonicalize())
        && from == to
        && from.is_file()
    {
        let what = format!("{} is both the source and the destination: name another file", from.display());
        return Err(WorkloadError::Parameter { name: "trace".into(), what });
    }
    let mut recorder = Recorder::create(destination, options.level, options.sample, options.filter, total)?;
    let mut report = |recorder: &mut Recorder| {
        let now = Progress { accesses: recorder.position(), total, bytes: recorder.totals().bytes };
        match progress(now) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => {
                Err(WorkloadError::Io { path: source.into(), source: std::io::ErrorKind::Interrupted.into() })
            }
        }
    };
    let mut warnings: Vec<String> = options.warning.iter().cloned().collect();
    warnings.extend(opened.read(&mut recorder, &mut report)?);
    if recorder.position() == 0 {
        warnings.push("there is no access to data in it, so there is nothing to simulate".into());
    }
    let warning = (!warnings.is_empty()).then(|| warnings.join("; "));
    let recorded = recorder.finish(metadata(source, options, known, about, warning))?;
    let accesses = recorded.totals.accesses;
    Ok(ConvertReport {
        accesses,
        represented_accesses: accesses + recorded.totals.absorbed,
        bytes_per_access: recorded.totals.bytes as f64 / accesses.max(1) as f64,
        bytes: recorded.totals.bytes,
        metadata: recorded.metadata,
    })
}

/// The trace's metadata: what `options` say, what the source says (`about`), what its format
/// says, in this order.
fn metadata(
    source: &Path,
    options: &ConvertOptions,
    known: Known,
    about: Option<Metadata>,
    warning: Option<String>,
) -> Metadata {
    let or = |given: &String, otherwise: String| if given.is_empty() { otherwise } else { given.clone() };
    let name = source.file_name().map_or("", |name| name.to_str().unwrap_or(""));
    let stem = name.split('.').next().unwrap_or("");
    let about = about.unwrap_or_else(|| Metadata {
        program: if stem.is_empty() || stem == STDIN { "trace" } else { stem }.into(),
        tool: known.tool().into(),
        source_format: known.name().into(),
        ..Metadata::default()
    });
    Metadata {
        program: or(&options.program, about.program),
        command: or(&options.command, about.command),
        tool: or(&options.tool, about.tool),
        date: options.date.clone().or(about.date),
        source_format: or(&options.source_format, about.source_format),
        kernel_half: about.kernel_half,
        warning,
        ..Metadata::default()
    }
}
