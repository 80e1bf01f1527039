// SPDX-License-Identifier: MIT OR Apache-2.0
//! DS-n: a VM's memory is a few contiguous host segments, translated by registers (Compromis,
//! section 4.1 of that paper).
//!
//! The guest keeps its page tables, and a walk is one-dimensional: every guest-physical address met
//! on the way, each node's and the data page's, becomes `HBReg[i] + (gpa - GBReg[i])`, where `i` is
//! the last segment whose guest base is not above it. An address beyond the VM's memory is a
//! boundary violation, which traps to the hypervisor.

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Gpa, Hpa, PageSize, Pfn};

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
    pub(crate) latency_cycles: u32,
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
    pub(crate) fn piece(&self, gfn: u64, size: PageSize) -> PageSize {
        let whole = |size: &PageSize| self.holds(gfn, size.pages());
        PageSize::ALL.into_iter().rev().filter(|&piece| piece <= size).find(whole).unwrap_or(PageSize::Small)
    }

    /// Whether the aligned block of `pages` around the guest's frame `gfn` lies in one segment and
    /// is aligned in the host, too.
    pub(crate) fn holds(&self, gfn: u64, pages: u64) -> bool {
        let first = gfn & !(pages - 1);
        match (self.segment_of(first), self.segment_of(first + pages - 1)) {
            (Some(begin), Some(end)) => {
                let shift = self.host_bases[begin].wrapping_sub(self.guest_bases[begin]);
                begin == end && shift.is_multiple_of(pages)
            }
            _ => false,
        }
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
