// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small set-associative table with true LRU: what TLBs, page-walk caches and the nested TLB are made of.

use crate::sets::Sets;

/// No entry.
const EMPTY: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Slot {
    key: u64,
    value: u64,
}

/// Keys with values. The caller says which set a key belongs to. Rows stand in order of use, the latest first.
#[derive(Clone, Debug)]
pub(crate) struct Lru {
    sets: Sets,
    ways: usize,
    slots: Box<[Slot]>,
}

impl Lru {
    pub fn new(sets: u32, ways: u32) -> Self {
        let (sets, ways) = (Sets::new(sets), ways as usize);
        Self { sets, ways, slots: vec![Slot { key: EMPTY, value: 0 }; sets.count() * ways].into() }
    }

    /// The set of a page number.
    #[inline(always)]
    pub fn set_of(&self, number: u64) -> usize {
        self.sets.split(number).0
    }

    #[inline(always)]
    fn row(&mut self, set: usize) -> &mut [Slot] {
        &mut self.slots[set * self.ways..][..self.ways]
    }

    /// The value of `key`, which becomes the latest of its set.
    #[inline]
    pub fn find(&mut self, set: usize, key: u64) -> Option<u64> {
        let row = self.row(set);
        let way = row.iter().position(|slot| slot.key == key)?;
        let slot = row[way];
        for to in (1..=way).rev() {
            row[to] = row[to - 1];
        }
        row[0] = slot;
        Some(slot.value)
    }

    /// The value of `key`. Changes nothing.
    #[inline]
    pub fn peek(&self, set: usize, key: u64) -> Option<u64> {
        self.slots[set * self.ways..][..self.ways].iter().find(|slot| slot.key == key).map(|slot| slot.value)
    }

    /// Puts in `key`, which is not there, as the latest of its set. The key that had to go for it.
    #[inline]
    pub fn insert(&mut self, set: usize, key: u64, value: u64) -> Option<u64> {
        debug_assert!(self.peek(set, key).is_none(), "{key:#x} is there already");
        let mut carry = Slot { key, value };
        for slot in self.row(set) {
            std::mem::swap(slot, &mut carry);
        }
        (carry.key != EMPTY).then_some(carry.key)
    }

    /// Changes the value of `key`, if it is there, but not its place in the order.
    pub fn update(&mut self, set: usize, key: u64, change: impl FnOnce(u64) -> u64) {
        if let Some(slot) = self.row(set).iter_mut().find(|slot| slot.key == key) {
            slot.value = change(slot.value);
        }
    }

    /// Takes `key` out. Whether it was there.
    pub fn remove(&mut self, set: usize, key: u64) -> bool {
        let row = self.row(set);
        let Some(way) = row.iter().position(|slot| slot.key == key) else { return false };
        row.copy_within(way + 1.., way);
        row[row.len() - 1].key = EMPTY;
        true
    }

    /// Takes out all keys that `keep` does not want, and hands each to `gone`.
    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool, mut gone: impl FnMut(u64)) {
        for row in self.slots.chunks_mut(self.ways) {
            let mut to = 0;
            for from in 0..row.len() {
                let slot = row[from];
                if slot.key == EMPTY {
                    break;
                }
                if keep(slot.key) {
                    row[to] = slot;
                    to += 1;
                } else {
                    gone(slot.key);
                }
            }
            row[to..].iter_mut().for_each(|slot| slot.key = EMPTY);
        }
    }

    /// Visits all keys with their sets.
    pub fn for_each(&self, mut visit: impl FnMut(usize, u64)) {
        for (set, row) in self.slots.chunks(self.ways).enumerate() {
            row.iter().filter(|slot| slot.key != EMPTY).for_each(|slot| visit(set, slot.key));
        }
    }

    /// Checks what must always hold: no key twice, and empty ways behind the used ones.
    pub fn check_invariants(&self) {
        for (set, row) in self.slots.chunks(self.ways).enumerate() {
            let used = row.iter().position(|slot| slot.key == EMPTY).unwrap_or(row.len());
            assert!(row[used..].iter().all(|slot| slot.key == EMPTY), "set {set}: a hole in {row:?}");
            for (way, slot) in row[..used].iter().enumerate() {
                assert!(row[..way].iter().all(|other| other.key != slot.key), "set {set}: a key twice in {row:?}");
            }
        }
    }
}
