// SPDX-License-Identifier: MIT OR Apache-2.0
//! The floors of this crate: a module uses what lies on lower floors only, and no files use each
//! other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// From the ground up. A folder is one module here.
const FLOORS: &[&[&str]] = &[
    &["counters", "id", "keys", "fragmentation"],
    &["alignment", "error"],
    &["below", "state"],
    &["context"],
    &["manager", "tables"],
    &["config"],
    &["kernel"],
    &["op", "shadow"],
];

/// The files of the crate, without tests, by module path (`kernel::fault`), each with the module
/// paths that it names.
struct Sources(BTreeMap<String, BTreeSet<String>>);

impl Sources {
    fn read() -> Self {
        let mut texts = BTreeMap::new();
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut texts);
        texts.remove("lib");
        let uses = texts.iter().map(|(module, text)| (module.clone(), uses(module, text, &texts))).collect();
        Self(uses)
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
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
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
            for path in paths(&code[at + prefix.len()..]) {
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

fn floor(module: &str) -> usize {
    let top = module.split("::").next().unwrap_or(module);
    let at = FLOORS.iter().position(|floor| floor.contains(&top));
    at.unwrap_or_else(|| panic!("{module} is on no floor: name it in FLOORS"))
}

#[test]
fn a_module_uses_lower_floors_only() {
    let mut arrows = 0;
    for (module, uses) in &Sources::read().0 {
        for used in uses {
            let within = module.split("::").next() == used.split("::").next();
            assert!(within || floor(used) < floor(module), "{module} uses {used}, which is not below it");
            arrows += usize::from(!within);
        }
    }
    assert!(arrows > 100, "only {arrows} uses were found: this test does not see them any more");
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let Sources(mut left) = Sources::read();
    loop {
        let known: BTreeSet<String> = left.keys().cloned().collect();
        let free: Vec<String> =
            left.iter().filter(|(_, uses)| uses.is_disjoint(&known)).map(|(module, _)| module.clone()).collect();
        if free.is_empty() {
            break;
        }
        free.iter().for_each(|module| drop(left.remove(module)));
    }
    assert!(left.is_empty(), "in circles, or above one: {left:#?}");
}
