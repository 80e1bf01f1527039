// SPDX-License-Identifier: MIT OR Apache-2.0
//! First fit: the lowest free segment that is large enough; where there is none, the lowest, and so
//! on for the rest.

use nestwalk_mem::FrameRange;

use super::FreeList;

/// The free segment whose beginning the VM gets next, while it lacks `missing` pages. Takes time
/// linear in the segments.
pub(super) fn next(list: &FreeList, missing: u64) -> Option<FrameRange> {
    let mut lowest = None;
    for segment in list.segments() {
        if segment.count.0 >= missing {
            return Some(segment);
        }
        lowest = lowest.or(Some(segment));
    }
    lowest
}
