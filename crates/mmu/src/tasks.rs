// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks that were put off, and the list of host walks that they come down to: what the
//! [stages](crate::stages) hand to each other.

use nestwalk_mem::{Gva, Level, NodeId, Vpn};

use crate::events::WalkEvents;
use crate::leaf::index_of;
use crate::memo::{LEVELS, LINE_ENTRIES_ORDER, Lines, Memo, NodeRecord, Prepared};
use crate::tape::{Reference, Tape};

/// A walk that was put off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    pub gva: Gva,
    pub node: NodeId,
    /// The guest's frame of the data.
    pub gfn: u32,
    /// Which of the other references is that of its access: all before it come before the walk.
    pub other: u32,
}

/// A host walk and the reference after it; or other references, between two walks.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Task {
    /// What there is to read.
    pub lines: Lines,
    /// The guest's entry, or the data.
    pub after: Reference,
    /// The host's page.
    pub page: Vpn,
    /// What its references have in common: the host's bit, and the code of the guest's level.
    pub step: Reference,
    /// The walk.
    pub walk: u32,
    pub kind: u32,
}

impl Task {
    /// Flag: accessed and dirty bits of the node's page must be set in the host's table. The node's
    /// number is in the bits above the flags.
    pub const UNMARKED: u32 = 1;
    /// Flag: this is no walk: `page` and `walk` are the range of the other references.
    pub const OTHERS: u32 = 2;
    /// Flag: the first task of its walk. Only kept where something prefetches.
    pub const FIRST: u32 = 4;
    pub const NODE: u32 = 3;

    #[inline(always)]
    pub fn others(begin: u32, end: u32) -> Self {
        Self { page: Vpn(begin.into()), walk: end, kind: Self::OTHERS, ..Self::default() }
    }

    /// The host walk to `node` of the guest, and its entry for `page` at `level`.
    #[inline(always)]
    pub fn node(memo: &Memo, (node, record): (NodeId, NodeRecord), page: Vpn, level: Level, walk: u32) -> Self {
        let line = record.first_line + (index_of(page, level) >> LINE_ENTRIES_ORDER) as u32;
        Self {
            lines: record.host_lines,
            after: Reference::of_line(line, WalkEvents::step_code(level.0, 0)),
            page: memo.host_page(record.gfn.into()),
            step: Reference::of_line(0, WalkEvents::step_code(level.0, 0)).of_host(),
            walk,
            kind: node.0 << Self::NODE | u32::from(record.is_unmarked()),
        }
    }
}

/// What was put off, and the lists between the stages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    pub walks: Vec<Walk>,
    /// The references of the batch that belong to no walk.
    pub others: Tape,
    /// How many of them are in tasks.
    pub others_done: usize,
    pub tasks: Vec<Task>,
    pub task_count: usize,
}

impl Pending {
    /// Whether a walk was put off.
    #[inline(always)]
    pub fn has_walks(&self) -> bool {
        !self.walks.is_empty()
    }

    /// The walk of the next access is put off.
    #[inline(always)]
    pub fn push(&mut self, gva: Gva, prepared: &Prepared) {
        let &Prepared { node, gfn, .. } = prepared;
        self.walks.push(Walk { gva, node, gfn, other: self.others.len() as u32 });
    }
}

/// Tasks that are written one after the other, each of which may be written over by the next.
pub(crate) struct TaskList<'a> {
    pub tasks: &'a mut [Task],
    pub count: usize,
}

impl TaskList<'_> {
    /// Writes `task`, and keeps it if it is `wanted`.
    #[inline(always)]
    pub fn push(&mut self, task: Task, wanted: bool) {
        debug_assert!(self.count < self.tasks.len());
        // SAFETY: there is room for `TASKS_MAX` of each walk, see `WalkUnit::guest_stage`.
        unsafe { *self.tasks.get_unchecked_mut(self.count) = task };
        self.count += usize::from(wanted);
    }
}

/// Tasks of a walk: one for each level, the data's, and other references before it.
pub(crate) const TASKS_MAX: usize = LEVELS + 2;
