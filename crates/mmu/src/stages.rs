// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nested walks in stages over a batch. A walk does the same as in [`nested`](crate::nested), but
//! all walks of the batch finish one stage before any begins the next.
//!
//! 1. *Resolve and TLBs* ([`run`](crate::run)): on a TLB miss the translation is read from the
//!    tables without a walk and put into the TLBs, where the next access finds it. A walk that may
//!    end in a page fault is not deferred: it ends the batch and is done at once.
//! 2. *Guest*: each walk looks up the guest's page-walk caches. That determines the host walks that
//!    it needs: a list of [tasks](Task), written without a branch on their number.
//! 3. *Host*: each task looks up the host's page-walk caches and records its references on the
//!    [tape](crate::tape).
//! 4. *Replay* ([`play`](crate::play)).
//!
//! A flat walk, through one table, needs no list of tasks: its page-walk caches and its references
//! are one stage.
//!
//! No stage depends on a later one: the lines that a walk references do not depend on which cache
//! level serves them, and the guest's and the host's page-walk caches are independent.

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Gpa, Level, NodeId, Va, Vpn};

use crate::accelerator::Accelerator;
use crate::accelerator::prefetch::Issue;
use crate::events::{Table, WalkEvents};
use crate::memo::{LEVELS, Lines, Memo};
use crate::simd::Simd;
use crate::tape::{Reference, WalkSpan};
use crate::tasks::{Pending, TASKS_MAX, Task, TaskList};
use crate::walk_unit::WalkUnit;

/// The root's level of tables that are walked in stages.
pub(crate) const ROOT: Level = Level(LEVELS as u8);

/// Fetches ahead what the walks of the next batch need of the simulation's own memory, one walk at
/// a time.
pub(crate) trait FetchAhead {
    /// The first stage for the next walk; false if there is none left.
    fn first(&mut self) -> bool;

    /// The second stage for the next walk that went through the first.
    fn second(&mut self) -> bool;
}

/// Codes of the host's levels, in the order of a task's lines.
const HOST_CODES: [u64; 2 * LEVELS] = {
    let mut codes = [0; 2 * LEVELS];
    let mut place = 0;
    while place < LEVELS {
        codes[place] = WalkEvents::step_code(0, (LEVELS - place) as u8) as u64;
        place += 1;
    }
    codes
};

/// The same of the levels of a flat walk's only table, which counts as the guest's.
const FLAT_CODES: [u8; LEVELS] = [
    WalkEvents::step_code(4, 0),
    WalkEvents::step_code(3, 0),
    WalkEvents::step_code(2, 0),
    WalkEvents::step_code(1, 0),
];

/// Writes references one after the other, within the places that [`Tape::parts`] has made sure of.
struct Writer<'a> {
    places: &'a mut [Reference],
    len: usize,
}

impl Writer<'_> {
    #[inline(always)]
    fn push(&mut self, reference: Reference) {
        debug_assert!(self.len < self.places.len());
        // SAFETY: `Tape::parts` has made sure of all references of all tasks.
        unsafe { *self.places.get_unchecked_mut(self.len) = reference };
        self.len += 1;
    }

    /// The references of the host walk of `task`, which has `left` levels to read (one less, if it
    /// ends at a large leaf): always as many as there are levels, of which those beyond are written
    /// over.
    #[inline(always)]
    fn push_step(&mut self, task: &Task, left: usize, is_large: bool) {
        debug_assert!((1..=LEVELS).contains(&left) && self.len + LEVELS <= self.places.len());
        let skip = (LEVELS - left) % LEVELS;
        // SAFETY: `skip` is less than `LEVELS`, so these are lines of the task and what comes
        // behind them in it. There is room, as in `push`.
        let (lines, places) = unsafe {
            let lines = std::ptr::from_ref(task).cast::<u32>().add(skip).cast::<[u32; LEVELS]>();
            let places = self.places.as_mut_ptr().add(self.len).cast::<[Reference; LEVELS]>();
            (lines.read_unaligned(), &mut *places)
        };
        let codes: &[u64; LEVELS] = HOST_CODES[skip..][..LEVELS].try_into().expect("as many as there are levels");
        for (place, reference) in places.iter_mut().enumerate() {
            *reference = task.step.at(lines[place], codes[place]);
        }
        self.len += left - usize::from(is_large);
    }
}

impl<P: Accelerator> WalkUnit<P> {
    /// Does all walks that were put off, whose nodes are prepared in `memo`. Whether
    /// [`WalkUnit::unmarked`] has something.
    #[inline(always)]
    pub(crate) fn run_stages<S: Simd>(&mut self, simd: S, memo: &Memo, mut ahead: impl FetchAhead) -> bool {
        let first = self.tape.walks.len();
        self.guest_stage(simd, memo, &mut ahead);
        let unmarked = if P::ACTIVE {
            self.host_stage_with_prefetches(simd, first, memo.host_page(0))
        } else if memo.has_large() {
            self.host_stage::<S, true>(simd, first, &mut ahead)
        } else {
            self.host_stage::<S, false>(simd, first, &mut ahead)
        };
        self.pending.walks.clear();
        unmarked
    }

    /// The same of flat walks, whose nodes are prepared in `memo`.
    #[inline(always)]
    pub(crate) fn run_flat_stage<S: Simd>(&mut self, simd: S, memo: &Memo, mut ahead: impl FetchAhead) {
        let Pending { walks, others, others_done, .. } = &mut self.pending;
        let others = &others.references()[..others.len()];
        let (places, tape_len, spans) = self.tape.parts(walks.len() * LEVELS + others.len());
        let mut tape = Writer { places, len: *tape_len };
        let mut left_counts = [0_u64; LEVELS + 1];
        let lookup_cycles = self.guest_pwc.lookup_cycles();
        let segment_cycles = memo.segment_cycles();
        let (mut done, mut translations) = (0, 0);
        let mut lookups = self.guest_pwc.lookups();
        for walk in walks.drain(..) {
            let (other, page) = (walk.other as usize, Va::from(walk.gva).page());
            others[done..other].iter().for_each(|&other| tape.push(other));
            ahead.first();
            ahead.second();
            let left = lookups.levels_left(simd, page, false);
            left_counts[left] += 1;
            let begin = tape.len as u32;
            let Lines(lines) = memo.flat_lines(walk.node, page);
            for (&line, &code) in lines.iter().zip(&FLAT_CODES).skip(LEVELS - left) {
                tape.push(Reference::of_line(line, code));
            }
            let translated = left as u64 + 1;
            translations += translated;
            let guest_lookup_cycles = lookup_cycles + translated as u32 * segment_cycles.unwrap_or(0);
            spans.push(WalkSpan { begin, end: tape.len as u32, guest_lookup_cycles, host_lookup_cycles: 0 });
            tape.push(others[other]);
            done = other + 1;
        }
        lookups.finish();
        *tape_len = tape.len;
        *others_done = done;
        if segment_cycles.is_some() {
            self.counters.walk_events.0[usize::from(WalkEvents::segments_code())] += translations;
        }
        if self.guest_pwc.exists() {
            self.count_lookups(Table::Guest, &left_counts);
        }
    }

    /// Puts what is left of the other references onto the tape.
    #[inline(always)]
    pub(crate) fn finish_others(&mut self) {
        let Pending { others, others_done, .. } = &mut self.pending;
        let done = std::mem::take(others_done);
        if done == 0 && self.tape.len() == 0 {
            self.tape.take(others);
            return;
        }
        self.tape.extend(&others.references()[done..others.len()]);
        others.clear();
    }

    /// Looks in the guest's page-walk caches, and makes a list of tasks of all walks.
    #[inline(always)]
    fn guest_stage<S: Simd>(&mut self, simd: S, memo: &Memo, ahead: &mut impl FetchAhead) {
        let Pending { walks, others, others_done, tasks, task_count } = &mut self.pending;
        if tasks.len() < walks.len() * TASKS_MAX {
            tasks.resize(walks.len() * TASKS_MAX, Task::default());
        }
        let mut list = TaskList { tasks, count: 0 };
        let mut left_counts = [0_u64; LEVELS + 1];
        let guest_lookup_cycles = self.guest_pwc.lookup_cycles();
        let host_latency = self.host_pwc.lookup_cycles();
        let others = others.references();
        let mut done = 0;
        let mut lookups = self.guest_pwc.lookups();
        for (number, walk) in (0..).zip(walks.iter()) {
            if walk.other > done {
                list.push(Task::others(done, walk.other), true);
            }
            ahead.first();
            let page = Va::from(walk.gva).page();
            let first = list.count;
            let left = lookups.levels_left(simd, page, false);
            left_counts[left] += 1;
            self.tape.walks.push(WalkSpan {
                begin: 0,
                end: 0,
                guest_lookup_cycles,
                host_lookup_cycles: host_latency * (left as u32 + 1),
            });
            let (node1, record1) = (walk.node, memo.node(walk.node));
            let (node2, record2) = (record1.parent(), memo.node(record1.parent()));
            let (node3, record3) = (record2.parent(), memo.node(record2.parent()));
            if left > 3 {
                let record4 = memo.node(record3.parent());
                list.push(Task::node(memo, (record3.parent(), record4), page, Level(4), number), true);
            }
            list.push(Task::node(memo, (node3, record3), page, Level(3), number), left > 2);
            list.push(Task::node(memo, (node2, record2), page, Level(2), number), left > 1);
            list.push(Task::node(memo, (node1, record1), page, Level(1), number), true);
            let host_page = memo.host_page(walk.gfn.into());
            let data = Task {
                lines: memo.host_lines(host_page),
                after: others[walk.other as usize],
                page: host_page,
                step: Reference::of_line(0, WalkEvents::step_code(0, 0)).of_host(),
                walk: number,
                kind: 0,
            };
            list.push(data, true);
            if P::ACTIVE {
                list.tasks[first].kind |= Task::FIRST;
            }
            done = walk.other + 1;
        }
        lookups.finish();
        *task_count = list.count;
        *others_done = done as usize;
        if self.guest_pwc.exists() {
            self.count_lookups(Table::Guest, &left_counts);
        }
    }

    /// Does all tasks; the walks' spans on the tape begin with the one at `first`. Whether a node
    /// is unmarked. If not `LARGE`, none ends at a large leaf, and is not asked.
    #[inline(always)]
    fn host_stage<S: Simd, const LARGE: bool>(&mut self, simd: S, first: usize, ahead: &mut impl FetchAhead) -> bool {
        let Pending { others, tasks, task_count, .. } = &mut self.pending;
        let (tasks, others) = (&tasks[..*task_count], &others.references()[..others.len()]);
        let (places, tape_len, spans) = self.tape.parts(tasks.len() * (LEVELS + 1) + LEVELS + others.len());
        // One more than there are walks: where the next walk begins is written with each task.
        spans.push(WalkSpan::default());
        let mut tape = Writer { places, len: *tape_len };
        let mut left_counts = [0_u64; LEVELS + 1];
        let mut kinds = 0;
        let mut next = first;
        spans[next].begin = tape.len as u32;
        let mut lookups = self.host_pwc.lookups();
        for (number, task) in tasks.iter().enumerate() {
            kinds |= task.kind;
            if task.kind == Task::OTHERS {
                others[task.page.0 as usize..task.walk as usize].iter().for_each(|&other| tape.push(other));
                spans[next].begin = tape.len as u32;
                continue;
            }
            // One in four, as there are about four to a walk.
            if number % 4 == 0 {
                ahead.second();
            }
            let is_large = LARGE && task.lines.is_large();
            let left = lookups.levels_left(simd, task.page, is_large);
            left_counts[left] += 1;
            tape.push_step(task, left, is_large);
            // The last task of a walk is the last to write here.
            let walk = first + task.walk as usize;
            spans[walk].end = tape.len as u32;
            tape.push(task.after);
            next = walk + 1;
            spans[next].begin = tape.len as u32;
        }
        lookups.finish();
        *tape_len = tape.len;
        spans.pop();
        if self.host_pwc.exists() {
            self.count_lookups(Table::Host, &left_counts);
        }
        kinds & Task::UNMARKED != 0
    }

    /// The same with what is prefetched.
    #[inline(always)]
    fn host_stage_with_prefetches<S: Simd>(&mut self, simd: S, first: usize, base: Vpn) -> bool {
        let guest_cycles = u64::from(self.guest_pwc.lookup_cycles());
        let host_cycles = u64::from(self.host_pwc.lookup_cycles());
        let Self { pending: Pending { others, tasks, task_count, walks, .. }, tape, accelerator, host_pwc, .. } = self;
        let mut left_counts = [0_u64; LEVELS + 1];
        let (mut kinds, mut wait) = (0, 0);
        let mut lookups = host_pwc.lookups();
        for task in &tasks[..*task_count] {
            kinds |= task.kind;
            if task.kind == Task::OTHERS {
                tape.extend(&others.references()[task.page.0 as usize..task.walk as usize]);
                continue;
            }
            let span = first + task.walk as usize;
            if task.kind & Task::FIRST != 0 {
                tape.walks[span].begin = tape.len() as u32;
                wait = 0;
                accelerator.walk_starts(walks[task.walk as usize].gva, &mut Issue { tape, wait: &mut wait });
                wait += guest_cycles;
            }
            let gpa = Gpa((task.page.0 - base.0) << PAGE_SHIFT);
            accelerator.host_walk_starts(gpa, &mut Issue { tape, wait: &mut wait });
            let is_large = task.lines.is_large();
            let left = lookups.levels_left(simd, task.page, is_large);
            left_counts[left] += 1;
            wait += host_cycles;
            let lines = &task.lines.0[..LEVELS - usize::from(is_large)];
            for (&line, &code) in lines.iter().zip(&HOST_CODES).skip(LEVELS - left) {
                tape.push(task.step.at(line, code).after(std::mem::take(&mut wait)));
            }
            tape.walks[span].end = tape.len() as u32;
            tape.push(task.after);
        }
        lookups.finish();
        if self.host_pwc.exists() {
            self.count_lookups(Table::Host, &left_counts);
        }
        kinds & Task::UNMARKED != 0
    }

    /// Counts look-ups in page-walk caches by the levels that they left to read.
    fn count_lookups(&mut self, table: Table, left_counts: &[u64; LEVELS + 1]) {
        for (left, count) in (0..).zip(left_counts) {
            let level = if left == LEVELS as u8 { 0 } else { left + 1 };
            self.counters.walk_events.0[usize::from(WalkEvents::pwc_code(table, level))] += count;
        }
    }

    /// Nodes of the walks done last whose pages' bits are to be set in the host's table.
    pub(crate) fn unmarked(&self) -> impl Iterator<Item = NodeId> {
        let tasks = &self.pending.tasks[..self.pending.task_count];
        let unmarked = tasks.iter().filter(|task| task.kind != Task::OTHERS && task.kind & Task::UNMARKED != 0);
        unmarked.map(|task| NodeId(task.kind >> Task::NODE))
    }
}
