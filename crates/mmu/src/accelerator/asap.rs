// SPDX-License-Identifier: MIT OR Apache-2.0
//! ASAP's half of the hardware (Margaritov et al., MICRO-52, 2019, sections 3.4 to 3.6): range
//! registers that say where sorted page-table nodes lie, and prefetches of the lines that a walk
//! will need.
//!
//! Kernels keep the nodes of the lowest levels in contiguous frames, in order of address. For a
//! stretch of pages whose nodes of some level lie in one such region the entry of a page is at
//! `base + (offset >> shift) * 8`, so that a line of every level can be asked for when a walk
//! begins. The walk goes on as always and uses only what it reads itself: a prefetch to a wrong
//! place costs a line of the caches and nothing else.
//!
//! In a virtual machine there is a set of registers for each dimension. Those of the guest's table
//! hold host-physical bases (the guest's regions are contiguous in the host's memory, too), so that
//! the lines of steps 15 and 20 of a walk are asked for at its start; those of the host's table are
//! searched when each of its host walks begins.

use nestwalk_mem::addr::ENTRY_BYTES;
use nestwalk_mem::keys::{Key, key, limit};
use nestwalk_mem::{Gpa, Gva, Hpa, Level, Va, Vpn, VpnRange};
use serde::{Deserialize, Serialize};

use crate::accelerator::Accelerator;
use crate::accelerator::prefetch::Issue;
use crate::error::MmuError;
use crate::leaf::INDEX_BITS;

/// The numbers of a scenario that are this technique's.
pub const KEYS: &[Key] = &[
    key("asap.registers", 1, RegisterCounters::MAX as u64, "registers", limit("the model's range registers")),
    key("asap.guest_levels[]", 1, LEVELS as u64, "levels", limit("level 4 is the highest below a root")),
    key("asap.host_levels[]", 1, LEVELS as u64, "levels", limit("level 4 is the highest below a root")),
];

/// ASAP's hardware (`[asap]` in a scenario). The kernels whose levels it prefetches need `tables =
/// { kind = "asap" }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AsapHardware {
    /// Range registers a table. The paper has 8 to 16.
    #[serde(default = "sixteen")]
    pub registers: usize,
    /// Levels of the guest's table to prefetch, or of the only one: `[1]` is P1 (P1g in a VM), `[1,
    /// 2]` is P1+P2.
    #[serde(default)]
    pub guest_levels: Vec<u8>,
    /// Levels of the host's table: `[1]` is P1h.
    #[serde(default)]
    pub host_levels: Vec<u8>,
}

const fn sixteen() -> usize {
    16
}

impl AsapHardware {
    /// The hardware, its registers empty.
    ///
    /// # Errors
    /// What is impossible about it.
    pub fn build(&self) -> Result<Asap, String> {
        let levels = |key: &str, levels: &[u8]| {
            Levels::new(levels).ok_or_else(|| format!("asap: {key} = {levels:?}: levels are 1 (PTE) to 4"))
        };
        let (guest, host) = (levels("guest_levels", &self.guest_levels)?, levels("host_levels", &self.host_levels)?);
        Asap::new(self.registers, guest, host).map_err(|error| format!("asap: {error}"))
    }
}

/// Levels that can be prefetched: PTE to P4D.
const LEVELS: usize = 4;

nestwalk_mem::counters! {
    /// What range registers covered. Walks that end in a page fault are in here, too.
    pub struct RegisterCounters {
        /// Walks that the prefetcher saw begin.
        walks: u64 ["walks"],
        /// Of those, walks to addresses that range register `i` of the guest's table, in order of
        /// the ranges' size, covered.
        covered: [u64; RegisterCounters::MAX] [hidden],
    }
    computed {
        /// Walks to addresses that so many of the largest ranges cover.
        "walks_covered_by_registers" ["walks" by ["1", "4", "8", "16"]] = |own| [1, 4, 8, 16].map(|count| own.covered_by(count)),
    }
}

impl Copy for RegisterCounters {}

impl RegisterCounters {
    /// The most range registers that a prefetcher may have.
    pub const MAX: usize = 32;

    /// Walks to addresses that the `registers` first range registers cover.
    pub fn covered_by(&self, registers: usize) -> u64 {
        self.covered.iter().take(registers).sum()
    }
}

/// Nodes of one level that lie in order in contiguous host-physical frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SortedNodes {
    /// The pages that they translate: those of whole nodes.
    pub pages: VpnRange,
    /// The nodes' level.
    pub level: Level,
    /// The first node.
    pub base: Hpa,
}

impl SortedNodes {
    /// Where the entry of page 0 would lie if the nodes began there: entry addresses are linear in
    /// the page from here.
    fn anchor(&self) -> u64 {
        self.base.0.wrapping_sub((self.pages.start.0 >> entry_order(self.level)) * ENTRY_BYTES)
    }
}

/// log2 of the pages that an entry at `level` spans.
const fn entry_order(level: Level) -> u32 {
    INDEX_BITS * (level.0 as u32 - 1)
}

/// One range register: a stretch of pages, and where their entries of each level are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Register {
    pages: VpnRange,
    /// [`SortedNodes::anchor`] by [`Level::index`].
    anchors: [Option<u64>; LEVELS],
}

/// The levels of one table to prefetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Levels([bool; LEVELS]);

impl Levels {
    /// These levels, 1 (PTE) to 4; `None` if there is another one among them.
    pub fn new(levels: &[u8]) -> Option<Self> {
        let mut chosen = Self::default();
        for &level in levels {
            *chosen.0.get_mut(usize::from(level).checked_sub(1)?)? = true;
        }
        Some(chosen)
    }

    fn has(self, level: Level) -> bool {
        self.0.get(level.index()).is_some_and(|&chosen| chosen)
    }

    /// The lowest one.
    fn lowest(self) -> Option<Level> {
        self.0.iter().position(|&chosen| chosen).map(|index| Level(index as u8 + 1))
    }
}

/// The range registers for one table.
#[derive(Clone, Debug, Default)]
struct Registers {
    levels: Levels,
    /// The largest range first.
    registers: Vec<Register>,
}

impl Registers {
    /// Loads what fits of descriptors of `nodes`: a register for each stretch of pages over which
    /// no base changes, where nodes of the lowest wanted level are sorted; the largest ones if
    /// there are too many.
    fn load(&mut self, nodes: &[SortedNodes], count: usize) {
        let wanted = || nodes.iter().filter(|nodes| self.levels.has(nodes.level));
        let mut edges: Vec<Vpn> = wanted().flat_map(|nodes| [nodes.pages.start, nodes.pages.end]).collect();
        edges.sort_unstable();
        edges.dedup();
        let mut registers: Vec<Register> = Vec::new();
        for edge in edges.windows(2) {
            let pages = VpnRange { start: edge[0], end: edge[1] };
            let mut anchors = [None; LEVELS];
            for nodes in wanted().filter(|nodes| nodes.pages.contains(pages.start)) {
                anchors[nodes.level.index()] = Some(nodes.anchor());
            }
            if self.levels.lowest().is_none_or(|lowest| anchors[lowest.index()].is_none()) {
                continue;
            }
            match registers.last_mut() {
                Some(last) if last.pages.end == pages.start && last.anchors == anchors => last.pages.end = pages.end,
                _ => registers.push(Register { pages, anchors }),
            }
        }
        registers.sort_by_key(|register| (std::cmp::Reverse(register.pages.len()), register.pages.start));
        registers.truncate(count);
        self.registers = registers;
    }

    /// The register that covers `page`.
    #[inline(always)]
    fn find(&self, page: Vpn) -> Option<usize> {
        self.registers.iter().position(|register| register.pages.contains(page))
    }

    /// Asks for the lines of `page`'s entries, those first that a walk needs first.
    #[inline(always)]
    fn prefetch(&self, register: usize, page: Vpn, issue: &mut Issue<'_>) {
        for (index, anchor) in self.registers[register].anchors.iter().enumerate().rev() {
            if let Some(anchor) = anchor {
                let entry = page.0 >> entry_order(Level(index as u8 + 1));
                issue.prefetch(Hpa(anchor.wrapping_add(entry * ENTRY_BYTES)));
            }
        }
    }
}

/// See the [module's documentation](self).
#[derive(Clone, Debug)]
pub struct Asap {
    /// Registers a table.
    count: usize,
    guest: Registers,
    host: Registers,
    /// The host page at which guest-physical memory begins.
    base: Vpn,
    counters: RegisterCounters,
}

impl Asap {
    /// With `registers` range registers a table, all empty. `guest` are the levels to prefetch of
    /// the program's own kernel's table (the only one, natively), `host` those of the host's.
    ///
    /// # Errors
    /// When there are no registers, or more than [`RegisterCounters::MAX`].
    pub fn new(registers: usize, guest: Levels, host: Levels) -> Result<Self, MmuError> {
        if !(1..=RegisterCounters::MAX).contains(&registers) {
            return Err(MmuError::Registers { registers, max: RegisterCounters::MAX });
        }
        let table = |levels| Registers { levels, registers: Vec::new() };
        Ok(Self {
            count: registers,
            guest: table(guest),
            host: table(host),
            base: Vpn(0),
            counters: RegisterCounters::default(),
        })
    }

    /// Loads the registers, as kernels do when their regions change: `guest` by pages of the
    /// program, `host` by pages of the VM's process in the host, in which guest-physical memory
    /// begins at `base`.
    pub fn load(&mut self, guest: &[SortedNodes], host: &[SortedNodes], base: Vpn) {
        self.guest.load(guest, self.count);
        self.host.load(host, self.count);
        self.base = base;
    }

    /// Range registers in use: for the guest's table and for the host's.
    pub fn loaded(&self) -> (usize, usize) {
        (self.guest.registers.len(), self.host.registers.len())
    }
}

impl Accelerator for Asap {
    const ACTIVE: bool = true;

    type Counters = RegisterCounters;

    #[inline(always)]
    fn walk_starts(&mut self, gva: Gva, issue: &mut Issue<'_>) {
        let page = Va::from(gva).page();
        let register = self.guest.find(page);
        self.counters.walks += 1;
        if let Some(register) = register {
            self.counters.covered[register] += 1;
            self.guest.prefetch(register, page, issue);
        }
    }

    #[inline(always)]
    fn host_walk_starts(&mut self, gpa: Gpa, issue: &mut Issue<'_>) {
        let page = self.base + gpa.page().0;
        if let Some(register) = self.host.find(page) {
            self.host.prefetch(register, page, issue);
        }
    }

    fn counters(&self) -> Option<&RegisterCounters> {
        Some(&self.counters)
    }

    fn counters_mut(&mut self) -> Option<&mut RegisterCounters> {
        Some(&mut self.counters)
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::addr::PAGE_SHIFT;
    use proptest::prelude::*;

    use super::*;

    fn sorted(start: u64, end: u64, level: u8, frame: u64) -> SortedNodes {
        let pages = VpnRange { start: Vpn(start), end: Vpn(end) };
        SortedNodes { pages, level: Level(level), base: Hpa(frame << PAGE_SHIFT) }
    }

    fn registers(levels: &[u8], nodes: &[SortedNodes], count: usize) -> Registers {
        let mut registers = Registers { levels: Levels::new(levels).unwrap(), registers: Vec::new() };
        registers.load(nodes, count);
        registers
    }

    #[test]
    fn a_register_a_mapping_where_upper_nodes_lie_together() {
        let nodes = [
            sorted(512, 1024, 1, 10),
            sorted(4096, 1 << 18, 1, 20),
            // The PMD node over both, and over pages that are not mapped.
            sorted(0, 1 << 18, 2, 99),
        ];
        let both = registers(&[1, 2], &nodes, 16);
        let ranges: Vec<_> = both.registers.iter().map(|r| (r.pages.start.0, r.pages.end.0)).collect();
        assert_eq!(ranges, [(4096, 1 << 18), (512, 1024)], "the largest first");
        assert!(both.registers.iter().all(|register| register.anchors[1] == Some(99 << 12)));
        assert_eq!(registers(&[1, 2], &nodes, 1).registers.len(), 1);
        assert_eq!(registers(&[2], &nodes, 16).registers.len(), 1);
        assert_eq!(registers(&[], &nodes, 16).registers.len(), 0);
    }

    #[test]
    fn levels_are_one_to_four() {
        assert_eq!(Levels::new(&[2, 1]), Some(Levels([true, true, false, false])));
        assert!(Levels::new(&[0]).is_none() && Levels::new(&[5]).is_none());
    }

    #[test]
    fn a_prefetcher_has_registers() {
        let new = |count| Asap::new(count, Levels::default(), Levels::default());
        assert!(new(0).is_err() && new(33).is_err() && new(32).is_ok());
    }

    proptest! {
        /// Every register says for each of its pages what the nodes say, whatever the nodes are.
        #[test]
        fn computed_entries_are_the_nodes(
            parts in prop::collection::vec((0u64..6, 1u64..5, 1u64..1000, any::<bool>()), 1..8),
            page in 0u64..20_000,
        ) {
            let (mut at, mut nodes) = (0, Vec::new());
            for (gap, length, frame, _) in &parts {
                nodes.push(sorted((at + gap) * 512, (at + gap + length) * 512, 1, 1000 * frame));
                at += gap + length;
            }
            nodes.push(sorted(0, 1 << 18, 2, 7));
            let loaded = registers(&[1, 2], &nodes, usize::MAX);
            let here = nodes.iter().find(|n| n.level == Level::PTE && n.pages.contains(Vpn(page)));
            let register = loaded.find(Vpn(page));
            prop_assert_eq!(register.is_some(), here.is_some());
            if let (Some(register), Some(here)) = (register, here) {
                let anchors = loaded.registers[register].anchors;
                let node = (page - here.pages.start.0) / 512;
                let entry = (here.base.0 >> PAGE_SHIFT) + node;
                prop_assert_eq!(anchors[0].unwrap().wrapping_add(page * 8), (entry << PAGE_SHIFT) + page % 512 * 8);
                prop_assert_eq!(anchors[1].unwrap().wrapping_add(page / 512 * 8), (7 << PAGE_SHIFT) + page / 512 * 8);
            }
        }
    }
}
