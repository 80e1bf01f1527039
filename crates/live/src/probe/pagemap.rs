// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the layout is what was wanted, where frame numbers can be seen.

use std::fs::File;

use super::Arena;
use crate::groups::{GROUP_PAGES, Groups};
use crate::known::Known;
use crate::maps::PAGE_BYTES;
use crate::pagemap::Pagemap;
use crate::source::Entry;

/// Lines of the next level's table that hold the frames of a group of 8 pages, on average over the
/// first `count` pages of `arena`; or the sentence why that cannot be known.
///
/// # Errors
/// The sentence.
pub fn lines_per_group(arena: &Arena, count: u64) -> Result<f64, String> {
    let mut entries = Vec::new();
    File::open("/proc/self/pagemap")
        .and_then(|file| Pagemap::new(file).read(arena.base() as u64 / PAGE_BYTES, count as usize, &mut entries))
        .map_err(|error| format!("unavailable, because pagemap: {error}"))?;
    if (entries.len() as u64) < count || !entries.iter().all(|entry| entry.present()) {
        return Err("unavailable, because pages of the buffer are not present (swapped out?)".into());
    }
    if entries.iter().all(|entry| entry.frame() == 0) {
        return Err("unavailable, because frame numbers need CAP_SYS_ADMIN".into());
    }
    let mut groups = Groups::default();
    for group in entries.as_chunks::<GROUP_PAGES>().0 {
        groups.add_whole(&group.map(Entry::frame), 0);
    }
    match groups.fragmentation() {
        Known::Is(found) => Ok(found.host_4k.value),
        Known::Not { unavailable } => Err(unavailable),
    }
}
