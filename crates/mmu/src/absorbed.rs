// SPDX-License-Identifier: MIT OR Apache-2.0
//! What serves the accesses that a filter absorbed, beside a [co-runner](crate::corunner).
//!
//! Alone they hit the L1-D. But for each access that passes the co-runner brings in a line, of
//! which each goes to a random set and none is used again. So a line that its thread used `time`
//! accesses ago, and `depth` other lines of its set since, is still in its LRU set if the co-runner
//! brought in fewer than `ways - depth` lines there: a binomial distribution of `time` draws. The
//! [`Reuse`] of the filter says how many accesses have which `time` and `depth`.
//!
//! A line that the L1-D lost may still be in the L2, which last saw it when the L1-D lost it
//! before. Taken as if the line were used at the same distance each time, that was `n * time`
//! accesses ago with probability `q (1 - q)^(n - 1)`, where `q` is the chance that the L1-D loses
//! it. What the L2 lost the last level serves: it is taken to hold all of them.

use std::sync::Arc;

use nestwalk_mem::{Reuse, ReuseTimes};

use crate::hierarchy::PrivateCaches;

/// Sets and ways of a cache.
type Shape = (usize, usize);

/// Chances below this are nothing.
const NEGLIGIBLE: f64 = 1e-9;

/// The chance that of `draws`, each of which hits one of `sets` at random, at least `many` hit a
/// given one.
fn at_least(many: usize, draws: u64, sets: usize) -> f64 {
    let hit = 1.0 / sets as f64;
    if sets == 1 {
        return if draws >= many as u64 { 1.0 } else { 0.0 };
    }
    // Of exactly 0, 1, 2, ... hits.
    let mut exactly = power(1.0 - hit, draws);
    let mut fewer = 0.0;
    for hits in 0..many {
        fewer += exactly;
        exactly *= (draws.saturating_sub(hits as u64)) as f64 / (hits + 1) as f64 * hit / (1.0 - hit);
    }
    (1.0 - fewer).clamp(0.0, 1.0)
}

/// `base^exponent`, the same to the last bit everywhere.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

/// Of each absorbed access, what is expected to be counted for L1-D, L2 and last level.
type Shares = [f64; 3];

/// What serves accesses with these times, of a filter of so many sets.
fn served(times: &ReuseTimes, filter_sets: u32, l1d: Shape, l2: Shape) -> Shares {
    let filter_sets = u64::from(filter_sets.max(1));
    let (mut by_l2, mut by_llc, mut all) = (0.0, 0.0, 0.0);
    for cell in times.cells() {
        let count = cell.count as f64;
        all += count;
        // All lines of its own that were used since, and how many of them are in the set.
        let own = cell.depth * filter_sets;
        let room = l1d.1.saturating_sub(own as usize / l1d.0).max(1);
        let lost = at_least(room, cell.time, l1d.0);
        if lost < NEGLIGIBLE {
            continue;
        }
        // Of all accesses to such lines: those for which the L1-D had not lost it before for so
        // many uses.
        let (mut left, mut time, mut gone) = (1.0, 0, 0.0);
        while left > NEGLIGIBLE {
            time += cell.time;
            let lost_by_l2 = at_least(l2.1, time + own, l2.0);
            if lost_by_l2 > 1.0 - NEGLIGIBLE {
                gone += left;
                break;
            }
            gone += left * lost * lost_by_l2;
            left *= 1.0 - lost;
        }
        by_l2 += count * lost * (1.0 - gone);
        by_llc += count * lost * gone;
    }
    if all == 0.0 {
        return [1.0, 0.0, 0.0];
    }
    [1.0 - (by_l2 + by_llc) / all, by_l2 / all, by_llc / all]
}

/// The same of what was absorbed, and with it of what was kept only to renew its line: those
/// accesses are simulated, but nothing that was absorbed meanwhile kept their lines in the caches.
fn shares(reuse: &Reuse, l1d: Shape, l2: Shape) -> Shares {
    let absorbed = served(&reuse.absorbed, reuse.sets, l1d, l2);
    let (all, renewed) = (reuse.absorbed.total(), reuse.renewed.total());
    if all == 0 || renewed == 0 {
        return absorbed;
    }
    let right = served(&reuse.renewed, reuse.sets, l1d, l2);
    let lost = at_least(l1d.1, reuse.renew, l1d.0);
    let gone = lost * at_least(l2.1, reuse.renew, l2.0);
    let simulated = [1.0 - lost, lost - gone, gone];
    let renewed = (renewed as f64 / all as f64).min(1.0);
    [0, 1, 2].map(|level| absorbed[level] + renewed * (right[level] - simulated[level]))
}

/// The shares of one filter's accesses, for one core.
#[derive(Clone, Debug, Default)]
pub(crate) struct AbsorbedServed {
    /// What they are of.
    reuse: Option<Arc<Reuse>>,
    /// Of L2 and last level, in parts of 2^-32.
    shares: [i64; 2],
    /// What is still to be counted, in such parts of an access.
    rest: [i128; 2],
}

/// log2 of the parts of an access.
const PART_BITS: u32 = 32;

impl AbsorbedServed {
    /// `count` more accesses were absorbed. What is to be added to the numbers of accesses that the
    /// L2 and the last level served; to the L1-D's, `count` less both. It may be less than nothing,
    /// but not more than they have served meanwhile, which is `had`.
    pub fn split(&mut self, count: u64, reuse: Option<&Arc<Reuse>>, caches: &PrivateCaches, had: [u64; 2]) -> [i64; 2] {
        let Some(reuse) = reuse else { return [0; 2] };
        if !self.reuse.as_ref().is_some_and(|known| Arc::ptr_eq(known, reuse)) {
            let (l1d, l2) = (caches.l1d(), caches.l2());
            let (l1d, l2) = ((l1d.set_count(), l1d.ways()), (l2.set_count(), l2.ways()));
            let [_, by_l2, by_llc] = shares(reuse, l1d, l2);
            self.shares = [by_l2, by_llc].map(|share| (share * (1u64 << PART_BITS) as f64) as i64);
            self.reuse = Some(Arc::clone(reuse));
        }
        let mut added = [0; 2];
        for level in 0..2 {
            let parts = self.rest[level] + i128::from(self.shares[level]) * i128::from(count);
            let whole = (parts >> PART_BITS) as i64;
            added[level] = whole.max(-(had[level] as i64));
            self.rest[level] = parts - (i128::from(added[level]) << PART_BITS);
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_binomial() {
        // Of two coins: none, one or two heads are 1/4, 1/2, 1/4.
        assert_eq!([0, 1, 2, 3].map(|many| at_least(many, 2, 2)), [1.0, 0.75, 0.25, 0.0]);
        assert_eq!((at_least(3, 2, 1), at_least(2, 2, 1)), (0.0, 1.0));
        // Three of 64 in the mean: at least one is 1 - (63/64)^192.
        assert!((at_least(1, 192, 64) - (1.0 - (63.0f64 / 64.0).powi(192))).abs() < 1e-12);
        assert!(at_least(8, 100_000, 64) > 1.0 - 1e-12);
    }

    #[test]
    fn a_line_is_lost_once_the_set_is_full_of_others() {
        let shapes = ((64, 8), (512, 8));
        let of = |time, depth| {
            let mut times = ReuseTimes::default();
            times.note(time, depth);
            let [_, l2, llc] = served(&times, 64, shapes.0, shapes.1);
            [l2, llc]
        };
        assert_eq!(of(7, 0), [0.0; 2], "seven lines cannot fill eight ways");
        let ([near, _], [deep, _]) = (of(200, 0), of(200, 6));
        assert!(near < 0.05 && deep > 0.75, "{near} {deep}");
        // 2,000 lines fill the L1-D but only half of the L2; 20,000 fill both.
        let [l2, llc] = of(2000, 0);
        assert!(l2 > 0.9 && l2 + llc > 0.999, "{l2} {llc}");
        let [l2, llc] = of(20_000, 0);
        assert!(l2 < 0.001 && llc > 0.999, "{l2} {llc}");
    }
}
