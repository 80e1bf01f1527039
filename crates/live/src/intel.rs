// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intel's leaves 2, 4, 16h and 18h (Software Developer's Manual, volume 2A, "CPUID").

use crate::cpuid::{Leaves, Registers};
use crate::descriptors;
use crate::processor::{Cache, CacheKind, Processor, Tlb, TlbPages};

/// Fills in what Intel's leaves say.
pub(crate) fn decode(leaves: &Leaves, processor: &mut Processor) {
    let megahertz = |word: u32| Some(word & 0xFFFF).filter(|&mhz| mhz != 0);
    let frequency = leaves.leaf(0x16);
    (processor.base_mhz, processor.max_mhz) = (megahertz(frequency.eax), megahertz(frequency.ebx));
    processor.caches = deterministic_caches(leaves, 0x4, "CPUID leaf 4");
    if processor.caches.is_empty() {
        processor.notes.push("CPUID leaf 4 describes no cache.".into());
    }
    processor.tlbs = address_translation(leaves);
    processor.giant_tlb_known = true;
    if processor.tlbs.is_empty() {
        processor.tlbs = descriptors::tlbs(leaves.leaf(2), &mut processor.notes);
    }
    if processor.tlbs.is_empty() {
        processor.giant_tlb_known = false;
        processor.notes.push("Neither leaf 18h nor leaf 2 of CPUID describes a TLB.".into());
    }
}

/// The caches of Intel's leaf 4, or of AMD's leaf 8000_001Dh, which has the same fields.
pub(crate) fn deterministic_caches(leaves: &Leaves, leaf: u32, source: &str) -> Vec<Cache> {
    let mut caches: Vec<Cache> = leaves.subleaves(leaf).filter_map(|registers| cache(registers, source)).collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

fn cache(Registers { eax, ebx, ecx, edx }: Registers, source: &str) -> Option<Cache> {
    let kind = match eax & 0x1F {
        1 => CacheKind::Data,
        3 => CacheKind::Unified,
        _ => return None, // 0: no more caches; 2: code
    };
    let (ways, partitions, line) = ((ebx >> 22) + 1, ((ebx >> 12) & 0x3FF) + 1, (ebx & 0xFFF) + 1);
    let lines = u64::from(ways) * u64::from(partitions) * (u64::from(ecx) + 1);
    let fully = eax & (1 << 9) != 0;
    Some(Cache {
        level: ((eax >> 5) & 7) as u8,
        kind,
        bytes: lines * u64::from(line),
        ways: if fully { u32::try_from(lines).ok()? } else { ways },
        inclusive: Some(edx & 2 != 0),
        source: source.to_owned(),
    })
}

/// The TLBs of leaf 18h that serve loads.
fn address_translation(leaves: &Leaves) -> Vec<Tlb> {
    let mut tlbs: Vec<Tlb> = leaves.subleaves(0x18).filter_map(tlb).collect();
    tlbs.sort_by_key(|tlb| tlb.level);
    tlbs
}

fn tlb(Registers { ebx, ecx, edx, .. }: Registers) -> Option<Tlb> {
    // 1: data, 3: unified, 4: loads; 2 is code's and 5 that of stores.
    if !matches!(edx & 0x1F, 1 | 3 | 4) {
        return None;
    }
    let page_bits = [(0, TlbPages::Small), (1, TlbPages::Huge), (3, TlbPages::Giant)];
    let sizes: Vec<_> = page_bits.into_iter().filter(|(bit, _)| ebx & (1 << bit) != 0).map(|(_, size)| size).collect();
    let ways = ebx >> 16;
    let entries = ways.checked_mul(ecx)?;
    if sizes.is_empty() || entries == 0 {
        return None;
    }
    let ways = if edx & (1 << 8) != 0 { entries } else { ways };
    Some(Tlb { level: ((edx >> 5) & 7) as u8, sizes, entries, ways, source: "CPUID leaf 18h".into() })
}
