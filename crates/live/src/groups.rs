// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host page-table fragmentation (PTEMagnet, section 3.1): over all groups of eight neighbouring
//! pages that are all mapped by PTEs, in how many cache lines the host's PTEs of their frames lie.
//! Host PTEs have eight bytes and are indexed by gfn, so the line of a frame is `gfn >> 3`; where
//! the host maps 2 MiB pages, the line of its PMD is `gfn >> 9 >> 3`.

use serde::Serialize;

use crate::known::Known;

/// Pages of a group: PTEs of eight bytes in a line of 64.
pub const GROUP_PAGES: usize = 8;
const LINE_BITS: u32 = 3;
const PMD_LINE_BITS: u32 = 9 + LINE_BITS;

/// Groups counted by the lines that they lie in: 1 to 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Lines([u64; GROUP_PAGES]);

impl Lines {
    fn distribution(self) -> Known<Distribution> {
        let groups: u64 = self.0.iter().sum();
        if groups == 0 {
            return Known::not("no group of eight neighbouring pages is wholly mapped by PTEs");
        }
        let lines: u64 = (1..).zip(self.0).map(|(lines, count)| lines * count).sum();
        Known::Is(Distribution { value: lines as f64 / groups as f64, distribution: self.0, groups })
    }
}

/// The metric and what it is the mean of.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Distribution {
    /// Lines of host PTEs a group, the mean: 1 is perfect, 8 the worst.
    pub value: f64,
    /// Groups on 1, 2, ... 8 lines.
    pub distribution: [u64; GROUP_PAGES],
    /// Groups in all.
    pub groups: u64,
}

/// The metric, whole and by kind of memory.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Fragmentation {
    /// All groups, if the host maps 4 KiB pages.
    #[serde(flatten)]
    pub host_4k: Distribution,
    /// The same groups, if the host maps 2 MiB pages.
    pub host_2m: Known<Distribution>,
    /// Groups of anonymous memory only; it is what PTEMagnet allocates.
    pub anonymous: Known<Distribution>,
    /// Groups of files and shared memory only.
    pub file: Known<Distribution>,
    /// Groups of which some pages, but not all eight, are mapped: no part of the metric.
    pub incomplete_groups: u64,
}

/// How well entries for several pages would fit.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Coalescing {
    /// Pages mapped by PTEs, the page of zeros left out.
    pub pages: u64,
    /// Entries of a Clustered TLB (Pham, HPCA 2014) for them: one for all pages of a group whose
    /// frames are in the same aligned eight frames, in any order.
    pub clustered_entries: u64,
    /// Pages for each of these entries: 1 is no gain, 8 the most.
    pub pages_per_clustered_entry: f64,
    /// Share of the pages that lie like a 32 KiB folio: all eight of the group, on eight aligned
    /// frames, in order.
    pub folio_32k_share: f64,
}

/// A group that is being collected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    group: u64,
    /// Pages of it so far, with the page of zeros.
    mapped: usize,
    frames: [u64; GROUP_PAGES],
    /// How many of these pages are anonymous, and how many the page of zeros.
    anonymous: usize,
    zeros: usize,
    host_4k: Lines,
    host_2m: Lines,
    by_kind: [Lines; 2],
    incomplete: u64,
    pages: u64,
    clustered_entries: u64,
    folio_pages: u64,
    /// Lines and groups since they were taken last, for the strip.
    recent: (u64, u64),
}

/// What a page of a group is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The process's own memory.
    Anonymous,
    /// Of a file or of shared memory.
    File,
    /// The page of zeros.
    Zeros,
}

impl Groups {
    /// The page number `page`, greater than all before it, is mapped by a PTE and has this frame.
    #[inline]
    pub(crate) fn add(&mut self, page: u64, frame: u64, kind: Kind) {
        if page >> LINE_BITS != self.group {
            self.close();
            self.group = page >> LINE_BITS;
        }
        self.frames[self.mapped] = frame;
        self.mapped += 1;
        self.anonymous += usize::from(kind == Kind::Anonymous);
        self.zeros += usize::from(kind == Kind::Zeros);
    }

    /// A whole group, greater than all before it, is mapped by PTEs; `files` of them are of files
    /// or shared memory, and none is the page of zeros.
    #[inline]
    pub(crate) fn add_whole(&mut self, frames: &[u64; GROUP_PAGES], files: usize) {
        self.close();
        self.whole(frames, GROUP_PAGES - files, 0);
    }

    /// The group that was being collected is done.
    pub(crate) fn close(&mut self) {
        let mapped = std::mem::take(&mut self.mapped);
        let (anonymous, zeros) = (std::mem::take(&mut self.anonymous), std::mem::take(&mut self.zeros));
        if mapped == GROUP_PAGES {
            let frames = self.frames;
            self.whole(&frames, anonymous, zeros);
        } else if mapped > 0 {
            self.incomplete += 1;
            if zeros == 0 {
                self.pages += mapped as u64;
                self.clustered_entries += distinct(&self.frames[..mapped], LINE_BITS) as u64;
            }
        }
    }

    /// A group all of whose pages are mapped.
    #[inline]
    fn whole(&mut self, frames: &[u64; GROUP_PAGES], anonymous: usize, zeros: usize) {
        let lines = distinct(frames, LINE_BITS);
        let pmd_lines = if lines == 1 { 1 } else { distinct(frames, PMD_LINE_BITS) };
        if zeros == 0 {
            self.pages += GROUP_PAGES as u64;
            self.clustered_entries += lines as u64;
            if lines == 1 && frames.windows(2).all(|pair| pair[1] == pair[0] + 1) {
                self.folio_pages += GROUP_PAGES as u64;
            }
        }
        self.recent = (self.recent.0 + lines as u64, self.recent.1 + 1);
        self.host_4k.0[lines - 1] += 1;
        self.host_2m.0[pmd_lines - 1] += 1;
        match anonymous {
            GROUP_PAGES => self.by_kind[0].0[lines - 1] += 1,
            0 if zeros == 0 => self.by_kind[1].0[lines - 1] += 1,
            _ => {}
        }
    }

    /// Lines and groups that were closed since this was asked last.
    pub(crate) fn take_recent(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.recent)
    }

    /// The metric.
    pub(crate) fn fragmentation(&self) -> Known<Fragmentation> {
        self.host_4k.distribution().map(|host_4k| Fragmentation {
            host_4k,
            host_2m: self.host_2m.distribution(),
            anonymous: self.by_kind[0].distribution(),
            file: self.by_kind[1].distribution(),
            incomplete_groups: self.incomplete,
        })
    }

    /// What entries for several pages could do.
    pub(crate) fn coalescing(&self) -> Known<Coalescing> {
        if self.pages == 0 {
            return Known::not("no page is mapped by a PTE");
        }
        Known::Is(Coalescing {
            pages: self.pages,
            clustered_entries: self.clustered_entries,
            pages_per_clustered_entry: self.pages as f64 / self.clustered_entries as f64,
            folio_32k_share: self.folio_pages as f64 / self.pages as f64,
        })
    }
}

/// How many values the frames have without their low `bits`. Every pair is compared, without
/// branches.
#[inline]
fn distinct(frames: &[u64], bits: u32) -> usize {
    let is_new = |index: usize| {
        let before = frames[..index].iter();
        before.fold(true, |new, frame| new & (frame >> bits != frames[index] >> bits))
    };
    (0..frames.len()).map(|index| usize::from(is_new(index))).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn of(pages: &[(u64, u64)]) -> Groups {
        let mut groups = Groups::default();
        for &(page, frame) in pages {
            groups.add(page, frame, Kind::Anonymous);
        }
        groups.close();
        groups
    }

    #[test]
    fn a_known_layout_has_the_known_lines() {
        // Eight aligned frames; eight frames that begin in the middle of a line; eight lines; a
        // group with a page missing.
        let packed = (0..8).map(|page| (page, 800 + page));
        let unaligned = (0..8).map(|page| (8 + page, 804 + page));
        let scattered = (0..8).map(|page| (16 + page, 4096 + 8 * page));
        let incomplete = (0..7).map(|page| (24 + page, 9000 + page));
        let pages: Vec<_> = packed.chain(unaligned).chain(scattered).chain(incomplete).collect();
        let groups = of(&pages);
        let found = groups.fragmentation().value().cloned().unwrap();
        assert_eq!(found.host_4k.distribution, [1, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!((found.host_4k.groups, found.incomplete_groups), (3, 1));
        assert!((found.host_4k.value - 11.0 / 3.0).abs() < 1e-12);
        assert_eq!(found.host_2m.value().unwrap().distribution, [3, 0, 0, 0, 0, 0, 0, 0]);
        let coalescing = groups.coalescing().value().cloned().unwrap();
        assert_eq!((coalescing.pages, coalescing.clustered_entries), (31, 1 + 2 + 8 + 1));
        assert!((coalescing.folio_32k_share - 8.0 / 31.0).abs() < 1e-12);
    }

    #[test]
    fn a_group_in_another_order_is_clustered_and_no_folio() {
        let pages: Vec<_> = (0..8).map(|page| (page, 800 + (page ^ 1))).collect();
        let found = of(&pages).coalescing().value().cloned().unwrap();
        assert_eq!((found.clustered_entries, found.folio_32k_share), (1, 0.0));
    }

    #[test]
    fn without_a_whole_group_there_is_no_metric() {
        let Known::Not { unavailable } = of(&[(0, 1), (1, 2)]).fragmentation() else { panic!("a metric of nothing") };
        assert!(unavailable.starts_with("unavailable, because "), "{unavailable}");
    }

    proptest! {
        /// Held against the definition, written with sets.
        #[test]
        fn as_the_definition_has_it(frames in proptest::collection::vec(proptest::option::of(0_u64..40_000), 1..200)) {
            let pages: Vec<_> = (0..).zip(&frames).filter_map(|(page, frame)| Some((page, (*frame)?))).collect();
            let mut expected = [[0_u64; 8]; 2];
            for group in frames.chunks_exact(8) {
                let Some(group) = group.iter().copied().collect::<Option<Vec<u64>>>() else { continue };
                for (bits, expected) in [3, 12].into_iter().zip(&mut expected) {
                    expected[group.iter().map(|frame| frame >> bits).collect::<HashSet<_>>().len() - 1] += 1;
                }
            }
            match of(&pages).fragmentation().value() {
                Some(found) => {
                    prop_assert_eq!(found.host_4k.distribution, expected[0]);
                    prop_assert_eq!(found.host_2m.value().unwrap().distribution, expected[1]);
                }
                None => prop_assert_eq!(expected[0], [0; 8]),
            }
        }
    }
}
