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
//! from a random place on; between them pages are touched as the pass would have touched them, and
//! the instructions of what is left out make time go on. Each window warms up for its part of
//! `warm_accesses`; if that is left out, for as many accesses as it measures, and 2^19 at least.
//! What files cost to read is the kernel's; vertices' degrees and values, which it maps from files
//! (`mmap = 1`), are left out.

mod graph;
mod plan;

use std::collections::VecDeque;

use nestwalk_mem::{PageCount, Vpn};

use super::adjacency::{self, Adjacency, GraphKind};
use super::bijection::mix;
use super::config::{Common, impossible, parameters};
use super::deals::GROUP;
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::{Mixed, Pattern as _};
use super::program::{ACCESS_TURN, Program, TOUCH_TURN, turn};
use crate::stream::{Batch, MemoryEvent, Phase, Step, ThreadId, Workload, WorkloadError, WorkloadFacts};
use graph::{Cursor, Graph, Pass, WHOLE, part, share};
use plan::{Plan, Shard, rank_pages};

/// Accesses by which a vertex is set up (assumed: its fields are written twice, and its degree is
/// read).
const SETUP_VERTEX: u64 = 20;
/// Steps of a pass in which pages are touched.
const TICKS: u64 = 256;
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
        let graph = |vertices| Adjacency::new(config.graph, vertices, config.degree, config.locality, mix(config.seed));
        let Some(plan) = Plan::largest(layout.left(), config.degree, config.shards, &layout.rest(), graph) else {
            let shards = format!("{} shards of {GROUP} vertices of degree {}", config.shards, config.degree);
            return Err(impossible(name, format!("footprint: too small for {shards}")));
        };
        let vertices = plan.graph.vertices();
        let footprint = PageCount(layout.pages().0 + rank_pages(vertices) + plan.pages());
        let ranks = layout.map(rank_pages(vertices));
        let shard = plan.shards[0];
        let cursors = vec![Cursor::default(); usize::from(common.threads)];
        let Plan { graph, in_edges, shards } = plan;
        let graph = Graph { layout, graph, in_edges, ranks, shard, pass: Pass::Scatter, cursors, sums: true };
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

    fn push_map(&mut self, region: Region) {
        self.push_event(MemoryEvent::Mmap { range: region.pages, writable: true, anonymous: true });
    }

    /// Pages that one thread touches first, with the instructions of so many accesses to data.
    fn push_touches(&mut self, thread: u16, touches: Vec<(Vpn, bool)>, data: u64) {
        self.items.push_back(Item::Touches(thread, touches, self.instructions(data)));
    }

    /// What the program does before its first shard: its ranks are set.
    fn begin(&mut self) {
        self.begun = true;
        let graph = self.program.pattern();
        let (ranks, regions) = (graph.ranks, graph.layout.regions());
        regions.into_iter().for_each(|region| self.push_map(region));
        for thread in 0..self.common.threads {
            let mut touches = Vec::new();
            self.program.pattern().layout.touch(thread, &mut touches);
            self.push_touches(thread, touches, 0);
        }
        self.push_filling(1, ranks, 0);
    }

    /// The pages of `region`, which the first `threads` threads touch first, each its part of them
    /// in order, with the instructions of so many accesses to data.
    fn push_filling(&mut self, threads: u16, region: Region, data: u64) {
        let mut sweep = Sweep::new(vec![vec![region]], threads);
        let mut left = region.pages.len();
        for thread in (0..threads).cycle() {
            if left == 0 {
                return;
            }
            let mut touches = Vec::new();
            sweep.touch(thread, &mut touches, turn(threads, TOUCH_TURN));
            let count = touches.len() as u64;
            if count > 0 {
                left -= count;
                self.push_touches(thread, touches, data * count / region.pages.len());
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
        self.push_map(shard.vertices_at);
        self.push_filling(1, shard.vertices_at, shard.len() * SETUP_VERTEX);
        self.push_map(shard.edges_at);
        let pages = PageCount(shard.file_at.pages.len());
        self.push_event(MemoryEvent::ReadFile { file: mix(number as u64 ^ 0x73_6861_7264), pages });
        self.push_map(shard.file_at);
        self.push_filling(self.common.threads, shard.file_at, 0);
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
                let turns = pages.chunks(TOUCH_TURN);
                let each = all / TICKS / turns.len() as u64;
                for turn in turns {
                    self.push_touches(thread, turn.iter().map(|&page| (page, true)).collect(), each);
                    thread = (thread + 1) % self.common.threads;
                }
                while let Some(place) = places.next_if(|&place| place < base + part(all, until)) {
                    let done = share(place - base, all);
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
        if window.left == 0 && window.phase == Phase::Measure {
            (self.windows, self.window) = (self.windows + 1, None);
            // What follows is not simulated.
            return Some(Step::Phase(Phase::Populate));
        }
        if window.left == 0 {
            let phase = Phase::Measure;
            self.window = Some(Window { phase, begun: false, left: self.window_accesses(phase) });
            return None;
        }
        let most = window.left.min(turn(self.common.threads, ACCESS_TURN) as u64);
        batch.thread = ThreadId(self.thread);
        batch.instructions = self.program.fill(self.thread, &mut batch.accesses, most as usize);
        self.thread = (self.thread + 1) % self.common.threads;
        self.accesses += most;
        window.left -= most;
        self.window = Some(window);
        Some(Step::Accesses)
    }
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
