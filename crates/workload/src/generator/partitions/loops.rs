// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's loops, by GPOP's names: what each refers to.

use nestwalk_mem::{Access, Gva};

use super::bins::{Array, part};
use super::run::Thread;
use super::steps::{Activity, Algorithm, Step, among, is_dense};
use super::tables::Table;
use super::{CHUNK, Partitions, WORD};

impl Partitions {
    /// Its first vertex, and how many it has.
    pub(super) fn members(&self, partition: u64) -> (u64, u64) {
        let first = partition * self.width;
        (first, self.width.min(self.adjacency.vertices() - first))
    }

    /// A word of one of a bin's arrays.
    fn word(&self, from: u64, to: u64, array: Array, index: u64) -> Gva {
        self.bin_memory.at(self.bins.word(from, to, array, index))
    }

    /// An entry of a table of bin `from` to `to`.
    fn table(&self, table: Table, from: u64, to: u64) -> Gva {
        self.table_memory.at(self.tables.entry(table, from, to))
    }

    fn flag(&self, vertex: u64) -> Gva {
        self.active.at(vertex)
    }

    /// Where a vertex' entry of the second array is: `visited` has a byte.
    fn second(&self, vertex: u64) -> Gva {
        let bytes = if self.algorithm == Algorithm::BreadthFirst { 1 } else { WORD };
        self.second.at(vertex * bytes)
    }

    /// What a vertex sends (`scatterFunc`).
    fn sent(&self, vertex: u64) -> Access {
        Access::load(match self.algorithm {
            Algorithm::PageRank | Algorithm::Components => self.values.at(WORD * vertex),
            Algorithm::BreadthFirst | Algorithm::Nibble => self.second(vertex),
        })
    }

    /// `sgIntra`: each vertex sends to the few neighbours in its own partition.
    pub(super) fn inner(&self, thread: &mut Thread, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        for member in thread.chunk(members) {
            accesses.extend([self.sent(first + member), Access::load(self.inner.at(WORD * (first + member)))]);
        }
        thread.at == members
    }

    /// `scatterPC`: the bins of a row, one after the other.
    pub(super) fn scatter_dense(&self, thread: &mut Thread, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        let updates = self.bins.updates(self.bins.edges(thread.place.partition, thread.bin));
        let before = self.bins.sender(thread.place.partition, thread.bin);
        for update in thread.chunk(updates) {
            accesses.extend([
                Access::load(self.senders.at(WORD * (before + update))),
                // Senders ascend.
                self.sent(first + update * members / updates),
                Access::store(self.word(thread.place.partition, thread.bin, Array::Updates, update)),
            ]);
        }
        if thread.at < updates {
            return false;
        }
        (thread.bin, thread.at) = (thread.bin + 1, 0);
        thread.bin == self.bins.count
    }

    /// `scatterVC`: the lists of active vertices, in the order in which they were found.
    pub(super) fn scatter_sparse(&self, thread: &mut Thread, step: &Step, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        let Activity { candidates, longest } = self.activity[thread.place.step];
        let candidates = part(members, candidates);
        let candidate = |at: u64| first + self.order.apply(at) % members;
        let length = |(from, to): (u64, u64)| to - from;
        if thread.list.is_none() {
            while thread.at < candidates && length(self.adjacency.edges_of(candidate(thread.at))) > longest {
                thread.at += 1;
            }
            if thread.at >= candidates {
                return true;
            }
        }
        let mut list = thread.list.take().unwrap_or_else(|| {
            let vertex = candidate(thread.at);
            let place = thread.at * part(members, step.vertices) / candidates;
            accesses.extend([Access::load(self.frontier.at(WORD * (first + place))), self.sent(vertex)]);
            accesses.extend([vertex, vertex + 1].map(|at| Access::load(self.offsets.at(WORD * at))));
            thread.at += 1;
            self.adjacency.list(vertex)
        });
        let vertex = candidate(thread.at - 1);
        for _ in 0..CHUNK {
            let Some((edge, target)) = list.next(&self.adjacency) else { break };
            let (row, bin) = (thread.place.partition, target / self.width);
            let load = |table| Access::load(self.table(table, row, bin));
            let store = |table| Access::store(self.table(table, row, bin));
            accesses.extend([load(Table::Edges), Access::load(self.edges.at(WORD * edge)), load(Table::Shift)]);
            accesses.extend([Table::Frame; 3].map(load));
            accesses.extend([load(Table::Updates), load(Table::UpdateCount), store(Table::UpdateCount)]);
            accesses.extend([load(Table::Written), load(Table::WrittenCount), store(Table::WrittenCount)]);
            // As full as the bin is by now.
            let filled = part(self.bins.edges(thread.place.partition, bin), step.edges);
            if filled > 0 {
                let place = filled * (thread.at - 1) / candidates;
                let update = self.bins.updates(place + 1) - 1;
                accesses.push(Access::store(self.word(row, bin, Array::Updates, update)));
                accesses.push(Access::store(self.word(row, bin, Array::Written, place)));
            }
            accesses.extend([Table::Flags, Table::Partition, Table::FlagRow, Table::Flag].map(load));
            // Where the list ends is looked up again, as it might have been stored to.
            accesses.push(Access::load(self.offsets.at(WORD * (vertex + 1))));
        }
        thread.list = (!list.is_done()).then_some(list);
        false
    }

    /// `initFunc` of all vertices, or of those that were active.
    pub(super) fn settle(&self, thread: &mut Thread, step: &Step, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        if self.algorithm == Algorithm::PageRank {
            let range = thread.chunk(members);
            accesses.extend(range.map(|member| Access::store(self.values.at(WORD * (first + member)))));
            return thread.at == members;
        }
        let active = part(members, if is_dense(step, thread.place.partition) { 1_000_000 } else { step.vertices });
        for place in thread.chunk(active) {
            let vertex = first + self.order.apply(place) % members;
            accesses.extend([Access::load(self.frontier.at(WORD * (first + place))), Access::store(self.flag(vertex))]);
            if self.algorithm == Algorithm::Nibble {
                let value = self.values.at(WORD * vertex);
                accesses.extend([Access::load(value), Access::store(value), Access::store(self.second(vertex))]);
                accesses.push(Access::load(self.degrees.at(WORD * vertex)));
            }
        }
        thread.at == active
    }

    /// `gatherPC`, `gatherDense`: what the bins of a column hold, from `thread.bin` to `end`.
    pub(super) fn gather(&self, thread: &mut Thread, step: &Step, end: u64, accesses: &mut Vec<Access>) -> bool {
        if thread.bin >= end {
            return true;
        }
        let (column, row) = (thread.place.partition, thread.bin);
        let (first, members) = self.members(column);
        let own = self.bins.edges(row, column);
        let dense = is_dense(step, row);
        let (edges, array) = if dense { (own, Array::Targets) } else { (part(own, step.edges), Array::Written) };
        let last = self.bins.updates(edges).max(1) - 1;
        if thread.at == 0 {
            thread.update = 0;
            thread.run.clear();
        }
        for place in thread.chunk(edges) {
            if thread.run.is_empty() {
                self.next_run(thread, first, (edges - place).min(members));
            }
            let target = first + u64::from(thread.run.pop().expect("a run has targets"));
            let update = thread.update.min(last);
            thread.update += u64::from(thread.run.is_empty());
            accesses.extend([
                Access::load(self.word(row, column, array, place)),
                Access::load(self.word(row, column, Array::Updates, update)),
            ]);
            self.receive(thread, step, first, members, target, accesses);
        }
        if thread.at == edges {
            (thread.bin, thread.at) = (row + 1, 0);
        }
        thread.bin >= end
    }

    /// The targets of the next update: at most `most` in the partition at `first`, ascending.
    fn next_run(&self, thread: &mut Thread, first: u64, most: u64) {
        let runs = &self.bins.runs;
        let length = u64::from(runs[thread.dice.below(runs.len() as u64) as usize]).min(most);
        let draw = |_| (self.adjacency.popular_within(first, self.width, thread.dice.below(u64::MAX)) - first) as u32;
        thread.run.extend((0..length).map(draw));
        thread.run.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// An update reaches its target (`gatherFunc`).
    fn receive(
        &self,
        thread: &mut Thread,
        step: &Step,
        first: u64,
        members: u64,
        target: u64,
        accesses: &mut Vec<Access>,
    ) {
        let value = self.values.at(WORD * target);
        let random = thread.dice.below(u64::MAX);
        let changes = among(step.changes, random);
        match self.algorithm {
            Algorithm::PageRank => {
                accesses.extend([Access::load(value), Access::store(value)]);
                return;
            }
            Algorithm::Nibble => accesses.extend([Access::load(value), Access::store(value)]),
            Algorithm::Components => {
                accesses.push(Access::load(value));
                if changes {
                    accesses.push(Access::store(value));
                }
            }
            Algorithm::BreadthFirst => {
                accesses.push(Access::load(self.second(target)));
                if changes {
                    accesses.extend([Access::store(value), Access::store(self.second(target))]);
                }
            }
        }
        accesses.push(Access::load(self.flag(target)));
        // Who changes has been drawn: of those, the ones that become active.
        if among(step.activates, random) {
            let partition = self.table(Table::Partition, thread.place.partition, 0);
            accesses.extend([Access::load(partition), Access::store(partition), Access::load(partition)]);
            accesses.push(Access::store(self.frontier.at(WORD * (first + thread.found % members))));
            accesses.push(Access::store(self.flag(target)));
            thread.found += 1;
        }
    }

    /// `filterFunc` of all vertices, or of those that became active.
    pub(super) fn filter(&self, thread: &mut Thread, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        let count = if self.algorithm == Algorithm::PageRank { members } else { thread.found.min(members) };
        for place in thread.chunk(count) {
            if self.algorithm == Algorithm::PageRank {
                let value = self.values.at(WORD * (first + place));
                let degree = self.degrees.at(WORD * (first + place));
                accesses.extend([Access::load(value), Access::load(degree), Access::store(value)]);
                continue;
            }
            let vertex = first + self.order.apply(place) % members;
            let listed = self.frontier.at(WORD * (first + place));
            accesses.extend([Access::load(listed), Access::store(self.flag(vertex))]);
            accesses.extend([Access::load(self.degrees.at(WORD * vertex)), Access::store(listed)]);
            if self.algorithm == Algorithm::Nibble {
                accesses.extend([Access::load(self.values.at(WORD * vertex)), Access::store(self.second(vertex))]);
            }
        }
        thread.at == count
    }

    /// A new run of the program: values as in the beginning.
    pub(super) fn reset(&self, thread: &mut Thread, accesses: &mut Vec<Access>) -> bool {
        let (first, members) = self.members(thread.place.partition);
        for member in thread.chunk(members) {
            let vertex = first + member;
            accesses.push(Access::store(self.values.at(WORD * vertex)));
            match self.algorithm {
                // All vertices are active (`loadFrontier`).
                Algorithm::Components => accesses.extend([
                    Access::store(self.flag(vertex)),
                    Access::store(self.frontier.at(WORD * vertex)),
                    Access::load(self.degrees.at(WORD * vertex)),
                ]),
                _ => accesses.push(Access::store(self.second(vertex))),
            }
        }
        thread.at == members
    }
}
