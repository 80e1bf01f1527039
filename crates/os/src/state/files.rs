// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files and the page cache (Linux's `address_space`): which pages of which file lie in which
//! frames.
//!
//! The cache has one mapping of each of its frames, so a frame that any process maps besides is
//! [shared](nestwalk_mem::PhysicalMemory::is_shared), and stays when the last of them is gone.

use std::collections::{BTreeMap, VecDeque};

use nestwalk_mem::{Frame, Leaf, PageCount, Vpn};

pub use crate::id::{FileId, FileName};
use crate::state::process::{ProcessId, Processes};

/// A page of a file that is in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedPage {
    /// Where.
    pub frame: Frame,
    /// Whether it has to be written back before it can go.
    pub dirty: bool,
    /// Whether it has been used since the clock came by last, other than through a page table whose
    /// entry is still there (`PG_referenced`).
    pub referenced: bool,
}

/// One file.
#[derive(Debug)]
pub struct File {
    /// What it is called.
    pub name: FileName,
    /// Its pages.
    pub size: PageCount,
    /// Faults that found their page missing, less those that found it (`mmap_miss` of Linux's
    /// `file_ra_state`; here of the file, not of each opening of it).
    pub misses: u32,
    pages: Vec<Option<CachedPage>>,
}

/// All files of a kernel.
#[derive(Debug, Default)]
pub struct Files {
    all: Vec<File>,
    by_name: BTreeMap<FileName, FileId>,
    /// The clock over the cache's pages: those that it comes to next at the front.
    queue: VecDeque<(FileId, u64)>,
}

impl Files {
    /// The file of that name; a new one of this size if there is none. A file that is too small
    /// grows.
    pub fn open(&mut self, name: FileName, size: PageCount) -> FileId {
        let next = FileId(self.all.len() as u32);
        let id = *self.by_name.entry(name).or_insert(next);
        if id == next {
            self.all.push(File { name, size: PageCount(0), misses: 0, pages: Vec::new() });
        }
        let file = &mut self.all[id.0 as usize];
        file.size = file.size.max(size);
        id
    }

    /// The file `id`.
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub fn get(&self, id: FileId) -> &File {
        &self.all[id.0 as usize]
    }

    /// The file `id`.
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub fn get_mut(&mut self, id: FileId) -> &mut File {
        &mut self.all[id.0 as usize]
    }

    /// Whether there is a file `id`.
    pub fn has(&self, id: FileId) -> bool {
        (id.0 as usize) < self.all.len()
    }

    /// Frames of the cache.
    pub fn cached(&self) -> PageCount {
        PageCount(self.queue.len() as u64)
    }

    /// All pages that are in the cache, by file and place.
    pub fn iter(&self) -> impl Iterator<Item = (FileId, u64, CachedPage)> + '_ {
        let ids = (0..).map(FileId);
        self.all.iter().zip(ids).flat_map(|(file, id)| {
            file.pages.iter().zip(0..).filter_map(move |(page, at)| page.map(|page| (id, at, page)))
        })
    }

    /// The page of the file in the cache, if it is there.
    #[inline]
    pub fn page(&self, id: FileId, page: u64) -> Option<CachedPage> {
        self.get(id).page(page)
    }

    /// The page of the file in the cache, to change its marks.
    #[inline]
    pub fn page_mut(&mut self, id: FileId, page: u64) -> Option<&mut CachedPage> {
        self.get_mut(id).pages.get_mut(page as usize)?.as_mut()
    }

    /// The page is in the cache from now on.
    ///
    /// # Panics
    /// When it is already, or the file has no such page.
    pub fn insert(&mut self, id: FileId, page: u64, frame: Frame) {
        let file = self.get_mut(id);
        assert!(page < file.size.0, "{:?} has no page {page}", file.name);
        if file.pages.len() <= page as usize {
            file.pages.resize(page as usize + 1, None);
        }
        let before = file.pages[page as usize].replace(CachedPage { frame, dirty: false, referenced: false });
        assert_eq!(before, None, "page {page} of {:?} is in the cache already", file.name);
        self.queue.push_back((id, page));
    }

    /// The page that the clock comes to next. It [goes on](Files::keep) or [goes](Files::remove).
    pub fn oldest(&self) -> Option<(FileId, u64)> {
        self.queue.front().copied()
    }

    /// The page at the clock's hand stays until the clock comes round.
    pub fn keep(&mut self) {
        self.queue.rotate_left(usize::from(!self.queue.is_empty()));
    }

    /// The page at the clock's hand leaves the cache.
    pub fn remove(&mut self) -> Option<CachedPage> {
        let (id, page) = self.queue.pop_front()?;
        self.get_mut(id).pages[page as usize].take()
    }

    /// A page of the cache lies elsewhere now.
    pub(crate) fn moved(&mut self, id: FileId, page: u64, to: Frame) {
        if let Some(cached) = self.page_mut(id, page) {
            cached.frame = to;
        }
    }

    /// Checks that the clock has each page once.
    ///
    /// # Panics
    /// With a message that names the page, if something does not hold.
    pub fn check_invariants(&self) {
        let mut queued: Vec<_> = self.queue.iter().copied().collect();
        queued.sort_unstable();
        let cached: Vec<_> = self.iter().map(|(id, page, _)| (id, page)).collect();
        assert_eq!(queued, cached, "the clock's pages and the cache's");
    }
}

impl File {
    /// The page in the cache, if it is there.
    #[inline]
    pub fn page(&self, page: u64) -> Option<CachedPage> {
        self.pages.get(page as usize).copied().flatten()
    }
}

/// All leaves of processes that map `frame` as page `page` of the file (`rmap_walk_file`).
pub(crate) fn mappings_of(processes: &Processes, id: FileId, page: u64, frame: Frame) -> Vec<(ProcessId, Vpn, Leaf)> {
    let mut found = Vec::new();
    for (process, space) in processes.iter() {
        for vma in space.vmas.iter() {
            let Some(view) = vma.flags.view().filter(|view| view.file == id) else { continue };
            let at = view.place(page);
            if !vma.range.contains(at) {
                continue;
            }
            let leaf = space.table.leaf(at).filter(|leaf| leaf.entry.is_present() && leaf.frame_of(at) == frame);
            found.extend(leaf.map(|leaf| (process, at, leaf)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_its_name_and_grows() {
        let mut files = Files::default();
        let (one, two) = (FileName::of("a.c"), FileName::of("b.c"));
        let id = files.open(one, PageCount(3));
        assert_ne!(files.open(two, PageCount(9)), id);
        assert_eq!((files.open(one, PageCount(2)), files.get(id).size), (id, PageCount(3)));
        files.open(one, PageCount(5));
        assert_eq!(files.get(id).size, PageCount(5));
        assert!(files.has(id) && !files.has(FileId(2)));
    }

    #[test]
    fn the_clock_comes_to_each_page_in_turn() {
        let mut files = Files::default();
        let id = files.open(FileName(1), PageCount(3));
        [2, 0, 1].into_iter().for_each(|page| files.insert(id, page, Frame(10 + page)));
        files.check_invariants();
        assert_eq!((files.oldest(), files.cached()), (Some((id, 2)), PageCount(3)));
        files.keep();
        assert_eq!(files.remove().map(|page| page.frame), Some(Frame(10)));
        files.moved(id, 1, Frame(99));
        assert_eq!([0, 1, 2].map(|page| files.page(id, page).map(|page| page.frame.0)), [None, Some(99), Some(12)]);
        files.check_invariants();
    }
}
