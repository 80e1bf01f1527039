// SPDX-License-Identifier: MIT OR Apache-2.0
//! One level of set-associative cache with true LRU.
//!
//! A cache keeps the lines that it holds and their LRU order: no data, no dirty bits. Each set is a
//! [row](crate::simd) of tags, the most recently used first.

use nestwalk_mem::aligned::Aligned;
use nestwalk_mem::prefetch::prefetch;

use crate::sets::Sets;
use crate::simd::{LongTags, Plain, Simd, Tags};

/// A cache of lines. A line is a number: its address / 64. The tag of every line must be short
/// enough for `T`: see [`Cache::can_hold`].
#[derive(Clone, Debug)]
pub struct Cache<T = LongTags> {
    sets: Sets,
    ways: usize,
    /// `T`s of a row.
    stride: usize,
    rows: Aligned<T>,
}

impl<T: Tags> Cache<T> {
    /// An empty cache.
    ///
    /// # Panics
    /// When there are no sets, no ways, or more than 64 ways.
    pub fn new(sets: u32, ways: u32) -> Self {
        assert!((1..=64).contains(&ways), "a cache has 1 to 64 ways");
        let (sets, ways) = (Sets::new(sets), ways as usize);
        let stride = T::count(ways);
        Self { sets, ways, stride, rows: Aligned::filled(T::EMPTY, sets.count() * stride) }
    }

    /// Whether the tags are long enough for `line`.
    pub(crate) fn can_hold(&self, line: u64) -> bool {
        self.sets.split(line).1 < T::NONE.into()
    }

    /// The same with other tags, which must be long enough for all that it holds.
    pub(crate) fn with_tags<U: Tags>(&self) -> Cache<U> {
        let mut other = Cache::<U>::new(self.sets.count() as u32, self.ways as u32);
        for set in 0..self.sets.count() {
            for (way, tag) in self.tags(set).enumerate() {
                other.row_mut(set)[way / U::COUNT].places_mut()[way % U::COUNT] = U::tag(tag.into());
            }
        }
        other
    }

    #[inline(always)]
    fn place(&self, line: u64) -> (usize, T::Tag) {
        let (set, tag) = self.sets.split(line);
        (set, T::tag(tag))
    }

    #[inline(always)]
    fn row(&self, set: usize) -> &[T] {
        debug_assert!(set < self.sets.count());
        // SAFETY: there are `stride` of them for each set, and every set comes from `Sets::split`,
        // so is one of them.
        unsafe { self.rows.get_unchecked(set * self.stride..(set + 1) * self.stride) }
    }

    #[inline(always)]
    fn row_mut(&mut self, set: usize) -> &mut [T] {
        debug_assert!(set < self.sets.count());
        // SAFETY: as in `row`.
        unsafe { self.rows.get_unchecked_mut(set * self.stride..(set + 1) * self.stride) }
    }

    /// The tags of a set, the most recently used first.
    fn tags(&self, set: usize) -> impl Iterator<Item = T::Tag> {
        self.row(set).iter().flat_map(|tags| tags.places().iter().copied()).filter(|&tag| tag != T::NONE)
    }

    /// The same cache, known to have rows of `N` and, with `POWER`, a power of two of them.
    ///
    /// # Panics
    /// When it has not.
    #[inline(always)]
    pub(crate) fn shaped<const N: usize, const POWER: bool>(&mut self) -> Shaped<'_, T, N, POWER> {
        assert!(self.stride == N && (!POWER || self.sets.is_power_of_two()), "the shape of a cache");
        Shaped { sets: self.sets, ways: self.ways, last: 1 << (self.ways - 1), rows: self.rows.as_chunks_mut().0 }
    }

    /// `T`s of a row; 0 if the rows are no power of two.
    pub(crate) fn stride_of_power_of_two(&self) -> usize {
        if self.sets.is_power_of_two() { self.stride } else { 0 }
    }

    /// Lines of a set.
    pub(crate) fn ways(&self) -> usize {
        self.ways
    }

    /// Accesses `line` and allocates it on a miss. Returns whether it hit, and the evicted line.
    pub fn access(&mut self, line: u64) -> (bool, Option<u64>) {
        let (there, gone) = Level::touch_for(&mut &mut *self, Plain, line);
        (there != 0, gone.is_real().then(|| gone.line()))
    }

    /// Takes `line` out. Whether it was there.
    pub fn remove(&mut self, line: u64) -> bool {
        Level::take(&mut &mut *self, Plain, line)
    }

    /// Takes out the lines that `keep` does not want.
    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        for set in 0..self.sets.count() {
            let lines: Vec<u64> = self.lines_of(set).collect();
            lines.into_iter().filter(|&line| !keep(line)).for_each(|line| {
                self.remove(line);
            });
        }
    }

    /// Whether `line` is there. Changes nothing.
    pub fn contains(&self, line: u64) -> bool {
        let (set, tag) = self.place(line);
        self.tags(set).any(|there| there == tag)
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.rows.fill(T::EMPTY);
    }

    /// The lines of a set, the most recently used first.
    pub fn lines_of(&self, set: usize) -> impl Iterator<Item = u64> {
        self.tags(set).map(move |tag| self.sets.join(set, tag.into()))
    }

    /// How many lines it holds, and for how many it has room.
    pub fn held(&self) -> (u64, u64) {
        let held: usize = (0..self.sets.count()).map(|set| self.tags(set).count()).sum();
        (held as u64, (self.sets.count() * self.ways) as u64)
    }

    /// Its sets.
    pub fn set_count(&self) -> usize {
        self.sets.count()
    }

    /// Checks what must always hold: no line twice, and empty ways behind the used ones.
    ///
    /// # Panics
    /// With a message that names the set, if something does not hold.
    pub fn check_invariants(&self) {
        for set in 0..self.sets.count() {
            let row: Vec<T::Tag> = self.row(set).iter().flat_map(|tags| tags.places().iter().copied()).collect();
            let used = row.iter().position(|&tag| tag == T::NONE).unwrap_or(row.len());
            assert!(used <= self.ways, "set {set}: more lines than ways in {row:?}");
            assert!(row[used..].iter().all(|&tag| tag == T::NONE), "set {set}: a hole in {row:?}");
            for (way, tag) in row[..used].iter().enumerate() {
                assert!(!row[..way].contains(tag), "set {set}: a line is there twice in {row:?}");
            }
        }
    }
}

/// A line that a cache evicted; some other line if there was none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Victim(u64);

impl Victim {
    const REAL: u32 = 63;

    /// `gone` if it is `real`, else `other`. No branch, which would be unpredictable at first.
    #[inline(always)]
    fn new(gone: u64, other: u64, real: bool) -> Self {
        let mask = u64::from(real).wrapping_neg();
        Self(gone & mask | other & !mask | u64::from(real) << Self::REAL)
    }

    /// A `line` that was evicted.
    #[inline(always)]
    pub fn of(line: u64) -> Self {
        Self::new(line, line, true)
    }

    /// The line: address / 64.
    #[inline(always)]
    pub fn line(self) -> u64 {
        self.0 & !(1 << Self::REAL)
    }

    /// Whether it was evicted.
    #[inline(always)]
    pub fn is_real(self) -> bool {
        self.0 >> Self::REAL != 0
    }
}

/// A tag of the level `L`.
type Tag<L> = <<L as Level>::Tags as Tags>::Tag;

/// What a hierarchy does with one of its caches.
pub(crate) trait Level {
    /// What a row is made of.
    type Tags: Tags;
    /// See [`Level::view`].
    type View<'a>: Level<Tags = Self::Tags>
    where
        Self: 'a;

    /// The same level, for a loop that does nothing else: what it says of itself can be in
    /// registers.
    fn view(&mut self) -> Self::View<'_>;

    /// Set and tag of `line`.
    fn place(&self, line: u64) -> (usize, Tag<Self>);

    /// The line with `tag` in `set`.
    fn line(&self, set: usize, tag: Tag<Self>) -> u64;

    /// The row of a set that [`Level::place`] gave.
    fn row(&mut self, set: usize) -> &mut [Self::Tags];

    /// All rows, by set.
    fn rows(&mut self) -> &mut [Self::Tags];

    /// How many of [`Level::Tags`] a row has.
    fn stride(&self) -> usize;

    /// How many lines a row holds.
    fn ways(&self) -> usize;

    /// The bit of a row's last place.
    fn last(&self) -> u64;

    /// Accesses `line` and allocates it on a miss. Returns a bit for the place where it was, or 0
    /// on a miss.
    #[inline(always)]
    fn touch<S: Simd>(&mut self, simd: S, line: u64) -> u64 {
        let (set, tag) = self.place(line);
        let last = self.last();
        Tags::use_in(simd, self.row(set), last, tag)
    }

    /// As [`Level::touch`], and returns the evicted line, too.
    #[inline(always)]
    fn touch_for<S: Simd>(&mut self, simd: S, line: u64) -> (u64, Victim) {
        let (set, tag) = self.place(line);
        let (last, lane) = (self.last(), self.ways() - 1);
        let row = self.row(set);
        // The last tag is the LRU one, the next to be evicted.
        let count = Self::Tags::COUNT;
        let next = row.get(lane / count).map_or(Self::Tags::NONE, |tags| tags.places()[lane % count]);
        let there = Tags::use_in(simd, row, last, tag);
        let real = (there == 0) & (next != Self::Tags::NONE);
        (there, Victim::new(self.line(set, next), line, real))
    }

    /// Takes a use of `line` back, the latest that is not taken back yet: it was at `place`, or had
    /// missed and evicted `gone`.
    #[cold]
    fn take_back(&mut self, line: u64, place: Option<usize>, gone: Victim) {
        let (set, tag) = self.place(line);
        let last = self.ways() - 1;
        let (place, at_place) = match place {
            Some(place) => (place, tag),
            None if gone.is_real() => (last, self.place(gone.line()).1),
            None => (last, Self::Tags::NONE),
        };
        let row = self.row(set);
        let count = Self::Tags::COUNT;
        for way in 0..place {
            row[way / count].places_mut()[way % count] = row[(way + 1) / count].places()[(way + 1) % count];
        }
        row[place / count].places_mut()[place % count] = at_place;
    }

    /// Takes `line` out. Whether it was there. No branch on that.
    #[inline(always)]
    fn take<S: Simd>(&mut self, simd: S, line: u64) -> bool {
        let (set, tag) = self.place(line);
        Tags::take_in(simd, self.row(set), tag)
    }

    /// Takes out what another cache evicted, which is hardly ever here.
    #[inline(always)]
    fn drop<S: Simd>(&mut self, simd: S, gone: Victim) {
        let (set, tag) = self.place(gone.line());
        let row = self.row(set);
        if Tags::held_in(simd, row, tag) & gone.is_real() {
            Tags::take_in(simd, row, tag);
        }
    }

    /// Whether `line` is in `rows`, an earlier state of [`Level::rows`].
    #[inline(always)]
    fn held_in<S: Simd>(&self, simd: S, rows: &[Self::Tags], line: u64) -> bool {
        let (set, tag) = self.place(line);
        let (begin, stride) = (set * self.stride(), self.stride());
        Tags::held_in(simd, &rows[begin..begin + stride], tag)
    }

    /// Brings the row of `line` near to the processor that runs the simulation. Changes nothing.
    #[inline(always)]
    fn hint(&mut self, line: u64) {
        let (set, _) = self.place(line);
        match self.row(set) {
            [only] => prefetch(only),
            // It may lie across two lines of that processor's.
            [first, .., last] => {
                prefetch(first);
                prefetch(last);
            }
            [] => {}
        }
    }
}

impl<T: Tags> Level for &mut Cache<T> {
    type Tags = T;
    type View<'a>
        = &'a mut Cache<T>
    where
        Self: 'a;

    #[inline(always)]
    fn view(&mut self) -> &mut Cache<T> {
        self
    }

    #[inline(always)]
    fn place(&self, line: u64) -> (usize, T::Tag) {
        Cache::place(self, line)
    }

    #[inline(always)]
    fn line(&self, set: usize, tag: T::Tag) -> u64 {
        self.sets.join(set, tag.into())
    }

    #[inline(always)]
    fn row(&mut self, set: usize) -> &mut [T] {
        self.row_mut(set)
    }

    #[inline(always)]
    fn rows(&mut self) -> &mut [T] {
        &mut self.rows
    }

    #[inline(always)]
    fn stride(&self) -> usize {
        self.stride
    }

    #[inline(always)]
    fn ways(&self) -> usize {
        self.ways
    }

    #[inline(always)]
    fn last(&self) -> u64 {
        1 << (self.ways - 1)
    }
}

/// A cache whose rows are known to have `N` vectors `T`. With `POWER`, the number of sets is known
/// to be a power of two. The compiler unrolls all loops over a row.
#[derive(Debug)]
pub(crate) struct Shaped<'a, T, const N: usize, const POWER: bool> {
    sets: Sets,
    ways: usize,
    last: u64,
    rows: &'a mut [[T; N]],
}

impl<T: Tags, const N: usize, const POWER: bool> Level for Shaped<'_, T, N, POWER> {
    type Tags = T;
    type View<'a>
        = Shaped<'a, T, N, POWER>
    where
        Self: 'a;

    #[inline(always)]
    fn view(&mut self) -> Shaped<'_, T, N, POWER> {
        Shaped { sets: self.sets, ways: self.ways, last: self.last, rows: self.rows }
    }

    #[inline(always)]
    fn place(&self, line: u64) -> (usize, T::Tag) {
        let (set, tag) = if POWER { self.sets.split_power_of_two(line) } else { self.sets.split(line) };
        (set, T::tag(tag))
    }

    #[inline(always)]
    fn line(&self, set: usize, tag: T::Tag) -> u64 {
        self.sets.join(set, tag.into())
    }

    #[inline(always)]
    fn row(&mut self, set: usize) -> &mut [T] {
        debug_assert!(set < self.rows.len());
        // SAFETY: there is a row for each set, and every set comes from `Sets::split`, so is one of
        // them.
        unsafe { self.rows.get_unchecked_mut(set) }
    }

    #[inline(always)]
    fn rows(&mut self) -> &mut [T] {
        self.rows.as_flattened_mut()
    }

    #[inline(always)]
    fn stride(&self) -> usize {
        N
    }

    #[inline(always)]
    fn ways(&self) -> usize {
        self.ways
    }

    #[inline(always)]
    fn last(&self) -> u64 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::ShortTags;
    use proptest::prelude::*;

    /// Each set a list of lines, the latest first: obviously LRU.
    struct Naive {
        ways: usize,
        sets: Vec<Vec<u64>>,
    }

    impl Naive {
        fn remove(&mut self, line: u64) -> bool {
            let index = (line % self.sets.len() as u64) as usize;
            let before = self.sets[index].len();
            self.sets[index].retain(|&there| there != line);
            self.sets[index].len() < before
        }

        fn access(&mut self, line: u64) -> (bool, Option<u64>) {
            let hit = self.remove(line);
            let index = (line % self.sets.len() as u64) as usize;
            self.sets[index].insert(0, line);
            (hit, (self.sets[index].len() > self.ways).then(|| self.sets[index].pop().unwrap()))
        }
    }

    /// Uses of lines, each with whether it is an access, or a removal.
    fn check<T: Tags>(sets: u32, ways: u32, uses: &[(u64, bool)]) -> Result<Cache<T>, TestCaseError> {
        let mut cache = Cache::new(sets, ways);
        let mut naive = Naive { ways: ways as usize, sets: vec![Vec::new(); sets as usize] };
        for &(line, access) in uses {
            if access {
                prop_assert_eq!(cache.access(line), naive.access(line));
            } else {
                prop_assert_eq!(cache.remove(line), naive.remove(line));
            }
        }
        cache.check_invariants();
        for (set, lines) in naive.sets.iter().enumerate() {
            prop_assert_eq!(&cache.lines_of(set).collect::<Vec<_>>(), lines);
        }
        Ok(cache)
    }

    proptest! {
        #[test]
        fn a_cache_is_a_naive_lru(
            sets in prop::sample::select(vec![1_u32, 2, 3, 7, 12, 64]),
            ways in 1_u32..40,
            uses in prop::collection::vec((0_u64..600, prop::bool::weighted(0.9)), 1..3000),
        ) {
            let short = check::<ShortTags>(sets, ways, &uses)?;
            let long = check::<LongTags>(sets, ways, &uses)?;
            for set in 0..sets as usize {
                let lines = |cache: &Cache<LongTags>| cache.lines_of(set).collect::<Vec<_>>();
                prop_assert_eq!(lines(&short.with_tags()), lines(&long));
            }
            let far: Vec<_> = uses.into_iter().map(|(line, access)| (line + (1 << 31), access)).collect();
            check::<LongTags>(sets, ways, &far)?;
        }
    }

    #[test]
    fn tags_are_long_enough_up_to_the_one_that_says_nothing() {
        let (short, long) = (Cache::<ShortTags>::new(3, 1), Cache::<LongTags>::new(3, 1));
        let border = 3 * u64::from(ShortTags::NONE);
        assert!(short.can_hold(border - 1) && !short.can_hold(border) && long.can_hold(border));
        assert!(!long.can_hold(3 * u64::from(LongTags::NONE)));
    }

    #[test]
    fn a_line_just_used_is_the_last_to_go() {
        let mut cache = Cache::<LongTags>::new(1, 3);
        assert_eq!([1, 2, 3].map(|line| cache.access(line).0), [false; 3]);
        assert_eq!(cache.access(1), (true, None));
        assert_eq!(cache.access(4), (false, Some(2)));
        assert_eq!(cache.lines_of(0).collect::<Vec<_>>(), [4, 1, 3]);
    }
}
