// SPDX-License-Identifier: MIT OR Apache-2.0
//! Filtered accesses: those that a filter kept, with the number that it absorbed after each.
//!
//! An absorbed access hits the first-level TLB and the L1-D. It changes nothing that is simulated,
//! so it is only counted; but the [co-runner](crate::corunner) makes an access of its own for each
//! of them, and so the L2 or the last level [serves](crate::absorbed) some.

use std::sync::Arc;

use nestwalk_mem::{Access, PageSize, Reuse};

use crate::corunner::CoRunner;
use crate::engine::{Engine, EngineWalker};
use crate::events::Served;
use crate::llc::Llc;
use crate::processor::{Core, RunEnd};
use crate::tape::Tape;
use crate::tlb::TlbCounters;

/// Accesses of a thread, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Accesses<'a> {
    /// Those that are there.
    pub all: &'a [Access],
    /// How many a filter absorbed after each of them and before the next one; empty if they are not
    /// filtered.
    pub absorbed: &'a [u32],
    /// How long before the absorbed ones their lines were used, if that is known.
    pub reuse: Option<&'a Arc<Reuse>>,
}

impl<'a> Accesses<'a> {
    /// Accesses that are not filtered.
    pub const fn unfiltered(all: &'a [Access]) -> Self {
        Self { all, absorbed: &[], reuse: None }
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

impl<P: Engine> Core<P> {
    /// Simulates filtered `accesses` in full, as [`Core::run`] does. All up to a fault are counted;
    /// which of the absorbed ones are stores is for [`Core::count_absorbed_stores`].
    ///
    /// # Panics
    /// When their two slices have different lengths.
    pub fn run_filtered<W: EngineWalker>(
        &mut self,
        llc: &mut Llc,
        walker: &mut W,
        accesses: Accesses<'_>,
        corunner: Option<&mut CoRunner>,
    ) -> RunEnd {
        let Accesses { all: accesses, absorbed, reuse } = accesses;
        assert_eq!(accesses.len(), absorbed.len(), "a number for each access");
        let before = self.unit.counters.tlb;
        let data_before = self.unit.data_served();
        let is_beside = corunner.is_some();
        let end = match corunner {
            Some(corunner) => self.run_beside(llc, walker, accesses, absorbed, corunner),
            None => self.run(llc, walker, accesses, None),
        };
        let count = sum(&absorbed[..done(end, accesses)]);
        if is_beside {
            self.count_absorbed_data(count, reuse, data_before);
        } else {
            self.unit.same_data(count);
        }
        count_hits(&mut self.unit.counters.tlb, &before, count);
        end
    }

    /// Lets only the TLBs see filtered accesses: [`Core::run_functional`] for
    /// [`Core::run_filtered`].
    ///
    /// # Panics
    /// When the two slices have different lengths.
    pub fn run_functional_filtered<W: EngineWalker>(
        &mut self,
        walker: &mut W,
        accesses: &[Access],
        absorbed: &[u32],
    ) -> RunEnd {
        assert_eq!(accesses.len(), absorbed.len(), "a number for each access");
        let before = self.unit.counters.functional;
        let end = self.run_functional(walker, accesses);
        count_hits(&mut self.unit.counters.functional, &before, sum(&absorbed[..done(end, accesses)]));
        end
    }

    /// Of the absorbed accesses that were counted, so many were stores.
    pub fn count_absorbed_stores(&mut self, stores: u64, functional: bool) {
        let counters = &mut self.unit.counters;
        let tlb = if functional { &mut counters.functional } else { &mut counters.tlb };
        tlb.stores += stores;
    }

    /// `count` accesses were absorbed beside a co-runner, since `before`.
    fn count_absorbed_data(&mut self, count: u64, reuse: Option<&Arc<Reuse>>, before: [u64; 4]) {
        let [_, l2, llc, _] = self.unit.data_served();
        let had = [l2 - before[Served::L2 as usize], llc - before[Served::Llc as usize]];
        let [to_l2, to_llc] = self.absorbed.split(count, reuse, &self.player.caches, had);
        self.unit.more_data(Served::L2, to_l2);
        self.unit.more_data(Served::Llc, to_llc);
        self.unit.more_data(Served::L1d, count as i64 - to_l2 - to_llc);
    }

    /// In turn: accesses up to one after which others were absorbed, and what the co-runner does
    /// meanwhile.
    fn run_beside<W: EngineWalker>(
        &mut self,
        llc: &mut Llc,
        walker: &mut W,
        accesses: &[Access],
        absorbed: &[u32],
        corunner: &mut CoRunner,
    ) -> RunEnd {
        let mut done = 0;
        while done < accesses.len() {
            let alone = absorbed[done..].iter().take_while(|&&absorbed| absorbed == 0).count();
            let until = accesses.len().min(done + alone + 1);
            if let RunEnd::Fault { index, fault } = self.run(llc, walker, &accesses[done..until], Some(corunner)) {
                return RunEnd::Fault { index: done + index, fault };
            }
            self.run_corunner(llc, absorbed[until - 1], corunner);
            done = until;
        }
        RunEnd::Done
    }

    fn run_corunner(&mut self, llc: &mut Llc, accesses: u32, corunner: &mut CoRunner) {
        let mut left = accesses as usize;
        while left > 0 {
            let now = left.min(Tape::BATCH);
            (0..now).for_each(|_| self.unit.tape.corunner(corunner.next_access()));
            self.player.play::<P>(llc, &mut self.unit.tape, &mut self.unit.counters);
            left -= now;
        }
    }
}

const fn done(end: RunEnd, accesses: &[Access]) -> usize {
    match end {
        RunEnd::Done => accesses.len(),
        RunEnd::Fault { index, .. } => index,
    }
}

fn sum(absorbed: &[u32]) -> u64 {
    absorbed.iter().copied().map(u64::from).sum()
}

/// Counts `count` hits of the first level. How large their pages are is not known: they are counted
/// as the look-ups since `before` were, in proportion.
fn count_hits(counters: &mut TlbCounters, before: &TlbCounters, count: u64) {
    let of_size = |counters: &TlbCounters, size: PageSize| {
        let size = size as usize;
        counters.l1_hits[size] + counters.l2_hits[size] + counters.misses[size]
    };
    let since = PageSize::ALL.map(|size| of_size(counters, size) - of_size(before, size));
    let all: u64 = since.iter().sum();
    let mut left = count;
    for size in [PageSize::Huge, PageSize::Giant] {
        let share = (u128::from(count) * u128::from(since[size as usize]) / u128::from(all.max(1))) as u64;
        counters.l1_hits[size as usize] += share;
        left -= share;
    }
    counters.l1_hits[PageSize::Small as usize] += left;
    counters.accesses += count;
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestwalk_mem::Gva;

    #[test]
    fn filtered_accesses_stand_for_those_that_were_absorbed() {
        let all = [0u64, 64, 128].map(|at| Access::load(Gva(at)));
        let plain = Accesses::unfiltered(&all);
        assert_eq!(plain.standing_for(2), (2, 2));
        assert_eq!(plain.standing_for(9), (3, 3));
        let filtered = Accesses { absorbed: &[4, 0, 1], ..plain };
        assert_eq!(filtered.standing_for(5), (1, 5));
        assert_eq!(filtered.standing_for(6), (2, 6));
        assert_eq!(filtered.from(1).standing_for(9), (2, 3));
    }

    #[test]
    fn hits_are_counted_by_size_as_look_ups_were() {
        let before = TlbCounters { l1_hits: [5, 5, 5], ..TlbCounters::default() };
        let mut after = TlbCounters { l1_hits: [6, 7, 5], misses: [1, 0, 0], accesses: 4, ..before };
        count_hits(&mut after, &before, 9);
        assert_eq!((after.l1_hits, after.accesses), ([6 + 5, 7 + 4, 5], 13));
        let before = after;
        count_hits(&mut after, &before, 2);
        assert_eq!(after.l1_hits, [6 + 5 + 2, 7 + 4, 5], "nothing is known: small");
    }
}
