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
}

impl Default for Part {
    fn default() -> Self {
        Self { nodes: vec![Node::new()], free: Vec::new(), len: 0 }
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
        let mut node = 0;
        for level in (1..LEVELS).rev() {
            node = self.nodes[node].slots[index(group, level)] as usize;
            if node == 0 {
                return None;
            }
        }
        Reservation::unpack(self.nodes[node].slots[index(group, 0)])
    }

    /// Puts in, or changes, the reservation of `group`.
    pub fn set(&mut self, group: u64, reservation: Reservation) {
        let mut node = 0;
        for level in (1..LEVELS).rev() {
            let below = self.nodes[node].slots[index(group, level)] as usize;
            node = if below == 0 { self.add_node(node, index(group, level)) } else { below };
        }
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

    /// Takes out the reservation of `group`, if there is one, and the nodes that this leaves empty.
    pub fn remove(&mut self, group: u64) {
        let mut path = [0; LEVELS as usize];
        for level in (1..LEVELS).rev() {
            let node = path[level as usize];
            let below = self.nodes[node].slots[index(group, level)] as usize;
            if below == 0 {
                return;
            }
            path[level as usize - 1] = below;
        }
        if self.nodes[path[0]].slots[index(group, 0)] == 0 {
            return;
        }
        self.len -= 1;
        for level in 0..LEVELS {
            let node = path[level as usize];
            self.nodes[node].slots[index(group, level)] = 0;
            self.nodes[node].used -= 1;
            if self.nodes[node].used > 0 || node == 0 {
                return;
            }
            self.free.push(node as u32);
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
    fn an_empty_part_has_its_root_only() {
        let mut part = Part::default();
        (0..5000).for_each(|group| part.set(group * 3, Reservation::new(Frame(group * GROUP))));
        (0..5000).for_each(|group| part.remove(group * 3));
        assert_eq!((part.len(), part.nodes.len() - part.free.len()), (0, 1));
    }
}
