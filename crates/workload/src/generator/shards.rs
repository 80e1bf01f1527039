// SPDX-License-Identifier: MIT OR Apache-2.0
//! `shards`: PageRank of `GraphChi` (commit 6461c8, `example_apps/pagerank.cpp`), as it runs where
//! the ranks of all vertices fit into memory: edges have no data, out-edges are not loaded.
//!
//! The graph lies in files, `shards` of them: the in-edges of vertices that are neighbours, as many
//! for each, sorted by source. Shard after shard comes into memory, and all of it is given back
//! before the next one (`graphchi_engine::run`, with glibc's `malloc`, which maps and unmaps what
//! is so large):
//! - `vertices`, 64 bytes each (`internal_graphchi_vertex`): set up in order by one thread;
//! - `edges`, 12 bytes each (`graphchi_edge`, packed). What is allocated has room for the
//!   out-edges, too, which nothing touches: twice as much;
//! - the shard's file, 4 bytes an edge and a byte a source: read by all threads at once, each a
//!   part (`memory_shard::load`).
//!
//! Then two passes (`threads` threads each):
//! - *scatter* (`memory_shard::load_vertices`), in parts of 2^20 edges, one a thread: source by
//!   source, each edge is written behind those that its target has. So the pages of `edges` are
//!   touched first in no order, a popular vertex' one after the other, until the end;
//! - *gather* (`PagerankProgramInmem::update`), a part of the vertices a thread: vertex by vertex,
//!   the ranks of its edges' sources (`ranks`, 4 bytes a vertex, which stay) are summed up. When a
//!   shard comes for the first time its edges are not read: ranks get their first value.
//!
//! A shard takes billions of accesses, so `windows` of them are simulated, evenly over both passes
//! from a random place on; between them pages are touched as the pass would have touched them, and the instructions of what
//! is left out make time go on. Each window warms up for its part of `warm_accesses`; if that is
//! left out, for as many accesses as it measures, and 2^19 at least. What files cost to read is the kernel's; vertices' degrees and
//! values, which it maps from files (`mmap = 1`), are left out.

use std::collections::VecDeque;

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, Gva, PageCount, Vpn, VpnRange};

use super::adjacency::{self, Adjacency, GraphKind, List};
use super::bijection::mix;
use super::config::{Common, impossible, parameters};
use super::deals::GROUP;
use super::layout::Layout;
use super::memory::{MmapArea, Region};
use super::pattern::{Mixed, Pattern};
use super::program::Program;
use crate::stream::{Batch, MemoryEvent, Phase, Step, ThreadId, Workload, WorkloadError, WorkloadFacts};

/// Bytes of a vertex, of an edge, of a rank, and of an edge in the shard's file.
const VERTEX: u64 = 64;
const EDGE: u64 = 12;
const RANK: u64 = 4;
const TARGET: u64 = 4;
/// Where `malloc` begins what it maps.
const HEADER: u64 = 16;
/// Fields of a vertex.
const IN_COUNT: u64 = 8;
const OUT_COUNT: u64 = 12;
const NUMBER: u64 = 16;
const IN_EDGES: u64 = 24;
const DATA: u64 = 48;
const SCHEDULED: u64 = 56;
const PARALLEL: u64 = 57;
/// Accesses of the scatter for an edge and for a source, and of the gather for an edge and for a
/// vertex. Those of the scatter to fields of vertices and to edges, and those of the gather, are the
/// source's. What g++ 12 makes of it was counted in captures (262,144 vertices, 9,121,407 edges): an
/// iteration has 26.5 accesses an edge, and 20.4 or less if no edge is summed up. So a fourth of all
/// are to locals, and the scatter has four more for an edge, to what its threads share ([`SHARED`]).
const SCATTER_EDGE: u64 = 14;
const SCATTER_SOURCE: u64 = 1;
const GATHER_EDGE: u64 = 5;
const GATHER_VERTEX: u64 = 7;
/// Variables on the stack of the thread that began the scatter, which all threads read.
const SHARED: u64 = 4;
/// Accesses by which a vertex is set up (a guess of the compiled code: its fields are written twice,
/// and its degree is read).
const SETUP_VERTEX: u64 = 20;
/// Edges of a part of the scatter (`index_interval_edges`).
const PART_EDGES: u64 = 1 << 20;
/// Steps of a pass in which pages are touched.
const TICKS: u64 = 256;
/// Pages that a thread touches before the next one's turn.
const TURN: usize = 32;
/// Accesses that a thread of several makes before the next one's turn.
const ACCESS_TURN: usize = 4096;
/// Sources of an operation of the scatter.
const SOURCES: u64 = 8;
/// A whole pass, as a share of it is given.
const WHOLE: u64 = 1 << 32;
/// Accesses for which a window warms up, at the least.
const WARM_MIN: u64 = 1 << 19;
/// No program has more of either.
const SHARDS_MAX: u64 = 1000;

parameters! {
    /// PageRank of `GraphChi` over shards that come into memory one after the other.
    ShardsConfig mixed(250, 2735, 13) {
        /// Edges a vertex, on average: 1 to 4096. Twitter has 35.
        degree: u64 = 35,
        /// Whose degrees the graph has.
        graph: GraphKind = GraphKind::Social,
        /// How near each other the targets of a vertex are, and to it (rho in thousandths): 0,
        /// none, to 900. Slashdot has 200.
        locality: u64 = 100,
        /// Parts into which the graph is cut: 1 to 1000.
        shards: u64 = 7,
        /// Shards that come into memory before the run ends: 1 to 1000.
        loads: u64 = 21,
        /// Windows of a shard that are simulated: 2 to 1000.
        windows: u64 = 4,
    }
}

/// `count * share / WHOLE`.
const fn part(count: u64, share: u64) -> u64 {
    ((count as u128 * share as u128) >> 32) as u64
}

/// `of / whole` as a share.
const fn share(of: u64, whole: u64) -> u64 {
    (((of as u128) << 32) / whole as u128) as u64
}

/// How many in-edges vertices have: as many as they are popular.
struct InEdges {
    /// Popularity before each group of vertices, and all of it.
    before: Vec<u64>,
    edges: u64,
}

impl InEdges {
    fn new(graph: &Adjacency) -> Self {
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
    fn of_those_before(&self, graph: &Adjacency, vertex: u64) -> u64 {
        let all = *self.before.last().expect("all of it is last");
        (u128::from(self.popularity(graph, vertex)) * u128::from(self.edges) / u128::from(all.max(1))) as u64
    }

    /// The first vertex with `edges` in-edges or more before it.
    fn vertex_at(&self, graph: &Adjacency, edges: u64) -> u64 {
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
struct Shard {
    /// Its vertices, and the in-edges of all before them.
    first: u64,
    end: u64,
    edges_before: u64,
    edges: u64,
    vertices_at: Region,
    edges_at: Region,
    file_at: Region,
}

impl Shard {
    fn len(&self) -> u64 {
        self.end - self.first
    }

    fn vertex(&self, vertex: u64, field: u64) -> Gva {
        self.vertices_at.at(HEADER + (vertex - self.first) * VERTEX + field)
    }

    fn edge(&self, edge: u64, field: u64) -> Gva {
        self.edges_at.at(HEADER + (edge - self.edges_before) * EDGE + field)
    }

    /// Its mappings, in the order in which they are made.
    fn regions(&self) -> [Region; 3] {
        [self.vertices_at, self.edges_at, self.file_at]
    }

    /// Pages of `edges` that are used.
    fn edge_pages(&self) -> u64 {
        PageCount::covering(HEADER + self.edges * EDGE).0
    }
}

/// One of the two passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pass {
    Scatter,
    Gather,
}

/// Where a thread is.
#[derive(Clone, Copy, Default)]
struct Cursor {
    /// The next source, or vertex, and those between which it goes round.
    next: u64,
    first: u64,
    end: u64,
    /// Byte of the file.
    byte: u64,
    /// Edge of a vertex.
    edge: u64,
}

/// See the [module's documentation](self).
struct Graph {
    layout: Layout,
    graph: Adjacency,
    in_edges: InEdges,
    ranks: Region,
    shard: Shard,
    pass: Pass,
    cursors: Vec<Cursor>,
    file_bytes: u64,
    /// Whether the gather reads edges.
    sums: bool,
}

impl Graph {
    /// The threads are where they are when that share of the pass is done.
    fn seek(&mut self, pass: Pass, done: u64) {
        self.pass = pass;
        let threads = self.cursors.len() as u64;
        let sources = self.graph.vertices();
        // A part of the file and the threads' next one.
        let parts = (self.shard.edges.div_ceil(PART_EDGES)).max(threads);
        let rounds = parts.div_ceil(threads);
        for (thread, cursor) in (0..).zip(&mut self.cursors) {
            let (first, end) = match pass {
                Pass::Scatter => {
                    let round = part(rounds, done);
                    let own = (round * threads + thread).min(parts - 1);
                    (sources * own / parts, sources * (own + 1) / parts)
                }
                Pass::Gather => {
                    let bound = |thread| self.shard.first + self.shard.len() * thread / threads;
                    (bound(thread), bound(thread + 1))
                }
            };
            let within = if pass == Pass::Scatter { (rounds * done) % WHOLE } else { done };
            let next = first + part(end - first, within);
            let byte = part(self.file_bytes, share(next.min(sources), sources));
            *cursor = Cursor { next, first, end: end.max(first + 1), byte, edge: 0 };
        }
    }

    /// Accesses of a pass, without those to locals.
    fn data_accesses(&self, pass: Pass) -> u64 {
        let Shard { edges, .. } = self.shard;
        match pass {
            Pass::Scatter => edges * SCATTER_EDGE + self.graph.vertices() * SCATTER_SOURCE,
            Pass::Gather => edges * u64::from(self.sums) * GATHER_EDGE + self.shard.len() * GATHER_VERTEX,
        }
    }

    /// In-edges of a vertex: the first one's number, and the one past the last.
    fn edges_of(&self, vertex: u64) -> (u64, u64) {
        let before = |vertex| self.in_edges.of_those_before(&self.graph, vertex);
        (before(vertex), before(vertex + 1))
    }

    fn file(&self, byte: u64) -> Gva {
        self.shard.file_at.at(HEADER + byte.min(self.file_bytes - TARGET))
    }

    /// The edges of some sources.
    fn scatter(&self, cursor: &mut Cursor, accesses: &mut Vec<Access>) {
        for _ in 0..SOURCES {
            let source = cursor.next;
            accesses.push(Access::load(self.file(cursor.byte)));
            cursor.byte += 1;
            let when = share(source, self.graph.vertices());
            let mut list: List = self.graph.list(source);
            while let Some((_, target)) = list.next(&self.graph) {
                if (self.shard.first..self.shard.end).contains(&target) {
                    self.write_edge(target, when, cursor.byte, accesses);
                    cursor.byte += TARGET;
                }
            }
            cursor.next = if source + 1 >= cursor.end { cursor.first } else { source + 1 };
        }
    }

    /// An edge is written behind those that its target has by then (`add_inedge`).
    fn write_edge(&self, target: u64, when: u64, byte: u64, accesses: &mut Vec<Access>) {
        let (first, end) = self.edges_of(target);
        let edge = (first + part(end - first, when)).min(self.shard.edges_before + self.shard.edges - 1);
        let field = |field| self.shard.vertex(target, field);
        let shared = self.layout.locals(0);
        accesses.extend((0..SHARED).map(|variable| Access::load(shared.at(variable * 8))));
        accesses.extend([
            Access::load(self.file(byte)),
            Access::load(field(SCHEDULED)),
            Access::load(field(IN_COUNT)),
            Access::store(field(IN_COUNT)),
            Access::load(field(IN_EDGES)),
            Access::store(self.shard.edge(edge, 0)),
            Access::store(self.shard.edge(edge, 4)),
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
                Access::load(field(IN_EDGES)),
                Access::load(self.shard.edge(edge.min(self.shard.edges_before + self.shard.edges - 1), 0)),
                Access::load(self.rank(source)),
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
        cursor.next = if vertex + 1 >= cursor.end { cursor.first } else { vertex + 1 };
    }

    fn rank(&self, vertex: u64) -> Gva {
        self.ranks.at(HEADER + vertex * RANK)
    }

    /// Pages of `edges`, and what share of the scatter is done when each is touched.
    fn first_touches(&self) -> Vec<(u64, u64)> {
        let shard = &self.shard;
        let page_of = |edge: u64| (HEADER + (edge - shard.edges_before) * EDGE) / PAGE_BYTES;
        let mut when = vec![WHOLE - 1; shard.edge_pages() as usize];
        let mut end = shard.edges_before;
        for vertex in shard.first..shard.end {
            let first = end;
            end = self.in_edges.of_those_before(&self.graph, vertex + 1).min(shard.edges_before + shard.edges);
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
        (0..).zip(when).collect()
    }
}

impl Pattern for Graph {
    const NAME: &'static str = "shards";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, _thread: u16, _touches: &mut Vec<(Vpn, bool)>, _most: usize) {}

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let mut cursor = self.cursors[thread];
        match self.pass {
            Pass::Scatter => self.scatter(&mut cursor, accesses),
            Pass::Gather => self.gather(&mut cursor, accesses),
        }
        self.cursors[thread] = cursor;
    }
}

/// What comes next of a shard.
enum Item {
    Event(MemoryEvent),
    /// First touches by a thread, and instructions that go with them.
    Touches(u16, Vec<(Vpn, bool)>, u64),
    /// A window, when that share of a pass is done, and the accesses of the shard before it.
    Window(Pass, u64, u64),
}

/// What is left of a window.
#[derive(Clone, Copy)]
struct Window {
    phase: Phase,
    begun: bool,
    left: u64,
}

/// The program with its windows.
pub(super) struct Shards {
    config: ShardsConfig,
    common: Common,
    program: Mixed<Graph>,
    shards: Vec<Shard>,
    begun: bool,
    /// Shards that have come into memory, and windows that are done.
    loads: u64,
    windows: u64,
    items: VecDeque<Item>,
    window: Option<Window>,
    thread: u16,
    /// Accesses of the program before the shard in memory, and until now.
    before: u64,
    accesses: u64,
    footprint: PageCount,
}

/// The shards of a graph, which have as many edges each.
struct Plan {
    graph: Adjacency,
    in_edges: InEdges,
    shards: Vec<Shard>,
}

impl Plan {
    fn new(config: &ShardsConfig, vertices: u64, top: &MmapArea) -> Self {
        let graph = Adjacency::new(config.graph, vertices, config.degree, config.locality, mix(config.seed));
        let in_edges = InEdges::new(&graph);
        let bounds: Vec<u64> = (0..=config.shards)
            .map(|shard| match shard {
                0 => 0,
                _ if shard == config.shards => vertices,
                _ => in_edges.vertex_at(&graph, graph.edges() * shard / config.shards),
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
    fn pages(&self) -> u64 {
        let used = |shard: &Shard| shard.vertices_at.pages.len() + shard.edge_pages() + shard.file_at.pages.len();
        self.shards.iter().map(used).max().unwrap_or(0)
    }

    fn is_possible(&self) -> bool {
        self.shards.iter().all(|shard| shard.len() >= GROUP && shard.edges > 0)
    }
}

const fn file_bytes(edges: u64, sources: u64) -> u64 {
    edges * TARGET + sources
}

const fn rank_pages(vertices: u64) -> u64 {
    (HEADER + vertices * RANK).div_ceil(PAGE_BYTES)
}

impl Shards {
    pub(super) fn new(config: &ShardsConfig) -> Result<Self, WorkloadError> {
        let name = Graph::NAME;
        let (common, mixture) = (config.common(), config.mixture());
        let mut layout = Layout::new(name, common, mixture)?;
        adjacency::check(name, config.degree, config.locality)?;
        for (key, value, least) in
            [("shards", config.shards, 1), ("loads", config.loads, 1), ("windows", config.windows, 2)]
        {
            if !(least..=SHARDS_MAX).contains(&value) {
                return Err(impossible(name, format!("{key} = {value}: from {least} to {SHARDS_MAX}")));
            }
        }
        let left = layout.left();
        let (mut vertices, mut least_room) = (0, left);
        let plan = loop {
            // As if all shards had as many vertices; the largest one has more.
            let edges = config.degree * (EDGE + TARGET);
            let eight = 8 * (least_room.saturating_sub(8) * PAGE_BYTES);
            let an_eighth = 8 * (RANK + 1) + 8 * (VERTEX + edges) / config.shards;
            let next = eight / an_eighth / GROUP * GROUP;
            if next < GROUP * config.shards || next == vertices {
                break None;
            }
            vertices = next;
            let mut area = layout.rest();
            area.map(PageCount(rank_pages(vertices)));
            let plan = Plan::new(config, vertices, &area);
            let wanted = plan.pages() + rank_pages(vertices);
            if wanted <= left {
                break Some(plan);
            }
            least_room -= wanted - left;
        };
        let Some(plan) = plan.filter(Plan::is_possible) else {
            let what = format!("footprint: too small for {} shards of {GROUP} vertices of degree {}", config.shards, config.degree);
            return Err(impossible(name, what));
        };
        let footprint = PageCount(layout.pages().0 + rank_pages(vertices) + plan.pages());
        let ranks = layout.map(rank_pages(vertices));
        let shard = plan.shards[0];
        let cursors = vec![Cursor::default(); usize::from(common.threads)];
        let Plan { graph, in_edges, shards } = plan;
        let file_bytes = file_bytes(shard.edges, vertices);
        let graph = Graph { layout, graph, in_edges, ranks, shard, pass: Pass::Scatter, cursors, file_bytes, sums: true };
        Ok(Self {
            config: config.clone(),
            common,
            program: Mixed::new(common, mixture, graph),
            shards,
            begun: false,
            loads: 0,
            windows: 0,
            items: VecDeque::new(),
            window: None,
            thread: 0,
            before: 0,
            accesses: 0,
            footprint,
        })
    }

    /// Accesses that come with so many to data.
    fn with_locals(&self, data: u64) -> u64 {
        data * 1000 / (1000 - u64::from(self.config.local_permille))
    }

    fn instructions(&self, data: u64) -> u64 {
        self.with_locals(data) * u64::from(self.config.instructions_per_kiloaccess) / 1000
    }

    fn push_event(&mut self, event: MemoryEvent) {
        self.items.push_back(Item::Event(event));
    }

    fn push_map(&mut self, range: VpnRange) {
        self.push_event(MemoryEvent::Mmap { range, writable: true, anonymous: true });
    }

    /// Pages that one thread touches, with the instructions of so many accesses to data.
    fn push_touches(&mut self, thread: u16, pages: impl IntoIterator<Item = Vpn>, data: u64) {
        let touches: Vec<(Vpn, bool)> = pages.into_iter().map(|page| (page, true)).collect();
        let instructions = self.instructions(data);
        if touches.is_empty() && instructions == 0 {
            return;
        }
        self.items.push_back(Item::Touches(thread, touches, instructions));
    }

    /// What the program does before its first shard: its ranks are set.
    fn begin(&mut self) {
        self.begun = true;
        let graph = self.program.pattern();
        let ranks = graph.ranks.pages;
        let regions = graph.layout.regions();
        let stacks: Vec<_> = (0..self.common.threads)
            .map(|thread| {
                let mut touches = Vec::new();
                self.program.pattern().layout.touch(thread, &mut touches);
                (thread, touches)
            })
            .collect();
        regions.iter().for_each(|region| self.push_map(region.pages));
        for (thread, touches) in stacks {
            self.push_touches(thread, touches.into_iter().map(|(page, _)| page), 0);
        }
        self.push_pages(&[0], ranks, 0);
    }

    /// Pages that threads touch one after the other, each its part of them in order.
    fn push_pages(&mut self, threads: &[u16], pages: VpnRange, data: u64) {
        let (count, most) = (threads.len() as u64, if threads.len() == 1 { Batch::ACCESSES_MAX } else { TURN } as u64);
        let bound = |thread: u64| pages.len() * thread / count;
        let longest = (0..count).map(|thread| bound(thread + 1) - bound(thread)).max().unwrap_or(0);
        for turn in 0..longest.div_ceil(most) {
            for (place, &thread) in (0..).zip(threads) {
                let first = bound(place) + turn * most;
                let some = first..(first + most).min(bound(place + 1));
                if !some.is_empty() {
                    let data = data * (some.end - some.start) / pages.len();
                    self.push_touches(thread, some.map(|page| pages.start + page), data);
                }
            }
        }
    }

    /// All that happens with the next shard.
    fn load(&mut self) {
        let number = (self.loads % self.config.shards) as usize;
        let old = self.program.pattern().shard;
        let shard = self.shards[number];
        if self.loads > 0 {
            for region in [old.edges_at, old.vertices_at, old.file_at] {
                self.push_event(MemoryEvent::Munmap { range: region.pages });
            }
            self.before += self.shard_accesses();
        }
        self.loads += 1;
        let is_again = self.loads > self.config.shards;
        let graph = self.program.restart();
        graph.shard = shard;
        graph.sums = is_again;
        graph.file_bytes = file_bytes(shard.edges, graph.graph.vertices());
        let threads: Vec<u16> = (0..self.common.threads).collect();
        let [vertices, edges, file] = shard.regions().map(|region| region.pages);
        self.push_map(vertices);
        self.push_pages(&[0], vertices, shard.len() * SETUP_VERTEX);
        self.push_map(edges);
        let pages = PageCount(file.len());
        self.push_event(MemoryEvent::ReadFile { file: mix(number as u64 ^ 0x73_6861_7264), pages });
        self.push_map(file);
        self.push_pages(&threads, file, 0);
        self.push_passes();
    }

    /// First touches of edges, time that goes by, and windows, in order.
    fn push_passes(&mut self) {
        let graph = self.program.pattern();
        let data = [Pass::Scatter, Pass::Gather].map(|pass| graph.data_accesses(pass));
        let start = graph.shard.edges_at.pages.start;
        let idle = graph.ranks.pages.start;
        let mut touches = graph.first_touches();
        touches.sort_unstable_by_key(|&(page, when)| (when, page));
        let mut touches = touches.into_iter().peekable();
        let both = data[0] + data[1];
        let windows = self.config.windows;
        let random = mix(self.config.seed ^ mix(self.loads)) >> 32;
        let mut places = (0..windows).map(|window| part(both, (window * WHOLE + random) / windows)).peekable();
        let mut thread = 0;
        for (pass, all, base) in [(Pass::Scatter, data[0], 0), (Pass::Gather, data[1], data[0])] {
            for tick in 0..TICKS {
                let until = WHOLE / TICKS * (tick + 1);
                let mut pages = Vec::new();
                while let Some((page, _)) = touches.next_if(|&(_, when)| pass == Pass::Scatter && when < until) {
                    pages.push(start + page);
                }
                if pages.is_empty() {
                    pages.push(idle);
                }
                let turns = pages.chunks(TURN);
                let share = all / TICKS / turns.len() as u64;
                for turn in turns {
                    self.push_touches(thread, turn.iter().copied(), share);
                    thread = (thread + 1) % self.common.threads;
                }
                while let Some(place) = places.next_if(|&place| place < base + part(all, until)) {
                    let done = share_of_pass(place - base, all);
                    self.items.push_back(Item::Window(pass, done, self.with_locals(place)));
                }
            }
        }
    }

    /// Accesses of both passes over the shard in memory.
    fn shard_accesses(&self) -> u64 {
        let graph = self.program.pattern();
        self.with_locals(graph.data_accesses(Pass::Scatter) + graph.data_accesses(Pass::Gather))
    }

    /// Accesses of all windows in a phase.
    fn all_accesses(&self, phase: Phase) -> u64 {
        let measured = self.common.measured_accesses;
        let least = measured.max(WARM_MIN * self.config.loads * self.config.windows);
        if phase == Phase::Warm { self.common.warm_accesses.unwrap_or(least) } else { measured }
    }

    /// Accesses of the next window in a phase.
    fn window_accesses(&self, phase: Phase) -> u64 {
        let windows = self.config.loads * self.config.windows;
        let all = self.all_accesses(phase);
        all / windows + u64::from(self.windows < all % windows)
    }

    fn begin_window(&mut self, pass: Pass, done: u64, before: u64) {
        self.program.restart().seek(pass, done);
        self.accesses = self.accesses.max(self.before + before);
        let warm = self.window_accesses(Phase::Warm);
        let phase = if warm > 0 { Phase::Warm } else { Phase::Measure };
        self.window = Some(Window { phase, begun: false, left: self.window_accesses(phase) });
    }

    /// The next part of a window.
    fn go_on(&mut self, mut window: Window, batch: &mut Batch) -> Option<Step> {
        if !window.begun {
            window.begun = true;
            self.window = Some(window);
            return (window.left > 0).then_some(Step::Phase(window.phase));
        }
        if window.left == 0 {
            let measured = window.phase == Phase::Measure;
            self.windows += u64::from(measured);
            self.window = (!measured).then(|| {
                let phase = Phase::Measure;
                Window { phase, begun: false, left: self.window_accesses(phase) }
            });
            return None;
        }
        let turn = if self.common.threads == 1 { Batch::ACCESSES_MAX } else { ACCESS_TURN };
        let most = window.left.min(turn as u64);
        batch.thread = ThreadId(self.thread);
        batch.instructions = self.program.fill(self.thread, &mut batch.accesses, most as usize);
        self.thread = (self.thread + 1) % self.common.threads;
        self.accesses += most;
        window.left -= most;
        self.window = Some(window);
        Some(Step::Accesses)
    }
}

/// [`share`] of what is at most the whole.
const fn share_of_pass(of: u64, whole: u64) -> u64 {
    let share = share(of, whole);
    if share < WHOLE { share } else { WHOLE - 1 }
}

impl Workload for Shards {
    fn facts(&self) -> WorkloadFacts {
        let accesses = [Phase::Warm, Phase::Measure].map(|phase| self.all_accesses(phase)).iter().sum();
        WorkloadFacts {
            name: Graph::NAME.into(),
            footprint: self.footprint,
            accesses: Some(accesses),
            threads: self.common.threads,
            warms_until_told: false,
            kernel_half: false,
        }
    }

    fn program_accesses(&self) -> Option<u64> {
        Some(self.accesses)
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        batch.clear();
        if !self.begun {
            self.begin();
            return Ok(Step::Phase(Phase::Populate));
        }
        loop {
            if let Some(window) = self.window {
                if let Some(step) = self.go_on(window, batch) {
                    return Ok(step);
                }
                continue;
            }
            match self.items.pop_front() {
                Some(Item::Event(event)) => return Ok(Step::Event(event)),
                Some(Item::Touches(thread, touches, instructions)) => {
                    batch.thread = ThreadId(thread);
                    (batch.touches, batch.instructions) = (touches, instructions);
                    return Ok(Step::Touches);
                }
                Some(Item::Window(pass, done, before)) => self.begin_window(pass, done, before),
                None if self.loads < self.config.loads => self.load(),
                None => {
                    self.accesses = self.accesses.max(self.before + self.shard_accesses());
                    return Ok(Step::End);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
