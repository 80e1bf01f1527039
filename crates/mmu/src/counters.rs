// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a core counts: plain integers, each [declared once](nestwalk_mem::counters) in the file of
//! the structure that it belongs to. A phase is the difference of two snapshots.
//!
//! While a core runs, counts of walks are in one array ([`WalkEvents`]). A snapshot moves the
//! counts of look-ups and of data accesses to the structures that they belong to.

use nestwalk_mem::Cycles;

use crate::accelerator::asap::RegisterCounters;
use crate::accelerator::cuckoo::CuckooCounters;
use crate::accelerator::pom_tlb::PomTlbCounters;
use crate::accelerator::prefetch::PrefetchCounters;
use crate::config::MmuConfig;
use crate::contiguous::ContiguousCounters;
use crate::events::WalkEvents;
use crate::hierarchy::CacheCounters;
use crate::latency::LatencyHistogram;
use crate::segments::SegmentCounters;
use crate::tlb::TlbCounters;
use crate::walk_cache::{NestedTlbCounters, PwcCounters};

nestwalk_mem::counters! {
    /// Everything that a core counts. The counters of each structure are declared in the
    /// structure's file.
    pub struct Counters {
        /// TLB look-ups of accesses that were simulated in full.
        tlb: TlbCounters [group],
        /// TLB look-ups of accesses that only the TLBs saw
        /// ([`Core::run_functional`](crate::Core::run_functional)).
        functional: TlbCounters [hidden],
        /// Cycles of all walks.
        walk_cycles: u64 ["cycles"],
        /// The part of them spent on guest entries, the guest's page-walk caches, and what is asked
        /// before a walk.
        guest_walk_cycles: u64 ["cycles"],
        /// The part of them spent on host entries, the host's page-walk caches and the nested TLB.
        host_walk_cycles: u64 ["cycles"],
        /// Walks by their latency.
        latency: LatencyHistogram [group at "walk_latency_cycles"],
        /// References of walks.
        walk_events: WalkEvents [hidden],
        /// Walks that ended in a page fault. Nothing else counts them.
        aborted_walks: u64 ["walks"],
        /// References of those walks.
        aborted_references: u64 ["references"],
        /// Page-walk caches of the guest's table (the only one, when native).
        guest_pwc: PwcCounters [group at "guest_pwc"],
        /// Page-walk caches of the host's table.
        host_pwc: PwcCounters [group at "host_pwc"],
        /// The nested TLB.
        nested_tlb: NestedTlbCounters [group at "nested_tlb"],
        /// Segment registers.
        segments: SegmentCounters [group],
        /// The data caches.
        caches: CacheCounters [group],
        /// Contiguous blocks.
        contiguous: ContiguousCounters [optional at "contiguous"],
        /// Prefetches of page-table lines.
        prefetch: PrefetchCounters [group at "prefetches"],
        /// A part-of-memory TLB.
        pom_tlb: PomTlbCounters [optional at "pom_tlb"],
        /// Hashed page tables.
        cuckoo: CuckooCounters [optional at "cuckoo"],
        /// The prefetcher's range registers.
        registers: RegisterCounters [group at "prefetches"],
    }
}

impl Counters {
    /// How long loads waited for data and for the second-level TLB, beyond the latency of an L1-D
    /// hit, on a core of `config`.
    pub fn data_waits(&self, config: &MmuConfig) -> Cycles {
        let l1d_hits = u64::from(config.l1d.latency_cycles) * self.tlb.accesses;
        let l2_tlb_hits = u64::from(config.l2_tlb_hit_cycles) * self.tlb.l2_hits.iter().sum::<u64>();
        Cycles(self.caches.data_cycles - l1d_hits + l2_tlb_hits)
    }
}

/// How long accesses took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// Their walks.
    pub walk: Cycles,
    /// Their data, L1-D hits included.
    pub data: Cycles,
    /// Those that the second-level TLB answered.
    pub second_tlb_hits: u64,
}

impl Taken {
    /// What accesses took since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            walk: self.walk - before.walk,
            data: self.data - before.data,
            second_tlb_hits: self.second_tlb_hits - before.second_tlb_hits,
        }
    }
}

/// What an accelerator counts: nothing, or a part of [`Counters`].
pub trait AcceleratorCounters: Clone {
    /// The part of `counters`, if there is one.
    fn of(counters: &mut Counters) -> Option<&mut Self>;
}

impl AcceleratorCounters for () {
    fn of(_: &mut Counters) -> Option<&mut Self> {
        None
    }
}

impl AcceleratorCounters for RegisterCounters {
    fn of(counters: &mut Counters) -> Option<&mut Self> {
        Some(&mut counters.registers)
    }
}

impl AcceleratorCounters for PomTlbCounters {
    fn of(counters: &mut Counters) -> Option<&mut Self> {
        Some(&mut counters.pom_tlb)
    }
}

impl AcceleratorCounters for CuckooCounters {
    fn of(counters: &mut Counters) -> Option<&mut Self> {
        Some(&mut counters.cuckoo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_in_the_second_level_tlb_wait_as_long_as_the_file_says() {
        let mut counters = Counters::default();
        let config: MmuConfig = toml::from_str(include_str!("../tests/machine.toml")).unwrap();
        counters.tlb = TlbCounters { accesses: 10, l2_hits: [3, 1, 0], ..TlbCounters::default() };
        counters.caches.data_cycles = 10 * u64::from(config.l1d.latency_cycles) + 70;
        assert_eq!(counters.data_waits(&config), Cycles(70));
        let slower = MmuConfig { l2_tlb_hit_cycles: 7, ..config };
        assert_eq!(counters.data_waits(&slower), Cycles(70 + 4 * 7));
    }

    #[test]
    fn counters_have_different_paths_and_each_has_a_text_and_a_unit() {
        let mut all = nestwalk_mem::counters::list_all::<Counters>();
        assert!(all.iter().all(|counter| counter.text.ends_with('.') && !counter.unit.is_empty()), "{all:#?}");
        all.sort_by(|one, two| one.path.cmp(&two.path));
        assert!(all.windows(2).all(|pair| pair[0].path != pair[1].path), "{all:#?}");
    }
}
