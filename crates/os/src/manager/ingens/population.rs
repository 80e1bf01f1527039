// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which pages of 2 MiB are in use: a map of 512 bits for each (`popl_node_t` of the authors'
//! kernel).
//!
//! A fault on anonymous memory sets its page's bit, if the mapping reaches over all of the 2 MiB
//! then (`do_anonymous_page`). `MADV_DONTNEED` and munmap clear bits (`osa_clear_poplmap_range`);
//! nothing else does: a page that was swapped out or dropped counts still. Copies of pages shared
//! since a fork set none, and a child begins with empty maps. A fault that finds enough bits asks
//! for a promotion once, until bits are cleared.

use std::collections::BTreeMap;

use nestwalk_mem::{PageSize, Vpn, VpnRange};

use crate::state::process::ProcessId;

/// Pages of 2 MiB.
const PAGES: u64 = PageSize::Huge.pages();

/// One map.
#[derive(Clone, Debug, Default)]
struct Map {
    bits: [u64; PAGES as usize / 64],
    count: u32,
    /// It was asked for, or promoted, and no bit has been cleared since.
    committed: bool,
}

impl Map {
    fn set(&mut self, place: u64) {
        let word = &mut self.bits[place as usize / 64];
        self.count += u32::from(*word >> (place % 64) & 1 == 0);
        *word |= 1 << (place % 64);
    }

    fn clear(&mut self, place: u64) {
        let word = &mut self.bits[place as usize / 64];
        self.count -= u32::from(*word >> (place % 64) & 1 == 1);
        *word &= !(1 << (place % 64));
        self.committed = false;
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Population {
    maps: BTreeMap<ProcessId, BTreeMap<Vpn, Map>>,
}

impl Population {
    /// `page` is in use. Whether its 2 MiB should be asked for: `utilized` pages of them are.
    pub(super) fn set(&mut self, process: ProcessId, page: Vpn, utilized: u32) -> bool {
        let first = page.align_down(PageSize::Huge.order());
        let map = self.maps.entry(process).or_default().entry(first).or_default();
        map.set(page.0 - first.0);
        let due = map.count >= utilized && !map.committed;
        map.committed |= due;
        due
    }

    /// How many pages of the 2 MiB from `first` on are in use.
    pub(super) fn count(&self, process: ProcessId, first: Vpn) -> u32 {
        self.maps.get(&process).and_then(|maps| maps.get(&first)).map_or(0, |map| map.count)
    }

    /// The 2 MiB have been promoted.
    pub(super) fn commit(&mut self, process: ProcessId, first: Vpn) {
        if let Some(map) = self.maps.get_mut(&process).and_then(|maps| maps.get_mut(&first)) {
            map.committed = true;
        }
    }

    /// Pages of `range` are not in use.
    pub(super) fn clear(&mut self, process: ProcessId, range: VpnRange) {
        let Some(maps) = self.maps.get_mut(&process) else { return };
        for (&first, map) in maps.range_mut(range.start.align_down(PageSize::Huge.order())..range.end) {
            let places = range.start.0.max(first.0)..range.end.0.min(first.0 + PAGES);
            places.for_each(|page| map.clear(page - first.0));
        }
        maps.retain(|_, map| map.count > 0);
    }

    /// The process is gone.
    pub(super) fn forget(&mut self, process: ProcessId) {
        self.maps.remove(&process);
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::PageCount;

    use super::*;

    const PROCESS: ProcessId = ProcessId(3);

    #[test]
    fn a_block_is_asked_for_once_until_bits_are_cleared() {
        let mut population = Population::default();
        let asked = |population: &mut Population, pages: std::ops::Range<u64>| {
            pages.filter(|&page| population.set(PROCESS, Vpn(page), 460)).collect::<Vec<_>>()
        };
        assert!(asked(&mut population, 512..512 + 459).is_empty());
        assert!(asked(&mut population, 512..512 + 459).is_empty(), "a page counts once");
        assert_eq!(asked(&mut population, 1000..1024), [1000]);
        assert_eq!(population.count(PROCESS, Vpn(512)), 483);
        population.clear(PROCESS, VpnRange::new(Vpn(0), PageCount(540)));
        assert_eq!(population.count(PROCESS, Vpn(512)), 455);
        assert_eq!(asked(&mut population, 512..540), [516]);
        population.clear(PROCESS, VpnRange::new(Vpn(512), PageCount(512)));
        assert!(population.maps[&PROCESS].is_empty());
    }
}
