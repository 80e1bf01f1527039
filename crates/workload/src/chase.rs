// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pattern of `nestwalk probe`: a chase of pointers, one in each page, over frames that are
//! laid out on purpose.
//!
//! A *group* is 8 neighbouring pages, whose guest PTEs share a cache line. Their frames' host PTEs
//! lie on 1 to 8 lines: PTEMagnet's "host PT fragmentation". [`Layout`] says which frame each page
//! has, [`Visits`] in which order pages are visited, [`offset`] where in its page each pointer is.
//! The probe builds this in real memory and the generator `group_chase` in the simulator, so both
//! sides follow the same pattern to the last line.

use serde::{Deserialize, Serialize};

use crate::generator::bijection::{Bijection, mix};

/// Pages of a group: PTEs in a cache line.
pub const GROUP_PAGES: u64 = 8;
/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;
/// Bytes of a cache line.
const LINE_BYTES: u64 = 64;

/// On how many lines of the host's table the frames of a group lie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// One line, and frames in the order of their pages. A TLB that coalesces neighbours can do so.
    InOrder,
    /// One line, frames in another order, so that no TLB can coalesce neighbours.
    #[serde(rename = "lines-1")]
    Lines1,
    /// Two lines.
    #[serde(rename = "lines-2")]
    Lines2,
    /// Four lines.
    #[serde(rename = "lines-4")]
    Lines4,
    /// A line for each page.
    #[serde(rename = "lines-8")]
    Lines8,
}

impl Spread {
    /// All, the most contiguous first.
    pub const ALL: [Self; 5] = [Self::InOrder, Self::Lines1, Self::Lines2, Self::Lines4, Self::Lines8];

    /// Lines of a group.
    #[must_use]
    pub const fn lines(self) -> u64 {
        match self {
            Self::InOrder | Self::Lines1 => 1,
            Self::Lines2 => 2,
            Self::Lines4 => 4,
            Self::Lines8 => 8,
        }
    }

    /// A chase has a multiple of so many pages: the groups that exchange parts are whole.
    #[must_use]
    pub const fn pages_step(self) -> u64 {
        self.lines() * GROUP_PAGES
    }

    /// As files and results write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InOrder => "in-order",
            Self::Lines1 => "lines-1",
            Self::Lines2 => "lines-2",
            Self::Lines4 => "lines-4",
            Self::Lines8 => "lines-8",
        }
    }

    /// The place in its line that the frame of a group's page `position` has.
    fn slot(self, position: u64) -> u64 {
        if self == Self::InOrder { position } else { SLOTS[position as usize] }
    }

    /// The inverse of [`Self::slot`].
    fn position(self, slot: u64) -> u64 {
        if self == Self::InOrder { slot } else { POSITIONS[slot as usize] }
    }
}

/// Frames of a group that are not in order: no two neighbouring pages have neighbouring frames.
const SLOTS: [u64; 8] = [3, 6, 1, 4, 7, 2, 5, 0];
const POSITIONS: [u64; 8] = [7, 2, 5, 0, 3, 6, 1, 4];

/// Which frame each page has.
///
/// Frames are numbered from 0 in physical order. Groups are put together at random, as many as a
/// group has lines, and exchange parts: of `k` groups, part `p` of group `i` lies on the line of
/// group `(i + p) mod k`. So all lines are full in every layout, and layouts differ in nothing but
/// the lines of a group.
#[derive(Clone, Debug)]
pub struct Layout {
    spread: Spread,
    order: Bijection,
}

impl Layout {
    /// The layout of `pages` pages, a multiple of [`Spread::pages_step`].
    #[must_use]
    pub fn new(pages: u64, spread: Spread, seed: u64) -> Self {
        assert!(pages > 0 && pages.is_multiple_of(spread.pages_step()), "{pages} pages in {spread:?}");
        Self { spread, order: Bijection::new(pages / GROUP_PAGES, mix(seed)) }
    }

    /// The frame of `page`.
    #[must_use]
    pub fn frame_of(&self, page: u64) -> u64 {
        let (group, position) = (page / GROUP_PAGES, page % GROUP_PAGES);
        let lines = self.spread.lines();
        let part = position * lines / GROUP_PAGES;
        let line = self.partner(group, part);
        line * GROUP_PAGES + self.spread.slot(position)
    }

    /// The page that has `frame`.
    #[must_use]
    pub fn page_of(&self, frame: u64) -> u64 {
        let (line, slot) = (frame / GROUP_PAGES, frame % GROUP_PAGES);
        let lines = self.spread.lines();
        let position = self.spread.position(slot);
        let part = position * lines / GROUP_PAGES;
        self.partner(line, lines - part) * GROUP_PAGES + position
    }

    /// The group that is `by` places after `group` among those that exchange parts.
    fn partner(&self, group: u64, by: u64) -> u64 {
        let lines = self.spread.lines();
        if lines == 1 {
            return group;
        }
        let at = self.order.invert(group);
        self.order.apply(at - at % lines + (at + by) % lines)
    }
}

/// The order in which pages are visited.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The 8 pages of a group one after the other, groups in random order.
    Grouped,
    /// All pages in random order.
    Random,
}

impl Order {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Grouped, Self::Random];
}

/// One round through all pages.
#[derive(Clone, Debug)]
pub struct Visits {
    pages: u64,
    order: Order,
    permutation: Bijection,
}

impl Visits {
    /// Visits of `pages` pages, a multiple of [`GROUP_PAGES`].
    #[must_use]
    pub fn new(pages: u64, order: Order, seed: u64) -> Self {
        let units = if order == Order::Grouped { pages / GROUP_PAGES } else { pages };
        Self { pages, order, permutation: Bijection::new(units, mix(seed ^ 0x5eed)) }
    }

    /// Pages of a round.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The page that is visited as number `step` of the round.
    #[must_use]
    pub fn page(&self, step: u64) -> u64 {
        match self.order {
            Order::Grouped => self.permutation.apply(step / GROUP_PAGES) * GROUP_PAGES + step % GROUP_PAGES,
            Order::Random => self.permutation.apply(step),
        }
    }
}

/// Where in `page` its pointer is, bytes. Each aligned run of 64 pages has a pointer on each of a
/// page's 64 lines, so that all sets of an L1-D are used alike; distances from page to page are
/// irregular, so that no stride prefetcher can follow.
#[must_use]
pub fn offset(page: u64) -> u64 {
    let lines = PAGE_BYTES / LINE_BYTES;
    let (run, place) = (page / lines, page % lines);
    (u64::from(SCRAMBLED[place as usize]) ^ (mix(run + 1) % lines)) * LINE_BYTES
}

/// A permutation of 0 to 63 without regular strides.
const SCRAMBLED: [u8; 64] = scrambled();

const fn scrambled() -> [u8; 64] {
    // Fisher and Yates with splitmix64's finaliser for dice.
    let mut lines = [0u8; 64];
    let mut i = 0;
    while i < 64 {
        lines[i] = i as u8;
        i += 1;
    }
    let mut i = 63;
    while i > 0 {
        let j = (mix(i as u64 + 0x9e37_79b9_7f4a_7c15) % (i as u64 + 1)) as usize;
        let kept = lines[i];
        lines[i] = lines[j];
        lines[j] = kept;
        i -= 1;
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_group_has_the_lines_that_its_layout_names() {
        for spread in Spread::ALL {
            let layout = Layout::new(4096, spread, 7);
            for group in 0..4096 / GROUP_PAGES {
                let frames = (0..GROUP_PAGES).map(|position| layout.frame_of(group * GROUP_PAGES + position));
                let lines: BTreeSet<u64> = frames.map(|frame| frame / GROUP_PAGES).collect();
                assert_eq!(lines.len() as u64, spread.lines(), "{spread:?}, group {group}");
            }
        }
    }

    #[test]
    fn only_one_layout_lets_a_tlb_coalesce() {
        for spread in Spread::ALL {
            let layout = Layout::new(4096, spread, 7);
            let neighbours = (0..4095).filter(|&page| layout.frame_of(page) + 1 == layout.frame_of(page + 1)).count();
            assert_eq!(neighbours > 40, spread == Spread::InOrder, "{spread:?}: {neighbours}");
        }
    }

    #[test]
    fn pointers_use_all_lines_alike_and_in_no_regular_strides() {
        for run in 0..100 {
            let lines: BTreeSet<u64> = (run * 64..run * 64 + 64).map(offset).collect();
            assert_eq!(lines.len(), 64);
            assert!(lines.iter().all(|offset| offset.is_multiple_of(LINE_BYTES) && *offset < PAGE_BYTES));
        }
        let strides: BTreeSet<u64> = (0..64).map(|page| offset(page + 1).wrapping_sub(offset(page))).collect();
        assert!(strides.len() > 30, "{} different strides", strides.len());
    }

    proptest! {
        #[test]
        fn layouts_and_visits_are_permutations(groups in 1u64..40, spread in 0usize..5, random: bool, seed: u64) {
            let spread = Spread::ALL[spread];
            let pages = groups * spread.pages_step();
            let layout = Layout::new(pages, spread, seed);
            let frames: BTreeSet<u64> = (0..pages).map(|page| layout.frame_of(page)).collect();
            prop_assert!(frames.into_iter().eq(0..pages));
            prop_assert!((0..pages).all(|page| layout.page_of(layout.frame_of(page)) == page));
            let visits = Visits::new(pages, Order::ALL[usize::from(random)], seed);
            let visited: BTreeSet<u64> = (0..pages).map(|step| visits.page(step)).collect();
            prop_assert!(visited.into_iter().eq(0..pages));
        }
    }
}
