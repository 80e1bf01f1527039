// SPDX-License-Identifier: MIT OR Apache-2.0
//! What reading configurations needs besides serde.

use serde::{Deserialize, Deserializer};

/// For variants without parameters: serde alone would ignore other keys beside their tag.
pub(crate) fn no_keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    Nothing::deserialize(deserializer).map(|Nothing {}| ())
}
