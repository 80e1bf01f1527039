// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data caches of a core, over a last-level cache that cores share.
//!
//! A reference looks in L1-D, L2 and last-level cache in turn and comes into the private caches whatever served it. Its
//! latency is that of the level which served it (the papers' numbers are load-to-use), not a sum on the way. Stores allocate
//! like loads; write-backs are not modelled.

use crate::cache::Cache;
use crate::config::{LlcPolicy, MmuConfig, cache_sets};
use crate::counters::Served;
use crate::error::MmuError;

/// The last-level cache.
#[derive(Clone, Debug)]
pub struct Llc {
    cache: Cache,
    policy: LlcPolicy,
}

impl Llc {
    /// An empty one.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(config: &MmuConfig) -> Result<Self, MmuError> {
        config.validate()?;
        let sets = cache_sets("llc", config.llc.bytes, config.llc.ways)?;
        Ok(Self { cache: Cache::new(sets, config.llc.ways), policy: config.llc.policy })
    }

    /// What it holds.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }
}

/// L1-D and L2 of one core.
#[derive(Clone, Debug)]
pub struct PrivateCaches {
    l1d: Cache,
    l2: Cache,
    /// By [`Served`].
    latency_cycles: [u64; 4],
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
        })
    }

    /// Cycles of a reference that `served` served.
    #[inline(always)]
    pub fn latency(&self, served: Served) -> u64 {
        self.latency_cycles[served as usize]
    }

    /// Refers to `line` (address / 64). What served it.
    #[inline]
    pub fn access(&mut self, llc: &mut Llc, line: u64) -> Served {
        if self.l1d.access(line).0 {
            return Served::L1d;
        }
        let (hit, victim) = self.l2.access(line);
        if hit {
            return Served::L2;
        }
        let there = match llc.policy {
            LlcPolicy::NonInclusive | LlcPolicy::Inclusive => {
                let (there, gone) = llc.cache.access(line);
                if llc.policy == LlcPolicy::Inclusive
                    && let Some(gone) = gone
                {
                    self.l1d.remove(gone);
                    self.l2.remove(gone);
                }
                there
            }
            LlcPolicy::Exclusive => {
                let there = llc.cache.remove(line);
                if let Some(victim) = victim {
                    llc.cache.access(victim);
                }
                there
            }
        };
        if there { Served::Llc } else { Served::Memory }
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
