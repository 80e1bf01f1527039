// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens in walks, and what serves a reference: the counts of a core while it runs, in one
//! array.

use nestwalk_mem::Level;
use nestwalk_mem::counters::Counted;

/// What served a reference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Served {
    /// First-level data cache.
    L1d,
    /// Second-level cache.
    L2,
    /// Last-level cache.
    Llc,
    /// Memory.
    Memory,
}

impl Served {
    /// Nearest first.
    pub const ALL: [Self; 4] = [Self::L1d, Self::L2, Self::Llc, Self::Memory];

    /// Their names in results, in the same order.
    pub const NAMES: [&'static str; 4] = ["l1d", "l2", "llc", "memory"];
}

/// Which table of a nested walk. A native walk's only table counts as the guest's: it is the
/// program's own kernel's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Table {
    /// The table of the program's kernel.
    Guest,
    /// The table of the host.
    Host,
}

/// What happened in walks: references by step and by what served them, and look-ups in the walk's
/// own caches.
///
/// A step of a two-dimensional walk has two co-ordinates: the guest level that is being looked for
/// (0 for the data page, after the last guest entry) and the host level that is read on the way (0
/// for the guest's own entry). Steps 1 to 24 of the papers' figures are these, row by row. Native
/// steps have host level 0.
///
/// The sum of all latencies is linear in these counts, so average walk latencies for other
/// latencies follow from them without another run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkEvents(pub(crate) [u64; WalkEvents::LEN]);

impl WalkEvents {
    const SIDE: usize = 6;
    /// References come first, then look-ups.
    const REFERENCES: usize = Self::SIDE * Self::SIDE * 4;
    /// Per table a place for a miss and for hits at levels 1 to 5.
    const NESTED_TLB: usize = Self::REFERENCES + 2 * Self::SIDE;
    const SEGMENTS: usize = Self::NESTED_TLB + 2;
    /// Places of look-ups.
    pub(crate) const LOOKUPS_LEN: usize = 2 * Self::SIDE + 3;
    const PREFETCH_HITS: usize = Self::REFERENCES + Self::LOOKUPS_LEN;
    /// References that belong to no walk: the program's own, by what served them, and the
    /// co-runner's. They are told apart in a snapshot ([`WalkEvents::take`]).
    pub(crate) const DATA: u8 = 160;
    pub(crate) const CORUNNER: u8 = 164;
    /// Says of a reference that it is a prefetch. Nothing is counted there.
    pub(crate) const PREFETCH: u8 = 168;
    /// References of a walk to what an [accelerator](crate::accelerator) keeps in memory, by what
    /// served them.
    pub(crate) const ACCELERATOR: u8 = 172;
    /// A place for every code and what served it.
    pub(crate) const LEN: usize = 256 + 4;

    /// The place of a step's references served by the L1-D: levels as numbers from 0 to 5.
    #[inline(always)]
    pub(crate) const fn step_code(guest: u8, host: u8) -> u8 {
        (guest * Self::SIDE as u8 + host) * 4
    }

    /// The place of a look-up in the page-walk caches: the level that hit, or 0.
    #[inline(always)]
    pub(crate) const fn pwc_code(table: Table, level: u8) -> u8 {
        Self::REFERENCES as u8 + table as u8 * Self::SIDE as u8 + level
    }

    /// The place of a look-up in the nested TLB.
    #[inline(always)]
    pub(crate) const fn nested_tlb_code(hit: bool) -> u8 {
        Self::NESTED_TLB as u8 + hit as u8
    }

    /// The place of a reference that found what a prefetch of the same walk brought.
    #[inline(always)]
    pub(crate) const fn prefetch_hit_code() -> u8 {
        Self::PREFETCH_HITS as u8
    }

    /// The place of a translation by segment registers.
    #[inline(always)]
    pub(crate) const fn segments_code() -> u8 {
        Self::SEGMENTS as u8
    }

    /// The counts of look-ups.
    #[inline(always)]
    pub(crate) fn lookups(&mut self) -> &mut [u64; Self::LOOKUPS_LEN] {
        self.0[Self::REFERENCES..].first_chunk_mut().expect("there are as many places")
    }

    /// The counts from the place `code` on.
    pub(crate) fn counts<const N: usize>(&self, code: u8) -> [u64; N] {
        *self.0[usize::from(code)..].first_chunk().expect("there are as many places")
    }

    /// Takes out the counts from the place `code` on. A core's snapshot hands them to the
    /// structures that they belong to.
    pub(crate) fn take<const N: usize>(&mut self, code: u8) -> [u64; N] {
        let places = self.0[usize::from(code)..].first_chunk_mut().expect("there are as many places");
        std::mem::replace(places, [0; N])
    }

    /// References at the step of guest level `guest` (0: the data page) and host level `host` (0:
    /// the guest's entry).
    ///
    /// # Panics
    /// When a level is above 5.
    pub fn step(&self, guest: u8, host: u8, served: Served) -> u64 {
        assert!(guest < 6 && host < 6, "levels go up to 5");
        self.0[usize::from(Self::step_code(guest, host)) + served as usize]
    }

    /// References to entries of `level` of `table`.
    pub fn references(&self, table: Table, level: Level, served: Served) -> u64 {
        match table {
            Table::Guest => self.step(level.0, 0, served),
            Table::Host => (0..6).map(|guest| self.step(guest, level.0, served)).sum(),
        }
    }

    /// References to `table`, by what served them ([`Served::ALL`]).
    pub fn of_table(&self, table: Table) -> [u64; 4] {
        Served::ALL.map(|served| (1..=5).map(|level| self.references(table, Level(level), served)).sum())
    }

    /// All references.
    pub fn total_references(&self) -> u64 {
        self.0[..Self::REFERENCES].iter().sum()
    }
}

impl Default for WalkEvents {
    fn default() -> Self {
        Self([0; Self::LEN])
    }
}

impl Counted for WalkEvents {
    const ZERO: Self = Self([0; Self::LEN]);

    #[inline]
    fn combine(&mut self, other: &Self, op: impl Fn(&mut u64, u64) + Copy) {
        self.0.combine(&other.0, op);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_tables_and_levels_are_views_of_the_same_counts() {
        let mut events = WalkEvents::default();
        let mut add = |guest, host, served: Served, count| {
            events.0[usize::from(WalkEvents::step_code(guest, host)) + served as usize] += count;
        };
        add(4, 0, Served::Memory, 1);
        add(1, 0, Served::Llc, 2);
        add(1, 2, Served::L2, 4);
        add(0, 2, Served::L2, 8);
        add(5, 5, Served::L1d, 16);
        assert_eq!(events.references(Table::Guest, Level(1), Served::Llc), 2);
        assert_eq!(events.references(Table::Host, Level(2), Served::L2), 12);
        assert_eq!(events.of_table(Table::Guest), [0, 0, 2, 1]);
        assert_eq!(events.of_table(Table::Host), [16, 12, 0, 0]);
        assert_eq!(events.total_references(), 31);
    }

    #[test]
    fn all_places_of_events_are_different() {
        let mut places = std::collections::BTreeSet::new();
        for guest in 0..6 {
            for host in 0..6 {
                (0..4).for_each(|served| assert!(places.insert(WalkEvents::step_code(guest, host) + served)));
            }
        }
        assert!(places.iter().all(|&code| usize::from(code) < WalkEvents::REFERENCES));
        for table in [Table::Guest, Table::Host] {
            (0..6).for_each(|level| assert!(places.insert(WalkEvents::pwc_code(table, level))));
        }
        let others = [
            WalkEvents::nested_tlb_code(false),
            WalkEvents::nested_tlb_code(true),
            WalkEvents::prefetch_hit_code(),
            WalkEvents::segments_code(),
        ];
        assert!(others.into_iter().all(|code| places.insert(code)));
        for others in [WalkEvents::DATA, WalkEvents::CORUNNER, WalkEvents::PREFETCH, WalkEvents::ACCELERATOR] {
            (0..4).for_each(|served| assert!(places.insert(others + served)));
        }
        assert_eq!(places.iter().filter(|&&code| usize::from(code) < WalkEvents::REFERENCES).count(), 144);
    }

    #[test]
    fn counts_that_were_taken_out_are_no_longer_there() {
        let mut events = WalkEvents::default();
        events.0[usize::from(WalkEvents::DATA) + 3] = 7;
        events.0[usize::from(WalkEvents::CORUNNER)] = 8;
        assert_eq!(events.take(WalkEvents::DATA), [0, 0, 0, 7]);
        assert_eq!((events.take(WalkEvents::DATA), events.take(WalkEvents::CORUNNER)), ([0; 4], [8]));
    }
}
