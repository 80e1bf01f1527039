// SPDX-License-Identifier: MIT OR Apache-2.0
//! `network`: the network simplex of SPEC CPU's mcf (Löbel's MCF, a vehicle-scheduling problem).
//!
//! Memory: one mapping, as mcf reads its problem into one heap: arcs (64 bytes: cost, tail, head,
//! state, flow, links) and nodes (104 bytes: potential, tree links, depth). SPEC CPU2006's `ref`
//! has 27.3 million arcs at most and some 60,000 nodes, so nodes take 0.4 % of it.
//!
//! Half of the operations price a block (`primal_bea_mpp`): 300 arcs, one in each of 300 stretches
//! of the arc array, the next ones at the next call; for each arc its record, and of an arc not in
//! the tree the potentials of both end nodes. The others follow the tree (`refresh_potential`,
//! `primal_iminus`): a chain of nodes by their links, each with the cost of its arc. That both have
//! half of the operations is an assumption; profiles of mcf name these functions first.

use nestwalk_mem::{Access, Gva, Vpn};

use super::bijection::{Dice, mix, scale};
use super::config::parameters;
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

const ARC: u64 = 64;
const NODE: u64 = 104;
/// Pages of nodes in a thousand.
const NODE_PERMILLE: u64 = 4;
/// Arcs of a block (mcf's `K`).
const BLOCK: u64 = 300;
/// Nodes of a chain that is followed (assumed: a subtree that a pivot moves).
const CHAIN: u64 = 64;

parameters! {
    /// Network simplex over arcs and nodes. Local accesses and instructions as measured of
    /// `cc1 -O2`, an integer program over pointers.
    NetworkConfig mixed(826, 2467, 15) {}
}

pub(super) struct Network {
    layout: Layout,
    arcs: Region,
    nodes: Region,
    arc_count: u64,
    node_count: u64,
    seed: u64,
    /// Of each thread: the position of the next block in its stretches.
    groups: Vec<u64>,
    sweep: Sweep,
    dice: Vec<Dice>,
}

impl Network {
    pub(super) fn new(config: &NetworkConfig) -> Result<Self, WorkloadError> {
        let mut layout = Layout::new(Self::NAME, config.common(), config.mixture())?;
        let nodes = layout.map_share(layout.left(), NODE_PERMILLE);
        let arcs = layout.map(layout.left());
        Ok(Self {
            sweep: Sweep::new(vec![vec![nodes], vec![arcs]], config.threads),
            arc_count: arcs.bytes() / ARC,
            node_count: nodes.bytes() / NODE,
            layout,
            arcs,
            nodes,
            seed: mix(config.seed),
            groups: vec![0; config.threads.into()],
            dice: Dice::of_threads(config.seed, config.threads),
        })
    }

    fn node(&self, node: u64, field: u64) -> Gva {
        self.nodes.at(node * NODE + field)
    }

    /// A node that arc `arc` joins.
    fn end(&self, arc: u64, which: u64) -> u64 {
        scale(mix(self.seed ^ arc << 1 ^ which), self.node_count)
    }

    fn price(&self, group: u64, accesses: &mut Vec<Access>) {
        let stretch = self.arc_count.div_ceil(BLOCK);
        for nth in 0..BLOCK {
            let arc = nth * stretch + group % stretch;
            if arc >= self.arc_count {
                break;
            }
            // State first; cost and both pointers of arcs that are not in the tree, which are
            // nearly all.
            accesses.extend([24, 0, 8, 16].map(|field| Access::load(self.arcs.at(arc * ARC + field))));
            accesses.extend([0, 1].map(|which| Access::load(self.node(self.end(arc, which), 0))));
        }
    }

    fn follow(&self, mut node: u64, accesses: &mut Vec<Access>) {
        for _ in 0..CHAIN {
            // Link, parent's potential, cost of the arc to it; then the new potential.
            let parent = scale(mix(self.seed ^ 0x9a7 ^ node), self.node_count);
            let arc = scale(mix(self.seed ^ 0xa7c ^ node), self.arc_count);
            accesses.extend([self.node(node, 16), self.node(node, 24)].map(Access::load));
            accesses.push(Access::load(self.arcs.at(arc * ARC)));
            accesses.push(Access::load(self.node(parent, 0)));
            accesses.push(Access::store(self.node(node, 0)));
            node = scale(mix(self.seed ^ 0x5ed ^ node), self.node_count);
        }
    }
}

impl Pattern for Network {
    const NAME: &'static str = "network";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        if self.dice[thread].chance(500) {
            let group = self.groups[thread];
            self.groups[thread] += 1;
            self.price(group, accesses);
        } else {
            let node = self.dice[thread].below(self.node_count);
            self.follow(node, accesses);
        }
    }
}
