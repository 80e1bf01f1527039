// SPDX-License-Identifier: MIT OR Apache-2.0
//! `fp_tree`: PARSEC's freqmine, which finds the sets of items that many transactions have in
//! common by FP-growth, as Intel's version in PARSEC 3.0 does it (`fp_tree.cpp`).
//!
//! **Memory** while it mines. The tree of all transactions is gone by then: it was written out as
//! two arrays, which all threads share. `ItemArray` has, path by path, the items from each leaf's
//! branch up to the root (1 byte each, 2 with more than 256 items); `NodeArray` has, item by item,
//! 8 bytes a node: where its path begins, and how often it occurs. A thread has a buffer for the
//! nodes of the conditional tree that it builds (24 bytes each), always from its beginning, and a
//! stack for the arrays that such trees become. The items of a tree of the first level stay on that
//! stack for good: `FP_growth` frees what lies above the first node array, and they lie below.
//!
//! **Mining.** For each item of a tree, from the last to the second, two passes go over its nodes
//! in `NodeArray` and, for each, over the path in `ItemArray` that begins there
//! (`FPArray_conditional_pattern_base`, `FPArray_scan2_DB`). The first counts the items; if two are
//! frequent, the second inserts each path into a new tree: it goes down as far as there are nodes
//! (reading child, item, and adding to the count), and appends the rest. The tree is then written
//! out as arrays (`transform_FPTree_into_FPArray`), and mined in turn. Paths come in the order of
//! the tree that they are from, so one follows the one before down to where they part; and the
//! paths of an item lie in `ItemArray` in the order of its nodes.
//!
//! **Counted** in freqmine, by level ([`LEVELS`]), on made-up transactions: 25,000 of 110 words on
//! median, with a support of 8 %; and on 100,000 of them, how new nodes become fewer as a tree
//! grows. The same counts are taken for other transactions: **an assumption**.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, Gva, PageCount, Vpn, VpnRange};

use super::bijection::Dice;
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

/// What was counted on a level, by item or tree, in thousandths.
struct Level {
    /// Of a thousand items whose nodes are gone over, those of which there is a tree.
    trees: u64,
    /// Items of a tree.
    items: u64,
    /// Items of a path.
    path: u64,
    /// Items of a path that are inserted into a tree: the others are not frequent in it, or hot.
    inserted: u64,
    /// Nodes that a path adds to a tree, with [`COUNTED_NODES`] in the first one, and in
    /// thousandths how that changes with twice as many.
    new: u64,
    new_doubled: u64,
    /// Siblings passed on the way down a path.
    siblings: u64,
    /// Items in the array of a tree, by node.
    written: u64,
}

const fn level([trees, items, path, inserted, new, new_doubled, siblings, written]: [u64; 8]) -> Level {
    Level { trees, items, path, inserted, new, new_doubled, siblings, written }
}

/// By how many items a set has. Sets of more items than there are levels are not looked for.
const LEVELS: [Level; 11] = [
    level([770, 20_700, 38_900, 11_120, 5099, 935, 1500, 2370]),
    level([770, 9700, 16_300, 5610, 1833, 891, 270, 3070]),
    level([725, 6100, 9570, 3340, 1097, 893, 170, 2960]),
    level([658, 4400, 5920, 2380, 933, 894, 80, 2490]),
    level([571, 3500, 3680, 1920, 918, 922, 30, 2070]),
    level([475, 2900, 2370, 1730, 938, 967, 10, 1760]),
    level([371, 2600, 1560, 1660, 951, 995, 0, 1620]),
    level([267, 2300, 1080, 1570, 978, 1000, 0, 1570]),
    level([170, 2200, 800, 1460, 973, 1000, 0, 1570]),
    level([87, 2000, 640, 1370, 1000, 1000, 0, 1570]),
    level([25, 2000, 550, 1330, 1000, 1000, 0, 1570]),
];
/// Nodes of the first tree where [`LEVELS`] was counted, and items of its array, in thousandths of
/// a node.
const COUNTED_NODES: u64 = 786_289;
const FIRST_WRITTEN: u64 = 1360;
/// Bytes of a node of a tree, and of `NodeArray`.
const NODE: u64 = 24;
const ENTRY: u64 = 8;
/// Of a node: child, sibling, count and item.
const CHILD: u64 = 0;
const SIBLING: u64 = 8;
const COUNT: u64 = 16;
const ITEM: u64 = 20;
/// Nodes, paths or items that one operation handles at most.
const PIECE: u64 = 16;
/// With more items than this, one takes two bytes.
const SHORT_ITEMS: u64 = 256;

parameters! {
    /// FP-growth over arrays of paths. Local accesses and instructions as counted of freqmine.
    FpTreeConfig mixed(737, 2593, 12) {
        /// Items that occur often enough alone: 2 to 65535. The default was counted of 25,000
        /// made-up documents with a support of 4.4 %, PARSEC's for `native`.
        items: u64 = 556,
    }
}

/// The arrays of a tree.
#[derive(Clone, Copy)]
struct Arrays {
    /// Items of the tree.
    items: u64,
    /// How many of them have not been gone over.
    left: u64,
    /// Nodes, and items of all paths.
    nodes: u64,
    written: u64,
    /// Where its arrays begin on the thread's stack: those of items, then those of nodes.
    base: u64,
}

/// What a thread is at.
#[derive(Clone, Copy)]
enum Work {
    /// The next item of the topmost tree.
    Next,
    /// Node `node` of `nodes`, which begin at `first` of `NodeArray`, in the pass that counts, or
    /// in that which inserts. `tree`: items of the tree that is made, if there is one.
    Pass { first: u64, nodes: u64, node: u64, tree: Option<u64>, inserts: bool },
    /// Node `node` of the tree that is written out.
    WriteOut { tree: Arrays, node: u64 },
}

struct Thread {
    dice: Dice,
    nodes: Region,
    stack: Region,
    /// Trees that are being mined, the first one's part left out.
    open: Vec<Arrays>,
    work: Work,
    /// Nodes of the tree that is being built, and those of the last path.
    built: u64,
    path: Vec<u64>,
    /// Where the stack begins: behind the items that are never freed.
    bottom: u64,
}

pub(super) struct FpTree {
    layout: Layout,
    first: Arrays,
    /// Bytes of an item of the first tree.
    width: u64,
    items: Region,
    entries: Region,
    /// Nodes that a path adds, by level, in thousandths.
    new: [u64; LEVELS.len()],
    sweep: Sweep,
    threads: Vec<Thread>,
}

/// A count that is so many thousandths on average: the rest is decided by dice.
fn draw(dice: &mut Dice, permille: u64) -> u64 {
    permille / 1000 + u64::from(dice.chance(permille % 1000))
}

/// Nodes that a path adds on each level, with so many nodes in the first tree.
fn new_nodes(nodes: u64) -> [u64; LEVELS.len()] {
    let octaves = |large: u64, small: u64| (large / small.max(1)).checked_ilog2().unwrap_or(0);
    let (more, less) = (octaves(nodes, COUNTED_NODES), octaves(COUNTED_NODES, nodes));
    std::array::from_fn(|at| {
        let Level { new, new_doubled, inserted, .. } = LEVELS[at];
        let more = (0..more).fold(new, |new, _| new * new_doubled / 1000);
        (0..less).fold(more, |new, _| new * 1000 / new_doubled).min(inserted)
    })
}

/// Bytes of what is made of a first tree of so many nodes and items.
struct Sizes {
    items: u64,
    entries: u64,
    /// Of a thread's largest conditional tree, and of its stack.
    tree: u64,
    stack: u64,
}

impl Sizes {
    fn of(nodes: u64, items: u64, threads: u64) -> Self {
        let width = width(items);
        let tree = nodes.div_ceil(items) * new_nodes(nodes)[0] / 1000 + LEVELS.len() as u64;
        let written = tree * LEVELS[0].written / 1000;
        let kept = items * LEVELS[0].trees / 1000 * written / threads;
        Self {
            items: nodes * FIRST_WRITTEN / 1000 * width,
            entries: nodes * ENTRY,
            tree: tree * NODE,
            // The arrays of the largest tree, twice for those further down, and items of all
            // before.
            stack: 2 * (written + tree * ENTRY) + kept,
        }
    }

    fn pages(&self, threads: u64) -> u64 {
        let pages = |bytes: u64| PageCount::covering(bytes).0;
        pages(self.items) + pages(self.entries) + threads * (pages(self.tree) + pages(self.stack))
    }

    /// The largest that have room on so many pages, and the nodes of their first tree.
    fn within(pages: u64, items: u64, threads: u64) -> Option<(u64, Self)> {
        let has_room = |nodes: u64| Self::of(nodes, items, threads).pages(threads) <= pages;
        let (mut least, mut most) = (items, pages * PAGE_BYTES / ENTRY);
        if !has_room(least) {
            return None;
        }
        while least < most {
            let nodes = (least + most).div_ceil(2);
            (least, most) = if has_room(nodes) { (nodes, most) } else { (least, nodes - 1) };
        }
        Some((least, Self::of(least, items, threads)))
    }
}

/// Bytes of an item.
const fn width(items: u64) -> u64 {
    if items > SHORT_ITEMS { 2 } else { 1 }
}

impl FpTree {
    pub(super) fn new(config: &FpTreeConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        let (items, threads) = (config.items, u64::from(config.threads));
        if !(2..1 << 16).contains(&items) {
            return Err(impossible(name, format!("items = {items}: from 2 to 65535")));
        }
        let Some((nodes, sizes)) = Sizes::within(layout.left(), items, threads) else {
            return Err(impossible(name, format!("footprint: too small for a tree of {items} items")));
        };
        let covering = |bytes: u64| PageCount::covering(bytes).0;
        let items_region = layout.map(covering(sizes.items));
        let [tree, stack] = [sizes.tree, sizes.stack].map(covering);
        // What rounding leaves is of `NodeArray`, whose buffers are larger than what they hold.
        let entries = layout.map(layout.left() - threads * (tree + stack));
        let [trees, stacks] = [tree, stack].map(|pages| layout.map(threads * pages));
        let of_thread = |all: Region, nth: u64| {
            let pages = all.pages.len() / threads;
            Region { pages: VpnRange::new(all.pages.start + nth * pages, PageCount(pages)) }
        };
        let thread = |(nth, dice): (u64, Dice)| Thread {
            dice,
            nodes: of_thread(trees, nth),
            stack: of_thread(stacks, nth),
            open: Vec::new(),
            work: Work::Next,
            built: 0,
            path: Vec::new(),
            bottom: 0,
        };
        Ok(Self {
            sweep: Sweep::new([items_region, entries, trees, stacks].map(|region| vec![region]).into(), config.threads),
            layout,
            first: Arrays { items, left: items, nodes, written: nodes * FIRST_WRITTEN / 1000, base: 0 },
            width: width(items),
            items: items_region,
            entries,
            new: new_nodes(nodes),
            threads: (0..).zip(Dice::of_threads(config.seed, config.threads)).map(thread).collect(),
        })
    }
}

impl Arrays {
    /// Where the nodes of item `item` begin in `NodeArray`. In a conditional tree later items have
    /// more of them, evenly so, as counted; in the first tree all have as many (later ones have
    /// fewer, as they are in fewer transactions: up to a third of the average).
    fn begin(&self, item: u64, is_first: bool) -> u64 {
        let share = |value: u64| value * item / self.items;
        if is_first { share(self.nodes) } else { share(share(self.nodes)) }
    }

    /// Bytes behind `base` where a conditional tree's entry or item is.
    fn entry(&self, index: u64) -> u64 {
        self.base + self.written.next_multiple_of(ENTRY) + index * ENTRY
    }

    fn end(&self) -> u64 {
        self.entry(self.nodes)
    }
}

impl Thread {
    /// The place `offset` of its stack.
    fn on_stack(&self, offset: u64) -> Gva {
        self.stack.at(offset % self.stack.bytes())
    }

    fn field(&self, node: u64, field: u64) -> Gva {
        self.nodes.at(node % (self.nodes.bytes() / NODE) * NODE + field)
    }

    /// Begins with the next item, on the level that is reached; `first` is the first tree.
    fn next(&mut self, first: &mut Arrays) {
        let level = self.open.len();
        let arrays = self.open.last_mut().unwrap_or(first);
        if arrays.left > 1 {
            arrays.left -= 1;
            let [begin, end] = [0, 1].map(|more| arrays.begin(arrays.left + more, level == 0));
            let counted = &LEVELS[level];
            let is_made = level + 1 < LEVELS.len() && self.dice.chance(counted.trees);
            let tree = is_made.then(|| 2 + self.dice.below(2 * (counted.items - 2000) + 1000) / 1000);
            if end > begin {
                self.work = Work::Pass { first: begin, nodes: end - begin, node: 0, tree, inserts: false };
            }
            return;
        }
        match self.open.pop() {
            None => first.left = first.items,
            // Its items stay where they are; the next ones come behind them, until the stack is
            // full.
            Some(tree) if level == 1 => {
                let room = tree.end() - tree.base;
                let bottom = tree.base + tree.written.next_multiple_of(ENTRY);
                self.bottom = if bottom + 2 * room <= self.stack.bytes() { bottom } else { 0 };
            }
            Some(_) => {}
        }
    }

    /// Inserts a path of so many items, of which so many have no node yet.
    fn insert(&mut self, items: u64, new: u64, siblings: u64, accesses: &mut Vec<Access>) {
        self.path.truncate((items - new) as usize);
        for at in 0..self.path.len() {
            let node = self.path[at];
            accesses.extend([CHILD, ITEM, COUNT].map(|field| Access::load(self.field(node, field))));
            accesses.push(Access::store(self.field(node, COUNT)));
        }
        for _ in 0..siblings {
            let node = self.dice.below(self.built.max(1));
            accesses.extend([ITEM, SIBLING].map(|field| Access::load(self.field(node, field))));
        }
        for _ in 0..new {
            let node = self.built;
            accesses.extend([ITEM, COUNT, SIBLING, CHILD].map(|field| Access::store(self.field(node, field))));
            self.path.push(node);
            self.built += 1;
        }
    }

    /// Writes out a node of the tree that was built.
    fn write_out(&mut self, tree: &Arrays, node: u64, level: usize, accesses: &mut Vec<Access>) {
        accesses.extend([CHILD, SIBLING, COUNT, ITEM].map(|field| Access::load(self.field(node, field))));
        // Paths are written from the end on.
        let end = tree.written - tree.written * node / tree.nodes;
        for nth in 0..draw(&mut self.dice, LEVELS[level].written).min(end) {
            accesses.push(Access::store(self.on_stack(tree.base + end - 1 - nth)));
        }
        let item = self.dice.below(tree.items);
        let [begin, next] = [0, 1].map(|more| tree.begin(item + more, false));
        let entry = tree.entry(begin + (next - begin) * node / tree.nodes);
        accesses.extend([0, 4].map(|half| Access::store(self.on_stack(entry + half))));
    }
}

impl FpTree {
    /// Goes over a node of an item, and over its path.
    fn visit(&mut self, index: usize, entry: u64, at: (u64, u64), inserts: bool, accesses: &mut Vec<Access>) {
        let (items, entries, width, first) = (self.items, self.entries, self.width, self.first);
        let thread = &mut self.threads[index];
        let level = thread.open.len();
        let counted = &LEVELS[level];
        let arrays = thread.open.last().copied();
        let Arrays { written, .. } = arrays.unwrap_or(first);
        // The nodes of an item in the order of their paths, which were written from the end on.
        let (node, nodes) = at;
        let [low, high] = [1, 0].map(|more| written - written * (node + more) / nodes);
        let begin = low + thread.dice.below((high - low).max(1));
        // The mark behind the path is read as well.
        let length = draw(&mut thread.dice, counted.path) + 1;
        let place = |offset: u64| match arrays {
            Some(arrays) => thread.on_stack(arrays.base + offset),
            None => items.at((offset * width) % items.bytes()),
        };
        for half in [0, 4] {
            accesses.push(Access::load(match arrays {
                Some(arrays) => thread.on_stack(arrays.entry(entry) + half),
                None => entries.at(entry * ENTRY + half),
            }));
        }
        accesses.extend((begin..(begin + length).min(written.max(begin + 1))).map(|item| Access::load(place(item))));
        if inserts {
            let inserted = draw(&mut thread.dice, counted.inserted);
            let new = draw(&mut thread.dice, self.new[level]).min(inserted);
            let siblings = draw(&mut thread.dice, counted.siblings);
            thread.insert(inserted, new, siblings, accesses);
        }
    }
}

impl Pattern for FpTree {
    const NAME: &'static str = "fp_tree";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, index: usize, accesses: &mut Vec<Access>) {
        while accesses.is_empty() {
            match self.threads[index].work {
                Work::Next => self.threads[index].next(&mut self.first),
                Work::Pass { first, nodes, node, tree, inserts } => {
                    let end = (node + PIECE).min(nodes);
                    (node..end).for_each(|node| self.visit(index, first + node, (node, nodes), inserts, accesses));
                    let thread = &mut self.threads[index];
                    thread.work = match tree {
                        _ if end < nodes => Work::Pass { first, nodes, node: end, tree, inserts },
                        Some(_) if !inserts => {
                            (thread.built, _) = (0, thread.path.clear());
                            Work::Pass { first, nodes, node: 0, tree, inserts: true }
                        }
                        Some(items) if thread.built > 0 => {
                            let nodes = thread.built;
                            let written = nodes * LEVELS[thread.open.len()].written / 1000;
                            let base = thread.open.last().map_or(thread.bottom, Arrays::end);
                            Work::WriteOut { tree: Arrays { items, left: items, nodes, written, base }, node: 0 }
                        }
                        _ => Work::Next,
                    };
                }
                Work::WriteOut { tree, node } => {
                    let thread = &mut self.threads[index];
                    let (end, level) = ((node + PIECE).min(tree.nodes), thread.open.len());
                    (node..end).for_each(|node| thread.write_out(&tree, node, level, accesses));
                    thread.work = Work::WriteOut { tree, node: end };
                    if end == tree.nodes {
                        thread.open.push(tree);
                        thread.work = Work::Next;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mebibytes: u64, items: u64, threads: u16) -> FpTree {
        let config = FpTreeConfig { footprint: PageCount(mebibytes << 8), items, threads, ..FpTreeConfig::default() };
        FpTree::new(&config).unwrap()
    }

    /// The trees that were counted are made: how often, and of how many items, on each level.
    #[test]
    fn trees_are_as_many_and_as_large_as_counted() {
        let mut program = of(64, 231, 1);
        let (thread, first) = (&mut program.threads[0], &mut program.first);
        for (level, counted) in LEVELS.iter().enumerate().take(LEVELS.len() - 1) {
            const ITEMS: u64 = 20_000;
            let (mut trees, mut items) = (0, 0);
            for _ in 0..ITEMS {
                let open = Arrays { items: 8, left: 8, nodes: 8000, written: 16_000, base: 0 };
                thread.open = vec![open; level];
                (first.left, thread.work) = (first.items, Work::Next);
                thread.next(first);
                let Work::Pass { tree, inserts: false, node: 0, .. } = thread.work else { panic!("level {level}") };
                trees += u64::from(tree.is_some());
                items += tree.unwrap_or(0);
            }
            let share = trees * 1000 / ITEMS;
            assert!(share.abs_diff(counted.trees) < 20, "level {level}: {share} trees");
            let mean = items * 1000 / trees;
            assert!(mean.abs_diff(counted.items) <= counted.items / 20, "level {level}: {mean} items");
        }
    }

    /// All items of a tree are gone over, the last first, and together all nodes but those of the
    /// first item.
    #[test]
    fn the_items_of_a_tree_share_its_nodes() {
        let mut program = of(64, 231, 1);
        let (thread, first) = (&mut program.threads[0], &mut program.first);
        for level in [0, 1] {
            let open = Arrays { items: 9, left: 9, nodes: 1000, written: 3000, base: 0 };
            thread.open = vec![open; level];
            let arrays = if level == 0 { *first } else { open };
            let (mut before, mut count) = (arrays.nodes, 0);
            for item in (1..arrays.items).rev() {
                thread.next(first);
                let Work::Pass { first: begin, nodes, .. } = thread.work else { panic!("item {item}") };
                assert_eq!(begin + nodes, before, "item {item} of level {level}");
                (before, count) = (begin, count + nodes);
            }
            assert_eq!(count + arrays.begin(1, level == 0), arrays.nodes);
        }
    }

    /// A pass goes through `NodeArray` upwards and through `ItemArray` downwards.
    #[test]
    fn a_pass_goes_in_the_order_of_the_tree() {
        let mut program = of(64, 231, 1);
        let (mut entry, mut path) = (0, u64::MAX);
        for node in 0..1000 {
            let mut accesses = Vec::new();
            program.visit(0, node, (node, 1000), false, &mut accesses);
            let [first, half, begin] = [0, 1, 2].map(|at: usize| accesses[at].gva().0);
            assert_eq!(half, first + 4);
            assert!(first > entry && begin <= path, "node {node}");
            (entry, path) = (first, begin);
            let items = &accesses[2..];
            assert!(items.windows(2).all(|pair| pair[1].gva().0 == pair[0].gva().0 + 1), "a path is read in order");
            assert!(items.len() as u64 <= LEVELS[0].path / 1000 + 2);
        }
    }

    /// A path keeps the nodes that it shares with the one before, and appends the others.
    #[test]
    fn paths_share_their_beginning() {
        let mut program = of(64, 231, 1);
        let thread = &mut program.threads[0];
        let mut accesses = Vec::new();
        thread.insert(5, 5, 0, &mut accesses);
        thread.insert(4, 1, 1, &mut accesses);
        assert_eq!((&thread.path[..], thread.built), (&[0, 1, 2, 5][..], 6));
        // Five new nodes; three that are there, a sibling, and a new one.
        assert_eq!(accesses.len(), 5 * 4 + 3 * 4 + 2 + 4);
    }

    /// The stack has the trees that are open one behind the other, and keeps the items of those of
    /// the first level.
    #[test]
    fn trees_are_stacked_and_the_first_ones_keep_their_items() {
        let mut program = of(64, 231, 1);
        let mut bottoms = std::collections::BTreeSet::new();
        for _ in 0..100_000 {
            program.operate(0, &mut Vec::new());
            let thread = &program.threads[0];
            bottoms.insert(thread.bottom);
            assert!(thread.open.windows(2).all(|pair| pair[1].base == pair[0].end()));
            assert!(
                thread.open.first().is_none_or(|tree| tree.base == thread.bottom && tree.end() <= thread.stack.bytes())
            );
        }
        assert!(bottoms.len() > 1, "{bottoms:?}");
    }

    /// New nodes become fewer as trees grow, by as much as counted for four times as many.
    #[test]
    fn large_trees_share_more() {
        assert_eq!(new_nodes(COUNTED_NODES)[0], LEVELS[0].new);
        let four_times = new_nodes(4 * COUNTED_NODES);
        // Counted with 3,036,383 nodes.
        for (new, counted) in four_times.into_iter().zip([4470, 1462, 879, 750, 783, 877]) {
            assert!(new.abs_diff(counted) <= counted / 40, "{new} for {counted}");
        }
        assert!(new_nodes(COUNTED_NODES / 4)[0] > LEVELS[0].new);
    }
}
