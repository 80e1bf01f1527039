// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes that Linux derives from the size of memory: watermarks, batches and limits of the per-CPU lists.
//!
//! The constants here are Linux's defaults (sysctls `watermark_scale_factor` = 10, `percpu_pagelist_high_fraction` = 0),
//! part of the algorithm and no property of a machine.

use crate::addr::PageCount;

/// Free frames under which the kernel acts (`__setup_per_zone_wmarks`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    /// Under this, allocations must reclaim first.
    pub min: PageCount,
    /// Under this, the reclaim daemon wakes.
    pub low: PageCount,
    /// Above this, it sleeps again.
    pub high: PageCount,
}

impl Watermarks {
    /// Those of a memory of `frames`.
    pub fn of(frames: PageCount) -> Self {
        // calculate_min_free_kbytes: 4 * sqrt(kB of memory), from 128 kB to 256 MB.
        let min_kbytes = (frames.0 * 4 * 16).isqrt().clamp(128, 262_144);
        let min = min_kbytes / 4;
        let step = (min / 4).max(frames.0 * 10 / 10_000);
        Self { min: PageCount(min), low: PageCount(min + step), high: PageCount(min + 2 * step) }
    }
}

/// Frames that a per-CPU list is filled with at once (`zone_batchsize`): 0.1 % of memory or 1 MiB, a quarter of it, one
/// less than a power of two, but not 0 (`zone_set_pageset_high_and_batch`). 63 on all but tiny machines.
pub(super) fn batch(frames: PageCount) -> u32 {
    let quarter = ((frames.0 >> 10).min(256) / 4).max(1);
    let rounded = quarter + quarter / 2;
    ((1 << rounded.ilog2()) - 1).max(1)
}

/// Frames at which the lists of one processor are emptied in part (`zone_highsize`): its share of the low watermark.
pub(super) fn high(frames: PageCount, cpus: u16, batch: u32) -> u32 {
    let share = Watermarks::of(frames).low.0 / u64::from(cpus);
    (share as u32).max(batch << 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_a_real_machine() {
        // A 16 GiB machine has min_free_kbytes 16384 by calculate_min_free_kbytes: sqrt(16777216 * 16).
        let frames = PageCount(16 << 18);
        let marks = Watermarks::of(frames);
        assert_eq!(marks.min, PageCount(4096));
        assert_eq!(marks.low, PageCount(4096 + 4194));
        assert_eq!(marks.high, PageCount(4096 + 2 * 4194));
        assert_eq!(batch(frames), 63);
        assert_eq!(high(frames, 4, 63), 2072);
    }

    #[test]
    fn small_memories_have_small_batches() {
        // 64 MiB: 16384 frames >> 10 = 16, a quarter is 4, 4 + 2 rounded down is 4, less 1 is 3.
        assert_eq!(batch(PageCount(16_384)), 3);
        assert_eq!(batch(PageCount(1024)), 1, "no batching at all: pages come one by one");
        assert_eq!(high(PageCount(1 << 18), 64, 63), 252, "never under four batches");
    }
}
