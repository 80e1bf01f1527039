// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much of its waiting an out-of-order core hides, for a program that says which access needs
//! which ([`Dependence`]).
//!
//! The core is seen as interval models see it (Karkhanis and Smith, ISCA 2004; Eyerman et al., ACM
//! TOCS 27(2), 2009): instructions enter a reorder buffer at the pace that they have when nothing
//! waits, and leave it in order. While they are in it, loads wait beside each other, as far as page
//! walkers and miss registers go, and as far as none needs the value of another. Everything else
//! (execution units, the scheduler's own size, branches) is in that pace.

use std::collections::VecDeque;

use nestwalk_mem::addr::{LINE_SHIFT, PAGE_SHIFT};
use nestwalk_mem::{Cycles, Dependence};
use serde::{Deserialize, Serialize};

/// The parts of a core that decide how much waiting it hides.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutOfOrderConfig {
    /// Instructions that it has under way at the most.
    pub reorder_buffer: u64,
    /// Stores that have left the reorder buffer, or are in it, and are not in the L1-D yet.
    pub store_buffer: u64,
    /// Page walks that go on at the same time.
    pub page_walkers: u64,
    /// What a locked instruction takes beyond its data, if no other core wants its line.
    pub locked_cycles: u64,
    /// Where these come from.
    #[serde(default)]
    pub source: String,
}

/// A core, with all that the model needs of it.
#[derive(Clone, Debug)]
pub(crate) struct OutOfOrder {
    pub config: OutOfOrderConfig,
    /// Misses of the L1-D at the same time; none: any number.
    pub miss_registers: Option<u64>,
    pub l1d_latency: Cycles,
    /// The pace at which instructions enter, if nothing waits.
    pub cycles_per_kiloinstruction: u64,
}

/// An access as a core has simulated it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timed {
    /// Its instruction, counted along its thread.
    pub instruction: u64,
    pub dependence: Dependence,
    pub store: bool,
    /// Guest-virtual address.
    pub gva: u64,
    /// How long its walk takes, 0 without one.
    pub walk: Cycles,
    /// What a hit in the second-level TLB takes.
    pub second_tlb: Cycles,
    /// How long its data takes from when its frame is known: an L1-D hit, at least.
    pub data: Cycles,
}

/// A time, or a span of it, in thousandths of a cycle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Instant(pub u64);

impl Instant {
    /// So many cycles later.
    #[inline]
    fn after(self, cycles: Cycles) -> Self {
        Self(self.0 + 1000 * cycles.0)
    }
}

/// What a miss register is busy with that a walk has: no line of the program.
const NO_LINE: u64 = u64::MAX;

/// A part of a core is busy with a page, or a line, until a time.
#[derive(Clone, Copy, Debug)]
struct Busy {
    with: u64,
    until: Instant,
}

/// Changes that have passed are forgotten when there are so many.
const FORGET: usize = 64;

/// Some equal parts of a core. They are asked for in the order of the program, and used in the
/// order of time: an access that waits for another one's value leaves its part to those behind it
/// until then.
#[derive(Clone, Debug)]
struct Parts {
    busy: Vec<Busy>,
    /// How many of `busy` there were when the old ones were last forgotten.
    kept: usize,
    /// How many there are; none: any number.
    count: Option<u64>,
    /// When one becomes free (false), or is taken: in order, at the same time those that become
    /// free first.
    changes: Vec<(Instant, bool)>,
    /// How many are in use before all of that.
    used: u64,
}

impl Parts {
    fn new(count: Option<u64>) -> Self {
        Self { busy: Vec::new(), kept: 0, count, changes: Vec::new(), used: 0 }
    }

    /// When what is under way `with` that is done; a time that has passed if nothing is.
    fn until(&self, with: u64) -> Instant {
        self.busy.iter().rev().find(|busy| busy.with == with).map_or(Instant(0), |busy| busy.until)
    }

    /// Nothing will be asked for before `now`.
    fn forget_before(&mut self, now: Instant) {
        if self.changes.get(FORGET).is_some_and(|&(at, _)| at <= now) {
            let passed = self.changes.partition_point(|&(at, _)| at <= now);
            self.used = self.changes.drain(..passed).fold(self.used, after);
        }
        if self.busy.len() >= 2 * self.kept + FORGET {
            self.busy.retain(|busy| busy.until > now);
            self.kept = self.busy.len();
        }
    }

    /// One that is free is busy `with` that for so long from then on; until when.
    fn take(&mut self, with: u64, from: Instant, cycles: Cycles) -> Instant {
        let until = from.after(cycles);
        self.busy.push(Busy { with, until });
        if self.count.is_some() {
            for change in [(from, true), (until, false)] {
                let place = self.changes.partition_point(|other| *other <= change);
                self.changes.insert(place, change);
            }
        }
        until
    }

    /// As soon as one is free for that long, from `ready` on.
    fn free_from(&self, ready: Instant, cycles: Cycles) -> Instant {
        let Some(count) = self.count else { return ready };
        let passed = self.changes.partition_point(|&(at, _)| at <= ready);
        let (passed, later) = self.changes.split_at(passed);
        let mut used = passed.iter().copied().fold(self.used, after);
        let mut from = (used < count).then_some(ready);
        for &change in later {
            if from.is_some_and(|from| from.after(cycles) <= change.0) {
                break;
            }
            used = after(used, change);
            if used >= count {
                from = None;
            } else if from.is_none() {
                from = Some(change.0);
            }
        }
        from.expect("all are free in the end")
    }
}

/// How many parts are in use after a change.
fn after(used: u64, (_, taken): (Instant, bool)) -> u64 {
    if taken { used + 1 } else { used - 1 }
}

/// A core while accesses pass through it.
#[derive(Clone, Debug)]
pub(crate) struct Passing {
    /// The last access's instruction, and when it entered the reorder buffer.
    instruction: u64,
    entered: Instant,
    /// When the last access left it.
    left: Instant,
    /// Accesses that may still be in it, and when each leaves.
    inside: VecDeque<(u64, Instant)>,
    /// When each of the last stores is in the L1-D: in order.
    stores: VecDeque<Instant>,
    walkers: Parts,
    misses: Parts,
    /// When the value is there that the next [`Dependence::After`] needs.
    value: Instant,
    /// When the last locked access was done.
    locked: Instant,
    /// When all accesses so far are done.
    done: Instant,
}

impl Passing {
    /// Nothing is under way in `core`.
    pub fn new(core: &OutOfOrder) -> Self {
        let never = Instant::default();
        Self {
            instruction: 0,
            entered: never,
            left: never,
            inside: VecDeque::new(),
            stores: VecDeque::new(),
            walkers: Parts::new(Some(core.config.page_walkers)),
            misses: Parts::new(core.miss_registers),
            value: never,
            locked: never,
            done: never,
        }
    }

    /// When the last access leaves the reorder buffer.
    pub fn left(&self) -> Instant {
        self.left
    }

    /// The next access of the program passes through `core`, always the same one.
    pub fn pass(&mut self, core: &OutOfOrder, access: &Timed) {
        self.enter(core, access);
        let start = match access.dependence {
            Dependence::Free | Dependence::First => self.entered,
            Dependence::After => self.entered.max(self.value),
            Dependence::Locked => self.entered.max(self.done),
        };
        let translated = self.translate(start.max(self.locked), access);
        let done = self.fetch(core, translated, access);
        self.done = self.done.max(done);
        match access.dependence {
            Dependence::Locked => self.locked = done,
            Dependence::First | Dependence::After if !access.store => self.value = done,
            _ => {}
        }
        self.leave(access, translated, done);
    }

    /// It enters the reorder buffer, as soon as that and the store buffer have room.
    fn enter(&mut self, core: &OutOfOrder, access: &Timed) {
        let OutOfOrder { config, cycles_per_kiloinstruction, .. } = core;
        self.entered.0 += (access.instruction - self.instruction) * cycles_per_kiloinstruction;
        self.instruction = access.instruction;
        while let Some(&(instruction, left)) = self.inside.front()
            && instruction + config.reorder_buffer <= access.instruction
        {
            self.entered = self.entered.max(left);
            self.inside.pop_front();
        }
        self.walkers.forget_before(self.entered);
        self.misses.forget_before(self.entered);
        if access.store && self.stores.len() as u64 >= config.store_buffer {
            self.entered = self.entered.max(self.stores.pop_front().unwrap_or_default());
        }
    }

    /// When its frame is known, if its address is at `start`.
    fn translate(&mut self, start: Instant, access: &Timed) -> Instant {
        let page = access.gva >> PAGE_SHIFT;
        if access.walk > Cycles(0) {
            return self.walk(page, start, access.walk);
        }
        // A page whose walk goes on is in the simulated TLB already.
        start.max(self.walkers.until(page)).after(access.second_tlb)
    }

    /// A walk needs a walker and, for its lines, which it asks for one after the other, a miss
    /// register: when it is done that is ready at `start`.
    fn walk(&mut self, page: u64, start: Instant, cycles: Cycles) -> Instant {
        let mut from = start;
        loop {
            let walker = self.walkers.free_from(from, cycles);
            from = self.misses.free_from(walker, cycles);
            if from == walker {
                break;
            }
        }
        self.misses.take(NO_LINE, from, cycles);
        self.walkers.take(page, from, cycles)
    }

    /// When its data is there.
    fn fetch(&mut self, core: &OutOfOrder, translated: Instant, access: &Timed) -> Instant {
        let line = access.gva >> LINE_SHIFT;
        let locked =
            if access.dependence == Dependence::Locked { Cycles(core.config.locked_cycles) } else { Cycles(0) };
        let there = if access.data > core.l1d_latency {
            let from = self.misses.free_from(translated, access.data);
            self.misses.take(line, from, access.data)
        } else {
            // A line that is on its way is in the simulated L1-D already.
            translated.after(access.data).max(self.misses.until(line))
        };
        there.after(locked)
    }

    /// It leaves the reorder buffer: a store as soon as it is translated, since it has the store
    /// buffer to wait in.
    fn leave(&mut self, access: &Timed, translated: Instant, done: Instant) {
        let waits_outside = access.store && access.dependence != Dependence::Locked;
        self.left = self.left.max(if waits_outside { translated } else { done });
        if access.store {
            let before = self.stores.back().copied().unwrap_or_default();
            self.stores.push_back(before.max(self.left).max(done));
        }
        self.inside.push_back((access.instruction, self.left));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two walkers, three miss registers, a reorder buffer of 100, and an instruction a cycle.
    pub(crate) fn core() -> OutOfOrder {
        let config = OutOfOrderConfig {
            reorder_buffer: 100,
            store_buffer: 2,
            page_walkers: 2,
            locked_cycles: 20,
            source: String::new(),
        };
        OutOfOrder { config, miss_registers: Some(3), l1d_latency: Cycles(4), cycles_per_kiloinstruction: 1000 }
    }

    /// A load by that instruction whose walk and data take so long, of a page and a line of its
    /// own.
    fn load(instruction: u64, walk: u64, data: u64) -> Timed {
        Timed {
            instruction,
            dependence: Dependence::Free,
            store: false,
            gva: (instruction + 1) << 12,
            walk: Cycles(walk),
            second_tlb: Cycles(0),
            data: Cycles(data),
        }
    }

    fn depending(dependence: Dependence, access: Timed) -> Timed {
        Timed { dependence, ..access }
    }

    fn store(access: Timed) -> Timed {
        Timed { store: true, ..access }
    }

    /// Cycles until the last of `accesses` has left.
    fn cycles(core: &OutOfOrder, accesses: &[Timed]) -> u64 {
        let mut passing = Passing::new(core);
        accesses.iter().for_each(|access| passing.pass(core, access));
        passing.left().0 / 1000
    }

    #[test]
    fn hits_take_the_pace_of_instructions() {
        let accesses: Vec<_> = (1..=1000).map(|n| load(3 * n, 0, 4)).collect();
        assert_eq!(cycles(&core(), &accesses), 3004);
    }

    #[test]
    fn independent_loads_wait_beside_each_other_and_a_chain_one_after_the_other() {
        let three = [load(1, 0, 200), load(2, 0, 200), load(3, 0, 200)];
        assert_eq!(cycles(&core(), &three), 203);
        let chain = [
            depending(Dependence::First, three[0]),
            depending(Dependence::After, three[1]),
            depending(Dependence::After, three[2]),
        ];
        assert_eq!(cycles(&core(), &chain), 601);
        let two_chains = [
            depending(Dependence::First, load(1, 0, 200)),
            depending(Dependence::After, load(2, 0, 200)),
            depending(Dependence::First, load(3, 0, 200)),
            depending(Dependence::After, load(4, 0, 200)),
        ];
        assert_eq!(cycles(&core(), &two_chains), 403);
    }

    #[test]
    fn there_are_so_many_miss_registers_and_walkers() {
        let misses = |count| (1..=count).map(|n| load(n, 0, 200)).collect::<Vec<_>>();
        assert_eq!([3, 4, 6, 7].map(|count| cycles(&core(), &misses(count))), [203, 401, 403, 601]);
        let walks = |count| (1..=count).map(|n| load(n, 100, 4)).collect::<Vec<_>>();
        assert_eq!([2, 3, 4, 5].map(|count| cycles(&core(), &walks(count))), [106, 205, 206, 305]);
        let many = OutOfOrderConfig { page_walkers: 9, ..core().config };
        let walkers = OutOfOrder { config: many, ..core() };
        assert_eq!([3, 4].map(|count| cycles(&walkers, &walks(count))), [107, 205], "three registers");
        let any = OutOfOrder { miss_registers: None, ..core() };
        assert_eq!(cycles(&any, &misses(50)), 250);
    }

    #[test]
    fn what_waits_for_a_value_leaves_its_register_to_those_behind_it() {
        let late = depending(Dependence::After, load(2, 0, 200));
        let accesses = [depending(Dependence::First, load(1, 0, 200)), late, load(3, 0, 200), load(4, 0, 200)];
        // The loads of instructions 3 and 4 go on beside the first, and the one of 2 behind it.
        assert_eq!(cycles(&core(), &accesses), 401);
        let five = [&accesses[..], &[load(5, 0, 200)]].concat();
        assert_eq!(cycles(&core(), &five), 403, "with the one of 3 done there are two free");
    }

    #[test]
    fn data_waits_for_its_walk() {
        assert_eq!(cycles(&core(), &[load(1, 100, 200)]), 301);
        let on_its_page = Timed { gva: load(1, 0, 0).gva + 640, ..load(2, 0, 4) };
        assert_eq!(cycles(&core(), &[load(1, 100, 4), on_its_page]), 105, "not before the page is translated");
        let second_tlb = Timed { second_tlb: Cycles(7), ..load(1, 0, 4) };
        assert_eq!(cycles(&core(), &[second_tlb]), 12);
    }

    #[test]
    fn a_line_that_is_on_its_way_is_waited_for_once() {
        let line = |n: u64, data| Timed { gva: 4096 + n, ..load(n, 0, data) };
        assert_eq!(cycles(&core(), &[line(1, 200), line(2, 4), line(3, 4), load(4, 0, 4)]), 201);
    }

    #[test]
    fn nothing_enters_a_full_reorder_buffer() {
        // The second load is the hundredth instruction behind the first, which has to leave before.
        assert_eq!(cycles(&core(), &[load(1, 0, 200), load(100, 0, 200)]), 300);
        assert_eq!(cycles(&core(), &[load(1, 0, 200), load(101, 0, 200)]), 401);
    }

    #[test]
    fn stores_wait_outside_until_their_buffer_is_full() {
        let stores: Vec<_> = (1..=2).map(|n| store(load(n, 0, 200))).collect();
        assert_eq!(cycles(&core(), &stores), 2, "their data is on its way");
        let walking = store(load(1, 100, 200));
        assert_eq!(cycles(&core(), &[walking]), 101, "but not their walk");
        let three: Vec<_> = (1..=3).map(|n| store(load(n, 0, 200))).collect();
        assert_eq!(cycles(&core(), &three), 201, "the third waits for the first one's place");
    }

    #[test]
    fn a_locked_access_waits_for_all_before_it_and_all_wait_for_it() {
        let locked = depending(Dependence::Locked, store(load(2, 0, 50)));
        // The load until 201, the addition from there to 271, the last load until 471.
        assert_eq!(cycles(&core(), &[load(1, 0, 200), locked, load(3, 0, 200)]), 471);
    }
}
