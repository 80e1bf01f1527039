// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes that Linux derives from the size of memory: watermarks, batches and limits of the per-CPU
//! lists.
//!
//! The constants here are Linux's defaults (sysctls `watermark_scale_factor` = 10,
//! `percpu_pagelist_high_fraction` = 0), part of the algorithm and no property of a machine.

use crate::addr::PageCount;

use super::table::PAGEBLOCK;

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
    /// Those of a memory of `frames` of which `min` (sysctl `min_free_kbytes`) are kept free.
    pub fn of(frames: PageCount, min: PageCount) -> Self {
        let min = min.0;
        let step = (min / 4).max(frames.0 * 10 / 10_000);
        Self { min: PageCount(min), low: PageCount(min + step), high: PageCount(min + 2 * step) }
    }
}

/// What a kernel without huge pages keeps free (`calculate_min_free_kbytes`): 4 * sqrt(kB of
/// memory), from 128 kB to 256 MB.
pub fn least_min_free(frames: PageCount) -> PageCount {
    PageCount((frames.0 * 4 * 16).isqrt().clamp(128, 262_144) / 4)
}

/// What a kernel with transparent huge pages keeps free (khugepaged's
/// `set_recommended_min_free_kbytes`): eleven pageblocks a zone, so that there are some of each
/// migrate type to fall back to, but not more than 5 % of memory.
///
/// Zones are counted as x86-64 has them (DMA, DMA32, and Normal where memory goes beyond 4 GiB),
/// though this room has one.
pub fn huge_min_free(frames: PageCount) -> PageCount {
    let zones = if frames.bytes() > 4 << 30 { 3 } else { 2 };
    let types = 3; // MIGRATE_PCPTYPES
    let recommended = u64::from(PAGEBLOCK) * zones * (2 + types * types);
    PageCount(recommended.min(frames.0 / 20)).max(least_min_free(frames))
}

/// Frames that a per-CPU list is filled with at once (`zone_batchsize`): 0.1 % of memory or 1 MiB,
/// a quarter of it, one less than a power of two, but not 0 (`zone_set_pageset_high_and_batch`). 63
/// on all but tiny machines.
pub(super) fn batch(frames: PageCount) -> u32 {
    let quarter = ((frames.0 >> 10).min(256) / 4).max(1);
    let rounded = quarter + quarter / 2;
    ((1 << rounded.ilog2()) - 1).max(1)
}

/// Frames at which the lists of one processor are emptied in part (`zone_highsize`): its share of
/// the low watermark.
pub(super) fn high(watermarks: Watermarks, cpus: u16, batch: u32) -> u32 {
    let share = watermarks.low.0 / u64::from(cpus);
    (share as u32).max(batch << 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_a_real_machine() {
        // A 16 GiB machine has min_free_kbytes 16384 by calculate_min_free_kbytes: sqrt(16777216 *
        // 16).
        let frames = PageCount(16 << 18);
        let marks = Watermarks::of(frames, least_min_free(frames));
        assert_eq!(marks.min, PageCount(4096));
        assert_eq!(marks.low, PageCount(4096 + 4194));
        assert_eq!(marks.high, PageCount(4096 + 2 * 4194));
        assert_eq!(batch(frames), 63);
        assert_eq!(high(marks, 4, 63), 2072);
    }

    #[test]
    fn transparent_huge_pages_keep_much_more_free() {
        // /proc/zoneinfo of Linux 6.1 in a guest of 1 GiB with two processors: min 11264, low
        // 14080, high 16896; pcp high 7040.
        let frames = PageCount(1 << 18);
        let marks = Watermarks::of(frames, huge_min_free(frames));
        assert_eq!((marks.min, marks.low, marks.high), (PageCount(11_264), PageCount(14_080), PageCount(16_896)));
        assert_eq!(high(marks, 2, batch(frames)), 7040);
        // 67584 kB, which machines with three zones show.
        assert_eq!(huge_min_free(PageCount(16 << 18)), PageCount(67_584 / 4));
        assert_eq!(huge_min_free(PageCount(1 << 14)), PageCount((1 << 14) / 20), "never more than 5 %");
        assert_eq!(huge_min_free(PageCount(1 << 10)), PageCount(64), "nor less than without");
    }

    #[test]
    fn small_memories_have_small_batches() {
        // 64 MiB: 16384 frames >> 10 = 16, a quarter is 4, 4 + 2 rounded down is 4, less 1 is 3.
        assert_eq!(batch(PageCount(16_384)), 3);
        assert_eq!(batch(PageCount(1024)), 1, "no batching at all: pages come one by one");
        assert_eq!(high(Watermarks::of(PageCount(1 << 18), PageCount(1024)), 64, 63), 252, "never under four batches");
    }
}
