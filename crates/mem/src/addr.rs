// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unit types for addresses and page numbers.
//!
//! A kernel, seen by itself, translates a virtual address [`Va`] (page number [`Vpn`]) into an
//! address [`Pa`] of *its* physical memory (page number [`Frame`]). Guest and host run the same
//! code, so the rooms `mem` and `os` speak of `Va` and `Pa` only. Where two kernels meet (the
//! walkers and the machine), the same values get KVM's names: the guest's `Va` is a [`Gva`], its
//! `Pa` a [`Gpa`], the host's `Pa` a [`Hpa`]. The conversions are explicit and only there. Native,
//! the program's `Va` is called a `Gva` all the same and the kernel's `Pa` is the `Hpa`.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Bits of an address inside a 4 KiB page.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes of a base page.
pub const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
/// Bits of an address inside a cache line.
pub const LINE_SHIFT: u32 = 6;
/// Bytes of a page-table entry.
pub const ENTRY_BYTES: u64 = 8;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident, page: $(#[$page_doc:meta])* $page:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The 4 KiB page that holds this address.
            #[inline]
            pub const fn page(self) -> $page {
                $page(self.0 >> PAGE_SHIFT)
            }

            /// Bytes from the start of the page.
            #[inline]
            pub const fn page_offset(self) -> u64 {
                self.0 & (PAGE_BYTES - 1)
            }
        }

        impl Add<u64> for $name {
            type Output = Self;
            #[inline]
            fn add(self, bytes: u64) -> Self {
                Self(self.0 + bytes)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        $(#[$page_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $page(pub u64);

        impl $page {
            /// The address of the page's first byte.
            #[inline]
            pub const fn address(self) -> $name {
                $name(self.0 << PAGE_SHIFT)
            }

            /// This page number rounded down to a multiple of `2^order` pages.
            #[inline]
            pub const fn align_down(self, order: u32) -> Self {
                Self(self.0 >> order << order)
            }

            /// Whether this page number is a multiple of `2^order` pages.
            #[inline]
            pub const fn is_aligned(self, order: u32) -> bool {
                self.0.trailing_zeros() >= order || self.0 == 0
            }
        }

        impl Add<u64> for $page {
            type Output = Self;
            #[inline]
            fn add(self, pages: u64) -> Self {
                Self(self.0 + pages)
            }
        }

        impl AddAssign<u64> for $page {
            #[inline]
            fn add_assign(&mut self, pages: u64) {
                self.0 += pages;
            }
        }

        impl Sub for $page {
            type Output = u64;
            #[inline]
            fn sub(self, other: Self) -> u64 {
                self.0 - other.0
            }
        }

        impl fmt::Debug for $page {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($page), "({:#x})"), self.0)
            }
        }
    };
}

address!(
    /// A virtual address in a process of some kernel.
    Va,
    page: /// A virtual page number (4 KiB) in a process of some kernel.
    Vpn
);
address!(
    /// An address in some kernel's physical memory.
    Pa,
    page: /// A page frame number (4 KiB) in some kernel's physical memory.
    Frame
);
address!(
    /// Guest virtual address: what the program uses (also when it runs natively).
    Gva,
    page: /// Guest virtual page number.
    Gvn
);
address!(
    /// Guest physical address (KVM's gpa).
    Gpa,
    page: /// Guest frame number (KVM's gfn): `gpa >> 12`.
    Gfn
);
address!(
    /// Host physical address (KVM's hpa): the only one that caches know.
    Hpa,
    page: /// Host page frame number (KVM's pfn): `hpa >> 12`.
    Pfn
);

impl From<Va> for Gva {
    #[inline]
    fn from(va: Va) -> Self {
        Self(va.0)
    }
}

impl From<Gva> for Va {
    #[inline]
    fn from(gva: Gva) -> Self {
        Self(gva.0)
    }
}

impl From<Pa> for Gpa {
    #[inline]
    fn from(pa: Pa) -> Self {
        Self(pa.0)
    }
}

impl From<Pa> for Hpa {
    #[inline]
    fn from(pa: Pa) -> Self {
        Self(pa.0)
    }
}

impl From<Frame> for Gfn {
    #[inline]
    fn from(frame: Frame) -> Self {
        Self(frame.0)
    }
}

impl From<Frame> for Pfn {
    #[inline]
    fn from(frame: Frame) -> Self {
        Self(frame.0)
    }
}

/// A number of 4 KiB pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(transparent)]
pub struct PageCount(pub u64);

impl PageCount {
    /// The pages that `bytes` fill, the last one perhaps in part.
    pub const fn covering(bytes: u64) -> Self {
        Self(bytes.div_ceil(PAGE_BYTES))
    }

    /// Their size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0 << PAGE_SHIFT
    }
}

/// The virtual pages `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct VpnRange {
    /// First page.
    pub start: Vpn,
    /// One past the last page.
    pub end: Vpn,
}

impl VpnRange {
    /// `count` pages from `start`.
    pub const fn new(start: Vpn, count: PageCount) -> Self {
        Self { start, end: Vpn(start.0 + count.0) }
    }

    /// How many pages there are.
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.end.0 <= self.start.0
    }

    /// Whether `page` is one of them.
    #[inline]
    pub const fn contains(self, page: Vpn) -> bool {
        self.start.0 <= page.0 && page.0 < self.end.0
    }

    /// The pages that are in both.
    pub fn intersection(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }

    /// Whether some page is in both.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start.0 < other.end.0 && other.start.0 < self.end.0
    }
}

/// The frames `start..start + count`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FrameRange {
    /// First frame.
    pub start: Frame,
    /// How many.
    pub count: PageCount,
}

impl FrameRange {
    /// `count` frames from `start`.
    pub const fn new(start: Frame, count: PageCount) -> Self {
        Self { start, count }
    }

    /// One frame.
    pub const fn single(frame: Frame) -> Self {
        Self { start: frame, count: PageCount(1) }
    }

    /// One past the last frame.
    pub const fn end(self) -> Frame {
        Frame(self.start.0 + self.count.0)
    }

    /// Whether `frame` is one of them.
    #[inline]
    pub const fn contains(self, frame: Frame) -> bool {
        self.start.0 <= frame.0 && frame.0 < self.start.0 + self.count.0
    }

    /// The frames one by one.
    pub fn iter(self) -> impl Iterator<Item = Frame> {
        (self.start.0..self.end().0).map(Frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_addresses_round_trip() {
        let va = Va(0x7fff_1234_5678);
        assert_eq!(va.page(), Vpn(0x7_fff1_2345));
        assert_eq!(va.page().address() + va.page_offset(), va);
        assert!(Vpn(0x200).is_aligned(9) && !Vpn(0x208).is_aligned(9) && Vpn(0).is_aligned(18));
        assert_eq!(Frame(0x3ff).align_down(9), Frame(0x200));
    }

    #[test]
    fn an_intersection_of_disjoint_ranges_is_empty() {
        let a = VpnRange::new(Vpn(0), PageCount(4));
        let b = VpnRange::new(Vpn(8), PageCount(4));
        assert!(a.intersection(b).is_empty() && !a.overlaps(b));
        assert_eq!(a.intersection(VpnRange::new(Vpn(3), PageCount(9))).len(), 1);
    }
}
