// SPDX-License-Identifier: MIT OR Apache-2.0
//! A page's translation in one word, as the TLBs and the nested TLB hold it and as walks return it.

use std::fmt;
use std::num::NonZeroU64;

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{CONTIGUOUS_PAGES, Entry, Gvn, Hpa, PageSize, Pfn};

/// A translation. Frame and rights are in the same bits as in an [`Entry`], so that a walk combines
/// entries with a few bitwise operations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mapping(NonZeroU64);

impl Mapping {
    /// Two bits that an entry does not use.
    const SIZE_SHIFT: u32 = 2;
    const RIGHTS: u64 = Entry::WRITABLE | Entry::DIRTY;
    const FRAME: u64 = !((1 << PAGE_SHIFT) - 1);
    /// In a TLB only: a 4 KiB page of a contiguous block.
    const CONTIGUOUS: u64 = Entry::CONTIGUOUS;

    /// One of a page of `size` whose first 4 KiB lie in `frame`.
    #[inline(always)]
    #[must_use]
    pub fn new(frame: Pfn, size: PageSize, writable: bool, dirty: bool) -> Self {
        let writable = if writable { Entry::WRITABLE } else { 0 };
        Self::joined(frame, size, writable).used(dirty)
    }

    /// What the leaf `entry` of a page of `size` says: of the whole page, or, with another `frame`
    /// than its first, of a part.
    #[inline(always)]
    pub(crate) fn of(entry: Entry, frame: Pfn, size: PageSize) -> Self {
        Self::joined(frame, size, entry.flags())
    }

    /// What the leaf entries of a 4 KiB page in `guest` and `host` say together, of a page in
    /// `frame`.
    #[inline(always)]
    pub(crate) fn of_both(guest: Entry, host: Entry, frame: Pfn) -> Self {
        Self::joined(frame, PageSize::Small, guest.flags() & host.flags())
    }

    /// With those of `flags` that are rights.
    #[inline(always)]
    fn joined(frame: Pfn, size: PageSize, flags: u64) -> Self {
        Self::from_bits(frame.0 << PAGE_SHIFT | (size as u64) << Self::SIZE_SHIFT | flags & Self::RIGHTS)
    }

    #[inline(always)]
    pub(crate) fn from_bits(bits: u64) -> Self {
        // Never 0: an entry that is present has this bit.
        const { assert!(Entry::PRESENT == NonZeroU64::MIN.get()) }
        Self(NonZeroU64::MIN | bits)
    }

    /// The same where the size is known, so that who goes on with it needs not ask.
    #[inline(always)]
    pub(crate) fn from_bits_of(bits: u64, size: PageSize) -> Self {
        debug_assert_eq!(Self::from_bits(bits).size(), size);
        Self::from_bits(bits & !(3 << Self::SIZE_SHIFT) | (size as u64) << Self::SIZE_SHIFT)
    }

    #[inline(always)]
    pub(crate) fn bits(self) -> u64 {
        self.0.get()
    }

    /// The host-physical frame of its first 4 KiB page.
    #[inline(always)]
    pub fn frame(self) -> Pfn {
        Pfn(self.bits() >> PAGE_SHIFT)
    }

    /// The host-physical address of its first byte.
    #[inline(always)]
    pub(crate) fn start(self) -> Hpa {
        Hpa(self.bits() & Self::FRAME)
    }

    /// Its size: the smaller one of the guest's and the host's leaf.
    #[inline(always)]
    pub fn size(self) -> PageSize {
        match self.bits() >> Self::SIZE_SHIFT & 3 {
            0 => PageSize::Small,
            1 => PageSize::Huge,
            _ => PageSize::Giant,
        }
    }

    /// Whether stores are allowed (by guest and host).
    #[inline(always)]
    pub fn is_writable(self) -> bool {
        self.bits() & Entry::WRITABLE != 0
    }

    /// Whether all leaves behind it have their dirty bits set, so that a store needs nothing more.
    #[inline(always)]
    pub fn is_dirty(self) -> bool {
        self.bits() & Entry::DIRTY != 0
    }

    /// Whether a store may use it, and needs nothing more.
    #[inline(always)]
    pub(crate) fn takes_stores(self) -> bool {
        self.bits() & Self::RIGHTS == Self::RIGHTS
    }

    /// The same after a reference that was a `store`, or not.
    #[inline(always)]
    #[must_use]
    pub(crate) fn used(self, store: bool) -> Self {
        Self(self.0 | if store { Entry::DIRTY } else { 0 })
    }

    /// The same with the rights of both.
    #[inline(always)]
    #[must_use]
    pub(crate) fn and_rights_of(self, other: Self) -> Self {
        Self::from_bits(self.bits() & (other.bits() | !Self::RIGHTS))
    }

    /// Whether it is a 4 KiB page by itself, and not one of a contiguous block.
    #[inline(always)]
    pub(crate) fn is_single(self) -> bool {
        self.bits() & (3 << Self::SIZE_SHIFT | Self::CONTIGUOUS) == 0
    }

    /// Whether it is a 4 KiB page of a contiguous block.
    #[inline(always)]
    pub(crate) fn is_contiguous(self) -> bool {
        self.bits() & Self::CONTIGUOUS != 0
    }

    /// The same 4 KiB page as one of a contiguous block.
    pub(crate) fn in_block(self) -> Self {
        debug_assert_eq!(self.size(), PageSize::Small);
        Self::from_bits(self.bits() | Self::CONTIGUOUS)
    }

    /// The same by itself.
    pub(crate) fn alone(self) -> Self {
        Self::from_bits(self.bits() & !Self::CONTIGUOUS)
    }

    /// `page` of the contiguous block one page of which this is.
    pub(crate) fn in_block_at(self, page: Gvn) -> Self {
        debug_assert!(self.is_contiguous());
        const PLACES: u64 = (CONTIGUOUS_PAGES - 1) << PAGE_SHIFT;
        Self::from_bits(self.bits() & !PLACES | page.0 << PAGE_SHIFT & PLACES)
    }

    /// The 4 KiB frame behind `page`, which is one of the pages of this translation.
    #[inline(always)]
    pub fn frame_of(self, page: Gvn) -> Pfn {
        Pfn(self.frame().0 + (page.0 & (self.size().pages() - 1)))
    }

    /// The piece of `size` (not larger than this translation) that holds `page`.
    #[inline(always)]
    #[must_use]
    pub fn piece(self, page: Gvn, size: PageSize) -> Self {
        debug_assert!(size <= self.size());
        let frame = self.frame_of(page).align_down(size.order());
        Self::joined(frame, size, self.bits())
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rights = [if self.is_writable() { "w" } else { "r" }, if self.is_dirty() { "d" } else { "" }].concat();
        write!(f, "Mapping({:?}, {:?}, {rights})", self.frame(), self.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_mapping() -> impl Strategy<Value = (u64, PageSize, bool, bool)> {
        (0_u64..1 << 22, prop::sample::select(PageSize::ALL.to_vec()), any::<bool>(), any::<bool>())
    }

    proptest! {
        #[test]
        fn a_word_keeps_all_that_was_said(
            (block, size, writable, dirty) in any_mapping(), page in 0_u64..1 << 36, store in any::<bool>(),
            (_, _, other_writable, other_dirty) in any_mapping(),
        ) {
            let told = |m: Mapping| (m.frame().0, m.size(), m.is_writable(), m.is_dirty(), m.takes_stores());
            let frame = block << size.order();
            let mapping = Mapping::new(Pfn(frame), size, writable, dirty);
            prop_assert_eq!(told(mapping), (frame, size, writable, dirty, writable && dirty));
            prop_assert_eq!(Mapping::from_bits(mapping.bits()), mapping);
            prop_assert_eq!(mapping.start().0, frame << 12);
            let flag = |has: bool, flag: u64| if has { flag } else { 0 };
            let flags = flag(writable, Entry::WRITABLE) | flag(dirty, Entry::DIRTY) | Entry::ACCESSED;
            let leaf = Entry::leaf(nestwalk_mem::Frame(frame), flags);
            prop_assert_eq!(Mapping::of(leaf, Pfn(frame), size), mapping);
            prop_assert_eq!(mapping.used(store), Mapping::new(Pfn(frame), size, writable, dirty || store));
            let other = Mapping::new(Pfn(page), PageSize::Small, other_writable, other_dirty);
            let both = Mapping::new(Pfn(frame), size, writable && other_writable, dirty && other_dirty);
            prop_assert_eq!(mapping.and_rights_of(other), both);
            for piece in PageSize::ALL.into_iter().filter(|&piece| piece <= size) {
                let offset = page % size.pages() / piece.pages() * piece.pages();
                let expected = Mapping::new(Pfn(frame + offset), piece, writable, dirty);
                prop_assert_eq!(mapping.piece(Gvn(page), piece), expected);
            }
        }
    }
}
