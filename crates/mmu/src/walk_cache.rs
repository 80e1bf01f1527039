// SPDX-License-Identifier: MIT OR Apache-2.0
//! What shortens a walk: page-walk caches split by level, and the nested TLB.
//!
//! All levels of a page-walk cache are searched at once; the hit nearest to the leaf counts and is the only one whose
//! place in the LRU order changes. It gives the node to go on with. Leaf entries never come in: they belong to the TLBs.
//!
//! As in ASAP's evaluation, guest and host tables have caches of their own, and the guest's hold guest-physical
//! pointers: after a hit the host walk for the node that was found is still to be done.

use nestwalk_mem::{Geometry, Level, NodeId, Vpn, VpnRange};

use crate::config::{NestedTlbConfig, PwcConfig, entry_sets};
use crate::error::MmuError;
use crate::lru::Lru;
use crate::mapping::Mapping;
use crate::processor::Asid;
use crate::simd::Simd;
use crate::walker::INDEX_BITS;

/// Page-walk caches of one table.
#[derive(Clone, Debug)]
pub struct WalkCache {
    latency_cycles: u32,
    /// Place `n` has entries of level `n + 2`.
    levels: [Lru; 4],
    exists: bool,
    asid: u64,
}

impl WalkCache {
    /// Empty ones. `place` is the part of the machine file, for messages.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(place: &str, config: &PwcConfig) -> Result<Self, MmuError> {
        let mut levels = std::array::from_fn(|_| Lru::new(1, 0));
        for (level, ways) in config.levels() {
            let sets = entry_sets(&format!("{place}.pl{level}"), ways.entries, ways.ways)?;
            levels[usize::from(level) - 2] = Lru::new(sets, ways.ways);
        }
        let exists = levels.iter().any(Lru::exists);
        Ok(Self { latency_cycles: config.latency_cycles, levels, exists, asid: 0 })
    }

    /// Cycles of a look-up.
    #[inline(always)]
    pub fn latency_cycles(&self) -> u32 {
        self.latency_cycles
    }

    /// Whether there is any.
    #[inline]
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// The lowest node known for `page`, and the level of the entry that points to it.
    #[inline(always)]
    pub(crate) fn find<S: Simd>(&mut self, simd: S, geometry: Geometry, page: Vpn) -> Option<(NodeId, Level)> {
        let (asid, below_root) = (self.asid, usize::from(geometry.levels()) - 1);
        let mut number = page.0;
        for (index, lru) in self.levels.iter_mut().take(below_root).enumerate() {
            number >>= INDEX_BITS;
            if let Some(node) = lru.find(simd, lru.set_of(number), number | asid) {
                return Some((NodeId(node as u32), Level(index as u8 + 2)));
            }
        }
        None
    }

    /// Takes in that the entry of `level` for `page` points to `node`. It must not be there yet.
    #[inline(always)]
    pub(crate) fn insert<S: Simd>(&mut self, simd: S, page: Vpn, level: Level, node: NodeId) {
        if let Some(lru) = self.levels.get_mut(level.index() - 1) {
            let number = page.0 >> (INDEX_BITS * level.index() as u32);
            lru.insert(simd, lru.set_of(number), number | self.asid, node.0.into());
        }
    }

    /// Whose entries are used from now on.
    pub(crate) fn switch_to(&mut self, asid: Asid) {
        self.asid = asid.key();
    }

    /// Takes out everything of the process in use (`INVLPG` does no less).
    pub fn flush(&mut self) {
        let asid = self.asid;
        self.levels.iter_mut().for_each(|lru| lru.retain(|key| Asid::part(key) != asid, |_| ()));
    }

    /// Takes out everything.
    pub fn flush_all(&mut self) {
        self.levels.iter_mut().for_each(|lru| lru.retain(|_| false, |_| ()));
    }

    /// Checks what must always hold: no entry twice.
    ///
    /// # Panics
    /// When something does not hold.
    pub fn check_invariants(&self) {
        self.levels.iter().for_each(Lru::check_invariants);
    }
}

/// Translations of 4 KiB pages of the host process that is the VM: each with the frame of that page, and the size of the leaf that
/// maps it.
#[derive(Clone, Debug)]
pub struct NestedTlb {
    latency_cycles: u32,
    lru: Lru,
    asid: u64,
}

impl NestedTlb {
    /// An empty one.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(config: &NestedTlbConfig) -> Result<Self, MmuError> {
        let sets = entry_sets("nested_tlb", config.entries, config.ways)?;
        Ok(Self { latency_cycles: config.latency_cycles, lru: Lru::new(sets, config.ways), asid: 0 })
    }

    /// Cycles of a look-up.
    #[inline(always)]
    pub fn latency_cycles(&self) -> u32 {
        self.latency_cycles
    }

    /// What is known of `page`; for a `write` only what allows it and needs no dirty bit to be set.
    #[inline(always)]
    pub(crate) fn find<S: Simd>(&mut self, simd: S, page: Vpn, write: bool) -> Option<Mapping> {
        let (set, key) = (self.lru.set_of(page.0), page.0 | self.asid);
        let found = Mapping::from_bits(self.lru.find(simd, set, key)?);
        if write && !found.takes_stores() {
            self.lru.remove(set, key);
            return None;
        }
        Some(found)
    }

    /// Takes in a translation that is not there yet.
    #[inline(always)]
    pub(crate) fn insert<S: Simd>(&mut self, simd: S, page: Vpn, found: Mapping) {
        let set = self.lru.set_of(page.0);
        self.lru.insert(simd, set, page.0 | self.asid, found.bits());
    }

    pub(crate) fn switch_to(&mut self, asid: Asid) {
        self.asid = asid.key();
    }

    /// Takes out what it knows of `pages`.
    pub fn invalidate(&mut self, pages: VpnRange) {
        let asid = self.asid;
        self.lru.retain(|key| Asid::part(key) != asid || !pages.contains(Vpn(key ^ asid)), |_| ());
    }

    /// Takes out everything.
    pub fn flush_all(&mut self) {
        self.lru.retain(|_| false, |_| ());
    }

    /// Checks what must always hold: no entry twice.
    ///
    /// # Panics
    /// When something does not hold.
    pub fn check_invariants(&self) {
        self.lru.check_invariants();
    }
}
