// SPDX-License-Identifier: MIT OR Apache-2.0
//! The formats that are known, and which of them a source has. That follows from its content, never
//! from its name.

use std::path::Path;
use std::str::FromStr;

use super::input::Input;
use super::lines::Lines;
use super::sink::Sink;
use super::{archive, champsim, drmemtrace, import, lackey, merge, own, pin, raw, system, words};
use crate::stream::WorkloadError;
use crate::trace::metadata::Metadata;

/// A format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Of the capture plugin.
    Raw,
    /// Of the system-mode plugin.
    System,
    /// `DynamoRIO`'s final offline traces.
    Drmemtrace,
    /// `ChampSim`'s.
    ChampSim,
    /// Valgrind lackey's text.
    Lackey,
    /// Text of Pin tools.
    Pin,
    /// A trace: of every access.
    Own,
    /// Little-endian u64.
    Addresses,
    /// A numpy array of addresses.
    Numpy,
}

impl Known {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Raw,
        Self::System,
        Self::Drmemtrace,
        Self::ChampSim,
        Self::Lackey,
        Self::Pin,
        Self::Own,
        Self::Addresses,
        Self::Numpy,
    ];

    /// Its name, as metadata and options have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => raw::NAME,
            Self::System => system::NAME,
            Self::Drmemtrace => drmemtrace::NAME,
            Self::ChampSim => champsim::NAME,
            Self::Lackey => lackey::NAME,
            Self::Pin => pin::NAME,
            Self::Own => own::NAME,
            Self::Addresses => words::NAME,
            Self::Numpy => words::NUMPY_NAME,
        }
    }

    /// What writes it, as far as the format says.
    pub const fn tool(self) -> &'static str {
        match self {
            Self::Raw => raw::TOOL,
            Self::System => system::TOOL,
            Self::Drmemtrace => drmemtrace::TOOL,
            Self::ChampSim => champsim::TOOL,
            Self::Lackey => lackey::TOOL,
            Self::Pin => pin::TOOL,
            Self::Own | Self::Addresses | Self::Numpy => words::TOOL,
        }
    }
}

impl FromStr for Known {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|known| known.name() == name)
            .ok_or_else(|| format!("no format is called {name:?}; there are {}", names()))
    }
}

/// A source whose format is known.
pub enum Source {
    /// Its accesses are in the form that a recorder takes.
    Raw(Input),
    /// Likewise.
    System(Input),
    /// Of another tool.
    Imported(Known, Box<dyn import::Reader>),
}

impl Source {
    /// Opens `path` and looks what it is, or takes it for what it is `claimed` to be. A trace is
    /// read up to access `until`, and another tool's trace of several processes for the one that
    /// is `wanted`.
    ///
    /// # Errors
    /// When it cannot be read, or is of no known format: what it seems to be, and what to do.
    pub fn open(
        path: &Path,
        claimed: Option<Known>,
        until: Option<u64>,
        wanted: Option<u64>,
    ) -> Result<Self, WorkloadError> {
        let opened = Self::open_any(path, claimed, until, wanted)?;
        if wanted.is_some() && opened.known() != Known::Drmemtrace {
            let what = "only drmemtrace files say which process made an access: leave --process out";
            return Err(WorkloadError::Corrupt { path: path.into(), offset: 0, what: what.into() });
        }
        Ok(opened)
    }

    fn open_any(
        path: &Path,
        claimed: Option<Known>,
        until: Option<u64>,
        wanted: Option<u64>,
    ) -> Result<Self, WorkloadError> {
        let imported = |reader| Ok(Self::Imported(Known::Drmemtrace, reader));
        if path.is_dir() {
            return imported(merge::folder(path, wanted)?);
        }
        let mut input = Input::open(path)?;
        if claimed.is_none_or(|known| known == Known::Own) && input.peek(own::MAGIC.len())? == own::MAGIC {
            return Ok(Self::Imported(Known::Own, Box::new(own::Own::open(path, until)?)));
        }
        if until.is_some() || claimed == Some(Known::Own) {
            let what = "this is no trace: convert it first (nestwalk trace convert)";
            return Err(input.corrupt(0, what.into()));
        }
        if archive::is_zip(&mut input)? {
            let input = archive::open(path)?;
            return match claimed {
                None | Some(Known::Drmemtrace) => imported(drmemtrace::file(input, wanted)?),
                Some(known) => Self::of(input, known, wanted),
            };
        }
        let known = match claimed {
            Some(known) => known,
            None => detect(&mut input)?,
        };
        Self::of(input, known, wanted)
    }

    fn of(mut input: Input, known: Known, wanted: Option<u64>) -> Result<Self, WorkloadError> {
        let reader: Box<dyn import::Reader> = match known {
            Known::Raw => return Ok(Self::Raw(input)),
            Known::System => return Ok(Self::System(input)),
            Known::Drmemtrace => drmemtrace::file(input, wanted)?,
            Known::ChampSim => match champsim::fit(input.peek(champsim::HEAD)?) {
                champsim::Fit::Known(layout) => Box::new(champsim::ChampSim::new(input, layout)),
                champsim::Fit::Unknown(bytes) => return Err(input.corrupt(0, champsim::unknown_stride(bytes))),
                champsim::Fit::None => Box::new(champsim::ChampSim::stock(input)),
            },
            Known::Lackey => Box::new(lackey::Lackey::new(Lines::new(input))),
            Known::Pin => {
                let Some(columns) = pin::Columns::of_text(input.peek(TEXT_HEAD)?) else {
                    return Err(input.corrupt(0, "no line of it has an access, such as 0x401000: R 0x7ffc00".into()));
                };
                Box::new(pin::Pin::new(Lines::new(input), columns))
            }
            // Told apart where the path is known.
            Known::Own => return Err(input.corrupt(0, "a trace inside an archive: unpack it".into())),
            Known::Addresses => Box::new(words::Addresses::new(input)),
            Known::Numpy => Box::new(words::Addresses::numpy(input)?),
        };
        Ok(Self::Imported(known, reader))
    }

    /// What it is.
    pub const fn known(&self) -> Known {
        match self {
            Self::Raw(_) => Known::Raw,
            Self::System(_) => Known::System,
            Self::Imported(known, _) => *known,
        }
    }

    /// What it says of itself, if it is a trace.
    pub fn about(&self) -> Option<&Metadata> {
        match self {
            Self::Raw(_) | Self::System(_) => None,
            Self::Imported(_, reader) => reader.about(),
        }
    }

    /// Counts its accesses.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn count(self) -> Result<u64, WorkloadError> {
        match self {
            Self::Raw(input) => raw::count(input),
            Self::System(input) => system::count(input),
            Self::Imported(_, reader) => import::count(reader),
        }
    }

    /// Reads it into `recorder`. Returns what a user has to know of it.
    ///
    /// # Errors
    /// When it cannot be read or is damaged, when the trace cannot be written, or what `progress`
    /// says.
    pub fn read<S: Sink>(
        self,
        recorder: &mut S,
        progress: &mut dyn FnMut(&mut S) -> Result<(), WorkloadError>,
    ) -> Result<Option<String>, WorkloadError> {
        match self {
            Self::Raw(input) => raw::read(input, recorder, progress),
            Self::System(input) => system::read(input, recorder, progress),
            Self::Imported(_, reader) => import::read(reader, recorder, progress),
        }
    }
}

/// Bytes of a text in which an access has to be.
const TEXT_HEAD: usize = 1 << 16;

/// What begins like this is something else, and what to do about it.
const OTHERS: [(&[u8], &str); 6] = [
    (b"NWPT", "this is a dump of page tables, not of accesses: nestwalk compare --tables NAME=FILE reads it"),
    (b"PAR1", "this is a Parquet file, which is read from a file by the command, nestwalk trace convert FILE OUT"),
    (
        b"BZh",
        "this is packed by bzip2: unpack it (bzip2 -dk FILE), or pipe it (bzip2 -dc FILE | nestwalk trace convert - OUT)",
    ),
    (b"7z\xbc\xaf\x27\x1c", "this is a 7z archive: unpack it and convert what is in it"),
    (b"\x7fELF", "this is a program, not a trace: nestwalk capture runs it and records its accesses"),
    (b"PERFILE2", "this is a file of perf, whose samples are no trace of every access: use nestwalk capture"),
];

/// What is known to be read, for messages.
const READ: &str = "captures of nestwalk, drmemtrace (DynamoRIO), ChampSim, valgrind lackey, Pin's pinatrace, u64 addresses, numpy \
                    arrays and Parquet columns are read, plain or packed by zstd, gzip, xz or lz4";

fn detect(input: &mut Input) -> Result<Known, WorkloadError> {
    // A pipe from a running program may not have more for a while.
    let found = match of_magic(input.peek(MAGIC_BYTES)?) {
        Ok(Some(known)) => Ok(known),
        Ok(None) => of_head(input.peek(champsim::HEAD.max(words::HEAD).max(TEXT_HEAD))?),
        Err(what) => Err(what),
    };
    found.map_err(|what| input.corrupt(0, what))
}

/// Bytes of the longest magic number.
const MAGIC_BYTES: usize = 8;

/// What a file that begins with the magic number `head` is, or why it is not read; `None` if it has
/// none that is known.
fn of_magic(head: &[u8]) -> Result<Option<Known>, String> {
    if head.is_empty() {
        return Err("the capture is empty: make it again".into());
    }
    if let Some((_, what)) = OTHERS.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err((*what).to_owned());
    }
    let known = [
        (&system::MAGIC[..], Known::System),
        (&raw::MAGIC.to_le_bytes()[..], Known::Raw),
        (words::NUMPY_MAGIC, Known::Numpy),
    ];
    Ok(known.into_iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, known)| known))
}

/// What a file without a magic number that begins with `head` is, or why that is not known.
fn of_head(head: &[u8]) -> Result<Known, String> {
    if drmemtrace::is_in(head) {
        return Ok(Known::Drmemtrace);
    }
    if is_text(head) {
        return of_text(&head[..head.len().min(TEXT_HEAD)]);
    }
    match champsim::fit(head) {
        champsim::Fit::Known(_) => Ok(Known::ChampSim),
        champsim::Fit::Unknown(bytes) if !words::fits(head) => Err(champsim::unknown_stride(bytes)),
        _ if words::fits(head) => Ok(Known::Addresses),
        _ => Err(format!(
            "this is no trace of a known format; {READ}; where the content does not tell, --from names the format"
        )),
    }
}

fn of_text(head: &[u8]) -> Result<Known, String> {
    if lackey::is_in(head) {
        return Ok(Known::Lackey);
    }
    if pin::Columns::of_text(head).is_some() {
        return Ok(Known::Pin);
    }
    let first = head.split(|&byte| byte == b'\n').next().unwrap_or(head);
    let first: String = String::from_utf8_lossy(first).chars().filter(|letter| !letter.is_control()).take(60).collect();
    Err(format!(
        "a text, of which no line is an access (line 1 is {first:?}); a line of lackey is \" L 1ffe8040,8\", one of Pin \
         \"0x401000: R 0x1ffe8040\", and addresses alone are read as little-endian u64 or numpy, not as text; {READ}"
    ))
}

/// Whether nearly all bytes of `head` are those of texts: a program's output between the lines may
/// be anything.
fn is_text(head: &[u8]) -> bool {
    let others = head.iter().filter(|&&byte| byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r') || byte >= 0x7f);
    others.count() <= head.len() / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again() {
        for known in Known::ALL {
            assert_eq!(known.name().parse(), Ok(known));
        }
        assert!("nothing".parse::<Known>().unwrap_err().contains("drmemtrace"));
    }

    #[test]
    fn what_is_no_trace_is_refused_with_a_remedy() {
        for (head, says) in [
            (&b""[..], "empty"),
            (b"NWPT0001", "compare --tables"),
            (b"\x7fELF\x02", "nestwalk capture"),
            (b"BZh9", "bzip2 -dk"),
            (b"hello\nworld\n", "line 1 is \"hello\""),
            (&[0xff; 64], "no trace of a known format"),
            (&[0; 4096], "no trace of a known format"),
        ] {
            let found = of_magic(head).and_then(|known| known.map_or_else(|| of_head(head), Ok));
            assert!(found.unwrap_err().contains(says), "{head:?}");
        }
    }
}
