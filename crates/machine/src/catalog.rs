// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Nestwalk includes, by name: machines, costs and scenarios (files that are compiled in), and
//! managers and workloads.
//!
//! Where a name is expected, a path that ends in `.toml` (or, for a trace, names an existing file)
//! works as well.

use std::io::ErrorKind;
use std::path::Path;

use include_dir::{Dir, include_dir};
use nestwalk_os::ManagerConfig;
use nestwalk_workload::GeneratorConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::MachineError;
use crate::ranges::File;
use crate::traces::bundled_traces;

static MACHINES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../machines");
static COSTS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../costs");
static SCENARIOS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../scenarios");
static PRESETS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../scenarios/workloads");

/// A name and what it stands for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Entry {
    /// The name to give.
    pub name: String,
    /// One line about it.
    pub description: String,
}

/// A sort of file that comes with Nestwalk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shelf {
    /// Hardware.
    Machines,
    /// What kernel work costs.
    Costs,
    /// Complete runs.
    Scenarios,
    /// Programs: generators with their parameters.
    Presets,
}

impl Shelf {
    fn dir(self) -> &'static Dir<'static> {
        match self {
            Self::Machines => &MACHINES,
            Self::Costs => &COSTS,
            Self::Scenarios => &SCENARIOS,
            Self::Presets => &PRESETS,
        }
    }

    fn file(self) -> File {
        match self {
            Self::Machines => File::Machine,
            Self::Costs => File::Costs,
            Self::Scenarios => File::Scenario,
            Self::Presets => File::Preset,
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Machines => "machine",
            Self::Costs => "cost table",
            Self::Scenarios => "scenario",
            Self::Presets => "preset",
        }
    }

    /// The files, with their texts, in order of name.
    fn files(self) -> Vec<(String, &'static str)> {
        let mut files: Vec<_> = self
            .dir()
            .files()
            .filter(|file| file.path().extension().is_some_and(|extension| extension == "toml"))
            .filter_map(|file| {
                let stem = file.path().file_stem()?.to_str()?;
                Some((stem.to_owned(), file.contents_utf8()?))
            })
            .collect();
        files.sort_unstable();
        files
    }

    /// What there is.
    pub fn entries(self) -> Vec<Entry> {
        self.files()
            .into_iter()
            .map(|(name, text)| {
                let table: toml::Table = text.parse().unwrap_or_default();
                let description = table.get("description").and_then(|d| d.as_str()).unwrap_or_default().to_owned();
                Entry { name, description }
            })
            .collect()
    }

    /// The text of the bundled file `name`, or of the file at that path (relative to `base`) if it
    /// ends in `.toml`; and its name in messages.
    ///
    /// # Errors
    /// When there is no such name or the file cannot be read.
    pub fn text(self, name: &str, base: &Path) -> Result<(std::path::PathBuf, String), MachineError> {
        if Path::new(name).extension().is_some_and(|extension| extension == "toml") {
            let path = base.join(name);
            let text = read_text(&path)?;
            return Ok((path, text));
        }
        let files = self.files();
        match files.iter().find(|(file, _)| file == name) {
            Some((_, text)) => Ok((format!("{name}.toml").into(), (*text).to_owned())),
            None => Err(match std::fs::metadata(base.join(name)) {
                Ok(found) => MachineError::Config {
                    place: base.join(name).display().to_string(),
                    what: if found.is_dir() {
                        format!("is a directory; name a {} file in it, which ends in .toml", self.kind())
                    } else {
                        format!("the name of a {} file ends in .toml; rename it", self.kind())
                    },
                },
                Err(_) => MachineError::unknown(self.kind(), name, files.into_iter().map(|(name, _)| name)),
            }),
        }
    }

    /// What the file behind `name` says.
    ///
    /// # Errors
    /// When there is no such name, or the file is not what it should be.
    pub fn load<T: DeserializeOwned>(self, name: &str, base: &Path) -> Result<T, MachineError> {
        let (path, text) = self.text(name, base)?;
        self.file().check(&path, &text)?;
        toml::from_str(&text).map_err(|error| MachineError::toml(&path, &text, &error))
    }
}

/// The text of a file.
fn read_text(path: &Path) -> Result<String, MachineError> {
    let refused = |what: String| MachineError::Config { place: path.display().to_string(), what };
    let bytes = std::fs::read(path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => refused("No such file; check its name".into()),
        ErrorKind::IsADirectory => refused("is a directory; name a file in it".into()),
        _ => MachineError::Io { path: path.to_owned(), source },
    })?;
    String::from_utf8(bytes).map_err(|error| {
        refused(format!("byte {}: is no UTF-8 text; save it as UTF-8", error.utf8_error().valid_up_to()))
    })
}

/// All that there is, by kind.
#[derive(Clone, Debug, Serialize)]
pub struct Catalog {
    /// Hardware.
    pub machines: Vec<Entry>,
    /// What kernel work costs.
    pub costs: Vec<Entry>,
    /// Memory managers.
    pub managers: Vec<Entry>,
    /// Bundled traces, presets and generators.
    pub workloads: Vec<Entry>,
    /// Complete runs.
    pub scenarios: Vec<Entry>,
}

/// What there is; bundled traces lie in the folder `traces`.
pub fn all(traces: &Path) -> Catalog {
    let managers = ManagerConfig::all().into_iter().map(|config| {
        let facts = config.build().facts();
        Entry { name: facts.name.into(), description: facts.source.into() }
    });
    let bundled = bundled_traces(traces).into_iter().map(|name| {
        let description = match nestwalk_workload::trace::info(&traces.join(&name).with_extension("nwt")) {
            Ok(info) => format!("trace: {} accesses, {} MiB touched", info.accesses, info.footprint_bytes >> 20),
            Err(error) => error.to_string(),
        };
        Entry { name, description }
    });
    let generators = GeneratorConfig::KINDS
        .iter()
        .map(|(name, description)| Entry { name: (*name).into(), description: format!("generator: {description}") });
    let presets = Shelf::Presets
        .entries()
        .into_iter()
        .map(|Entry { name, description }| Entry { name, description: format!("preset: {description}") });
    Catalog {
        machines: Shelf::Machines.entries(),
        costs: Shelf::Costs.entries(),
        managers: managers.collect(),
        workloads: bundled.chain(presets).chain(generators).collect(),
        scenarios: Shelf::Scenarios.entries(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_machine_is_refused_with_the_nearest() {
        let error = Shelf::Machines.text("broadwell-asp", Path::new(".")).unwrap_err().to_string();
        assert!(error.contains("did you mean 'broadwell-asap'?"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_machine_file_is_refused_as_what_it_is() {
        let folder = std::env::temp_dir().join(format!("nestwalk-catalog-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("folder.toml")).unwrap();
        std::fs::write(folder.join("mine.txt"), "schema = 1").unwrap();
        std::fs::write(folder.join("latin.toml"), b"a = \"\xff\"").unwrap();
        let said = |name: &str| Shelf::Machines.text(name, &folder).unwrap_err().to_string();
        assert!(said("mine.txt").ends_with("mine.txt: the name of a machine file ends in .toml; rename it"));
        assert!(said("latin.toml").ends_with("latin.toml: byte 5: is no UTF-8 text; save it as UTF-8"));
        assert!(said("folder.toml").ends_with("folder.toml: is a directory; name a file in it"));
        assert!(said("none.toml").ends_with("none.toml: No such file; check its name"));
        assert!(said("none").starts_with("unknown machine 'none'"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_file_has_a_description() {
        for shelf in [Shelf::Machines, Shelf::Costs, Shelf::Scenarios, Shelf::Presets] {
            for entry in shelf.entries() {
                assert!(!entry.description.is_empty(), "{shelf:?}: {}", entry.name);
            }
        }
    }
}
