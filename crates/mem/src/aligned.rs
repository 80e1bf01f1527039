// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arrays that begin where a line of this machine's memory begins (it is no part of what is
//! simulated): what is used as a whole, and is as long as a line, takes one line and not two.

use std::ops::{Deref, DerefMut};

use crate::huge;

/// Bytes of a line.
const LINE: usize = 64;

/// Elements of which the first one begins a line, where their size divides a line; else they are
/// wherever there is room. On huge pages if there are many.
#[derive(Debug)]
pub struct Aligned<T> {
    places: Vec<T>,
    first: usize,
    len: usize,
}

impl<T: Clone> Aligned<T> {
    /// Room for `len` elements: the capacity of what is returned.
    fn room(len: usize) -> Vec<T> {
        let mut places = Vec::with_capacity(len + LINE / size_of::<T>().max(1));
        huge::advise(places.spare_capacity_mut());
        places
    }

    fn at_line(places: Vec<T>, len: usize) -> Self {
        let first = places.as_ptr().align_offset(LINE).min(places.len() - len);
        Self { places, first, len }
    }

    /// `len` times `value`.
    pub fn filled(value: T, len: usize) -> Self {
        let mut places = Self::room(len);
        places.resize(places.capacity(), value);
        Self::at_line(places, len)
    }
}

impl Aligned<u64> {
    /// `len` zeroes: memory that is not touched before it is needed.
    pub fn zeroes(len: usize) -> Self {
        let mut places = vec![0; len + LINE / size_of::<u64>()];
        huge::advise(&mut places);
        Self::at_line(places, len)
    }
}

impl<T> Default for Aligned<T> {
    fn default() -> Self {
        Self { places: Vec::new(), first: 0, len: 0 }
    }
}

impl<T: Clone> Clone for Aligned<T> {
    /// Where the copy's lines begin may be another place.
    fn clone(&self) -> Self {
        let Some(value) = self.first() else { return Self::default() };
        let mut copy = Self::filled(value.clone(), self.len);
        copy.clone_from_slice(self);
        copy
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `at_line` has made sure that there are so many.
        unsafe { self.places.get_unchecked(self.first..self.first + self.len) }
    }
}

impl<T> DerefMut for Aligned<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`.
        unsafe { self.places.get_unchecked_mut(self.first..self.first + self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_and_their_copies_begin_at_a_line() {
        for len in [0, 1, 7, 64, 1000] {
            let mut bytes = Aligned::filled(3_u32, len);
            bytes.iter_mut().zip(0..).for_each(|(place, number)| *place = number);
            for copy in [bytes.clone(), bytes] {
                assert!(copy.iter().copied().eq(0..len as u32));
                assert!(len == 0 || copy.as_ptr().addr().is_multiple_of(LINE));
            }
            let zeroes = Aligned::zeroes(len);
            assert!(zeroes.len() == len && zeroes.iter().all(|&word| word == 0));
            assert!(zeroes.as_ptr().addr().is_multiple_of(LINE));
        }
        assert!(Aligned::<u64>::default().is_empty());
        assert_eq!(Aligned::filled([7_u8; 96], 5).clone()[4], [7; 96]);
    }
}
