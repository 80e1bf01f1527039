// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPUID's registers: read from this processor, or from a file that was recorded on another one.

use std::collections::BTreeMap;

/// What one leaf returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

impl Registers {
    /// The four, in the order of their names.
    pub(crate) const fn all(self) -> [u32; 4] {
        [self.eax, self.ebx, self.ecx, self.edx]
    }
}

/// Why a recorded dump cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DumpError {
    /// A line begins like one of a dump and goes on otherwise.
    #[error(
        "line {line}: {text:?} is no CPUID line; write for example \
             \"CPUID 00000004: 1C004121-01C0003F-0000003F-00000000\" or what `cpuid -r` prints"
    )]
    Line {
        /// Counted from 1.
        line: usize,
        /// Its beginning.
        text: String,
    },
    /// Nothing in the file looks like CPUID.
    #[error("has no CPUID line; `cpuid -1 -r` prints such a file")]
    Empty,
}

/// The registers of each leaf and subleaf. A leaf that is not there reads as zeros, as a processor
/// answers that has none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Leaves(BTreeMap<(u32, u32), Registers>);

/// The leaves that are read: those that identify the processor, and those that describe its caches
/// and TLBs.
const LEAVES: [u32; 17] = [
    0x0,
    0x1,
    0x2,
    0x4,
    0x16,
    0x18,
    0x4000_0000,
    0x8000_0000,
    0x8000_0001,
    0x8000_0002,
    0x8000_0003,
    0x8000_0004,
    0x8000_0005,
    0x8000_0006,
    0x8000_0019,
    0x8000_001D,
    0x8000_0021,
];

/// Subleaves of one leaf, at most. Leaf 18h of today's processors has 8.
const SUBLEAVES_MAX: u32 = 32;

impl Leaves {
    /// Those of the processor that this thread runs on; none where there is no CPUID.
    #[cfg(target_arch = "x86_64")]
    pub fn here() -> Option<Self> {
        Some(Self::read(|leaf, subleaf| {
            let found = std::arch::x86_64::__cpuid_count(leaf, subleaf);
            Registers { eax: found.eax, ebx: found.ebx, ecx: found.ecx, edx: found.edx }
        }))
    }

    /// Those of the processor that this thread runs on; none where there is no CPUID.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn here() -> Option<Self> {
        None
    }

    /// Asks `cpuid` for each leaf that it has. Beyond the highest leaf Intel's processors repeat
    /// another one.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fn read(cpuid: impl Fn(u32, u32) -> Registers) -> Self {
        let virtualised = cpuid(1, 0).ecx & HYPERVISOR != 0;
        let mut leaves = Self::default();
        for leaf in LEAVES {
            let there = match leaf {
                0x4000_0000 => virtualised,
                _ => leaf <= cpuid(leaf & 0x8000_0000, 0).eax,
            };
            let subleaves = match leaf {
                0x4 | 0x18 | 0x8000_001D => SUBLEAVES_MAX,
                _ => 1,
            };
            for subleaf in (0..subleaves).take_while(|_| there) {
                let registers = cpuid(leaf, subleaf);
                if subleaf > 0 && registers.all() == [0; 4] {
                    break;
                }
                leaves.0.insert((leaf, subleaf), registers);
            }
        }
        leaves
    }

    /// Reads a dump of the first processor in `text`: lines such as
    /// `CPUID 00000004: EAX-EBX-ECX-EDX` with the subleaves in order (InstLatx64), or what
    /// `cpuid -r` prints. Other lines are comments.
    ///
    /// # Errors
    /// When a CPUID line cannot be read, or there is none.
    pub fn parse(text: &str) -> Result<Self, DumpError> {
        let mut leaves = Self::default();
        let mut subleaves: BTreeMap<u32, u32> = BTreeMap::new();
        for (number, line) in text.lines().map(str::trim).enumerate() {
            let parsed = if let Some(rest) = line.strip_prefix("CPUID ").filter(|rest| rest.contains(':')) {
                short_line(rest).map(|(leaf, registers)| (leaf, None, registers))
            } else if line.starts_with("0x") {
                long_line(line)
            } else {
                continue;
            };
            let Some((leaf, subleaf, registers)) = parsed else {
                return Err(DumpError::Line { line: number + 1, text: line.chars().take(60).collect() });
            };
            if leaf == 0 && leaves.0.contains_key(&(0, 0)) {
                break; // the next processor of the file
            }
            let next = subleaves.entry(leaf).or_default();
            leaves.0.insert((leaf, subleaf.unwrap_or(*next)), registers);
            *next += 1;
        }
        if leaves.0.is_empty() { Err(DumpError::Empty) } else { Ok(leaves) }
    }

    /// The registers of a leaf without subleaves, or of its first.
    pub fn leaf(&self, leaf: u32) -> Registers {
        self.0.get(&(leaf, 0)).copied().unwrap_or_default()
    }

    /// All subleaves of a leaf, in order.
    pub fn subleaves(&self, leaf: u32) -> impl Iterator<Item = Registers> + '_ {
        self.0.range((leaf, 0)..=(leaf, u32::MAX)).map(|(_, registers)| *registers)
    }

    /// Whether a leaf is there and says anything.
    pub(crate) fn says(&self, leaf: u32) -> bool {
        self.subleaves(leaf).any(|registers| registers.all() != [0; 4])
    }
}

/// Leaf 1, ECX: a hypervisor says that it is one.
pub(crate) const HYPERVISOR: u32 = 1 << 31;

/// `00000004: 1C004121-01C0003F-0000003F-00000000 [...]`.
fn short_line(rest: &str) -> Option<(u32, Registers)> {
    let (leaf, rest) = rest.split_once(':')?;
    let mut words = rest.split_whitespace().next()?.split('-').map(|word| u32::from_str_radix(word, 16).ok());
    let mut next = || words.next().flatten();
    let registers = Registers { eax: next()?, ebx: next()?, ecx: next()?, edx: next()? };
    Some((u32::from_str_radix(leaf.trim(), 16).ok()?, registers))
}

/// `0x00000004 0x00: eax=0x1c004121 ebx=0x01c0003f ecx=0x0000003f edx=0x00000000`.
fn long_line(line: &str) -> Option<(u32, Option<u32>, Registers)> {
    let hexadecimal = |word: &str| u32::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let (place, rest) = line.split_once(':')?;
    let mut place = place.split_whitespace().map(hexadecimal);
    let (leaf, subleaf) = (place.next()??, place.next()??);
    let register = |name: &str| rest.split_whitespace().find_map(|word| hexadecimal(word.strip_prefix(name)?));
    let (eax, ebx, ecx, edx) = (register("eax=")?, register("ebx=")?, register("ecx=")?, register("edx=")?);
    Some((leaf, Some(subleaf), Registers { eax, ebx, ecx, edx }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF4: Registers = Registers { eax: 0x1C00_4121, ebx: 0x01C0_003F, ecx: 0x3F, edx: 0 };

    #[test]
    fn both_ways_of_writing_are_read_and_say_the_same() {
        let short = Leaves::parse(
            "CPUID 00000000: 00000014-756E6547-6C65746E-49656E69 [GenuineIntel]\n\
             CPUID 00000004: 1C004121-01C0003F-0000003F-00000000 [SL 00]\n\
             CPUID 00000004: 00000001-00000002-00000003-00000004\n\
             CPUID 00000000: 00000001-00000002-00000003-00000004",
        )
        .unwrap();
        let long = Leaves::parse(
            "CPU 0:\n   0x00000000 0x00: eax=0x00000014 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69\n   \
             0x00000004 0x00: eax=0x1c004121 ebx=0x01c0003f ecx=0x0000003f edx=0x00000000\n   \
             0x00000004 0x01: eax=0x00000001 ebx=0x00000002 ecx=0x00000003 edx=0x00000004",
        )
        .unwrap();
        assert_eq!(short, long);
        assert_eq!(short.leaf(4), LEAF4);
        assert_eq!(short.subleaves(4).count(), 2);
        assert_eq!(short.leaf(0x8000_001D), Registers::default());
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let error = Leaves::parse("\nCPUID 00000004: 1C004121-x").unwrap_err();
        assert!(error.to_string().starts_with("line 2: \"CPUID 00000004: 1C004121-x\""), "{error}");
        assert_eq!(Leaves::parse("hello\n"), Err(DumpError::Empty));
    }

    #[test]
    fn no_leaf_is_asked_for_that_the_processor_does_not_have() {
        let asked = std::cell::RefCell::new(Vec::new());
        let leaves = Leaves::read(|leaf, _| {
            asked.borrow_mut().push(leaf);
            let eax = if leaf & 0x7FFF_FFFF == 0 { leaf | 4 } else { 1 };
            Registers { eax, ..Registers::default() }
        });
        assert!(asked.borrow().iter().all(|leaf| leaf & 0x7FFF_FFFF <= 4), "{asked:?}");
        assert_eq!(leaves.subleaves(4).count(), SUBLEAVES_MAX as usize);
    }
}
