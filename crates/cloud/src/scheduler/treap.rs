// SPDX-License-Identifier: MIT OR Apache-2.0
//! Search trees of hosts, balanced by fixed pseudo-random priorities (treaps). Every subtree knows
//! the largest values of some lanes, so that the first host with a lane that is large enough is
//! found by one descent.
//!
//! All trees share one array: a host is in one of them at a time. A tree is named by its root.

const NONE: u32 = u32::MAX;

/// A host's position in an order: key, then number.
type Key = (u64, u32);

#[derive(Clone, Copy, Debug)]
struct Node<const LANES: usize> {
    key: u64,
    left: u32,
    right: u32,
    /// The host's own values.
    lanes: [u32; LANES],
    /// The largest values in its subtree.
    most: [u32; LANES],
}

/// The trees, of hosts with `LANES` values each that can be looked for.
#[derive(Clone, Debug)]
pub(super) struct Treap<const LANES: usize> {
    nodes: Vec<Node<LANES>>,
    examined: u64,
}

/// The balance: the tree is as deep as if hosts had been inserted in the order of these numbers
/// (splitmix64's last steps).
fn priority(host: u32) -> u64 {
    let mixed = (u64::from(host) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

/// The root of a tree without hosts.
pub(super) const EMPTY: u32 = NONE;

impl<const LANES: usize> Treap<LANES> {
    pub fn new(hosts: usize) -> Self {
        let node = Node { key: 0, left: NONE, right: NONE, lanes: [0; LANES], most: [0; LANES] };
        Self { nodes: vec![node; hosts], examined: 0 }
    }

    pub fn examined(&self) -> u64 {
        self.examined
    }

    fn key(&self, host: u32) -> Key {
        (self.nodes[host as usize].key, host)
    }

    /// Inserts `host`, which is in no tree, into the tree at `root`. Returns the new root.
    pub fn insert(&mut self, root: u32, host: u32, key: u64, lanes: [u32; LANES]) -> u32 {
        self.nodes[host as usize] = Node { key, left: NONE, right: NONE, lanes, most: lanes };
        self.insert_node(root, host)
    }

    fn insert_node(&mut self, root: u32, host: u32) -> u32 {
        if root == NONE {
            return host;
        }
        if priority(host) > priority(root) {
            let (left, right) = self.split(root, self.key(host));
            let node = &mut self.nodes[host as usize];
            (node.left, node.right) = (left, right);
            self.sum_up(host);
            return host;
        }
        if self.key(host) < self.key(root) {
            self.nodes[root as usize].left = self.insert_node(self.nodes[root as usize].left, host);
        } else {
            self.nodes[root as usize].right = self.insert_node(self.nodes[root as usize].right, host);
        }
        let lanes = self.nodes[host as usize].lanes;
        let most = &mut self.nodes[root as usize].most;
        most.iter_mut().zip(lanes).for_each(|(most, lane)| *most = lane.max(*most));
        root
    }

    /// Removes `host`, which is in the tree at `root`. Returns the new root.
    pub fn remove(&mut self, root: u32, host: u32) -> u32 {
        if root == host {
            let node = self.nodes[host as usize];
            return self.merge(node.left, node.right);
        }
        if self.key(host) < self.key(root) {
            self.nodes[root as usize].left = self.remove(self.nodes[root as usize].left, host);
        } else {
            self.nodes[root as usize].right = self.remove(self.nodes[root as usize].right, host);
        }
        self.sum_up(root);
        root
    }

    /// The hosts before `key`, and those after it.
    fn split(&mut self, root: u32, key: Key) -> (u32, u32) {
        if root == NONE {
            return (NONE, NONE);
        }
        let node = self.nodes[root as usize];
        if self.key(root) < key {
            let (left, right) = self.split(node.right, key);
            self.nodes[root as usize].right = left;
            self.sum_up(root);
            (root, right)
        } else {
            let (left, right) = self.split(node.left, key);
            self.nodes[root as usize].left = right;
            self.sum_up(root);
            (left, root)
        }
    }

    /// One tree of two, of which the hosts of `left` come before those of `right`.
    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NONE || right == NONE {
            return if left == NONE { right } else { left };
        }
        let root = if priority(left) > priority(right) {
            self.nodes[left as usize].right = self.merge(self.nodes[left as usize].right, right);
            left
        } else {
            self.nodes[right as usize].left = self.merge(left, self.nodes[right as usize].left);
            right
        };
        self.sum_up(root);
        root
    }

    fn sum_up(&mut self, host: u32) {
        let node = self.nodes[host as usize];
        let mut most = node.lanes;
        for child in [node.left, node.right] {
            if child != NONE {
                let below = self.nodes[child as usize].most;
                most.iter_mut().zip(below).for_each(|(most, lane)| *most = lane.max(*most));
            }
        }
        self.nodes[host as usize].most = most;
    }

    fn reaches(&self, root: u32, lane: usize, least: u32) -> bool {
        root != NONE && self.nodes[root as usize].most[lane] >= least
    }

    /// The first host whose `lane` is at least `least`, if it comes before `limit`.
    pub fn first_before(&mut self, root: u32, lane: usize, least: u32, limit: Option<Key>) -> Option<Key> {
        if !self.reaches(root, lane, least) {
            return None;
        }
        let mut at = root;
        loop {
            self.examined += 1;
            let node = self.nodes[at as usize];
            if self.reaches(node.left, lane, least) {
                at = node.left;
                continue;
            }
            // No host before this one will do.
            let key = self.key(at);
            if limit.is_some_and(|limit| key >= limit) {
                return None;
            }
            if node.lanes[lane] >= least {
                return Some(key);
            }
            at = node.right;
        }
    }

    /// The last host whose `lane` is at least `least`.
    pub fn last(&mut self, root: u32, lane: usize, least: u32) -> Option<Key> {
        if !self.reaches(root, lane, least) {
            return None;
        }
        let mut at = root;
        loop {
            self.examined += 1;
            let node = self.nodes[at as usize];
            if self.reaches(node.right, lane, least) {
                at = node.right;
            } else if node.lanes[lane] >= least {
                return Some(self.key(at));
            } else {
                at = node.left;
            }
        }
    }

    /// Appends the first `limit` hosts whose `lane` is at least `least`.
    pub fn collect(&mut self, root: u32, lane: usize, least: u32, limit: usize, hosts: &mut Vec<Key>) {
        let limit = hosts.len().saturating_add(limit);
        self.collect_up_to(root, lane, least, limit, hosts);
    }

    fn collect_up_to(&mut self, root: u32, lane: usize, least: u32, limit: usize, hosts: &mut Vec<Key>) {
        if hosts.len() >= limit || !self.reaches(root, lane, least) {
            return;
        }
        self.examined += 1;
        let node = self.nodes[root as usize];
        self.collect_up_to(node.left, lane, least, limit, hosts);
        if node.lanes[lane] >= least && hosts.len() < limit {
            hosts.push(self.key(root));
        }
        self.collect_up_to(node.right, lane, least, limit, hosts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_finds_what_a_sorted_list_finds(
            changes in prop::collection::vec((0..60u32, 0..20u64, 0..50u32, any::<bool>()), 1..200),
            least in 0..50u32, limit in 1..10usize,
        ) {
            let mut treap = Treap::<4>::new(60);
            let (mut root, mut list) = (EMPTY, Vec::<(Key, u32)>::new());
            for (host, key, lane, insert) in changes {
                if let Some(at) = list.iter().position(|&((_, other), _)| other == host) {
                    list.remove(at);
                    root = treap.remove(root, host);
                }
                if insert {
                    list.push(((key, host), lane));
                    let mut lanes = [0; 4];
                    lanes[3] = lane;
                    root = treap.insert(root, host, key, lanes);
                }
            }
            list.sort_unstable();
            let fitting: Vec<Key> = list.iter().filter(|&&(_, lane)| lane >= least).map(|&(key, _)| key).collect();
            prop_assert_eq!(treap.first_before(root, 3, least, None), fitting.first().copied());
            let before = Some((10, 30));
            prop_assert_eq!(treap.first_before(root, 3, least, before), fitting.first().copied().filter(|&key| Some(key) < before));
            prop_assert_eq!(treap.last(root, 3, least), fitting.last().copied());
            let mut found = Vec::new();
            treap.collect(root, 3, least, limit, &mut found);
            prop_assert_eq!(&found, &fitting[..limit.min(fitting.len())]);
        }
    }
}
