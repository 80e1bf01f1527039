// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who runs when: programs share the machine's processors, and all of them advance in simulated
//! time.
//!
//! Every processor has a clock. Of all next steps, the one that begins first runs, and its
//! processor's clock advances by its cost. Programs that share a processor take turns, a time slice
//! each: the one that has waited longest comes first. A program that is not bound to a processor
//! stays where it is until another processor is idle (`newidle_balance`), or has had fewer programs
//! for a while (`load_balance`); a forked child begins where there are fewest (`find_idlest_cpu`).
//! These parts of Linux's fair scheduler decide which programs allocate beside each other;
//! priorities and wake-up preemption are left out.
//!
//! All decisions depend on cycle counts and numbers of programs alone, so the same programs always
//! interleave in the same way.

use std::ops::Range;

use nestwalk_mem::Cycles;

use crate::timing::SchedulerTimes;

/// A program, as the schedule knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Seat(usize);

impl Seat {
    /// How many joined before it.
    pub fn number(self) -> usize {
        self.0
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Processor {
    /// When it is free.
    free_at: Cycles,
    /// Whose turn it is.
    owner: Option<Seat>,
    /// When the turn ends.
    turn_ends: Cycles,
}

#[derive(Clone, Copy, Debug)]
struct Sitter {
    /// The processors that it may use: one, where it is bound.
    cpus: (usize, usize),
    /// The processor that it uses.
    at: usize,
    /// The one that it used before it began to wait for a child.
    before: usize,
    /// When its last step ended.
    ready_at: Cycles,
    /// The turn that it had last.
    turn: u64,
    alive: bool,
}

impl Sitter {
    fn may_use(&self, cpu: usize) -> bool {
        (self.cpus.0..self.cpus.1).contains(&cpu)
    }

    fn is_bound(&self) -> bool {
        self.cpus.1 - self.cpus.0 == 1
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Schedule {
    processors: Vec<Processor>,
    sitters: Vec<Sitter>,
    times: SchedulerTimes,
    mhz: u64,
    /// When the step that was chosen last began.
    now: Cycles,
    turns: u64,
    /// When processors were balanced last.
    balanced_at: Cycles,
    /// Whether that would have moved the imbalance to another processor.
    failed: bool,
}

impl Schedule {
    /// A machine with so many processors of `mhz` MHz, without programs.
    pub fn new(cpus: usize, times: SchedulerTimes, mhz: u64) -> Self {
        let processors = vec![Processor::default(); cpus.max(1)];
        let beginning = Cycles(0);
        let sitters = Vec::new();
        Self { processors, sitters, times, mhz, now: beginning, turns: 0, balanced_at: beginning, failed: false }
    }

    /// A program begins that runs on any of the processors `cpus`, at least one.
    ///
    /// # Panics
    /// When there is none, or the machine has no such processor.
    pub fn join(&mut self, cpus: Range<usize>) -> Seat {
        assert!(!cpus.is_empty() && cpus.end <= self.processors.len(), "{cpus:?} of {}", self.processors.len());
        let cpus = (cpus.start, cpus.end);
        let at = self.idlest(cpus);
        self.sitters.push(Sitter { cpus, at, before: at, ready_at: self.now, turn: 0, alive: true });
        Seat(self.sitters.len() - 1)
    }

    /// The seat before which `number` others joined.
    pub fn seat(&self, number: usize) -> Seat {
        debug_assert!(number < self.sitters.len());
        Seat(number)
    }

    /// A program has ended.
    pub fn leave(&mut self, seat: Seat) {
        self.sitters[seat.0].alive = false;
    }

    /// The next step of a bound program needs another processor: its next thread runs there.
    pub fn bind(&mut self, seat: Seat, cpu: usize) {
        let sitter = &mut self.sitters[seat.0];
        if sitter.is_bound() {
            (sitter.cpus, sitter.at) = ((cpu, cpu + 1), cpu);
        }
    }

    /// The program waits for a child, which takes its seat: where there are fewest.
    pub fn fork(&mut self, seat: Seat) {
        self.end_turn(seat);
        let Sitter { cpus, at, .. } = self.sitters[seat.0];
        // The parent has not gone to sleep when the child gets its place.
        let child = self.idlest(cpus);
        let sitter = &mut self.sitters[seat.0];
        (sitter.before, sitter.at) = (at, child);
    }

    /// The child is gone, its parent goes on where it was.
    pub fn wake_parent(&mut self, seat: Seat) {
        self.end_turn(seat);
        let sitter = &mut self.sitters[seat.0];
        sitter.at = sitter.before;
    }

    fn end_turn(&mut self, seat: Seat) {
        let processor = &mut self.processors[self.sitters[seat.0].at];
        if processor.owner == Some(seat) {
            processor.owner = None;
        }
    }

    /// Programs that use the processor.
    fn count(&self, cpu: usize) -> usize {
        self.sitters.iter().filter(|sitter| sitter.alive && sitter.at == cpu).count()
    }

    /// The processor of `cpus` that the fewest programs use.
    fn idlest(&self, cpus: (usize, usize)) -> usize {
        (cpus.0..cpus.1).min_by_key(|&cpu| self.count(cpu)).unwrap_or(cpus.0)
    }

    /// The time since the beginning: when the step that was chosen last began.
    pub fn now(&self) -> Cycles {
        self.now
    }

    /// The program whose step begins next, and its processor. `None` when there are no programs.
    pub fn next(&mut self) -> Option<(Seat, usize)> {
        self.balance();
        let mut best: Option<(Cycles, u64, Seat, usize)> = None;
        for (number, sitter) in self.sitters.iter().enumerate().filter(|(_, sitter)| sitter.alive) {
            let seat = Seat(number);
            let Some((start, cpu)) = self.earliest(seat, sitter) else { continue };
            let candidate = (start, sitter.turn, seat, cpu);
            if best.is_none_or(|best| candidate < best) {
                best = Some(candidate);
            }
        }
        let (start, _, seat, cpu) = best?;
        self.now = self.now.max(start);
        self.seat_at(seat, cpu);
        Some((seat, cpu))
    }

    /// When and where a program's next step can begin; `None` while other programs have their turn
    /// wherever it can run.
    fn earliest(&self, seat: Seat, sitter: &Sitter) -> Option<(Cycles, usize)> {
        // The threads of a bound program do not wait for each other.
        let ready_at = if sitter.is_bound() { Cycles(0) } else { sitter.ready_at };
        let start = |cpu: usize| self.processors[cpu].free_at.max(ready_at).max(self.now);
        let own = self.is_open(sitter.at, seat).then(|| (start(sitter.at), sitter.at));
        if sitter.is_bound() || self.has_turn(sitter.at, seat) {
            return own;
        }
        let idle = (sitter.cpus.0..sitter.cpus.1).filter(|&cpu| self.count(cpu) == 0);
        idle.map(|cpu| (start(cpu), cpu)).chain(own).min_by_key(|&(start, cpu)| (start, cpu != sitter.at, cpu))
    }

    /// From time to time, the program that has waited longest moves from the processor with the
    /// most programs to the one with the fewest. Where they differ by one only, every second time
    /// (`detach_tasks`: the imbalance is half a program's load, which is enough to move one only
    /// once balancing has failed).
    fn balance(&mut self) {
        let interval = Cycles::of_us(self.times.balance_us * self.processors.len() as u64, self.mhz);
        if self.now - self.balanced_at < interval || self.sitters.iter().all(Sitter::is_bound) {
            return;
        }
        self.balanced_at = self.now;
        let cpus = 0..self.processors.len();
        let counts: Vec<usize> = cpus.clone().map(|cpu| self.count(cpu)).collect();
        let (Some(most), Some(fewest)) = (
            cpus.clone().max_by_key(|&cpu| (counts[cpu], std::cmp::Reverse(cpu))),
            cpus.min_by_key(|&cpu| counts[cpu]),
        ) else {
            return;
        };
        match counts[most] - counts[fewest] {
            0 => return,
            1 if !self.failed => {
                self.failed = true;
                return;
            }
            _ => self.failed = false,
        }
        let waiting = (0..self.sitters.len()).filter(|&n| {
            let sitter = &self.sitters[n];
            sitter.alive && sitter.at == most && sitter.may_use(fewest) && !self.has_turn(most, Seat(n))
        });
        if let Some(moved) = waiting.min_by_key(|&n| self.sitters[n].turn) {
            self.sitters[moved].at = fewest;
        }
    }

    /// Whether it is the program's turn there, and not over.
    fn has_turn(&self, cpu: usize, seat: Seat) -> bool {
        let processor = &self.processors[cpu];
        processor.owner == Some(seat) && processor.free_at < processor.turn_ends
    }

    /// Whether no other program has the turn there.
    fn is_open(&self, cpu: usize, seat: Seat) -> bool {
        let others = |owner: Seat| {
            let sitter = &self.sitters[owner.0];
            owner != seat && sitter.alive && sitter.at == cpu && self.has_turn(cpu, owner)
        };
        !self.processors[cpu].owner.is_some_and(others)
    }

    fn seat_at(&mut self, seat: Seat, cpu: usize) {
        let goes_on = self.has_turn(cpu, seat);
        self.sitters[seat.0].at = cpu;
        let processor = &mut self.processors[cpu];
        processor.free_at = processor.free_at.max(self.now);
        if goes_on {
            return;
        }
        self.turns += 1;
        self.sitters[seat.0].turn = self.turns;
        let running = self.count(cpu);
        let slice = self.times.slice(running, self.processors.len(), self.mhz);
        let processor = &mut self.processors[cpu];
        (processor.owner, processor.turn_ends) = (Some(seat), processor.free_at + slice);
    }

    /// The program's step took so many cycles.
    pub fn charge(&mut self, seat: Seat, cycles: Cycles) {
        let sitter = &mut self.sitters[seat.0];
        let processor = &mut self.processors[sitter.at];
        processor.free_at += cycles;
        sitter.ready_at = processor.free_at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> SchedulerTimes {
        SchedulerTimes { latency_us: 60, granularity_us: 7, balance_us: 500, source: String::new() }
    }

    /// Runs `steps` steps that cost what `cost` says; who ran where.
    fn trail(schedule: &mut Schedule, steps: usize, cost: impl Fn(Seat) -> u64) -> Vec<(usize, usize)> {
        (0..steps)
            .map(|_| {
                let (seat, cpu) = schedule.next().unwrap();
                schedule.charge(seat, Cycles(cost(seat)));
                (seat.0, cpu)
            })
            .collect()
    }

    #[test]
    fn programs_on_processors_of_their_own_go_on_at_their_own_pace() {
        let mut schedule = Schedule::new(2, times(), 1);
        schedule.join(0..1);
        schedule.join(1..2);
        let trail = trail(&mut schedule, 400, |seat| if seat == Seat(0) { 10 } else { 30 });
        assert_eq!(trail.iter().filter(|(seat, _)| *seat == 0).count(), 300);
        assert_eq!(schedule.now(), Cycles(2990));
        assert!(trail.iter().all(|(seat, cpu)| seat == cpu));
    }

    #[test]
    fn programs_on_one_processor_take_turns_of_a_slice() {
        let mut schedule = Schedule::new(1, times(), 1);
        (0..3).for_each(|_| {
            schedule.join(0..1);
        });
        // Three share 60 us: 20 each, two steps of 10.
        let order: Vec<_> = trail(&mut schedule, 9, |_| 10).into_iter().map(|(seat, _)| seat).collect();
        assert_eq!(order, [0, 0, 1, 1, 2, 2, 0, 0, 1]);
    }

    #[test]
    fn turns_do_not_get_shorter_than_the_granularity() {
        let mut schedule = Schedule::new(1, times(), 1);
        (0..20).for_each(|_| {
            schedule.join(0..1);
        });
        let order: Vec<_> = trail(&mut schedule, 16, |_| 1).into_iter().map(|(seat, _)| seat).collect();
        assert_eq!(order, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn unbound_programs_share_all_processors_evenly() {
        let mut schedule = Schedule::new(2, times(), 1);
        (0..3).for_each(|_| {
            schedule.join(0..2);
        });
        let trail = trail(&mut schedule, 6000, |_| 10);
        for seat in 0..3 {
            let steps = trail.iter().filter(|(s, _)| *s == seat).count();
            assert!((1990..=2010).contains(&steps), "program {seat}: {steps}");
            let first = trail.iter().filter(|(s, cpu)| *s == seat && *cpu == 0).count();
            assert!((1..steps).contains(&first), "program {seat} ran on both");
        }
    }

    #[test]
    fn a_program_never_runs_in_two_places_at_once() {
        let mut schedule = Schedule::new(4, times(), 1);
        schedule.join(0..4);
        trail(&mut schedule, 10, |_| 10);
        assert_eq!(schedule.now(), Cycles(90), "one program on four processors: its steps follow each other");
    }

    #[test]
    fn who_joins_late_begins_now_and_who_leaves_is_gone() {
        let mut schedule = Schedule::new(2, times(), 1);
        let first = schedule.join(0..1);
        trail(&mut schedule, 10, |_| 10);
        let late = schedule.join(1..2);
        assert_eq!(trail(&mut schedule, 1, |_| 50), [(1, 1)]);
        assert_eq!(schedule.now(), Cycles(90));
        schedule.leave(late);
        assert!(trail(&mut schedule, 20, |_| 10).iter().all(|&(seat, _)| seat == 0));
        schedule.leave(first);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_program_of_many_threads_moves_from_processor_to_processor() {
        let mut schedule = Schedule::new(2, times(), 1);
        let seat = schedule.join(0..1);
        for step in 0..10 {
            schedule.bind(seat, step % 2);
            assert_eq!(schedule.next(), Some((seat, step % 2)));
            schedule.charge(seat, Cycles(10));
        }
        assert_eq!(schedule.now(), Cycles(40), "its threads work at the same time");
    }
}
