// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with a configuration.

/// Why a [`MmuConfig`](crate::MmuConfig) cannot be built. Each message names the place in the file
/// and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MmuError {
    /// No ways.
    #[error("[{place}]: ways = 0; a structure has at least one way")]
    ZeroWays {
        /// The part of the machine file.
        place: String,
    },
    /// More ways than the simulator keeps.
    #[error("[{place}]: ways = {ways}; at most {max} are supported")]
    TooManyWays {
        /// The part of the machine file.
        place: String,
        /// What was asked for.
        ways: u32,
        /// The most there can be.
        max: u32,
    },
    /// A cache whose size its ways and lines do not divide.
    #[error(
        "[{place}]: size = {bytes} bytes is no multiple of {ways} ways of {line}-byte lines; {below} or {above} would be"
    )]
    Indivisible {
        /// The part of the machine file.
        place: String,
        /// What was asked for.
        bytes: u64,
        /// Its ways.
        ways: u32,
        /// Bytes of a line.
        line: u64,
        /// The nearest smaller size that would do.
        below: u64,
        /// The nearest larger one.
        above: u64,
    },
    /// A cache or table with nothing in it.
    #[error("[{place}]: it has no entries; leave the part out, or give it some")]
    Empty {
        /// The part of the machine file.
        place: String,
    },
    /// A table whose entries its ways do not divide.
    #[error("[{place}]: {entries} entries is no multiple of {ways} ways")]
    IndivisibleEntries {
        /// The part of the machine file.
        place: String,
        /// What was asked for.
        entries: u32,
        /// Its ways.
        ways: u32,
    },
    /// The first-level TLB must be able to hold every translation, if need be in pieces.
    #[error("[[l1_tlb]]: no array holds \"4KiB\" translations; add it to the sizes of one")]
    NoSmallPages,
    /// Clusters of 4 KiB pages need a second-level array for 4 KiB pages.
    #[error(
        "clustered TLB entries take an array of the second level, [[l2_tlb]], that holds \"4KiB\" translations; to split one \
         for them, it must have 2 ways or more"
    )]
    Clusters,
    /// Clusters of 4 KiB pages are not kept by how often they were used.
    #[error("clustered TLB entries take tlb_replacement = \"lru\"; leave one of the two out")]
    ClustersByUse,
    /// Contiguous blocks are kept in order of use, and beside no clusters.
    #[error(
        "contiguous TLB entries (64 KiB) take tlb_replacement = \"lru\" and no clustered array: either finds neighbours in its \
         own way; leave one of the two out"
    )]
    Contiguous,
    /// Two arrays of one level hold the same page size.
    #[error("[[{place}]]: more than one array holds {size} translations; each size belongs to one")]
    SizeTwice {
        /// The part of the machine file.
        place: String,
        /// The page size.
        size: &'static str,
    },
    /// A tag that stands for a number of entries that it cannot.
    #[error("[{place}]: entries_per_tag = {entries} is no power of two")]
    Tag {
        /// The part of the machine file.
        place: String,
        /// What was asked for.
        entries: u32,
    },
    /// A look-up in a walk's own caches that takes longer than the simulator can note down.
    #[error("[{place}]: latency_cycles = {cycles}; at most {max} are supported")]
    SlowLookup {
        /// The part of the machine file.
        place: String,
        /// What was asked for.
        cycles: u32,
        /// The most there can be.
        max: u32,
    },
    /// A prefetcher without range registers, or with more than the simulator keeps.
    #[error("registers = {registers}; a prefetcher has 1 to {max}")]
    Registers {
        /// What was asked for.
        registers: usize,
        /// The most there can be.
        max: usize,
    },
    /// Line addresses are kept as 32-bit tags.
    #[error(
        "[{place}]: with {sets} sets it cannot tell lines of {bytes} bytes of physical memory apart; the most is {limit}"
    )]
    MemoryTooLarge {
        /// The part of the machine file.
        place: String,
        /// Its sets.
        sets: u64,
        /// Physical memory (and the co-runner's space above it) in bytes.
        bytes: u64,
        /// The most that is possible.
        limit: u64,
    },
}
