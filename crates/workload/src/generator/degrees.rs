// SPDX-License-Identifier: MIT OR Apache-2.0
//! Out-degrees of a power-law graph's vertices, computed rather than stored.

use super::bijection::{Bijection, mix};

/// Vertices among which degrees are dealt.
pub(super) const GROUP: u64 = 4096;
/// Different deals of degrees.
pub(super) const DEALS: u64 = 16;

/// The out-degrees of a group, dealt in several orders, as prefix sums.
pub(super) struct Deals {
    /// `prefix[deal * (GROUP + 1) + v]`: edges of the group's vertices before `v`.
    prefix: Vec<u32>,
}

impl Deals {
    /// Degrees proportional to `rank^-3/4`, at least 0, `GROUP * degree` in all.
    pub(super) fn new(degree: u64, seed: u64) -> Self {
        // Integers only: rank^-3/4 as the reciprocal of sqrt(rank) * sqrt(sqrt(rank)), scaled by
        // 2^32.
        let weight =
            |rank: u64| (1u64 << 32) / (((rank << 32).isqrt() * ((rank << 32).isqrt() << 16).isqrt()) >> 24).max(1);
        let weights: Vec<u64> = (1..=GROUP).map(weight).collect();
        let sum: u128 = weights.iter().map(|&w| u128::from(w)).sum();
        let all = GROUP * degree;
        let mut degrees: Vec<u64> = weights.iter().map(|&w| (u128::from(w) * u128::from(all) / sum) as u64).collect();
        // What rounding down left over, one each from the top.
        let left = (all - degrees.iter().sum::<u64>()) as usize;
        degrees[..left].iter_mut().for_each(|degree| *degree += 1);
        let mut prefix = Vec::with_capacity((DEALS * (GROUP + 1)) as usize);
        for deal in 0..DEALS {
            let order = Bijection::new(GROUP, mix(seed).wrapping_add(deal));
            let mut before = 0;
            prefix.push(0);
            for vertex in 0..GROUP {
                before += degrees[order.apply(vertex) as usize];
                prefix.push(before as u32);
            }
        }
        Self { prefix }
    }

    /// Edges of the group before the vertex, and before the next one.
    #[inline]
    pub(super) fn bounds(&self, deal: u64, vertex: u64) -> (u64, u64) {
        let at = (deal * (GROUP + 1) + vertex) as usize;
        (self.prefix[at].into(), self.prefix[at + 1].into())
    }
}
