// SPDX-License-Identifier: MIT OR Apache-2.0
//! PTEMagnet (Margaritov, Ustiugov, Shahab, Grot; ASPLOS 2021): 8 neighbouring pages on 8
//! neighbouring frames, so that the host's PTEs for them share a cache line.
//!
//! The first fault in an aligned group of 8 pages takes a block of 8 frames, maps one of them and
//! sets the others aside; later faults in the group take theirs from there. Pages stay 4 KiB pages
//! and are zeroed one by one.

mod part;

use nestwalk_mem::counters::{Counter, list};
use nestwalk_mem::{Frame, FrameRange, Order, Owner, PageCount, PageSize, Vpn, VpnRange};
use rand::RngExt;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::context::event::{Cause, Fault};
use crate::error::OsError;
use crate::manager::contract::{Deallocation, Facts, MemoryManager, Preparation, Promotion, When};
use crate::manager::linux4k::map_one_page;
use crate::state::process::ProcessId;
use crate::state::vma::VmaKind;
use crate::state::{KernelState, Moved};

use part::{GROUP, Part, Reservation};

/// Its choices at the five events.
pub const FACTS: Facts = Facts {
    name: "ptemagnet",
    source: "Margaritov et al., PTEMagnet, ASPLOS 2021, section 4",
    block: PageCount(GROUP),
    allocation: When::Fault,
    preparation: Preparation::Incremental,
    mapping: When::Never,
    promotion: Promotion::None,
    deallocation: Deallocation::Deferred,
};

/// The order of a block.
const BLOCK: Order = Order(3);

/// Its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PteMagnetConfig {
    /// When more than this share of memory is in use, in thousandths, the daemon gives reservations
    /// back (section 4.4; the paper leaves the value to the administrator, and 950 is an
    /// assumption).
    pub threshold_permille: u16,
    /// If given, only processes are served whose cgroup has a memory limit of at least this much
    /// (section 4.4: those that are known to use much memory are marked so on cloud hosts). All
    /// are, if not.
    #[serde(with = "nestwalk_mem::size::optional_pages", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<nestwalk_mem::schema::Pages>")]
    pub cgroup_limit_min: Option<PageCount>,
}

impl Default for PteMagnetConfig {
    fn default() -> Self {
        Self { threshold_permille: 950, cgroup_limit_min: None }
    }
}

nestwalk_mem::counters! {
    /// What PTEMagnet counts.
    pub numbers PteMagnetCounters {
        /// Groups of 8 frames reserved.
        reservations ["reservations"],
        /// Faults served from a reservation, without those that made one.
        faults_from_reservations ["faults"],
        /// Faults of forked children served from a reservation of their parent.
        faults_from_parents ["faults"],
        /// Faults that were to make a reservation, and got a single page for want of a block.
        fallbacks ["faults"],
        /// Reservations that have no frame left to give.
        completed ["reservations"],
        /// Unmapped frames of reservations given back because memory was short or a process exited.
        returned_under_pressure ["frames"],
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct PteMagnet {
    config: PteMagnetConfig,
    /// By number of process.
    processes: Vec<Space>,
    /// Frames set aside and not mapped, of all processes.
    reserved: PageCount,
    counters: PteMagnetCounters,
}

/// What it knows of a process.
#[derive(Clone, Debug, Default)]
struct Space {
    part: Part,
    /// The process that it was forked from, while that is alive.
    parent: Option<ProcessId>,
}

const fn group_of(page: Vpn) -> u64 {
    page.0 / GROUP
}

const fn bit_of(page: Vpn) -> u8 {
    1 << (page.0 % GROUP)
}

impl PteMagnet {
    /// With no reservations yet.
    pub fn new(config: PteMagnetConfig) -> Self {
        Self { config, processes: Vec::new(), reserved: PageCount(0), counters: PteMagnetCounters::default() }
    }

    #[inline]
    fn space(&mut self, process: ProcessId) -> &mut Space {
        let number = usize::from(process.0);
        if self.processes.len() <= number {
            self.processes.resize_with(number + 1, Space::default);
        }
        &mut self.processes[number]
    }

    #[inline]
    fn reservation(&self, process: ProcessId, group: u64) -> Option<Reservation> {
        self.processes.get(usize::from(process.0))?.part.get(group)
    }

    /// Writes a changed reservation back. One that has nothing left to give is forgotten; one of
    /// which nothing is mapped is given back (section 4.3).
    fn update(&mut self, cx: &mut Context<'_>, process: ProcessId, group: u64, changed: Reservation) {
        let before = self.reservation(process, group).map_or(0, |old| u64::from(old.unmapped().count_ones()));
        let after = if changed.mapped == 0 { 0 } else { u64::from(changed.unmapped().count_ones()) };
        self.reserved.0 = self.reserved.0 + after - before;
        let part = &mut self.space(process).part;
        if changed.is_spent() || changed.mapped == 0 {
            part.remove(group);
            free_unmapped(cx, changed);
            self.counters.completed += u64::from(changed.is_spent());
        } else {
            part.set(group, changed);
        }
    }

    /// The page of a fault has been mapped to its frame of `reservation`, which was in PaRT if it
    /// is not `fresh`: the common case of [`PteMagnet::update`].
    #[inline]
    fn mapped(&mut self, fault: &Fault, reservation: Reservation, fresh: bool) {
        let mapped = Reservation { mapped: reservation.mapped | bit_of(fault.page), ..reservation };
        if fresh {
            self.reserved.0 += GROUP - 1;
        } else {
            self.reserved.0 -= 1;
            self.counters.faults_from_reservations += 1;
        }
        let part = &mut self.space(fault.process).part;
        if mapped.is_spent() {
            part.remove(group_of(fault.page));
            self.counters.completed += 1;
        } else {
            part.set(group_of(fault.page), mapped);
        }
    }

    /// Whether the process is one of those that it is enabled for.
    #[inline]
    fn serves(&self, cx: &Context<'_>, process: ProcessId) -> bool {
        let Some(least) = self.config.cgroup_limit_min else { return true };
        let limit = cx.state.processes.get(process).ok().and_then(|process| process.cgroup_limit);
        limit.is_some_and(|limit| limit >= least)
    }

    /// A block for the group of the fault, if nothing of the group is mapped and a block is free.
    fn reserve(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Option<Reservation> {
        let table = &cx.state.processes.get(fault.process).ok()?.table;
        if !table.is_bare(fault.page, GROUP.trailing_zeros()) {
            return None;
        }
        let Some(base) = cx.state.alloc(BLOCK, cx.cpu) else {
            self.counters.fallbacks += 1;
            return None;
        };
        cx.reserve(fault.process, FrameRange::new(base, PageCount(GROUP)));
        self.counters.reservations += 1;
        Some(Reservation::new(base))
    }

    /// The frame that the parent has set aside for this page and never mapped: a forked child may
    /// have it (section 4.4).
    fn inherited(&self, fault: &Fault) -> Option<(ProcessId, Reservation)> {
        let parent = self.processes.get(usize::from(fault.process.0))?.parent?;
        let reservation = self.reservation(parent, group_of(fault.page))?;
        (reservation.unmapped() & bit_of(fault.page) != 0).then_some((parent, reservation))
    }

    /// Serves the fault of a forked child by a frame of its parent's reservation.
    #[inline(never)]
    fn take_from_parent(
        &mut self,
        cx: &mut Context<'_>,
        fault: &Fault,
        parent: ProcessId,
        reservation: Reservation,
    ) -> Result<PageSize, OsError> {
        map_from(cx, fault, reservation.base + fault.page.0 % GROUP)?;
        let gone = reservation.gone | bit_of(fault.page);
        self.update(cx, parent, group_of(fault.page), Reservation { gone, ..reservation });
        self.counters.faults_from_parents += 1;
        Ok(PageSize::Small)
    }

    /// The page's frame leaves the reservation, if it is one's: it is no longer the reservation's
    /// to give.
    fn leave(&mut self, cx: &mut Context<'_>, process: ProcessId, page: Vpn, frame: Frame) {
        let (group, bit) = (group_of(page), bit_of(page));
        if let Some(reservation) = self.reservation(process, group)
            && reservation.mapped & bit != 0
            && frame == reservation.base + page.0 % GROUP
        {
            let (mapped, gone) = (reservation.mapped & !bit, reservation.gone | bit);
            self.update(cx, process, group, Reservation { mapped, gone, ..reservation });
        }
    }

    /// Gives back everything that `process` has set aside and not mapped. How much that was.
    fn give_back(&mut self, cx: &mut Context<'_>, process: ProcessId) -> PageCount {
        let part = std::mem::take(&mut self.space(process).part);
        let mut given = 0;
        for (_, reservation) in part.iter() {
            given += u64::from(reservation.unmapped().count_ones());
            free_unmapped(cx, reservation);
        }
        self.reserved.0 -= given;
        self.counters.returned_under_pressure += given;
        PageCount(given)
    }

    /// The daemon's step: a random process that has reservations (section 4.4).
    fn random_process(&self, cx: &mut Context<'_>) -> Option<ProcessId> {
        let space = |id: ProcessId| self.processes.get(usize::from(id.0));
        let has = |id: &ProcessId| space(*id).is_some_and(|space| space.part.len() > 0);
        let with: Vec<ProcessId> = cx.state.processes.iter().map(|(id, _)| id).filter(has).collect();
        (!with.is_empty()).then(|| with[cx.state.rng.random_range(0..with.len())])
    }
}

/// Frees the frames of a reservation that are not mapped.
fn free_unmapped(cx: &mut Context<'_>, reservation: Reservation) {
    if reservation.unmapped() == u8::MAX {
        return cx.free(FrameRange::new(reservation.base, PageCount(GROUP)));
    }
    for place in (0..GROUP).filter(|place| reservation.unmapped() >> place & 1 != 0) {
        cx.free(FrameRange::single(reservation.base + place));
    }
}

impl MemoryManager for PteMagnet {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn fault(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError> {
        if fault.vma.flags.kind != VmaKind::Anonymous || !self.serves(cx, fault.process) {
            return map_one_page(cx, fault);
        }
        let own = self.reservation(fault.process, group_of(fault.page));
        if own.is_none()
            && let Some((parent, reservation)) = self.inherited(fault)
        {
            return self.take_from_parent(cx, fault, parent, reservation);
        }
        let free = |reservation: &Reservation| reservation.unmapped() & bit_of(fault.page) != 0;
        let Some(reservation) = own.or_else(|| self.reserve(cx, fault)).filter(free) else {
            return map_one_page(cx, fault);
        };
        let frame = reservation.base + fault.page.0 % GROUP;
        if let Err(error) = map_from(cx, fault, frame) {
            if own.is_none() {
                free_unmapped(cx, reservation);
            } else {
                cx.reserve(fault.process, FrameRange::single(frame));
            }
            return Err(error);
        }
        self.mapped(fault, reservation, own.is_none());
        Ok(PageSize::Small)
    }

    fn release(&mut self, cx: &mut Context<'_>, process: ProcessId, page: Vpn, frames: FrameRange, cause: Cause) {
        let (group, bit) = (group_of(page), bit_of(page));
        let from_reservation = self.reservation(process, group).filter(|reservation| {
            reservation.mapped & bit != 0 && frames == FrameRange::single(reservation.base + page.0 % GROUP)
        });
        match (from_reservation, cause) {
            // The page is the reservation's again.
            (Some(reservation), Cause::Program) => {
                cx.reserve(process, frames);
                let mapped = reservation.mapped & !bit;
                self.update(cx, process, group, Reservation { mapped, ..reservation });
            }
            (from_reservation, _) => {
                if from_reservation.is_some() {
                    self.leave(cx, process, page, frames.start);
                }
                cx.free(frames);
            }
        }
    }

    fn left(&mut self, cx: &mut Context<'_>, process: ProcessId, page: Vpn, frame: Frame) {
        self.leave(cx, process, page, frame);
    }

    fn forked(&mut self, _: &mut Context<'_>, parent: ProcessId, child: ProcessId) {
        *self.space(child) = Space { part: Part::default(), parent: Some(parent) };
    }

    fn moving(&mut self, cx: &mut Context<'_>, process: ProcessId, from: VpnRange, _: VpnRange) {
        let mut group = group_of(from.start);
        let end = from.end.0.div_ceil(GROUP);
        while let Some(next) = self.space(process).part.next(group).filter(|&next| next < end) {
            group = next + 1;
            for page in (next * GROUP..group * GROUP).map(Vpn).filter(|&page| from.contains(page)) {
                if let Some(reservation) = self.reservation(process, next) {
                    self.leave(cx, process, page, reservation.base + page.0 % GROUP);
                }
            }
        }
    }

    fn exited(&mut self, cx: &mut Context<'_>, process: ProcessId) {
        self.give_back(cx, process);
        *self.space(process) = Space::default();
        for (child, _) in cx.state.processes.iter() {
            if let Some(space) = self.processes.get_mut(usize::from(child.0)) {
                space.parent = space.parent.filter(|&parent| parent != process);
            }
        }
    }

    fn moved(&mut self, cx: &mut Context<'_>, moved: Moved) {
        self.leave(cx, moved.process, moved.page, moved.from);
    }

    fn pressure(&mut self, cx: &mut Context<'_>, want: PageCount) -> PageCount {
        let mut given = PageCount(0);
        while given < want
            && let Some(process) = self.random_process(cx)
        {
            given.0 += self.give_back(cx, process).0;
        }
        given
    }

    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        let all = cx.state.memory.frames().0;
        let limit = all * u64::from(self.config.threshold_permille) / 1000;
        while all - cx.state.memory.free_frames().0 > limit
            && let Some(process) = self.random_process(cx)
        {
            self.give_back(cx, process);
        }
        Ok(())
    }

    fn reserved(&self) -> PageCount {
        self.reserved
    }

    fn counters(&self) -> Vec<Counter> {
        list(&self.counters)
    }

    fn check_invariants(&self, state: &KernelState) {
        let mut reserved = 0;
        for (number, space) in self.processes.iter().enumerate() {
            for (group, reservation) in space.part.iter() {
                assert!(reservation.mapped != 0, "nothing of group {group:#x} of process {number} is mapped");
                assert!(!reservation.is_spent(), "group {group:#x} of process {number} is spent");
                assert_eq!(reservation.mapped & reservation.gone, 0, "{reservation:?}");
                reserved += u64::from(reservation.unmapped().count_ones());
                for place in (0..GROUP).filter(|place| reservation.unmapped() >> place & 1 != 0) {
                    let owner = state.memory.owner(reservation.base + place);
                    assert_eq!(owner, Owner::Reserved { process: number as u16 }, "{reservation:?}, place {place}");
                }
            }
        }
        assert_eq!(reserved, self.reserved.0, "frames set aside");
    }
}

/// Zeroes `frame` and maps it for the fault.
#[inline(always)]
fn map_from(cx: &mut Context<'_>, fault: &Fault, frame: Frame) -> Result<(), OsError> {
    cx.zero(FrameRange::single(frame))?;
    cx.map_fault(fault, frame)
}

#[cfg(test)]
mod tests;
