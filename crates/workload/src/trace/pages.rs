// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which pages a program has touched: what tells a first touch from the others, at a rate that
//! keeps up with a capture.
//!
//! Three bits a page, in chunks of 128 MiB that exist once one of their pages is touched: touched
//! at any time (the footprint), touched since it was last mapped (the kernel has given it memory),
//! stored to since then (not a shared zero page any more, nor one that a fork shares). In front of
//! them a small direct-mapped filter of recent pages answers for nearly all accesses.

use std::collections::BTreeMap;

use nestwalk_mem::{PageCount, Vpn, VpnRange};

/// What an access was to its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Novelty {
    /// Nothing new.
    Known,
    /// The first touch.
    Touch,
    /// The first store to a page that so far was only loaded from.
    Store,
}

const CHUNK_ORDER: u32 = 15;
const CHUNK_WORDS: usize = 1 << (CHUNK_ORDER - 6);
const FILTER_ENTRIES: usize = 1 << 14;
const CACHE_ENTRIES: usize = 64;

#[derive(Clone, Debug)]
struct Chunk {
    ever: [u64; CHUNK_WORDS],
    present: [u64; CHUNK_WORDS],
    stored: [u64; CHUNK_WORDS],
}

/// The pages of one program.
#[derive(Clone, Debug)]
pub struct PageTracker {
    /// Page number + 1, times two, plus 1 if a store is nothing new either; 0 = none.
    filter: Vec<u64>,
    /// Chunk number + 1 and its place in `chunks`.
    cache: [(u64, u32); CACHE_ENTRIES],
    places: BTreeMap<u64, u32>,
    chunks: Vec<Chunk>,
    footprint: u64,
}

impl Default for PageTracker {
    fn default() -> Self {
        Self {
            filter: vec![0; FILTER_ENTRIES],
            cache: [(0, 0); CACHE_ENTRIES],
            places: BTreeMap::new(),
            chunks: Vec::new(),
            footprint: 0,
        }
    }
}

impl PageTracker {
    /// Distinct pages ever touched.
    pub const fn footprint(&self) -> PageCount {
        PageCount(self.footprint)
    }

    /// Takes note of an access.
    #[inline]
    pub fn note(&mut self, page: Vpn, store: bool) -> Novelty {
        let entry = self.filter[page.0 as usize % FILTER_ENTRIES];
        // Equal up to the lowest bit, and that bit is at least `store`.
        let wanted = (page.0 + 1) << 1 | u64::from(store);
        if entry | u64::from(!store) == wanted | u64::from(!store) {
            return Novelty::Known;
        }
        self.look(page, store)
    }

    fn look(&mut self, page: Vpn, store: bool) -> Novelty {
        let place = self.place(page.0 >> CHUNK_ORDER);
        let chunk = &mut self.chunks[place];
        let (word, bit) = bit_of(page);
        self.footprint += u64::from(chunk.ever[word] & bit == 0);
        chunk.ever[word] |= bit;
        let novelty = if chunk.present[word] & bit == 0 {
            Novelty::Touch
        } else if store && chunk.stored[word] & bit == 0 {
            Novelty::Store
        } else {
            Novelty::Known
        };
        chunk.present[word] |= bit;
        if store {
            chunk.stored[word] |= bit;
        }
        let stored = u64::from(chunk.stored[word] & bit != 0);
        self.filter[page.0 as usize % FILTER_ENTRIES] = (page.0 + 1) << 1 | stored;
        novelty
    }

    fn place(&mut self, number: u64) -> usize {
        let cached = &mut self.cache[number as usize % CACHE_ENTRIES];
        if cached.0 == number + 1 {
            return cached.1 as usize;
        }
        let chunks = &mut self.chunks;
        let place = *self.places.entry(number).or_insert_with(|| {
            chunks.push(Chunk { ever: [0; CHUNK_WORDS], present: [0; CHUNK_WORDS], stored: [0; CHUNK_WORDS] });
            chunks.len() as u32 - 1
        });
        *cached = (number + 1, place);
        place as usize
    }

    /// The pages of `range` lose their memory: what touches them next touches them first.
    pub fn clear(&mut self, range: VpnRange) {
        self.take(range, |_, _| {});
    }

    /// The pages from `from` on now lie from `to` on, as after `mremap`; what does not fit there
    /// loses its memory, as does what was there.
    pub fn relocate(&mut self, from: VpnRange, to: VpnRange) {
        let mut moved = Vec::new();
        self.take(from, |page, stored| moved.push((page - from.start, stored)));
        self.clear(to);
        for (index, stored) in moved {
            if index < to.len() {
                let page = to.start + index;
                let place = self.place(page.0 >> CHUNK_ORDER);
                let (word, bit) = bit_of(page);
                self.chunks[place].present[word] |= bit;
                self.chunks[place].stored[word] |= if stored { bit } else { 0 };
            }
        }
    }

    /// A fork: the next store to each page is a first one again, since it copies the page.
    pub fn share_all(&mut self) {
        self.chunks.iter_mut().for_each(|chunk| chunk.stored.fill(0));
        self.filter.fill(0);
    }

    /// How many pages of `range` have memory.
    pub fn present(&self, range: VpnRange) -> PageCount {
        let mut pages = 0;
        for (number, word, mask) in self.words(range) {
            pages += u64::from((self.chunks[number].present[word] & mask).count_ones());
        }
        PageCount(pages)
    }

    /// Takes the memory of the pages of `range` away and calls `gone` for each that had some.
    fn take(&mut self, range: VpnRange, mut gone: impl FnMut(Vpn, bool)) {
        if range.is_empty() {
            return;
        }
        self.filter.fill(0);
        let (first, last) = (range.start.0 >> CHUNK_ORDER, (range.end.0 - 1) >> CHUNK_ORDER);
        for (&number, &place) in self.places.range(first..=last) {
            let chunk = &mut self.chunks[place as usize];
            let base = Vpn(number << CHUNK_ORDER);
            for word in 0..CHUNK_WORDS {
                let mask = mask_of(base + word as u64 * 64, range);
                let mut left = chunk.present[word] & mask;
                while left != 0 {
                    let bit = left.trailing_zeros();
                    left &= left - 1;
                    gone(base + word as u64 * 64 + u64::from(bit), chunk.stored[word] >> bit & 1 != 0);
                }
                chunk.present[word] &= !mask;
                chunk.stored[word] &= !mask;
            }
        }
    }

    fn words(&self, range: VpnRange) -> impl Iterator<Item = (usize, usize, u64)> {
        let last = range.end.0.max(range.start.0 + 1) - 1;
        self.places.range(range.start.0 >> CHUNK_ORDER..=last >> CHUNK_ORDER).flat_map(move |(&number, &place)| {
            (0..CHUNK_WORDS).map(move |word| {
                (place as usize, word, mask_of(Vpn((number << CHUNK_ORDER) + word as u64 * 64), range))
            })
        })
    }
}

/// The word and bit of `page` within its chunk.
const fn bit_of(page: Vpn) -> (usize, u64) {
    ((page.0 >> 6) as usize % CHUNK_WORDS, 1 << (page.0 % 64))
}

/// Of the 64 pages from `first` on, those in `range`.
fn mask_of(first: Vpn, range: VpnRange) -> u64 {
    let below = |end: Vpn| match end.0.saturating_sub(first.0) {
        n @ 0..64 => (1 << n) - 1,
        _ => u64::MAX,
    };
    below(range.end) & !below(range.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Clone, Debug)]
    enum Op {
        Note(u64, bool),
        Clear(u64, u64),
        Relocate(u64, u64, u64),
        ShareAll,
    }

    fn page() -> impl Strategy<Value = u64> {
        // Near the borders of words, chunks and the filter, and far away.
        prop_oneof![
            0u64..200,
            32_700u64..32_800,
            (0u64..4).prop_map(|i| i << 40),
            (0u64..4).prop_map(|i| i * FILTER_ENTRIES as u64)
        ]
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            20 => (page(), any::<bool>()).prop_map(|(p, s)| Op::Note(p, s)),
            2 => (page(), 0u64..300).prop_map(|(p, n)| Op::Clear(p, n)),
            1 => (page(), page(), 0u64..300).prop_map(|(a, b, n)| Op::Relocate(a, b, n)),
            1 => Just(Op::ShareAll),
        ]
    }

    fn range(first: u64, pages: u64) -> VpnRange {
        VpnRange::new(Vpn(first), PageCount(pages))
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map(ops in prop::collection::vec(op(), 0..300)) {
            let mut tracker = PageTracker::default();
            let mut ever = BTreeSet::new();
            let mut present: BTreeMap<u64, bool> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Note(page, store) => {
                        let wanted = match present.get(&page) {
                            None => Novelty::Touch,
                            Some(false) if store => Novelty::Store,
                            Some(_) => Novelty::Known,
                        };
                        prop_assert_eq!(tracker.note(Vpn(page), store), wanted);
                        ever.insert(page);
                        *present.entry(page).or_default() |= store;
                    }
                    Op::Clear(first, pages) => {
                        tracker.clear(range(first, pages));
                        present.retain(|&page, _| !range(first, pages).contains(Vpn(page)));
                    }
                    Op::Relocate(from, to, pages) => {
                        tracker.relocate(range(from, pages), range(to, pages));
                        let moved: Vec<_> = present.range(from..from + pages).map(|(&p, &s)| (p, s)).collect();
                        present.retain(|&p, _| !range(from, pages).contains(Vpn(p)));
                        present.retain(|&p, _| !range(to, pages).contains(Vpn(p)));
                        present.extend(moved.into_iter().map(|(p, s)| (p - from + to, s)));
                    }
                    Op::ShareAll => {
                        tracker.share_all();
                        present.values_mut().for_each(|stored| *stored = false);
                    }
                }
                prop_assert_eq!(tracker.footprint(), PageCount(ever.len() as u64));
                let all = tracker.present(range(0, 1 << 44));
                prop_assert_eq!(all, PageCount(present.len() as u64));
            }
        }
    }
}
