// SPDX-License-Identifier: MIT OR Apache-2.0
//! `neighbour`: co-runners that map, touch and unmap memory without end, and whose accesses are not
//! simulated. (stress-ng's workers are [`ChurnConfig`](crate::ChurnConfig), which a real kernel has
//! run as well.)
//!
//! Each is one or several actors that take turns; an actor has some threads and a list of mappings
//! that it makes one after the other, touches page by page, and gives back. The profiles model:
//! - `object_detection`: an inference of SSD-MobileNet (Howard et al. 2017; Liu et al. 2016) after
//!   the other: the output of each layer is a tensor of its own, filled by all threads, and freed
//!   when the next but one is made. 37 MB an inference.
//! - `interpreter`: requests to a Python function (chameleon, pyaes, json_serdes): arenas of
//!   256 KiB (CPython's `ARENA_SIZE` up to 3.9) as the request goes on, all given back at its end.
//!   How many is assumed: 64, 16, 48 for the three.
//! - `inference`: rnn_serving: a small net's few tensors a request, over weights that stay.
//! - `compiler`: gcc: a heap that grows by 2 MiB (assumed) up to 192 MiB, and the process exits.
//! - `compressor`: xz -6: 94 MiB for each file.
//! - `all`: these seven side by side (object detection, three interpreters, inference, compiler,
//!   compressor), as in PTEMagnet's evaluation.

use nestwalk_mem::{PageCount, Vpn, VpnRange};
use serde::{Deserialize, Serialize};

use super::bijection::{mix, scale};
use super::config::impossible;
use super::memory::{MmapArea, Region};
use crate::stream::{Batch, MemoryEvent, Phase, Step, ThreadId, Workload, WorkloadError, WorkloadFacts};

/// Pages that a thread touches before the next one's turn.
const TOUCH_TURN: u64 = 32;
const MIB: u64 = 256;
/// Side and channels of the outputs of MobileNet's layers at 300 x 300; each number is a float of
/// 4 bytes.
const LAYERS: [(u64, u64); 27] = [
    (150, 32),
    (150, 32),
    (150, 64),
    (75, 64),
    (75, 128),
    (75, 128),
    (75, 128),
    (38, 128),
    (38, 256),
    (38, 256),
    (38, 256),
    (19, 256),
    (19, 512),
    (19, 512),
    (19, 512),
    (19, 512),
    (19, 512),
    (19, 512),
    (19, 512),
    (19, 512),
    (19, 512),
    (19, 512),
    (19, 512),
    (10, 512),
    (10, 1024),
    (10, 1024),
    (10, 1024),
];

/// What the co-runner is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Inferences of SSD-MobileNet.
    ObjectDetection,
    /// Requests to a Python function.
    Interpreter,
    /// Requests to a small recurrent net.
    Inference,
    /// A compiler's processes.
    Compiler,
    /// A compressor's runs.
    Compressor,
    /// PTEMagnet's seven co-runners.
    All,
}

/// A co-runner that maps, touches and unmaps.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NeighbourConfig {
    /// What it is.
    pub profile: Profile,
    /// Threads of `object_detection`; the others have one each.
    pub threads: u16,
    /// Pages that it touches before it ends.
    pub touches: u64,
    /// Where each actor begins in its list follows from this and from the run's seed.
    pub seed: u64,
}

impl Default for NeighbourConfig {
    fn default() -> Self {
        // PTEMagnet ran object detection with 8 threads. 10^8 pages outlast what is measured beside
        // them.
        Self { profile: Profile::ObjectDetection, threads: 8, touches: 100_000_000, seed: 1 }
    }
}

/// When an actor's mappings go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lifetime {
    /// Each when so many later ones have been made.
    Later(usize),
    /// All at the end of the list.
    Together,
}

/// Threads that work through a list of mappings.
struct Actor {
    first_thread: u16,
    threads: u16,
    mappings: Vec<Region>,
    lifetime: Lifetime,
    instructions_per_page: u64,
    at: At,
}

/// What an actor does next.
#[derive(Clone, Copy)]
enum At {
    Map {
        index: usize,
    },
    Touch {
        index: usize,
        page: u64,
        thread: u16,
    },
    /// Gives back mapping `index`; then the next of the list, or the next one up to the list's end.
    Unmap {
        index: usize,
        next: usize,
    },
}

/// See the [module's documentation](self).
pub(super) struct Neighbour {
    actors: Vec<Actor>,
    threads: u16,
    turn: usize,
    left: u64,
    begun: bool,
}

impl Neighbour {
    pub(super) fn new(config: &NeighbourConfig) -> Result<Self, WorkloadError> {
        let name = "neighbour";
        if !(1..=1024).contains(&config.threads) {
            return Err(impossible(name, format!("threads = {}: from 1 to 1024", config.threads)));
        }
        if config.touches == 0 {
            return Err(impossible(name, "touches = 0: it would do nothing"));
        }
        let mut crew = Crew { area: MmapArea::new(), actors: Vec::new(), threads: 0, seed: config.seed };
        crew.hire(config);
        let Crew { actors, threads, .. } = crew;
        Ok(Self { actors, threads, turn: 0, left: config.touches, begun: false })
    }
}

/// Actors being put together.
struct Crew {
    area: MmapArea,
    actors: Vec<Actor>,
    threads: u16,
    seed: u64,
}

impl Crew {
    fn hire(&mut self, config: &NeighbourConfig) {
        let threads = config.threads;
        let arenas = |count: usize| vec![MIB / 4; count];
        match config.profile {
            // 1.2 thousand million multiplications an inference, eight an instruction, over 9,000
            // pages.
            Profile::ObjectDetection => {
                let pages = |&(side, channels)| PageCount::covering(side * side * channels * 4).0;
                self.add(threads, LAYERS.iter().map(pages).collect(), Lifetime::Later(2), 16_000);
            }
            // A page of objects made by an interpreter (assumed: 64 objects, 800 instructions
            // each).
            Profile::Interpreter => self.add(1, arenas(64), Lifetime::Together, 51_200),
            Profile::Inference => self.add(1, vec![MIB / 2, MIB, MIB / 2, MIB / 4], Lifetime::Later(1), 16_000),
            // 2.5 instructions an access and 7 lines in a thousand accesses, as measured of cc1:
            // some 20,000 a page of 64 lines.
            Profile::Compiler => self.add(1, vec![2 * MIB; 96], Lifetime::Together, 20_000),
            // xz -6: a dictionary of 8 MiB, trees of 64, the hash tables, and the window; 3.7
            // instructions an access.
            Profile::Compressor => self.add(1, vec![12 * MIB, 18 * MIB, 64 * MIB], Lifetime::Together, 40_000),
            Profile::All => {
                let part = |profile, threads| NeighbourConfig { profile, threads, ..config.clone() };
                self.hire(&part(Profile::ObjectDetection, 8));
                for count in [64, 16, 48] {
                    self.add(1, arenas(count), Lifetime::Together, 51_200);
                }
                for profile in [Profile::Inference, Profile::Compiler, Profile::Compressor] {
                    self.hire(&part(profile, 1));
                }
            }
        }
    }

    fn add(&mut self, threads: u16, sizes: Vec<u64>, lifetime: Lifetime, instructions_per_page: u64) {
        let mut map = |pages: u64| {
            self.area.skip(PageCount(1));
            self.area.map(PageCount(pages))
        };
        let mappings: Vec<Region> = sizes.into_iter().map(&mut map).collect();
        // Actors do not begin in step, or their rhythms would coincide.
        let index = match lifetime {
            Lifetime::Together => 0,
            Lifetime::Later(_) => scale(mix(self.seed ^ self.actors.len() as u64), mappings.len() as u64) as usize,
        };
        let first_thread = self.threads;
        self.threads += threads;
        let at = At::Map { index };
        self.actors.push(Actor { first_thread, threads, mappings, lifetime, instructions_per_page, at });
    }
}

impl Actor {
    /// What comes after mapping `index` is filled.
    fn filled(&self, index: usize) -> At {
        let count = self.mappings.len();
        let next = (index + 1) % count;
        match self.lifetime {
            Lifetime::Together if next == 0 => At::Unmap { index: 0, next: 1 },
            Lifetime::Together => At::Map { index: next },
            // The mapping that many places before, if it has been made already: unmapping what is
            // not mapped does nothing.
            Lifetime::Later(later) => At::Unmap { index: (index + count - later) % count, next },
        }
    }

    fn unmapped(&self, next: usize) -> At {
        match self.lifetime {
            Lifetime::Together if next < self.mappings.len() => At::Unmap { index: next, next: next + 1 },
            Lifetime::Together => At::Map { index: 0 },
            Lifetime::Later(_) => At::Map { index: next },
        }
    }

    /// Its next step: an event, or touches.
    fn step(&mut self, batch: &mut Batch, most: u64) -> Step {
        batch.thread = ThreadId(self.first_thread);
        match self.at {
            At::Map { index } => {
                self.at = At::Touch { index, page: 0, thread: 0 };
                let range = self.mappings[index].pages;
                Step::Event(MemoryEvent::Mmap { range, writable: true, anonymous: true })
            }
            At::Unmap { index, next } => {
                self.at = self.unmapped(next);
                Step::Event(MemoryEvent::Munmap { range: self.mappings[index].pages })
            }
            At::Touch { index, page, thread } => {
                let VpnRange { start, .. } = self.mappings[index].pages;
                let pages = self.mappings[index].pages.len();
                let slice = |thread: u16| pages * u64::from(thread) / u64::from(self.threads);
                let (from, to) = (slice(thread), slice(thread + 1));
                let until = to.min(from + page + TOUCH_TURN.min(most)).max(from);
                batch.thread = ThreadId(self.first_thread + thread);
                let touched = (from + page).min(to)..until;
                batch.instructions = touched.clone().count() as u64 * self.instructions_per_page;
                batch.touches.extend(touched.map(|at| (Vpn((start + at).0), true)));
                // The threads' slices grow in step.
                let last = thread + 1 == self.threads;
                let longest = (0..self.threads).map(|t| slice(t + 1) - slice(t)).max().unwrap_or(0);
                self.at = match (last, page + TOUCH_TURN >= longest) {
                    (false, _) => At::Touch { index, page, thread: thread + 1 },
                    (true, false) => At::Touch { index, page: page + TOUCH_TURN, thread: 0 },
                    (true, true) => self.filled(index),
                };
                Step::Touches
            }
        }
    }
}

impl Workload for Neighbour {
    fn facts(&self) -> WorkloadFacts {
        let pages = |actor: &Actor| actor.mappings.iter().map(|mapping| mapping.pages.len()).sum::<u64>();
        WorkloadFacts {
            name: "neighbour".into(),
            footprint: PageCount(self.actors.iter().map(pages).sum()),
            accesses: None,
            threads: self.threads,
            warms_until_told: false,
            kernel_half: false,
            tells_dependences: false,
            modelled: None,
        }
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        batch.clear();
        if !std::mem::replace(&mut self.begun, true) {
            return Ok(Step::Phase(Phase::Populate));
        }
        while self.left > 0 {
            let turn = self.turn;
            self.turn = (turn + 1) % self.actors.len();
            let step = self.actors[turn].step(batch, self.left);
            if step != Step::Touches {
                return Ok(step);
            }
            self.left -= (batch.touches.len() as u64).min(self.left);
            // A thread whose slice is done already has nothing to touch.
            if !batch.touches.is_empty() {
                return Ok(step);
            }
        }
        Ok(Step::End)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use nestwalk_mem::addr::PAGE_BYTES;
    use proptest::prelude::*;

    use super::*;

    fn profiles() -> impl Strategy<Value = Profile> {
        use Profile::{All, Compiler, Compressor, Inference, Interpreter, ObjectDetection};
        prop::sample::select(vec![ObjectDetection, Interpreter, Inference, Compiler, Compressor, All])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Against a set of mapped pages: every touch is inside a mapping, the first there since it
        /// was made, by a known thread; and what is mapped is bounded by what the facts say.
        #[test]
        fn touches_lie_in_mappings_and_memory_is_given_back(profile in profiles(), threads in 1u16..13, seed in 0u64..9) {
            let config = NeighbourConfig { profile, threads, touches: 60_000, seed };
            let mut neighbour = Neighbour::new(&config).unwrap();
            let facts = neighbour.facts();
            let (mut mapped, mut touched) = (BTreeMap::new(), BTreeSet::<Vpn>::new());
            let (mut unmapped, mut total, mut seen) = (0u64, 0u64, BTreeSet::new());
            let mut batch = Batch::default();
            prop_assert_eq!(neighbour.next(&mut batch).unwrap(), Step::Phase(Phase::Populate));
            loop {
                match neighbour.next(&mut batch).unwrap() {
                    Step::Event(MemoryEvent::Mmap { range, .. }) => {
                        prop_assert!(mapped.insert(range.start, range.end).is_none(), "mapped twice");
                    }
                    Step::Event(MemoryEvent::Munmap { range }) => {
                        unmapped += u64::from(mapped.remove(&range.start).is_some());
                        touched.retain(|&page| !range.contains(page));
                    }
                    Step::Touches => {
                        prop_assert!(batch.thread.0 < facts.threads);
                        seen.insert(batch.thread.0);
                        total += batch.touches.len() as u64;
                        for &(page, _) in &batch.touches {
                            let (_, end) = mapped.range(..=page).next_back().expect("a mapping below");
                            prop_assert!(page < *end && touched.insert(page), "{:?}", page);
                        }
                    }
                    Step::End => break,
                    other => prop_assert!(false, "{:?}", other),
                }
                let pages: u64 = mapped.iter().map(|(start, end)| end.0 - start.0).sum();
                prop_assert!(pages <= facts.footprint.0);
            }
            prop_assert!((60_000..60_000 + TOUCH_TURN).contains(&total), "{}", total);
            prop_assert_eq!(seen.len(), usize::from(facts.threads), "all threads touch");
            prop_assert!(unmapped > 0 || facts.footprint.0 > 4000, "nothing was given back");
        }
    }

    #[test]
    fn an_inference_is_37_megabytes_and_all_seven_have_14_threads() {
        let config = |profile| NeighbourConfig { profile, threads: 8, ..NeighbourConfig::default() };
        let bytes = Neighbour::new(&config(Profile::ObjectDetection)).unwrap().facts().footprint.0 * PAGE_BYTES;
        assert!((36_000_000..38_000_000).contains(&bytes), "{bytes}");
        assert_eq!(Neighbour::new(&config(Profile::All)).unwrap().facts().threads, 14);
    }
}
