// SPDX-License-Identifier: MIT OR Apache-2.0
//! A [`Geometry`] as its number of levels.

use nestwalk_mem::Geometry;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Levels(u8),
    Odd { levels: u8, index_bits: u8 },
}

/// Writes it.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(geometry: &Geometry, serializer: S) -> Result<S::Ok, S::Error> {
    let (levels, index_bits) = (geometry.levels(), geometry.index_bits() as u8);
    let written = if index_bits == 9 { Written::Levels(levels) } else { Written::Odd { levels, index_bits } };
    written.serialize(serializer)
}

/// Reads it.
///
/// # Errors
/// When there is no such geometry.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Geometry, D::Error> {
    let (levels, index_bits) = match Written::deserialize(deserializer)? {
        Written::Levels(levels) => (levels, 9),
        Written::Odd { levels, index_bits } => (levels, index_bits),
    };
    Geometry::new(levels, index_bits).ok_or_else(|| D::Error::custom("a page table has 2 to 5 levels of 1 to 9 bits"))
}
