// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs issue and the MMU translates.

use crate::addr::Gva;

/// One data access, packed into eight bytes: the address and whether it is a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Access(u64);

impl Access {
    const STORE: u64 = 1 << 63;

    /// An access to `gva`, which has at most 57 bits.
    #[inline]
    pub const fn new(gva: Gva, store: bool) -> Self {
        Self(gva.0 | (store as u64) << 63)
    }

    /// A load from `gva`.
    #[inline]
    pub const fn load(gva: Gva) -> Self {
        Self(gva.0)
    }

    /// A store to `gva`.
    #[inline]
    pub const fn store(gva: Gva) -> Self {
        Self(gva.0 | Self::STORE)
    }

    /// Where.
    #[inline]
    pub const fn gva(self) -> Gva {
        Gva(self.0 & !Self::STORE)
    }

    /// Whether it is a store.
    #[inline]
    pub const fn is_store(self) -> bool {
        self.0 & Self::STORE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_is_eight_bytes_and_keeps_its_parts() {
        assert_eq!(size_of::<Access>(), 8);
        let access = Access::new(Gva(0x01ff_ffff_ffff_ffff), true);
        assert!(access.is_store() && access.gva() == Gva(0x01ff_ffff_ffff_ffff));
        assert!(!Access::load(Gva(4096)).is_store());
    }
}
