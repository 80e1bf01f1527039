// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reservations of 2 MiB (FreeBSD's `vm_reserv.c`), which `freebsd` and `quicksilver` share: a
//! physical block that is set aside for an aligned 2 MiB of a process or of a file, a map of which
//! of its 512 frames are in use, and a queue of the reservations that are in use in part, in the
//! order in which their population changed last.
//!
//! A frame of a reservation is in use as long as anything maps it, wherever that is; when it is
//! released it is the reservation's again. With its last frame the block goes back whole. A
//! reservation is broken when memory is short, when a frame of it is reclaimed or moved, and when
//! its process exits: unused frames go back, used ones stay 4 KiB pages. A frame of a file's is in
//! use while the page cache has it.

use nestwalk_mem::{Frame, FrameRange, Level, Nanoseconds, Order, Owner, PageCount, PageSize, Vpn};

use crate::context::Context;
use crate::context::event::{Cause, Fault};
use crate::error::OsError;
use crate::manager::radix::Radix;
use crate::state::KernelState;
use crate::state::files::FileId;
use crate::state::process::ProcessId;
use crate::state::vma::{FileView, VmaKind};

/// Pages of a block.
const PAGES: u64 = PageSize::Huge.pages();
const ORDER: u32 = PageSize::Huge.order();

/// log2 of the pages of a group: 64 KiB, the lower level of reservations on arm64
/// (`VM_LEVEL_0_ORDER` with 4 KiB pages).
pub(super) const GROUP_ORDER: u32 = 4;
/// Pages of a group.
pub(super) const GROUP_PAGES: u64 = 1 << GROUP_ORDER;

/// A reservation: the number of its physical block (`frame >> 9`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Number(u32);

impl Number {
    const NONE: Self = Self(u32::MAX);

    const fn of(frame: Frame) -> Self {
        Self((frame.0 >> ORDER) as u32)
    }

    const fn index(self) -> usize {
        self.0 as usize
    }

    /// The first frame.
    pub const fn base(self) -> Frame {
        Frame((self.0 as u64) << ORDER)
    }
}

/// What a reservation is for (FreeBSD's VM object).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holder {
    /// Memory of a process.
    Process(ProcessId),
    /// Pages of a file.
    File(FileId),
}

impl Holder {
    /// Who owns the frames that are not in use.
    fn owner(self) -> Owner {
        match self {
            Self::Process(process) => Owner::Reserved { process: process.0 },
            // No process has this number.
            Self::File(_) => Owner::Reserved { process: u16::MAX },
        }
    }
}

/// One physical block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// What it is for.
    pub holder: Holder,
    /// The first page that it is for, of the process or the file.
    pub first: Vpn,
    /// When its population changed last.
    pub changed_at: Nanoseconds,
    /// Frames in use. 0: it is no reservation.
    pub population: u16,
    /// The rest is not to be prepared ahead of use: that has failed.
    pub barred: bool,
    queued: bool,
    previous: Number,
    next: Number,
    /// A bit for each frame in use (`popmap`).
    used: [u64; 8],
}

impl Block {
    const NONE: Self = Self {
        holder: Holder::Process(ProcessId(0)),
        first: Vpn(0),
        changed_at: Nanoseconds(0),
        population: 0,
        barred: false,
        queued: false,
        previous: Number::NONE,
        next: Number::NONE,
        used: [0; 8],
    };

    #[inline]
    const fn uses(&self, place: u64) -> bool {
        self.used[(place >> 6) as usize] >> (place & 63) & 1 != 0
    }

    /// Whether all frames are in use.
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.population as u64 == PAGES
    }

    /// Which frames of the 64 KiB group that `page` lies in are in use, a bit for each.
    #[inline]
    pub const fn group(&self, page: Vpn) -> u16 {
        let place = page.0 & (PAGES - 1) & !(GROUP_PAGES - 1);
        (self.used[(place >> 6) as usize] >> (place & 63)) as u16
    }

    /// Whether all of them are (`vm_reserv_is_sublevel_full`).
    #[inline]
    pub const fn is_group_full(&self, page: Vpn) -> bool {
        self.group(page) == u16::MAX
    }

    /// Stretches of frames that are not in use: first place and length.
    pub fn gaps(&self) -> Vec<(u64, u64)> {
        let mut gaps: Vec<(u64, u64)> = Vec::new();
        for place in (0..PAGES).filter(|&place| !self.uses(place)) {
            match gaps.last_mut() {
                Some((start, length)) if *start + *length == place => *length += 1,
                _ => gaps.push((place, 1)),
            }
        }
        gaps
    }
}

nestwalk_mem::counters! {
    /// What reservations of 2 MiB count.
    pub numbers ReservationCounters {
        /// Reservations of 2 MiB made.
        reservations ["reservations"],
        /// Faults served from a reservation, without those that made one.
        faults_from_reservations ["faults"],
        /// Reservations broken because memory was short.
        broken_under_pressure ["reservations"],
        /// Reservations of 2 MiB of a file made (counted in `reservations`, too).
        file_reservations ["reservations"],
        /// Faults on files that mapped 2 MiB at once.
        file_superpages_mapped ["2 MiB pages"],
    }
}

/// All reservations of a kernel.
#[derive(Debug)]
pub(super) struct Reservations {
    /// By number.
    blocks: Vec<Block>,
    /// By number of process: from a block of pages to its reservation's number, plus 1.
    spaces: Vec<Option<Radix>>,
    /// The same by number of file.
    files: Vec<Option<Radix>>,
    /// The partially populated queue: the one that has not changed for longest, and the one that
    /// changed last.
    oldest: Number,
    newest: Number,
    /// Frames set aside and not in use.
    reserved: PageCount,
    pub counters: ReservationCounters,
}

impl Default for Reservations {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            spaces: Vec::new(),
            files: Vec::new(),
            oldest: Number::NONE,
            newest: Number::NONE,
            reserved: PageCount(0),
            counters: ReservationCounters::default(),
        }
    }
}

impl Reservations {
    /// A frame for the page of the fault: out of the reservation that there is, or of a new one.
    /// `None` if neither can be had, or the frame of the page's place is in use elsewhere.
    #[inline]
    pub fn frame_for_fault(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Option<(Number, Frame)> {
        if fault.vma.flags.kind != VmaKind::Anonymous {
            return None;
        }
        let found = self.find(fault.process, fault.page);
        let number = match found {
            Some(number) => number,
            None => self.reserve(cx, fault)?,
        };
        // Of scattered pages the frame's record is in no cache: it is fetched while the page is
        // zeroed.
        cx.state.memory.prefetch(number.base() + (fault.page.0 & (PAGES - 1)));
        let frame = self.take(cx.state.now, number, fault.page)?;
        self.counters.faults_from_reservations += u64::from(found.is_some());
        Some((number, frame))
    }

    /// A frame for the page out of the reservation that there is.
    pub fn frame_for_fill(&mut self, now: Nanoseconds, process: ProcessId, page: Vpn) -> Option<Frame> {
        let number = self.find(process, page)?;
        self.take(now, number, page)
    }

    /// The reservation for `page`.
    #[inline]
    pub fn find(&self, process: ProcessId, page: Vpn) -> Option<Number> {
        let word = self.spaces.get(usize::from(process.0))?.as_ref()?.get(page.0 >> ORDER);
        (word != 0).then(|| Number((word - 1) as u32))
    }

    /// The block of a reservation.
    #[inline]
    pub fn block(&self, number: Number) -> &Block {
        &self.blocks[number.index()]
    }

    /// `vm_reserv_alloc_page` where there is no reservation yet: none of the 512 pages may be in
    /// use, the window must not begin before the mapping (it may end after it: the heap may grow),
    /// and a block must be free now.
    #[inline(never)]
    fn reserve(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Option<Number> {
        let first = fault.page.align_down(ORDER);
        let table = &cx.state.processes.get(fault.process).ok()?.table;
        let in_use = fault.slot.level == Level::PTE && table.used_at(fault.slot) > 0;
        if in_use || first < fault.vma.range.start || table.geometry().index_bits() != ORDER {
            return None;
        }
        let Some(base) = cx.state.alloc(Order::HUGE, cx.cpu) else {
            cx.state.counters.huge_fallbacks += 1;
            return None;
        };
        Some(self.set_aside(cx, Holder::Process(fault.process), first, base))
    }

    /// The block at `base`, which is the caller's, is set aside.
    fn set_aside(&mut self, cx: &mut Context<'_>, holder: Holder, first: Vpn, base: Frame) -> Number {
        cx.state.memory.set_owners(FrameRange::new(base, PageCount(PAGES)), holder.owner());
        let number = Number::of(base);
        if self.blocks.len() <= number.index() {
            self.blocks.resize(number.index() + 1, Block::NONE);
        }
        self.blocks[number.index()] = Block { holder, first, ..Block::NONE };
        let (spaces, index) = self.spaces_of(holder);
        if spaces.len() <= index {
            spaces.resize_with(index + 1, || None);
        }
        spaces[index].get_or_insert_default().set(first.0 >> ORDER, u64::from(number.0) + 1);
        self.reserved.0 += PAGES;
        self.counters.reservations += 1;
        number
    }

    fn spaces_of(&mut self, holder: Holder) -> (&mut Vec<Option<Radix>>, usize) {
        match holder {
            Holder::Process(process) => (&mut self.spaces, process.0.into()),
            Holder::File(file) => (&mut self.files, file.0 as usize),
        }
    }

    /// The reservation for a page of a file.
    fn find_of_file(&self, file: FileId, page: u64) -> Option<Number> {
        let word = self.files.get(file.0 as usize)?.as_ref()?.get(page >> ORDER);
        (word != 0).then(|| Number((word - 1) as u32))
    }

    /// A frame for a page that a file's cache is about to hold.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn file_frame(&mut self, cx: &mut Context<'_>, file: FileId, page: u64) -> Result<Frame, OsError> {
        match self.frame_for_file(cx, file, page) {
            Some(frame) => Ok(frame),
            None => cx.page_frame(),
        }
    }

    /// The same out of the reservation that there is, or of a new one. None is made where a page of
    /// its window is in the cache already, or that reaches beyond the file's end
    /// (`vm_reserv_alloc_page` of an object that is not anonymous).
    fn frame_for_file(&mut self, cx: &mut Context<'_>, file: FileId, page: u64) -> Option<Frame> {
        if let Some(number) = self.find_of_file(file, page) {
            return self.take(cx.state.now, number, Vpn(page));
        }
        let first = page & !(PAGES - 1);
        let known = cx.state.files.get(file);
        if first + PAGES > known.size.0 || (first..first + PAGES).any(|page| known.page(page).is_some()) {
            return None;
        }
        let Some(base) = cx.state.alloc(Order::HUGE, cx.cpu) else {
            cx.state.counters.huge_fallbacks += 1;
            return None;
        };
        let number = self.set_aside(cx, Holder::File(file), Vpn(first), base);
        self.counters.file_reservations += 1;
        self.take(cx.state.now, number, Vpn(page))
    }

    /// A frame has left the page cache, and nothing maps it.
    pub fn release_file(&mut self, cx: &mut Context<'_>, frame: Frame) {
        self.release(cx, FrameRange::single(frame), Cause::Reclaimed);
    }

    /// Maps 2 MiB of a file for the fault, if all of it is in the cache, in a reservation, and the
    /// mapping holds it in an aligned block where nothing is mapped yet (`vm_fault_soft_fast`).
    ///
    /// # Errors
    /// When there is no memory for a table node, or nothing below backs it.
    pub fn map_file_block(&mut self, cx: &mut Context<'_>, fault: &Fault, view: FileView) -> Result<bool, OsError> {
        let Some(base) = self.full_file_block(fault, view).filter(|_| fault.slot.level > Level::PTE) else {
            return Ok(false);
        };
        let first = fault.page.align_down(ORDER);
        if cx.state.processes.get(fault.process)?.table.geometry().index_bits() != ORDER {
            return Ok(false);
        }
        cx.map_file_block(fault.process, first, base)?;
        self.counters.file_superpages_mapped += 1;
        Ok(true)
    }

    /// Makes a superpage of 2 MiB of a file that are mapped page by page, in place, all of them.
    ///
    /// # Errors
    /// When there is no such process, or nothing below backs a table node.
    pub fn promote_file(&mut self, cx: &mut Context<'_>, fault: &Fault, view: FileView) -> Result<(), OsError> {
        match self.full_file_block(fault, view) {
            Some(base) => cx.promote_file(fault.process, fault.page.align_down(ORDER), base).map(drop),
            None => Ok(()),
        }
    }

    /// The block in which all of the 2 MiB of the file around the fault lie, if there is one, and
    /// it can be mapped large.
    fn full_file_block(&self, fault: &Fault, view: FileView) -> Option<Frame> {
        let suits = view.is_congruent(ORDER) && fault.vma.holds_block(fault.page, ORDER);
        let number = self.find_of_file(view.file, view.page(fault.page)).filter(|_| suits)?;
        self.block(number).is_full().then(|| number.base())
    }

    /// The frame of the page's place is in use from now on (`vm_reserv_populate`); `None` if it is
    /// already.
    #[inline]
    fn take(&mut self, now: Nanoseconds, number: Number, page: Vpn) -> Option<Frame> {
        let block = &mut self.blocks[number.index()];
        let place = page.0 & (PAGES - 1);
        if block.uses(place) {
            return None;
        }
        block.used[(place >> 6) as usize] |= 1 << (place & 63);
        block.population += 1;
        self.reserved.0 -= 1;
        self.changed(number, now);
        Some(number.base() + place)
    }

    /// All frames are in use from now on: the caller has prepared those that were not.
    pub fn fill(&mut self, number: Number) {
        let block = &mut self.blocks[number.index()];
        self.reserved.0 -= PAGES - u64::from(block.population);
        (block.used, block.population) = ([u64::MAX; 8], PAGES as u16);
        self.dequeue(number);
    }

    /// The rest of the block is not prepared ahead of use.
    pub fn bar(&mut self, number: Number) {
        self.blocks[number.index()].barred = true;
    }

    /// The population has changed: the reservation goes to the end of the queue, at most once a
    /// tick.
    #[inline]
    fn changed(&mut self, number: Number, now: Nanoseconds) {
        let block = &mut self.blocks[number.index()];
        if block.queued && block.changed_at == now && !block.is_full() {
            return;
        }
        block.changed_at = now;
        self.requeue(number);
    }

    /// The reservation goes to the end of the queue, or leaves it if nothing is left to give.
    fn requeue(&mut self, number: Number) {
        self.dequeue(number);
        if self.block(number).is_full() {
            return;
        }
        let previous = std::mem::replace(&mut self.newest, number);
        match self.blocks.get_mut(previous.index()) {
            Some(before) => before.next = number,
            None => self.oldest = number,
        }
        let block = &mut self.blocks[number.index()];
        (block.previous, block.next, block.queued) = (previous, Number::NONE, true);
    }

    /// The reservation counts as changed now, so that others are looked at first.
    pub fn postpone(&mut self, number: Number, now: Nanoseconds) {
        self.blocks[number.index()].changed_at = now;
        self.requeue(number);
    }

    fn dequeue(&mut self, number: Number) {
        let block = &mut self.blocks[number.index()];
        if !std::mem::take(&mut block.queued) {
            return;
        }
        let (previous, next) = (block.previous, block.next);
        match self.blocks.get_mut(previous.index()) {
            Some(before) => before.next = next,
            None => self.oldest = next,
        }
        match self.blocks.get_mut(next.index()) {
            Some(after) => after.previous = previous,
            None => self.newest = previous,
        }
    }

    /// Its frames in use, by place.
    pub fn frames_in_use(&self, number: Number) -> Vec<Frame> {
        let block = self.block(number);
        (0..PAGES).filter(|&place| block.uses(place)).map(|place| number.base() + place).collect()
    }

    /// The head of the queue: in use in part, and unchanged for longest.
    pub fn oldest(&self) -> Option<Number> {
        (self.oldest != Number::NONE).then_some(self.oldest)
    }

    /// The reservation one of whose frames in use `frame` is.
    #[inline]
    fn holding(&self, frame: Frame) -> Option<Number> {
        let number = Number::of(frame);
        let block = self.blocks.get(number.index())?;
        (block.population > 0 && block.uses(frame.0 & (PAGES - 1))).then_some(number)
    }

    /// `frames`, one page or a whole block, are mapped nowhere any more (`vm_reserv_free_page`).
    pub fn release(&mut self, cx: &mut Context<'_>, frames: FrameRange, cause: Cause) {
        match (self.holding(frames.start), cause) {
            (None, _) => cx.free(frames),
            (Some(number), Cause::Reclaimed) => {
                self.break_up(cx, number);
                cx.free(frames);
            }
            (Some(number), Cause::Program | Cause::Replaced) if frames.count.0 == PAGES => {
                self.forget(number);
                cx.free(frames);
            }
            (Some(number), Cause::Program | Cause::Replaced) => self.give_back(cx, number, frames.start),
        }
    }

    /// A frame is the reservation's again (`vm_reserv_depopulate`).
    pub fn give_back(&mut self, cx: &mut Context<'_>, number: Number, frame: Frame) {
        let block = &mut self.blocks[number.index()];
        cx.state.memory.set_owner(frame, block.holder.owner());
        let place = frame.0 & (PAGES - 1);
        block.used[(place >> 6) as usize] &= !(1 << (place & 63));
        block.population -= 1;
        self.reserved.0 += 1;
        if self.block(number).population == 0 {
            self.forget(number);
            cx.free(FrameRange::new(number.base(), PageCount(PAGES)));
        } else {
            self.changed(number, cx.state.now);
        }
    }

    /// The reservation is no more. Its frames are the caller's.
    fn forget(&mut self, number: Number) {
        self.dequeue(number);
        let block = std::mem::replace(&mut self.blocks[number.index()], Block::NONE);
        self.reserved.0 -= PAGES - u64::from(block.population);
        let (spaces, index) = self.spaces_of(block.holder);
        if let Some(space) = &mut spaces[index] {
            space.remove(block.first.0 >> ORDER);
        }
    }

    /// Frees the frames that are not in use, and forgets the reservation (`vm_reserv_break`). How
    /// many those were.
    pub fn break_up(&mut self, cx: &mut Context<'_>, number: Number) -> PageCount {
        let gaps = self.block(number).gaps();
        self.forget(number);
        let mut freed = PageCount(0);
        for (place, length) in gaps {
            cx.free(FrameRange::new(number.base() + place, PageCount(length)));
            freed.0 += length;
        }
        freed
    }

    /// A page of a reservation lies elsewhere now.
    pub fn moved(&mut self, cx: &mut Context<'_>, from: Frame) {
        if let Some(number) = self.holding(from) {
            self.break_up(cx, number);
        }
    }

    /// The process is no more. Frames that others still share stay theirs.
    pub fn exited(&mut self, cx: &mut Context<'_>, process: ProcessId) {
        let Some(Some(space)) = self.spaces.get(usize::from(process.0)) else { return };
        let numbers: Vec<Number> = space.iter().map(|(_, word)| Number((word - 1) as u32)).collect();
        for number in numbers {
            self.break_up(cx, number);
        }
        self.spaces[usize::from(process.0)] = None;
    }

    /// Breaks reservations, those that have not changed for longest first, until `want` frames are
    /// free (`vm_reserv_reclaim_inactive`). How many are.
    pub fn pressure(&mut self, cx: &mut Context<'_>, want: PageCount) -> PageCount {
        let mut given = PageCount(0);
        while given < want
            && let Some(number) = self.oldest()
        {
            given.0 += self.break_up(cx, number).0;
            self.counters.broken_under_pressure += 1;
        }
        given
    }

    /// Frames set aside and not in use.
    pub fn reserved(&self) -> PageCount {
        self.reserved
    }

    /// Checks the maps, the queue and the frames' owners against each other.
    ///
    /// # Panics
    /// With a message that names the reservation, if something does not hold.
    pub fn check_invariants(&self, state: &KernelState) {
        let (mut reserved, mut queued) = (0, 0);
        for (number, block) in self.blocks.iter().enumerate().filter(|(_, block)| block.population > 0) {
            let number = Number(number as u32);
            let found = match block.holder {
                Holder::Process(process) => self.find(process, block.first),
                Holder::File(file) => self.find_of_file(file, block.first.0),
            };
            assert_eq!(found, Some(number), "{block:?}");
            if let Holder::File(file) = block.holder {
                for place in (0..PAGES).filter(|&place| block.uses(place)) {
                    let cached = state.files.page(file, block.first.0 + place).map(|page| page.frame);
                    assert_eq!(cached, Some(number.base() + place), "{block:?}, place {place}");
                }
            }
            assert_eq!(block.used.iter().map(|word| word.count_ones()).sum::<u32>(), u32::from(block.population));
            assert_eq!(block.queued, !block.is_full(), "{block:?}");
            for place in (0..PAGES).filter(|&place| !block.uses(place)) {
                let owner = state.memory.owner(number.base() + place);
                assert_eq!(owner, block.holder.owner(), "{block:?}, place {place}");
                reserved += 1;
            }
            queued += u64::from(block.queued);
        }
        assert_eq!(reserved, self.reserved.0, "frames set aside");
        let (mut at, mut previous) = (self.oldest, Number::NONE);
        while let Some(block) = self.blocks.get(at.index()) {
            assert!(block.queued && block.previous == previous, "{block:?} in the queue");
            (previous, at, queued) = (at, block.next, queued - 1);
        }
        assert_eq!((queued, previous), (0, self.newest), "the length of the queue and its end");
        let mapped: usize = self.spaces.iter().chain(&self.files).flatten().map(|space| space.iter().count()).sum();
        assert_eq!(mapped, self.blocks.iter().filter(|block| block.population > 0).count(), "reservations by page");
    }
}

/// Zeroes `frame` and maps it for the fault.
///
/// # Errors
/// When there is no memory for a table node, or nothing below backs the frame.
#[inline(always)]
pub(super) fn map_zeroed(cx: &mut Context<'_>, fault: &Fault, frame: Frame) -> Result<(), OsError> {
    cx.zero(FrameRange::single(frame))?;
    cx.map_fault(fault, frame)
}
