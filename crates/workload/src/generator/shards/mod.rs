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
//! the instructions of what is left out make time go on ([`super::windows`]). Each window warms up
//! for its part of `warm_accesses`; if that is left out, for as many accesses as it measures, and
//! 2^21 at least. What files cost to read is the kernel's; vertices' degrees and values, which it
//! maps from files (`mmap = 1`), are left out.

mod graph;
mod plan;

use nestwalk_mem::{Access, Dependence, PageCount, Vpn};

use super::adjacency::{self, Adjacency, GraphKind};
use super::bijection::mix;
use super::config::{impossible, parameters};
use super::deals::GROUP;
use super::layout::Layout;
use super::pattern::Pattern;
use super::windows::{Ending, Script, Stretch, Windows};
use crate::stream::WorkloadError;
use graph::{Cursor, Graph, Pass};
use plan::{Plan, Shard, rank_pages};

/// Accesses by which a vertex is set up (assumed: its fields are written twice, and its degree is
/// read).
const SETUP_VERTEX: u64 = 20;
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
        /// Whether an edge is counted at its target by a locked addition, as in the source; else by
        /// a plain one.
        locked: bool = true,
    }
}

/// The program: its shards, and the graph of which one is in memory.
pub(super) struct Shards {
    config: ShardsConfig,
    shards: Vec<Shard>,
    /// Shards that have come into memory.
    loads: u64,
    graph: Graph,
    footprint: PageCount,
}

impl Shards {
    pub(super) fn new(config: &ShardsConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let common = config.common();
        let mut layout = Layout::new(name, common, config.mixture())?;
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
        // `__sync_add_and_fetch`, or `++`: then the target's line is all that is waited for.
        let counting = if config.locked { Dependence::Locked } else { Dependence::After };
        let graph = Graph { layout, graph, in_edges, ranks, shard, pass: Pass::Scatter, cursors, counting, sums: true };
        Ok(Self { config: config.clone(), shards, loads: 0, graph, footprint })
    }

    /// The program with its windows.
    pub(super) fn windows(config: &ShardsConfig) -> Result<Windows<Self>, WorkloadError> {
        Ok(Windows::new(config.common(), config.mixture(), Self::new(config)?))
    }

    /// The two passes over the shard in memory.
    fn passes(&self) -> Vec<Stretch<Pass>> {
        let stretch = |pass, touches| Stretch { pass, data: self.graph.data_accesses(pass), touches };
        vec![stretch(Pass::Scatter, self.graph.first_touches()), stretch(Pass::Gather, Vec::new())]
    }
}

impl Pattern for Shards {
    const NAME: &'static str = "shards";
    const TELLS_DEPENDENCES: bool = true;

    fn layout(&self) -> &Layout {
        &self.graph.layout
    }

    fn touch(&mut self, _thread: u16, _touches: &mut Vec<(Vpn, bool)>, _most: usize) {}

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        self.graph.operate(thread, accesses);
    }
}

impl Ending for Shards {
    type Pass = Pass;

    fn footprint(&self) -> PageCount {
        self.footprint
    }

    fn windows(&self) -> u64 {
        self.config.loads * self.config.windows
    }

    /// The next shard.
    fn go_on(&mut self, script: &mut Script<Pass>) {
        if self.loads == self.config.loads {
            return;
        }
        if self.loads == 0 {
            script.fill(1, self.graph.ranks, 0);
        } else {
            let Shard { edges_at, vertices_at, file_at, .. } = self.graph.shard;
            for region in [edges_at, vertices_at, file_at] {
                script.unmap(region);
            }
        }
        let number = self.loads % self.config.shards;
        self.loads += 1;
        let shard = self.shards[number as usize];
        self.graph.shard = shard;
        self.graph.sums = self.loads > self.config.shards;
        script.map(shard.vertices_at);
        script.fill(1, shard.vertices_at, shard.len() * SETUP_VERTEX);
        script.map(shard.edges_at);
        script.read_file(mix(number ^ 0x73_6861_7264), PageCount(shard.file_at.pages.len()));
        script.map(shard.file_at);
        script.fill(self.config.threads, shard.file_at, 0);
        let idle = self.graph.ranks.pages.start;
        script.stretches(self.passes(), self.config.windows, self.config.seed ^ mix(self.loads), idle);
    }

    fn seek(&mut self, pass: Pass, done: u64) {
        self.graph.seek(pass, done);
    }
}

#[cfg(test)]
mod tests;
