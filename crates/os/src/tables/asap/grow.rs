// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regions grow with their mappings, and nodes move to where they belong.

use std::ops::Range;

use nestwalk_mem::{Frame, FrameRange, Level, NodeId, Order, Owner, PageCount, PageTable, Vpn, VpnRange};

use crate::context::placement::TableContext;
use crate::state::process::ProcessId;

use super::region::{Number, Region, Slot, node_order, numbers, pages_of};
use super::{Asap, whole};

/// At which end a region grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    /// Towards lower addresses.
    Low,
    /// Towards higher addresses.
    High,
}

/// The node of `level` that covers `page`, if there is one.
fn node_at(table: &mut PageTable, page: Vpn, level: Level) -> Option<NodeId> {
    if table.lowest_node(page).1 > level {
        return None;
    }
    table.ensure_node(page, level, |_, _| Err(())).ok()
}

impl Asap {
    /// Gives every node over the mappings of `process` a place in a region, as far as memory
    /// allows.
    pub(super) fn extend_all(&mut self, cx: &mut TableContext<'_>, process: ProcessId) {
        self.spaces.entry(process).or_default().grown = false;
        for (level, order) in self.levels(cx.state, process) {
            let Ok(space) = cx.state.processes.get(process) else { return };
            let wanted: Vec<_> = space.vmas.iter().map(|vma| numbers(vma.range, order)).collect();
            for (i, wanted_here) in wanted.iter().enumerate() {
                // Growth may go on up to the next mappings.
                let low = i.checked_sub(1).map_or(0, |before| wanted[before].end);
                let high = wanted.get(i + 1).map_or(u64::MAX >> order, |after| after.start);
                for gap in self.spaces.entry(process).or_default().gaps(level, wanted_here.clone()) {
                    self.fill(cx, process, level, gap, low..high);
                }
            }
        }
    }

    /// Finds place for the nodes `gap`: at the end of a region that is there, else in a new one. No
    /// growth leaves `limits`.
    fn fill(
        &mut self,
        cx: &mut TableContext<'_>,
        process: ProcessId,
        level: Level,
        gap: Range<Number>,
        limits: Range<Number>,
    ) {
        let space = self.spaces.entry(process).or_default();
        let neighbour = |number: Option<Number>| number.and_then(|number| space.position(level, number).ok());
        let (at, side) = match (neighbour(gap.start.checked_sub(1)), neighbour(Some(gap.end))) {
            (Some(at), _) => (at, Side::High),
            (None, Some(at)) => (at, Side::Low),
            (None, None) => return self.make(cx, process, level, gap),
        };
        let needed = gap.end - gap.start;
        let room = match side {
            Side::High => {
                let next = space.regions.get(at + 1).filter(|region| region.level == level).map(|region| region.first);
                next.unwrap_or(limits.end).min(limits.end.max(gap.end)) - gap.start
            }
            Side::Low => {
                let before = at.checked_sub(1).map(|i| &space.regions[i]).filter(|region| region.level == level);
                gap.end - before.map_or(limits.start, Region::end).max(limits.start.min(gap.start))
            }
        };
        let region = space.regions.remove(at);
        let ask = needed.max(region.slots.len() as u64).min(room.max(needed));
        let region = self.extend(cx, process, region, side, needed, ask);
        if let Some(region) = whole(&region) {
            self.spaces.entry(process).or_default().insert(region);
        }
    }

    /// Extends `region` by `ask` slots, of which `needed` are needed now.
    fn extend(
        &mut self,
        cx: &mut TableContext<'_>,
        process: ProcessId,
        mut region: Region,
        side: Side,
        needed: u64,
        ask: u64,
    ) -> Region {
        self.counters.extensions += 1;
        let spare = cx.state.memory.free_frames().0.saturating_sub(cx.state.watermarks.low.0);
        let ask = if spare < 2 * ask { needed } else { ask };
        if spare < ask {
            self.counters.frames_not_had += needed;
            return region;
        }
        let frames = match side {
            Side::High => FrameRange::new(region.frames().end(), PageCount(ask)),
            Side::Low => {
                let ask = ask.min(region.base.0);
                FrameRange::new(Frame(region.base.0 - ask), PageCount(ask))
            }
        };
        let before = cx.state.counters.migrated;
        let had = cx.alloc_at(frames);
        self.counters.pages_moved += cx.state.counters.migrated - before;
        let required = match side {
            Side::High => 0..needed.min(frames.count.0) as usize,
            Side::Low => frames.count.0.saturating_sub(needed) as usize..frames.count.0 as usize,
        };
        if self.is_blocked(cx, frames, &had, required.clone(), needed)
            && let Some(place) = self.reserve(cx, process, region.slots.len() as u64 + ask)
        {
            let had = frames.iter().zip(&had).filter(|(_, had)| **had);
            had.for_each(|(frame, _)| cx.state.memory.free(frame, Order::PAGE, cx.cpu));
            return self.move_to(cx, process, &region, side, ask, place);
        }
        let (frames, had, required) = cut_spare(cx, frames, had, required);
        let missing = had[required].iter().filter(|had| !**had).count() as u64;
        self.counters.frames_not_had += missing + needed.saturating_sub(frames.count.0);
        let owner = Owner::Reserved { process: process.0 };
        let had_frames = frames.iter().zip(&had).filter(|(_, had)| **had);
        had_frames.for_each(|(frame, _)| cx.state.memory.set_owner(frame, owner));
        let slots = had.into_iter().map(|had| if had { Slot::Reserved } else { Slot::Hole });
        let added = match side {
            Side::High => {
                let from = region.end();
                region.slots.extend(slots);
                from..region.end()
            }
            Side::Low => {
                region.slots.splice(0..0, slots);
                (region.first, region.base) = (region.first - frames.count.0, frames.start);
                region.first..region.first + frames.count.0
            }
        };
        self.adopt(cx, process, &mut region, added);
        // What is at the ends and could not be had is no part of it.
        let mut region = whole(&region).unwrap_or(region);
        self.make_contiguous_below(cx, &mut region);
        region
    }

    /// Whether a table node (or a place kept for one) or the end of memory is in the way of what is
    /// needed.
    fn is_blocked(
        &self,
        cx: &TableContext<'_>,
        frames: FrameRange,
        had: &[bool],
        required: Range<usize>,
        needed: u64,
    ) -> bool {
        let memory = &cx.state.memory;
        let blocks = |i: usize| {
            let frame = frames.start + i as u64;
            frame.0 >= memory.frames().0
                || matches!(memory.owner(frame), Owner::TableNode { .. } | Owner::Reserved { .. })
        };
        frames.count.0 < needed || required.into_iter().any(|i| !had[i] && blocks(i))
    }

    /// Moves `region` to `place`, which has room for `more` slots besides.
    fn move_to(
        &mut self,
        cx: &mut TableContext<'_>,
        process: ProcessId,
        region: &Region,
        side: Side,
        more: u64,
        place: FrameRange,
    ) -> Region {
        self.counters.regions_moved += 1;
        let first = if side == Side::Low { region.first - more } else { region.first };
        let slots = vec![Slot::Reserved; place.count.0 as usize];
        let mut moved = Region { level: region.level, first, base: place.start, below: None, slots };
        let all = moved.numbers();
        self.adopt(cx, process, &mut moved, all);
        self.give_back(cx, region, |_| true);
        self.make_contiguous_below(cx, &mut moved);
        moved
    }

    /// Moves the nodes among `wanted` that there are already to the places that are kept for them,
    /// and frees where they were.
    pub(super) fn adopt(
        &mut self,
        cx: &mut TableContext<'_>,
        process: ProcessId,
        region: &mut Region,
        wanted: Range<Number>,
    ) {
        for number in wanted {
            let Ok(space) = cx.state.processes.get_mut(process) else { return };
            let order = node_order(space.table.geometry(), region.level);
            let first = pages_of(&(number..number + 1), order).start;
            if region.slot(number) != Slot::Reserved {
                continue;
            }
            let Some(node) = node_at(&mut space.table, first, region.level) else { continue };
            let (from, to) = (space.table.node_frame(node), region.frame(number));
            let moved = move_node(cx, process, node, first, region.level, to);
            region.set(number, if moved { Slot::Node } else { Slot::Hole });
            self.counters.nodes_moved += u64::from(moved);
            cx.state.memory.free(if moved { from } else { to }, Order::PAGE, cx.cpu);
        }
    }
}

/// What is asked for besides the `required` frames ends where one could not be had: gives back what
/// lies beyond, so that later growth asks for it anew.
fn cut_spare(
    cx: &mut TableContext<'_>,
    frames: FrameRange,
    had: Vec<bool>,
    required: Range<usize>,
) -> (FrameRange, Vec<bool>, Range<usize>) {
    let from = had[..required.start].iter().rposition(|had| !had).map_or(0, |last| last + 1);
    let to = (required.end..had.len()).find(|&i| !had[i]).unwrap_or(had.len());
    let beyond = (0..from).chain(to..had.len()).filter(|&i| had[i]);
    beyond.for_each(|i| cx.state.memory.free(frames.start + i as u64, Order::PAGE, cx.cpu));
    let kept = FrameRange::new(frames.start + from as u64, PageCount((to - from) as u64));
    (kept, had[from..to].to_vec(), required.start - from..required.end - from)
}

/// Moves a node to the frame `to`. Whether what lies below allowed it.
fn move_node(cx: &mut TableContext<'_>, process: ProcessId, node: NodeId, first: Vpn, level: Level, to: Frame) -> bool {
    let Ok(space) = cx.state.processes.get_mut(process) else { return false };
    let parent = node_at(&mut space.table, first, level.up()).map(|parent| space.table.node_frame(parent));
    let parent = FrameRange::single(parent.expect("only a root has no parent, and roots do not move"));
    let copied = cx.below.copy(space.table.node_frame(node), to).and_then(|()| cx.below.touch(parent, true));
    if copied.is_err() {
        return false;
    }
    let order = node_order(space.table.geometry(), level);
    space.table.relocate(node, to);
    space.last_node = None;
    cx.state.memory.set_owner(to, Owner::TableNode { process: process.0 });
    cx.state.counters.nodes_moved += 1;
    let pages = VpnRange::new(first, PageCount(1 << order));
    cx.state.invalidations.pages(&mut cx.state.counters, process, pages, true);
    true
}
