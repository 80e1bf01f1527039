// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings of an address space (Linux's `vm_area_struct`).
//!
//! A process has tens of them, so they are in one sorted array; faults come in runs, so the one
//! found last is looked at first.

use nestwalk_mem::{PageCount, Vpn, VpnRange};

use crate::id::FileId;

/// What backs a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VmaKind {
    /// Private memory that begins as zeroes.
    Anonymous,
    /// Private pages of a file that is not known, with no page cache behind them. Never huge.
    File,
    /// Pages of a file, out of the page cache.
    Mapped(FileView),
}

/// Which pages of which file a mapping shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileView {
    /// The file.
    pub file: FileId,
    /// Whether stores go to the file (`MAP_SHARED`). Otherwise they go to copies of its pages.
    pub shared: bool,
    /// Where the file's first page would lie, modulo 2^64: so two views of a file that go on from
    /// each other are equal.
    origin: u64,
}

impl FileView {
    /// A view in which page `first` of the file lies at `at`.
    pub const fn new(file: FileId, shared: bool, at: Vpn, first: u64) -> Self {
        Self { file, shared, origin: at.0.wrapping_sub(first) }
    }

    /// The file's page that lies at `at`.
    #[inline]
    pub const fn page(&self, at: Vpn) -> u64 {
        at.0.wrapping_sub(self.origin)
    }

    /// Where page `page` of the file lies.
    #[inline]
    pub const fn place(&self, page: u64) -> Vpn {
        Vpn(self.origin.wrapping_add(page))
    }

    /// Whether an aligned block of 2^`order` pages of the file lies in an aligned block of memory.
    #[inline]
    pub const fn is_congruent(&self, order: u32) -> bool {
        self.origin & ((1 << order) - 1) == 0
    }
}

/// What the program has advised about huge pages here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HugeAdvice {
    /// Nothing.
    #[default]
    None,
    /// `MADV_HUGEPAGE`.
    Huge,
    /// `MADV_NOHUGEPAGE`.
    NoHuge,
}

/// What a mapping is; two neighbours that agree in it are one mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VmaFlags {
    /// What backs it.
    pub kind: VmaKind,
    /// Whether stores are allowed.
    pub writable: bool,
    /// Advice about huge pages.
    pub advice: HugeAdvice,
}

impl VmaFlags {
    /// Private, anonymous, writable, without advice: the heap and most of the rest.
    pub const ANONYMOUS: Self = Self { kind: VmaKind::Anonymous, writable: true, advice: HugeAdvice::None };

    /// Those of the same memory after it has moved (mremap).
    pub(crate) fn moved(self, from: Vpn, to: Vpn) -> Self {
        let VmaKind::Mapped(view) = self.kind else { return self };
        let moved = FileView::new(view.file, view.shared, to, view.page(from));
        Self { kind: VmaKind::Mapped(moved), ..self }
    }

    /// The file that it is a view of, if it is one.
    #[inline]
    pub fn view(&self) -> Option<FileView> {
        match self.kind {
            VmaKind::Mapped(view) => Some(view),
            VmaKind::Anonymous | VmaKind::File => None,
        }
    }
}

/// One mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Vma {
    /// Its pages.
    pub range: VpnRange,
    /// What it is.
    pub flags: VmaFlags,
}

impl Vma {
    /// Whether all pages of the aligned 2^order block around `page` belong to it
    /// (`transhuge_vma_suitable`).
    #[inline]
    pub fn holds_block(&self, page: Vpn, order: u32) -> bool {
        let first = page.align_down(order);
        first >= self.range.start && first.0 + (1 << order) <= self.range.end.0
    }
}

/// The mappings of a process, in order of address, disjoint, and merged where neighbours agree.
#[derive(Clone, Debug, Default)]
pub struct Vmas {
    sorted: Vec<Vma>,
    /// The index of the one found last.
    last: usize,
}

impl Vmas {
    /// The mapping that holds `page`.
    #[inline]
    pub fn find(&mut self, page: Vpn) -> Option<&Vma> {
        if !self.sorted.get(self.last).is_some_and(|vma| vma.range.contains(page)) {
            self.last = self.index_ending_after(page);
        }
        self.sorted.get(self.last).filter(|vma| vma.range.contains(page))
    }

    /// The same without remembering it.
    pub fn get(&self, page: Vpn) -> Option<Vma> {
        self.sorted.get(self.index_ending_after(page)).copied().filter(|vma| vma.range.contains(page))
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Vma> + ExactSizeIterator {
        self.sorted.iter()
    }

    /// The first one that ends after `page`: the one that holds it, or else the next.
    pub fn at_or_after(&self, page: Vpn) -> Option<Vma> {
        self.sorted.get(self.index_ending_after(page)).copied()
    }

    /// Those that end after `page`, in order.
    pub fn from(&self, page: Vpn) -> impl Iterator<Item = &Vma> {
        self.sorted[self.index_ending_after(page)..].iter()
    }

    /// Those that hold some page of `range`, each cut to it.
    pub fn within(&self, range: VpnRange) -> impl Iterator<Item = Vma> + '_ {
        let from = self.index_ending_after(range.start);
        self.sorted[from..]
            .iter()
            .take_while(move |vma| vma.range.start < range.end && !range.is_empty())
            .map(move |vma| Vma { range: vma.range.intersection(range), ..*vma })
    }

    /// Whether every page of `range` is mapped.
    pub fn cover(&self, range: VpnRange) -> bool {
        let mut next = range.start;
        for vma in self.within(range) {
            if vma.range.start != next {
                return false;
            }
            next = vma.range.end;
        }
        next >= range.end
    }

    /// Adds a mapping where there is none, merging it with neighbours that agree.
    ///
    /// # Panics
    /// When it is empty or overlaps another.
    pub fn insert(&mut self, mut vma: Vma) {
        assert!(!vma.range.is_empty(), "{vma:?} is empty");
        let mut at = self.index_ending_after(vma.range.start);
        assert!(self.sorted.get(at).is_none_or(|next| next.range.start >= vma.range.end), "{vma:?} overlaps another");
        if let Some(next) = self.sorted.get(at)
            && next.range.start == vma.range.end
            && next.flags == vma.flags
        {
            vma.range.end = next.range.end;
            self.sorted.remove(at);
        }
        if let Some(before) = at.checked_sub(1).map(|i| self.sorted[i])
            && before.range.end == vma.range.start
            && before.flags == vma.flags
        {
            at -= 1;
            vma.range.start = before.range.start;
            self.sorted[at] = vma;
        } else {
            self.sorted.insert(at, vma);
        }
    }

    /// Takes away the parts of mappings that lie in `range`, and returns them in order.
    pub fn remove(&mut self, range: VpnRange) -> Vec<Vma> {
        let from = self.index_ending_after(range.start);
        let removed: Vec<Vma> = self.within(range).collect();
        let Some(last) = removed.last() else { return removed };
        let to = from + removed.len();
        let head = Vma { range: VpnRange { end: range.start, ..self.sorted[from].range }, ..removed[0] };
        let tail = Vma { range: VpnRange { start: range.end, ..self.sorted[to - 1].range }, ..*last };
        let rest = [head, tail].into_iter().filter(|vma| !vma.range.is_empty());
        self.sorted.splice(from..to, rest);
        removed
    }

    /// Changes the flags of all mapped pages of `range`; returns the mappings concerned, cut to it,
    /// as they were.
    pub fn change(&mut self, range: VpnRange, change: impl Fn(&mut VmaFlags)) -> Vec<Vma> {
        let removed = self.remove(range);
        for vma in &removed {
            let mut changed = *vma;
            change(&mut changed.flags);
            self.insert(changed);
        }
        removed
    }

    /// The highest gap of `count` pages below `top` whose start is a multiple of 2^`align` pages
    /// (`arch_get_unmapped_area_topdown`).
    pub fn find_free(&self, count: PageCount, align: u32, bottom: Vpn, top: Vpn) -> Option<Vpn> {
        let fits = |low: Vpn, high: Vpn| {
            let start = Vpn(high.0.checked_sub(count.0)?).align_down(align);
            (start >= low.max(bottom)).then_some(start)
        };
        let mut high = top;
        for vma in self.sorted.iter().rev() {
            if vma.range.end <= high
                && let Some(start) = fits(vma.range.end, high)
            {
                return Some(start);
            }
            high = high.min(vma.range.start);
        }
        fits(bottom, high)
    }

    fn index_ending_after(&self, page: Vpn) -> usize {
        self.sorted.partition_point(|vma| vma.range.end <= page)
    }

    /// Checks what must always hold: order, no overlap, nothing empty, neighbours that agree are
    /// one.
    ///
    /// # Panics
    /// With a message that names the mapping, if something does not hold.
    pub fn check_invariants(&self) {
        for vma in &self.sorted {
            assert!(!vma.range.is_empty(), "{vma:?} is empty");
        }
        for pair in self.sorted.windows(2) {
            assert!(pair[0].range.end <= pair[1].range.start, "{pair:?} overlap");
            let agree = pair[0].range.end == pair[1].range.start && pair[0].flags == pair[1].flags;
            assert!(!agree, "{pair:?} are one mapping");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn range(start: u64, end: u64) -> VpnRange {
        VpnRange { start: Vpn(start), end: Vpn(end) }
    }

    #[test]
    fn removing_the_middle_leaves_both_ends() {
        let mut vmas = Vmas::default();
        vmas.insert(Vma { range: range(10, 20), flags: VmaFlags::ANONYMOUS });
        assert_eq!(vmas.remove(range(13, 15)), [Vma { range: range(13, 15), flags: VmaFlags::ANONYMOUS }]);
        let rest: Vec<_> = vmas.iter().map(|vma| vma.range).collect();
        assert_eq!(rest, [range(10, 13), range(15, 20)]);
        assert!(vmas.find(Vpn(12)).is_some() && vmas.find(Vpn(13)).is_none());
        vmas.insert(Vma { range: range(13, 15), flags: VmaFlags::ANONYMOUS });
        assert_eq!(vmas.iter().len(), 1);
    }

    #[test]
    fn removing_nothing_from_the_middle_leaves_one_mapping() {
        let mut vmas = Vmas::default();
        vmas.insert(Vma { range: range(10, 20), flags: VmaFlags::ANONYMOUS });
        assert_eq!(vmas.remove(range(15, 15)), []);
        vmas.check_invariants();
        assert_eq!(vmas.iter().len(), 1);
    }

    #[test]
    fn gaps_are_found_from_the_top() {
        let mut vmas = Vmas::default();
        vmas.insert(Vma { range: range(90, 95), flags: VmaFlags::ANONYMOUS });
        assert_eq!(vmas.find_free(PageCount(5), 0, Vpn(0), Vpn(100)), Some(Vpn(95)));
        assert_eq!(vmas.find_free(PageCount(6), 0, Vpn(0), Vpn(100)), Some(Vpn(84)));
        assert_eq!(vmas.find_free(PageCount(6), 4, Vpn(0), Vpn(100)), Some(Vpn(80)));
        assert_eq!(vmas.find_free(PageCount(91), 0, Vpn(0), Vpn(100)), None);
    }

    #[test]
    fn views_of_a_file_that_go_on_from_each_other_are_one_mapping() {
        let mut vmas = Vmas::default();
        let view = |at: u64, first: u64| {
            let kind = VmaKind::Mapped(FileView::new(FileId(3), false, Vpn(at), first));
            VmaFlags { kind, writable: false, ..VmaFlags::ANONYMOUS }
        };
        vmas.insert(Vma { range: range(10, 20), flags: view(10, 5) });
        vmas.insert(Vma { range: range(20, 25), flags: view(20, 15) });
        vmas.insert(Vma { range: range(25, 30), flags: view(25, 0) });
        let found: Vec<_> =
            vmas.iter().map(|vma| (vma.range.start.0, vma.flags.view().unwrap().page(Vpn(26)))).collect();
        assert_eq!(found, [(10, 21), (25, 1)]);
        let moved = view(10, 5).moved(Vpn(12), Vpn(100)).view().unwrap();
        assert_eq!((moved.page(Vpn(100)), moved.place(7), moved.is_congruent(0)), (7, Vpn(100), true));
    }

    proptest! {
        /// Against a map from page to flags.
        #[test]
        fn mappings_behave_like_a_map_of_pages(
            steps in prop::collection::vec((0u8..3, 0u64..60, 1u64..12, any::<bool>()), 1..40),
        ) {
            let mut vmas = Vmas::default();
            let mut model: BTreeMap<u64, VmaFlags> = BTreeMap::new();
            for (what, start, count, writable) in steps {
                let r = range(start, start + count);
                match what {
                    0 => {
                        vmas.remove(r);
                        (start..start + count).for_each(|p| { model.remove(&p); });
                    }
                    1 => {
                        let flags = VmaFlags { writable, ..VmaFlags::ANONYMOUS };
                        vmas.remove(r);
                        vmas.insert(Vma { range: r, flags });
                        (start..start + count).for_each(|p| { model.insert(p, flags); });
                    }
                    _ => {
                        vmas.change(r, |flags| flags.writable = writable);
                        model.range_mut(start..start + count).for_each(|(_, flags)| flags.writable = writable);
                    }
                }
                vmas.check_invariants();
                for page in 0..80 {
                    prop_assert_eq!(vmas.find(Vpn(page)).map(|vma| vma.flags), model.get(&page).copied());
                }
                let covered = (start..start + count).all(|p| model.contains_key(&p));
                prop_assert_eq!(vmas.cover(r), covered);
            }
        }
    }
}
