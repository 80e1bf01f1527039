// SPDX-License-Identifier: MIT OR Apache-2.0
//! The accesses that a program makes to its stack, locals and static data between those to its data
//! structures.
//!
//! They hit the L1-D nearly always, and a stream without them is wrong in what depends on the time
//! between two walks: how much a co-runner evicts meanwhile, above all. How many there are was
//! measured, not chosen: the 512 hottest lines (an L1-D's worth) of every million accesses of a
//! trace were taken for local (`docs/model.md`). Of redis' accesses 909 in a thousand went there,
//! of `xz -9`'s 934, of `cc1 -O2`'s 826, of the bundled BFS' 124.

use nestwalk_mem::Access;
use nestwalk_mem::addr::PAGE_BYTES;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::bijection::{Dice, mix};
use super::memory::Region;

/// Hot lines of a thread: an L1-D's worth.
const LINES: u64 = 512;
const LINE: u64 = 64;
/// Pages over which they are spread where that was not counted of the program itself: the average
/// of redis (136), cc1 (132) and xz (48).
pub(super) const LOCAL_PAGES: u64 = 105;
/// Of a thousand local accesses, those to the 8 hottest lines and to the next 56 (averages of
/// redis, cc1 and xz).
const HOTTEST_PERMILLE: u64 = 372;
const HOT_PERMILLE: u64 = 407;
/// Of a thousand local accesses, how many are stores (the same average).
const STORES_PERMILLE: u64 = 306;
/// A thousand accesses in a row use fewer lines: the 8 hottest, some of the next 56 and of the
/// other 448, together 76, on 27 pages (the same averages: 114, 53 and 61 lines on 42, 23 and 17
/// pages).
const STRETCH: usize = 1000;
const HOT_AT_A_TIME: u64 = 28;
const WARM_AT_A_TIME: u64 = 40;
/// So many lines in a row lie on one page.
const LINES_A_PAGE: u64 = 3;
/// Stretches after which a thread's local accesses come again in the same order: enough to use
/// every line.
const STRETCHES: usize = 16;
const RING: usize = STRETCH * STRETCHES;

/// A thread's local accesses.
pub(super) struct Locals {
    ring: Vec<Access>,
    at: usize,
}

impl Locals {
    /// Those of a thread whose stack is `region`.
    pub(super) fn new(region: Region, seed: u64) -> Self {
        let pages = region.pages.len();
        let mut dice = Dice(Xoshiro256PlusPlus::seed_from_u64(mix(seed ^ 0x10ca1)));
        let mut draw = |nth: usize| {
            // Where the stretch's part of the lines begins; the parts overlap and together are all
            // lines.
            let part = |lines: u64| lines * (nth / STRETCH) as u64 / STRETCHES as u64;
            let line = match dice.below(1000) {
                n if n < HOTTEST_PERMILLE => dice.below(8),
                n if n < HOTTEST_PERMILLE + HOT_PERMILLE => 8 + (part(56) + dice.below(HOT_AT_A_TIME)) % 56,
                _ => 64 + (part(LINES - 64) + dice.below(WARM_AT_A_TIME)) % (LINES - 64),
            };
            // A page's lines are neither all used nor used in order; neighbouring groups of lines
            // lie on different pages.
            let (page, within) = (line / LINES_A_PAGE * 61 % pages, mix(line) % (PAGE_BYTES / LINE));
            let store = dice.below(1000) < STORES_PERMILLE;
            Access::new(region.at(page * PAGE_BYTES + within * LINE + dice.below(8) * 8), store)
        };
        Self { ring: (0..RING).map(&mut draw).collect(), at: 0 }
    }

    /// Appends the next `count` of them.
    #[inline]
    pub(super) fn take(&mut self, mut count: usize, accesses: &mut Vec<Access>) {
        while count > 0 {
            let part = count.min(RING - self.at);
            accesses.extend_from_slice(&self.ring[self.at..self.at + part]);
            self.at = (self.at + part) % RING;
            count -= part;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nestwalk_mem::PageCount;

    use super::super::memory::MmapArea;
    use super::*;

    fn distinct(accesses: &[Access], shift: u32) -> usize {
        accesses.iter().map(|access| access.gva().0 >> shift).collect::<BTreeSet<_>>().len()
    }

    /// The generated accesses have the locality that was measured.
    #[test]
    fn lines_and_pages_are_as_many_as_measured() {
        let mut locals = Locals::new(MmapArea::new().map(PageCount(LOCAL_PAGES)), 1);
        let mut accesses = Vec::new();
        locals.take(RING, &mut accesses);
        // Two groups of lines may share a line of a page by chance.
        assert!((460..=LINES as usize).contains(&distinct(&accesses, 6)), "{}", distinct(&accesses, 6));
        assert_eq!(distinct(&accesses, 12), LOCAL_PAGES as usize);
        for stretch in accesses.chunks_exact(STRETCH) {
            assert!((70..=76).contains(&distinct(stretch, 6)), "{}", distinct(stretch, 6));
        }
        let pages: usize = accesses.chunks_exact(STRETCH).map(|stretch| distinct(stretch, 12)).sum();
        assert!((22 * STRETCHES..=32 * STRETCHES).contains(&pages), "{pages} in {STRETCHES} stretches");
        let stores = accesses.iter().filter(|access| access.is_store()).count();
        assert!((290..=320).contains(&(stores * 1000 / RING)), "{stores}");
    }
}
