// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small set-associative table with true LRU: what TLBs, page-walk caches and the nested TLB are made of.
//!
//! Each entry carries the time of its last use on the table's own clock, which advances at every use, so no two times
//! are equal and the smallest of a set is the least recently used. An entry that is not there has time 0.

use crate::sets::Sets;

/// No entry.
const EMPTY: u64 = u64::MAX;

/// Keys with values. The caller says which set a key belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Lru {
    sets: Sets,
    ways: usize,
    clock: u64,
    /// Per set `ways` keys, then as many times, then as many values.
    rows: Box<[u64]>,
}

/// The way that holds `key`, else the number of ways. Without branches: where a key stands is anyone's guess.
#[inline(always)]
fn way_of(keys: &[u64], key: u64) -> usize {
    let mut way = keys.len();
    for (index, &there) in keys.iter().enumerate() {
        way = if there == key { index } else { way };
    }
    way
}

/// The way with the smallest time.
#[inline(always)]
fn oldest_of(times: &[u64]) -> usize {
    let (mut way, mut oldest) = (0, times[0]);
    for (index, &time) in times.iter().enumerate().skip(1) {
        (way, oldest) = if time < oldest { (index, time) } else { (way, oldest) };
    }
    way
}

/// Keys, times and values of a row. `N` is the number of ways, or 0 if it is not known beforehand: known ones become
/// straight code.
#[inline(always)]
fn parts<const N: usize>(row: &mut [u64], ways: usize) -> (&mut [u64], &mut [u64], &mut [u64]) {
    let ways = if N == 0 { ways } else { N };
    let (keys, rest) = row[..3 * ways].split_at_mut(ways);
    let (times, values) = rest.split_at_mut(ways);
    (keys, times, values)
}

/// Calls `$function::<N>` with the number of ways, if it is one of the usual ones.
macro_rules! by_ways {
    ($ways:expr, $self:ident.$function:ident($($argument:expr),*)) => {
        match $ways {
            2 => $self.$function::<2>($($argument),*),
            4 => $self.$function::<4>($($argument),*),
            6 => $self.$function::<6>($($argument),*),
            8 => $self.$function::<8>($($argument),*),
            _ => $self.$function::<0>($($argument),*),
        }
    };
}

impl Lru {
    pub fn new(sets: u32, ways: u32) -> Self {
        let (sets, ways) = (Sets::new(sets), ways as usize);
        let mut rows = vec![0; sets.count() * ways * 3].into_boxed_slice();
        rows.chunks_mut(3 * ways).for_each(|row| row[..ways].fill(EMPTY));
        Self { sets, ways, clock: 0, rows }
    }

    /// The set of a page number.
    #[inline(always)]
    pub fn set_of(&self, number: u64) -> usize {
        self.sets.split(number).0
    }

    /// Keys, times and values of a set.
    #[inline(always)]
    fn row(&mut self, set: usize) -> (&mut [u64], &mut [u64], &mut [u64]) {
        let row = &mut self.rows[set * 3 * self.ways..][..3 * self.ways];
        let (keys, rest) = row.split_at_mut(self.ways);
        let (times, values) = rest.split_at_mut(self.ways);
        (keys, times, values)
    }

    #[inline(always)]
    fn keys(&self, set: usize) -> &[u64] {
        &self.rows[set * 3 * self.ways..][..self.ways]
    }

    /// The value of `key`, which becomes the latest of its set.
    #[inline(always)]
    pub fn find(&mut self, set: usize, key: u64) -> Option<u64> {
        by_ways!(self.ways, self.find_in(set, key))
    }

    #[inline(always)]
    fn find_in<const N: usize>(&mut self, set: usize, key: u64) -> Option<u64> {
        let ways = if N == 0 { self.ways } else { N };
        let (keys, times, values) = parts::<N>(&mut self.rows[set * 3 * ways..], ways);
        let way = way_of(keys, key);
        if way >= keys.len() {
            return None;
        }
        self.clock += 1;
        times[way] = self.clock;
        Some(values[way])
    }

    /// The value of `key`. Changes nothing.
    #[inline(always)]
    pub fn peek(&self, set: usize, key: u64) -> Option<u64> {
        by_ways!(self.ways, self.peek_in(set, key))
    }

    #[inline(always)]
    fn peek_in<const N: usize>(&self, set: usize, key: u64) -> Option<u64> {
        let ways = if N == 0 { self.ways } else { N };
        let row = &self.rows[set * 3 * ways..][..3 * ways];
        let way = way_of(&row[..ways], key);
        (way < ways).then(|| row[2 * ways + way])
    }

    /// Puts in `key`, which is not there, as the latest of its set. The key that had to go for it.
    #[inline]
    pub fn insert(&mut self, set: usize, key: u64, value: u64) -> Option<u64> {
        debug_assert!(self.peek(set, key).is_none(), "{key:#x} is there already");
        by_ways!(self.ways, self.insert_in(set, key, value))
    }

    #[inline(always)]
    fn insert_in<const N: usize>(&mut self, set: usize, key: u64, value: u64) -> Option<u64> {
        let ways = if N == 0 { self.ways } else { N };
        let (keys, times, values) = parts::<N>(&mut self.rows[set * 3 * ways..], ways);
        let way = oldest_of(times);
        self.clock += 1;
        times[way] = self.clock;
        values[way] = value;
        let gone = std::mem::replace(&mut keys[way], key);
        (gone != EMPTY).then_some(gone)
    }

    /// Changes the value of `key`, if it is there, but not its place in the order.
    pub fn update(&mut self, set: usize, key: u64, change: impl FnOnce(u64) -> u64) {
        let (keys, _, values) = self.row(set);
        if let Some(value) = values.get_mut(way_of(keys, key)) {
            *value = change(*value);
        }
    }

    /// Takes `key` out. Whether it was there.
    pub fn remove(&mut self, set: usize, key: u64) -> bool {
        let (keys, times, _) = self.row(set);
        let way = way_of(keys, key);
        if way == keys.len() {
            return false;
        }
        (keys[way], times[way]) = (EMPTY, 0);
        true
    }

    /// Takes out all keys that `keep` does not want, and hands each to `gone`.
    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool, mut gone: impl FnMut(u64)) {
        for set in 0..self.sets.count() {
            let (keys, times, _) = self.row(set);
            for (key, time) in keys.iter_mut().zip(times) {
                if *key != EMPTY && !keep(*key) {
                    gone(*key);
                    (*key, *time) = (EMPTY, 0);
                }
            }
        }
    }

    /// Visits all keys with their sets.
    pub fn for_each(&self, mut visit: impl FnMut(usize, u64)) {
        for set in 0..self.sets.count() {
            self.keys(set).iter().filter(|&&key| key != EMPTY).for_each(|&key| visit(set, key));
        }
    }

    /// Checks what must always hold: no key twice, no time twice or of the future, no time where there is no key.
    pub fn check_invariants(&self) {
        for (set, row) in self.rows.chunks(3 * self.ways).enumerate() {
            let (keys, times) = (&row[..self.ways], &row[self.ways..2 * self.ways]);
            for way in 0..self.ways {
                let (key, time) = (keys[way], times[way]);
                assert_eq!(key == EMPTY, time == 0, "set {set}: way {way} of {keys:x?} has time {time}");
                assert!(time <= self.clock, "set {set}: way {way} was used in the future");
                let twice = (0..way).any(|other| key != EMPTY && (keys[other] == key || times[other] == time));
                assert!(!twice, "set {set}: a key or a time stands twice in {keys:x?}, {times:?}");
            }
        }
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
            ways in 1_u32..9,
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
                        prop_assert_eq!(lru.find(set, key), expected.map(|pair| pair.1));
                        let pair = expected.unwrap_or((key, time as u64));
                        list.insert(0, pair);
                        if expected.is_none() {
                            let gone = (list.len() > ways as usize).then(|| list.pop().unwrap().0);
                            prop_assert_eq!(lru.insert(set, pair.0, pair.1), gone);
                        }
                    }
                }
            }
            lru.check_invariants();
        }
    }
}
