// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small set-associative table with true LRU: what TLBs, page-walk caches and the nested TLB are made of.
//!
//! Each entry carries the time of its last use on the table's own clock, which advances at every use, so no two times
//! are equal and the smallest of a set is the least recently used. An entry that is not there has time 0.

use crate::sets::Sets;

/// No entry.
const EMPTY: u64 = u64::MAX;

/// Ways that are looked at together.
const LANES: usize = 4;

/// Four ways of a set.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
struct Quad {
    keys: [u64; LANES],
    /// When each was last used: 0 where there is no key, [`NEVER_FREE`] where there is no way.
    times: [u64; LANES],
    values: [u64; LANES],
}

/// The time of a lane beyond the last way, which is thus never the oldest.
const NEVER_FREE: u64 = u64::MAX;

/// Keys with values. The caller says which set a key belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Lru {
    sets: Sets,
    /// Quads of a set.
    stride: usize,
    clock: u64,
    quads: Box<[Quad]>,
}

impl Quad {
    /// The lane that holds `key`.
    #[inline(always)]
    fn lane_of(&self, key: u64) -> Option<usize> {
        let lanes = self.lanes_with(key);
        (lanes != 0).then(|| lanes.trailing_zeros() as usize & (LANES - 1))
    }

    /// A bit for each lane that holds `key`. All are compared without a branch: where a key stands is anyone's guess.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn lanes_with(&self, key: u64) -> u32 {
        use std::arch::x86_64::{
            _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_load_si128, _mm_movemask_ps, _mm_packs_epi32, _mm_set1_epi64x,
        };
        // SAFETY: SSE2 is part of x86-64. Both loads lie inside `keys`, which is aligned to 32 bytes.
        unsafe {
            let wanted = _mm_set1_epi64x(key as i64);
            let half = |at: usize| _mm_cmpeq_epi32(_mm_load_si128(self.keys.as_ptr().add(at).cast()), wanted);
            // Two words a key, made two half-words a key: a key is there where both are all ones.
            let words = _mm_packs_epi32(half(0), half(2));
            let whole = _mm_cmpeq_epi32(words, _mm_set1_epi64x(-1));
            _mm_movemask_ps(_mm_castsi128_ps(whole)) as u32
        }
    }

    /// The same, in plain words.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn lanes_with(&self, key: u64) -> u32 {
        (0..).zip(self.keys).map(|(lane, there)| u32::from(there == key) << lane).sum()
    }

    /// The lane with the smallest time, and that time.
    #[inline(always)]
    fn oldest(&self) -> (usize, u64) {
        let [a, b, c, d] = self.times;
        let low = if b < a { (1, b) } else { (0, a) };
        let high = if d < c { (3, d) } else { (2, c) };
        if high.1 < low.1 { high } else { low }
    }
}

impl Lru {
    pub fn new(sets: u32, ways: u32) -> Self {
        let (sets, ways) = (Sets::new(sets), ways as usize);
        let stride = ways.div_ceil(LANES);
        let quad = |index: usize| {
            let first = index % stride * LANES;
            let times = std::array::from_fn(|lane| if first + lane < ways { 0 } else { NEVER_FREE });
            Quad { keys: [EMPTY; LANES], times, values: [0; LANES] }
        };
        let quads = (0..sets.count() * stride).map(quad).collect();
        Self { sets, stride, clock: 0, quads }
    }

    /// The set of a page number.
    #[inline(always)]
    pub fn set_of(&self, number: u64) -> usize {
        self.sets.split(number).0
    }

    #[inline(always)]
    fn set(&self, set: usize) -> &[Quad] {
        debug_assert!(set < self.sets.count());
        // SAFETY: there are `stride` quads for each set, and every set comes from `set_of`, so is one of them.
        unsafe { self.quads.get_unchecked(set * self.stride..(set + 1) * self.stride) }
    }

    #[inline(always)]
    fn set_mut(&mut self, set: usize) -> &mut [Quad] {
        debug_assert!(set < self.sets.count());
        // SAFETY: as in `set`.
        unsafe { self.quads.get_unchecked_mut(set * self.stride..(set + 1) * self.stride) }
    }

    /// The value of `key`, which becomes the latest of its set.
    #[inline(always)]
    pub fn find(&mut self, set: usize, key: u64) -> Option<u64> {
        let now = self.clock + 1;
        for quad in self.set_mut(set) {
            if let Some(lane) = quad.lane_of(key) {
                quad.times[lane] = now;
                let value = quad.values[lane];
                self.clock = now;
                return Some(value);
            }
        }
        None
    }

    /// The value of `key`. Changes nothing.
    #[inline(always)]
    pub fn peek(&self, set: usize, key: u64) -> Option<u64> {
        self.set(set).iter().find_map(|quad| Some(quad.values[quad.lane_of(key)?]))
    }

    /// Puts in `key`, which is not there, as the latest of its set. The key that had to go for it.
    #[inline(always)]
    pub fn insert(&mut self, set: usize, key: u64, value: u64) -> Option<u64> {
        debug_assert!(self.peek(set, key).is_none(), "{key:#x} is there already");
        self.clock += 1;
        let now = self.clock;
        let quads = self.set_mut(set);
        let (mut at, (mut lane, mut time)) = (0, quads[0].oldest());
        for (index, quad) in quads.iter().enumerate().skip(1) {
            let (other, older) = quad.oldest();
            (at, lane, time) = if older < time { (index, other, older) } else { (at, lane, time) };
        }
        let quad = &mut quads[at];
        quad.times[lane] = now;
        quad.values[lane] = value;
        let gone = std::mem::replace(&mut quad.keys[lane], key);
        (gone != EMPTY).then_some(gone)
    }

    /// Changes the value of `key`, if it is there, but not its place in the order.
    pub fn update(&mut self, set: usize, key: u64, change: impl FnOnce(u64) -> u64) {
        for quad in self.set_mut(set) {
            if let Some(lane) = quad.lane_of(key) {
                quad.values[lane] = change(quad.values[lane]);
                return;
            }
        }
    }

    /// Takes `key` out. Whether it was there.
    pub fn remove(&mut self, set: usize, key: u64) -> bool {
        for quad in self.set_mut(set) {
            if let Some(lane) = quad.lane_of(key) {
                (quad.keys[lane], quad.times[lane]) = (EMPTY, 0);
                return true;
            }
        }
        false
    }

    /// Takes out all keys that `keep` does not want, and hands each to `gone`.
    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool, mut gone: impl FnMut(u64)) {
        for quad in &mut self.quads {
            for (key, time) in quad.keys.iter_mut().zip(&mut quad.times) {
                if *key != EMPTY && !keep(*key) {
                    gone(*key);
                    (*key, *time) = (EMPTY, 0);
                }
            }
        }
    }

    /// Visits all keys with their sets.
    pub fn for_each(&self, mut visit: impl FnMut(usize, u64)) {
        for (index, quad) in self.quads.iter().enumerate() {
            quad.keys.iter().filter(|&&key| key != EMPTY).for_each(|&key| visit(index / self.stride, key));
        }
    }

    /// Checks what must always hold: no key twice, no time twice or of the future, no time where there is no key.
    pub fn check_invariants(&self) {
        for (set, quads) in self.quads.chunks(self.stride).enumerate() {
            let keys: Vec<u64> = quads.iter().flat_map(|quad| quad.keys).collect();
            let times: Vec<u64> = quads.iter().flat_map(|quad| quad.times).collect();
            for way in 0..keys.len() {
                let (key, time) = (keys[way], times[way]);
                assert_eq!(key == EMPTY, time == 0 || time == NEVER_FREE, "set {set}: way {way} of {keys:x?}: {time}");
                assert!(time <= self.clock || time == NEVER_FREE, "set {set}: way {way} was used in the future");
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
