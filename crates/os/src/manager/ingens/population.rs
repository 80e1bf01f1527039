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

use crate::manager::radix::Radix;
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

/// The maps of a process.
#[derive(Debug, Default)]
struct Maps {
    /// By number of the 2 MiB, where its map is, counted from 1.
    places: Radix,
    maps: Vec<Map>,
    free: Vec<u64>,
}

impl Maps {
    fn get(&self, block: u64) -> Option<&Map> {
        self.places.get(block).checked_sub(1).map(|place| &self.maps[place as usize])
    }

    fn get_mut(&mut self, block: u64) -> Option<&mut Map> {
        self.places.get(block).checked_sub(1).map(|place| &mut self.maps[place as usize])
    }

    /// The map of a block, made if there is none.
    #[inline]
    fn ensure(&mut self, block: u64) -> &mut Map {
        let place = match self.places.get(block) {
            0 => self.add(block),
            place => place - 1,
        };
        &mut self.maps[place as usize]
    }

    #[cold]
    fn add(&mut self, block: u64) -> u64 {
        let place = self.free.pop().unwrap_or(self.maps.len() as u64);
        if place == self.maps.len() as u64 {
            self.maps.push(Map::default());
        }
        self.places.set(block, place + 1);
        place
    }

    /// Takes out the map of a block, if it is empty.
    fn tidy(&mut self, block: u64) {
        if let Some(place) = self.places.get(block).checked_sub(1)
            && self.maps[place as usize].count == 0
        {
            self.maps[place as usize] = Map::default();
            self.free.push(place);
            self.places.remove(block);
        }
    }
}

const fn block_of(page: Vpn) -> u64 {
    page.0 / PAGES
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Population {
    processes: BTreeMap<ProcessId, Maps>,
}

impl Population {
    /// `page` is in use. Whether its 2 MiB should be asked for: `utilized` pages of them are.
    pub(super) fn set(&mut self, process: ProcessId, page: Vpn, utilized: u32) -> bool {
        let map = self.processes.entry(process).or_default().ensure(block_of(page));
        map.set(page.0 % PAGES);
        let due = map.count >= utilized && !map.committed;
        map.committed |= due;
        due
    }

    /// How many pages of the 2 MiB from `first` on are in use.
    pub(super) fn count(&self, process: ProcessId, first: Vpn) -> u32 {
        self.processes.get(&process).and_then(|maps| maps.get(block_of(first))).map_or(0, |map| map.count)
    }

    /// The 2 MiB have been promoted.
    pub(super) fn commit(&mut self, process: ProcessId, first: Vpn) {
        if let Some(map) = self.processes.get_mut(&process).and_then(|maps| maps.get_mut(block_of(first))) {
            map.committed = true;
        }
    }

    /// Pages of `range` are not in use.
    pub(super) fn clear(&mut self, process: ProcessId, range: VpnRange) {
        let Some(maps) = self.processes.get_mut(&process) else { return };
        let (mut from, end) = (block_of(range.start), range.end.0.div_ceil(PAGES));
        while let Some(block) = maps.places.next(from).filter(|&block| block < end) {
            let first = block * PAGES;
            let places = range.start.0.max(first)..range.end.0.min(first + PAGES);
            if let Some(map) = maps.get_mut(block) {
                places.for_each(|page| map.clear(page - first));
            }
            maps.tidy(block);
            from = block + 1;
        }
    }

    /// The process is gone.
    pub(super) fn forget(&mut self, process: ProcessId) {
        self.processes.remove(&process);
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
        assert_eq!(population.processes[&PROCESS].places.len(), 0);
    }
}
