// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded CPUIDs of real processors, held against what their makers and the bundled machine files
//! say of them.

use nestwalk_live::{Leaves, Processor, TlbPages, nearest};
use proptest::prelude::*;

/// A processor and what it must decode to.
struct Known {
    file: &'static str,
    text: &'static str,
    brand: &'static str,
    microarchitecture: &'static str,
    machine: &'static str,
    same: bool,
    /// Level, KiB, ways, inclusive.
    caches: &'static [(u8, u64, u32, Option<bool>)],
    /// Level, sizes, entries, ways.
    tlbs: &'static [(u8, &'static str, u32, u32)],
}

macro_rules! recorded {
    ($file:literal) => {
        include_str!(concat!("cpuid/", $file, ".txt"))
    };
}

const ALL: &str = "4KiB 2MiB 1GiB";

fn known() -> Vec<Known> {
    vec![
        Known {
            file: "broadwell-i7-6800k",
            text: recorded!("broadwell-i7-6800k"),
            brand: "Intel(R) Core(TM) i7-6800K CPU @ 3.40GHz",
            microarchitecture: "Broadwell",
            machine: "broadwell-asap",
            same: true,
            caches: &[(1, 32, 8, Some(false)), (2, 256, 8, Some(false)), (3, 15 << 10, 20, Some(true))],
            tlbs: &[
                (1, "4KiB", 64, 4),
                (1, "2MiB", 32, 4),
                (1, "1GiB", 4, 4),
                (2, "4KiB 2MiB", 1536, 6),
                (2, "1GiB", 16, 4),
            ],
        },
        Known {
            file: "skylake-silver-4108",
            text: recorded!("skylake-silver-4108"),
            brand: "Intel(R) Xeon(R) Silver 4108 CPU @ 1.80GHz",
            microarchitecture: "Skylake (server)",
            machine: "skylake-6138",
            same: true,
            caches: &[(1, 32, 8, Some(false)), (2, 1 << 10, 16, Some(false)), (3, 11 << 10, 11, Some(false))],
            tlbs: &[
                (1, "4KiB", 64, 4),
                (1, "2MiB", 32, 4),
                (1, "1GiB", 4, 4),
                (2, "4KiB 2MiB", 1536, 6),
                (2, "1GiB", 16, 4),
            ],
        },
        Known {
            file: "icelake-gold-6336y",
            text: recorded!("icelake-gold-6336y"),
            brand: "Intel(R) Xeon(R) Gold 6336Y CPU @ 2.40GHz",
            microarchitecture: "Ice Lake (server)",
            machine: "icelake-6346",
            same: true,
            caches: &[(1, 48, 12, Some(false)), (2, 1280, 20, Some(false)), (3, 36 << 10, 12, Some(false))],
            // As machines/icelake-6346.toml has them, which was written by hand from the same leaf.
            tlbs: &[
                (1, "4KiB", 64, 4),
                (1, "2MiB", 32, 4),
                (1, "1GiB", 8, 8),
                (2, "4KiB", 2048, 16),
                (2, "2MiB", 1024, 8),
                (2, "1GiB", 1024, 8),
            ],
        },
        Known {
            file: "sapphire-rapids-w7-2475x",
            text: recorded!("sapphire-rapids-w7-2475x"),
            brand: "Intel(R) Xeon(R) w7-2475X",
            microarchitecture: "Sapphire Rapids",
            machine: "sapphire-rapids",
            same: true,
            caches: &[(1, 48, 12, Some(false)), (2, 2 << 10, 16, Some(false)), (3, 38400, 15, Some(false))],
            // 64 entries for 4 KiB in this leaf, as in its predecessor;
            // machines/sapphire-rapids.toml has 96 (docs/machines.md).
            tlbs: &[
                (1, "4KiB", 64, 4),
                (1, "2MiB", 32, 4),
                (1, "1GiB", 8, 8),
                (2, "4KiB", 2048, 16),
                (2, "2MiB", 1024, 8),
                (2, "1GiB", 1024, 8),
            ],
        },
        Known {
            file: "rome-3975wx",
            text: recorded!("rome-3975wx"),
            brand: "AMD Ryzen Threadripper PRO 3975WX 32-Cores",
            microarchitecture: "Zen, Zen+ or Zen 2",
            machine: "zen4",
            same: false,
            caches: &[(1, 32, 8, Some(false)), (2, 512, 8, Some(true)), (3, 16 << 10, 16, Some(false))],
            tlbs: &[(1, ALL, 64, 64), (2, "4KiB 2MiB", 2048, 8)],
        },
        Known {
            file: "milan-7763",
            text: recorded!("milan-7763"),
            brand: "AMD EPYC 7763 64-Core Processor",
            microarchitecture: "Zen 3",
            machine: "zen4",
            same: false,
            caches: &[(1, 32, 8, Some(false)), (2, 512, 8, Some(true)), (3, 32 << 10, 16, Some(false))],
            tlbs: &[(1, ALL, 64, 64), (2, "4KiB 2MiB", 2048, 8), (2, "1GiB", 64, 64)],
        },
        Known {
            file: "genoa-9124",
            text: recorded!("genoa-9124"),
            brand: "AMD EPYC 9124 16-Core Processor",
            microarchitecture: "Zen 4",
            machine: "zen4",
            same: true,
            caches: &[(1, 32, 8, Some(false)), (2, 1 << 10, 8, Some(true)), (3, 16 << 10, 16, Some(false))],
            tlbs: &[(1, ALL, 72, 72), (2, "4KiB 2MiB", 3072, 8), (2, "1GiB", 64, 64)],
        },
        Known {
            file: "genoa-kvm-guest",
            text: recorded!("genoa-kvm-guest"),
            brand: "AMD EPYC",
            microarchitecture: "Zen 4",
            machine: "zen4",
            same: true,
            caches: &[(1, 32, 8, Some(false)), (2, 1 << 10, 8, Some(true)), (3, 32 << 10, 16, Some(false))],
            tlbs: &[(1, ALL, 72, 72), (2, "4KiB 2MiB", 3072, 8)],
        },
        Known {
            file: "turin",
            text: recorded!("turin"),
            brand: "AMD EPYC 9655 96-Core Processor",
            microarchitecture: "Zen 5",
            machine: "zen4",
            same: false,
            caches: &[(1, 48, 12, Some(false)), (2, 1 << 10, 16, Some(true)), (3, 32 << 10, 16, Some(false))],
            // Multiples of 32 (leaf 8000_0021h): 4,096 and 1,024 entries.
            tlbs: &[(1, ALL, 96, 96), (2, "4KiB 2MiB", 4096, 8), (2, "1GiB", 1024, 4)],
        },
        Known {
            file: "hygon-3350",
            text: recorded!("hygon-3350"),
            brand: "Hygon C86 3350 8-core Processor",
            microarchitecture: "Dhyana (Zen)",
            machine: "zen4",
            same: false,
            caches: &[(1, 32, 8, Some(false)), (2, 512, 8, Some(true)), (3, 8 << 10, 16, Some(false))],
            tlbs: &[(1, ALL, 64, 64), (2, "4KiB 2MiB", 1536, 8)],
        },
        Known {
            file: "lisbon-k10",
            text: recorded!("lisbon-k10"),
            brand: "AMD Opteron(tm) Processor 4176 HE",
            microarchitecture: "an AMD processor whose family is not known here",
            machine: "zen4",
            same: false,
            // An L3 of 5 MiB in 48 ways is none that could be: it is left out, and noted.
            caches: &[(1, 64, 2, None), (2, 512, 16, None)],
            tlbs: &[
                (1, "4KiB", 48, 48),
                (1, "2MiB", 48, 48),
                (1, "1GiB", 48, 48),
                (2, "4KiB", 512, 4),
                (2, "2MiB", 128, 2),
                (2, "1GiB", 16, 8),
            ],
        },
    ]
}

fn sizes(sizes: &[TlbPages]) -> String {
    let names = sizes.iter().map(|size| match size {
        TlbPages::Small => "4KiB",
        TlbPages::Huge => "2MiB",
        TlbPages::Giant => "1GiB",
    });
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn recorded_processors_are_what_they_are() {
    for known in known() {
        let processor = Processor::decode(&Leaves::parse(known.text).unwrap());
        let file = known.file;
        assert_eq!(processor.brand, known.brand, "{file}");
        let found = nearest(&processor);
        let wanted = (known.microarchitecture, known.machine, known.same);
        assert_eq!((found.microarchitecture, found.machine, found.same), wanted, "{file}");
        let caches: Vec<_> = processor
            .caches
            .iter()
            .map(|cache| (cache.level, cache.bytes >> 10, cache.ways, cache.inclusive))
            .collect();
        assert_eq!(caches, known.caches, "{file}");
        let tlbs: Vec<_> =
            processor.tlbs.iter().map(|tlb| (tlb.level, sizes(&tlb.sizes), tlb.entries, tlb.ways)).collect();
        let wanted: Vec<_> = known.tlbs.iter().map(|&(l, sizes, e, w)| (l, sizes.to_owned(), e, w)).collect();
        assert_eq!(tlbs, wanted, "{file}");
    }
}

#[test]
fn a_hypervisor_is_named_and_a_masked_leaf_is_noted() {
    let guest = Processor::decode(&Leaves::parse(recorded!("genoa-kvm-guest")).unwrap());
    assert_eq!(guest.hypervisor.as_deref(), Some("KVMKVMKVM"));
    assert!(guest.notes.iter().any(|note| note.contains("80000019h") && note.contains("masked")), "{:?}", guest.notes);
    let metal = Processor::decode(&Leaves::parse(recorded!("genoa-9124")).unwrap());
    assert_eq!(metal.hypervisor, None);
    assert!(!metal.notes.iter().any(|note| note.contains("masked")), "{:?}", metal.notes);
}

#[test]
fn a_hidden_unit_of_the_l2_tlb_is_that_of_zen_5() {
    let text = recorded!("turin");
    let hidden = text.replace("CPUID 80000021: D93FFFCF", "CPUID 80000021: D93FBFCF");
    assert_ne!(text, hidden);
    let [metal, guest] = [text, &hidden].map(|text| Processor::decode(&Leaves::parse(text).unwrap()));
    assert_eq!(guest.tlbs, metal.tlbs);
    assert!(guest.notes.iter().any(|note| note.contains("80000021h")), "{:?}", guest.notes);
    assert!(!metal.notes.iter().any(|note| note.contains("80000021h")), "{:?}", metal.notes);
    // Before Zen 5 the size is what the leaf says.
    let rome = recorded!("rome-3975wx");
    let rome = Processor::decode(&Leaves::parse(rome).unwrap());
    assert!(!rome.notes.iter().any(|note| note.contains("80000021h")), "{:?}", rome.notes);
}

#[test]
fn frequencies_come_from_leaf_16h() {
    let processor = Processor::decode(&Leaves::parse(recorded!("icelake-gold-6336y")).unwrap());
    assert_eq!((processor.base_mhz, processor.max_mhz), (Some(2400), Some(3600)));
    let processor = Processor::decode(&Leaves::parse(recorded!("genoa-9124")).unwrap());
    assert_eq!((processor.base_mhz, processor.max_mhz), (None, None));
}

#[test]
fn this_processor_decodes() {
    let Some(leaves) = Leaves::here() else { return };
    let processor = Processor::decode(&leaves);
    assert!(!processor.vendor.is_empty());
    assert!(processor.tlbs.iter().all(|tlb| tlb.ways > 0 && tlb.entries >= tlb.ways), "{:?}", processor.tlbs);
}

proptest! {
    /// Whatever registers say: no panic, no size twice in a level, no array with fewer entries than
    /// ways.
    #[test]
    fn any_registers_decode(
        vendor in prop::sample::select(vec!["756E6547-6C65746E-49656E69", "68747541-444D4163-69746E65"]),
        leaves in prop::collection::vec((prop::sample::select(vec![
            0x1u32, 0x2, 0x4, 0x16, 0x18, 0x8000_0001, 0x8000_0005, 0x8000_0006, 0x8000_0019, 0x8000_001D, 0x8000_0021,
        ]), any::<[u32; 4]>()), 0..20),
    ) {
        let mut text = format!("CPUID 00000000: 0000001B-{vendor}\n");
        for (leaf, [a, b, c, d]) in leaves {
            text += &format!("CPUID {leaf:08X}: {a:08X}-{b:08X}-{c:08X}-{d:08X}\n");
        }
        let processor = Processor::decode(&Leaves::parse(&text).unwrap());
        for tlb in &processor.tlbs {
            prop_assert!(tlb.ways > 0 && tlb.entries.is_multiple_of(tlb.ways), "{tlb:?}");
            for size in &tlb.sizes {
                let holders = processor.tlbs.iter().filter(|t| t.level == tlb.level && t.sizes.contains(size)).count();
                prop_assert_eq!(holders, 1);
            }
        }
    }
}
