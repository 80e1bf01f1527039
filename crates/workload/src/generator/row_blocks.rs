// SPDX-License-Identifier: MIT OR Apache-2.0
//! `row_blocks`: `BlockSVM` (Yu, Hsieh, Chang and Lin, KDD 2010; liblinear-cdblock), a linear
//! support vector machine that is trained block by block of its rows, with one pass over each
//! (`-s 1 -m 1 -M 1`) and cross-validation (`-v`), for each fold anew.
//!
//! A block comes into memory by one `read` (`BinaryProblem::load_body`), into a buffer that
//! `realloc` keeps for the next one: its entries, row by row (`feature_node`, 16 bytes; two more a
//! row, for the bias and the end), its labels (4 bytes) and where its rows begin (8 bytes, made
//! addresses of by `parseBinary`). Then, with arrays of 13 bytes a row that are there for this
//! block (`solve_l2r_l1l2_svc`): *label*, *prepare* (the length of each row, in order), *shuffle*
//! (the order of rows), and *solve*: row by row in that order, the weights of its entries are read
//! and, where that helps, written. Weights are 8 bytes a column, and labels and multipliers 12
//! bytes a row of all blocks; they are there as long as a training.
//!
//! With `folds` there are as many trainings, each without its share of the blocks, and a *test*
//! (`block_testing`) of each block left out, in a buffer of its own. All is given back at the end
//! of a fold. Left out: sorting the decision values of a test, and `realloc` moving the buffer's
//! end by the few rows that one block has more than another.
//!
//! Columns are of fields, one entry of a row from each (assumed, but for the number of students, as
//! in the KDD Cup's data of 2010): nearly all columns are of one field, the names of steps, drawn
//! evenly; one in 19 is a problem, one in 200 a student, and of the other fields, one in 1000 each.
//!
//! A block takes billions of accesses, so `windows` of them are simulated ([`super::windows`]).

use std::collections::VecDeque;

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, Gva, PageCount, Vpn};

use super::bijection::{Bijection, Dice, mix, scale};
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::{HEADER, MmapArea, Region};
use super::pattern::Pattern;
use super::windows::{Ending, Script, Stretch, WHOLE, Windows, part};
use crate::stream::WorkloadError;

/// Bytes of an entry (`feature_node`), and where its value is.
const NODE: u64 = 16;
const VALUE: u64 = 8;
/// Entries that a row has besides its own: for the bias, and its end.
const ENDS: u64 = 2;
/// Bytes of a label, a row's place, a weight or a multiplier.
const LABEL: u64 = 4;
const WORD: u64 = 8;
/// Of 1000 columns, those of a field: the last of a row's entries has the rest.
const SMALL_FIELD: u64 = 1;
const STUDENTS: u64 = 5;
const PROBLEMS: u64 = 54;
/// Of 1000 rows, those whose weights are written. Counted in a run of the source on made-up rows of
/// which four in five are positive (651 of 100,000 rows, 640 of 4,800,000).
const UPDATED: u64 = 650;
/// Accesses of the shuffle to what `rand` has and to the stack: what is left of the 92.9 for a row
/// that were counted in captures of shuffle and solve (g++ 12 -O3, 200,000 rows less 100,000).
const RAND: u64 = 29;
/// No program has more of any.
const COUNT_MAX: u64 = 1000;
/// Fewer rows are hardly a block.
const ROWS_MIN: u64 = 4096;

parameters! {
    /// `BlockSVM`: a linear support vector machine, trained block by block of its rows.
    RowBlocksConfig mixed(0, 2655, 4) {
        /// Entries of a row: 3 to 1000. kddb-raw has 9.0 on average.
        entries: u64 = 9,
        /// Rows for each column: 1 to 1000. kddb-raw has 16.6.
        rows_per_column: u64 = 17,
        /// Blocks into which the rows are cut: 1 to 1000.
        blocks: u64 = 4,
        /// Trainings, each without its share of the blocks, which is tested then: 2 to 1000, or 0
        /// for one training with all.
        folds: u64 = 5,
        /// Windows of a block that are simulated: 2 to 1000.
        windows: u64 = 4,
    }
}

/// A pass over the rows of a block, or over all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    Parse,
    Label,
    Prepare,
    Shuffle,
    Solve,
    Objective,
    Test,
}

/// What the program does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// A training with so many blocks begins.
    Begin(u64),
    /// That block is trained with, the how many-th of the training.
    Train(u64, u64),
    /// The training ends.
    Finish,
    /// That block is tested, the how many-th of the fold.
    Test(u64, u64),
    /// The fold ends, with so many blocks tested.
    End(u64),
}

/// Arrays, each a mapping of its own, and where they lie.
#[derive(Clone, Copy)]
struct Plan {
    /// Of a block, and of all of them.
    rows: u64,
    columns: u64,
    weights: Region,
    labels: Region,
    multipliers: Region,
    buffer: Region,
    lengths: Region,
    order: Region,
    signs: Region,
    /// Of a test: labels, decision values, order, and its buffer.
    test: [Region; 4],
    /// Pages in use at the most.
    pages: u64,
}

impl Plan {
    /// Of so many rows a block.
    fn new(rows: u64, config: &RowBlocksConfig, top: &MmapArea) -> Self {
        let mut area = top.clone();
        let map = |area: &mut MmapArea, bytes: u64| area.map(PageCount::covering(HEADER + bytes));
        let all = rows * config.blocks;
        let columns = (all / config.rows_per_column).max(1000);
        let weights = map(&mut area, columns * WORD);
        // What a test has lies where the training had its labels and multipliers.
        let mut hole = area.clone();
        let labels = map(&mut area, all * LABEL);
        let multipliers = map(&mut area, all * WORD);
        let tested = if config.folds > 0 { config.blocks.div_ceil(config.folds) } else { 0 };
        let [test_labels, values, indices] = [LABEL, WORD, LABEL].map(|each| map(&mut hole, tested * rows * each));
        let bytes = rows * ((config.entries + ENDS) * NODE + LABEL + WORD);
        let buffer = map(&mut area, bytes);
        let test_buffer = map(&mut area.clone(), bytes);
        let [lengths, order, signs] = [WORD, LABEL, 1].map(|each| map(&mut area, rows * each));
        let sum = |regions: &[Region]| regions.iter().map(|region| region.pages.len()).sum::<u64>();
        let training = sum(&[labels, multipliers, lengths, order, signs]);
        let testing = sum(&[test_labels, values, indices, test_buffer]);
        let pages = sum(&[weights, buffer]) + if config.folds > 0 { training.max(testing) } else { training };
        let test = [test_labels, values, indices, test_buffer];
        Self { rows, columns, weights, labels, multipliers, buffer, lengths, order, signs, test, pages }
    }

    /// With the most rows that have room in so many pages.
    fn largest(room: u64, config: &RowBlocksConfig, top: &MmapArea) -> Option<Self> {
        let (mut low, mut high) = (0, room * PAGE_BYTES / NODE);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if Self::new(middle, config, top).pages <= room { low = middle } else { high = middle - 1 }
        }
        (low >= ROWS_MIN).then(|| Self::new(low, config, top))
    }
}

/// The program.
pub(super) struct RowBlocks {
    config: RowBlocksConfig,
    layout: Layout,
    plan: Plan,
    steps: VecDeque<Step>,
    /// Windows of all steps.
    windows: u64,
    footprint: PageCount,
    /// Blocks of the training under way.
    trained: u64,
    /// The block in memory, how many-th of its training or test, and the buffer that it is in.
    block: u64,
    nth: u64,
    buffer: Region,
    pass: Pass,
    row: u64,
    shuffled: Bijection,
    dice: Dice,
}

impl RowBlocks {
    fn new(config: &RowBlocksConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let layout = Layout::new(name, config.common(), config.mixture())?;
        let RowBlocksConfig { entries, rows_per_column, blocks, folds, windows, threads, .. } = *config;
        for (key, value, least) in [
            ("entries", entries, 3),
            ("rows_per_column", rows_per_column, 1),
            ("blocks", blocks, 1),
            ("folds", folds, 0),
            ("windows", windows, 2),
        ] {
            if !(least..=COUNT_MAX).contains(&value) {
                return Err(impossible(name, format!("{key} = {value}: from {least} to {COUNT_MAX}")));
            }
        }
        if folds == 1 || (folds > 0 && blocks == 1) {
            let what = format!("folds = {folds} of blocks = {blocks}: a fold needs blocks to train with and to test");
            return Err(impossible(name, what));
        }
        if threads != 1 {
            return Err(impossible(name, format!("threads = {threads}: it has one")));
        }
        let Some(plan) = Plan::largest(layout.left(), config, &layout.rest()) else {
            return Err(impossible(name, format!("footprint: too small for {blocks} blocks of {ROWS_MIN} rows")));
        };
        let steps = steps(blocks, folds);
        let blocks_in_memory = steps.iter().filter(|step| matches!(step, Step::Train(..) | Step::Test(..))).count();
        let [dice] = <[Dice; 1]>::try_from(Dice::of_threads(config.seed, 1)).expect("of one thread");
        Ok(Self {
            config: config.clone(),
            footprint: PageCount(layout.pages().0 + plan.pages),
            layout,
            plan,
            steps,
            windows: blocks_in_memory as u64 * windows,
            trained: 0,
            block: 0,
            nth: 0,
            buffer: plan.buffer,
            pass: Pass::Parse,
            row: 0,
            shuffled: Bijection::new(plan.rows, config.seed),
            dice,
        })
    }

    /// The program with its windows.
    pub(super) fn windows(config: &RowBlocksConfig) -> Result<Windows<Self>, WorkloadError> {
        Ok(Windows::new(config.common(), config.mixture(), Self::new(config)?))
    }

    /// Accesses of a pass for a row; of the objective, for a row of any block.
    fn per_row(&self, pass: Pass) -> u64 {
        let entries = self.config.entries;
        match pass {
            Pass::Parse | Pass::Label | Pass::Objective => 2,
            Pass::Prepare => 8 + 2 * entries,
            Pass::Shuffle => 4 + RAND,
            Pass::Solve => 7 + 3 * entries + (5 + 4 * entries) * UPDATED / 1000,
            Pass::Test => 7 + 4 * entries,
        }
    }

    /// Bytes of the block's entries.
    fn node_bytes(&self) -> u64 {
        self.plan.rows * (self.config.entries + ENDS) * NODE
    }

    fn node(&self, row: u64, entry: u64, field: u64) -> Gva {
        self.buffer.at(HEADER + (row * (self.config.entries + ENDS) + entry) * NODE + field)
    }

    fn label(&self, row: u64) -> Gva {
        self.buffer.at(HEADER + self.node_bytes() + row * LABEL)
    }

    fn place(&self, row: u64) -> Gva {
        self.buffer.at(HEADER + self.node_bytes() + self.plan.rows * LABEL + row * WORD)
    }

    /// The weight of a row's entry.
    fn weight(&self, row: u64, entry: u64) -> Gva {
        let (entries, columns) = (self.config.entries, self.plan.columns);
        let from = |entry: u64| {
            let small = entry.min(entries - 3) * SMALL_FIELD;
            let students = if entry > entries - 3 { STUDENTS } else { 0 };
            let problems = if entry > entries - 2 { PROBLEMS } else { 0 };
            columns * (small + students + problems).min(900) / 1000
        };
        let end = if entry + 1 == entries { columns } else { from(entry + 1) };
        let random = mix(mix(self.config.seed ^ self.block << 40 ^ row) ^ entry);
        let column = from(entry) + scale(random, (end - from(entry)).max(1));
        self.plan.weights.at(HEADER + column.min(columns - 1) * WORD)
    }

    /// The pages of `region` are touched evenly over a pass.
    fn in_order(region: Region) -> impl Iterator<Item = (u64, Vpn)> {
        let pages = region.pages.len();
        (0..pages).map(move |page| (page * WHOLE / pages, region.pages.start + page))
    }

    fn stretch(&self, pass: Pass, filled: &[Region]) -> Stretch<Pass> {
        let mut touches: Vec<_> = filled.iter().flat_map(|&region| Self::in_order(region)).collect();
        touches.sort_unstable();
        Stretch { pass, data: self.plan.rows * self.per_row(pass), touches }
    }

    /// A block is read into a buffer, which is new if it is the first.
    fn read(&mut self, block: u64, nth: u64, buffer: Region, script: &mut Script<Pass>) {
        (self.block, self.nth, self.buffer) = (block, nth, buffer);
        self.shuffled = Bijection::new(self.plan.rows, mix(self.config.seed ^ mix(self.steps.len() as u64)));
        if nth == 0 {
            script.map(buffer);
        }
        script.read_file(mix(block ^ 0x0062_6c6f_636b), PageCount(buffer.pages.len()));
        if nth == 0 {
            script.fill(1, buffer, 0);
        }
    }

    /// What the training under way has of an array of so many bytes a row.
    fn of_training(&self, region: Region, each: u64) -> Region {
        region.split(PageCount::covering(HEADER + self.trained * self.plan.rows * each).0)[0]
    }

    /// Labels and multipliers of the training under way.
    fn kept(&self) -> [Region; 2] {
        [self.of_training(self.plan.labels, LABEL), self.of_training(self.plan.multipliers, WORD)]
    }

    /// The part of an array of the training's rows that is of the block in memory.
    fn own(&self, region: Region) -> Region {
        let bound = |nth: u64| region.pages.len() * nth / self.trained;
        let [_, rest] = region.split(bound(self.nth));
        let [own, _] = rest.split(bound(self.nth + 1) - bound(self.nth));
        own
    }

    fn train(&mut self, script: &mut Script<Pass>) {
        let Plan { lengths, order, signs, weights, .. } = self.plan;
        let [labels, _] = self.kept();
        let solving = [lengths, order, signs];
        let seed = self.config.seed ^ mix(self.steps.len() as u64);
        let idle = weights.pages.start;
        // The arrays of the solver are mapped a little early: at the beginning of the block's work.
        solving.into_iter().for_each(|region| script.map(region));
        let stretches = vec![
            self.stretch(Pass::Parse, &[]),
            self.stretch(Pass::Label, &[self.own(labels)]),
            self.stretch(Pass::Prepare, &solving),
            self.stretch(Pass::Shuffle, &[]),
            self.stretch(Pass::Solve, &[]),
        ];
        script.stretches(stretches, self.config.windows, seed, idle);
        solving.into_iter().for_each(|region| script.unmap(region));
    }
}

/// All that a run does: cross-validation, or one training.
fn steps(blocks: u64, folds: u64) -> VecDeque<Step> {
    let bounds = |fold: u64| (fold * blocks).checked_div(folds).unwrap_or(0);
    let mut steps = VecDeque::new();
    for fold in 0..folds.max(1) {
        let tested = bounds(fold)..bounds(fold + 1);
        let trained: Vec<u64> = (0..blocks).filter(|block| !tested.contains(block)).collect();
        steps.push_back(Step::Begin(trained.len() as u64));
        steps.extend((0..).zip(&trained).map(|(nth, &block)| Step::Train(block, nth)));
        steps.push_back(Step::Finish);
        steps.extend((0..).zip(tested.clone()).map(|(nth, block)| Step::Test(block, nth)));
        steps.push_back(Step::End(tested.end - tested.start));
    }
    steps
}

impl Pattern for RowBlocks {
    const NAME: &'static str = "row_blocks";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, _thread: u16, _touches: &mut Vec<(Vpn, bool)>, _most: usize) {}

    /// A row.
    fn operate(&mut self, _thread: usize, accesses: &mut Vec<Access>) {
        let Plan { rows, labels, multipliers, lengths, order, signs, test, .. } = self.plan;
        let entries = self.config.entries;
        let at = |region: Region, each: u64, row: u64| region.at(HEADER + row * each);
        let row = self.row;
        self.row = (row + 1) % rows;
        // Of all rows of the training, or of the test.
        let overall = self.nth * rows + row;
        match self.pass {
            Pass::Parse => accesses.extend([Access::load(self.place(row)), Access::store(self.place(row))]),
            Pass::Label => {
                accesses.extend([Access::load(self.label(row)), Access::store(at(labels, LABEL, overall))]);
            }
            Pass::Prepare => {
                accesses.extend([
                    Access::load(at(labels, LABEL, overall)),
                    Access::store(at(signs, 1, row)),
                    Access::load(self.layout.locals(0).at(0)),
                    Access::store(at(lengths, WORD, row)),
                    Access::load(self.place(row)),
                ]);
                for entry in 0..entries {
                    accesses.extend([0, VALUE].map(|field| Access::load(self.node(row, entry, field))));
                }
                accesses.extend([
                    Access::load(self.node(row, entries, 0)),
                    Access::store(at(lengths, WORD, row)),
                    Access::store(at(order, LABEL, row)),
                ]);
            }
            Pass::Shuffle => {
                let other = row + self.dice.below(rows - row);
                let places = [row, other].map(|place| at(order, LABEL, place));
                let stack = self.layout.locals(0);
                accesses.extend((0..RAND).map(|word| Access::load(stack.at(word * WORD))));
                accesses.extend(places.map(Access::load));
                accesses.extend(places.map(Access::store));
            }
            Pass::Solve => {
                let chosen = self.shuffled.apply(row);
                let overall = self.nth * rows + chosen;
                let multiplier = at(multipliers, WORD, overall);
                accesses.extend([
                    Access::load(at(order, LABEL, row)),
                    Access::load(at(signs, 1, chosen)),
                    Access::load(self.place(chosen)),
                ]);
                for entry in 0..entries {
                    accesses.extend([
                        Access::load(self.node(chosen, entry, 0)),
                        Access::load(self.node(chosen, entry, VALUE)),
                        Access::load(self.weight(chosen, entry)),
                    ]);
                }
                let constant = self.layout.locals(0).at(0);
                accesses.extend([self.node(chosen, entries, 0), constant, multiplier, constant].map(Access::load));
                if !self.dice.chance(UPDATED) {
                    return;
                }
                accesses.extend([
                    Access::load(at(lengths, WORD, chosen)),
                    Access::store(multiplier),
                    Access::load(constant),
                    Access::load(self.place(chosen)),
                ]);
                for entry in 0..entries {
                    let weight = self.weight(chosen, entry);
                    accesses.extend([
                        Access::load(self.node(chosen, entry, 0)),
                        Access::load(self.node(chosen, entry, VALUE)),
                        Access::load(weight),
                        Access::store(weight),
                    ]);
                }
                accesses.push(Access::load(self.node(chosen, entries, 0)));
            }
            Pass::Objective => {
                accesses.extend([Access::load(at(labels, LABEL, row)), Access::load(at(multipliers, WORD, row))]);
            }
            Pass::Test => {
                let [test_labels, values, indices, _] = test;
                let value = at(values, WORD, overall);
                accesses.extend([
                    Access::load(self.label(row)),
                    Access::store(at(test_labels, LABEL, overall)),
                    Access::store(at(indices, LABEL, overall)),
                    Access::store(value),
                    Access::load(self.place(row)),
                ]);
                for entry in 0..entries {
                    accesses.extend([
                        Access::load(self.node(row, entry, 0)),
                        Access::load(self.weight(row, entry)),
                        Access::load(self.node(row, entry, VALUE)),
                        Access::store(value),
                    ]);
                }
                accesses.extend([self.node(row, entries, 0), at(test_labels, LABEL, overall)].map(Access::load));
            }
        }
    }
}

impl Ending for RowBlocks {
    type Pass = Pass;

    fn footprint(&self) -> PageCount {
        self.footprint
    }

    fn windows(&self) -> u64 {
        self.windows
    }

    fn go_on(&mut self, script: &mut Script<Pass>) {
        let Plan { weights, buffer, test, .. } = self.plan;
        let idle = weights.pages.start;
        match self.steps.pop_front() {
            Some(Step::Begin(trained)) => {
                self.trained = trained;
                let [labels, multipliers] = self.kept();
                for region in [weights, labels, multipliers] {
                    script.map(region);
                }
                script.fill(1, multipliers, 0);
                script.fill(1, weights, 0);
            }
            Some(Step::Train(block, nth)) => {
                self.read(block, nth, buffer, script);
                self.train(script);
            }
            Some(Step::Finish) => {
                let data = self.plan.rows * self.trained * self.per_row(Pass::Objective);
                let objective = Stretch { pass: Pass::Objective, data, touches: Vec::new() };
                script.stretches(vec![objective], 0, 0, idle);
                self.kept().into_iter().for_each(|region| script.unmap(region));
            }
            Some(Step::Test(block, nth)) => {
                let [test_labels, values, indices, test_buffer] = test;
                let small = [test_labels, values, indices];
                if nth == 0 {
                    small.into_iter().for_each(|region| script.map(region));
                }
                self.read(block, nth, test_buffer, script);
                let seed = self.config.seed ^ mix(self.steps.len() as u64);
                let filled = if nth == 0 { &small[..] } else { &[] };
                let stretches = vec![self.stretch(Pass::Parse, &[]), self.stretch(Pass::Test, filled)];
                script.stretches(stretches, self.config.windows, seed, idle);
            }
            Some(Step::End(tested)) => {
                let freed: &[Region] = if tested > 0 { &test } else { &[] };
                for &region in freed.iter().chain(&[weights, buffer]) {
                    script.unmap(region);
                }
            }
            None => {}
        }
    }

    fn seek(&mut self, pass: Pass, done: u64) {
        self.pass = pass;
        self.row = part(self.plan.rows, done);
    }
}

#[cfg(test)]
mod tests;
