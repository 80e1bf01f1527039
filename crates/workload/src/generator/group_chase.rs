// SPDX-License-Identifier: MIT OR Apache-2.0
//! `group_chase`: what `nestwalk probe` does on the machine, for the simulator ([`crate::chase`]).
//!
//! Pages are touched first in the order of the frames that they shall have: on fresh memory a
//! kernel hands frames out in ascending order, so the layout comes about by itself (a run's
//! `host_pt_fragmentation` says whether it did).

use nestwalk_mem::{Access, Dependence, PageCount, Vpn};

use super::config::parameters;
use super::memory::{MmapArea, Region};
use super::program::Program;
use crate::chase::{Layout, Order, Spread, Visits, offset};
use crate::stream::WorkloadError;

/// Instructions of a step (assumed): the load, a count and a branch.
const INSTRUCTIONS_PER_STEP: u64 = 3;

parameters! {
    /// Dependent loads, one a page, over frames laid out on purpose.
    GroupChaseConfig {
        /// The lines of the host's table on which the frames of a group of 8 pages lie.
        layout: Spread = Spread::Lines1,
        /// Whether the pages of a group are visited one after the other, or all pages at random.
        order: Order = Order::Grouped,
    }
}

pub(super) struct GroupChase {
    region: Region,
    layout: Layout,
    visits: Visits,
    touched: u64,
    step: u64,
}

impl GroupChase {
    pub(super) fn new(config: &GroupChaseConfig) -> Result<Self, WorkloadError> {
        config.common().check(Self::NAME)?;
        let step = config.layout.pages_step();
        let pages = config.footprint.0 / step * step;
        Ok(Self {
            region: MmapArea::new().map(PageCount(pages)),
            layout: Layout::new(pages, config.layout, config.seed),
            visits: Visits::new(pages, config.order, config.seed),
            touched: 0,
            step: 0,
        })
    }
}

impl Program for GroupChase {
    const NAME: &'static str = "group_chase";
    const TELLS_DEPENDENCES: bool = true;

    fn regions(&self) -> Vec<Region> {
        vec![self.region]
    }

    fn footprint(&self) -> PageCount {
        PageCount(self.visits.pages())
    }

    fn touch(&mut self, _thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        let room = (most - touches.len()) as u64;
        let end = self.visits.pages().min(self.touched + room);
        touches.extend((self.touched..end).map(|frame| (self.region.pages.start + self.layout.page_of(frame), true)));
        self.touched = end;
    }

    fn fill(&mut self, _thread: u16, accesses: &mut Vec<Access>, most: usize) -> u64 {
        let room = most - accesses.len();
        accesses.extend((0..room).map(|_| {
            let page = self.visits.page(self.step);
            self.step = if self.step + 1 == self.visits.pages() { 0 } else { self.step + 1 };
            Access::load(self.region.at(page * 4096 + offset(page))).depending(Dependence::After)
        }));
        room as u64 * INSTRUCTIONS_PER_STEP
    }
}
