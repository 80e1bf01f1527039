// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shards into which a graph is cut, and where each lies while it is in memory.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Gva, PageCount};

use super::super::adjacency::Adjacency;
use super::super::deals::GROUP;
use super::super::memory::{HEADER, MmapArea, Region};

/// Bytes of a vertex, of an edge, of a rank, and of an edge in the shard's file.
pub(super) const VERTEX: u64 = 64;
pub(super) const EDGE: u64 = 12;
pub(super) const RANK: u64 = 4;
pub(super) const TARGET: u64 = 4;

/// How many in-edges vertices have: as many as they are popular.
pub(super) struct InEdges {
    /// Popularity before each group of vertices, and all of it.
    before: Vec<u64>,
    edges: u64,
}

impl InEdges {
    pub(super) fn new(graph: &Adjacency) -> Self {
        let mut before = vec![0];
        for group in 0..graph.vertices().div_ceil(GROUP) {
            let members = GROUP.min(graph.vertices() - group * GROUP);
            before.push(before[group as usize] + graph.popularity_before(group, members));
        }
        Self { before, edges: graph.edges() }
    }

    fn popularity(&self, graph: &Adjacency, vertex: u64) -> u64 {
        let group = vertex / GROUP;
        let within = if vertex.is_multiple_of(GROUP) { 0 } else { graph.popularity_before(group, vertex % GROUP) };
        self.before[group as usize] + within
    }

    /// In-edges of all vertices before `vertex`.
    pub(super) fn of_those_before(&self, graph: &Adjacency, vertex: u64) -> u64 {
        let all = *self.before.last().expect("all of it is last");
        (u128::from(self.popularity(graph, vertex)) * u128::from(self.edges) / u128::from(all.max(1))) as u64
    }

    /// The first vertex with `edges` in-edges or more before it.
    pub(super) fn vertex_at(&self, graph: &Adjacency, edges: u64) -> u64 {
        let (mut low, mut high) = (0, graph.vertices());
        while low < high {
            let middle = low.midpoint(high);
            if self.of_those_before(graph, middle) < edges {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// A shard in memory.
#[derive(Clone, Copy)]
pub(super) struct Shard {
    /// Its vertices, and the in-edges of all before them.
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) edges_before: u64,
    pub(super) edges: u64,
    pub(super) vertices_at: Region,
    pub(super) edges_at: Region,
    pub(super) file_at: Region,
}

impl Shard {
    pub(super) fn len(&self) -> u64 {
        self.end - self.first
    }

    pub(super) fn vertex(&self, vertex: u64, field: u64) -> Gva {
        self.vertices_at.at(HEADER + (vertex - self.first) * VERTEX + field)
    }

    pub(super) fn edge(&self, edge: u64, field: u64) -> Gva {
        self.edges_at.at(HEADER + (edge - self.edges_before) * EDGE + field)
    }

    /// Pages of `edges` that are used.
    pub(super) fn edge_pages(&self) -> u64 {
        PageCount::covering(HEADER + self.edges * EDGE).0
    }
}

/// The shards of a graph, which have as many edges each.
pub(super) struct Plan {
    pub(super) graph: Adjacency,
    pub(super) in_edges: InEdges,
    pub(super) shards: Vec<Shard>,
}

impl Plan {
    /// The largest graph of whose shards each fits into `room` pages beside the ranks; `graph`
    /// makes one of so many vertices with `degree` edges each. `None` if that is hardly a graph.
    pub(super) fn largest(
        room: u64,
        degree: u64,
        shards: u64,
        area: &MmapArea,
        graph: impl Fn(u64) -> Adjacency,
    ) -> Option<Self> {
        let (mut most, mut left) = (u64::MAX, room);
        loop {
            // As if all shards had as many vertices; the largest one has more.
            let a_vertex = VERTEX + degree * (EDGE + TARGET);
            let next = left.saturating_sub(8) * PAGE_BYTES * shards / ((RANK + 1) * shards + a_vertex);
            let vertices = (next / GROUP * GROUP).min(most);
            if vertices < GROUP * shards {
                return None;
            }
            let mut top = area.clone();
            top.map(PageCount(rank_pages(vertices)));
            let plan = Self::new(graph(vertices), shards, &top);
            let wanted = plan.pages() + rank_pages(vertices);
            if wanted <= room {
                return Some(plan).filter(Self::is_possible);
            }
            (most, left) = (vertices - GROUP, left.saturating_sub(wanted - room));
        }
    }

    fn new(graph: Adjacency, count: u64, top: &MmapArea) -> Self {
        let vertices = graph.vertices();
        let in_edges = InEdges::new(&graph);
        let bounds: Vec<u64> = (0..=count)
            .map(|shard| match shard {
                0 => 0,
                _ if shard == count => vertices,
                _ => in_edges.vertex_at(&graph, graph.edges() * shard / count),
            })
            .collect();
        let shards = bounds.windows(2).map(|bound| {
            let [first, end] = [bound[0], bound[1]];
            let edges_before = in_edges.of_those_before(&graph, first);
            let edges = in_edges.of_those_before(&graph, end) - edges_before;
            let mut area = top.clone();
            let mut map = |bytes| area.map(PageCount::covering(HEADER + bytes));
            let [vertices_at, edges_at] = [(end - first) * VERTEX, 2 * edges * EDGE].map(&mut map);
            let file_at = map(file_bytes(edges, vertices));
            Shard { first, end, edges_before, edges, vertices_at, edges_at, file_at }
        });
        let shards = shards.collect();
        Self { graph, in_edges, shards }
    }

    /// Pages that the largest shard uses.
    pub(super) fn pages(&self) -> u64 {
        let used = |shard: &Shard| shard.vertices_at.pages.len() + shard.edge_pages() + shard.file_at.pages.len();
        self.shards.iter().map(used).max().unwrap_or(0)
    }

    fn is_possible(&self) -> bool {
        self.shards.iter().all(|shard| shard.len() >= GROUP && shard.edges > 0)
    }
}

/// Bytes of a shard's file.
pub(super) const fn file_bytes(edges: u64, sources: u64) -> u64 {
    edges * TARGET + sources
}

/// Pages of the ranks.
pub(super) const fn rank_pages(vertices: u64) -> u64 {
    (HEADER + vertices * RANK).div_ceil(PAGE_BYTES)
}
