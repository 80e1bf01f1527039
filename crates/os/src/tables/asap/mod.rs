// SPDX-License-Identifier: MIT OR Apache-2.0
//! ASAP's half of the kernel (Margaritov et al., MICRO-52, 2019, section 3): page-table nodes in
//! contiguous frames, sorted by address, so that hardware can compute where an entry lies.
//!
//! When a mapping is made, frames for all its nodes of the lowest levels are set aside in one
//! stretch, a *region* a level. A node comes into being when it is needed, and always at the place
//! that its address gives it: base + index. Regions are kept by address, not by mapping: a node
//! that two mappings share has one place, that of the region which was first, and hardware is told
//! of whole nodes' pages, so that both find it.
//!
//! A mapping that grows has its region extended at the next tick. Pages that are in the way are
//! moved; where something does not move, the region has a *hole*: that node lies elsewhere, and
//! only prefetches of it are in vain. Where another region is in the way, the growing one moves as
//! a whole. Extensions ask for as much again as there is, so that a heap that grows page by page
//! costs little. Nodes that were made meanwhile are moved to where they belong.
//!
//! In a VM the host is asked to make each new stretch contiguous in its memory, too.

mod grow;
mod region;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use nestwalk_mem::counters::{Counter, list};
use nestwalk_mem::{Frame, FrameRange, Level, MigrateType, Order, Owner, PageCount, VpnRange};
use serde::{Deserialize, Serialize};

use crate::below::{Hypercall, HypercallReply};
use crate::context::placement::{NodeKey, TableContext, TablePlacement, TableRegion};
use crate::error::OsError;
use crate::state::KernelState;
use crate::state::process::ProcessId;
use crate::state::vma::Vma;

use region::{Number, Region, Slot, node_order, numbers, pages_of};

/// Its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AsapConfig {
    /// How many levels lie in regions, from the PTEs up: 1 to 4. The root never does. The paper has
    /// two; a third is of use with five levels.
    pub levels: u8,
}

impl Default for AsapConfig {
    fn default() -> Self {
        Self { levels: 2 }
    }
}

impl AsapConfig {
    /// Whether all values are possible.
    ///
    /// # Errors
    /// Names the key and what would be right.
    pub(crate) fn check(self) -> Result<(), OsError> {
        match self.levels {
            1..=4 => Ok(()),
            levels => Err(OsError::Config { key: "tables.levels", what: format!("{levels}: give 1 to 4") }),
        }
    }
}

nestwalk_mem::counters! {
    /// What ASAP's placement counts.
    pub numbers AsapTableCounters {
        /// Regions of sorted nodes at the end.
        regions ["regions"],
        /// Frames that the regions have at the end.
        region_frames ["frames"],
        /// Places in the regions that have no frame at the end.
        holes ["frames"],
        /// Regions made.
        regions_made ["regions"],
        /// Regions that could not be made, for want of contiguous memory.
        regions_failed ["regions"],
        /// Regions moved to a larger place.
        regions_moved ["regions"],
        /// Times that a region was to grow where it was.
        extensions ["regions"],
        /// Frames that a region was to get and that were in use.
        frames_not_had ["frames"],
        /// Frames of regions given back.
        frames_given_back ["frames"],
        /// Nodes put in their place in a region.
        placed ["nodes"],
        /// Nodes of the sorted levels put elsewhere.
        placed_elsewhere ["nodes"],
        /// Nodes moved into a region that grew or moved.
        nodes_moved ["nodes"],
        /// Pages of programs moved to make room.
        pages_moved ["pages"],
        /// Requests for contiguous memory that the host granted.
        made_contiguous ["requests"],
        /// Requests for contiguous memory that the host refused.
        not_contiguous ["requests"],
    }
}

/// The regions of one process.
#[derive(Clone, Debug, Default)]
struct Space {
    /// Disjoint within a level; by level, then by address.
    regions: Vec<Region>,
    /// A mapping has grown since the last tick.
    grown: bool,
    /// What hardware is told: one for each region, in the same order.
    exported: Vec<TableRegion>,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Asap {
    config: AsapConfig,
    spaces: BTreeMap<ProcessId, Space>,
    /// The kernel below does not know the hypercall, or there is none.
    nobody_below: bool,
    generation: u64,
    /// Without those of the regions, which are counted when they are asked for.
    counters: AsapTableCounters,
}

impl Space {
    /// Where the region of `level` that holds node `number` is, or where it would be.
    fn position(&self, level: Level, number: Number) -> Result<usize, usize> {
        let at = self.regions.partition_point(|region| (region.level, region.end()) <= (level, number));
        match self.regions.get(at) {
            Some(region) if region.level == level && region.numbers().contains(&number) => Ok(at),
            _ => Err(at),
        }
    }

    /// The parts of `wanted` that no region holds.
    fn gaps(&self, level: Level, wanted: Range<Number>) -> Vec<Range<Number>> {
        let mut gaps = Vec::new();
        let mut at = wanted.start;
        for region in self.regions.iter().filter(|region| region.level == level) {
            if region.first >= wanted.end {
                break;
            }
            if region.first > at {
                gaps.push(at..region.first);
            }
            at = at.max(region.end());
        }
        if at < wanted.end {
            gaps.push(at..wanted.end);
        }
        gaps
    }

    fn insert(&mut self, region: Region) {
        let at = self.position(region.level, region.first).expect_err("regions do not overlap");
        self.regions.insert(at, region);
    }
}

/// Whether some mapping of `process` has pages under node `number`.
fn is_needed(state: &KernelState, process: ProcessId, number: Number, order: u32) -> bool {
    let pages = pages_of(&(number..number + 1), order);
    state.processes.get(process).is_ok_and(|space| space.vmas.within(pages).next().is_some())
}

impl Asap {
    /// Without regions yet.
    pub fn new(config: AsapConfig) -> Self {
        let (spaces, counters) = (BTreeMap::new(), AsapTableCounters::default());
        Self { config, spaces, nobody_below: false, generation: 0, counters }
    }

    /// The levels that lie in regions, each with log2 of the pages that a node covers.
    fn levels(&self, state: &KernelState, process: ProcessId) -> Vec<(Level, u32)> {
        let Ok(space) = state.processes.get(process) else { return Vec::new() };
        let geometry = space.table.geometry();
        (1..=self.config.levels.min(geometry.levels() - 1))
            .map(|level| (Level(level), node_order(geometry, Level(level))))
            .collect()
    }

    /// Contiguous frames, if memory is not short: from the buddy allocator (`alloc_pages_exact`),
    /// else by moving pages.
    fn reserve(&mut self, cx: &mut TableContext<'_>, process: ProcessId, count: u64) -> Option<FrameRange> {
        if cx.state.memory.free_frames().0 < cx.state.watermarks.low.0 + count {
            return None;
        }
        let before = cx.state.counters.migrated;
        let count = PageCount(count);
        let range =
            crate::context::migrate::alloc_contiguous(cx.state, cx.below, count, MigrateType::Unmovable, cx.cpu);
        self.counters.pages_moved += cx.state.counters.migrated - before;
        let range = range?;
        cx.state.memory.set_owners(range, Owner::Reserved { process: process.0 });
        Some(range)
    }

    /// A new region for the nodes `wanted`, and into it those that there are already.
    fn make(&mut self, cx: &mut TableContext<'_>, process: ProcessId, level: Level, wanted: Range<Number>) {
        let count = wanted.end - wanted.start;
        let Some(frames) = self.reserve(cx, process, count) else {
            self.counters.regions_failed += 1;
            return;
        };
        self.counters.regions_made += 1;
        let slots = vec![Slot::Reserved; count as usize];
        let mut region = Region { level, first: wanted.start, base: frames.start, below: None, slots };
        self.adopt(cx, process, &mut region, wanted);
        self.make_contiguous_below(cx, &mut region);
        self.spaces.entry(process).or_default().insert(region);
    }

    /// Asks the kernel below to make the region contiguous there (the paper's vmcall).
    fn make_contiguous_below(&mut self, cx: &mut TableContext<'_>, region: &mut Region) {
        region.below = None;
        if self.nobody_below {
            return;
        }
        match cx.hypercall(Hypercall::MakeContiguous(region.frames())) {
            HypercallReply::Unsupported => self.nobody_below = true,
            HypercallReply::Done { base, .. } => {
                region.below = base;
                *if base.is_some() { &mut self.counters.made_contiguous } else { &mut self.counters.not_contiguous } +=
                    1;
            }
        }
    }

    /// Frees what no node uses of `region`'s frames among `slots`.
    fn give_back(&mut self, cx: &mut TableContext<'_>, region: &Region, gone: impl Fn(Number) -> bool) {
        for (number, _) in region.iter().filter(|&(number, slot)| slot == Slot::Reserved && gone(number)) {
            cx.state.memory.free(region.frame(number), Order::PAGE, cx.cpu);
            self.counters.frames_given_back += 1;
        }
    }

    /// Cuts the regions of `process` that hold some node of `touched` down to what is needed still.
    fn trim(
        &mut self,
        cx: &mut TableContext<'_>,
        process: ProcessId,
        level: Level,
        order: u32,
        touched: Range<Number>,
    ) {
        let Some(space) = self.spaces.get_mut(&process) else { return };
        let concerned =
            |region: &Region| region.level == level && region.first < touched.end && touched.start < region.end();
        let (concerned, rest): (Vec<_>, Vec<_>) = space.regions.drain(..).partition(concerned);
        space.regions = rest;
        for region in concerned {
            let state = &*cx.state;
            let used = |number| region.slot(number) == Slot::Node || is_needed(state, process, number, order);
            // At the ends lies what was reserved for later growth: without a neighbour that is
            // needed, nothing grows there.
            let from = region.numbers().find(|&number| used(number)).unwrap_or(region.end());
            let to = (from..region.end()).rev().find(|&number| used(number)).map_or(from, |last| last + 1);
            let keep: Vec<bool> = region
                .numbers()
                .map(|number| (from..to).contains(&number) && (!touched.contains(&number) || used(number)))
                .collect();
            let keep = |number: Number| keep[(number - region.first) as usize];
            self.give_back(cx, &region, |number| !keep(number));
            let space = self.spaces.get_mut(&process).expect("it was there");
            region.kept(keep).into_iter().for_each(|part| space.insert(part));
        }
    }

    /// Tells what regions there are now.
    fn export(&mut self, state: &KernelState, process: ProcessId) {
        let (Some(space), Ok(owner)) = (self.spaces.get_mut(&process), state.processes.get(process)) else { return };
        let geometry = owner.table.geometry();
        let exported: Vec<_> = space.regions.iter().map(|region| region.export(geometry)).collect();
        if exported != space.exported {
            space.exported = exported;
            self.generation += 1;
        }
    }

    /// The region in which `node` belongs.
    fn region_of(&mut self, state: &KernelState, node: NodeKey) -> Option<(&mut Region, Number)> {
        let geometry = state.processes.get(node.process).ok()?.table.geometry();
        let number = node.first.0 >> node_order(geometry, node.level);
        let space = self.spaces.get_mut(&node.process)?;
        let at = space.position(node.level, number).ok()?;
        Some((&mut space.regions[at], number))
    }
}

impl TablePlacement for Asap {
    fn name(&self) -> &'static str {
        "asap"
    }

    fn place(&mut self, cx: &mut TableContext<'_>, node: NodeKey) -> Option<Frame> {
        if let Some((region, number)) = self.region_of(cx.state, node)
            && region.slot(number) == Slot::Reserved
        {
            region.set(number, Slot::Node);
            let frame = region.frame(number);
            self.counters.placed += 1;
            return Some(frame);
        }
        let frame = cx.state.alloc_kernel(cx.cpu)?;
        match self.region_of(cx.state, node) {
            // A place that was given back, and that the allocator happens to hand out again.
            Some((region, number)) if region.frame(number) == frame => {
                region.set(number, Slot::Node);
                self.counters.placed += 1;
            }
            _ => self.counters.placed_elsewhere += u64::from(node.level.0 <= self.config.levels),
        }
        Some(frame)
    }

    fn release(&mut self, cx: &mut TableContext<'_>, node: NodeKey, frame: Frame) {
        if let Some((region, number)) = self.region_of(cx.state, node)
            && region.slot(number) == Slot::Node
            && region.frame(number) == frame
        {
            region.set(number, Slot::Reserved);
            cx.state.memory.set_owner(frame, Owner::Reserved { process: node.process.0 });
            return;
        }
        cx.state.memory.free(frame, Order::PAGE, cx.cpu);
    }

    fn vma_created(&mut self, cx: &mut TableContext<'_>, process: ProcessId, vma: Vma) {
        for (level, order) in self.levels(cx.state, process) {
            let gaps = self.spaces.entry(process).or_default().gaps(level, numbers(vma.range, order));
            gaps.into_iter().for_each(|gap| self.make(cx, process, level, gap));
        }
        self.export(cx.state, process);
    }

    fn vma_grown(&mut self, _: &mut TableContext<'_>, process: ProcessId, _: Vma, _: Vma) {
        self.spaces.entry(process).or_default().grown = true;
    }

    fn vma_removed(&mut self, cx: &mut TableContext<'_>, process: ProcessId, pages: VpnRange) {
        for (level, order) in self.levels(cx.state, process) {
            self.trim(cx, process, level, order, numbers(pages, order));
        }
        self.export(cx.state, process);
    }

    fn exited(&mut self, cx: &mut TableContext<'_>, process: ProcessId) {
        let Some(space) = self.spaces.remove(&process) else { return };
        space.regions.iter().for_each(|region| self.give_back(cx, region, |_| true));
        self.generation += 1;
    }

    /// Extends the regions of mappings that have grown.
    fn tick(&mut self, cx: &mut TableContext<'_>) -> Result<(), OsError> {
        let grown: Vec<_> = self.spaces.iter().filter(|(_, space)| space.grown).map(|(&process, _)| process).collect();
        for process in grown {
            self.extend_all(cx, process);
            self.export(cx.state, process);
        }
        Ok(())
    }

    fn has_work(&self) -> bool {
        self.spaces.values().any(|space| space.grown)
    }

    fn pressure(&mut self, cx: &mut TableContext<'_>, want: PageCount) -> PageCount {
        let mut given = PageCount(0);
        let processes: Vec<_> = self.spaces.keys().copied().collect();
        for process in processes {
            let space = self.spaces.get_mut(&process).expect("it is one of them");
            // The ends first, where growth would come.
            for region in space.regions.iter_mut().rev() {
                for number in region.numbers().rev() {
                    if given < want && region.slot(number) == Slot::Reserved {
                        region.set(number, Slot::Hole);
                        cx.state.memory.free(region.frame(number), Order::PAGE, cx.cpu);
                        given.0 += 1;
                    }
                }
            }
            space.regions = space.regions.iter().flat_map(whole).collect();
            self.export(cx.state, process);
        }
        self.counters.frames_given_back += given.0;
        given
    }

    fn reserved(&self) -> PageCount {
        let regions = self.spaces.values().flat_map(|space| &space.regions);
        PageCount(regions.map(|region| region.iter().filter(|(_, slot)| *slot == Slot::Reserved).count() as u64).sum())
    }

    fn regions(&self, process: ProcessId) -> &[TableRegion] {
        self.spaces.get(&process).map_or(&[], |space| &space.exported)
    }

    fn regions_generation(&self) -> u64 {
        self.generation
    }

    fn counters(&self) -> Vec<Counter> {
        let regions = || self.spaces.values().flat_map(|space| &space.regions);
        list(&AsapTableCounters {
            regions: regions().count() as u64,
            region_frames: regions().map(Region::owned).sum(),
            holes: regions().map(|region| region.slots.len() as u64 - region.owned()).sum(),
            ..self.counters
        })
    }

    fn check_invariants(&self, state: &KernelState) {
        for (&process, space) in &self.spaces {
            self.check_space(state, process, space);
        }
    }
}

/// The region without holes at its ends; nothing if there is nothing else.
fn whole(region: &Region) -> Option<Region> {
    let filled = |slot: &Slot| *slot != Slot::Hole;
    let (from, last) = (region.slots.iter().position(filled)?, region.slots.iter().rposition(filled)?);
    region.kept(|number| (from..=last).contains(&((number - region.first) as usize))).pop()
}

impl Asap {
    fn check_space(&self, state: &KernelState, process: ProcessId, space: &Space) {
        let table = &state.processes.get(process).expect("regions of a process that is gone").table;
        let geometry = table.geometry();
        for pair in space.regions.windows(2) {
            let sorted = pair[0].level < pair[1].level || pair[0].end() <= pair[1].first;
            assert!(sorted, "regions of {process:?} overlap or are out of order");
        }
        let mut nodes = BTreeMap::new();
        table.for_each_node(|view| {
            let number = view.first_page.0 >> node_order(geometry, view.level);
            nodes.insert((view.level, number), view.frame);
        });
        for region in &space.regions {
            for (number, slot) in region.iter() {
                let node = nodes.get(&(region.level, number)).copied();
                let in_place = node == Some(region.frame(number));
                assert_eq!(slot == Slot::Node, in_place, "node {number} of {:?} of {process:?}", region.level);
                // A node that lies elsewhere has no place here.
                assert!(slot != Slot::Reserved || node.is_none(), "node {number} of {:?} lies elsewhere", region.level);
                if slot == Slot::Reserved {
                    let owner = Owner::Reserved { process: process.0 };
                    assert_eq!(state.memory.owner(region.frame(number)), owner, "the owner of a reserved frame");
                }
            }
        }
        let exported: Vec<_> = space.regions.iter().map(|region| region.export(geometry)).collect();
        assert_eq!(exported, space.exported, "what hardware is told of {process:?}");
    }
}
