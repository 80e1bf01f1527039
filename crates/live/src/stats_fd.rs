// SPDX-License-Identifier: MIT OR Apache-2.0
//! KVM's binary statistics (`KVM_GET_STATS_FD`; Documentation/virt/kvm/api.rst, section 4.133). The
//! file's format; how to get at the file of another process is in [`crate::stats_file`].

use std::collections::BTreeMap;

const HEADER_BYTES: usize = 24;
const DESCRIPTOR_BYTES: usize = 16;

/// The first value of each statistic in the contents of such a file (`struct kvm_stats_header`,
/// `struct kvm_stats_desc`).
pub fn parse(bytes: &[u8]) -> Option<BTreeMap<String, u64>> {
    let short = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?) as usize);
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    let (name_bytes, count) = (short(4)?, short(8)?);
    let (descriptors, data) = (short(16)?, short(20)?);
    let mut found = BTreeMap::new();
    for index in 0..count {
        let at = descriptors.checked_add(index.checked_mul(DESCRIPTOR_BYTES.checked_add(name_bytes)?)?)?;
        let name_at = at.checked_add(DESCRIPTOR_BYTES)?;
        let name = bytes.get(name_at..name_at.checked_add(name_bytes)?)?;
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let value_at = data.checked_add(short(at.checked_add(8)?)?)?;
        let value = u64::from_le_bytes(bytes.get(value_at..value_at.checked_add(8)?)?.try_into().ok()?);
        found.insert(std::str::from_utf8(name).ok()?.to_owned(), value);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(values: &[(&str, u64)]) -> Vec<u8> {
        let name_bytes = 16_u32;
        let data = 24 + values.len() as u32 * (16 + name_bytes);
        let mut bytes: Vec<u8> =
            [0, name_bytes, values.len() as u32, 24, 24, data].into_iter().flat_map(u32::to_le_bytes).collect();
        for (index, (name, _)) in values.iter().enumerate() {
            let words = [0, 1 << 16, index as u32 * 8, 0];
            bytes.extend(words.into_iter().flat_map(u32::to_le_bytes));
            let mut text = name.as_bytes().to_vec();
            text.resize(name_bytes as usize, 0);
            bytes.extend(text);
        }
        bytes.extend(values.iter().flat_map(|(_, value)| value.to_le_bytes()));
        bytes
    }

    #[test]
    fn values_are_found_by_their_names() {
        let found = parse(&file(&[("pages_4k", 512), ("pages_2m", 3)])).unwrap();
        assert_eq!((found["pages_4k"], found["pages_2m"]), (512, 3));
    }

    proptest! {
        #[test]
        fn damaged_files_are_refused_or_read(cut in 0_usize..200, place in 0_usize..100, value: u8) {
            let mut bytes = file(&[("pages_4k", 512), ("pages_2m", 3)]);
            if let Some(byte) = bytes.get_mut(place) {
                *byte = value;
            }
            bytes.truncate(cut);
            let _ = parse(&bytes);
        }
    }
}
