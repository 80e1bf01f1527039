// SPDX-License-Identifier: MIT OR Apache-2.0
//! How often pages are used, small and huge ones (`osa_hpage_do_scan`).
//!
//! Each sample notes for each page whether it was used since the last one, in a history of eight
//! bits, and takes the accessed bit away. The score of a page goes 30 % of the way to the number of
//! ones, less 6 (`frequency_update`); from 0 on the page is hot. Besides, the sample counts what
//! [fairness](Sampling::neediest) goes by.
//!
//! In the authors' kernel the scores decide which pages are merged (KSM) and, in an experimental
//! mode, which are looked at; no huge page is made or split by them. Here they are counted, and
//! cost what a scan costs: its time, and the walks of pages whose accessed bits are gone.

use std::collections::BTreeMap;

use nestwalk_mem::{Entry, Level, Nanoseconds, PageSize, Vpn};

use crate::context::Context;
use crate::error::OsError;
use crate::manager::scan::{Anonymous, anonymous, block_from};
use crate::state::process::ProcessId;
use crate::state::vma::Vma;

/// What is known of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Use {
    /// The last eight samples, the latest in the highest bit.
    history: u8,
    score: i8,
    /// An accessed bit was taken away (`page_young`).
    young: bool,
}

impl Use {
    fn note(&mut self, used: bool) {
        self.history = self.history >> 1 | u8::from(used) << 7;
        self.young |= used;
        let now = self.history.count_ones() as i32 - 6;
        self.score = ((i32::from(self.score) * 70 + now * 30) / 100) as i8;
    }

    fn is_hot(self) -> bool {
        self.score >= 0
    }
}

/// Of all pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sample {
    pub hot: u64,
    pub idle: u64,
}

/// What is known of 2 MiB.
#[derive(Clone, Debug)]
enum Block {
    Huge(Use),
    Small(Box<[Use; 512]>),
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Sampling {
    /// None: never.
    sleep: Nanoseconds,
    wakes_at: Nanoseconds,
    blocks: BTreeMap<(ProcessId, Vpn), Block>,
    /// What each process had when it was looked at last.
    memory: BTreeMap<ProcessId, Anonymous>,
}

impl Sampling {
    pub(super) fn new(sleep_ms: u64) -> Self {
        let sleep = Nanoseconds::from_ms(sleep_ms);
        Self { sleep, wakes_at: sleep, blocks: BTreeMap::new(), memory: BTreeMap::new() }
    }

    /// Takes a sample, if it is time to. Between two of them programs must have run, so there is
    /// one a tick at most.
    pub(super) fn tick(
        &mut self,
        cx: &mut Context<'_>,
        allowed: impl Fn(&Vma) -> bool,
    ) -> Result<Option<Sample>, OsError> {
        if self.sleep == Nanoseconds::default() || cx.state.now < self.wakes_at {
            return Ok(None);
        }
        self.wakes_at = cx.state.now + self.sleep;
        let mut sample = Sample::default();
        let processes: Vec<ProcessId> = cx.state.processes.iter().map(|(process, _)| process).collect();
        for process in processes {
            self.memory.insert(process, anonymous(cx.state, process)?);
            let mut page = Vpn(0);
            while let Some(first) = block_from(&cx.state.processes.get(process)?.vmas, page, &allowed) {
                page = first + PageSize::Huge.pages();
                self.look(cx, process, first, &mut sample)?;
            }
        }
        cx.forget_marks();
        Ok(Some(sample))
    }

    /// Looks at the pages of the 2 MiB from `first` on.
    fn look(
        &mut self,
        cx: &mut Context<'_>,
        process: ProcessId,
        first: Vpn,
        sample: &mut Sample,
    ) -> Result<(), OsError> {
        let table = &mut cx.state.processes.get_mut(process)?.table;
        let (node, level) = table.lowest_node(first);
        let huge = level == Level::PMD && table.entry_for(node, level, first).is_present();
        if level > Level::PTE && !huge {
            self.blocks.remove(&(process, first));
            return Ok(());
        }
        let block = self.blocks.entry((process, first)).or_insert(Block::Huge(Use::default()));
        let mut note = |page: &mut Use, used: bool| {
            page.note(used);
            sample.hot += u64::from(page.is_hot());
            sample.idle += u64::from(!used);
        };
        if huge {
            let used = table.entry_for(node, level, first).has(Entry::ACCESSED);
            table.update(first, |entry| entry.without(Entry::ACCESSED));
            let mut page = if let Block::Huge(page) = *block { page } else { Use::default() };
            note(&mut page, used);
            *block = Block::Huge(page);
            cx.state.counters.pages_scanned += 1;
            return Ok(());
        }
        if let Block::Huge(_) = block {
            *block = Block::Small(Box::new([Use::default(); 512]));
        }
        let Block::Small(pages) = block else { unreachable!("it is small now") };
        for (index, page) in pages.iter_mut().enumerate() {
            let entry = table.entry(node, index);
            if !entry.is_present() {
                *page = Use::default();
                continue;
            }
            let used = entry.has(Entry::ACCESSED);
            if used {
                table.update(first + index as u64, |entry| entry.without(Entry::ACCESSED));
            }
            note(page, used);
        }
        cx.state.counters.pages_scanned += PageSize::Huge.pages();
        Ok(())
    }

    /// Whether a sample has found a page of the 2 MiB in use (`page_is_young`).
    pub(super) fn has_used(&self, process: ProcessId, first: Vpn) -> bool {
        match self.blocks.get(&(process, first)) {
            None => false,
            Some(Block::Huge(page)) => page.young,
            Some(Block::Small(pages)) => pages.iter().any(|page| page.young),
        }
    }

    /// The process with the most anonymous memory, in huge pages, for each huge page that it has
    /// (`osa_compute_fairness_metric`), at the last sample. None if no process has a metric of more
    /// than 1, which is one of less than 2 MiB.
    pub(super) fn neediest(&self) -> Option<ProcessId> {
        const WEIGHT: u64 = 1;
        let metric = |memory: &Anonymous| WEIGHT * (memory.pages / PageSize::Huge.pages() * 100) / memory.huge.max(1);
        let metrics = self.memory.iter().map(|(&process, memory)| (metric(memory), process));
        let (_, process) = metrics.filter(|&(metric, _)| metric > 1).max_by_key(|&(metric, process)| {
            // Of equal ones, the first is found first.
            (metric, std::cmp::Reverse(process))
        })?;
        Some(process)
    }

    /// The process is gone.
    pub(super) fn forget(&mut self, process: ProcessId) {
        self.memory.remove(&process);
        self.blocks.retain(|&(of, _), _| of != process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_hot_once_nearly_all_samples_have_seen_it_in_use() {
        let mut page = Use::default();
        let scores: Vec<i8> = (0..12)
            .map(|_| {
                page.note(true);
                page.score
            })
            .collect();
        // 30 % of the ones less 6, and 70 % of before, towards 0: by hand.
        assert_eq!(scores, [-1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0]);
        let scores: Vec<i8> = (0..6)
            .map(|_| {
                page.note(false);
                page.score
            })
            .collect();
        assert_eq!(scores, [0, 0, 0, 0, 0, -1]);
        assert!(!page.is_hot() && page.history == 0b11);
    }
}
