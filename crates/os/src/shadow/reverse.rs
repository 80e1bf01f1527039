// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a frame of the upper kernel to the shadow entries that map it (KVM's `kvm_rmap_head`, by
//! gfn).
//!
//! Entries that go are not taken out of it: a look-up of the entries of a frame checks whether
//! they still are its.

use std::collections::BTreeMap;

use nestwalk_mem::{Frame, FrameRange, PageSize, Vpn};

const CHUNK: u64 = 512;
const NONE: Vpn = Vpn(u64::MAX);

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct ReverseMap {
    /// By frame, in chunks that are there as soon as one of their frames is mapped: the page of its
    /// 4 KiB entry.
    small: Vec<Option<Box<[Vpn; CHUNK as usize]>>>,
    /// The pages of further 4 KiB entries of a frame.
    more: BTreeMap<Frame, Vec<Vpn>>,
    /// The pages of larger entries, by their first frame.
    large: BTreeMap<Frame, Vec<(PageSize, Vpn)>>,
}

impl ReverseMap {
    /// The entry of `size` at `page` maps `frame`, and those that follow it. `maps` says whether
    /// the 4 KiB entry at a page maps it still.
    pub fn note(&mut self, frame: Frame, size: PageSize, page: Vpn, maps: impl Fn(Vpn) -> bool) {
        if size != PageSize::Small {
            let entries = self.large.entry(frame).or_default();
            if !entries.contains(&(size, page)) {
                entries.push((size, page));
            }
            return;
        }
        let chunk = (frame.0 / CHUNK) as usize;
        if self.small.len() <= chunk {
            self.small.resize_with(chunk + 1, || None);
        }
        let chunk = self.small[chunk].get_or_insert_with(|| Box::new([NONE; CHUNK as usize]));
        let place = &mut chunk[(frame.0 % CHUNK) as usize];
        if *place == NONE || *place == page || !maps(*place) {
            *place = page;
        } else {
            let more = self.more.entry(frame).or_default();
            if !more.contains(&page) {
                more.push(page);
            }
        }
    }

    /// Takes out what is known of `frames`: `entry` gets the size and the page of each entry that
    /// may map some of them, and the frame that it was made for.
    pub fn take(&mut self, frames: FrameRange, mut entry: impl FnMut(PageSize, Vpn, Frame)) {
        let end = frames.end().0.min(self.small.len() as u64 * CHUNK);
        let mut at = frames.start.0;
        while at < end {
            let stop = (at / CHUNK * CHUNK + CHUNK).min(end);
            if let Some(chunk) = &mut self.small[(at / CHUNK) as usize] {
                for frame in at..stop {
                    let page = std::mem::replace(&mut chunk[(frame % CHUNK) as usize], NONE);
                    if page != NONE {
                        entry(PageSize::Small, page, Frame(frame));
                    }
                }
            }
            at = stop;
        }
        let more: Vec<Frame> = self.more.range(frames.start..frames.end()).map(|(&frame, _)| frame).collect();
        for frame in more {
            let pages = self.more.remove(&frame).unwrap_or_default();
            pages.into_iter().for_each(|page| entry(PageSize::Small, page, frame));
        }
        let first = frames.start.align_down(PageSize::Giant.order());
        let large: Vec<Frame> = self.large.range(first..frames.end()).map(|(&frame, _)| frame).collect();
        for frame in large {
            let entries = self.large.get_mut(&frame).expect("it was there just now");
            entries.retain(|&(size, page)| {
                let overlaps = frame.0 + size.pages() > frames.start.0;
                if overlaps {
                    entry(size, page, frame);
                }
                !overlaps
            });
            if entries.is_empty() {
                self.large.remove(&frame);
            }
        }
    }

    /// Whether it knows of the entry of `size` at `page` for `frame`.
    pub fn knows(&self, frame: Frame, size: PageSize, page: Vpn) -> bool {
        if size != PageSize::Small {
            return self.large.get(&frame).is_some_and(|entries| entries.contains(&(size, page)));
        }
        let chunk = self.small.get((frame.0 / CHUNK) as usize).and_then(Option::as_ref);
        chunk.is_some_and(|chunk| chunk[(frame.0 % CHUNK) as usize] == page)
            || self.more.get(&frame).is_some_and(|pages| pages.contains(&page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestwalk_mem::PageCount;
    use proptest::prelude::*;

    fn range(start: u64, count: u64) -> FrameRange {
        FrameRange::new(Frame(start), PageCount(count))
    }

    fn taken(map: &mut ReverseMap, frames: FrameRange) -> Vec<(PageSize, u64, u64)> {
        let mut all = Vec::new();
        map.take(frames, |size, page, frame| all.push((size, page.0, frame.0)));
        all.sort_unstable();
        all
    }

    #[test]
    fn a_frame_that_is_mapped_twice_has_both_pages() {
        let mut map = ReverseMap::default();
        map.note(Frame(5), PageSize::Small, Vpn(100), |_| true);
        map.note(Frame(5), PageSize::Small, Vpn(200), |_| true);
        map.note(Frame(5), PageSize::Small, Vpn(200), |_| true);
        assert_eq!(taken(&mut map, range(5, 1)), [(PageSize::Small, 100, 5), (PageSize::Small, 200, 5)]);
        assert_eq!(taken(&mut map, range(0, 100)), []);
        // Where the first does not map it any more, the second takes its place.
        map.note(Frame(5), PageSize::Small, Vpn(100), |_| true);
        map.note(Frame(5), PageSize::Small, Vpn(200), |_| false);
        assert_eq!(taken(&mut map, range(5, 1)), [(PageSize::Small, 200, 5)]);
    }

    #[test]
    fn a_large_entry_is_found_by_any_of_its_frames() {
        let mut map = ReverseMap::default();
        map.note(Frame(512), PageSize::Huge, Vpn(1024), |_| true);
        assert!(map.knows(Frame(512), PageSize::Huge, Vpn(1024)));
        assert_eq!(taken(&mut map, range(1024, 1)), []);
        assert_eq!(taken(&mut map, range(0, 512)), []);
        assert_eq!(taken(&mut map, range(1023, 1)), [(PageSize::Huge, 1024, 512)]);
        assert_eq!(taken(&mut map, range(512, 512)), []);
    }

    proptest! {
        /// Against a plain list of all entries.
        #[test]
        fn what_is_taken_is_what_was_noted(
            notes in proptest::collection::vec((0_u64..2000, 0_u64..3), 0..60),
            from in 0_u64..2000, count in 1_u64..1200,
        ) {
            let mut map = ReverseMap::default();
            let mut list = std::collections::BTreeSet::new();
            for (page, (frame, size)) in notes.into_iter().enumerate() {
                let size = if size == 0 { PageSize::Huge } else { PageSize::Small };
                let frame = Frame(frame).align_down(size.order());
                map.note(frame, size, Vpn(page as u64), |_| true);
                list.insert((size, page as u64, frame.0));
            }
            let wanted = range(from, count);
            let (inside, outside): (Vec<_>, Vec<_>) = list
                .into_iter()
                .partition(|&(size, _, frame)| frame < wanted.end().0 && frame + size.pages() > from);
            prop_assert_eq!(taken(&mut map, wanted), inside);
            prop_assert_eq!(taken(&mut map, range(0, 1 << 20)), outside);
        }
    }
}
