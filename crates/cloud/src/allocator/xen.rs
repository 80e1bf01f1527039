// SPDX-License-Identifier: MIT OR Apache-2.0
//! Xen x86: the heap's buddy allocator, and how the memory of an HVM guest is taken from it.
//!
//! Read in Xen's source, commit c447b7308b13:
//! - `meminit_hvm` (tools/libs/guest/xg_dom_x86.c) populates guest memory in ascending order. Pages
//!   0 to 0x9f are single pages. From 0xc0 on (behind the VGA hole) it takes 1 GiB extents where
//!   the guest frame is aligned to 1 GiB and a whole GiB is left that no MMIO hole cuts; else up to
//!   four 2 MiB extents at a time; else single pages. So the first GiB is never one extent.
//! - Guest memory above [`MMIO_START`] goes on at 4 GiB (`HVM_BELOW_4G_MMIO_START`,
//!   xen/include/public/hvm/e820.h).
//! - `populate_physmap` (xen/common/memory.c) asks `alloc_domheap_pages` for one extent after the
//!   other.
//! - `get_free_buddy` (xen/common/page_alloc.c) searches zones from the highest down; in each the
//!   lists from the wanted order up; it takes the head. A zone is the frame's highest bit
//!   (`page_to_zone`).
//! - `alloc_heap_pages` halves the block and keeps the *upper* half; the lower one goes to its
//!   list. So consecutive extents of one order descend in memory.
//! - `free_heap_pages` merges up to [`MAX_ORDER`].
//!
//! Assumed: memory that a VM leaves is scrubbed before the next VM comes, so that freed blocks are
//! at the head of their list (`page_list_add_scrub` puts clean blocks at the head), in the order in
//! which the VM had its memory. A VM has memory of one NUMA node where it fits: [`crate::Host`] has
//! one such heap for each node.

use nestwalk_mem::{FrameRange, Order, PageCount};
use serde::{Deserialize, Serialize};

use super::SegmentAllocator;
use super::buddy::{Blocks, Buddy, Half, Rules, Trial};
use crate::extent::Extent;

/// Xen's largest order on x86: 4 GiB.
pub const MAX_ORDER: u8 = 20;
/// Order of a 1 GiB extent.
pub const GIB: Order = Order(18);
/// Guest frame at which the hole for devices below 4 GiB begins (`HVM_BELOW_4G_MMIO_START`).
pub const MMIO_START: u64 = 0xf_0000;
/// Guest frame at 4 GiB.
const FOUR_GIB: u64 = 1 << 20;
/// The VGA hole: guest frames without memory (`HVM_VGA_HOLE_SIZE`).
pub const VGA_HOLE: std::ops::Range<u64> = 0xa0..0xc0;

/// Which half of a block Xen uses when it splits one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// The upper half, as Xen does.
    #[default]
    Upper,
    /// The lower half: to see what the direction does.
    Lower,
}

/// What of Xen can be turned off, to see what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct XenOptions {
    /// Whether guests have a VGA hole. A guest without a device model (PVH) has none, and its first
    /// GiB may be one extent.
    pub vga_hole: bool,
    /// Whether guests have an MMIO hole below 4 GiB.
    pub mmio_hole: bool,
    /// Which half of a split block is used.
    pub split: Split,
    /// Whether 1 GiB extents are tried.
    pub extents_1g: bool,
    /// Whether 2 MiB extents are tried.
    pub extents_2m: bool,
}

impl Default for XenOptions {
    fn default() -> Self {
        Self { vga_hole: true, mmio_hole: true, split: Split::Upper, extents_1g: true, extents_2m: true }
    }
}

/// Xen's heap.
#[derive(Clone, Debug)]
pub struct Xen {
    heap: Buddy,
    options: XenOptions,
}

/// Guest frames `start..end`, all of which have memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stretch {
    start: u64,
    end: u64,
}

impl Xen {
    /// All of `memory` is free. Ranges are put on the lists in ascending order, each block at the
    /// head (`init_heap_pages`), so the highest block of an order is used first.
    pub fn new(memory: &[FrameRange], options: XenOptions) -> Self {
        let used = match options.split {
            Split::Upper => Half::Upper,
            Split::Lower => Half::Lower,
        };
        let rules = Rules { max_order: MAX_ORDER, used, lowest_first: false, zones: true };
        Self { heap: Buddy::new(rules, memory), options }
    }
}

impl XenOptions {
    /// The guest frames that have memory: what is behind the VGA hole is in a stretch of its own.
    fn stretches(self, memory: PageCount) -> Vec<Stretch> {
        let below = if self.mmio_hole { memory.0.min(MMIO_START) } else { memory.0 };
        let mut stretches = Vec::with_capacity(3);
        if self.vga_hole {
            stretches.push(Stretch { start: 0, end: below.min(VGA_HOLE.start) });
            stretches.push(Stretch { start: VGA_HOLE.end, end: below });
        } else {
            stretches.push(Stretch { start: 0, end: below });
        }
        stretches.push(Stretch { start: FOUR_GIB, end: FOUR_GIB + memory.0 - below });
        stretches.retain(|stretch| stretch.start < stretch.end);
        stretches
    }

    /// Populates a guest of `memory` from `heap`.
    fn populate(self, heap: &mut impl Blocks, memory: PageCount, out: &mut Vec<Extent>) {
        self.stretches(memory).into_iter().for_each(|stretch| self.populate_stretch(heap, stretch, out));
    }

    fn populate_stretch(self, heap: &mut impl Blocks, stretch: Stretch, out: &mut Vec<Extent>) {
        let gib = GIB.frames();
        let mut at = stretch.start;
        while at < stretch.end {
            let whole = (stretch.end - at) / gib;
            if self.extents_1g && at.is_multiple_of(gib) && whole > 0 {
                at += heap.allocate(GIB, whole, out) * gib;
            }
            // To the end of this GiB, in smaller extents: the next GiB is tried as a whole again.
            let end = (at + 1).next_multiple_of(gib).min(stretch.end);
            at = self.populate_small(heap, at, end, out);
        }
    }

    /// Populates guest frames `at..end` with 2 MiB extents where they are aligned and free, else
    /// with single pages.
    fn populate_small(self, heap: &mut impl Blocks, at: u64, end: u64, out: &mut Vec<Extent>) -> u64 {
        let huge = Order::HUGE.frames();
        let head = at.next_multiple_of(huge).min(end);
        let mut at = at + heap.allocate(Order::PAGE, head - at, out);
        if self.extents_2m && at.is_multiple_of(huge) {
            at += heap.allocate(Order::HUGE, (end - at) / huge, out) * huge;
        }
        at + heap.allocate(Order::PAGE, end - at, out)
    }
}

impl SegmentAllocator for Xen {
    fn free_pages(&self) -> PageCount {
        PageCount(self.heap.free_pages())
    }

    /// The guest is given less than `memory` by the VGA hole, as in Xen. All of `memory` must be
    /// free all the same, so that every allocator refuses the same VMs.
    fn allocate(&mut self, memory: PageCount, _now_s: i64, out: &mut Vec<Extent>) -> bool {
        if memory.0 > self.heap.free_pages() {
            return false;
        }
        self.options.populate(&mut self.heap, memory, out);
        true
    }

    fn trial(&self, memory: PageCount, out: &mut Vec<Extent>) -> bool {
        let fits = memory.0 <= self.heap.free_pages();
        if fits {
            self.options.populate(&mut Trial::new(&self.heap), memory, out);
        }
        fits
    }

    fn free(&mut self, extent: Extent) {
        self.heap.free(extent.range());
    }

    fn free_segments(&self) -> Vec<FrameRange> {
        self.heap.free_segments()
    }

    fn steps(&self) -> u64 {
        self.heap.steps
    }

    fn check_invariants(&self) {
        self.heap.check_invariants();
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::Frame;

    use super::*;
    use crate::extent::{CountingRule, count_segments};

    fn host(gib: u64) -> Xen {
        Xen::new(&[FrameRange::new(Frame(0), PageCount(gib << 18))], XenOptions::default())
    }

    fn extent(start: u64, count: u64, order: u8) -> Extent {
        Extent::blocks_descending(FrameRange::new(Frame(start), PageCount(count)), Order(order))
    }

    /// Allocates and checks what holds of every population.
    fn populate(xen: &mut Xen, memory: u64) -> Vec<Extent> {
        let mut extents = Vec::new();
        let before = xen.free_pages().0;
        assert!(xen.allocate(PageCount(memory), 0, &mut extents));
        assert_eq!(before - xen.free_pages().0, memory - 0x20, "all but the VGA hole");
        xen.check_invariants();
        extents
    }

    #[test]
    fn the_first_gib_is_single_pages_and_2_mib_extents_from_the_top_down() {
        // 8 GiB: the highest zone is 4 to 8 GiB, one block of 4 GiB.
        let mut xen = host(8);
        let top = 8 << 18;
        let extents = populate(&mut xen, 1 << 18);
        // Pages 0 to 0x9f are the top 160 frames, the highest first. The rest of that block is
        // halved down to them: frames up to top - 160 go on with a block of 32, 64, then 256, ...
        let pages = [(160, 160), (192, 32), (256, 64), (480, 224)];
        let expected: Vec<Extent> = pages.iter().map(|&(below, count)| extent(top - below, count, 0)).collect();
        assert_eq!(extents[..4], expected[..]);
        // Then 511 extents of 2 MiB: below the 2 MiB that hold those pages, from the top down, in
        // blocks that double.
        assert_eq!(extents[4], extent(top - 1024, 512, 9));
        assert_eq!(extents[5], extent(top - 2048, 1024, 9));
        assert_eq!(extents.last(), Some(&extent(top - (512 << 9), 256 << 9, 9)));
        assert_eq!(count_segments(&extents, CountingRule::InOrder), 480 + 511);
        assert_eq!(count_segments(&extents, CountingRule::AnyOrder), 2, "32 pages beside the VGA hole's are left over");
    }

    #[test]
    fn whole_gibs_above_the_first_are_one_extent_each() {
        let mut xen = host(8);
        let extents = populate(&mut xen, 3 << 18);
        // The first GiB is the top GiB but for 32 pages; of the 4 GiB block, 1 GiB and 2 GiB are
        // left.
        let large: Vec<Extent> = extents.iter().copied().filter(|extent| extent.count.0 >= GIB.frames()).collect();
        assert_eq!(large, [extent(6 << 18, 1 << 18, 18), extent(5 << 18, 1 << 18, 18)]);
        assert_eq!(count_segments(&extents, CountingRule::InOrder), 480 + 511 + 2);
    }

    #[test]
    fn memory_above_the_mmio_hole_is_1_gib_extents_again() {
        let mut xen = host(16);
        // 0xf0000 pages are below 4 GiB: 1 GiB + 2 x 1 GiB + 768 MiB; 1 GiB and 256 MiB are above.
        let extents = populate(&mut xen, 5 << 18);
        let by_order = |order: u8| {
            let of_order =
                |extent: &&Extent| extent.descending.map_or(extent.count.0 == 1 << order, |its| its.0 == order);
            extents.iter().filter(of_order).map(|extent| extent.count.0 >> order).sum::<u64>()
        };
        assert_eq!((by_order(18), by_order(9), by_order(0)), (3, 511 + 384 + 128, 480));
    }

    #[test]
    fn a_guest_without_device_model_has_one_extent_for_its_first_gib() {
        let memory = [FrameRange::new(Frame(0), PageCount(8 << 18))];
        let mut xen = Xen::new(&memory, XenOptions { vga_hole: false, ..XenOptions::default() });
        let mut extents = Vec::new();
        assert!(xen.allocate(PageCount(2 << 18), 0, &mut extents));
        assert_eq!(extents, [extent(6 << 18, 2 << 18, 18)], "from the top down");
        assert_eq!(count_segments(&extents, CountingRule::InOrder), 2);
        let mut xen = Xen::new(&memory, XenOptions { vga_hole: false, split: Split::Lower, ..XenOptions::default() });
        extents.clear();
        assert!(xen.allocate(PageCount(2 << 18), 0, &mut extents));
        assert_eq!(count_segments(&extents, CountingRule::InOrder), 1, "ascending blocks are one segment");
    }

    #[test]
    fn where_no_2_mib_are_free_the_guest_has_single_pages() {
        // Two pieces of just under 2 MiB that no aligned block of 2 MiB fits in.
        let memory = [(1, 511), (513, 511)].map(|(start, count)| FrameRange::new(Frame(start), PageCount(count)));
        let mut xen = Xen::new(&memory, XenOptions::default());
        let extents = populate(&mut xen, 1022);
        assert_eq!(xen.free_pages(), PageCount(0x20));
        assert_eq!(count_segments(&extents, CountingRule::InOrder), 990);
        let mut none = Vec::new();
        assert!(!xen.allocate(PageCount(0x100), 0, &mut none) && none.is_empty());
    }

    #[test]
    fn what_a_guest_leaves_is_merged_again() {
        let mut xen = host(8);
        let fresh = xen.free_segments();
        let guests: Vec<_> = [3, 1, 2].map(|gib| populate(&mut xen, (gib << 18) - 77)).into_iter().collect();
        for extents in guests {
            extents.iter().for_each(|&extent| xen.free(extent));
            xen.check_invariants();
        }
        assert_eq!(xen.free_segments(), fresh);
    }
}
