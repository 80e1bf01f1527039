// SPDX-License-Identifier: MIT OR Apache-2.0
//! A radix tree of four levels from groups of pages to words: what a memory manager keeps for each
//! process. Groups are numbered by address; faults come in runs, so the node that was used last is
//! looked at first.

const LEVELS: u32 = 4;
/// Four levels of 11 bits cover the groups of 8 pages of a 57-bit address space.
const INDEX_BITS: u32 = 11;
const SLOTS: usize = 1 << INDEX_BITS;

/// A node: of the lowest level the words, above it the numbers of nodes. 0 is nothing.
#[derive(Clone, Debug)]
struct Node {
    slots: Box<[u64; SLOTS]>,
    used: u16,
}

impl Node {
    fn new() -> Self {
        Self { slots: vec![0; SLOTS].try_into().expect("as many slots"), used: 0 }
    }
}

/// See the [module](self). A word of 0 is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Radix {
    /// Node 0 is the root. There is none before the first word: most processes of many never need
    /// one.
    nodes: Vec<Node>,
    free: Vec<u32>,
    len: u64,
    /// The node of the lowest level that was put into last, and which groups it holds: faults come
    /// in runs.
    last: Option<(u64, usize)>,
}

const fn index(group: u64, level: u32) -> usize {
    (group >> (INDEX_BITS * level)) as usize & (SLOTS - 1)
}

impl Radix {
    /// Words in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The word of `group`; 0 if it has none.
    #[inline]
    pub fn get(&self, group: u64) -> u64 {
        let node = match self.last {
            Some((groups, node)) if groups == group >> INDEX_BITS => node,
            _ => match self.descend(group) {
                Some(node) => node,
                None => return 0,
            },
        };
        self.nodes[node].slots[index(group, 0)]
    }

    /// The node of the lowest level that holds `group`.
    fn descend(&self, group: u64) -> Option<usize> {
        if self.nodes.is_empty() {
            return None;
        }
        (1..LEVELS).rev().try_fold(0, |node, level| {
            let below = self.nodes[node].slots[index(group, level)] as usize;
            (below != 0).then_some(below)
        })
    }

    /// The same, made if there is none.
    #[inline(never)]
    fn ensure(&mut self, group: u64) -> usize {
        if self.nodes.is_empty() {
            self.nodes.push(Node::new());
        }
        let left = self.last.take();
        let node = (1..LEVELS).rev().fold(0, |node, level| {
            let below = self.nodes[node].slots[index(group, level)] as usize;
            if below == 0 { self.add_node(node, index(group, level)) } else { below }
        });
        self.last = Some((group >> INDEX_BITS, node));
        if let Some((groups, node)) = left
            && self.nodes[node].used == 0
        {
            self.prune(groups);
        }
        node
    }

    /// Puts in, or changes, the word of `group`, which must not be 0.
    #[inline]
    pub fn set(&mut self, group: u64, word: u64) {
        debug_assert!(word != 0, "0 is no word");
        let node = match self.last {
            Some((groups, node)) if groups == group >> INDEX_BITS => node,
            _ => self.ensure(group),
        };
        let place = index(group, 0);
        if self.nodes[node].slots[place] == 0 {
            self.nodes[node].used += 1;
            self.len += 1;
        }
        self.nodes[node].slots[place] = word;
    }

    fn add_node(&mut self, above: usize, place: usize) -> usize {
        let node = self.free.pop().map_or(self.nodes.len(), |node| node as usize);
        if node == self.nodes.len() {
            self.nodes.push(Node::new());
        }
        self.nodes[above].slots[place] = node as u64;
        self.nodes[above].used += 1;
        node
    }

    /// Takes out the word of `group`, if there is one, and the nodes that this leaves empty; those
    /// of the last node only when another one has become that.
    #[inline]
    pub fn remove(&mut self, group: u64) {
        let last = self.last.filter(|&(groups, _)| groups == group >> INDEX_BITS);
        let Some(node) = last.map(|(_, node)| node).or_else(|| self.descend(group)) else { return };
        if std::mem::take(&mut self.nodes[node].slots[index(group, 0)]) == 0 {
            return;
        }
        self.len -= 1;
        self.nodes[node].used -= 1;
        if self.nodes[node].used == 0 && last.is_none() {
            self.prune(group >> INDEX_BITS);
        }
    }

    /// Frees the node of the lowest level that holds `groups`, which is empty, and those above that
    /// this leaves empty.
    #[inline(never)]
    fn prune(&mut self, groups: u64) {
        let group = groups << INDEX_BITS;
        let mut path = [0; LEVELS as usize];
        for level in (1..LEVELS).rev() {
            path[level as usize - 1] = self.nodes[path[level as usize]].slots[index(group, level)] as usize;
        }
        for level in 1..LEVELS {
            let (node, above) = (path[level as usize - 1], path[level as usize]);
            if self.nodes[node].used > 0 {
                return;
            }
            self.free.push(node as u32);
            self.nodes[above].slots[index(group, level)] = 0;
            self.nodes[above].used -= 1;
        }
    }

    /// The first group at or after `from` that has a word.
    pub fn next(&self, from: u64) -> Option<u64> {
        if self.len == 0 { None } else { self.next_in(0, LEVELS - 1, 0, from) }
    }

    fn next_in(&self, node: usize, level: u32, first: u64, from: u64) -> Option<u64> {
        let span = 1 << (INDEX_BITS * level);
        let start = from.saturating_sub(first) >> (INDEX_BITS * level);
        (start..SLOTS as u64).find_map(|place| {
            let slot = self.nodes[node].slots[place as usize];
            let group = first + place * span;
            match (slot, level) {
                (0, _) => None,
                (_, 0) => Some(group),
                (below, _) => self.next_in(below as usize, level - 1, group, from),
            }
        })
    }

    /// All groups with their words, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let group = self.next(from)?;
            from = group + 1;
            Some((group, self.get(group)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(ops in prop::collection::vec((0_u64..40, 0_u32..4, any::<bool>()), 1..300)) {
            let (mut radix, mut map) = (Radix::default(), BTreeMap::new());
            for (number, level, put) in ops {
                let group = number << (INDEX_BITS * level) & ((1 << 44) - 1);
                if put {
                    radix.set(group, number + 1);
                    map.insert(group, number + 1);
                } else {
                    radix.remove(group);
                    map.remove(&group);
                }
                prop_assert_eq!(radix.get(group), map.get(&group).copied().unwrap_or(0));
                prop_assert_eq!(radix.len(), map.len() as u64);
            }
            prop_assert_eq!(radix.iter().collect::<Vec<_>>(), map.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_empty_one_has_its_root_and_the_way_to_the_last_node_only() {
        let mut radix = Radix::default();
        let in_use = |radix: &Radix| radix.nodes.len() - radix.free.len();
        radix.remove(7);
        assert_eq!((in_use(&radix), radix.get(7), radix.next(0)), (0, 0, None), "nothing before the first word");
        (0..5000).for_each(|group| radix.set(group * 3, group + 1));
        assert_eq!(in_use(&radix), 3 + 15000_usize.div_ceil(SLOTS));
        (0..5000).for_each(|group| radix.remove(group * 3));
        assert_eq!((radix.len(), in_use(&radix)), (0, LEVELS as usize));
        for far in 1..100 {
            radix.set(far << (3 * INDEX_BITS), 1);
            assert_eq!((radix.len(), in_use(&radix)), (1, LEVELS as usize), "what was the last node is gone");
            radix.remove(far << (3 * INDEX_BITS));
        }
        assert_eq!(radix.next(0), None);
    }
}
