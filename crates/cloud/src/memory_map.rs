// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a host has memory for VMs: its RAM, less address holes, what firmware keeps, bad pages and
//! the hypervisor's own.

use nestwalk_mem::{Frame, FrameRange, PageCount};
use serde::{Deserialize, Serialize};

/// Why a range of addresses has no memory for VMs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoleKind {
    /// Addresses of devices (MMIO). There is no RAM: what would be here is found above, as below
    /// 4 GiB on a PC.
    Mmio,
    /// RAM that firmware keeps for itself (ACPI tables, runtime services, the GPU's stolen memory).
    Firmware,
    /// RAM that is not used because it is faulty.
    Bad,
}

/// A range of host-physical addresses without memory for VMs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hole {
    /// First frame, in units of 4 KiB.
    pub start_page: u64,
    /// Size in pages of 4 KiB.
    pub pages: u64,
    /// Why.
    pub kind: HoleKind,
}

impl Hole {
    fn range(&self) -> FrameRange {
        FrameRange::new(Frame(self.start_page), PageCount(self.pages))
    }
}

/// A host's physical memory, ascending in address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryMap {
    /// Memory for VMs: maximal ranges of each NUMA node; nodes are contiguous and ascending.
    nodes: Vec<Vec<FrameRange>>,
    /// What the hypervisor keeps.
    reserved: Vec<FrameRange>,
    /// The holes, ascending.
    holes: Vec<Hole>,
}

impl MemoryMap {
    /// RAM of `memory` pages from address 0 with `holes`, of which the hypervisor keeps the lowest
    /// `reserved` pages, cut into `numa_nodes` parts of equal size.
    ///
    /// That the hypervisor's own memory is at the lowest addresses is an assumption: on a real host
    /// most of what a kernel allocates at boot is below the first GiB, or at the very top.
    ///
    /// # Errors
    /// A sentence, if holes overlap or lie out of the memory, if nothing is left for VMs, or if
    /// there are no nodes.
    pub fn new(memory: PageCount, reserved: PageCount, holes: &[Hole], numa_nodes: u32) -> Result<Self, String> {
        if numa_nodes == 0 {
            return Err("numa_nodes is 0: a host has at least one node".to_owned());
        }
        let mut holes = holes.to_vec();
        holes.sort_unstable_by_key(|hole| hole.start_page);
        let ram = ram(memory, &holes)?;
        let lost: u64 = holes.iter().filter(|hole| hole.kind != HoleKind::Mmio).map(|hole| hole.pages).sum();
        let usable = memory.0 - lost;
        if reserved.0 >= usable {
            return Err(format!("{} of {usable} pages are reserved: leave some memory for VMs", reserved.0));
        }
        let (reserved, free) = split(&ram, reserved.0);
        // A node is a share of the RAM, used or not.
        let (mut nodes, mut rest) = (Vec::new(), ram);
        for node in 0..u64::from(numa_nodes) {
            let share = usable / u64::from(numa_nodes) + u64::from(node < usable % u64::from(numa_nodes));
            let (part, above) = split(&rest, share);
            nodes.push(intersect(&part, &free));
            rest = above;
        }
        nodes.retain(|node| !node.is_empty());
        Ok(Self { nodes, reserved, holes })
    }

    /// One range of memory, all of it for VMs.
    pub fn flat(memory: PageCount) -> Self {
        let all = FrameRange::new(Frame(0), memory);
        Self { nodes: vec![vec![all]], reserved: Vec::new(), holes: Vec::new() }
    }

    /// Memory for VMs by NUMA node: each node's ranges, ascending.
    pub fn nodes(&self) -> &[Vec<FrameRange>] {
        &self.nodes
    }

    /// What the hypervisor keeps.
    pub fn reserved(&self) -> &[FrameRange] {
        &self.reserved
    }

    /// The holes, ascending.
    pub fn holes(&self) -> &[Hole] {
        &self.holes
    }

    /// Memory for VMs.
    pub fn usable(&self) -> PageCount {
        PageCount(self.nodes.iter().flatten().map(|range| range.count.0).sum())
    }
}

/// RAM outside of the `holes`, which are ascending. `memory` counts RAM that firmware keeps or that
/// is bad, but no MMIO.
fn ram(memory: PageCount, holes: &[Hole]) -> Result<Vec<FrameRange>, String> {
    let (mut ranges, mut at, mut left) = (Vec::new(), 0, memory.0);
    for hole in holes {
        let range = hole.range();
        if hole.pages == 0 || hole.start_page.checked_add(hole.pages).is_none() {
            return Err(format!("the hole at page {:#x} has no possible size ({})", hole.start_page, hole.pages));
        }
        if range.start.0 < at {
            return Err(format!("the hole at page {:#x} overlaps the one before it: join them", hole.start_page));
        }
        let before = range.start.0 - at;
        if before >= left || (hole.kind != HoleKind::Mmio && before + hole.pages >= left) {
            return Err(format!("the hole at page {:#x} is not inside the host's memory", hole.start_page));
        }
        if before > 0 {
            ranges.push(FrameRange::new(Frame(at), PageCount(before)));
        }
        left -= before + if hole.kind == HoleKind::Mmio { 0 } else { hole.pages };
        at = range.end().0;
    }
    if left > 0 {
        ranges.push(FrameRange::new(Frame(at), PageCount(left)));
    }
    Ok(ranges)
}

/// The lowest `count` frames of `ranges`, and the others.
fn split(ranges: &[FrameRange], count: u64) -> (Vec<FrameRange>, Vec<FrameRange>) {
    let (mut below, mut above, mut left) = (Vec::new(), Vec::new(), count);
    for &range in ranges {
        let taken = range.count.0.min(left);
        left -= taken;
        if taken > 0 {
            below.push(FrameRange::new(range.start, PageCount(taken)));
        }
        if taken < range.count.0 {
            above.push(FrameRange::new(range.start + taken, PageCount(range.count.0 - taken)));
        }
    }
    (below, above)
}

/// The frames that are in both lists of ascending ranges.
fn intersect(a: &[FrameRange], b: &[FrameRange]) -> Vec<FrameRange> {
    let mut both = Vec::new();
    for x in a {
        for y in b {
            let (start, end) = (x.start.max(y.start), x.end().min(y.end()));
            if start < end {
                both.push(FrameRange::new(start, PageCount(end.0 - start.0)));
            }
        }
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 18;

    fn range(start: u64, count: u64) -> FrameRange {
        FrameRange::new(Frame(start), PageCount(count))
    }

    fn hole(start_page: u64, pages: u64, kind: HoleKind) -> Hole {
        Hole { start_page, pages, kind }
    }

    #[test]
    fn ram_goes_on_above_an_mmio_hole() {
        let holes = [hole(3 * GIB, GIB, HoleKind::Mmio)];
        let map = MemoryMap::new(PageCount(8 * GIB), PageCount(0), &holes, 1).unwrap();
        assert_eq!(map.nodes(), [vec![range(0, 3 * GIB), range(4 * GIB, 5 * GIB)]]);
        assert_eq!(map.usable(), PageCount(8 * GIB));
    }

    #[test]
    fn bad_pages_firmware_and_the_hypervisor_take_memory_away() {
        let holes = [hole(100, 1, HoleKind::Bad), hole(200, 50, HoleKind::Firmware)];
        let map = MemoryMap::new(PageCount(1000), PageCount(110), &holes, 1).unwrap();
        assert_eq!(map.reserved(), [range(0, 100), range(101, 10)]);
        assert_eq!(map.nodes(), [vec![range(111, 89), range(250, 750)]]);
        assert_eq!(map.usable(), PageCount(1000 - 51 - 110));
    }

    #[test]
    fn nodes_are_equal_shares_of_the_ram() {
        let map = MemoryMap::new(PageCount(1000), PageCount(100), &[], 2).unwrap();
        assert_eq!(map.nodes(), [vec![range(100, 400)], vec![range(500, 500)]]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |reserved, holes: &[Hole], nodes| {
            MemoryMap::new(PageCount(1000), PageCount(reserved), holes, nodes).unwrap_err()
        };
        assert!(refused(0, &[], 0).contains("at least one node"));
        assert!(refused(1000, &[], 1).contains("leave some memory"));
        assert!(refused(0, &[hole(0, 10, HoleKind::Bad), hole(5, 10, HoleKind::Bad)], 1).contains("overlaps"));
        assert!(refused(0, &[hole(2000, 10, HoleKind::Bad)], 1).contains("not inside"));
        assert!(refused(0, &[hole(990, 10, HoleKind::Firmware)], 1).contains("not inside"));
        assert!(refused(0, &[hole(10, 0, HoleKind::Mmio)], 1).contains("no possible size"));
        assert!(refused(0, &[hole(10, u64::MAX, HoleKind::Mmio)], 1).contains("no possible size"));
    }
}
