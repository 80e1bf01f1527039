// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses of a thread on their way to a core.

use std::ops::Range;
use std::sync::Arc;

use nestwalk_mem::{Access, Reuse};
use nestwalk_workload::Batch;

/// How closely accesses are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Only the TLBs see them.
    TlbOnly,
    /// Everything does.
    Full,
}

/// Accesses of a thread, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Accesses<'a> {
    /// Those that are there.
    pub all: &'a [Access],
    /// How many a filter absorbed after each of them; empty if they are not filtered.
    pub absorbed: &'a [u32],
    /// How long before those their lines were used, if that is known.
    pub reuse: Option<&'a Arc<Reuse>>,
}

impl<'a> Accesses<'a> {
    /// The part of a batch between two of its accesses.
    pub fn of(batch: &'a Batch, part: Range<usize>) -> Self {
        let absorbed = if batch.absorbed.is_empty() { &[][..] } else { &batch.absorbed[part.clone()] };
        Self { all: &batch.accesses[part], absorbed, reuse: batch.reuse.as_ref() }
    }

    /// Those from `index` on.
    pub fn from(self, index: usize) -> Self {
        Self { all: &self.all[index..], absorbed: self.absorbed.get(index..).unwrap_or(&[]), ..self }
    }

    /// How many of them stand for at least `wanted` accesses of the program, and for how many they
    /// do; all of them if they stand for fewer.
    pub fn standing_for(self, wanted: u64) -> (usize, u64) {
        if self.absorbed.is_empty() {
            let count = usize::try_from(wanted).unwrap_or(usize::MAX).min(self.all.len());
            return (count, count as u64);
        }
        let mut represented = 0;
        for (index, &absorbed) in self.absorbed.iter().enumerate() {
            if represented >= wanted {
                return (index, represented);
            }
            represented += 1 + u64::from(absorbed);
        }
        (self.all.len(), represented)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestwalk_mem::Gva;

    #[test]
    fn filtered_accesses_stand_for_those_that_were_absorbed() {
        let all = [0u64, 64, 128].map(|at| Access::load(Gva(at)));
        let plain = Accesses { all: &all, absorbed: &[], reuse: None };
        assert_eq!(plain.standing_for(2), (2, 2));
        assert_eq!(plain.standing_for(9), (3, 3));
        let filtered = Accesses { all: &all, absorbed: &[4, 0, 1], reuse: None };
        assert_eq!(filtered.standing_for(5), (1, 5));
        assert_eq!(filtered.standing_for(6), (2, 6));
        assert_eq!(filtered.from(1).standing_for(9), (2, 3));
    }
}
