// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a VM as the guest sees it, and how its segments are counted.
//!
//! A VM's memory is a list of [`Extent`]s in the order of guest-physical addresses. Extents, not
//! [`FrameRange`]s, because Xen hands out the blocks of a range from the highest down: such a range
//! is one extent, but many segments.

use nestwalk_mem::{Frame, FrameRange, Order, PageCount};
use serde::{Deserialize, Serialize};

/// Part of a VM's memory: `count` frames from `start`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// Its lowest frame.
    pub start: Frame,
    /// Its size.
    pub count: PageCount,
    /// `None`: the guest sees the frames in ascending order. `Some(order)`: the guest sees blocks
    /// of `2^order` frames, the highest first; inside a block the order is ascending. `count` is a
    /// multiple of such blocks, and more than one.
    pub descending: Option<Order>,
}

impl Extent {
    /// Frames in ascending order.
    pub const fn ascending(range: FrameRange) -> Self {
        Self { start: range.start, count: range.count, descending: None }
    }

    /// Blocks of `2^order` frames, the highest first. One block alone is ascending.
    pub fn blocks_descending(range: FrameRange, order: Order) -> Self {
        let several = range.count.0 > order.frames();
        Self { start: range.start, count: range.count, descending: several.then_some(order) }
    }

    /// The frames, without their order.
    pub const fn range(self) -> FrameRange {
        FrameRange::new(self.start, self.count)
    }

    /// Contiguous segments of this extent alone.
    fn pieces(self) -> u64 {
        self.descending.map_or(1, |order| self.count.0 / order.frames())
    }

    /// The frame that the guest sees first.
    fn first(self) -> Frame {
        match self.descending {
            None => self.start,
            Some(order) => Frame(self.start.0 + self.count.0 - order.frames()),
        }
    }

    /// One past the frame that the guest sees last.
    fn end(self) -> Frame {
        match self.descending {
            None => self.start + self.count.0,
            Some(order) => self.start + order.frames(),
        }
    }
}

/// When two neighbouring pieces of a VM's memory are one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CountingRule {
    /// Where they are neighbours in guest *and* host memory, in the same order: what one pair of
    /// DS-n's registers can map.
    #[default]
    InOrder,
    /// Where they are neighbours in host memory, whatever the guest's order: how much of the VM's
    /// memory lies together. No register can map a segment that is counted so; the rule is there to
    /// compare with it.
    AnyOrder,
}

/// How many segments `extents`, in the order in which the guest sees them, are under `rule`.
pub fn count_segments(extents: &[Extent], rule: CountingRule) -> u64 {
    match rule {
        CountingRule::InOrder => {
            let joints = extents.windows(2).filter(|pair| pair[0].end() == pair[1].first()).count() as u64;
            extents.iter().map(|extent| extent.pieces()).sum::<u64>() - joints
        }
        CountingRule::AnyOrder if extents.len() < 2 => extents.len() as u64,
        CountingRule::AnyOrder => {
            let mut ranges: Vec<FrameRange> = extents.iter().map(|extent| extent.range()).collect();
            ranges.sort_unstable_by_key(|range| range.start);
            let joints = ranges.windows(2).filter(|pair| pair[0].end() == pair[1].start).count();
            (ranges.len() - joints) as u64
        }
    }
}

/// The frames of `extents` in all.
pub fn total(extents: &[Extent]) -> PageCount {
    PageCount(extents.iter().map(|extent| extent.count.0).sum())
}

/// Appends to `out` what the guest sees as the pages `from..to` of `extent`.
pub fn cut(extent: Extent, from: u64, to: u64, out: &mut Vec<Extent>) {
    let Some(order) = extent.descending else {
        if from < to {
            out.push(Extent::ascending(FrameRange::new(extent.start + from, PageCount(to - from))));
        }
        return;
    };
    let block = order.frames();
    let mut at = from;
    while at < to {
        // Block 0 is the one that the guest sees first: the highest.
        let (number, inside) = (at / block, at % block);
        let whole = if inside == 0 { (to - at) / block } else { 0 };
        let lowest = extent.count.0 - block * (number + whole.max(1));
        let part = match whole {
            0 => Extent::ascending(FrameRange::new(
                extent.start + lowest + inside,
                PageCount((block - inside).min(to - at)),
            )),
            _ => Extent::blocks_descending(FrameRange::new(extent.start + lowest, PageCount(whole * block)), order),
        };
        out.push(part);
        at += part.count.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, count: u64) -> FrameRange {
        FrameRange::new(Frame(start), PageCount(count))
    }

    #[test]
    fn neighbours_in_order_are_one_segment() {
        let extents = [Extent::ascending(range(10, 5)), Extent::ascending(range(15, 5))];
        assert_eq!(count_segments(&extents, CountingRule::InOrder), 1);
        let swapped = [extents[1], extents[0]];
        assert_eq!(count_segments(&swapped, CountingRule::InOrder), 2);
        assert_eq!(count_segments(&swapped, CountingRule::AnyOrder), 1);
    }

    #[test]
    fn each_block_of_a_descending_extent_is_a_segment() {
        let blocks = Extent::blocks_descending(range(0, 4 * 512), Order::HUGE);
        assert_eq!(count_segments(&[blocks], CountingRule::InOrder), 4);
        assert_eq!(count_segments(&[blocks], CountingRule::AnyOrder), 1);
        assert_eq!(Extent::blocks_descending(range(0, 512), Order::HUGE), Extent::ascending(range(0, 512)));
        // The guest sees block 0 last, so what follows it physically would be block 1, which is
        // there already.
        let after = [blocks, Extent::ascending(range(512, 100))];
        assert_eq!(count_segments(&after, CountingRule::InOrder), 4, "the last block goes on in the next extent");
    }

    #[test]
    fn a_part_of_a_descending_extent_is_what_the_guest_sees_there() {
        let blocks = Extent::blocks_descending(range(100, 40), Order(3));
        let part = |from, to| {
            let mut out = Vec::new();
            cut(blocks, from, to, &mut out);
            out
        };
        assert_eq!(part(0, 40), [blocks]);
        assert_eq!(part(0, 8), [Extent::ascending(range(132, 8))]);
        assert_eq!(part(3, 5), [Extent::ascending(range(135, 2))]);
        let expected = [
            Extent::ascending(range(138, 2)),
            Extent::blocks_descending(range(116, 16), Order(3)),
            Extent::ascending(range(108, 1)),
        ];
        assert_eq!(part(6, 25), expected);
    }

    #[test]
    fn no_memory_is_no_segment() {
        for rule in [CountingRule::InOrder, CountingRule::AnyOrder] {
            assert_eq!(count_segments(&[], rule), 0);
        }
    }
}
