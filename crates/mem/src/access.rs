// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs issue and the MMU translates.

use crate::addr::Gva;

/// What an access waits for before its address is known, as far as its program says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Dependence {
    /// For nothing; and no other access waits for its value.
    #[default]
    Free,
    /// For nothing. The thread's next [`Dependence::After`] waits for its value.
    First,
    /// For the value of the thread's latest [`Dependence::First`] or [`Dependence::After`]; the
    /// next `After` waits for its own: a chain of pointers. So does an access behind a branch that
    /// the value decides, and that is predicted wrongly.
    After,
    /// It is locked (x86's `lock` prefix): for all before it, and all after it wait for it.
    Locked,
}

/// One data access, packed into eight bytes: the address, whether it is a store, and what it waits
/// for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Access(u64);

impl Access {
    const STORE: u64 = 1 << 63;
    const DEPENDENCE: u32 = 61;
    const ADDRESS: u64 = (1 << 57) - 1;

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
        Gva(self.0 & Self::ADDRESS)
    }

    /// The same access with this dependence, where it was [`Dependence::Free`].
    #[inline]
    #[must_use]
    pub const fn depending(self, dependence: Dependence) -> Self {
        Self(self.0 | (dependence as u64) << Self::DEPENDENCE)
    }

    /// What it waits for.
    #[inline]
    pub const fn dependence(self) -> Dependence {
        match self.0 >> Self::DEPENDENCE & 3 {
            0 => Dependence::Free,
            1 => Dependence::First,
            2 => Dependence::After,
            _ => Dependence::Locked,
        }
    }

    /// Whether it is a store.
    #[inline]
    pub const fn is_store(self) -> bool {
        self.0 & Self::STORE != 0
    }

    /// Whether it is to the address of `other` but for the bits below `lowest`, and, unless
    /// `store_ok`, a store if that is one: one comparison of both.
    #[inline(always)]
    pub const fn agrees(self, other: Self, lowest: u32, store_ok: bool) -> bool {
        const WITHOUT: u64 = !(3 << Access::DEPENDENCE);
        let compared = if store_ok { WITHOUT & !Self::STORE } else { WITHOUT };
        ((self.0 ^ other.0) & compared) >> lowest == 0
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
        for dependence in [Dependence::Free, Dependence::First, Dependence::After, Dependence::Locked] {
            let depending = access.depending(dependence);
            assert_eq!(
                (depending.gva(), depending.is_store(), depending.dependence()),
                (access.gva(), true, dependence)
            );
            let agrees = |access: Access, address: u64, lowest: u32, store_ok: bool| {
                access.depending(dependence).agrees(Access::load(Gva(address)), lowest, store_ok)
            };
            let load = Access::load(Gva(0x1fff));
            assert!(
                agrees(load, 0x1fff, 0, false) && agrees(load, 0x1000, 12, true) && !agrees(load, 0x2fff, 12, true)
            );
            let store = Access::store(Gva(0x1fff));
            assert!(agrees(store, 0x1fc0, 6, true) && !agrees(store, 0x1fff, 6, false));
            assert!(!agrees(load, 0x1fff | 1 << 60, 0, true), "a bit that no address has");
        }
    }
}
