// SPDX-License-Identifier: MIT OR Apache-2.0
//! The buddy lists: one of each order and migrate type (Linux's `free_area`).
//!
//! Doubly linked through the table, so that a block leaves from anywhere in constant time when its
//! buddy is freed.

use super::table::{Head, Kind, MAX_ORDER, NIL, Pfn32, State, Table};

/// Orders that have lists.
pub(super) const ORDERS: usize = MAX_ORDER as usize + 1;

#[derive(Clone, Copy)]
struct Ends {
    first: Pfn32,
    last: Pfn32,
}

/// First and last block of every list, and which lists have any.
pub(super) struct FreeLists {
    ends: [[Ends; ORDERS]; 3],
    /// Bit `order` of a kind's word: its list has a block.
    nonempty: [u32; 3],
    /// Blocks of each order (`nr_free`).
    counts: [u64; ORDERS],
}

impl FreeLists {
    pub(super) fn new() -> Self {
        Self { ends: [[Ends { first: NIL, last: NIL }; ORDERS]; 3], nonempty: [0; 3], counts: [0; ORDERS] }
    }

    /// Blocks of each order, whatever their kind.
    pub(super) fn counts(&self) -> [u64; ORDERS] {
        self.counts
    }

    /// The list's first block.
    #[inline]
    pub(super) fn first(&self, order: u8, kind: Kind) -> Option<Pfn32> {
        let first = self.ends[kind as usize][order as usize].first;
        (first != NIL).then_some(first)
    }

    /// The smallest order, at least `order`, of which `kind` has a block.
    #[inline]
    pub(super) fn smallest(&self, order: u8, kind: Kind) -> Option<u8> {
        let at_least = self.nonempty[kind as usize] >> order;
        (at_least != 0).then(|| order + at_least.trailing_zeros() as u8)
    }

    /// Whether `kind` has no block of `order`.
    #[inline]
    pub(super) fn is_empty(&self, order: u8, kind: Kind) -> bool {
        self.nonempty[kind as usize] >> order & 1 == 0
    }

    /// Puts a block first (`add_to_free_list`). Its entry must be blank or its own.
    #[inline]
    pub(super) fn push_front(&mut self, table: &mut Table, pfn: Pfn32, order: u8, kind: Kind) {
        let ends = &mut self.ends[kind as usize][order as usize];
        let next = std::mem::replace(&mut ends.first, pfn);
        if next == NIL {
            ends.last = pfn;
            self.nonempty[kind as usize] |= 1 << order;
        } else {
            table.set_previous(next, order, pfn);
        }
        table.set_listed(pfn, Head::new(State::Free, order, kind), [NIL, next]);
        self.counts[order as usize] += 1;
    }

    /// Puts a block last (`add_to_free_list_tail`).
    #[inline]
    pub(super) fn push_back(&mut self, table: &mut Table, pfn: Pfn32, order: u8, kind: Kind) {
        let ends = &mut self.ends[kind as usize][order as usize];
        let previous = std::mem::replace(&mut ends.last, pfn);
        if previous == NIL {
            ends.first = pfn;
            self.nonempty[kind as usize] |= 1 << order;
        } else {
            table.set_next(previous, order, pfn);
        }
        table.set_listed(pfn, Head::new(State::Free, order, kind), [previous, NIL]);
        self.counts[order as usize] += 1;
    }

    /// Takes a block out (`del_page_from_free_list`); its entry is left blank.
    #[inline]
    pub(super) fn remove(&mut self, table: &mut Table, pfn: Pfn32, order: u8) {
        let kind = table.head(pfn, order).kind();
        let [previous, next] = table.links(pfn, order);
        let ends = &mut self.ends[kind as usize][order as usize];
        if previous == NIL {
            ends.first = next;
        } else {
            table.set_next(previous, order, next);
        }
        if next == NIL {
            ends.last = previous;
        } else {
            table.set_previous(next, order, previous);
        }
        if ends.first == NIL {
            self.nonempty[kind as usize] &= !(1 << order);
        }
        self.counts[order as usize] -= 1;
        table.absorb(pfn, order);
    }

    /// The blocks of one list, first to last.
    pub(super) fn iter<'a>(&'a self, table: &'a Table, order: u8, kind: Kind) -> impl Iterator<Item = Pfn32> + 'a {
        std::iter::successors(self.first(order, kind), move |&pfn| {
            let next = table.links(pfn, order)[1];
            (next != NIL).then_some(next)
        })
    }

    /// The last block of a list.
    pub(super) fn last(&self, order: u8, kind: Kind) -> Option<Pfn32> {
        let last = self.ends[kind as usize][order as usize].last;
        (last != NIL).then_some(last)
    }
}
