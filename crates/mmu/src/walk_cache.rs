// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page-walk caches split by level, and the nested TLB.
//!
//! All levels of a page-walk cache are searched in parallel. The hit nearest to the leaf is used,
//! and only its LRU order is updated. The walk continues at the node that this entry points to, and
//! each non-leaf entry that it reads is inserted; leaf entries belong to the TLBs. So a walk uses
//! the cache of the lowest level in any case, the one above only if that missed, and so on. The
//! caches are flushed whenever a node is freed. So the table knows the node of each entry, and the
//! caches hold keys only.
//!
//! As in ASAP's evaluation, guest and host tables have separate caches. Those of the guest hold
//! guest-physical pointers: after a hit the node that was found still needs its host walk.
//!
//! A machine file can give them the rules of a simulator instead ([`PwcRules`]). A hit may then be
//! for an entry that no walk has read; its node is there all the same, as above.

use nestwalk_mem::{Level, Vpn, VpnRange};

use crate::config::{NestedTlbConfig, PwcConfig, PwcRules, entry_sets};
use crate::error::MmuError;
use crate::key::Asid;
use crate::leaf::INDEX_BITS;
use crate::lru::Lru;
use crate::mapping::Mapping;
use crate::sets::Sets;
use crate::simd::{Keys, NO_KEY, ShortKeys, Simd};

/// The cache of one level's entries.
#[derive(Clone, Debug)]
struct OneLevel {
    /// The keys, each set's most recently used first; empty places are last.
    rows: Box<[Keys]>,
    /// Sets less 1, if they are [narrow](OneLevel::is_narrow).
    mask: usize,
    /// The last place of a set; of no use if there are no ways.
    last: usize,
    /// The last row of the set that was used last, as it was before, if that is to be taken back.
    before: Keys,
    sets: Sets,
    ways: usize,
}

impl OneLevel {
    fn new(sets: u32, ways: u32) -> Self {
        let (sets, ways) = (Sets::new(sets), ways as usize);
        let rows = vec![Keys::EMPTY; sets.count() * Keys::count(ways)].into();
        Self { rows, mask: sets.count() - 1, last: ways.saturating_sub(1), before: Keys::EMPTY, sets, ways }
    }

    /// Whether each set is one row, and there are a power of two of them.
    fn is_narrow(&self) -> bool {
        Keys::count(self.ways) == 1 && self.sets.is_power_of_two()
    }

    /// The set of `number`.
    fn set_mut(&mut self, number: u64) -> &mut [Keys] {
        let (set, stride) = (self.sets.split(number).0, Keys::count(self.ways));
        &mut self.rows[set * stride..][..stride]
    }

    /// Whether the entry of `number` is known, whose `key` becomes the latest of its set in any
    /// case. With `revocable` that can be taken back. For narrow sets.
    #[inline(always)]
    fn use_entry<S: Simd>(&mut self, simd: S, number: u64, key: u64, revocable: bool) -> bool {
        debug_assert!(self.is_narrow() && self.rows.len() == self.mask + 1);
        // SAFETY: narrow sets are a row each, and this is the number of one of them.
        let row = unsafe { self.rows.get_unchecked_mut(number as usize & self.mask) };
        if revocable {
            self.before = *row;
        }
        simd.use_key(std::slice::from_mut(row), self.last, key)
    }

    /// The same for sets of any number and size.
    fn use_in_any<S: Simd>(&mut self, simd: S, number: u64, key: u64) -> bool {
        if self.ways == 0 {
            return false;
        }
        let last = self.last;
        let set = self.set_mut(number);
        let before = set[last / 4];
        let hit = simd.use_key(set, last, key);
        self.before = before;
        hit
    }

    /// Takes back that the entry of `number` came in, after which its set was not used again.
    #[cold]
    fn take_back(&mut self, number: u64) {
        if self.ways > 0 {
            let (before, last) = (self.before, self.last);
            let set = self.set_mut(number);
            remove(set, 0);
            set[last / 4] = before;
        }
    }

    /// Takes out all keys that `keep` does not want.
    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        for row in self.rows.chunks_mut(Keys::count(self.ways).max(1)) {
            for place in (0..row.len() * 4).rev() {
                let key = row[place / 4].0[place % 4];
                if key != NO_KEY && !keep(key) {
                    remove(row, place);
                }
            }
        }
    }

    fn check_invariants(&self) {
        for row in self.rows.chunks(Keys::count(self.ways).max(1)) {
            let keys: Vec<u64> = row.iter().flat_map(|keys| keys.0).collect();
            let used = keys.iter().position(|&key| key == NO_KEY).unwrap_or(keys.len());
            assert!(used <= self.ways, "more keys than ways in {keys:x?}");
            assert!(keys[used..].iter().all(|&key| key == NO_KEY), "a hole in {keys:x?}");
            for (way, key) in keys[..used].iter().enumerate() {
                assert!(!keys[..way].contains(key), "a key is there twice in {keys:x?}");
            }
        }
    }
}

/// Removes the key at `place`; the keys behind it move up.
fn remove(row: &mut [Keys], place: usize) {
    for place in place..row.len() * 4 {
        row[place / 4].0[place % 4] = row.get((place + 1) / 4).map_or(NO_KEY, |keys| keys.0[(place + 1) % 4]);
    }
}

nestwalk_mem::counters! {
    /// Look-ups in the page-walk caches of one table.
    pub struct PwcCounters {
        /// Look-ups that found nothing.
        misses: u64 ["look-ups"],
        /// Look-ups that found an entry of this level, and none of a lower one.
        hits: [u64; 4] ["look-ups" by ["pl2_hits", "pl3_hits", "pl4_hits", "pl5_hits"]],
    }
}

impl PwcCounters {
    /// From the counts of one table in [`WalkEvents`](crate::WalkEvents): misses, then hits by
    /// level.
    pub(crate) fn of([misses, _, pl2, pl3, pl4, pl5]: [u64; 6]) -> Self {
        Self { misses, hits: [pl2, pl3, pl4, pl5] }
    }

    /// Hits at `level`, from 2 to 5.
    ///
    /// # Panics
    /// When no page-walk cache has entries of that level.
    pub fn hits_at(&self, level: Level) -> u64 {
        self.hits[level.index() - 1]
    }

    /// All look-ups.
    pub fn lookups(&self) -> u64 {
        self.misses + self.hits.iter().sum::<u64>()
    }
}

nestwalk_mem::counters! {
    /// Look-ups in the nested TLB.
    pub struct NestedTlbCounters {
        /// Look-ups that hit.
        hits: u64 ["look-ups"],
        /// Look-ups that missed.
        misses: u64 ["look-ups"],
    }
}

/// Page-walk caches of one table.
#[derive(Clone, Debug)]
pub struct WalkCache {
    latency_cycles: u32,
    /// Place `n` has entries of level `n + 2`.
    levels: [OneLevel; 4],
    exists: bool,
    /// If there are caches from level 2 up without a gap, and their sets are narrow, the highest of
    /// them.
    narrow: Option<Level>,
    asid: u64,
    /// If they do not work as processors' do. Then they are not narrow.
    ruled: Option<Box<Ruled>>,
}

/// What is needed beside the levels where [`PwcRules`] hold.
#[derive(Clone, Debug)]
struct Ruled {
    rules: PwcRules,
    /// log2 of the entries that one tag stands for.
    tag_order: u32,
    /// By level, as in [`WalkCache`]: the key that was looked up last.
    latest: [u64; 4],
    /// Whether that came in, as it was not there.
    came_in: [bool; 4],
}

impl Ruled {
    /// The tag of the entry for `page` at `level`.
    fn tag(&self, page: Vpn, level: Level) -> u64 {
        page.0 >> (INDEX_BITS * level.index() as u32 + self.tag_order)
    }

    /// [`WalkCache::look_up`].
    fn look_up<S: Simd>(
        &mut self,
        levels: &mut [OneLevel; 4],
        simd: S,
        page: Vpn,
        (leaf, root): (Level, Level),
        asid: u64,
    ) -> Option<Level> {
        let mut hit = None;
        for level in (leaf.0 + 1..=root.0).map(Level) {
            let place = level.index() - 1;
            let tag = self.tag(page, level);
            let is_repeat = std::mem::replace(&mut self.latest[place], tag | asid) == tag | asid;
            let is_there = levels[place].use_in_any(simd, tag, tag | asid);
            self.came_in[place] = !is_there;
            if is_there && !(is_repeat && self.rules.repeats_miss) {
                hit = hit.or(Some(level));
                if !self.rules.all_levels {
                    break;
                }
            }
        }
        hit
    }
}

impl WalkCache {
    /// Empty ones. `place` is the part of the machine file, for messages.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(place: &str, config: &PwcConfig) -> Result<Self, MmuError> {
        let mut levels = std::array::from_fn(|_| OneLevel::new(1, 0));
        for (level, ways) in config.levels() {
            let sets = entry_sets(&format!("{place}.pl{level}"), ways.entries, ways.ways)?;
            levels[usize::from(level) - 2] = OneLevel::new(sets, ways.ways);
        }
        let exists = levels.iter().any(|level| level.ways > 0);
        let count = levels.iter().take_while(|level| level.is_narrow()).count();
        let is_narrow = count > 0 && levels[count..].iter().all(|level| level.ways == 0);
        let tag_order = config.rules.tag_order(place)?;
        let ruled = (!config.rules.are_none())
            .then(|| Box::new(Ruled { rules: config.rules, tag_order, latest: [NO_KEY; 4], came_in: [false; 4] }));
        let narrow = (is_narrow && ruled.is_none()).then(|| Level(count as u8 + 1));
        Ok(Self { latency_cycles: config.latency_cycles, levels, exists, narrow, asid: 0, ruled })
    }

    /// Cycles of a look-up.
    #[inline(always)]
    pub fn latency_cycles(&self) -> u32 {
        self.latency_cycles
    }

    /// The same; 0 if there is none, and so no look-up.
    #[inline(always)]
    pub(crate) fn lookup_cycles(&self) -> u32 {
        if self.exists { self.latency_cycles } else { 0 }
    }

    /// Whether there is any.
    #[inline]
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// The level of the lowest entry that is known on the way from the `root`'s level down to
    /// `leaf`, the level of the last entry that the walk for `page` reads. What is not known of
    /// that way is from now on; with `revocable` that can be taken back.
    #[inline(always)]
    pub(crate) fn look_up<S: Simd>(
        &mut self,
        simd: S,
        page: Vpn,
        (leaf, root): (Level, Level),
        revocable: bool,
    ) -> Option<Level> {
        let Some(highest) = self.narrow else { return self.look_up_in_any(simd, page, (leaf, root)) };
        let highest = highest.min(root);
        for (place, cache) in self.levels.iter_mut().enumerate() {
            let level = Level(place as u8 + 2);
            if level > highest {
                break;
            }
            let number = page.0 >> (INDEX_BITS * level.index() as u32);
            if level > leaf && cache.use_entry(simd, number, number | self.asid, revocable) {
                return Some(level);
            }
        }
        None
    }

    /// For a loop of look-ups in a table of four levels, each for a page whose leaf is a PTE or, if
    /// it is large, a PMD.
    #[inline(always)]
    pub(crate) fn lookups(&mut self) -> Lookups<'_> {
        let is_common = self.narrow.is_some_and(|highest| highest >= Lookups::ROOT);
        let held = if is_common { HeldLevels::new(&self.levels, self.asid) } else { None };
        Lookups { held, cache: self }
    }

    #[inline(never)]
    fn levels_left_of_any<S: Simd>(&mut self, simd: S, page: Vpn, is_large: bool) -> usize {
        let (leaf, root) = (if is_large { Level::PMD } else { Level::PTE }, Lookups::ROOT);
        let hit = if self.exists { self.look_up(simd, page, (leaf, root), false) } else { None };
        hit.map_or(root.0, |level| level.0 - 1).into()
    }

    /// [`WalkCache::look_up`] in caches of any kind.
    #[inline(never)]
    fn look_up_in_any<S: Simd>(&mut self, simd: S, page: Vpn, (leaf, root): (Level, Level)) -> Option<Level> {
        if let Some(ruled) = &mut self.ruled {
            return ruled.look_up(&mut self.levels, simd, page, (leaf, root), self.asid);
        }
        (leaf.0 + 1..=root.0).map(Level).find(|level| {
            let number = page.0 >> (INDEX_BITS * level.index() as u32);
            self.levels[level.index() - 1].use_in_any(simd, number, number | self.asid)
        })
    }

    /// The walk for `page`, which was the last one to look up, could not read its entry at `level`:
    /// takes back that this and the ones below, down to `leaf`, became known.
    #[cold]
    pub(crate) fn take_back(&mut self, page: Vpn, leaf: Level, level: Level) {
        for level in (leaf.0 + 1..=level.0).map(Level) {
            let place = level.index() - 1;
            match &self.ruled {
                Some(ruled) if !ruled.came_in[place] => {}
                Some(ruled) => self.levels[place].take_back(ruled.tag(page, level)),
                None => self.levels[place].take_back(page.0 >> (INDEX_BITS * level.index() as u32)),
            }
        }
    }

    /// Whose entries are used from now on.
    pub(crate) fn switch_to(&mut self, asid: Asid) {
        self.asid = asid.key();
    }

    /// Takes out everything of the process in use (`INVLPG` does no less).
    pub fn flush(&mut self) {
        let asid = self.asid;
        self.levels.iter_mut().for_each(|level| level.retain(|key| Asid::part(key) != asid));
    }

    /// Takes out everything.
    pub fn flush_all(&mut self) {
        self.levels.iter_mut().for_each(|level| level.retain(|_| false));
    }

    /// Checks what must always hold: no entry twice.
    ///
    /// # Panics
    /// When something does not hold.
    pub fn check_invariants(&self) {
        self.levels.iter().for_each(OneLevel::check_invariants);
    }
}

/// The rows of a level, as short keys that move faster, for as long as a loop lasts. The level
/// keeps the rows as they were before.
#[derive(Clone, Copy, Debug)]
struct Held<const ROWS: usize> {
    rows: [ShortKeys; ROWS],
    /// How many there are less 1.
    mask: usize,
    /// The last place of each.
    last: usize,
}

impl<const ROWS: usize> Held<ROWS> {
    /// Flag: the key is that of another process, which was at the place in the lowest bits of the
    /// row, or the place is empty.
    const OTHER: u32 = 1 << 31;

    /// Those of `level`, if it has so few rows, all of them narrow.
    #[inline(always)]
    fn new(level: &OneLevel, asid: u64) -> Option<Self> {
        if level.rows.len() > ROWS || !level.is_narrow() {
            return None;
        }
        let mut held = Self { rows: [ShortKeys::default(); ROWS], mask: level.mask, last: level.last };
        for (held, row) in held.rows.iter_mut().zip(&level.rows) {
            let short = |place: usize| {
                let number = row.0[place] ^ asid;
                if number < Self::OTHER.into() { number as u32 } else { Self::OTHER | place as u32 }
            };
            *held = ShortKeys(std::array::from_fn(short));
        }
        Some(held)
    }

    /// The row of `number`. A single one can stay in a register.
    #[inline(always)]
    fn row(&self, number: u64) -> usize {
        if ROWS == 1 { 0 } else { number as usize & self.mask }
    }

    /// Whether the entry of `number` is known, which becomes the latest of its row if that is
    /// `allowed`.
    #[inline(always)]
    fn use_entry_if<S: Simd>(&mut self, simd: S, number: u64, allowed: bool) -> bool {
        debug_assert!(number < Self::OTHER.into() && self.mask < ROWS);
        let row = self.row(number);
        // SAFETY: `new` has made sure of `mask`.
        let row = unsafe { self.rows.get_unchecked_mut(row) };
        simd.use_short_key_if(row, self.last, number as u32, allowed)
    }

    /// Whether the entry of `number` is the latest of its row.
    #[inline(always)]
    fn is_latest(&self, number: u64) -> bool {
        self.rows[self.row(number) & (ROWS - 1)].0[0] == number as u32
    }

    /// Brings `level` up to date.
    #[inline(always)]
    fn finish(&self, level: &mut OneLevel, asid: u64) {
        for (held, row) in self.rows.iter().zip(&mut level.rows) {
            let before = row.0;
            let long = |short: u32| match short {
                Self::OTHER.. => before[(short - Self::OTHER) as usize & 3],
                number => u64::from(number) | asid,
            };
            *row = Keys(held.0.map(long));
        }
    }
}

/// The levels of a page-walk cache as [`Held`].
#[derive(Clone, Copy, Debug)]
struct HeldLevels {
    pl2: Held<16>,
    pl3: Held<1>,
    pl4: Held<1>,
}

impl HeldLevels {
    #[inline(always)]
    fn new([pl2, pl3, pl4, _]: &[OneLevel; 4], asid: u64) -> Option<Self> {
        Some(Self { pl2: Held::new(pl2, asid)?, pl3: Held::new(pl3, asid)?, pl4: Held::new(pl4, asid)? })
    }
}

/// See [`WalkCache::lookups`].
#[derive(Debug)]
pub(crate) struct Lookups<'a> {
    cache: &'a mut WalkCache,
    /// If levels 2 to 4 have few rows, all of them narrow.
    held: Option<HeldLevels>,
}

impl Lookups<'_> {
    const ROOT: Level = Level(4);

    /// How many levels are left to read for `page`, as if its leaf were a PTE: one less, if it is
    /// large. [`WalkCache::look_up`] with few branches.
    #[inline(always)]
    pub fn levels_left<S: Simd>(&mut self, simd: S, page: Vpn, is_large: bool) -> usize {
        let number = |level: u32| page.0 >> (INDEX_BITS * (level - 1));
        let Some(HeldLevels { pl2, pl3, pl4 }) = &mut self.held else {
            return self.cache.levels_left_of_any(simd, page, is_large);
        };
        let hit2 = pl2.use_entry_if(simd, number(2), !is_large) & !is_large;
        let hit3 = pl3.use_entry_if(simd, number(3), !hit2);
        // Nearly always it is the latest, and nothing moves.
        let is_other = !pl4.is_latest(number(4));
        let left = 3 - usize::from(hit3 & !hit2) - 2 * usize::from(hit2);
        if left == 3 && is_other {
            return if pl4.use_entry_if(simd, number(4), true) { 3 } else { 4 };
        }
        left
    }

    /// The end of the loop.
    #[inline(always)]
    pub fn finish(self) {
        if let Some(held) = &self.held {
            let asid = self.cache.asid;
            let [pl2, pl3, pl4, _] = &mut self.cache.levels;
            held.pl2.finish(pl2, asid);
            held.pl3.finish(pl3, asid);
            held.pl4.finish(pl4, asid);
        }
    }
}

/// Translations of 4 KiB pages of the host process that is the VM: each with the frame of that
/// page, and the size of the leaf that maps it.
#[derive(Clone, Debug)]
pub struct NestedTlb {
    latency_cycles: u32,
    lru: Lru,
    asid: u64,
}

impl NestedTlb {
    /// An empty one.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(config: &NestedTlbConfig) -> Result<Self, MmuError> {
        let sets = entry_sets("nested_tlb", config.entries, config.ways)?;
        Ok(Self { latency_cycles: config.latency_cycles, lru: Lru::new(sets, config.ways), asid: 0 })
    }

    /// Cycles of a look-up.
    #[inline(always)]
    pub fn latency_cycles(&self) -> u32 {
        self.latency_cycles
    }

    /// What is known of `page`; for a `write` only what allows it and needs no dirty bit to be set.
    #[inline(always)]
    pub(crate) fn find<S: Simd>(&mut self, simd: S, page: Vpn, write: bool) -> Option<Mapping> {
        let (set, key) = (self.lru.set_of(page.0), page.0 | self.asid);
        let found = Mapping::from_bits(self.lru.find(simd, set, key)?);
        if write && !found.takes_stores() {
            self.lru.remove(set, key);
            return None;
        }
        Some(found)
    }

    /// Takes in a translation that is not there yet.
    #[inline(always)]
    pub(crate) fn insert<S: Simd>(&mut self, simd: S, page: Vpn, found: Mapping) {
        let set = self.lru.set_of(page.0);
        self.lru.insert(simd, set, page.0 | self.asid, found.bits());
    }

    pub(crate) fn switch_to(&mut self, asid: Asid) {
        self.asid = asid.key();
    }

    /// Takes out what it knows of `pages`.
    pub fn invalidate(&mut self, pages: VpnRange) {
        let asid = self.asid;
        self.lru.retain(|key| Asid::part(key) != asid || !pages.contains(Vpn(key ^ asid)), |_| ());
    }

    /// Takes out everything.
    pub fn flush_all(&mut self) {
        self.lru.retain(|_| false, |_| ());
    }

    /// Checks what must always hold: no entry twice.
    ///
    /// # Panics
    /// When something does not hold.
    pub fn check_invariants(&self) {
        self.lru.check_invariants();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WaysConfig;
    use crate::simd::Plain;
    use proptest::prelude::*;

    /// Sets of keys for each level from 2 up, the latest first; no sets where there is no cache.
    struct Naive(Vec<(Vec<Vec<u64>>, usize)>);

    impl Naive {
        fn new(shapes: &[Option<WaysConfig>]) -> Self {
            let sets = |ways: WaysConfig| (vec![Vec::new(); (ways.entries / ways.ways) as usize], ways.ways as usize);
            Self(shapes.iter().map(|shape| shape.map_or((Vec::new(), 0), sets)).collect())
        }

        /// As the hardware does it: all levels are searched, then what is read on the way comes in,
        /// from the top down to the level `read`, the last one whose entry could be read.
        fn look_up(&mut self, asid: u64, page: u64, leaf: u8, root: u8, read: u8) -> Option<u8> {
            let mut hit = None;
            for level in leaf + 1..=root {
                let (sets, _) = &mut self.0[usize::from(level) - 2];
                let number = page >> (9 * (level - 1));
                let Some(set) = (number as usize).checked_rem(sets.len()).map(|set| &mut sets[set]) else { continue };
                if let Some(place) = set.iter().position(|&key| key == number | asid) {
                    let key = set.remove(place);
                    set.insert(0, key);
                    hit = Some(level);
                    break;
                }
            }
            for level in (leaf + 1).max(read)..=hit.map_or(root, |level| level - 1) {
                let (sets, ways) = &mut self.0[usize::from(level) - 2];
                let number = page >> (9 * (level - 1));
                let Some(set) = (number as usize).checked_rem(sets.len()).map(|set| &mut sets[set]) else { continue };
                set.insert(0, number | asid);
                set.truncate(*ways);
            }
            hit
        }
    }

    fn shape() -> impl Strategy<Value = Option<WaysConfig>> {
        let some = (1_u32..7, prop::sample::select(vec![1_u32, 2, 3, 4, 5, 9]));
        let narrow = (prop::sample::select(vec![1_u32, 2, 4]), 1_u32..5);
        prop_oneof![Just(None), some.prop_map(Some), narrow.prop_map(Some)]
            .prop_map(|shape| shape.map(|(sets, ways)| WaysConfig { entries: sets * ways, ways }))
    }

    #[test]
    fn a_walk_that_ends_early_takes_back_no_entry_that_was_there() {
        let pl2 = Some(WaysConfig { entries: 8, ways: 8 });
        let rules = PwcRules { entries_per_tag: Some(8), repeats_miss: true, ..PwcRules::default() };
        let mut cache =
            WalkCache::new("pwc", &PwcConfig { latency_cycles: 1, pl2, rules, ..Default::default() }).unwrap();
        let pmd_entry = |number: u64| Vpn(number << INDEX_BITS);
        let levels = (Level(1), Level(4));
        let look_up = |cache: &mut WalkCache, entry| cache.look_up(Plain, pmd_entry(entry), levels, true);
        // Three tags. Another entry of the last one repeats, so it misses; it cannot be read.
        for entry in [0, 8, 16, 17] {
            assert_eq!(look_up(&mut cache, entry), None);
        }
        cache.take_back(pmd_entry(17), levels.0, Level(2));
        for entry in [0, 8, 16] {
            assert_eq!(look_up(&mut cache, entry), Some(Level(2)), "entry {entry}");
        }
        cache.check_invariants();
    }

    proptest! {
        #[test]
        fn levels_of_any_shape_are_naive_lrus_filled_by_walks(
            pl2 in shape(), pl3 in shape(), pl4 in shape(), pl5 in shape(), root in 4_u8..=5,
            // A few pages near each other at every level.
            walks in prop::collection::vec((prop::array::uniform5(0_u64..3), 1_u8..4, 0_u8..3, 0_u16..2), 1..400),
        ) {
            let config = PwcConfig { latency_cycles: 1, pl2, pl3, pl4, pl5, rules: PwcRules::default() };
            let mut cache = WalkCache::new("pwc", &config).unwrap();
            let mut naive = Naive::new(&[pl2, pl3, pl4, pl5]);
            for (indices, leaf, unread, asid) in walks {
                let page = indices.iter().enumerate().map(|(level, index)| index << (9 * level)).sum::<u64>();
                cache.switch_to(Asid(asid));
                let hit = cache.look_up(Plain, Vpn(page), (Level(leaf), Level(root)), true);
                // Some walks end early: the entry of the level `failed`, on the way, cannot be
                // read.
                let top = hit.map_or(root, |level| level.0 - 1);
                let failed = (leaf + unread).min(top);
                let fails = unread > 0;
                if fails {
                    cache.take_back(Vpn(page), Level(leaf), Level(failed));
                }
                let read = if fails { failed + 1 } else { 0 };
                let expected = naive.look_up(Asid(asid).key(), page, leaf, root, read);
                prop_assert_eq!(hit.map(|level| level.0), expected);
                cache.check_invariants();
            }
            cache.flush();
            cache.check_invariants();
            let left: usize = cache.levels.iter().flat_map(|level| level.rows.iter()).map(|row| {
                row.0.iter().filter(|&&key| key != NO_KEY).count()
            }).sum();
            let asid = cache.asid;
            let others = naive.0.iter().flat_map(|(sets, _)| sets.iter().flatten()).filter(|&&key| Asid::part(key) != asid);
            prop_assert_eq!(left, others.count());
        }
    }
}
