// SPDX-License-Identifier: MIT OR Apache-2.0
//! Table nodes at random places all over memory: the virtualised baseline of ASAP's paper (section
//! 4: "host page-table pages scattered at random").
//!
//! A reservoir of free frames is kept, drawn from the allocator a huge block at a time; see
//! [`Scattered::refill`].

use nestwalk_mem::{Frame, MigrateType, Order, PageCount};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::context::placement::{NodeKey, TableContext, TablePlacement};

/// Its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScatteredConfig {
    /// The seed of the places.
    #[serde(default)]
    pub seed: u64,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Scattered {
    rng: Xoshiro256PlusPlus,
    /// Free frames at random places, in random order.
    reservoir: Vec<Frame>,
}

impl Scattered {
    /// At a refill, one frame is kept in one of this many of the free blocks.
    const BLOCKS_A_FRAME: usize = 16;

    /// With no frames yet.
    pub fn new(config: ScatteredConfig) -> Self {
        Self { rng: Xoshiro256PlusPlus::seed_from_u64(config.seed), reservoir: Vec::new() }
    }

    /// Takes all free blocks of the largest order that has any, keeps one random frame in each of a
    /// random sixteenth of them, and gives back the rest in the opposite order, so that the
    /// allocator's lists look as before.
    fn refill(&mut self, cx: &mut TableContext<'_>) {
        let Some((order, blocks)) = (0..=Order::MAX.0).rev().map(Order).find_map(|order| {
            let blocks = take_all(cx, order);
            (!blocks.is_empty()).then_some((order, blocks))
        }) else {
            return;
        };
        let keep = blocks.len().div_ceil(Self::BLOCKS_A_FRAME);
        let mut chosen: Vec<usize> = (0..blocks.len()).collect();
        for i in 0..keep {
            let other = self.rng.random_range(i..chosen.len());
            chosen.swap(i, other);
        }
        let mut kept = vec![None; blocks.len()];
        for &block in &chosen[..keep] {
            let frame = blocks[block] + self.rng.random_range(0..order.frames());
            kept[block] = Some(frame);
            self.reservoir.push(frame);
        }
        for (&block, keep) in blocks.iter().zip(&kept).rev() {
            match keep {
                None => cx.state.memory.free(block, order, cx.cpu),
                Some(keep) => free_all_but(cx, block, order, *keep),
            }
        }
    }
}

/// Allocates blocks of `order` until a larger one would have to be split or none is left.
fn take_all(cx: &mut TableContext<'_>, order: Order) -> Vec<Frame> {
    if order == Order::PAGE {
        return cx.state.alloc_kernel(cx.cpu).into_iter().collect();
    }
    let count = cx.state.memory.free_blocks()[usize::from(order.0)];
    (0..count).map_while(|_| cx.state.memory.alloc(order, MigrateType::Movable, cx.cpu)).collect()
}

/// Frees the block but for one frame, by halves.
fn free_all_but(cx: &mut TableContext<'_>, mut block: Frame, order: Order, keep: Frame) {
    for order in (0..order.0).rev().map(Order) {
        let upper = block + order.frames();
        let (free, rest) = if keep < upper { (upper, block) } else { (block, upper) };
        cx.state.memory.free(free, order, cx.cpu);
        block = rest;
    }
}

impl TablePlacement for Scattered {
    fn name(&self) -> &'static str {
        "scattered"
    }

    fn place(&mut self, cx: &mut TableContext<'_>, _: NodeKey) -> Option<Frame> {
        if self.reservoir.is_empty() {
            self.refill(cx);
        }
        self.reservoir.pop()
    }

    fn release(&mut self, cx: &mut TableContext<'_>, _: NodeKey, frame: Frame) {
        cx.state.memory.free(frame, Order::PAGE, cx.cpu);
    }

    fn pressure(&mut self, cx: &mut TableContext<'_>, want: PageCount) -> PageCount {
        let give = self.reservoir.len().min(want.0 as usize);
        for frame in self.reservoir.drain(..give) {
            cx.state.memory.free(frame, Order::PAGE, cx.cpu);
        }
        PageCount(give as u64)
    }

    fn reserved(&self) -> PageCount {
        PageCount(self.reservoir.len() as u64)
    }
}

#[cfg(test)]
mod tests;
