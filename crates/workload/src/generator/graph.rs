// SPDX-License-Identifier: MIT OR Apache-2.0
//! `graph`: traversal of a Twitter-like graph in compressed sparse rows, as PageRank and breadth-first search do it.
//!
//! Memory: `offsets` (8 bytes a vertex), `edges` (4 bytes an edge, 8 from 2^32 vertices on), `property` and `next` (8 bytes a
//! vertex). Degrees follow a power law within every 4096 vertices, in one of 16 orders chosen by hash, so that the offset of
//! any vertex is a multiplication and a look-up. Popular targets follow one over the whole graph (rank exponent 3/4, that is
//! in-degree exponent 2.33; Kwak et al. 2010 give 2.28 for Twitter), scattered over the vertex numbers. The targets of an
//! edge depend on its place alone: the graph is the same whenever it is visited. What it lacks is community structure, so
//! its neighbours are farther apart than a real graph's.
//!
//! A `sweep` (PageRank, pull) goes through vertices by number: offset, then for each edge the edge and the target's
//! property, then a store to `next`. A `frontier` (BFS) takes vertices in random order from a queue (in `next`); its target
//! visits are checks, and one in so many as a vertex has edges on average finds a new vertex and stores.

use nestwalk_mem::{Access, PageCount, Vpn};
use serde::{Deserialize, Serialize};

use super::bijection::{Bijection, mix, scale};
use super::config::{impossible, parameters};
use super::memory::{MmapArea, Region, Sweep};
use super::program::Program;
use crate::stream::WorkloadError;

/// Instructions of an edge (assumed): load edge, index, load property, add or compare, count, branch.
const INSTRUCTIONS_PER_EDGE: u64 = 6;
/// Instructions of a vertex besides (assumed): offsets, loop set-up, store, a mispredicted exit's worth of bookkeeping.
const INSTRUCTIONS_PER_VERTEX: u64 = 12;
/// Vertices among which degrees are dealt.
const GROUP: u64 = 4096;
/// Different deals of degrees.
const DEALS: u64 = 16;
/// Bytes of an offset, a property, a queue entry.
const WORD: u64 = 8;

/// In which order vertices are visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traversal {
    /// By number, as PageRank does.
    Sweep,
    /// In random order, as breadth-first search does.
    Frontier,
}

parameters! {
    /// Traversal of a power-law graph.
    GraphConfig {
        /// Edges a vertex, on average: 1 to 4096. Twitter has 35.
        degree: u64 = 35,
        /// In which order vertices are visited.
        traversal: Traversal = Traversal::Sweep,
    }
}

/// The out-degrees of a group, dealt in several orders, as prefix sums.
struct Deals {
    /// `prefix[deal * (GROUP + 1) + v]`: edges of the group's vertices before `v`.
    prefix: Vec<u32>,
}

impl Deals {
    /// Degrees proportional to `rank^-3/4`, at least 0, `GROUP * degree` in all.
    fn new(degree: u64, seed: u64) -> Self {
        // Integers only: rank^-3/4 as the reciprocal of sqrt(rank) * sqrt(sqrt(rank)), scaled by 2^32.
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
    fn bounds(&self, deal: u64, vertex: u64) -> (u64, u64) {
        let at = (deal * (GROUP + 1) + vertex) as usize;
        (self.prefix[at].into(), self.prefix[at + 1].into())
    }
}

pub(super) struct Graph {
    offsets: Region,
    edges: Region,
    property: Region,
    next: Region,
    vertices: u64,
    degree: u64,
    edge_bytes: u64,
    traversal: Traversal,
    seed: u64,
    deals: Deals,
    scatter: Bijection,
    order: Bijection,
    sweep: Sweep,
    threads: Vec<Thread>,
}

/// A thread and the vertex that it is at.
#[derive(Clone, Copy)]
struct Thread {
    start: u64,
    end: u64,
    /// Number of the visit, from `start` to `end`.
    visit: u64,
    part: Part,
}

/// What of a visit comes next.
#[derive(Clone, Copy)]
enum Part {
    Begin,
    Edge { vertex: u64, edge: u64, end: u64 },
    Target { vertex: u64, edge: u64, end: u64 },
    Finish { vertex: u64 },
}

impl Graph {
    pub(super) fn new(config: &GraphConfig) -> Result<Self, WorkloadError> {
        let common = config.common();
        common.check(Self::NAME)?;
        let degree = config.degree;
        if !(1..=4096).contains(&degree) {
            return Err(impossible(Self::NAME, format!("degree = {degree}: from 1 to 4096")));
        }
        let vertices_with = |edge_bytes| common.footprint.bytes() / (3 * WORD + edge_bytes * degree) / GROUP * GROUP;
        let edge_bytes = if vertices_with(4) <= 1 << 32 { 4 } else { 8 };
        let vertices = vertices_with(edge_bytes);
        let threads = u64::from(config.threads);
        if vertices < GROUP.max(threads) {
            return Err(impossible(
                Self::NAME,
                format!("footprint: too small for {GROUP} vertices of degree {degree}"),
            ));
        }
        let mut area = MmapArea::new();
        let [offsets, edges, property, next] =
            [WORD, edge_bytes * degree, WORD, WORD].map(|bytes| area.map(PageCount::covering(vertices * bytes)));
        let thread = |index| {
            let (start, end) = (vertices * index / threads, vertices * (index + 1) / threads);
            // Measuring begins somewhere in the slice, as it would in a long run.
            let visit = start + scale(mix(config.seed ^ mix(index)), end - start);
            Thread { start, end, visit, part: Part::Begin }
        };
        Ok(Self {
            offsets,
            edges,
            property,
            next,
            vertices,
            degree,
            edge_bytes,
            traversal: config.traversal,
            seed: mix(config.seed),
            deals: Deals::new(degree, config.seed),
            scatter: Bijection::new(vertices, mix(config.seed ^ 1)),
            order: Bijection::new(vertices, mix(config.seed ^ 2)),
            // The graph is loaded array by array, the vertex data set up by one loop.
            sweep: Sweep::new(vec![vec![offsets], vec![edges], vec![property, next]], config.threads),
            threads: (0..threads).map(thread).collect(),
        })
    }

    /// The numbers of a vertex' first edge and of the one past its last.
    #[inline]
    fn edges_of(&self, vertex: u64) -> (u64, u64) {
        let (group, within) = (vertex / GROUP, vertex % GROUP);
        let first = group * GROUP * self.degree;
        let (start, end) = self.deals.bounds(mix(group ^ self.seed) % DEALS, within);
        (first + start, first + end)
    }

    /// Where an edge leads: with `u` uniform, rank `vertices * u^4`, scattered.
    #[inline]
    fn target(&self, edge: u64) -> u64 {
        let uniform = mix(edge ^ self.seed);
        let square = scale(uniform, uniform);
        self.scatter.apply(scale(scale(square, square), self.vertices))
    }

    /// Makes one access of the thread's visit.
    #[inline]
    fn step(&self, thread: &mut Thread) -> (Access, u64) {
        match thread.part {
            Part::Begin => self.begin(thread),
            Part::Edge { vertex, edge, end } => {
                thread.part = Part::Target { vertex, edge, end };
                (Access::load(self.edges.at(edge * self.edge_bytes)), INSTRUCTIONS_PER_EDGE)
            }
            Part::Target { vertex, edge, end } => {
                thread.part = Self::edges_from(vertex, edge + 1, end);
                let property = self.property.at(self.target(edge) * WORD);
                let found = self.traversal == Traversal::Frontier && mix(edge).is_multiple_of(self.degree);
                (Access::new(property, found), 0)
            }
            Part::Finish { vertex } => {
                thread.part = Part::Begin;
                self.advance(thread);
                (Access::store(self.next.at(vertex * WORD)), 0)
            }
        }
    }

    /// The visit's first access. A frontier's vertex number comes from the queue, so its offset is the second one; the queue
    /// is read in order and hits the same line eight times, so it stands for both.
    #[inline]
    fn begin(&self, thread: &mut Thread) -> (Access, u64) {
        let vertex = match self.traversal {
            Traversal::Sweep => thread.visit,
            Traversal::Frontier => self.order.apply(thread.visit),
        };
        let (edge, end) = self.edges_of(vertex);
        thread.part = Self::edges_from(vertex, edge, end);
        (Access::load(self.offsets.at(vertex * WORD)), INSTRUCTIONS_PER_VERTEX)
    }

    fn edges_from(vertex: u64, edge: u64, end: u64) -> Part {
        if edge < end { Part::Edge { vertex, edge, end } } else { Part::Finish { vertex } }
    }

    fn advance(&self, thread: &mut Thread) {
        thread.visit = if thread.visit + 1 == thread.end { thread.start } else { thread.visit + 1 };
    }
}

impl Program for Graph {
    const NAME: &'static str = "graph";

    fn regions(&self) -> Vec<Region> {
        vec![self.offsets, self.edges, self.property, self.next]
    }

    fn footprint(&self) -> PageCount {
        PageCount(self.regions().iter().map(|region| region.pages.len()).sum())
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn fill(&mut self, thread: u16, accesses: &mut Vec<Access>, most: usize) -> u64 {
        let mut state = self.threads[usize::from(thread)];
        let mut instructions = 0;
        let room = most - accesses.len();
        accesses.extend((0..room).map(|_| {
            let (access, more) = self.step(&mut state);
            instructions += more;
            access
        }));
        self.threads[usize::from(thread)] = state;
        instructions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(traversal: Traversal) -> Graph {
        Graph::new(&GraphConfig { footprint: PageCount(16_384), traversal, ..GraphConfig::default() }).unwrap()
    }

    #[test]
    fn edges_of_all_vertices_follow_one_another() {
        let graph = graph(Traversal::Sweep);
        let mut at = 0;
        let mut largest = 0;
        for vertex in 0..graph.vertices {
            let (start, end) = graph.edges_of(vertex);
            assert_eq!(start, at);
            (at, largest) = (end, largest.max(end - start));
        }
        assert_eq!(at, graph.vertices * graph.degree);
        assert!(largest > 50 * graph.degree, "largest degree {largest} of a power law");
    }

    #[test]
    fn targets_follow_a_power_law_and_stay() {
        let graph = graph(Traversal::Sweep);
        let mut hits = vec![0u64; graph.vertices as usize];
        let edges = 2_000_000;
        for edge in 0..edges {
            hits[graph.target(edge) as usize] += 1;
        }
        assert_eq!(graph.target(77), graph.target(77));
        hits.sort_unstable_by(|a, b| b.cmp(a));
        // Rank below share x of the vertices with probability x^(1/4): a hundredth of the vertices gets 31.6 % of the edges.
        let top: u64 = hits[..hits.len() / 100].iter().sum();
        let share = top * 1000 / edges;
        assert!((300..=340).contains(&share), "{share} per mille");
    }

    #[test]
    fn a_frontier_visits_every_vertex_once() {
        let mut graph = graph(Traversal::Frontier);
        let mut seen = vec![false; graph.vertices as usize];
        let mut left = graph.vertices;
        let mut accesses = Vec::new();
        while left > 0 {
            accesses.clear();
            graph.fill(0, &mut accesses, 4096);
            for access in &accesses {
                let page = Vpn(access.gva().page().0);
                if graph.next.pages.contains(page) {
                    let vertex = (access.gva().0 - graph.next.at(0).0) / WORD;
                    assert!(!std::mem::replace(&mut seen[vertex as usize], true), "vertex {vertex} twice");
                    left -= 1;
                    if left == 0 {
                        break;
                    }
                }
            }
        }
    }
}
