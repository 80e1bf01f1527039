// SPDX-License-Identifier: MIT OR Apache-2.0
//! A co-runner that allocates and frees memory without end, and of which nothing but that is known.
//!
//! It does what `linux/guest/corun.c` does on a real kernel, page by page (see
//! `linux/data/README.md`): in each round anonymous memory that is filled, punched and filled
//! again, then a file likewise, then a forked child with anonymous memory.

use nestwalk_mem::{PageCount, Vpn, VpnRange};
use serde::{Deserialize, Serialize};

use crate::stream::{Batch, MemoryEvent, Step, ThreadId, Workload, WorkloadError, WorkloadFacts};

/// Linux's `MADV_DONTNEED`.
const DONTNEED: u32 = 4;
/// Where its anonymous memory lies: any multiple of 2 MiB.
const MEMORY: Vpn = Vpn(0x7_f000_0000);
/// The pages of its file. They are not mapped on the real kernel; here a mapping takes the file's
/// place.
const FILE: Vpn = Vpn(0x7_e000_0000);

/// Its parameters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChurnConfig {
    /// The most memory that it has at once; `"32 MiB"`.
    #[serde(with = "nestwalk_mem::size::pages")]
    #[schemars(with = "nestwalk_mem::schema::Pages")]
    pub size: PageCount,
    /// Everything random in it follows from this.
    #[serde(default = "one")]
    pub seed: u64,
}

fn one() -> u64 {
    1
}

/// The next number of the generator that the guest programs use (`next_random` in
/// `linux/guest/common.h`): xorshift64.
pub fn draw(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// What it fills.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Memory,
    File,
    Child,
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Map(Part),
    /// Fills pages from `next` on.
    Fill {
        next: u64,
    },
    /// Gives the `next`-th random page back.
    Drop {
        next: u64,
    },
    /// Fills a random page after the `next`-th was given back.
    Refill {
        next: u64,
    },
    Unmap,
    Fork,
    Exit,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Churn {
    size: u64,
    random: u64,
    /// The parent's state while the child, which inherits a copy, draws from its own.
    parent_random: u64,
    part: Part,
    pages: u64,
    stage: Stage,
}

impl Churn {
    /// The program, at its beginning.
    ///
    /// # Errors
    /// When it is smaller than 16 pages.
    pub fn new(config: &ChurnConfig) -> Result<Self, WorkloadError> {
        let least = 16;
        if config.size.0 < least {
            let what = format!("size of {} pages: give at least {least} (\"64 KiB\")", config.size.0);
            return Err(WorkloadError::Parameter { name: "churn".into(), what });
        }
        let random = config.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
        let (part, stage) = (Part::Memory, Stage::Map(Part::Memory));
        Ok(Self { size: config.size.0, random, parent_random: random, part, pages: 0, stage })
    }

    fn range(&self) -> VpnRange {
        let start = if self.part == Part::File { FILE } else { MEMORY };
        VpnRange::new(start, PageCount(self.pages))
    }

    fn random_page(&mut self) -> Vpn {
        self.range().start + draw(&mut self.random) % self.pages
    }

    /// How many pages are given back before the range goes.
    fn drops(&self) -> u64 {
        if self.part == Part::File { self.pages / 2 } else { self.pages }
    }

    fn map(&mut self, part: Part) -> Step {
        if part == Part::Child {
            self.parent_random = self.random;
        }
        self.part = part;
        self.pages = match part {
            Part::Memory => self.size / 2 + draw(&mut self.random) % (self.size / 2),
            Part::File | Part::Child => self.size / 4,
        };
        self.stage = Stage::Fill { next: 0 };
        Step::Event(MemoryEvent::Mmap { range: self.range(), writable: true, anonymous: part != Part::File })
    }

    fn fill(&mut self, next: u64, batch: &mut Batch) -> Step {
        let end = self.pages.min(next + Batch::ACCESSES_MAX as u64);
        batch.touches.extend((next..end).map(|page| (self.range().start + page, true)));
        self.stage = if end < self.pages { Stage::Fill { next: end } } else { Stage::Drop { next: 0 } };
        Step::Touches
    }

    fn drop_page(&mut self, next: u64) -> Step {
        let range = VpnRange::new(self.random_page(), PageCount(1));
        let refills = self.part != Part::File && next % 2 == 1;
        self.stage = if refills { Stage::Refill { next } } else { self.after_drop(next) };
        Step::Event(MemoryEvent::Madvise { range, advice: DONTNEED })
    }

    fn after_drop(&self, next: u64) -> Stage {
        if next + 1 < self.drops() { Stage::Drop { next: next + 1 } } else { Stage::Unmap }
    }

    fn refill(&mut self, next: u64, batch: &mut Batch) -> Step {
        let page = self.random_page();
        batch.touches.push((page, true));
        self.stage = self.after_drop(next);
        Step::Touches
    }

    fn unmap(&mut self) -> Step {
        let range = self.range();
        self.stage = match self.part {
            Part::Memory => Stage::Map(Part::File),
            Part::File => Stage::Fork,
            Part::Child => Stage::Exit,
        };
        Step::Event(MemoryEvent::Munmap { range })
    }
}

impl Workload for Churn {
    fn facts(&self) -> WorkloadFacts {
        WorkloadFacts {
            name: "churn".into(),
            footprint: PageCount(self.size),
            accesses: None,
            threads: 1,
            warms_until_told: false,
            kernel_half: false,
            tells_dependences: false,
            modelled: None,
        }
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        batch.clear();
        batch.thread = ThreadId(0);
        Ok(match self.stage {
            Stage::Map(part) => self.map(part),
            Stage::Fill { next } => self.fill(next, batch),
            Stage::Drop { next } => self.drop_page(next),
            Stage::Refill { next } => self.refill(next, batch),
            Stage::Unmap => self.unmap(),
            Stage::Fork => {
                self.stage = Stage::Map(Part::Child);
                Step::Event(MemoryEvent::ForkAndWait)
            }
            Stage::Exit => {
                (self.random, self.stage) = (self.parent_random, Stage::Map(Part::Memory));
                Step::Event(MemoryEvent::ChildExit)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn churn(pages: u64) -> Churn {
        Churn::new(&ChurnConfig { size: PageCount(pages), seed: 3 }).unwrap()
    }

    /// The steps of one round: what it maps, touches, gives back, unmaps, and the fork.
    fn round(churn: &mut Churn) -> Vec<(Step, usize)> {
        let mut batch = Batch::default();
        let mut steps = Vec::new();
        loop {
            let step = churn.next(&mut batch).unwrap();
            steps.push((step, batch.touches.len()));
            if step == Step::Event(MemoryEvent::ChildExit) {
                return steps;
            }
        }
    }

    #[test]
    fn the_random_numbers_are_those_of_the_guest_program() {
        // xorshift64 by hand: 1 -> 1 ^ 1 << 13 = 0x2001; ^ >> 7 = 0x2041; ^ << 17.
        let mut state = 1;
        assert_eq!(draw(&mut state), 0x2041 ^ 0x2041 << 17);
    }

    #[test]
    fn a_round_is_memory_a_file_and_a_child() {
        let mut churn = churn(4096);
        let steps = round(&mut churn);
        let maps: Vec<_> = steps
            .iter()
            .filter_map(|(step, _)| match step {
                Step::Event(MemoryEvent::Mmap { range, anonymous, .. }) => Some((range.len(), *anonymous)),
                _ => None,
            })
            .collect();
        let (memory, _) = maps[0];
        assert!((2048..4096).contains(&memory), "{memory}");
        assert_eq!(maps[1..], [(1024, false), (1024, true)]);
        let count = |wanted: fn(&Step) -> bool| steps.iter().filter(|(step, _)| wanted(step)).count() as u64;
        let drops = count(|step| matches!(step, Step::Event(MemoryEvent::Madvise { .. })));
        assert_eq!(drops, memory + 512 + 1024);
        let touches: usize = steps.iter().map(|(_, touches)| touches).sum();
        assert_eq!(touches as u64, memory + memory / 2 + 1024 + 1024 + 512);
        assert_eq!(count(|step| matches!(step, Step::Event(MemoryEvent::Munmap { .. }))), 3);
        assert_eq!(count(|step| *step == Step::Event(MemoryEvent::ForkAndWait)), 1);
    }

    #[test]
    fn every_touch_lies_in_what_is_mapped_and_rounds_differ() {
        let mut churn = churn(64);
        let (mut batch, mut mapped, mut sizes) = (Batch::default(), None, Vec::new());
        for _ in 0..20_000 {
            match churn.next(&mut batch).unwrap() {
                Step::Event(MemoryEvent::Mmap { range, .. }) => {
                    assert_eq!(mapped.replace(range), None);
                    sizes.push(range.len());
                }
                Step::Event(MemoryEvent::Munmap { range }) => assert_eq!(mapped.take(), Some(range)),
                Step::Event(MemoryEvent::Madvise { range, .. }) => assert!(mapped.unwrap().contains(range.start)),
                Step::Touches => assert!(batch.touches.iter().all(|(page, _)| mapped.unwrap().contains(*page))),
                _ => {}
            }
        }
        assert!(sizes.iter().any(|&size| size != sizes[0] && size > 32), "{sizes:?}");
    }

    #[test]
    fn too_small_a_size_is_refused() {
        let error = Churn::new(&ChurnConfig { size: PageCount(8), seed: 1 }).unwrap_err().to_string();
        assert!(error.contains("churn") && error.contains("64 KiB"), "{error}");
    }
}
