// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which bundled machine is nearest to a processor: its file fills in what no register says.
//!
//! Model numbers: Linux, `arch/x86/include/asm/intel-family.h` and `arch/x86/kernel/cpu/amd.c`.

use serde::Serialize;

use crate::processor::Processor;

/// The bundled machine that stands for a processor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Nearest {
    /// Its name, as `nestwalk list machines` has it.
    pub machine: &'static str,
    /// What the processor is, as far as its model number says.
    pub microarchitecture: &'static str,
    /// Whether the machine has the processor's own microarchitecture; else it is only the nearest
    /// one there is.
    pub same: bool,
}

/// Microarchitecture, its models (Intel's family 6), the bundled machine, and whether that is the
/// same microarchitecture.
type Intel = (&'static str, &'static [u32], &'static str, bool);

const INTEL: [Intel; 11] = [
    ("Haswell", &[0x3C, 0x3F, 0x45, 0x46], "broadwell-asap", false),
    ("Broadwell", &[0x3D, 0x47, 0x4F, 0x56], "broadwell-asap", true),
    ("Skylake (server)", &[0x55], "skylake-6138", true),
    ("Skylake (client)", &[0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6], "skylake-6138", false),
    ("Ice Lake (server)", &[0x6A, 0x6C], "icelake-6346", true),
    ("Sunny Cove or Willow Cove (client)", &[0x7D, 0x7E, 0x8C, 0x8D, 0xA7], "icelake-6346", false),
    ("Sapphire Rapids", &[0x8F], "sapphire-rapids", true),
    ("Emerald Rapids", &[0xCF], "sapphire-rapids", false),
    ("Alder Lake or Raptor Lake", &[0x97, 0x9A, 0xB7, 0xBA, 0xBF], "sapphire-rapids", false),
    ("Granite Rapids", &[0xAD, 0xAE], "sapphire-rapids", false),
    ("Sierra Forest", &[0xAF], "sapphire-rapids", false),
];

/// The bundled machine nearest to `processor`.
pub fn nearest(processor: &Processor) -> Nearest {
    let of = |machine, microarchitecture, same| Nearest { machine, microarchitecture, same };
    match (processor.vendor.as_str(), processor.family) {
        ("GenuineIntel", 6) => match INTEL.iter().find(|(_, models, ..)| models.contains(&processor.model)) {
            Some(&(microarchitecture, _, machine, same)) => of(machine, microarchitecture, same),
            None if processor.model < 0x3C => of("broadwell-asap", "a processor older than Haswell", false),
            None => of("sapphire-rapids", "an Intel processor whose model is not known here", false),
        },
        ("GenuineIntel", _) => of("sapphire-rapids", "an Intel processor whose family is not known here", false),
        ("AuthenticAMD", 0x17) => of("zen4", "Zen, Zen+ or Zen 2", false),
        ("AuthenticAMD", 0x19) => match processor.model {
            0x10..=0x1F | 0x60..=0x7F | 0xA0..=0xAF => of("zen4", "Zen 4", true),
            _ => of("zen4", "Zen 3", false),
        },
        ("AuthenticAMD", 0x1A) => of("zen4", "Zen 5", false),
        ("HygonGenuine", 0x18) => of("zen4", "Dhyana (Zen)", false),
        ("AuthenticAMD" | "HygonGenuine", _) => of("zen4", "an AMD processor whose family is not known here", false),
        _ => of("sapphire-rapids", "a processor whose vendor is not known here", false),
    }
}
