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
mod tables;

use nestwalk_mem::{Access, Gva, PageCount, Vpn};
use serde::{Deserialize, Serialize};

use bins::{Array, Bins, FirstTouches, Page, Pass, part};
use tables::{Table, Tables};

use crate::generator::adjacency::{self, Adjacency, GraphKind, List};
use crate::generator::bijection::{Bijection, Dice, mix};
use crate::generator::config::{impossible, parameters};
use crate::generator::deals::GROUP;
use crate::generator::layout::Layout;
use crate::generator::memory::{Region, Sweep};
use crate::generator::pattern::Pattern;
use crate::stream::WorkloadError;

/// Bytes of a vertex number, of an edge number and of a value.
const WORD: u64 = 4;
/// Vertices of a partition, at most.
const PARTITION_MAX: u64 = 65_536;
/// Partitions of each thread, at least.
const PARTITIONS_OF_A_THREAD: u64 = 4;
/// Edges, vertices or words that one operation goes through.
const CHUNK: u64 = 256;

/// What is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// PageRank, all edges in each step.
    PageRank,
    /// Connected components by label propagation, until no label changes.
    Components,
    /// Breadth-first search.
    BreadthFirst,
    /// PageRank-Nibble (local clustering), ten steps from one vertex.
    Nibble,
}

/// One pass of scatter and gather. Shares are in millionths.
struct Step {
    /// Of partitions, those in which scatter is dense.
    dense: u32,
    /// Of the others' vertices and edges, those that are active.
    vertices: u32,
    edges: u32,
    /// Of gathered edges, those that change their target; and those that make it active.
    changes: u32,
    activates: u32,
}

const fn step(dense: u32, vertices: u32, edges: u32, changes: u32, activates: u32) -> Step {
    Step { dense, vertices, edges, changes, activates }
}

/// Which vertices are active where a step is sparse: of a share of all (in millionths, in random
/// order) those whose lists are not longer than so many edges. Short lists are more often active
/// than long ones in what GPOP counted, as nibble's threshold grows with the degree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Activity {
    candidates: u32,
    longest: u64,
}

impl Activity {
    /// That of `step`, so that both its vertices and its edges are as many as counted. `lengths`
    /// has the length of each list, ascending. Where long lists are more often active, all lengths
    /// are alike.
    fn of(step: &Step, lengths: &[u64]) -> Self {
        let all = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
        let wanted = all * f64::from(step.edges) / f64::from(step.vertices.max(1));
        let mut sum = 0;
        let short = lengths.iter().zip(1..).take_while(|&(length, count)| {
            sum += length;
            wanted >= all || sum as f64 <= wanted * f64::from(count)
        });
        let Some((&longest, count)) = short.last() else { return Self { candidates: step.vertices, longest: 0 } };
        let longest = if count as usize == lengths.len() { u64::MAX } else { longest };
        let candidates = f64::from(step.vertices) * lengths.len() as f64 / f64::from(count);
        Self { candidates: candidates.min(1e6) as u32, longest }
    }
}

impl Algorithm {
    /// Its steps. Those with less than a thousandth of the edges are left out: the last ones of
    /// components and search, the first ones of search and nibble. Not counted but assumed: which
    /// share of vertices is active where components are sparse (58,000), and how many edges of
    /// nibble's last step make their target active (85,000).
    const fn steps(self) -> &'static [Step] {
        const ALL: u32 = 1_000_000;
        match self {
            Self::PageRank => const { &[step(ALL, 0, 0, ALL, 0)] },
            Self::Components => const { &[step(ALL, 0, 0, 161_331, 18_665), step(718_750, 58_000, 37_000, 174, 57)] },
            Self::BreadthFirst => {
                const {
                    &[
                        step(0, 9_970, 7_918, 615_160, 615_160),
                        step(218_750, 170_000, 146_440, 65_159, 65_159),
                        step(ALL, 0, 0, 1_779, 1_779),
                        step(31_250, 62_000, 72_530, 2, 2),
                    ]
                }
            }
            Self::Nibble => {
                const {
                    &[
                        step(0, 9_827, 5_163, ALL, 618_043),
                        step(0, 70_432, 22_340, ALL, 394_463),
                        step(0, 177_988, 46_726, ALL, 263_444),
                        step(0, 284_264, 73_161, ALL, 187_157),
                        step(0, 380_989, 99_822, ALL, 137_912),
                        step(0, 462_543, 124_870, ALL, 105_352),
                        step(0, 527_916, 147_039, ALL, 85_000),
                    ]
                }
            }
        }
    }
}

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

/// What a thread does to a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Edges within the partition, before anything is sent (components only).
    Inner,
    /// Bins of partitions that have sent already (components only, which does not wait for a step's
    /// end).
    Early,
    Scatter,
    /// What was active, or all values, made ready for the gather.
    Settle,
    Gather,
    /// What the gather made active, or all values, made ready for the next step.
    Filter,
    /// Between runs of the program: values reset.
    Reset,
}

/// A part of the program's run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    /// Number of the step in [`Algorithm::steps`].
    step: usize,
    phase: Phase,
    partition: u64,
}

/// A thread, where it is, and how far it is there.
struct Thread {
    dice: Dice,
    index: u64,
    place: Place,
    /// The bin of the partition's row or column, and the place in it.
    bin: u64,
    at: u64,
    /// The list of an active vertex.
    list: Option<List>,
    /// Targets of the run that is being gathered, the next one last; and the number of its update.
    run: Vec<u32>,
    update: u64,
    /// Vertices that the gather has made active in this partition.
    found: u64,
    /// Senders, targets; what the first steps fill.
    touches: [FirstTouches; 3],
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

impl Thread {
    fn new(dice: Dice, index: u64, place: Place) -> Self {
        Self {
            dice,
            index,
            place,
            bin: 0,
            at: 0,
            list: None,
            run: Vec::new(),
            update: 0,
            found: 0,
            touches: [Pass::Senders, Pass::Targets, Pass::Filled].map(|pass| FirstTouches::new(pass, index)),
        }
    }

    /// The places in `0..count` that this operation goes through.
    fn chunk(&mut self, count: u64) -> std::ops::Range<u64> {
        let from = self.at.min(count);
        self.at = count.min(from + CHUNK);
        from..self.at
    }
}

/// Whether one of many is among a `share` in millionths.
fn among(share: u32, random: u64) -> bool {
    random % 1_000_000 < share.into()
}

/// Whether a partition's scatter is dense in a step.
fn is_dense(step: &Step, partition: u64) -> bool {
    among(step.dense, mix(partition))
}

impl Partitions {
    /// Its first vertex, and how many it has.
    fn members(&self, partition: u64) -> (u64, u64) {
        let first = partition * self.width;
        (first, self.width.min(self.adjacency.vertices() - first))
    }

    /// A word of one of a bin's arrays.
    fn word(&self, from: u64, to: u64, array: Array, index: u64) -> Gva {
        self.bin_memory.at(self.bins.word(from, to, array, index))
    }

    /// An entry of a table of bin `from` to `to`.
    fn table(&self, table: Table, from: u64, to: u64) -> Gva {
        self.table_memory.at(self.tables.entry(table, from, to))
    }

    fn flag(&self, vertex: u64) -> Gva {
        self.active.at(vertex)
    }

    /// Where a vertex' entry of the second array is: `visited` has a byte.
    fn second(&self, vertex: u64) -> Gva {
        let bytes = if self.algorithm == Algorithm::BreadthFirst { 1 } else { WORD };
        self.second.at(vertex * bytes)
    }

    /// What a vertex sends (`scatterFunc`).
    fn sent(&self, vertex: u64) -> Access {
        Access::load(match self.algorithm {
            Algorithm::PageRank | Algorithm::Components => self.values.at(WORD * vertex),
            Algorithm::BreadthFirst | Algorithm::Nibble => self.second(vertex),
        })
    }

    /// `sgIntra`: each vertex sends to the few neighbours in its own partition.
    fn inner(&self, thread: &mut Thread, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        for member in thread.chunk(members) {
            accesses.extend([self.sent(first + member), Access::load(self.inner.at(WORD * (first + member)))]);
        }
        thread.at == members
    }

    /// `scatterPC`: the bins of a row, one after the other.
    fn scatter_dense(&self, thread: &mut Thread, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        let updates = self.bins.updates(self.bins.edges(thread.place.partition, thread.bin));
        let before = self.bins.sender(thread.place.partition, thread.bin);
        for update in thread.chunk(updates) {
            accesses.extend([
                Access::load(self.senders.at(WORD * (before + update))),
                // Senders ascend.
                self.sent(first + update * members / updates),
                Access::store(self.word(thread.place.partition, thread.bin, Array::Updates, update)),
            ]);
        }
        if thread.at < updates {
            return false;
        }
        (thread.bin, thread.at) = (thread.bin + 1, 0);
        thread.bin == self.bins.count
    }

    /// `scatterVC`: the lists of active vertices, in the order in which they were found.
    fn scatter_sparse(&self, thread: &mut Thread, step: &Step, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        let Activity { candidates, longest } = self.activity[thread.place.step];
        let candidates = part(members, candidates);
        let candidate = |at: u64| first + self.order.apply(at) % members;
        let length = |(from, to): (u64, u64)| to - from;
        if thread.list.is_none() {
            while thread.at < candidates && length(self.adjacency.edges_of(candidate(thread.at))) > longest {
                thread.at += 1;
            }
            if thread.at >= candidates {
                return true;
            }
        }
        let mut list = thread.list.take().unwrap_or_else(|| {
            let vertex = candidate(thread.at);
            let place = thread.at * part(members, step.vertices) / candidates;
            accesses.extend([Access::load(self.frontier.at(WORD * (first + place))), self.sent(vertex)]);
            accesses.extend([vertex, vertex + 1].map(|at| Access::load(self.offsets.at(WORD * at))));
            thread.at += 1;
            self.adjacency.list(vertex)
        });
        let vertex = candidate(thread.at - 1);
        for _ in 0..CHUNK {
            let Some((edge, target)) = list.next(&self.adjacency) else { break };
            let (row, bin) = (thread.place.partition, target / self.width);
            let load = |table| Access::load(self.table(table, row, bin));
            let store = |table| Access::store(self.table(table, row, bin));
            accesses.extend([load(Table::Edges), Access::load(self.edges.at(WORD * edge)), load(Table::Shift)]);
            accesses.extend([Table::Frame; 3].map(load));
            accesses.extend([load(Table::Updates), load(Table::UpdateCount), store(Table::UpdateCount)]);
            accesses.extend([load(Table::Written), load(Table::WrittenCount), store(Table::WrittenCount)]);
            // As full as the bin is by now.
            let filled = part(self.bins.edges(thread.place.partition, bin), step.edges);
            if filled > 0 {
                let place = filled * (thread.at - 1) / candidates;
                let update = self.bins.updates(place + 1) - 1;
                accesses.push(Access::store(self.word(row, bin, Array::Updates, update)));
                accesses.push(Access::store(self.word(row, bin, Array::Written, place)));
            }
            accesses.extend([Table::Flags, Table::Partition, Table::FlagRow, Table::Flag].map(load));
            // Where the list ends is looked up again, as it might have been stored to.
            accesses.push(Access::load(self.offsets.at(WORD * (vertex + 1))));
        }
        thread.list = (!list.is_done()).then_some(list);
        false
    }

    /// `initFunc` of all vertices, or of those that were active.
    fn settle(&self, thread: &mut Thread, step: &Step, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        if self.algorithm == Algorithm::PageRank {
            let range = thread.chunk(members);
            accesses.extend(range.map(|member| Access::store(self.values.at(WORD * (first + member)))));
            return thread.at == members;
        }
        let active = part(members, if is_dense(step, thread.place.partition) { 1_000_000 } else { step.vertices });
        for place in thread.chunk(active) {
            let vertex = first + self.order.apply(place) % members;
            accesses.extend([Access::load(self.frontier.at(WORD * (first + place))), Access::store(self.flag(vertex))]);
            if self.algorithm == Algorithm::Nibble {
                let value = self.values.at(WORD * vertex);
                accesses.extend([Access::load(value), Access::store(value), Access::store(self.second(vertex))]);
                accesses.push(Access::load(self.degrees.at(WORD * vertex)));
            }
        }
        thread.at == active
    }

    /// `gatherPC`, `gatherDense`: what the bins of a column hold, from `thread.bin` to `end`.
    fn gather(&self, thread: &mut Thread, step: &Step, end: u64, accesses: &mut Vec<Access>) -> bool {
        if thread.bin >= end {
            return true;
        }
        let (column, row) = (thread.place.partition, thread.bin);
        let (first, members) = self.members(column);
        let own = self.bins.edges(row, column);
        let dense = is_dense(step, row);
        let (edges, array) = if dense { (own, Array::Targets) } else { (part(own, step.edges), Array::Written) };
        let last = self.bins.updates(edges).max(1) - 1;
        if thread.at == 0 {
            thread.update = 0;
            thread.run.clear();
        }
        for place in thread.chunk(edges) {
            if thread.run.is_empty() {
                self.next_run(thread, first, (edges - place).min(members));
            }
            let target = first + u64::from(thread.run.pop().expect("a run has targets"));
            let update = thread.update.min(last);
            thread.update += u64::from(thread.run.is_empty());
            accesses.extend([
                Access::load(self.word(row, column, array, place)),
                Access::load(self.word(row, column, Array::Updates, update)),
            ]);
            self.receive(thread, step, first, members, target, accesses);
        }
        if thread.at == edges {
            (thread.bin, thread.at) = (row + 1, 0);
        }
        thread.bin >= end
    }

    /// The targets of the next update: at most `most` in the partition at `first`, ascending.
    fn next_run(&self, thread: &mut Thread, first: u64, most: u64) {
        let runs = &self.bins.runs;
        let length = u64::from(runs[thread.dice.below(runs.len() as u64) as usize]).min(most);
        let draw = |_| (self.adjacency.popular_within(first, self.width, thread.dice.below(u64::MAX)) - first) as u32;
        thread.run.extend((0..length).map(draw));
        thread.run.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// An update reaches its target (`gatherFunc`).
    fn receive(
        &self,
        thread: &mut Thread,
        step: &Step,
        first: u64,
        members: u64,
        target: u64,
        accesses: &mut Vec<Access>,
    ) {
        let value = self.values.at(WORD * target);
        let random = thread.dice.below(u64::MAX);
        let changes = among(step.changes, random);
        match self.algorithm {
            Algorithm::PageRank => {
                accesses.extend([Access::load(value), Access::store(value)]);
                return;
            }
            Algorithm::Nibble => accesses.extend([Access::load(value), Access::store(value)]),
            Algorithm::Components => {
                accesses.push(Access::load(value));
                if changes {
                    accesses.push(Access::store(value));
                }
            }
            Algorithm::BreadthFirst => {
                accesses.push(Access::load(self.second(target)));
                if changes {
                    accesses.extend([Access::store(value), Access::store(self.second(target))]);
                }
            }
        }
        accesses.push(Access::load(self.flag(target)));
        // Who changes has been drawn: of those, the ones that become active.
        if among(step.activates, random) {
            let partition = self.table(Table::Partition, thread.place.partition, 0);
            accesses.extend([Access::load(partition), Access::store(partition), Access::load(partition)]);
            accesses.push(Access::store(self.frontier.at(WORD * (first + thread.found % members))));
            accesses.push(Access::store(self.flag(target)));
            thread.found += 1;
        }
    }

    /// `filterFunc` of all vertices, or of those that became active.
    fn filter(&self, thread: &mut Thread, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        let count = if self.algorithm == Algorithm::PageRank { members } else { thread.found.min(members) };
        for place in thread.chunk(count) {
            if self.algorithm == Algorithm::PageRank {
                let value = self.values.at(WORD * (first + place));
                let degree = self.degrees.at(WORD * (first + place));
                accesses.extend([Access::load(value), Access::load(degree), Access::store(value)]);
                continue;
            }
            let vertex = first + self.order.apply(place) % members;
            let listed = self.frontier.at(WORD * (first + place));
            accesses.extend([Access::load(listed), Access::store(self.flag(vertex))]);
            accesses.extend([Access::load(self.degrees.at(WORD * vertex)), Access::store(listed)]);
            if self.algorithm == Algorithm::Nibble {
                accesses.extend([Access::load(self.values.at(WORD * vertex)), Access::store(self.second(vertex))]);
            }
        }
        thread.at == count
    }

    /// A new run of the program: values as in the beginning.
    fn reset(&self, thread: &mut Thread, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        for member in thread.chunk(members) {
            let vertex = first + member;
            accesses.push(Access::store(self.values.at(WORD * vertex)));
            match self.algorithm {
                // All vertices are active (`loadFrontier`).
                Algorithm::Components => accesses.extend([
                    Access::store(self.flag(vertex)),
                    Access::store(self.frontier.at(WORD * vertex)),
                    Access::load(self.degrees.at(WORD * vertex)),
                ]),
                _ => accesses.push(Access::store(self.second(vertex))),
            }
        }
        thread.at == members
    }

    /// One operation, and what comes after it.
    fn advance(&self, thread: &mut Thread, accesses: &mut Vec<Access>) {
        let steps = self.algorithm.steps();
        let step = &steps[thread.place.step];
        let done = match thread.place.phase {
            Phase::Inner => self.inner(thread, accesses),
            Phase::Early => self.gather(thread, step, thread.place.partition, accesses),
            Phase::Scatter if is_dense(step, thread.place.partition) => self.scatter_dense(thread, accesses),
            Phase::Scatter => self.scatter_sparse(thread, step, accesses),
            Phase::Settle => self.settle(thread, step, accesses),
            Phase::Gather => self.gather(thread, step, self.bins.count, accesses),
            Phase::Filter => self.filter(thread, accesses),
            Phase::Reset => self.reset(thread, accesses),
        };
        if !done {
            return;
        }
        thread.place = self.following(thread.place, thread.index);
        self.enter(thread);
    }

    /// Makes ready for the part of the run that begins.
    fn enter(&self, thread: &mut Thread) {
        (thread.bin, thread.at) = (0, 0);
        if thread.place.phase == Phase::Gather {
            thread.found = 0;
            // What has been gathered early is not gathered again.
            thread.bin = if self.algorithm == Algorithm::Components { thread.place.partition } else { 0 };
        }
    }

    /// Where a thread's run begins.
    fn beginning(&self, index: u64) -> Place {
        let phase = if self.algorithm == Algorithm::Components { Phase::Inner } else { Phase::Scatter };
        Place { step: 0, phase, partition: index }
    }

    /// The next partition of this phase, or else the phase that follows for the first one.
    fn following(&self, place: Place, index: u64) -> Place {
        let next = place.partition + self.stride;
        let last = next >= self.bins.count;
        let begin = self.beginning(index).phase;
        let mut step = place.step;
        let (phase, advances) = match place.phase {
            Phase::Inner => (Phase::Early, false),
            Phase::Early => (Phase::Scatter, false),
            Phase::Scatter => (Phase::Settle, false),
            Phase::Settle => (if last { Phase::Gather } else { begin }, true),
            Phase::Gather => (Phase::Filter, false),
            Phase::Filter if !last => (Phase::Gather, true),
            Phase::Filter => {
                step = (step + 1) % self.algorithm.steps().len();
                let ends = step == 0 && self.algorithm != Algorithm::PageRank;
                (if ends { Phase::Reset } else { begin }, true)
            }
            Phase::Reset => (if last { begin } else { Phase::Reset }, true),
        };
        let partition = match (advances, last) {
            (false, _) => place.partition,
            (true, false) => next,
            (true, true) => index,
        };
        Place { step, phase, partition }
    }

    /// About how many accesses a part of the run has.
    fn work(&self, place: Place) -> u64 {
        let steps = self.algorithm.steps();
        let (step, partition) = (&steps[place.step], place.partition);
        let (_, members) = self.members(partition);
        let received = |sources: std::ops::Range<u64>| -> u64 {
            let edges = |row| {
                let own = self.bins.edges(row, partition);
                if is_dense(step, row) { own } else { part(own, step.edges) }
            };
            4 * sources.map(edges).sum::<u64>()
        };
        let sent = || -> u64 { (0..self.bins.count).map(|bin| self.bins.edges(partition, bin)).sum() };
        let early = if self.algorithm == Algorithm::Components { partition } else { 0 };
        match place.phase {
            Phase::Inner => 2 * members,
            Phase::Early => received(0..early),
            Phase::Scatter if is_dense(step, partition) => 3 * self.bins.updates(sent()),
            Phase::Scatter => 4 * part(members, step.vertices) + 19 * part(sent(), step.edges),
            Phase::Settle | Phase::Filter => members,
            Phase::Gather => received(early..self.bins.count),
            Phase::Reset => 3 * members,
        }
    }

    /// Where each thread is when measuring begins: spread over a whole run, by its accesses, as a
    /// run is far longer than what is measured of it.
    fn spread(&self, index: u64) -> Place {
        let begin = self.beginning(index);
        let after = |&place: &Place| Some(self.following(place, index)).filter(|&next| next != begin);
        let places = std::iter::successors(Some(begin), after);
        let works: Vec<(Place, u64)> = places.map(|place| (place, self.work(place))).collect();
        let all: u64 = works.iter().map(|(_, work)| work).sum();
        let mut left = all * (2 * index + 1) / (2 * self.stride);
        for (place, work) in works {
            if left < work {
                return place;
            }
            left -= work;
        }
        begin
    }
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
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn partitions(algorithm: Algorithm, threads: u16) -> Partitions {
        let config =
            PartitionsConfig { footprint: PageCount(6_000), algorithm, threads, ..PartitionsConfig::default() };
        Partitions::new(&config).unwrap()
    }

    const ALL: [Algorithm; 4] =
        [Algorithm::PageRank, Algorithm::Components, Algorithm::BreadthFirst, Algorithm::Nibble];

    /// Accesses of thread 0 until it is back where it began, with the phase of each operation.
    fn round(program: &mut Partitions) -> Vec<(Phase, usize, Access)> {
        program.threads[0].place = program.beginning(0);
        let mut threads = std::mem::take(&mut program.threads);
        program.enter(&mut threads[0]);
        program.threads = threads;
        let mut seen = Vec::new();
        let mut accesses = Vec::new();
        loop {
            let (phase, step) = (program.threads[0].place.phase, program.threads[0].place.step);
            accesses.clear();
            program.operate(0, &mut accesses);
            assert!(!accesses.is_empty() && accesses.len() < 8192);
            seen.extend(accesses.iter().map(|&access| (phase, step, access)));
            let thread = &program.threads[0];
            let begins = thread.place.step == 0 && thread.place.partition == 0 && thread.at == 0 && thread.bin == 0;
            if begins && matches!(thread.place.phase, Phase::Inner | Phase::Scatter) && phase != thread.place.phase {
                return seen;
            }
        }
    }

    fn of(region: Region, access: &Access) -> bool {
        region.pages.contains(Vpn(access.gva().page().0))
    }

    #[test]
    fn pagerank_sends_and_receives_over_every_edge_once() {
        let mut program = partitions(Algorithm::PageRank, 1);
        let seen = round(&mut program);
        let program = &program;
        let pairs = || (0..program.bins.count).flat_map(|row| (0..program.bins.count).map(move |bin| (row, bin)));
        let edges: u64 = pairs().map(|(row, bin)| program.bins.edges(row, bin)).sum();
        assert!(edges <= program.adjacency.edges() && edges * 100 > program.adjacency.edges() * 99);
        let count = |phase, region, store| {
            let hits =
                seen.iter().filter(|(at, _, access)| *at == phase && of(region, access) && access.is_store() == store);
            hits.count() as u64
        };
        let updates: u64 = pairs().map(|(row, bin)| program.bins.updates(program.bins.edges(row, bin))).sum();
        assert_eq!(count(Phase::Scatter, program.senders, false), updates);
        assert_eq!(count(Phase::Scatter, program.bin_memory, true), updates);
        // Of each edge a target and an update, and the value twice.
        assert_eq!(count(Phase::Gather, program.bin_memory, false), 2 * edges);
        assert_eq!(count(Phase::Gather, program.values, false), edges);
        assert_eq!(count(Phase::Gather, program.values, true), edges);
        assert_eq!(count(Phase::Filter, program.values, true), program.adjacency.vertices());
    }

    #[test]
    fn a_sparse_scatter_has_nineteen_accesses_an_edge() {
        let program = partitions(Algorithm::Nibble, 1);
        let mut thread = Thread::new(Dice::of_threads(1, 1).remove(0), 0, program.beginning(0));
        thread.place.step = 4;
        let mut seen = Vec::new();
        while thread.place.phase == Phase::Scatter {
            program.advance(&mut thread, &mut seen);
        }
        let count = |region| seen.iter().filter(|access| of(region, access)).count() as u64;
        let (edges, vertices) = (count(program.edges), count(program.frontier));
        // As many vertices and edges as the step has of all.
        let step = &Algorithm::Nibble.steps()[4];
        let (first, members) = program.members(0);
        let of_all = program.adjacency.edges_of(first + members - 1).1 - program.adjacency.edges_of(first).0;
        for (found, all, share) in [(vertices, members, step.vertices), (edges, of_all, step.edges)] {
            let off = found as f64 / part(all, share) as f64 - 1.0;
            assert!(off.abs() < 0.1, "{found} of {all}, off by {off}");
        }
        assert_eq!(count(program.table_memory), 15 * edges);
        // Where a list ends is looked up for each edge, and where it begins for each vertex, too.
        assert_eq!(count(program.offsets), edges + 2 * vertices);
        // To bins so small that none of their edges is active nothing is sent.
        let stores = count(program.bin_memory);
        assert!(stores <= 2 * edges && stores * 100 > 2 * edges * 99, "{stores} stores of {edges} edges");
    }

    #[test]
    fn a_gather_stays_within_its_partition() {
        for algorithm in ALL {
            let mut program = partitions(algorithm, 2);
            for _ in 0..20_000 {
                let thread = &program.threads[1];
                let (phase, (first, members)) = (thread.place.phase, program.members(thread.place.partition));
                let mut accesses = Vec::new();
                let mut threads = std::mem::take(&mut program.threads);
                program.advance(&mut threads[1], &mut accesses);
                program.threads = threads;
                if phase == Phase::Gather {
                    for access in accesses.iter().filter(|access| of(program.values, access)) {
                        let vertex = (access.gva().0 - program.values.at(0).0) / WORD;
                        assert!((first..first + members).contains(&vertex), "{algorithm:?}: {vertex}");
                    }
                }
            }
        }
    }

    #[test]
    fn threads_begin_all_over_the_run() {
        for algorithm in ALL {
            let program = partitions(algorithm, 8);
            let places: Vec<Place> = program.threads.iter().map(|thread| thread.place).collect();
            // Where hardly anything is sent, no thread need be sending.
            let phases: BTreeSet<u8> = places.iter().map(|place| place.phase as u8).collect();
            let gathers = places.iter().filter(|place| matches!(place.phase, Phase::Gather | Phase::Early)).count();
            // A sparse scatter has 19 accesses an edge, a gather five.
            let least = if algorithm == Algorithm::Nibble { 1 } else { 3 };
            assert!(phases.len() >= 2 && gathers >= least, "{algorithm:?}: {places:?}");
            for (index, place) in places.iter().enumerate() {
                assert_eq!(place.partition % 8, index as u64);
            }
        }
    }

    #[test]
    fn impossible_graphs_are_refused() {
        let refused = |config: PartitionsConfig| Partitions::new(&config).err().expect("refused").to_string();
        let base = || PartitionsConfig { footprint: PageCount(40_000), ..PartitionsConfig::default() };
        assert!(refused(PartitionsConfig { degree: 0, ..base() }).contains("degree = 0: from 1 to 4096"));
        assert!(refused(PartitionsConfig { locality: 901, ..base() }).contains("locality = 901: from 0 to 900"));
        let error = refused(PartitionsConfig { threads: 100, ..base() });
        assert!(error.contains("partitions for 100 threads"), "{error}");
        let error = refused(PartitionsConfig { footprint: PageCount(1 << 33), ..base() });
        assert!(error.contains("numbers of 32 bits"), "{error}");
    }

    #[test]
    fn every_step_does_as_much_as_was_counted() {
        // Of 73,178,813 edges, GPOP's search gathered these in its last four steps that count, its
        // components in the first two.
        let edges = 73_178_813.0;
        for (algorithm, gathered) in [
            (Algorithm::Components, vec![73_178_813.0, 52_007_358.0]),
            (Algorithm::BreadthFirst, vec![579_464.0, 24_380_190.0, 73_178_813.0, 7_428_591.0]),
            (
                Algorithm::Nibble,
                vec![377_805.0, 1_634_788.0, 3_419_370.0, 5_353_833.0, 7_304_890.0, 9_137_826.0, 10_760_165.0],
            ),
        ] {
            assert_eq!(gathered.len(), algorithm.steps().len());
            for (step, gathered) in algorithm.steps().iter().zip(gathered) {
                let dense = f64::from(step.dense) / 1e6;
                let share = dense + (1.0 - dense) * f64::from(step.edges) / 1e6;
                let counted = gathered / edges;
                assert!((share / counted - 1.0).abs() < 0.05, "{algorithm:?}: {share} for {counted}");
            }
        }
    }

    #[test]
    fn all_phases_come_and_first_touches_cover_what_is_used() {
        for algorithm in ALL {
            for threads in [1, 3] {
                let mut program = partitions(algorithm, threads);
                let mut touched = BTreeSet::new();
                for thread in 0..threads {
                    loop {
                        let mut touches = Vec::new();
                        program.touch(thread, &mut touches, 1000);
                        if touches.is_empty() {
                            break;
                        }
                        touched.extend(touches.into_iter().map(|(page, _)| page));
                    }
                }
                let mut phases = Vec::new();
                let (mut all, mut fresh) = (0, 0);
                for (phase, _, access) in round(&mut program) {
                    if !phases.contains(&phase) {
                        phases.push(phase);
                    }
                    all += 1;
                    fresh += u64::from(!touched.contains(&Vpn(access.gva().page().0)));
                }
                let expected: &[Phase] = match algorithm {
                    Algorithm::PageRank => &[Phase::Scatter, Phase::Settle, Phase::Gather, Phase::Filter],
                    Algorithm::Components => &[
                        Phase::Inner,
                        Phase::Scatter,
                        Phase::Settle,
                        Phase::Early,
                        Phase::Gather,
                        Phase::Filter,
                        Phase::Reset,
                    ],
                    _ => &[Phase::Scatter, Phase::Settle, Phase::Gather, Phase::Filter, Phase::Reset],
                };
                phases.sort_by_key(|phase| expected.iter().position(|at| at == phase));
                assert_eq!(phases, expected, "{algorithm:?}, {threads} threads");
                assert!(fresh * 1000 <= all, "{algorithm:?}, {threads} threads: {fresh} of {all} never touched");
            }
        }
    }
}
