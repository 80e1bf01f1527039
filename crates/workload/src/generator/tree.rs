// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tree`: look-ups and updates in a large B+-tree. One shape, two programs: an index of small
//! nodes without locality (the BTree benchmark) and a store of keys with values (Masstree: Mao,
//! Kohler, Morris, EuroSys 2012, whose nodes are 4 lines with up to 15 keys).
//!
//! Memory: one mapping of nodes (`node_bytes`; header of 16 bytes, then `fanout` keys of 8, then as
//! many pointers of 8) of all levels, root first, each level's nodes scattered over its part, as
//! splits under random inserts leave them; one mapping of values (`value_bytes` a key), also in
//! order of insertion. Nodes are filled to 70 % (the expected fill of random inserts, ln 2).
//!
//! An operation descends from the root: header, binary search among the keys, the child's pointer;
//! in the leaf the value's pointer and the value, line by line, stored to by a put.

use nestwalk_mem::{Access, Vpn};

use super::bijection::{Bijection, Dice, mix};
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use super::zipf::Zipf;
use crate::stream::WorkloadError;

const HEADER: u64 = 16;
const WORD: u64 = 8;
const LINE: u64 = 64;
/// Of a node's places, those in use, in thousandths.
const FILL_PERMILLE: u64 = 700;

parameters! {
    /// Look-ups and updates in a B+-tree. Local accesses and instructions as measured of redis.
    TreeConfig mixed(909, 2689, 12) {
        /// Keys that fit into a node: 4 to 512.
        fanout: u64 = 15,
        /// Bytes of a value, 0 to 65536; 0 where the pointer is the value.
        value_bytes: u64 = 64,
        /// Of 1000 operations, how many store.
        put_permille: u16 = 500,
        /// Zipf exponent of the keys' popularity, at most 5; 0 is uniform.
        #[schemars(range(min = 0.0, max = 5.0), extend("x-unit" = "zipf's exponent"))]
        skew: f64 = 0.0,
    }
}

/// A level of nodes, the leaves' being the last.
struct Level {
    /// Bytes from the node region's start.
    from: u64,
    place: Bijection,
    /// Keys under one node of it.
    keys: u64,
}

pub(super) struct Tree {
    layout: Layout,
    nodes: Region,
    values: Option<Region>,
    levels: Vec<Level>,
    config: TreeConfig,
    used: u64,
    node_bytes: u64,
    keys: u64,
    value_place: Bijection,
    popularity: Option<Zipf>,
    scramble: Bijection,
    sweep: Sweep,
    dice: Vec<Dice>,
}

impl Tree {
    pub(super) fn new(config: &TreeConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        if !(4..=512).contains(&config.fanout) {
            return Err(impossible(name, format!("fanout = {}: from 4 to 512", config.fanout)));
        }
        if config.value_bytes > 65_536 || config.put_permille > 1000 || !(0.0..=5.0).contains(&config.skew) {
            return Err(impossible(name, "value_bytes is at most 65536, put_permille at most 1000, skew from 0 to 5"));
        }
        let node_bytes = (HEADER + 2 * WORD * config.fanout).next_multiple_of(LINE);
        let used = (config.fanout * FILL_PERMILLE / 1000).max(2);
        let value = config.value_bytes.next_multiple_of(WORD);
        // A key takes its value and its share of a leaf and of the nodes above, which is a
        // geometric series. Rounding may take a page more, so fewer keys are tried until they fit.
        let bytes = layout.left() * nestwalk_mem::addr::PAGE_BYTES;
        let mut keys = bytes * (used - 1) / (value * (used - 1) + node_bytes);
        let count = |keys: u64| {
            let mut nodes = 0;
            let mut level = keys;
            while level > 1 {
                level = level.div_ceil(used);
                nodes += level;
            }
            nodes
        };
        let pages = |keys: u64| {
            nestwalk_mem::PageCount::covering(count(keys) * node_bytes).0
                + nestwalk_mem::PageCount::covering((keys * value).max(1)).0
        };
        while keys > used && pages(keys) > layout.left() {
            keys -= (keys / 1024).max(1);
        }
        if keys <= used {
            return Err(impossible(name, "footprint: too small for a tree of two levels"));
        }
        let value_pages = if value == 0 { 0 } else { nestwalk_mem::PageCount::covering(keys * value).0 };
        let nodes = layout.map(layout.left() - value_pages);
        let values = (value > 0).then(|| layout.map(value_pages));
        let mut levels = Vec::new();
        let (mut from, mut below) = (0, 1);
        let mut sizes = Vec::new();
        while below < keys {
            below *= used;
            sizes.push((keys.div_ceil(below), below));
        }
        for &(nodes, keys) in sizes.iter().rev() {
            levels.push(Level { from, place: Bijection::new(nodes, mix(config.seed ^ keys)), keys });
            from += nodes * node_bytes;
        }
        Ok(Self {
            sweep: Sweep::new(vec![layout_data(nodes, values)], config.threads),
            layout,
            nodes,
            values,
            levels,
            used,
            node_bytes,
            keys,
            value_place: Bijection::new(keys, mix(config.seed ^ 0x7a1)),
            popularity: (config.skew > 0.0).then(|| Zipf::new(keys, config.skew)),
            scramble: Bijection::new(keys, mix(config.seed ^ 0x5c4a)),
            dice: Dice::of_threads(config.seed, config.threads),
            config: config.clone(),
        })
    }

    /// The accesses in one node on the way to place `slot`.
    fn search(&self, base: u64, slot: u64, accesses: &mut Vec<Access>) {
        accesses.push(Access::load(self.nodes.at(base)));
        let (mut low, mut high) = (0, self.used);
        while low < high {
            let middle = (low + high) / 2;
            accesses.push(Access::load(self.nodes.at(base + HEADER + middle * WORD)));
            if middle <= slot { low = middle + 1 } else { high = middle }
        }
        accesses.push(Access::load(self.nodes.at(base + HEADER + (self.config.fanout + slot) * WORD)));
    }
}

fn layout_data(nodes: Region, values: Option<Region>) -> Vec<Region> {
    std::iter::once(nodes).chain(values).collect()
}

impl Pattern for Tree {
    const NAME: &'static str = "tree";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let dice = &mut self.dice[thread];
        let key = match &self.popularity {
            Some(zipf) => self.scramble.apply(zipf.sample(&mut dice.0) - 1),
            None => dice.below(self.keys),
        };
        let put = dice.chance(self.config.put_permille.into());
        for level in &self.levels {
            let base = level.from + level.place.apply(key / level.keys) * self.node_bytes;
            let slot = key % level.keys / (level.keys / self.used);
            self.search(base, slot, accesses);
        }
        let Some(values) = self.values else {
            if put && let Some(last) = accesses.last().copied() {
                accesses.push(Access::store(last.gva()));
            }
            return;
        };
        let value = self.config.value_bytes.next_multiple_of(WORD);
        let at = self.value_place.apply(key) * value;
        accesses.extend((0..value).step_by(WORD as usize).map(|byte| Access::new(values.at(at + byte), put)));
    }
}
