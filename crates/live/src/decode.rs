// SPDX-License-Identifier: MIT OR Apache-2.0
//! A processor from its CPUID: what all vendors have in common, and whom to ask for the rest.

use crate::cpuid::{HYPERVISOR, Leaves};
use crate::processor::{Cache, Processor, Tlb, TlbPages};
use crate::{amd, intel};

impl Processor {
    /// What `leaves` say. A leaf that is missing leaves its part empty.
    pub fn decode(leaves: &Leaves) -> Self {
        let signature = leaves.leaf(1).eax;
        let (base, extended) = ((signature >> 8) & 0xF, (signature >> 20) & 0xFF);
        let family = if base == 0xF { base + extended } else { base };
        let model = (signature >> 4) & 0xF;
        let model = if base == 0xF || base == 6 { model | ((signature >> 12) & 0xF0) } else { model };
        let vendor = leaves.leaf(0);
        let mut processor = Self {
            vendor: text(&[vendor.ebx, vendor.edx, vendor.ecx]),
            brand: brand(leaves),
            family,
            model,
            stepping: signature & 0xF,
            hypervisor: hypervisor(leaves),
            ..Self::default()
        };
        match processor.vendor.as_str() {
            "GenuineIntel" | "CentaurHauls" | "  Shanghai  " => intel::decode(leaves, &mut processor),
            "AuthenticAMD" | "HygonGenuine" => amd::decode(leaves, &mut processor),
            other => {
                let what =
                    format!("CPUID of the vendor {other:?} is not known here; caches and TLBs were not read from it.");
                processor.notes.push(what);
            }
        }
        let notes = &mut processor.notes;
        processor.caches.retain(|cache| plain_cache(cache, notes));
        processor.tlbs.retain(|tlb| plain_array(tlb, notes));
        processor.tlbs = one_array_a_size(std::mem::take(&mut processor.tlbs), notes);
        processor
    }
}

/// Registers as the text that they spell, up to its end.
fn text(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0).collect();
    bytes.iter().map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { byte as char } else { '?' }).collect()
}

/// The name that the processor gives itself (leaves 8000_0002h to 8000_0004h).
fn brand(leaves: &Leaves) -> String {
    let words: Vec<u32> = (0x8000_0002..=0x8000_0004).flat_map(|leaf| leaves.leaf(leaf).all()).collect();
    text(&words).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn hypervisor(leaves: &Leaves) -> Option<String> {
    let named = leaves.leaf(0x4000_0000);
    (leaves.leaf(1).ecx & HYPERVISOR != 0).then(|| text(&[named.ebx, named.ecx, named.edx]).trim().to_owned())
}

/// Whether a cache is one that a machine file can describe: sets of 64-byte lines.
fn plain_cache(cache: &Cache, notes: &mut Vec<String>) -> bool {
    let plain = cache.ways > 0 && cache.bytes > 0 && cache.bytes.is_multiple_of(u64::from(cache.ways) * 64);
    if !plain {
        let Cache { level, bytes, ways, source, .. } = cache;
        notes.push(format!(
            "{source}: a cache of level {level} with {bytes} bytes and {ways} ways is none that could be."
        ));
    }
    plain
}

/// Whether an array is one that a machine file can describe: sets of as many ways.
fn plain_array(tlb: &Tlb, notes: &mut Vec<String>) -> bool {
    let plain = tlb.ways > 0 && tlb.entries > 0 && tlb.entries.is_multiple_of(tlb.ways);
    if !plain {
        let Tlb { level, entries, ways, source, .. } = tlb;
        notes.push(format!(
            "{source}: a TLB of level {level} with {entries} entries and {ways} ways is none that could be."
        ));
    }
    plain
}

/// The arrays such that each page size is in at most one of a level, which is what a machine file
/// can say. Where a size may go into several arrays, each size gets an array of its own with all
/// entries that it can have while it is alone.
fn one_array_a_size(tlbs: Vec<Tlb>, notes: &mut Vec<String>) -> Vec<Tlb> {
    let mut kept: Vec<Tlb> = Vec::new();
    let mut levels: Vec<u8> = tlbs.iter().map(|tlb| tlb.level).collect();
    levels.sort_unstable();
    levels.dedup();
    for level in levels {
        let arrays: Vec<&Tlb> = tlbs.iter().filter(|tlb| tlb.level == level).collect();
        let holders =
            |size: TlbPages| arrays.iter().filter(|tlb| tlb.sizes.contains(&size)).copied().collect::<Vec<_>>();
        // Arrays that share a size with another one are taken apart.
        let overlaps = |tlb: &Tlb| tlb.sizes.iter().any(|&size| holders(size).len() > 1);
        kept.extend(arrays.iter().filter(|tlb| !overlaps(tlb)).map(|&tlb| tlb.clone()));
        if !arrays.iter().any(|tlb| overlaps(tlb)) {
            continue;
        }
        for size in TlbPages::ALL {
            let parts: Vec<&Tlb> = holders(size).into_iter().filter(|tlb| overlaps(tlb)).collect();
            kept.extend(joined(level, size, &parts));
        }
        notes.push(format!(
            "Level {level} of the TLB has arrays that share a page size. A machine file names one array for each size, so \
             each size has all entries that it can have when it is alone; programs that mix page sizes see too many."
        ));
    }
    kept.sort_by(|one, two| (one.level, &one.sizes).cmp(&(two.level, &two.sizes)));
    kept
}

/// One array with the entries of all `parts` if they have as many sets, else the largest part.
fn joined(level: u8, size: TlbPages, parts: &[&Tlb]) -> Option<Tlb> {
    let largest = parts.iter().max_by_key(|tlb| tlb.entries)?;
    let sets = |tlb: &Tlb| tlb.entries / tlb.ways.max(1);
    let alike = parts.iter().filter(|tlb| sets(tlb) == sets(largest));
    let (entries, ways) = alike.fold((0, 0), |(entries, ways), tlb| (entries + tlb.entries, ways + tlb.ways));
    let source = format!("{}, {} of its arrays", largest.source, parts.len());
    Some(Tlb { level, sizes: vec![size], entries, ways, source })
}
