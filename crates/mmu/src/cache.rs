// SPDX-License-Identifier: MIT OR Apache-2.0
//! One level of set-associative cache with true LRU.
//!
//! A cache knows which lines it holds and in which order they were used, nothing else: no data, no dirty bits. Each set is a
//! row of 32-bit tags, the most recently used first, so that a look-up, the change of order after a hit and the
//! replacement after a miss are one pass over the row.

use nestwalk_mem::prefetch::prefetch;

use crate::sets::Sets;

/// No line. Memory sizes are checked so that no line has this tag.
const EMPTY: u32 = u32::MAX;

/// A cache of lines, which are numbers: address / 64.
#[derive(Clone, Debug)]
pub struct Cache {
    sets: Sets,
    ways: usize,
    tags: Box<[u32]>,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Panics
    /// When there are no sets or no ways.
    pub fn new(sets: u32, ways: u32) -> Self {
        assert!(ways > 0, "a cache has at least one way");
        let (sets, ways) = (Sets::new(sets), ways as usize);
        Self { sets, ways, tags: vec![EMPTY; sets.count() * ways].into() }
    }

    #[inline(always)]
    fn place(&self, line: u64) -> (usize, u32) {
        let (set, tag) = self.sets.split(line);
        debug_assert!(tag < u64::from(EMPTY), "line {line:#x} lies beyond what a tag can tell apart");
        (set, tag as u32)
    }

    #[inline(always)]
    fn row(&mut self, set: usize) -> &mut [u32] {
        &mut self.tags[set * self.ways..][..self.ways]
    }

    /// Uses `line`, bringing it in if need be. Whether it was there, and the line that had to go for it.
    #[inline]
    pub fn access(&mut self, line: u64) -> (bool, Option<u64>) {
        let (set, tag) = self.place(line);
        let mut carry = tag;
        for slot in self.row(set) {
            let there = std::mem::replace(slot, carry);
            if there == tag {
                return (true, None);
            }
            carry = there;
        }
        (false, (carry != EMPTY).then(|| self.sets.join(set, u64::from(carry))))
    }

    /// Takes `line` out. Whether it was there.
    pub fn remove(&mut self, line: u64) -> bool {
        let (set, tag) = self.place(line);
        let row = self.row(set);
        match row.iter().position(|&there| there == tag) {
            Some(way) => {
                row.copy_within(way + 1.., way);
                row[row.len() - 1] = EMPTY;
                true
            }
            None => false,
        }
    }

    /// Whether `line` is there. Changes nothing.
    pub fn contains(&self, line: u64) -> bool {
        let (set, tag) = self.place(line);
        self.tags[set * self.ways..][..self.ways].contains(&tag)
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.tags.fill(EMPTY);
    }

    /// Brings the row of `line` near to the processor that runs the simulation. Changes nothing.
    #[inline]
    pub(crate) fn hint(&self, line: u64) {
        let (set, _) = self.place(line);
        if let Some(tag) = self.tags.get(set * self.ways) {
            prefetch(tag);
        }
    }

    /// The lines of a set, the most recently used first.
    pub fn lines_of(&self, set: usize) -> impl Iterator<Item = u64> {
        self.tags[set * self.ways..][..self.ways]
            .iter()
            .filter(|&&tag| tag != EMPTY)
            .map(move |&tag| self.sets.join(set, u64::from(tag)))
    }

    /// Its sets.
    pub fn set_count(&self) -> usize {
        self.sets.count()
    }

    /// Checks what must always hold: no line twice, and empty ways behind the used ones.
    ///
    /// # Panics
    /// With a message that names the set, if something does not hold.
    pub fn check_invariants(&self) {
        for set in 0..self.sets.count() {
            let row = &self.tags[set * self.ways..][..self.ways];
            let used = row.iter().position(|&tag| tag == EMPTY).unwrap_or(row.len());
            assert!(row[used..].iter().all(|&tag| tag == EMPTY), "set {set}: a hole in {row:?}");
            for (way, tag) in row[..used].iter().enumerate() {
                assert!(!row[..way].contains(tag), "set {set}: a line stands twice in {row:?}");
            }
        }
    }
}
