// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters in results and in their schema: tables of numbers by name, made from what each structure
//! [declares](nestwalk_mem::counters).

use std::borrow::Cow;
use std::ops::Deref;

use nestwalk_mem::counters::{Shown, list, list_all};
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
        let mut table = Map::new();
        for counter in list(&self.0) {
            let (inner, name) = enter(&mut table, &counter.path);
            inner.insert(name, counter.value.into());
        }
        table.serialize(serializer)
    }
}

/// The table that a counter stands in, and its name there.
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
