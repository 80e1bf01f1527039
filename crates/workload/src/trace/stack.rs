// SPDX-License-Identifier: MIT OR Apache-2.0
//! LRU stack distances of pages (Mattson et al. 1970): how many other pages were accessed since a
//! page was. An LRU TLB of more entries than that, for pages of 4 KiB, would have had it.

use nestwalk_mem::Vpn;
use rustc_hash::FxHashMap;

/// Pages in front, which are searched in order: most accesses go to one of them.
const FRONT: usize = 16;
/// Places of the Fenwick tree to begin with.
const PLACES_MIN: usize = 1 << 12;

/// The pages that were accessed, by how lately. Exact: the pages behind the front are in a Fenwick
/// tree over the order in which they left it.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The latest first.
    front: Vec<Vpn>,
    /// Of the pages behind: when each left the front.
    places: FxHashMap<Vpn, usize>,
    /// By place: sums as a Fenwick tree has them, 1 for each page that is there.
    tree: Vec<u32>,
    next: usize,
}

impl Default for Stack {
    fn default() -> Self {
        Self {
            front: Vec::with_capacity(FRONT + 1),
            places: FxHashMap::default(),
            tree: vec![0; PLACES_MIN + 1],
            next: 0,
        }
    }
}

impl Stack {
    /// `page` is accessed: how many other pages were since it was before; `None` if it was not.
    #[inline]
    pub fn access(&mut self, page: Vpn) -> Option<u64> {
        if let Some(index) = self.front.iter().position(|&known| known == page) {
            self.front[..=index].rotate_right(1);
            return Some(index as u64);
        }
        self.access_behind(page)
    }

    /// How many other pages were accessed since `page` was; `None` if it was not.
    pub fn distance(&self, page: Vpn) -> Option<u64> {
        if let Some(index) = self.front.iter().position(|&known| known == page) {
            return Some(index as u64);
        }
        let pages = self.front.len() + self.places.len();
        self.places.get(&page).map(|&place| pages as u64 - 1 - self.before(place))
    }

    fn access_behind(&mut self, page: Vpn) -> Option<u64> {
        let place = self.places.remove(&page);
        let distance = place.map(|place| {
            self.add(place, u32::MAX);
            (self.front.len() + self.places.len()) as u64 - self.before(place)
        });
        self.front.insert(0, page);
        if self.front.len() > FRONT
            && let Some(oldest) = self.front.pop()
        {
            self.leave(oldest);
        }
        distance
    }

    /// `page` leaves the front.
    fn leave(&mut self, page: Vpn) {
        if self.next + 1 == self.tree.len() {
            self.renumber();
        }
        self.places.insert(page, self.next);
        self.add(self.next, 1);
        self.next += 1;
    }

    /// Closes the gaps between the places, and makes room for as many pages again.
    fn renumber(&mut self) {
        let mut pages: Vec<_> = self.places.iter().map(|(&page, &place)| (place, page)).collect();
        pages.sort_unstable();
        self.tree = vec![0; (2 * pages.len()).next_power_of_two().max(PLACES_MIN) + 1];
        self.next = pages.len();
        self.places = pages.iter().enumerate().map(|(place, &(_, page))| (page, place)).collect();
        (0..self.next).for_each(|place| self.add(place, 1));
    }

    /// Adds `change`, modulo 2^32, at `place`.
    fn add(&mut self, place: usize, change: u32) {
        let mut at = place + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(change);
            at += at & at.wrapping_neg();
        }
    }

    /// Pages at places before `place`.
    fn before(&self, place: usize) -> u64 {
        let (mut at, mut sum) = (place, 0);
        while at > 0 {
            sum += u64::from(self.tree[at]);
            at &= at - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_agrees_with_a_list(pages in prop::collection::vec(prop_oneof![0u64..12, 0u64..90, 0u64..6000], 0..9000)) {
            let (mut stack, mut list) = (Stack::default(), Vec::new());
            for page in pages {
                let expected = list.iter().position(|&known| known == page);
                if let Some(index) = expected {
                    list.remove(index);
                }
                list.insert(0, page);
                prop_assert_eq!(stack.distance(Vpn(page)), expected.map(|index| index as u64));
                prop_assert_eq!(stack.access(Vpn(page)), expected.map(|index| index as u64));
            }
        }
    }
}
