// SPDX-License-Identifier: MIT OR Apache-2.0
//! `network`: a network simplex on a vehicle-scheduling problem ([`super::spanning_tree`]), as SPEC
//! CPU's mcf solves it (Löbel's MCF) or as LEMON does.
//!
//! **mcf** (`code = "mcf"`). One heap: nodes (104 bytes) and arcs (64), those of a trip one after
//! the other, to ascending later trips, behind three of each trip's own. `primal_bea_mpp` prices
//! the basket (100 arcs of the groups before) and a group: 300 arcs, one in each of 300 stretches
//! of the array, the next ones at the next call. For each arc it reads the record and both ends'
//! potentials. Then a pivot: both ends' paths in the tree up to where they meet (`primal_iminus`),
//! and the potentials of the subtree that moves (`update_tree`), by its links. Every 200th pivot
//! `refresh_potential` goes through all nodes of the tree in preorder, with the cost of each one's
//! arc. Left out: `price_out_impl`, which looks for new arcs between runs of the simplex. Assumed:
//! one group a call, which is what LEMON's block search needs on the same problem until near its
//! end.
//!
//! **LEMON** (`code = "lemon"`, `NetworkSimplex` of 1.3.1 with its defaults), which can be
//! captured. Where it differs from Löbel's: arrays of one field in place of records, in which the
//! arcs are mixed (neighbours in the array are as many arcs apart as there are nodes); a pivot
//! prices one block, the next square root of all arcs in the order of the array; paths are found by
//! the sizes of subtrees, and the leaving arc by the flows of their arcs; of a moved subtree the
//! potentials are changed along a thread through the nodes in preorder; nothing is refreshed.
//!
//! **What enters** is decided as both programs do: the arc that saves most of those priced, by
//! potentials that are kept and change with every pivot. Without that, pivots are all over the tree
//! and walk twice as often. The tree keeps its shape, and flows are not kept: in LEMON on 20,000
//! trips and 3.8 million arcs 1 pivot in 100 changes flows, and the arc that leaves is mostly next
//! to the one that enters (a stem of 0.2 to 0.4 nodes), so what moves is the subtree of an end,
//! here that of the smaller. Counted there after the first tenth of the pivots: 84 to 99 nodes a
//! pivot on the paths, 12 to 17 of them on no path of the last 64 pivots; one node moves in 60 to
//! 72 of 100 pivots. Here: 115 nodes, of which 12.

use nestwalk_mem::{Access, Gva, PageCount, Vpn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bijection::{mix, scale};
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use super::spanning_tree::{Arc, Timetable, Tree};
use crate::stream::WorkloadError;

/// Nodes of a subtree, and of the whole tree, that one operation goes through at most.
const PIECE: usize = 512;
/// Trips at most: the tree is stored.
const TRIPS_MAX: u64 = 1 << 22;

/// Whose network simplex.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NetworkCode {
    /// SPEC's mcf.
    #[default]
    Mcf,
    /// LEMON's `NetworkSimplex`.
    Lemon,
}

parameters! {
    /// Network simplex over arcs and nodes. Local accesses and instructions as measured of
    /// `cc1 -O2`, an integer program over pointers.
    NetworkConfig mixed(826, 2467, 15) {
        /// Whose network simplex it is.
        code: NetworkCode = NetworkCode::Mcf,
        /// Arcs of a trip to later trips: 1 to 65536. SPEC CPU2006's `ref` has 27.3 million arcs at
        /// most and some 60,000 nodes.
        arcs: u64 = 809,
    }
}

pub(super) struct Network {
    layout: Layout,
    memory: Memory,
    timetable: Timetable,
    tree: Tree,
    seed: u64,
    sweep: Sweep,
    threads: Vec<Thread>,
}

/// What a thread is at.
struct Thread {
    /// Arcs it has priced, or groups (mcf).
    priced: u64,
    /// Of a block that is being priced: the best arc so far, and what it would save.
    best: Option<(i64, u64)>,
    pivots: u64,
    /// Nodes that are still to be refreshed.
    refresh: usize,
}

/// Where the data structures are.
enum Memory {
    Mcf { nodes: Region, arcs: Region },
    Lemon(Box<Arrays>),
}

/// LEMON's arrays: by arc, then by node.
struct Arrays {
    source: Region,
    target: Region,
    cap: Region,
    cost: Region,
    flow: Region,
    state: Region,
    potential: Region,
    parent: Region,
    pred: Region,
    thread: Region,
    succ_num: Region,
    pred_dir: Region,
    /// Arcs there are, and of how many each round of mixing consists.
    count: u64,
    round: u64,
    skip: u64,
    block: u64,
}

const ARC: u64 = 64;
const NODE: u64 = 104;
/// Arcs of a trip that are its own in mcf: from and to the depot, and along the trip.
const OWN_ARCS: u64 = 3;
/// mcf's `K`, `B` and how many pivots apart it refreshes.
const GROUP: u64 = 300;
const BASKET: u64 = 100;
const REFRESHED_EVERY: u64 = 200;
/// Of how many groups before, at most, the arcs in the basket are (assumed).
const BASKET_GROUPS: u64 = 16;

/// LEMON's bytes of an arc that nothing is done with any more: the graph's own (16), the cost map
/// (4), numbers (4), bounds (8).
const READ_ONCE: u64 = 32;
const LEMON_ARC: u64 = READ_ONCE + 25;
const LEMON_NODE: u64 = 25;

impl Network {
    pub(super) fn new(config: &NetworkConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        let arcs = config.arcs;
        if !(1..=1 << 16).contains(&arcs) {
            return Err(impossible(name, format!("arcs = {arcs}: from 1 to 65536")));
        }
        let bytes = (layout.left() - 24) * nestwalk_mem::addr::PAGE_BYTES;
        let trips = match config.code {
            NetworkCode::Mcf => bytes / (2 * NODE + (OWN_ARCS + arcs) * ARC),
            NetworkCode::Lemon => bytes / (2 * LEMON_NODE + (2 + arcs) * LEMON_ARC),
        };
        if !(2..=TRIPS_MAX).contains(&trips) {
            let what = format!("footprint and arcs = {arcs}: room for {trips} trips: from 2 to {TRIPS_MAX}");
            return Err(impossible(name, what));
        }
        let seed = mix(config.seed);
        let timetable = Timetable::new(trips, arcs, seed);
        let (memory, order) = match config.code {
            NetworkCode::Mcf => Memory::mcf(&mut layout, &timetable),
            NetworkCode::Lemon => Memory::lemon(&mut layout, &timetable),
        };
        let thread = |index: u64| Thread { priced: index << 20, best: None, pivots: 0, refresh: 0 };
        Ok(Self {
            sweep: Sweep::new(order, config.threads),
            layout,
            memory,
            tree: Tree::new(&timetable),
            timetable,
            seed,
            threads: (0..config.threads.into()).map(thread).collect(),
        })
    }
}

impl Memory {
    fn mcf(layout: &mut Layout, timetable: &Timetable) -> (Self, Vec<Vec<Region>>) {
        let nodes = layout.map(PageCount::covering(timetable.nodes() * NODE).0);
        let arcs = layout.map(layout.left());
        (Self::Mcf { nodes, arcs }, vec![vec![nodes], vec![arcs]])
    }

    fn lemon(layout: &mut Layout, timetable: &Timetable) -> (Self, Vec<Vec<Region>>) {
        let count = timetable.trips * (2 + timetable.arcs);
        let skip = (count / timetable.nodes()).max(3);
        let map = |layout: &mut Layout, bytes: u64| layout.map(PageCount::covering(bytes).0);
        let once = map(layout, count * READ_ONCE);
        let mut arc = |bytes: u64| map(layout, count * bytes);
        let [source, target, cap, cost, flow, state] = [4, 4, 4, 8, 4, 1].map(&mut arc);
        let mut node = |bytes: u64| map(layout, timetable.nodes() * bytes);
        let [potential, parent, pred, thread, succ_num, pred_dir] = [8, 4, 4, 4, 4, 1].map(&mut node);
        let arrays = Arrays {
            source,
            target,
            cap,
            cost,
            flow,
            state,
            potential,
            parent,
            pred,
            thread,
            succ_num,
            pred_dir,
            count,
            round: count.div_ceil(skip),
            skip,
            block: (count as f64).sqrt() as u64,
        };
        let by_arc = vec![source, target, cap, cost, flow, state];
        let by_node = vec![potential, parent, pred, thread, succ_num, pred_dir];
        (Self::Lemon(Box::new(arrays)), vec![vec![once], by_arc, by_node])
    }
}

impl Arrays {
    /// The arc at place `at` of the arrays, by LEMON's mixing: an arc is so many behind the next in
    /// the graph's order.
    fn arc(&self, at: u64, timetable: &Timetable) -> Arc {
        let arc = (at % self.skip * self.round + at / self.skip).min(self.count - 1);
        match arc.checked_sub(2 * timetable.trips) {
            None if arc.is_multiple_of(2) => Arc::PullOut((arc / 2) as u32),
            None => Arc::PullIn((arc / 2) as u32),
            Some(arc) => later(arc, timetable),
        }
    }

    /// The place of `arc`.
    fn place(&self, arc: Arc, timetable: &Timetable) -> u64 {
        let arc = match arc {
            Arc::PullOut(trip) => 2 * u64::from(trip),
            Arc::PullIn(trip) | Arc::Along(trip) => 2 * u64::from(trip) + 1,
            Arc::Later { trip, nth } => 2 * timetable.trips + u64::from(trip) * timetable.arcs + u64::from(nth),
        };
        (arc % self.round * self.skip + arc / self.round).min(self.count - 1)
    }
}

/// Arc `arc` of those that lead to later trips.
fn later(arc: u64, timetable: &Timetable) -> Arc {
    Arc::Later { trip: (arc / timetable.arcs) as u32, nth: (arc % timetable.arcs) as u32 }
}

/// The better of two arcs that may enter.
fn better(best: &mut Option<(i64, u64)>, reduced_cost: Option<i64>, arc: u64) {
    if let Some(cost) = reduced_cost
        && best.is_none_or(|(least, _)| cost < least)
    {
        *best = Some((cost, arc));
    }
}

fn load(region: Region, index: u64, bytes: u64) -> Access {
    Access::load(region.at(index * bytes))
}

fn change(region: Region, index: u64, bytes: u64) -> [Access; 2] {
    [load(region, index, bytes), Access::store(region.at(index * bytes))]
}

impl Network {
    /// Prices the next piece of a block.
    fn lemon_price(
        &self,
        arrays: &Arrays,
        from: u64,
        arcs: u64,
        best: &mut Option<(i64, u64)>,
        accesses: &mut Vec<Access>,
    ) {
        for nth in 0..arcs {
            let at = (from + nth) % arrays.count;
            let arc = arrays.arc(at, &self.timetable);
            let [source, target] = self.timetable.ends(arc);
            better(best, self.tree.reduced_cost(&self.timetable, arc), at);
            accesses.extend([
                load(arrays.source, at, 4),
                load(arrays.cost, at, 8),
                load(arrays.potential, source, 8),
                load(arrays.target, at, 4),
                load(arrays.potential, target, 8),
                load(arrays.state, at, 1),
            ]);
        }
    }

    /// The arc at place `at` enters; of the two ends `moved` moves.
    fn lemon_pivot(&self, arrays: &Arrays, at: u64, moved: u64, accesses: &mut Vec<Access>) {
        let [source, target] = self.timetable.ends(arrays.arc(at, &self.timetable));
        let mut path = Vec::new();
        self.tree.paths(source, target, |node, a, b| {
            accesses.extend([a, b].map(|node| load(arrays.succ_num, node, 4)));
            accesses.push(load(arrays.parent, node, 4));
            path.push(node);
        });
        for &node in &path {
            let arc = arrays.place(self.tree.arc[node as usize], &self.timetable);
            accesses.extend([load(arrays.pred, node, 4), load(arrays.flow, arc, 4), load(arrays.pred_dir, node, 1)]);
            if mix(self.seed ^ 0xd1 ^ node) & 1 == 0 {
                accesses.push(load(arrays.cap, arc, 4));
            }
            accesses.push(load(arrays.parent, node, 4));
        }
        let leaving = arrays.place(self.tree.arc[moved as usize], &self.timetable);
        accesses.push(Access::store(arrays.state.at(at)));
        accesses.push(Access::store(arrays.state.at(leaving)));
        accesses.extend([arrays.parent, arrays.pred].map(|array| Access::store(array.at(moved * 4))));
        for &node in &path {
            accesses.extend(change(arrays.succ_num, node, 4));
            accesses.push(load(arrays.parent, node, 4));
        }
        for &node in self.tree.subtree(moved).iter().take(PIECE) {
            accesses.extend(change(arrays.potential, node.into(), 8));
            accesses.push(load(arrays.thread, node.into(), 4));
        }
    }
}

/// mcf's accesses.
struct Mcf<'a> {
    network: &'a Network,
    nodes: Region,
    arcs: Region,
}

impl Mcf<'_> {
    fn node(&self, node: u64, field: u64) -> Gva {
        self.nodes.at(node * NODE + field)
    }

    fn count(&self) -> u64 {
        self.network.timetable.trips * (OWN_ARCS + self.network.timetable.arcs)
    }

    fn arc(&self, arc: u64) -> Arc {
        let timetable = &self.network.timetable;
        match arc.checked_sub(OWN_ARCS * timetable.trips) {
            None => match (arc % OWN_ARCS, (arc / OWN_ARCS) as u32) {
                (0, trip) => Arc::PullOut(trip),
                (1, trip) => Arc::PullIn(trip),
                (_, trip) => Arc::Along(trip),
            },
            Some(arc) => later(arc, timetable),
        }
    }

    /// The number of `arc`.
    fn place(&self, arc: Arc) -> u64 {
        let timetable = &self.network.timetable;
        match arc {
            Arc::PullOut(trip) => u64::from(trip) * OWN_ARCS,
            Arc::PullIn(trip) => u64::from(trip) * OWN_ARCS + 1,
            Arc::Along(trip) => u64::from(trip) * OWN_ARCS + 2,
            Arc::Later { trip, nth } => OWN_ARCS * timetable.trips + u64::from(trip) * timetable.arcs + u64::from(nth),
        }
    }

    /// The arc that is `nth` of group `group`.
    fn of_group(&self, group: u64, nth: u64) -> u64 {
        let stretch = self.count().div_ceil(GROUP);
        nth * stretch + group % stretch
    }

    fn price_arc(&self, arc: u64, best: &mut Option<(i64, u64)>, accesses: &mut Vec<Access>) {
        if arc >= self.count() {
            return;
        }
        let (network, which) = (self.network, self.arc(arc));
        better(best, network.tree.reduced_cost(&network.timetable, which), arc);
        // State first; cost and both ends of arcs that are not in the tree, which are nearly all.
        accesses.extend([24, 0, 8, 16].map(|field| Access::load(self.arcs.at(arc * ARC + field))));
        accesses.extend(network.timetable.ends(which).map(|end| Access::load(self.node(end, 0))));
    }

    /// Prices the basket and group `group`: which arc saves most.
    fn price(&self, group: u64, accesses: &mut Vec<Access>) -> Option<u64> {
        let mut best = None;
        for nth in 0..BASKET {
            let drawn = mix(self.network.seed ^ group << 8 ^ nth);
            let before = group.saturating_sub(1 + drawn % BASKET_GROUPS);
            self.price_arc(self.of_group(before, scale(drawn, GROUP)), &mut best, accesses);
        }
        (0..GROUP).for_each(|nth| self.price_arc(self.of_group(group, nth), &mut best, accesses));
        best.map(|(_, arc)| arc)
    }

    /// `arc` enters; of its two ends `moved` moves.
    fn pivot(&self, arc: u64, moved: u64, accesses: &mut Vec<Access>) {
        let tree = &self.network.tree;
        let [tail, head] = self.network.timetable.ends(self.arc(arc));
        let mut path = Vec::new();
        tree.paths(tail, head, |node, a, b| {
            accesses.extend([a, b].map(|node| Access::load(self.node(node, 88))));
            accesses.extend([8, 80, 24].map(|field| Access::load(self.node(node, field))));
            path.push(node);
        });
        let links = [32, 40, 16, 24, 48].map(|field| Access::store(self.node(moved, field)));
        accesses.extend(links);
        for &node in &path {
            accesses.extend([Access::load(self.node(node, 88)), Access::store(self.node(node, 88))]);
            accesses.push(Access::load(self.node(node, 24)));
        }
        for &node in tree.subtree(moved).iter().take(PIECE) {
            let node = u64::from(node);
            accesses.extend([Access::load(self.node(node, 0)), Access::store(self.node(node, 0))]);
            accesses.extend([16, 32, 24].map(|field| Access::load(self.node(node, field))));
        }
    }

    /// Goes on with `refresh_potential` where `left` nodes are left.
    fn refresh(&self, left: usize, accesses: &mut Vec<Access>) {
        let tree = &self.network.tree;
        let nodes = tree.below_root();
        for &node in &nodes[nodes.len() - left..][..left.min(PIECE)] {
            let arc = self.place(tree.arc[node as usize]);
            let (node, parent) = (u64::from(node), u64::from(tree.parent[node as usize]));
            accesses.extend([8, 48, 24].map(|field| Access::load(self.node(node, field))));
            accesses.push(Access::load(self.arcs.at(arc * ARC)));
            accesses.push(Access::load(self.node(parent, 0)));
            accesses.push(Access::store(self.node(node, 0)));
            accesses.extend([16, 32].map(|field| Access::load(self.node(node, field))));
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
        let Thread { priced, mut best, pivots, refresh } = self.threads[thread];
        match &self.memory {
            Memory::Lemon(arrays) => {
                let done = priced % arrays.block;
                let arcs = (arrays.block - done).min(PIECE as u64);
                self.lemon_price(arrays, priced, arcs, &mut best, accesses);
                if done + arcs == arrays.block
                    && let Some((_, at)) = best.take()
                {
                    let moved = self.tree.enter(&self.timetable, arrays.arc(at, &self.timetable));
                    self.lemon_pivot(arrays, at, moved, accesses);
                }
                self.threads[thread] = Thread { priced: priced + arcs, best, pivots, refresh };
            }
            &Memory::Mcf { nodes, arcs } if refresh == 0 => {
                let mcf = Mcf { network: self, nodes, arcs };
                if let Some(arc) = mcf.price(priced, accesses) {
                    let which = mcf.arc(arc);
                    let moved = self.tree.enter(&self.timetable, which);
                    Mcf { network: self, nodes, arcs }.pivot(arc, moved, accesses);
                }
                let pivots = pivots + 1;
                let all = self.tree.below_root().len();
                let refresh = if pivots.is_multiple_of(REFRESHED_EVERY) { all } else { 0 };
                self.threads[thread] = Thread { priced: priced + 1, best, pivots, refresh };
            }
            &Memory::Mcf { nodes, arcs } => {
                Mcf { network: self, nodes, arcs }.refresh(refresh, accesses);
                self.threads[thread].refresh = refresh.saturating_sub(PIECE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(code: NetworkCode) -> Network {
        Network::new(&NetworkConfig { footprint: PageCount(1 << 14), code, arcs: 200, ..Default::default() }).unwrap()
    }

    #[test]
    fn mixing_puts_every_arc_into_one_place() {
        let lemon = network(NetworkCode::Lemon);
        let Memory::Lemon(arrays) = &lemon.memory else { unreachable!() };
        let timetable = &lemon.timetable;
        let mut wrong = 0;
        for node in 0..timetable.depot() {
            let arc = lemon.tree.arc[node as usize];
            wrong += u64::from(arrays.arc(arrays.place(arc, timetable), timetable) != arc);
        }
        // The last round is not full.
        assert!(wrong <= timetable.nodes() / 100, "{wrong} of {}", timetable.nodes());
    }

    /// Pivots come back to where prices have changed, as they do in LEMON; see above.
    #[test]
    fn paths_are_as_long_and_as_often_used_again_as_counted() {
        let footprint = PageCount(213 << 8);
        let config = NetworkConfig { footprint, code: NetworkCode::Lemon, arcs: 188, ..Default::default() };
        let mut lemon = Network::new(&config).unwrap();
        let Memory::Lemon(arrays) = &lemon.memory else { unreachable!() };
        let (parent, block) = (arrays.parent, arrays.block);
        let (mut used, mut nodes, mut fresh, mut pivots) = (std::collections::BTreeMap::new(), 0, 0, 0);
        while pivots < 2000 {
            let mut accesses = Vec::new();
            let before = lemon.threads[0].priced / block;
            lemon.operate(0, &mut accesses);
            if lemon.threads[0].priced / block == before {
                continue;
            }
            pivots += 1;
            let path: std::collections::BTreeSet<u64> = accesses
                .iter()
                .filter(|access| !access.is_store() && parent.pages.contains(Vpn(access.gva().page().0)))
                .map(|access| access.gva().0)
                .collect();
            for node in path {
                let last = used.insert(node, pivots);
                if pivots > 1000 {
                    nodes += 1;
                    fresh += i32::from(last.is_none_or(|last| pivots - last > 64));
                }
            }
        }
        assert!((90_000..130_000).contains(&nodes) && (9_000..16_000).contains(&fresh), "{nodes} {fresh}");
    }

    #[test]
    fn mcf_prices_one_arc_of_each_stretch_and_refreshes_all_nodes_every_200_pivots() {
        let mut mcf = network(NetworkCode::Mcf);
        let Memory::Mcf { nodes, .. } = mcf.memory else { unreachable!() };
        let mut accesses = Vec::new();
        for _ in 0..REFRESHED_EVERY {
            accesses.clear();
            mcf.operate(0, &mut accesses);
            assert!(accesses.len() as u64 >= 6 * (GROUP + BASKET) - 6 * 8, "{}", accesses.len());
        }
        let mut stored = std::collections::BTreeSet::new();
        while mcf.threads[0].refresh > 0 {
            accesses.clear();
            mcf.operate(0, &mut accesses);
            stored.extend(accesses.iter().filter(|access| access.is_store()).map(|access| access.gva()));
        }
        assert_eq!(stored.len() as u64, mcf.timetable.nodes() - 1);
        assert!(stored.iter().all(|gva| nodes.pages.contains(Vpn(gva.page().0))));
    }
}
