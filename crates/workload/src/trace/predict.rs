// SPDX-License-Identifier: MIT OR Apache-2.0
//! The predictor that writer and reader share, so that only what it gets wrong has to be written
//! down.
//!
//! An instruction that accesses memory is a *site*. After a site comes, most likely, the site that
//! came after it last time; and it most likely accesses its last address plus its stride. The
//! stride is 2-delta: it changes when the same new distance has been seen twice in a row, so that
//! one jump does not cost two misses.

/// A site, numbered from 0 within its block in the order of first appearance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(transparent)]
pub struct LocalSite(pub u32);

/// What is remembered of one site.
#[derive(Clone, Copy, Debug, Default)]
pub struct SiteState {
    /// Its last address; 0 before it has one.
    last: u64,
    stride: u64,
    candidate: u64,
    successor: LocalSite,
    /// Whether it stores.
    store: bool,
}

impl SiteState {
    /// A site that has not run in this block. Code that runs for the first time runs on to the next
    /// new site.
    #[inline]
    pub const fn new(site: LocalSite, store: bool) -> Self {
        Self { last: 0, stride: 0, candidate: 0, successor: LocalSite(site.0.wrapping_add(1)), store }
    }

    /// The site that probably comes next.
    #[inline]
    pub const fn successor(&self) -> LocalSite {
        self.successor
    }

    /// Another site came next.
    #[inline]
    pub const fn correct_successor(&mut self, site: LocalSite) {
        self.successor = site;
    }

    /// Whether it stores.
    #[inline]
    pub const fn is_store(&self) -> bool {
        self.store
    }

    /// The address that it probably accesses.
    #[inline]
    pub const fn address(&self) -> u64 {
        self.last.wrapping_add(self.stride)
    }

    /// It did access that address, which is returned.
    #[inline]
    pub const fn confirm_address(&mut self) -> u64 {
        self.last = self.last.wrapping_add(self.stride);
        self.candidate = self.stride;
        self.last
    }

    /// What a missed address is written relative to: the site's last one, or, of a new site, the
    /// address `before` in the block.
    #[inline]
    pub const fn base(&self, before: u64) -> u64 {
        if self.last == 0 { before } else { self.last }
    }

    /// It accessed `address` instead.
    #[inline]
    pub const fn correct_address(&mut self, address: u64) {
        let distance = address.wrapping_sub(self.last);
        if distance == self.candidate {
            self.stride = distance;
        }
        self.candidate = distance;
        self.last = address;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_jump_costs_one_miss() {
        let mut site = SiteState::new(LocalSite(0), false);
        let mut misses = 0;
        let strided = (0..10).map(|i| 0x1000 + i * 8);
        for address in strided.clone().chain([0x9000]).chain(strided.map(|a| a + 0x1_0000)) {
            if site.address() == address {
                site.confirm_address();
            } else {
                site.correct_address(address);
                misses += 1;
            }
        }
        // The first, the stride twice, the jump, and the new beginning.
        assert_eq!(misses, 5);
    }

    #[test]
    fn a_state_is_half_a_cache_line() {
        assert_eq!(size_of::<SiteState>(), 32);
    }
}
