// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elastic cuckoo hashing: a hash table of several ways that is resized piece by piece.
//!
//! A key has one line in each way, so a look-up reads as many lines as there are ways, in parallel.
//! A key that comes in takes the place of another one if need be, which goes to another way. When
//! the table is too full, or too empty, ways of another size are made beside the present ones. From
//! then on each insertion and each removal moves one key of each way over, in order of the lines of
//! a way. A line before the mark up to which its way was moved is dead, and keys that belong there
//! are in the new way: so a look-up still reads one line a way.

use nestwalk_mem::Hpa;

use super::region::{Extent, Region};
use crate::config::LINE_BYTES;

/// Ways of a table (the papers have three).
pub(super) const WAYS: usize = 3;

/// A way that was chosen, as a set of one.
pub(super) const fn only(way: usize) -> u8 {
    1 << way
}

/// All ways.
pub(super) const ALL_WAYS: u8 = (1 << WAYS) - 1;

/// Keys that may be moved by one insertion before the table is resized.
const KICKS_MAX: usize = 32;

/// Per cent of the lines in use above which a table grows, and below which it shrinks.
const FULL_PERCENT: usize = 60;
const EMPTY_PERCENT: usize = 20;

/// No key.
const NONE: u64 = u64::MAX;

/// What each line of a way holds, and where its lines are.
#[derive(Debug)]
struct Way {
    keys: Vec<u64>,
    memory: Extent,
}

impl Way {
    fn new(lines: usize, region: &mut Region) -> Self {
        Self { keys: vec![NONE; lines], memory: region.take(lines) }
    }

    /// Which line is that of a key with this hash.
    fn index(&self, hash: u64) -> usize {
        hash as usize & (self.keys.len() - 1)
    }
}

/// Ways of another size, and how many lines of each present way have been moved.
#[derive(Debug)]
struct Resize {
    ways: [Way; WAYS],
    moved: [usize; WAYS],
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub(super) struct Elastic {
    ways: [Way; WAYS],
    resize: Option<Resize>,
    /// Keys that are in the table.
    held: usize,
    /// The fewest lines of a way.
    least: usize,
    random: u64,
    /// Keys without a line at the moment.
    homeless: Vec<u64>,
    pub work: Work,
}

/// What was done to keep a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Work {
    /// Keys that were moved from one line to another.
    pub moved: u64,
    /// Resizes that began.
    pub resizes: u64,
}

/// A good mixture of all bits of `number` (the finaliser of SplitMix64).
pub(super) const fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// The hash of `key` in `way`.
const fn hash(key: u64, way: usize) -> u64 {
    mix(key.wrapping_add((way as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

impl Elastic {
    /// An empty one, of `lines` (a power of two) a way.
    pub fn new(lines: usize, region: &mut Region) -> Self {
        let ways = std::array::from_fn(|_| Way::new(lines, region));
        let (resize, homeless, work) = (None, Vec::new(), Work::default());
        Self { ways, resize, held: 0, least: lines, random: 1, homeless, work }
    }

    /// Gives its memory back.
    pub fn drop_into(self, region: &mut Region) {
        self.ways.into_iter().chain(self.resize.into_iter().flat_map(|resize| resize.ways)).for_each(|way| {
            region.give(way.memory);
        });
    }

    /// Where its lines are.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.ways.iter().chain(self.resize.iter().flat_map(|resize| &resize.ways)).map(|way| way.memory)
    }

    /// The way and the line in it where `key` is if it is in `way`.
    fn place(&self, key: u64, way: usize) -> (&Way, usize) {
        let (hash, present) = (hash(key, way), &self.ways[way]);
        let index = present.index(hash);
        match &self.resize {
            Some(resize) if index < resize.moved[way] => (&resize.ways[way], resize.ways[way].index(hash)),
            _ => (present, index),
        }
    }

    fn slot(&mut self, key: u64, way: usize) -> &mut u64 {
        let (hash, present) = (hash(key, way), &mut self.ways[way]);
        let index = present.index(hash);
        match &mut self.resize {
            Some(resize) if index < resize.moved[way] => {
                let way = &mut resize.ways[way];
                let index = way.index(hash);
                &mut way.keys[index]
            }
            _ => &mut present.keys[index],
        }
    }

    /// The line where `key` is if it is in `way`.
    pub fn line(&self, key: u64, way: usize) -> Hpa {
        let (way, index) = self.place(key, way);
        way.memory.base + index as u64 * LINE_BYTES
    }

    /// The way that `key` is in.
    pub fn way_of(&self, key: u64) -> Option<usize> {
        (0..WAYS).find(|&way| {
            let (place, index) = self.place(key, way);
            place.keys[index] == key
        })
    }

    /// Brings `key` in. False if it was there.
    pub fn insert(&mut self, key: u64, region: &mut Region) -> bool {
        if self.way_of(key).is_some() {
            return false;
        }
        self.held += 1;
        self.homeless.push(key);
        self.settle(region);
        let lines = self.ways[0].keys.len();
        if self.held * 100 > WAYS * lines * FULL_PERCENT {
            self.begin_resize(lines * 2, region);
        }
        self.go_on(region);
        true
    }

    /// Takes `key` out. False if it was not there.
    pub fn remove(&mut self, key: u64, region: &mut Region) -> bool {
        let Some(way) = self.way_of(key) else { return false };
        *self.slot(key, way) = NONE;
        self.held -= 1;
        let lines = self.ways[0].keys.len();
        if self.held * 100 < WAYS * lines * EMPTY_PERCENT && lines > self.least {
            self.begin_resize(lines / 2, region);
        }
        self.go_on(region);
        true
    }

    /// Makes ways of so many lines beside the present ones, unless that goes on already.
    fn begin_resize(&mut self, lines: usize, region: &mut Region) {
        if self.resize.is_none() {
            let ways = std::array::from_fn(|_| Way::new(lines, region));
            self.resize = Some(Resize { ways, moved: [0; WAYS] });
            self.work.resizes += 1;
        }
    }

    /// While the table is resized: moves a key of each way over. With fewer of them, keys that come
    /// in meanwhile would fill what is left of the present ways before it is empty.
    fn go_on(&mut self, region: &mut Region) {
        for _ in 0..WAYS {
            if self.resize.is_some() {
                self.move_one(region);
                self.settle(region);
            }
        }
    }

    /// Takes the next key of the present ways out, to be settled in the new ones. After the last
    /// one they are the present ones.
    fn move_one(&mut self, region: &mut Region) {
        let Some(resize) = &mut self.resize else { return };
        let lines = self.ways[0].keys.len();
        loop {
            let (way, &moved) = resize.moved.iter().enumerate().min_by_key(|(_, moved)| **moved).expect("ways");
            if moved == lines {
                break;
            }
            resize.moved[way] += 1;
            let key = std::mem::replace(&mut self.ways[way].keys[moved], NONE);
            if key != NONE {
                self.work.moved += 1;
                self.homeless.push(key);
                return;
            }
        }
        let Some(Resize { ways, .. }) = self.resize.take() else { return };
        std::mem::replace(&mut self.ways, ways).into_iter().for_each(|way| region.give(way.memory));
    }

    /// Finds a line for each key that has none.
    fn settle(&mut self, region: &mut Region) {
        while let Some(key) = self.homeless.pop() {
            let Some(left) = self.push_in(key) else { continue };
            self.homeless.push(left);
            match self.resize {
                Some(_) => self.move_one(region),
                None => self.begin_resize(self.ways[0].keys.len() * 2, region),
            }
        }
    }

    /// Puts `key` into a way at random, which sends on what is there. The key that is left over in
    /// the end, if one is.
    fn push_in(&mut self, mut key: u64) -> Option<u64> {
        let mut way = self.draw(WAYS);
        for _ in 0..=KICKS_MAX {
            key = std::mem::replace(self.slot(key, way), key);
            if key == NONE {
                return None;
            }
            self.work.moved += 1;
            way = (way + 1 + self.draw(WAYS - 1)) % WAYS;
        }
        Some(key)
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.random) >> 32) as usize % below
    }

    /// Checks what must always hold.
    pub fn check_invariants(&self) {
        assert!(self.homeless.is_empty(), "a key has no line");
        let lists = self.ways.iter().chain(self.resize.iter().flat_map(|resize| &resize.ways));
        let held = lists.flat_map(|way| &way.keys).filter(|&&key| key != NONE);
        let mut keys: Vec<u64> = held.copied().collect();
        assert_eq!(keys.len(), self.held, "keys in lines");
        assert!(keys.iter().all(|&key| self.way_of(key).is_some()), "a key is where no look-up finds it");
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), self.held, "a key is there twice");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a set, while it grows and shrinks.
        #[test]
        fn it_holds_what_came_in_and_did_not_go(
            ops in prop::collection::vec((0_u64..600, prop::bool::weighted(0.6)), 1..3000),
            all_go in any::<bool>(),
        ) {
            let mut region = Region::new(Hpa(1 << 30), Hpa(1 << 40));
            let mut table = Elastic::new(8, &mut region);
            let mut model = BTreeSet::new();
            for &(key, comes) in &ops {
                if comes {
                    prop_assert_eq!(table.insert(key, &mut region), model.insert(key));
                } else {
                    prop_assert_eq!(table.remove(key, &mut region), model.remove(&key));
                }
                prop_assert_eq!(table.way_of(key).is_some(), model.contains(&key));
            }
            table.check_invariants();
            prop_assert!((0..600).all(|key| table.way_of(key).is_some() == model.contains(&key)));
            // Two keys have no line in common.
            let line = |&key: &u64| table.line(key, table.way_of(key).unwrap());
            prop_assert_eq!(model.iter().map(line).collect::<BTreeSet<_>>().len(), model.len());
            if all_go {
                model.iter().for_each(|&key| assert!(table.remove(key, &mut region)));
                table.check_invariants();
            }
            table.drop_into(&mut region);
            prop_assert_eq!(region.in_use(), 0);
        }
    }

    #[test]
    fn it_grows_at_six_tenths_and_shrinks_at_two() {
        let mut region = Region::new(Hpa(0), Hpa(1 << 40));
        let mut table = Elastic::new(64, &mut region);
        let resizes = |table: &Elastic| table.work.resizes;
        // 115 of 192 lines are less than 60 per cent.
        (0..115).for_each(|key| assert!(table.insert(key, &mut region)));
        assert_eq!(resizes(&table), 0);
        table.insert(115, &mut region);
        assert_eq!((resizes(&table), table.ways[0].keys.len()), (1, 64), "keys are moved one by one");
        // Each insertion moves three: it takes 39 insertions for those that were there, and some
        // more for those that came in meanwhile.
        (116..116 + 38).for_each(|key| assert!(table.insert(key, &mut region)));
        assert_eq!(table.ways[0].keys.len(), 64);
        (154..230).for_each(|key| assert!(table.insert(key, &mut region)));
        assert_eq!((resizes(&table), table.ways[0].keys.len()), (1, 128), "230 of 384 lines are just 60 per cent");
        assert!(table.work.moved < 3 * 230, "{:?}", table.work);
        (230..232).for_each(|key| assert!(table.insert(key, &mut region)));
        assert_eq!(resizes(&table), 2);
        table.check_invariants();
        let before = resizes(&table);
        (0..116 + 116).for_each(|key| assert!(table.remove(key, &mut region)));
        assert!(resizes(&table) > before);
        assert_eq!(table.ways[0].keys.len(), 64, "the fewest that it may have");
        table.check_invariants();
    }
}
