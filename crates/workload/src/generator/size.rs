// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes in parameter files: `"4 GiB"`, or a number of bytes.

use nestwalk_mem::PageCount;
use nestwalk_mem::addr::PAGE_BYTES;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

const UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Bytes(u64),
    Text(String),
}

fn parse(text: &str) -> Option<u64> {
    let (number, unit) =
        UNITS.iter().find_map(|(name, unit)| Some((text.trim().strip_suffix(name)?.trim_end(), *unit)))?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) {
        return None;
    }
    let fraction = part.parse::<u128>().ok()? * u128::from(unit) / 10u128.pow(part.len() as u32);
    u64::try_from(whole.parse::<u128>().ok()? * u128::from(unit) + fraction).ok()
}

/// Writes a size in the largest unit that divides it.
pub(super) fn format(size: PageCount) -> String {
    let bytes = size.bytes();
    let (name, unit) = UNITS.iter().find(|(_, unit)| bytes >= *unit && bytes % unit == 0).unwrap_or(&UNITS[4]);
    format!("{} {name}", bytes / unit)
}

pub(super) fn serialize<S: Serializer>(size: &PageCount, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*size))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PageCount, D::Error> {
    let (bytes, text) = match Written::deserialize(deserializer)? {
        Written::Bytes(bytes) => (Some(bytes), bytes.to_string()),
        Written::Text(text) => (parse(&text), text),
    };
    match bytes {
        None => Err(D::Error::custom(format!(
            "{text:?} is no size: write for example \"16 GiB\" (units: TiB, GiB, MiB, KiB, B)"
        ))),
        Some(bytes) if bytes % PAGE_BYTES != 0 => Err(D::Error::custom(format!("{text:?} is no multiple of 4 KiB"))),
        Some(bytes) => Ok(PageCount(bytes / PAGE_BYTES)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(parse("1.5 GiB"), Some(3 << 29));
        assert_eq!(parse("64KiB"), Some(65_536));
        for wrong in ["", "GiB", "4", "4 GB", "-1 GiB", "1.x GiB", "999999999 TiB"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(format(PageCount(3 << 17)), "1536 MiB");
        assert_eq!(format(PageCount(0)), "0 B");
    }
}
