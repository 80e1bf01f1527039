// SPDX-License-Identifier: MIT OR Apache-2.0
//! The array of a table's entries, which lies in this machine's memory as the simulated ones lie in
//! theirs: 8 to a cache line. Who has read one has its neighbours near, too.

use std::ops::{Deref, DerefMut};

use super::entry::Entry;
use crate::huge;

/// Entries of a line.
const LINE: usize = 8;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([Entry; LINE]);

/// An array of entries that can grow. Otherwise it is a slice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entries {
    lines: Vec<Line>,
    len: usize,
}

impl Entries {
    /// `count` more, which are [`Entry::NONE`].
    pub fn grow(&mut self, count: usize) {
        self.len += count;
        let (there, lines) = (self.lines.len(), self.len.div_ceil(LINE));
        huge::reserve(&mut self.lines, lines - there);
        self.lines.resize(lines, Line([Entry::NONE; LINE]));
    }

    /// The line of the entry at `slot`.
    #[inline(always)]
    pub fn line(&self, slot: usize) -> &[Entry; LINE] {
        &self.lines[slot / LINE].0
    }
}

impl Deref for Entries {
    type Target = [Entry];

    #[inline(always)]
    fn deref(&self) -> &[Entry] {
        const { assert!(size_of::<Line>() == LINE * size_of::<Entry>()) }
        // SAFETY: a line is nothing but 8 entries, lines follow each other without gaps, and `grow`
        // has made as many as `len` entries need.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Entries {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Entry] {
        // SAFETY: as in `deref`; the lines are borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Frame;

    #[test]
    fn eight_entries_to_a_line_of_this_machine_and_as_many_as_were_asked_for() {
        let mut entries = Entries::default();
        for nodes in 1..2000 {
            entries.grow(4);
            assert_eq!(entries.len(), nodes * 4);
            entries[nodes * 4 - 1] = Entry::leaf(Frame(nodes as u64), 0);
        }
        assert_eq!(entries.as_ptr().addr() % 64, 0);
        assert_eq!(entries.line(8 * 20 + 5)[..], entries[8 * 20..8 * 21]);
        assert!(
            entries
                .chunks(4)
                .enumerate()
                .all(|(at, four)| four[3].frame() == Frame(at as u64 + 1) && four[..3] == [Entry::NONE; 3])
        );
    }
}
