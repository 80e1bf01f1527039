// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a slab allocator puts the objects of very many keys, computed rather than stored.
//!
//! An allocator carves memory into slabs of one size class each, in the order in which it needs
//! them; objects of a class fill its present slab. So the objects of a key lie in several places,
//! and the pages of a neighbourhood are first touched in an order that mixes classes, which is what
//! scatters their frames. That order repeats statistically: the allocator is run once for some ten
//! thousand keys, in a few variants (deals), and each such *group* of keys uses one of the
//! variants. Memory is per variant, not per key.

use std::collections::VecDeque;
use std::ops::Range;

use nestwalk_mem::addr::PAGE_BYTES;

use super::bijection::mix;

/// Different courses of allocation.
const DEALS: u64 = 4;
/// Keys of a group, at most.
const GROUP_KEYS_MAX: u64 = 1 << 15;
/// Offsets are kept in units of this.
const UNIT: u64 = 8;
/// Bytes that jemalloc keeps about a slab (`edata_t` of 5.3), apart from it: so many slabs fill one
/// of its pages, which is first touched when the first of them is made.
const SLAB_RECORD: u64 = 128;
const RECORDS_A_PAGE: u64 = PAGE_BYTES / SLAB_RECORD;
const WORD: u64 = 8;
/// Slabs of memcached in a heap of 64 MiB, whose bookkeeping leaves no room for a 64th.
const SLABS_A_HEAP: u64 = 63;
/// A heap begins at a multiple of 64 MiB, of which only the place within 8 pages matters here (a
/// cache line of page table entries). The pages up to there are touched when all keys are there, so
/// that the footprint is what is touched; glibc's are not touched at all.
const HEAP_ALIGNMENT_PAGES: u64 = 8;

/// Whose size classes and slabs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Allocator {
    /// jemalloc 5: four classes in every doubling, a slab the least number of pages that holds
    /// whole objects.
    Jemalloc,
    /// memcached: classes a quarter larger each from 96 bytes on, slabs of 1 MiB.
    ///
    /// Each is a `malloc` of its own, by a thread that is not the first: glibc takes them from
    /// heaps of 64 MiB. (A request of 1 MiB is a mapping only until the server frees a table that
    /// is larger, which raises `M_MMAP_THRESHOLD`: that of 131,072 slots, at 196,608 items. What
    /// comes before is not told apart here.)
    Memcached,
}

impl Allocator {
    /// The size class of `bytes`.
    fn class(self, bytes: u64) -> u64 {
        match self {
            Self::Jemalloc if bytes <= 128 => bytes.max(1).next_multiple_of(16),
            Self::Jemalloc => {
                let step = 1 << ((bytes - 1).ilog2() - 2);
                bytes.next_multiple_of(step)
            }
            Self::Memcached => {
                let mut class: u64 = 96;
                while class < bytes {
                    class = (class * 5 / 4).next_multiple_of(UNIT);
                }
                class
            }
        }
    }

    /// Objects of the class that become ready at once. jemalloc's thread cache fills up by a half
    /// of what it holds, and it holds as many as two slabs have, from 20 to 200
    /// (`tcache_ncached_max_compute` of 5.3, with the defaults of `nslots_small_min`,
    /// `nslots_small_max` and `lg_tcache_nslots_mul`). memcached frees a whole new slab.
    fn batch(self, class: u64) -> u64 {
        match self {
            Self::Jemalloc => (2 * (self.slab(class) / class)).clamp(20, 200) / 2,
            Self::Memcached => (self.slab(class) / class).max(1),
        }
    }

    /// Bytes before a slab's objects: the header of a `malloc` of 1 MiB.
    fn header(self) -> u64 {
        match self {
            Self::Jemalloc => 0,
            Self::Memcached => 16,
        }
    }

    /// Bytes before a group's first slab: `heap_info` of glibc's heap.
    fn begin(self) -> u64 {
        match self {
            Self::Jemalloc => 0,
            Self::Memcached => 32,
        }
    }

    /// Pages of the records of so many slabs, and of the words about so many pages.
    fn kept(self, slabs: u64, pages: u64) -> (u64, u64) {
        match self {
            Self::Jemalloc => (slabs.div_ceil(RECORDS_A_PAGE), pages.div_ceil(PAGE_BYTES / WORD)),
            Self::Memcached => (0, 0),
        }
    }

    /// Bytes of a slab of the class.
    fn slab(self, class: u64) -> u64 {
        match self {
            Self::Jemalloc => {
                let common = 1 << class.trailing_zeros().min(PAGE_BYTES.trailing_zeros());
                class / common * PAGE_BYTES
            }
            Self::Memcached => 1 << 20,
        }
    }
}

/// One course of allocation.
struct Deal {
    /// For each key its objects, in units from the group's start.
    offsets: Vec<u32>,
    /// Pages in the order of first use.
    touches: Vec<Touch>,
}

/// A page that is used first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Touch {
    /// The key, counted in its group, for which it is used.
    pub(super) key: u32,
    /// Counted from the group's start.
    pub(super) page: u32,
    /// Of what.
    pub(super) of: Pages,
}

/// What a group's pages are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pages {
    /// Objects.
    Objects,
    /// Records of the allocator's slabs.
    Records,
    /// Words of the allocator about pages of objects.
    Words,
}

/// See the [module's documentation](self).
pub(super) struct Slabs {
    allocator: Allocator,
    deals: Vec<Deal>,
    objects: usize,
    group_keys: u64,
    group_pages: u64,
    /// Pages of slabs' records in a group, before those of words.
    slab_records: u64,
    seed: u64,
}

impl Slabs {
    /// The layout under `allocator` of keys whose objects have the `sizes` that follow from a draw,
    /// for about `keys` keys.
    pub(super) fn new(allocator: Allocator, keys: u64, seed: u64, sizes: impl Fn(u64) -> Vec<u64>) -> Self {
        let mut group_keys = (keys / 16).clamp(64, GROUP_KEYS_MAX);
        if allocator == Allocator::Memcached {
            // Whole slabs, if all sizes are alike; as many as a heap has, if there are so many.
            let class = allocator.class(sizes(seed)[0]);
            let objects = allocator.slab(class) / class;
            group_keys = (keys / 16 / objects).clamp(1, SLABS_A_HEAP) * objects;
        }
        let courses: Vec<_> = (0..DEALS).map(|deal| course(allocator, group_keys, mix(seed ^ deal), &sizes)).collect();
        let most = |of| courses.iter().map(|(_, ends): &(Deal, [u64; 3])| ends[of as usize]).max().unwrap_or(0);
        let most = [Pages::Objects, Pages::Records, Pages::Words].map(most);
        let pad = |(mut deal, ends): (Deal, [u64; 3])| {
            // The end of a shorter course: the next slabs are begun there.
            for of in [Pages::Objects, Pages::Records, Pages::Words] {
                let rest = ends[of as usize]..most[of as usize];
                deal.touches.extend(rest.map(|page| Touch { key: group_keys as u32 - 1, page: page as u32, of }));
            }
            deal
        };
        Self {
            allocator,
            objects: sizes(seed).len(),
            deals: courses.into_iter().map(pad).collect(),
            group_keys,
            group_pages: most[Pages::Objects as usize],
            slab_records: most[Pages::Records as usize],
            seed,
        }
    }

    /// Objects of a key.
    pub(super) fn objects(&self) -> usize {
        self.objects
    }

    /// Keys of a group.
    pub(super) fn group_keys(&self) -> u64 {
        self.group_keys
    }

    /// Pages from a group's start to the next one's.
    pub(super) fn group_span(&self) -> u64 {
        match self.allocator {
            Allocator::Jemalloc => self.group_pages,
            Allocator::Memcached => self.group_pages.next_multiple_of(HEAP_ALIGNMENT_PAGES),
        }
    }

    /// Pages between a group and the next one, counted from its start.
    pub(super) fn between(&self) -> Range<u64> {
        self.group_pages..self.group_span()
    }

    /// Pages of what the allocator keeps about a group's slabs and pages.
    pub(super) fn record_pages(&self) -> u64 {
        self.slab_records + self.allocator.kept(0, self.group_pages).1
    }

    /// Where among these pages the page of a touch is; `None` if it is one of objects.
    pub(super) fn record_page(&self, touch: Touch) -> Option<u64> {
        match touch.of {
            Pages::Objects => None,
            Pages::Records => Some(touch.page.into()),
            Pages::Words => Some(self.slab_records + u64::from(touch.page)),
        }
    }

    /// Bytes from the start of these pages to the word that says how large the object at `offset`
    /// is (jemalloc's `rtree_leaf_elm_t`, one for each page in the order of addresses).
    pub(super) fn word_of(&self, offset: u64) -> u64 {
        self.slab_records * PAGE_BYTES + offset / PAGE_BYTES * WORD
    }

    /// Which of the courses a group takes.
    fn course(&self, group: u64) -> u64 {
        mix(self.seed ^ group) % DEALS
    }

    fn deal(&self, group: u64) -> &Deal {
        &self.deals[self.course(group) as usize]
    }

    /// Bytes from the group's start to object `object` of key number `within` of group `group`.
    #[inline]
    pub(super) fn offset(&self, group: u64, within: u64, object: usize) -> u64 {
        u64::from(self.deal(group).offsets[within as usize * self.objects + object]) * UNIT
    }

    /// The draw from which the sizes of a key's objects follow.
    pub(super) fn draw(&self, group: u64, within: u64) -> u64 {
        mix(mix(self.seed ^ self.course(group)) ^ within)
    }

    /// The group's pages in the order of first use.
    pub(super) fn touches(&self, group: u64) -> &[Touch] {
        &self.deal(group).touches
    }
}

/// Objects of one class that are ready to be given out.
struct Bin {
    class: u64,
    /// Next free byte of the present slab and its end.
    next: u64,
    limit: u64,
    ready: VecDeque<u64>,
}

/// A course under way.
struct Course {
    allocator: Allocator,
    bins: Vec<Bin>,
    touches: Vec<Touch>,
    /// Pages that were used.
    seen: Vec<bool>,
    end: u64,
    slabs: u64,
    /// Pages of records, and of words.
    kept: (u64, u64),
}

impl Course {
    fn touch(&mut self, key: u32, bytes: Range<u64>) {
        for page in bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES) {
            if !std::mem::replace(&mut self.seen[page as usize], true) {
                self.touches.push(Touch { key, page: page as u32, of: Pages::Objects });
            }
        }
    }

    /// A slab of `class` for `key`: where its objects begin and end.
    fn slab(&mut self, key: u32, class: u64) -> (u64, u64) {
        let slab = self.allocator.slab(class).max(class.next_multiple_of(PAGE_BYTES));
        let start = self.end;
        self.end += slab + self.allocator.header();
        self.slabs += 1;
        let pages = self.end.div_ceil(PAGE_BYTES);
        self.seen.resize(pages as usize, false);
        let before = std::mem::replace(&mut self.kept, self.allocator.kept(self.slabs, pages));
        let touch = |of| move |page| Touch { key, page: page as u32, of };
        self.touches.extend((before.0..self.kept.0).map(touch(Pages::Records)));
        self.touches.extend((before.1..self.kept.1).map(touch(Pages::Words)));
        let start = start + self.allocator.header();
        if self.allocator == Allocator::Memcached {
            // `do_slabs_newslab` fills it with zeroes.
            self.touch(key, start - self.allocator.header()..start + slab);
        }
        (start, start + slab / class * class)
    }

    /// Makes objects ready that begin with the bin's next ones.
    fn fill(&mut self, key: u32, bin: usize) {
        let class = self.bins[bin].class;
        let mut ready = VecDeque::new();
        while (ready.len() as u64) < self.allocator.batch(class) {
            if self.bins[bin].next == self.bins[bin].limit {
                (self.bins[bin].next, self.bins[bin].limit) = self.slab(key, class);
            }
            ready.push_back(self.bins[bin].next);
            self.bins[bin].next += class;
        }
        if self.allocator == Allocator::Memcached {
            // A new slab's objects are freed one by one in order (`split_slab_page_into_freelist`),
            // and what was freed last is taken first.
            ready.make_contiguous().reverse();
        }
        self.bins[bin].ready = ready;
    }

    /// An object of `size` bytes for `key`.
    fn object(&mut self, key: u32, size: u64) -> u64 {
        let class = self.allocator.class(size);
        let bin = self.bins.iter().position(|bin| bin.class == class).unwrap_or_else(|| {
            self.bins.push(Bin { class, next: 0, limit: 0, ready: VecDeque::new() });
            self.bins.len() - 1
        });
        if self.bins[bin].ready.is_empty() {
            self.fill(key, bin);
        }
        let at = self.bins[bin].ready.pop_front().expect("it was filled");
        self.touch(key, at..at + size.max(1));
        at
    }
}

/// Runs the allocator for one group; returns also how many pages of each kind it took.
fn course(allocator: Allocator, keys: u64, seed: u64, sizes: &impl Fn(u64) -> Vec<u64>) -> (Deal, [u64; 3]) {
    let (bins, touches, seen) = (Vec::new(), Vec::new(), Vec::new());
    let mut course = Course { allocator, bins, touches, seen, end: allocator.begin(), slabs: 0, kept: (0, 0) };
    let mut offsets = Vec::new();
    for key in 0..keys {
        for size in sizes(mix(seed ^ key)) {
            offsets.push((course.object(key as u32, size) / UNIT) as u32);
        }
    }
    // Slabs that are still open at the end are filled by the next group's keys in truth; here they
    // count as used.
    course.touch(keys as u32 - 1, 0..course.end);
    let ends = [course.end.div_ceil(PAGE_BYTES), course.kept.0, course.kept.1];
    (Deal { offsets, touches: course.touches }, ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_slabs_are_the_allocators() {
        let jemalloc = Allocator::Jemalloc;
        for (bytes, class, pages) in [
            (1, 16, 1),
            (24, 32, 1),
            (48, 48, 3),
            (129, 160, 5),
            (192, 192, 3),
            (225, 256, 1),
            (400, 448, 7),
            (1100, 1280, 5),
        ] {
            assert_eq!(jemalloc.class(bytes), class, "{bytes}");
            assert_eq!(jemalloc.slab(class), pages * PAGE_BYTES, "{class}");
        }
        // memcached -vv: 96, 120, 152, 192, 240, 304 ...
        for (bytes, class) in [(90, 96), (97, 120), (121, 152), (190, 192), (241, 304)] {
            assert_eq!(Allocator::Memcached.class(bytes), class, "{bytes}");
        }
    }

    #[test]
    fn objects_never_overlap_and_every_page_is_touched_once() {
        let sizes = |draw: u64| vec![24, 21, 16, 128 + draw % 256];
        let slabs = Slabs::new(Allocator::Jemalloc, 20_000, 9, sizes);
        for group in 0..6 {
            let mut spans = Vec::new();
            for within in 0..slabs.group_keys() {
                for (object, size) in sizes(slabs.draw(group, within)).into_iter().enumerate() {
                    let at = slabs.offset(group, within, object);
                    spans.push((at, at + size));
                }
            }
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "group {group}");
            assert!(spans.last().unwrap().1 <= slabs.group_pages * PAGE_BYTES);
            let touches = slabs.touches(group);
            assert!(touches.windows(2).all(|pair| pair[0].key <= pair[1].key), "in the order of keys");
            let sorted = |pages: &mut Vec<u64>| pages.sort_unstable();
            let records = touches.iter().filter_map(|&touch| slabs.record_page(touch));
            let objects = touches.iter().filter(|&&touch| slabs.record_page(touch).is_none());
            let (mut records, mut objects): (Vec<_>, Vec<_>) =
                (records.collect(), objects.map(|touch| u64::from(touch.page)).collect());
            sorted(&mut records);
            sorted(&mut objects);
            assert!(records.into_iter().eq(0..slabs.record_pages()));
            assert!(objects.into_iter().eq(0..slabs.group_pages));
        }
    }

    /// YCSB's records: 32 slabs of one page each have a page of records, which is touched when the
    /// first of them is made, and a value's page is touched before that of the keys made ready with
    /// it (`nestwalk trace head` shows the same of redis).
    #[test]
    fn jemalloc_makes_a_batch_ready_and_keeps_a_record_of_each_slab() {
        let slabs = Slabs::new(Allocator::Jemalloc, 1 << 20, 3, |_| vec![24, 25, 16, 1004]);
        let touches = slabs.touches(0);
        let records: Vec<_> = touches.iter().filter(|touch| touch.of == Pages::Records).collect();
        // Of 64 keys: 16 pages of values, one of entries and keys, a quarter of one of `robj`s.
        let pages = slabs.group_keys() / 4 + slabs.group_keys() / 64 + slabs.group_keys() / 256;
        assert!(slabs.group_pages.abs_diff(pages) < 8, "{} pages", slabs.group_pages);
        assert_eq!(records.len() as u64, slabs.group_pages.div_ceil(32));
        for pair in records.windows(2) {
            assert!((24..=40).contains(&(pair[1].key - pair[0].key).div_ceil(4)), "{pair:?}");
        }
        assert_eq!(slabs.record_pages(), records.len() as u64 + slabs.group_pages.div_ceil(512));
        // Most pages follow the page before; those of the next entries are passed and come later
        // (in a capture of redis, 0.75 with the pages of records counted as well).
        let objects: Vec<u32> = touches.iter().filter(|t| t.of == Pages::Objects).map(|t| t.page).collect();
        let next = objects.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!((780..880).contains(&(next * 1000 / objects.len())), "{next} of {}", objects.len());
    }

    #[test]
    fn memcached_zeroes_a_slab_and_gives_its_last_item_first() {
        let slabs = Slabs::new(Allocator::Memcached, 1 << 20, 3, |_| vec![1082]);
        let items = (1 << 20) / 1184;
        assert_eq!(slabs.group_keys() % items, 0, "whole slabs");
        let (in_heap, slab) = (slabs.group_keys() / items, (1 << 20) + 16);
        assert_eq!((in_heap, slabs.group_pages, slabs.group_span()), (63, 63 * 256 + 1, 63 * 256 + 8));
        assert_eq!(slabs.group_pages, (32 + in_heap * slab).div_ceil(4096), "mallocs of 1 MiB in a heap");
        assert!(32 + (in_heap + 1) * slab > 64 << 20, "no room for another");
        assert_eq!(slabs.record_pages(), 0);
        let touches = slabs.touches(0);
        assert!(touches.iter().enumerate().all(|(nth, touch)| touch.page as usize == nth), "in order");
        assert!(touches[..257].iter().all(|touch| touch.key == 0), "when the slab is made");
        assert_eq!(slabs.offset(0, 0, 0), 48 + (items - 1) * 1184);
        assert_eq!(slabs.offset(0, items - 1, 0), 48);
        assert_eq!(slabs.offset(0, items, 0), slab + 48 + (items - 1) * 1184);
    }
}
