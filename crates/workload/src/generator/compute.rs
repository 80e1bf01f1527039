// SPDX-License-Identifier: MIT OR Apache-2.0
//! `compute`: programs that hardly miss the TLB: PARSEC's swaptions (simulation paths of a few KiB
//! each thread) and raytrace (a tree of boxes whose upper part every ray visits).
//!
//! Memory: one mapping. An operation descends a tree over it, laid out level by level: from the
//! root, one of `fanout` children of 64 bytes at each level, each read whole. Neighbouring
//! operations take neighbouring paths, as neighbouring rays do: the path moves to the next leaf
//! every 32 operations and jumps anywhere every 65,536.

use nestwalk_mem::{Access, Vpn};

use super::bijection::Dice;
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

const NODE: u64 = 64;
const SAME_LEAF: u64 = 32;
const JUMP: u64 = 65_536;

parameters! {
    /// Programs that hardly miss the TLB. Local accesses and instructions as measured of `xz -9`.
    ComputeConfig mixed(934, 3722, 14) {
        /// Children of a node: 2 to 64.
        fanout: u64 = 8,
    }
}

pub(super) struct Compute {
    layout: Layout,
    nodes: Region,
    count: u64,
    fanout: u64,
    /// Of each thread: operations done, and the leaf at the last jump.
    threads: Vec<(u64, u64)>,
    sweep: Sweep,
    dice: Vec<Dice>,
}

impl Compute {
    pub(super) fn new(config: &ComputeConfig) -> Result<Self, WorkloadError> {
        let mut layout = Layout::new(Self::NAME, config.common(), config.mixture())?;
        if !(2..=64).contains(&config.fanout) {
            return Err(impossible(Self::NAME, format!("fanout = {}: from 2 to 64", config.fanout)));
        }
        let nodes = layout.map(layout.left());
        Ok(Self {
            sweep: Sweep::new(vec![vec![nodes]], config.threads),
            count: nodes.bytes() / NODE,
            layout,
            nodes,
            fanout: config.fanout,
            threads: vec![(0, 0); config.threads.into()],
            dice: Dice::of_threads(config.seed, config.threads),
        })
    }
}

impl Pattern for Compute {
    const NAME: &'static str = "compute";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, index: usize, accesses: &mut Vec<Access>) {
        let (done, leaf) = &mut self.threads[index];
        if *done % JUMP == 0 {
            *leaf = self.dice[index].below(self.count);
        }
        *done += 1;
        // From the leaf up to the root: the parent of node n is (n - 1) / fanout.
        let mut node = (*leaf + *done / SAME_LEAF) % self.count;
        loop {
            accesses.extend([0, 16, 32, 48].map(|field| Access::load(self.nodes.at(node * NODE + field))));
            if node == 0 {
                break;
            }
            node = (node - 1) / self.fanout;
        }
    }
}
