// SPDX-License-Identifier: MIT OR Apache-2.0
//! Best fit: the smallest free segment that is large enough; where there is none, the largest, and
//! so on for the rest.

use nestwalk_mem::FrameRange;

use super::FreeList;

/// The free segment whose beginning the VM gets next, while it lacks `missing` pages.
pub(super) fn next(list: &FreeList, missing: u64) -> Option<FrameRange> {
    list.smallest_of(missing).or_else(|| list.largest())
}
