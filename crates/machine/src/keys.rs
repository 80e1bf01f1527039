// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keys of each sort of file, as JSON Schema: generated from the types that read the files,
//! with their doc comments as descriptions.
//!
//! Ranges and units come from [`ranges`](crate::ranges), which also checks them: `minimum`,
//! `maximum`, `x-unit`, and `x-upper`: whether the upper end is a limit or an assumption.

use nestwalk_mem::keys::Key;
use nestwalk_mem::size;
use nestwalk_os::OsCounters;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use crate::ranges::File;
use crate::scenario::{MachineConfig, Scenario};
use crate::timing::{Costs, VM_EXIT};

/// A sort of file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// Hardware: `machines/*.toml`.
    Machine,
    /// A run.
    Scenario,
    /// What kernel work costs: `costs/*.toml`.
    Costs,
}

impl FileKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Machine, Self::Scenario, Self::Costs];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Scenario => "scenario",
            Self::Costs => "costs",
        }
    }

    /// The sort called `name`.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its JSON Schema (draft 2020-12), with the range and the unit of each number.
    pub fn schema(self) -> Value {
        let mut schema = match self {
            Self::Machine => of::<MachineConfig>(),
            Self::Scenario => of::<Scenario>(),
            Self::Costs => of::<Costs>(),
        }
        .to_value();
        if self == Self::Costs {
            let events: Vec<&str> = OsCounters::NAMES.iter().copied().chain([VM_EXIT]).collect();
            schema["properties"]["events"]["propertyNames"] = json!({ "enum": events });
        }
        schema["properties"]["schema"]["const"] = 1.into();
        without_nulls(&mut schema);
        let missed = self.add_ranges(&mut schema);
        debug_assert!(missed.is_empty(), "{missed:?}");
        schema
    }

    const fn file(self) -> File {
        match self {
            Self::Machine => File::Machine,
            Self::Scenario => File::Scenario,
            Self::Costs => File::Costs,
        }
    }

    /// Gives each number its range and its unit; returns the paths that lead to no number.
    fn add_ranges(self, schema: &mut Value) -> Vec<&'static str> {
        let mut missed = Vec::new();
        for key in self.file().keys() {
            // A preset's changes are keys of its generator, which the schema of a scenario cannot
            // know.
            let of_any_generator = key.path.contains("workload.preset.");
            let found = places(schema, &key);
            if found.is_empty() && !of_any_generator {
                missed.push(key.path);
            }
            for pointer in found {
                if let Some(Value::Object(place)) = schema.pointer_mut(&pointer) {
                    let (least, most) = match key.unit {
                        "bytes" => (0.into(), Value::Null), // may be a text
                        _ => (key.least.into(), key.most.into()),
                    };
                    place.insert("minimum".into(), least);
                    place.insert("maximum".into(), most);
                    if place["maximum"].is_null() {
                        place.remove("maximum");
                        let ends = [size::format(key.least), size::format(key.most)];
                        place.insert("x-range".into(), json!(ends));
                    }
                    place.insert("x-unit".into(), key.unit.into());
                    place.insert("x-upper".into(), key.upper.to_string().into());
                }
            }
        }
        missed
    }
}

fn of<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>()
}

/// TOML has no null: what may be left out has no default that a file could write.
fn without_nulls(schema: &mut Value) {
    match schema {
        Value::Object(table) => {
            table.retain(|key, value| key != "default" || !value.is_null());
            table.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// JSON pointers to all that `key` may mean in `schema`.
fn places(schema: &Value, key: &Key) -> Vec<String> {
    let names: Vec<&str> = key.path.split('.').collect();
    let mut found = Vec::new();
    descend(schema, String::new(), &names, &mut found);
    found.sort_unstable();
    found.dedup();
    found
}

/// Goes from the schema at `pointer` to those of the property that `names` leads to.
fn descend(schema: &Value, pointer: String, names: &[&str], found: &mut Vec<String>) {
    let Some(here) = schema.pointer(&pointer) else { return };
    if let Some(target) = here["$ref"].as_str().and_then(|target| target.strip_prefix('#')) {
        descend(schema, target.to_owned(), names, found);
    }
    for list in ["oneOf", "anyOf", "allOf"] {
        for (number, _) in here[list].as_array().into_iter().flatten().enumerate() {
            descend(schema, format!("{pointer}/{list}/{number}"), names, found);
        }
    }
    let [name, rest @ ..] = names else {
        if is_number(here) {
            found.push(pointer);
        }
        return;
    };
    let (name, is_array) = name.strip_suffix("[]").map_or((*name, false), |name| (name, true));
    let item = if is_array { "/items" } else { "" };
    for (property, _) in here["properties"].as_object().into_iter().flatten() {
        if property == name || name == "*" {
            descend(schema, format!("{pointer}/properties/{property}{item}"), rest, found);
        }
    }
    if name == "*" && here["additionalProperties"].is_object() {
        descend(schema, format!("{pointer}/additionalProperties"), rest, found);
    }
}

fn is_number(schema: &Value) -> bool {
    let numeric = |value: &Value| matches!(value.as_str(), Some("integer" | "number"));
    match &schema["type"] {
        Value::Array(names) => names.iter().any(numeric),
        name => numeric(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_leads_to_a_key() {
        for kind in FileKind::ALL {
            let missed = kind.add_ranges(&mut kind.schema());
            assert!(missed.is_empty(), "{kind:?}: {missed:?}");
        }
    }

    /// A key that two ranges reach through a type that they share must have one range.
    #[test]
    fn no_key_has_two_ranges() {
        for kind in FileKind::ALL {
            let schema = kind.schema();
            let mut known: std::collections::BTreeMap<String, Key> = std::collections::BTreeMap::new();
            for key in kind.file().keys() {
                for pointer in places(&schema, &key) {
                    let other = *known.entry(pointer).or_insert(key);
                    let (one, two) =
                        [key, other].map(|key| (key.least, key.most, key.unit, key.upper.to_string())).into();
                    assert_eq!(one, two, "{} and {}", key.path, other.path);
                }
            }
        }
    }

    #[test]
    fn every_number_has_a_range_and_every_key_a_text() {
        fn look(value: &Value, at: &str, wrong: &mut Vec<String>) {
            for (key, property) in value["properties"].as_object().into_iter().flatten() {
                let at = format!("{at}.{key}");
                let number = if property["type"] == "array" { &property["items"] } else { property };
                if is_number(number) && number["x-unit"].is_null() && key != "schema" {
                    wrong.push(format!("{at}: no range"));
                }
                let texts = [&property["description"], &property["const"], &value["description"]];
                if texts.iter().all(|text| text.is_null()) {
                    wrong.push(format!("{at}: no text"));
                }
            }
            match value {
                Value::Object(table) => {
                    table.iter().for_each(|(key, value)| look(value, &format!("{at}/{key}"), wrong))
                }
                Value::Array(items) => items.iter().for_each(|value| look(value, at, wrong)),
                _ => {}
            }
        }
        let mut wrong = Vec::new();
        for kind in FileKind::ALL {
            look(&kind.schema(), kind.name(), &mut wrong);
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
