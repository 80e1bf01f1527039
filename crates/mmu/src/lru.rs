// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small set-associative table with true LRU: what TLBs and the nested TLB are made of.
//!
//! Each set is a [row](crate::simd) of keys with values, the most recently used first; empty places
//! are last.

use crate::sets::Sets;
use crate::simd::{NO_KEY, Pairs, Plain, Simd};

/// Keys with values. The caller says which set a key belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Lru {
    sets: Sets,
    ways: usize,
    /// Quads of a set.
    stride: usize,
    pairs: Box<[Pairs]>,
}

impl Lru {
    /// An empty one. Without ways it never holds anything.
    pub fn new(sets: u32, ways: u32) -> Self {
        let (sets, ways) = (Sets::new(sets), ways as usize);
        let stride = Pairs::count(ways);
        Self { sets, ways, stride, pairs: vec![Pairs::EMPTY; sets.count() * stride].into() }
    }

    /// The set of a page number.
    #[inline(always)]
    pub fn set_of(&self, number: u64) -> usize {
        self.sets.split(number).0
    }

    #[inline(always)]
    fn set(&self, set: usize) -> &[Pairs] {
        debug_assert!(set < self.sets.count());
        // SAFETY: there are `stride` pairs for each set, and every set comes from `set_of`, so is
        // one of them.
        unsafe { self.pairs.get_unchecked(set * self.stride..(set + 1) * self.stride) }
    }

    #[inline(always)]
    fn set_mut(&mut self, set: usize) -> &mut [Pairs] {
        debug_assert!(set < self.sets.count());
        // SAFETY: as in `set`.
        unsafe { self.pairs.get_unchecked_mut(set * self.stride..(set + 1) * self.stride) }
    }

    /// The value of `key`, which becomes the latest of its set.
    #[inline(always)]
    pub fn find<S: Simd>(&mut self, simd: S, set: usize, key: u64) -> Option<u64> {
        simd.find(self.set_mut(set), key)
    }

    /// The same table, if each set is `N` pairs and their number a power of two.
    #[inline(always)]
    pub fn narrow<const N: usize>(&mut self) -> Option<Narrow<'_, N>> {
        let narrow = self.stride == N && self.sets.is_power_of_two();
        narrow.then_some(Narrow { last: self.ways - 1, rows: self.pairs.as_chunks_mut().0 })
    }

    /// The value of `key`. Changes nothing.
    pub fn peek(&self, set: usize, key: u64) -> Option<u64> {
        let row = self.set(set);
        Plain.place_of(row, key).map(|place| row[place / 4].values[place % 4])
    }

    /// The value of the first key of the set that is `key` in the bits of `mask` and whose value
    /// has its bit `bit`. It becomes the latest of its set.
    #[inline(always)]
    pub fn find_where<S: Simd>(&mut self, simd: S, set: usize, key: u64, mask: u64, bit: u32) -> Option<u64> {
        let row = self.set_mut(set);
        let place = simd.place_where(row, key, mask, bit)?;
        let (key, value) = (row[place / 4].keys[place % 4], row[place / 4].values[place % 4]);
        simd.put_in_front(row, place, key, value);
        Some(value)
    }

    /// The key and value that [`Lru::find_where`] would find. Changes nothing.
    pub fn peek_where(&self, set: usize, key: u64, mask: u64, bit: u32) -> Option<(u64, u64)> {
        let row = self.set(set);
        let place = Plain.place_where(row, key, mask, bit)?;
        Some((row[place / 4].keys[place % 4], row[place / 4].values[place % 4]))
    }

    /// The keys of a set and their values, the latest first; what is empty is there, too.
    #[inline(always)]
    pub fn row(&self, set: usize) -> &[Pairs] {
        self.set(set)
    }

    /// Gives the key at `place` in the order of its set the value `value`, and makes it the latest.
    #[inline(always)]
    pub fn renew<S: Simd>(&mut self, simd: S, set: usize, place: usize, value: u64) {
        let row = self.set_mut(set);
        let key = row[place / 4].keys[place % 4];
        simd.put_in_front(row, place, key, value);
    }

    /// Puts in `key`, which is not there, as the latest of its set. The key that had to go for it.
    #[inline(always)]
    pub fn insert<S: Simd>(&mut self, simd: S, set: usize, key: u64, value: u64) -> Option<u64> {
        debug_assert!(self.peek(set, key).is_none(), "{key:#x} is there already");
        let last = self.ways.checked_sub(1)?;
        let gone = simd.put_in_front(self.set_mut(set), last, key, value);
        (gone != NO_KEY).then_some(gone)
    }

    /// Changes the value of `key`, if it is there, but not its place in the order.
    pub fn update(&mut self, set: usize, key: u64, change: impl FnOnce(u64) -> u64) {
        let row = self.set_mut(set);
        if let Some(place) = Plain.place_of(row, key) {
            let value = &mut row[place / 4].values[place % 4];
            *value = change(*value);
        }
    }

    /// Takes `key` out. Whether it was there.
    pub fn remove(&mut self, set: usize, key: u64) -> bool {
        let row = self.set_mut(set);
        let place = Plain.place_of(row, key);
        if let Some(place) = place {
            close(row, place);
        }
        place.is_some()
    }

    /// Takes out all keys that `keep` does not want, and hands each to `gone`.
    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool, mut gone: impl FnMut(u64)) {
        for row in self.pairs.chunks_mut(self.stride.max(1)) {
            for place in (0..row.len() * 4).rev() {
                let key = row[place / 4].keys[place % 4];
                if key != NO_KEY && !keep(key) {
                    gone(key);
                    close(row, place);
                }
            }
        }
    }

    /// Visits all keys with their sets.
    pub fn for_each(&self, mut visit: impl FnMut(usize, u64)) {
        for (index, pairs) in self.pairs.iter().enumerate() {
            pairs.keys.iter().filter(|&&key| key != NO_KEY).for_each(|&key| visit(index / self.stride, key));
        }
    }

    /// Checks what must always hold: no key twice, and what is empty behind what is not.
    pub fn check_invariants(&self) {
        for (set, row) in self.pairs.chunks(self.stride.max(1)).enumerate() {
            let keys: Vec<u64> = row.iter().flat_map(|pairs| pairs.keys).collect();
            let used = keys.iter().position(|&key| key == NO_KEY).unwrap_or(keys.len());
            assert!(used <= self.ways, "set {set}: more keys than ways in {keys:x?}");
            assert!(keys[used..].iter().all(|&key| key == NO_KEY), "set {set}: a hole in {keys:x?}");
            for (way, key) in keys[..used].iter().enumerate() {
                assert!(!keys[..way].contains(key), "set {set}: a key is there twice in {keys:x?}");
            }
        }
    }
}

/// A table whose sets are `N` pairs, for a loop that looks things up in it and does little else.
pub(crate) struct Narrow<'a, const N: usize> {
    rows: &'a mut [[Pairs; N]],
    last: usize,
}

impl<const N: usize> Narrow<'_, N> {
    #[inline(always)]
    fn row(&mut self, number: u64) -> &mut [Pairs; N] {
        let set = number as usize & (self.rows.len() - 1);
        &mut self.rows[set]
    }

    /// [`Lru::find`], where the set is that of `number`.
    #[inline(always)]
    pub fn find<S: Simd>(&mut self, simd: S, number: u64, key: u64) -> Option<u64> {
        let row = self.row(number);
        // The latest of all is often asked for again, and need not move.
        if row[0].keys[0] == key {
            return Some(row[0].values[0]);
        }
        simd.find(row, key)
    }

    /// [`Lru::insert`], where the set is that of `number`.
    #[inline(always)]
    pub fn insert<S: Simd>(&mut self, simd: S, number: u64, key: u64, value: u64) -> Option<u64> {
        let last = self.last;
        let gone = simd.put_in_front(self.row(number), last, key, value);
        (gone != NO_KEY).then_some(gone)
    }
}

/// Removes the pair at `place`; the pairs behind it move up.
#[cold]
fn close(row: &mut [Pairs], place: usize) {
    for place in place..row.len() * 4 {
        let behind = row.get((place + 1) / 4).map(|pairs| (pairs.keys[(place + 1) % 4], pairs.values[(place + 1) % 4]));
        let pairs = &mut row[place / 4];
        (pairs.keys[place % 4], pairs.values[place % 4]) = behind.unwrap_or((NO_KEY, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against lists of pairs, the latest first.
        #[test]
        fn a_table_is_a_naive_lru(
            sets in prop::sample::select(vec![1_u32, 3, 8]),
            ways in 1_u32..14,
            ops in prop::collection::vec((0_u64..100, 0_u8..8), 1..2000),
        ) {
            let mut lru = Lru::new(sets, ways);
            let mut naive: Vec<Vec<(u64, u64)>> = vec![Vec::new(); sets as usize];
            for (time, (key, op)) in ops.into_iter().enumerate() {
                let set = lru.set_of(key);
                prop_assert_eq!(set as u64, key % u64::from(sets));
                let list = &mut naive[set];
                let at = list.iter().position(|pair| pair.0 == key);
                match op {
                    0 => {
                        prop_assert_eq!(lru.remove(set, key), at.is_some());
                        at.map(|at| list.remove(at));
                    }
                    _ => {
                        let expected = at.map(|at| list.remove(at));
                        prop_assert_eq!(lru.peek(set, key), expected.map(|pair| pair.1));
                        prop_assert_eq!(lru.find(Plain, set, key), expected.map(|pair| pair.1));
                        let pair = expected.unwrap_or((key, time as u64));
                        list.insert(0, pair);
                        if expected.is_none() {
                            let gone = (list.len() > ways as usize).then(|| list.pop().unwrap().0);
                            prop_assert_eq!(lru.insert(Plain, set, pair.0, pair.1), gone);
                        }
                    }
                }
            }
            lru.check_invariants();
            lru.retain(|key| key % 3 == 0, |gone| assert!(gone % 3 != 0));
            lru.check_invariants();
            let mut kept = Vec::new();
            lru.for_each(|set, key| kept.push((set, key)));
            let rows = naive.iter().enumerate().flat_map(|(set, list)| list.iter().map(move |pair| (set, pair.0)));
            prop_assert_eq!(kept, rows.filter(|(_, key)| key % 3 == 0).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_table_without_ways_holds_nothing() {
        let mut lru = Lru::new(1, 0);
        assert_eq!((lru.insert(Plain, 0, 1, 2), lru.find(Plain, 0, 1), lru.remove(0, 1)), (None, None, false));
        lru.retain(|_| false, |_| unreachable!());
        lru.check_invariants();
    }
}
