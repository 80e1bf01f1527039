// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a generator's arrays lie, and in which order they are touched first.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Gva, PageCount, Vpn, VpnRange};

use super::bijection::{Bijection, mix};

/// Where the first mapping ends: under the libraries of an x86-64 process without address
/// randomisation, whose `mmap` area begins a gap below the stack at 0x7fff_f7ff_f000 and grows
/// downwards.
const MMAP_TOP: Vpn = Vpn(0x7_ffff_7000);

/// Bytes that glibc's `malloc` keeps before an array.
pub(super) const HEADER: u64 = 16;

/// Hands out mappings as `mmap` does: each right below the one before (`vm_unmapped_area` top down;
/// Linux 6.1 aligns nothing to 2 MiB).
#[derive(Clone)]
pub(super) struct MmapArea {
    next_end: Vpn,
}

impl MmapArea {
    pub(super) fn new() -> Self {
        Self { next_end: MMAP_TOP }
    }

    /// Leaves a hole of `pages`.
    pub(super) fn skip(&mut self, pages: PageCount) {
        self.next_end = Vpn(self.next_end.0 - pages.0);
    }

    /// A mapping of `pages`.
    pub(super) fn map(&mut self, pages: PageCount) -> Region {
        let end = self.next_end;
        let start = Vpn(end.0 - pages.0);
        self.next_end = start;
        Region { pages: VpnRange { start, end } }
    }
}

/// One mapping, private and anonymous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Region {
    /// Its pages.
    pub(super) pages: VpnRange,
}

impl Region {
    /// The address `offset` bytes from its start.
    #[inline]
    pub(super) fn at(self, offset: u64) -> Gva {
        debug_assert!(offset < self.bytes(), "offset {offset} in {self:?}");
        Gva(self.pages.start.address().0 + offset)
    }

    /// Its first `pages`, and the rest.
    pub(super) fn split(self, pages: u64) -> [Self; 2] {
        let VpnRange { start, end } = self.pages;
        let middle = start + pages;
        [VpnRange { start, end: middle }, VpnRange { start: middle, end }].map(|pages| Self { pages })
    }

    /// Its size in bytes.
    #[inline]
    pub(super) fn bytes(self) -> u64 {
        self.pages.len() * PAGE_BYTES
    }
}

/// First touches by threads that each fill their slice of the arrays, page after page.
///
/// Arrays of one group are filled by one loop, so their pages alternate; groups follow one another.
pub(super) struct Sweep {
    groups: Vec<Vec<VpnRange>>,
    /// Seed of the order of each group's pages; in order if there is none.
    shuffled: Vec<Option<u64>>,
    threads: u64,
    /// For each thread: group, position in its slice, array of the group.
    cursors: Vec<(usize, u64, usize)>,
}

impl Sweep {
    pub(super) fn new(groups: Vec<Vec<Region>>, threads: u16) -> Self {
        let groups = groups.into_iter().map(|group| group.into_iter().map(|region| region.pages).collect()).collect();
        let groups: Vec<Vec<VpnRange>> = groups;
        Self {
            shuffled: vec![None; groups.len()],
            groups,
            threads: threads.into(),
            cursors: vec![(0, 0, 0); threads.into()],
        }
    }

    /// The first thread fills all, and the others find it filled.
    pub(super) fn by_the_first(groups: Vec<Vec<Region>>) -> Self {
        Self::new(groups, 1)
    }

    /// The pages of group `group` are touched in random order, as by a program that scatters what
    /// it writes.
    #[must_use]
    pub(super) fn scattered(mut self, group: usize, seed: u64) -> Self {
        self.shuffled[group] = Some(seed);
        self
    }

    /// The thread's next touches, all of them stores; none if it has touched all it has to.
    pub(super) fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        let Some(&(mut group, mut position, mut array)) = self.cursors.get(usize::from(thread)) else { return };
        while touches.len() < most && group < self.groups.len() {
            let arrays = &self.groups[group];
            let order = self.shuffled[group].map(|seed| Bijection::new(arrays[array].len().max(1), mix(seed)));
            let slice = |pages: &VpnRange| {
                let bound = |thread: u64| pages.len() * thread / self.threads;
                bound(thread.into())..bound(u64::from(thread) + 1)
            };
            let own = slice(&arrays[array]);
            if own.start + position < own.end {
                let at = own.start + position;
                touches.push((arrays[array].start + order.map_or(at, |order| order.apply(at)), true));
            }
            array += 1;
            if array == arrays.len() {
                (array, position) = (0, position + 1);
                if arrays.iter().map(slice).all(|own| own.start + position >= own.end) {
                    (group, position) = (group + 1, 0);
                }
            }
        }
        self.cursors[usize::from(thread)] = (group, position, array);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_a_group_alternate_and_threads_have_slices() {
        let mut area = MmapArea::new();
        let (a, b, c) = (area.map(PageCount(4)), area.map(PageCount(4)), area.map(PageCount(2)));
        let mut sweep = Sweep::new(vec![vec![a, b], vec![c]], 2);
        let mut touches = Vec::new();
        sweep.touch(1, &mut touches, 100);
        let at = |region: Region, page| (region.pages.start + page, true);
        assert_eq!(touches, [at(a, 2), at(b, 2), at(a, 3), at(b, 3), at(c, 1)]);
        touches.clear();
        sweep.touch(1, &mut touches, 100);
        assert!(touches.is_empty());
        sweep.touch(0, &mut touches, 3);
        assert_eq!(touches, [at(a, 0), at(b, 0), at(a, 1)]);
    }

    #[test]
    fn a_scattered_group_is_touched_once_and_in_no_order() {
        let region = MmapArea::new().map(PageCount(1000));
        let mut sweep = Sweep::new(vec![vec![region]], 2).scattered(0, 7);
        let mut touches = Vec::new();
        (0..2).for_each(|thread| sweep.touch(thread, &mut touches, usize::MAX));
        let mut pages: Vec<u64> = touches.iter().map(|(page, _)| page.0 - region.pages.start.0).collect();
        let in_order = pages.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
        assert!(in_order < 10, "{in_order}");
        pages.sort_unstable();
        assert!(pages.into_iter().eq(0..1000));
    }

    #[test]
    fn mappings_are_stacked_downwards() {
        let mut area = MmapArea::new();
        let (a, b) = (area.map(PageCount(3)), area.map(PageCount(5)));
        assert_eq!(a.pages.end, MMAP_TOP);
        assert_eq!(b.pages.end, a.pages.start);
        assert_eq!(b.at(4096).page(), nestwalk_mem::Gvn(b.pages.start.0 + 1));
    }
}
