// SPDX-License-Identifier: MIT OR Apache-2.0
//! Variable-length integers: seven bits a byte, lowest first, the top bit of a byte set if another
//! follows (LEB128). Signed ones are zigzag coded first, so that small negative numbers are short
//! too.
//!
//! Reading never looks past its slice and never takes more than ten bytes, whatever they hold.

/// The most bytes that one integer takes.
pub const VARINT_BYTES_MAX: usize = 10;

/// Appends `value` to `out`.
#[inline]
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed `value` to `out`.
#[inline]
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, zigzag(value));
}

/// Small magnitudes to small numbers: 0, -1, 1, -2 become 0, 1, 2, 3.
#[inline]
pub const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
#[inline]
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Reads integers from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct VarintReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> VarintReader<'a> {
    /// Begins at `at` of `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Where the next integer begins.
    #[inline]
    pub const fn position(&self) -> usize {
        self.at
    }

    /// Whether all has been read.
    #[inline]
    pub const fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next integer, or `None` where the bytes end first or hold more than 64 bits.
    #[inline]
    pub fn unsigned(&mut self) -> Option<u64> {
        let first = *self.bytes.get(self.at)?;
        self.at += 1;
        if first < 0x80 { Some(u64::from(first)) } else { self.rest(u64::from(first & 0x7f)) }
    }

    /// The next signed integer.
    #[inline]
    pub fn signed(&mut self) -> Option<i64> {
        self.unsigned().map(unzigzag)
    }

    /// The rest of an integer of several bytes, of which the first one has been read. Lengths come
    /// as they come, so a branch a byte would often be mispredicted: where eight more bytes are
    /// there, they are taken at once.
    #[inline]
    fn rest(&mut self, first: u64) -> Option<u64> {
        const MORE: u64 = 0x8080_8080_8080_8080;
        if let Some(&next) = self.bytes.get(self.at..).and_then(|bytes| bytes.first_chunk::<8>()) {
            let word = u64::from_le_bytes(next);
            let ends = !word & MORE;
            if ends != 0 {
                self.at += ends.trailing_zeros() as usize / 8 + 1;
                return Some(first | gather(word & (ends ^ (ends - 1)) & !MORE) << 7);
            }
        }
        self.rest_slowly(first)
    }

    #[cold]
    fn rest_slowly(&mut self, mut value: u64) -> Option<u64> {
        let mut shift = 7;
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            if shift == 63 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
            shift += 7;
        }
    }
}

/// Pushes the low seven bits of each byte together.
#[inline]
const fn gather(word: u64) -> u64 {
    let word = word & 0x007f_007f_007f_007f | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let word = word & 0x0000_3fff_0000_3fff | (word & 0x3fff_0000_3fff_0000) >> 2;
    word & 0x0fff_ffff | (word & 0x0fff_ffff_0000_0000) >> 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn integers_round_trip(values in prop::collection::vec(any::<u64>().prop_flat_map(|v| (0u32..64).prop_map(move |s| v >> s)), 0..50)) {
            let mut bytes = Vec::new();
            values.iter().for_each(|&v| put(&mut bytes, v));
            prop_assert!(bytes.len() <= values.len() * VARINT_BYTES_MAX);
            let mut reader = VarintReader::new(&bytes, 0);
            for &value in &values {
                prop_assert_eq!(reader.unsigned(), Some(value));
            }
            prop_assert_eq!(reader.unsigned(), None);
            prop_assert!(reader.is_at_end());
        }

        #[test]
        fn zigzag_is_its_own_way_back(value: i64) {
            prop_assert_eq!(unzigzag(zigzag(value)), value);
        }
    }

    #[test]
    fn more_than_64_bits_and_a_cut_integer_are_refused() {
        assert_eq!(VarintReader::new(&[0xff; 16], 0).unsigned(), None);
        assert_eq!(VarintReader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], 0).unsigned(), None);
        assert_eq!(VarintReader::new(&[0x80], 0).unsigned(), None);
        assert_eq!(zigzag(-1), 1);
    }
}
