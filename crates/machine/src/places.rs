// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines of a TOML file and the paths of its keys, each from the other.
//!
//! A scenario that is made from parts of another file (a configuration of a matrix, a file changed
//! by `--seed`) has lines that no user wrote. From such a line, the path of the key in a message
//! leads to the user's own line.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{MachineError, line_and_column};

/// A line and a column of a text, both from 1.
pub type Position = (usize, usize);

/// A key's name, or the number of an array's element as decimal text, for each level.
pub type KeyPath = Vec<String>;

/// Says where `text`, the file `path`, is no TOML, if it is none.
///
/// # Errors
/// The first place that cannot be read, with file, line and column.
pub fn check_syntax(path: &Path, text: &str) -> Result<(), MachineError> {
    DeTable::parse(text).map(|_| ()).map_err(|error| MachineError::toml(path, text, &error))
}

/// The position of the value at `path` of `text`, or with `of_key` of its key; of the deepest part
/// of the path that exists. `None` if not even the first part does, or `text` is no TOML.
pub fn position(text: &str, path: &[String], of_key: bool) -> Option<Position> {
    let document = DeTable::parse(text).ok()?;
    let mut found: Option<Range<usize>> = None;
    let (mut names, mut table) = (path.iter().peekable(), document.get_ref());
    'tables: while let Some(name) = names.next() {
        let Some((key, mut value)) = table.iter().find(|(key, _)| key.get_ref() == name) else { break };
        found = Some(if of_key && names.peek().is_none() { key.span() } else { value.span() });
        while let DeValue::Array(items) = value.get_ref() {
            let Some(item) = names.next().and_then(|number| items.get(number.parse::<usize>().ok()?)) else {
                break 'tables;
            };
            found = Some(item.span());
            value = item;
        }
        let DeValue::Table(inner) = value.get_ref() else { break };
        table = inner;
    }
    found.map(|span| line_and_column(text, span.start))
}

/// The path of the innermost key or value of `text` at a position; empty where there is none.
pub fn path_at(text: &str, position: Position) -> KeyPath {
    let Ok(document) = DeTable::parse(text) else { return KeyPath::new() };
    let mut best = KeyPath::new();
    let mut here = KeyPath::new();
    visit_table(document.get_ref(), &mut here, &mut |span, path| {
        let is_here = line_and_column(text, span.start) <= position && position <= line_and_column(text, span.end);
        if is_here && path.len() > best.len() {
            best = path.to_vec();
        }
    });
    best
}

type Visitor<'a> = dyn FnMut(Range<usize>, &[String]) + 'a;

fn visit_table(table: &DeTable<'_>, here: &mut KeyPath, visit: &mut Visitor<'_>) {
    for (key, value) in table {
        here.push(key.get_ref().to_string());
        visit(key.span(), here);
        visit_value(value, here, visit);
        here.pop();
    }
}

fn visit_value(value: &Spanned<DeValue<'_>>, here: &mut KeyPath, visit: &mut Visitor<'_>) {
    visit(value.span(), here);
    match value.get_ref() {
        DeValue::Table(table) => visit_table(table, here, visit),
        DeValue::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                here.push(number.to_string());
                visit_value(item, here, visit);
                here.pop();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "schema = 1\n\n[[configuration]]\nname = 'a'\n[[configuration]]\nname = 'b'\n\
                        [[configuration.scenario.kernels]]\nmanager = { kind = 'thp', enabled = 'no' }\n";

    fn path(words: &str) -> KeyPath {
        words.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn a_path_leads_to_its_line() {
        assert_eq!(position(TEXT, &path("schema"), false), Some((1, 10)));
        assert_eq!(position(TEXT, &path("schema"), true), Some((1, 1)));
        assert_eq!(position(TEXT, &path("configuration.1"), false).map(|at| at.0), Some(5));
        assert_eq!(position(TEXT, &path("configuration.1.name"), true), Some((6, 1)));
        let manager = "configuration.1.scenario.kernels.0.manager";
        assert_eq!(position(TEXT, &path(&format!("{manager}.enabled")), false), Some((8, 37)));
        // Of what is not there, the deepest part that is.
        assert_eq!(position(TEXT, &path(&format!("{manager}.defrag")), false), Some((8, 11)));
        assert_eq!(position(TEXT, &path("configuration.7.name"), false).map(|at| at.0), Some(3));
        assert_eq!(position(TEXT, &path("nothing"), false), None);
        assert_eq!(position("schema =", &path("schema"), false), None);
    }

    #[test]
    fn a_line_leads_to_its_path() {
        let manager = "configuration.1.scenario.kernels.0.manager";
        assert_eq!(path_at(TEXT, (1, 10)), path("schema"));
        assert_eq!(path_at(TEXT, (8, 37)), path(&format!("{manager}.enabled")));
        assert_eq!(path_at(TEXT, (8, 11)), path(manager));
        assert_eq!(path_at(TEXT, (7, 1)), path("configuration.1.scenario.kernels.0"));
        assert_eq!(path_at(TEXT, (2, 1)), KeyPath::new());
        assert_eq!(path_at("schema =", (1, 1)), KeyPath::new());
    }

    #[test]
    fn keys_of_the_bundled_matrices_are_found_again_at_their_own_places() {
        for file in ["standard", "everything"] {
            let text = std::fs::read_to_string(format!("../../python/nestwalk/matrices/{file}.toml")).unwrap();
            let document = DeTable::parse(&text).unwrap();
            let mut paths = Vec::new();
            visit_table(document.get_ref(), &mut KeyPath::new(), &mut |_, path| paths.push(path.to_vec()));
            for path in paths.into_iter().step_by(29) {
                let at = position(&text, &path, true).unwrap();
                let found = path_at(&text, at);
                assert!(found.starts_with(&path) || path.starts_with(&found), "{path:?} at {at:?} is {found:?}");
            }
        }
    }
}
