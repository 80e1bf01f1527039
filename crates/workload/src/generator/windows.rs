// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that end, and give memory back while they run, with the driver that makes a
//! [`Workload`] of them.
//!
//! Such a program takes far more accesses than can be simulated, and when each of its pages is
//! touched first is part of what it is. So it is a [`Script`]: events, first touches, instructions
//! that make time go on, and between them windows, which are simulated access by access. Windows
//! lie evenly over the program's stretches, from a random place on.

use std::collections::VecDeque;

use nestwalk_mem::{PageCount, Vpn};

use super::bijection::mix;
use super::config::{Common, Mixture};
use super::memory::{Region, Sweep};
use super::pattern::{Mixed, Pattern};
use super::program::{ACCESS_TURN, Program, TOUCH_TURN, turn};
use crate::stream::{Batch, MemoryEvent, Phase, Step, ThreadId, Workload, WorkloadError, WorkloadFacts};

/// A whole stretch, as a share of it is given.
pub(super) const WHOLE: u64 = 1 << 32;
/// Steps of a stretch in which pages are touched.
const TICKS: u64 = 256;
/// Accesses for which a window warms up, at the least.
const WARM_MIN: u64 = 1 << 21;

/// `count * share / WHOLE`.
pub(super) const fn part(count: u64, share: u64) -> u64 {
    ((count as u128 * share as u128) >> 32) as u64
}

/// `of / whole` as a share.
pub(super) const fn share(of: u64, whole: u64) -> u64 {
    // A division of 64 bits takes a fraction of the time.
    if of < WHOLE { (of << 32) / whole } else { (((of as u128) << 32) / whole as u128) as u64 }
}

/// A program that ends.
pub(super) trait Ending: Pattern {
    /// What it does in a stretch of its accesses.
    type Pass: Copy + Send;

    /// Pages that it has in use at the most.
    fn footprint(&self) -> PageCount;

    /// Windows of the whole run.
    fn windows(&self) -> u64;

    /// Writes down what it does next; nothing when it has ended.
    fn go_on(&mut self, script: &mut Script<Self::Pass>);

    /// Its threads are where they are when that share of the pass is done.
    fn seek(&mut self, pass: Self::Pass, done: u64);
}

/// A stretch of a program's accesses: its pass, accesses to data, and the pages that are touched
/// first in it, each with the share of the stretch that is done by then, in that order.
pub(super) struct Stretch<P> {
    pub(super) pass: P,
    pub(super) data: u64,
    pub(super) touches: Vec<(u64, Vpn)>,
}

/// What comes next.
enum Item<P> {
    Event(MemoryEvent),
    /// First touches by a thread, and instructions that go with them.
    Touches(u16, Vec<(Vpn, bool)>, u64),
    /// A window, when that share of a pass is done, and the accesses of the program before it.
    Window(P, u64, u64),
}

/// What a program does next, in order.
pub(super) struct Script<P> {
    common: Common,
    mixture: Mixture,
    items: VecDeque<Item<P>>,
    /// Accesses of all stretches that are written down.
    accesses: u64,
}

impl<P: Copy> Script<P> {
    /// Accesses that come with so many to data.
    fn with_locals(&self, data: u64) -> u64 {
        data * 1000 / (1000 - u64::from(self.mixture.local_permille))
    }

    fn instructions(&self, data: u64) -> u64 {
        self.with_locals(data) * u64::from(self.mixture.instructions_per_kiloaccess) / 1000
    }

    pub(super) fn map(&mut self, region: Region) {
        self.event(MemoryEvent::Mmap { range: region.pages, writable: true, anonymous: true });
    }

    pub(super) fn unmap(&mut self, region: Region) {
        self.event(MemoryEvent::Munmap { range: region.pages });
    }

    /// File number `file` of the program is read.
    pub(super) fn read_file(&mut self, file: u64, pages: PageCount) {
        self.event(MemoryEvent::ReadFile { file, pages });
    }

    fn event(&mut self, event: MemoryEvent) {
        self.items.push_back(Item::Event(event));
    }

    /// Pages that one thread touches first, with the instructions of so many accesses to data.
    pub(super) fn touches(&mut self, thread: u16, touches: Vec<(Vpn, bool)>, data: u64) {
        self.items.push_back(Item::Touches(thread, touches, self.instructions(data)));
    }

    /// The pages of `region`, which the first `threads` threads touch first, each its part of them
    /// in order, with the instructions of so many accesses to data.
    pub(super) fn fill(&mut self, threads: u16, region: Region, data: u64) {
        let mut sweep = Sweep::new(vec![vec![region]], threads);
        let mut left = region.pages.len();
        for thread in (0..threads).cycle() {
            if left == 0 {
                return;
            }
            let mut touches = Vec::new();
            sweep.touch(thread, &mut touches, turn(threads, TOUCH_TURN));
            let count = touches.len() as u64;
            if count > 0 {
                left -= count;
                self.touches(thread, touches, data * count / region.pages.len());
            }
        }
    }

    /// Stretches one after the other, by all threads: their first touches, time that goes by, and
    /// `windows` windows, evenly over all of them from the place on that `seed` says. A page that
    /// is in use carries the time where none is touched first: `idle`.
    pub(super) fn stretches(&mut self, stretches: Vec<Stretch<P>>, windows: u64, seed: u64, idle: Vpn) {
        let threads = self.common.threads;
        let whole: u64 = stretches.iter().map(|stretch| stretch.data).sum();
        let random = mix(seed) >> 32;
        let mut places = (0..windows).map(|window| part(whole, (window * WHOLE + random) / windows)).peekable();
        let (mut thread, mut base) = (0, 0);
        for Stretch { pass, data, touches } in stretches {
            let mut touches = touches.into_iter().peekable();
            for tick in 0..TICKS {
                let until = WHOLE / TICKS * (tick + 1);
                let mut pages = Vec::new();
                while let Some((_, page)) = touches.next_if(|&(when, _)| when < until) {
                    pages.push(page);
                }
                if pages.is_empty() {
                    pages.push(idle);
                }
                let turns = pages.chunks(TOUCH_TURN);
                let each = data / TICKS / turns.len() as u64;
                for turn in turns {
                    self.touches(thread, turn.iter().map(|&page| (page, true)).collect(), each);
                    thread = (thread + 1) % threads;
                }
                while let Some(place) = places.next_if(|&place| place < base + part(data, until)) {
                    let before = self.accesses + self.with_locals(place);
                    self.items.push_back(Item::Window(pass, share(place - base, data), before));
                }
            }
            base += data;
        }
        self.accesses += self.with_locals(whole);
    }
}

/// What is left of a window.
#[derive(Clone, Copy)]
struct Window {
    phase: Phase,
    begun: bool,
    left: u64,
}

/// Plays a program's script.
pub(super) struct Windows<P: Ending> {
    program: Mixed<P>,
    script: Script<P::Pass>,
    begun: bool,
    /// Windows that are done.
    windows: u64,
    window: Option<Window>,
    thread: u16,
    /// Accesses of the program until now.
    accesses: u64,
}

impl<P: Ending> Windows<P> {
    pub(super) fn new(common: Common, mixture: Mixture, program: P) -> Self {
        Self {
            program: Mixed::new(common, mixture, program),
            script: Script { common, mixture, items: VecDeque::new(), accesses: 0 },
            begun: false,
            windows: 0,
            window: None,
            thread: 0,
            accesses: 0,
        }
    }

    /// The program's mappings before it works, and the pages of its stacks and libraries.
    fn begin(&mut self) {
        self.begun = true;
        let layout = self.program.pattern().layout();
        layout.regions().into_iter().for_each(|region| self.script.map(region));
        for thread in 0..self.script.common.threads {
            let mut touches = Vec::new();
            layout.touch(thread, &mut touches);
            self.script.touches(thread, touches, 0);
        }
    }

    /// Accesses of all windows in a phase.
    fn all_accesses(&self, phase: Phase) -> u64 {
        let common = &self.script.common;
        let least = common.measured_accesses.max(WARM_MIN * self.program.pattern().windows());
        if phase == Phase::Warm { common.warm_accesses.unwrap_or(least) } else { common.measured_accesses }
    }

    /// Accesses of the next window in a phase.
    fn window_accesses(&self, phase: Phase) -> u64 {
        let windows = self.program.pattern().windows();
        let all = self.all_accesses(phase);
        all / windows + u64::from(self.windows < all % windows)
    }

    fn begin_window(&mut self, pass: P::Pass, done: u64, before: u64) {
        self.program.restart().seek(pass, done);
        self.accesses = self.accesses.max(before);
        let warm = self.window_accesses(Phase::Warm);
        let phase = if warm > 0 { Phase::Warm } else { Phase::Measure };
        self.window = Some(Window { phase, begun: false, left: self.window_accesses(phase) });
    }

    /// The next part of a window.
    fn play(&mut self, mut window: Window, batch: &mut Batch) -> Option<Step> {
        if !window.begun {
            window.begun = true;
            self.window = Some(window);
            return (window.left > 0).then_some(Step::Phase(window.phase));
        }
        if window.left == 0 && window.phase == Phase::Measure {
            (self.windows, self.window) = (self.windows + 1, None);
            // What follows is not simulated.
            return Some(Step::Phase(Phase::Populate));
        }
        if window.left == 0 {
            let phase = Phase::Measure;
            self.window = Some(Window { phase, begun: false, left: self.window_accesses(phase) });
            return None;
        }
        let threads = self.script.common.threads;
        let most = window.left.min(turn(threads, ACCESS_TURN) as u64);
        batch.thread = ThreadId(self.thread);
        batch.instructions = self.program.fill(self.thread, &mut batch.accesses, most as usize);
        self.thread = (self.thread + 1) % threads;
        self.accesses += most;
        window.left -= most;
        self.window = Some(window);
        Some(Step::Accesses)
    }
}

impl<P: Ending> Workload for Windows<P> {
    fn facts(&self) -> WorkloadFacts {
        let accesses = [Phase::Warm, Phase::Measure].map(|phase| self.all_accesses(phase)).iter().sum();
        WorkloadFacts {
            name: P::NAME.into(),
            footprint: self.program.pattern().footprint(),
            accesses: Some(accesses),
            threads: self.script.common.threads,
            warms_until_told: false,
            kernel_half: false,
            tells_dependences: P::TELLS_DEPENDENCES,
            modelled: None,
        }
    }

    fn program_accesses(&self) -> Option<u64> {
        Some(self.accesses)
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        batch.clear();
        if !self.begun {
            self.begin();
            return Ok(Step::Phase(Phase::Populate));
        }
        loop {
            if let Some(window) = self.window {
                if let Some(step) = self.play(window, batch) {
                    return Ok(step);
                }
                continue;
            }
            if self.script.items.is_empty() {
                self.program.restart().go_on(&mut self.script);
            }
            match self.script.items.pop_front() {
                Some(Item::Event(event)) => return Ok(Step::Event(event)),
                Some(Item::Touches(thread, touches, instructions)) => {
                    batch.thread = ThreadId(thread);
                    (batch.touches, batch.instructions) = (touches, instructions);
                    return Ok(Step::Touches);
                }
                Some(Item::Window(pass, done, before)) => self.begin_window(pass, done, before),
                None => {
                    self.accesses = self.accesses.max(self.script.accesses);
                    return Ok(Step::End);
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod played;
