// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data caches as lists: each set holds its lines in order of use, the latest first.

use nestwalk_mmu::{LlcPolicy, MmuConfig, Served};

/// One cache.
#[derive(Debug)]
struct Cache {
    sets: Vec<Vec<u64>>,
    ways: usize,
}

impl Cache {
    fn new(bytes: u64, ways: u32) -> Self {
        Self { sets: vec![Vec::new(); (bytes / 64 / u64::from(ways)) as usize], ways: ways as usize }
    }

    /// Takes `line` out. Whether it was there.
    fn take(&mut self, line: u64) -> bool {
        let index = (line % self.sets.len() as u64) as usize;
        let before = self.sets[index].len();
        self.sets[index].retain(|&there| there != line);
        self.sets[index].len() < before
    }

    /// Puts in `line`, which is not there. The line that has to go for it.
    fn put(&mut self, line: u64) -> Option<u64> {
        let index = (line % self.sets.len() as u64) as usize;
        let set = &mut self.sets[index];
        set.insert(0, line);
        if set.len() > self.ways { set.pop() } else { None }
    }
}

/// The private caches of several cores over one last level.
#[derive(Debug)]
pub struct Caches {
    policy: LlcPolicy,
    cores: Vec<(Cache, Cache)>,
    llc: Cache,
}

impl Caches {
    pub fn new(config: &MmuConfig, cores: usize) -> Self {
        let (l1d, l2) = (config.l1d, config.l2);
        let private = || (Cache::new(l1d.bytes, l1d.ways), Cache::new(l2.bytes, l2.ways));
        let cores = (0..cores).map(|_| private()).collect();
        Self { policy: config.llc.policy, cores, llc: Cache::new(config.llc.bytes, config.llc.ways) }
    }

    /// Core `core` refers to the line of `address`. What serves it.
    pub fn refer(&mut self, core: usize, address: u64) -> Served {
        let line = address / 64;
        let (l1d, l2) = &mut self.cores[core];
        let in_l1d = l1d.take(line);
        l1d.put(line);
        if in_l1d {
            return Served::L1d;
        }
        let in_l2 = l2.take(line);
        let victim = l2.put(line);
        if in_l2 {
            return Served::L2;
        }
        let in_llc = self.llc.take(line);
        let comes = if self.policy == LlcPolicy::Exclusive { victim } else { Some(line) };
        if let Some(comes) = comes {
            self.llc.take(comes);
            let gone = self.llc.put(comes);
            if let (LlcPolicy::Inclusive, Some(gone)) = (self.policy, gone) {
                for (l1d, l2) in &mut self.cores {
                    l1d.take(gone);
                    l2.take(gone);
                }
            }
        }
        if in_llc { Served::Llc } else { Served::Memory }
    }
}
