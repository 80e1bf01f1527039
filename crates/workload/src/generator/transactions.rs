// SPDX-License-Identifier: MIT OR Apache-2.0
//! `transactions`: servers that work on many records at a time: TPC-C on a storage engine (Shore of
//! TailBench) and SPECjbb's warehouses.
//!
//! Memory: records (a buffer pool of 8 KiB pages, or a heap of objects of `record_bytes`), a table
//! that finds them (16 bytes for each record or page: hash chain and pointer), and for each thread
//! a log or nursery that is written in order and used again from its start.
//!
//! A transaction works on `records` records, TPC-C's NURand-like mixture of home and remote: nine
//! in ten from the thread's own part of the records (its warehouses), the others from any. Of each
//! record: the table's entry; in a buffer pool the page's header and a search of its slots, half as
//! many as a binary search over the page's records reads; the record word by word; every third
//! record is stored to. Then the log grows by 64 bytes a record, or objects of that size are made
//! in the nursery.

use nestwalk_mem::{Access, Gva, Vpn};

use super::bijection::{Dice, mix, scale};
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

const WORD: u64 = 8;
const ENTRY: u64 = 16;
const POOL_PAGE: u64 = 8192;
const HOME_PERMILLE: u64 = 900;
const LOG_BYTES: u64 = 64;
/// Pages in a thousand for logs or nurseries.
const LOG_PERMILLE: u64 = 20;

parameters! {
    /// Transactions over many records. Local accesses and instructions as measured of redis.
    TransactionsConfig mixed(909, 2689, 20) {
        /// Bytes of a record, 16 to 4096. TPC-C's customers have about 655, its stock 306.
        record_bytes: u64 = 306,
        /// Records of a transaction: 1 to 256. TPC-C's new order has 10 items with their stock.
        records: u64 = 23,
        /// Whether records lie in the pages of a buffer pool, rather than each for itself in a
        /// heap.
        buffer_pool: bool = true,
    }
}

pub(super) struct Transactions {
    layout: Layout,
    table: Region,
    data: Region,
    log: Region,
    count: u64,
    config: TransactionsConfig,
    /// Of each thread: bytes written to its log.
    written: Vec<u64>,
    sweep: Sweep,
    dice: Vec<Dice>,
}

impl Transactions {
    pub(super) fn new(config: &TransactionsConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        if !(16..=4096).contains(&config.record_bytes) || !(1..=256).contains(&config.records) {
            return Err(impossible(name, "record_bytes is from 16 to 4096 and records from 1 to 256"));
        }
        let threads = u64::from(config.threads);
        let log = layout.map((layout.left() * LOG_PERMILLE / 1000).max(threads));
        let unit = if config.buffer_pool { POOL_PAGE } else { config.record_bytes };
        let data = (layout.left() - 1) * unit / (unit + ENTRY) / 2 * 2;
        let table = layout.map(layout.left() - data);
        let data = layout.map(data);
        let count = if config.buffer_pool {
            data.bytes() / POOL_PAGE * (POOL_PAGE / config.record_bytes)
        } else {
            data.bytes() / config.record_bytes
        };
        Ok(Self {
            sweep: Sweep::new(vec![vec![table], vec![data], vec![log]], config.threads),
            layout,
            table,
            data,
            log,
            count,
            config: config.clone(),
            written: vec![0; config.threads.into()],
            dice: Dice::of_threads(config.seed, config.threads),
        })
    }

    /// Where record `record` lies, after the accesses that find it.
    fn find(&self, record: u64, accesses: &mut Vec<Access>) -> Gva {
        let bytes = self.config.record_bytes;
        if !self.config.buffer_pool {
            accesses.push(Access::load(self.entry(record)));
            return self.data.at(record * bytes);
        }
        let in_page = POOL_PAGE / bytes;
        let page = record / in_page;
        accesses.push(Access::load(self.entry(page)));
        let start = page * POOL_PAGE;
        accesses.push(Access::load(self.data.at(start)));
        let (mut low, mut high) = (0, in_page);
        while high - low > 2 {
            let middle = (low + high) / 2;
            accesses.push(Access::load(self.data.at(start + middle * bytes)));
            if middle <= record % in_page { low = middle } else { high = middle }
        }
        self.data.at(start + record % in_page * bytes)
    }

    fn entry(&self, of: u64) -> Gva {
        self.table.at(scale(mix(of), self.table.bytes() / ENTRY) * ENTRY)
    }
}

impl Pattern for Transactions {
    const NAME: &'static str = "transactions";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let threads = self.written.len() as u64;
        let home = self.count * thread as u64 / threads;
        for nth in 0..self.config.records {
            let dice = &mut self.dice[thread];
            let own = dice.chance(HOME_PERMILLE);
            let record = if own { home + dice.below(self.count / threads) } else { dice.below(self.count) };
            let at = self.find(record, accesses);
            let words = self.config.record_bytes / WORD;
            accesses.extend((0..words).map(|word| Access::new(Gva(at.0 + word * WORD), nth % 3 == 0 && word % 4 == 0)));
            let log = self.log.bytes() / threads / LOG_BYTES * LOG_BYTES;
            let start = log * thread as u64 + self.written[thread] % log;
            self.written[thread] += LOG_BYTES;
            accesses.extend((0..LOG_BYTES).step_by(8).map(|byte| Access::store(self.log.at(start + byte))));
        }
    }
}
