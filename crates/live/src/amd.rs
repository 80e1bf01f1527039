// SPDX-License-Identifier: MIT OR Apache-2.0
//! AMD's leaves 8000_0005h, 8000_0006h, 8000_0019h and 8000_001Dh (Architecture Programmer's
//! Manual, volume 3, appendix E).

use crate::cpuid::Leaves;
use crate::intel::deterministic_caches;
use crate::processor::{Cache, CacheKind, Processor, Tlb, TlbPages};

/// Leaf 8000_0001h, ECX: leaf 8000_001Dh describes the caches.
const TOPOLOGY_EXTENSIONS: u32 = 1 << 22;

/// Leaf 8000_0021h, EAX: sizes of the L2 TLB are multiples of 32.
const L2_TLB_SIZE_X32: u32 = 1 << 14;

/// The first family whose L2 TLB has more entries than 12 bits can say, so that its sizes are
/// multiples of 32 whatever a hypervisor lets through of leaf 8000_0021h.
const ZEN_5: u32 = 0x1A;

/// The first family whose first-level data TLB is one array for all page sizes (WikiChip, Zen and
/// Zen 2).
const ZEN: u32 = 0x17;

/// Fills in what AMD's leaves say.
pub(crate) fn decode(leaves: &Leaves, processor: &mut Processor) {
    if leaves.leaf(0x8000_0001).ecx & TOPOLOGY_EXTENSIONS != 0 {
        processor.caches = deterministic_caches(leaves, 0x8000_001D, "CPUID leaf 8000001Dh");
    }
    if processor.caches.is_empty() {
        processor.caches = old_caches(leaves);
    }
    if !leaves.says(0x8000_0005) || !leaves.says(0x8000_0006) {
        processor.notes.push("CPUID leaves 80000005h and 80000006h do not describe the TLBs.".into());
    }
    let mut first = first_level(leaves);
    processor.giant_tlb_known = leaves.says(0x8000_0019);
    if !processor.giant_tlb_known {
        let what = "CPUID leaf 80000019h, the TLBs for 1 GiB pages, is missing or masked.";
        processor.notes.push(what.into());
    }
    if processor.family >= ZEN && first.iter().all(|tlb| tlb.ways == tlb.entries) {
        first = one_for_all(first, &mut processor.notes);
    }
    let second = second_level(leaves, l2_tlb_unit(leaves, processor), &mut processor.notes);
    processor.tlbs = first.into_iter().chain(second).collect();
}

/// The caches of leaves 8000_0005h and 8000_0006h, of processors older than leaf 8000_001Dh.
fn old_caches(leaves: &Leaves) -> Vec<Cache> {
    let (l1d, outer) = (leaves.leaf(0x8000_0005).ecx, leaves.leaf(0x8000_0006));
    let cache = |level: u8, kind: CacheKind, kibibytes: u32, ways: Ways, leaf: &str| {
        let bytes = u64::from(kibibytes) << 10;
        let ways = ways.of(u32::try_from(bytes / 64).ok()?)?;
        (bytes > 0).then(|| Cache { level, kind, bytes, ways, inclusive: None, source: format!("CPUID leaf {leaf}") })
    };
    let caches = [
        cache(1, CacheKind::Data, l1d >> 24, Ways::plain((l1d >> 16) & 0xFF), "80000005h"),
        cache(2, CacheKind::Unified, outer.ecx >> 16, Ways::coded(outer.ecx >> 12), "80000006h"),
        cache(3, CacheKind::Unified, (outer.edx >> 18) * 512, Ways::coded(outer.edx >> 12), "80000006h"),
    ];
    caches.into_iter().flatten().collect()
}

/// An associativity as AMD writes it.
#[derive(Clone, Copy)]
enum Ways {
    None,
    Number(u32),
    Full,
}

impl Ways {
    /// 8 bits of leaf 8000_0005h.
    const fn plain(field: u32) -> Self {
        match field {
            0 => Self::None,
            0xFF => Self::Full,
            ways => Self::Number(ways),
        }
    }

    /// 4 bits of leaves 8000_0006h and 8000_0019h, the lowest of `field`.
    const fn coded(field: u32) -> Self {
        match field & 0xF {
            ways @ 1..=4 => Self::Number(ways),
            5 => Self::Number(6),
            6 => Self::Number(8),
            8 => Self::Number(16),
            0xA => Self::Number(32),
            0xB => Self::Number(48),
            0xC => Self::Number(64),
            0xD => Self::Number(96),
            0xE => Self::Number(128),
            0xF => Self::Full,
            _ => Self::None, // 0: there is none; 7: reserved; 9: see leaf 8000_001Dh
        }
    }

    /// Ways of a set in a table of so many entries; none if there is no table.
    fn of(self, entries: u32) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Number(ways) => Some(ways),
            Self::Full => Some(entries),
        }
        .filter(|_| entries > 0)
    }
}

fn array(level: u8, size: TlbPages, entries: u32, ways: Ways, leaf: &str) -> Option<Tlb> {
    let ways = ways.of(entries)?;
    Some(Tlb { level, sizes: vec![size], entries, ways, source: format!("CPUID leaf {leaf}") })
}

/// The data half of a word of leaf 8000_0005h: ways in the top byte, entries in the next.
fn level_one(word: u32, size: TlbPages) -> Option<Tlb> {
    array(1, size, (word >> 16) & 0xFF, Ways::plain(word >> 24), "80000005h")
}

/// The data half of a word of leaves 8000_0006h and 8000_0019h: ways in the top 4 bits, entries in
/// the next 12.
fn coded(level: u8, word: u32, size: TlbPages, unit: u32, leaf: &str) -> Option<Tlb> {
    array(level, size, ((word >> 16) & 0xFFF) * unit, Ways::coded(word >> 28), leaf)
}

fn first_level(leaves: &Leaves) -> Vec<Tlb> {
    let (l1, giant) = (leaves.leaf(0x8000_0005), leaves.leaf(0x8000_0019));
    let arrays = [
        level_one(l1.ebx, TlbPages::Small),
        level_one(l1.eax, TlbPages::Huge),
        coded(1, giant.eax, TlbPages::Giant, 1, "80000019h"),
    ];
    arrays.into_iter().flatten().collect()
}

/// One array, where CPUID repeats the same one for each size that it holds.
fn one_for_all(arrays: Vec<Tlb>, notes: &mut Vec<String>) -> Vec<Tlb> {
    let Some(first) = arrays.first() else { return arrays };
    if arrays.iter().any(|tlb| tlb.entries != first.entries) {
        return arrays;
    }
    // CPUID is silent on 1 GiB pages where a hypervisor masks the leaf; the array holds them all
    // the same.
    let source = format!("{}; from Zen on one array for all sizes (WikiChip, Zen 2)", first.source);
    notes.push(
        "CPUID repeats the L1 data TLB for each page size; from Zen on that is one array (WikiChip, Zen 2).".into(),
    );
    vec![Tlb { sizes: TlbPages::ALL.to_vec(), source, ..first.clone() }]
}

/// What a size of the L2 TLB is counted in, in entries.
fn l2_tlb_unit(leaves: &Leaves, processor: &mut Processor) -> u32 {
    if leaves.leaf(0x8000_0021).eax & L2_TLB_SIZE_X32 != 0 {
        return 32;
    }
    if processor.family < ZEN_5 {
        return 1;
    }
    let why = "The hypervisor hides bit 14 of CPUID leaf 80000021h, by which sizes of the L2 TLB are multiples of 32, as \
               they are on every Zen 5: taken as that.";
    processor.notes.push(why.into());
    32
}

fn second_level(leaves: &Leaves, unit: u32, notes: &mut Vec<String>) -> Vec<Tlb> {
    let (l2, giant) = (leaves.leaf(0x8000_0006), leaves.leaf(0x8000_0019));
    let small = coded(2, l2.ebx, TlbPages::Small, unit, "80000006h");
    let huge = coded(2, l2.eax, TlbPages::Huge, unit, "80000006h");
    let giant = coded(2, giant.ebx, TlbPages::Giant, unit, "80000019h");
    match (small, huge) {
        (Some(small), Some(huge)) if small.entries == huge.entries => {
            if small.ways != huge.ways {
                notes.push(format!(
                    "CPUID says {} ways for 4 KiB and {} for 2 MiB pages of an L2 TLB of {} entries, which is taken as one array \
                     (WikiChip, Zen 2), with the ways for 4 KiB.",
                    small.ways, huge.ways, small.entries
                ));
            }
            let both = Tlb { sizes: vec![TlbPages::Small, TlbPages::Huge], ..small };
            [Some(both), giant].into_iter().flatten().collect()
        }
        (small, huge) => [small, huge, giant].into_iter().flatten().collect(),
    }
}
