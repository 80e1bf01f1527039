// SPDX-License-Identifier: MIT OR Apache-2.0
//! `btree`: look-ups of uniformly random keys in the B+-tree of Mitosis' BTree workload
//! (Achermann, Panwar, Bhattacharjee, Roscoe, Gandhi, ASPLOS 2020; `mitosis-workload-btree` at
//! commit a5bfde9, of order 6), a tree of nodes that were allocated one by one as keys were
//! inserted in random order.
//!
//! Memory, as the program allocates it: elements of 64 bytes in one array; slabs of 1 MiB of
//! records (32 bytes, one a key) and of nodes (56 bytes), mapped when the last one is used up and
//! handed out from the end; and in the heap two arrays a node, its keys and its pointers. Element
//! and record number `n` belong to the `n`th key inserted. The program maps 3 MiB for a slab, to
//! align it to 2 MiB, and never touches the rest; here slabs are neighbours.
//!
//! No node is stored. How many keys a leaf and how many children a node has follows a period of
//! [`PERIOD`] nodes with the shares that random inserts lead to ([`shares`]); when a node was
//! allocated is a random permutation of its level, since any leaf is as likely to split last, and
//! the levels' nodes mix in the order of allocation in proportion to their numbers; but a node that
//! was split into being by a child comes right behind that child ([`MAKERS_PERMILLE`]).
//!
//! A look-up (`find`) draws a number, every second of which is a key's. In each node it reads
//! whether it is a leaf, how many keys it has, where they are, the keys up to the first larger one,
//! and the child's pointer; in the leaf all keys up to the one sought; of a key found the record,
//! whose count of look-ups it increments, and the element.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, Gva, PageCount, Vpn};

use super::bijection::{Bijection, Dice, mix, scale};
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::Region;
use super::pattern::Pattern;
use crate::stream::WorkloadError;

/// Children of a node, at most; a leaf has a key less (`CONFIG_DEFAULT_ORDER`).
const ORDER: u64 = 6;
const WORD: u64 = 8;
const ELEMENT: u64 = 64;
const RECORD: u64 = 32;
const NODE: u64 = 56;
const SLAB: u64 = 1 << 20;
const SLAB_PAGES: u64 = SLAB / PAGE_BYTES;
const RECORDS_A_SLAB: u64 = SLAB / RECORD;
const NODES_A_SLAB: u64 = SLAB / NODE;
/// The heap grows by 132 KiB at a time (glibc's `top_pad` and what an array takes), and a node's
/// arrays come from what it grew by last. Counted with glibc 2.36 in a tree of 350,596 nodes: 256.6
/// bytes of heap a node. An aligned block is cut out of a larger one. So the first half of a
/// stretch's nodes go through it with the pointers 128 or 192 bytes behind the keys (53 and 47 %);
/// the arrays of the other half are pieces that were left over, a node's two apart from each other
/// (half of them by more than 26 KB).
const STRETCH: u64 = 132 << 10;
const NODES_A_STRETCH: u64 = STRETCH / 256;
/// Bytes of a stretch for two nodes, one of each half.
const PAIR: u64 = 512;
const PAIRS: u64 = STRETCH / PAIR;
const POINTERS: [u64; 2] = [128, 192];
/// Where in a pair's bytes the left over pieces are, for keys and for pointers.
const PIECES: [u64; 2] = [256, 384];
const LINE: u64 = 64;
/// Accesses of a look-up to the stack and the random numbers' state, counted in a capture, and how
/// many of them are stores (`docs/model.md`).
const STACK_A_LOOKUP: u64 = 41;
const STACK_STORES: u64 = 18;
/// Of a thousand nodes above the leaves, those that were allocated right behind a node which is
/// still their child (counted: 439 to 449 on the lowest levels of a tree of 200,000 keys).
const MAKERS_PERMILLE: u64 = 440;
/// Nodes after which numbers of children come again.
const PERIOD: u64 = 60;

parameters! {
    /// Look-ups in a B+-tree of small nodes. Instructions from a capture.
    BtreeConfig mixed(0, 2893, 12) {
    }
}

/// Of [`PERIOD`] nodes, how many have 0, 1, 2, ... up to `most` keys (or children), when nodes that
/// would have one more split into `left` and the rest.
///
/// Random inserts hit a node in proportion to what it has. As the tree grows, the number `n(i)` of
/// nodes with `i` grows in proportion: `(1 + i) n(i) = (i - 1) n(i - 1)`, and what splits yield
/// besides, `most * n(most)` at `left` and at `most + 1 - left` (fringe analysis: Yao 1978).
fn shares(most: u64, left: u64) -> Vec<u64> {
    const SPLITS: u64 = 1 << 40;
    let mut nodes = vec![0; most as usize + 1];
    for i in left.min(most + 1 - left)..=most {
        let split = SPLITS * (u64::from(i == left) + u64::from(i == most + 1 - left));
        nodes[i as usize] = ((i - 1) * nodes[i as usize - 1] + split) / (1 + i);
    }
    let sum: u64 = nodes.iter().sum();
    let mut passed = 0;
    let mut given = 0;
    for count in &mut nodes {
        passed += *count;
        let so_far = (2 * PERIOD * passed + sum) / (2 * sum);
        *count = so_far - given;
        given = so_far;
    }
    nodes
}

/// What belongs to one key or child within a level's period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    /// Node of the period.
    node: u64,
    /// Which of the node's it is.
    slot: u64,
    /// How many the node has.
    of: u64,
}

/// A level of nodes.
struct Level {
    nodes: u64,
    /// By the number of a key or child within a period.
    places: Vec<Place>,
    /// Of each node of a period, the number of its first key or child.
    firsts: Vec<u64>,
    /// When a node was allocated, counted within its level.
    turn: Bijection,
}

impl Level {
    /// The level above `below` keys or nodes; `shares` are those of [`shares`].
    fn above(below: u64, shares: &[u64], seed: u64) -> Self {
        let mut sizes: Vec<u64> =
            shares.iter().enumerate().flat_map(|(of, &count)| std::iter::repeat_n(of as u64, count as usize)).collect();
        // A fixed random order: Fisher-Yates.
        let mut dice = Dice::of_threads(seed, 1).remove(0);
        for last in (1..sizes.len()).rev() {
            sizes.swap(last, dice.below(last as u64 + 1) as usize);
        }
        if below <= ORDER {
            sizes = vec![below];
        }
        let place = |(node, &of): (usize, &u64)| (0..of).map(move |slot| Place { node: node as u64, slot, of });
        let places: Vec<Place> = sizes.iter().enumerate().flat_map(place).collect();
        let sums = sizes.iter().scan(0, |sum, of| {
            *sum += of;
            Some(*sum - of)
        });
        let mut level = Self { nodes: 1, firsts: sums.collect(), places, turn: Bijection::new(1, 0) };
        level.nodes = level.place(below - 1).node + 1;
        level.turn = Bijection::new(level.nodes, mix(seed ^ below));
        level
    }

    /// The node of key or child number `child`.
    fn place(&self, child: u64) -> Place {
        let period = self.places.len() as u64;
        let place = self.places[(child % period) as usize];
        Place { node: child / period * PERIOD + place.node, ..place }
    }
}

/// `count` of `of`, as a share of `nodes`, rounded down.
fn share(count: u64, nodes: u64, of: u64) -> u64 {
    (u128::from(count) * u128::from(nodes) / u128::from(of)) as u64
}

/// The levels above `keys` keys, the leaves' first.
fn levels(keys: u64, seed: u64) -> Vec<Level> {
    let leaf = shares(ORDER - 1, ORDER / 2);
    let inner = shares(ORDER, ORDER.div_ceil(2));
    let mut levels = vec![Level::above(keys, &leaf, mix(seed))];
    while levels[levels.len() - 1].nodes > 1 {
        let below = levels[levels.len() - 1].nodes;
        levels.push(Level::above(below, &inner, mix(seed ^ levels.len() as u64)));
    }
    levels
}

pub(super) struct Btree {
    layout: Layout,
    elements: Region,
    slabs: Region,
    heap: Region,
    /// Of each slab of records and of nodes, its number among all slabs.
    record_slabs: Vec<u64>,
    node_slabs: Vec<u64>,
    /// Nodes that had been allocated when each slab was mapped.
    slab_births: Vec<u64>,
    keys: u64,
    levels: Vec<Level>,
    inserted: Bijection,
    /// Which left over piece a node's pointers get.
    pieces: Bijection,
    seed: u64,
    filled: Filled,
    dice: Vec<Dice>,
}

/// How far the tree is built: pages touched.
#[derive(Default)]
struct Filled {
    elements: u64,
    slabs: u64,
    /// Of the slab under way.
    slab_pages: u64,
    heap: u64,
}

impl Btree {
    pub(super) fn new(config: &BtreeConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        let nodes = |keys: u64| levels(keys, config.seed).iter().map(|level| level.nodes).sum::<u64>();
        let slabs = |keys: u64| (keys.div_ceil(RECORDS_A_SLAB), nodes(keys).div_ceil(NODES_A_SLAB));
        let pages = |keys: u64| {
            let (of_records, of_nodes) = slabs(keys);
            let (elements, heap) = (
                PageCount::covering(keys * ELEMENT),
                PageCount::covering(nodes(keys).div_ceil(NODES_A_STRETCH) * STRETCH),
            );
            elements.0 + (of_records + of_nodes) * SLAB_PAGES + heap.0
        };
        // The most keys that fit.
        let (mut keys, mut too_many) = (ORDER + 1, layout.left() * PAGE_BYTES / (ELEMENT + RECORD));
        if too_many <= keys || pages(keys) > layout.left() {
            return Err(impossible(name, "footprint: too small for a tree of two levels"));
        }
        while too_many - keys > 1 {
            let middle = keys.midpoint(too_many);
            if pages(middle) <= layout.left() { keys = middle } else { too_many = middle }
        }
        let levels = levels(keys, config.seed);
        let (record_slabs, node_slabs) = slabs(keys);
        let all = nodes(keys);
        // A slab of records is mapped when so many nodes are there.
        let births = |slab: u64| (slab * RECORDS_A_SLAB) as u128 * u128::from(all) / u128::from(keys);
        let mut order: Vec<(u64, bool, u64)> = (0..record_slabs)
            .map(|slab| (births(slab) as u64, false, slab))
            .chain((0..node_slabs).map(|slab| (slab * NODES_A_SLAB, true, slab)))
            .collect();
        order.sort_unstable();
        let of = |nodes: bool| {
            order.iter().enumerate().filter(move |(_, slab)| slab.1 == nodes).map(|(number, _)| number as u64).collect()
        };
        Ok(Self {
            elements: layout.map(PageCount::covering(keys * ELEMENT).0),
            slabs: layout.map((record_slabs + node_slabs) * SLAB_PAGES),
            heap: {
                layout.gap();
                // What is left, less than a slab, is its end.
                layout.map(layout.left())
            },
            layout,
            record_slabs: of(false),
            node_slabs: of(true),
            slab_births: order.iter().map(|slab| slab.0).collect(),
            keys,
            levels,
            inserted: Bijection::new(keys, mix(config.seed ^ 0xe1e)),
            pieces: Bijection::new(PAIRS, mix(config.seed ^ 0x9ec)),
            seed: mix(config.seed),
            filled: Filled::default(),
            dice: Dice::of_threads(config.seed, config.threads),
        })
    }

    /// How many nodes were allocated before the one that is number `turn` of level `level` (the
    /// leaves' is 0). An upper node is allocated right after the node whose split leads to it.
    fn allocated(&self, level: usize, turn: u64) -> u64 {
        let mut leaf = turn;
        for upper in (1..=level).rev() {
            leaf = self.made_with(upper, leaf);
        }
        let mut below = leaf;
        let mut before = leaf;
        for pair in self.levels.windows(2) {
            below = share(below, pair[1].nodes, pair[0].nodes);
            before += below;
        }
        before + level as u64
    }

    /// Which node of the level below, counted in the order of allocation, is allocated right before
    /// number `turn` of level `level`.
    fn made_with(&self, level: usize, turn: u64) -> u64 {
        let (nodes, below) = (u128::from(self.levels[level].nodes), u128::from(self.levels[level - 1].nodes));
        ((u128::from(turn + 1) * below).div_ceil(nodes) - 1) as u64
    }

    /// The child of node `node` of level `level` whose split has made the node, if that is still a
    /// child of it.
    fn maker(&self, level: usize, node: u64) -> Option<u64> {
        let within = &self.levels[level];
        let first = node / PERIOD * within.places.len() as u64 + within.firsts[(node % PERIOD) as usize];
        let hash = mix(self.seed ^ mix((level as u64) << 48 | node));
        let child = first + hash % within.place(first).of;
        let there = scale(hash, 1000) < MAKERS_PERMILLE && child < self.levels[level - 1].nodes;
        there.then_some(child)
    }

    /// The turn of a node that has made its parent: when the parent was made.
    fn turn_of_maker(&self, level: usize, node: u64) -> Option<u64> {
        let parent = self.levels.get(level + 1)?.place(node).node;
        (self.maker(level + 1, parent) == Some(node)).then(|| self.made_with(level + 1, self.turn(level + 1, parent)))
    }

    /// The node of level `level` that has turn `turn` since it made its parent then.
    fn maker_at(&self, level: usize, turn: u64) -> Option<u64> {
        let upper = self.levels.get(level + 1)?;
        let parent = share(turn + 1, upper.nodes, self.levels[level].nodes).checked_sub(1)?;
        if self.made_with(level + 1, parent) != turn {
            return None;
        }
        self.maker(level + 1, self.node_at(level + 1, parent))
    }

    /// When node `node` of level `level` was allocated, counted within its level: at random, but
    /// that the node that has made its parent comes right before it. Who would have had that turn
    /// gets the other's.
    fn turn(&self, level: usize, node: u64) -> u64 {
        self.turn_of_maker(level, node).unwrap_or_else(|| {
            let random = &self.levels[level].turn;
            let mut turn = random.apply(node);
            while let Some(maker) = self.maker_at(level, turn) {
                turn = random.apply(maker);
            }
            turn
        })
    }

    /// The node of level `level` whose turn is `turn`.
    fn node_at(&self, level: usize, turn: u64) -> u64 {
        if let Some(maker) = self.maker_at(level, turn) {
            return maker;
        }
        let mut node = self.levels[level].turn.invert(turn);
        while let Some(other) = self.turn_of_maker(level, node) {
            node = self.levels[level].turn.invert(other);
        }
        node
    }

    /// Number `index` of a slab whose parts have `bytes` and are handed out from its end; slabs
    /// are mapped downwards.
    fn in_slab(&self, slab: u64, index: u64, bytes: u64) -> Gva {
        let start = self.slabs.bytes() - (slab + 1) * SLAB;
        self.slabs.at(start + (SLAB / bytes - 1 - index) * bytes)
    }

    fn record(&self, number: u64) -> Gva {
        self.in_slab(self.record_slabs[(number / RECORDS_A_SLAB) as usize], number % RECORDS_A_SLAB, RECORD)
    }

    /// Where node number `number`, its keys and its pointers are.
    fn node(&self, number: u64) -> (Gva, Gva, Gva) {
        let slab = self.node_slabs[(number / NODES_A_SLAB) as usize];
        let (stretch, nth) = (number / NODES_A_STRETCH * PAIRS, number % NODES_A_STRETCH);
        let at = |pair: u64, byte: u64| {
            // glibc's blocks have sizes of all kinds, so that arrays begin at any line.
            let turned = byte + mix(!self.seed ^ (stretch + pair)) % (PAIR / LINE) * LINE;
            self.heap.at((stretch + pair) * PAIR + turned % PAIR)
        };
        let (keys, pointers) = match nth.checked_sub(PAIRS) {
            None => (at(nth, 0), at(nth, POINTERS[(mix(self.seed ^ number) & 1) as usize])),
            Some(piece) => (at(PAIRS - 1 - piece, PIECES[0]), at(self.pieces.apply(piece), PIECES[1])),
        };
        (self.in_slab(slab, number % NODES_A_SLAB, NODE), keys, pointers)
    }

    /// The look-up of key number `key`, or of what would come right after it.
    fn find(&self, key: u64, there: bool, accesses: &mut Vec<Access>) {
        let mut path = Vec::with_capacity(self.levels.len());
        let mut number = key;
        for level in &self.levels {
            let place = level.place(number);
            path.push(place);
            number = place.node;
        }
        let mut load = |from: Gva, offset: u64| accesses.push(Access::load(Gva(from.0 + offset)));
        for (height, place) in path.iter().enumerate().rev() {
            let (node, keys, pointers) = self.node(self.allocated(height, self.turn(height, place.node)));
            // `is_leaf`, `num_keys`, `keys`.
            [24, 32, 8].into_iter().for_each(|field| load(node, field));
            let read = match (height, there) {
                (0, true) => place.slot + 1,
                (0, false) => place.of,
                _ => (place.slot + 1).min(place.of - 1),
            };
            for key in 0..read {
                load(keys, key * WORD);
                // The compiled loop reads `num_keys` again behind each key that is not larger.
                if height > 0 && key < place.slot {
                    load(node, 32);
                }
            }
            if height > 0 || there {
                load(node, 0);
                load(pointers, place.slot * WORD);
            }
        }
        if there {
            let number = self.inserted.apply(key);
            let record = self.record(number);
            load(record, 0);
            load(record, 24);
            accesses.push(Access::store(Gva(record.0 + 24)));
            accesses.push(Access::load(self.elements.at(number * ELEMENT + 16)));
        }
    }
}

impl Pattern for Btree {
    const NAME: &'static str = "btree";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The first thread builds the tree: all elements, then as keys are inserted slabs, and the
    /// heap page by page.
    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        let page = |region: Region, page: u64| (region.pages.start + page, true);
        let slabs = self.slab_births.len() as u64;
        let filled = &mut self.filled;
        while thread == 0 && touches.len() < most {
            let (stretch, bytes) = (filled.heap * PAGE_BYTES / STRETCH, filled.heap * PAGE_BYTES % STRETCH);
            let nodes = stretch * NODES_A_STRETCH + bytes / PAIR;
            let heap_full = filled.heap == self.heap.pages.len();
            if filled.elements < self.elements.pages.len() {
                touches.push(page(self.elements, filled.elements));
                filled.elements += 1;
            } else if filled.slabs < slabs && (heap_full || self.slab_births[filled.slabs as usize] <= nodes) {
                touches.push(page(self.slabs, (slabs - 1 - filled.slabs) * SLAB_PAGES + filled.slab_pages));
                filled.slab_pages += 1;
                if filled.slab_pages == SLAB_PAGES {
                    (filled.slabs, filled.slab_pages) = (filled.slabs + 1, 0);
                }
            } else if heap_full {
                return;
            } else {
                touches.push(page(self.heap, filled.heap));
                filled.heap += 1;
            }
        }
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let drawn = self.dice[thread].below(2 * self.keys);
        // Ten lines of the stack, which grows downwards.
        let stack = self.layout.locals(thread).pages.end.address().0 - 640;
        let store = |nth| nth * STACK_STORES % STACK_A_LOOKUP < STACK_STORES;
        accesses.extend((0..STACK_A_LOOKUP).map(|nth| Access::new(Gva(stack + nth * WORD), store(nth))));
        self.find(drawn / 2, drawn.is_multiple_of(2), accesses);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn tree() -> Btree {
        Btree::new(&BtreeConfig { footprint: PageCount(16 << 8), ..BtreeConfig::default() }).unwrap()
    }

    /// With `i` keys, leaves are 5 : 3 : 2 of 3, 4 and 5; and nodes with 3 to 6 children 15 : 21 :
    /// 14 : 10, solved by hand.
    #[test]
    fn shares_are_those_of_random_inserts() {
        assert_eq!(shares(5, 3), [0, 0, 0, 30, 18, 12]);
        assert_eq!(shares(6, 3), [0, 0, 0, 15, 21, 14, 10]);
    }

    /// The leaves of a tree that is built: those of 6 keys split into two of 3.
    #[test]
    fn a_tree_that_is_built_has_as_many_leaves() {
        let mut leaves: Vec<Vec<u64>> = vec![Vec::new()];
        let order = Bijection::new(30_000, 7);
        for key in (0..30_000).map(|nth| order.apply(nth)) {
            let at = leaves.partition_point(|leaf| leaf.first().is_some_and(|&first| first <= key)).saturating_sub(1);
            let slot = leaves[at].partition_point(|&other| other < key);
            leaves[at].insert(slot, key);
            if leaves[at].len() == ORDER as usize {
                let right = leaves[at].split_off(3);
                leaves.insert(at + 1, right);
            }
        }
        let ours = levels(30_000, 1)[0].nodes;
        assert!(ours.abs_diff(leaves.len() as u64) * 50 < ours, "{ours}, {}", leaves.len());
    }

    #[test]
    fn every_key_has_a_place_and_levels_end_in_one_root() {
        for keys in [7, 100, 54_321] {
            let mut below = keys;
            let levels = levels(keys, 3);
            for level in &levels {
                let places: Vec<Place> = (0..below).map(|child| level.place(child)).collect();
                assert!(places.iter().all(|place| place.slot < place.of && place.of <= ORDER));
                for pair in places.windows(2) {
                    let next = Place { slot: pair[0].slot + 1, ..pair[0] };
                    let first = (pair[0].node + 1, 0, pair[0].slot + 1);
                    assert!(pair[1] == next || (pair[1].node, pair[1].slot, pair[0].of) == first, "{pair:?}");
                }
                assert_eq!(places[places.len() - 1].node + 1, level.nodes);
                below = level.nodes;
            }
            assert_eq!(below, 1);
        }
    }

    #[test]
    fn each_node_was_allocated_at_a_moment_of_its_own() {
        let tree = tree();
        let all: u64 = tree.levels.iter().map(|level| level.nodes).sum();
        let numbers: BTreeSet<u64> = (0..tree.levels.len())
            .flat_map(|level| (0..tree.levels[level].nodes).map(move |node| (level, node)))
            .map(|(level, node)| tree.allocated(level, tree.turn(level, node)))
            .collect();
        assert!(numbers.into_iter().eq(0..all));
    }

    #[test]
    fn makers_come_right_before_what_they_made() {
        let tree = tree();
        let number = |level, node| tree.allocated(level, tree.turn(level, node));
        let (mut made, mut upper) = (0, 0);
        for level in 1..tree.levels.len() {
            for node in 0..tree.levels[level].nodes {
                assert_eq!(tree.node_at(level, tree.turn(level, node)), node);
                upper += 1;
                if let Some(child) = tree.maker(level, node) {
                    assert_eq!(tree.levels[level].place(child).node, node);
                    assert_eq!(number(level - 1, child) + 1, number(level, node));
                    made += 1;
                }
            }
        }
        assert!((420..460).contains(&(made * 1000 / upper)), "{made} of {upper}");
    }

    /// The first slab is of records, the second of nodes; both are handed out from the end.
    #[test]
    fn slabs_are_handed_out_from_their_end() {
        let tree = tree();
        let end = tree.slabs.pages.end.address().0;
        assert_eq!((tree.record_slabs[0], tree.node_slabs[0]), (0, 1));
        assert_eq!((tree.record(0).0, tree.record(1).0), (end - 32, end - 64));
        // 18,724 nodes of 56 bytes leave 32 of a slab.
        assert_eq!(tree.node(0).0.0, end - (1 << 20) - 32 - 56);
    }

    /// A stretch has 528 nodes: the first half forwards, the other in what was left over.
    #[test]
    fn arrays_of_a_stretch_do_not_overlap() {
        let tree = tree();
        let pair_of = |at: Gva| (at.0 - tree.heap.at(0).0) / PAIR;
        assert_eq!((pair_of(tree.node(528 + 3).1), pair_of(tree.node(528 + 3).2)), (264 + 3, 264 + 3));
        for node in 0..264 {
            let (_, keys, pointers) = tree.node(node);
            assert!(POINTERS.contains(&((pointers.0 + PAIR - keys.0) % PAIR)));
        }
        assert_eq!(pair_of(tree.node(264).1), 263);
        let lines: BTreeSet<u64> =
            (0..528).flat_map(|node| [tree.node(node).1, tree.node(node).2]).map(|at| at.0 / 64).collect();
        assert_eq!(lines.len(), 2 * 528);
        // Each of the 8 lines of 512 bytes is used about as often.
        let mut uses = [0; 8];
        lines.iter().for_each(|line| uses[(line % 8) as usize] += 1);
        assert!(uses.iter().all(|count| (90..175).contains(count)), "{uses:?}");
        let heap = tree.heap.pages.start.address().0 / 64;
        assert!(lines.into_iter().all(|line| (heap..heap + 132 * 16).contains(&line)));
    }

    #[test]
    fn a_look_up_goes_from_the_root_to_record_and_element() {
        let tree = tree();
        let (mut found, mut missed) = (Vec::new(), Vec::new());
        tree.find(1234, true, &mut found);
        tree.find(1234, false, &mut missed);
        let top = tree.levels.len() - 1;
        let (root, keys, _) = tree.node(tree.allocated(top, 0));
        let first: Vec<u64> = found[..4].iter().map(|access| access.gva().0).collect();
        assert_eq!(first, [root.0 + 24, root.0 + 32, root.0 + 8, keys.0]);
        let leaf = tree.levels[0].place(1234);
        let (node, keys, pointers) = tree.node(tree.allocated(0, tree.turn(0, leaf.node)));
        let number = tree.inserted.apply(1234);
        let record = tree.record(number);
        let last: Vec<Access> = [node.0, pointers.0 + leaf.slot * 8, record.0, record.0 + 24]
            .map(|address| Access::load(Gva(address)))
            .into_iter()
            .chain([Access::store(Gva(record.0 + 24)), Access::load(tree.elements.at(number * 64 + 16))])
            .collect();
        assert_eq!(found[found.len() - 6..], last);
        assert_eq!(missed.last(), Some(&Access::load(Gva(keys.0 + (leaf.of - 1) * 8))));
    }
}
