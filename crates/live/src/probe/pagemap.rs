// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the layout is what was wanted, where frame numbers can be seen.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use nestwalk_workload::chase::GROUP_PAGES;

use super::Arena;

/// `/proc/PID/pagemap`: the page is present, and the bits of its frame's number.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// Lines of the next level's table that hold the frames of a group of 8 pages, on average over the first `count` pages of `arena`; or
/// the sentence why that cannot be known.
///
/// # Errors
/// The sentence.
pub fn lines_per_group(arena: &Arena, count: u64) -> Result<f64, String> {
    let file = File::open("/proc/self/pagemap").map_err(|error| format!("unavailable, because pagemap: {error}"))?;
    let mut entries = vec![0u8; count as usize * 8];
    file.read_exact_at(&mut entries, arena.base() as u64 / 4096 * 8)
        .map_err(|error| format!("unavailable, because pagemap: {error}"))?;
    let frames: Vec<u64> = entries.as_chunks().0.iter().map(|entry| u64::from_le_bytes(*entry)).collect();
    if frames.iter().any(|entry| entry & PRESENT == 0) {
        return Err("unavailable, because pages of the buffer are not present (swapped out?)".into());
    }
    if frames.iter().all(|entry| entry & FRAME == 0) {
        return Err("unavailable, because frame numbers need CAP_SYS_ADMIN".into());
    }
    let lines = |group: &[u64]| group.iter().map(|entry| (entry & FRAME) >> 3).collect::<BTreeSet<_>>().len();
    let groups = frames.chunks_exact(GROUP_PAGES as usize);
    let count = groups.len();
    Ok(groups.map(lines).sum::<usize>() as f64 / count as f64)
}
