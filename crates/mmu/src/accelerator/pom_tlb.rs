// SPDX-License-Identifier: MIT OR Apache-2.0
//! POM-TLB: a very large third-level TLB that is part of memory (Ryoo, Gulur, Song, John, ISCA
//! 2017).
//!
//! - A set is a line of 64 bytes with four entries of 16 bytes, so that one reference reads a whole
//!   set, and the data caches hold sets as they hold any line. One part of the structure has 4 KiB
//!   pages, another one 2 MiB pages. A larger page comes in by the 2 MiB around the access.
//! - After a miss of the second-level TLB the hardware reads the set of the page in the part that a
//!   predictor names: a bit for the page number's lowest 9 bits, which is the size that was right
//!   last. Nothing there: it reads the other part's set. Nothing there either: it walks, and the
//!   translation comes in.
//! - The structure is the machine's; predictors are the cores'. Entries name their process and VM;
//!   a shootdown takes them out as it does in a TLB.
//!
//! What is not as in the paper:
//! - References go through the L1-D as those of walks do; the paper's begin at the L2.
//! - There is no bypass predictor: a level's latency is from load to use here, so that it would
//!   save no cycles.
//! - Half of the size is for either part, and a set is chosen by the page number XOR the VM, modulo
//!   their number.
//! - Reading an entry updates the order of its set at no cost, and so does writing one.

use std::sync::{Arc, Mutex, MutexGuard};

use nestwalk_mem::keys::{Key, assumed, key};
use nestwalk_mem::{Gvn, Hpa, PageSize, VpnRange};
use serde::{Deserialize, Serialize};

use crate::accelerator::{Accelerator, Found};
use crate::config::LINE_BYTES;
use crate::events::{Served, WalkEvents};
use crate::key::Asid;
use crate::mapping::Mapping;
use crate::sets::Sets;

/// The numbers of a scenario that are this technique's.
pub const KEYS: &[Key] =
    &[key("accelerator.size", 2 * LINE_BYTES, 1 << 32, "bytes", assumed("256 times what the paper has"))];

/// How large it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PomTlbConfig {
    /// Bytes of both parts: lines of four entries, half of them for 4 KiB pages. The paper has 16
    /// MiB.
    #[serde(default = "sixteen_mib", with = "nestwalk_mem::size::bytes")]
    #[schemars(with = "nestwalk_mem::schema::Bytes")]
    pub size: u64,
}

fn sixteen_mib() -> u64 {
    16 << 20
}

nestwalk_mem::counters! {
    /// What a part-of-memory TLB did, of measured accesses.
    pub struct PomTlbCounters {
        /// Hits in the part for 4 KiB pages and in that for 2 MiB pages: misses of the second-level
        /// TLB without a walk.
        hits: [u64; 2] ["look-ups" by ["4KiB", "2MiB"]],
        /// Misses in both parts, after which a walk found the translation.
        misses: u64 ["look-ups"],
        /// Hits in the part that was not predicted: they took two references.
        size_mispredicted: u64 ["look-ups"],
        /// References to its lines, by what served them. Those before a page fault are not in here.
        references: [u64; 4] ["references" by Served::NAMES],
    }
}

/// Entries of a set.
const WAYS: usize = 4;

/// Bits of a core's size predictor.
const PREDICTORS: usize = 512;

/// A translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    /// The page's number and, above, its process.
    key: u64,
    /// [`Mapping::bits`].
    bits: u64,
    /// When it came in, in flushes of any sort; 0 if it never did.
    since: u64,
}

/// A page size's sets, each with its latest entry first.
#[derive(Debug)]
struct Part {
    size: PageSize,
    sets: Sets,
    entries: Vec<[Entry; WAYS]>,
    /// Where its first line is.
    base: Hpa,
}

impl Part {
    fn new(size: PageSize, sets: u32, base: Hpa) -> Self {
        const EMPTY: Entry = Entry { key: 0, bits: 0, since: 0 };
        Self { size, sets: Sets::new(sets), entries: vec![[EMPTY; WAYS]; sets as usize], base }
    }

    /// The number of the page of this size that holds `page`.
    fn number(&self, page: Gvn) -> u64 {
        page.0 >> self.size.order()
    }

    fn set_of(&self, page: Gvn, vm: Asid) -> usize {
        self.sets.split(self.number(page) ^ u64::from(vm.0)).0
    }

    fn line(&self, set: usize) -> Hpa {
        self.base + set as u64 * LINE_BYTES
    }
}

/// Both parts.
#[derive(Debug)]
struct Table {
    parts: [Part; 2],
    /// Flushes so far, and 1.
    now: u64,
    /// When each process was flushed last, by [`Asid`].
    flushed: Vec<u64>,
    /// When all were.
    all_flushed: u64,
}

impl Table {
    /// Whether no flush took `entry` since it came in.
    fn is_live(&self, entry: Entry) -> bool {
        let process = (entry.key >> Asid::SHIFT) as usize;
        entry.since >= self.all_flushed.max(self.flushed.get(process).copied().unwrap_or(1))
    }

    /// The place of `page` in its set.
    fn place(&self, part: usize, set: usize, key: u64) -> Option<usize> {
        self.parts[part].entries[set].iter().position(|&entry| entry.key == key && self.is_live(entry))
    }

    /// Takes the entry at `place` out of a set and puts `entry` in front.
    fn put(&mut self, part: usize, set: usize, place: usize, entry: Entry) {
        let entries = &mut self.parts[part].entries[set];
        entries.copy_within(..place, 1);
        entries[0] = entry;
    }

    fn remove(&mut self, part: usize, set: usize, key: u64) {
        if let Some(place) = self.place(part, set, key) {
            self.parts[part].entries[set][place].since = 0;
        }
    }
}

/// See the [module](self). A clone is another core's: what is in memory is the same.
#[derive(Clone, Debug)]
pub struct PomTlb {
    table: Arc<Mutex<Table>>,
    /// Whether the page was a large one last, by the lowest bits of its number.
    large: Box<[bool; PREDICTORS]>,
    process: Asid,
    vm: Asid,
    counters: PomTlbCounters,
}

impl PomTlb {
    /// An empty one, whose lines begin at `base`. Its size is rounded down to whole lines of both
    /// parts.
    pub fn new(config: &PomTlbConfig, base: Hpa) -> Self {
        let lines = u32::try_from(config.size / LINE_BYTES / 2).expect("a key's range keeps it below");
        let small = Part::new(PageSize::Small, lines, base);
        let huge = Part::new(PageSize::Huge, lines, base + u64::from(lines) * LINE_BYTES);
        let table = Table { parts: [small, huge], now: 1, flushed: Vec::new(), all_flushed: 1 };
        Self {
            table: Arc::new(Mutex::new(table)),
            large: Box::new([false; PREDICTORS]),
            process: Asid::default(),
            vm: Asid::default(),
            counters: PomTlbCounters::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing panics while it is held")
    }

    fn predictor(page: Gvn) -> usize {
        page.0 as usize % PREDICTORS
    }
}

impl Accelerator for PomTlb {
    const TRANSLATES: bool = true;

    type Counters = PomTlbCounters;

    fn look_up(&mut self, page: Gvn, store: bool, counted: bool, mut refer: impl FnMut(Hpa)) -> Option<Found> {
        let predicted = usize::from(self.large[Self::predictor(page)]);
        for part in [predicted, 1 - predicted] {
            let mut table = self.table();
            let set = table.parts[part].set_of(page, self.vm);
            let key = table.parts[part].number(page) | self.process.key();
            refer(table.parts[part].line(set));
            let Some(place) = table.place(part, set, key) else { continue };
            let entry = table.parts[part].entries[set][place];
            let mapping = Mapping::from_bits(entry.bits);
            if store && !mapping.is_writable() {
                // As in a TLB: the hardware walks before it raises a fault.
                table.remove(part, set, key);
                continue;
            }
            let used = mapping.used(store);
            table.put(part, set, place, Entry { bits: used.bits(), ..entry });
            drop(table);
            self.large[Self::predictor(page)] = part == 1;
            if counted {
                self.counters.hits[part] += 1;
                self.counters.size_mispredicted += u64::from(part != predicted);
            }
            return Some(Found { mapping: used, first_store: store && !mapping.is_dirty() });
        }
        None
    }

    fn learn(&mut self, page: Gvn, mapping: Mapping, counted: bool) {
        let part = usize::from(mapping.size() != PageSize::Small);
        self.large[Self::predictor(page)] = part == 1;
        self.counters.misses += u64::from(counted);
        let (vm, process) = (self.vm, self.process.key());
        let mut table = self.table();
        let piece = mapping.piece(page, table.parts[part].size);
        let set = table.parts[part].set_of(page, vm);
        let key = table.parts[part].number(page) | process;
        let entries = table.parts[part].entries[set];
        let there = table.place(part, set, key);
        let free = || entries.iter().position(|&entry| !table.is_live(entry));
        let place = there.or_else(free).unwrap_or(WAYS - 1);
        let entry = Entry { key, bits: piece.bits(), since: table.now };
        table.put(part, set, place, entry);
    }

    fn switch_to(&mut self, guest: Asid, host: Asid) {
        (self.process, self.vm) = (guest, host);
    }

    fn invalidate(&mut self, pages: VpnRange) {
        let (vm, process) = (self.vm, self.process.key());
        let mut table = self.table();
        for part in 0..2 {
            let order = table.parts[part].size.order();
            let numbers = pages.start.0 >> order..pages.end.0.div_ceil(1 << order);
            let all = table.parts[part].entries.len() * WAYS;
            if numbers.end.saturating_sub(numbers.start) <= all as u64 {
                for number in numbers {
                    let set = table.parts[part].set_of(Gvn(number << order), vm);
                    table.remove(part, set, number | process);
                }
                continue;
            }
            for entry in table.parts[part].entries.iter_mut().flatten() {
                let number = entry.key ^ process;
                if numbers.contains(&number) {
                    entry.since = 0;
                }
            }
        }
    }

    fn flush(&mut self) {
        let process = usize::from(self.process.0);
        let mut table = self.table();
        table.now += 1;
        if table.flushed.len() <= process {
            table.flushed.resize(process + 1, 1);
        }
        table.flushed[process] = table.now;
    }

    fn flush_all(&mut self) {
        let mut table = self.table();
        table.now += 1;
        table.all_flushed = table.now;
    }

    fn counters(&self) -> Option<&PomTlbCounters> {
        Some(&self.counters)
    }

    fn counters_mut(&mut self) -> Option<&mut PomTlbCounters> {
        Some(&mut self.counters)
    }

    fn take_events(events: &mut WalkEvents, counters: &mut PomTlbCounters) {
        counters.references = events.take(WalkEvents::ACCELERATOR);
    }

    fn check_invariants(&self) {
        let table = self.table();
        for part in &table.parts {
            for (set, entries) in part.entries.iter().enumerate() {
                let live: Vec<Entry> = entries.iter().copied().filter(|&entry| table.is_live(entry)).collect();
                for (place, entry) in live.iter().enumerate() {
                    assert!(
                        live[..place].iter().all(|other| other.key != entry.key),
                        "{:#x} twice in set {set}",
                        entry.key
                    );
                    assert_eq!(Mapping::from_bits(entry.bits).size(), part.size, "{:#x} in set {set}", entry.key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::{Pfn, Vpn};

    use super::*;

    const BASE: Hpa = Hpa(1 << 30);

    /// Two sets a part.
    fn tiny() -> PomTlb {
        PomTlb::new(&PomTlbConfig { size: 4 * LINE_BYTES }, BASE)
    }

    fn small(frame: u64) -> Mapping {
        Mapping::new(Pfn(frame), PageSize::Small, true, false)
    }

    /// The frame that is known for `page`, and the lines that were read.
    fn load(pom: &mut PomTlb, page: u64) -> (Option<u64>, Vec<u64>) {
        let mut lines = Vec::new();
        let found = pom.look_up(Gvn(page), false, true, |hpa| lines.push((hpa.0 - BASE.0) / LINE_BYTES));
        (found.map(|found| found.mapping.frame_of(Gvn(page)).0), lines)
    }

    #[test]
    fn a_set_is_a_line_of_four_entries_in_order_of_use() {
        let mut pom = tiny();
        assert_eq!(load(&mut pom, 2), (None, vec![0, 2]), "both parts are asked; large ones come after small ones");
        for page in [0, 2, 4, 6] {
            pom.learn(Gvn(page), small(100 + page), true);
        }
        pom.learn(Gvn(1), small(101), true);
        assert_eq!(load(&mut pom, 0), (Some(100), vec![0]));
        pom.learn(Gvn(8), small(108), true);
        assert_eq!(load(&mut pom, 2).0, None, "the one that was not used for longest has gone");
        for page in [0, 4, 6, 8] {
            assert_eq!(load(&mut pom, page), (Some(100 + page), vec![0]));
        }
        assert_eq!(load(&mut pom, 1), (Some(101), vec![1]));
        assert_eq!((pom.counters.hits, pom.counters.misses, pom.counters.size_mispredicted), ([6, 0], 6, 0));
        pom.check_invariants();
    }

    #[test]
    fn the_size_that_was_right_last_is_asked_for_first() {
        let mut pom = tiny();
        pom.learn(Gvn(512), Mapping::new(Pfn(1024), PageSize::Giant, true, false), true);
        assert_eq!(load(&mut pom, 512 + 7), (Some(1024 + 519), vec![1, 3]), "another predictor: small pages first");
        assert_eq!(load(&mut pom, 512 + 7).1, [3], "it has learnt");
        assert_eq!(load(&mut pom, 512).1, [3]);
        assert_eq!((pom.counters.hits, pom.counters.size_mispredicted), ([0, 3], 1));
        assert_eq!(load(&mut pom, 1024).0, None, "of a larger page, 2 MiB come in");
    }

    #[test]
    fn what_is_flushed_or_another_s_is_not_found() {
        let mut pom = tiny();
        let mut other = pom.clone();
        other.switch_to(Asid(1), Asid(0));
        for page in 0..4 {
            pom.learn(Gvn(page), small(page), true);
            other.learn(Gvn(page), small(100 + page), true);
        }
        pom.invalidate(VpnRange { start: Vpn(1), end: Vpn(3) });
        let known = |pom: &mut PomTlb| -> Vec<u64> { (0..4).filter_map(|page| load(pom, page).0).collect() };
        assert_eq!((known(&mut pom), known(&mut other)), (vec![0, 3], vec![100, 101, 102, 103]));
        other.invalidate(VpnRange { start: Vpn(0), end: Vpn(1 << 40) });
        assert_eq!((known(&mut pom), known(&mut other)), (vec![0, 3], vec![]));
        other.learn(Gvn(0), small(9), true);
        pom.flush();
        assert_eq!((known(&mut pom), known(&mut other)), (vec![], vec![9]));
        pom.learn(Gvn(0), small(8), true);
        assert_eq!(known(&mut pom), [8]);
        other.flush_all();
        assert_eq!((known(&mut pom), known(&mut other)), (vec![], vec![]));
    }

    #[test]
    fn a_store_needs_the_right_and_is_remembered() {
        let mut pom = tiny();
        pom.learn(Gvn(5), small(7), true);
        let store = |pom: &mut PomTlb| pom.look_up(Gvn(5), true, true, |_| {}).map(|found| found.first_store);
        assert_eq!((store(&mut pom), store(&mut pom)), (Some(true), Some(false)));
        pom.learn(Gvn(5), Mapping::new(Pfn(7), PageSize::Small, false, false), true);
        assert_eq!(load(&mut pom, 5).0, Some(7));
        assert_eq!(store(&mut pom), None);
        assert_eq!(load(&mut pom, 5).0, None, "a page fault follows, and what was known may be wrong then");
    }
}
