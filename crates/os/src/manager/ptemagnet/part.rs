// SPDX-License-Identifier: MIT OR Apache-2.0
//! PaRT, the page reservation table of one process: a radix tree of four levels over groups of 8 pages (PTEMagnet,
//! section 4.2).

use nestwalk_mem::Frame;

/// Pages of a group: a line of guest PTEs.
pub(super) const GROUP: u64 = 8;
/// Every page of a group.
const ALL: u8 = 0xff;

const LEVELS: u32 = 4;
/// Four levels of 11 bits cover the groups of a 57-bit address space.
const INDEX_BITS: u32 = 11;
const SLOTS: usize = 1 << INDEX_BITS;

/// A block of 8 frames that is set aside for a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reservation {
    /// Its first frame, a multiple of 8.
    pub base: Frame,
    /// A bit for each page of the group that is mapped to its frame of the block.
    pub mapped: u8,
    /// A bit for each frame that belongs to the reservation no longer: it was copied away from, moved, swapped out, is
    /// shared, or went to a forked child.
    pub gone: u8,
}

impl Reservation {
    pub const fn new(base: Frame) -> Self {
        Self { base, mapped: 0, gone: 0 }
    }

    /// The frames that are set aside and not mapped, as bits.
    pub const fn unmapped(self) -> u8 {
        ALL & !(self.mapped | self.gone)
    }

    /// Nothing is left to give: the entry can go, its pages are pages like any other.
    pub const fn is_spent(self) -> bool {
        self.unmapped() == 0
    }

    const fn pack(self) -> u64 {
        self.base.0 << 16 | (self.mapped as u64) << 8 | self.gone as u64 | 1 << 63
    }

    const fn unpack(slot: u64) -> Option<Self> {
        if slot == 0 {
            return None;
        }
        Some(Self { base: Frame(slot << 1 >> 17), mapped: (slot >> 8) as u8, gone: slot as u8 })
    }
}

/// A node: of the lowest level reservations, above it the numbers of nodes. 0 is nothing.
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

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Node 0 is the root.
    nodes: Vec<Node>,
    free: Vec<u32>,
    len: u64,
    /// The node of the lowest level that was put into last, and which groups it holds: faults come in runs.
    last: Option<(u64, usize)>,
}

impl Default for Part {
    fn default() -> Self {
        Self { nodes: vec![Node::new()], free: Vec::new(), len: 0, last: None }
    }
}

const fn index(group: u64, level: u32) -> usize {
    (group >> (INDEX_BITS * level)) as usize & (SLOTS - 1)
}

impl Part {
    /// Reservations in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The reservation of `group`.
    #[inline]
    pub fn get(&self, group: u64) -> Option<Reservation> {
        let node = match self.last {
            Some((groups, node)) if groups == group >> INDEX_BITS => node,
            _ => self.descend(group)?,
        };
        Reservation::unpack(self.nodes[node].slots[index(group, 0)])
    }

    /// The node of the lowest level that holds `group`.
    fn descend(&self, group: u64) -> Option<usize> {
        (1..LEVELS).rev().try_fold(0, |node, level| {
            let below = self.nodes[node].slots[index(group, level)] as usize;
            (below != 0).then_some(below)
        })
    }

    /// The same, made if there is none.
    #[inline(never)]
    fn ensure(&mut self, group: u64) -> usize {
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

    /// Puts in, or changes, the reservation of `group`.
    #[inline]
    pub fn set(&mut self, group: u64, reservation: Reservation) {
        let node = match self.last {
            Some((groups, node)) if groups == group >> INDEX_BITS => node,
            _ => self.ensure(group),
        };
        let place = index(group, 0);
        if self.nodes[node].slots[place] == 0 {
            self.nodes[node].used += 1;
            self.len += 1;
        }
        self.nodes[node].slots[place] = reservation.pack();
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

    /// Takes out the reservation of `group`, if there is one, and the nodes that this leaves empty; those of the last node
    /// only when another one has become that.
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

    /// Frees the node of the lowest level that holds `groups`, which is empty, and those above that this leaves empty.
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

    /// The first group at or after `from` that has a reservation.
    pub fn next(&self, from: u64) -> Option<u64> {
        self.next_in(0, LEVELS - 1, 0, from)
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

    /// All groups with their reservations, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Reservation)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let group = self.next(from)?;
            from = group + 1;
            Some((group, self.get(group)?))
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
        fn a_part_is_a_map(ops in prop::collection::vec((0_u64..40, 0_u32..4, any::<bool>()), 1..300)) {
            let (mut part, mut map) = (Part::default(), BTreeMap::new());
            for (number, level, put) in ops {
                let group = number << (INDEX_BITS * level) & ((1 << 44) - 1);
                if put {
                    let reservation = Reservation { mapped: number as u8, ..Reservation::new(Frame(number * GROUP)) };
                    part.set(group, reservation);
                    map.insert(group, reservation);
                } else {
                    part.remove(group);
                    map.remove(&group);
                }
                prop_assert_eq!(part.get(group), map.get(&group).copied());
                prop_assert_eq!(part.len(), map.len() as u64);
            }
            prop_assert_eq!(part.iter().collect::<Vec<_>>(), map.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_empty_part_has_its_root_and_the_way_to_the_last_node_only() {
        let mut part = Part::default();
        let in_use = |part: &Part| part.nodes.len() - part.free.len();
        (0..5000).for_each(|group| part.set(group * 3, Reservation::new(Frame(group * GROUP))));
        assert_eq!(in_use(&part), 3 + 15000_usize.div_ceil(SLOTS));
        (0..5000).for_each(|group| part.remove(group * 3));
        assert_eq!((part.len(), in_use(&part)), (0, LEVELS as usize));
        for far in 1..100 {
            part.set(far << (3 * INDEX_BITS), Reservation::new(Frame(0)));
            assert_eq!((part.len(), in_use(&part)), (1, LEVELS as usize), "what was the last node is gone");
            part.remove(far << (3 * INDEX_BITS));
        }
        assert_eq!(part.next(0), None);
    }
}
