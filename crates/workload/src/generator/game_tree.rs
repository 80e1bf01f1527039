// SPDX-License-Identifier: MIT OR Apache-2.0
//! `game_tree`: SPEC CPU2017's deepsjeng, the search of a chess program with a large transposition
//! table. Its source is not free. The structure is that of Toga II 3.0 (Fruit's), which is, and is
//! of the same years: SPEC took Deep Sjeng WC2008.
//!
//! **Memory.** Nearly all of it is the transposition table: buckets of a line, each of four entries
//! of 16 bytes (the position's key, the best move, depths and bounds), allocated at once and
//! cleared from its beginning to its end before the first search. All else (boards, lists of moves,
//! history, tables of pawns and of material) is small and in use all the time: local accesses.
//!
//! **A visit.** A node of the search looks for its position: which bucket that is follows from a
//! hash of the position, so it is any. The entries' keys are compared, and one entry is read. When
//! the node's result is known, the same bucket is visited again, and the entry written that is
//! worth least. In between lies the search below the node. Other positions come again because moves
//! lead to them in another order, or as the search repeats itself with one more ply.
//!
//! **What the search does to that** was counted in Toga II with a table of 1 GiB, in which hardly a
//! bucket comes again by chance: how many visits ago each bucket was visited last ([`AGAIN`]), and
//! how many loads and stores a visit has. The generator remembers as many buckets as those
//! distances need, and takes one so many visits back as often as was counted; the others are drawn
//! from the whole table. So the share of new positions does not depend on the table's size.
//!
//! Assumed: a bucket is one line (Toga's may begin at any entry, and so lie on two), a visit of a
//! new bucket writes nothing and any other one writes, and quiescence does not use the table.

use nestwalk_mem::{Access, Vpn};

use super::bijection::Dice;
use super::config::parameters;
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

/// Bytes of a bucket, of an entry, and of a field of it as it is read and written here.
const BUCKET: u64 = 64;
const ENTRY: u64 = 16;
const FIELD: u64 = 2;
const ENTRIES: u64 = BUCKET / ENTRY;
/// Of a thousand visits, those of a bucket that was last visited 2^n to 2^(n+1) - 1 visits before.
const AGAIN: [u64; 18] = [0, 153, 105, 53, 34, 18, 9, 7, 6, 6, 4, 3, 2, 2, 2, 3, 14, 52];
/// Visits that a thread remembers: those of all octaves of [`AGAIN`].
const KNOWN: usize = 1 << AGAIN.len();
/// Marks a visit whose bucket was visited again since: the later visit counts.
const STALE: u64 = u64::MAX;
/// Loads of a visit behind those of the entries' keys, and stores of one that writes. 9.9 loads and
/// 2.9 stores a visit were counted.
const FIELDS_READ: u64 = 6;
const FIELDS_WRITTEN: u64 = 6;

parameters! {
    /// A chess program's search with a transposition table. Local accesses and instructions as
    /// counted in Toga II.
    GameTreeConfig mixed(986, 2669, 8) {}
}

pub(super) struct GameTree {
    layout: Layout,
    table: Region,
    sweep: Sweep,
    threads: Vec<Search>,
}

/// A thread's search.
struct Search {
    dice: Dice,
    /// Buckets of the table.
    buckets: u64,
    /// Visits so far, and the buckets of the last [`KNOWN`].
    visits: usize,
    known: Vec<u64>,
}

impl GameTree {
    pub(super) fn new(config: &GameTreeConfig) -> Result<Self, WorkloadError> {
        let mut layout = Layout::new(Self::NAME, config.common(), config.mixture())?;
        let table = layout.map(layout.left());
        let search = |dice| Search { dice, buckets: table.bytes() / BUCKET, visits: 0, known: vec![STALE; KNOWN] };
        Ok(Self {
            // Who allocates the table clears it.
            sweep: Sweep::new(vec![vec![table]], config.threads),
            layout,
            table,
            threads: Dice::of_threads(config.seed, config.threads).into_iter().map(search).collect(),
        })
    }
}

impl Search {
    /// The octave of how many visits ago the next bucket was visited last; `None`: it is new.
    fn octave(&mut self) -> Option<usize> {
        let mut drawn = self.dice.below(1000);
        AGAIN.iter().position(|&share| {
            let found = drawn < share;
            drawn = drawn.saturating_sub(share);
            found
        })
    }

    /// The place in `known` of a visit of that octave whose bucket has not come again since, if
    /// there is one: the first from a random one on.
    fn earlier(&mut self, octave: usize) -> Option<usize> {
        let length = 1 << octave;
        let first = self.dice.below(length as u64) as usize;
        let back = |nth: usize| length + (first + nth) % length;
        (0..length).map(back).filter(|&back| back <= self.visits).find_map(|back| {
            let place = (self.visits - back) % KNOWN;
            (self.known[place] != STALE).then_some(place)
        })
    }

    /// The next bucket, and whether it was visited before.
    fn next(&mut self) -> (u64, bool) {
        let earlier = self.octave().and_then(|octave| self.earlier(octave));
        let bucket = match earlier {
            Some(place) => std::mem::replace(&mut self.known[place], STALE),
            None => self.dice.below(self.buckets),
        };
        self.known[self.visits % KNOWN] = bucket;
        self.visits += 1;
        (bucket, earlier.is_some())
    }
}

impl Pattern for GameTree {
    const NAME: &'static str = "game_tree";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let search = &mut self.threads[thread];
        let (bucket, again) = search.next();
        let entry = search.dice.below(ENTRIES);
        let at = |entry: u64, field: u64| self.table.at(bucket * BUCKET + entry * ENTRY + field * FIELD);
        accesses.extend((0..ENTRIES).map(|entry| Access::load(at(entry, 0))));
        accesses.extend((1..=FIELDS_READ).map(|field| Access::load(at(entry, field))));
        if again {
            accesses.extend((1..=FIELDS_WRITTEN).map(|field| Access::store(at(entry, field))));
        }
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::PageCount;

    use super::*;

    fn of(mebibytes: u64) -> GameTree {
        let config = GameTreeConfig { footprint: PageCount(mebibytes << 8), ..GameTreeConfig::default() };
        GameTree::new(&config).unwrap()
    }

    /// What was counted comes out: how far back the same bucket was visited last, by octave, with a
    /// table so large that none comes by chance.
    #[test]
    fn buckets_come_again_after_as_many_visits_as_counted() {
        const VISITS: usize = 1 << 20;
        let mut search = of(1 << 20).threads.remove(0);
        let mut last = std::collections::HashMap::new();
        let (mut octaves, mut by_chance) = ([0_u64; AGAIN.len()], 0);
        for visit in 0..VISITS {
            let (bucket, again) = search.next();
            let before = last.insert(bucket, visit);
            // The first visits have none so far back.
            if visit >= VISITS / 2 {
                by_chance += u64::from(before.is_some() && !again);
                before.filter(|_| again).iter().for_each(|&before| octaves[(visit - before).ilog2() as usize] += 1);
            }
        }
        assert!(by_chance < 100, "{by_chance} by chance");
        let permille = octaves.map(|count| count * 1000 / (VISITS as u64 / 2));
        for (octave, (found, counted)) in permille.into_iter().zip(AGAIN).enumerate() {
            assert!(
                found.abs_diff(counted) <= 1 + counted / 20,
                "octave {octave}: {found} of a thousand, not {counted}"
            );
        }
    }

    /// A visit stays within its bucket, which is a line; a share of 13.7 in a thousand accesses and
    /// 1.07 visits in as many were counted.
    #[test]
    fn a_visit_is_one_line_and_has_as_many_accesses_as_counted() {
        let mut program = of(64);
        let (mut loads, mut stores) = (0.0, 0.0);
        const VISITS: usize = 100_000;
        // Until there are visits as far back as any comes from.
        for _ in 0..KNOWN {
            program.threads[0].next();
        }
        for _ in 0..VISITS {
            let mut accesses = Vec::new();
            program.operate(0, &mut accesses);
            let line = accesses[0].gva().0 / BUCKET;
            assert!(
                accesses.iter().all(|access| access.gva().0 / BUCKET == line
                    && program.table.pages.contains(Vpn(access.gva().page().0)))
            );
            stores += accesses.iter().filter(|access| access.is_store()).count() as f64;
            loads += accesses.iter().filter(|access| !access.is_store()).count() as f64;
        }
        let [loads, stores] = [loads, stores].map(|count| count / VISITS as f64);
        assert!((loads - 9.9).abs() < 0.2 && (stores - 2.9).abs() < 0.2, "{loads} loads and {stores} stores a visit");
        let local = 1000.0 - f64::from(GameTreeConfig::default().local_permille);
        assert!((local / (loads + stores) - 1.07).abs() < 0.05, "{} visits in 1000 accesses", local / (loads + stores));
    }

    /// New buckets are anywhere: each 64th of the table has its share of them.
    #[test]
    fn new_buckets_are_spread_over_the_whole_table() {
        let mut search = of(64).threads.remove(0);
        let (mut parts, mut new) = ([0_u64; 64], 0);
        for _ in 0..200_000 {
            if let (bucket, false) = search.next() {
                parts[(bucket * 64 / search.buckets) as usize] += 1;
                new += 1;
            }
        }
        let mean = new / 64;
        assert!(parts.iter().all(|&part| part.abs_diff(mean) < mean / 6), "{parts:?} of {new}");
    }
}
