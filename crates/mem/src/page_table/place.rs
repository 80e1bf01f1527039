// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the nodes of a page table are.

use super::node_id::NodeId;
use crate::addr::Frame;

/// Where a node is, in one word, since a walk needs that of each of its nodes: the frame in which
/// it sits, above the node that points to it (of the root, the root; of nodes that are free, any).
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(u64);

impl Place {
    /// # Panics
    /// If the frame is beyond the 40 bits that x86 has for one (4 PiB).
    pub(super) fn new(frame: Frame, parent: NodeId) -> Self {
        Self(parent.under(frame.0).unwrap_or_else(|| panic!("{frame:?} is beyond 4 PiB")))
    }

    #[inline]
    pub(super) const fn frame(self) -> Frame {
        Frame(NodeId::split(self.0).0)
    }

    #[inline]
    pub(super) const fn parent(self) -> NodeId {
        NodeId::split(self.0).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_frame_and_node_fit() {
        let (frame, node) = (Frame((1 << 40) - 1), NodeId((1 << NodeId::BITS) - 1));
        let place = Place::new(frame, node);
        assert_eq!((place.frame(), place.parent()), (frame, node));
    }

    #[test]
    #[should_panic(expected = "is beyond 4 PiB")]
    fn a_frame_that_x86_does_not_have_is_caught() {
        Place::new(Frame(1 << 40), NodeId(0));
    }
}
