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

mod input;
mod raw;
mod system;

/// The formats that are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    Raw,
    System,
}

impl Format {
    /// That of `input`, by what it begins with. What no format claims is for [`raw`] to complain about.
    fn of(input: &mut Input) -> Result<Self, WorkloadError> {
        Ok(if input.begins_with(system::MAGIC)? { Self::System } else { Self::Raw })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Raw => raw::NAME,
            Self::System => system::NAME,
        }
    }

    const fn tool(self) -> &'static str {
        match self {
            Self::Raw => raw::TOOL,
            Self::System => system::TOOL,
        }
    }

    fn count(self, input: Input) -> Result<u64, WorkloadError> {
        match self {
            Self::Raw => raw::count(input),
            Self::System => system::count(input),
        }
    }

    fn read(
        self,
        input: Input,
        recorder: &mut Recorder,
        progress: &mut dyn FnMut(&Recorder) -> Result<(), WorkloadError>,
    ) -> Result<Option<String>, WorkloadError> {
        match self {
            Self::Raw => raw::read(input, recorder, progress),
            Self::System => system::read(input, recorder, progress),
        }
    }
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
    /// Accesses of the capture, where they are known though the input cannot be read twice (a pipe).
    pub total: Option<u64>,
    /// How to sample; `None` keeps every access.
    pub sample: Option<SampleOptions>,
    /// How to filter what is kept; `None` does not.
    pub filter: Option<FilterOptions>,
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

/// Converts the capture `source` (a file, a FIFO, or `-` for standard input; plain or zstd) into the trace `destination`.
/// `progress` is called now and then and ends the conversion by breaking. Nothing is left at `destination` unless all went
/// well.
///
/// # Errors
/// When the source cannot be read or is damaged, the destination cannot be written, an option is impossible, or `progress`
/// broke ([`std::io::ErrorKind::Interrupted`]).
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
    let mut input = Input::open(source)?;
    let format = Format::of(&mut input)?;
    if total.is_none() && needs_total && Input::can_be_read_twice(source) {
        total = Some(format.count(Input::open(source)?)?);
    }
    if let (Ok(from), Ok(to)) = (source.canonicalize(), destination.canonicalize())
        && from == to
        && from.is_file()
    {
        let what = format!("{} is both the source and the destination: name another file", from.display());
        return Err(WorkloadError::Parameter { name: "trace".into(), what });
    }
    let mut recorder = Recorder::create(destination, options.level, options.sample, options.filter, total)?;
    let mut report = |recorder: &Recorder| {
        let now = Progress { accesses: recorder.position(), total, bytes: recorder.totals().bytes };
        match progress(now) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => {
                Err(WorkloadError::Io { path: source.into(), source: std::io::ErrorKind::Interrupted.into() })
            }
        }
    };
    let warning = format.read(input, &mut recorder, &mut report)?;
    let recorded = recorder.finish(metadata(source, options, format, warning))?;
    let accesses = recorded.totals.accesses;
    Ok(ConvertReport {
        accesses,
        represented_accesses: accesses + recorded.totals.absorbed,
        bytes_per_access: recorded.totals.bytes as f64 / accesses.max(1) as f64,
        bytes: recorded.totals.bytes,
        metadata: recorded.metadata,
    })
}

fn metadata(source: &Path, options: &ConvertOptions, format: Format, warning: Option<String>) -> Metadata {
    let or = |given: &String, otherwise: &str| if given.is_empty() { otherwise.to_owned() } else { given.clone() };
    let name = source.file_name().map_or("", |name| name.to_str().unwrap_or(""));
    let stem = name.split('.').next().unwrap_or("");
    Metadata {
        program: or(&options.program, if stem.is_empty() || stem == STDIN { "trace" } else { stem }),
        command: options.command.clone(),
        tool: or(&options.tool, format.tool()),
        date: options.date.clone(),
        source_format: format.name().into(),
        warning,
        ..Metadata::default()
    }
}
