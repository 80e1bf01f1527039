// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files of a crate use which, read from its sources. Shared by the crates that hold their
//! files to an order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The files of the crate, without tests, by module path (`kernel::fault`), each with the module
/// paths that it names.
pub struct Sources(pub BTreeMap<String, BTreeSet<String>>);

impl Sources {
    /// Reads them.
    pub fn read() -> Self {
        let mut texts = BTreeMap::new();
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut texts);
        texts.remove("lib");
        let uses = texts.iter().map(|(module, text)| (module.clone(), uses(module, text, &texts))).collect();
        Self(uses)
    }

    /// Files that use each other in a circle, and those above them.
    pub fn in_circles(self) -> BTreeMap<String, BTreeSet<String>> {
        let Self(mut left) = self;
        loop {
            let known: BTreeSet<String> = left.keys().cloned().collect();
            let free: Vec<String> =
                left.iter().filter(|(_, uses)| uses.is_disjoint(&known)).map(|(module, _)| module.clone()).collect();
            if free.is_empty() {
                return left;
            }
            free.iter().for_each(|module| drop(left.remove(module)));
        }
    }
}

fn collect(folder: &Path, module: &str, texts: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
        let inner = if module.is_empty() { name.clone() } else { format!("{module}::{name}") };
        if path.is_dir() {
            collect(&path, &inner, texts);
        } else if name != "tests" {
            let module = if name == "mod" { module.to_owned() } else { inner };
            texts.insert(module, fs::read_to_string(&path).expect("a source"));
        }
    }
}

/// The modules that `text`, the code of `module`, names. Re-exports are uses; comments, tests and
/// declarations of modules are not.
fn uses(module: &str, text: &str, all: &BTreeMap<String, String>) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
    let is_folder = all.keys().any(|other| other.starts_with(&format!("{module}::")));
    let mut found = BTreeSet::new();
    for (prefix, base) in [("crate::", ""), ("super::", parent), ("self::", if is_folder { module } else { parent })] {
        for (at, _) in code.match_indices(prefix) {
            // A longer path that ends like this one (`super::super::`, `nestwalk_crate::`).
            if code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':') {
                continue;
            }
            let (mut base, mut rest) = (base, &code[at + prefix.len()..]);
            while let Some(after) = rest.strip_prefix("super::") {
                (base, rest) = (base.rsplit_once("::").map_or("", |(parent, _)| parent), after);
            }
            for path in paths(rest) {
                let path = if base.is_empty() { path } else { format!("{base}::{path}") };
                found.extend(file_of(&path, all).filter(|file| file != module));
            }
        }
    }
    found
}

/// The paths at the start of `text`: one, or those of a list in braces.
fn paths(text: &str) -> Vec<String> {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(text.len());
    let head = text[..end].trim_end_matches(':').to_owned();
    if !text[end..].starts_with('{') {
        return vec![head];
    }
    let list = text[end + 1..].split('}').next().unwrap_or_default();
    list.split(',')
        .map(|name| format!("{head}::{}", name.trim()))
        .map(|path| path.trim_matches(':').to_owned())
        .collect()
}

/// The file that holds what `path` names: that of the longest path of a module which it begins
/// with.
fn file_of(path: &str, all: &BTreeMap<String, String>) -> Option<String> {
    let mut path = path;
    loop {
        if all.contains_key(path) {
            return Some(path.to_owned());
        }
        path = path.rsplit_once("::")?.0;
    }
}
