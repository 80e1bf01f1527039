// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keys of each sort of file, as JSON Schema: generated from the types that read the files, whose doc comments are the texts.
//!
//! Beside JSON Schema's own words, `x-unit` names a number's unit. Where a field does not, it follows from the key's last word,
//! as units stand last in names here (`latency_cycles`, `scan_sleep_ms`).

use nestwalk_os::OsCounters;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

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

    /// Its JSON Schema (draft 2020-12), with a unit for each number that has one.
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
        add_units(&mut schema);
        schema
    }
}

fn of<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>()
}

/// Gives each number that names no unit the one that its key ends in.
fn add_units(schema: &mut Value) {
    match schema {
        Value::Object(table) => {
            if let Some(Value::Object(properties)) = table.get_mut("properties") {
                for (key, property) in properties {
                    add_unit(key, property);
                }
            }
            table.values_mut().for_each(add_units);
        }
        Value::Array(items) => items.iter_mut().for_each(add_units),
        _ => {}
    }
}

fn add_unit(key: &str, property: &mut Value) {
    let Value::Object(property) = property else { return };
    if is_number(property)
        && !property.contains_key("x-unit")
        && let Some(unit) = unit_of(key)
    {
        property.insert("x-unit".into(), unit.into());
    }
}

/// Whether it is a number, or a list of numbers, or nothing.
fn is_number(property: &Map<String, Value>) -> bool {
    let numeric = |name: &str| matches!(name, "integer" | "number");
    match property.get("type") {
        Some(Value::String(name)) if name == "array" => {
            property.get("items").and_then(Value::as_object).is_some_and(is_number)
        }
        Some(Value::String(name)) => numeric(name),
        Some(Value::Array(names)) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            names.iter().any(|name| numeric(name)) && !names.contains(&"string")
        }
        _ => false,
    }
}

/// The unit that a key's name says. Counts have what they count.
fn unit_of(key: &str) -> Option<&'static str> {
    let word = key.rsplit('_').next().unwrap_or(key);
    Some(match (key, word) {
        ("schema", _) => "version",
        (_, "seed") => "any number",
        ("footprint" | "size", _) => "bytes",
        ("max_ptes_none" | "max_ptes_swap" | "max_ptes_shared" | "pages_to_scan" | "frames_per_block", _) => "pages",
        ("warm" | "measure" | "period" | "window", _) => "accesses",
        ("measured_accesses_max", _) => "accesses",
        (_, "permille") => "thousandths",
        (_, "cycles") => "cycles",
        (_, "mhz") => "MHz",
        (_, "ms") => "ms",
        (_, "us") => "us",
        (_, "ns") => "ns",
        (_, "bytes") => "bytes",
        _ => return None,
    })
}
