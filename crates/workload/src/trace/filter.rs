// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which accesses of a filtered stretch are kept (trace stripping: Puzak 1985; Wang and Baer 1991).
//!
//! Each thread has two small set-associative LRU arrays, one over lines of 64 bytes and one over
//! pages of 4 KiB. An access whose line *and* page are both there is absorbed: a first-level TLB
//! and an L1-D that are at least as large would hit, too. It is only counted. All others are kept.
//! [`docs/trace-format.md`](../../../../docs/trace-format.md) says for which caches and TLBs the
//! kept accesses leave exactly the state that all accesses would leave.
//!
//! Kept in any case: the first touch of a page and its first store (a page fault, a copy, a dirty
//! bit), the first store to a page since it came into the array, and the first access after the
//! arrays were [forgotten](Filter::forget).

use std::fmt;
use std::str::FromStr;

use nestwalk_mem::Reuse;
use nestwalk_mem::addr::{LINE_SHIFT, PAGE_SHIFT};
use serde::{Deserialize, Serialize};

use super::source::SourceAccess;

/// Sizes of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FilterOptions {
    /// Sets of the array of lines; a power of two.
    pub line_sets: u32,
    /// Lines a set.
    pub line_ways: u32,
    /// Sets of the array of pages; a power of two.
    pub page_sets: u32,
    /// Pages a set.
    pub page_ways: u32,
    /// An access to a line is kept again once its thread has made so many accesses since it was
    /// kept last; 0 = never for this reason.
    pub renew: u64,
}

/// The most sets and ways of an array: larger ones would absorb what first-level structures miss.
const PART_MAX: u32 = 1 << 12;

impl FilterOptions {
    /// One line and one page a set: exact wherever
    /// [`docs/trace-format.md`](../../../../docs/trace-format.md) says so.
    pub const EXACT: Self = Self { line_sets: 64, line_ways: 1, page_sets: 8, page_ways: 1, renew: 0 };

    /// An empty sample of such a filter.
    pub(crate) fn reuse(&self) -> Reuse {
        Reuse { sets: self.line_sets, renew: self.renew, ..Reuse::default() }
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// Says which one is impossible.
    pub fn check(&self) -> Result<(), String> {
        let Self { line_sets, line_ways, page_sets, page_ways, renew: _ } = *self;
        for (what, sets, ways) in [("lines", line_sets, line_ways), ("pages", page_sets, page_ways)] {
            let possible = sets.is_power_of_two() && sets <= PART_MAX && (1..=PART_MAX).contains(&ways);
            if !possible {
                return Err(format!(
                    "a filter over {what} of {sets} sets of {ways}: sets are a power of two, both 1 to {PART_MAX}"
                ));
            }
        }
        Ok(())
    }
}

impl Default for FilterOptions {
    /// Chosen by measurement (`docs/trace-format.md`, "Filtered stretches").
    fn default() -> Self {
        Self { line_sets: 64, line_ways: 8, page_sets: 1, page_ways: 64, renew: 16_384 }
    }
}

impl FromStr for FilterOptions {
    type Err = String;

    /// `default`, `exact`, or sizes such as `64x8,1x64` (sets and ways of lines, then of pages) or
    /// `64x8,1x64,4096` (and when a line is renewed).
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "default" => return Ok(Self::default()),
            "exact" => return Ok(Self::EXACT),
            _ => {}
        }
        let sizes = || {
            let mut parts = text.split(',');
            let mut array = || {
                let (sets, ways) = parts.next()?.split_once('x')?;
                Some((sets.parse().ok()?, ways.parse().ok()?))
            };
            let ((line_sets, line_ways), (page_sets, page_ways)) = (array()?, array()?);
            let renew = parts.next().map_or(Some(0), |renew| renew.parse().ok())?;
            parts.next().is_none().then_some(Self { line_sets, line_ways, page_sets, page_ways, renew })
        };
        let options = sizes().ok_or_else(|| {
            format!("{text}: no filter; give default, exact, or sets and ways of lines and pages, such as 64x8,1x64")
        })?;
        options.check().map(|()| options)
    }
}

impl fmt::Display for FilterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line_sets, line_ways, page_sets, page_ways, renew } = self;
        write!(f, "{line_sets}x{line_ways},{page_sets}x{page_ways},{renew}")
    }
}

impl TryFrom<String> for FilterOptions {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<FilterOptions> for String {
    fn from(options: FilterOptions) -> Self {
        options.to_string()
    }
}

/// An LRU array whose order is in the times of the last uses: a hit is one store.
///
/// [`Recency::guess`] finds nearly all hits without a search: by the number's low bits, it names
/// the place that had such a number last. The caller compares the key.
#[derive(Clone, Debug)]
struct Recency<T> {
    places: Vec<Place<T>>,
    /// Places, by [`Recency::hint`]; of numbers that share one, that of the latest.
    hints: Vec<u32>,
    ways: usize,
    set_mask: u64,
}

#[derive(Clone, Debug, Default)]
struct Place<T> {
    /// The number + 1; 0 = empty.
    key: u64,
    /// When it was used last; 0 = empty.
    used: u64,
    /// What goes with it.
    with: T,
}

impl<T: Clone + Default> Recency<T> {
    fn new(sets: u32, ways: u32) -> Self {
        let places = sets as usize * ways as usize;
        // Four times as many hints as places: few numbers share one.
        let hints = (4 * places).next_power_of_two();
        Self {
            places: vec![Place::default(); places],
            hints: vec![0; hints],
            ways: ways as usize,
            set_mask: u64::from(sets) - 1,
        }
    }

    /// Where the hint of `number` is.
    #[inline]
    const fn hint(number: u64, hints: usize) -> usize {
        (number ^ number >> 11) as usize & (hints - 1)
    }

    /// Where `number` is, if it is there.
    #[inline]
    fn guess(number: u64, hints: &[u32]) -> usize {
        hints[Self::hint(number, hints.len())] as usize
    }

    /// Makes `number` the latest of its set at time `now`. Returns its place, and whether it was
    /// there.
    fn touch(&mut self, number: u64, now: u64) -> (usize, bool) {
        let (guess, key) = (Self::guess(number, &self.hints), number + 1);
        if self.places[guess].key == key {
            self.places[guess].used = now;
            return (guess, true);
        }
        let from = (number & self.set_mask) as usize * self.ways;
        let set = &mut self.places[from..from + self.ways];
        let (mut at, mut hit) = (0, false);
        for index in 0..set.len() {
            if set[index].key == key {
                (at, hit) = (index, true);
                break;
            }
            if set[index].used < set[at].used {
                at = index;
            }
        }
        let place = &mut set[at];
        if !hit {
            *place = Place { key, ..Place::default() };
        }
        place.used = now;
        let at = from + at;
        let hint = Self::hint(number, self.hints.len());
        self.hints[hint] = at as u32;
        (at, hit)
    }

    fn clear(&mut self) {
        self.places.fill(Place::default());
    }

    /// When `number` was used last, and how many others of its set were used later, if it is
    /// there.
    #[cold]
    fn of(&self, number: u64) -> Option<(u64, usize)> {
        let from = (number & self.set_mask) as usize * self.ways;
        let set = &self.places[from..from + self.ways];
        let at = from + set.iter().position(|place| place.key == number + 1)?;
        let used = self.places[at].used;
        Some((used, Self::later(&self.places, self.ways, at, used)))
    }

    /// How many numbers of the set that has the place `at` were used later than `time`.
    #[cold]
    fn later(places: &[Place<T>], ways: usize, at: usize, time: u64) -> usize {
        let from = at - at % ways;
        places[from..from + ways].iter().filter(|place| place.used > time).count()
    }
}

/// What goes with a line.
#[derive(Clone, Copy, Debug, Default)]
struct OfLine {
    /// The access that kept it last.
    kept_at: u64,
    /// Where its page was when the line was looked up last: the key there says whether it still is.
    page: u32,
}

/// What goes with a page.
#[derive(Clone, Copy, Debug, Default)]
struct OfPage {
    /// Whether a store to it was kept since it came in.
    stored: bool,
}

/// The filter of one thread.
#[derive(Clone, Debug)]
pub struct Filter {
    lines: Recency<OfLine>,
    pages: Recency<OfPage>,
    renew: u64,
    /// Accesses of the thread.
    now: u64,
    sample: Sample,
}

/// How long ago lines were used that absorbed accesses use again, of one access in 64 on average.
#[derive(Clone, Debug)]
struct Sample {
    reuse: Reuse,
    /// The next access to look at; `u64::MAX`: none.
    at: u64,
    /// Accesses that were looked at.
    count: u64,
}

impl Sample {
    /// Chooses the next access after `time`: 33 to 96 later, in no pattern that a program's loop
    /// could have, too.
    fn choose(&mut self, time: u64) {
        self.count += 1;
        self.at = time + 33 + (self.count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58);
    }

    /// The access at `time` is absorbed: its line was used at `used`, and `later` others of its set
    /// since.
    #[cold]
    fn absorbed(&mut self, time: u64, (used, later): (u64, usize)) {
        self.reuse.absorbed.note(time - used, later);
        self.choose(time);
    }

    /// The access at `time` is kept; if only to renew its line, the same is known of it.
    #[cold]
    fn kept(&mut self, time: u64, renewed: Option<(u64, usize)>) {
        if let Some((used, later)) = renewed {
            self.reuse.renewed.note(time - used, later);
        }
        self.choose(time);
    }
}

/// Accesses in a row that were absorbed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Absorbed {
    /// How many.
    pub accesses: u32,
    /// How many of them are stores.
    pub stores: u64,
    /// Their instructions.
    pub instructions: u64,
}

impl Filter {
    /// An empty one.
    pub fn new(options: &FilterOptions) -> Self {
        Self {
            lines: Recency::new(options.line_sets, options.line_ways),
            pages: Recency::new(options.page_sets, options.page_ways),
            renew: if options.renew == 0 { u64::MAX } else { options.renew },
            now: 0,
            sample: Sample { reuse: options.reuse(), at: 1, count: 0 },
        }
    }

    /// Whether the accesses from now on belong to the sample of [`Filter::reuse`]. They do at
    /// first.
    pub fn set_sampling(&mut self, on: bool) {
        match (on, self.sample.at == u64::MAX) {
            (true, true) => self.sample.choose(self.now),
            (false, false) => self.sample.at = u64::MAX,
            _ => {}
        }
    }

    /// A sample of the accesses that it absorbed.
    pub fn reuse(&self) -> &Reuse {
        &self.sample.reuse
    }

    /// The thread accesses `address`. Whether the access is to be kept; it is, whatever the arrays
    /// hold, if it `must`.
    #[inline]
    pub fn keeps(&mut self, address: u64, store: bool, must: bool) -> bool {
        self.now += 1;
        let now = self.now;
        let sampled = now >= self.sample.at;
        let before = if sampled { self.lines.of(address >> LINE_SHIFT) } else { None };
        let (line_at, line_hit) = self.lines.touch(address >> LINE_SHIFT, now);
        let (page_at, page_hit) = self.pages.touch(address >> PAGE_SHIFT, now);
        let line = &mut self.lines.places[line_at].with;
        let page = &mut self.pages.places[page_at].with;
        line.page = page_at as u32;
        let first_store = store && !page.stored;
        let must_keep = must || !line_hit || !page_hit || first_store;
        let keeps = must_keep || now - line.kept_at >= self.renew;
        if keeps {
            line.kept_at = now;
            page.stored |= store;
        }
        if sampled {
            match before {
                Some(before) if !keeps => self.sample.absorbed(now, before),
                _ => self.sample.kept(now, before.filter(|_| !must_keep)),
            }
        }
        keeps
    }

    /// The thread makes the first so many of `accesses`, all of which are absorbed. The next one is
    /// for [`Filter::keeps`] to decide about.
    pub fn absorb(&mut self, accesses: &[SourceAccess]) -> Absorbed {
        // Slices of what does not change its place: the compiler cannot know that the stores below
        // leave the vectors alone.
        let Self { lines, pages, renew, now, sample } = self;
        let ways = lines.ways;
        let (hints, lines, pages) = (&lines.hints[..], &mut lines.places[..], &mut pages.places[..]);
        let (mut time, renew) = (*now, *renew);
        let mut run = Absorbed::default();
        for access in accesses {
            let (address, store) = (access.address().0, access.is_store());
            let line_at = Recency::<OfLine>::guess(address >> LINE_SHIFT, hints);
            let line = &mut lines[line_at];
            let page = &mut pages[line.with.page as usize];
            let hit = line.key == (address >> LINE_SHIFT) + 1 && page.key == (address >> PAGE_SHIFT) + 1;
            if !hit || (store && !page.with.stored) || time + 1 - line.with.kept_at >= renew {
                break;
            }
            time += 1;
            if time >= sample.at {
                let used = line.used;
                sample.absorbed(time, (used, Recency::later(lines, ways, line_at, used)));
            }
            (lines[line_at].used, page.used) = (time, time);
            run.stores += u64::from(store);
            run.instructions += access.instructions();
        }
        run.accesses = (time - *now) as u32;
        *now = time;
        run
    }

    /// Mappings changed: whatever is accessed next is kept.
    pub fn forget(&mut self) {
        self.lines.clear();
        self.pages.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestwalk_mem::Va;
    use proptest::prelude::*;

    fn options(line_sets: u32, line_ways: u32, page_sets: u32, page_ways: u32, renew: u64) -> FilterOptions {
        FilterOptions { line_sets, line_ways, page_sets, page_ways, renew }
    }

    /// LRU over everything: the latest first.
    #[derive(Default)]
    struct Naive(Vec<Vec<u64>>);

    impl Naive {
        fn touch(&mut self, sets: u32, ways: u32, number: u64) -> bool {
            self.0.resize(sets as usize, Vec::new());
            let set = &mut self.0[(number % u64::from(sets)) as usize];
            let hit = set.contains(&number);
            set.retain(|&there| there != number);
            set.insert(0, number);
            set.truncate(ways as usize);
            hit
        }
    }

    fn accesses() -> impl Strategy<Value = Vec<(u64, bool)>> {
        let address = (0u64..12, 0u64..64, 0u64..64).prop_map(|(page, line, byte)| page << 12 | line << 6 | byte);
        prop::collection::vec((address, any::<bool>()), 0..2000)
    }

    proptest! {
        #[test]
        fn what_is_absorbed_is_what_the_definition_says(accesses in accesses(), renew in 0u64..60) {
            let options = options(4, 3, 2, 2, renew);
            let mut filter = Filter::new(&options);
            let (mut lines, mut pages) = (Naive::default(), Naive::default());
            let mut stored = std::collections::BTreeSet::new();
            let mut kept_at = std::collections::BTreeMap::new();
            for (now, (address, store)) in accesses.into_iter().enumerate() {
                let (line, page) = (address >> 6, address >> 12);
                let line_hit = lines.touch(4, 3, line);
                let page_hit = pages.touch(2, 2, page);
                if !page_hit {
                    stored.remove(&page);
                }
                let age = now - kept_at.get(&line).copied().unwrap_or(now);
                let old = renew > 0 && age as u64 >= renew;
                let absorbs = line_hit && page_hit && (!store || stored.contains(&page)) && !old;
                let access = SourceAccess::new(Va(address), 0, 3, 3, store);
                let run = filter.absorb(&[access]);
                let one = Absorbed { accesses: 1, stores: store.into(), instructions: 3 };
                prop_assert!(run == one || run == Absorbed::default());
                prop_assert_eq!(run.accesses == 0 && filter.keeps(address, store, false), !absorbs);
                if !absorbs {
                    kept_at.insert(line, now);
                    if store {
                        stored.insert(page);
                    }
                }
            }
        }

        /// What `FilterOptions::EXACT` promises: every LRU array of at least as many sets, with any
        /// number of ways, has the same misses in the same order and the same contents, fed with
        /// all accesses or with the kept ones.
        #[test]
        fn one_way_a_set_is_exact_for_larger_lru_arrays(
            accesses in accesses(), sets in prop::sample::select(vec![4u32, 8, 16]), ways in 1u32..5,
        ) {
            let mut filter = Filter::new(&options(4, 1, 4, 1, 0));
            let (mut all, mut kept) = ([Naive::default(), Naive::default()], [Naive::default(), Naive::default()]);
            for (address, store) in accesses {
                let keeps = filter.keeps(address, store, false);
                for (level, shift) in [6, 12].into_iter().enumerate() {
                    let hit = all[level].touch(sets, ways, address >> shift);
                    prop_assert!(keeps || hit, "an access was absorbed that misses");
                    if keeps {
                        prop_assert_eq!(kept[level].touch(sets, ways, address >> shift), hit);
                    }
                    prop_assert_eq!(&all[level].0, &kept[level].0);
                }
            }
        }
    }

    #[test]
    fn first_stores_and_forgotten_pages_are_kept() {
        let mut filter = Filter::new(&FilterOptions::default());
        assert!(filter.keeps(0x1000, false, false) && !filter.keeps(0x1008, false, false));
        assert!(filter.keeps(0x1010, true, false) && !filter.keeps(0x1018, true, false));
        filter.forget();
        assert!(filter.keeps(0x1000, false, false), "nothing is absorbed after an unmapping");
        assert!(filter.keeps(0x1000, true, false), "not even a store to what was stored to before");
        assert!(filter.keeps(0x1000, true, true));
    }

    #[test]
    fn a_filter_is_named_by_its_sizes() {
        assert_eq!("default".parse(), Ok(FilterOptions::default()));
        assert_eq!("exact".parse(), Ok(FilterOptions::EXACT));
        assert_eq!("64x8,1x32".parse(), Ok(options(64, 8, 1, 32, 0)));
        assert_eq!("64x8,1x32,4096".parse(), Ok(options(64, 8, 1, 32, 4096)));
        assert_eq!(FilterOptions::EXACT.to_string().parse(), Ok(FilterOptions::EXACT));
        for bad in ["", "64x8", "64x8,1x32,", "64x8,1x32,1,1", "64,1", "3x1,1x1", "ax1,1x1"] {
            assert!(bad.parse::<FilterOptions>().is_err(), "{bad}");
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert_eq!(FilterOptions::default().check(), Ok(()));
        assert_eq!(FilterOptions::EXACT.check(), Ok(()));
        for (bad, what) in [
            (options(3, 1, 1, 1, 0), "lines"),
            (options(1, 0, 1, 1, 0), "lines"),
            (options(1, 1, 0, 1, 0), "pages"),
            (options(1, 1, 1, 1 << 13, 0), "pages"),
        ] {
            assert!(bad.check().unwrap_err().contains(what));
        }
    }

    #[test]
    fn a_sample_has_the_times_of_absorbed_and_of_renewed_accesses() {
        const LINES: u64 = 3;
        let mut filter = Filter::new(&options(4, 3, 1, 8, 100));
        // Three lines of one set of four, in turn; absorbed on both ways.
        let address = |n: u64| (n % LINES * 4) << LINE_SHIFT;
        for n in 0..20_000 {
            let access = SourceAccess::new(Va(address(n)), 1, 1, 3, false);
            if n % 2 == 0 || filter.absorb(&[access]).accesses == 0 {
                filter.keeps(address(n), false, false);
            }
        }
        let reuse = filter.reuse().clone();
        assert_eq!((reuse.sets, reuse.renew), (4, 100));
        for times in [&reuse.absorbed, &reuse.renewed] {
            let cells: Vec<_> = times.cells().collect();
            assert_eq!(cells.len(), 1);
            assert_eq!((cells[0].time, cells[0].depth), (LINES, LINES - 1));
        }
        // One access in 64.5; of each line one in 34 is renewed.
        let (absorbed, renewed) = (reuse.absorbed.total(), reuse.renewed.total());
        assert!((300..320).contains(&(absorbed + renewed)) && (3..20).contains(&renewed), "{absorbed} {renewed}");

        filter.set_sampling(false);
        (0..1000).for_each(|n| _ = filter.keeps(address(n), false, false));
        assert_eq!(filter.reuse(), &reuse);
        filter.set_sampling(true);
        (0..1000).for_each(|n| _ = filter.keeps(address(n), false, false));
        assert!(filter.reuse().absorbed.total() > absorbed);
    }
}
