// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compromis' second option: a VM larger than any free segment gets the largest one, and so on for
//! the rest.
//!
//! VEE'21, section on the hypervisor's allocator: a free segment of exactly the wanted size; else
//! the largest of those that are larger is split; else the largest there is, and the same again for
//! what is missing.

use nestwalk_mem::FrameRange;

use super::FreeList;

/// The free segment whose beginning the VM gets next, while it lacks `missing` pages.
pub(super) fn next(list: &FreeList, missing: u64) -> Option<FrameRange> {
    list.exact(missing).or_else(|| list.largest())
}
