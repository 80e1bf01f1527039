// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLBs as lists: each set holds its entries in order of use, the latest first. With clustered
//! entries, with contiguous blocks, or with what was used least often going first.

use nestwalk_mem::PageSize;
use nestwalk_mmu::{MmuConfig, TlbConfig, TlbReplacement};

/// A translation of a page, or of a piece of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its first page and the frame of that.
    pub page: u64,
    pub frame: u64,
    pub size: PageSize,
    pub writable: bool,
    pub dirty: bool,
}

impl Mapping {
    pub fn covers(&self, page: u64) -> bool {
        self.page <= page && page < self.page + self.size.pages()
    }

    pub fn frame_of(&self, page: u64) -> u64 {
        self.frame + page - self.page
    }

    /// The piece of `size` around `page`.
    pub fn piece(&self, page: u64, size: PageSize) -> Self {
        let first = page & !(size.pages() - 1);
        Self { page: first, frame: self.frame_of(first), size, ..*self }
    }
}

/// What an entry holds.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Entry {
    One(Mapping),
    /// Pages of the aligned group that begins at `first`, all with the same rights and in one group
    /// of frames.
    Cluster {
        first: u64,
        frames: [Option<u64>; 8],
        like: Like,
    },
    /// 16 pages in order, of which this is the first.
    Block(Mapping),
}

/// What an entry is looked for by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Page(PageSize),
    Cluster,
    Block,
}

impl Kind {
    /// The pages that an entry is for.
    fn pages(self) -> u64 {
        match self {
            Self::Page(size) => size.pages(),
            Self::Cluster => 8,
            Self::Block => 16,
        }
    }
}

/// What the pages of a cluster have in common: the number of the group of frames, the right to
/// store, the dirty bit.
type Like = (u64, bool, bool);

impl Entry {
    fn mapping(&self, page: u64) -> Option<Mapping> {
        match *self {
            Self::One(mapping) => mapping.covers(page).then_some(mapping),
            Self::Cluster { first, frames, like: (_, writable, dirty) } => {
                let frame = frames[page.checked_sub(first).filter(|&place| place < 8)? as usize]?;
                Some(Mapping { page, frame, size: PageSize::Small, writable, dirty })
            }
            Self::Block(first) => {
                let place = page.checked_sub(first.page).filter(|&place| place < 16)?;
                Some(Mapping { page, frame: first.frame + place, ..first })
            }
        }
    }

    fn overlaps(&self, pages: &std::ops::Range<u64>) -> bool {
        let (first, count) = match self {
            Self::One(mapping) => (mapping.page, mapping.size.pages()),
            Self::Cluster { first, .. } => (*first, 8),
            Self::Block(first) => (first.page, 16),
        };
        first < pages.end && pages.start < first + count
    }
}

/// An entry's way, and how often it was used since it came in: only LFU asks.
type Use = (usize, u64);

/// One array; its entries belong to processes.
#[derive(Debug)]
struct Array {
    sizes: Vec<PageSize>,
    clustered: bool,
    contiguous: bool,
    replacement: TlbReplacement,
    ways: usize,
    sets: Vec<Vec<(u16, Entry, Use)>>,
}

impl Array {
    fn new(config: &TlbConfig, replacement: TlbReplacement) -> Self {
        let sets = vec![Vec::new(); (config.entries / config.ways) as usize];
        let ways = config.ways as usize;
        let contiguous = config.contiguous.is_some();
        Self { sizes: config.sizes.clone(), clustered: config.clustered, contiguous, replacement, ways, sets }
    }

    fn put(&mut self, number: u64, asid: u16, entry: Entry) {
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(number % count) as usize];
        if set.len() == self.ways {
            let least = (0..set.len()).min_by_key(|&place| (set[place].2.1, set[place].2.0));
            set.remove(match self.replacement {
                TlbReplacement::Lru => set.len() - 1,
                TlbReplacement::Lfu => least.expect("a full set"),
            });
        }
        let free = (0..self.ways).find(|way| set.iter().all(|(_, _, (taken, _))| taken != way));
        set.insert(0, (asid, entry, (free.expect("one way is free"), 1)));
    }

    /// The set for entries of `kind`.
    fn set(&mut self, page: u64, kind: Kind) -> &mut Vec<(u16, Entry, Use)> {
        let count = self.sets.len() as u64;
        &mut self.sets[(page / kind.pages() % count) as usize]
    }

    /// Finds the page in an entry of `kind`, which becomes the latest.
    fn find(&mut self, asid: u16, page: u64, kind: Kind) -> Option<Mapping> {
        let set = self.set(page, kind);
        let held = |entry: &Entry| match entry {
            Entry::One(mapping) => kind == Kind::Page(mapping.size) && mapping.covers(page),
            Entry::Cluster { .. } => kind == Kind::Cluster && entry.mapping(page).is_some(),
            Entry::Block(_) => kind == Kind::Block && entry.mapping(page).is_some(),
        };
        let place = set.iter().position(|(owner, entry, _)| *owner == asid && held(entry))?;
        let mut entry = set.remove(place);
        entry.2.1 += 1;
        set.insert(0, entry);
        set[0].1.mapping(page)
    }
}

/// The arrays of one level.
#[derive(Debug)]
pub struct Level(Vec<Array>);

impl Level {
    fn new(arrays: &[TlbConfig], replacement: TlbReplacement) -> Self {
        Self(arrays.iter().map(|array| Array::new(array, replacement)).collect())
    }

    fn clusters(&mut self) -> Option<&mut Array> {
        self.0.iter_mut().find(|array| array.clustered)
    }

    fn is_clustered(&self) -> bool {
        self.0.iter().any(|array| array.clustered)
    }

    /// The array for `size`; of two for 4 KiB pages the one without clusters.
    fn array(&mut self, size: PageSize) -> Option<&mut Array> {
        let plain = |array: &Array| array.sizes.contains(&size) && !(array.clustered && size == PageSize::Small);
        let holds = |array: &Array| array.sizes.contains(&size);
        let index = self.0.iter().position(plain).or_else(|| self.0.iter().position(holds))?;
        Some(&mut self.0[index])
    }

    fn blocks(&mut self) -> Option<&mut Array> {
        self.0.iter_mut().find(|array| array.contiguous)
    }

    /// The translation, and whether it is one of a block.
    fn find(&mut self, asid: u16, page: u64) -> Option<(Mapping, bool)> {
        if let Some(found) = self.blocks().and_then(|array| array.find(asid, page, Kind::Block)) {
            return Some((found, true));
        }
        let in_cluster = self.clusters().and_then(|array| array.find(asid, page, Kind::Cluster));
        let in_page = |level: &mut Self| {
            PageSize::ALL.into_iter().find_map(|size| level.array(size)?.find(asid, page, Kind::Page(size)))
        };
        Some((in_cluster.or_else(|| in_page(self))?, false))
    }

    fn holds(&self, asid: u16, page: u64) -> bool {
        let entries = || self.0.iter().flat_map(|array| array.sets.iter().flatten());
        entries().any(|(owner, entry, _)| *owner == asid && entry.mapping(page).is_some())
    }

    /// Takes in the largest piece that fits. What it is.
    fn insert(&mut self, asid: u16, page: u64, mapping: Mapping) -> Option<Mapping> {
        let sizes = PageSize::ALL.into_iter().rev().filter(|&size| size <= mapping.size);
        let size = sizes.into_iter().find(|&size| self.array(size).is_some())?;
        let piece = mapping.piece(page, size);
        self.array(size)?.put(page / size.pages(), asid, Entry::One(piece));
        Some(piece)
    }

    /// Takes in the block of which `mapping` is `page`, or that page where there are no blocks.
    /// What it holds of the page.
    fn insert_block(&mut self, asid: u16, page: u64, mapping: Mapping) -> Option<Mapping> {
        let first = Mapping { page: page & !15, frame: mapping.frame & !15, ..mapping };
        match self.blocks() {
            Some(array) => array.put(page / 16, asid, Entry::Block(first)),
            None => return self.insert(asid, page, mapping),
        }
        Some(mapping)
    }

    /// Takes in a 4 KiB page with its neighbours, whose `frames` are known.
    fn insert_cluster(&mut self, asid: u16, page: u64, mapping: Mapping, frames: [Option<u64>; 8]) {
        let first = page & !7;
        let like: Like = (mapping.frame >> 3, mapping.writable, mapping.dirty);
        // Where single pages have an array of their own, a cluster begins with two.
        let least =
            if self.0.iter().any(|array| !array.clustered && array.sizes.contains(&PageSize::Small)) { 2 } else { 1 };
        let set = self.clusters().expect("there is one").set(page, Kind::Cluster);
        let ours = |(owner, entry, _): &&(u16, Entry, Use)| {
            *owner == asid && matches!(entry, Entry::Cluster { first: at, .. } if *at == first)
        };
        let held: Vec<u64> = (first..first + 8)
            .filter(|&page| set.iter().filter(ours).any(|(_, entry, _)| entry.mapping(page).is_some()))
            .collect();
        let new = |place: usize| frames[place].filter(|_| !held.contains(&(first + place as u64)));
        let joined = set
            .iter()
            .position(|entry| ours(&entry) && matches!(&entry.1, Entry::Cluster { like: there, .. } if *there == like));
        if let Some(joined) = joined {
            let mut entry = set.remove(joined);
            if let Entry::Cluster { frames, .. } = &mut entry.1 {
                (0..8).for_each(|place| frames[place] = frames[place].or(new(place)));
            }
            set.insert(0, entry);
            return;
        }
        let frames = std::array::from_fn(new);
        if frames.iter().flatten().count() < least {
            self.insert(asid, page, mapping);
        } else {
            self.clusters().expect("there is one").put(page / 8, asid, Entry::Cluster { first, frames, like });
        }
    }

    /// Takes `page` out of the cluster that holds it. Its frame.
    fn take_from_cluster(&mut self, asid: u16, page: u64) -> Option<u64> {
        let set = self.clusters()?.set(page, Kind::Cluster);
        let place = set.iter().position(|(owner, entry, _)| {
            *owner == asid && matches!(entry, Entry::Cluster { .. }) && entry.mapping(page).is_some()
        })?;
        let Entry::Cluster { frames, .. } = &mut set[place].1 else { unreachable!() };
        let frame = frames[(page & 7) as usize].take();
        if frames.iter().all(Option::is_none) {
            set.remove(place);
        }
        frame
    }

    /// Keeps the entries that `keep` wants.
    fn retain(&mut self, keep: impl Fn(u16, &Entry) -> bool) {
        for set in self.0.iter_mut().flat_map(|array| &mut array.sets) {
            set.retain(|(owner, entry, _)| keep(*owner, entry));
        }
    }
}

/// Where a look-up found the page.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    L1(Mapping),
    /// What the first level holds now, and the size of the second's entry.
    L2(Mapping, PageSize),
    Miss,
}

/// Both levels.
#[derive(Debug)]
pub struct Tlbs {
    l1: Level,
    l2: Level,
    pub asid: u16,
}

impl Tlbs {
    pub fn new(config: &MmuConfig) -> Self {
        let level = |arrays: &[TlbConfig]| Level::new(arrays, config.tlb_replacement);
        Self { l1: level(&config.l1_tlb), l2: level(&config.l2_tlb), asid: 0 }
    }

    pub fn is_clustered(&self) -> bool {
        self.l2.is_clustered()
    }

    /// Looks up `page`. An entry that does not allow a store is dropped.
    pub fn find(&mut self, page: u64, store: bool) -> Found {
        let usable = |mapping: &Mapping| mapping.writable || !store;
        if let Some((mapping, _)) = self.l1.find(self.asid, page) {
            if usable(&mapping) {
                return Found::L1(mapping);
            }
        } else if let Some((mapping, in_block)) = self.l2.find(self.asid, page) {
            if usable(&mapping) {
                let first = if in_block {
                    self.l1.insert_block(self.asid, page, mapping)
                } else {
                    self.l1.insert(self.asid, page, mapping)
                };
                return Found::L2(first.expect("it holds 4 KiB pages"), mapping.size);
            }
        } else {
            return Found::Miss;
        }
        self.drop_page(page);
        Found::Miss
    }

    /// Whether either level holds contiguous blocks.
    pub fn holds_blocks(&self) -> bool {
        self.l1.0.iter().chain(&self.l2.0).any(|array| array.contiguous)
    }

    /// Takes in what a walk found, with the frames of its group where that is asked for, or with
    /// all of the block that it is in. What the first level holds.
    pub fn insert(&mut self, page: u64, mapping: Mapping, group: Option<[Option<u64>; 8]>, in_block: bool) -> Mapping {
        if in_block {
            self.l2.insert_block(self.asid, page, mapping);
            return self.l1.insert_block(self.asid, page, mapping).expect("it holds 4 KiB pages");
        }
        match group {
            Some(frames) => self.l2.insert_cluster(self.asid, page, mapping, frames),
            None => {
                self.l2.insert(self.asid, page, mapping);
            }
        }
        self.l1.insert(self.asid, page, mapping).expect("it holds 4 KiB pages")
    }

    /// A store went to a page that was clean.
    pub fn set_dirty(&mut self, page: u64) {
        let asid = self.asid;
        for array in [&mut self.l1, &mut self.l2].into_iter().flat_map(|level| &mut level.0) {
            for (owner, entry, _) in array.sets.iter_mut().flatten() {
                let covers = entry.mapping(page).is_some() && *owner == asid;
                if let Entry::One(mapping) | Entry::Block(mapping) = entry {
                    mapping.dirty |= covers;
                }
            }
        }
        let Some((_, clean)) = self.cluster_entry(page) else { return };
        self.l2.take_from_cluster(asid, page);
        if !self.l2.holds(asid, page) {
            let mut alone = [None; 8];
            alone[(page & 7) as usize] = Some(clean.frame);
            self.l2.insert_cluster(asid, page, Mapping { dirty: true, ..clean }, alone);
        }
    }

    fn cluster_entry(&mut self, page: u64) -> Option<(usize, Mapping)> {
        let asid = self.asid;
        let set = self.l2.clusters()?.set(page, Kind::Cluster);
        set.iter().enumerate().find_map(|(place, (owner, entry, _))| {
            let mapping = entry.mapping(page).filter(|_| matches!(entry, Entry::Cluster { .. }))?;
            (*owner == asid).then_some((place, mapping))
        })
    }

    fn drop_page(&mut self, page: u64) {
        let asid = self.asid;
        for level in [&mut self.l1, &mut self.l2] {
            level.retain(|owner, entry| {
                owner != asid || matches!(entry, Entry::Cluster { .. }) || entry.mapping(page).is_none()
            });
        }
        self.l2.take_from_cluster(asid, page);
    }

    /// `INVLPG` of each of `pages`: few take out pages of clusters one by one, many whole clusters.
    pub fn invalidate(&mut self, pages: std::ops::Range<u64>) {
        let asid = self.asid;
        if pages.end - pages.start <= 8 {
            return pages.for_each(|page| self.drop_page(page));
        }
        for level in [&mut self.l1, &mut self.l2] {
            level.retain(|owner, entry| owner != asid || !entry.overlaps(&pages));
        }
    }

    /// Keeps nothing of the process in use, or nothing at all.
    pub fn flush(&mut self, all: bool) {
        let asid = self.asid;
        for level in [&mut self.l1, &mut self.l2] {
            level.retain(|owner, _| !all && owner != asid);
        }
    }
}
