// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights of a heavy-tailed distribution, dealt to the members of groups rather than stored.
//!
//! Every group of 4096 has the same weights, the quantiles of the distribution, in one of sixteen
//! orders. Only the largest one is a group's own: it is drawn from the tail that lies beyond, so
//! that a graph of many groups has hubs as large as the distribution says.

use super::bijection::{Bijection, mix, scale};

/// Members of a group.
pub(super) const GROUP: u64 = 4096;
/// Orders in which weights are dealt.
const DEALS: u64 = 16;

/// The weights of a group, but for its largest, in sixteen orders.
pub(super) struct Deals {
    /// `before[deal * (GROUP + 1) + member]`: weights of members before this one.
    before: Vec<u32>,
    /// `member[deal * GROUP + rank]`: who has the weight of that rank, 0 being the largest.
    member: Vec<u16>,
    /// An alias table over ranks (Walker 1977): a rank stays itself below the first number (of
    /// 2^32), else it is the second one.
    alias: Vec<(u32, u16)>,
}

impl Deals {
    /// `weight(q)` is the weight that a share `q` of all exceeds, in whole numbers.
    pub(super) fn new(weight: impl Fn(f64) -> u64, seed: u64) -> Self {
        let quantile = |rank: u64| (rank as f64 + 0.5) / GROUP as f64;
        let weights: Vec<u64> = (0..GROUP).map(|rank| if rank == 0 { 0 } else { weight(quantile(rank)) }).collect();
        let (mut before, mut member) = (Vec::new(), Vec::new());
        for deal in 0..DEALS {
            let order = Bijection::new(GROUP, mix(seed).wrapping_add(deal));
            member.extend((0..GROUP).map(|rank| order.invert(rank) as u16));
            let mut sum = 0;
            before.push(0);
            for at in 0..GROUP {
                sum += weights[order.apply(at) as usize];
                before.push(u32::try_from(sum).expect("a group's weights fit 32 bits"));
            }
        }
        Self { before, member, alias: alias(&weights) }
    }

    /// Which order group `group` has.
    #[inline]
    pub(super) const fn of(group: u64, seed: u64) -> u64 {
        mix(group ^ seed) % DEALS
    }

    /// The weights of all members but the one with the largest.
    pub(super) fn rest(&self) -> u64 {
        self.before[GROUP as usize].into()
    }

    /// Who has the largest weight.
    #[inline]
    pub(super) fn top(&self, deal: u64) -> u64 {
        self.member[(deal * GROUP) as usize].into()
    }

    /// Who has the weight of `rank`, 0 being the largest.
    pub(super) fn member(&self, deal: u64, rank: u64) -> u64 {
        self.member[(deal * GROUP + rank) as usize].into()
    }

    /// The weights of members before `member`; the largest counts as `top`.
    #[inline]
    pub(super) fn before(&self, deal: u64, member: u64, top: u64) -> u64 {
        let sum = u64::from(self.before[(deal * (GROUP + 1) + member) as usize]);
        if member > self.top(deal) { sum + top } else { sum }
    }

    /// A member by its weight, not the top one.
    #[inline]
    pub(super) fn draw(&self, deal: u64, uniform: u64) -> u64 {
        let rank = scale(uniform, GROUP);
        let (stays, other) = self.alias[rank as usize];
        let rank = if (uniform as u32) < stays { rank } else { other.into() };
        self.member[(deal * GROUP + rank) as usize].into()
    }
}

/// The alias table of `weights`.
fn alias(weights: &[u64]) -> Vec<(u32, u16)> {
    let sum: u64 = weights.iter().sum();
    let count = weights.len() as u64;
    // A share of 1 is `sum`, so that all stays whole.
    let mut shares: Vec<u64> = weights.iter().map(|&weight| weight * count).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..weights.len()).partition(|&at| shares[at] < sum);
    let mut table: Vec<(u32, u16)> = (0..weights.len()).map(|at| (u32::MAX, at as u16)).collect();
    while let (Some(&low), Some(&high)) = (small.last(), large.last()) {
        small.pop();
        table[low] = (((u128::from(shares[low]) << 32) / u128::from(sum.max(1))) as u32, high as u16);
        shares[high] -= sum - shares[low];
        if shares[high] < sum {
            large.pop();
            small.push(high);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_weights() {
        let deals = Deals::new(|q| (1000.0 / q.sqrt()) as u64, 3);
        let mut hits = vec![0u64; GROUP as usize];
        let draws = 4_000_000;
        (0..draws).for_each(|draw| hits[deals.draw(5, mix(draw)) as usize] += 1);
        for member in 0..GROUP {
            let weight = deals.before(5, member + 1, 0) - deals.before(5, member, 0);
            let expected = (weight * draws / deals.rest()) as f64;
            let off = (hits[member as usize] as f64 - expected).abs();
            assert!(off <= 5.5 * expected.max(1.0).sqrt(), "{member}: {} for {expected}", hits[member as usize]);
        }
        assert_eq!(hits[deals.top(5) as usize], 0);
    }

    #[test]
    fn the_top_one_counts_as_told_from_its_place_on() {
        let deals = Deals::new(|q| (100.0 / q) as u64, 1);
        for deal in 0..DEALS {
            let top = deals.top(deal);
            assert_eq!(deals.before(deal, top, 7), deals.before(deal, top, 0));
            assert_eq!(deals.before(deal, top + 1, 7), deals.before(deal, top, 0) + 7);
            assert_eq!(deals.before(deal, GROUP, 7), deals.rest() + 7);
        }
    }
}
