// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters in results and in their schema: tables of numbers by name, made from what each
//! structure [declares](nestwalk_mem::counters).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::ops::{Deref, Index};

use nestwalk_mem::counters::{Counter, Shown, list, list_all};
use nestwalk_os::manager::freebsd::FreeBsdConfig;
use nestwalk_os::{ManagerConfig, TablesConfig};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// Counters that are written as a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByName<C>(pub C);

impl<C> Deref for ByName<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0
    }
}

impl<C: Shown> Serialize for ByName<C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        table_of(&list(&self.0)).serialize(serializer)
    }
}

fn table_of(counters: &[Counter]) -> Map<String, Value> {
    let mut table = Map::new();
    for counter in counters {
        let (inner, name) = enter(&mut table, &counter.path);
        inner.insert(name, counter.value.into());
    }
    table
}

/// The table that a counter is in, and its name there.
fn enter<'t>(table: &'t mut Map<String, Value>, path: &str) -> (&'t mut Map<String, Value>, String) {
    let (outer, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut at = table;
    for part in outer.split('.').filter(|part| !part.is_empty()) {
        let inner = at.entry(part).or_insert_with(|| Map::new().into());
        at = inner.as_object_mut().expect("no counter has the path of a table");
    }
    (at, name.to_owned())
}

impl<C: Shown + Default> JsonSchema for ByName<C> {
    fn schema_name() -> Cow<'static, str> {
        std::any::type_name::<C>().rsplit("::").next().expect("a type has a name").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut properties = Map::new();
        for counter in list_all::<C>() {
            let kind = if counter.value.is_some() { json!("integer") } else { json!(["integer", "null"]) };
            let mut about = json!({ "type": kind, "description": counter.text, "x-unit": counter.unit });
            if counter.optional {
                about["x-optional"] = true.into();
            }
            let (inner, name) = enter(&mut properties, &counter.path);
            inner.insert(name, about);
        }
        table_schema(properties).try_into().expect("an object is a schema")
    }
}

/// A choice between kinds, each of which declares counters of its own.
pub trait Kind {
    /// Name and meaning of the table of these counters.
    const TABLE: (&'static str, &'static str);

    /// Each kind's name, and all its counters.
    fn all() -> Vec<(&'static str, Vec<Counter>)>;
}

impl Kind for ManagerConfig {
    const TABLE: (&'static str, &'static str) =
        ("ManagerCounters", "Counters of memory managers: a kernel has those of its own manager.");

    fn all() -> Vec<(&'static str, Vec<Counter>)> {
        let with_all_counters = |config: Self| match config {
            Self::FreeBsd(_) => Self::FreeBsd(FreeBsdConfig { promote_64k: true }),
            other => other,
        };
        let managers = Self::all().into_iter().map(|config| with_all_counters(config).build());
        managers.map(|manager| (manager.facts().name, manager.counters())).collect()
    }
}

impl Kind for TablesConfig {
    const TABLE: (&'static str, &'static str) =
        ("TableCounters", "Counters of table placements: a kernel has those of its own placement.");

    fn all() -> Vec<(&'static str, Vec<Counter>)> {
        let placements = Self::all().into_iter().map(|config| config.build());
        placements.map(|placement| (placement.name(), placement.counters())).collect()
    }
}

/// The counters of one kind of `K`, written as a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnCounters<K>(Vec<Counter>, PhantomData<K>);

impl<K> From<Vec<Counter>> for OwnCounters<K> {
    fn from(counters: Vec<Counter>) -> Self {
        Self(counters, PhantomData)
    }
}

impl<K> Index<&str> for OwnCounters<K> {
    type Output = u64;

    /// The count of that name. Panics if this kind has no such counter.
    fn index(&self, name: &str) -> &u64 {
        let found = self.0.iter().find(|counter| counter.path == name).and_then(|counter| counter.value.as_ref());
        found.unwrap_or_else(|| panic!("no counter {name}"))
    }
}

impl<K> Serialize for OwnCounters<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        table_of(&self.0).serialize(serializer)
    }
}

impl<K: Kind> JsonSchema for OwnCounters<K> {
    fn schema_name() -> Cow<'static, str> {
        K::TABLE.0.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // By counter: the kinds that have it by what it means and its unit there.
        let mut found: BTreeMap<String, BTreeMap<(&str, &str), Vec<String>>> = BTreeMap::new();
        for (kind, counters) in K::all() {
            for counter in counters {
                let meanings = found.entry(counter.path).or_default();
                meanings.entry((counter.text, counter.unit)).or_default().push(format!("`{kind}`"));
            }
        }
        let about = |meanings: BTreeMap<(&str, &str), Vec<String>>| {
            let texts: Vec<String> =
                meanings.iter().map(|((text, _), kinds)| format!("{}: {text}", kinds.join(", "))).collect();
            let units: BTreeSet<&str> = meanings.keys().map(|&(_, unit)| unit).collect();
            let unit = units.into_iter().collect::<Vec<_>>().join(", ");
            json!({ "type": "integer", "description": texts.join(" "), "x-unit": unit })
        };
        let properties: Map<String, Value> =
            found.into_iter().map(|(path, meanings)| (path, about(meanings))).collect();
        let schema = json!({
            "type": "object",
            "description": K::TABLE.1,
            "additionalProperties": false,
            "properties": properties,
        });
        schema.try_into().expect("an object is a schema")
    }
}

/// The schema of a table: of numbers, and of tables inside.
fn table_schema(properties: Map<String, Value>) -> Value {
    let properties: Map<String, Value> = properties
        .into_iter()
        .map(|(name, value)| match value {
            Value::Object(inner) if !inner.contains_key("x-unit") => (name, table_schema(inner)),
            other => (name, other),
        })
        .collect();
    let is_optional = |value: &Value| value["x-optional"] == true;
    let required: Vec<&String> =
        properties.iter().filter(|(_, value)| !is_optional(value)).map(|(key, _)| key).collect();
    let mut schema =
        json!({ "type": "object", "additionalProperties": false, "required": required, "properties": properties });
    // Inside a table that may be missing, nothing is missing.
    if !properties.is_empty() && properties.values().all(is_optional) {
        schema["required"] = properties.keys().cloned().collect();
        schema["x-optional"] = true.into();
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    nestwalk_mem::counters! {
        /// Of rare hardware.
        pub struct Rare {
            /// Seldom.
            seldom: u64 ["steps"],
        }
    }

    nestwalk_mem::counters! {
        /// An example.
        pub struct Example {
            /// Outside.
            one: u64 ["steps"],
            /// Of rare hardware.
            rare: Rare [optional at "rare"],
            /// In a table in a table.
            two: [u64; 2] ["pages" at "in.side" by ["a", "b"]],
        }
        computed {
            /// Unknown at first.
            "in.mean" ["steps"] = |own| (own.one > 0).then_some(7),
        }
    }

    #[test]
    fn a_path_is_a_way_through_tables() {
        let counters = ByName(Example { one: 1, two: [2, 3], ..Example::default() }.plus(&Example::default()));
        let expected = json!({ "one": 1, "in": { "side": { "a": 2, "b": 3 }, "mean": 7 } });
        assert_eq!(serde_json::to_value(&counters).unwrap(), expected);
        let mut sum = counters.minus(&counters);
        sum.add(&counters);
        assert_eq!(sum, *counters);
    }

    #[test]
    fn counters_of_several_kinds_name_their_kinds() {
        let schema = schemars::schema_for!(OwnCounters<ManagerConfig>).to_value();
        assert_eq!(schema.get("required"), None, "none is there with every manager");
        let fallbacks = &schema["properties"]["fallbacks"];
        assert_eq!(fallbacks["x-unit"], json!("faults"));
        let text = fallbacks["description"].as_str().unwrap();
        assert!(text.contains("`mthp`: Faults that") && text.contains("`ptemagnet`: Faults that"), "{text}");
        let reservations = schema["properties"]["reservations"]["description"].as_str().unwrap();
        assert!(reservations.contains("`freebsd`, `quicksilver`: Reservations of 2 MiB made."), "{reservations}");
        for (kind, counters) in <ManagerConfig as Kind>::all().into_iter().chain(<TablesConfig as Kind>::all()) {
            let own = OwnCounters::<ManagerConfig>::from(counters.clone());
            assert_eq!(serde_json::to_value(&own).unwrap().as_object().unwrap().len(), counters.len(), "{kind}");
            assert!(counters.iter().all(|counter| own[&counter.path] == 0 && !counter.text.is_empty()), "{kind}");
        }
    }

    #[test]
    fn the_schema_has_what_the_result_has() {
        let schema = schemars::schema_for!(ByName<Example>).to_value();
        assert_eq!(schema["required"], json!(["in", "one"]));
        assert_eq!(schema["properties"]["rare"]["required"], json!(["seldom"]));
        let inner = &schema["properties"]["in"]["properties"];
        assert_eq!(inner["mean"]["type"], json!(["integer", "null"]));
        let expected = json!({ "type": "integer", "description": "In a table in a table.", "x-unit": "pages" });
        assert_eq!(inner["side"]["properties"]["b"], expected);
    }
}
