// SPDX-License-Identifier: MIT OR Apache-2.0
//! A level of TLB arrays that evict what was used least often (LFU), as some simulators' do. Those
//! of processors are in [`tlb`](crate::tlb).
//!
//! A translation that comes in has been used once, and once more at each hit. The one with the
//! least uses goes, of several the one in the first way. Uses are never forgotten.

use nestwalk_mem::{Gvn, PageSize};

use crate::config::{TlbConfig, entry_sets};
use crate::error::MmuError;
use crate::key::{Asid, key, size_of_key};
use crate::mapping::Mapping;
use crate::sets::Sets;

/// A translation, and how often it was used.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    mapping: Mapping,
    uses: u64,
}

#[derive(Clone, Debug)]
struct Array {
    sizes: Vec<PageSize>,
    sets: Sets,
    ways: usize,
    /// Set by set.
    entries: Box<[Option<Entry>]>,
}

impl Array {
    /// Places of the set for `page` in an entry of `size`.
    fn set_of(&self, page: Gvn, size: PageSize) -> std::ops::Range<usize> {
        let first = self.sets.split(page.0 >> size.order()).0 * self.ways;
        first..first + self.ways
    }

    /// Where the entry of `size` for `page` is.
    fn place_of(&self, page: Gvn, size: PageSize, asid: u64) -> Option<usize> {
        let wanted = key(page, size, asid);
        self.set_of(page, size).find(|&place| self.entries[place].is_some_and(|entry| entry.key == wanted))
    }
}

/// The arrays of one level.
#[derive(Clone, Debug)]
pub(crate) struct LeastUsed(Box<[Array]>);

impl LeastUsed {
    /// Empty ones. `place` is the part of the machine file, for messages.
    pub fn new(place: &str, arrays: &[TlbConfig]) -> Result<Self, MmuError> {
        let array = |config: &TlbConfig| {
            let sets = entry_sets(place, config.entries, config.ways)?;
            let entries = vec![None; config.entries as usize].into();
            Ok(Array { sizes: config.sizes.clone(), sets: Sets::new(sets), ways: config.ways as usize, entries })
        };
        Ok(Self(arrays.iter().map(array).collect::<Result<_, MmuError>>()?))
    }

    /// The translation of `page`, which is used once more. Smaller pages are looked for first.
    pub fn find(&mut self, page: Gvn, asid: u64) -> Option<Mapping> {
        let (array, place) = self.places(page, asid).next()?;
        let entry = self.0[array].entries[place].as_mut()?;
        entry.uses += 1;
        Some(entry.mapping)
    }

    /// What [`LeastUsed::find`] would find. Changes nothing.
    pub fn peek(&self, page: Gvn, asid: u64) -> Option<Mapping> {
        let (array, place) = self.places(page, asid).next()?;
        self.0[array].entries[place].map(|entry| entry.mapping)
    }

    /// Takes in `piece`, which holds `page` and is not there, if there is an array for its size.
    pub fn insert(&mut self, page: Gvn, piece: Mapping, asid: u64) -> Option<Mapping> {
        let size = piece.size();
        let array = self.0.iter_mut().find(|array| array.sizes.contains(&size))?;
        // Places that are empty come first.
        let place = array.set_of(page, size).min_by_key(|&place| array.entries[place].map(|entry| entry.uses))?;
        array.entries[place] = Some(Entry { key: key(page, size, asid), mapping: piece, uses: 1 });
        Some(piece)
    }

    /// Changes each translation that covers `page`, or takes it out where `change` says `None`.
    pub fn change(&mut self, page: Gvn, asid: u64, change: impl Fn(Mapping) -> Option<Mapping>) {
        let places: Vec<_> = self.places(page, asid).collect();
        for (array, place) in places {
            let entry = &mut self.0[array].entries[place];
            *entry = entry.and_then(|entry| Some(Entry { mapping: change(entry.mapping)?, ..entry }));
        }
    }

    /// Takes out everything whose key `keep` does not want.
    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        for entry in self.0.iter_mut().flat_map(|array| &mut array.entries) {
            *entry = entry.filter(|entry| keep(entry.key));
        }
    }

    /// Array and place of each translation of `page`.
    fn places(&self, page: Gvn, asid: u64) -> impl Iterator<Item = (usize, usize)> {
        let arrays = move |size: PageSize| {
            self.0
                .iter()
                .enumerate()
                .filter(move |(_, array)| array.sizes.contains(&size))
                .filter_map(move |(number, array)| Some((number, array.place_of(page, size, asid)?)))
        };
        PageSize::ALL.into_iter().flat_map(arrays)
    }

    /// Checks what must always hold: no key twice, each in a set and an array for it.
    pub fn check_invariants(&self) {
        for array in &self.0 {
            for (set, row) in array.entries.chunks(array.ways).enumerate() {
                let keys: Vec<u64> = row.iter().flatten().map(|entry| entry.key).collect();
                for (way, &key) in keys.iter().enumerate() {
                    assert!(!keys[..way].contains(&key), "a key stands twice in {keys:x?}");
                    let number = (key & Asid::MASK) >> 2;
                    assert_eq!(array.sets.split(number).0, set, "{key:#x} stands in a wrong set");
                    assert!(array.sizes.contains(&PageSize::ALL[size_of_key(key)]), "{key:#x} in a wrong array");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(frame: u64) -> Mapping {
        Mapping::from_bits(frame << nestwalk_mem::addr::PAGE_SHIFT)
    }

    #[test]
    fn what_was_used_least_goes_and_of_several_the_first() {
        let config =
            TlbConfig { sizes: vec![PageSize::Small], entries: 3, ways: 3, clustered: false, contiguous: None };
        let mut array = LeastUsed::new("tlb", &[config]).unwrap();
        let held = |array: &LeastUsed| (0..6).filter(|&page| array.peek(Gvn(page), 0).is_some()).collect::<Vec<_>>();
        for page in 0..3 {
            assert_eq!(array.find(Gvn(page), 0), None);
            array.insert(Gvn(page), mapping(page), 0);
        }
        // 0 has 2 uses, 2 has 3.
        for page in [2, 0, 2] {
            assert_eq!(array.find(Gvn(page), 0), Some(mapping(page)));
        }
        array.insert(Gvn(3), mapping(3), 0);
        assert_eq!(held(&array), [0, 2, 3], "1 was used once, the longest ago or not");
        array.insert(Gvn(4), mapping(4), 0);
        assert_eq!(held(&array), [0, 2, 4], "what came last was used least");
        array.find(Gvn(4), 0);
        array.insert(Gvn(5), mapping(5), 0);
        assert_eq!(held(&array), [2, 4, 5], "of two with 2 uses the one in the first way");
        array.change(Gvn(2), 0, |_| None);
        array.insert(Gvn(1), mapping(1), 0);
        assert_eq!(held(&array), [1, 4, 5], "what is empty is taken first");
        array.check_invariants();
        array.retain(|key| key == self::key(Gvn(4), PageSize::Small, 0));
        assert_eq!(held(&array), [4]);
    }
}
