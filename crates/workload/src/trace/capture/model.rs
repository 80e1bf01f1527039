// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a capture is like while it runs: misses of a TLB and what they cost, stretch by stretch.
//!
//! One fixed machine for all captures: a TLB of 1,536 pages in 6 ways, and for each of its misses
//! the line of the leaf PTE, looked for in a cache of 1 MiB and one of 32 MiB beside the program's
//! own lines. It is fed by what a [filter](super::super::filter) keeps, which costs next to
//! nothing, and says how much stretches of the program *differ*: that decides how many windows a
//! sample needs, and how long ones. What walks cost on the user's machine is for the simulator to
//! say.

use nestwalk_mem::Va;
use nestwalk_mem::addr::{LINE_SHIFT, PAGE_SHIFT};

use crate::modelled::Modelled;

/// Accesses of a [`Unit`], at least.
pub const UNIT_ACCESSES: u64 = 1 << 16;

/// Cycles of a reference that L2, last level or memory serve: usual values, of which only the
/// ratios matter here.
const L2_CYCLES: u64 = 14;
const LLC_CYCLES: u64 = 50;
const MEMORY_CYCLES: u64 = 200;
/// PTEs of a line, as a shift.
const PTES_SHIFT: u32 = 3;
/// Lines of page tables are told from the program's by this bit.
const TABLE_LINE: u64 = 1 << 60;

/// A stretch of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unit {
    /// The program's accesses before it.
    pub from: u64,
    /// Its accesses.
    pub accesses: u64,
    /// Of them, those that the filter kept.
    pub kept: u64,
    /// Misses of the TLB.
    pub walks: u64,
    /// What they cost.
    pub cycles: u64,
    /// What the kept accesses cost, each an access to the caches.
    pub data_cycles: u64,
    /// Pages touched for the first time.
    pub touches: u64,
}

impl Unit {
    /// What was counted in it.
    pub const fn modelled(&self) -> Modelled {
        Modelled { accesses: self.accesses, walks: self.walks, walk_cycles: self.cycles, data_cycles: self.data_cycles }
    }
}

/// An LRU array: rows of `ways` keys, the latest first. A key is never 0.
#[derive(Clone, Debug)]
struct Array {
    keys: Vec<u64>,
    ways: usize,
    set_mask: u64,
}

impl Array {
    fn new(sets: usize, ways: usize) -> Self {
        Self { keys: vec![0; sets * ways], ways, set_mask: sets as u64 - 1 }
    }

    /// Makes `number` the latest of its set. Returns whether it was there.
    #[inline]
    fn touch(&mut self, number: u64) -> bool {
        let (from, key) = ((number & self.set_mask) as usize * self.ways, number + 1);
        let keys = &mut self.keys[from..from + self.ways];
        let found = keys.iter().position(|&there| there == key);
        keys.copy_within(..found.unwrap_or(keys.len() - 1), 1);
        keys[0] = key;
        found.is_some()
    }
}

/// See the [module's documentation](self).
#[derive(Clone, Debug)]
pub struct Model {
    tlb: Array,
    l2: Array,
    llc: Array,
    units: Vec<Unit>,
    open: Unit,
    walks: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            tlb: Array::new(256, 6),
            l2: Array::new(1 << 10, 16),
            llc: Array::new(1 << 15, 16),
            units: Vec::new(),
            open: Unit::default(),
            walks: 0,
        }
    }
}

impl Model {
    /// An access that the filter kept.
    #[inline]
    pub fn kept(&mut self, address: Va) {
        self.open.kept += 1;
        let page = address.0 >> PAGE_SHIFT;
        if !self.tlb.touch(page) {
            self.open.walks += 1;
            self.open.cycles += self.reference(page >> PTES_SHIFT | TABLE_LINE);
        }
        self.open.data_cycles += self.reference(address.0 >> LINE_SHIFT);
    }

    fn reference(&mut self, line: u64) -> u64 {
        if self.l2.touch(line) {
            return L2_CYCLES;
        }
        if self.llc.touch(line) { LLC_CYCLES } else { MEMORY_CYCLES }
    }

    /// A page was touched for the first time.
    pub fn touched(&mut self) {
        self.open.touches += 1;
    }

    /// The program has made so many accesses more, and is at `position` now.
    pub fn passed(&mut self, accesses: u64, position: u64) {
        self.open.accesses += accesses;
        if self.open.accesses >= UNIT_ACCESSES {
            self.close(position);
        }
    }

    /// A skipped stretch begins at `position`, or ends there.
    pub fn close(&mut self, position: u64) {
        let unit = std::mem::replace(&mut self.open, Unit { from: position, ..Unit::default() });
        if unit.accesses > 0 {
            self.walks += unit.walks;
            self.units.push(unit);
        }
    }

    /// Misses of the TLB so far.
    pub const fn walks(&self) -> u64 {
        self.walks + self.open.walks
    }

    /// All stretches, in order.
    pub fn into_units(mut self) -> Vec<Unit> {
        self.close(0);
        self.units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_are_counted_where_they_are() {
        let mut model = Model::default();
        let mut position = 0;
        for round in 0..4u64 {
            for n in 0..UNIT_ACCESSES {
                // Odd rounds stay in 1,000 pages; even ones go through 60,000, which no TLB holds.
                let pages = if round % 2 == 1 { 1000 } else { 60_000 };
                model.kept(Va((n * 7919 % pages) << 12));
            }
            position += UNIT_ACCESSES;
            model.passed(UNIT_ACCESSES, position);
        }
        let total = model.walks();
        let units = model.into_units();
        assert_eq!(units.iter().map(|unit| unit.from / UNIT_ACCESSES).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(units.iter().map(|unit| unit.walks).sum::<u64>(), total);
        assert!(units[1].walks <= 1000 && units[3].walks <= 1000, "{units:?}");
        assert_eq!(units[0].walks, UNIT_ACCESSES, "{units:?}");
        // The TLB still has some of the 1,000 pages.
        assert!((UNIT_ACCESSES - 1000..=UNIT_ACCESSES).contains(&units[2].walks), "{units:?}");
        assert!(units[0].cycles >= L2_CYCLES * units[0].walks);
    }
}
