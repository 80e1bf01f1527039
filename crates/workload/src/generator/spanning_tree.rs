// SPDX-License-Identifier: MIT OR Apache-2.0
//! The basis of a network simplex on a vehicle-scheduling problem: a timetable's network, computed,
//! and a spanning tree of it, which is stored (72 bytes a trip).
//!
//! Trips are numbered by their start. Trip `t` has a node where a vehicle is wanted (`t`) and one
//! where it comes from (`trips + t`); the depot is the last node. An arc leads from the end of a
//! trip to the start of a later one that the vehicle reaches in time. As in
//! `capture/programs/vehicles.cpp`: trips take 20 to 60 minutes of a day of 1200, and lead from
//! anywhere to anywhere in a square of 60 by 60 minutes of driving. So of those that start within
//! `s` minutes of an end a share of `pi s^2 / 3600` can be reached, and the `k`-th that can starts
//! some `(k * 10800 / (pi * rate))^(1/3)` minutes later, `rate` trips starting a minute.
//!
//! Of an arc's cost, minutes of driving count twice, other minutes once; a place within reach is
//! anywhere in the circle. A vehicle costs 10,000 when it leaves the depot.
//!
//! The tree: a vehicle goes on from most ends to a start, so these are pairs; other arcs, any,
//! connect the pairs; what is left begins or ends a vehicle's day at the depot. Beside the bases
//! that LEMON has on its way (20,000 trips, counted every 40,000 pivots): leaves 0.35 of the nodes
//! (LEMON 0.28 to 0.33), subtrees of 8 nodes and more 0.26 (0.18 to 0.29).

use super::bijection::{Dice, mix, scale};

/// Minutes of a day, of the shortest trip, and how much longer others take.
const DAY: u64 = 1200;
const SHORTEST: u64 = 20;
const LONGER: u64 = 40;
/// Of pi s^3 / (3 * 60 * 60): what a cube of minutes is divided by.
const CUBE: f64 = 10_800.0 / std::f64::consts::PI;
/// Arcs that are tried to connect the pairs, for each trip; more find hardly any.
const TRIES: u64 = 16;
/// Thousandths of a minute: what a vehicle costs.
const VEHICLE: i64 = 10_000_000;

/// A timetable's network.
pub(super) struct Timetable {
    pub(super) trips: u64,
    /// Arcs from the end of a trip to later ones.
    pub(super) arcs: u64,
    /// By arc: how many trips start between the end of a trip and the start of the other.
    later: Vec<u32>,
    /// By arc: thousandths of a minute between the two.
    spare: Vec<u32>,
    seed: u64,
}

/// An arc of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arc {
    /// From the depot to a trip's start.
    PullOut(u32),
    /// From a trip's end to the depot.
    PullIn(u32),
    /// From a trip's start to its end: mcf has it, and it never enters.
    Along(u32),
    /// Arc `nth` from the end of `trip`.
    Later { trip: u32, nth: u32 },
}

impl Timetable {
    pub(super) fn new(trips: u64, arcs: u64, seed: u64) -> Self {
        let rate = trips as f64 / DAY as f64;
        let minutes = |nth: u64| libm::cbrt((nth as f64 + 0.5) * CUBE / rate);
        let later = (0..arcs).map(|nth| (minutes(nth) * rate) as u32).collect();
        let spare = (0..arcs).map(|nth| (minutes(nth) * 1000.0) as u32).collect();
        Self { trips, arcs, later, spare, seed }
    }

    pub(super) fn nodes(&self) -> u64 {
        2 * self.trips + 1
    }

    pub(super) fn depot(&self) -> u64 {
        2 * self.trips
    }

    /// The trip that arc `nth` from the end of `trip` leads to. Late in the day it is one of the
    /// next day's.
    pub(super) fn next(&self, trip: u64, nth: u64) -> u64 {
        let takes = SHORTEST * 1000 + scale(mix(self.seed ^ 0x7a6 ^ trip), LONGER * 1000);
        (trip + takes * self.trips / (DAY * 1000) + u64::from(self.later[nth as usize])) % self.trips
    }

    /// Whether that trip is a later one of the same day.
    fn same_day(&self, trip: u64, nth: u64) -> bool {
        self.next(trip, nth) > trip
    }

    /// Source and target.
    pub(super) fn ends(&self, arc: Arc) -> [u64; 2] {
        match arc {
            Arc::PullOut(trip) => [self.depot(), trip.into()],
            Arc::PullIn(trip) => [self.trips + u64::from(trip), self.depot()],
            Arc::Along(trip) => [trip.into(), self.trips + u64::from(trip)],
            Arc::Later { trip, nth } => [self.trips + u64::from(trip), self.next(trip.into(), nth.into())],
        }
    }

    /// Cost of an arc that may enter the basis, in thousandths.
    pub(super) fn cost(&self, arc: Arc) -> Option<i64> {
        match arc {
            Arc::PullOut(_) => Some(VEHICLE),
            Arc::PullIn(_) => Some(0),
            Arc::Along(_) => None,
            Arc::Later { trip, nth } => {
                let spare = i64::from(self.spare[nth as usize]);
                let drawn = scale(mix(self.seed ^ 0xd1 ^ u64::from(trip) << 20 ^ u64::from(nth)), 1 << 20);
                let driving = (spare as f64 * (drawn as f64 / f64::from(1 << 20)).sqrt()) as i64;
                self.same_day(trip.into(), nth.into()).then_some(2 * driving + spare)
            }
        }
    }
}

/// A spanning tree, its root the depot.
pub(super) struct Tree {
    /// By node: its parent (the root's is the root), the arc between them, and how many nodes are
    /// in its subtree.
    pub(super) parent: Vec<u32>,
    pub(super) arc: Vec<Arc>,
    pub(super) size: Vec<u32>,
    /// By node: its price. At first no arc of the tree has a reduced cost.
    potential: Vec<i64>,
    /// Nodes in preorder, and where in that order a node is.
    order: Vec<u32>,
    place: Vec<u32>,
}

impl Tree {
    pub(super) fn new(timetable: &Timetable) -> Self {
        let arcs = Self::arcs(timetable);
        let nodes = timetable.nodes() as usize;
        // Neighbours of a node, one after the other.
        let mut begin = vec![0u32; nodes + 1];
        arcs.iter().for_each(|&(from, to, _)| [from, to].into_iter().for_each(|node| begin[node as usize + 1] += 1));
        (0..nodes).for_each(|node| begin[node + 1] += begin[node]);
        let mut fill = begin.clone();
        let mut neighbours = vec![(0, Arc::PullIn(0)); 2 * arcs.len()];
        for &(from, to, arc) in &arcs {
            for (node, other) in [(from, to), (to, from)] {
                neighbours[fill[node as usize] as usize] = (other, arc);
                fill[node as usize] += 1;
            }
        }
        let root = timetable.depot() as u32;
        let mut tree = Self {
            parent: vec![root; nodes],
            arc: vec![Arc::PullIn(0); nodes],
            size: vec![1; nodes],
            potential: vec![0; nodes],
            order: Vec::with_capacity(nodes),
            place: vec![0; nodes],
        };
        let mut open = vec![root];
        while let Some(node) = open.pop() {
            tree.place[node as usize] = tree.order.len() as u32;
            tree.order.push(node);
            for &(other, arc) in &neighbours[begin[node as usize] as usize..begin[node as usize + 1] as usize] {
                if node == root || other != tree.parent[node as usize] {
                    tree.parent[other as usize] = node;
                    tree.arc[other as usize] = arc;
                    let (cost, known) = (timetable.cost(arc).unwrap_or(0), tree.potential[node as usize]);
                    let is_source = timetable.ends(arc)[0] == u64::from(other);
                    tree.potential[other as usize] = if is_source { known - cost } else { known + cost };
                    open.push(other);
                }
            }
        }
        for &node in tree.order[1..].iter().rev() {
            tree.size[tree.parent[node as usize] as usize] += tree.size[node as usize];
        }
        tree
    }

    /// The arcs of a spanning tree: node, node, which.
    fn arcs(timetable: &Timetable) -> Vec<(u32, u32, Arc)> {
        let trips = timetable.trips;
        let mut dice = Dice::of_threads(timetable.seed ^ 0x7ee, 1).remove(0);
        let mut sets: Vec<u32> = (0..timetable.nodes() as u32).collect();
        let mut arcs = Vec::with_capacity(2 * trips as usize);
        let mut link = |from: u64, to: u64, arc: Arc| {
            let (a, b) = (root_of(&mut sets, from as u32), root_of(&mut sets, to as u32));
            if a != b {
                sets[a as usize] = b;
                arcs.push((from as u32, to as u32, arc));
            }
        };
        let later = |trip: u64, nth: u64| Arc::Later { trip: trip as u32, nth: nth as u32 };
        let mut wanted = vec![true; trips as usize];
        let ends = super::bijection::Bijection::new(trips, timetable.seed);
        for trip in (0..trips).map(|nth| ends.apply(nth)) {
            let tries = (0..TRIES)
                .map(|_| dice.below(timetable.arcs))
                .find(|&nth| timetable.same_day(trip, nth) && wanted[timetable.next(trip, nth) as usize]);
            if let Some(nth) = tries {
                let start = timetable.next(trip, nth);
                wanted[start as usize] = false;
                link(trips + trip, start, later(trip, nth));
            }
        }
        for _ in 0..TRIES * trips {
            let (trip, nth) = (dice.below(trips), dice.below(timetable.arcs));
            if timetable.same_day(trip, nth) {
                link(trips + trip, timetable.next(trip, nth), later(trip, nth));
            }
        }
        for trip in 0..trips {
            link(timetable.depot(), trip, Arc::PullOut(trip as u32));
            link(timetable.depot(), trips + trip, Arc::PullIn(trip as u32));
        }
        arcs
    }

    /// The nodes of the subtree of `node`, in preorder.
    pub(super) fn subtree(&self, node: u64) -> &[u32] {
        let place = self.place[node as usize] as usize;
        &self.order[place..place + self.size[node as usize] as usize]
    }

    /// What `arc` would save by entering, as a negative number; `None` if it cannot.
    pub(super) fn reduced_cost(&self, timetable: &Timetable, arc: Arc) -> Option<i64> {
        let [source, target] = timetable.ends(arc);
        timetable.cost(arc).map(|cost| cost + self.potential[source as usize] - self.potential[target as usize])
    }

    /// `arc` enters: the prices of the end whose subtree is smaller, and of its subtree, change so
    /// that the arc has no reduced cost. (The tree keeps its shape.) Returns that end.
    pub(super) fn enter(&mut self, timetable: &Timetable, arc: Arc) -> u64 {
        let [source, target] = timetable.ends(arc);
        let by = self.reduced_cost(timetable, arc).unwrap_or(0);
        let (moved, by) =
            if self.size[source as usize] < self.size[target as usize] { (source, -by) } else { (target, by) };
        let place = self.place[moved as usize] as usize;
        for &node in &self.order[place..place + self.size[moved as usize] as usize] {
            self.potential[node as usize] += by;
        }
        moved
    }

    /// All nodes but the root, in preorder.
    pub(super) fn below_root(&self) -> &[u32] {
        &self.order[1..]
    }

    /// The nodes from `a` and `b` up to where their paths meet, which is left out, in the order in
    /// which LEMON finds them: from the smaller of the two subtrees it goes up.
    pub(super) fn paths(&self, mut a: u64, mut b: u64, mut step: impl FnMut(u64, u64, u64)) {
        while a != b {
            let up = if self.size[a as usize] < self.size[b as usize] { &mut a } else { &mut b };
            let node = *up;
            *up = self.parent[node as usize].into();
            step(node, a, b);
        }
    }
}

/// The representative of the set that `node` is in.
fn root_of(sets: &mut [u32], mut node: u32) -> u32 {
    while sets[node as usize] != node {
        sets[node as usize] = sets[sets[node as usize] as usize];
        node = sets[node as usize];
    }
    node
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spans_all_nodes_and_has_the_counted_shape() {
        let timetable = Timetable::new(20_000, 200, 5);
        let tree = Tree::new(&timetable);
        let nodes = timetable.nodes();
        assert_eq!(tree.order.len() as u64, nodes);
        assert_eq!(u64::from(tree.size[timetable.depot() as usize]), nodes);
        let share = |of: &dyn Fn(u32) -> bool| tree.size.iter().filter(|&&size| of(size)).count() as f64 / nodes as f64;
        let (leaves, large) = (share(&|size| size == 1), share(&|size| size >= 8));
        assert!((0.33..0.37).contains(&leaves) && (0.22..0.29).contains(&large), "{leaves} {large}");
        // Every node is in the subtree of its parent, which is one piece of the order.
        for node in (0..nodes - 1).step_by(97) {
            let parent = tree.parent[node as usize];
            assert!(tree.subtree(parent.into()).contains(&(node as u32)));
            let mut steps = 0;
            tree.paths(node, timetable.depot(), |_, _, _| steps += 1);
            assert!(steps > 0);
        }
    }

    #[test]
    fn what_enters_has_no_reduced_cost_and_changes_prices_below_it_only() {
        let timetable = Timetable::new(2000, 50, 5);
        let mut tree = Tree::new(&timetable);
        for node in 0..timetable.depot() {
            assert_eq!(tree.reduced_cost(&timetable, tree.arc[node as usize]), Some(0));
        }
        let before = tree.potential.clone();
        let arc = Arc::Later { trip: 700, nth: 20 };
        assert_ne!(tree.reduced_cost(&timetable, arc), Some(0));
        let moved = tree.enter(&timetable, arc);
        assert_eq!(tree.reduced_cost(&timetable, arc), Some(0));
        let changed =
            (0..timetable.nodes() as u32).filter(|&node| before[node as usize] != tree.potential[node as usize]);
        let mut below = tree.subtree(moved).to_vec();
        below.sort_unstable();
        assert!(changed.eq(below));
        assert_eq!(tree.reduced_cost(&timetable, Arc::Along(3)), None);
    }

    #[test]
    fn arcs_lead_to_later_trips_in_order() {
        let timetable = Timetable::new(20_000, 200, 5);
        let heads: Vec<u64> = (0..200).map(|nth| timetable.next(100, nth)).collect();
        assert!(heads.is_sorted());
        // The first starts 20 minutes after the trip did at the earliest, the last two hours.
        assert!(heads[0] >= 100 + 333 && heads[199] <= 100 + 2000, "{heads:?}");
    }
}
