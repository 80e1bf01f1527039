// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data caches of a core, over a last-level cache that cores share.
//!
//! A reference looks in L1-D, L2 and last-level cache in turn and comes into the private caches whatever served it. Its
//! latency is that of the level which served it (the papers' numbers are load-to-use), not a sum on the way. Stores
//! allocate like loads; write-backs are not modelled. The L2 neither includes nor excludes the L1-D.
//!
//! An inclusive last level takes a line that it evicts out of the private caches, too: those of the core whose reference
//! it was at once, those of the others when they run next.

use crate::cache::Cache;
use crate::config::{LlcPolicy, MmuConfig, cache_sets};
use crate::counters::Served;
use crate::error::MmuError;

/// Lines that an inclusive last level evicted, kept until all cores have heard of them.
const GONE_MAX: usize = 1 << 12;

/// The last-level cache.
#[derive(Clone, Debug)]
pub struct Llc {
    cache: Cache,
    policy: LlcPolicy,
    /// A ring; only used if inclusive.
    gone: Box<[u64]>,
    gone_count: u64,
}

impl Llc {
    /// An empty one.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(config: &MmuConfig) -> Result<Self, MmuError> {
        config.validate()?;
        let sets = cache_sets("llc", config.llc.bytes, config.llc.ways)?;
        let ring = if config.llc.policy == LlcPolicy::Inclusive { GONE_MAX } else { 0 };
        Ok(Self {
            cache: Cache::new(sets, config.llc.ways),
            policy: config.llc.policy,
            gone: vec![0; ring].into(),
            gone_count: 0,
        })
    }

    /// What it holds.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Brings its row for `line` near to the processor that runs the simulation. Changes nothing.
    #[inline(always)]
    pub(crate) fn hint(&self, line: u64) {
        self.cache.hint(line);
    }
}

/// L1-D and L2 of one core.
#[derive(Clone, Debug)]
pub struct PrivateCaches {
    l1d: Cache,
    l2: Cache,
    /// By [`Served`].
    latency_cycles: [u64; 4],
    /// How many of the inclusive last level's evictions this core has heard of.
    heard: u64,
}

impl PrivateCaches {
    /// Empty ones.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(config: &MmuConfig) -> Result<Self, MmuError> {
        config.validate()?;
        let latencies = [
            config.l1d.latency_cycles,
            config.l2.latency_cycles,
            config.llc.latency_cycles,
            config.memory_latency_cycles,
        ];
        Ok(Self {
            l1d: Cache::new(cache_sets("l1d", config.l1d.bytes, config.l1d.ways)?, config.l1d.ways),
            l2: Cache::new(cache_sets("l2", config.l2.bytes, config.l2.ways)?, config.l2.ways),
            latency_cycles: latencies.map(u64::from),
            heard: 0,
        })
    }

    /// Cycles of a reference that `served` served.
    #[inline(always)]
    pub fn latency(&self, served: Served) -> u64 {
        self.latency_cycles[served as usize]
    }

    /// Refers to `line` (address / 64). What served it.
    #[inline(always)]
    pub fn access(&mut self, llc: &mut Llc, line: u64) -> Served {
        if self.l1d.touch(line).hit { Served::L1d } else { self.access_beyond_l1d(llc, line) }
    }

    #[inline(never)]
    fn access_beyond_l1d(&mut self, llc: &mut Llc, line: u64) -> Served {
        let used = self.l2.touch(line);
        if used.hit {
            return Served::L2;
        }
        let there = match llc.policy {
            LlcPolicy::NonInclusive => llc.cache.touch(line).hit,
            LlcPolicy::Exclusive => {
                let there = llc.cache.remove(line);
                if let Some(victim) = self.l2.victim(used) {
                    llc.cache.touch(victim);
                }
                there
            }
            LlcPolicy::Inclusive => {
                let used = llc.cache.touch(line);
                if let Some(gone) = llc.cache.victim(used) {
                    self.back_invalidate(llc, gone);
                }
                used.hit
            }
        };
        if there { Served::Llc } else { Served::Memory }
    }

    /// The last level has evicted `line` for this core.
    fn back_invalidate(&mut self, llc: &mut Llc, line: u64) {
        llc.gone[llc.gone_count as usize % GONE_MAX] = line;
        llc.gone_count += 1;
        self.heard = llc.gone_count;
        self.l1d.remove(line);
        self.l2.remove(line);
    }

    /// Hears of what an inclusive last level evicted since this core ran last.
    pub(crate) fn synchronise(&mut self, llc: &Llc) {
        let news = llc.gone_count - self.heard;
        if news > GONE_MAX as u64 {
            self.l1d.retain(|line| llc.cache.contains(line));
            self.l2.retain(|line| llc.cache.contains(line));
        } else {
            for number in self.heard..llc.gone_count {
                let line = llc.gone[number as usize % GONE_MAX];
                // It may have come back for another core meanwhile; our copy went all the same.
                self.l1d.remove(line);
                self.l2.remove(line);
            }
        }
        self.heard = llc.gone_count;
    }

    /// First-level data cache.
    pub fn l1d(&self) -> &Cache {
        &self.l1d
    }

    /// Second-level cache.
    pub fn l2(&self) -> &Cache {
        &self.l2
    }
}
