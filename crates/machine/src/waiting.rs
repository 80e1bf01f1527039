// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a program waits that says which access needs which: samples of its measured accesses
//! pass through a model of the [core](crate::out_of_order).
//!
//! One stretch of each [`PERIOD`] measured accesses is run access by access, which changes no other
//! result, and passes through the core three times: as if all data were in the L1-D and nothing
//! walked, with its data, and with its walks, too. The differences are what the program waits for
//! data and for walks.

use std::ops::Range;

use nestwalk_mem::{Access, Cycles};
use nestwalk_mmu::Taken;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use schemars::JsonSchema;
use serde::Serialize;

use crate::out_of_order::{OutOfOrder, Passing, Timed};
use crate::scenario::MachineConfig;

/// Measured accesses of which one stretch is looked at; the first periods are shorter, from the
/// least on twice as long as the one before each, so that short runs have some.
const PERIOD: u64 = 1 << 17;
const PERIOD_MIN: u64 = 1 << 13;
/// Accesses of a stretch that only fill the core. More than it has under way.
const LEAD: u64 = 512;
/// Accesses of a stretch that are counted.
const COUNTED: u64 = 1024;

nestwalk_mem::counters! {
    /// What was counted of the stretches.
    pub numbers Sampled {
        /// Accesses.
        accesses ["accesses"],
        /// Instructions.
        instructions ["instructions"],
        /// What the program needs if nothing waits.
        work ["thousandths of cycles"],
        /// What it waits for data.
        data ["thousandths of cycles"],
        /// What it waits for walks.
        walk ["thousandths of cycles"],
        /// Latency of that data beyond an L1-D hit.
        data_latency ["cycles"],
        /// Latency of those walks.
        walk_latency ["cycles"],
    }
}

/// What samples say of a program in place of the three shares of the machine's `[timing]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Shares {
    /// Accesses that were looked at.
    pub accesses: u64,
    /// Cycles that 1000 instructions take when no access waits for more than an L1-D hit.
    pub cycles_per_kiloinstruction: u64,
    /// Share of the data latency beyond L1-D that the program does not wait for, in thousandths;
    /// `None` without such latency.
    pub data_overlap_permille: Option<u64>,
    /// Share of the walk cycles that it waits for, in thousandths; `None` without walks.
    pub walk_critical_permille: Option<u64>,
}

impl Sampled {
    /// These samples as shares; `None` without any.
    pub fn shares(&self) -> Option<Shares> {
        let share = |time: u64, latency: u64| time.checked_div(latency);
        Some(Shares {
            accesses: self.accesses,
            cycles_per_kiloinstruction: share(self.work, self.instructions)?,
            data_overlap_permille: share(self.data, self.data_latency).map(|waits| 1000_u64.saturating_sub(waits)),
            walk_critical_permille: share(self.walk, self.walk_latency),
        })
    }
}

/// A stretch under way.
struct Stretch {
    thread: u16,
    /// Accesses of it that are done.
    done: u64,
    /// Instructions of the thread since it began.
    instruction: u64,
    /// The core if nothing waits, if only data does, and as it is.
    passing: [Passing; 3],
    /// When the lead had left each; and the instruction.
    begun: ([u64; 3], u64),
    data_latency: u64,
    walk_latency: u64,
}

/// See the [module's documentation](self).
pub(crate) struct Waiting {
    core: OutOfOrder,
    second_tlb_hit: Cycles,
    seed: u64,
    /// Measured accesses so far, and the one at which the next stretch begins.
    at: u64,
    next: u64,
    /// The period of that stretch.
    period: Range<u64>,
    stretch: Option<Stretch>,
    sampled: Sampled,
}

impl Waiting {
    /// What looks at how long a program waits that says which access needs which; `None` where the
    /// machine's core is not known. The `seed` decides which stretches are looked at.
    pub fn on(machine: &MachineConfig, seed: u64) -> Option<Self> {
        let MachineConfig { timing, mmu, .. } = machine;
        let config = timing.out_of_order.clone()?;
        let core = OutOfOrder {
            config,
            miss_registers: mmu.l1d_miss_registers.map(u64::from),
            l1d_latency: Cycles(mmu.l1d.latency_cycles.into()),
            cycles_per_kiloinstruction: timing.base_cycles_per_kiloinstruction,
        };
        Some(Self::new(core, Cycles(mmu.l2_tlb_hit_cycles.into()), seed))
    }

    /// Nothing looked at yet of a program on `core`, where a hit in the second-level TLB takes so
    /// long.
    fn new(core: OutOfOrder, second_tlb_hit: Cycles, seed: u64) -> Self {
        let (sampled, stretch) = (Sampled::default(), None);
        let period = 0..PERIOD_MIN;
        Self { core, second_tlb_hit, seed, at: 0, next: place(seed, &period), period, stretch, sampled }
    }

    /// What was counted so far.
    pub fn sampled(&self) -> &Sampled {
        &self.sampled
    }

    /// How many of the next `count` accesses of a thread are looked at alike, and whether one by
    /// one.
    pub fn ahead(&mut self, thread: u16, count: usize) -> (usize, bool) {
        let within = |left: u64| usize::try_from(left).map_or(count, |left| left.min(count));
        if self.stretch.is_none() && self.at >= self.next {
            self.begin(thread);
        }
        match &self.stretch {
            Some(stretch) if stretch.thread == thread => (within(LEAD + COUNTED - stretch.done), true),
            Some(_) => (count, false),
            None => (within(self.next - self.at), false),
        }
    }

    /// So many accesses were not looked at.
    pub fn skip(&mut self, count: usize) {
        self.at += count as u64;
    }

    fn begin(&mut self, thread: u16) {
        while self.period.end <= self.at || self.next <= self.at {
            let length = (2 * (self.period.end - self.period.start)).min(PERIOD);
            self.period = self.period.end..self.period.end + length;
            self.next = place(self.seed, &self.period);
        }
        self.stretch = Some(Stretch {
            thread,
            done: 0,
            instruction: 0,
            passing: [(); 3].map(|()| Passing::new(&self.core)),
            begun: ([0; 3], 0),
            data_latency: 0,
            walk_latency: 0,
        });
    }

    /// The next access of the stretch, so many instructions after the one before. `taken`: what it
    /// took.
    pub fn pass(&mut self, access: Access, instructions: u64, taken: &Taken) {
        self.at += 1;
        let Some(stretch) = &mut self.stretch else { return };
        stretch.instruction += instructions;
        let whole = Timed {
            instruction: stretch.instruction,
            dependence: access.dependence(),
            store: access.is_store(),
            gva: access.gva().0,
            walk: taken.walk,
            second_tlb: Cycles(taken.second_tlb_hits * self.second_tlb_hit.0),
            data: taken.data,
        };
        let none = Cycles(0);
        let resident = Timed { walk: none, second_tlb: none, data: self.core.l1d_latency, ..whole };
        let variants = [resident, Timed { walk: none, ..whole }, whole];
        for (passing, timed) in stretch.passing.iter_mut().zip(&variants) {
            passing.pass(&self.core, timed);
        }
        stretch.done += 1;
        let left = stretch.passing.each_ref().map(|passing| passing.left().0);
        if stretch.done == LEAD {
            stretch.begun = (left, stretch.instruction);
        } else if stretch.done > LEAD {
            stretch.data_latency += (whole.data - self.core.l1d_latency).0 + whole.second_tlb.0;
            stretch.walk_latency += whole.walk.0;
        }
        if stretch.done == LEAD + COUNTED {
            let (begun, instruction) = stretch.begun;
            let [resident, data, whole] = [0, 1, 2].map(|variant| left[variant] - begun[variant]);
            self.sampled = self.sampled.plus(&Sampled {
                accesses: COUNTED,
                instructions: stretch.instruction - instruction,
                work: resident,
                // A core that waits more can come off better by a hair, as it is a greedy one.
                data: data.saturating_sub(resident),
                walk: whole.saturating_sub(data),
                data_latency: stretch.data_latency,
                walk_latency: stretch.walk_latency,
            });
            self.stretch = None;
        }
    }
}

/// Where the stretch of a period begins.
fn place(seed: u64, period: &Range<u64>) -> u64 {
    let drawn = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_add(period.start)).next_u64();
    period.start + drawn % (period.end - period.start - LEAD - COUNTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out_of_order::tests::core;
    use nestwalk_mem::Gva;

    /// The places and lengths of what is looked at of `count` accesses of two threads in turns.
    fn looked_at(waiting: &mut Waiting, turns: u64, turn: usize) -> Vec<(u64, u16, usize)> {
        let taken = Taken { data: Cycles(4), ..Taken::default() };
        let mut found = Vec::new();
        for number in 0..turns {
            let (thread, mut left) = ((number % 2) as u16, turn);
            while left > 0 {
                let (count, one_by_one) = waiting.ahead(thread, left);
                assert!((1..=left).contains(&count));
                if one_by_one {
                    found.push((waiting.at, thread, count));
                    (0..count).for_each(|_| waiting.pass(Access::load(Gva(4096)), 3, &taken));
                } else {
                    waiting.skip(count);
                }
                left -= count;
            }
        }
        found
    }

    #[test]
    fn each_period_has_a_stretch_of_one_thread() {
        let mut waiting = Waiting::new(core(), Cycles(0), 1);
        let found = looked_at(&mut waiting, 512, 4096);
        let whole: usize = found.iter().map(|(_, _, count)| count).sum();
        // 8192 to 65,536 and then 131,072 at a time: four and fifteen periods and a part of one.
        assert_eq!(whole as u64 / (LEAD + COUNTED), 19 + u64::from(waiting.sampled().accesses == 20 * COUNTED));
        assert_eq!(waiting.sampled().accesses % COUNTED, 0);
        let Sampled { instructions, work, data, walk, .. } = *waiting.sampled();
        assert_eq!((instructions, data, walk), (3 * waiting.sampled().accesses, 0, 0));
        assert_eq!(work, 1000 * instructions, "an instruction a cycle");
        // A stretch that its thread's turn cuts goes on when it comes again.
        let cut = found.windows(2).find(|pair| pair[0].2 as u64 + pair[1].2 as u64 == LEAD + COUNTED);
        assert!(cut.is_none_or(|pair| pair[0].1 == pair[1].1 && pair[0].0 + 4096 < pair[1].0), "{found:?}");
    }

    #[test]
    fn a_short_run_has_samples() {
        let mut waiting = Waiting::new(core(), Cycles(0), 7);
        looked_at(&mut waiting, 2, 12_288);
        assert!(waiting.sampled().shares().is_some_and(|shares| shares.accesses >= COUNTED));
        assert_eq!(Sampled::default().shares(), None);
    }
}
