// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data caches as lists: each set holds its lines in order of use, the latest first.

use nestwalk_mmu::{LlcPolicy, MmuConfig, Served};

/// Evictions that the last level tells the cores of, in a ring. A core that missed some of them
/// cannot know which they were.
const TOLD_MAX: usize = 4096;

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

    fn holds(&self, line: u64) -> bool {
        self.sets[(line % self.sets.len() as u64) as usize].contains(&line)
    }

    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.sets.iter_mut().for_each(|set| set.retain(|&line| keep(line)));
    }

    /// Puts in `line`, which is not there. The line that has to go for it.
    fn put(&mut self, line: u64) -> Option<u64> {
        let index = (line % self.sets.len() as u64) as usize;
        let set = &mut self.sets[index];
        set.insert(0, line);
        if set.len() > self.ways { set.pop() } else { None }
    }
}

/// The caches of a core alone.
#[derive(Debug)]
struct Private {
    l1d: Cache,
    l2: Cache,
    /// What an inclusive last level evicted for other cores, and this one has not heard of.
    unheard: Vec<u64>,
}

impl Private {
    fn lose(&mut self, line: u64) {
        self.l1d.take(line);
        self.l2.take(line);
    }
}

/// The private caches of several cores over one last level.
#[derive(Debug)]
pub struct Caches {
    policy: LlcPolicy,
    cores: Vec<Private>,
    llc: Cache,
}

impl Caches {
    pub fn new(config: &MmuConfig, cores: usize) -> Self {
        let (l1d, l2) = (config.l1d, config.l2);
        let private =
            || Private { l1d: Cache::new(l1d.bytes, l1d.ways), l2: Cache::new(l2.bytes, l2.ways), unheard: Vec::new() };
        let cores = (0..cores).map(|_| private()).collect();
        Self { policy: config.llc.policy, cores, llc: Cache::new(config.llc.bytes, config.llc.ways) }
    }

    /// Core `core` refers to the line of `address`. What serves it.
    pub fn refer(&mut self, core: usize, address: u64) -> Served {
        let line = address / 64;
        let Private { l1d, l2, .. } = &mut self.cores[core];
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
                self.cores[core].lose(gone);
                let others = self.cores.iter_mut().enumerate().filter(|&(other, _)| other != core);
                others.for_each(|(_, other)| other.unheard.push(gone));
            }
        }
        if in_llc { Served::Llc } else { Served::Memory }
    }

    /// All cores hear of what the last level evicted, as each does before it runs. One that is told
    /// of too many lines keeps those that are there (again).
    pub fn hear_of_evictions(&mut self) {
        for core in &mut self.cores {
            let unheard = std::mem::take(&mut core.unheard);
            if unheard.len() > TOLD_MAX {
                core.l1d.retain(|line| self.llc.holds(line));
                core.l2.retain(|line| self.llc.holds(line));
            } else {
                unheard.into_iter().for_each(|line| core.lose(line));
            }
        }
    }
}
