// SPDX-License-Identifier: MIT OR Apache-2.0
//! The geometry and the latencies of a core, as a machine file states them.
//!
//! Nothing here has a default that stands for hardware: what a file does not mention does not
//! exist.

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Hpa, PageSize};
use serde::{Deserialize, Serialize};

use crate::clustered;
use crate::error::MmuError;
use crate::tape::Reference;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: u64 = 1 << nestwalk_mem::addr::LINE_SHIFT;

/// A core with its private caches, and the last-level cache that it shares with others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MmuConfig {
    /// First-level data cache.
    pub l1d: CacheConfig,
    /// Misses of the first-level data cache that can be outstanding at once (its fill buffers).
    /// Only a prefetcher of page-table lines asks.
    #[serde(default)]
    pub l1d_miss_registers: Option<u32>,
    /// Second-level cache, private.
    pub l2: CacheConfig,
    /// Last-level cache, shared.
    pub llc: LlcConfig,
    /// From the load to the data, when memory serves it.
    pub memory_latency_cycles: u32,
    /// Cycles of a translation by segment registers (DS-n). Only a VM in segments asks.
    #[serde(default)]
    pub segment_latency_cycles: Option<u32>,
    /// The arrays of the first-level data TLB. Together they hold each page size at most once, and
    /// 4 KiB in any case.
    pub l1_tlb: Vec<TlbConfig>,
    /// The arrays of the second-level TLB; none if there is no second level.
    #[serde(default)]
    pub l2_tlb: Vec<TlbConfig>,
    /// Cycles that a load waits longer where its translation comes from the second-level TLB. By
    /// default 0: taken as hidden. Part of the time that programs wait for data, and of no walk.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub l2_tlb_hit_cycles: u32,
    /// Which translation leaves a set of a TLB.
    #[serde(default, skip_serializing_if = "TlbReplacement::is_lru")]
    pub tlb_replacement: TlbReplacement,
    /// Page-walk caches for the program's own table (the guest's, in a VM).
    #[serde(default)]
    pub guest_pwc: PwcConfig,
    /// Page-walk caches for the host's table, used in nested walks.
    #[serde(default)]
    pub host_pwc: PwcConfig,
    /// Whether the host walk for the data page, the last one of a nested walk, neither searches nor
    /// fills `host_pwc`, and waits for no look-up: a simulator's rule, only there to explain its
    /// figures (`machines/asap-simulator.toml`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host_pwc_skips_data: bool,
    /// Translations from guest-physical to host-physical pages, if there is such a thing.
    #[serde(default)]
    pub nested_tlb: Option<NestedTlbConfig>,
}

/// Whether files leave it out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
fn is_zero(cycles: &u32) -> bool {
    *cycles == 0
}

/// A set-associative cache of 64-byte lines. Any number of sets will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// Its size. In files a number of bytes or a string such as `"32KiB"`.
    #[serde(rename = "size", with = "nestwalk_mem::size::bytes")]
    #[schemars(with = "nestwalk_mem::schema::Bytes")]
    pub bytes: u64,
    /// Ways of a set.
    pub ways: u32,
    /// From the load to the data, when this cache serves it (not on top of the levels before it).
    pub latency_cycles: u32,
}

/// The last-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LlcConfig {
    /// Its size. In files a number of bytes or a string such as `"20MiB"`.
    #[serde(rename = "size", with = "nestwalk_mem::size::bytes")]
    #[schemars(with = "nestwalk_mem::schema::Bytes")]
    pub bytes: u64,
    /// Ways of a set.
    pub ways: u32,
    /// From the load to the data, when this cache serves it.
    pub latency_cycles: u32,
    /// What it holds besides what the private caches hold.
    pub policy: LlcPolicy,
}

/// How the last-level cache and the private ones go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LlcPolicy {
    /// A line comes into all levels and leaves each on its own.
    NonInclusive,
    /// As above, and a line that leaves the last level leaves the private caches of every core,
    /// too.
    Inclusive,
    /// A victim cache: a line comes here when the L2 evicts it, and leaves when a core takes it
    /// back.
    Exclusive,
}

/// One array of a TLB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlbConfig {
    /// The page sizes that it holds: `"4KiB"`, `"2MiB"`, `"1GiB"`.
    #[serde(with = "page_sizes")]
    #[schemars(with = "Vec<PageSizeName>")]
    pub sizes: Vec<PageSize>,
    /// Entries in all.
    pub entries: u32,
    /// Ways of a set.
    pub ways: u32,
    /// Whether one entry may hold up to 8 neighbouring 4 KiB pages (Clustered TLB). Of the second
    /// level only. Where another array holds `"4KiB"` too, that gets the pages without neighbours.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clustered: bool,
    /// The size of the contiguous blocks that it holds besides, one in an entry: 16 aligned 4 KiB
    /// pages in order whose leaves have the contiguous bit, which the kernels of such a machine set
    /// (arm64). Not at all if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contiguous: Option<Contiguous>,
}

/// The size of contiguous blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum Contiguous {
    /// 16 pages: arm64's with pages of 4 KiB.
    #[serde(rename = "64KiB")]
    K64,
}

/// Which translation leaves a full set of a TLB for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TlbReplacement {
    /// The one that was used the longest ago.
    #[default]
    Lru,
    /// The one that was used least often since it came in, of several the one in the first way: a
    /// simulator's rule, only there to explain its figures (`machines/asap-simulator.toml`).
    Lfu,
}

impl TlbReplacement {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
    fn is_lru(&self) -> bool {
        *self == Self::Lru
    }
}

/// Page-walk caches split by level: `plN` holds entries of level N that point to a node of level
/// N - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PwcConfig {
    /// Of one look-up, which searches all levels at once.
    pub latency_cycles: u32,
    /// PMD entries.
    pub pl2: Option<WaysConfig>,
    /// PUD entries.
    pub pl3: Option<WaysConfig>,
    /// P4D or, with four levels, PGD entries.
    pub pl4: Option<WaysConfig>,
    /// PGD entries of five-level tables.
    pub pl5: Option<WaysConfig>,
    /// Where they do not work as processors' do.
    #[serde(default, skip_serializing_if = "PwcRules::are_none")]
    pub rules: PwcRules,
}

/// How a simulator's page-walk caches differ from those of processors. Only there to explain
/// figures that such a simulator made (`machines/asap-simulator.toml`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PwcRules {
    /// How many neighbouring entries one tag stands for: a power of two, 1 if not given. With 8,
    /// the entries of a cache line, a walk past one entry makes its seven neighbours known as well.
    pub entries_per_tag: Option<u32>,
    /// Whether the levels above one that hit are searched and filled, too.
    pub all_levels: bool,
    /// Whether a hit counts as a miss where the look-up before, in the same level, was for the same
    /// tag.
    pub repeats_miss: bool,
}

/// Entries and ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaysConfig {
    /// Entries in all.
    pub entries: u32,
    /// Ways of a set.
    pub ways: u32,
}

/// A page size, as machine files write it.
#[derive(schemars::JsonSchema)]
#[schemars(inline)]
#[allow(dead_code)] // only its schema is used
enum PageSizeName {
    #[schemars(rename = "4KiB")]
    Small,
    #[schemars(rename = "2MiB")]
    Huge,
    #[schemars(rename = "1GiB")]
    Giant,
}

/// The nested TLB: whole translations from guest-physical to host-physical 4 KiB pages, of guest
/// tables and data alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NestedTlbConfig {
    /// Entries in all.
    pub entries: u32,
    /// Ways of a set.
    pub ways: u32,
    /// Of one look-up, be it a hit or not.
    pub latency_cycles: u32,
}

impl MmuConfig {
    /// Says what is wrong, if anything is.
    ///
    /// # Errors
    /// The first part that cannot be built.
    pub fn validate(&self) -> Result<(), MmuError> {
        cache_sets("l1d", self.l1d.bytes, self.l1d.ways)?;
        cache_sets("l2", self.l2.bytes, self.l2.ways)?;
        cache_sets("llc", self.llc.bytes, self.llc.ways)?;
        validate_tlb_level("l1_tlb", &self.l1_tlb)?;
        validate_tlb_level("l2_tlb", &self.l2_tlb)?;
        let holds_small = |array: &TlbConfig| array.sizes.contains(&PageSize::Small);
        if self.l1_tlb.iter().any(|array| array.clustered)
            || self.l2_tlb.iter().any(|array| array.clustered && !holds_small(array))
        {
            return Err(MmuError::Clusters);
        }
        if !self.l1_tlb.iter().any(|array| array.sizes.contains(&PageSize::Small)) {
            return Err(MmuError::NoSmallPages);
        }
        if self.tlb_replacement == TlbReplacement::Lfu && self.l2_tlb.iter().any(|array| array.clustered) {
            return Err(MmuError::ClustersByUse);
        }
        if self.holds_contiguous() {
            self.validate_contiguous()?;
        }
        let nested = self.nested_tlb.map_or(0, |nested| nested.latency_cycles);
        let lookups = [
            ("guest_pwc", self.guest_pwc.latency_cycles),
            ("host_pwc", self.host_pwc.latency_cycles),
            ("nested_tlb", nested),
        ];
        for (place, cycles) in lookups {
            if cycles > LOOKUP_CYCLES_MAX {
                return Err(MmuError::SlowLookup { place: place.into(), cycles, max: LOOKUP_CYCLES_MAX });
            }
        }
        for (place, pwc) in [("guest_pwc", &self.guest_pwc), ("host_pwc", &self.host_pwc)] {
            for (level, ways) in pwc.levels() {
                entry_sets(&format!("{place}.pl{level}"), ways.entries, ways.ways)?;
            }
            pwc.rules.tag_order(place)?;
        }
        if let Some(nested) = self.nested_tlb {
            entry_sets("nested_tlb", nested.entries, nested.ways)?;
        }
        Ok(())
    }

    /// Whether a TLB of it holds contiguous blocks, so that kernels on it set the contiguous bit.
    pub fn holds_contiguous(&self) -> bool {
        self.l1_tlb.iter().chain(&self.l2_tlb).any(|array| array.contiguous.is_some())
    }

    fn validate_contiguous(&self) -> Result<(), MmuError> {
        if self.tlb_replacement == TlbReplacement::Lfu || self.l2_tlb.iter().any(|array| array.clustered) {
            return Err(MmuError::Contiguous);
        }
        for (place, arrays) in [("l1_tlb", &self.l1_tlb), ("l2_tlb", &self.l2_tlb)] {
            if arrays.iter().filter(|array| array.contiguous.is_some()).count() > 1 {
                return Err(MmuError::SizeTwice { place: place.into(), size: "64KiB" });
            }
        }
        Ok(())
    }

    /// Says whether lines below `end` (physical memory and, above it, the co-runner's space) can be
    /// told apart.
    ///
    /// # Errors
    /// Names the cache that cannot, and how much would do.
    pub fn validate_memory(&self, end: Hpa) -> Result<(), MmuError> {
        let limit = clustered::FRAMES_MAX << PAGE_SHIFT;
        if self.l2_tlb.iter().any(|array| array.clustered) && end.0 > limit {
            let place = "l2_tlb, clustered".into();
            return Err(MmuError::MemoryTooLarge { place, sets: 1, bytes: end.0, limit });
        }
        let caches = [
            ("l1d", self.l1d.bytes, self.l1d.ways),
            ("l2", self.l2.bytes, self.l2.ways),
            ("llc", self.llc.bytes, self.llc.ways),
        ];
        for (place, bytes, ways) in caches {
            let sets = u64::from(cache_sets(place, bytes, ways)?);
            // One tag value stands for "empty", and a reference has room for 64 TiB.
            let limit = (sets * u64::from(u32::MAX) * LINE_BYTES).min(1 << Reference::ADDRESS_BITS);
            if end.0 > limit {
                return Err(MmuError::MemoryTooLarge { place: place.into(), sets, bytes: end.0, limit });
            }
        }
        Ok(())
    }
}

impl MmuConfig {
    /// The same with clustered entries for 4 KiB pages in the second-level TLB, as the machine has
    /// them; else half of the ways of the array that holds such pages become an array of clusters
    /// beside it.
    ///
    /// # Errors
    /// When no array of the second level holds such pages, or it has one way only.
    pub fn with_clustered_tlb(mut self) -> Result<Self, MmuError> {
        if self.l2_tlb.iter().any(|array| array.clustered) {
            return Ok(self);
        }
        let holds_small = |array: &&mut TlbConfig| array.sizes.contains(&PageSize::Small) && array.ways > 1;
        let array = self.l2_tlb.iter_mut().find(holds_small).ok_or(MmuError::Clusters)?;
        let (sets, ways) = (array.entries / array.ways, array.ways / 2);
        (array.ways, array.entries) = (array.ways - ways, sets * (array.ways - ways));
        let entries = sets * ways;
        self.l2_tlb.push(TlbConfig { sizes: vec![PageSize::Small], entries, ways, clustered: true, contiguous: None });
        Ok(self)
    }
}

impl MmuConfig {
    /// The same with contiguous blocks in both levels of the TLB, as the machine has them; else in
    /// the arrays that hold 4 KiB pages.
    #[must_use]
    pub fn with_contiguous_tlb(mut self) -> Self {
        if !self.holds_contiguous() {
            for array in self.l1_tlb.iter_mut().chain(&mut self.l2_tlb) {
                let holds_small = array.sizes.contains(&PageSize::Small) && !array.clustered;
                array.contiguous = holds_small.then_some(Contiguous::K64);
            }
        }
        self
    }
}

impl PwcConfig {
    /// The levels that exist, leaf side first.
    pub(crate) fn levels(&self) -> impl Iterator<Item = (u8, WaysConfig)> + use<> {
        [self.pl2, self.pl3, self.pl4, self.pl5].into_iter().zip(2..).filter_map(|(ways, level)| Some((level, ways?)))
    }
}

impl PwcRules {
    /// Whether they are those of processors.
    pub(crate) fn are_none(&self) -> bool {
        Self { entries_per_tag: self.entries_per_tag.filter(|&entries| entries > 1), ..*self } == Self::default()
    }

    /// log2 of the entries that one tag stands for. `place` is the part of the machine file, for
    /// messages.
    pub(crate) fn tag_order(&self, place: &str) -> Result<u32, MmuError> {
        let entries = self.entries_per_tag.unwrap_or(1);
        if !entries.is_power_of_two() {
            return Err(MmuError::Tag { place: format!("{place}.rules"), entries });
        }
        Ok(entries.ilog2())
    }
}

/// The longest look-up in page-walk caches or the nested TLB, in cycles: three of them follow each
/// other at most, and a [`Reference`] has room for their sum.
const LOOKUP_CYCLES_MAX: u32 = (Reference::WAIT_MAX / 3) as u32;

/// The most ways that a cache may have, and a table of entries.
const CACHE_WAYS_MAX: u32 = 64;
const ENTRY_WAYS_MAX: u32 = 4096;

fn ways_are_sane(place: &str, ways: u32, max: u32) -> Result<(), MmuError> {
    match ways {
        0 => Err(MmuError::ZeroWays { place: place.into() }),
        ways if ways > max => Err(MmuError::TooManyWays { place: place.into(), ways, max }),
        _ => Ok(()),
    }
}

/// The sets of a cache.
pub(crate) fn cache_sets(place: &str, bytes: u64, ways: u32) -> Result<u32, MmuError> {
    ways_are_sane(place, ways, CACHE_WAYS_MAX)?;
    let set_bytes = u64::from(ways) * LINE_BYTES;
    if bytes == 0 {
        return Err(MmuError::Empty { place: place.into() });
    }
    let below = bytes / set_bytes * set_bytes;
    match u32::try_from(bytes / set_bytes) {
        Ok(sets) if below == bytes && sets < 1 << 26 => Ok(sets),
        _ => Err(MmuError::Indivisible {
            place: place.into(),
            bytes,
            ways,
            line: LINE_BYTES,
            below,
            above: below + set_bytes,
        }),
    }
}

/// The sets of a table of entries.
pub(crate) fn entry_sets(place: &str, entries: u32, ways: u32) -> Result<u32, MmuError> {
    ways_are_sane(place, ways, ENTRY_WAYS_MAX)?;
    if entries == 0 {
        return Err(MmuError::Empty { place: place.into() });
    }
    if !entries.is_multiple_of(ways) {
        return Err(MmuError::IndivisibleEntries { place: place.into(), entries, ways });
    }
    Ok(entries / ways)
}

fn validate_tlb_level(place: &str, arrays: &[TlbConfig]) -> Result<(), MmuError> {
    for array in arrays {
        entry_sets(place, array.entries, array.ways)?;
    }
    for size in PageSize::ALL {
        let holders = |clustered: bool| -> usize {
            let arrays = arrays.iter().filter(|array| (array.clustered && size == PageSize::Small) == clustered);
            arrays.map(|array| array.sizes.iter().filter(|&&s| s == size).count()).sum()
        };
        if holders(false) > 1 || holders(true) > 1 {
            return Err(MmuError::SizeTwice { place: place.into(), size: page_sizes::text(size) });
        }
    }
    Ok(())
}

/// Page sizes as people write them.
mod page_sizes {
    use nestwalk_mem::PageSize;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub const fn text(size: PageSize) -> &'static str {
        PageSize::NAMES[size as usize]
    }

    pub fn serialize<S: Serializer>(sizes: &[PageSize], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(sizes.iter().map(|&size| text(size)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PageSize>, D::Error> {
        Vec::<String>::deserialize(deserializer)?
            .iter()
            .map(|name| {
                PageSize::ALL.into_iter().find(|&size| text(size) == name).ok_or_else(|| {
                    D::Error::custom(format!("{name:?} is no page size; there are \"4KiB\", \"2MiB\" and \"1GiB\""))
                })
            })
            .collect()
    }
}
