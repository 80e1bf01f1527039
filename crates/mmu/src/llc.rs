// SPDX-License-Identifier: MIT OR Apache-2.0
//! The last-level cache, which cores share.

use crate::cache::Cache;
use crate::config::{LlcPolicy, MmuConfig, cache_sets};
use crate::error::MmuError;
use crate::evictions::Evictions;
use crate::simd::{LongTags, ShortTags};

/// The last-level cache.
#[derive(Clone, Debug)]
pub struct Llc {
    pub(crate) lines: Lines,
    pub(crate) policy: LlcPolicy,
    pub(crate) evictions: Evictions,
}

/// The lines of a last level: with short tags, which take half the room, up to the first one for
/// which they do not do. (64 GiB of memory have them all, with 20 MiB of 20 ways.)
#[derive(Clone, Debug)]
pub(crate) enum Lines {
    Short(Cache<ShortTags>),
    Long(Cache<LongTags>),
}

impl Llc {
    /// An empty one.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(config: &MmuConfig) -> Result<Self, MmuError> {
        config.validate()?;
        let sets = cache_sets("llc", config.llc.bytes, config.llc.ways)?;
        Ok(Self {
            lines: Lines::Short(Cache::new(sets, config.llc.ways)),
            policy: config.llc.policy,
            evictions: Evictions::new(),
        })
    }

    /// Its sets.
    pub fn set_count(&self) -> usize {
        match &self.lines {
            Lines::Short(cache) => cache.set_count(),
            Lines::Long(cache) => cache.set_count(),
        }
    }

    /// How many lines it holds, and for how many it has room.
    pub fn held(&self) -> (u64, u64) {
        match &self.lines {
            Lines::Short(cache) => cache.held(),
            Lines::Long(cache) => cache.held(),
        }
    }

    /// Whether `line` is there. Changes nothing.
    pub(crate) fn contains(&self, line: u64) -> bool {
        match &self.lines {
            Lines::Short(cache) => cache.can_hold(line) && cache.contains(line),
            Lines::Long(cache) => cache.contains(line),
        }
    }

    /// All lines by set, in each the most recently used first.
    #[cfg(test)]
    pub(crate) fn lines_in_order(&self) -> Vec<Vec<u64>> {
        fn of<T: crate::simd::Tags>(cache: &Cache<T>) -> Vec<Vec<u64>> {
            (0..cache.set_count()).map(|set| cache.lines_of(set).collect()).collect()
        }
        match &self.lines {
            Lines::Short(cache) => of(cache),
            Lines::Long(cache) => of(cache),
        }
    }

    /// Makes sure that tags are long enough for `line`.
    #[inline(always)]
    pub(crate) fn fit(&mut self, line: u64) {
        if let Lines::Short(cache) = &self.lines
            && !cache.can_hold(line)
        {
            self.lines = Lines::Long(cache.with_tags());
        }
    }
}
