// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guess at which accesses will walk: good enough to fetch ahead for, and far cheaper than to ask the TLBs.

use nestwalk_mem::Gvn;

/// Pages that were met of late. A page is forgotten when another one with the same lowest bits is met.
#[derive(Clone, Debug)]
pub(crate) struct RecentPages {
    /// By a page's lowest bits, the bits above.
    pages: [u32; RecentPages::LEN],
}

impl RecentPages {
    const LEN: usize = 512;

    pub const fn new() -> Self {
        Self { pages: [u32::MAX; Self::LEN] }
    }

    /// Whether `page` is likely to have a translation in the TLBs. If not, it will have one soon.
    #[inline(always)]
    pub fn contains(&self, page: Gvn) -> bool {
        self.pages[page.0 as usize % Self::LEN] == (page.0 / Self::LEN as u64) as u32
    }

    /// A walk for `page` comes.
    #[inline(always)]
    pub fn insert(&mut self, page: Gvn) {
        self.pages[page.0 as usize % Self::LEN] = (page.0 / Self::LEN as u64) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_known_until_its_double_comes() {
        let mut recent = RecentPages::new();
        let (page, double) = (Gvn(0x1_2345), Gvn(0x1_2345 + 7 * RecentPages::LEN as u64));
        assert!(!recent.contains(page));
        recent.insert(page);
        assert!(recent.contains(page) && !recent.contains(double) && !recent.contains(Gvn(0x1_2346)));
        recent.insert(double);
        assert!(!recent.contains(page) && recent.contains(double));
    }
}
