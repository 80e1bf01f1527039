// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine file by itself: checked without a run, and split into keys, values and the comments
//! beside them, which give the values' sources.

use std::path::Path;

use serde::Serialize;
use toml_edit::{Item, Table, Value};

use crate::catalog::Shelf;
use crate::configuration::Configuration;
use crate::error::MachineError;
use crate::scenario::MachineConfig;

/// A key of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Line {
    /// Where it is: `mmu.l1d.ways`; entries of lists are numbered from 0: `mmu.l2_tlb.1.ways`.
    pub key: String,
    /// Its value, as the file writes it.
    pub value: String,
    /// The comment behind it, or behind the table that it is in.
    pub comment: String,
}

/// Checks the machine called `name`, or the file `name` (relative to `base`), as a run on it would.
///
/// # Errors
/// What is wrong with it, and where.
pub fn check(name: &str, base: &Path) -> Result<MachineConfig, MachineError> {
    let machine: MachineConfig = Shelf::Machines.load(name, base)?;
    // The checks of a run, on the smallest scenario for this machine, so that they exist once.
    let mut scenario = toml::Table::new();
    scenario.insert("schema".into(), 1.into());
    scenario.insert("name".into(), "check".into());
    scenario.insert("machine".into(), name.into());
    scenario.insert("workload".into(), toml::Table::from_iter([("trace".to_owned(), "redis".into())]).into());
    scenario.insert("kernels".into(), toml::Value::Array(vec![toml::Table::new().into()]));
    let configuration = Configuration::parse(&scenario.to_string(), &base.join("check.toml"))?;
    let failed = |source| MachineError::Mmu { name: name.to_owned(), source };
    configuration.machine.mmu.validate().map_err(failed)?;
    Ok(machine)
}

/// The keys of the TOML `text`, of the file `path`, in the order in which the file has them.
///
/// # Errors
/// When it is no TOML.
pub fn lines(text: &str, path: &Path) -> Result<Vec<Line>, MachineError> {
    let document: toml_edit::Document<String> = toml_edit::Document::parse(text.to_owned()).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        MachineError::Config { place: format!("{}:{line}", path.display()), what: error.message().replace('\n', " ") }
    })?;
    let mut lines = Vec::new();
    table(document.as_table(), "", text, &mut lines);
    Ok(lines)
}

fn table(table: &Table, prefix: &str, text: &str, lines: &mut Vec<Line>) {
    for (key, item) in table {
        let key = joined(prefix, key);
        match item {
            Item::None => {}
            Item::Value(found) => {
                let comment = found.decor().suffix().and_then(|suffix| Some(&text[suffix.span()?])).map(comment_of);
                value(found, &key, comment.unwrap_or_default(), text, lines);
            }
            Item::Table(inner) => self::table(inner, &key, text, lines),
            Item::ArrayOfTables(inner) => {
                for (number, one) in inner.iter().enumerate() {
                    self::table(one, &joined(&key, &number.to_string()), text, lines);
                }
            }
        }
    }
}

fn value(found: &Value, key: &str, comment: &str, text: &str, lines: &mut Vec<Line>) {
    if let Value::InlineTable(inner) = found {
        for (name, one) in inner {
            value(one, &joined(key, name), comment, text, lines);
        }
        return;
    }
    let written = found.span().map(|span| text[span].to_owned()).unwrap_or_default();
    lines.push(Line { key: key.to_owned(), value: written, comment: comment.to_owned() });
}

fn joined(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
}

fn comment_of(suffix: &str) -> &str {
    suffix.trim().trim_start_matches('#').trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_with_their_values_and_comments() {
        let text =
            "a = 1 # one\n[b]\nc = \"x\"\nd = { e = 2, f = [\"y\", \"z\"] } # both\n[[g]]\nh = 3#three\n[[g]]\nh = 4\n";
        let found = lines(text, Path::new("x.toml")).unwrap();
        let found: Vec<_> = found.iter().map(|l| (l.key.as_str(), l.value.as_str(), l.comment.as_str())).collect();
        assert_eq!(
            found,
            [
                ("a", "1", "one"),
                ("b.c", "\"x\"", ""),
                ("b.d.e", "2", "both"),
                ("b.d.f", "[\"y\", \"z\"]", "both"),
                ("g.0.h", "3", "three"),
                ("g.1.h", "4", "")
            ]
        );
    }

    #[test]
    fn bundled_machines_are_machines_and_every_number_has_a_source() {
        for entry in Shelf::Machines.entries() {
            check(&entry.name, Path::new("")).unwrap_or_else(|error| panic!("{error}"));
            let (path, text) = Shelf::Machines.text(&entry.name, Path::new("")).unwrap();
            for line in lines(&text, &path).unwrap() {
                // The three of [timing] share the key `source`.
                let is_number = line.value.parse::<u64>().is_ok() && line.key != "schema";
                assert!(
                    !is_number || !line.comment.is_empty() || line.key.starts_with("timing."),
                    "{}: {} has no source",
                    entry.name,
                    line.key
                );
            }
        }
    }

    #[test]
    fn a_machine_that_cannot_be_is_refused() {
        let (_, text) = Shelf::Machines.text("zen4", Path::new("")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for (from, to, expected) in [
            ("ways = 72 ", "ways = 71 ", "71"),
            ("frequency_mhz", "frequency_ghz", "did you mean `frequency_mhz`?"),
            ("schema = 1", "schema = 2", "schema 2"),
        ] {
            std::fs::write(folder.path().join("odd.toml"), text.replacen(from, to, 1)).unwrap();
            let error = check("odd.toml", folder.path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
