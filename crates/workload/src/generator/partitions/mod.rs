// SPDX-License-Identifier: MIT OR Apache-2.0
//! `partitions`: the programs of GPOP (Lakhotia et al., PPoPP 2019 and TOPC 2020; version 3feaee7),
//! which go through a graph partition by partition.
//!
//! A partition is 65,536 neighbouring vertices, fewer in a graph of less than 32 partitions (4 for
//! each thread). Each pair of partitions has a *bin*: three arrays, of updates (4 bytes), of their
//! targets (4 bytes an edge, written once, before anything is computed) and of targets that are
//! written as it goes ([`bins`]). A step has two halves:
//! - *scatter*, by source partition: where most edges are active (*dense*), for each bin in turn
//!   the vertices that send into it, as listed when the graph was loaded (PNG): the vertex' value,
//!   a store to the updates. Neighbouring targets in one partition have one update. Else
//!   (*sparse*), the active vertices' own lists, each target and update stored to its bin.
//! - *gather*, by target partition: its bins from every partition, each front to back: target,
//!   update, the target's value. So a value is never more than a partition, 256 KiB, from the last.
//!
//! How much of the graph is active in each step was counted in GPOP itself, on this generator's
//! graph of 2,097,152 vertices, with one thread ([`Algorithm::steps`]). A sparse scatter goes for
//! each edge through the tables of its row of bins ([`tables`]). Not modelled: barriers between the
//! halves (a thread takes each `threads`th partition and does not wait), what is done once a bin.

mod bins;
mod loops;
mod run;
mod steps;
mod tables;

use nestwalk_mem::{Access, PageCount, Vpn};

use bins::{Bins, FirstTouches, Page};
use run::Thread;
use steps::Activity;
use tables::Tables;

use crate::generator::adjacency::{self, Adjacency, GraphKind};
use crate::generator::bijection::{Bijection, Dice, mix};
use crate::generator::config::{impossible, parameters};
use crate::generator::deals::GROUP;
use crate::generator::layout::Layout;
use crate::generator::memory::{Region, Sweep};
use crate::generator::pattern::Pattern;
use crate::stream::WorkloadError;

pub use steps::Algorithm;

/// Bytes of a vertex number, of an edge number and of a value.
const WORD: u64 = 4;
/// Vertices of a partition, at most.
const PARTITION_MAX: u64 = 65_536;
/// Partitions of each thread, at least.
const PARTITIONS_OF_A_THREAD: u64 = 4;
/// Edges, vertices or words that one operation goes through.
const CHUNK: u64 = 256;

parameters! {
    /// A program of GPOP. Local accesses and instructions as counted of an iteration of its
    /// PageRank; of its nibble, 75 accesses of a thousand are not modelled one by one.
    PartitionsConfig mixed(28, 2996, 13) {
        /// What is computed.
        algorithm: Algorithm = Algorithm::PageRank,
        /// Edges a vertex, on average: 1 to 4096. Twitter has 35.
        degree: u64 = 35,
        /// Whose degrees the graph has.
        graph: GraphKind = GraphKind::Social,
        /// How near each other the targets of a vertex are, and to it (rho in thousandths): 0,
        /// none, to 900. Slashdot has 200.
        locality: u64 = 100,
    }
}

pub(super) struct Partitions {
    layout: Layout,
    algorithm: Algorithm,
    /// Of each step.
    activity: Vec<Activity>,
    adjacency: Adjacency,
    /// Vertices of a partition.
    width: u64,
    bins: Bins,
    tables: Tables,
    /// CSR offsets, edges, out-degrees, active or not (a byte a vertex).
    offsets: Region,
    edges: Region,
    degrees: Region,
    active: Region,
    /// Sending vertices of each bin, edges within a partition, bins.
    senders: Region,
    inner: Region,
    bin_memory: Region,
    /// Of the graph, of partitions, of bins.
    table_memory: Region,
    /// Values; lists of active vertices (not of PageRank); what is sent (nibble: `pscat`) or seen
    /// (search: `visited`, a byte a vertex).
    values: Region,
    frontier: Region,
    second: Region,
    /// In which order active vertices of a partition are found.
    order: Bijection,
    /// First touches before those of the bins, and after.
    sweeps: [Sweep; 2],
    /// Threads: each has every so many-th partition.
    stride: u64,
    threads: Vec<Thread>,
}

impl Partitions {
    pub(super) fn new(config: &PartitionsConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        adjacency::check(name, config.degree, config.locality)?;
        let (adjacency, width, bins, sizes) = fitting(config, layout.left())?;
        let [offsets, edges, degrees, active, inner, senders, bin_memory, table_memory, values, frontier, second] =
            sizes.map(|bytes| layout.map(PageCount::covering(bytes).0));
        // The graph is read, then taken apart, then values are set.
        let groups = |regions: &[Region]| regions.iter().map(|&region| vec![region]).collect();
        let read = Sweep::new(groups(&[offsets, edges, active, degrees, inner, table_memory]), config.threads);
        let set = Sweep::new(vec![vec![values, second], vec![frontier]], config.threads);
        let dice = Dice::of_threads(config.seed ^ 0x6b0f, config.threads);
        let edges_of = |vertex| adjacency.edges_of(vertex);
        let mut lengths: Vec<u64> = adjacency.typical().into_iter().map(edges_of).map(|(from, to)| to - from).collect();
        lengths.sort_unstable();
        let activity = config.algorithm.steps().iter().map(|step| Activity::of(step, &lengths)).collect();
        let mut program = Self {
            layout,
            algorithm: config.algorithm,
            activity,
            adjacency,
            width,
            tables: Tables::new(bins.count),
            bins,
            offsets,
            edges,
            degrees,
            active,
            senders,
            inner,
            bin_memory,
            table_memory,
            values,
            frontier,
            second,
            order: Bijection::new(width, mix(config.seed ^ 5)),
            sweeps: [read, set],
            stride: config.threads.into(),
            threads: Vec::new(),
        };
        let thread = |(dice, index)| {
            let mut thread = Thread::new(dice, index, program.spread(index));
            program.enter(&mut thread);
            thread
        };
        program.threads = dice.into_iter().zip(0..).map(thread).collect();
        Ok(program)
    }
}

/// Bytes of each array of a program.
type Sizes = [u64; 11];

/// The largest graph whose arrays fit `pages`: it, the width of a partition, the bins, the arrays.
fn fitting(config: &PartitionsConfig, pages: u64) -> Result<(Adjacency, u64, Bins, Sizes), WorkloadError> {
    let name = Partitions::NAME;
    let threads = u64::from(config.threads);
    let covered = |sizes: &Sizes| sizes.iter().map(|&bytes| PageCount::covering(bytes).0).sum::<u64>();
    // An edge has its target, in the list and in a bin, and part of a sender and of an update.
    let mut vertices = pages * nestwalk_mem::addr::PAGE_BYTES / (WORD * (6 + 3 * config.degree));
    if vertices * config.degree >= 1 << 32 {
        return Err(impossible(name, "footprint: edges have numbers of 32 bits"));
    }
    let least = (vertices / (threads * PARTITIONS_OF_A_THREAD)).clamp(GROUP, PARTITION_MAX);
    let width = 1 << least.ilog2();
    let mut best = None;
    // More vertices than fit.
    let mut too_many = u64::MAX;
    for _ in 0..16 {
        let partitions = vertices.div_ceil(width);
        if partitions < threads.max(2) {
            return Err(impossible(
                name,
                format!("footprint: {partitions} partitions for {threads} threads, at least 2"),
            ));
        }
        let graph = Adjacency::new(config.graph, vertices, config.degree, config.locality, mix(config.seed));
        let bins = Bins::new(&graph, width, config.algorithm);
        let (listed, second) = match config.algorithm {
            Algorithm::PageRank => (0, 0),
            Algorithm::Components => (WORD, 0),
            Algorithm::BreadthFirst => (WORD, 1),
            Algorithm::Nibble => (WORD, WORD),
        };
        let [offsets, edges] = [vertices + 1, graph.edges()].map(|words| WORD * words);
        let values = WORD * vertices;
        let (senders, binned) = (WORD * bins.senders(), bins.bytes());
        let tables = Tables::new(bins.count).bytes();
        let (listed, second) = (listed * vertices, second * vertices);
        let sizes = [offsets, edges, values, vertices, values, senders, binned, tables, values, listed, second];
        let taken = covered(&sizes);
        let fits = taken <= pages;
        let most = best.as_ref().map_or(0, |(graph, ..): &(Adjacency, u64, Bins, Sizes)| graph.vertices());
        let scaled = vertices * (pages - pages / 200 - 1) / taken;
        if fits {
            if vertices > most {
                best = Some((graph, width, bins, sizes));
            }
            if taken + taken / 50 >= pages {
                break;
            }
            vertices = if scaled < too_many { scaled } else { vertices.midpoint(too_many) };
        } else {
            too_many = too_many.min(vertices);
            vertices = if scaled > most { scaled } else { vertices.midpoint(most) };
        }
    }
    best.ok_or_else(|| impossible(name, "footprint: too small for its graph"))
}

impl Pattern for Partitions {
    const NAME: &'static str = "partitions";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, index: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        let [read, set] = &mut self.sweeps;
        let [senders, targets, filled] = &mut self.threads[usize::from(index)].touches;
        let rows = |pass: &mut FirstTouches, touches: &mut Vec<(Vpn, bool)>| {
            while touches.len() < most {
                let Some(page) = pass.next(&self.bins, self.stride) else { break };
                let (region, page) = match page {
                    Page::Sender(page) => (self.senders, page),
                    Page::Bin(page) => (self.bin_memory, page),
                };
                touches.push((region.pages.start + page, true));
            }
        };
        read.touch(index, touches, most);
        rows(senders, touches);
        rows(targets, touches);
        if touches.len() < most {
            set.touch(index, touches, most);
        }
        rows(filled, touches);
    }

    fn operate(&mut self, index: usize, accesses: &mut Vec<Access>) {
        let mut threads = std::mem::take(&mut self.threads);
        while accesses.is_empty() {
            self.advance(&mut threads[index], accesses);
        }
        self.threads = threads;
    }
}

#[cfg(test)]
mod tests;
