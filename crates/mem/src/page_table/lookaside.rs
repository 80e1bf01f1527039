// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the PTE nodes of a page table are, by address: one look instead of a way down from the
//! root.
//!
//! It serves the simulation only (what the simulated hardware finds by walking, it still walks
//! for). A direct-mapped table that knows most nodes and never one that is gone: a miss says
//! nothing, a hit is right. Neighbouring nodes lie in neighbouring places, so blocks meet only
//! where mappings lie far apart.

use super::node_id::NodeId;
use crate::geometry::Level;

/// Up to so many places for each node known (an eighth of a byte for each byte of the nodes) there
/// may be more to avoid that two blocks meet.
const PLACES_MAX: usize = 16;

/// See the [module's documentation](self).
#[derive(Clone, Debug)]
pub(crate) struct Lookaside {
    /// Of each the node [under](NodeId::under) the block of pages that it covers, at place `block`
    /// modulo their number, which is a power of two. 0 is nothing: node 0 is the root and no PTE
    /// node.
    slots: Vec<u64>,
    known: usize,
}

impl Lookaside {
    pub fn new() -> Self {
        Self { slots: vec![0; 64], known: 0 }
    }

    #[inline(always)]
    fn place(&self, block: u64) -> usize {
        block as usize & (self.slots.len() - 1)
    }

    /// The node that covers `block`, if it is known here.
    #[inline(always)]
    pub fn find(&self, block: u64) -> Option<NodeId> {
        let slot = self.slots[self.place(block)];
        let (there, node) = NodeId::split(slot);
        (there == block && slot != 0).then_some(node)
    }

    /// A node was made that covers `block`.
    pub fn add(&mut self, block: u64, node: NodeId) {
        let Some(slot) = node.under(block) else { return };
        // Of two blocks at one place only the last is known: rather than that, the places become
        // more, within bounds.
        while self.known >= self.slots.len() || self.slots.len() < PLACES_MAX * self.known && self.is_taken(block) {
            self.grow();
        }
        let place = self.place(block);
        self.known += usize::from(self.slots[place] == 0);
        self.slots[place] = slot;
    }

    /// Whether another block is known at the place of this one.
    fn is_taken(&self, block: u64) -> bool {
        let slot = self.slots[self.place(block)];
        slot != 0 && NodeId::split(slot).0 != block
    }

    /// The node that covers `block` is gone.
    pub fn remove(&mut self, block: u64) {
        if self.find(block).is_some() {
            let place = self.place(block);
            self.slots[place] = 0;
            self.known -= 1;
        }
    }

    /// Checks that each node known here is the one that `descend` finds from the root.
    pub fn check_invariants(&self, descend: impl Fn(u64) -> (NodeId, Level)) {
        let known = self.slots.iter().filter(|&&slot| slot != 0);
        assert_eq!(known.clone().count(), self.known, "the count of known nodes");
        for slot in known {
            let (block, _) = NodeId::split(*slot);
            let node = self.find(block).unwrap_or_else(|| panic!("block {block:#x} is in another's slot"));
            assert_eq!(descend(block), (node, Level::PTE), "the node of block {block:#x}");
        }
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![0; 4 * self.slots.len()];
        for slot in std::mem::replace(&mut self.slots, larger).into_iter().filter(|&slot| slot != 0) {
            let place = self.place(NodeId::split(slot).0);
            self.slots[place] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_finds_is_right_and_what_went_is_not_found() {
        let mut lookaside = Lookaside::new();
        for block in 0..1000 {
            lookaside.add(block * 3, NodeId(block as u32 + 1));
        }
        let found = (0..1000).filter(|&block| lookaside.find(block * 3).is_some()).count();
        assert!(found > 900, "{found}");
        for block in 0..1000 {
            assert!(lookaside.find(block * 3).is_none_or(|node| node == NodeId(block as u32 + 1)));
            assert_eq!(lookaside.find(block * 3 + 1), None);
        }
        lookaside.remove(999 * 3);
        assert_eq!(lookaside.find(999 * 3), None);
        assert_eq!(lookaside.find(0), Some(NodeId(1)));
    }

    #[test]
    fn mappings_that_lie_apart_do_not_drive_each_other_out() {
        let mut lookaside = Lookaside::new();
        let blocks = (0..40).chain((1 << 8)..(1 << 8) + 40);
        blocks.clone().for_each(|block| lookaside.add(block, NodeId(block as u32 + 1)));
        for block in blocks {
            assert_eq!(lookaside.find(block), Some(NodeId(block as u32 + 1)));
        }
        // So far apart that no number of places within bounds would do.
        lookaside.add(1 << 34, NodeId(7));
        assert_eq!((lookaside.find(1 << 34), lookaside.find(0)), (Some(NodeId(7)), None));
        assert!(lookaside.slots.len() <= 4 * PLACES_MAX * lookaside.known);
    }
}
