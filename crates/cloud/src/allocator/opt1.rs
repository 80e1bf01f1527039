// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compromis' first option: a VM larger than any free segment gets small ones, and the large ones
//! are kept.
//!
//! VEE'21, section on the hypervisor's allocator: a free segment of exactly the wanted size; else
//! the largest of those that are larger is split; else the VM is satisfied with smaller segments.
//!
//! Which smaller ones, and in which order, the paper does not say. Assumed here, as its purpose is
//! to keep large segments for later VMs: the smallest first. Before each step a segment of exactly
//! the missing size is preferred, as in the first rule, and the last one is split where it is
//! larger than what is missing.

use nestwalk_mem::FrameRange;

use super::FreeList;

/// The free segment whose beginning the VM gets next, while it lacks `missing` pages. `first` is
/// true for the first one.
pub(super) fn next(list: &FreeList, missing: u64, first: bool) -> Option<FrameRange> {
    let split = || list.largest().filter(|largest| first && largest.count.0 > missing);
    list.exact(missing).or_else(split).or_else(|| list.smallest_of(1))
}

/// How many segments a VM of `memory` pages gets that no free segment is large enough for, but all
/// together are.
pub(super) fn count(list: &FreeList, memory: u64) -> u64 {
    let (mut missing, mut taken) = (memory, 0);
    for size in list.sizes_ascending() {
        taken += 1;
        // A segment of exactly the missing size is not among those that were taken: these are
        // smaller than `size`.
        if missing <= size || list.exact(missing).is_some() {
            return taken;
        }
        missing -= size;
    }
    taken
}
