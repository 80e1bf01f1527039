// SPDX-License-Identifier: MIT OR Apache-2.0
//! `lonestar`: PageRank and breadth-first search of Galois' Lonestar (commit b67f942), as
//! `pagerank-pull-cpu` and `bfs-cpu` run by default.
//!
//! Memory: `offsets` (8 bytes a vertex), `edges` (4 bytes each), `nodes` (8 bytes of PageRank, 4 of
//! the search); PageRank's `delta` and `residual` (4 bytes a vertex each), the search's `bag` (16
//! bytes an item). Each vertex is read from the file with its list (`constructFrom`), so pages of
//! the first three arrays are first touched between each other, as the lists are long or short;
//! then comes a loop over `delta` and `residual`.
//!
//! - `page_rank`, by residuals: a loop over all vertices sets the delta of each from its residual,
//!   and the next one sums up, vertex by vertex, the deltas of the targets of its edges.
//! - `breadth_first`, level by level (`SyncTile`): the bag's items are looked at in the order in
//!   which they were found, and an edge whose target is new stores its distance, looks its list up
//!   and puts it into the next bag.
//!
//! **In which order vertices are found** matters to a search: the new targets of a list come one
//! after the other and ascend, so what is found together is read together, from near places if the
//! list was long. No search is made here. The next items are a *run*: as many as a list finds, at
//! equal distances over all vertices. How many that is was counted in searches of `social` graphs
//! ([`RUNS_PERMILLE`]).

use std::ops::Range;

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, PageCount, Vpn};
use serde::{Deserialize, Serialize};

use super::adjacency::{self, Adjacency, GraphKind, List};
use super::bijection::{Dice, mix, scale};
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

const OFFSET: u64 = 8;
const EDGE: u64 = 4;
/// `LNode` of PageRank: a value and an out-degree.
const NODE: u64 = 8;
const VALUE: u64 = 4;
/// `EdgeTile`: two edges' numbers.
const ITEM: u64 = 16;
/// Edges of an item (`EDGE_TILE_SIZE`), and of an operation.
const TILE: u64 = 256;
/// Vertices of an operation that has no edges.
const VERTICES: u64 = 8;
/// Loads of an edge that go to the graph's and the loop's own fields, which the compiler keeps in
/// no register. A search has 7.37 accesses an edge, counted at 1,048,576 and 4,194,304 vertices,
/// and 2.2 of them are to the arrays above.
const FIELDS: u64 = 4;
/// Of a thousand vertices that a search finds, those of which a list finds `2^k` to `2^(k+1) - 1`:
/// counted at 4,194,304 vertices of degree 35; at 1,048,576 each is within 0.034 of it.
const RUNS_PERMILLE: [u64; 17] = [50, 70, 88, 97, 98, 90, 81, 68, 60, 47, 44, 28, 17, 32, 19, 24, 87];

/// Which of the programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LonestarAlgorithm {
    /// PageRank, pulled, by residuals.
    PageRank,
    /// Breadth-first search, level by level.
    BreadthFirst,
}

parameters! {
    /// A program of Galois' Lonestar on a graph. Local accesses are what both have beside those
    /// above, counted; instructions those of PageRank (the search has 1840).
    LonestarConfig mixed(170, 3540, 13) {
        /// What is computed.
        algorithm: LonestarAlgorithm = LonestarAlgorithm::PageRank,
        /// Edges a vertex, on average: 1 to 4096. Twitter has 35.
        degree: u64 = 35,
        /// Whose degrees the graph has.
        graph: GraphKind = GraphKind::Social,
        /// How near each other the targets of a vertex are, and to it (rho in thousandths): 0,
        /// none, to 900. Slashdot has 200.
        locality: u64 = 100,
    }
}

pub(super) struct Lonestar {
    layout: Layout,
    degree: u64,
    seed: u64,
    vertices: u64,
    /// Bytes of an element of `nodes`.
    node: u64,
    adjacency: Adjacency,
    offsets: Region,
    edges: Region,
    nodes: Region,
    /// PageRank's delta, or the bag.
    first: Region,
    /// PageRank's residual; a search has none.
    residual: Option<Region>,
    reading: Vec<Reading>,
    /// Of the arrays beside the graph.
    sweep: Sweep,
    threads: Vec<Thread>,
}

/// How far a thread is with reading its slice of the graph: all vertices of a page of `offsets` at
/// a time.
#[derive(Default)]
struct Reading {
    /// The next page of `offsets`, and one past its last.
    block: u64,
    end: u64,
    /// Pages of `edges` that are to be touched before that.
    edges: Range<u64>,
}

/// A thread, and where it is.
struct Thread {
    /// Its slice of the vertices, and the next one.
    start: u64,
    end: u64,
    vertex: u64,
    /// Whether PageRank sets deltas.
    sets: bool,
    /// A list that is not done yet.
    rest: Option<List>,
    run: Run,
    /// Items read.
    items: u64,
    dice: Dice,
}

/// Vertices that one list has found: how many, and how many of them were looked at.
struct Run {
    len: u64,
    done: u64,
}

impl Run {
    /// As many as a list finds, in a graph of so many vertices.
    fn draw(dice: &mut Dice, vertices: u64) -> Self {
        // The longer, the rarer: one of class k has 3 * 2^(k-1) - 1/2 vertices on average.
        let weight = |k: usize| (RUNS_PERMILLE[k] << 32) / ((3 << k) - 1);
        let total = (0..RUNS_PERMILLE.len()).map(weight).sum();
        let mut left = dice.below(total);
        let mut class = 0;
        while left >= weight(class) {
            left -= weight(class);
            class += 1;
        }
        let len = (1 << class) + dice.below(1 << class);
        Self { len: len.min(vertices), done: 0 }
    }

    /// Its next vertex: one of each of `len` equal parts of all.
    fn next(&mut self, dice: &mut Dice, vertices: u64) -> u64 {
        let bound = |part: u64| (u128::from(vertices) * u128::from(part) / u128::from(self.len)) as u64;
        let (from, to) = (bound(self.done), bound(self.done + 1));
        self.done += 1;
        from + dice.below((to - from).max(1))
    }
}

impl Lonestar {
    pub(super) fn new(config: &LonestarConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        let degree = config.degree;
        adjacency::check(name, degree, config.locality)?;
        let [node, first, residual] = match config.algorithm {
            LonestarAlgorithm::PageRank => [NODE, VALUE, VALUE],
            LonestarAlgorithm::BreadthFirst => [VALUE, ITEM, 0],
        };
        // Each of the five arrays ends within a page.
        let bytes = (layout.left() - 5) * PAGE_BYTES;
        let vertices = bytes / (OFFSET + EDGE * degree + node + first + residual);
        let vertices = adjacency::whole_groups(name, vertices, degree, config.threads)?;
        let threads = u64::from(config.threads);
        if vertices > u64::from(u32::MAX) {
            return Err(impossible(name, "footprint: vertices have numbers of 32 bits"));
        }
        let mut map = |bytes: u64| layout.map(PageCount::covering(vertices * bytes).0);
        let [offsets, edges, nodes, first] = [OFFSET, EDGE * degree, node, first].map(&mut map);
        let residual = (residual > 0).then(|| map(residual));
        let beside = [Some(first), residual].into_iter().flatten().collect();
        let reading = |index| {
            let bound = |index| offsets.pages.len() * index / threads;
            Reading { block: bound(index), end: bound(index + 1), edges: 0..0 }
        };
        let dice = Dice::of_threads(config.seed ^ 0x10_4e57, config.threads);
        let thread = |(index, mut dice): (u64, Dice)| {
            let (start, end) = (vertices * index / threads, vertices * (index + 1) / threads);
            // Measuring begins somewhere in the slice, as it would in a long run.
            let vertex = start + scale(mix(config.seed ^ mix(index)), end - start);
            let run = Run::draw(&mut dice, vertices);
            let run = Run { done: dice.below(run.len), ..run };
            Thread { start, end, vertex, sets: false, rest: None, run, items: start, dice }
        };
        Ok(Self {
            reading: (0..threads).map(reading).collect(),
            sweep: Sweep::new(vec![beside], config.threads),
            layout,
            degree,
            seed: mix(config.seed),
            vertices,
            node,
            adjacency: Adjacency::new(config.graph, vertices, degree, config.locality, mix(config.seed)),
            offsets,
            edges,
            nodes,
            first,
            residual,
            threads: (0..).zip(dice).map(thread).collect(),
        })
    }

    /// The first touches of the thread that reads a part of the graph.
    fn read(&self, reading: &mut Reading, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        // The page of `edges` with which the lists of a page of `offsets` begin: the first one that
        // no vertex before them has an edge in.
        let begins = |block: u64| match block * (PAGE_BYTES / OFFSET) {
            vertex if vertex < self.vertices => (self.adjacency.edges_of(vertex).0 * EDGE).div_ceil(PAGE_BYTES),
            _ => self.edges.pages.len(),
        };
        let touch = |region: Region, page: u64| (region.pages.start + page, true);
        while touches.len() < most {
            if let Some(page) = reading.edges.next() {
                touches.push(touch(self.edges, page));
            } else if reading.block < reading.end {
                let node = reading.block * (PAGE_BYTES / OFFSET) * self.node;
                if node.is_multiple_of(PAGE_BYTES) {
                    touches.push(touch(self.nodes, node / PAGE_BYTES));
                }
                touches.push(touch(self.offsets, reading.block));
                reading.edges = begins(reading.block)..begins(reading.block + 1);
                reading.block += 1;
            } else {
                break;
            }
        }
    }

    /// Where the list of `vertex` begins and ends.
    fn bounds(&self, vertex: u64, accesses: &mut Vec<Access>) {
        accesses.extend([vertex.saturating_sub(1), vertex].map(|at| Access::load(self.offsets.at(at * OFFSET))));
    }

    fn edge(&self, edge: u64) -> Access {
        Access::load(self.edges.at(edge * EDGE))
    }

    /// Some vertices of the first loop (`PageRank_delta`).
    fn set_deltas(&self, thread: &mut Thread, residual: Region, accesses: &mut Vec<Access>) {
        let end = (thread.vertex + VERTICES).min(thread.end);
        for vertex in thread.vertex..end {
            let [delta, residual] = [self.first, residual].map(|array| array.at(vertex * VALUE));
            let value = self.nodes.at(vertex * NODE);
            accesses.extend([
                Access::store(delta),
                Access::load(residual),
                Access::store(residual),
                Access::load(value),
                Access::store(value),
                Access::load(self.nodes.at(vertex * NODE + VALUE)),
                Access::store(delta),
            ]);
        }
        thread.vertex = end;
    }

    /// A vertex of the second loop (`PageRank`), or what is left of a long list.
    fn pull(&self, thread: &mut Thread, residual: Region, accesses: &mut Vec<Access>) {
        let vertex = thread.vertex;
        let mut list = thread.rest.take().unwrap_or_else(|| {
            self.bounds(vertex, accesses);
            self.adjacency.list(vertex)
        });
        for _ in 0..TILE {
            let Some((edge, target)) = list.next(&self.adjacency) else { break };
            accesses.extend([self.edge(edge), Access::load(self.first.at(target * VALUE))]);
        }
        if !list.is_done() {
            thread.rest = Some(list);
            return;
        }
        accesses.push(Access::store(residual.at(vertex * VALUE)));
        thread.vertex += 1;
    }

    fn rank(&self, thread: &mut Thread, residual: Region, accesses: &mut Vec<Access>) {
        if thread.vertex >= thread.end {
            thread.vertex = thread.start;
            thread.sets = !thread.sets;
        }
        if thread.sets {
            self.set_deltas(thread, residual, accesses);
        } else {
            self.pull(thread, residual, accesses);
        }
    }

    /// The item of that number: the bag's memory is used again.
    fn item(&self, number: u64) -> u64 {
        number % self.vertices * ITEM
    }

    /// An item of the bag: a list, or a part of a long one (`syncAlgo`).
    fn search(&self, index: usize, thread: &mut Thread, accesses: &mut Vec<Access>) {
        let mut list = thread.rest.take().unwrap_or_else(|| {
            if thread.run.done == thread.run.len {
                thread.run = Run::draw(&mut thread.dice, self.vertices);
            }
            self.adjacency.list(thread.run.next(&mut thread.dice, self.vertices))
        });
        let item = self.item(thread.items);
        thread.items += 1;
        accesses.extend([0, 8].map(|field| Access::load(self.first.at(item + field))));
        let fields = self.layout.locals(index);
        for _ in 0..TILE {
            let Some((edge, target)) = list.next(&self.adjacency) else { break };
            accesses.extend((0..FIELDS).map(|field| Access::load(fields.at(field * 8))));
            let distance = self.nodes.at(target * VALUE);
            accesses.extend([self.edge(edge), Access::load(distance)]);
            if mix(self.seed ^ list.vertex ^ target << 32).is_multiple_of(self.degree) {
                accesses.push(Access::store(distance));
                self.bounds(target, accesses);
                // The next bag, filled as fast as this one is read.
                let found = self.item(thread.items + self.vertices / 2);
                accesses.extend([0, 8].map(|field| Access::store(self.first.at(found + field))));
            }
        }
        if !list.is_done() {
            thread.rest = Some(list);
        }
    }
}

impl Pattern for Lonestar {
    const NAME: &'static str = "lonestar";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        let index = usize::from(thread);
        let mut reading = std::mem::take(&mut self.reading[index]);
        self.read(&mut reading, touches, most);
        self.reading[index] = reading;
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, index: usize, accesses: &mut Vec<Access>) {
        let mut threads = std::mem::take(&mut self.threads);
        let thread = &mut threads[index];
        match self.residual {
            Some(residual) => self.rank(thread, residual, accesses),
            None => self.search(index, thread, accesses),
        }
        self.threads = threads;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(algorithm: LonestarAlgorithm) -> Lonestar {
        let config = LonestarConfig { footprint: PageCount(16_384), algorithm, ..LonestarConfig::default() };
        Lonestar::new(&config).unwrap()
    }

    #[test]
    fn an_iteration_of_page_rank_reads_each_edge_once_and_stores_each_delta_twice() {
        let mut program = program(LonestarAlgorithm::PageRank);
        let (mut edges, mut deltas, mut all) = (0, 0, 0);
        let mut accesses = Vec::new();
        let begun = program.threads[0].vertex;
        loop {
            accesses.clear();
            program.operate(0, &mut accesses);
            all += accesses.len() as u64;
            let within = |region: Region, access: &Access| region.pages.contains(Vpn(access.gva().page().0));
            edges += accesses.iter().filter(|access| within(program.edges, access)).count() as u64;
            deltas += accesses.iter().filter(|access| access.is_store() && within(program.first, access)).count();
            let thread = &program.threads[0];
            if !thread.sets && thread.vertex == begun && deltas > 0 {
                break;
            }
        }
        assert_eq!(edges, program.adjacency.edges());
        assert_eq!(deltas as u64, 2 * program.vertices);
        // With 170 of 1000 to locals that is 2.75; 2.79 were counted.
        let each = all as f64 / edges as f64;
        assert!((2.27..2.31).contains(&each), "{each}");
    }

    #[test]
    fn a_page_of_vertices_is_touched_first_where_their_lists_begin() {
        let mut program = program(LonestarAlgorithm::BreadthFirst);
        let mut touches = Vec::new();
        program.touch(0, &mut touches, usize::MAX);
        let at = |region: Region, page: u64| {
            touches.iter().position(|&(touched, _)| touched == region.pages.start + page).unwrap() as u64
        };
        let vertices = PAGE_BYTES / OFFSET;
        let mut gaps = Vec::new();
        for block in 1..program.offsets.pages.len() {
            let (edge, _) = program.adjacency.edges_of(block * vertices);
            // Of what was touched before, all but these two arrays' pages are of the lists before.
            let lists = (edge * EDGE).div_ceil(PAGE_BYTES);
            let place = at(program.offsets, block);
            assert_eq!(place, lists + block + 1 + block / 2, "{block}");
            gaps.push(place - at(program.offsets, block - 1));
        }
        // Lists are not alike: no array has every so manieth frame.
        assert!(gaps.iter().max().unwrap() > &(2 * gaps.iter().min().unwrap()), "{gaps:?}");
    }

    #[test]
    fn a_search_has_the_accesses_of_an_edge_that_were_counted() {
        let mut program = program(LonestarAlgorithm::BreadthFirst);
        let (mut edges, mut found, mut all) = (0, 0, 0);
        let mut accesses = Vec::new();
        while edges < 2_000_000 {
            accesses.clear();
            program.operate(0, &mut accesses);
            all += accesses.len();
            let within = |region: Region, access: &Access| region.pages.contains(Vpn(access.gva().page().0));
            edges += accesses.iter().filter(|access| within(program.edges, access)).count();
            found += accesses.iter().filter(|access| access.is_store() && within(program.nodes, access)).count();
        }
        // With 170 of 1000 to locals that is 7.5; 7.37 were counted.
        let each = all as f64 / edges as f64;
        assert!((6.1..6.35).contains(&each), "{each}");
        let one_of = edges as f64 / found as f64;
        assert!((33.0..37.0).contains(&one_of), "{one_of}");
    }

    #[test]
    fn runs_ascend_over_all_vertices_and_are_as_long_as_counted() {
        let mut dice = Dice::of_threads(1, 1).pop().unwrap();
        let vertices = 1 << 20;
        let (mut of_class, mut all) = ([0_u64; RUNS_PERMILLE.len()], 0);
        while all < 40_000_000 {
            let run = Run::draw(&mut dice, vertices);
            of_class[run.len.ilog2() as usize] += run.len;
            all += run.len;
        }
        for (class, permille) in RUNS_PERMILLE.into_iter().enumerate() {
            let share = of_class[class] * 1000 / all;
            // The longest are few: some 300 of them.
            assert!(share.abs_diff(permille) <= 2 + permille / 6, "2^{class}: {share} for {permille}");
        }
        let mut run = Run { len: 1000, done: 0 };
        let found: Vec<u64> = (0..1000).map(|_| run.next(&mut dice, vertices)).collect();
        assert!(found.is_sorted());
        assert!(found[0] < 1049 && found[999] >= vertices - 1049);
    }
}
