// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shape of a radix page table.

use crate::addr::{PAGE_SHIFT, Va, Vpn};

/// A level of a page table, leaf first as in the papers: 1 = PTE (PL1), 2 = PMD (PL2), 3 = PUD, 4 =
/// P4D or PGD, 5 = PGD.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Level(pub u8);

impl Level {
    /// The level of 4 KiB leaves.
    pub const PTE: Self = Self(1);
    /// The level of 2 MiB leaves.
    pub const PMD: Self = Self(2);
    /// The level of 1 GiB leaves.
    pub const PUD: Self = Self(3);

    /// The next level towards the leaves.
    ///
    /// # Panics
    /// In debug builds, below [`Level::PTE`].
    #[inline]
    pub const fn down(self) -> Self {
        debug_assert!(self.0 > 1);
        Self(self.0 - 1)
    }

    /// The next level towards the root.
    #[inline]
    pub const fn up(self) -> Self {
        Self(self.0 + 1)
    }

    /// 0 for the PTE level: for arrays with a place a level.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize - 1
    }
}

/// The size of a leaf's page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PageSize {
    /// 4 KiB: a leaf at the PTE level.
    Small,
    /// 2 MiB: a leaf at the PMD level.
    Huge,
    /// 1 GiB: a leaf at the PUD level.
    Giant,
}

impl PageSize {
    /// All sizes, smallest first.
    pub const ALL: [Self; 3] = [Self::Small, Self::Huge, Self::Giant];

    /// As people write them, in the same order.
    pub const NAMES: [&'static str; 3] = ["4KiB", "2MiB", "1GiB"];

    /// The level of a leaf of this size.
    #[inline]
    pub const fn level(self) -> Level {
        Level(self as u8 + 1)
    }

    /// The size of a leaf at `level`, or `None` above the PUD.
    #[inline]
    pub const fn of_level(level: Level) -> Option<Self> {
        match level.0 {
            1 => Some(Self::Small),
            2 => Some(Self::Huge),
            3 => Some(Self::Giant),
            _ => None,
        }
    }

    /// log2 of its 4 KiB pages on x86-64: 0, 9 or 18.
    #[inline]
    pub const fn order(self) -> u32 {
        self as u32 * 9
    }

    /// Its 4 KiB pages.
    #[inline]
    pub const fn pages(self) -> u64 {
        1 << self.order()
    }

    /// Its bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << (self.order() + PAGE_SHIFT)
    }
}

/// log2 of the pages of a contiguous block ([`PageTable::join`](crate::PageTable::join)).
pub const CONTIGUOUS_ORDER: u32 = 4;
/// Pages of a contiguous block: 64 KiB.
pub const CONTIGUOUS_PAGES: u64 = 1 << CONTIGUOUS_ORDER;

/// How many levels a table has and how many bits of the page number each one indexes.
///
/// x86-64 is [`Geometry::X86_4`] or [`Geometry::X86_5`]; tests run the same code on odd ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Geometry {
    levels: u8,
    index_bits: u8,
}

impl Geometry {
    /// x86-64 with 48-bit virtual addresses.
    pub const X86_4: Self = Self { levels: 4, index_bits: 9 };
    /// x86-64 with 57-bit virtual addresses (LA57).
    pub const X86_5: Self = Self { levels: 5, index_bits: 9 };
    /// The most levels that any table has: for arrays with a place a level.
    pub const LEVELS_MAX: usize = 5;

    /// A table of `levels` (2 to 5) levels, each indexed by `index_bits` (1 to 9) bits.
    pub const fn new(levels: u8, index_bits: u8) -> Option<Self> {
        if levels < 2 || levels > 5 || index_bits < 1 || index_bits > 9 {
            return None;
        }
        Some(Self { levels, index_bits })
    }

    /// The number of levels.
    #[inline]
    pub const fn levels(self) -> u8 {
        self.levels
    }

    /// The root's level.
    #[inline]
    pub const fn root(self) -> Level {
        Level(self.levels)
    }

    /// Entries of a node.
    #[inline]
    pub const fn entries(self) -> usize {
        1 << self.index_bits
    }

    /// Bits of the page number that one level indexes.
    #[inline]
    pub const fn index_bits(self) -> u32 {
        self.index_bits as u32
    }

    /// The index of the entry for `page` in a node of `level`.
    #[inline]
    pub const fn index(self, page: Vpn, level: Level) -> usize {
        (page.0 >> self.entry_order(level)) as usize & (self.entries() - 1)
    }

    /// log2 of the 4 KiB pages that one entry at `level` spans.
    #[inline]
    pub const fn entry_order(self, level: Level) -> u32 {
        self.index_bits as u32 * (level.0 as u32 - 1)
    }

    /// One past the highest page that the table can map.
    pub const fn end(self) -> Vpn {
        Vpn(1 << (self.index_bits as u32 * self.levels as u32))
    }

    /// Whether the table can map `va`.
    pub const fn contains(self, va: Va) -> bool {
        va.page().0 < self.end().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x86_indices_are_nine_bits_a_level() {
        let page = Va(0x0000_7f12_3456_7000).page();
        let g = Geometry::X86_4;
        assert_eq!(g.index(page, Level::PTE), 0x7f12_3456_7000 >> 12 & 511);
        assert_eq!(g.index(page, Level(4)), 0x7f12_3456_7000 >> 39 & 511);
        assert_eq!(g.end().address(), Va(1 << 48));
        assert_eq!(Geometry::X86_5.end().address(), Va(1 << 57));
    }

    #[test]
    fn sizes_and_levels_agree() {
        for size in PageSize::ALL {
            assert_eq!(PageSize::of_level(size.level()), Some(size));
            assert_eq!(Geometry::X86_4.entry_order(size.level()), size.order());
        }
        assert_eq!(PageSize::of_level(Level(4)), None);
    }

    #[test]
    fn impossible_geometries_are_refused() {
        assert!(Geometry::new(1, 9).is_none() && Geometry::new(6, 9).is_none() && Geometry::new(4, 10).is_none());
        assert!(Geometry::new(2, 3).is_some());
    }
}
