// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes as people write them in files: `"16 GiB"`, `"1.5 GiB"`, `"32KiB"`, or a number of bytes.
//!
//! [`bytes`], [`pages`] and [`optional_pages`] are for serde's `with`.

use crate::addr::{PAGE_BYTES, PageCount};

const UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Digits after the point that are read.
const DIGITS_MAX: usize = 9;

/// Reads a size with its unit, in bytes. Parts of a byte are refused.
///
/// # Errors
/// A sentence that says what is wrong and what would be right.
pub fn parse(text: &str) -> Result<u64, String> {
    parse_bytes(text)
        .ok_or_else(|| format!("{text:?} is no size: write for example \"16 GiB\" (units: TiB, GiB, MiB, KiB, B)"))
}

fn parse_bytes(text: &str) -> Option<u64> {
    let (number, unit) =
        UNITS.iter().find_map(|(name, unit)| Some((text.trim().strip_suffix(name)?.trim_end(), *unit)))?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > DIGITS_MAX {
        return None;
    }
    let (fraction, scale) = (part.parse::<u128>().ok()? * u128::from(unit), 10_u128.pow(part.len() as u32));
    if !fraction.is_multiple_of(scale) {
        return None;
    }
    u64::try_from(u128::from(whole.parse::<u64>().ok()?) * u128::from(unit) + fraction / scale).ok()
}

/// Writes a size in the largest unit that divides it.
pub fn format(bytes: u64) -> String {
    let (name, unit) =
        UNITS.iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit)).unwrap_or(&UNITS[4]);
    format!("{} {name}", bytes / unit)
}

/// Reads a size that is a whole number of 4 KiB pages.
///
/// # Errors
/// As [`parse`], and when it is none.
pub fn parse_pages(text: &str) -> Result<PageCount, String> {
    whole_pages(parse(text)?).ok_or_else(|| format!("{text:?} is no multiple of 4 KiB"))
}

fn whole_pages(bytes: u64) -> Option<PageCount> {
    bytes.is_multiple_of(PAGE_BYTES).then(|| PageCount::covering(bytes))
}

/// Either way of writing.
enum Written {
    Bytes(u64),
    Text(String),
}

impl<'de> serde::Deserialize<'de> for Written {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl serde::de::Visitor<'_> for Either {
            type Value = Written;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("a size such as \"16 GiB\", or a number of bytes")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Written, E> {
                Ok(Written::Text(text.to_owned()))
            }

            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<Written, E> {
                Ok(Written::Bytes(bytes))
            }

            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<Written, E> {
                u64::try_from(bytes)
                    .map(Written::Bytes)
                    .map_err(|_| E::custom(format!("{bytes} bytes: a size is 0 or more")))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// A number of bytes as a size with its unit.
pub mod bytes {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{Written, format, parse};

    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format(*bytes))
    }

    /// Reads it.
    ///
    /// # Errors
    /// When it is no size.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(bytes),
            Written::Text(text) => parse(&text).map_err(D::Error::custom),
        }
    }
}

/// A [`PageCount`] as a size with its unit.
pub mod pages {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{PageCount, Written, format, parse_pages, whole_pages};

    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(size: &PageCount, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format(size.bytes()))
    }

    /// Reads it.
    ///
    /// # Errors
    /// When it is no size, or no whole number of pages.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PageCount, D::Error> {
        read(Written::deserialize(deserializer)?)
    }

    pub(super) fn read<E: Error>(written: Written) -> Result<PageCount, E> {
        match written {
            Written::Bytes(bytes) => {
                whole_pages(bytes).ok_or_else(|| E::custom(format!("{bytes} bytes are no multiple of 4 KiB")))
            }
            Written::Text(text) => parse_pages(&text).map_err(E::custom),
        }
    }
}

/// A [`PageCount`] as a size with its unit, or nothing.
pub mod optional_pages {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{PageCount, Written, format, pages};

    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(size: &Option<PageCount>, serializer: S) -> Result<S::Ok, S::Error> {
        match size {
            Some(size) => serializer.serialize_some(&format(size.bytes())),
            None => serializer.serialize_none(),
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// As [`pages::deserialize`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PageCount>, D::Error> {
        Option::<Written>::deserialize(deserializer)?.map(pages::read).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in
            [("16 GiB", 16 << 30), ("64KiB", 65_536), ("1.5 GiB", 3 << 29), ("8192 B", 8192), ("0 B", 0)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
            assert_eq!(parse(&format(bytes)), Ok(bytes));
        }
        assert_eq!(format(3 << 29), "1536 MiB");
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in
            ["", "16", "GiB", "4 GB", "-1 GiB", "1.x GiB", "1. GiB", "20.0001 MiB", "99999999 TiB", "1.0000000001 GiB"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse_pages("5 B").unwrap_err().contains("no multiple of 4 KiB"));
    }
}
