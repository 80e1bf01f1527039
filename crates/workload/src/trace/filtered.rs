// SPDX-License-Identifier: MIT OR Apache-2.0
//! The payload of a record of filtered accesses: a [block](super::block) of those that are kept
//! and, behind it, a varint for each of them with the number of accesses that were absorbed between
//! it and the next one, and the length of this column.

use super::format::{Fault, u32_at};
use super::varint::{self, VarintReader};

/// The most accesses absorbed in a row: the filter keeps one then, so that a count fits its type.
pub const GAP_MAX: u32 = u32::MAX;

const LENGTH_BYTES: usize = 4;

/// Collects the numbers of absorbed accesses of a block.
#[derive(Debug, Default)]
pub struct Gaps {
    bytes: Vec<u8>,
    /// Absorbed since the access that was kept last.
    open: u32,
    absorbed: u64,
    stores: u64,
}

impl Gaps {
    /// An access is kept. `first`: of its block.
    #[inline]
    pub fn keep(&mut self, first: bool) {
        if !first {
            self.close();
        }
    }

    /// How many may be absorbed before one has to be kept.
    pub const fn room(&self) -> u32 {
        GAP_MAX - self.open
    }

    /// After the access that was kept last, `count` are absorbed, no more than there is
    /// [room](Gaps::room) for; `stores` of them are stores.
    #[inline]
    pub fn absorb(&mut self, count: u32, stores: u64) {
        self.open += count;
        self.absorbed += u64::from(count);
        self.stores += stores;
    }

    fn close(&mut self) {
        varint::put(&mut self.bytes, u64::from(std::mem::take(&mut self.open)));
    }

    /// Appends the column to `out`, the block's payload, and begins anew. Returns how many were
    /// absorbed, and how many of them were stores.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> (u64, u64) {
        self.close();
        out.extend_from_slice(&self.bytes);
        out.extend_from_slice(&(self.bytes.len() as u32).to_le_bytes());
        self.bytes.clear();
        (std::mem::take(&mut self.absorbed), std::mem::take(&mut self.stores))
    }
}

/// Takes the column of `items` numbers off the end of `plain`, which is a block's payload then, and
/// puts them into `gaps` (cleared first). Their sum must be `absorbed`.
///
/// # Errors
/// Says what is wrong with it, if anything is.
pub fn take_gaps(plain: &mut Vec<u8>, items: u32, absorbed: u64, gaps: &mut Vec<u32>) -> Result<(), Fault> {
    const CUT: &str = "filtered accesses whose numbers of absorbed ones do not fit them";
    gaps.clear();
    let end = plain.len().checked_sub(LENGTH_BYTES).ok_or(CUT)?;
    let from = end.checked_sub(u32_at(plain, end) as usize).ok_or(CUT)?;
    let mut words = VarintReader::new(&plain[..end], from);
    let mut sum = 0;
    while !words.is_at_end() {
        let gap = words.unsigned().and_then(|gap| u32::try_from(gap).ok()).ok_or(CUT)?;
        sum += u64::from(gap);
        gaps.push(gap);
    }
    if gaps.len() != items as usize || sum != absorbed {
        return Err(CUT.into());
    }
    plain.truncate(from);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn gaps_round_trip(gaps in prop::collection::vec(0u32..300, 1..100), payload in prop::collection::vec(any::<u8>(), 0..9)) {
            let mut builder = Gaps::default();
            for _ in 0..2 {
                for (i, &gap) in gaps.iter().enumerate() {
                    builder.keep(i == 0);
                    (0..gap).for_each(|n| builder.absorb(1, u64::from(n % 3 == 0)));
                    prop_assert_eq!(builder.room(), GAP_MAX - gap);
                }
                let mut plain = payload.clone();
                let (absorbed, stores) = builder.finish(&mut plain);
                prop_assert_eq!(absorbed, gaps.iter().map(|&gap| u64::from(gap)).sum::<u64>());
                prop_assert_eq!(stores, gaps.iter().map(|&gap| u64::from(gap.div_ceil(3))).sum::<u64>());
                let mut read = Vec::new();
                let items = gaps.len() as u32;
                prop_assert!(take_gaps(&mut plain.clone(), items + 1, absorbed, &mut read).is_err());
                prop_assert!(take_gaps(&mut plain.clone(), items, absorbed + 1, &mut read).is_err());
                take_gaps(&mut plain, items, absorbed, &mut read).unwrap();
                prop_assert_eq!((&plain, &read), (&payload, &gaps));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(plain in prop::collection::vec(any::<u8>(), 0..40), items in 0u32..40, absorbed in 0u64..99) {
            let mut plain = plain;
            let _ = take_gaps(&mut plain, items, absorbed, &mut Vec::new());
        }
    }
}
