// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a core counts. Plain integers, each named once; a phase is the difference of two snapshots.

use nestwalk_mem::{Level, PageSize};

use crate::prefetcher::PrefetchCounters;

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
}

/// Which table of a nested walk. A native walk's only table counts as the guest's: it is the program's own kernel's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Table {
    /// The table of the program's kernel.
    Guest,
    /// The table of the host.
    Host,
}

/// TLB look-ups of one mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TlbCounters {
    /// Accesses of the program.
    pub accesses: u64,
    /// Those that were stores.
    pub stores: u64,
    /// Hits in the first level, by the entry's page size ([`PageSize::ALL`]).
    pub l1_hits: [u64; 3],
    /// Hits in the second level, by the entry's page size.
    pub l2_hits: [u64; 3],
    /// Misses (each one a walk), by the size of the translation that the walk found.
    pub misses: [u64; 3],
}

impl TlbCounters {
    /// Misses of all sizes: the walks.
    pub fn walks(&self) -> u64 {
        self.misses.iter().sum()
    }

    /// Misses that found a translation of `size`.
    pub fn misses_of(&self, size: PageSize) -> u64 {
        self.misses[size as usize]
    }
}

/// What happened in walks: references by step and by what served them, and look-ups in the walk's own caches.
///
/// A step of a two-dimensional walk has two co-ordinates: the guest level that is being looked for (0 for the data page,
/// after the last guest entry) and the host level that is read on the way (0 for the guest's own entry). Steps 1 to 24 of
/// the papers' figures are these, row by row. Native steps have host level 0.
///
/// The sum of all latencies is linear in these counts, so average walk latencies for other latencies follow from them
/// without another run.
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
    /// References that belong to no walk: the program's own, by what served them, and the co-runner's. They are told
    /// apart in a snapshot ([`WalkEvents::take_others`]).
    pub(crate) const DATA: u8 = 160;
    pub(crate) const CORUNNER: u8 = 164;
    /// Says of a reference that it is a prefetch. Nothing is counted there.
    pub(crate) const PREFETCH: u8 = 168;
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

    /// Takes out the counts at `code`, [`WalkEvents::DATA`] or [`WalkEvents::CORUNNER`].
    pub(crate) fn take_others(&mut self, code: u8) -> [u64; 4] {
        Served::ALL.map(|served| std::mem::take(&mut self.0[usize::from(code) + served as usize]))
    }

    /// References at the step of guest level `guest` (0: the data page) and host level `host` (0: the guest's entry).
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

    /// Look-ups in the page-walk caches of `table` that found an entry of `level`, and none of a lower one.
    pub fn pwc_hits(&self, table: Table, level: Level) -> u64 {
        self.0[usize::from(Self::pwc_code(table, level.0))]
    }

    /// Look-ups in the page-walk caches of `table` that found nothing.
    pub fn pwc_misses(&self, table: Table) -> u64 {
        self.0[usize::from(Self::pwc_code(table, 0))]
    }

    /// Look-ups in the nested TLB that hit.
    pub fn nested_tlb_hits(&self) -> u64 {
        self.0[usize::from(Self::nested_tlb_code(true))]
    }

    /// Look-ups in the nested TLB that missed.
    pub fn nested_tlb_misses(&self) -> u64 {
        self.0[usize::from(Self::nested_tlb_code(false))]
    }

    /// Translations by segment registers (DS-n).
    pub fn segment_translations(&self) -> u64 {
        self.0[Self::SEGMENTS]
    }

    /// References that found their line in flight, or brought, by a prefetch of the same walk.
    pub fn prefetch_hits(&self) -> u64 {
        self.0[Self::PREFETCH_HITS]
    }
}

impl Default for WalkEvents {
    fn default() -> Self {
        Self([0; Self::LEN])
    }
}

/// How many walks took how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatencyHistogram {
    /// Walks of `8 * i..8 * (i + 1)` cycles at place `i`; longer ones than all of these in the last place.
    pub buckets: [u64; LatencyHistogram::LEN],
}

impl LatencyHistogram {
    /// Cycles of a bucket.
    pub const WIDTH_CYCLES: u64 = 8;
    /// Buckets, the last one for all that is longer.
    pub const LEN: usize = 513;

    #[inline]
    pub(crate) fn add(&mut self, cycles: u64) {
        self.buckets[(cycles / Self::WIDTH_CYCLES).min(Self::LEN as u64 - 1) as usize] += 1;
    }

    /// The cycles within which the share `numerator / denominator` of all walks ended: the upper end of the bucket in which
    /// that share is reached. `None` without walks, and where it is reached in the last bucket, which has no upper end.
    pub fn quantile(&self, numerator: u64, denominator: u64) -> Option<u64> {
        let total: u64 = self.buckets.iter().sum();
        let wanted = (u128::from(total) * u128::from(numerator)).div_ceil(u128::from(denominator)).max(1);
        let mut seen = 0_u128;
        let bucket = self.buckets.iter().position(|&count| {
            seen += u128::from(count);
            seen >= wanted
        })?;
        (bucket + 1 < Self::LEN).then(|| (bucket as u64 + 1) * Self::WIDTH_CYCLES)
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { buckets: [0; Self::LEN] }
    }
}

/// Everything that a core counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// TLB look-ups of accesses that were simulated in full.
    pub tlb: TlbCounters,
    /// TLB look-ups of accesses that only the TLBs saw ([`Core::run_functional`](crate::Core::run_functional)).
    pub functional: TlbCounters,
    /// Cycles of all walks.
    pub walk_cycles: u64,
    /// The part of them spent on guest entries and the guest's page-walk caches.
    pub guest_walk_cycles: u64,
    /// The part of them spent on host entries, the host's page-walk caches and the nested TLB.
    pub host_walk_cycles: u64,
    /// References and look-ups of walks.
    pub walk_events: WalkEvents,
    /// The program's data accesses, by what served them.
    pub data: [u64; 4],
    /// Cycles of all of them.
    pub data_cycles: u64,
    /// The co-runner's accesses, by what served them.
    pub corunner: [u64; 4],
    /// Walks that ended in a page fault. Nothing else above counts them.
    pub aborted_walks: u64,
    /// References of those walks.
    pub aborted_references: u64,
    /// What the prefetcher did.
    pub prefetch: PrefetchCounters,
    /// Walks by their latency.
    pub latency: LatencyHistogram,
}

/// Applies `op` to every number of two values of one type.
macro_rules! each_number {
    ($self:ident, $other:ident, $op:expr; scalars $($scalar:ident),*; arrays $($array:ident),*; deep $($deep:ident),*) => {
        $($op(&mut $self.$scalar, $other.$scalar);)*
        $($self.$array.iter_mut().zip(&$other.$array).for_each(|(to, from)| $op(to, *from));)*
        $($self.$deep.combine(&$other.$deep, $op);)*
    };
}

impl TlbCounters {
    fn combine(&mut self, other: &Self, op: fn(&mut u64, u64)) {
        each_number!(self, other, op; scalars accesses, stores; arrays l1_hits, l2_hits, misses; deep);
    }
}

impl WalkEvents {
    fn combine(&mut self, other: &Self, op: fn(&mut u64, u64)) {
        self.0.iter_mut().zip(&other.0).for_each(|(to, from)| op(to, *from));
    }
}

impl PrefetchCounters {
    fn combine(&mut self, other: &Self, op: fn(&mut u64, u64)) {
        each_number!(self, other, op; scalars issued, needless, dropped, walks; arrays covered; deep);
    }
}

impl LatencyHistogram {
    fn combine(&mut self, other: &Self, op: fn(&mut u64, u64)) {
        each_number!(self, other, op; scalars; arrays buckets; deep);
    }
}

impl Counters {
    fn combine(&mut self, other: &Self, op: fn(&mut u64, u64)) {
        each_number!(self, other, op;
            scalars walk_cycles, guest_walk_cycles, host_walk_cycles, data_cycles, aborted_walks, aborted_references;
            arrays data, corunner;
            deep tlb, functional, walk_events, latency, prefetch);
    }

    /// What was counted since `earlier`, a snapshot of the same core.
    #[must_use]
    pub fn minus(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        difference.combine(earlier, |to, from| *to -= from);
        difference
    }

    /// The sum with another core's, or another window's, counters.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.combine(other, |to, from| *to += from);
        sum
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
        for others in [WalkEvents::DATA, WalkEvents::CORUNNER, WalkEvents::PREFETCH] {
            (0..4).for_each(|served| assert!(places.insert(others + served)));
        }
        assert_eq!(places.iter().filter(|&&code| usize::from(code) < WalkEvents::REFERENCES).count(), 144);
    }

    #[test]
    fn a_difference_and_a_sum_are_inverse_in_every_field() {
        let mut counters =
            Counters { walk_cycles: 1, guest_walk_cycles: 2, host_walk_cycles: 3, ..Counters::default() };
        (counters.data, counters.data_cycles, counters.corunner) = ([4; 4], 5, [6; 4]);
        (counters.aborted_walks, counters.aborted_references) = (7, 8);
        counters.prefetch = PrefetchCounters { issued: 9, needless: 18, dropped: 19, walks: 20, covered: [21; 32] };
        counters.tlb = TlbCounters { accesses: 10, stores: 11, l1_hits: [12; 3], l2_hits: [13; 3], misses: [14; 3] };
        counters.functional = TlbCounters { accesses: 15, ..counters.tlb };
        counters.walk_events.0 = [16; WalkEvents::LEN];
        counters.latency.buckets = [17; LatencyHistogram::LEN];
        let twice = counters.plus(&counters);
        assert_eq!((twice.prefetch.issued, twice.functional.accesses, twice.latency.buckets[512]), (18, 30, 34));
        assert_eq!(twice.minus(&counters), counters);
        assert_eq!(counters.minus(&counters), Counters::default());
    }

    #[test]
    fn quantiles_of_latencies_are_buckets() {
        let mut histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile(1, 2), None);
        (0..100).for_each(|cycles| histogram.add(cycles));
        histogram.add(1 << 40);
        assert_eq!(histogram.quantile(0, 100), Some(8));
        assert_eq!(histogram.quantile(50, 101), Some(56));
        assert_eq!(histogram.quantile(100, 101), Some(104));
        assert_eq!(histogram.quantile(1, 1), None);
    }
}
