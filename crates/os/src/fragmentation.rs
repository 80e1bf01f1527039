// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host page-table fragmentation (Margaritov et al., ASPLOS 2021, section 3.2).
//!
//! Of all groups of 8 neighbouring guest-virtual pages whose guest PTEs share a cache line and are
//! all mapped: on how many distinct cache lines do their 8 host PTEs lie? The host indexes its
//! table by guest frame, so the answer is in the guest's table alone: the number of distinct
//! `gfn >> 3`. 1 is perfect, 8 is the worst.

use nestwalk_mem::{Level, PageTable, Vpn, VpnRange};

/// log2 of the entries in a cache line.
const LINE_ENTRIES: u32 = 3;

/// How the groups of one or more tables are spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fragmentation {
    /// `distribution[n - 1]` groups lie on `n` lines.
    pub distribution: [u64; 8],
}

impl Fragmentation {
    /// Of the 4 KiB pages of `range`, which the host maps by PTEs.
    pub fn of_small(table: &PageTable, range: VpnRange) -> Self {
        Self::of(table, range, Level::PTE)
    }

    /// Of the 2 MiB pages of `range`, which the host maps by PMD entries: groups of 8 whose guest
    /// PMD entries share a line, and the number of distinct `gfn >> 9 >> 3`.
    pub fn of_huge(table: &PageTable, range: VpnRange) -> Self {
        Self::of(table, range, Level::PMD)
    }

    fn of(table: &PageTable, range: VpnRange, level: Level) -> Self {
        let order = table.geometry().entry_order(level);
        let mut found = Self::default();
        let mut group = Group::default();
        table.for_each_leaf(range, |leaf| {
            if leaf.level != level || !leaf.entry.is_present() {
                return;
            }
            let number = leaf.page.0 >> (order + LINE_ENTRIES);
            if group.number != Some(number) {
                group = Group { number: Some(number), ..Group::default() };
            }
            group.lines[group.count] = leaf.entry.frame().0 >> (order + LINE_ENTRIES);
            group.count += 1;
            if group.count == group.lines.len() {
                found.distribution[group.distinct() - 1] += 1;
            }
        });
        found
    }

    /// Groups of which all 8 pages are mapped.
    pub fn groups(&self) -> u64 {
        self.distribution.iter().sum()
    }

    /// Lines of all groups.
    pub fn lines(&self) -> u64 {
        (1..).zip(self.distribution).map(|(lines, groups)| lines * groups).sum()
    }

    /// The paper's figure: lines a group, or `None` without groups. For reports.
    pub fn average(&self) -> Option<f64> {
        (self.groups() > 0).then(|| self.lines() as f64 / self.groups() as f64)
    }

    /// Counts `other`'s groups too.
    pub fn add(&mut self, other: &Self) {
        self.distribution.iter_mut().zip(other.distribution).for_each(|(count, more)| *count += more);
    }
}

/// One group of 8 as its pages go by.
#[derive(Default)]
struct Group {
    number: Option<u64>,
    count: usize,
    lines: [u64; 8],
}

impl Group {
    fn distinct(&self) -> usize {
        (0..self.count).filter(|&i| !self.lines[..i].contains(&self.lines[i])).count()
    }
}

/// The whole address space of `table`.
pub fn everything(table: &PageTable) -> VpnRange {
    VpnRange { start: Vpn(0), end: table.geometry().end() }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::{Frame, Geometry, PageSize};

    use super::*;

    fn table(size: PageSize, pages: &[(u64, u64)]) -> PageTable {
        let mut table = PageTable::new(Geometry::X86_4, Frame(1 << 30));
        let mut next = 1 << 30;
        for &(page, frame) in pages {
            let (page, frame) = (Vpn(page << size.order()), Frame(frame << size.order()));
            let node = |_: Level, _: Vpn| {
                next += 1;
                Ok::<_, ()>(Frame(next))
            };
            table.map(page, frame, size, 0, node).unwrap();
        }
        table
    }

    /// Pages 16 to 23 in order on a line, 24 to 31 each on a line of its own, 32 to 39 on two lines
    /// (in order, but not aligned), 40 to 46 one page short of a group.
    fn pages() -> Vec<(u64, u64)> {
        let whole = (16..24).map(|page| (page, page + 64));
        let scattered = (24..32).map(|page| (page, 4096 + page * 8));
        let shifted = (32..40).map(|page| (page, 8192 + page + 3));
        let partial = (40..47).map(|page| (page, 16_384 + page));
        whole.chain(scattered).chain(shifted).chain(partial).collect()
    }

    #[test]
    fn groups_are_counted_by_the_lines_of_their_host_entries() {
        let table = table(PageSize::Small, &pages());
        let found = Fragmentation::of_small(&table, everything(&table));
        assert_eq!(found.distribution, [1, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!((found.groups(), found.lines(), found.average()), (3, 11, Some(11.0 / 3.0)));
        assert_eq!(Fragmentation::of_huge(&table, everything(&table)).average(), None);
    }

    #[test]
    fn huge_pages_are_counted_one_level_up() {
        let table = table(PageSize::Huge, &pages());
        let found = Fragmentation::of_huge(&table, everything(&table));
        assert_eq!(found.distribution, [1, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(Fragmentation::of_small(&table, everything(&table)).groups(), 0);
    }
}
