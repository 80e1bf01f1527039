// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intel's leaf 2: bytes that each stand for a TLB or a cache (Software Developer's Manual, volume
//! 2A, "Encoding of CPUID Leaf 2 Descriptors"). Only the data TLBs are taken: leaf 4 describes the
//! caches better.

use crate::cpuid::Registers;
use crate::processor::{Tlb, TlbPages};
use TlbPages::{Giant, Huge, Small};

/// Level, page sizes, entries, ways (0: fully associative).
type Array = (u8, &'static [TlbPages], u32, u32);

/// The arrays that a descriptor stands for. 4 MiB pages, which 64-bit mode does not have, are left
/// out.
const fn arrays(descriptor: u8) -> &'static [Array] {
    match descriptor {
        0x03 | 0xBA => &[(1, &[Small], 64, 4)],
        0x04 => &[(1, &[Huge], 8, 4)],
        0x05 => &[(1, &[Huge], 32, 4)],
        0x5A => &[(1, &[Huge], 32, 4)],
        0x57 => &[(1, &[Small], 16, 4)],
        0x59 => &[(1, &[Small], 16, 0)],
        0x5B => &[(1, &[Small], 64, 0)],
        0x5C => &[(1, &[Small], 128, 0)],
        0x5D => &[(1, &[Small], 256, 0)],
        0x63 => &[(1, &[Huge], 32, 4), (1, &[Giant], 4, 4)],
        0x64 => &[(1, &[Small], 512, 4)],
        0x6A => &[(1, &[Small], 64, 8)],
        0x6B => &[(1, &[Small], 256, 8)],
        0x6C => &[(1, &[Huge], 128, 8)],
        0x6D => &[(1, &[Giant], 16, 0)],
        0xA0 => &[(1, &[Small], 32, 0)],
        0xB3 => &[(1, &[Small], 128, 4)],
        0xB4 => &[(1, &[Small], 256, 4)],
        0xC2 => &[(1, &[Small, Huge], 16, 4)],
        0xC4 => &[(1, &[Huge], 32, 4)],
        0xC1 => &[(2, &[Small, Huge], 1024, 8)],
        0xC3 => &[(2, &[Small, Huge], 1536, 6), (2, &[Giant], 16, 4)],
        0xCA => &[(2, &[Small], 512, 4)],
        _ => &[],
    }
}

/// Descriptors that say nothing of data TLBs: caches, code TLBs, prefetch sizes, and the references
/// to leaves 4 and 18h.
const fn is_something_else(descriptor: u8) -> bool {
    matches!(
        descriptor,
        0x00..=0x02 | 0x06..=0x0E | 0x1D | 0x21..=0x30 | 0x40..=0x4F | 0x50..=0x56 | 0x60 | 0x61 | 0x66..=0x68
            | 0x70..=0x76 | 0x78..=0x87 | 0xB0..=0xB2 | 0xB5 | 0xB6 | 0xC0 | 0xD0..=0xEC | 0xF0 | 0xF1 | 0xFE | 0xFF
    )
}

/// The data TLBs that leaf 2 describes.
pub(crate) fn tlbs(leaf2: Registers, notes: &mut Vec<String>) -> Vec<Tlb> {
    // A register whose top bit is set says nothing; the low byte of EAX is a count.
    let words = leaf2.all().into_iter().enumerate().filter(|(_, word)| word & (1 << 31) == 0);
    let bytes = words.flat_map(|(register, word)| word.to_le_bytes().into_iter().skip(usize::from(register == 0)));
    let mut tlbs = Vec::new();
    for descriptor in bytes {
        if arrays(descriptor).is_empty() && !is_something_else(descriptor) {
            notes.push(format!("CPUID leaf 2 has the descriptor {descriptor:02X}h, which is not known here."));
        }
        tlbs.extend(arrays(descriptor).iter().map(|&(level, sizes, entries, ways)| Tlb {
            level,
            sizes: sizes.to_vec(),
            entries,
            ways: if ways == 0 { entries } else { ways },
            source: format!("CPUID leaf 2, descriptor {descriptor:02X}h"),
        }));
    }
    tlbs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_descriptor_is_reported_and_an_invalid_register_is_not_read() {
        let mut notes = Vec::new();
        let registers = Registers { eax: 0x0000_0001, ebx: 0x0000_0099, ecx: 0x8000_0003, edx: 0x0000_0003 };
        let found = tlbs(registers, &mut notes);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].entries, found[0].ways), (64, 4));
        assert_eq!(notes, ["CPUID leaf 2 has the descriptor 99h, which is not known here."]);
    }

    #[test]
    fn no_descriptor_is_two_things() {
        for descriptor in 0..=u8::MAX {
            assert!(arrays(descriptor).is_empty() || !is_something_else(descriptor), "{descriptor:02X}h");
        }
    }
}
