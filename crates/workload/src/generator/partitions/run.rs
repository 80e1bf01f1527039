// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a thread is in the run of the program, and what follows.

use nestwalk_mem::Access;

use super::bins::{FirstTouches, Pass, part};
use super::steps::{Algorithm, is_dense};
use super::{CHUNK, Partitions};
use crate::generator::adjacency::List;
use crate::generator::bijection::Dice;

/// What a thread does to a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Edges within the partition, before anything is sent (components only).
    Inner,
    /// Bins of partitions that have sent already (components only, which does not wait for a step's
    /// end).
    Early,
    Scatter,
    /// What was active, or all values, made ready for the gather.
    Settle,
    Gather,
    /// What the gather made active, or all values, made ready for the next step.
    Filter,
    /// Between runs of the program: values reset.
    Reset,
}

/// A part of the program's run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Number of the step in [`Algorithm::steps`].
    pub(super) step: usize,
    pub(super) phase: Phase,
    pub(super) partition: u64,
}

/// A thread, where it is, and how far it is there.
pub(super) struct Thread {
    pub(super) dice: Dice,
    pub(super) index: u64,
    pub(super) place: Place,
    /// The bin of the partition's row or column, and the place in it.
    pub(super) bin: u64,
    pub(super) at: u64,
    /// The list of an active vertex.
    pub(super) list: Option<List>,
    /// Targets of the run that is being gathered, the next one last; and the number of its update.
    pub(super) run: Vec<u32>,
    pub(super) update: u64,
    /// Vertices that the gather has made active in this partition.
    pub(super) found: u64,
    /// Senders, targets; what the first steps fill.
    pub(super) touches: [FirstTouches; 3],
}

impl Thread {
    pub(super) fn new(dice: Dice, index: u64, place: Place) -> Self {
        Self {
            dice,
            index,
            place,
            bin: 0,
            at: 0,
            list: None,
            run: Vec::new(),
            update: 0,
            found: 0,
            touches: [Pass::Senders, Pass::Targets, Pass::Filled].map(|pass| FirstTouches::new(pass, index)),
        }
    }

    /// The places in `0..count` that this operation goes through.
    pub(super) fn chunk(&mut self, count: u64) -> std::ops::Range<u64> {
        let from = self.at.min(count);
        self.at = count.min(from + CHUNK);
        from..self.at
    }
}

impl Partitions {
    /// One operation, and what comes after it.
    pub(super) fn advance(&self, thread: &mut Thread, accesses: &mut Vec<Access>) {
        let steps = self.algorithm.steps();
        let step = &steps[thread.place.step];
        let done = match thread.place.phase {
            Phase::Inner => self.inner(thread, accesses),
            Phase::Early => self.gather(thread, step, thread.place.partition, accesses),
            Phase::Scatter if is_dense(step, thread.place.partition) => self.scatter_dense(thread, accesses),
            Phase::Scatter => self.scatter_sparse(thread, step, accesses),
            Phase::Settle => self.settle(thread, step, accesses),
            Phase::Gather => self.gather(thread, step, self.bins.count, accesses),
            Phase::Filter => self.filter(thread, accesses),
            Phase::Reset => self.reset(thread, accesses),
        };
        if !done {
            return;
        }
        thread.place = self.following(thread.place, thread.index);
        self.enter(thread);
    }

    /// Makes ready for the part of the run that begins.
    pub(super) fn enter(&self, thread: &mut Thread) {
        (thread.bin, thread.at) = (0, 0);
        if thread.place.phase == Phase::Gather {
            thread.found = 0;
            // What has been gathered early is not gathered again.
            thread.bin = if self.algorithm == Algorithm::Components { thread.place.partition } else { 0 };
        }
    }

    /// Where a thread's run begins.
    pub(super) fn beginning(&self, index: u64) -> Place {
        let phase = if self.algorithm == Algorithm::Components { Phase::Inner } else { Phase::Scatter };
        Place { step: 0, phase, partition: index }
    }

    /// The next partition of this phase, or else the phase that follows for the first one.
    fn following(&self, place: Place, index: u64) -> Place {
        let next = place.partition + self.stride;
        let last = next >= self.bins.count;
        let begin = self.beginning(index).phase;
        let mut step = place.step;
        let (phase, advances) = match place.phase {
            Phase::Inner => (Phase::Early, false),
            Phase::Early => (Phase::Scatter, false),
            Phase::Scatter => (Phase::Settle, false),
            Phase::Settle => (if last { Phase::Gather } else { begin }, true),
            Phase::Gather => (Phase::Filter, false),
            Phase::Filter if !last => (Phase::Gather, true),
            Phase::Filter => {
                step = (step + 1) % self.algorithm.steps().len();
                let ends = step == 0 && self.algorithm != Algorithm::PageRank;
                (if ends { Phase::Reset } else { begin }, true)
            }
            Phase::Reset => (if last { begin } else { Phase::Reset }, true),
        };
        let partition = match (advances, last) {
            (false, _) => place.partition,
            (true, false) => next,
            (true, true) => index,
        };
        Place { step, phase, partition }
    }

    /// About how many accesses a part of the run has.
    fn work(&self, place: Place) -> u64 {
        let steps = self.algorithm.steps();
        let (step, partition) = (&steps[place.step], place.partition);
        let (_, members) = self.members(partition);
        let received = |sources: std::ops::Range<u64>| -> u64 {
            let edges = |row| {
                let own = self.bins.edges(row, partition);
                if is_dense(step, row) { own } else { part(own, step.edges) }
            };
            4 * sources.map(edges).sum::<u64>()
        };
        let sent = || -> u64 { (0..self.bins.count).map(|bin| self.bins.edges(partition, bin)).sum() };
        let early = if self.algorithm == Algorithm::Components { partition } else { 0 };
        match place.phase {
            Phase::Inner => 2 * members,
            Phase::Early => received(0..early),
            Phase::Scatter if is_dense(step, partition) => 3 * self.bins.updates(sent()),
            Phase::Scatter => 4 * part(members, step.vertices) + 19 * part(sent(), step.edges),
            Phase::Settle | Phase::Filter => members,
            Phase::Gather => received(early..self.bins.count),
            Phase::Reset => 3 * members,
        }
    }

    /// Where each thread is when measuring begins: spread over a whole run, by its accesses, as a
    /// run is far longer than what is measured of it.
    pub(super) fn spread(&self, index: u64) -> Place {
        let begin = self.beginning(index);
        let after = |&place: &Place| Some(self.following(place, index)).filter(|&next| next != begin);
        let places = std::iter::successors(Some(begin), after);
        let works: Vec<(Place, u64)> = places.map(|place| (place, self.work(place))).collect();
        let all: u64 = works.iter().map(|(_, work)| work).sum();
        let mut left = all * (2 * index + 1) / (2 * self.stride);
        for (place, work) in works {
            if left < work {
                return place;
            }
            left -= work;
        }
        begin
    }
}
