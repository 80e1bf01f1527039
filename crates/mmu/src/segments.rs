// SPDX-License-Identifier: MIT OR Apache-2.0
//! DS-n: a VM's memory is a few contiguous host segments, translated by registers (Compromis,
//! section 4.1 of that paper).
//!
//! The guest keeps its page tables, and a walk is one-dimensional: every guest-physical address met
//! on the way, each node's and the data page's, becomes `HBReg[i] + (gpa - GBReg[i])`, where `i` is
//! the last segment whose guest base is not above it. An address beyond the VM's memory is a
//! boundary violation, which traps to the hypervisor.

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Gpa, Gva, Hpa, PageSize, PageTable, Pfn, Va};

use crate::accelerator::Accelerator;
use crate::accelerator::tables::Tables;
use crate::clustered::Group;
use crate::counters::{Table, WalkEvents};
use crate::mapping::Mapping;
use crate::memo::Memo;
use crate::simd::Simd;
use crate::stages::Prepared;
use crate::walk_unit::WalkUnit;
use crate::walker::{Fault, Found, Walker, descend, group_around, hint_leaf, leaf_of, set_dirty};

nestwalk_mem::counters! {
    /// What segment registers count.
    pub struct SegmentCounters {
        /// Translations by segment registers (DS-n).
        translations: u64 ["translations" at "segment_translations"],
    }
}

/// The segment registers of a VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segments {
    /// `GBReg`: the guest frame at which each segment begins. The first is 0.
    guest_bases: [u64; Segments::MAX],
    /// `HBReg`: the host frame at which each begins.
    host_bases: [u64; Segments::MAX],
    count: usize,
    /// The VM's frames.
    limit: u64,
    /// Cycles of a translation.
    latency_cycles: u32,
}

/// Why segments cannot be put into registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SegmentsError {
    /// More than there are registers for, or none.
    #[error("{0} segments: DS-n has registers for 1 to {max}", max = Segments::MAX)]
    Count(usize),
    /// A segment without frames.
    #[error("segment {0} is empty")]
    Empty(usize),
}

impl Segments {
    /// The most segments that there are registers for.
    pub const MAX: usize = 8;

    /// Registers for segments of so many frames from these host frames on, in the order in which
    /// the guest sees them. `latency_cycles` is the time of a translation.
    ///
    /// # Errors
    /// When there are none or too many, or one is empty.
    pub fn new(segments: &[(Pfn, u64)], latency_cycles: u32) -> Result<Self, SegmentsError> {
        if segments.is_empty() || segments.len() > Self::MAX {
            return Err(SegmentsError::Count(segments.len()));
        }
        let (mut guest_bases, mut host_bases) = ([u64::MAX; Self::MAX], [0; Self::MAX]);
        let mut limit = 0;
        for (number, &(base, frames)) in segments.iter().enumerate() {
            if frames == 0 {
                return Err(SegmentsError::Empty(number));
            }
            (guest_bases[number], host_bases[number]) = (limit, base.0);
            limit += frames;
        }
        Ok(Self { guest_bases, host_bases, count: segments.len(), limit, latency_cycles })
    }

    /// How many are in use.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Which segment the guest's frame `gfn` lies in.
    #[inline(always)]
    fn segment_of(&self, gfn: u64) -> Option<usize> {
        // All comparators work at once, as in the hardware; those of registers that are not in use
        // never match.
        let below = self.guest_bases.iter().map(|&base| usize::from(base <= gfn)).sum::<usize>();
        (gfn < self.limit).then(|| below - 1)
    }

    /// Where `gpa` lies in the host; `None` is a boundary violation.
    #[inline(always)]
    pub fn translate(&self, gpa: Gpa) -> Option<Hpa> {
        let gfn = gpa.0 >> PAGE_SHIFT;
        let segment = self.segment_of(gfn)?;
        let pfn = self.host_bases[segment] + (gfn - self.guest_bases[segment]);
        Some(Hpa(pfn << PAGE_SHIFT | gpa.0 & ((1 << PAGE_SHIFT) - 1)))
    }

    /// The largest page around the guest's frame `gfn`, no larger than `size`, that lies in one
    /// segment and is aligned in the host as it is in the guest: what a TLB entry can hold.
    fn piece(&self, gfn: u64, size: PageSize) -> PageSize {
        let whole = |size: &PageSize| {
            let first = gfn & !(size.pages() - 1);
            match (self.segment_of(first), self.segment_of(first + size.pages() - 1)) {
                (Some(begin), Some(end)) => {
                    let shift = self.host_bases[begin].wrapping_sub(self.guest_bases[begin]);
                    begin == end && shift.is_multiple_of(size.pages())
                }
                _ => false,
            }
        };
        PageSize::ALL.into_iter().rev().filter(|&piece| piece <= size).find(whole).unwrap_or(PageSize::Small)
    }
}

/// Translation through a guest's table and its VM's segment registers.
#[derive(Debug)]
pub struct Segmented<'t> {
    /// The table of the process in the guest.
    pub guest: &'t mut PageTable,
    /// The VM's registers.
    pub segments: &'t Segments,
}

impl Segmented<'_> {
    /// The leaf is known, and so is where it leads.
    #[inline(always)]
    fn finish(&mut self, gva: Gva, found: Found, hpa: Hpa, store: bool) -> Mapping {
        found.mark(self.guest, Va::from(gva).page(), store);
        let size = match found.size() {
            PageSize::Small => PageSize::Small,
            large => self.segments.piece(found.gpa_of(gva).0 >> PAGE_SHIFT, large),
        };
        Mapping::of(found.entry, hpa.page().align_down(size.order()), size).used(store)
    }
}

impl Walker for Segmented<'_> {
    type Hint = ();

    #[inline(always)]
    fn walk<P: Accelerator, S: Simd>(
        &mut self,
        unit: &mut WalkUnit<P>,
        simd: S,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault> {
        let segments = self.segments;
        let mut violation = None;
        let page = Va::from(gva).page();
        let found = descend(
            (self.guest, Table::Guest),
            unit,
            simd,
            page,
            self.guest.lowest_node(page),
            unit.guest_pwc.exists(),
            #[inline(always)]
            |unit, level, at| {
                let gpa = Gpa::from(at);
                unit.segment_translation(segments.latency_cycles);
                let Some(hpa) = segments.translate(gpa) else {
                    violation = Some(gpa);
                    return None;
                };
                unit.reference(Table::Guest, hpa, WalkEvents::step_code(level.0, 0));
                Some(())
            },
        );
        let Some(found) = found.filter(|found| found.allows(store)) else {
            return Err(violation.map_or(Fault::Guest { gva, store }, |gpa| Fault::Boundary { gpa }));
        };
        let gpa = found.gpa_of(gva);
        unit.segment_translation(segments.latency_cycles);
        let hpa = segments.translate(gpa).ok_or(Fault::Boundary { gpa })?;
        Ok(self.finish(gva, found, hpa, store))
    }

    fn tables(&mut self) -> Tables<'_> {
        Tables::Other
    }

    fn resolve(&mut self, gva: Gva, store: bool) -> Result<Mapping, Fault> {
        let found = leaf_of(self.guest, Va::from(gva).page(), store).ok_or(Fault::Guest { gva, store })?;
        let gpa = found.gpa_of(gva);
        let hpa = self.segments.translate(gpa).ok_or(Fault::Boundary { gpa })?;
        Ok(self.finish(gva, found, hpa, store))
    }

    #[inline(always)]
    fn neighbours(&self, gva: Gva, _: Option<&Memo>) -> Group {
        let host = |frame: u64| self.segments.translate(Gpa(frame << PAGE_SHIFT)).map_or(u64::MAX, |hpa| hpa.page().0);
        group_around(self.guest, Va::from(gva).page(), host).1
    }

    fn set_dirty(&mut self, gva: Gva) {
        set_dirty(self.guest, Va::from(gva).page());
    }

    #[inline(always)]
    fn hint_first(&self, gva: Gva, _: Option<&Memo>) {
        hint_leaf(self.guest, Va::from(gva).page());
    }

    #[inline(always)]
    fn hint_second(&self, (): (), _: Option<&Memo>) -> Option<Prepared> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_lies_in_the_last_segment_that_begins_at_or_below_it() {
        let segments = Segments::new(&[(Pfn(1000), 10), (Pfn(50), 5), (Pfn(7), 1)], 1).unwrap();
        let frame = |gfn: u64| segments.translate(Gpa(gfn << 12 | 0x123)).map(|hpa| (hpa.0 >> 12, hpa.0 & 0xfff));
        assert_eq!(frame(0), Some((1000, 0x123)));
        assert_eq!(frame(9), Some((1009, 0x123)));
        assert_eq!(frame(10), Some((50, 0x123)));
        assert_eq!(frame(14), Some((54, 0x123)));
        assert_eq!(frame(15), Some((7, 0x123)));
        assert_eq!(frame(16), None, "beyond the VM's memory");
    }

    #[test]
    fn a_large_page_is_held_whole_only_inside_one_segment_of_the_same_alignment() {
        let huge = PageSize::Huge.pages();
        let aligned = Segments::new(&[(Pfn(4 * huge), 2 * huge)], 1).unwrap();
        assert_eq!(aligned.piece(huge + 3, PageSize::Huge), PageSize::Huge);
        assert_eq!(aligned.piece(huge + 3, PageSize::Giant), PageSize::Huge, "1 GiB reaches beyond the limit");
        let shifted = Segments::new(&[(Pfn(4 * huge + 1), 2 * huge)], 1).unwrap();
        assert_eq!(shifted.piece(3, PageSize::Huge), PageSize::Small);
        let split = Segments::new(&[(Pfn(4 * huge), huge / 2), (Pfn(8 * huge + huge / 2), 2 * huge)], 1).unwrap();
        assert_eq!(split.piece(3, PageSize::Huge), PageSize::Small, "it lies in two segments");
        assert_eq!(split.piece(huge, PageSize::Huge), PageSize::Huge);
    }

    #[test]
    fn impossible_segments_are_refused() {
        assert_eq!(Segments::new(&[], 1), Err(SegmentsError::Count(0)));
        assert_eq!(
            Segments::new(&[(Pfn(0), 1); 9], 1).unwrap_err().to_string(),
            "9 segments: DS-n has registers for 1 to 8"
        );
        assert_eq!(Segments::new(&[(Pfn(0), 1), (Pfn(9), 0)], 1), Err(SegmentsError::Empty(1)));
    }
}
