// SPDX-License-Identifier: MIT OR Apache-2.0
//! A part-of-memory TLB as lists: a line of four entries is a list, the latest entry first.

use std::collections::BTreeMap;

use nestwalk_mem::PageSize;

use crate::tlbs::Mapping;

/// Entries of a line.
const WAYS: usize = 4;

/// Pages for which a core keeps a prediction.
const PREDICTIONS: u64 = 512;

/// What is in memory: the lists of 4 KiB pages and those of 2 MiB pages. Entries belong to
/// processes.
#[derive(Debug)]
pub struct Pom {
    base: u64,
    lists: [Vec<Vec<(u16, Mapping)>>; 2],
}

/// What a core has of its own: pages by their lowest bits whose size was not 4 KiB last; process
/// and VM.
#[derive(Debug, Default)]
pub struct User {
    large: BTreeMap<u64, bool>,
    pub asid: u16,
    pub vm: u16,
}

impl User {
    fn part(&self, page: u64) -> usize {
        self.large.get(&(page % PREDICTIONS)).is_some_and(|&large| large).into()
    }

    fn remember(&mut self, page: u64, part: usize) {
        self.large.insert(page % PREDICTIONS, part == 1);
    }
}

/// What a look-up found: the translation as it was, in which part, and whether that was predicted.
pub struct Hit {
    pub mapping: Mapping,
    pub part: usize,
    pub predicted: bool,
}

const SIZES: [PageSize; 2] = [PageSize::Small, PageSize::Huge];

impl Pom {
    pub fn new(bytes: u64, base: u64) -> Self {
        let lines = (bytes / 64 / 2) as usize;
        Self { base, lists: [vec![Vec::new(); lines], vec![Vec::new(); lines]] }
    }

    /// The number of the line of `page`.
    fn line(&self, part: usize, page: u64, user: &User) -> usize {
        let number = page / SIZES[part].pages();
        ((number ^ u64::from(user.vm)) % self.lists[part].len() as u64) as usize
    }

    /// Asks for `page`: the addresses of the lines that were read, and what was found.
    pub fn find(&mut self, user: &mut User, page: u64, store: bool) -> (Vec<u64>, Option<Hit>) {
        let first = user.part(page);
        let mut read = Vec::new();
        for part in [first, 1 - first] {
            let line = self.line(part, page, user);
            read.push(self.base + 64 * (part * self.lists[0].len() + line) as u64);
            let list = &mut self.lists[part][line];
            let held = |(owner, mapping): &(u16, Mapping)| *owner == user.asid && mapping.covers(page);
            let Some(place) = list.iter().position(held) else { continue };
            let (owner, mapping) = list.remove(place);
            if store && !mapping.writable {
                continue;
            }
            list.insert(0, (owner, Mapping { dirty: mapping.dirty || store, ..mapping }));
            user.remember(page, part);
            return (read, Some(Hit { mapping, part, predicted: part == first }));
        }
        (read, None)
    }

    /// A walk found `mapping`.
    pub fn insert(&mut self, user: &mut User, page: u64, mapping: Mapping) {
        let part = usize::from(mapping.size != PageSize::Small);
        user.remember(page, part);
        let line = self.line(part, page, user);
        let list = &mut self.lists[part][line];
        list.retain(|&(owner, other)| owner != user.asid || !other.covers(page));
        list.insert(0, (user.asid, mapping.piece(page, SIZES[part])));
        list.truncate(WAYS);
    }

    /// Entries of `asid` (of all: `None`) that overlap `pages` go.
    pub fn remove(&mut self, asid: Option<u16>, pages: &std::ops::Range<u64>) {
        let goes = |&(owner, mapping): &(u16, Mapping)| {
            let end = mapping.page + mapping.size.pages();
            asid.is_none_or(|asid| asid == owner) && mapping.page < pages.end && pages.start < end
        };
        self.lists.iter_mut().flatten().for_each(|list| list.retain(|entry| !goes(entry)));
    }
}
