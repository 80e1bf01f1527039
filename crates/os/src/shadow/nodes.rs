// SPDX-License-Identifier: MIT OR Apache-2.0
//! The nodes of an upper table that shadow entries were made from, and what a write to one of them
//! is.
//!
//! A node is known by its place in the upper table. It is write-protected when the first entry is
//! made from it (`account_shadowed`). What then comes of a write depends on its level: see
//! [`Written`].

use std::collections::BTreeMap;

use nestwalk_mem::{Frame, Geometry, Level, Vpn, VpnRange};

/// Writes to a node above the PTE level, with no entry made from it in between, at which KVM takes
/// it for no page table any more and gives it up (`detect_write_flooding`).
const FLOOD: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Node {
    /// The upper kernel's frame in which it sits.
    frame: Frame,
    /// Whether the guest may write to it until it next flushes its TLB (PTE nodes only).
    unsync: bool,
    /// Writes since an entry was last made from it.
    writes: u8,
}

/// What a write to a node is to the hypervisor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Written {
    /// Nothing: it is not write-protected.
    Freely,
    /// An exit, after which the PTE node may be written to freely until the guest flushes its TLB
    /// (`mmu_try_to_unsync_pages`).
    Unsynchronised,
    /// An exit: the write is emulated, and what the entry pointed to goes (`kvm_mmu_pte_write`).
    Trapped,
    /// The same, and so many that the node is given up.
    Flooded,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Nodes {
    shadowed: BTreeMap<(Level, Vpn), Node>,
    /// PTE nodes that were unsynchronised; some may be gone since.
    unsync: Vec<Vpn>,
    /// Nodes with writes, or more.
    written: u32,
}

impl Nodes {
    /// Whether entries were made from the PTE or larger node of `level` that begins at page
    /// `first`.
    pub fn has(&self, level: Level, first: Vpn) -> bool {
        self.shadowed.contains_key(&(level, first))
    }

    /// Whether it may be written to freely.
    pub fn is_unsync(&self, level: Level, first: Vpn) -> bool {
        self.shadowed.get(&(level, first)).is_some_and(|node| node.unsync)
    }

    /// Whether some node was written to and no entry made from it since.
    pub fn any_written(&self) -> bool {
        self.written > 0
    }

    /// An entry is made from the node in `frame`. Whether it is write-protected only now.
    pub fn protect(&mut self, level: Level, first: Vpn, frame: Frame) -> bool {
        let mut new = false;
        let node = self.shadowed.entry((level, first)).or_insert_with(|| {
            new = true;
            Node { frame, unsync: false, writes: 0 }
        });
        if node.writes > 0 {
            node.writes = 0;
            self.written -= 1;
        }
        new
    }

    /// The upper kernel writes to the node.
    pub fn write(&mut self, level: Level, first: Vpn) -> Written {
        let Some(node) = self.shadowed.get_mut(&(level, first)) else { return Written::Freely };
        if level == Level::PTE {
            if node.unsync {
                return Written::Freely;
            }
            node.unsync = true;
            self.unsync.push(first);
            return Written::Unsynchronised;
        }
        self.written += u32::from(node.writes == 0);
        node.writes += 1;
        if node.writes < FLOOD { Written::Trapped } else { Written::Flooded }
    }

    /// Nodes of `level` and below that begin within `pages` are page tables no more. `gone` gets
    /// their frames.
    pub fn forget(&mut self, level: Level, pages: VpnRange, mut gone: impl FnMut(Frame)) {
        for at in (1..=level.0).map(Level) {
            let places: Vec<_> = self.shadowed.range((at, pages.start)..(at, pages.end)).map(|(&key, _)| key).collect();
            for place in places {
                let node = self.shadowed.remove(&place).expect("it was there just now");
                self.written -= u32::from(node.writes > 0);
                gone(node.frame);
            }
        }
    }

    /// The PTE nodes that may be written to freely; they are write-protected again.
    pub fn synchronise(&mut self) -> Vec<Vpn> {
        let mut nodes = std::mem::take(&mut self.unsync);
        nodes.retain(|&first| {
            let node = self.shadowed.get_mut(&(Level::PTE, first));
            node.is_some_and(|node| std::mem::replace(&mut node.unsync, false))
        });
        nodes
    }

    /// Checks its counts.
    ///
    /// # Panics
    /// When they are wrong.
    pub fn check_invariants(&self, geometry: Geometry) {
        assert_eq!(self.written as usize, self.shadowed.values().filter(|node| node.writes > 0).count());
        for (&(level, first), node) in &self.shadowed {
            assert!(first.is_aligned(geometry.entry_order(level.up())), "{first:?} begins no node of {level:?}");
            assert!(!node.unsync || (level == Level::PTE && self.unsync.contains(&first)), "{first:?} at {level:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestwalk_mem::PageCount;

    #[test]
    fn a_pte_node_exits_for_its_first_write_until_it_is_synchronised() {
        let mut nodes = Nodes::default();
        assert_eq!(nodes.write(Level::PTE, Vpn(512)), Written::Freely);
        assert!(nodes.protect(Level::PTE, Vpn(512), Frame(7)));
        assert_eq!(nodes.write(Level::PTE, Vpn(512)), Written::Unsynchronised);
        assert_eq!(nodes.write(Level::PTE, Vpn(512)), Written::Freely);
        assert!(!nodes.protect(Level::PTE, Vpn(512), Frame(7)), "it stays unsynchronised");
        nodes.check_invariants(Geometry::X86_4);
        assert_eq!((nodes.synchronise(), nodes.synchronise()), (vec![Vpn(512)], vec![]));
        assert_eq!(nodes.write(Level::PTE, Vpn(512)), Written::Unsynchronised);
    }

    #[test]
    fn a_larger_node_exits_for_each_write_and_is_given_up_after_three_in_a_row() {
        let mut nodes = Nodes::default();
        nodes.protect(Level::PMD, Vpn(0), Frame(7));
        nodes.protect(Level::PTE, Vpn(512), Frame(8));
        for _ in 0..2 {
            assert_eq!(nodes.write(Level::PMD, Vpn(0)), Written::Trapped);
            assert_eq!(nodes.write(Level::PMD, Vpn(0)), Written::Trapped);
            assert!(nodes.any_written());
            nodes.protect(Level::PMD, Vpn(0), Frame(7));
            assert!(!nodes.any_written());
        }
        assert_ne!(nodes.write(Level::PMD, Vpn(0)), nodes.write(Level::PTE, Vpn(512)));
        assert_eq!(nodes.write(Level::PMD, Vpn(0)), Written::Trapped);
        assert_eq!(nodes.write(Level::PMD, Vpn(0)), Written::Flooded);
        let mut gone = Vec::new();
        nodes.forget(Level::PMD, VpnRange::new(Vpn(0), PageCount(1 << 18)), |frame| gone.push(frame.0));
        assert_eq!(gone, [8, 7]);
        assert!(!nodes.has(Level::PMD, Vpn(0)) && !nodes.any_written());
        nodes.check_invariants(Geometry::X86_4);
    }
}
