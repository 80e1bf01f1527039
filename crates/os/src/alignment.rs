// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the huge pages of two kernels lie on each other (Gemini, EuroSys 2023).
//!
//! A guest's huge page whose guest-physical 2 MiB the host maps by one entry is aligned: one TLB
//! entry holds both. A huge page in one of the two tables only shortens walks, but takes as many
//! TLB entries as 4 KiB pages do. The unit of all counts is the 4 KiB page of the program.

use nestwalk_mem::{Frame, PageSize, PageTable, Vpn};
use serde::Serialize;

use crate::fragmentation::everything;

/// Pages of a program in a VM, by the sizes in which the guest and the host map them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Alignment {
    /// Mapped by 2 MiB (or more) in both tables.
    pub huge_on_huge: u64,
    /// 2 MiB in the guest, 4 KiB in the host.
    pub huge_on_small: u64,
    /// 4 KiB in the guest, 2 MiB in the host.
    pub small_on_huge: u64,
    /// 4 KiB in both.
    pub small_on_small: u64,
    /// Mapped in the guest, and not (yet) in the host.
    pub unbacked: u64,
}

impl Alignment {
    /// Of all that `guest` maps. The guest's frame 0 is the page `base` of the host's process,
    /// which is a multiple of 2 MiB.
    pub fn of(guest: &PageTable, host: &PageTable, base: Vpn) -> Self {
        let mut found = Self::default();
        guest.for_each_leaf(everything(guest), |leaf| {
            if leaf.entry.is_present() {
                found.count(leaf.entry.frame(), leaf.size().pages(), host, base);
            }
        });
        found
    }

    /// Counts a leaf of the guest's with so many pages, from `frame` on.
    fn count(&mut self, frame: Frame, pages: u64, host: &PageTable, base: Vpn) {
        let huge = pages >= PageSize::Huge.pages();
        let mut done = 0;
        while done < pages {
            let below = host.leaf(base + frame.0 + done).filter(|leaf| leaf.entry.is_present());
            let host_huge = below.as_ref().is_some_and(|leaf| leaf.size() >= PageSize::Huge);
            let step = if huge && host_huge { PageSize::Huge.pages() } else { 1 };
            let counted = match (below.is_some(), huge, host_huge) {
                (false, _, _) => &mut self.unbacked,
                (_, true, true) => &mut self.huge_on_huge,
                (_, true, false) => &mut self.huge_on_small,
                (_, false, true) => &mut self.small_on_huge,
                (_, false, false) => &mut self.small_on_small,
            };
            *counted += step;
            done += step;
        }
    }

    /// All pages.
    pub const fn pages(&self) -> u64 {
        self.huge_on_huge + self.huge_on_small + self.small_on_huge + self.small_on_small + self.unbacked
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::{Geometry, Level};

    use super::*;

    /// A table with these leaves: size, page, frame.
    fn table(leaves: &[(PageSize, u64, u64)]) -> PageTable {
        let mut table = PageTable::new(Geometry::X86_4, Frame(1 << 30));
        let mut next = 1 << 30;
        for &(size, page, frame) in leaves {
            let node = |_: Level, _: Vpn| {
                next += 1;
                Ok::<_, ()>(Frame(next))
            };
            table.map(Vpn(page), Frame(frame), size, 0, node).unwrap();
        }
        table
    }

    #[test]
    fn pages_are_counted_by_the_sizes_on_both_sides() {
        use PageSize::{Huge, Small};
        let base = 1 << 18;
        let guest =
            table(&[(Huge, 512, 0), (Huge, 1024, 512), (Small, 4096, 1024), (Small, 4097, 1536), (Small, 4098, 1600)]);
        let mut host = vec![(Huge, base, 512), (Huge, base + 1024, 1024), (Small, base + 1536, 9)];
        host.extend((0..100).map(|page| (Small, base + 512 + page, 5000 + page)));
        let found = Alignment::of(&guest, &table(&host), Vpn(base));
        let wanted =
            Alignment { huge_on_huge: 512, huge_on_small: 100, small_on_huge: 1, small_on_small: 1, unbacked: 413 };
        assert_eq!(found, wanted);
        assert_eq!(found.pages(), 1027);
    }
}
