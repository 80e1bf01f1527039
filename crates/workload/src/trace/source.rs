// SPDX-License-Identifier: MIT OR Apache-2.0
//! One access as a capture has it: what every converter turns its format into before
//! [`super::recorder::Recorder`] takes it. It is the record of the raw stream, which is thereby
//! read without a copy.

use nestwalk_mem::Va;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::format::{ADDRESS_END, Fault};
use super::sites::SiteAttributes;

/// An access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SourceAccess {
    address: U64,
    /// Site, instructions since the thread's previous access << 32, log2 of the size << 48, store
    /// << 56.
    packed: U64,
}

/// What the capture writes for "this many instructions or more".
pub const INSTRUCTIONS_SATURATED: u64 = 0xffff;
const SIZE_LOG2_MAX: u64 = 15;

impl SourceAccess {
    /// An access by the instruction that the capture numbers `site`.
    pub fn new(address: Va, site: u32, instructions: u16, size_log2: u8, store: bool) -> Self {
        let packed =
            u64::from(site) | u64::from(instructions) << 32 | u64::from(size_log2) << 48 | u64::from(store) << 56;
        Self { address: U64::new(address.0), packed: U64::new(packed) }
    }

    /// Where.
    #[inline]
    pub fn address(&self) -> Va {
        Va(self.address.get())
    }

    /// The number that the capture gave the instruction.
    #[inline]
    pub fn site(&self) -> u64 {
        self.packed.get() & 0xffff_ffff
    }

    /// Instructions since the thread's previous access, this one included, at most
    /// [`INSTRUCTIONS_SATURATED`].
    #[inline]
    pub fn instructions(&self) -> u64 {
        self.packed.get() >> 32 & INSTRUCTIONS_SATURATED
    }

    /// The same, with `fewer` instructions before it, or none if there were not so many.
    pub fn with_fewer_instructions(self, fewer: u64) -> Self {
        let left = self.instructions().saturating_sub(fewer);
        Self { packed: U64::new(self.packed.get() & !(INSTRUCTIONS_SATURATED << 32) | left << 32), ..self }
    }

    /// Whether it is a store.
    #[inline]
    pub fn is_store(&self) -> bool {
        self.packed.get() >> 56 & 1 != 0
    }

    /// Store and size.
    #[inline]
    pub fn attributes(&self) -> SiteAttributes {
        let size_log2 = (self.packed.get() >> 48) as u8 & 15;
        SiteAttributes::new(self.is_store(), size_log2).unwrap_or_else(|| unreachable!("four bits are at most 15"))
    }

    /// Checks addresses and sizes of all, and adds up their instructions.
    ///
    /// # Errors
    /// With the index of the first one that is impossible.
    pub fn check_all(accesses: &[Self]) -> Result<u64, (usize, Fault)> {
        let (mut all, mut instructions) = (0, 0);
        for access in accesses {
            all |= access.disorder();
            instructions += access.instructions();
        }
        if all == 0 {
            return Ok(instructions);
        }
        let index = accesses.iter().position(|access| access.disorder() != 0).unwrap_or(0);
        let access = &accesses[index];
        Err((
            index,
            format!(
                "an access to {:#x} of 2^{} bytes, which no program can make: the capture is damaged, make it again",
                access.address().0,
                access.packed.get() >> 48 & 0xff
            ),
        ))
    }

    /// 0 if it is possible.
    #[inline]
    fn disorder(&self) -> u64 {
        self.address.get() & !(ADDRESS_END - 1) | self.packed.get() & !(SIZE_LOG2_MAX << 48) & 0xfeff << 48
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_keeps_its_parts() {
        let access = SourceAccess::new(Va(0x7fff_0000_1234), 0xffff_fffe, 0xffff, 5, true);
        assert_eq!(
            (access.address(), access.site(), access.instructions()),
            (Va(0x7fff_0000_1234), 0xffff_fffe, 0xffff)
        );
        assert!(access.is_store() && access.attributes().is_store() && access.attributes().bytes() == 32);
        assert!(!SourceAccess::new(Va(0), 1, 2, 3, false).is_store());
        let fewer = access.with_fewer_instructions(0xff);
        assert_eq!((fewer.instructions(), fewer.site(), fewer.is_store()), (0xff00, 0xffff_fffe, true));
        assert_eq!(access.with_fewer_instructions(1 << 40).instructions(), 0);
    }

    #[test]
    fn the_first_impossible_access_is_named() {
        let good = SourceAccess::new(Va((1 << 57) - 1), 1, 7, 15, true);
        assert_eq!(SourceAccess::check_all(&[good; 9]), Ok(63));
        for bad in [
            SourceAccess::new(Va(1 << 57), 1, 7, 3, true),
            SourceAccess::new(Va(4096), 1, 7, 16, true),
            SourceAccess { packed: U64::new(1 << 57), ..good },
        ] {
            assert_eq!(SourceAccess::check_all(&[good, good, bad, good]).unwrap_err().0, 2);
        }
    }
}
