// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory whose frames' order is known, and can be changed.

use nestwalk_workload::chase::{GROUP_PAGES, Layout};

use super::ProbeError;
use super::mapping::{HUGE, Mapping, PAGE};
use super::mover::{Means, Mover};

/// Memory that chases go through.
pub struct Arena {
    memory: Mapping,
    /// Only where pages are 4 KiB.
    pages: Option<Pages>,
    /// Bytes that were in 2 MiB pages when all was touched.
    huge_bytes: u64,
}

/// 4 KiB pages and what frames they have.
struct Pages {
    mover: Mover,
    /// One page's room, where a page waits while another takes its place.
    spare: Mapping,
    /// By page: its frame, numbered from 0 in the order of first touch.
    frames: Vec<u32>,
    /// By frame: its page.
    places: Vec<u32>,
}

impl Arena {
    /// `bytes` (a multiple of 2 MiB) that shall stay in 2 MiB pages.
    ///
    /// # Errors
    /// [`ProbeError::Memory`].
    pub fn huge(bytes: u64, hear: &mut dyn FnMut() -> bool) -> Result<Self, ProbeError> {
        let memory = populated(bytes, hear)?;
        let huge_bytes = memory.huge_bytes();
        Ok(Self { memory, pages: None, huge_bytes })
    }

    /// The same in 4 KiB pages that can be [arranged](Self::arrange), by the `means` named or by
    /// the best there are.
    ///
    /// # Errors
    /// [`ProbeError::Memory`], or [`ProbeError::Move`] where no page can be moved.
    pub fn small(bytes: u64, means: Option<Means>, hear: &mut dyn FnMut() -> bool) -> Result<Self, ProbeError> {
        let memory = populated(bytes, hear)?;
        let huge_bytes = memory.huge_bytes();
        memory.advise(libc::MADV_NOHUGEPAGE);
        let spare = Mapping::new(HUGE, libc::MADV_NOHUGEPAGE)?;
        let mover = Mover::new(&[&memory, &spare], means);
        let count = (memory.bytes() / PAGE) as u32;
        let pages = Pages { mover, spare, frames: (0..count).collect(), places: (0..count).collect() };
        let mut arena = Self { memory, pages: Some(pages), huge_bytes };
        arena.split()?;
        Ok(arena)
    }

    /// Makes the kernel map each 2 MiB page by 4 KiB entries: one of its pages goes and comes back.
    fn split(&mut self) -> Result<(), ProbeError> {
        let count = self.pages();
        let Some(pages) = &self.pages else { return Ok(()) };
        for page in (0..count).step_by(HUGE / PAGE) {
            // SAFETY: a page of this arena, and the empty spare page; no reference to either
            // exists.
            unsafe {
                pages.mover.relocate(self.memory.page(page), pages.spare.page(0))?;
                pages.mover.relocate(pages.spare.page(0), self.memory.page(page))?;
            }
        }
        Ok(())
    }

    /// Its pages of 4 KiB.
    #[must_use]
    pub fn pages(&self) -> u64 {
        (self.memory.bytes() / PAGE) as u64
    }

    /// Where it begins.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    /// Bytes that were in 2 MiB pages when all was touched: within each, frames are contiguous, as
    /// the kernel guarantees.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.huge_bytes
    }

    /// How its pages are moved; `None` where they stay.
    #[must_use]
    pub fn means(&self) -> Option<Means> {
        self.pages.as_ref().map(|pages| pages.mover.means())
    }

    /// Gives the first `count` pages the frames that `layout` says, frames 0 to `count`. Their
    /// contents go with them, so what was built in them is gone. Costs one move a page that is
    /// elsewhere.
    ///
    /// # Errors
    /// [`ProbeError::Size`], [`ProbeError::Move`].
    ///
    /// # Panics
    /// If this arena has 2 MiB pages.
    pub fn arrange(&mut self, count: u64, layout: &Layout) -> Result<(), ProbeError> {
        self.check(count)?;
        let Self { memory, pages, .. } = self;
        let Some(pages) = pages else { panic!("2 MiB pages stay where they are") };
        for page in 0..count {
            if u64::from(pages.frames[page as usize]) != layout.frame_of(page) {
                pages.follow(memory, page, count, layout)?;
            }
        }
        Ok(())
    }

    /// Checks that a chase can have the first `count` pages.
    ///
    /// # Errors
    /// [`ProbeError::Size`].
    pub fn check(&self, count: u64) -> Result<(), ProbeError> {
        if count == 0 || !count.is_multiple_of(GROUP_PAGES) || count > self.pages() {
            return Err(ProbeError::Size { pages: count, most: self.pages() });
        }
        Ok(())
    }

    /// Checks that frames and places are each other's inverse.
    ///
    /// # Panics
    /// If they are not.
    pub fn check_invariants(&self) {
        let Some(pages) = &self.pages else { return };
        for (page, &frame) in pages.frames.iter().enumerate() {
            assert_eq!(pages.places[frame as usize] as usize, page, "frame {frame}");
        }
    }
}

impl Pages {
    /// Follows one cycle of moves: `first`'s page waits in the spare room, and each hole gets the
    /// frame that belongs there, until the hole is where the waiting page belongs, or behind the
    /// pages that matter.
    fn follow(&mut self, memory: &Mapping, first: u64, count: u64, layout: &Layout) -> Result<(), ProbeError> {
        let (spare, waiting) = (self.spare.page(0), self.frames[first as usize]);
        // SAFETY: pages of the arena and of the spare mapping, to which no reference exists.
        unsafe { self.mover.relocate(memory.page(first), spare)? };
        let mut hole = first;
        loop {
            let wanted = if hole < count { layout.frame_of(hole) } else { waiting.into() };
            if wanted == u64::from(waiting) {
                // SAFETY: as above; the hole has no page.
                unsafe { self.mover.relocate(spare, memory.page(hole))? };
                self.put(waiting, hole);
                return Ok(());
            }
            let from = u64::from(self.places[wanted as usize]);
            // SAFETY: as above.
            unsafe { self.mover.relocate(memory.page(from), memory.page(hole))? };
            self.put(wanted as u32, hole);
            hole = from;
        }
    }

    fn put(&mut self, frame: u32, page: u64) {
        self.frames[page as usize] = frame;
        self.places[frame as usize] = page as u32;
    }
}

/// `bytes` of memory, touched in ascending order, in 2 MiB pages if the kernel gives any. `hear` is
/// asked every 32 MiB whether to go on.
fn populated(bytes: u64, hear: &mut dyn FnMut() -> bool) -> Result<Mapping, ProbeError> {
    let memory = Mapping::new(bytes as usize, libc::MADV_HUGEPAGE)?;
    let step = 32 << 20;
    for start in (0..memory.bytes()).step_by(step) {
        if !hear() {
            return Err(ProbeError::Interrupted);
        }
        memory.populate(start..memory.bytes().min(start + step));
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use nestwalk_workload::chase::Spread;
    use proptest::prelude::*;

    use super::*;
    use crate::probe::lines_per_group;

    const BYTES: u64 = 8 << 20;

    fn arena(means: Option<Means>) -> Arena {
        Arena::small(BYTES, means, &mut || true).unwrap()
    }

    /// Writes its number into each page in the order of frames.
    fn mark(arena: &Arena) {
        for page in 0..arena.pages() {
            // SAFETY: inside the arena, aligned.
            unsafe { arena.base().cast::<u64>().add(page as usize * 512).write(page) };
        }
    }

    fn marked(arena: &Arena, page: u64) -> u64 {
        // SAFETY: inside the arena, aligned.
        unsafe { arena.base().cast::<u64>().add(page as usize * 512).read() }
    }

    #[test]
    fn contents_show_that_the_frames_went_where_the_layout_says() {
        for means in [None, Some(Means::Remap)] {
            let mut arena = arena(means);
            mark(&arena);
            for (count, spread) in
                [(2048, Spread::Lines8), (512, Spread::Lines2), (1024, Spread::Lines1), (64, Spread::Lines8)]
            {
                let layout = Layout::new(count, spread, 3);
                arena.arrange(count, &layout).unwrap();
                arena.check_invariants();
                // The marks are the frames' numbers: they were written when page n had frame n, and
                // went with it.
                assert!((0..count).all(|page| marked(&arena, page) == layout.frame_of(page)), "{spread:?}");
            }
        }
    }

    #[test]
    fn pagemap_sees_the_lines_that_the_layout_names() {
        let mut arena = arena(None);
        if arena.huge_bytes() < BYTES {
            eprintln!("skipped: the kernel gave no 2 MiB pages");
            return;
        }
        for spread in Spread::ALL {
            arena.arrange(1024, &Layout::new(1024, spread, 5)).unwrap();
            match lines_per_group(&arena, 1024) {
                Ok(lines) => assert_eq!(lines, spread.lines() as f64, "{spread:?}"),
                Err(why) => return eprintln!("skipped: {why}"),
            }
        }
    }

    #[test]
    fn sizes_that_no_arena_has_are_refused() {
        let mut arena = arena(None);
        for count in [0, 63, BYTES / 4096 + 8] {
            let layout = Layout::new(64, Spread::Lines1, 1);
            let error = arena.arrange(count, &layout).unwrap_err().to_string();
            assert!(error.contains(&format!("{count} pages")), "{error}");
        }
    }

    #[test]
    fn an_interrupt_ends_populating() {
        let mut asked = 0;
        let ended = Arena::huge(128 << 20, &mut || {
            asked += 1;
            asked < 2
        });
        assert!(matches!(ended, Err(ProbeError::Interrupted)));
        assert_eq!(asked, 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn any_sequence_of_layouts_keeps_every_frame(steps in prop::collection::vec((1u64..16, 0usize..5, any::<u64>()), 1..5)) {
            let mut arena = Arena::small(4 << 20, None, &mut || true).unwrap();
            mark(&arena);
            for (groups, spread, seed) in steps {
                let layout = Layout::new(groups * 64, Spread::ALL[spread], seed);
                arena.arrange(groups * 64, &layout).unwrap();
            }
            arena.check_invariants();
            let mut seen: Vec<u64> = (0..arena.pages()).map(|page| marked(&arena, page)).collect();
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..arena.pages()));
        }
    }
}
