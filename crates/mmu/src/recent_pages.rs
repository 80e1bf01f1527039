// SPDX-License-Identifier: MIT OR Apache-2.0
//! A prediction of which accesses will walk. It is accurate enough for fetching ahead and much
//! cheaper than a TLB look-up.

use nestwalk_mem::Gvn;

/// A direct-mapped table of recently walked pages. A page is replaced by the next one with the same
/// lowest bits.
#[derive(Clone, Debug)]
pub(crate) struct RecentPages {
    /// Indexed by a page's lowest bits: the bits above.
    pages: [u32; RecentPages::LEN],
}

impl RecentPages {
    const LEN: usize = 512;

    pub const fn new() -> Self {
        Self { pages: [u32::MAX; Self::LEN] }
    }

    /// Whether the TLBs are likely to hold a translation of `page`.
    #[inline(always)]
    pub fn contains(&self, page: Gvn) -> bool {
        self.pages[page.0 as usize % Self::LEN] == (page.0 / Self::LEN as u64) as u32
    }

    /// Records that a walk for `page` will follow.
    #[inline(always)]
    pub fn insert(&mut self, page: Gvn) {
        self.pages[page.0 as usize % Self::LEN] = (page.0 / Self::LEN as u64) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_contained_until_one_with_the_same_lowest_bits_replaces_it() {
        let mut recent = RecentPages::new();
        let (page, double) = (Gvn(0x1_2345), Gvn(0x1_2345 + 7 * RecentPages::LEN as u64));
        assert!(!recent.contains(page));
        recent.insert(page);
        assert!(recent.contains(page) && !recent.contains(double) && !recent.contains(Gvn(0x1_2346)));
        recent.insert(double);
        assert!(!recent.contains(page) && recent.contains(double));
    }
}
