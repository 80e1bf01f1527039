// SPDX-License-Identifier: MIT OR Apache-2.0
//! `graph`: algorithms on a graph in compressed sparse rows.
//!
//! Memory, one VMA as neighbouring arrays make it: `offsets` (8 bytes a vertex), `edges` (4 bytes
//! an edge, 8 from 2^32 vertices on), `property` and `next` (`property_bytes` a vertex: ranks,
//! parents, labels; next ranks, queue, bitmap). Who is whose neighbour:
//! [`adjacency`](super::adjacency).
//!
//! The algorithms, by the order in which they visit vertices and what they do at each:
//! - `sweep`: PageRank (pull). By number: offset, then for each edge the edge and the target's
//!   property, then a store to `next`.
//! - `frontier`: breadth-first search. In random order from a queue (in `next`): as above, one
//!   target in so many as a vertex has edges is new and stored to.
//! - `direction_optimising`: the search of Beamer, Asanovic and Patterson (SC 2012) as
//!   `capture/programs/bfs.c` has it, whose counts at scale 22 are its shares: parents reset;
//!   top-down over 1/64 of the edges; three bottom-up passes in which 65 % of the vertices are not
//!   reached yet and look at 0.65 edges and bits of the frontier's bitmap each; a check of every
//!   64th vertex.
//! - `components`: label propagation. By number; an edge whose target has the larger label stores
//!   to it; at the end a vertex follows two labels (pointer jumping).

use nestwalk_mem::{Access, Gva, PageCount, Vpn};
use serde::{Deserialize, Serialize};

use super::adjacency::{self, Adjacency, GraphKind, List};
use super::bijection::{Bijection, mix, scale};
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

/// Bytes of an offset.
const OFFSET: u64 = 8;
/// Edges of a vertex in one operation; a longer list goes on in the next one.
const EDGES_MAX: u64 = 256;
/// Bottom-up passes of a search, the share of vertices not reached yet, edges that a hundred of
/// them look at, and how many of a hundred find a parent (counted in `bfs.c` at scale 22).
const UP_PASSES: u64 = 3;
const UNREACHED_PERMILLE: u64 = 654;
const UP_EDGES_PERMILLE: u64 = 649;
const UP_FOUND_PERMILLE: u64 = 289;
/// Vertices of a hundred that a search expands top-down, at the average degree; and every how
/// manieth is checked.
const DOWN_OF: u64 = 64;
const CHECK_OF: u64 = 64;

/// What is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Traversal {
    /// PageRank: vertices by number.
    Sweep,
    /// Breadth-first search: vertices in random order.
    Frontier,
    /// Breadth-first search with bottom-up passes.
    DirectionOptimising,
    /// Connected components by label propagation.
    Components,
}

/// In which order the graph's memory is first touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Loading {
    /// Array by array, as read from a file.
    Sequential,
    /// The edges in random order, as sorted in memory by their target.
    Scattered,
}

parameters! {
    /// An algorithm on a graph. Local accesses and instructions as measured of the
    /// bundled BFS.
    GraphConfig mixed(124, 4200, 13) {
        /// Edges a vertex, on average: 1 to 4096. Twitter has 35.
        degree: u64 = 35,
        /// Whose degrees the graph has.
        graph: GraphKind = GraphKind::Social,
        /// How near each other the targets of a vertex are, and to it (rho in thousandths): 0,
        /// none, to 900. Slashdot has 200.
        locality: u64 = 100,
        /// What is computed.
        traversal: Traversal = Traversal::Sweep,
        /// Bytes of a vertex' property: 4 or 8.
        property_bytes: u64 = 8,
        /// In which order its memory is first touched.
        loading: Loading = Loading::Sequential,
    }
}

pub(super) struct Graph {
    layout: Layout,
    offsets: Region,
    edges: Region,
    property: Region,
    next: Region,
    vertices: u64,
    adjacency: Adjacency,
    config: GraphConfig,
    edge_bytes: u64,
    seed: u64,
    order: Bijection,
    sweep: Sweep,
    threads: Vec<Thread>,
}

/// A thread, and the vertex that it is at.
struct Thread {
    start: u64,
    end: u64,
    /// Number of the visit, from `start` to `end`.
    visit: u64,
    /// Part of a direction-optimising search.
    stage: u64,
    /// A list that is not done yet.
    rest: Option<List>,
}

impl Graph {
    pub(super) fn new(config: &GraphConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        let degree = config.degree;
        adjacency::check(name, degree, config.locality)?;
        if ![4, 8].contains(&config.property_bytes) {
            return Err(impossible(name, format!("property_bytes = {}: 4 or 8", config.property_bytes)));
        }
        // Each of the four arrays ends within a page.
        let bytes = (layout.left() - 4) * nestwalk_mem::addr::PAGE_BYTES;
        let vertices_with = |edge_bytes| bytes / (OFFSET + 2 * config.property_bytes + edge_bytes * degree);
        let edge_bytes = if vertices_with(4) <= 1 << 32 { 4 } else { 8 };
        let vertices = adjacency::whole_groups(name, vertices_with(edge_bytes), degree, config.threads)?;
        let threads = u64::from(config.threads);
        let mut map = |bytes| layout.map(PageCount::covering(vertices * bytes).0);
        let [offsets, edges] = [OFFSET, edge_bytes * degree].map(&mut map);
        let [property, next] = [config.property_bytes; 2].map(&mut map);
        let thread = |index| {
            let (start, end) = (vertices * index / threads, vertices * (index + 1) / threads);
            // Measuring begins somewhere in the slice, as it would in a long run.
            let visit = start + scale(mix(config.seed ^ mix(index)), end - start);
            Thread { start, end, visit, stage: 1, rest: None }
        };
        // The graph is loaded array by array, and each array of vertices set up by a loop of its
        // own (GAPBS's pr.cc, bfs.cc).
        let sweep = Sweep::new([offsets, edges, property, next].map(|array| vec![array]).into(), config.threads);
        let scattered = config.loading == Loading::Scattered;
        Ok(Self {
            layout,
            offsets,
            edges,
            property,
            next,
            vertices,
            config: config.clone(),
            edge_bytes,
            seed: mix(config.seed),
            adjacency: Adjacency::new(config.graph, vertices, degree, config.locality, mix(config.seed)),
            order: Bijection::new(vertices, mix(config.seed ^ 2)),
            sweep: if scattered { sweep.scattered(1, config.seed) } else { sweep },
            threads: (0..threads).map(thread).collect(),
        })
    }

    #[inline]
    fn property(&self, vertex: u64) -> Gva {
        self.property.at(vertex * self.config.property_bytes)
    }

    #[inline]
    fn next(&self, vertex: u64) -> Gva {
        self.next.at(vertex * self.config.property_bytes)
    }

    fn edge(&self, edge: u64) -> Access {
        Access::load(self.edges.at(edge * self.edge_bytes))
    }

    /// The vertex of a visit. A frontier's number comes from the queue, which is loaded.
    fn vertex(&self, visit: u64, accesses: &mut Vec<Access>) -> u64 {
        match self.config.traversal {
            Traversal::Sweep | Traversal::Components => visit,
            Traversal::Frontier | Traversal::DirectionOptimising => {
                accesses.push(Access::load(self.next(visit)));
                self.order.apply(visit)
            }
        }
    }

    /// The accesses of a list's next edges: `each` gets the target. Whether there are more.
    fn follow(&self, list: &mut List, accesses: &mut Vec<Access>, mut each: impl FnMut(u64, &mut Vec<Access>)) -> bool {
        for _ in 0..EDGES_MAX {
            let Some((edge, target)) = list.next(&self.adjacency) else { break };
            accesses.extend([self.edge(edge), Access::load(self.property(target))]);
            each(target, accesses);
        }
        !list.is_done()
    }

    /// A visit, or what is left of a long one.
    fn visit(&self, thread: &mut Thread, accesses: &mut Vec<Access>) {
        let mut list = thread.rest.take().unwrap_or_else(|| {
            let vertex = self.vertex(thread.visit, accesses);
            accesses.push(Access::load(self.offsets.at(vertex * OFFSET)));
            self.adjacency.list(vertex)
        });
        let vertex = list.vertex;
        let one_of_degree = |target: u64| mix(self.seed ^ vertex ^ target << 32).is_multiple_of(self.config.degree);
        let more = match self.config.traversal {
            Traversal::Sweep => self.follow(&mut list, accesses, |_, _| {}),
            _ => self.follow(&mut list, accesses, |target, accesses| {
                if one_of_degree(target) {
                    accesses.push(Access::store(self.property(target)));
                }
            }),
        };
        if more {
            thread.rest = Some(list);
            return;
        }
        if self.config.traversal == Traversal::Components {
            let label = scale(mix(self.seed ^ 0x1abe1 ^ vertex), self.vertices);
            accesses.extend([vertex, label].map(|label| Access::load(self.property(label))));
            accesses.push(Access::store(self.property(vertex)));
        } else if self.config.traversal != Traversal::DirectionOptimising {
            accesses.push(Access::store(self.next(vertex)));
        }
        thread.visit += 1;
    }

    /// A vertex of a bottom-up pass.
    fn look_up(&self, thread: &mut Thread, accesses: &mut Vec<Access>) {
        let vertex = thread.visit;
        thread.visit += 1;
        accesses.push(Access::load(self.property(vertex)));
        let draw = mix(self.seed ^ vertex ^ thread.stage << 56);
        if draw % 1000 >= UNREACHED_PERMILLE {
            return;
        }
        accesses.extend(
            [0, 1].map(|which| Access::load(self.offsets.at((vertex + which).min(self.vertices - 1) * OFFSET))),
        );
        if draw >> 32 & 1023 < UP_EDGES_PERMILLE * 1024 / 1000
            && let Some((edge, target)) = self.adjacency.list(vertex).next(&self.adjacency)
        {
            accesses.push(self.edge(edge));
            // The frontier's bitmap: a bit a vertex.
            accesses.push(Access::load(self.next.at(target / 64 * 8)));
        }
        if draw >> 44 & 1023 < UP_FOUND_PERMILLE * 1024 / 1000 {
            accesses.push(Access::store(self.property(vertex)));
            accesses.push(Access::store(self.next.at(vertex / 64 * 8)));
        }
    }

    /// One step of a direction-optimising search. Stage 0 resets, 1 goes down, the next ones up,
    /// the last one checks.
    fn search(&self, thread: &mut Thread, accesses: &mut Vec<Access>) {
        const CHECK: u64 = 2 + UP_PASSES;
        let length = thread.end - thread.start;
        let end = if thread.stage == 1 { thread.start + (length / DOWN_OF).max(1) } else { thread.end };
        if thread.visit >= end && thread.rest.is_none() {
            thread.visit = thread.start;
            thread.stage = (thread.stage + 1) % (CHECK + 1);
        }
        match thread.stage {
            0 => {
                accesses.push(Access::store(self.property(thread.visit)));
                thread.visit += 8 / self.config.property_bytes;
            }
            1 => self.visit(thread, accesses),
            CHECK => {
                let vertex = thread.visit;
                accesses.push(Access::load(self.property(vertex)));
                if thread.rest.is_some() || vertex.is_multiple_of(CHECK_OF) {
                    let mut list = thread.rest.take().unwrap_or_else(|| self.adjacency.list(vertex));
                    if self.follow(&mut list, accesses, |_, _| {}) {
                        thread.rest = Some(list);
                        return;
                    }
                }
                thread.visit += 1;
            }
            _ => self.look_up(thread, accesses),
        }
    }
}

impl Pattern for Graph {
    const NAME: &'static str = "graph";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, index: usize, accesses: &mut Vec<Access>) {
        let mut threads = std::mem::take(&mut self.threads);
        let thread = &mut threads[index];
        if self.config.traversal == Traversal::DirectionOptimising {
            self.search(thread, accesses);
        } else {
            if thread.visit >= thread.end {
                thread.visit = thread.start;
            }
            self.visit(thread, accesses);
        }
        self.threads = threads;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(traversal: Traversal) -> Graph {
        Graph::new(&GraphConfig { footprint: PageCount(16_384), traversal, ..GraphConfig::default() }).unwrap()
    }

    #[test]
    fn a_frontier_visits_every_vertex_once() {
        let mut graph = graph(Traversal::Frontier);
        let mut seen = vec![false; graph.vertices as usize];
        let mut left = graph.vertices;
        let mut accesses = Vec::new();
        while left > 0 {
            accesses.clear();
            graph.operate(0, &mut accesses);
            for access in accesses.iter().filter(|access| access.is_store()) {
                let page = Vpn(access.gva().page().0);
                if graph.next.pages.contains(page) {
                    let vertex = (access.gva().0 - graph.next.at(0).0) / graph.config.property_bytes;
                    assert!(!std::mem::replace(&mut seen[vertex as usize], true), "vertex {vertex} twice");
                    left -= 1;
                }
            }
        }
    }

    #[test]
    fn a_direction_optimising_search_goes_through_all_its_stages() {
        let mut graph = graph(Traversal::DirectionOptimising);
        let mut stages = std::collections::BTreeSet::new();
        let mut accesses = Vec::new();
        while stages.len() < 6 {
            graph.operate(0, &mut accesses);
            stages.insert(graph.threads[0].stage);
            assert!(accesses.len() < 50_000_000, "{stages:?}");
        }
    }
}
