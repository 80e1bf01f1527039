// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compromis' first option: a VM larger than any free segment gets small ones, and the large ones are kept.
//!
//! VEE'21, section on the hypervisor's allocator: a free segment of exactly the wanted size; else the largest of those that
//! are larger is split; else the VM is satisfied with smaller segments.
//!
//! Which smaller ones, and in which order, the paper does not say. Assumed here, as its purpose is to keep large segments
//! for later VMs: the smallest first. Before each step a segment of exactly the missing size is preferred, as in the
//! first rule, and the last one is split where it is larger than what is missing.

use nestwalk_mem::FrameRange;

use super::FreeList;

/// The free segment whose beginning the VM gets next, while it lacks `missing` pages. `first` is true for the first one.
pub(super) fn next(list: &FreeList, missing: u64, first: bool) -> Option<FrameRange> {
    let split = || list.largest().filter(|largest| first && largest.count.0 > missing);
    list.exact(missing).or_else(split).or_else(|| list.smallest_of(1))
}
