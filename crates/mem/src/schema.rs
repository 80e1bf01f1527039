// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a size looks in the JSON Schema of a file: for `#[schemars(with = "...")]` beside serde's
//! [`size`](crate::size).

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// What [`crate::size::bytes`] reads.
#[derive(Debug)]
pub struct Bytes;

/// What [`crate::size::pages`] reads.
#[derive(Debug)]
pub struct Pages;

fn size(of: u64) -> Schema {
    let mut schema = json_schema!({
        "type": ["string", "integer"],
        "pattern": "^ *[0-9]+(\\.[0-9]{1,9})? *(TiB|GiB|MiB|KiB|B) *$",
        "minimum": 0,
    });
    if of > 1 {
        schema.insert("multipleOf".into(), of.into());
    }
    schema
}

impl JsonSchema for Bytes {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        size(1)
    }
}

impl JsonSchema for Pages {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Pages".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        size(crate::addr::PAGE_BYTES)
    }
}
