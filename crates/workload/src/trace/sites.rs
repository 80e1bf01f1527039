// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of sites: what never changes about an instruction that accesses memory.
//!
//! One instruction that both loads and stores, or accesses several sizes, is several sites.

use rustc_hash::FxHashMap;

use super::format::Fault;
use super::varint::{self, VarintReader};

/// A site, numbered from 0 within the trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct SiteId(pub u32);

/// Whether a site stores, and how much it accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct SiteAttributes(u8);

impl SiteAttributes {
    const STORE: u8 = 0x80;
    /// The largest access is 2^15 bytes.
    const SIZE_MAX: u8 = 15;

    /// A site that accesses `2^size_log2` bytes; `None` beyond 2^15.
    pub const fn new(store: bool, size_log2: u8) -> Option<Self> {
        if size_log2 > Self::SIZE_MAX {
            return None;
        }
        Some(Self(size_log2 | if store { Self::STORE } else { 0 }))
    }

    /// Whether it stores.
    #[inline]
    pub const fn is_store(self) -> bool {
        self.0 & Self::STORE != 0
    }

    /// Bytes of an access.
    pub const fn bytes(self) -> u64 {
        1 << (self.0 & Self::SIZE_MAX)
    }
}

/// The sites of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteTable {
    /// By [`SiteId`].
    pub attributes: Vec<SiteAttributes>,
    /// By [`SiteId`]: the number that the capture gave the instruction (its address, where the
    /// capture knows it).
    pub sources: Vec<u64>,
}

impl SiteTable {
    /// Writes sites `from..to` to `out` (cleared first).
    pub(super) fn encode(&self, from: usize, to: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend(self.attributes[from..to].iter().map(|site| site.0));
        let mut last = 0u64;
        for &source in &self.sources[from..to] {
            varint::put_signed(out, source.wrapping_sub(last) as i64);
            last = source;
        }
    }

    /// Appends the `count` sites of a payload.
    ///
    /// # Errors
    /// Says what is wrong with it, if anything is.
    pub(super) fn decode(&mut self, plain: &[u8], count: u32) -> Result<(), Fault> {
        let cut = "a table of sites shorter than it says";
        let (attributes, _) = plain.split_at_checked(count as usize).ok_or(cut)?;
        if attributes.iter().any(|&site| site & !SiteAttributes::STORE > SiteAttributes::SIZE_MAX) {
            return Err("a site with unknown attributes".into());
        }
        self.attributes.extend(attributes.iter().map(|&site| SiteAttributes(site)));
        let mut words = VarintReader::new(plain, count as usize);
        let mut last = 0u64;
        for _ in 0..count {
            last = last.wrapping_add(words.signed().ok_or(cut)? as u64);
            self.sources.push(last);
        }
        if words.is_at_end() { Ok(()) } else { Err("a table of sites longer than it says".into()) }
    }
}

/// Numbers sites as they appear.
#[derive(Debug, Default)]
pub struct SiteNumbers {
    /// By the capture's number * 2 + store: number here + 1, and the attributes that it has.
    dense: Vec<(u32, u8)>,
    rest: FxHashMap<(u64, u8), u32>,
    table: SiteTable,
}

impl SiteNumbers {
    /// Capture numbers below this are looked up in an array, others in a hash map.
    const DENSE_MAX: u64 = 1 << 22;

    /// Goes on numbering from `table`.
    pub fn of(table: &SiteTable) -> Self {
        Self { table: table.clone(), ..Self::default() }
    }

    /// The site with the capture's number `source` and these attributes.
    #[inline]
    pub fn number(&mut self, source: u64, attributes: SiteAttributes) -> SiteId {
        let at = source.wrapping_mul(2) as usize + usize::from(attributes.is_store());
        match self.dense.get(at) {
            Some(&(number, known)) if number != 0 && known == attributes.0 && source < Self::DENSE_MAX => {
                SiteId(number - 1)
            }
            _ => self.look_up(source, attributes, at),
        }
    }

    #[cold]
    fn look_up(&mut self, source: u64, attributes: SiteAttributes, at: usize) -> SiteId {
        let next = self.table.attributes.len() as u32;
        let number = *self.rest.entry((source, attributes.0)).or_insert(next);
        if number == next {
            self.table.attributes.push(attributes);
            self.table.sources.push(source);
        }
        if source < Self::DENSE_MAX {
            if self.dense.len() <= at {
                self.dense.resize(at + 1, (0, 0));
            }
            // Of several sizes, the array keeps the one seen last.
            self.dense[at] = (number + 1, attributes.0);
        }
        SiteId(number)
    }

    /// The table so far.
    pub fn table(&self) -> &SiteTable {
        &self.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sites_are_told_apart_and_the_table_round_trips(
            seen in prop::collection::vec((prop_oneof![0u64..20, any::<u64>()], any::<bool>(), 0u8..16), 0..100)
        ) {
            let mut numbers = SiteNumbers::default();
            for &(source, store, size) in &seen {
                let attributes = SiteAttributes::new(store, size).unwrap();
                let site = numbers.number(source, attributes).0 as usize;
                prop_assert_eq!(numbers.table().sources[site], source);
                prop_assert_eq!(numbers.table().attributes[site], attributes);
            }
            let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
            prop_assert_eq!(numbers.table().sources.len(), distinct.len());
            let half = distinct.len() / 2;
            let (mut plain, mut table) = (Vec::new(), SiteTable::default());
            for (from, to) in [(0, half), (half, distinct.len())] {
                numbers.table().encode(from, to, &mut plain);
                table.decode(&plain, (to - from) as u32).unwrap();
            }
            prop_assert_eq!(&table, numbers.table());
        }
    }

    #[test]
    fn a_wrong_table_is_refused() {
        assert!(SiteTable::default().decode(&[0x40, 0], 1).is_err());
        assert!(SiteTable::default().decode(&[3], 1).is_err());
        assert!(SiteTable::default().decode(&[3, 0, 0], 1).is_err());
        assert!(SiteTable::default().decode(&[3, 0], u32::MAX).is_err());
    }
}
