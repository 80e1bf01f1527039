// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are made up: streams of accesses computed from parameters and a seed.
//!
//! A generator pretends to own data and never stores it: what it would read there (the next
//! pointer, the target of an edge, the object of a key) it computes. So a 400 GB program costs no
//! memory. Each file here is one program: its memory, the order in which it fills it, and the
//! accesses of its steady phase ([`program`]). The driver turns that into a
//! [`Workload`]: it maps the memory, yields first touches while populating, and then warm and
//! measured accesses, with the threads taking turns.
//!
//! Same parameters, same stream, on every machine: random numbers are xoshiro256++ on integers, and
//! what floating point there is (the zipf sampler) uses software functions with the same bits
//! everywhere.

mod adjacency;
pub(crate) mod bijection;
mod btree;
mod build;
mod compiler;
mod compute;
mod config;
mod deals;
mod energy_grid;
mod event_queue;
mod fp_tree;
mod game_tree;
mod graph;
mod group_chase;
mod gups;
mod heap;
mod key_value;
mod layout;
mod locals;
mod lonestar;
mod match_finder;
mod memory;
mod neighbour;
mod netlist;
mod network;
mod page_touch;
mod partitions;
mod pattern;
mod pointer_chase;
mod program;
mod row_blocks;
mod shards;
mod slabs;
mod spanning_tree;
mod stream;
mod text;
mod transactions;
mod tree;
mod windows;
mod zipf;

pub use adjacency::GraphKind;
pub use btree::BtreeConfig;
pub use build::{BuildConfig, Heap};
pub use compiler::CompilerConfig;
pub use compute::ComputeConfig;
pub use energy_grid::EnergyGridConfig;
pub use event_queue::EventQueueConfig;
pub use fp_tree::FpTreeConfig;
pub use game_tree::GameTreeConfig;
pub use graph::{GraphConfig, Loading, Traversal};
pub use group_chase::GroupChaseConfig;
pub use gups::GupsConfig;
pub use heap::{GrowingHeapConfig, HeapGrowth};
pub use key_value::{KeyValueConfig, Server};
pub use lonestar::{LonestarAlgorithm, LonestarConfig};
pub use match_finder::MatchFinderConfig;
pub use neighbour::{NeighbourConfig, Profile};
pub use netlist::NetlistConfig;
pub use network::{NetworkCode, NetworkConfig};
pub use page_touch::{Locality, PageTouchConfig};
pub use partitions::{Algorithm, PartitionsConfig};
pub use pointer_chase::PointerChaseConfig;
pub use row_blocks::RowBlocksConfig;
pub use shards::ShardsConfig;
pub use stream::StreamConfig;
pub use text::TextConfig;
pub use transactions::TransactionsConfig;
pub use tree::TreeConfig;

use serde::{Deserialize, Serialize};

use crate::stream::{Workload, WorkloadError};
use config::{Common, Mixture};
use pattern::{Mixed, Pattern};
use program::Driver;

/// Declares the kinds of generators: variant, name, parameters, what it is, and how it is built.
macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident($config:ty) = $name:literal: $about:literal, |$c:ident| $build:expr;)*) => {
        /// A generator with its parameters, as written in a scenario: `kind = "gups"` and the keys
        /// of that kind.
        ///
        /// All programs have `footprint` (a size, `"4 GiB"`), `warm_accesses`, `measured_accesses`
        /// (of all threads together), `threads` and `seed`; those that model a real one have
        /// `local_permille`, `instructions_per_kiloaccess` and `small_mappings` besides.
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
        #[serde(tag = "kind", rename_all = "snake_case")]
        pub enum GeneratorConfig {
            $($(#[$doc])* $variant($config),)*
        }

        impl GeneratorConfig {
            /// All kinds, by the name that `kind` takes, with a line about each.
            pub const KINDS: &'static [(&'static str, &'static str)] = &[$(($name, $about)),*];

            /// Makes its seed depend on that of the run, whose 1 changes nothing.
            #[must_use]
            pub fn reseeded(mut self, seed: u64) -> Self {
                let own = match &mut self {
                    $(Self::$variant(config) => &mut config.seed,)*
                };
                *own = own.wrapping_add(seed.wrapping_sub(1));
                self
            }

            /// The program, at its beginning.
            ///
            /// # Errors
            /// [`WorkloadError::Parameter`] if a parameter is impossible.
            pub fn build(&self) -> Result<Box<dyn Workload>, WorkloadError> {
                Ok(match self {
                    $(Self::$variant($c) => $build,)*
                })
            }
        }
    };
}

kinds! {
    /// Random updates of a table.
    Gups(GupsConfig) = "gups": "read-modify-write of random words of one table",
        |c| Box::new(Driver::new(c.common(), gups::Gups::new(c)?)?);
    /// Sequential triad over three arrays.
    Stream(StreamConfig) = "stream": "sequential triad over three arrays",
        |c| Box::new(Driver::new(c.common(), stream::Stream::new(c)?)?);
    /// Dependent loads in one random cycle.
    PointerChase(PointerChaseConfig) = "pointer_chase": "dependent loads in one random cycle through all lines or pages",
        |c| Box::new(Driver::new(c.common(), pointer_chase::PointerChase::new(c)?)?);
    /// Dependent loads, one a page, with the frames of each group of 8 pages on so many lines of
    /// the host's table.
    GroupChase(GroupChaseConfig) = "group_chase": "dependent loads, one a page; groups of 8 pages on 1, 2, 4 or 8 lines",
        |c| Box::new(Driver::new(c.common(), group_chase::GroupChase::new(c)?)?);
    /// An access a page (HugeGPT's micro-benchmarks).
    PageTouch(PageTouchConfig) = "page_touch": "an access a page, at random or in strides",
        |c| Box::new(Driver::new(c.common(), page_touch::PageTouch::new(c)?)?);
    /// A key-value store under skewed requests.
    /// redis or memcached.
    KeyValue(KeyValueConfig) = "key_value": "redis or memcached with their allocators' layout, zipf keys, reads and updates",
        |c| mixed(c.common(), c.mixture(), key_value::KeyValue::new(c)?)?;
    /// Algorithms on a power-law graph.
    Graph(GraphConfig) = "graph": "PageRank, BFS or components on a power-law graph",
        |c| mixed(c.common(), c.mixture(), graph::Graph::new(c)?)?;
    /// The same, partition by partition.
    Partitions(PartitionsConfig) = "partitions": "GPOP's PageRank, components, BFS or local clustering, partition by partition",
        |c| mixed(c.common(), c.mixture(), partitions::Partitions::new(c)?)?;
    /// Galois' programs.
    Lonestar(LonestarConfig) = "lonestar": "Galois' PageRank or breadth-first search",
        |c| mixed(c.common(), c.mixture(), lonestar::Lonestar::new(c)?)?;
    /// `GraphChi`'s PageRank, whose memory is given back shard by shard.
    Shards(ShardsConfig) = "shards": "GraphChi's PageRank: shards of a graph that come into memory one after the other",
        |c| Box::new(shards::Shards::windows(c)?);
    /// `BlockSVM`.
    RowBlocks(RowBlocksConfig) = "row_blocks": "BlockSVM: a linear support vector machine, trained block by block of its rows",
        |c| Box::new(row_blocks::RowBlocks::windows(c)?);
    /// A large B+-tree.
    Tree(TreeConfig) = "tree": "look-ups and updates in a B+-tree, with or without values",
        |c| mixed(c.common(), c.mixture(), tree::Tree::new(c)?)?;
    /// Mitosis' BTree.
    Btree(BtreeConfig) = "btree": "Mitosis' BTree: random look-ups in a B+-tree of order 6",
        |c| mixed(c.common(), c.mixture(), btree::Btree::new(c)?)?;
    /// Transactions over many records.
    Transactions(TransactionsConfig) = "transactions": "transactions over records in a buffer pool or a heap",
        |c| mixed(c.common(), c.mixture(), transactions::Transactions::new(c)?)?;
    /// XSBench.
    EnergyGrid(EnergyGridConfig) = "energy_grid": "XSBench: look-ups in a unionised energy grid",
        |c| mixed(c.common(), c.mixture(), energy_grid::EnergyGrid::new(c)?)?;
    /// mcf.
    Network(NetworkConfig) = "network": "mcf, LEMON: network simplex over a timetable's arcs and nodes",
        |c| mixed(c.common(), c.mixture(), network::Network::new(c)?)?;
    /// canneal.
    Netlist(NetlistConfig) = "netlist": "canneal: swaps of elements of a netlist",
        |c| mixed(c.common(), c.mixture(), netlist::Netlist::new(c)?)?;
    /// omnetpp.
    EventQueue(EventQueueConfig) = "event_queue": "omnetpp: a heap of events, messages and modules",
        |c| mixed(c.common(), c.mixture(), event_queue::EventQueue::new(c)?)?;
    /// gcc.
    Compiler(CompilerConfig) = "compiler": "gcc: passes over functions' code and shared declarations",
        |c| mixed(c.common(), c.mixture(), compiler::Compiler::new(c)?)?;
    /// xz.
    MatchFinder(MatchFinderConfig) = "match_finder": "xz: hash table and trees over a dictionary",
        |c| mixed(c.common(), c.mixture(), match_finder::MatchFinder::new(c)?)?;
    /// freqmine.
    FpTree(FpTreeConfig) = "fp_tree": "freqmine: FP-growth over arrays of paths, and conditional trees",
        |c| mixed(c.common(), c.mixture(), fp_tree::FpTree::new(c)?)?;
    /// deepsjeng.
    GameTree(GameTreeConfig) = "game_tree": "deepsjeng: a chess program's search with a transposition table",
        |c| mixed(c.common(), c.mixture(), game_tree::GameTree::new(c)?)?;
    /// swaptions and raytrace.
    Compute(ComputeConfig) = "compute": "swaptions, raytrace: hardly a TLB miss",
        |c| mixed(c.common(), c.mixture(), compute::Compute::new(c)?)?;
    /// A job of a kernel's build.
    Build(BuildConfig) = "build": "a job of a kernel's build: short processes, growing heaps, files in the page cache",
        |c| Box::new(build::Build::new(c)?);
    /// Co-runners that map, touch and unmap.
    Neighbour(NeighbourConfig) = "neighbour": "co-runners that map, touch and unmap memory without end",
        |c| Box::new(neighbour::Neighbour::new(c)?);
}

/// The workload of a program that is stated as operations on data structures.
fn mixed<P: Pattern + 'static>(
    common: Common,
    mixture: Mixture,
    pattern: P,
) -> Result<Box<dyn Workload>, WorkloadError> {
    let heap = pattern.layout().growing();
    let driver: Box<dyn Workload> = Box::new(Driver::new(common, Mixed::new(common, mixture, pattern))?);
    Ok(match heap {
        Some(heap) => Box::new(heap::Growing::new(driver, heap)),
        None => driver,
    })
}

#[cfg(test)]
mod tests;
