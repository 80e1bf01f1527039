// SPDX-License-Identifier: MIT OR Apache-2.0
//! `gups`: giga-updates per second, the RandomAccess of the HPC Challenge. One table of 8-byte
//! words; an update loads a word chosen uniformly at random and stores it back. Nothing has less
//! locality, so nearly every update is a TLB miss.

use nestwalk_mem::{Access, PageCount, Vpn};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::bijection::{mix, scale};
use super::config::parameters;
use super::memory::{MmapArea, Region, Sweep};
use super::program::Program;
use crate::stream::WorkloadError;

/// Instructions of an update (assumed): the generator's shift, test and xor; mask, load, xor,
/// store; loop count and branch.
const INSTRUCTIONS_PER_UPDATE: u64 = 8;
/// Bytes of a word.
const WORD: u64 = 8;

parameters! {
    /// Random updates of one table. An update is two accesses: a load and a store of the same word.
    GupsConfig {}
}

pub(super) struct Gups {
    table: Region,
    words: u64,
    sweep: Sweep,
    threads: Vec<Thread>,
}

struct Thread {
    rng: Xoshiro256PlusPlus,
    /// The store of an update whose load ended the last batch.
    pending: Option<Access>,
}

impl Gups {
    pub(super) fn new(config: &GupsConfig) -> Result<Self, WorkloadError> {
        config.common().check(Self::NAME)?;
        let table = MmapArea::new().map(config.footprint);
        let thread = |index: u16| Thread {
            rng: Xoshiro256PlusPlus::seed_from_u64(mix(config.seed) ^ u64::from(index)),
            pending: None,
        };
        Ok(Self {
            table,
            words: table.bytes() / WORD,
            sweep: Sweep::new(vec![vec![table]], config.threads),
            threads: (0..config.threads).map(thread).collect(),
        })
    }
}

impl Program for Gups {
    const NAME: &'static str = "gups";
    // No update needs another one: the next word is drawn without a load.
    const TELLS_DEPENDENCES: bool = true;

    fn regions(&self) -> Vec<Region> {
        vec![self.table]
    }

    fn footprint(&self) -> PageCount {
        PageCount(self.table.pages.len())
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn fill(&mut self, thread: u16, accesses: &mut Vec<Access>, most: usize) -> u64 {
        let Thread { rng, pending } = &mut self.threads[usize::from(thread)];
        let (table, words) = (self.table, self.words);
        let mut room = most - accesses.len();
        let instructions = room as u64 * INSTRUCTIONS_PER_UPDATE / 2;
        if let Some(store) = pending.take_if(|_| room > 0) {
            accesses.push(store);
            room -= 1;
        }
        let mut draw = || table.at(scale(rng.next_u64(), words) * WORD);
        accesses.extend((0..room / 2).map(|_| draw()).flat_map(|word| [Access::load(word), Access::store(word)]));
        if room % 2 == 1 {
            let word = draw();
            accesses.push(Access::load(word));
            *pending = Some(Access::store(word));
        }
        instructions
    }
}
