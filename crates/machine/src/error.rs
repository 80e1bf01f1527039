// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors before or during a run: each is one line that names the place and the remedy.

use std::path::{Path, PathBuf};

use nestwalk_mmu::MmuError;
use nestwalk_os::OsError;
use nestwalk_workload::WorkloadError;

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A file cannot be read.
    #[error("{}: {}", path.display(), nestwalk_mem::reason(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A TOML file does not say what it should.
    #[error("{place}: {what}")]
    Config {
        /// File, line and column.
        place: String,
        /// What is wrong and what would be right.
        what: String,
    },
    /// A name that is in no catalogue.
    #[error("unknown {kind} '{}'{}; there {}", name.escape_debug(), suggestion(nearest), known(known_names))]
    Unknown {
        /// What sort of thing was looked for.
        kind: &'static str,
        /// The name that was given.
        name: String,
        /// The nearest one that exists.
        nearest: Option<String>,
        /// All that exist.
        known_names: Vec<String>,
    },
    /// A dump of page tables is not what it should be.
    #[error("{}: {what}", path.display())]
    Dump {
        /// The file.
        path: PathBuf,
        /// What is wrong and what would be right.
        what: String,
    },
    /// A saved memory is not what it should be.
    #[error("{}: {what}", path.display())]
    Saved {
        /// The file.
        path: PathBuf,
        /// What is wrong and what would be right.
        what: String,
    },
    /// The parts of a scenario do not fit together.
    #[error("{place}: {what}")]
    Scenario {
        /// Its file, with the line where one is to blame.
        place: String,
        /// What does not fit, and what would.
        what: String,
    },
    /// The simulated kernel refused or ran out of memory.
    #[error("{place}: {kernel} kernel: {source}")]
    Os {
        /// Its file, or which scenario.
        place: String,
        /// Which of its kernels.
        kernel: String,
        /// Why.
        source: OsError,
    },
    /// The machine's MMU cannot be built.
    #[error("machine {}: {source}", name.escape_debug())]
    Mmu {
        /// Which machine.
        name: String,
        /// Why.
        source: MmuError,
    },
    /// The workload cannot be read or made.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The caller asked the run to stop.
    #[error("interrupted after {accesses} accesses; nothing was written")]
    Interrupted {
        /// How far it got.
        accesses: u64,
    },
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(", did you mean '{name}'?")).unwrap_or_default()
}

fn known(names: &[String]) -> String {
    match names {
        [] => "are none".into(),
        [one] => format!("is only {one}"),
        many => format!("are {}", many.join(", ")),
    }
}

impl MachineError {
    /// That `name` is no `kind`, with the nearest of `names` as a suggestion.
    pub(crate) fn unknown(kind: &'static str, name: &str, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let known_names: Vec<String> = names.into_iter().map(Into::into).collect();
        Self::Unknown { kind, name: name.into(), nearest: nearest(name, &known_names), known_names }
    }

    /// The TOML reader's error about `text`, with file, line and column, and with the nearest key
    /// where one is unknown.
    pub(crate) fn toml(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let (line, column) =
            error.span().map_or((1, 1), |span| line_and_column(text, of_unknown(text, span.start, error.message())));
        let message = plain(&error.message().replace('\n', " "));
        let hint = unknown_key(&message).map(|nearest| format!("; did you mean `{nearest}`?")).unwrap_or_default();
        Self::Config { place: format!("{}:{line}:{column}", path.display()), what: format!("{message}{hint}") }
    }
}

pub(crate) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..offset.min(text.len())];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Where the unknown key of `message` is. Of a table that says its kind by a key, the reader names
/// the beginning of the table, `start`.
fn of_unknown(text: &str, start: usize, message: &str) -> usize {
    let Some(((key, _), rest)) =
        message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')).zip(text.get(start..))
    else {
        return start;
    };
    let mut offset = start;
    for (number, line) in rest.split_inclusive('\n').enumerate() {
        if number > 0 && line.trim_start().starts_with('[') {
            break;
        }
        let said = line.split('#').next().unwrap_or_default();
        let is_key = |&(at, _): &(usize, &str)| {
            let of_a_word = |letter: char| letter.is_alphanumeric() || "_-.\"'".contains(letter);
            !said[..at].ends_with(of_a_word) && said[at + key.len()..].trim_start().starts_with('=')
        };
        if let Some((at, _)) = said.match_indices(key).find(is_key) {
            return offset + at;
        }
        offset += line.len();
    }
    start
}

/// What the TOML reader says, in the words of the file and not of the program that reads it.
fn plain(message: &str) -> String {
    if message.contains("wanted exactly 1 element") {
        return "this table names what it is by its one key, and has another number of keys: keep one".into();
    }
    if message.contains("recursion limit") || message.contains("max recursion depth") {
        return "tables and arrays are nested too deeply: take some levels out".into();
    }
    let sorts = [
        ("u64", "a whole number from 0"),
        ("u32", "a whole number from 0 to 4294967295"),
        ("u16", "a whole number from 0 to 65535"),
        ("u8", "a whole number from 0 to 255"),
        ("usize", "a whole number from 0"),
        ("f64", "a number"),
        ("a boolean", "true or false"),
        ("a map", "a table"),
        ("a sequence", "an array"),
        ("variant identifier", "a name"),
    ];
    let message = sorts
        .iter()
        .find_map(|(sort, words)| {
            let (before, after) = message.rsplit_once("expected ")?;
            (after == *sort).then(|| format!("{before}expected {words}"))
        })
        .unwrap_or_else(|| message.to_owned());
    let tagged = "expected internally tagged enum ";
    if let Some((before, _)) = message.rsplit_once(tagged) {
        return format!("{before}expected a table such as {{ kind = \"...\" }}");
    }
    message.rsplit_once("expected struct ").map_or(message.clone(), |(before, _)| format!("{before}expected a table"))
}

/// From serde's "unknown field `x`, expected one of `a`, `b`": the expected name nearest to the
/// unknown one.
fn unknown_key(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field ").or_else(|| message.strip_prefix("unknown variant "))?;
    let mut names = rest.split('`').skip(1).step_by(2).map(str::to_owned);
    let unknown = names.next()?;
    nearest(&unknown, &names.collect::<Vec<_>>())
}

/// The name with the fewest typing errors between it and `name`, if they are few: one, and one more
/// for every four letters.
fn nearest(name: &str, names: &[String]) -> Option<String> {
    let slips = |other: &&String| strsim::damerau_levenshtein(name, other);
    names.iter().min_by_key(slips).filter(|other| slips(other) <= 1 + name.chars().count() / 4).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_gets_the_nearest_one() {
        let error = MachineError::unknown("machine", "brodwell-asap", ["zen4", "broadwell-asap"]);
        assert_eq!(
            error.to_string(),
            "unknown machine 'brodwell-asap', did you mean 'broadwell-asap'?; there are zen4, broadwell-asap"
        );
        assert_eq!(nearest("qqq", &["zen4".into()]), None);
    }

    #[test]
    fn serde_messages_yield_the_nearest_key() {
        assert_eq!(
            unknown_key("unknown field `manger`, expected one of `memory`, `manager`"),
            Some("manager".to_owned())
        );
        assert_eq!(unknown_key("missing field `name`"), None);
    }

    #[test]
    fn an_unknown_key_of_a_table_has_its_own_place() {
        let text = "[a]\nkind = 'x'\nfootprnt = 1 # or footprnt =\n[b]\nsize = 2\n";
        let at = |key: &str| line_and_column(text, of_unknown(text, 1, &format!("unknown field `{key}`, expected")));
        assert_eq!(at("footprnt"), (3, 1));
        assert_eq!(at("print"), (1, 2));
        assert_eq!(at("size"), (1, 2), "another table's");
        let inline = "a = { kind = 'x', footprnt = 1 }";
        assert_eq!(of_unknown(inline, 4, "unknown field `footprnt`"), 18);
        assert_eq!(of_unknown(inline, 4, "missing field `size`"), 4);
    }

    #[test]
    fn messages_are_in_the_words_of_the_file() {
        #[derive(serde::Deserialize, Debug)]
        #[serde(rename_all = "snake_case")]
        enum One {
            Trace(#[expect(dead_code)] String),
            Preset(#[expect(dead_code)] String),
        }
        #[derive(serde::Deserialize, Debug)]
        struct Holder {
            #[expect(dead_code)]
            workload: Option<One>,
            #[expect(dead_code)]
            count: Option<u16>,
        }
        let said = |text: &str| plain(toml::from_str::<Holder>(text).unwrap_err().message());
        assert!(said("workload = { trace = 'a', preset = 'b' }").contains("keep one"));
        assert!(said("count = 'x'").ends_with("expected a whole number from 0 to 65535"));
        assert!(said(&format!("x = {}{}", "[".repeat(500), "]".repeat(500))).contains("nested too deeply"));
    }

    #[test]
    fn places_count_from_one() {
        assert_eq!(line_and_column("a\nbc", 3), (2, 2));
        assert_eq!(line_and_column("", 9), (1, 1));
    }
}
