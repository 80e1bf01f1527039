// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two passes over a shard.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, Dependence, Gva, Vpn};

use super::super::adjacency::Adjacency;
use super::super::bijection::mix;
use super::super::layout::Layout;
use super::super::memory::{HEADER, Region};
use super::super::windows::{WHOLE, part, share};
use super::plan::{EDGE, InEdges, RANK, Shard, TARGET, file_bytes};

/// Fields of a vertex.
const IN_COUNT: u64 = 8;
const OUT_COUNT: u64 = 12;
const NUMBER: u64 = 16;
const IN_EDGES: u64 = 24;
const DATA: u64 = 48;
const SCHEDULED: u64 = 56;
const PARALLEL: u64 = 57;
/// Accesses of the scatter for an edge and for a source, and of the gather for an edge and for a
/// vertex. Those of the scatter to fields of vertices and to edges, and those of the gather, are
/// the source's. What g++ 12 makes of it was counted in captures (262,144 vertices, 9,121,407
/// edges): an iteration has 26.5 accesses an edge, and 20.4 or less if no edge is summed up. So a
/// fourth of all are to locals, and the scatter has four more for an edge, to what its threads
/// share ([`SHARED`]).
const SCATTER_EDGE: u64 = 14;
const SCATTER_SOURCE: u64 = 1;
const GATHER_EDGE: u64 = 5;
const GATHER_VERTEX: u64 = 7;
/// Variables on the stack of the thread that began the scatter, which all threads read.
const SHARED: u64 = 4;
/// Edges of a part of the scatter (`index_interval_edges`).
pub(super) const PART_EDGES: u64 = 1 << 20;
/// Sources of an operation of the scatter.
pub(super) const SOURCES: u64 = 8;
/// One of the two passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Pass {
    Scatter,
    Gather,
}

/// Where a thread is.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    /// The next source, or vertex, and those between which it goes round.
    pub(super) next: u64,
    pub(super) first: u64,
    pub(super) end: u64,
    /// Byte of the file.
    pub(super) byte: u64,
    /// Edge of a vertex.
    pub(super) edge: u64,
}

impl Cursor {
    /// Goes on to the next source or vertex.
    fn advance(&mut self) {
        self.next = if self.next + 1 == self.end { self.first } else { self.next + 1 };
    }
}

/// The graph, and where threads are in a pass over the shard in memory.
pub(super) struct Graph {
    pub(super) layout: Layout,
    pub(super) graph: Adjacency,
    pub(super) in_edges: InEdges,
    pub(super) ranks: Region,
    pub(super) shard: Shard,
    pub(super) pass: Pass,
    pub(super) cursors: Vec<Cursor>,
    /// How an edge waits for its place.
    pub(super) counting: Dependence,
    /// Whether the gather reads edges.
    pub(super) sums: bool,
}

impl Graph {
    /// The threads are where they are when that share of the pass is done.
    pub(super) fn seek(&mut self, pass: Pass, done: u64) {
        self.pass = pass;
        let threads = self.cursors.len() as u64;
        let sources = self.graph.vertices();
        // A part of the file and the threads' next one.
        let parts = (self.shard.edges.div_ceil(PART_EDGES)).max(threads);
        let rounds = parts.div_ceil(threads);
        let file_bytes = self.file_bytes();
        for (thread, cursor) in (0..).zip(&mut self.cursors) {
            let (first, end, within) = match pass {
                Pass::Scatter => {
                    let own = (part(rounds, done) * threads + thread).min(parts - 1);
                    (sources * own / parts, sources * (own + 1) / parts, rounds * done % WHOLE)
                }
                Pass::Gather => {
                    let bound = |thread| self.shard.first + self.shard.len() * thread / threads;
                    (bound(thread), bound(thread + 1), done)
                }
            };
            let next = first + part(end - first, within);
            *cursor = Cursor { next, first, end, byte: part(file_bytes, share(next, sources)), edge: 0 };
        }
    }

    /// Accesses of a pass, without those to locals.
    pub(super) fn data_accesses(&self, pass: Pass) -> u64 {
        let Shard { edges, .. } = self.shard;
        match pass {
            Pass::Scatter => edges * SCATTER_EDGE + self.graph.vertices() * SCATTER_SOURCE,
            Pass::Gather => edges * u64::from(self.sums) * GATHER_EDGE + self.shard.len() * GATHER_VERTEX,
        }
    }

    /// In-edges of a vertex: the first one's number, and the one past the last.
    pub(super) fn edges_of(&self, vertex: u64) -> (u64, u64) {
        let before = |vertex| self.in_edges.of_those_before(&self.graph, vertex);
        (before(vertex), before(vertex + 1))
    }

    fn file_bytes(&self) -> u64 {
        file_bytes(self.shard.edges, self.graph.vertices())
    }

    fn file(&self, byte: u64) -> Gva {
        self.shard.file_at.at(HEADER + byte.min(self.file_bytes() - TARGET))
    }

    /// The edges of some sources.
    fn scatter(&self, cursor: &mut Cursor, accesses: &mut Vec<Access>) {
        for _ in 0..SOURCES {
            let source = cursor.next;
            accesses.push(Access::load(self.file(cursor.byte)));
            cursor.byte += 1;
            let when = share(source, self.graph.vertices());
            let mut list = self.graph.list(source);
            while let Some((_, target)) = list.next_within(&self.graph, self.shard.first, self.shard.end) {
                self.write_edge(target, when, cursor.byte, accesses);
                cursor.byte += TARGET;
            }
            cursor.advance();
        }
    }

    /// An edge is written behind those that its target has by then (`add_inedge`).
    fn write_edge(&self, target: u64, when: u64, byte: u64, accesses: &mut Vec<Access>) {
        let (first, end) = self.edges_of(target);
        // A vertex that is too unpopular for an edge has none of its own.
        let edge = (first + part(end - first, when)).min(self.shard.edges_before + self.shard.edges - 1);
        let field = |field| self.shard.vertex(target, field);
        let shared = self.layout.locals(0);
        accesses.extend((0..SHARED).map(|variable| Access::load(shared.at(variable * 8))));
        accesses.extend([
            Access::load(self.file(byte)).depending(Dependence::First),
            Access::load(field(SCHEDULED)).depending(Dependence::After),
            // The place of the edge.
            Access::load(field(IN_COUNT)).depending(self.counting),
            Access::store(field(IN_COUNT)),
            Access::load(field(IN_EDGES)).depending(Dependence::First),
            Access::store(self.shard.edge(edge, 0)).depending(Dependence::After),
            Access::store(self.shard.edge(edge, 4)).depending(Dependence::After),
            Access::load(field(NUMBER)),
            Access::load(field(PARALLEL)),
            Access::store(field(PARALLEL)),
        ]);
    }

    /// A vertex, or some of its edges (`PagerankProgramInmem::update`).
    fn gather(&self, cursor: &mut Cursor, accesses: &mut Vec<Access>) {
        const EDGES: u64 = 256;
        let vertex = cursor.next;
        let field = |field| self.shard.vertex(vertex, field);
        if cursor.edge == 0 {
            accesses.extend([
                Access::load(field(PARALLEL)),
                Access::store(field(DATA)),
                Access::load(field(SCHEDULED)),
            ]);
        }
        let (first, end) = if self.sums { self.edges_of(vertex) } else { (0, 0) };
        let some = first + cursor.edge..(first + cursor.edge + EDGES).min(end);
        for edge in some.clone() {
            // Sources ascend: this edge's is where that share of all edges come from.
            let share_of = share(2 * (edge - first) + 1, 2 * (end - first)) + (mix(edge) & 0xffff);
            let source = self.graph.owner(part(self.graph.edges(), share_of.min(WHOLE - 1)));
            accesses.extend([
                Access::load(field(IN_COUNT)),
                Access::load(field(IN_COUNT)),
                Access::load(field(IN_EDGES)).depending(Dependence::First),
                Access::load(self.shard.edge(edge, 0)).depending(Dependence::After),
                Access::load(self.rank(source)).depending(Dependence::After),
            ]);
        }
        cursor.edge += some.end.saturating_sub(some.start);
        if some.end < end {
            return;
        }
        accesses.extend([
            Access::load(field(IN_COUNT)),
            Access::load(field(OUT_COUNT)),
            Access::load(field(NUMBER)),
            Access::store(self.rank(vertex)),
        ]);
        cursor.edge = 0;
        cursor.advance();
    }

    fn rank(&self, vertex: u64) -> Gva {
        self.ranks.at(HEADER + vertex * RANK)
    }

    /// The pages of `edges`, in the order in which the scatter touches them, with its share that is
    /// done by then.
    pub(super) fn first_touches(&self) -> Vec<(u64, Vpn)> {
        let start = self.shard.edges_at.pages.start;
        let mut touches: Vec<_> = (0..).zip(self.first_shares()).map(|(page, when)| (when, start + page)).collect();
        touches.sort_unstable();
        touches
    }

    /// For each page of `edges`, what share of the scatter is done when it is touched.
    pub(super) fn first_shares(&self) -> Vec<u64> {
        let shard = &self.shard;
        let page_of = |edge: u64| (HEADER + (edge - shard.edges_before) * EDGE) / PAGE_BYTES;
        let mut when = vec![WHOLE - 1; shard.edge_pages() as usize];
        let mut end = shard.edges_before;
        for vertex in shard.first..shard.end {
            let first = end;
            end = self.in_edges.of_those_before(&self.graph, vertex + 1);
            let mut edge = first;
            while edge < end {
                let page = page_of(edge);
                // Its sources come evenly: so much of the pass is done when it has this edge.
                let at = share(2 * (edge - first), 2 * (end - first)) + (mix(edge) >> 32) / (end - first);
                let known = &mut when[page as usize];
                *known = (*known).min(at);
                edge = ((page + 1) * PAGE_BYTES - HEADER).div_ceil(EDGE) + shard.edges_before;
            }
        }
        // The first page has the header that `malloc` writes.
        when[0] = 0;
        when
    }

    /// The next operation of a thread.
    pub(super) fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let mut cursor = self.cursors[thread];
        match self.pass {
            Pass::Scatter => self.scatter(&mut cursor, accesses),
            Pass::Gather => self.gather(&mut cursor, accesses),
        }
        self.cursors[thread] = cursor;
    }
}
