// SPDX-License-Identifier: MIT OR Apache-2.0
//! One sorted region: contiguous frames for the nodes of one level over a stretch of addresses.

use std::ops::Range;

use nestwalk_mem::{Frame, FrameRange, Geometry, Level, PageCount, Vpn, VpnRange};

use crate::context::placement::TableRegion;

/// Which node of its level: the first page that it covers over the pages that each covers.
pub(super) type Number = u64;

/// log2 of the pages that a node of `level` covers.
pub(super) const fn node_order(geometry: Geometry, level: Level) -> u32 {
    geometry.entry_order(level.up())
}

/// The numbers of the nodes that cover `pages`, of which there is at least one.
pub(super) const fn numbers(pages: VpnRange, order: u32) -> Range<Number> {
    pages.start.0 >> order..((pages.end.0 - 1) >> order) + 1
}

/// The pages that these nodes cover.
pub(super) const fn pages_of(numbers: &Range<Number>, order: u32) -> VpnRange {
    VpnRange { start: Vpn(numbers.start << order), end: Vpn(numbers.end << order) }
}

/// What lies in one frame of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// Nothing yet.
    Reserved,
    /// The node that belongs here.
    Node,
    /// Another owner's data: the node, if there is one, lies elsewhere.
    Hole,
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Region {
    pub level: Level,
    /// The number of the first slot's node.
    pub first: Number,
    /// The first slot's frame.
    pub base: Frame,
    /// Where `base` lies in the memory below, if all of the region is contiguous there.
    pub below: Option<Frame>,
    pub slots: Vec<Slot>,
}

impl Region {
    /// One past the number of the last slot's node.
    pub fn end(&self) -> Number {
        self.first + self.slots.len() as u64
    }

    pub fn numbers(&self) -> Range<Number> {
        self.first..self.end()
    }

    pub fn frames(&self) -> FrameRange {
        FrameRange::new(self.base, PageCount(self.slots.len() as u64))
    }

    /// Where the node `number` belongs.
    pub fn frame(&self, number: Number) -> Frame {
        self.base + (number - self.first)
    }

    pub fn slot(&self, number: Number) -> Slot {
        self.slots[(number - self.first) as usize]
    }

    pub fn set(&mut self, number: Number, slot: Slot) {
        self.slots[(number - self.first) as usize] = slot;
    }

    /// Frames that are this region's.
    pub fn owned(&self) -> u64 {
        self.slots.iter().filter(|&&slot| slot != Slot::Hole).count() as u64
    }

    /// The slots' numbers, with what is in them.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Number, Slot)> + '_ {
        self.slots.iter().enumerate().map(|(i, &slot)| (self.first + i as u64, slot))
    }

    /// What hardware may be told.
    pub fn export(&self, geometry: Geometry) -> TableRegion {
        let pages = pages_of(&self.numbers(), node_order(geometry, self.level));
        TableRegion { pages, level: self.level, base: self.base, below: self.below }
    }

    /// The slots from `from` to `to` as a region of their own.
    fn part(&self, from: Number, to: Number) -> Self {
        let at = (from - self.first) as usize;
        Self {
            level: self.level,
            first: from,
            base: self.frame(from),
            below: self.below.map(|below| below + (from - self.first)),
            slots: self.slots[at..at + (to - from) as usize].to_vec(),
        }
    }

    /// The stretches of slots that `keep` keeps, without holes at their ends. The frames of the
    /// others are the caller's to free.
    pub fn kept(&self, keep: impl Fn(Number) -> bool) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut at = self.first;
        while at < self.end() {
            let stop = (at..self.end()).find(|&number| !keep(number)).unwrap_or(self.end());
            let filled = |number: &Number| self.slot(*number) != Slot::Hole;
            if let (Some(from), Some(last)) = ((at..stop).find(filled), (at..stop).rev().find(filled)) {
                parts.push(self.part(from, last + 1));
            }
            at = stop + 1;
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nodes_and_pages_belong_together() {
        let order = node_order(Geometry::X86_4, Level::PTE);
        assert_eq!(order, 9);
        assert_eq!(numbers(VpnRange { start: Vpn(511), end: Vpn(513) }, order), 0..2);
        assert_eq!(pages_of(&(3..5), order), VpnRange { start: Vpn(1536), end: Vpn(2560) });
    }

    proptest! {
        /// Against sets: every kept slot that is no hole is in one part, at its frame, and nothing
        /// else is.
        #[test]
        fn parts_are_what_was_kept(slots in prop::collection::vec((0u8..3, any::<bool>()), 1..40)) {
            let kinds = [Slot::Reserved, Slot::Node, Slot::Hole];
            let region = Region {
                level: Level::PTE,
                first: 100,
                base: Frame(1000),
                below: Some(Frame(5000)),
                slots: slots.iter().map(|&(kind, _)| kinds[usize::from(kind)]).collect(),
            };
            let parts = region.kept(|number| slots[(number - 100) as usize].1);
            let mut seen = Vec::new();
            for part in &parts {
                prop_assert!(part.slots.first() != Some(&Slot::Hole) && part.slots.last() != Some(&Slot::Hole));
                prop_assert_eq!(part.below.unwrap().0 - 5000, part.base.0 - 1000);
                for (number, slot) in part.iter().filter(|&(_, slot)| slot != Slot::Hole) {
                    prop_assert_eq!((slot, part.frame(number)), (region.slot(number), region.frame(number)));
                    seen.push(number);
                }
            }
            let kept: Vec<u64> =
                region.iter().filter(|&(n, slot)| slots[(n - 100) as usize].1 && slot != Slot::Hole).map(|(n, _)| n).collect();
            prop_assert_eq!(seen, kept);
        }
    }
}
