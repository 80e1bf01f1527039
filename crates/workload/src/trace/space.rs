// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address space that a capture's events describe, followed while converting: what is mapped at
//! the end, and which touched pages were not mapped (a capture without events, or one whose threads
//! raced).

use std::collections::BTreeMap;

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Va, Vpn, VpnRange};

use super::metadata::Vma;
use crate::stream::MemoryEvent;

/// Linux's `MADV_*` numbers after which a range has no memory: DONTNEED, REMOVE, DONTNEED_LOCKED.
const ADVICE_THAT_FREES: [u32; 3] = [4, 9, 24];
/// Touched pages that no event mapped, and that are no further apart than this, are taken for one
/// mapping. Heaps, libraries and stacks lie further apart than 64 MiB, or where they do not,
/// nothing is lost.
const IMPLIED_GAP_PAGES: u64 = 1 << 14;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mapping {
    end: Vpn,
    writable: bool,
    anonymous: bool,
}

/// What an event does to the pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageEffect {
    /// Nothing.
    None,
    /// They lose their memory.
    Clear(VpnRange),
    /// They move.
    Relocate(VpnRange, VpnRange),
    /// They are shared with a child.
    ShareAll,
}

/// The mappings of one program.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    mappings: BTreeMap<Vpn, Mapping>,
    /// All that an event ever mapped.
    ever: RangeSet,
    implied: RangeSet,
    heap_end: Option<Vpn>,
    /// The mapping that was found last: touches come in flocks.
    recent: VpnRange,
}

/// How the touch of a page relates to the mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cover {
    /// It is mapped.
    Mapped,
    /// No event ever mapped it: it is implied to be there from the start.
    Implied,
    /// It was mapped and is not any more. Another thread's accesses came late.
    Stray,
}

impl AddressSpace {
    /// Follows an event that passed its check.
    pub fn apply(&mut self, event: &MemoryEvent) -> PageEffect {
        self.recent = VpnRange::default();
        match *event {
            MemoryEvent::Mmap { range, writable, anonymous } => {
                self.map(range, writable, anonymous);
                PageEffect::Clear(range)
            }
            MemoryEvent::Munmap { range } => {
                self.carve(range);
                PageEffect::Clear(range)
            }
            MemoryEvent::Brk { end } => self.brk(end),
            MemoryEvent::Mremap { from, to } => {
                let (writable, anonymous) = self.kind_at(from.start);
                self.carve(from);
                self.map(to, writable, anonymous);
                PageEffect::Relocate(from, to)
            }
            MemoryEvent::Mprotect { range, writable } => {
                for (part, mapping) in self.carve(range) {
                    self.mappings.insert(part.start, Mapping { writable, ..mapping });
                }
                PageEffect::None
            }
            MemoryEvent::Madvise { range, advice } if ADVICE_THAT_FREES.contains(&advice) => PageEffect::Clear(range),
            MemoryEvent::Fork | MemoryEvent::ForkAndWait => PageEffect::ShareAll,
            MemoryEvent::MmapFile { range, writable, .. } => {
                self.map(range, writable, false);
                PageEffect::Clear(range)
            }
            MemoryEvent::Madvise { .. }
            | MemoryEvent::ChildExit
            | MemoryEvent::SpawnAndWait
            | MemoryEvent::ReadFile { .. }
            | MemoryEvent::WriteFile { .. } => PageEffect::None,
        }
    }

    fn brk(&mut self, end: Va) -> PageEffect {
        let end = Vpn(end.0.div_ceil(PAGE_BYTES));
        let before = self.heap_end.replace(end).unwrap_or(end);
        if end >= before {
            self.map(VpnRange { start: before, end }, true, true);
            return PageEffect::None;
        }
        let gone = VpnRange { start: end, end: before };
        self.carve(gone);
        PageEffect::Clear(gone)
    }

    fn map(&mut self, range: VpnRange, writable: bool, anonymous: bool) {
        if range.is_empty() {
            return;
        }
        self.carve(range);
        self.ever.insert(range);
        self.mappings.insert(range.start, Mapping { end: range.end, writable, anonymous });
    }

    fn kind_at(&self, page: Vpn) -> (bool, bool) {
        let mapping = self.mappings.range(..=page).next_back().filter(|(_, mapping)| mapping.end > page);
        mapping.map_or((true, true), |(_, mapping)| (mapping.writable, mapping.anonymous))
    }

    /// Takes the mappings within `range` out, cutting those that reach beyond, and returns them.
    fn carve(&mut self, range: VpnRange) -> Vec<(VpnRange, Mapping)> {
        let first = self.mappings.range(..range.start).next_back().map_or(range.start, |(&start, _)| start);
        let touched: Vec<_> =
            self.mappings.range(first..range.end).map(|(&start, &mapping)| (start, mapping)).collect();
        let mut taken = Vec::new();
        for (start, mapping) in touched {
            let inner = range.intersection(VpnRange { start, end: mapping.end });
            if inner.is_empty() {
                continue;
            }
            self.mappings.remove(&start);
            if start < inner.start {
                self.mappings.insert(start, Mapping { end: inner.start, ..mapping });
            }
            if inner.end < mapping.end {
                self.mappings.insert(inner.end, mapping);
            }
            taken.push((inner, Mapping { end: inner.end, ..mapping }));
        }
        taken
    }

    /// Says whether a page that is touched for the first time is mapped, and remembers it if it
    /// never was.
    pub fn cover(&mut self, page: Vpn) -> Cover {
        if self.recent.contains(page) {
            return Cover::Mapped;
        }
        if let Some((&start, mapping)) = self.mappings.range(..=page).next_back()
            && page < mapping.end
        {
            self.recent = VpnRange { start, end: mapping.end };
            return Cover::Mapped;
        }
        if self.implied.contains(page) {
            return Cover::Implied;
        }
        if self.ever.contains(page) {
            return Cover::Stray;
        }
        self.implied.insert(VpnRange { start: page, end: page + 1 });
        Cover::Implied
    }

    /// The mappings, in order of address.
    pub fn vmas(&self) -> Vec<Vma> {
        let vma = |(start, mapping): (&Vpn, &Mapping)| Vma {
            start: start.address().0,
            end: mapping.end.address().0,
            writable: mapping.writable,
            anonymous: mapping.anonymous,
        };
        self.mappings.iter().map(vma).collect()
    }

    /// The ranges that are implied to be there from the start: pages that were touched though no
    /// event ever mapped them, and the gaps between neighbours, unless an event mapped something
    /// there.
    pub fn implied(&self) -> Vec<Vma> {
        let mut joined: Vec<VpnRange> = Vec::new();
        for range in self.implied.iter() {
            match joined.last_mut() {
                Some(last)
                    if range.start - last.end <= IMPLIED_GAP_PAGES
                        && !self.ever.overlaps(VpnRange { start: last.start, end: range.end }) =>
                {
                    last.end = range.end;
                }
                _ => joined.push(range),
            }
        }
        let vma = |range: VpnRange| Vma {
            start: range.start.address().0,
            end: range.end.address().0,
            writable: true,
            anonymous: true,
        };
        joined.into_iter().map(vma).collect()
    }
}

/// Pages, as ranges that neither touch nor overlap.
#[derive(Clone, Debug, Default)]
struct RangeSet(BTreeMap<Vpn, Vpn>);

impl RangeSet {
    fn insert(&mut self, mut range: VpnRange) {
        if let Some((&start, &end)) = self.0.range(..=range.start).next_back()
            && end >= range.start
        {
            range = VpnRange { start, end: end.max(range.end) };
        }
        while let Some((&start, &end)) = self.0.range(range.start..=range.end).next() {
            self.0.remove(&start);
            range.end = range.end.max(end);
        }
        self.0.insert(range.start, range.end);
    }

    fn contains(&self, page: Vpn) -> bool {
        self.overlaps(VpnRange { start: page, end: page + 1 })
    }

    fn overlaps(&self, range: VpnRange) -> bool {
        self.0.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    fn iter(&self) -> impl Iterator<Item = VpnRange> {
        self.0.iter().map(|(&start, &end)| VpnRange { start, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestwalk_mem::PageCount;
    use proptest::prelude::*;

    fn range(first: u64, pages: u64) -> VpnRange {
        VpnRange::new(Vpn(first), PageCount(pages))
    }

    fn event() -> impl Strategy<Value = MemoryEvent> {
        let any_range = (0u64..60, 1u64..20).prop_map(|(first, pages)| range(first, pages));
        prop_oneof![
            (any_range.clone(), any::<bool>()).prop_map(|(range, writable)| MemoryEvent::Mmap {
                range,
                writable,
                anonymous: true
            }),
            any_range.clone().prop_map(|range| MemoryEvent::Munmap { range }),
            (any_range, any::<bool>()).prop_map(|(range, writable)| MemoryEvent::Mprotect { range, writable }),
            (100u64 << 12..130 << 12).prop_map(|end| MemoryEvent::Brk { end: Va(end) }),
        ]
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_page_by_page_model(events in prop::collection::vec(event(), 0..40)) {
            let mut space = AddressSpace::default();
            let mut model: BTreeMap<u64, bool> = BTreeMap::new();
            let mut heap = None;
            for event in events {
                space.apply(&event);
                match event {
                    MemoryEvent::Mmap { range, writable, .. } => {
                        model.extend((range.start.0..range.end.0).map(|page| (page, writable)));
                    }
                    MemoryEvent::Munmap { range } => model.retain(|&page, _| !range.contains(Vpn(page))),
                    MemoryEvent::Mprotect { range, writable } => {
                        model.range_mut(range.start.0..range.end.0).for_each(|(_, w)| *w = writable);
                    }
                    MemoryEvent::Brk { end } => {
                        let end = end.0.div_ceil(PAGE_BYTES);
                        let before = heap.replace(end).unwrap_or(end);
                        model.extend((before..end).map(|page| (page, true)));
                        model.retain(|&page, _| !(end..before).contains(&page));
                    }
                    _ => {}
                }
                let mapped: BTreeMap<u64, bool> = space
                    .vmas()
                    .iter()
                    .flat_map(|vma| (vma.start >> 12..vma.end >> 12).map(|page| (page, vma.writable)))
                    .collect();
                prop_assert_eq!(&mapped, &model);
            }
            for page in 0..140 {
                prop_assert_eq!(space.cover(Vpn(page)) == Cover::Mapped, model.contains_key(&page));
            }
        }
    }

    #[test]
    fn pages_that_nobody_mapped_are_implied_and_joined_but_not_across_a_mapping() {
        let mut space = AddressSpace::default();
        space.apply(&MemoryEvent::Mmap { range: range(1000, 10), writable: true, anonymous: true });
        for page in [100, 101, 500, 2000, 1 << 30] {
            assert_eq!(space.cover(Vpn(page)), Cover::Implied);
        }
        let implied: Vec<_> = space.implied().iter().map(|vma| (vma.start >> 12, vma.end >> 12)).collect();
        assert_eq!(implied, [(100, 501), (2000, 2001), (1 << 30, (1 << 30) + 1)]);
        space.apply(&MemoryEvent::Munmap { range: range(1000, 10) });
        assert_eq!(space.cover(Vpn(1003)), Cover::Stray);
    }
}
